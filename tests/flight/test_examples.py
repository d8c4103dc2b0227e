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
from flight.raw_client import OTHER, SECRET, TENANT, token

EXAMPLES = Path(__file__).parents[2] / "examples" / "flight"
PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
FETCHED_WITHIN = 120  # seconds; a proxy that says nothing is no proxy
# Whatever is set outside: nothing in the tree is written, no other Go is fetched, no C compiler is needed.
GO = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
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
    _check_output([_compiled(tmp_path), address], address, OTHER)


def _check_output(command: Sequence[str], address: str, tenant: UUID) -> None:
    sent = token(tenant=tenant)
    run = subprocess.run(command, env={**os.environ, "PENSTOCK_TOKEN": sent}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == EXPECTED_OUTPUT
    with penstock.flight_client(address, sent) as client:
        assert client.read("analytics.events").read_all()["id"].to_pylist() == [2]
        assert client.read("analytics.archive").read_all().to_pylist() == [
            {"id": 1, "kind": "open", "value": 0.5},
            {"id": 3, "kind": "open", "value": 2.5},
        ]


def _compiled(folder: Path) -> str:
    what = "the Flight client in Go was not run"
    if (go := shutil.which("go")) is None:
        skip_untested(what, "Go is not installed (https://go.dev/dl)")
    module, env = EXAMPLES / "go", {**os.environ, **GO}
    try:
        fetched = subprocess.run(
            [go, "mod", "download"], cwd=module, env=env, capture_output=True, text=True, timeout=FETCHED_WITHIN
        )
    except subprocess.TimeoutExpired:
        skip_untested(what, f"Go's modules were not fetched within {FETCHED_WITHIN} seconds")
    if fetched.returncode:
        skip_untested(what, f"Go's modules cannot be fetched ({_first_line(fetched.stderr)})")
    program = folder / "flight"
    built = subprocess.run([go, "build", "-o", str(program), "."], cwd=module, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return str(program)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
