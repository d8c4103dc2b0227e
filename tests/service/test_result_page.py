"""A result page contains the first rows that fit, and other rows are not kept in memory."""

from collections.abc import Generator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.service.queries.result_page import ResultPage, estimated_text_bytes
from penstock.service.queries.sandbox import ResultStream


class FakeChild:
    """Batches that are produced one by one, with the number of batches that were read."""

    def __init__(self, *parts: list[str]) -> None:
        self.batches = [pa.record_batch({"s": batch}) for batch in parts]
        self.batches_read, self.ended = 0, False
        self.rows = ResultStream(pa.schema([("s", pa.string())]), self._tell())

    def _tell(self) -> Generator[pa.RecordBatch]:
        try:
            for batch in self.batches:
                self.batches_read += 1
                yield batch
        finally:
            self.ended = True


def read_page(child: FakeChild, top: float, max_rows: int | None) -> tuple[list[str], bool]:
    page = ResultPage(child.rows, top, max_rows)
    return [text for batch in page for text in batch.column(0).to_pylist()], page.has_more


def test_page_closes_result_at_its_end() -> None:
    child = FakeChild(["a"] * 10, ["b"] * 10, ["c"] * 10)
    assert read_page(child, 12, None) == (["a"] * 10 + ["b"] * 2, True)
    assert (child.batches_read, child.ended) == (2, True)


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), max_size=4), st.integers(0, 20), st.integers(60, 400)
)
def test_page_contains_first_rows_that_fit(sizes: list[list[int]], top: int, max_rows: int) -> None:
    texts = [["x" * size for size in batch] for batch in sizes]
    all_texts = [text for batch in texts for text in batch]
    rows, has_more = read_page(FakeChild(*texts), top, max_rows)
    assert rows == all_texts[: len(rows)]
    assert has_more == (len(rows) < len(all_texts))
    assert len(rows) <= top
    if has_more and len(rows) < top:  # another row would exceed the limit
        assert estimated_text_bytes(pa.record_batch({"s": all_texts[: len(rows) + 1]})) + 8 * len(texts) > max_rows


def test_page_rejects_row_over_limit() -> None:
    parts = ["a", "x" * 1000, "b"]
    assert read_page(FakeChild(parts), 10, 100) == (["a"], True)
    with pytest.raises(Invalid, match="One row exceeds 100 bytes") as raised:
        read_page(FakeChild(parts[1:]), 10, 100)
    assert raised.value.reason == "query_too_large"
    assert read_page(FakeChild(parts[1:]), 0, 100) == ([], True)


def test_page_does_not_keep_rows_behind_it_in_memory() -> None:
    (stored,) = ResultPage(FakeChild(["a", "x" * 1_000_000]).rows, 1, None)
    assert stored.to_pydict() == {"s": ["a"]}
    assert stored.get_total_buffer_size() < 1_000


VALUES = {
    "bits": pa.array([[True] * 1000] * 10),
    "nulls": pa.nulls(10_000),
    "a fixed number": pa.array([[1] * 1000] * 10, pa.list_(pa.int8(), 1000)),
    "structs": pa.array([{"a": [True] * 1000}] * 10),
    "a map": pa.array([[("k", [True] * 1000)]] * 10, pa.map_(pa.string(), pa.list_(pa.bool_()))),
}


@pytest.mark.parametrize("column", VALUES.values(), ids=VALUES.keys())
def test_estimated_text_bytes_counts_small_values(column: pa.Array) -> None:
    batch = pa.record_batch([column], names=["c"])
    assert batch.nbytes < 20_000
    assert estimated_text_bytes(batch) >= 40_000
    half = batch.slice(len(column) // 2)
    assert estimated_text_bytes(half) == pytest.approx(estimated_text_bytes(batch) / 2, rel=0.1)
