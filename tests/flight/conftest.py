"""Fixtures: a workspace served over Flight with one table of five rows."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight.raw_client import SECRET, TENANT, RawClient, running_server, token
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
def local_lake(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    with sqlite_workspace.open() as opened:
        yield opened


@pytest.fixture
def lake(local_lake: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens: five rows in two versions."""
    lake = Lake(local_lake._workspace, Caller(TENANT, user_id("", "ada"), "ada", Role.ADMIN), local_lake._folder)
    lake.create("analytics.events", EVENTS.slice(0, 3)).append(EVENTS.slice(3))
    return lake


@pytest.fixture
def flight_context(lake: Lake) -> FlightContext:
    return FlightContext(lake._workspace, TokenVerifier(SECRET))


@pytest.fixture
def server(flight_context: FlightContext) -> Iterator[FlightServer]:
    with running_server(flight_context) as server:
        yield server


@pytest.fixture
def raw_client(server: FlightServer) -> Iterator[RawClient]:
    with RawClient(server, token()) as raw_client:
        yield raw_client
