"""Propose a schema of what a query returns, from rows that are there."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.core import result_schema as contract
from penstock.core.caller import Caller
from penstock.core.result_schema import Field
from penstock.core.names import DatasetName
from penstock.errors import Invalid
from penstock.service.datasets.read import at, find
from penstock.service.datasets.row_source import Source
from penstock.service.workspace import Workspace

MAX_ROWS = 10_000  # of a sample


def of_dataset(ws: Workspace, caller: Caller, key: str, version: int | None = None) -> tuple[Field, ...]:
    """From a dataset's columns: by its name or id, as it is or at a version."""
    snapshot = find(ws, caller, _named(key))
    if version is not None:
        snapshot = at(ws, caller, snapshot.dataset, version=version)
    return contract.inferred(snapshot.schema)


def of_sample(rows: Source) -> tuple[Field, ...]:
    """From the first rows of a file: a field in which one has no value is optional."""
    batches: list[pa.RecordBatch] = []
    for batch in rows:
        batches.append(batch)
        if sum(len(each) for each in batches) >= MAX_ROWS:
            break
    sample = pa.Table.from_batches(batches, rows.schema).slice(0, MAX_ROWS)
    if not sample.num_rows:
        raise Invalid("empty_sample", "the sample has no rows to infer a schema from")
    return contract.inferred(
        pa.schema(
            [f.with_nullable(column.null_count > 0) for f, column in zip(sample.schema, sample.columns, strict=True)]
        )
    )


def of_rows(rows: Any) -> tuple[Field, ...]:
    """From rows that came as JSON."""
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise Invalid("empty_sample", "rows must be an array of at least one object")
    return contract.inferred_rows(rows[:MAX_ROWS])


def _named(key: str) -> DatasetName | UUID:
    try:
        return UUID(key)
    except ValueError:
        return DatasetName.parse(key)
