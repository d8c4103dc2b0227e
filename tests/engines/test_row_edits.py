"""Test row lookup and rewriting by row id."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.row_ids import RowIds
from penstock.core.merge import FileLayout, TargetFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.engines.arrow import row_edits
from penstock.engines.arrow.parquet_io import ROW_ID
from penstock.errors import Unavailable

id_lists = st.lists(st.integers(-5, 60) | st.sampled_from([-(2**63), 2**63 - 1, 10**12]), min_size=1, max_size=40)


@given(id_lists, st.integers(-10, 70), st.integers(0, 40))
def test_row_ids_are_sorted_with_their_first_positions(ids: list[int], low: int, width: int) -> None:
    row_ids = RowIds.from_array(np.array(ids))
    assert row_ids.values.tolist() == sorted(set(ids))
    assert row_ids.positions.tolist() == [ids.index(value) for value in sorted(set(ids))]
    positions_ = row_ids.between(low, low + width)
    assert positions_.values.tolist() == [value for value in sorted(set(ids)) if low <= value <= low + width]
    assert [ids[position] for position in positions_.positions] == positions_.values.tolist()


@given(id_lists, st.lists(st.integers(-5, 60), unique=True, max_size=40), st.booleans())
def test_row_ids_lookup_finds_ids_in_any_order(ids: list[int], file_ids: list[int], ordered: bool) -> None:
    file_ids = sorted(file_ids) if ordered else file_ids
    row_ids = RowIds.from_array(np.array(ids))
    positions, indices = row_ids.lookup(np.array(file_ids, dtype=np.int64))
    assert positions.tolist() == [position for position, value in enumerate(file_ids) if value in set(ids)]
    assert row_ids.values[indices].tolist() == [file_ids[position] for position in positions]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_row_ids_spans_cover_all_ids_without_the_widest_gaps(ids: list[int]) -> None:
    spans = RowIds.from_array(np.array(ids)).spans()
    assert len(spans) <= 16
    assert all(any(low <= value <= high for low, high in spans) for value in ids)
    assert all(low in ids and high in ids and low <= high for low, high in spans)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(spans))
    distinct = sorted(set(ids))
    outer_gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    inner_gaps = [b - a for a, b in pairwise(distinct) if not any(s[1] == a for s in spans)]
    assert max(inner_gaps, default=0) <= min(outer_gaps, default=10**6) or max(inner_gaps) == 1


@dataclass
class FolderFileSink:
    directory: Path
    layout: FileLayout
    file_bytes: int = 1 << 20
    names: Iterator[int] = field(default_factory=lambda: count(1))

    def path(self) -> str:
        return str(self.directory / f"new-{next(self.names)}.parquet")

    def folder(self) -> str:
        raise AssertionError("rows are written into files")

    def add_rows(self, rows: int) -> None:
        assert rows > 0


COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {  # type, old values, new values
    "flag": (pa.bool_(), [True, None], [False, None]),
    "small": (pa.int8(), [1, None, -3], [7, None]),
    "ratio": (pa.float64(), [0.5, float("inf"), None], [-0.0, None]),
    "amount": (pa.decimal128(20, 2), [Decimal("1.25"), None], [Decimal("-9.99"), None]),
    "word": (pa.string(), ["a", "", None, "ä" * 50], ["new", None, ""]),
    "raw": (pa.binary(), [b"\0", None], [b"new", None]),
    "day": (pa.date32(), [date(2026, 1, 1), None], [date(1, 1, 1), None]),
    "taken": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1), None], [datetime(1999, 1, 1), None]),
    "words": (pa.list_(pa.string()), [["a", None], [], None], [["new"], None, []]),
    "place": (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": "a"}, None], [{"x": None, "y": "n"}]),
}


def make_rows(number: int, *, new: bool) -> pa.Table:
    """Build rows with values of every type."""
    chosen = {name: (data_type, values[new]) for name, (data_type, *values) in COLUMNS.items()}
    return pa.table(
        {
            name: pa.array([values[i % len(values)] for i in range(number)], data_type)
            for name, (data_type, values) in chosen.items()
        }
    )


def write_target(path: Path, rows: pa.Table, ids: list[int], *, carried: bool, group_rows: int = 7) -> TargetFile:
    stored = rows.append_column(ROW_ID, pa.array(ids, pa.int64())) if carried else rows
    pq.write_table(stored, path, row_group_size=group_rows)
    layout = FileLayout(rows.schema.append(ROW_ID), group_rows=5, differences=True)
    first = None if carried else ids[0]
    return TargetFile(
        str(path), len(ids), layout, bounds={STORED_ROW_ID_COLUMN: (min(ids), max(ids))}, first_row_id=first
    )


def read(path: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a file by row id, in file order."""
    rows = pq.ParquetFile(path).read().to_pylist()
    return {row.pop(STORED_ROW_ID_COLUMN): row for row in rows}


ID_LAYOUTS = {
    "fresh": (False, list(range(100, 140))),
    "carried in order": (True, list(range(100, 180, 2))),
    "carried in disorder": (True, [100 + (7 * i) % 40 for i in range(40)]),
}


@pytest.mark.parametrize("file", ID_LAYOUTS)
@pytest.mark.parametrize("max_bytes", [64 << 20, 60], ids=["at once", "in halves"])
def test_rewrite_files_replaces_rows_of_every_type(
    tmp_path: Path, file: str, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_edits, "_MAX_NEW_ROWS_BYTES", max_bytes)
    carried, ids = ID_LAYOUTS[file]
    old, ids_to_replace = make_rows(40, new=False), [ids[i] for i in (39, 0, 6, 7, 8, 20, 21, 3)]
    target = write_target(tmp_path / "old.parquet", old, ids, carried=carried)
    new = pa.concat_tables([make_rows(5, new=True), make_rows(3, new=True)])  # two chunks
    (hits,) = row_edits.find_rows([target], RowIds.from_array(np.array(ids_to_replace)))
    (output,) = row_edits.rewrite_files([hits], new, FolderFileSink(tmp_path, target.layout))
    expected = dict(zip(ids, old.to_pylist(), strict=True)) | dict(zip(ids_to_replace, new.to_pylist(), strict=True))
    assert list(read(output.path).items()) == list(expected.items())
    assert pq.ParquetFile(output.path).schema_arrow.equals(target.layout.schema)


@pytest.mark.parametrize("file", ID_LAYOUTS)
def test_rewrite_files_deletes_rows_and_reports_old_rows(tmp_path: Path, file: str) -> None:
    carried, ids = ID_LAYOUTS[file]
    old, ids_to_delete = make_rows(40, new=False), [ids[30], 99_999, ids[2], ids[30], ids[3]]
    target = write_target(tmp_path / "old.parquet", old, ids, carried=carried)
    reported: list[tuple[int, dict[str, Any]]] = []

    def record(indices: Any, rows: pa.RecordBatch) -> None:
        reported.extend(zip(indices.tolist(), rows.to_pylist(), strict=True))

    hits = row_edits.find_rows([target], RowIds.from_array(np.array(ids_to_delete)))
    (output,) = row_edits.rewrite_files(hits, None, FolderFileSink(tmp_path, target.layout), record)
    before = dict(zip(ids, old.to_pylist(), strict=True))
    assert list(read(output.path)) == [row_id for row_id in ids if row_id not in ids_to_delete]
    old_rows = {index: (row.pop(STORED_ROW_ID_COLUMN), row) for index, row in reported}
    assert old_rows == {index: (ids_to_delete[index], before[ids_to_delete[index]]) for index in (0, 2, 4)}
    reported.clear()
    row_edits.read_rows(hits, record)
    assert {index for index, _ in reported} == {0, 2, 4}


def test_rewrite_files_file_without_remaining_rows_is_not_opened(tmp_path: Path) -> None:
    target = write_target(tmp_path / "old.parquet", make_rows(4, new=False), [5, 6, 7, 8], carried=False)
    hits = row_edits.find_rows([target], RowIds.from_array(np.arange(1, 20)))
    Path(target.path).unlink()
    assert list(row_edits.rewrite_files(hits, None, FolderFileSink(tmp_path, target.layout))) == []
    with pytest.raises(Unavailable):
        list(row_edits.rewrite_files(hits, None, FolderFileSink(tmp_path, target.layout), lambda *_: None))


def test_find_rows_files_outside_the_id_range_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrupt row groups and files outside the id range do not matter. The row ids of small files are read as a whole."""
    monkeypatch.setattr(row_edits, "_MAX_CACHED_ROWS", 0)
    inside_file = write_target(tmp_path / "near.parquet", make_rows(40, new=False), list(range(1, 41)), carried=True)
    outside_file = write_target(tmp_path / "far.parquet", make_rows(3, new=False), [100, 101, 102], carried=True)
    Path(outside_file.path).write_bytes(b"not a Parquet file")
    last = pq.ParquetFile(inside_file.path).metadata.row_group(5)
    chunk = last.column(last.num_columns - 1)
    with open(inside_file.path, "r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * 20)
    (hits,) = row_edits.find_rows([inside_file, outside_file], RowIds.from_array(np.array([3, 9, 50])))
    assert (hits.file, hits.positions.tolist(), hits.id_indices.tolist()) == (inside_file, [2, 8], [0, 1])
    with pytest.raises(Unavailable):
        row_edits.find_rows([inside_file], RowIds.from_array(np.array([40])))
