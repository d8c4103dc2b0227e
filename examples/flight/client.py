"""Arrow Flight from Python: rows inserted, deleted in a transaction, and moved between two tables at once.

    penstock serve --dev --workspace lake &
    python examples/flight/client.py grpc://127.0.0.1:8815

Needs pyarrow and msgpack, and nothing of Penstock's. (`penstock.flight_client` is the same with less to write.) A server
that wants tokens gets the one in PENSTOCK_TOKEN.
"""

import base64
import json
import os
import sys
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as fl

SCHEMA, EVENTS, ARCHIVE = "analytics", "events", "archive"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("value", pa.float64())])
ROWS = pa.table(
    {"id": [1, 2, 3, 4], "kind": ["open", "close", "open", "noise"], "value": [0.5, 1.5, 2.5, 9.0]}, COLUMNS
)


def main(address: str) -> None:
    with fl.connect(address) as client:
        for table in (EVENTS, ARCHIVE):
            make(client, table)

        print(f"inserted {insert(client, EVENTS, ROWS)} rows")

        # Rows are named by their ids, which a read gives where it is asked for them.
        noise = read(client, EVENTS, filter="kind = 'noise'", rowid=True)["rowid"].to_pylist()
        transaction = begin(client)
        print(f"deleted {delete(client, EVENTS, noise, transaction)} rows, which others still see")
        print(f"others see {read(client, EVENTS).num_rows} rows")
        end(client, "commit_transaction", transaction)
        print(f"committed: all see {read(client, EVENTS).num_rows} rows")

        # Rows go from one table to the other, and nobody ever sees them in both, or in none.
        transaction = begin(client)
        try:
            moving = read(client, EVENTS, transaction, filter="kind = 'open'", rowid=True)
            insert(client, ARCHIVE, moving.drop(["rowid"]), transaction)
            delete(client, EVENTS, moving["rowid"].to_pylist(), transaction)
        except Exception:  # pyarrow has many: ArrowInvalid, ArrowKeyError, FlightUnavailableError and more
            end(client, "rollback_transaction", transaction)
            raise
        end(client, "commit_transaction", transaction)
        left, moved = read(client, EVENTS).num_rows, read(client, ARCHIVE).num_rows
        print(f"moved {moving.num_rows} rows: {left} left, {moved} in the archive")


def make(client: fl.FlightClient, table: str) -> None:
    """A table, unless it is there."""
    if table in (each["table_name"] for each in act(client, "list_tables")["tables"] if each["schema_name"] == SCHEMA):
        return
    columns = base64.b64encode(COLUMNS.serialize()).decode()
    act(client, "create_table", {"schema_name": SCHEMA, "table_name": table, "arrow_schema": columns})


def insert(client: fl.FlightClient, table: str, rows: pa.Table, transaction: str | None = None) -> int:
    """The rows are there, all of them and for good, when the answer is."""
    command = {
        "operation": "insert",
        "schema_name": SCHEMA,
        "table_name": table,
        # A stream that breaks off can look as if it had ended. With this, half of the rows are never taken for all.
        "expected_rows": rows.num_rows,
    }
    descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
    writer, answers = client.do_put(descriptor, rows.schema, options(transaction))
    with writer:  # what the server refuses is raised here
        writer.write_table(rows)
        writer.done_writing()
        answer = answers.read()
    return int(msgpack.unpackb(answer.to_pybytes())["affected_rows"])


def delete(client: fl.FlightClient, table: str, row_ids: list[int], transaction: str | None = None) -> int:
    body = {"schema_name": SCHEMA, "table_name": table, "row_ids": row_ids}
    return int(act(client, "delete", body, transaction)["affected_rows"])


def read(client: fl.FlightClient, table: str, transaction: str | None = None, **asked: Any) -> pa.Table:
    ticket = {"schema_name": SCHEMA, "table_name": table, **asked}
    return client.do_get(fl.Ticket(json.dumps(ticket)), options(transaction)).read_all()


def begin(client: fl.FlightClient) -> str:
    return str(act(client, "create_transaction")["transaction_id"])


def end(client: fl.FlightClient, how: str, transaction: str) -> None:
    act(client, how, {"transaction_id": transaction})


def act(client: fl.FlightClient, name: str, body: Any = None, transaction: str | None = None) -> Any:
    coded = b"" if body is None else json.dumps(body).encode()
    (answer,) = client.do_action(fl.Action(name, coded), options(transaction))
    return json.loads(answer.body.to_pybytes())


def options(transaction: str | None = None) -> fl.FlightCallOptions:
    """What goes before every call: who asks, and as part of what."""
    headers = []
    if token := os.environ.get("PENSTOCK_TOKEN"):
        headers.append((b"authorization", f"Bearer {token}".encode()))
    if transaction:
        headers.append((b"x-transaction-id", transaction.encode()))
    return fl.FlightCallOptions(headers=headers)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:8815")
