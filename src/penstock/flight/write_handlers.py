"""Handlers of the writing RPCs: DoPut with inserts and updates, and the action delete."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from penstock.core.caller import Role
from penstock.core.names import ROW_ID_COLUMN
from penstock.core.schema.compatibility import cast_batch
from penstock.core.schema.exact_match import check_exact
from penstock.errors import Invalid, Unavailable
from penstock.flight import commands
from penstock.flight.commands import DeleteCommand, InsertCommand, UpdateCommand
from penstock.flight.interceptor import FlightCall
from penstock.flight.put_stream import PutStream
from penstock.flight.table_actions import ActionHandler, encode_response
from penstock.flight.write_target import OpenOperation, WriteScope, WriteTarget
from penstock.service.datasets import row_edits
from penstock.service.datasets.group_edits import EditService
from penstock.service.datasets.row_buffer import RowBuffer
from penstock.service.datasets.row_edits import EditResult, RowEdit
from penstock.service.datasets.streaming_inserts import InsertResult, InsertService
from penstock.service.memory_budget import Reservation
from penstock.service.transactions.client import ClientTransactions

_INLINE_BYTES = 32 << 10  # processing less takes less time than passing it to a thread


class WriteHandlers:
    def __init__(self, inserts: InsertService, edits: EditService, transactions: ClientTransactions) -> None:
        self._inserts, self._edits, self._transactions, self._ws = inserts, edits, transactions, inserts.ws

    @property
    def actions(self) -> Mapping[str, ActionHandler]:
        description = 'Delete rows. Body: {"schema_name", "table_name", "row_ids", "returning"?, "idempotency_key"?}'
        return {"delete": ActionHandler(description, Role.DEVELOPER, self._delete)}

    async def put(self, stream: PutStream, call: FlightCall) -> AsyncGenerator[bytes, None]:
        """Insert or update the rows of a stream, and yield the response when they are committed."""
        async with WriteScope.enter(call, self._inserts, self._transactions) as scope:
            match command := await _parse_command(stream, call):
                case InsertCommand():
                    affected, returned = await self._insert(stream, scope, command)
                case UpdateCommand():
                    result = await self._update(stream, scope, command)
                    affected, returned = result.affected, result.returned
        data = None if returned is None else await call.run(_encode_table, returned)
        yield msgpack.packb({"status": "success", "affected_rows": affected, "returning_data": data})

    async def _insert(
        self, stream: PutStream, scope: WriteScope, command: InsertCommand
    ) -> tuple[int, pa.Table | None]:
        target, serial = await scope.resolve(command, "INSERT"), scope.serial
        schema = await _matching_schema(stream, target)
        buffer: _ReturningBuffer | None = None
        if command.returning:
            buffer = _ReturningBuffer(target.schema, self._ws.limits.returned_bytes, scope.call.reserve())
        insert = self._inserts.begin(
            scope.call.caller,
            target.snapshot,
            schema,
            key=command.idempotency_key,
            transaction=target.within.staging if target.within else None,
        )
        try:
            async for batch in stream:
                if buffer:
                    buffer.add(batch)
                if batch.nbytes < _INLINE_BYTES and stream.rows < self._inserts.small_rows:
                    insert.add(batch, validated=True)
                else:
                    await serial.run(insert.add, batch, validated=True)
            await _verify_complete(scope.call, command, insert.rows)
            if target.within:
                change, result = await serial.run(insert.change)
                await serial.run(target.within.operation.apply, target.within.overlay, change)
            else:
                result = await asyncio.wrap_future(insert.commit())
        except BaseException:
            serial.submit(insert.discard)
            raise
        return result.rows, buffer and buffer.with_row_ids(result)

    async def _update(self, stream: PutStream, scope: WriteScope, command: UpdateCommand) -> EditResult:
        row_edits.check_ids(command.row_ids, "UPDATE")
        target = await scope.resolve(command, "UPDATE")
        await _matching_schema(stream, target)
        buffer = RowBuffer(target.schema)
        try:
            async for batch in stream:
                if stream.rows <= len(command.row_ids):  # otherwise only the row count matters, for the error
                    await scope.serial.run(buffer.add, batch)
            row_edits.check_count(len(command.row_ids), stream.rows)
            rows = await scope.serial.run(buffer.table)
            await _verify_complete(scope.call, command, stream.rows)
            return await self._edit(scope, command, target, rows)
        finally:
            scope.serial.submit(buffer.close)

    async def _delete(self, call: FlightCall, body: bytes) -> bytes:
        async with WriteScope.enter(call, self._inserts, self._transactions) as scope:
            command = await call.run(commands.parse_delete, body, call.context.limits.row_ids)
            row_edits.check_ids(command.row_ids, "DELETE")
            target = await scope.resolve(command, "DELETE")
            result = await self._edit(scope, command, target, None)
        members: dict[str, Any] = {"status": "success", "affected_rows": result.affected}
        if result.returned is not None:
            members["returning_data"] = base64.b64encode(await call.run(_encode_table, result.returned)).decode()
        return encode_response(**members)

    async def _edit(
        self, scope: WriteScope, command: UpdateCommand | DeleteCommand, target: WriteTarget, rows: pa.Table | None
    ) -> EditResult:
        """Update rows by id, or delete them if `rows` is None."""
        caller, serial = scope.call.caller, scope.serial
        if target.within:

            def edit_within(within: OpenOperation) -> EditResult:
                edit = RowEdit(
                    self._ws,
                    caller,
                    within.operation.stage,
                    command.row_ids,
                    rows,
                    returning=command.returning,
                    in_transaction=True,
                )
                within.operation.apply(within.overlay, edit.change(within.overlay))
                return edit.last_result

            return await serial.run(edit_within, target.within)
        edit = self._edits.submit(
            caller,
            target.snapshot.dataset,
            command.row_ids,
            rows,
            returning=command.returning,
            key=command.idempotency_key,
        )
        return await asyncio.wrap_future(edit)


class _ReturningBuffer:
    """Collect the rows of an insert, to return them with their row ids."""

    def __init__(self, schema: pa.Schema, max_bytes: int, memory: Reservation) -> None:
        self._schema, self._max_bytes, self._memory = schema, max_bytes, memory
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if self._memory.size + batch.nbytes > self._max_bytes:
            raise row_edits.returned_too_large_error(self._max_bytes)
        self._memory.grow(batch.nbytes)
        self._batches.append(cast_batch(batch, self._schema))

    def with_row_ids(self, result: InsertResult) -> pa.Table:
        rows = pa.Table.from_batches(self._batches, self._schema)
        if result.first_row_id is None and rows.num_rows:
            return rows
        first = result.first_row_id or 0
        ids = pa.array(np.arange(first, first + rows.num_rows))
        return rows.append_column(pa.field(ROW_ID_COLUMN, pa.int64(), nullable=False), ids)


async def _matching_schema(stream: PutStream, target: WriteTarget) -> pa.Schema:
    """Return the schema of a stream, which must match the table exactly; the table's if the stream has no rows."""
    schema = await stream.schema()
    if schema is None:
        return target.schema
    check_exact(schema, target.schema)
    return schema


async def _parse_command(stream: PutStream, call: FlightCall) -> InsertCommand | UpdateCommand:
    descriptor, max_row_ids = await stream.descriptor(), call.context.limits.row_ids
    return await call.parse(len(descriptor.cmd), commands.parse_put, descriptor, max_row_ids)


async def _verify_complete(call: FlightCall, command: InsertCommand | UpdateCommand, rows: int) -> None:
    """Check that all expected rows have arrived and that the client is still connected."""
    if command.expected_rows not in (None, rows):
        raise Invalid("row_count_mismatch.expected_rows", {"expected_rows": command.expected_rows, "rows": rows})
    # A stream that was cut off can look complete for a moment. Sending anything reveals whether the client has disconnected.
    await call.servicer.send_initial_metadata(())
    if not call.is_active:
        raise Unavailable("client_gone")


def _encode_table(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
