"""Statistics and the range index may be imprecise, but never exclude existing values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.column_stats import (
    ColumnStats,
    combine_stats,
    may_contain,
    stat_value,
    stats_parser,
    to_json,
    truncate_bounds,
)
from penstock.core.dataset.range_index import UNKNOWN_RANGE_COORDINATE, range_coordinate, search_window

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=5),
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "integers": st.integers(-(2**63), 2**63 - 1),
    "small integers": st.integers(-20, 20),
    "floats": st.floats(allow_nan=False),
    "decimals": st.decimals(Decimal("-1e30"), Decimal("1e30"), places=6),
    "text": st.text(max_size=60),
    "bytes": st.binary(max_size=60),
}


@pytest.mark.parametrize("type_name", KINDS)
@given(data=st.data())
def test_search_window_finds_every_overlapping_range(type_name: str, data: st.DataObject) -> None:
    low, high = sorted((data.draw(KINDS[type_name]), data.draw(KINDS[type_name])))
    first, last = sorted((data.draw(KINDS[type_name]), data.draw(KINDS[type_name])))
    coordinate, window = range_coordinate(low, high), search_window(first, last)
    assert -(2**63) <= coordinate < 2**63
    assert len(window.enclosing) <= 32
    if low <= last and first <= high:
        assert window.first <= coordinate <= window.last or coordinate in window.enclosing
    for open_end in (search_window(None, last), search_window(first, None), search_window(None, None)):
        assert UNKNOWN_RANGE_COORDINATE in open_end.enclosing


def test_search_window_selects_few_of_many_ranges() -> None:
    indices = [range_coordinate(1000 * i, 1000 * i + 999) for i in range(20_000)]
    for key in (0, 999, 10_000_500, 19_999_999, 4_194_304):
        window = search_window(key, key)
        matches = [i for i, p in enumerate(indices) if window.first <= p <= window.last or p in window.enclosing]
        assert key // 1000 in matches
        assert len(matches) < 100


@pytest.mark.parametrize("type_name", KINDS)
@given(data=st.data())
def test_column_stats_json_round_trip_preserves_bounds(type_name: str, data: st.DataObject) -> None:
    data_types = {"floats": pa.float64(), "decimals": pa.decimal128(38, 6), "text": pa.string(), "bytes": pa.binary()}
    schema = pa.schema([("x", data_types.get(type_name, pa.int64()))])
    low, high = sorted((data.draw(KINDS[type_name]), data.draw(KINDS[type_name])))
    expected_type = stats_parser(schema)(to_json({"x": truncate_bounds(ColumnStats(low, high, 3))}))["x"]
    assert expected_type.low is None or expected_type.low <= low
    assert expected_type.high is None or expected_type.high >= high
    assert expected_type.nulls == 3
    for value in (low, high):
        assert may_contain(expected_type, 10, value, value)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=4), min_size=1, max_size=4))
def test_combine_stats_of_row_groups(groups: list[list[int | None]]) -> None:
    def stats(rows: list[int | None]) -> ColumnStats:
        declared = [row for row in rows if row is not None]
        return ColumnStats(min(declared, default=None), max(declared, default=None), len(rows) - len(declared))

    assert combine_stats((len(rows), stats(rows)) for rows in groups) == stats([row for rows in groups for row in rows])


def test_combine_stats_with_unknown_part_is_unknown() -> None:
    assert combine_stats([(5, ColumnStats(1, 2, 0)), (5, ColumnStats(None, None, 4))]) == ColumnStats(None, None, 4)
    assert combine_stats([(5, ColumnStats(1, 2, 0)), (5, ColumnStats(None, None, 5))]) == ColumnStats(1, 2, 5)


def test_may_contain_excludes_files_without_matching_values() -> None:
    assert not may_contain(ColumnStats(5, 9, 0), 3, 10, None)
    assert not may_contain(ColumnStats(5, 9, 0), 3, None, 4)
    assert not may_contain(ColumnStats(None, None, 3), 3, None, None), "nothing but NULL meets no condition"
    assert may_contain(ColumnStats(None, None, 2), 3, 1, 2)
    assert may_contain(None, 3, 1, 2)


def test_stat_value_of_every_type_is_comparable() -> None:
    assert [stat_value(v) for v in (True, date(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 1))] == [1, 1, 1_000_000]
    assert stat_value(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    with pytest.raises(TypeError):
        stat_value(object())
