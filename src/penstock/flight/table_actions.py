"""DoAction handlers for tables: list, create and drop."""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.caller import Caller, Role
from penstock.core.schema.canonical import canonical_schema
from penstock.errors import AlreadyExists, Unsupported
from penstock.flight import commands, tables
from penstock.flight.commands import CreateTable, DropTable, ListTables
from penstock.flight.interceptor import TRANSACTION_HEADER, FlightCall
from penstock.service.datasets import alter, read, write
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class ActionHandler:
    description: str
    role: Role  # required of the caller, before the body is parsed
    handle: Callable[[FlightCall, bytes], Awaitable[bytes]]  # takes the request body and returns the response body


def encode_response(**members: Any) -> bytes:
    return json.dumps(members).encode()


async def list_schemas(call: FlightCall, body: bytes) -> bytes:
    await call.parse(len(body), commands.parse_list_schemas, body)
    return encode_response(schemas=await call.run(read.schema_names, call.context.workspace, call.caller))


async def list_tables(call: FlightCall, body: bytes) -> bytes:
    command = await call.parse(len(body), commands.parse_list_tables, body)
    return await call.run(_list_tables, call.context.workspace, call.caller, command)


async def create_table(call: FlightCall, body: bytes) -> bytes:
    _reject_transaction(call, "create_table")
    command = await call.run(commands.parse_create_table, body)
    return await call.run(_create_table, call.context.workspace, call.caller, command)


async def drop_table(call: FlightCall, body: bytes) -> bytes:
    _reject_transaction(call, "drop_table")
    command = await call.parse(len(body), commands.parse_drop_table, body)
    return await call.run(_drop_table, call.context.workspace, call.caller, command)


ACTIONS: Mapping[str, ActionHandler] = {
    "list_schemas": ActionHandler("List the schemas that have tables. No body.", Role.VIEWER, list_schemas),
    "list_tables": ActionHandler(
        'List tables with their newest versions. Body: {"schema_name"?}', Role.VIEWER, list_tables
    ),
    "create_table": ActionHandler(
        'Create a table. Body: {"schema_name", "table_name", "arrow_schema": base64 of an Arrow IPC schema, '
        '"row_ids"?: true, "read_only"?: false}',
        Role.DEVELOPER,
        create_table,
    ),
    "drop_table": ActionHandler(
        'Drop a table. Body: {"schema_name", "table_name", "force"?: false}', Role.ADMIN, drop_table
    ),
}


def _list_tables(ws: Workspace, caller: Caller, command: ListTables) -> bytes:
    snapshots = read.list_all(ws, caller)
    if command.schema_name is not None:
        schema = command.schema_name.lower()
        snapshots = [snapshot for snapshot in snapshots if snapshot.name.schema.lower() == schema]
        if not snapshots:
            tables.check_schema_exists(ws, caller, command.schema_name)
    return encode_response(
        tables=[
            {
                "schema_name": snapshot.name.schema,
                "table_name": snapshot.name.table,
                "version": snapshot.version.number,
                "rows": snapshot.version.rows,
            }
            for snapshot in snapshots
        ]
    )


def _create_table(ws: Workspace, caller: Caller, command: CreateTable) -> bytes:
    name = command.name
    try:
        receipt = write.create(
            ws, caller, name, command.arrow_schema, row_ids=command.row_ids, read_only=command.read_only
        )
    except AlreadyExists as error:
        if error.reason != "dataset_exists":
            raise
        raise AlreadyExists("dataset_exists.table", dataset=str(name)) from None
    [written] = receipt.written
    stored = canonical_schema(command.arrow_schema)
    return encode_response(
        status="success",
        schema_name=name.schema,
        table_name=name.table,
        version=written.version,
        arrow_schema=base64.b64encode(stored.serialize()).decode(),
    )


def _drop_table(ws: Workspace, caller: Caller, command: DropTable) -> bytes:
    with tables.translate_not_found(ws, caller, command):
        alter.drop(ws, caller, tables.find_table(ws, caller, command).dataset, force=command.force)
    return encode_response(status="success", schema_name=command.schema_name, table_name=command.table_name)


def _reject_transaction(call: FlightCall, action: str) -> None:
    if call.transaction is not None:
        raise Unsupported("not_in_transaction", {"action": action, "header": TRANSACTION_HEADER})
