"""A workspace served over Flight: its table of five rows, an admin, and pyarrow's own client."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from edges.flight.stage import SECRET, TENANT, Raw, served, token
from penstock.core.caller import Caller, Role, person
from penstock.flight.context import Edge
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.auth.tokens import Tokens
from workspaces import Place

EVENTS = pa.table(
    {"id": [1, 2, 3, 4, 5], "word": ["one", "two", None, "four", "five"]},
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())]),
)


@pytest.fixture
def local(embedded: Place) -> Iterator[Lake]:
    with embedded.open() as opened:
        yield opened


@pytest.fixture
def lake(local: Lake) -> Lake:
    """The workspace as the tokens' tenant has it: five rows in two versions."""
    lake = Lake(local.workspace, Caller(TENANT, person("", "ada"), "ada", Role.ADMIN), local.home)
    lake.create("analytics.events", EVENTS.slice(0, 3)).append(EVENTS.slice(3))
    return lake


@pytest.fixture
def edge(lake: Lake) -> Edge:
    return Edge(lake.workspace, Tokens(SECRET))


@pytest.fixture
def server(edge: Edge) -> Iterator[FlightServer]:
    with served(edge) as server:
        yield server


@pytest.fixture
def raw(server: FlightServer) -> Iterator[Raw]:
    with Raw(server, token()) as raw:
        yield raw
