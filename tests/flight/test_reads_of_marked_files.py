"""DoGet and GetFlightInfo of a table whose files have deletion vectors."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.raw_client import RawClient, connect_pyarrow, token
from penstock.flight.server import FlightServer
from penstock.lake import Lake

TABLE = {"schema_name": "demo", "table_name": "marked"}
DELETED = {1, 50, 51, 100, 150}
LIVE = [n for n in range(1, 201) if n not in DELETED]


@pytest.fixture
def marked(lake: Lake) -> None:
    """Two files: the row with the id n has the number n. Version 3 has deletion vectors in both files."""
    ds = lake.create("demo.marked", {"n": list(range(1, 101))})
    ds.append({"n": list(range(101, 201))})
    ds.delete(sorted(DELETED))
    assert ds.current().snapshot.version.vector_files == 2


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({}, LIVE),
        ({"version": 2}, list(range(1, 201))),
        ({"filter": "n > 48 AND n < 54"}, [49, 52, 53]),
        ({"filter": "n = 1 OR n = 2 OR n = 200"}, [2, 200]),
        ({"filter": "rowid IN (50, 52, 150)"}, [52]),
        ({"filter": "rowid >= 99 AND rowid < 102", "rowid": True}, [99, 101]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("marked")
def test_do_get_of_marked_files_omits_deleted_rows(
    server: FlightServer, raw_client: RawClient, requested: dict[str, Any], expected: list[int]
) -> None:
    rows = raw_client.get({**TABLE, **requested})
    assert rows["n"].to_pylist() == expected
    if requested.get("rowid"):
        assert rows["rowid"].to_pylist() == expected
    client, options = connect_pyarrow(server, token())
    with client:
        read: pa.Table = client.do_get(fl.Ticket(json.dumps({**TABLE, **requested})), options).read_all()
        assert read.equals(rows)
        info = client.get_flight_info(fl.FlightDescriptor.for_path("demo", "marked"), options)
        assert info.total_records == len(LIVE)
