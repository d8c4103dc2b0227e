"""Find the table that a command means, and say it in this edge's words where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.flight.commands import Table
from penstock.service.datasets import read
from penstock.service.workspace import Workspace


def find(ws: Workspace, caller: Caller, table: Table, version: int | None = None) -> Snapshot:
    """A table at a version, or as it is now."""
    with missing(ws, caller, table):
        newest = read.find(ws, caller, name(table))
        return newest if version is None else read.at(ws, caller, newest.dataset, version=version)


def name(table: Table) -> DatasetName:
    """What can be no name is not there."""
    try:
        return DatasetName(table.schema_name, table.table_name)
    except Invalid:
        raise NotFound("dataset_not_found", "a dataset cannot have that name") from None


@contextmanager
def missing(ws: Workspace, caller: Caller, table: Table) -> Iterator[None]:
    """Let a dataset that is not there be told as a table, or as a schema, that is not there."""
    try:
        yield
    except NotFound as refusal:
        if refusal.reason != "dataset_not_found":
            raise
        check_schema(ws, caller, table.schema_name)
        shown = f"{table.schema_name[:60]}.{table.table_name[:60]}"
        raise NotFound("dataset_not_found", f"table {shown!r} not found", dataset=shown) from None


def check_schema(ws: Workspace, caller: Caller, schema: str) -> None:
    """A schema exists while it has tables."""
    if schema.lower() not in map(str.lower, read.schema_names(ws, caller)):
        shown = schema[:60]
        raise NotFound("no_such_schema", f"schema {shown!r} not found", schema=shown)


@contextmanager
def writing(table: Table, operation: str) -> Iterator[None]:
    """Let a table that cannot be written to say what it does not support: INSERT, UPDATE or DELETE."""
    try:
        yield
    except Unsupported as refusal:
        if refusal.reason != "read_only":
            raise
        shown = table.table_name
        raise Unsupported(
            "read_only", f"table {shown!r} does not support {operation} operations", **refusal.context
        ) from None
