"""Statistics and the index of ranges may be loose, but never leave out what is there."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.range_index import EVERYWHERE, place, search
from penstock.core.dataset.column_stats import Stats, cut, from_json, may_hold, plain, to_json, united

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


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_search_finds_every_range_that_it_meets(kind: str, data: st.DataObject) -> None:
    low, high = sorted((data.draw(KINDS[kind]), data.draw(KINDS[kind])))
    first, last = sorted((data.draw(KINDS[kind]), data.draw(KINDS[kind])))
    where, looked = place(low, high), search(first, last)
    assert -(2**63) <= where < 2**63
    assert len(looked.around) <= 32
    if low <= last and first <= high:
        assert looked.first <= where <= looked.last or where in looked.around
    for open_end in (search(None, last), search(first, None), search(None, None)):
        assert EVERYWHERE in open_end.around


def test_a_search_among_many_ranges_finds_few() -> None:
    places = [place(1000 * i, 1000 * i + 999) for i in range(20_000)]
    for key in (0, 999, 10_000_500, 19_999_999, 4_194_304):
        looked = search(key, key)
        found = [i for i, p in enumerate(places) if looked.first <= p <= looked.last or p in looked.around]
        assert key // 1000 in found
        assert len(found) < 100


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_statistics_survive_the_catalog_as_bounds(kind: str, data: st.DataObject) -> None:
    type_ = {"floats": pa.float64(), "decimals": pa.decimal128(38, 6), "text": pa.string(), "bytes": pa.binary()}
    schema = pa.schema([("x", type_.get(kind, pa.int64()))])
    low, high = sorted((data.draw(KINDS[kind]), data.draw(KINDS[kind])))
    kept = from_json(schema)(to_json({"x": cut(Stats(low, high, 3))}))["x"]
    assert kept.low is None or kept.low <= low
    assert kept.high is None or kept.high >= high
    assert kept.nulls == 3
    for value in (low, high):
        assert may_hold(kept, 10, value, value)


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=4), min_size=1, max_size=4))
def test_statistics_of_row_groups_unite(groups: list[list[int | None]]) -> None:
    def stats(rows: list[int | None]) -> Stats:
        known = [row for row in rows if row is not None]
        return Stats(min(known, default=None), max(known, default=None), len(rows) - len(known))

    assert united((len(rows), stats(rows)) for rows in groups) == stats([row for rows in groups for row in rows])


def test_a_piece_of_unknown_values_makes_the_whole_unknown() -> None:
    assert united([(5, Stats(1, 2, 0)), (5, Stats(None, None, 4))]) == Stats(None, None, 4)
    assert united([(5, Stats(1, 2, 0)), (5, Stats(None, None, 5))]) == Stats(1, 2, 5)


def test_files_without_such_values_are_left_out() -> None:
    assert not may_hold(Stats(5, 9, 0), 3, 10, None)
    assert not may_hold(Stats(5, 9, 0), 3, None, 4)
    assert not may_hold(Stats(None, None, 3), 3, None, None), "nothing but NULL meets no condition"
    assert may_hold(Stats(None, None, 2), 3, 1, 2)
    assert may_hold(None, 3, 1, 2)


def test_values_of_every_type_are_comparable_numbers_or_texts() -> None:
    assert [plain(v) for v in (True, date(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 1))] == [1, 1, 1_000_000]
    assert plain(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    with pytest.raises(TypeError):
        plain(object())
