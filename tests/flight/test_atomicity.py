"""Atomicity of writes: disconnected clients, corrupt messages and killed servers leave all rows or none."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from flight.broken_clients import InterruptedStream, InterruptedStreams, wait_to_be_killed
from flight.flight_server import (
    PROCESSES,
    ROWS,
    FlightServerFixture,
    ServerProcess,
    TableFixture,
    run_flight_server,
    server_process,
    wait_until,
)
from flight.paired_clients import GrpcClient, put_messages
from flight.raw_client import TIMEOUT_SECONDS, CallRejected, RawClient, token
from penstock import failpoints
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
MANY_ROWS = pa.table({"id": range(20_000), "word": ["new"] * 20_000}, SCHEMA)
BATCHES = MANY_ROWS.to_batches(max_chunksize=4_000)  # the first fit in memory, the others are written to files
NEW_ROWS = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
STEPS_AFTER_COMMIT = ("commit.sent", "commit.done")  # after these steps a write is committed
AFTER_END = "after the end"


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServerFixture]:
    with run_flight_server(
        WorkspaceFixture.make(tmp_path_factory.mktemp("atomicity") / "workspace", None)
    ) as flight_server:
        yield flight_server


def interruption_points(command: dict[str, Any]) -> dict[str, InterruptedStream]:
    """Return streams that stop at each position at which a client may disconnect."""
    messages = put_messages(command, SCHEMA, BATCHES, separate_descriptor=True)
    names = ["before the descriptor", "after the descriptor", "after the schema"]
    names += [f"after batch {count + 1}" for count in range(len(BATCHES))]
    assert len(messages) == len(names) - 1
    streams = {name: InterruptedStream(messages[:count]) for count, name in enumerate(names)}
    return {**streams, AFTER_END: InterruptedStream(messages, completes=True)}


@dataclass
class InterruptedWrite:
    """A stream that will be interrupted: into its own table, optionally in a transaction."""

    point: str
    stream: InterruptedStream
    table: TableFixture
    transaction: str | None


def prepare_writes(flight_server: FlightServerFixture, write_type: str) -> list[InterruptedWrite]:
    writes = []
    for point in interruption_points({}):
        table = flight_server.create_table(MANY_ROWS.set_column(1, SCHEMA.field(1), pa.array(["old"] * 20_000)))
        command = table.update(list(range(20_000, 0, -1))) if write_type == "update" else table.insert()
        tx = flight_server.begin_transaction() if write_type == "in a transaction" else None
        writes.append(InterruptedWrite(point, interruption_points(command)[point], table, tx))
    return writes


def kill_client(flight_server: FlightServerFixture, writes: list[InterruptedWrite]) -> None:
    connection, child_end = PROCESSES.Pipe()
    plans = [(write.stream.messages, write.stream.completes, write.transaction) for write in writes]
    client = PROCESSES.Process(target=wait_to_be_killed, args=(flight_server.address, plans, child_end), daemon=True)
    client.start()
    child_end.close()
    assert connection.poll(TIMEOUT_SECONDS)
    assert connection.recv() == len(writes)
    client.kill()
    client.join(TIMEOUT_SECONDS)
    assert client.exitcode == -signal.SIGKILL


def cancel_streams(flight_server: FlightServerFixture, writes: list[InterruptedWrite]) -> None:
    streams = InterruptedStreams(flight_server.address, [(write.stream, write.transaction) for write in writes])
    streams.cancel()
    streams.close()


def exceed_deadline(flight_server: FlightServerFixture, writes: list[InterruptedWrite]) -> None:
    streams = InterruptedStreams(
        flight_server.address, [(write.stream, write.transaction) for write in writes], timeout=1.0
    )
    flight_server.calls.wait("DoPut", len(writes))
    streams.close()


INTERRUPTIONS: dict[str, Callable[[FlightServerFixture, list[InterruptedWrite]], None]] = {
    "killed": kill_client,
    "cancelled": cancel_streams,
    "timed out": exceed_deadline,
}


@pytest.mark.parametrize("write_type", ["insert", "update", "in a transaction"])
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_put_from_disconnected_client_changes_nothing(
    flight_server: FlightServerFixture, interruption: str, write_type: str
) -> None:
    writes = prepare_writes(flight_server, write_type)
    flight_server.calls.clear()
    INTERRUPTIONS[interruption](flight_server, writes)
    calls = flight_server.calls.wait("DoPut", len(writes))
    if interruption == "timed out":  # the deadline must leave time to receive rows
        assert max(write.rows_in for write in calls) >= 4_000, "the server received too few rows"
    for write in writes:
        wait_until(
            lambda write=write: flight_server.orphan_files(write.table) == set() or is_complete(write, write_type)
        )
        unchanged = write.table.version == 1 and set(write.table.words_by_id().values()) == {"old"}
        assert unchanged or (write.point == AFTER_END and is_complete(write, write_type)), write.point
        if write.transaction and write.point != AFTER_END:
            wait_until(lambda write=write: flight_server.transaction_status(write.transaction) == "aborted")


def is_complete(write: InterruptedWrite, write_type: str) -> bool:
    """Return whether all rows are stored. A client that ended its stream may be cut off before it gets the response."""
    words = list(write.table.words_by_id().values())
    match write_type:
        case "insert":
            return write.table.version == 2 and sorted(words) == ["new"] * 20_000 + ["old"] * 20_000
        case "update":
            return write.table.version == 2 and words == ["new"] * 20_000
    assert write.transaction
    return write.table.version == 1


def test_put_cancelled_before_its_end_is_never_committed(flight_server: FlightServerFixture, soak: bool) -> None:
    """A cancelled stream may briefly look complete: all rows have arrived, and none may be committed."""
    table = flight_server.create_table()
    for round_no in range(500 if soak else 25):
        flight_server.calls.clear()
        commands = [table.insert(), table.update([1, 2]), table.insert(), table.update([3, 4])]
        plans = [
            (InterruptedStream(put_messages(command, SCHEMA, NEW_ROWS.to_batches())), None) for command in commands
        ]
        streams = InterruptedStreams(flight_server.address, plans)
        streams.cancel()
        streams.close()
        flight_server.calls.wait("DoPut", len(plans))
        assert table.version == 1, round_no


def corrupt(message: bytes, corruption: str) -> bytes:
    match corruption:
        case "cut off":
            return message[: len(message) // 2]
        case "wild offsets":
            return message[:-40_000] + b"\xff" * 40_000
        case "no header":
            return b"\x12\x04abcd" + message[:0]
    return b"\x00\xff garbage"


@pytest.mark.parametrize("corruption", ["cut off", "wild offsets", "no header", "garbage"])
def test_put_with_corrupt_message_discards_earlier_batches(flight_server: FlightServerFixture, corruption: str) -> None:
    table = flight_server.create_table(MANY_ROWS)
    for command in (table.insert(), table.update(list(range(1, 20_001)))):
        messages = put_messages(command, SCHEMA, BATCHES)
        for index in range(1, len(messages)):
            tx = flight_server.begin_transaction()
            damaged = [*messages[:index], corrupt(messages[index], corruption), *messages[index + 1 :]]
            for headers in ({}, {"x_transaction_id": tx}):
                with pytest.raises(CallRejected) as raised:
                    flight_server.raw_client.put(damaged, **headers)
                assert raised.value.code == "INVALID_ARGUMENT"
            assert flight_server.transaction_status(tx) == "aborted"
    assert table.version == 1
    wait_until(lambda: flight_server.orphan_files(table) == set())


def test_update_with_one_missing_row_id_changes_nothing(flight_server: FlightServerFixture) -> None:
    table, grpc_client = flight_server.create_table(MANY_ROWS), GrpcClient(flight_server.raw_client)
    for index in (0, 5_000, 9_999):
        ids = list(range(1, 10_001))
        ids[index] = 20_001
        with pytest.raises(CallRejected) as raised:
            grpc_client.put(table.update(ids), MANY_ROWS.slice(0, 10_000))
        assert (raised.value.code, raised.value.message) == ("NOT_FOUND", "row_id 20001 not found in table")
        assert raised.value.facts == {"row_id": 20_001, "missing_rows": 1}
    assert (table.version, flight_server.orphan_files(table)) == (1, set())
    assert grpc_client.put(table.update(list(range(1, 10_001))), MANY_ROWS.slice(0, 10_000))["affected_rows"] == 10_000


@dataclass(frozen=True)
class KilledWrite:
    """A write during which the server is killed, and its rows if it is committed."""

    run: Callable[[GrpcClient, TableFixture, TableFixture], Any]
    expected_words: tuple[dict[int, str | None], dict[int, str | None]]


INITIAL_WORDS: dict[int, str | None] = {1: "one", 2: "two", 3: None, 4: "four"}
IDEMPOTENCY_KEY = {"idempotency_key": "once"}


def run_transaction(client: GrpcClient, table: TableFixture, other_table: TableFixture) -> Any:
    tx = client.do_action("create_transaction")["transaction_id"]
    client.put(table.insert(), NEW_ROWS, tx)
    client.put(other_table.update([4, 1]), NEW_ROWS, tx)
    client.do_action("delete", other_table.delete([2]), tx)
    return client.do_action("commit_transaction", {"transaction_id": tx})


WRITES = {
    "insert": KilledWrite(
        lambda client, one, _: client.put(one.insert(**IDEMPOTENCY_KEY), NEW_ROWS),
        ({**INITIAL_WORDS, 5: "eight", 6: None}, INITIAL_WORDS),
    ),
    "large insert": KilledWrite(
        lambda client, one, _: client.put(one.insert(**IDEMPOTENCY_KEY), MANY_ROWS),
        (INITIAL_WORDS | {n + 5: "new" for n in range(20_000)}, INITIAL_WORDS),
    ),
    "update": KilledWrite(
        lambda client, one, _: client.put(one.update([4, 1], **IDEMPOTENCY_KEY), NEW_ROWS),
        ({**INITIAL_WORDS, 1: None, 4: "eight"}, INITIAL_WORDS),
    ),
    "delete": KilledWrite(
        lambda client, one, _: client.do_action("delete", one.delete([1, 3], **IDEMPOTENCY_KEY)),
        ({2: "two", 4: "four"}, INITIAL_WORDS),
    ),
    "marking delete": KilledWrite(
        lambda client, one, _: client.do_action("delete", one.delete([1, 3], **IDEMPOTENCY_KEY)),
        ({2: "two", 4: "four"}, INITIAL_WORDS),
    ),
    "two tables": KilledWrite(
        run_transaction, ({**INITIAL_WORDS, 5: "eight", 6: None}, {1: None, 3: None, 4: "eight"})
    ),
}


FILE_STEPS = {"stage.opened", "stage.written", "stage.synced"}
WRITE_STEPS = [  # a large insert differs only in the steps that stage files; a marking delete stages none
    (name, step)
    for name in WRITES
    for step in failpoints.STEPS
    if (name != "large insert" or step.startswith("stage.")) and not (name == "marking delete" and step in FILE_STEPS)
]


@pytest.fixture
def edit_mode(request: pytest.FixtureRequest) -> str:
    """Let the delete rewrite its file."""
    callspec = getattr(request.node, "callspec", None)  # of a parametrized test
    return "rewrite" if callspec and callspec.params.get("write_name") == "delete" else "auto"


@pytest.mark.parametrize(("write_name", "step"), WRITE_STEPS)
def test_server_killed_at_failpoint_commits_all_or_nothing(
    sqlite_workspace: WorkspaceFixture, write_name: str, step: str
) -> None:
    write = WRITES[write_name]
    with run_flight_server(sqlite_workspace) as flight_server:
        table, other_table = flight_server.create_table(), flight_server.create_table()
    with server_process(sqlite_workspace) as server, RawClient(server, token()) as raw_client:
        server.arm(step)
        with pytest.raises(CallRejected) as raised:
            write.run(GrpcClient(raw_client), table, other_table)
        assert raised.value.code == "UNAVAILABLE"
        server.assert_killed()
    is_committed = step in STEPS_AFTER_COMMIT
    with run_flight_server(sqlite_workspace) as flight_server:
        table, other_table = (
            TableFixture(fixture.name, flight_server.lake.dataset(f"analytics.{fixture.name}"))
            for fixture in (table, other_table)
        )
        assert (table.words_by_id(), other_table.words_by_id()) == (
            write.expected_words if is_committed else (INITIAL_WORDS, INITIAL_WORDS)
        )
        if write_name != "two tables":  # a repeated write with the same key is committed once
            write.run(GrpcClient(flight_server.raw_client), table, other_table)
            assert sorted(map(str, table.words_by_id().values())) == sorted(map(str, write.expected_words[0].values()))
            assert table.version == 2
        flight_server.lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        sweep(flight_server.lake._workspace, flight_server.lake.caller, RetentionPolicy(), execute=True)
        assert flight_server.orphan_files() == set()


def test_acknowledged_writes_survive_server_kill(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    """Eight clients insert pairs of rows n and -n; some in transactions, some large enough to be staged."""
    with run_flight_server(sqlite_workspace) as flight_server:
        table = flight_server.create_table(ROWS.slice(0, 0))
    numbers, acknowledged, enough_writes = count(1), set(), threading.Event()

    def insert(server: ServerProcess, client_no: int) -> None:
        with RawClient(server, token()) as raw_client, suppress(CallRejected):
            client = GrpcClient(raw_client)
            for n in numbers:
                pair = pa.table({"id": [n, -n], "word": ["x" * (600_000 if client_no == 0 else 1)] * 2}, SCHEMA)
                tx = client.do_action("create_transaction")["transaction_id"] if client_no == 1 else None
                client.put(table.insert(), pair.to_batches(max_chunksize=1), tx)
                if tx:
                    client.do_action("commit_transaction", {"transaction_id": tx})
                acknowledged.add(n)
                if len(acknowledged) >= (2_000 if soak else 150):
                    enough_writes.set()

    with server_process(sqlite_workspace) as server, ThreadPoolExecutor(8) as pool:
        inserters = [pool.submit(insert, server, client_no) for client_no in range(8)]
        assert enough_writes.wait(10 * TIMEOUT_SECONDS)
        server.kill()
        for inserter in inserters:
            inserter.result()
    with run_flight_server(sqlite_workspace) as flight_server:
        ids = flight_server.lake.dataset(f"analytics.{table.name}").to_arrow(["id"])["id"].to_pylist()
        positive_ids = {n for n in ids if n > 0}
        assert {-n for n in ids if n < 0} == positive_ids, "an insert is incomplete"
        assert len(ids) == 2 * len(positive_ids), "an insert is duplicated"
        assert acknowledged <= positive_ids
