"""What DoAction knows: a table of actions, and those of them that are about tables."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.caller import Caller
from penstock.errors import AlreadyExists, Unsupported
from penstock.flight import commands, tables
from penstock.flight.interceptor import TRANSACTION, Call
from penstock.flight.commands import CreateTable, ListTables, Table
from penstock.service.datasets import alter
from penstock.service.datasets import read
from penstock.service.datasets import write
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Action:
    description: str
    do: Callable[[Call, bytes], Awaitable[bytes]]  # the body of the answer for the body of the request


def answer(**facts: Any) -> bytes:
    return json.dumps(facts).encode()


async def list_schemas(call: Call, body: bytes) -> bytes:
    commands.list_schemas(body)
    return answer(schemas=await call.run(read.schema_names, call.edge.workspace, call.caller))


async def list_tables(call: Call, body: bytes) -> bytes:
    return await call.run(_list_tables, call.edge.workspace, call.caller, commands.list_tables(body))


async def create_table(call: Call, body: bytes) -> bytes:
    _refuse_transaction(call, "create_table")
    return await call.run(_create_table, call.edge.workspace, call.caller, commands.create_table(body))


async def drop_table(call: Call, body: bytes) -> bytes:
    _refuse_transaction(call, "drop_table")
    return await call.run(_drop_table, call.edge.workspace, call.caller, commands.drop_table(body))


ACTIONS: Mapping[str, Action] = {
    "list_schemas": Action("The schemas that have tables. No body.", list_schemas),
    "list_tables": Action('Tables with their newest versions. Body: {"schema_name"?}', list_tables),
    "create_table": Action(
        'Make a table. Body: {"schema_name", "table_name", "arrow_schema": base64 of an Arrow IPC schema, '
        '"row_ids"?: true, "read_only"?: false}',
        create_table,
    ),
    "drop_table": Action('Take a table out of sight. Body: {"schema_name", "table_name"}', drop_table),
}


def _list_tables(ws: Workspace, caller: Caller, asked: ListTables) -> bytes:
    there = read.everything(ws, caller)
    if asked.schema_name is not None:
        there = [each for each in there if each.name.schema.lower() == asked.schema_name.lower()]
        if not there:
            tables.check_schema(ws, caller, asked.schema_name)
    return answer(
        tables=[
            {
                "schema_name": each.name.schema,
                "table_name": each.name.table,
                "version": each.version.number,
                "rows": each.version.rows,
            }
            for each in there
        ]
    )


def _create_table(ws: Workspace, caller: Caller, asked: CreateTable) -> bytes:
    name = asked.name
    try:
        receipt = write.create(ws, caller, name, asked.arrow_schema, row_ids=asked.row_ids, read_only=asked.read_only)
    except AlreadyExists as refusal:
        if refusal.reason != "dataset_exists":
            raise
        raise AlreadyExists("dataset_exists", f"table {str(name)!r} already exists", dataset=str(name)) from None
    [made] = receipt.written
    return answer(status="success", schema_name=name.schema, table_name=name.table, version=made.version)


def _drop_table(ws: Workspace, caller: Caller, asked: Table) -> bytes:
    with tables.missing(ws, caller, asked):
        alter.drop(ws, caller, tables.find(ws, caller, asked).dataset)
    return answer(status="success", schema_name=asked.schema_name, table_name=asked.table_name)


def _refuse_transaction(call: Call, action: str) -> None:
    if call.transaction is not None:
        raise Unsupported(
            "not_in_transaction", f"{action} is never part of a transaction; send it without {TRANSACTION}"
        )
