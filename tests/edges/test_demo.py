"""`penstock demo`: its story, what it leaves, and commands that work as it prints them."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from penstock.cli import shell_hints as hints
from penstock.errors import Unavailable
from cli_runner import Shell

NAMES = ["accruals", "actuals", "budgets", "report", "revisions"]
THERE = Path(sys.executable).with_name("penstock")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with fewer bookings."""
    module = sys.modules["penstock.cli.demo"]
    monkeypatch.setattr(module, "ROWS", 2_000)
    return module


@pytest.mark.usefixtures("spark", "demo")
def test_the_demo_tells_its_story_and_leaves_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://nobody@nowhere.invalid/not-for-a-demo")
    monkeypatch.setenv("TMPDIR", str(shell.folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(shell.folder.iterdir())
    told = shell("demo", "--json")
    assert [d["name"] for d in told.json["datasets"]] == [f"finance.{name}" for name in NAMES]
    assert [r["operation"] for r in told.json["results"]] == ["append", "append", "append", "merge"]
    assert told.json["results"][2]["result"]["aggregated"]
    assert told.json["caught"]["reason"] == "schema_mismatch"
    assert sorted(shell.folder.iterdir()) == before


@pytest.mark.usefixtures("spark", "demo")
def test_a_kept_demo_can_be_looked_at_and_made_anew_by_the_commands_that_it_prints(shell: Shell) -> None:
    story = shell("demo", "--keep", "kept", "--serve-with", "make serve").out.decode()
    assert "Conflict:" in story
    assert "keeps its promise again: 5 rows of finance.report version 4" in story
    assert ["account_group", "string", "null"] in [line.split() for line in story.splitlines()]
    assert "look around:   make serve " in story
    assert len(shell("dataset", "list", "-w", "kept/lake", "--json").json) == len(NAMES)
    assert "is there already" in shell("demo", "--keep", "kept", code=2).err
    hinted = [shlex.split(line.partition(":")[2]) for line in story.splitlines() if "kept/" in line]
    assert {Path(program).name for program, *_ in hinted} == {"penstock"}
    history, again = (words for _, *words in hinted)
    assert len(shell(*history, "--json").json) == 4
    assert "can run" in shell("validate", *again[1:]).err

    def figures() -> dict[str, tuple[int, int]]:
        rows = shell("query", "budget versus actual", "-w", "kept/lake", "--json").json
        return {row["account_group"]: (round(row["budget"]), round(row["actual"])) for row in rows}

    shell(*again)
    once = figures()
    shell(*again)
    assert figures() == once


@pytest.mark.usefixtures("spark")
def test_a_demo_that_fails_half_way_leaves_nothing_to_serve(
    shell: Shell, demo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        assert [path.name for path in shell.folder.glob(".kept-*/lake")] == ["lake"]
        raise Unavailable("gone", "the disk is gone")

    monkeypatch.setattr(demo, "_pipeline", fail)
    before = sorted(shell.folder.iterdir())
    assert "the disk is gone" in shell("demo", "--keep", "kept", code=1).err
    assert sorted(shell.folder.iterdir()) == before


def test_a_command_is_told_by_its_name_where_the_shell_finds_it_and_else_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(THERE)])
    monkeypatch.setenv("PATH", f"{THERE.parent}{os.pathsep}{os.defpath}")
    assert hints.command("run", "a file.json") == "penstock run 'a file.json'"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(THERE.parents[2])
    assert hints.command("run") == f"{THERE.relative_to(THERE.parents[2])} run"
    monkeypatch.chdir(tmp_path)
    assert hints.command("run") == f"{THERE} run"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert hints.command("run") == f"{THERE} run"
