"""Row digests are independent of batch boundaries."""

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.row_digest import RowDigest

row = st.fixed_dictionaries(
    {
        "b": st.none() | st.booleans(),
        "i": st.none() | st.integers(-3, 3),
        "m": st.none() | st.sampled_from([Decimal("1.50"), Decimal("-2.25")]),
        "d": st.none() | st.sampled_from([date(2026, 1, 1), date(1960, 1, 1)]),
        "s": st.none() | st.text("ab", max_size=2),
        "y": st.none() | st.binary(max_size=2),
        "l": st.none() | st.lists(st.none() | st.text("ab", max_size=1), max_size=2),
        "o": st.none() | st.fixed_dictionaries({"x": st.none() | st.booleans()}),
    }
)
SCHEMA = pa.schema(
    [("b", pa.bool_()), ("i", pa.int32()), ("m", pa.decimal128(9, 2)), ("d", pa.date32()), ("s", pa.string()),
     ("y", pa.binary()), ("l", pa.list_(pa.string())), ("o", pa.struct([("x", pa.bool_())]))]
)  # fmt: skip


def digest(rows: list[Any], cuts: list[int]) -> str:
    table = pa.Table.from_pylist(rows, schema=SCHEMA).combine_chunks()
    reported, start = RowDigest(SCHEMA), 0
    for end in [*sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]:
        for batch in table.slice(start, end - start).to_batches():
            reported.add(batch)
        start = end
    return reported.hexdigest()


@given(st.lists(row, max_size=6), st.lists(st.integers(0, 6), max_size=4))
def test_row_digest_is_independent_of_batches(rows: list[Any], cuts: list[int]) -> None:
    assert digest(rows, cuts) == digest(rows, [])


@given(st.lists(row, max_size=3), st.lists(row, max_size=3))
def test_row_digest_differs_for_different_rows(first: list[Any], second: list[Any]) -> None:
    assert (digest(first, []) == digest(second, [])) == (first == second)


@pytest.mark.parametrize(
    "text_type", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_row_digest_ignores_text_encoding(text_type: pa.DataType) -> None:
    def column_digest(column: pa.Array) -> str:
        digest = RowDigest(pa.schema([("s", column.type)]))
        digest.add(pa.record_batch({"s": column}))
        return digest.hexdigest()

    plain = pa.array(["a", None, "b", "a"])
    assert column_digest(
        plain.cast(text_type) if not pa.types.is_dictionary(text_type) else plain.dictionary_encode()
    ) == column_digest(plain)
