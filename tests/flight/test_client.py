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
from flight.flight_server import FlightServerFixture, run_flight_server
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
from rest.test_serve import write_certificate
from support.workspaces import WorkspaceFixture

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
ROWS = pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"]}, SCHEMA)
ROW_ID_FIELD = pa.field("rowid", pa.int64(), nullable=False)


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServerFixture]:
    with run_flight_server(
        WorkspaceFixture.make(tmp_path_factory.mktemp("client") / "workspace", None)
    ) as flight_server:
        yield flight_server


@pytest.fixture(scope="module")
def client(flight_server: FlightServerFixture) -> Iterator[FlightClient]:
    with penstock.flight_client(flight_server.address, token()) as client:
        yield client


def test_insert_python_values_uses_table_types(client: FlightClient) -> None:
    client.create("typed.values", pa.schema([("small", pa.int32()), ("word", pa.string()), ("day", pa.date32())]))
    assert client.insert("typed.values", [{"word": None, "small": 1, "day": None}]).affected_rows == 1
    assert client.insert("typed.values", {"word": ["x"], "small": [2], "day": [None]}).affected_rows == 1
    assert client.insert("typed.values", []).affected_rows == 0
    assert client.read("typed.values").read_all()["small"].to_pylist() == [1, 2]
    with pytest.raises(Invalid):
        client.insert("typed.values", [{"small": 2**40, "word": "x", "day": None}])
    for values in ([{"small": 1, "wrod": "x"}], ["small"], [1], {"small": [1], "word": 1}, {"small": [1, 2]}):
        with pytest.raises(Invalid):
            client.insert("typed.values", values)
    client.drop("typed.values")


@pytest.fixture
def table(flight_server: FlightServerFixture) -> str:
    return flight_server.create_table(ROWS).dataset.name


def words_by_id(client: Any, table: str) -> dict[int, str]:
    rows = client.read(table, rowid=True).read_all()
    return dict(zip(rows["rowid"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_client_creates_writes_reads_and_drops_a_table(client: FlightClient) -> None:
    client.create("shop.orders", SCHEMA)
    assert client.tables("shop") == [TableInfo("shop.orders", 1, 0)]
    result = client.insert("shop.orders", ROWS, returning=True)
    assert result.affected_rows == 3
    assert result.returned == ROWS.append_column(ROW_ID_FIELD, pa.array([1, 2, 3]))
    assert client.insert("shop.orders", ROWS.slice(0, 1)).returned is None
    result = client.update("shop.orders", [3, 1], ROWS.slice(0, 2), returning=True)
    assert result.returned == ROWS.slice(0, 2).append_column(ROW_ID_FIELD, pa.array([3, 1]))
    result = client.delete("shop.orders", [2, 4, 9], returning=True)
    assert (result.affected_rows, result.returned and result.returned["rowid"].to_pylist()) == (2, [2, 4])
    assert client.delete("shop.orders", [2]) == penstock.flight.client.WriteResult(0)
    assert words_by_id(client, "shop.orders") == {1: "two", 3: "one"}
    assert TableInfo("shop.orders", 5, 2) in client.tables()
    client.drop("shop.orders")
    assert "shop.orders" not in [table_info.name for table_info in client.tables()]


def test_read_selects_columns_rows_and_version(client: FlightClient, table: str) -> None:
    client.insert(table, ROWS)
    assert client.read(table, version=1).read_all() == ROWS
    rows = client.read(table, columns=["word"], where="id > 2", rowid=True).read_all()
    assert rows.to_pylist() == [{"word": "three", "rowid": 3}, {"word": "three", "rowid": 6}]


def row_sources(folder: Path) -> dict[str, Any]:
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
        "a file name": str(folder / "rows.parquet"),
    }


def test_insert_accepts_every_row_source(
    client: FlightClient, flight_server: FlightServerFixture, tmp_path: Path
) -> None:
    for source_name, rows in row_sources(tmp_path).items():
        name = flight_server.create_table(ROWS.slice(0, 0)).dataset.name
        assert client.insert(name, rows).affected_rows == 3, source_name
        assert client.read(name).read_all() == ROWS, source_name
    for source_name, rows in row_sources(tmp_path).items():
        name = flight_server.create_table(ROWS).dataset.name
        assert client.update(name, [3, 2, 1], rows).affected_rows == 3, source_name
        assert words_by_id(client, name) == {1: "three", 2: "two", 3: "one"}, source_name


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
    assert words_by_id(client, table) == {2: "two"}


@pytest.mark.parametrize("ids", [[1.7], ["1"], [None], pa.array([1.5]), pd.Series([1.0, 2.0])], ids=str)
def test_delete_with_invalid_row_ids_is_rejected(client: FlightClient, table: str, ids: Any) -> None:
    with pytest.raises(Invalid) as raised:
        client.delete(table, ids)
    assert raised.value.reason == "bad_row_ids"
    assert len(words_by_id(client, table)) == 3


def test_transaction_block_commits_at_its_end(client: FlightClient, table: str) -> None:
    with client.transaction() as tx:
        tx.insert(table, ROWS.slice(0, 1))
        tx.update(table, [2], ROWS.slice(2, 1))
        tx.delete(table, [3])
        assert tx.status == "active"
        assert words_by_id(tx, table) == {1: "one", 2: "three", 4: "one"}
        assert words_by_id(client, table) == {1: "one", 2: "two", 3: "three"}
    assert tx.status == "committed"
    assert words_by_id(client, table) == {1: "one", 2: "three", 4: "one"}


def test_transaction_block_with_error_rolls_back(client: FlightClient, table: str) -> None:
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        tx.delete(table, [1])
        raise ZeroDivisionError
    assert tx.status == "aborted"
    with pytest.raises(NotFound) as raised, client.transaction() as tx:
        tx.delete(table, [1])
        tx.update(table, [99], ROWS.slice(0, 1))
    assert (raised.value.reason, tx.status) == ("row_not_found", "aborted")
    assert words_by_id(client, table) == {1: "one", 2: "two", 3: "three"}


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
    assert (raised.value.reason, raised.value.retry, tx.status) == ("row_conflict", True, "aborted")


def _insert_after_rollback(client: FlightClient, table: str) -> None:
    tx = client.transaction()
    tx.rollback()
    tx.insert(table, ROWS)


def _reuse_key(client: FlightClient, table: str) -> None:
    client.insert(table, ROWS, idempotency_key="once")
    client.insert(table, ROWS.slice(1), idempotency_key="once")


ERRORS: list[tuple[Callable[[FlightClient, str], Any], type[PenstockError], str, dict[str, Any]]] = [
    (lambda client, table: client.insert(table, ROWS.select(["id"])), Invalid, "column_mismatch", {"columns": ["id", "word"]}),
    (lambda client, table: client.delete(table, []), Invalid, "empty_row_ids", {}),
    (lambda client, table: client.update(table, [1, 77], ROWS.slice(1)), NotFound, "row_not_found", {"row_id": 77, "missing_rows": 1}),
    (lambda client, _: client.read("nowhere.nothing"), NotFound, "namespace_not_found", {"schema": "nowhere"}),
    (lambda client, table: client.read(table, version=9), NotFound, "version_not_found", {"requested_version": 9}),
    (lambda client, table: client.create(table, SCHEMA), AlreadyExists, "dataset_exists", {}),
    (_reuse_key, AlreadyExists, "key_reused", {"key": "once"}),
    (_insert_after_rollback, Unsupported, "transaction_over", {"transaction_status": "aborted"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error_class", "reason", "facts"), ERRORS, ids=[reason for _, _, reason, _ in ERRORS])
def test_client_raises_the_error_class_of_the_server(
    client: FlightClient,
    table: str,
    call: Callable[..., Any],
    error_class: type[PenstockError],
    reason: str,
    facts: dict[str, Any],
) -> None:
    with pytest.raises(error_class) as raised:
        call(client, table)
    assert type(raised.value) is error_class
    assert raised.value.reason == reason
    assert facts.items() <= raised.value.context.items()


def test_client_without_permission_raises_penstock_error(flight_server: FlightServerFixture, table: str) -> None:
    with penstock.flight_client(flight_server.address, token(Role.VIEWER)) as viewer:
        assert viewer.read(table).read_all() == ROWS
        with pytest.raises(Forbidden) as raised:
            viewer.insert(table, ROWS)
        assert raised.value.context == {"required_role": "analytics.developer"}
    for bearer_token in (None, "x"):
        with penstock.flight_client(flight_server.address, bearer_token) as anonymous, pytest.raises(Unauthenticated):
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


def test_read_streams_lazily_and_stops_when_closed(flight_server: FlightServerFixture, client: FlightClient) -> None:
    long_rows = pa.table(
        [pa.arange(0, 1_000_000), pa.repeat("a text of thirty-one characters", 1_000_000)], schema=SCHEMA
    )
    name = flight_server.create_table(long_rows).dataset.name
    flight_server.calls.clear()
    reader = client.read(name)
    assert 0 < reader.read_next_batch().num_rows < 1_000_000
    del reader
    (call,) = flight_server.calls.wait("DoGet", 1)
    assert (call.code, call.rows_out < 1_000_000) == ("CANCELLED", True)
    assert client.read(name).read_all().num_rows == 1_000_000


def test_read_that_fails_midway_raises_the_server_error(
    flight_server: FlightServerFixture, client: FlightClient, table: str
) -> None:
    tx = client.transaction()
    words = pa.repeat("a text of thirty-one characters", 200_000)
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
    assert words_by_id(client, table) == {1: "one", 2: "two", 3: "three"}


def test_successful_calls_end_with_status_ok(
    flight_server: FlightServerFixture, client: FlightClient, table: str
) -> None:
    """A client that drops a call right after its response would be logged as cancelled."""
    flight_server.calls.clear()
    for _ in range(20):
        client.insert(table, ROWS)
        client.delete(table, [1])
    assert {call.code for call in flight_server.calls.wait("DoPut", 20)} == {"OK"}
    assert {call.code for call in flight_server.calls.wait("DoAction", 20)} == {"OK"}


def test_idempotency_key_makes_retry_safe(client: FlightClient, table: str) -> None:
    for _ in range(2):
        assert client.insert(table, ROWS, idempotency_key=f"{table} insert").affected_rows == 3
        assert client.update(table, [1], ROWS.slice(1, 1), idempotency_key=f"{table} update").affected_rows == 1
        assert client.delete(table, [2], idempotency_key=f"{table} delete").affected_rows == 1
    assert words_by_id(client, table) == {1: "two", 3: "three", 4: "one", 5: "two", 6: "three"}


def test_client_trusts_root_certificates(sqlite_workspace: WorkspaceFixture, tmp_path: Path) -> None:
    cert, key = (tmp_path / file for file in write_certificate(tmp_path))
    with run_flight_server(sqlite_workspace, tls=(cert, key)) as flight_server:
        assert flight_server.address.startswith("grpc+tls://")
        with penstock.flight_client(flight_server.address, token(), roots=cert.read_bytes()) as client:
            assert client.tables() == []
        with penstock.flight_client(flight_server.address, token()) as client, pytest.raises(Unavailable):
            client.tables()
