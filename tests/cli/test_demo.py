"""`penstock demo`: its story, what it leaves, and commands that work as it prints them."""

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
THERE = Path(sys.executable).with_name("penstock")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with fewer bookings."""
    module = sys.modules["penstock.cli.demo"]
    monkeypatch.setattr(module, "ROWS", 2_000)
    return module


@pytest.mark.usefixtures("spark", "demo")
def test_demo_prints_results_and_leaves_no_files(shell: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://user@nowhere.invalid/not-for-a-demo")
    monkeypatch.setenv("TMPDIR", str(shell.folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(shell.folder.iterdir())
    response = shell("demo", "--json")
    assert [d["name"] for d in response.json["datasets"]] == [f"finance.{name}" for name in NAMES]
    assert [r["operation"] for r in response.json["results"]] == ["append", "append", "append", "merge"]
    assert response.json["results"][2]["result"]["aggregated"]
    assert response.json["caught"]["reason"] == "schema_mismatch"
    assert sorted(shell.folder.iterdir()) == before


@pytest.mark.usefixtures("spark", "demo")
def test_demo_keep_prints_commands_that_run(shell: CliRunner) -> None:
    story = shell("demo", "--keep", "kept", "--serve-with", "make serve").out.decode()
    assert "Conflict:" in story
    assert "the query is valid again: 5 rows of finance.report version 4" in story
    assert ["account_group", "string", "null"] in [line.split() for line in story.splitlines()]
    assert "serve it:      make serve " in story
    assert len(shell("dataset", "list", "-w", "kept/lake", "--json").json) == len(NAMES)
    assert "exists already" in shell("demo", "--keep", "kept", code=2).err
    hinted = [shlex.split(line.partition(":")[2]) for line in story.splitlines() if "kept/" in line]
    assert {Path(program).name for program, *_ in hinted} == {"penstock"}
    history, again = (words for _, *words in hinted)
    assert len(shell(*history, "--json").json) == 4
    assert "is valid" in shell("validate", *again[1:]).err

    def figures() -> dict[str, tuple[int, int]]:
        rows = shell("query", "budget versus actual", "-w", "kept/lake", "--json").json
        return {row["account_group"]: (round(row["budget"]), round(row["actual"])) for row in rows}

    shell(*again)
    once = figures()
    shell(*again)
    assert figures() == once


@pytest.mark.usefixtures("spark")
def test_demo_failure_leaves_no_folder(shell: CliRunner, demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        assert [path.name for path in shell.folder.glob(".kept-*/lake")] == ["lake"]
        raise Unavailable("gone", "the disk is gone")

    monkeypatch.setattr(demo, "_pipeline", fail)
    before = sorted(shell.folder.iterdir())
    assert "the disk is gone" in shell("demo", "--keep", "kept", code=1).err
    assert sorted(shell.folder.iterdir()) == before


def test_format_command_uses_the_name_on_path_or_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(THERE)])
    monkeypatch.setenv("PATH", f"{THERE.parent}{os.pathsep}{os.defpath}")
    assert shell_hints.format_command("run", "a file.json") == "penstock run 'a file.json'"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(THERE.parents[2])
    assert shell_hints.format_command("run") == f"{THERE.relative_to(THERE.parents[2])} run"
    monkeypatch.chdir(tmp_path)
    assert shell_hints.format_command("run") == f"{THERE} run"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert shell_hints.format_command("run") == f"{THERE} run"
