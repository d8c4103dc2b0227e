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

from flight.flight_server import ROWS, House, TableFixture, child, eventually, held, on_disk, open_house, seen_by_ada
from flight.paired_clients import ByArrow, ByGrpc, Client, described, stream
from flight.raw_client import OTHER, SECONDS, Raw, Refused, to_refused, token
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
MANY = pa.table({"id": range(20_000), "word": ["w"] * 20_000}, SCHEMA)  # more than are held in memory
BEFORE = {1: "one", 2: "two", 3: None, 4: "four"}
NONE = "Transaction not found"
OVER = "This transaction is {}. Begin a new one"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(WorkspaceFixture.make(tmp_path_factory.mktemp("transactions") / "workspace", None)) as house:
        yield house


@pytest.fixture(scope="module")
def by_arrow(house: House) -> Iterator[ByArrow]:
    client = ByArrow(house.address, token())
    yield client
    client.close()


@pytest.fixture(params=["gRPC", "pyarrow"])
def client(request: pytest.FixtureRequest, house: House, by_arrow: ByArrow) -> Client:
    return by_arrow if request.param == "pyarrow" else ByGrpc(house.raw)


@pytest.fixture
def table(house: House) -> TableFixture:
    return house.table()


@pytest.fixture
def other(house: House) -> TableFixture:
    return house.table()


def refused(code: str, sentence: str, do: Callable[[], Any]) -> None:
    with pytest.raises(Refused) as raised:
        do()
    assert (raised.value.code, raised.value.sentence) == (code, sentence)


def seen(client: Client, table: TableFixture, transaction: str | None = None) -> dict[int, str | None]:
    rows = client.get({**table.at, "rowid": True}, transaction)
    return dict(zip(rows["rowid"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_transaction_writes_are_visible_to_others_after_commit(
    client: Client, table: TableFixture, other: TableFixture
) -> None:
    made = client.act("create_transaction")
    assert made == {"status": "success", "transaction_id": made["transaction_id"]}
    tx = made["transaction_id"]
    named = {"transaction_id": tx}
    active = {"status": "success", **named, "transaction_status": "active"}
    assert client.act("get_transaction_status", named) == active
    assert client.put(table.insert(), NEW, tx)["affected_rows"] == 2
    assert client.put(table.update([5, 1]), NEW, tx)["affected_rows"] == 2
    assert client.act("delete", table.delete([2, 6]), tx) == {"status": "success", "affected_rows": 2}
    assert client.put(other.update([2, 1]), NEW, tx)["affected_rows"] == 2
    after, after_other = {1: None, 3: None, 4: "four", 5: "eight"}, {1: None, 2: "eight", 3: None, 4: "four"}
    assert (seen(client, table, tx), seen(client, other, tx)) == (after, after_other)
    assert (seen(client, table), seen(client, other)) == (BEFORE, BEFORE)
    assert client.act("commit_transaction", named) == {"status": "success", **named}
    assert (table.words(), other.words()) == (after, after_other)
    assert (table.version, other.version) == (2, 2), "one commit, one version of each"
    assert client.act("get_transaction_status", named)["transaction_status"] == "committed"


def test_returning_in_transaction_has_final_row_ids(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    response = client.put(table.insert(returning=True), NEW, tx)
    ids = pa.ipc.open_stream(response["returning_data"]).read_all()["rowid"].to_pylist()
    house.raw.act("commit_transaction", {"transaction_id": tx})
    assert {id: table.there()[id]["id"] for id in ids} == {ids[0]: 8, ids[1]: 9}


def test_transaction_reads_snapshot_of_its_start(
    client: Client, house: House, table: TableFixture, other: TableFixture
) -> None:
    tx = house.begin()
    for item in (table, other):
        client.put(item.insert(), NEW)
    late = house.table()
    assert seen(client, table, tx) == BEFORE
    client.act("delete", other.delete([1]), tx)
    assert seen(client, other, tx) == {2: "two", 3: None, 4: "four"}
    assert client.get({**table.at, "version": 1}, tx).num_rows == 4
    refused(
        "NOT_FOUND",
        "Version 2 does not exist in this transaction's snapshot (newest: 1)",
        lambda: client.get({**table.at, "version": 2}, tx),
    )
    refused("NOT_FOUND", f"table 'analytics.{late.name}' not found", lambda: client.get(late.at, tx))
    client.act("commit_transaction", {"transaction_id": tx})
    assert other.words() == {2: "two", 3: None, 4: "four", 5: "eight", 6: None}, "rows that others added stay"


def test_flight_info_in_transaction_describes_its_rows(house: House, table: TableFixture) -> None:
    tx, raw = house.begin(), ByGrpc(house.raw)
    raw.put(table.insert(), NEW, tx)
    request = {**table.at, "columns": ["word"], "filter": "id > 3", "rowid": True}
    assert raw.get(request, tx).to_pylist() == [
        {"word": "four", "rowid": 4},
        {"word": "eight", "rowid": 5},
        {"word": None, "rowid": 6},
    ]
    descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=json.dumps(request).encode())
    info = pb.FlightInfo.FromString(house.raw.one("GetFlightInfo", descriptor, x_transaction_id=tx))
    assert house.raw.get(info.endpoint[0].ticket.ticket, x_transaction_id=tx).num_rows == 3
    response = pb.SchemaResult.FromString(house.raw.one("GetSchema", descriptor, x_transaction_id=tx))
    assert pa.ipc.read_schema(pa.py_buffer(response.schema)).names == ["word", "rowid"]


def test_rollback_discards_writes_and_files(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    client.put(table.insert(), MANY, tx)
    client.put(table.update([1, 2]), NEW, tx)
    client.act("delete", table.delete([3, 5]), tx)
    assert house.strays(table)
    named = {"transaction_id": tx}
    for _ in range(2):
        assert client.act("rollback_transaction", named) == {"status": "success", **named}
    assert client.act("get_transaction_status", named)["transaction_status"] == "aborted"
    assert (table.version, table.words()) == (1, BEFORE)
    assert house.strays(table) == set()


def test_repeated_commit_succeeds_once(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    client.put(table.insert(), NEW, tx)
    client.put(table.update([5, 6]), NEW, tx)
    named = {"transaction_id": tx}
    for _ in range(3):
        assert client.act("commit_transaction", named) == {"status": "success", **named}
    assert (table.version, len(table.words())) == (2, 6)
    assert house.strays(table) == set(), "files that later ones have replaced"
    over = OVER.format("committed")
    refused("FAILED_PRECONDITION", over, lambda: client.act("rollback_transaction", named))
    assert house.status(tx) == "committed"


def test_commit_without_writes_creates_no_version(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    assert seen(client, table, tx) == BEFORE
    client.put(table.insert(), NEW.slice(0, 0), tx)
    client.act("delete", table.delete([99]), tx)
    client.act("commit_transaction", {"transaction_id": tx})
    assert (house.status(tx), table.version) == ("committed", 1)


USES: dict[str, Callable[[Client, TableFixture, str], Any]] = {
    "an insert": lambda client, table, tx: client.put(table.insert(), NEW, tx),
    "an update": lambda client, table, tx: client.put(table.update([1, 2]), NEW, tx),
    "a delete": lambda client, table, tx: client.act("delete", table.delete([1]), tx),
    "a read": lambda client, table, tx: client.get(table.at, tx),
    "a commit": lambda client, _, tx: client.act("commit_transaction", {"transaction_id": tx}),
    "a rollback": lambda client, _, tx: client.act("rollback_transaction", {"transaction_id": tx}),
    "a look": lambda client, _, tx: client.act("get_transaction_status", {"transaction_id": tx}),
}


@pytest.mark.parametrize("use", USES)
def test_unknown_transaction_is_not_found(client: Client, house: House, table: TableFixture, use: str) -> None:
    refused("NOT_FOUND", NONE, lambda: USES[use](client, table, str(uuid4())))
    refused("NOT_FOUND", "Transaction 'x' not found", lambda: USES[use](client, table, "x"))
    assert table.version == 1


@pytest.mark.parametrize("use", USES)
def test_transaction_of_other_caller_is_not_found(house: House, table: TableFixture, use: str) -> None:
    tx = house.begin()
    for sent in (token(tenant=OTHER), token(user="eve")):
        other_tenant = ByGrpc(Raw(house.service, sent, channel=house.raw.channel))
        refused("NOT_FOUND", NONE, lambda other_tenant=other_tenant: USES[use](other_tenant, table, tx))
    assert house.status(tx) == "active"


@pytest.mark.parametrize("use", ["an insert", "an update", "a delete", "a read"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_ended_transaction_rejects_operations(
    client: Client, house: House, table: TableFixture, use: str, end: str
) -> None:
    tx = house.begin()
    client.act(f"{end}_transaction", {"transaction_id": tx})
    state = {"commit": "committed", "rollback": "aborted"}[end]
    refused("FAILED_PRECONDITION", OVER.format(state), lambda: USES[use](client, table, tx))
    assert (house.status(tx), table.version) == (state, 1)


def test_commit_after_rollback_is_rejected(client: Client, house: House) -> None:
    tx = house.begin()
    client.act("rollback_transaction", {"transaction_id": tx})
    refused("FAILED_PRECONDITION", OVER.format("aborted"), lambda: USES["a commit"](client, house.table(), tx))


FAILING: dict[str, tuple[Callable[[Client, TableFixture, str], Any], str]] = {
    "a column less": (lambda client, table, tx: client.put(table.insert(), NEW.select(["id"]), tx), "INVALID_ARGUMENT"),
    "an empty list of ids": (lambda client, table, tx: client.put(table.update([]), NEW, tx), "INVALID_ARGUMENT"),
    "an empty list to delete": (lambda client, table, tx: client.act("delete", table.delete([]), tx), "INVALID_ARGUMENT"),
    "another count": (lambda client, table, tx: client.put(table.update([1]), NEW, tx), "INVALID_ARGUMENT"),
    "fewer than expected": (lambda client, table, tx: client.put(table.insert(expected_rows=9), NEW, tx), "INVALID_ARGUMENT"),
    "many, and fewer than expected": (lambda client, table, tx: client.put(table.insert(expected_rows=9), MANY, tx), "INVALID_ARGUMENT"),
    "a missing row": (lambda client, table, tx: client.put(table.update([1, 99]), NEW, tx), "NOT_FOUND"),
    "a missing table": (lambda client, table, tx: client.put({**table.insert(), "table_name": "nothing"}, NEW, tx), "NOT_FOUND"),
    "an unknown operation": (lambda client, table, tx: client.put({**table.insert(), "operation": "merge"}, NEW, tx), "INVALID_ARGUMENT"),
    "an unknown member": (lambda client, table, tx: client.act("delete", table.delete([1], force=True), tx), "INVALID_ARGUMENT"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILING)
def test_failed_operation_aborts_transaction(client: Client, house: House, table: TableFixture, kind: str) -> None:
    tx, (fail, code) = house.begin(), FAILING[kind]
    client.put(table.insert(), NEW, tx)
    client.act("delete", table.delete([1]), tx)
    with pytest.raises(Refused) as raised:
        fail(client, table, tx)
    assert raised.value.code == code
    assert house.status(tx) == "aborted"
    refused("FAILED_PRECONDITION", OVER.format("aborted"), lambda: USES["a commit"](client, table, tx))
    client.act("rollback_transaction", {"transaction_id": tx})
    assert (table.version, table.words()) == (1, BEFORE)
    eventually(lambda: house.strays(table) == set())


def test_broken_stream_aborts_transaction(house: House, table: TableFixture) -> None:
    tx = house.begin()
    for sent in ([b"\xff"], [*stream(table.insert(), SCHEMA, NEW.to_batches()), b"\xff"], []):
        tx = house.begin()
        with pytest.raises(Refused) as raised:
            house.raw.put(sent, x_transaction_id=tx)
        assert raised.value.code == "INVALID_ARGUMENT"
        assert house.status(tx) == "aborted"
    assert table.version == 1


def test_create_and_drop_table_in_transaction_are_rejected(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    for action, body in (("create_table", {**table.at, "arrow_schema": ""}), ("drop_table", table.at)):
        refused(
            "FAILED_PRECONDITION",
            f"{action} cannot be part of a transaction. Send it without the x-transaction-id header",
            lambda action=action, body=body: client.act(action, body, tx),
        )
    client.put(table.insert(), NEW, tx)
    client.act("commit_transaction", {"transaction_id": tx})
    assert table.version == 2


def test_duplicate_transaction_header_is_rejected(house: House, table: TableFixture) -> None:
    call = house.raw.channel.unary_stream(f"/{SERVICE_NAME}/DoGet")
    headers = [("authorization", f"Bearer {token()}"), *[("x-transaction-id", house.begin())] * 2]
    request = pb.Ticket(ticket=json.dumps(table.at).encode()).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        list(call(request, metadata=headers, timeout=SECONDS))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "More than one x-transaction-id header. Send exactly one"


def test_auto_commit_commits_first_successful_operation(client: Client, house: House, table: TableFixture) -> None:
    tx = client.act("create_transaction", {"auto_commit": True})["transaction_id"]
    assert seen(client, table, tx) == BEFORE, "to read is not to write"
    assert client.put(table.insert(), NEW, tx)["affected_rows"] == 2
    assert (house.status(tx), table.version) == ("committed", 2)
    refused("FAILED_PRECONDITION", OVER.format("committed"), lambda: USES["an insert"](client, table, tx))
    tx = client.act("create_transaction", {"auto_commit": True})["transaction_id"]
    refused("NOT_FOUND", "row_id 99 not found in table", lambda: client.put(table.update([99, 1]), NEW, tx))
    assert (house.status(tx), table.version) == ("aborted", 2)


def test_auto_commit_defaults_to_server_setting(sqlite_workspace: WorkspaceFixture) -> None:
    with open_house(sqlite_workspace, auto_commit=True) as house:
        table, raw = house.table(), ByGrpc(house.raw)
        tx = house.begin()
        raw.act("delete", table.delete([1]), tx)
        assert (house.status(tx), table.version) == ("committed", 2)
        tx = house.begin(auto_commit=False)
        raw.act("delete", table.delete([2]), tx)
        assert (house.status(tx), table.version) == ("active", 2)


class Slow:
    """A stream of messages whose next message waits for an event."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent, self._go, self.waits = sent, Event(), Event()

    def go(self) -> None:
        self._go.set()

    def __iter__(self) -> Iterator[bytes]:
        yield self._sent[0]
        self.waits.set()
        assert self._go.wait(SECONDS)
        yield from self._sent[1:]


def begun_put(house: House, sent: Any, tx: str) -> Any:
    call = house.raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
    headers = [("authorization", f"Bearer {token()}"), ("x-transaction-id", tx)]
    return call(iter(sent), metadata=headers, timeout=SECONDS)


def test_concurrent_write_in_transaction_is_rejected(client: Client, house: House, table: TableFixture) -> None:
    tx = house.begin()
    client.act("delete", table.delete([4]), tx)
    slow = Slow(stream(table.insert(), SCHEMA, NEW.to_batches()))
    first = begun_put(house, slow, tx)
    assert slow.waits.wait(SECONDS)
    eventually(lambda: _is_operating(house, tx))
    busy = "Another operation of this transaction is in progress. Wait until it has ended"
    refused("UNAVAILABLE", busy, lambda: client.put(table.insert(), NEW.slice(0, 0), tx))
    refused("UNAVAILABLE", busy, lambda: client.act("delete", table.delete([1]), tx))
    refused("UNAVAILABLE", busy, lambda: client.act("commit_transaction", {"transaction_id": tx}))
    assert seen(client, table, tx) == {1: "one", 2: "two", 3: None}, "reads go on beside"
    slow.go()
    assert len(list(first)) == 1
    client.act("commit_transaction", {"transaction_id": tx})
    assert table.words() == {1: "one", 2: "two", 3: None, 5: "eight", 6: None}


def _is_operating(house: House, tx: str) -> bool:
    """Return whether a write is in progress. A write as a probe could itself cause the rejection of the first one."""
    record = house.service._transactions._load(house.lake.caller, UUID(tx))
    return record.operating is not None


def test_disconnect_while_entering_releases_transaction(house: House, table: TableFixture) -> None:
    """The thread that enters the transaction continues after the disconnect; the transaction must not stay busy."""
    tx = house.begin()
    house.calls.forget()
    with house.lake._workspace.db.write(house.lake.caller):  # the put waits for this lock when it enters
        call = begun_put(house, stream(table.insert(), None), tx)
        assert house.calls.quiet("DoPut", 0.2), "it does not wait"
        call.cancel()
        house.calls.wait("DoPut", 1)
    eventually(lambda: house.status(tx) == "aborted")


def test_idle_transaction_expires_and_releases_files(sqlite_workspace: WorkspaceFixture) -> None:
    with open_house(sqlite_workspace) as house:
        table, raw = house.table(), ByGrpc(house.raw)
        idle, used = house.begin(), house.begin()
        for tx in (idle, used):
            raw.put(table.insert(), MANY, tx)
        later = [timedelta()]
        house.lake._workspace.db.clock = lambda: datetime.now(UTC) + later[0]
        later[0] = timedelta(seconds=200)
        house.service.expire_transactions()
        assert raw.get(table.at, used).num_rows == 20_004
        later[0] = timedelta(seconds=400)
        house.service.expire_transactions()
        assert (house.status(idle), house.status(used)) == ("expired", "active")
        for use in ("an insert", "a read", "a commit"):
            refused("FAILED_PRECONDITION", OVER.format("expired"), lambda use=use: USES[use](raw, table, idle))
        raw.act("rollback_transaction", {"transaction_id": idle})
        assert house.status(idle) == "expired"
        assert len(house.strays()) == 1, "that of the one that is used"
        later[0] = timedelta(seconds=900)
        house.service.expire_transactions()
        assert (house.status(used), house.strays(), table.version) == ("expired", set(), 1)


def test_stop_aborts_open_transactions_and_deletes_files(sqlite_workspace: WorkspaceFixture) -> None:
    with open_house(sqlite_workspace) as house:
        table = house.table()
        tx = house.begin()
        ByGrpc(house.raw).put(table.insert(), MANY, tx)
        assert house.strays()
    with open_house(sqlite_workspace) as house:
        assert (house.status(tx), house.strays()) == ("aborted", set())
        assert ByGrpc(house.raw).get(table.at).equals(ROWS)


def test_killed_server_leaves_no_visible_rows_and_sweep_deletes_files(
    sqlite_workspace: WorkspaceFixture,
) -> None:
    with open_house(sqlite_workspace) as house:
        table = house.table()
    with child(sqlite_workspace) as served, Raw(served, token()) as raw:
        client = ByGrpc(raw)
        tx = str(client.act("create_transaction")["transaction_id"])
        client.put(table.insert(), MANY, tx)
        client.put(table.update([1, 5]), NEW, tx)
        served.kill()
    with sqlite_workspace.open() as local:
        assert on_disk(seen_by_ada(local)) - held(seen_by_ada(local)), "there is something to be swept"
    with open_house(sqlite_workspace) as house:
        client = ByGrpc(house.raw)
        assert house.status(tx) == "aborted"
        refused("FAILED_PRECONDITION", OVER.format("aborted"), lambda: USES["a commit"](client, table, tx))
        assert client.get(table.at).equals(ROWS)
        house.lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        sweep(house.lake._workspace, house.lake.caller, RetentionPolicy(), execute=True)
        assert house.strays() == set()


def test_read_outliving_its_transaction_returns_error(house: House) -> None:
    """The files of an ended transaction may be removed; a read that still needs them fails."""
    slow = read_then_roll_back(house, row_ids=True)  # a read with row ids opens a file when the client needs it
    with pytest.raises(grpc.RpcError) as raised:
        list(slow)
    assert_file_is_missing(raised.value)


def test_read_ahead_outliving_its_transaction_returns_all_rows_or_error(house: House) -> None:
    """The scan may have read all files before the rollback removes them."""
    slow = read_then_roll_back(house, row_ids=False)
    try:
        messages = list(slow)
    except grpc.RpcError as error:
        assert_file_is_missing(error)
    else:
        assert len(messages) == 1 + 32  # the rows of the table, and a batch of each inserted file


def read_then_roll_back(house: House, *, row_ids: bool) -> Any:
    """Begin to read 32 files of a transaction, and roll it back: more than one batch and the gRPC window hold."""
    table, tx = house.table(), house.begin()
    rows = pa.table({"id": range(20_000), "word": ["so long that no window holds all of them"] * 20_000}, SCHEMA)
    for _ in range(32):
        ByGrpc(house.raw).put(table.insert(), rows, tx)
    ticket = pb.Ticket(ticket=json.dumps({**table.at, "rowid": row_ids}).encode())
    slow = house.raw.stream("DoGet", ticket, x_transaction_id=tx)
    next(slow)  # the schema
    house.raw.act("rollback_transaction", {"transaction_id": tx})
    return slow


def assert_file_is_missing(error: grpc.RpcError) -> None:
    response = to_refused(error)
    assert (response.code, response.sentence[:22]) == ("UNAVAILABLE", "A data file is missing")


def test_descriptor_helper_matches_pyarrow() -> None:
    """Compare the descriptor encoding of the tests with pyarrow's."""
    import pyarrow.flight as fl

    request = {"operation": "insert", "schema_name": "a", "table_name": "b"}
    assert described(request) == fl.FlightDescriptor.for_command(json.dumps(request)).serialize()
