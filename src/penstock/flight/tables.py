"""Resolve the table of a command, and translate service errors to the messages of the Flight contract."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.flight.commands import TableName
from penstock.service.datasets import read
from penstock.service.workspace import Workspace


def find_table(ws: Workspace, caller: Caller, table: TableName, version: int | None = None) -> Snapshot:
    """Return a table at a version, or at its newest version.

    Raises:
        NotFound: the schema, the table or the version does not exist
    """
    with translate_not_found(ws, caller, table):
        newest = read.find(ws, caller, dataset_name(table))
        return newest if version is None else read.find_version(ws, caller, newest.dataset, version=version)


def dataset_name(table: TableName) -> DatasetName:
    """Return the dataset name of a table. An invalid name is treated as one that does not exist."""
    try:
        return DatasetName(table.schema_name, table.table_name)
    except Invalid:
        raise NotFound("dataset_not_found.invalid_name") from None


@contextmanager
def translate_not_found(ws: Workspace, caller: Caller, table: TableName) -> Iterator[None]:
    """Report a missing dataset as a missing schema or a missing table."""
    try:
        yield
    except NotFound as error:
        if error.reason != "dataset_not_found":
            raise
        check_schema_exists(ws, caller, table.schema_name)
        name = f"{table.schema_name[:60]}.{table.table_name[:60]}"
        raise NotFound("dataset_not_found.table", dataset=name) from None


def check_schema_exists(ws: Workspace, caller: Caller, schema: str) -> None:
    """Raise NotFound unless the schema has at least one table."""
    if schema.lower() not in map(str.lower, read.schema_names(ws, caller)):
        raise NotFound("namespace_not_found", schema=schema[:60])


def read_only_error(table: TableName, verb: str, error: Unsupported) -> Unsupported:
    """Return the contract's error for a read-only dataset: the table does not support INSERT, UPDATE or DELETE."""
    return Unsupported("read_only.table", {"table": table.table_name, "operation": verb}, **error.context)
