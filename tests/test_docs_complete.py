"""Whatever there is, is documented; and what the documentation names is there."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from doc_pages import PAGES, ROOT, text
from penstock import config, errors
from penstock.cli import cli
from penstock.flight import table_actions as actions
from penstock.flight import transaction_actions as transactions
from penstock.rest.metrics import Metrics
from penstock.service.doctor import JAVA
from penstock.service.transactions.client import Transactions
from workspaces import Place
from tools import docs

WRITTEN = [page for page in PAGES if page.removeprefix("docs/") not in docs.PAGES]  # by people
PROSE = "\n".join(map(text, WRITTEN))
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
def test_what_a_command_says_of_itself_is_on_the_page(path: tuple[str, ...]) -> None:
    shape = {"terminal_width": 100, "max_content_width": 100}
    said = CliRunner().invoke(cli, [*path[1:], "--help"], prog_name="penstock", **shape)
    assert said.exit_code == 0
    assert f"\n## {' '.join(path)}\n\n```text\n{said.output}```" in text("docs/commands.md")


@pytest.mark.parametrize("path", [path for path in commands() if len(path) > 1], ids=" ".join)
def test_a_command_is_shown_by_somebody(path: tuple[str, ...]) -> None:
    assert re.search(rf"\b{' '.join(path)}\b", PROSE), "commands.md has its help; a page should say when to use it"


@pytest.mark.parametrize("page", WRITTEN)
def test_commands_and_options_that_are_shown_are_there(page: str) -> None:
    shown = re.findall(r"(?:`|^|[A-Z_]=\S+ )penstock ([a-z][^`|;&#\n]*)", text(page), re.MULTILINE)
    assert [said for said in shown if not _is_known(said.split())] == []


def _is_known(words: list[str]) -> bool:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0].isalpha():
        if words[0] not in command.commands:
            return False
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}


# In a process of its own: what serves pages can be put together once in each.
SERVED = """
import json, sys, penstock
from fastapi.routing import iter_route_contexts
from penstock.cli.serve import _pages
from penstock.http.app import application
from penstock.http.edge import Edge

with penstock.open(sys.argv[1]) as lake:
    app = application(Edge(lake.workspace, None, lake.caller), _pages(dev=True))
    print(json.dumps([[route.path, sorted(route.methods or ())] for route in iter_route_contexts(app.routes)]))
"""


def test_whatever_is_served_is_on_the_page_of_routes_and_nothing_else_is(embedded: Place) -> None:
    command = [sys.executable, "-c", SERVED, embedded.folder]
    routes = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    parts = {path for path, _ in routes if path.startswith("/docs/")} | {"/favicon.ico"}  # of the page /docs
    served = {(method, path) for path, methods in routes for method in methods or ["GET"] if path not in parts}
    page = text("docs/routes.md")
    rows = set(re.findall(r"^\| ([A-Z]+) \| `(/\S*)` \| \S", page, re.MULTILINE))
    beside = set(re.findall(r"`(/\S*)`", page)) - {path for _, path in rows}  # for browsers
    assert served == rows | {("GET", path) for path in beside}


def test_every_action_over_flight_is_told_of(embedded: Place) -> None:
    page = text("docs/flight.md")
    with embedded.open() as lake:
        known = {*actions.ACTIONS, *transactions.actions(Transactions(lake.workspace))}
    assert {name for name in known if f"`{name}`" not in page} == set()


def test_every_metric_is_told_of_and_none_that_is_not_there(embedded: Place) -> None:
    with embedded.open() as lake:
        families = list(Metrics(lake.runner, lake.results).registry.collect())
    there = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    table = re.findall(r"`(penstock_[a-z_]+)`", text("docs/operations.md"))
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


def test_no_code_is_told_that_the_page_does_not_know() -> None:
    """Problems that are made without an error: `problem("reason", …)` over HTTP, `(REASON, "reason")` over Flight."""
    told = set()
    for path in docs.SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name("problem") | ast.Attribute(attr="problem"), args=[ast.Constant(reason), *_]
                ):
                    told.add(reason)
                case ast.Tuple(elts=[ast.Name("REASON"), ast.Constant(reason)]):
                    told.add(reason)
    page = text("docs/errors.md")
    assert told
    assert {reason for reason in told if f"| `{reason.upper()}` |" not in page} == set()


def test_java_is_asked_for_as_the_doctor_does() -> None:
    assert set(re.findall(r"Java (\d+ \w+ \w+)", PROSE)) == {f"{JAVA[0]} to {JAVA[1]}"}


NAMED = sorted(set(re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", PROSE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=["::".join(filter(None, pair)) for pair in NAMED])
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


LAYERS = "|".join(path.name for path in docs.SOURCE.iterdir() if path.is_dir())
PLACES = sorted(set(re.findall(rf"`((?:{LAYERS})/[\w/]+(?:\.\w+)?)`", PROSE)))


@pytest.mark.parametrize("place", PLACES)
def test_a_module_that_is_named_is_there(place: str) -> None:
    assert any((docs.SOURCE / f"{place}{ending}").exists() for ending in ("", ".py"))


def test_the_map_has_every_folder_of_the_tree() -> None:
    page = text("docs/decisions/0002-the-map-as-built.md")
    parts = [path for path in docs.SOURCE.rglob("__init__.py") if path.parent != docs.SOURCE]
    folders = {str(path.parent.relative_to(docs.SOURCE)) for path in parts} - {"catalog/migrations", "engines/arrow"}
    assert {folder for folder in folders if f"`{folder}`" not in page and f"`{folder}/" not in page} == set()
