"""Fixtures: a workspace served over Flight with one table of five rows."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight.raw_client import SECRET, TENANT, Raw, served, token
from penstock.core.caller import Caller, Role, user_id
from penstock.flight.context import FlightContext
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.auth.tokens import TokenVerifier
from support.workspaces import WorkspaceFixture

EVENTS = pa.table(
    {"id": [1, 2, 3, 4, 5], "word": ["one", "two", None, "four", "five"]},
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())]),
)


@pytest.fixture
def local(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    with sqlite_workspace.open() as opened:
        yield opened


@pytest.fixture
def lake(local: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens: five rows in two versions."""
    lake = Lake(local._workspace, Caller(TENANT, user_id("", "ada"), "ada", Role.ADMIN), local._folder)
    lake.create("analytics.events", EVENTS.slice(0, 3)).append(EVENTS.slice(3))
    return lake


@pytest.fixture
def edge(lake: Lake) -> FlightContext:
    return FlightContext(lake._workspace, TokenVerifier(SECRET))


@pytest.fixture
def server(edge: FlightContext) -> Iterator[FlightServer]:
    with served(edge) as server:
        yield server


@pytest.fixture
def raw(server: FlightServer) -> Iterator[Raw]:
    with Raw(server, token()) as raw:
        yield raw
