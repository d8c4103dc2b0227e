"""The container image: sources, lock files, commands."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from fnmatch import fnmatch
from pathlib import Path

import pytest

from deployment.test_package import ROOT, clean

FILE = (ROOT / "Containerfile").read_text()
COMMANDS = [line.removeprefix("#   ") for line in FILE.splitlines() if line.startswith("#   ")]
LOCKS = {"requirements-run.lock", "requirements-build.lock"}


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.*)", FILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def pinned(lock: str) -> set[tuple[str, str]]:
    """Return names with versions and environment markers."""
    return set(re.findall(r"^(\S+==\S+)([^\\\n]*)", (ROOT / lock).read_text(), re.MULTILINE))


def test_container_sources_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    let_in = [pattern[1:] for pattern in ignored if pattern.startswith("!")]
    assert ignored[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in let_in), source
    assert set(let_in) == set(copied())


def test_container_lock_matches_the_tests_without_their_tools() -> None:
    assert set(re.findall(r"--require-hashes -r (\S+)", FILE)) == LOCKS
    for lock in LOCKS:
        assert {name for name, _ in pinned(lock)} <= {name for name, _ in pinned("requirements.lock")}
        assert "--hash=sha256:" in (ROOT / lock).read_text()
    run = {name.partition("==")[0] for name, _ in pinned("requirements-run.lock")}
    assert {"pyspark", "nicegui", "psycopg"} <= run
    assert not run & {"pytest", "playwright", "mypy", "ruff", "pandas", "polars", "hatchling"}


def test_operations_page_shows_the_container_commands() -> None:
    assert "\n".join(["```text", *COMMANDS, "```"]) in (ROOT / "docs" / "operations.md").read_text()


def test_container_commands_run_in_a_new_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each command as in the container: its entrypoint, variables and settings; only ports and Java differ."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["sh", "-e", "-c", next(line for line in COMMANDS if line.startswith("echo "))], check=True)
    setting, _, value = Path("penstock.env").read_text().strip().partition("=")
    [usual] = re.findall(r"^CMD (.*)", FILE, re.MULTILINE)
    [home] = re.findall(r"PENSTOCK_WORKSPACE=/data/(\S+)", FILE)
    env = {**clean(), setting: value, "PENSTOCK_WORKSPACE": home}
    started = [shlex.split(line) for line in COMMANDS if line.startswith("podman run")]
    submitted = [words[words.index("penstock") + 1 :] or json.loads(usual) for words in started]
    assert [words[0] for words in submitted] == ["init", "serve", "worker"]
    assert all({"--env-file", "penstock.env", "-v", "penstock:/data"} <= set(words) for words in started)

    penstock = Path(sys.executable).with_name("penstock")
    init, serve, worker = ([str(penstock), *words] for words in submitted)
    subprocess.run(init, env=env, check=True)
    serve += ["--http-port", "0", "--flight-port", "0", "--json"]
    with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            response = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")
            port = response["http"].rpartition(":")[2]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as http_response:
                assert http_response.status == 200
            subprocess.run([*worker, "--once"], env=env, check=True)  # without a signal the server runs forever
        finally:
            server.terminate()
    assert server.returncode == 0
