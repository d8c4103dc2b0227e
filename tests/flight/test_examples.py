"""The Python and Go examples run against a server process with tokens."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

import penstock
from conftest import skip_untested
from flight.raw_client import OTHER_TENANT, SECRET, TENANT, token

EXAMPLES = Path(__file__).parents[2] / "examples" / "flight"
PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
FETCH_TIMEOUT_SECONDS = 120  # an unresponsive proxy counts as no network
# Override the environment: write no file of the source tree, fetch no other Go version, need no C compiler.
GO_ENVIRONMENT = {
    "GOFLAGS": "-mod=readonly -buildvcs=false",
    "GOWORK": "off",
    "GOTOOLCHAIN": "local",
    "CGO_ENABLED": "0",
}
EXPECTED_OUTPUT = """\
inserted 4 rows
deleted 1 rows, which other clients still see
other clients see 4 rows
committed: all clients see 3 rows
moved 2 rows: 1 left, 2 in the archive
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    workspace = tmp_path_factory.mktemp("served")
    env = {**os.environ, "PENSTOCK_WORKSPACE": str(workspace / "lake"), "PENSTOCK_JWT_SECRET": SECRET}
    subprocess.run([*PENSTOCK, "init"], env=env, check=True, capture_output=True)
    command = [*PENSTOCK, "serve", "--http-port", "0", "--flight-port", "0", "--json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout
        try:
            yield json.loads(b"".join(iter(server.stdout.readline, b"}\n")) + b"}")["flight"]
        finally:
            server.terminate()


def test_python_example_prints_expected_output(address: str) -> None:
    _check_output([sys.executable, str(EXAMPLES / "client.py"), address], address, TENANT)


def test_go_example_prints_expected_output(address: str, tmp_path: Path) -> None:
    _check_output([_compile_go_example(tmp_path), address], address, OTHER_TENANT)


def _check_output(command: Sequence[str], address: str, tenant: UUID) -> None:
    bearer_token = token(tenant=tenant)
    run = subprocess.run(command, env={**os.environ, "PENSTOCK_TOKEN": bearer_token}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == EXPECTED_OUTPUT
    with penstock.flight_client(address, bearer_token) as client:
        assert client.read("analytics.events").read_all()["id"].to_pylist() == [2]
        assert client.read("analytics.archive").read_all().to_pylist() == [
            {"id": 1, "kind": "open", "value": 0.5},
            {"id": 3, "kind": "open", "value": 2.5},
        ]


def _compile_go_example(folder: Path) -> str:
    subject = "the Flight client in Go was not run"
    if (go := shutil.which("go")) is None:
        skip_untested(subject, "Go is not installed (https://go.dev/dl)")
    module, env = EXAMPLES / "go", {**os.environ, **GO_ENVIRONMENT}
    try:
        download = subprocess.run(
            [go, "mod", "download"], cwd=module, env=env, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        skip_untested(subject, f"Go's modules were not fetched within {FETCH_TIMEOUT_SECONDS} seconds")
    if download.returncode:
        skip_untested(subject, f"Go's modules cannot be fetched ({_first_line(download.stderr)})")
    program = folder / "flight"
    build = subprocess.run([go, "build", "-o", str(program), "."], cwd=module, env=env, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    return str(program)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
