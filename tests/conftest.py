"""The places that tests happen in: both databases, a workspace each, callers of two tenants."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import hypothesis
import pyarrow as pa
import pytest

import postgres
from penstock.catalog import upgrade
from penstock.catalog.access import Database
from penstock.core.caller import Caller, Role
from penstock.lake import Dataset, Lake
from penstock.service.workspace import Workspace
from places import Place

SOAK = bool(os.environ.get("PENSTOCK_SOAK"))

# No test depends on how fast the machine is, and every random one can be run again as it was.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=1000 if SOAK else 100)
hypothesis.settings.load_profile("penstock")
_skipped: set[str] = set()


@pytest.fixture(scope="session")
def soak() -> bool:
    """Are these the full numbers?"""
    return SOAK


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if postgres.binaries() is None:
        _skipped.add("PostgreSQL is not installed (apt-get install postgresql): half of the catalog suite did not run")
        pytest.skip("PostgreSQL is not installed")
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in sorted(_skipped):
        terminalreporter.write_line(f"NOT TESTED: {line}", red=True, bold=True)
