"""Rows found and rewritten by their ids: the right ones, all of them, and nothing else."""

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

from penstock.core.merge import Layout, TargetFile
from penstock.core.names import CARRIED
from penstock.core.dataset.row_ids import RowIds
from penstock.engines.arrow import row_edits as hands
from penstock.engines.arrow.parquet_io import ROW_ID
from penstock.errors import Unavailable

some_ids = st.lists(st.integers(-5, 60) | st.sampled_from([-(2**63), 2**63 - 1, 10**12]), min_size=1, max_size=40)


@given(some_ids, st.integers(-10, 70), st.integers(0, 40))
def test_ids_are_sorted_once_and_know_their_first_places(ids: list[int], low: int, width: int) -> None:
    asked = RowIds.of(np.array(ids))
    assert asked.values.tolist() == sorted(set(ids))
    assert asked.places.tolist() == [ids.index(value) for value in sorted(set(ids))]
    within = asked.within(low, low + width)
    assert within.values.tolist() == [value for value in sorted(set(ids)) if low <= value <= low + width]
    assert [ids[place] for place in within.places] == within.values.tolist()


@given(some_ids, st.lists(st.integers(-5, 60), unique=True, max_size=40), st.booleans())
def test_ids_meet_the_ids_of_a_file_in_any_order(ids: list[int], held: list[int], ordered: bool) -> None:
    held = sorted(held) if ordered else held
    asked = RowIds.of(np.array(ids))
    at, which = asked.meet(np.array(held, dtype=np.int64))
    assert at.tolist() == [place for place, value in enumerate(held) if value in set(ids)]
    assert asked.values[which].tolist() == [held[place] for place in at]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_a_few_spans_cover_all_ids_and_leave_out_the_widest_gaps(ids: list[int]) -> None:
    spans = RowIds.of(np.array(ids)).spans()
    assert len(spans) <= 16
    assert all(any(low <= value <= high for low, high in spans) for value in ids)
    assert all(low in ids and high in ids and low <= high for low, high in spans)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(spans))
    alone = sorted(set(ids))
    left = [after[0] - before[1] for before, after in pairwise(spans)]
    kept = [b - a for a, b in pairwise(alone) if not any(s[1] == a for s in spans)]
    assert max(kept, default=0) <= min(left, default=10**6) or max(kept) == 1


@dataclass
class Sink:
    place: Path
    layout: Layout
    file_bytes: int = 1 << 20
    names: Iterator[int] = field(default_factory=lambda: count(1))

    def path(self) -> str:
        return str(self.place / f"new-{next(self.names)}.parquet")

    def folder(self) -> str:
        raise AssertionError("rows are written into files")

    def beat(self, rows: int) -> None:
        assert rows > 0


KINDS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {  # type, old values, new values
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


def rows_of(number: int, *, new: bool) -> pa.Table:
    """So many rows with a value of every kind."""
    chosen = {name: (kind, values[new]) for name, (kind, *values) in KINDS.items()}
    return pa.table(
        {
            name: pa.array([values[i % len(values)] for i in range(number)], kind)
            for name, (kind, values) in chosen.items()
        }
    )


def placed(path: Path, rows: pa.Table, ids: list[int], *, carried: bool, group_rows: int = 7) -> TargetFile:
    stored = rows.append_column(ROW_ID, pa.array(ids, pa.int64())) if carried else rows
    pq.write_table(stored, path, row_group_size=group_rows)
    layout = Layout(rows.schema.append(ROW_ID), group_rows=5, differences=True)
    first = None if carried else ids[0]
    return TargetFile(str(path), len(ids), layout, bounds={CARRIED: (min(ids), max(ids))}, first_row_id=first)


def read(path: str) -> dict[int, dict[str, Any]]:
    """Rows by their ids, in the order of the file."""
    found = pq.ParquetFile(path).read().to_pylist()
    return {row.pop(CARRIED): row for row in found}


CARRYING = {
    "fresh": (False, list(range(100, 140))),
    "carried in order": (True, list(range(100, 180, 2))),
    "carried in disorder": (True, [100 + (7 * i) % 40 for i in range(40)]),
}


@pytest.mark.parametrize("file", CARRYING)
@pytest.mark.parametrize("brought", [64 << 20, 60], ids=["at once", "in halves"])
def test_rows_of_every_type_are_replaced_where_they_stand(
    tmp_path: Path, file: str, brought: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "_BROUGHT", brought)
    carried, ids = CARRYING[file]
    old, asked = rows_of(40, new=False), [ids[i] for i in (39, 0, 6, 7, 8, 20, 21, 3)]
    target = placed(tmp_path / "old.parquet", old, ids, carried=carried)
    new = pa.concat_tables([rows_of(5, new=True), rows_of(3, new=True)])  # two chunks
    (hits,) = hands.find([target], RowIds.of(np.array(asked)))
    (output,) = hands.rewrite([hits], new, Sink(tmp_path, target.layout))
    expected = dict(zip(ids, old.to_pylist(), strict=True)) | dict(zip(asked, new.to_pylist(), strict=True))
    assert list(read(output.path).items()) == list(expected.items())
    assert pq.ParquetFile(output.path).schema_arrow.equals(target.layout.schema)


@pytest.mark.parametrize("file", CARRYING)
def test_rows_are_dropped_and_seen_as_they_were(tmp_path: Path, file: str) -> None:
    carried, ids = CARRYING[file]
    old, asked = rows_of(40, new=False), [ids[30], 99_999, ids[2], ids[30], ids[3]]
    target = placed(tmp_path / "old.parquet", old, ids, carried=carried)
    seen: list[tuple[int, dict[str, Any]]] = []

    def hear(places: Any, rows: pa.RecordBatch) -> None:
        seen.extend(zip(places.tolist(), rows.to_pylist(), strict=True))

    hits = hands.find([target], RowIds.of(np.array(asked)))
    (output,) = hands.rewrite(hits, None, Sink(tmp_path, target.layout), hear)
    before = dict(zip(ids, old.to_pylist(), strict=True))
    assert list(read(output.path)) == [each for each in ids if each not in asked]
    told = {place: (row.pop(CARRIED), row) for place, row in seen}
    assert told == {place: (asked[place], before[asked[place]]) for place in (0, 2, 4)}
    seen.clear()
    hands.pick(hits, hear)
    assert {place for place, _ in seen} == {0, 2, 4}


def test_what_loses_all_its_rows_has_no_successor_and_is_not_even_opened(tmp_path: Path) -> None:
    target = placed(tmp_path / "old.parquet", rows_of(4, new=False), [5, 6, 7, 8], carried=False)
    hits = hands.find([target], RowIds.of(np.arange(1, 20)))
    Path(target.path).unlink()
    assert list(hands.rewrite(hits, None, Sink(tmp_path, target.layout))) == []
    with pytest.raises(Unavailable):
        list(hands.rewrite(hits, None, Sink(tmp_path, target.layout), lambda *_: None))


def test_files_that_lie_elsewhere_are_not_opened(tmp_path: Path) -> None:
    """Nor are row groups that lie elsewhere read: what is broken there is not met."""
    near = placed(tmp_path / "near.parquet", rows_of(40, new=False), list(range(1, 41)), carried=True)
    far = placed(tmp_path / "far.parquet", rows_of(3, new=False), [100, 101, 102], carried=True)
    Path(far.path).write_bytes(b"nobody reads this")
    last = pq.ParquetFile(near.path).metadata.row_group(5)
    chunk = last.column(last.num_columns - 1)
    with open(near.path, "r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * 20)
    (hits,) = hands.find([near, far], RowIds.of(np.array([3, 9, 50])))
    assert (hits.file, hits.positions.tolist(), hits.places.tolist()) == (near, [2, 8], [0, 1])
    with pytest.raises(Unavailable):
        hands.find([near], RowIds.of(np.array([40])))
