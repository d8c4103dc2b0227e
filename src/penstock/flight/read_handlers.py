"""What can be read: tables listed, described, and streamed out as they were at one version."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.errors import Invalid
from penstock.flight import get_stream as outgoing
from penstock.flight import commands, tables
from penstock.flight.interceptor import Call
from penstock.flight.commands import TableTicket, no_transaction
from penstock.flight.flight_pb2 import Criteria, FlightDescriptor, FlightEndpoint, FlightInfo, SchemaResult, Ticket
from penstock.service.datasets import read
from penstock.service.workspace import Workspace

BATCH_ROWS = 32 << 10  # what many slow readers hold at once follows from this
UNKNOWN = -1

_FEW = 2  # streams that may be read ahead of need, on all cores: each then holds some two hundred megabytes

# The rows that a ticket stands for, to its caller, in a transaction or at large; read ahead or not. May block.
Opened = Callable[[Caller, TableTicket, UUID | None, bool], pa.RecordBatchReader]


def at_large(ws: Workspace) -> Opened:
    """Rows as all may see them; no transaction is known."""

    def opened(caller: Caller, ticket: TableTicket, transaction: UUID | None, ahead: bool) -> pa.RecordBatchReader:
        if transaction is not None:
            raise no_transaction(str(transaction))
        return rows(ws, caller, ticket, ahead=ahead)

    return opened


def rows(ws: Workspace, caller: Caller, ticket: TableTicket, *, ahead: bool) -> pa.RecordBatchReader:
    snapshot = tables.find(ws, caller, ticket, ticket.version)
    return read.rows(
        ws,
        caller,
        snapshot,
        columns=ticket.columns,
        where=ticket.filter,
        row_ids=ticket.rowid,
        batch_rows=BATCH_ROWS,
        ahead=ahead,
    )


class Reads:
    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._under_way = 0

    async def get(self, ticket: Ticket, call: Call) -> AsyncGenerator[bytes, None]:
        asked = commands.ticket(ticket.ticket)
        self._under_way += 1
        try:
            ahead = self._under_way <= _FEW
            reader = await call.run(self._opened, call.caller, asked, call.transaction, ahead)
            async with aclosing(outgoing.sent(call, reader)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._under_way -= 1

    async def schema(self, descriptor: FlightDescriptor, call: Call) -> bytes:
        asked = commands.described(descriptor)
        schema = await call.run(self._schema, call.caller, asked, call.transaction)
        told: bytes = SchemaResult(schema=schema.serialize().to_pybytes()).SerializeToString()
        return told

    async def info(self, descriptor: FlightDescriptor, call: Call) -> bytes:
        asked = commands.described(descriptor)
        return await call.run(self._info, call.edge.workspace, call.caller, asked, descriptor, call.transaction)

    async def all(self, criteria: Criteria, call: Call) -> AsyncGenerator[bytes, None]:
        """Every table that the caller may see."""
        if criteria.expression:
            raise Invalid("unknown_criteria", "flights are listed without criteria; list_tables takes a schema's name")
        for snapshot in await call.run(read.everything, call.edge.workspace, call.caller):
            asked = TableTicket(snapshot.name.schema, snapshot.name.table)
            path = FlightDescriptor(type=FlightDescriptor.PATH, path=[asked.schema_name, asked.table_name])
            yield _described(_pinned(asked, snapshot), snapshot.schema, snapshot.version.rows, path)

    def _schema(self, caller: Caller, asked: TableTicket, transaction: UUID | None) -> pa.Schema:
        with self._opened(caller, asked, transaction, False) as reader:
            return reader.schema

    def _info(
        self,
        ws: Workspace,
        caller: Caller,
        asked: TableTicket,
        descriptor: FlightDescriptor,
        transaction: UUID | None,
    ) -> bytes:
        """The ticket reads the version that is described, unless a transaction has rows of its own."""
        count = UNKNOWN
        if transaction is None:
            snapshot = tables.find(ws, caller, asked, asked.version)
            asked = _pinned(asked, snapshot)
            count = snapshot.version.rows if asked.filter is None else UNKNOWN
        return _described(asked, self._schema(caller, asked, transaction), count, descriptor)


def _pinned(asked: TableTicket, snapshot: Snapshot) -> TableTicket:
    return replace(asked, version=snapshot.version.number)


def _described(ticket: TableTicket, schema: pa.Schema, count: int, descriptor: FlightDescriptor) -> bytes:
    told: bytes = FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        endpoint=[FlightEndpoint(ticket=Ticket(ticket=_spelled(ticket)))],  # no location: it is read where it was told
        total_records=count,
        total_bytes=UNKNOWN,
    ).SerializeToString()
    return told


def _spelled(ticket: TableTicket) -> bytes:
    members = {
        "schema_name": ticket.schema_name,
        "table_name": ticket.table_name,
        "version": ticket.version,
        "columns": ticket.columns,
        "filter": ticket.filter,
        "rowid": ticket.rowid or None,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()
