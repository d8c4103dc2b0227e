"""Test that the documentation is complete and names only things that exist."""

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

from penstock import config, errors
from penstock.cli import cli
from penstock.flight import table_actions, transaction_actions
from penstock.rest.metrics import Metrics
from penstock.rest.route_execution import RouteExecutor
from penstock.rest.worker_metrics import WorkerMetrics
from penstock.service.doctor import JAVA
from penstock.service.transactions.client import ClientTransactions
from support.doc_pages import PAGES, ROOT, text
from support.workspaces import WorkspaceFixture
from tools import docs

WRITTEN = [page for page in PAGES if page.removeprefix("docs/") not in docs.PAGES]  # pages that are not generated
PROSE = "\n".join(map(text, WRITTEN))
SETTINGS = {field.metadata["variable"] for field in fields(config.Settings)}
FOR_TESTS = {"PENSTOCK_SOAK", "PENSTOCK_QUICK"}

# Modules that raise an error with a computed reason, and the source of the reason on the errors page.
COMPUTED_REASONS = {
    "cancellation": {"self._reason"},
    "storage/object_store": {"reason"},  # a table by the code of the response
    "core/result_schema/parse": {"_REASONS[problem]", "key", "main.reason"},  # rows of the table of reasons
    "catalog/versioned_store": {  # rows of the table of reasons
        "f'{self.entry_type}_changed'",
        "f'{self.entry_type}_not_found'",
        "f'{self.entry_type}_name_taken{variant}'",
        "f'{self.entry_type}_not_deleted'",
        "f'version_not_found.{self.entry_type}'",
    },
    "core/pipeline/parse": {"reason"},  # the page's table of operations
    "core/pipeline/plan": {"f'{operation.type}_{number}'", "reason"},  # the page's table of operations
    "core/payload/object_reader": {"_REASONS[problem]", "key", "reason"},  # rows of the table of reasons
    "core/registry/lifecycle": {"key"},  # rows of the table of reasons
    "core/registry/schema_entry": {"main.reason", "f'immutable_{member}'", "key"},  # rows of the table of reasons
    "flight/rpc": {"reason"},  # the table UNIMPLEMENTED: variants of not_implemented
    "service/admission": {"_BUSY_REASONS[exhausted]"},  # rows of the table of reasons
    "service/memory_budget": {"_REASONS[exhausted]"},  # rows of the table of reasons
    "rest/openapi/operations": {"reason"},  # examples of the page's table of operations
    "rest/routes/operations": {"reason"},  # the page's table of operations
    "service/pipelines/planning": {"error.reason"},
    "service/queries/sandbox/client": {"reason"},  # the same calls, in the child process
    "service/datasets/row_source": {"error.reason"},
    "service/auth/tokens": {"_ERRORS.get(type(error), _UNREADABLE)"},  # in the table of reasons
}


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_setting_is_explained_on_a_page(setting: str) -> None:
    assert re.search(rf"\b{setting}\b", PROSE), (
        "settings.md has a line of it; docs/operations.md should state its purpose"
    )


def test_settings_named_on_pages_exist() -> None:
    settings = set(re.findall(r"\bPENSTOCK_[A-Z_]+", PROSE)) - FOR_TESTS
    families = {name for name in settings if name.endswith("_")}  # PENSTOCK_QUERY_*
    assert settings - families <= SETTINGS
    assert all(any(setting.startswith(family) for setting in SETTINGS) for family in families)


def commands(command: click.Command = cli, path: tuple[str, ...] = ("penstock",)) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_command_help_is_on_the_commands_page(path: tuple[str, ...]) -> None:
    options = {"terminal_width": 100, "max_content_width": 100}
    message = CliRunner().invoke(cli, [*path[1:], "--help"], prog_name="penstock", **options)
    assert message.exit_code == 0
    assert f"\n## {' '.join(path)}\n\n```text\n{message.output}```" in text("docs/reference/commands.md")


@pytest.mark.parametrize("path", [path for path in commands() if len(path) > 1], ids=" ".join)
def test_command_is_used_on_a_page(path: tuple[str, ...]) -> None:
    assert re.search(rf"\b{' '.join(path)}\b", PROSE), "commands.md has its help; a page should say when to use it"


@pytest.mark.parametrize("page", WRITTEN)
def test_commands_and_options_on_pages_exist(page: str) -> None:
    printed = re.findall(r"(?:`|^|[A-Z_]=\S+ )penstock ([a-z][^`|;&#\n]*)", text(page), re.MULTILINE)
    assert [message for message in printed if not _is_valid_command(message.split())] == []


def _is_valid_command(words: list[str]) -> bool:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0].isalpha():
        if words[0] not in command.commands:
            return False
        command = command.commands[words.pop(0)]
    existing = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= existing | {"--help"}


# In a separate process: the UI can be mounted once in each process.
SERVED = """
import json, sys, penstock
from fastapi.routing import iter_route_contexts
from penstock.cli.serve import _find_ui
from penstock.rest.app import create_app
from penstock.rest.context import RestContext

with penstock.open(sys.argv[1]) as lake:
    app = create_app(RestContext.create(lake._workspace, None, lake.caller), _find_ui(dev=True))
    print(json.dumps([[route.path, sorted(route.methods or ())] for route in iter_route_contexts(app.routes)]))
"""


def test_routes_page_lists_exactly_the_served_routes(sqlite_workspace: WorkspaceFixture) -> None:
    command = [sys.executable, "-c", SERVED, sqlite_workspace.folder]
    routes = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    parts = {path for path, _ in routes if path.startswith("/docs/")} | {"/favicon.ico"}  # of the page /docs
    served_routes = {(method, path) for path, methods in routes for method in methods or ["GET"] if path not in parts}
    page = text("docs/reference/routes.md")
    rows = set(re.findall(r"^\| ([A-Z]+) \| `(/\S*)` \| \S", page, re.MULTILINE))
    browser_paths = set(re.findall(r"`(/\S*)`", page)) - {path for _, path in rows}  # paths for browsers
    assert served_routes == rows | {("GET", path) for path in browser_paths}


def test_flight_page_names_every_action(sqlite_workspace: WorkspaceFixture) -> None:
    page = text("docs/flight.md")
    with sqlite_workspace.open() as lake:
        existing = {*table_actions.ACTIONS, *transaction_actions.build_actions(ClientTransactions(lake._workspace))}
    assert {name for name in existing if f"`{name}`" not in page} == set()


def test_operations_page_lists_exactly_the_metrics(sqlite_workspace: WorkspaceFixture) -> None:
    with sqlite_workspace.open() as lake:
        metrics = Metrics(lake._run_worker, lake._query_executor, RouteExecutor(), lake._workspace.memory)
        families = [*metrics.registry.collect(), *WorkerMetrics().registry.collect()]
    metric_names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    table = re.findall(r"`(penstock_[a-z_]+)`", text("docs/operations.md"))
    roles = {"penstock_app", "penstock_owner", "penstock_service", "penstock_backup"}  # of PostgreSQL
    assert set(table) - roles == metric_names


def test_error_reasons_in_the_source_are_on_the_errors_page() -> None:
    """The page is generated from the source; modules with computed reasons must be in `COMPUTED_REASONS`."""
    class_names = {error_class.__name__ for error_class in errors.KINDS}
    unread = dict[str, set[str]]()
    for path in docs.SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        words = {name for node in tree.body if isinstance(node, ast.Assign) for name in map(ast.unparse, node.targets)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in class_names):
                continue
            reason = node.args[0]
            if not isinstance(reason, ast.Constant | ast.Starred) and ast.unparse(reason) not in words:
                module = str(path.relative_to(docs.SOURCE).with_suffix(""))
                unread.setdefault(module, set()).add(ast.unparse(reason))
    assert unread == COMPUTED_REASONS


def test_problem_codes_in_the_source_are_on_the_errors_page() -> None:
    """Problems without an exception: `problem_document("reason", …)` over HTTP, `(REASON_HEADER, "reason")` over Flight."""
    response = set()
    for path in docs.SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name("problem_document") | ast.Attribute(attr="problem_document"),
                    args=[ast.Constant(reason), *_],
                ):
                    response.add(reason)
                case ast.Tuple(elts=[ast.Name("REASON_HEADER"), ast.Constant(reason)]):
                    response.add(reason)
    page = text("docs/reference/errors.md")
    assert response
    assert {reason for reason in response if f"| `{reason.upper()}` |" not in page} == set()


def test_pages_name_the_java_versions_of_doctor() -> None:
    assert set(re.findall(r"Java (\d+ \w+ \w+)", PROSE)) == {f"{JAVA[0]} to {JAVA[1]}"}


NAMED = sorted(set(re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", PROSE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=["::".join(filter(None, pair)) for pair in NAMED])
def test_tests_named_on_pages_exist(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


LAYERS = "|".join(path.name for path in docs.SOURCE.iterdir() if path.is_dir())
MODULE_PATHS = sorted(set(re.findall(rf"`((?:{LAYERS})/[\w/]+(?:\.\w+)?)`", PROSE)))


@pytest.mark.parametrize("location", MODULE_PATHS)
def test_modules_named_on_pages_exist(location: str) -> None:
    assert any((docs.SOURCE / f"{location}{ending}").exists() for ending in ("", ".py"))


def test_tree_page_names_every_source_folder() -> None:
    page = text("docs/decisions/0002-tree-and-tables.md")
    parts = [path for path in docs.SOURCE.rglob("__init__.py") if path.parent != docs.SOURCE]
    folders = {str(path.parent.relative_to(docs.SOURCE)) for path in parts} - {"catalog/migrations", "engines/arrow"}
    assert {folder for folder in folders if f"`{folder}`" not in page and f"`{folder}/" not in page} == set()
