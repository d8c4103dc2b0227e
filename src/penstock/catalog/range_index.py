"""Index the value ranges of live data files, so that a plan finds the few files that it needs without the others.

`penstock.core.dataset.range_index` maps a range to one 64-bit coordinate. The table `file_ranges` has one row for each
indexed column of each live file, and one for its row ids. Rows are deleted when their file ends.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import bindparam, delete, select

from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import file_ranges
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.range_index import UNKNOWN_RANGE_COORDINATE, SearchWindow, range_coordinate

INDEXED_COLUMNS = 32  # the range index covers the first columns of a dataset
ROW_ID_COLUMN_NO = -1  # column number of the row ids

_r = file_ranges.c
_of_dataset = (tenant_filter(file_ranges), _r.dataset_id == bindparam("dataset"))
_in_column = select(_r.file_no).where(*_of_dataset, _r.column_no == bindparam("column"))
RANGES_BETWEEN = _in_column.where(_r.coordinate.between(bindparam("first"), bindparam("last")))
RANGES_AT = _in_column.where(_r.coordinate.in_(bindparam("coordinates", expanding=True)))
_INSERT = insert_for_tenant(file_ranges)
_DELETE = delete(file_ranges).where(*_of_dataset, _r.file_no.in_(bindparam("numbers", expanding=True)))


def rows_of_file(
    dataset: UUID, file_no: int, file: NewFile, schema: pa.Schema, row_id_range: tuple[int, int] | None
) -> list[dict[str, Any]]:
    """Return the rows of a new file: one for each indexed column that has values, and one for its row ids."""
    return [
        {"dataset_id": dataset, "column_no": column_no, "coordinate": coordinate, "file_no": file_no}
        for column_no, coordinate in _coordinates(file, schema, row_id_range)
    ]


def insert(tx: CatalogTransaction, rows: Sequence[dict[str, Any]]) -> None:
    tx.insert_many(_INSERT, rows)


def remove(tx: CatalogTransaction, dataset: UUID, file_nos: list[int]) -> None:
    """Remove files from the index: it covers live files only."""
    tx.execute(_DELETE, dataset=dataset, numbers=file_nos)


def find_files(tx: CatalogTransaction, dataset: UUID, column_no: int, windows: Sequence[SearchWindow]) -> list[int]:
    """Return the numbers of the live files whose range of a column may overlap one of the search windows."""
    key = {"dataset": dataset, "column": column_no}
    file_nos = {
        row.file_no for window in windows for row in tx.all(RANGES_BETWEEN, first=window.first, last=window.last, **key)
    }
    coordinates = sorted({coordinate for window in windows for coordinate in window.enclosing})
    file_nos |= {row.file_no for chunk in in_chunks(coordinates) for row in tx.all(RANGES_AT, coordinates=chunk, **key)}
    return sorted(file_nos)


def _coordinates(file: NewFile, schema: pa.Schema, row_id_range: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
    for column_no, name in enumerate(schema.names[:INDEXED_COLUMNS]):
        stats = file.stats.get(name)
        if stats is None or stats.nulls == file.rows:
            continue
        if stats.low is None or stats.high is None:
            yield column_no, UNKNOWN_RANGE_COORDINATE
        else:
            yield column_no, range_coordinate(stats.low, stats.high)
    if row_id_range:
        yield ROW_ID_COLUMN_NO, range_coordinate(*row_id_range)
