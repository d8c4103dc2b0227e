"""Whatever there is, is documented; and what the documentation names is there."""

import ast
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import click
import pytest

import postgres
from conftest import not_tested
from penstock import config, errors
from penstock.cli import cli
from penstock.flight import actions, transactions
from penstock.http.metrics import Metrics
from penstock.service.transactions import Transactions
from places import Place
from test_docs import PAGES, ROOT, blocks
from tools import docs

WRITTEN = [page for page in PAGES if page.name not in docs.PAGES]  # by people
PROSE = "\n".join(page.read_text() for page in WRITTEN)
SETTINGS = {each.metadata["variable"] for each in fields(config.Settings)}
FOR_TESTS = {"PENSTOCK_SOAK"}

# Errors that are raised with a reason which somebody else has said: who, and where the page has it from.
PASSED_ON = {
    "core/contract/promise": {"worst.code"},  # docs.CARRIERS
    "core/operations": {"f'{operation.type}_{number}'", "reason"},  # the page's table of operations
    "core/reading": {"reason"},  # docs.CARRIERS
    "core/registry": {"first.reason", "f'{member}_is_fixed'"},  # raised before; docs.ALSO
    "http/operations": {"reason"},  # the page's table of operations
    "service/readiness": {"refusal.reason"},
    "service/sandbox/conversation": {"reason"},  # in the child, by the same words
    "service/source": {"refusal.reason"},
}


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_a_setting_is_explained_by_somebody(setting: str) -> None:
    assert re.search(rf"\b{setting}\b", PROSE), (
        "settings.md has a line of it; docs/operations.md should say what it is for"
    )


def test_settings_that_are_named_are_there() -> None:
    named = set(re.findall(r"\bPENSTOCK_[A-Z_]+", PROSE)) - FOR_TESTS
    families = {name for name in named if name.endswith("_")}  # PENSTOCK_QUERY_*
    assert named - families <= SETTINGS
    assert all(any(setting.startswith(family) for setting in SETTINGS) for family in families)


def commands(command: click.Command = cli, path: tuple[str, ...] = ("penstock",)) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_a_command_has_its_help_on_the_page(path: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert f"\n## {' '.join(path)}\n\n```text\nUsage: {' '.join(path)} " in page


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_that_are_shown_are_there(page: Path) -> None:
    shown = re.findall(r"(?:`|^|[A-Z_]=\S+ )penstock ([a-z][^`|;&#\n]*)", page.read_text(), re.MULTILINE)
    assert [said for said in shown if not _is_known(said.split())] == []


def _is_known(words: list[str]) -> bool:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0].isalpha():
        if words[0] not in command.commands:
            return False
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}


def test_a_route_is_on_the_page_with_its_method_and_what_it_is_for() -> None:
    page = (ROOT / "docs" / "routes.md").read_text()
    missing = [route for route in docs.routes() if "| {1} | `{0}` | {2} |".format(*route) not in page]
    assert missing == []
    assert all(summary for _, _, summary in docs.routes())


def test_every_action_over_flight_is_told_of(embedded: Place) -> None:
    page = (ROOT / "docs" / "flight.md").read_text()
    with embedded.open() as lake:
        known = {*actions.ACTIONS, *transactions.actions(Transactions(lake.workspace))}
    assert {name for name in known if f"`{name}`" not in page} == set()


def test_every_metric_is_told_of_and_none_that_is_not_there(embedded: Place) -> None:
    with embedded.open() as lake:
        families = list(Metrics(lake.runner, lake.results).registry.collect())
    there = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    table = re.findall(r"`(penstock_[a-z_]+)`", (ROOT / "docs" / "operations.md").read_text())
    roles = {"penstock_app", "penstock_owner", "penstock_service", "penstock_backup"}  # of PostgreSQL
    assert set(table) - roles == there


def test_no_error_has_a_reason_that_the_page_does_not_know() -> None:
    """The page is made by reading the source. What cannot be read there must be known to come from elsewhere."""
    kinds = {kind.__name__ for kind in errors.KINDS}
    unread = dict[str, set[str]]()
    for path in docs.SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        words = {name for node in tree.body if isinstance(node, ast.Assign) for name in map(ast.unparse, node.targets)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds):
                continue
            reason = node.args[0]
            if not isinstance(reason, ast.Constant | ast.Starred) and ast.unparse(reason) not in words:
                module = str(path.relative_to(docs.SOURCE).with_suffix(""))
                unread.setdefault(module, set()).add(ast.unparse(reason))
    assert unread == PASSED_ON


NAMED = sorted(set(re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", PROSE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=["::".join(filter(None, pair)) for pair in NAMED])
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


def test_the_page_on_operations_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if postgres.binaries() is None:
        not_tested("the commands of docs/operations.md did not run", "PostgreSQL is not installed")
    with postgres.server() as url:
        session = "\n".join(blocks("docs/operations.md", "sh"))
        for shown, real in {
            "db.example:5432": re.sub(r".*@(.*)/.*", r"\1", url),
            "//postgres@": "//owner@",
            "8080": str(_free_port()),
            "8815": str(_free_port()),
        }.items():
            assert shown in session
            session = session.replace(shown, real)
        status, said = _run(session, tmp_path)
    assert status == 0, said
    assert '"status":"ready"' in said.replace(" ", "")
    assert '"role":"analytics.viewer"' in said.replace(" ", "")
    assert "1 files are as they were written" in said
    assert said.rstrip().endswith('2,"APAC",80')
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/operations.md", "python"):
        exec(block, {})


def _run(session: str, folder: Path) -> tuple[int, str]:
    """The session in a shell; whatever it leaves behind is ended."""
    path = f"{Path(sys.executable).parent}:{postgres.binaries()}:/usr/bin:/bin"
    with (folder / "said").open("w+") as said:
        shell = subprocess.Popen(
            ["sh", "-e", "-c", session],
            cwd=folder,
            env={"PATH": path, "HOME": str(folder)},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = shell.wait(300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        said.seek(0)
        return status, said.read()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port: int = place.getsockname()[1]
        return port
