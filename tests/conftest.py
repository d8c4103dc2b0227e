"""The places that tests happen in: both databases, a workspace each, callers of two tenants."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import hypothesis
import pyarrow as pa
import pytest

import postgres
import xdist_groups as shares
from penstock.catalog import migrate as upgrade
from penstock.catalog.database import Database
from penstock.core.caller import Caller, Role
from penstock.lake import Dataset, Lake
from penstock.service.workspace import Workspace
from workspaces import Place

SOAK = bool(os.environ.get("PENSTOCK_SOAK"))

# No test depends on how fast the machine is, and every random one can be run again as it was.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=1000 if SOAK else 100)
hypothesis.settings.load_profile("penstock")

# Java compiles everything once, quickly, and never again: no test lasts long enough to earn back more. Every Java that a
# test starts reads this, and it halves what Spark costs.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

NOT_TESTED = "NOT TESTED: "


@pytest.fixture(scope="session")
def soak() -> bool:
    """Are these the full numbers?"""
    return SOAK


def not_tested(what: str, why: str) -> NoReturn:
    """Skip, and say so once more at the end, where nobody can overlook it."""
    pytest.skip(f"{NOT_TESTED}{why}: {what}")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session of Spark for the whole run, with settings that a merge must not depend on."""
    import spark_sessions as sparks

    shares.assert_known()
    if sparks.java() is None:
        not_tested("nothing ran on Spark", "Java is not installed (apt-get install openjdk-17-jre-headless)")
    with sparks.session() as session:
        yield session


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Any]:
    """A master and two workers."""
    import spark_sessions as sparks

    if sparks.java() is None:
        not_tested("no merge ran on a cluster", "Java is not installed (apt-get install openjdk-17-jre-headless)")
    with sparks.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if postgres.binaries() is None:
        not_tested("half of the catalog suite did not run", "PostgreSQL is not installed (apt-get install postgresql)")
    with postgres.server() as url:
        db = Database(url)
        upgrade.migrate(db)
        db.close()
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A workspace to be opened, by this process or another, on each kind of database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return Place.make(tmp_path / "workspace", url)


@pytest.fixture
def embedded(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "workspace", None)


@pytest.fixture
def lake(place: Place) -> Iterator[Lake]:
    with place.open() as lake:
        yield lake


@pytest.fixture
def ws(lake: Lake) -> Workspace:
    return lake.workspace


@pytest.fixture
def stranger(lake: Lake) -> Lake:
    """The same workspace as another tenant sees it."""
    return Lake(lake.workspace, Caller(uuid4(), uuid4(), "mallory", Role.ADMIN), lake.home)


@pytest.fixture
def numbers(lake: Lake) -> Dataset:
    """A dataset of three rows."""
    return lake.create("demo.numbers", pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"]}))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.note(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["shares"] = str(shares.letter(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> shares.Dealer:
    return shares.Dealer(config, log, shares.letter(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])}
    for line in sorted(reason for reason in reasons if reason.startswith(NOT_TESTED)):
        terminalreporter.write_line(line, red=True, bold=True)
