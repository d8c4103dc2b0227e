"""Infer a result schema from a dataset, a file or JSON rows."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.core import result_schema
from penstock.core.caller import Caller
from penstock.core.names import parse_dataset_ref
from penstock.core.result_schema import ResultField
from penstock.errors import Invalid
from penstock.service.datasets.read import find, find_version
from penstock.service.datasets.row_source import SourceReader
from penstock.service.workspace import Workspace

MAX_SAMPLE_ROWS = 10_000  # rows of a sample that are read
_MAX_SAMPLE_BYTES = 32 << 20  # of these rows in memory; no more batches are read after them


def infer_from_dataset(ws: Workspace, caller: Caller, key: str, version: int | None = None) -> tuple[ResultField, ...]:
    """Infer fields from the columns of a dataset.

    Args:
        ws: the workspace
        caller: the caller
        key: name or id of the dataset
        version: a version of the dataset; None: the current one
    """
    snapshot = find(ws, caller, parse_dataset_ref(key))
    if version is not None:
        snapshot = find_version(ws, caller, snapshot.dataset, version=version)
    return result_schema.infer_fields(snapshot.schema)


def infer_from_file(rows: SourceReader) -> tuple[ResultField, ...]:
    """Infer fields from the first rows of a file. A field with a NULL value is optional."""
    batches: list[pa.RecordBatch] = []
    for batch in rows:
        batches.append(batch)
        row_count, bytes_read = sum(map(len, batches)), sum(batch.nbytes for batch in batches)
        if row_count >= MAX_SAMPLE_ROWS or bytes_read >= _MAX_SAMPLE_BYTES:
            break
    sample = pa.Table.from_batches(batches, rows.schema).slice(0, MAX_SAMPLE_ROWS)
    if not sample.num_rows:
        raise Invalid("empty_sample.file")
    return result_schema.infer_fields(
        pa.schema(
            [f.with_nullable(column.null_count > 0) for f, column in zip(sample.schema, sample.columns, strict=True)]
        )
    )


def infer_from_rows(rows: Any) -> tuple[ResultField, ...]:
    """Infer fields from rows in JSON."""
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise Invalid("empty_sample.rows")
    return result_schema.infer_fields_from_rows(rows[:MAX_SAMPLE_ROWS])
