"""What changes rows: inserts, updates and deletes, each by itself or as part of a transaction."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from penstock.core.caller import Caller, Role
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.schema.exact_match import check_exact
from penstock.core.names import ROWID
from penstock.core.schema.canonical import conform
from penstock.errors import Invalid, Unavailable
from penstock.flight import commands, tables
from penstock.flight.table_actions import Action, answer
from penstock.flight.interceptor import Call
from penstock.flight.commands import Delete, Insert, Table, Update
from penstock.flight.put_stream import Incoming
from penstock.flight.serial_executor import Turns
from penstock.service.datasets import row_edits as edits
from penstock.service.datasets.row_edits import Edited, Editing
from penstock.service.datasets.streaming_inserts import Inserted, Inserts
from penstock.service.transactions.client import Operation, Transactions
from penstock.service.datasets.overlay import Working
from penstock.service.datasets.write import read_only
from penstock.storage.spool import Spool

_AT_ONCE = 32 << 10  # bytes: what is smaller is done faster than it is handed to a thread
_HELD = 16 << 20  # bytes of an update that are held in memory


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a write goes: a table as all see it, or as a transaction has it so far."""

    target: Snapshot
    operation: Operation | None = None
    working: Working | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.working.schema if self.working else self.target.schema


class Writes:
    def __init__(self, inserts: Inserts, transactions: Transactions) -> None:
        self._inserts, self._transactions, self._ws = inserts, transactions, inserts.ws

    @property
    def actions(self) -> Mapping[str, Action]:
        described = 'Delete rows. Body: {"schema_name", "table_name", "row_ids", "returning"?, "idempotency_key"?}'
        return {"delete": Action(described, self._delete)}

    async def put(self, incoming: Incoming, call: Call) -> AsyncGenerator[bytes, None]:
        """Rows come in; the answer goes out when they are there to stay."""
        turns = Turns(call)
        async with self._operation(call, turns) as operation:
            match command := await _command(incoming, call):
                case Insert():
                    count, returned = await self._insert(incoming, call, turns, command, operation)
                case Update():
                    edited = await self._update(incoming, call, turns, command, operation)
                    count, returned = edited.affected, edited.returned
        data = None if returned is None else await call.run(_coded, returned)
        yield msgpack.packb({"status": "success", "affected_rows": count, "returning_data": data})

    async def _insert(
        self, incoming: Incoming, call: Call, turns: Turns, command: Insert, operation: Operation | None
    ) -> tuple[int, pa.Table | None]:
        async with self._place(call, turns, command, "INSERT", operation) as place:
            schema = await _fitting(incoming, place)
            kept = _Kept(place.schema, self._ws.limits.returned_bytes) if command.returning else None
            insertion = self._inserts.begin(
                call.caller,
                place.target,
                schema,
                key=command.idempotency_key,
                within=(place.operation.stage, place.working) if place.operation and place.working else None,
            )
            try:
                async for batch in incoming:
                    if kept:
                        kept.add(batch)
                    if batch.nbytes < _AT_ONCE and incoming.rows < self._inserts.small_rows:
                        insertion.add(batch)
                    else:
                        await turns.run(insertion.add, batch)
                await _all_came(call, command, insertion.rows)
                if place.operation and place.working:
                    change, inserted = await turns.run(insertion.change)
                    await turns.run(place.operation.apply, place.working, change)
                else:
                    inserted = await asyncio.wrap_future(insertion.commit())
            except BaseException:
                turns.later(insertion.discard)
                raise
        return inserted.rows, kept and kept.stored(inserted)

    async def _update(
        self, incoming: Incoming, call: Call, turns: Turns, command: Update, operation: Operation | None
    ) -> Edited:
        edits.check_ids(command.row_ids, "UPDATE")
        async with self._place(call, turns, command, "UPDATE", operation) as place:
            with TemporaryDirectory(prefix="penstock-update-") as folder:
                rows = await self._rows(incoming, turns, place, command, folder)
                await _all_came(call, command, incoming.rows)
                return await self._edit(turns, call, command, place, rows)

    async def _rows(self, incoming: Incoming, turns: Turns, place: _Place, command: Update, folder: str) -> pa.Table:
        """The rows of an update, held until the last has come."""
        await _fitting(incoming, place)
        spool = Spool(place.schema, lambda: f"{folder}/rows", held_bytes=_HELD)
        try:
            async for batch in incoming:
                if incoming.rows <= len(command.row_ids):  # else the count is all that is still of interest
                    await turns.run(_set_aside, spool, batch, place.schema)
            edits.check_count(len(command.row_ids), incoming.rows)
            return await turns.run(spool.table)
        finally:
            turns.later(spool.close)

    async def _delete(self, call: Call, body: bytes) -> bytes:
        turns = Turns(call)
        async with self._operation(call, turns) as operation:
            command = await call.run(commands.delete, body, call.edge.limits.row_ids)
            edits.check_ids(command.row_ids, "DELETE")
            async with self._place(call, turns, command, "DELETE", operation) as place:
                edited = await self._edit(turns, call, command, place, None)
        facts: dict[str, Any] = {"status": "success", "affected_rows": edited.affected}
        if edited.returned is not None:
            facts["returning_data"] = base64.b64encode(await call.run(_coded, edited.returned)).decode()
        return answer(**facts)

    async def _edit(
        self, turns: Turns, call: Call, command: Update | Delete, place: _Place, rows: pa.Table | None
    ) -> Edited:
        if place.operation and place.working:
            return await turns.run(self._edit_within, call.caller, command, place.operation, place.working, rows)
        ws, dataset, ids = self._ws, place.target.dataset, command.row_ids
        options: dict[str, Any] = {"returning": command.returning, "key": command.idempotency_key}
        if rows is None:
            return await turns.run(edits.delete, ws, call.caller, dataset, ids, **options)
        return await turns.run(edits.update, ws, call.caller, dataset, ids, rows, **options)

    def _edit_within(
        self, caller: Caller, command: Update | Delete, operation: Operation, working: Working, rows: pa.Table | None
    ) -> Edited:
        editing = Editing(self._ws, caller, operation.stage, command.row_ids, rows, returning=command.returning)
        operation.apply(working, editing.change(working))
        return editing.edited

    @asynccontextmanager
    async def _operation(self, call: Call, turns: Turns) -> AsyncIterator[Operation | None]:
        """In a transaction, whatever fails in the block ends it: also a request that cannot be read."""
        if call.transaction is None:
            yield None
            return
        async with turns.within(self._transactions.operation(call.caller, call.transaction)) as operation:
            yield operation

    @asynccontextmanager
    async def _place(
        self, call: Call, turns: Turns, table: Table, verb: str, operation: Operation | None
    ) -> AsyncIterator[_Place]:
        """Where a write goes."""
        call.caller.require(Role.DEVELOPER)
        with tables.writing(table, verb):
            if operation is None:
                place = _Place(await call.run(self._target, call.caller, table))
            else:
                working = await turns.run(self._working, call.caller, operation, table)
                place = _Place(working.base, operation, working)
            _check_supported(place.target, verb)
            yield place

    def _target(self, caller: Caller, table: Table) -> Snapshot:
        with tables.missing(self._ws, caller, table):
            return self._inserts.target(caller, tables.name(table))

    def _working(self, caller: Caller, operation: Operation, table: Table) -> Working:
        with tables.missing(self._ws, caller, table):
            return operation.working(tables.name(table))


class _Kept:
    """The rows of an insert, to be given back with the ids that they got."""

    def __init__(self, schema: pa.Schema, most: int) -> None:
        self._schema, self._most, self._size = schema, most, 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._size += batch.nbytes
        if self._size > self._most:
            raise edits.returned_too_large(self._most)
        self._batches.append(conform(batch, self._schema))

    def stored(self, inserted: Inserted) -> pa.Table:
        rows = pa.Table.from_batches(self._batches, self._schema)
        if inserted.first_row_id is None and rows.num_rows:
            return rows
        first = inserted.first_row_id or 0
        ids = pa.array(np.arange(first, first + rows.num_rows))
        return rows.append_column(pa.field(ROWID, pa.int64(), nullable=False), ids)


def _set_aside(spool: Spool, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    spool.add(conform(batch, schema))


def _check_supported(target: Snapshot, verb: str) -> None:
    if target.read_only:
        raise read_only(target)
    edits.check_supported(target, verb)


async def _fitting(incoming: Incoming, place: _Place) -> pa.Schema:
    """The schema of the rows that come. A stream without one brings none, and they fit."""
    schema = await incoming.schema()
    if schema is None:
        return place.schema
    check_exact(schema, place.schema)
    return schema


async def _command(incoming: Incoming, call: Call) -> Insert | Update:
    descriptor, most = await incoming.descriptor(), call.edge.limits.row_ids
    if len(descriptor.cmd) < _AT_ONCE:
        return commands.put(descriptor, most)
    return await call.run(commands.put, descriptor, most)


async def _all_came(call: Call, command: Insert | Update, rows: int) -> None:
    """Did the client send all that it meant to, and is it there to hear the answer?"""
    if command.expected_rows not in (None, rows):
        raise Invalid(
            "row_count_mismatch", f"expected_rows ({command.expected_rows}) does not match input rows ({rows})"
        )
    # A stream that was broken off may look for a moment as if it had ended well. Once something was sent, we know.
    await call.context.send_initial_metadata(())
    if not call.is_active:
        raise Unavailable("client_gone", "the client broke off; nothing was written")


def _coded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
