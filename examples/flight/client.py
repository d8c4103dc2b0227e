"""Arrow Flight from Python: insert rows, delete rows in a transaction, and move rows between two tables atomically.

    penstock serve --dev --workspace lake &
    python examples/flight/client.py grpc://127.0.0.1:8815

Needs pyarrow and msgpack only. (`penstock.flight_client` does the same with less code.) The environment variable
PENSTOCK_TOKEN holds the token for a server that requires one.
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

        # A read with rowid=True returns the row ids, which identify the rows to delete.
        noise = read(client, EVENTS, filter="kind = 'noise'", rowid=True)["rowid"].to_pylist()
        transaction = begin(client)
        print(f"deleted {delete(client, EVENTS, noise, transaction)} rows, which other clients still see")
        print(f"other clients see {read(client, EVENTS).num_rows} rows")
        end(client, "commit_transaction", transaction)
        print(f"committed: all clients see {read(client, EVENTS).num_rows} rows")

        # Move rows from one table to the other. No client ever sees them in both tables, or in neither.
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
    """Create the table if it does not exist."""
    tables = act(client, "list_tables")["tables"]
    if any((entry["schema_name"], entry["table_name"]) == (SCHEMA, table) for entry in tables):
        return
    columns = base64.b64encode(COLUMNS.serialize()).decode()
    act(client, "create_table", {"schema_name": SCHEMA, "table_name": table, "arrow_schema": columns})


def insert(client: fl.FlightClient, table: str, rows: pa.Table, transaction: str | None = None) -> int:
    """Insert rows in one commit. They are durable when the response arrives."""
    command = {
        "operation": "insert",
        "schema_name": SCHEMA,
        "table_name": table,
        # An interrupted stream can look like a finished one. With the count, it is never committed.
        "expected_rows": rows.num_rows,
    }
    descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
    writer, responses = client.do_put(descriptor, rows.schema, options(transaction))
    with writer:  # an error of the server is raised here
        writer.write_table(rows)
        writer.done_writing()
        response = responses.read()
    return int(msgpack.unpackb(response.to_pybytes())["affected_rows"])


def delete(client: fl.FlightClient, table: str, row_ids: list[int], transaction: str | None = None) -> int:
    body = {"schema_name": SCHEMA, "table_name": table, "row_ids": row_ids}
    return int(act(client, "delete", body, transaction)["affected_rows"])


def read(client: fl.FlightClient, table: str, transaction: str | None = None, **members: Any) -> pa.Table:
    ticket = {"schema_name": SCHEMA, "table_name": table, **members}
    return client.do_get(fl.Ticket(json.dumps(ticket)), options(transaction)).read_all()


def begin(client: fl.FlightClient) -> str:
    return str(act(client, "create_transaction")["transaction_id"])


def end(client: fl.FlightClient, action: str, transaction: str) -> None:
    act(client, action, {"transaction_id": transaction})


def act(client: fl.FlightClient, name: str, body: Any = None, transaction: str | None = None) -> Any:
    encoded = b"" if body is None else json.dumps(body).encode()
    (result,) = client.do_action(fl.Action(name, encoded), options(transaction))
    return json.loads(result.body.to_pybytes())


def options(transaction: str | None = None) -> fl.FlightCallOptions:
    """Return the headers of a call: the token and the transaction id."""
    headers = []
    if token := os.environ.get("PENSTOCK_TOKEN"):
        headers.append((b"authorization", f"Bearer {token}".encode()))
    if transaction:
        headers.append((b"x-transaction-id", transaction.encode()))
    return fl.FlightCallOptions(headers=headers)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:8815")
