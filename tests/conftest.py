"""The places that tests happen in: both databases, a workspace each, callers of two tenants."""

import gc
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import hypothesis
import pyarrow as pa
import pytest

import penstock
from penstock.catalog import migrate
from penstock.catalog.database import Database
from penstock.core.caller import Caller, Role
from penstock.lake import Dataset, Lake
from penstock.service.workspace import Workspace
from support import compiled_statements, markers, postgres_server, s3_server, xdist_groups
from support.cli_runner import CliRunner
from support.workspaces import WorkspaceFixture

SOAK = bool(os.environ.get("PENSTOCK_SOAK"))
QUICK = bool(os.environ.get("PENSTOCK_QUICK"))


def examples(usual: int, *, soak: int) -> int:
    """Return the number of examples of a random test: `make soak` runs `soak`, `make quick` a tenth of `usual`."""
    return soak if SOAK else math.ceil(usual / 10) if QUICK else usual


# No test depends on how fast the machine is, and every random one can be run again as it was.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples(100, soak=1_000))
hypothesis.settings.load_profile("penstock")

# Java compiles everything once, quickly, and never again: no test lasts long enough to earn back more. Every Java that a
# test starts reads this, and it halves what Spark costs.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

compiled_statements.share()

NOT_TESTED = "NOT TESTED: "


@pytest.fixture(scope="session")
def soak() -> bool:
    """Return whether the tests run with the full numbers (make soak)."""
    return SOAK


def not_tested(what: str, why: str) -> NoReturn:
    """Skip the test and list the reason again at the end of the report."""
    pytest.skip(f"{NOT_TESTED}{why}: {what}")


@pytest.fixture(scope="session", name="s3_server")
def s3_server_fixture() -> Iterator[s3_server.S3Server]:
    """A real S3 server."""
    if reason := s3_server.missing():
        not_tested("nothing was stored in a bucket", reason)
    with s3_server.server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: s3_server.S3Server) -> str:
    """The name of a new, empty bucket."""
    return s3_server.create_bucket(f"test-{uuid4().hex}")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session of Spark for the whole run, with settings that a merge must not depend on."""
    from support import spark_sessions

    xdist_groups.assert_grouped()
    if spark_sessions.java() is None:
        not_tested("nothing ran on Spark", "Java is not installed (apt-get install openjdk-17-jre-headless)")
    with spark_sessions.session() as session:
        yield session


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Any]:
    """A master and two workers."""

    from support import spark_sessions

    if spark_sessions.java() is None:
        not_tested("no merge ran on a cluster", "Java is not installed (apt-get install openjdk-17-jre-headless)")
    with spark_sessions.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if postgres_server.binaries() is None:
        not_tested("half of the catalog suite did not run", "PostgreSQL is not installed (apt-get install postgresql)")
    with postgres_server.server() as url:
        db = Database(url)
        migrate.migrate(db)
        db.close()
        yield url


@pytest.fixture
def edit_mode() -> str:
    """Return the edit mode of workspaces. A module that tests edits overrides this fixture, to run in both modes."""
    return "auto"


@pytest.fixture(params=["sqlite", "postgresql"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, edit_mode: str) -> WorkspaceFixture:
    """A workspace to be opened, by this process or another, on each kind of database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return WorkspaceFixture.make(tmp_path / "workspace", url, edit_mode)


@pytest.fixture
def sqlite_workspace(tmp_path: Path, edit_mode: str) -> WorkspaceFixture:
    return WorkspaceFixture.make(tmp_path / "workspace", None, edit_mode)


@pytest.fixture
def lake(workspace: WorkspaceFixture) -> Iterator[Lake]:
    with workspace.open() as lake:
        yield lake


@pytest.fixture
def opened_workspace(lake: Lake) -> Workspace:
    return lake._workspace


@pytest.fixture
def other_tenant(lake: Lake) -> Lake:
    """The same workspace as another tenant sees it."""
    return Lake(lake._workspace, Caller(uuid4(), uuid4(), "mallory", Role.ADMIN), lake._folder)


@pytest.fixture
def three_rows(lake: Lake) -> Dataset:
    """A dataset of three rows."""
    return lake.create("demo.numbers", pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"]}))


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blank") / "lake"
    penstock.open(folder, create=True).close()
    return folder


@pytest.fixture
def shell(
    blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> CliRunner:
    shutil.copytree(blank, tmp_path / "lake")
    shell = CliRunner(tmp_path, capsysbinary)
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_WORKSPACE", "PENSTOCK_DURABLE"):
        monkeypatch.setenv(name, shell.env[name])
    return shell


@pytest.fixture
def orders(shell: CliRunner) -> str:
    """A dataset of two versions: three rows, then five."""
    Path("three.csv").write_text("id,word\n1,one\n2,two\n3,three\n")
    Path("two.csv").write_text("id,word\n4,\n5,five\n")
    shell("dataset", "import", "shop.orders", "three.csv")
    shell("dataset", "import", "shop.orders", "two.csv")
    return "shop.orders"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if QUICK and markers.is_slow_module(collection_path) else None  # importing them takes seconds


@pytest.hookimpl(tryfirst=True)  # before -m selects by the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers.mark(items)
    xdist_groups.arrange(config, items)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of collected tests stay until the end: no later garbage collection needs to visit them


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["groups"] = str(xdist_groups.groups_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> xdist_groups.GroupScheduler:
    return xdist_groups.GroupScheduler(config, log, xdist_groups.groups_file(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])}
    for line in sorted(reason for reason in reasons if reason.startswith(NOT_TESTED)):
        terminalreporter.write_line(line, red=True, bold=True)
