"""Dataset profiles are exact or unknown, never wrong."""

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from conftest import examples
from penstock.config import Settings
from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.column_stats import ColumnStats
from penstock.core.dataset.histogram_edges import to_number
from penstock.core.dataset.profile import (
    MAX_BINS,
    MAX_TOP_VALUES,
    MAX_VALUE_LENGTH,
    ColumnProfile,
    DatasetProfile,
    Histogram,
    compute_histogram,
    profile_from_stats,
)
from penstock.errors import Invalid, NotFound, Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.datasets.profile import profile
from penstock.storage.scan import SampleLimits

STRATEGIES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.floats(0, 1),
    pa.decimal128(12, 2): st.decimals(Decimal("-9999999999"), Decimal("9999999999"), places=2),
    pa.decimal128(38, 10): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-10")),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.string(): st.sampled_from(["", "a", "b", "ä", "a" * 39, "a" * 40, "a" * 41, "\U0010ffff" * 50, "x" * 300])
    | st.text(max_size=50),
}


def columns(data_type: pa.DataType) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | STRATEGIES[data_type], max_size=60)


def profile_of(
    dataset: Dataset, column: str | None = None, *, version: int | None = None, **limits: int
) -> DatasetProfile:
    snapshot = dataset.current() if version is None else dataset.at(version)
    lake = dataset._lake
    return profile(
        lake._workspace, lake.caller, snapshot.snapshot, column, limits=SampleLimits(**limits) if limits else None
    )


def single_histogram(profile: DatasetProfile) -> Histogram:
    assert profile.histogram is not None
    return profile.histogram


def counts(histogram: Histogram) -> list[int]:
    parts = histogram.top if histogram.bins is None else histogram.bins
    assert parts is not None
    actual: list[int] = parts["count"].to_pylist()
    return actual


def is_number(value: Any) -> bool:
    return value is not None and value == value


# --- from values


@pytest.mark.parametrize("data_type", STRATEGIES, ids=str)
@given(data=st.data())
def test_histogram_counts_every_value_in_its_bin(data_type: pa.DataType, data: st.DataObject) -> None:
    values = pa.chunked_array([data.draw(columns(data_type)), data.draw(columns(data_type))], data_type)
    histogram = compute_histogram(pa.field("x", data_type), values, sampled=False)
    plain = [value for value in values.to_pylist() if value is not None]
    assert (histogram.rows, histogram.nulls) == (len(values), len(values) - len(plain))
    if histogram.top is not None:
        times = Counter(plain)
        first = sorted(times.items(), key=lambda item: (-item[1], item[0]))[:MAX_TOP_VALUES]
        actual = [(item["value"], item["count"], item["cut"]) for item in histogram.top.to_pylist()]
        assert actual == [
            (v[:MAX_VALUE_LENGTH] if isinstance(v, str) else v, n, isinstance(v, str) and len(v) > MAX_VALUE_LENGTH)
            for v, n in first
        ]
        assert histogram.distinct == len(times)
        return
    assert histogram.bins is not None
    finite = [to_number(v) for v in values.drop_null() if not isinstance(v.as_py(), float) or math.isfinite(v.as_py())]
    assert histogram.not_finite == len(plain) - len(finite)
    assert sum(counts(histogram)) == len(finite)
    assert len(counts(histogram)) <= MAX_BINS
    assert (len(counts(histogram)) > 0) == bool(finite)
    starts, ends = ([to_number(edge) for edge in histogram.bins[side]] for side in ("from", "to"))
    assert starts[1:] == ends[:-1]
    for index, (start, end, many) in enumerate(zip(starts, ends, counts(histogram), strict=True)):
        is_last = index == len(starts) - 1
        assert start <= end
        assert many == sum(start <= value and (value < end or (is_last and value == end)) for value in finite)


ROUND = {
    "tens of whole numbers": (pa.int32(), [3, 997], 0, 50, 1000),
    "each whole number": (pa.int64(), [1, 20], 1, 2, 21),
    "cents": (pa.decimal128(12, 2), [Decimal("0.01"), Decimal("0.09")], Decimal("0.01"), Decimal("0.02"), Decimal("0.10")),
    "fractions without crumbs": (pa.float64(), [0.1, 0.9], 0.1, 0.15, 0.95),
    "months": (pa.date32(), [date(2020, 1, 7), date(2020, 9, 2)], date(2020, 1, 1), date(2020, 2, 1), date(2020, 10, 1)),
    "quarters": (pa.date32(), [date(2020, 2, 7), date(2023, 9, 2)], date(2020, 1, 1), date(2020, 4, 1), date(2023, 10, 1)),
    "days": (pa.date32(), [date(2020, 2, 28), date(2020, 3, 2)], date(2020, 2, 28), date(2020, 2, 29), date(2020, 3, 3)),
    "half hours": (
        pa.timestamp("us"), [datetime(2020, 1, 1), datetime(2020, 1, 1, 7)],
        datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 30), datetime(2020, 1, 1, 7, 30),
    ),
    "months of instants": (
        pa.timestamp("us", "UTC"), [datetime(2020, 1, 7, tzinfo=UTC), datetime(2020, 9, 2, tzinfo=UTC)],
        datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC), datetime(2020, 10, 1, tzinfo=UTC),
    ),
    "one value": (pa.int64(), [7, 7], 7, 7, 7),
    "the ends of the type": (pa.int64(), [-(2**63), 2**63 - 1], -(2**63), -9 * 10**18, 2**63 - 1),
}  # fmt: skip


@pytest.mark.parametrize(("data_type", "values", "first", "second", "last"), ROUND.values(), ids=list(ROUND))
def test_histogram_edges_are_round(
    data_type: pa.DataType, values: list[Any], first: Any, second: Any, last: Any
) -> None:
    bins = compute_histogram(pa.field("x", data_type), pa.chunked_array([values], data_type), sampled=False).bins
    assert bins is not None
    actual = (bins["from"][0].as_py(), bins["to"][0].as_py(), bins["to"][-1].as_py())
    assert actual == (first, second, last)


def test_histogram_of_dates_beyond_python_range() -> None:
    values = pa.array([-(2**31), 0, 2**31 - 1], pa.int32()).cast(pa.date32())
    bins = compute_histogram(pa.field("x", pa.date32()), pa.chunked_array([values]), sampled=False).bins
    assert bins is not None
    assert sum(bins["count"].to_pylist()) == 3


# --- from the catalog


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a workspace with row groups of four rows."""
    folder = tmp_path_factory.mktemp("profiles") / "lake"
    return penstock.open(create=True, settings=Settings(workspace=folder, durable=False, group_rows=4))


@pytest.mark.parametrize("data_type", STRATEGIES, ids=str)
@settings(max_examples=examples(15, soak=150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_profile_from_stats_matches_values(small: Lake, data_type: pa.DataType, data: st.DataObject) -> None:
    parts = [data.draw(columns(data_type)) for _ in range(data.draw(st.integers(1, 3)))]
    schema = pa.schema([("x", data_type)])
    name = f"a.t{len(small.datasets())}"
    dataset = small.create(name, schema=schema)
    for batch in parts:
        dataset.append(pa.table({"x": pa.array(batch, data_type)}))
    values = [value for batch in parts for value in pa.array(batch, data_type).to_pylist()]
    numbers = [value for value in values if is_number(value)]
    exact = (values.count(None), min(numbers, default=None), max(numbers, default=None))
    (by_catalog,) = profile_of(dataset).columns
    (by_values,) = profile_of(dataset, "x").columns
    for actual in (by_catalog, by_values):
        assert actual.nulls in (None, exact[0])
        assert actual.low is None or actual.low.as_py() == exact[1]
        assert actual.high is None or actual.high.as_py() == exact[2]
    assert by_values.nulls == exact[0], "a full read gives exact counts"
    is_text = pa.types.is_string(data_type)
    if not is_text:
        assert (by_values.low is None, by_values.high is None) == (exact[1] is None, exact[2] is None)
    if not (is_text or pa.types.is_floating(data_type)):
        assert by_catalog == by_values, "without NaN and long texts the statistics are exact"


UNKNOWN = {
    "only NaN has no bounds": (pa.float64(), [[1.0], [math.nan]], (None, None, None)),
    "NaN among others does not count": (pa.float64(), [[1.0, math.nan, None]], (1, 1.0, 1.0)),
    "a long minimum is unknown": (pa.string(), [["a" * 41, "b"]], (0, None, "b")),
    "a long maximum is unknown": (pa.string(), [["a", "b" * 41, None]], (1, "a", None)),
    "a long text between the bounds has no effect": (pa.string(), [["a", "c"], ["b" * 41]], (0, "a", "c")),
    "a bound that may be truncated is unknown": (pa.string(), [["a" * 40]], (0, None, None)),
    "a truncated bound is unknown": (pa.string(), [["ab" + "\U0010ffff" * 50]], (0, None, None)),
    "only NULL has no bounds": (pa.int64(), [[None, None]], (2, None, None)),
    "no rows": (pa.int64(), [], (0, None, None)),
    "zero is zero": (pa.float64(), [[0.0, -0.0]], (0, 0.0, 0.0)),
    "lists have no order": (pa.list_(pa.int64()), [[[1], None]], (None, None, None)),
}


@pytest.mark.parametrize(("data_type", "parts", "expected"), UNKNOWN.values(), ids=list(UNKNOWN))
def test_profile_with_inexact_stats_is_unknown(
    lake: Lake, data_type: pa.DataType, parts: list[list[Any]], expected: tuple[Any, ...]
) -> None:
    dataset = lake.create("a.b", schema=pa.schema([("x", data_type)]))
    for batch in parts:
        dataset.append(pa.table({"x": pa.array(batch, data_type)}))
    (column,) = profile_of(dataset).columns
    low, high = (end if end is None else end.as_py() for end in (column.low, column.high))
    assert (column.nulls, low, high) == expected
    assert "-" not in str(low), "−0.0 is shown as 0.0"


def test_profile_with_file_without_stats_is_unknown() -> None:
    schema = pa.schema([("x", pa.int64())])
    files = [
        NewFile("a", 5, 1, "", {"x": ColumnStats(1, 2, 0)}),
        NewFile("b", 5, 1, "", {"x": ColumnStats(None, None, 0)}),
    ]
    assert profile_from_stats(schema, files) == (ColumnProfile(schema.field("x")),)
    assert profile_from_stats(schema, files[:1])[0].nulls == 0


def test_profile_counts_nulls_of_added_columns(lake: Lake) -> None:
    dataset = lake.create("a.b", {"id": [1, 2]})
    dataset.alter(add=pa.schema([("n", pa.int32())]), widen={})
    dataset.append(pa.table({"id": [3], "n": pa.array([7], pa.int32())}))
    dataset.alter(widen={"n": pa.int64()})
    _, later = profile_of(dataset, "n").columns
    assert profile_of(dataset).columns[1] == later
    assert (later.nulls, later.low.as_py(), later.high.as_py()) == (2, 7, 7)
    assert len(profile_of(dataset, version=1).columns) == 1
    assert [column.nulls for column in profile_of(dataset, version=2).columns] == [0, 2]


def test_profile_of_each_version_is_separate(lake: Lake, three_rows: Dataset) -> None:
    three_rows.overwrite({"id": [9], "word": ["nine"]})
    before, after = profile_of(three_rows, "word", version=1), profile_of(three_rows, "word")
    assert (before.columns[0].high.as_py(), after.columns[0].high.as_py()) == (3, 9)
    assert (counts(single_histogram(before)), counts(single_histogram(after))) == ([1, 1, 1], [1])


def test_profile_of_other_tenant_is_not_found(lake: Lake, other_tenant: Lake, three_rows: Dataset) -> None:
    for column in (None, "id"):
        with pytest.raises(NotFound) as raised:
            profile(other_tenant._workspace, other_tenant.caller, three_rows.current().snapshot, column)
        assert raised.value.reason == "dataset_not_found"


@pytest.mark.parametrize(
    ("column", "reason"),
    [("nope", "column_not_found"), ("list", "histogram_not_supported"), ("raw", "histogram_not_supported")],
)
def test_profile_of_unknown_or_unsupported_column_is_rejected(lake: Lake, column: str, reason: str) -> None:
    dataset = lake.create("a.b", pa.table({"list": [[1]], "raw": [b"x"]}))
    with pytest.raises(Invalid) as raised:
        profile_of(dataset, column)
    assert raised.value.reason == reason


# --- samples


@pytest.fixture(scope="module")
def many(small: Lake) -> Dataset:
    """Create a dataset of a thousand rows in ten files of 25 row groups."""
    dataset = small.create(
        "a.many", schema=pa.schema([("n", pa.int64()), ("word", pa.string()), ("wide", pa.string())])
    )
    for batch in range(10):
        rows = range(100 * batch, 100 * batch + 100)
        words = [f"{row:04}" for row in rows]
        dataset.append(pa.table({"n": rows, "word": words, "wide": [word * 1_000 for word in words]}))
    return dataset


@pytest.mark.parametrize(
    "limits", [{"rows": 100}, {"rows": 999}, {"rows": 100, "groups": 20}, {"files": 5}, {"rows": 50, "files": 5}]
)
def test_sample_covers_all_files(many: Dataset, limits: dict[str, int]) -> None:
    histogram = single_histogram(profile_of(many, "n", **limits))
    assert histogram.sampled
    assert (
        0.8 * min(limits.get("rows", 1000), 1000 * limits.get("files", 10) // 10)
        <= histogram.rows
        <= limits.get("rows", 1000)
    )
    assert sum(counts(histogram)) == histogram.rows
    assert histogram.bins is not None
    assert histogram.bins["from"][0].as_py() == 0
    assert histogram.bins["to"][-1].as_py() >= 900
    empty = [many for many in counts(histogram) if not many]
    assert len(empty) <= (0 if "files" not in limits else 10), counts(histogram)


def test_sample_does_not_change_profile_from_stats(many: Dataset) -> None:
    (number_, word, _) = profile_of(many, "word", rows=10).columns
    assert (number_.low.as_py(), number_.high.as_py()) == (0, 999), "that is by the catalog"
    assert (word.low.as_py(), word.high.as_py()) == ("0000", "0999")


def test_sample_of_wide_values_is_bounded_in_bytes(many: Dataset) -> None:
    histogram = single_histogram(profile_of(many, "wide", bytes=100_000))
    assert histogram.sampled
    assert 15 <= histogram.rows <= 25, "of 4,000 bytes each"
    assert histogram.top is not None
    first, last = (min(histogram.top["value"].to_pylist()), max(histogram.top["value"].to_pylist()))
    assert first < "0200" < "0800" < last, "they are not the first ones"


def test_sample_reads_only_its_column(small: Lake) -> None:
    dataset = small.create("a.broken", {"id": [1, 2], "word": ["one", "two"]})
    (path,) = dataset.current().paths()
    rows = pq.read_table(path)
    with pq.ParquetFile(path) as parquet:
        index = parquet.metadata.row_group(0).column(1)
        start, length = index.data_page_offset, index.total_compressed_size
    with open(path, "r+b") as file:
        file.seek(min(start, index.dictionary_page_offset or start))
        file.write(b"\xff" * (length // 2))
    assert single_histogram(profile_of(dataset, "id")).rows == rows.num_rows
    with pytest.raises(Unavailable):
        profile_of(dataset, "word")


def test_profile_samples_above_one_million_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("large") / "lake"
    with penstock.open(create=True, settings=Settings(workspace=folder, durable=False)) as lake:
        dataset = lake.create("a.b", pa.table({"n": pa.arange(0, 1_000_000)}))
        assert not single_histogram(profile_of(dataset, "n")).sampled
        dataset.append({"n": [1_000_000]})
        histogram = single_histogram(profile_of(dataset, "n"))
        assert histogram.sampled
        assert 900_000 < histogram.rows <= 1_000_000
