"""The Python client: reads, writes, transactions and error classes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from flight.flight_server import House, open_house
from flight.raw_client import token
from penstock.core.caller import Role
from penstock.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PenstockError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from penstock.flight.client import FlightClient, TableInfo
from rest.test_serve import certificate
from support.workspaces import WorkspaceFixture

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
ROWS = pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"]}, SCHEMA)
ID = pa.field("rowid", pa.int64(), nullable=False)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(WorkspaceFixture.make(tmp_path_factory.mktemp("client") / "workspace", None)) as house:
        yield house


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[FlightClient]:
    with penstock.flight_client(house.address, token()) as client:
        yield client


def test_insert_python_values_uses_table_types(client: FlightClient) -> None:
    client.create("typed.values", pa.schema([("small", pa.int32()), ("word", pa.string()), ("day", pa.date32())]))
    assert client.insert("typed.values", [{"word": None, "small": 1, "day": None}]).affected_rows == 1
    assert client.insert("typed.values", {"word": ["x"], "small": [2], "day": [None]}).affected_rows == 1
    assert client.insert("typed.values", []).affected_rows == 0
    assert client.read("typed.values").read_all()["small"].to_pylist() == [1, 2]
    with pytest.raises(Invalid):
        client.insert("typed.values", [{"small": 2**40, "word": "x", "day": None}])
    for wrong in ([{"small": 1, "wrod": "x"}], ["small"], [1], {"small": [1], "word": 1}, {"small": [1, 2]}):
        with pytest.raises(Invalid):
            client.insert("typed.values", wrong)
    client.drop("typed.values")


@pytest.fixture
def table(house: House) -> str:
    return house.table(ROWS).dataset.name


def seen(client: Any, table: str) -> dict[int, str]:
    rows = client.read(table, rowid=True).read_all()
    return dict(zip(rows["rowid"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_client_creates_writes_reads_and_drops_a_table(client: FlightClient) -> None:
    client.create("shop.orders", SCHEMA)
    assert client.tables("shop") == [TableInfo("shop.orders", 1, 0)]
    written = client.insert("shop.orders", ROWS, returning=True)
    assert written.affected_rows == 3
    assert written.returned == ROWS.append_column(ID, pa.array([1, 2, 3]))
    assert client.insert("shop.orders", ROWS.slice(0, 1)).returned is None
    written = client.update("shop.orders", [3, 1], ROWS.slice(0, 2), returning=True)
    assert written.returned == ROWS.slice(0, 2).append_column(ID, pa.array([3, 1]))
    written = client.delete("shop.orders", [2, 4, 9], returning=True)
    assert (written.affected_rows, written.returned and written.returned["rowid"].to_pylist()) == (2, [2, 4])
    assert client.delete("shop.orders", [2]) == penstock.flight.client.WriteResult(0)
    assert seen(client, "shop.orders") == {1: "two", 3: "one"}
    assert TableInfo("shop.orders", 5, 2) in client.tables()
    client.drop("shop.orders")
    assert "shop.orders" not in [item.name for item in client.tables()]


def test_read_selects_columns_rows_and_version(client: FlightClient, table: str) -> None:
    client.insert(table, ROWS)
    assert client.read(table, version=1).read_all() == ROWS
    chosen = client.read(table, columns=["word"], where="id > 2", rowid=True).read_all()
    assert chosen.to_pylist() == [{"word": "three", "rowid": 3}, {"word": "three", "rowid": 6}]


def frames(folder: Path) -> dict[str, Any]:
    pq.write_table(ROWS, folder / "rows.parquet")
    return {
        "an Arrow table": ROWS,
        "a batch": ROWS.to_batches()[0],
        "a reader": ROWS.to_reader(),
        "pandas": ROWS.to_pandas(),
        "Polars": pl.from_arrow(ROWS),
        "a dict": ROWS.to_pydict(),
        "a list": ROWS.to_pylist(),
        "a file": folder / "rows.parquet",
        "its name": str(folder / "rows.parquet"),
    }


def test_insert_accepts_every_row_source(client: FlightClient, house: House, tmp_path: Path) -> None:
    for kind, rows in frames(tmp_path).items():
        name = house.table(ROWS.slice(0, 0)).dataset.name
        assert client.insert(name, rows).affected_rows == 3, kind
        assert client.read(name).read_all() == ROWS, kind
    for kind, rows in frames(tmp_path).items():
        name = house.table(ROWS).dataset.name
        assert client.update(name, [3, 2, 1], rows).affected_rows == 3, kind
        assert seen(client, name) == {1: "three", 2: "two", 3: "one"}, kind


IDS: dict[str, Any] = {
    "a list": [1, 3],
    "a tuple": (1, 3),
    "a generator": (id for id in [1, 3]),
    "numpy": np.array([1, 3]),
    "numbers of numpy": [np.int64(1), np.int32(3)],
    "Arrow": pa.array([1, 3]),
    "a column": pa.chunked_array([[1], [3]]),
    "pandas": pd.Series([1, 3]),
    "Polars": pl.Series([1, 3]),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_delete_accepts_every_integer_source(client: FlightClient, table: str, ids: Any) -> None:
    assert client.delete(table, ids).affected_rows == 2
    assert seen(client, table) == {2: "two"}


@pytest.mark.parametrize("ids", [[1.7], ["1"], [None], pa.array([1.5]), pd.Series([1.0, 2.0])], ids=str)
def test_delete_with_invalid_row_ids_is_rejected(client: FlightClient, table: str, ids: Any) -> None:
    with pytest.raises(Invalid) as raised:
        client.delete(table, ids)
    assert raised.value.reason == "bad_row_ids"
    assert len(seen(client, table)) == 3


def test_transaction_block_commits_at_its_end(client: FlightClient, table: str) -> None:
    with client.transaction() as tx:
        tx.insert(table, ROWS.slice(0, 1))
        tx.update(table, [2], ROWS.slice(2, 1))
        tx.delete(table, [3])
        assert tx.status == "active"
        assert seen(tx, table) == {1: "one", 2: "three", 4: "one"}
        assert seen(client, table) == {1: "one", 2: "two", 3: "three"}
    assert tx.status == "committed"
    assert seen(client, table) == {1: "one", 2: "three", 4: "one"}


def test_transaction_block_with_error_rolls_back(client: FlightClient, table: str) -> None:
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        tx.delete(table, [1])
        raise ZeroDivisionError
    assert tx.status == "aborted"
    with pytest.raises(NotFound) as raised, client.transaction() as tx:
        tx.delete(table, [1])
        tx.update(table, [99], ROWS.slice(0, 1))
    assert (raised.value.reason, tx.status) == ("row_not_found", "aborted")
    assert seen(client, table) == {1: "one", 2: "two", 3: "three"}


def test_transaction_block_keeps_first_error_when_rollback_fails(client: FlightClient, table: str) -> None:
    with pytest.raises(ZeroDivisionError) as raised, client.transaction() as tx:
        tx.delete(table, [1])
        tx.commit()
        raise ZeroDivisionError
    assert raised.value.__notes__ == [
        "The transaction could not be rolled back either: This transaction is committed. Begin a new one"
    ]


def test_transaction_block_with_conflict_raises_at_its_end(client: FlightClient, table: str) -> None:
    with pytest.raises(Conflict) as raised, client.transaction() as tx:
        tx.delete(table, [1])
        client.delete(table, [1])
    assert (raised.value.reason, raised.value.retry, tx.status) == ("stale_version", True, "aborted")


def _over(client: FlightClient, table: str) -> None:
    tx = client.transaction()
    tx.rollback()
    tx.insert(table, ROWS)


def _reused(client: FlightClient, table: str) -> None:
    client.insert(table, ROWS, idempotency_key="once")
    client.insert(table, ROWS.slice(1), idempotency_key="once")


ERRORS: list[tuple[Callable[[FlightClient, str], Any], type[PenstockError], str, dict[str, Any]]] = [
    (lambda client, table: client.insert(table, ROWS.select(["id"])), Invalid, "column_mismatch", {"columns": ["id", "word"]}),
    (lambda client, table: client.delete(table, []), Invalid, "empty_row_ids", {}),
    (lambda client, table: client.update(table, [1, 77], ROWS.slice(1)), NotFound, "row_not_found", {"row_id": 77, "missing_rows": 1}),
    (lambda client, _: client.read("nowhere.nothing"), NotFound, "namespace_not_found", {"schema": "nowhere"}),
    (lambda client, table: client.read(table, version=9), NotFound, "version_not_found", {"requested_version": 9}),
    (lambda client, table: client.create(table, SCHEMA), AlreadyExists, "dataset_exists", {}),
    (_reused, AlreadyExists, "key_reused", {"key": "once"}),
    (_over, Unsupported, "transaction_over", {"transaction_status": "aborted"}),
]  # fmt: skip


@pytest.mark.parametrize(("do", "kind", "reason", "facts"), ERRORS, ids=[reason for _, _, reason, _ in ERRORS])
def test_client_raises_the_error_class_of_the_server(
    client: FlightClient,
    table: str,
    do: Callable[..., Any],
    kind: type[PenstockError],
    reason: str,
    facts: dict[str, Any],
) -> None:
    with pytest.raises(kind) as raised:
        do(client, table)
    assert type(raised.value) is kind
    assert raised.value.reason == reason
    assert facts.items() <= raised.value.context.items()


def test_client_without_permission_raises_penstock_error(house: House, table: str) -> None:
    with penstock.flight_client(house.address, token(Role.VIEWER)) as viewer:
        assert viewer.read(table).read_all() == ROWS
        with pytest.raises(Forbidden) as raised:
            viewer.insert(table, ROWS)
        assert raised.value.context == {"required_role": "analytics.developer"}
    for sent in (None, "x"):
        with penstock.flight_client(house.address, sent) as anonymous, pytest.raises(Unauthenticated):
            anonymous.tables()


def test_client_with_unreachable_server_raises_unavailable() -> None:
    with penstock.flight_client("grpc://127.0.0.1:1") as client, pytest.raises(Unavailable) as raised:
        client.tables()
    assert raised.value.reason == "unavailable"


@pytest.mark.parametrize("address", ["", "localhost:8815", "http://localhost:8815", "grpc://localhost", "grpc://:1"])
def test_client_with_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(Invalid) as raised:
        penstock.flight_client(address)
    assert raised.value.reason == "bad_address"


def test_read_streams_lazily_and_stops_when_closed(house: House, client: FlightClient) -> None:
    long = pa.table([pa.arange(0, 1_000_000), pa.repeat("so long that no window holds it", 1_000_000)], schema=SCHEMA)
    name = house.table(long).dataset.name
    house.calls.forget()
    reader = client.read(name)
    assert 0 < reader.read_next_batch().num_rows < 1_000_000
    del reader
    (ended,) = house.calls.wait("DoGet", 1)
    assert (ended.code, ended.rows_out < 1_000_000) == ("CANCELLED", True)
    assert client.read(name).read_all().num_rows == 1_000_000


def test_read_that_fails_midway_raises_the_server_error(house: House, client: FlightClient, table: str) -> None:
    tx = client.transaction()
    words = pa.repeat("so long that no window holds it", 200_000)
    for _ in range(16):  # files; the last ones are not open yet
        tx.insert(table, pa.table([pa.arange(0, 200_000), words], schema=SCHEMA))
    reader = tx.read(table)
    reader.read_next_batch()
    tx.rollback()
    with pytest.raises(Unavailable) as raised:
        reader.read_all()
    assert raised.value.reason == "file_missing"


def test_insert_with_failing_source_raises_the_source_error(client: FlightClient, table: str) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.insert(table, pa.RecordBatchReader.from_batches(SCHEMA, rows()))
    assert seen(client, table) == {1: "one", 2: "two", 3: "three"}


def test_successful_calls_end_with_status_ok(house: House, client: FlightClient, table: str) -> None:
    """A client that drops a call right after its response would be logged as cancelled."""
    house.calls.forget()
    for _ in range(20):
        client.insert(table, ROWS)
        client.delete(table, [1])
    assert {item.code for item in house.calls.wait("DoPut", 20)} == {"OK"}
    assert {item.code for item in house.calls.wait("DoAction", 20)} == {"OK"}


def test_idempotency_key_makes_retry_safe(client: FlightClient, table: str) -> None:
    for _ in range(2):
        assert client.insert(table, ROWS, idempotency_key=f"{table} insert").affected_rows == 3
        assert client.update(table, [1], ROWS.slice(1, 1), idempotency_key=f"{table} update").affected_rows == 1
        assert client.delete(table, [2], idempotency_key=f"{table} delete").affected_rows == 1
    assert seen(client, table) == {1: "two", 3: "three", 4: "one", 5: "two", 6: "three"}


def test_client_trusts_root_certificates(sqlite_workspace: WorkspaceFixture, tmp_path: Path) -> None:
    made, key = (tmp_path / item for item in certificate(tmp_path))
    with open_house(sqlite_workspace, tls=(made, key)) as house:
        assert house.address.startswith("grpc+tls://")
        with penstock.flight_client(house.address, token(), roots=made.read_bytes()) as client:
            assert client.tables() == []
        with penstock.flight_client(house.address, token()) as client, pytest.raises(Unavailable):
            client.tables()
