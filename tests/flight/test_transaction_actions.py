"""Transactions over Flight: create, use, commit, roll back, expire and clean up."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import grpc
import pyarrow as pa
import pytest

from flight.flight_server import (
    ROWS,
    FlightServerFixture,
    TableFixture,
    files_of_all_versions,
    lake_of_token_tenant,
    run_flight_server,
    server_process,
    stored_files,
    wait_until,
)
from flight.paired_clients import FlightTestClient, GrpcClient, PyArrowClient, encode_descriptor, put_messages
from flight.raw_client import OTHER_TENANT, TIMEOUT_SECONDS, CallRejected, RawClient, to_call_rejected, token
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
NEW_ROWS = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
MANY_ROWS = pa.table({"id": range(20_000), "word": ["w"] * 20_000}, SCHEMA)  # more than fit in memory
INITIAL_WORDS = {1: "one", 2: "two", 3: None, 4: "four"}
NOT_FOUND_MESSAGE = "Transaction not found"
ENDED_MESSAGE = "This transaction is {}. Begin a new one"


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServerFixture]:
    with run_flight_server(
        WorkspaceFixture.make(tmp_path_factory.mktemp("transactions") / "workspace", None)
    ) as flight_server:
        yield flight_server


@pytest.fixture(scope="module")
def pyarrow_client(flight_server: FlightServerFixture) -> Iterator[PyArrowClient]:
    client = PyArrowClient(flight_server.address, token())
    yield client
    client.close()


@pytest.fixture(params=["gRPC", "pyarrow"])
def client(
    request: pytest.FixtureRequest, flight_server: FlightServerFixture, pyarrow_client: PyArrowClient
) -> FlightTestClient:
    return pyarrow_client if request.param == "pyarrow" else GrpcClient(flight_server.raw_client)


@pytest.fixture
def table(flight_server: FlightServerFixture) -> TableFixture:
    return flight_server.create_table()


@pytest.fixture
def other_table(flight_server: FlightServerFixture) -> TableFixture:
    return flight_server.create_table()


def assert_rejected(code: str, message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(CallRejected) as raised:
        call()
    assert (raised.value.code, raised.value.message) == (code, message)


def words_seen(client: FlightTestClient, table: TableFixture, transaction: str | None = None) -> dict[int, str | None]:
    rows = client.get({**table.reference, "rowid": True}, transaction)
    return dict(zip(rows["rowid"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_transaction_writes_are_visible_to_others_after_commit(
    client: FlightTestClient, table: TableFixture, other_table: TableFixture
) -> None:
    created = client.do_action("create_transaction")
    assert created == {"status": "success", "transaction_id": created["transaction_id"]}
    tx = created["transaction_id"]
    body = {"transaction_id": tx}
    active = {"status": "success", **body, "transaction_status": "active"}
    assert client.do_action("get_transaction_status", body) == active
    assert client.put(table.insert(), NEW_ROWS, tx)["affected_rows"] == 2
    assert client.put(table.update([5, 1]), NEW_ROWS, tx)["affected_rows"] == 2
    assert client.do_action("delete", table.delete([2, 6]), tx) == {"status": "success", "affected_rows": 2}
    assert client.put(other_table.update([2, 1]), NEW_ROWS, tx)["affected_rows"] == 2
    after, after_other = {1: None, 3: None, 4: "four", 5: "eight"}, {1: None, 2: "eight", 3: None, 4: "four"}
    assert (words_seen(client, table, tx), words_seen(client, other_table, tx)) == (after, after_other)
    assert (words_seen(client, table), words_seen(client, other_table)) == (INITIAL_WORDS, INITIAL_WORDS)
    assert client.do_action("commit_transaction", body) == {"status": "success", **body}
    assert (table.words_by_id(), other_table.words_by_id()) == (after, after_other)
    assert (table.version, other_table.version) == (2, 2), "one commit creates one version of each table"
    assert client.do_action("get_transaction_status", body)["transaction_status"] == "committed"


def test_returning_in_transaction_has_final_row_ids(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    response = client.put(table.insert(returning=True), NEW_ROWS, tx)
    ids = pa.ipc.open_stream(response["returning_data"]).read_all()["rowid"].to_pylist()
    flight_server.raw_client.do_action("commit_transaction", {"transaction_id": tx})
    assert {id: table.rows_by_id()[id]["id"] for id in ids} == {ids[0]: 8, ids[1]: 9}


def test_transaction_reads_snapshot_of_its_start(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture, other_table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    for fixture in (table, other_table):
        client.put(fixture.insert(), NEW_ROWS)
    late_table = flight_server.create_table()
    assert words_seen(client, table, tx) == INITIAL_WORDS
    client.do_action("delete", other_table.delete([1]), tx)
    assert words_seen(client, other_table, tx) == {2: "two", 3: None, 4: "four"}
    assert client.get({**table.reference, "version": 1}, tx).num_rows == 4
    assert_rejected(
        "NOT_FOUND",
        "Version 2 does not exist in this transaction's snapshot (newest: 1)",
        lambda: client.get({**table.reference, "version": 2}, tx),
    )
    assert_rejected(
        "NOT_FOUND", f"table 'analytics.{late_table.name}' not found", lambda: client.get(late_table.reference, tx)
    )
    client.do_action("commit_transaction", {"transaction_id": tx})
    assert other_table.words_by_id() == {2: "two", 3: None, 4: "four", 5: "eight", 6: None}, (
        "rows of other writers stay"
    )


def test_flight_info_in_transaction_describes_its_rows(flight_server: FlightServerFixture, table: TableFixture) -> None:
    tx, grpc_client = flight_server.begin_transaction(), GrpcClient(flight_server.raw_client)
    grpc_client.put(table.insert(), NEW_ROWS, tx)
    request = {**table.reference, "columns": ["word"], "filter": "id > 3", "rowid": True}
    assert grpc_client.get(request, tx).to_pylist() == [
        {"word": "four", "rowid": 4},
        {"word": "eight", "rowid": 5},
        {"word": None, "rowid": 6},
    ]
    descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=json.dumps(request).encode())
    info = pb.FlightInfo.FromString(
        flight_server.raw_client.call_unary("GetFlightInfo", descriptor, x_transaction_id=tx)
    )
    assert flight_server.raw_client.get(info.endpoint[0].ticket.ticket, x_transaction_id=tx).num_rows == 3
    response = pb.SchemaResult.FromString(
        flight_server.raw_client.call_unary("GetSchema", descriptor, x_transaction_id=tx)
    )
    assert pa.ipc.read_schema(pa.py_buffer(response.schema)).names == ["word", "rowid"]


def test_rollback_discards_writes_and_files(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    client.put(table.insert(), MANY_ROWS, tx)
    client.put(table.update([1, 2]), NEW_ROWS, tx)
    client.do_action("delete", table.delete([3, 5]), tx)
    assert flight_server.orphan_files(table)
    body = {"transaction_id": tx}
    for _ in range(2):
        assert client.do_action("rollback_transaction", body) == {"status": "success", **body}
    assert client.do_action("get_transaction_status", body)["transaction_status"] == "aborted"
    assert (table.version, table.words_by_id()) == (1, INITIAL_WORDS)
    assert flight_server.orphan_files(table) == set()


def test_repeated_commit_succeeds_once(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    client.put(table.insert(), NEW_ROWS, tx)
    client.put(table.update([5, 6]), NEW_ROWS, tx)
    body = {"transaction_id": tx}
    for _ in range(3):
        assert client.do_action("commit_transaction", body) == {"status": "success", **body}
    assert (table.version, len(table.words_by_id())) == (2, 6)
    assert flight_server.orphan_files(table) == set(), "files that later files replaced"
    message = ENDED_MESSAGE.format("committed")
    assert_rejected("FAILED_PRECONDITION", message, lambda: client.do_action("rollback_transaction", body))
    assert flight_server.transaction_status(tx) == "committed"


def test_commit_without_writes_creates_no_version(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    assert words_seen(client, table, tx) == INITIAL_WORDS
    client.put(table.insert(), NEW_ROWS.slice(0, 0), tx)
    client.do_action("delete", table.delete([99]), tx)
    client.do_action("commit_transaction", {"transaction_id": tx})
    assert (flight_server.transaction_status(tx), table.version) == ("committed", 1)


OPERATIONS: dict[str, Callable[[FlightTestClient, TableFixture, str], Any]] = {
    "an insert": lambda client, table, tx: client.put(table.insert(), NEW_ROWS, tx),
    "an update": lambda client, table, tx: client.put(table.update([1, 2]), NEW_ROWS, tx),
    "a delete": lambda client, table, tx: client.do_action("delete", table.delete([1]), tx),
    "a read": lambda client, table, tx: client.get(table.reference, tx),
    "a commit": lambda client, _, tx: client.do_action("commit_transaction", {"transaction_id": tx}),
    "a rollback": lambda client, _, tx: client.do_action("rollback_transaction", {"transaction_id": tx}),
    "a status request": lambda client, _, tx: client.do_action("get_transaction_status", {"transaction_id": tx}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_transaction_is_not_found(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture, operation: str
) -> None:
    assert_rejected("NOT_FOUND", NOT_FOUND_MESSAGE, lambda: OPERATIONS[operation](client, table, str(uuid4())))
    assert_rejected("NOT_FOUND", "Transaction 'x' not found", lambda: OPERATIONS[operation](client, table, "x"))
    assert table.version == 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_transaction_of_other_caller_is_not_found(
    flight_server: FlightServerFixture, table: TableFixture, operation: str
) -> None:
    tx = flight_server.begin_transaction()
    for bearer_token in (token(tenant=OTHER_TENANT), token(user="eve")):
        other_client = GrpcClient(
            RawClient(flight_server.service, bearer_token, channel=flight_server.raw_client.channel)
        )
        assert_rejected(
            "NOT_FOUND",
            NOT_FOUND_MESSAGE,
            lambda other_client=other_client: OPERATIONS[operation](other_client, table, tx),
        )
    assert flight_server.transaction_status(tx) == "active"


@pytest.mark.parametrize("operation", ["an insert", "an update", "a delete", "a read"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_ended_transaction_rejects_operations(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture, operation: str, end: str
) -> None:
    tx = flight_server.begin_transaction()
    client.do_action(f"{end}_transaction", {"transaction_id": tx})
    state = {"commit": "committed", "rollback": "aborted"}[end]
    assert_rejected(
        "FAILED_PRECONDITION", ENDED_MESSAGE.format(state), lambda: OPERATIONS[operation](client, table, tx)
    )
    assert (flight_server.transaction_status(tx), table.version) == (state, 1)


def test_commit_after_rollback_is_rejected(client: FlightTestClient, flight_server: FlightServerFixture) -> None:
    tx = flight_server.begin_transaction()
    client.do_action("rollback_transaction", {"transaction_id": tx})
    assert_rejected(
        "FAILED_PRECONDITION",
        ENDED_MESSAGE.format("aborted"),
        lambda: OPERATIONS["a commit"](client, flight_server.create_table(), tx),
    )


FAILING_OPERATIONS: dict[str, tuple[Callable[[FlightTestClient, TableFixture, str], Any], str]] = {
    "a missing column": (lambda client, table, tx: client.put(table.insert(), NEW_ROWS.select(["id"]), tx), "INVALID_ARGUMENT"),
    "an empty list of ids": (lambda client, table, tx: client.put(table.update([]), NEW_ROWS, tx), "INVALID_ARGUMENT"),
    "an empty list to delete": (lambda client, table, tx: client.do_action("delete", table.delete([]), tx), "INVALID_ARGUMENT"),
    "a wrong row count": (lambda client, table, tx: client.put(table.update([1]), NEW_ROWS, tx), "INVALID_ARGUMENT"),
    "fewer than expected": (lambda client, table, tx: client.put(table.insert(expected_rows=9), NEW_ROWS, tx), "INVALID_ARGUMENT"),
    "many, and fewer than expected": (lambda client, table, tx: client.put(table.insert(expected_rows=9), MANY_ROWS, tx), "INVALID_ARGUMENT"),
    "a missing row": (lambda client, table, tx: client.put(table.update([1, 99]), NEW_ROWS, tx), "NOT_FOUND"),
    "a missing table": (lambda client, table, tx: client.put({**table.insert(), "table_name": "nothing"}, NEW_ROWS, tx), "NOT_FOUND"),
    "an unknown operation": (lambda client, table, tx: client.put({**table.insert(), "operation": "merge"}, NEW_ROWS, tx), "INVALID_ARGUMENT"),
    "an unknown member": (lambda client, table, tx: client.do_action("delete", table.delete([1], force=True), tx), "INVALID_ARGUMENT"),
}  # fmt: skip


@pytest.mark.parametrize("case_name", FAILING_OPERATIONS)
def test_failed_operation_aborts_transaction(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture, case_name: str
) -> None:
    tx, (fail, code) = flight_server.begin_transaction(), FAILING_OPERATIONS[case_name]
    client.put(table.insert(), NEW_ROWS, tx)
    client.do_action("delete", table.delete([1]), tx)
    with pytest.raises(CallRejected) as raised:
        fail(client, table, tx)
    assert raised.value.code == code
    assert flight_server.transaction_status(tx) == "aborted"
    assert_rejected(
        "FAILED_PRECONDITION", ENDED_MESSAGE.format("aborted"), lambda: OPERATIONS["a commit"](client, table, tx)
    )
    client.do_action("rollback_transaction", {"transaction_id": tx})
    assert (table.version, table.words_by_id()) == (1, INITIAL_WORDS)
    wait_until(lambda: flight_server.orphan_files(table) == set())


def test_broken_stream_aborts_transaction(flight_server: FlightServerFixture, table: TableFixture) -> None:
    tx = flight_server.begin_transaction()
    for messages in ([b"\xff"], [*put_messages(table.insert(), SCHEMA, NEW_ROWS.to_batches()), b"\xff"], []):
        tx = flight_server.begin_transaction()
        with pytest.raises(CallRejected) as raised:
            flight_server.raw_client.put(messages, x_transaction_id=tx)
        assert raised.value.code == "INVALID_ARGUMENT"
        assert flight_server.transaction_status(tx) == "aborted"
    assert table.version == 1


def test_create_and_drop_table_in_transaction_are_rejected(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    for action, body in (("create_table", {**table.reference, "arrow_schema": ""}), ("drop_table", table.reference)):
        assert_rejected(
            "FAILED_PRECONDITION",
            f"{action} cannot be part of a transaction. Send it without the x-transaction-id header",
            lambda action=action, body=body: client.do_action(action, body, tx),
        )
    client.put(table.insert(), NEW_ROWS, tx)
    client.do_action("commit_transaction", {"transaction_id": tx})
    assert table.version == 2


def test_duplicate_transaction_header_is_rejected(flight_server: FlightServerFixture, table: TableFixture) -> None:
    call = flight_server.raw_client.channel.unary_stream(f"/{SERVICE_NAME}/DoGet")
    headers = [("authorization", f"Bearer {token()}"), *[("x-transaction-id", flight_server.begin_transaction())] * 2]
    request = pb.Ticket(ticket=json.dumps(table.reference).encode()).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        list(call(request, metadata=headers, timeout=TIMEOUT_SECONDS))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "More than one x-transaction-id header. Send exactly one"


def test_auto_commit_commits_first_successful_operation(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = client.do_action("create_transaction", {"auto_commit": True})["transaction_id"]
    assert words_seen(client, table, tx) == INITIAL_WORDS, "a read does not commit"
    assert client.put(table.insert(), NEW_ROWS, tx)["affected_rows"] == 2
    assert (flight_server.transaction_status(tx), table.version) == ("committed", 2)
    assert_rejected(
        "FAILED_PRECONDITION", ENDED_MESSAGE.format("committed"), lambda: OPERATIONS["an insert"](client, table, tx)
    )
    tx = client.do_action("create_transaction", {"auto_commit": True})["transaction_id"]
    assert_rejected(
        "NOT_FOUND", "row_id 99 not found in table", lambda: client.put(table.update([99, 1]), NEW_ROWS, tx)
    )
    assert (flight_server.transaction_status(tx), table.version) == ("aborted", 2)


def test_auto_commit_defaults_to_server_setting(sqlite_workspace: WorkspaceFixture) -> None:
    with run_flight_server(sqlite_workspace, auto_commit=True) as flight_server:
        table, grpc_client = flight_server.create_table(), GrpcClient(flight_server.raw_client)
        tx = flight_server.begin_transaction()
        grpc_client.do_action("delete", table.delete([1]), tx)
        assert (flight_server.transaction_status(tx), table.version) == ("committed", 2)
        tx = flight_server.begin_transaction(auto_commit=False)
        grpc_client.do_action("delete", table.delete([2]), tx)
        assert (flight_server.transaction_status(tx), table.version) == ("active", 2)


class PausedStream:
    """A stream of messages whose next message waits for an event."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages, self._resumed, self.paused = messages, Event(), Event()

    def resume(self) -> None:
        self._resumed.set()

    def __iter__(self) -> Iterator[bytes]:
        yield self._messages[0]
        self.paused.set()
        assert self._resumed.wait(TIMEOUT_SECONDS)
        yield from self._messages[1:]


def start_put(flight_server: FlightServerFixture, messages: Any, tx: str) -> Any:
    call = flight_server.raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
    headers = [("authorization", f"Bearer {token()}"), ("x-transaction-id", tx)]
    return call(iter(messages), metadata=headers, timeout=TIMEOUT_SECONDS)


def test_concurrent_write_in_transaction_is_rejected(
    client: FlightTestClient, flight_server: FlightServerFixture, table: TableFixture
) -> None:
    tx = flight_server.begin_transaction()
    client.do_action("delete", table.delete([4]), tx)
    paused_stream = PausedStream(put_messages(table.insert(), SCHEMA, NEW_ROWS.to_batches()))
    first_put = start_put(flight_server, paused_stream, tx)
    assert paused_stream.paused.wait(TIMEOUT_SECONDS)
    wait_until(lambda: _is_operating(flight_server, tx))
    message = "Another operation of this transaction is in progress. Wait until it has ended"
    assert_rejected("UNAVAILABLE", message, lambda: client.put(table.insert(), NEW_ROWS.slice(0, 0), tx))
    assert_rejected("UNAVAILABLE", message, lambda: client.do_action("delete", table.delete([1]), tx))
    assert_rejected("UNAVAILABLE", message, lambda: client.do_action("commit_transaction", {"transaction_id": tx}))
    assert words_seen(client, table, tx) == {1: "one", 2: "two", 3: None}, "reads are not blocked"
    paused_stream.resume()
    assert len(list(first_put)) == 1
    client.do_action("commit_transaction", {"transaction_id": tx})
    assert table.words_by_id() == {1: "one", 2: "two", 3: None, 5: "eight", 6: None}


def _is_operating(flight_server: FlightServerFixture, tx: str) -> bool:
    """Return whether a write is in progress. A second write as a probe could itself reject the first one."""
    record = flight_server.service._transactions._load(flight_server.lake.caller, UUID(tx))
    return record.operating is not None


def test_disconnect_while_entering_releases_transaction(
    flight_server: FlightServerFixture, table: TableFixture
) -> None:
    """The thread that enters the transaction continues after the disconnect; the transaction must not stay busy."""
    tx = flight_server.begin_transaction()
    flight_server.calls.clear()
    with flight_server.lake._workspace.db.write(
        flight_server.lake.caller
    ):  # the put waits for this lock when it enters
        call = start_put(flight_server, put_messages(table.insert(), None), tx)
        assert flight_server.calls.has_no_call_within("DoPut", 0.2), "the put does not wait"
        call.cancel()
        flight_server.calls.wait("DoPut", 1)
    wait_until(lambda: flight_server.transaction_status(tx) == "aborted")


def test_idle_transaction_expires_and_releases_files(sqlite_workspace: WorkspaceFixture) -> None:
    with run_flight_server(sqlite_workspace) as flight_server:
        table, grpc_client = flight_server.create_table(), GrpcClient(flight_server.raw_client)
        idle, active = flight_server.begin_transaction(), flight_server.begin_transaction()
        for tx in (idle, active):
            grpc_client.put(table.insert(), MANY_ROWS, tx)
        clock_offset = [timedelta()]
        flight_server.lake._workspace.db.clock = lambda: datetime.now(UTC) + clock_offset[0]
        clock_offset[0] = timedelta(seconds=200)
        flight_server.service.expire_transactions()
        assert grpc_client.get(table.reference, active).num_rows == 20_004
        clock_offset[0] = timedelta(seconds=400)
        flight_server.service.expire_transactions()
        assert (flight_server.transaction_status(idle), flight_server.transaction_status(active)) == (
            "expired",
            "active",
        )
        for operation in ("an insert", "a read", "a commit"):
            assert_rejected(
                "FAILED_PRECONDITION",
                ENDED_MESSAGE.format("expired"),
                lambda operation=operation: OPERATIONS[operation](grpc_client, table, idle),
            )
        grpc_client.do_action("rollback_transaction", {"transaction_id": idle})
        assert flight_server.transaction_status(idle) == "expired"
        assert len(flight_server.orphan_files()) == 1, "the file of the active transaction"
        clock_offset[0] = timedelta(seconds=900)
        flight_server.service.expire_transactions()
        assert (flight_server.transaction_status(active), flight_server.orphan_files(), table.version) == (
            "expired",
            set(),
            1,
        )


def test_stop_aborts_open_transactions_and_deletes_files(sqlite_workspace: WorkspaceFixture) -> None:
    with run_flight_server(sqlite_workspace) as flight_server:
        table = flight_server.create_table()
        tx = flight_server.begin_transaction()
        GrpcClient(flight_server.raw_client).put(table.insert(), MANY_ROWS, tx)
        assert flight_server.orphan_files()
    with run_flight_server(sqlite_workspace) as flight_server:
        assert (flight_server.transaction_status(tx), flight_server.orphan_files()) == ("aborted", set())
        assert GrpcClient(flight_server.raw_client).get(table.reference).equals(ROWS)


def test_killed_server_leaves_no_visible_rows_and_sweep_deletes_files(
    sqlite_workspace: WorkspaceFixture,
) -> None:
    with run_flight_server(sqlite_workspace) as flight_server:
        table = flight_server.create_table()
    with server_process(sqlite_workspace) as server, RawClient(server, token()) as raw_client:
        client = GrpcClient(raw_client)
        tx = str(client.do_action("create_transaction")["transaction_id"])
        client.put(table.insert(), MANY_ROWS, tx)
        client.put(table.update([1, 5]), NEW_ROWS, tx)
        server.kill()
    with sqlite_workspace.open() as local_lake:
        assert stored_files(lake_of_token_tenant(local_lake)) - files_of_all_versions(
            lake_of_token_tenant(local_lake)
        ), "no file is left for the sweep"
    with run_flight_server(sqlite_workspace) as flight_server:
        client = GrpcClient(flight_server.raw_client)
        assert flight_server.transaction_status(tx) == "aborted"
        assert_rejected(
            "FAILED_PRECONDITION", ENDED_MESSAGE.format("aborted"), lambda: OPERATIONS["a commit"](client, table, tx)
        )
        assert client.get(table.reference).equals(ROWS)
        flight_server.lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        sweep(flight_server.lake._workspace, flight_server.lake.caller, RetentionPolicy(), execute=True)
        assert flight_server.orphan_files() == set()


def test_read_outliving_its_transaction_returns_error(flight_server: FlightServerFixture) -> None:
    """The files of an ended transaction may be removed; a read that still needs them fails."""
    stream = read_then_roll_back(
        flight_server, row_ids=True
    )  # a read with row ids opens a file when the client needs it
    with pytest.raises(grpc.RpcError) as raised:
        list(stream)
    assert_file_is_missing(raised.value)


def test_read_ahead_outliving_its_transaction_returns_all_rows_or_error(flight_server: FlightServerFixture) -> None:
    """The scan may have read all files before the rollback removes them."""
    stream = read_then_roll_back(flight_server, row_ids=False)
    try:
        messages = list(stream)
    except grpc.RpcError as error:
        assert_file_is_missing(error)
    else:
        assert len(messages) == 1 + 32  # the rows of the table, and a batch of each inserted file


def read_then_roll_back(flight_server: FlightServerFixture, *, row_ids: bool) -> Any:
    """Begin to read 32 files of a transaction, more than one batch and the gRPC window, and roll it back."""
    table, tx = flight_server.create_table(), flight_server.begin_transaction()
    rows = pa.table({"id": range(20_000), "word": ["a text of forty characters for each row."] * 20_000}, SCHEMA)
    for _ in range(32):
        GrpcClient(flight_server.raw_client).put(table.insert(), rows, tx)
    ticket = pb.Ticket(ticket=json.dumps({**table.reference, "rowid": row_ids}).encode())
    stream = flight_server.raw_client.open_stream("DoGet", ticket, x_transaction_id=tx)
    next(stream)  # the schema
    flight_server.raw_client.do_action("rollback_transaction", {"transaction_id": tx})
    return stream


def assert_file_is_missing(error: grpc.RpcError) -> None:
    rejected = to_call_rejected(error)
    assert (rejected.code, rejected.message[:22]) == ("UNAVAILABLE", "A data file is missing")


def test_descriptor_helper_matches_pyarrow() -> None:
    """Compare the descriptor encoding of the tests with pyarrow's."""
    import pyarrow.flight as fl

    request = {"operation": "insert", "schema_name": "a", "table_name": "b"}
    assert encode_descriptor(request) == fl.FlightDescriptor.for_command(json.dumps(request)).serialize()
