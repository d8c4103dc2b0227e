"""`penstock demo`: output, cleanup, and the commands that it prints."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from penstock.cli import shell_hints
from penstock.errors import Unavailable
from support.cli_runner import CliRunner

NAMES = ["accruals", "actuals", "budgets", "report", "revisions"]
SCRIPT_PATH = Path(sys.executable).with_name("penstock")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, with fewer rows."""
    module = sys.modules["penstock.cli.demo"]
    monkeypatch.setattr(module, "ROWS", 2_000)
    return module


@pytest.mark.usefixtures("spark", "demo")
def test_demo_prints_results_and_leaves_no_files(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://user@nowhere.invalid/not-for-a-demo")
    monkeypatch.setenv("TMPDIR", str(cli.folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(cli.folder.iterdir())
    response = cli("demo", "--json")
    assert [d["name"] for d in response.json["datasets"]] == [f"finance.{name}" for name in NAMES]
    assert [r["operation"] for r in response.json["results"]] == ["append", "append", "append", "merge"]
    assert response.json["results"][2]["result"]["aggregated"]
    assert response.json["caught"]["reason"] == "schema_mismatch"
    assert sorted(cli.folder.iterdir()) == before


@pytest.mark.usefixtures("spark", "demo")
def test_demo_keep_prints_commands_that_run(cli: CliRunner) -> None:
    output = cli("demo", "--keep", "kept", "--serve-with", "make serve").out.decode()
    assert "Conflict:" in output
    assert "the query is valid again: 5 rows of finance.report version 4" in output
    assert ["account_group", "string", "null"] in [line.split() for line in output.splitlines()]
    assert "serve it:      make serve " in output
    assert len(cli("dataset", "list", "-w", "kept/lake", "--json").json) == len(NAMES)
    assert "exists already" in cli("demo", "--keep", "kept", code=2).err
    commands = [shlex.split(line.partition(":")[2]) for line in output.splitlines() if "kept/" in line]
    assert {Path(program).name for program, *_ in commands} == {"penstock"}
    history, read_command = (words for _, *words in commands)
    assert len(cli(*history, "--json").json) == 4
    assert "is valid" in cli("validate", *read_command[1:]).err

    def read_totals() -> dict[str, tuple[int, int]]:
        rows = cli("query", "budget versus actual", "-w", "kept/lake", "--json").json
        return {row["account_group"]: (round(row["budget"]), round(row["actual"])) for row in rows}

    cli(*read_command)
    first_totals = read_totals()
    cli(*read_command)
    assert read_totals() == first_totals


@pytest.mark.usefixtures("spark")
def test_demo_failure_leaves_no_folder(cli: CliRunner, demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        assert [path.name for path in cli.folder.glob(".kept-*/lake")] == ["lake"]
        raise Unavailable("gone", "the disk is gone")

    monkeypatch.setattr(demo, "_pipeline", fail)
    before = sorted(cli.folder.iterdir())
    assert "the disk is gone" in cli("demo", "--keep", "kept", code=1).err
    assert sorted(cli.folder.iterdir()) == before


def test_format_command_uses_the_name_on_path_or_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT_PATH)])
    monkeypatch.setenv("PATH", f"{SCRIPT_PATH.parent}{os.pathsep}{os.defpath}")
    assert shell_hints.format_command("run", "a file.json") == "penstock run 'a file.json'"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(SCRIPT_PATH.parents[2])
    assert shell_hints.format_command("run") == f"{SCRIPT_PATH.relative_to(SCRIPT_PATH.parents[2])} run"
    monkeypatch.chdir(tmp_path)
    assert shell_hints.format_command("run") == f"{SCRIPT_PATH} run"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert shell_hints.format_command("run") == f"{SCRIPT_PATH} run"
