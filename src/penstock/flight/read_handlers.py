"""Handlers of the reading RPCs: ListFlights, GetFlightInfo, GetSchema and DoGet."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.errors import Invalid
from penstock.flight import commands, get_stream, tables
from penstock.flight.commands import TableTicket, transaction_not_found
from penstock.flight.flight_pb2 import Criteria, FlightDescriptor, FlightEndpoint, FlightInfo, SchemaResult, Ticket
from penstock.flight.interceptor import FlightCall
from penstock.service.datasets import read
from penstock.service.workspace import Workspace

BATCH_ROWS = 32 << 10  # bounds the memory of many slow readers
UNKNOWN_COUNT = -1

_MAX_READ_AHEAD_STREAMS = 2  # streams that read ahead; more would share the same cores

# Opens the rows of a ticket for a caller, with the id of a transaction or None; the flag allows read-ahead. May block.
OpenReader = Callable[[Caller, TableTicket, UUID | None, bool], pa.RecordBatchReader]


def committed_reader(ws: Workspace) -> OpenReader:
    """Return an opener for committed versions. It rejects every transaction id."""

    def open_reader(
        caller: Caller, ticket: TableTicket, transaction: UUID | None, read_ahead: bool
    ) -> pa.RecordBatchReader:
        if transaction is not None:
            raise transaction_not_found(str(transaction))
        return open_table_reader(ws, caller, ticket, read_ahead=read_ahead)

    return open_reader


def open_table_reader(ws: Workspace, caller: Caller, ticket: TableTicket, *, read_ahead: bool) -> pa.RecordBatchReader:
    """Open the committed rows that a ticket names."""
    snapshot = tables.find_table(ws, caller, ticket, ticket.version)
    return read.scan_rows(
        ws,
        caller,
        snapshot,
        columns=ticket.columns,
        where=ticket.filter,
        row_ids=ticket.rowid,
        batch_rows=BATCH_ROWS,
        read_ahead=read_ahead,
    )


class ReadHandlers:
    def __init__(self, open_reader: OpenReader) -> None:
        self._open_reader = open_reader
        self._active = 0

    async def do_get(self, ticket: Ticket, call: FlightCall) -> AsyncGenerator[bytes, None]:
        table = await call.parse(len(ticket.ticket), commands.parse_ticket, ticket.ticket)
        self._active += 1
        try:
            read_ahead = self._active <= _MAX_READ_AHEAD_STREAMS and call.reserve().try_grow(read.READ_AHEAD_SCAN_BYTES)
            reader = await call.run(self._open_reader, call.caller, table, call.transaction, read_ahead)
            async with aclosing(get_stream.encode_stream(call, reader)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._active -= 1

    async def get_schema(self, descriptor: FlightDescriptor, call: FlightCall) -> bytes:
        table = await call.parse(len(descriptor.cmd), commands.parse_descriptor, descriptor)
        schema = await call.run(self._read_schema, call.caller, table, call.transaction)
        response: bytes = SchemaResult(schema=schema.serialize().to_pybytes()).SerializeToString()
        return response

    async def get_flight_info(self, descriptor: FlightDescriptor, call: FlightCall) -> bytes:
        table = await call.parse(len(descriptor.cmd), commands.parse_descriptor, descriptor)
        return await call.run(
            self._flight_info, call.context.workspace, call.caller, table, descriptor, call.transaction
        )

    async def list_flights(self, criteria: Criteria, call: FlightCall) -> AsyncGenerator[bytes, None]:
        """Yield a FlightInfo for every table of the caller's tenant."""
        if criteria.expression:
            raise Invalid("unknown_criteria")
        for snapshot in await call.run(read.list_all, call.context.workspace, call.caller):
            table = TableTicket(snapshot.name.schema, snapshot.name.table)
            path = FlightDescriptor(type=FlightDescriptor.PATH, path=[table.schema_name, table.table_name])
            yield _encode_info(_pin_version(table, snapshot), snapshot.schema, snapshot.version.rows, path)

    def _read_schema(self, caller: Caller, table: TableTicket, transaction: UUID | None) -> pa.Schema:
        with self._open_reader(caller, table, transaction, False) as reader:
            return reader.schema

    def _flight_info(
        self,
        ws: Workspace,
        caller: Caller,
        table: TableTicket,
        descriptor: FlightDescriptor,
        transaction: UUID | None,
    ) -> bytes:
        """Describe a table. Outside a transaction, the ticket is pinned to the described version."""
        rows = UNKNOWN_COUNT
        if transaction is None:
            snapshot = tables.find_table(ws, caller, table, table.version)
            table = _pin_version(table, snapshot)
            rows = snapshot.version.rows if table.filter is None else UNKNOWN_COUNT
        return _encode_info(table, self._read_schema(caller, table, transaction), rows, descriptor)


def _pin_version(ticket: TableTicket, snapshot: Snapshot) -> TableTicket:
    return replace(ticket, version=snapshot.version.number)


def _encode_info(ticket: TableTicket, schema: pa.Schema, rows: int, descriptor: FlightDescriptor) -> bytes:
    # An endpoint without a location is read from the server that returned it.
    endpoint = FlightEndpoint(ticket=Ticket(ticket=_encode_ticket(ticket)))
    response: bytes = FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        endpoint=[endpoint],
        total_records=rows,
        total_bytes=UNKNOWN_COUNT,
    ).SerializeToString()
    return response


def _encode_ticket(ticket: TableTicket) -> bytes:
    members = {
        "schema_name": ticket.schema_name,
        "table_name": ticket.table_name,
        "version": ticket.version,
        "columns": ticket.columns,
        "filter": ticket.filter,
        "rowid": ticket.rowid or None,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()
