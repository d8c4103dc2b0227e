"""Test the Spark append: rows, names, types and file sizes, against cases and a reference implementation."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from engines.append_cases import (
    CASES,
    DOUBLE,
    INT,
    LONG,
    REJECTED,
    TEXT,
    AppendCase,
    AppendInput,
    RejectedAppend,
    money,
    required,
    schema,
)
from engines.append_oracle import append_rows, comparable_value, group_key, overflowing_columns
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.merge import FileLayout, OutputFile
from penstock.core.pipeline.operations import AppendOperation
from penstock.core.pipeline.parse import parse_operation
from penstock.core.pipeline.plan import PlannedAppend, SourceFiles, plan_operation
from penstock.core.progress import Progress, ProgressCallback
from penstock.core.selector import parse
from penstock.errors import Invalid

ID = "550e8400-e29b-41d4-a716-446655440000"


class FolderSink:
    """File sink that counts the reported rows."""

    def __init__(self, folder: Path, working: pa.Schema, file_bytes: int) -> None:
        self.layout, self.file_bytes, self.rows = FileLayout(working, codec="snappy"), file_bytes, 0
        self._folder = folder

    def path(self) -> str:
        raise AssertionError("Spark writes folders")

    def folder(self) -> str:
        return f"{self._folder}/{uuid4().hex}"

    def add_rows(self, rows: int) -> None:
        self.rows += rows


@dataclass(frozen=True)
class AppendRunner:
    """Run appends in a session and a folder."""

    spark: Any
    folder: Path

    def store(self, *tables: pa.Table, schema: pa.Schema | None = None) -> SourceFiles:
        paths = [f"{self.folder}/{uuid4().hex} 100% [x].parquet" for _ in tables]
        for table, path in zip(tables, paths, strict=True):
            pq.write_table(table, path, row_group_size=20_000)
        total = sum(map(os.path.getsize, paths))
        return SourceFiles(schema or tables[0].schema, tuple(paths), sum(t.num_rows for t in tables), total)

    def store_with_deleted(self, *tables: pa.Table) -> SourceFiles:
        """Store the first table as it is, and the others with a deleted copy of their rows in front of each row."""
        with_duplicates = [table.take(pa.array(np.arange(2 * len(table)) // 2)) for table in tables[1:]]
        source = self.store(*tables[:1], *with_duplicates)
        vectors = [DeletionVector.from_positions(np.arange(0, 2 * len(table), 2)) for table in tables[1:]]
        deleted = dict(zip(source.paths[1:], vectors, strict=True))
        return replace(source, rows=sum(map(len, tables)), deleted=deleted)

    def run(
        self,
        planned: PlannedAppend,
        source: SourceFiles,
        file_bytes: int = 128 << 20,
        on_job: ProgressCallback | None = None,
    ) -> tuple[list[OutputFile], pa.Table]:
        """Write an append; check schema, counts and reported rows; return the files and their rows."""
        from penstock.engines.spark.append import count_append, write_append

        sink = FolderSink(self.folder, planned.working, file_bytes)
        files = write_append(self.spark, planned, source, sink, str(self.folder), on_job)
        tables = [pq.read_table(file.path) for file in files]
        types = dict(zip(planned.working.names, planned.working.types, strict=True))
        assert all(dict(zip(t.schema.names, t.schema.types, strict=True)) == types for t in tables)
        assert [file.rows for file in files] == [table.num_rows for table in tables]
        rows = pa.concat_tables([planned.working.empty_table(), *tables], promote_options="permissive")
        assert sink.rows == rows.num_rows == count_append(self.spark, planned, source, str(self.folder))
        return files, rows


@pytest.fixture
def runner(spark: Any, tmp_path: Path) -> AppendRunner:
    from penstock.engines.spark.session import isolated_session

    return AppendRunner(isolated_session(spark), tmp_path)


def make_operation(append: AppendInput) -> AppendOperation:
    parameters: dict[str, Any] = {"source": {"dataset_id": ID}}
    if append.selector:
        parameters["source_selector"] = append.selector
    if append.group_by:
        aggregates = [{"column": column, "expression": text} for column, text in append.aggregates.items()]
        parameters["aggregation"] = {"group_by": list(append.group_by), "aggregations": aggregates}
    result = parse_operation({"type": "append", "parameters": parameters}, 0)
    assert isinstance(result, AppendOperation)
    return result


def make_plan(append: AppendInput, source: pa.Schema | None = None) -> PlannedAppend:
    planned = plan_operation(make_operation(append), source or append.table.schema, schema(append.working))
    assert isinstance(planned, PlannedAppend)
    return planned


def comparable_rows(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return comparable rows in a fixed order."""
    return sorted((tuple(map(comparable_value, row)) for row in rows), key=repr)


# -- semantics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_write_append_each_case_writes_expected_rows(case: AppendCase, runner: AppendRunner) -> None:
    files, rows = runner.run(make_plan(case.append), runner.store(case.append.table))
    assert comparable_rows([list(row.values()) for row in rows.to_pylist()]) == comparable_rows(case.expect)
    assert len(files) == min(len(case.expect), 1)


@pytest.mark.parametrize("case", [case for case in CASES if "lists" not in case.name], ids=lambda case: case.name)
def test_append_oracle_each_case_returns_expected_rows(case: AppendCase) -> None:
    result = append_rows(make_operation(case.append), case.append.table, schema(case.append.working))
    assert comparable_rows([list(row.values()) for row in result]) == comparable_rows(case.expect)


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case.name)
def test_write_append_value_that_does_not_fit_names_the_column(
    case: RejectedAppend, runner: AppendRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Invalid) as error:
        runner.run(make_plan(case.append), runner.store(case.append.table))
    assert (error.value.reason, error.value.context) == (case.reason, {"column": case.column})
    assert repr(case.column) in error.value.message
    assert capfd.readouterr() == ("", "")


def test_write_append_unselected_invalid_rows_are_ignored(runner: AppendRunner) -> None:
    append = AppendInput(
        {"k": INT, "v": LONG, "w": TEXT},
        [(1, 5, "a"), (2, 2**62, None)],
        {"k": INT, "v": money(3, 1), "w": pa.field("", TEXT, nullable=False)},
        "k = 1",
    )
    _, rows = runner.run(make_plan(append), runner.store(append.table))
    assert rows.to_pylist() == [{"k": 1, "v": Decimal("5.0"), "w": "a"}]


def test_write_append_source_without_files_does_not_use_spark() -> None:
    append = AppendInput({"k": INT}, [], {"k": INT, "n": LONG}, None, ["k"], {"n": "COUNT(*)"})
    for case in (append, replace(append, group_by=(), aggregates={})):
        nothing = SourceFiles(case.table.schema, (), 0, 0)
        assert AppendRunner(None, Path()).run(make_plan(case), nothing)[0] == []


def test_select_rows_returns_requested_columns(runner: AppendRunner) -> None:
    from penstock.engines.spark.append import select_rows

    table = pa.table({"a.b": [1, 2, 3], "state": ["on", "off", "on"], "`": [1.5, 2.5, None]})
    source, columns = runner.store(table), ["`", "a.b"]
    on = parse("state = 'on'")
    scratch = str(runner.folder)
    selected = select_rows(runner.spark, source, on, columns, scratch)
    assert selected.toArrow().to_pydict() == {"`": [1.5, None], "a.b": [1, 3]}
    assert select_rows(runner.spark, source, None, ["state"], scratch).count() == 3
    empty = select_rows(runner.spark, replace(source, paths=(), rows=0, bytes=0), on, columns, scratch)
    assert empty.toArrow().schema.equals(pa.schema([("`", DOUBLE), ("a.b", LONG)]))


# -- old files --------------------------------------------------------------------------------------------------------

WIDENED_TYPES = {
    "i": (pa.int32(), LONG, [1, -5], 5 * 10**9),
    "j": (pa.int8(), pa.int16(), [-128, 127], 300),
    "f": (pa.float32(), DOUBLE, [1.5, float("nan")], 1e300),
    "d": (money(10, 2), money(18, 2), [Decimal("1.25"), Decimal("-99999999.99")], Decimal(10**15)),
    "e": (money(10, 2), money(18, 4), [Decimal("1.25"), Decimal("-99999999.99")], Decimal("1.2345")),
    "g": (money(5, 2), money(38, 20), [Decimal("1.25"), Decimal("-999.99")], Decimal("1e-20")),
    "l": (pa.list_(INT), pa.list_(LONG), [[1], []], [5 * 10**9]),
    "s": (pa.struct([("n", INT)]), pa.struct([("n", LONG)]), [{"n": 1}, {"n": None}], {"n": 5 * 10**9}),
}


@pytest.mark.parametrize(
    ("selector", "expected_ids"),
    [
        (None, [0, 1, 2, 3]),
        ("i > 4000000000", [2]),
        ("i < 4000000000 AND j < 300", [0, 1]),
        ("j = 127 OR j = 300", [1, 2]),
        ("f > 1 AND f < 2", [0]),
        ("d = 1.25", [0]),
        ("e IN (1.25, 1.2345)", [0, 2]),
        ("g < 1", [1, 2]),
        ("new IS NULL", [0, 1, 3]),
        ("new = 'x'", [2]),
    ],
)
def test_write_append_old_files_are_read_in_widened_types(
    selector: str | None, expected_ids: list[int], runner: AppendRunner
) -> None:
    grown = {"id": INT, **{name: new for name, (_, new, _, _) in WIDENED_TYPES.items()}, "new": TEXT}
    narrow = schema({"id": INT, **{name: old for name, (old, *_) in WIDENED_TYPES.items()}})
    old = [{"id": n} | {name: values[n] for name, (_, _, values, _) in WIDENED_TYPES.items()} for n in (0, 1)]
    new = [{"id": 2, "new": "x"} | {name: value for name, (*_, value) in WIDENED_TYPES.items()}, {"id": 3}]
    before, after = pa.Table.from_pylist(old, narrow), pa.Table.from_pylist(new, schema(grown))
    planned = make_plan(AppendInput(grown, [], grown, selector), schema(grown))
    _, rows = runner.run(planned, runner.store(before, after, schema=schema(grown)))
    expected = [row for row in [*old, *new] if row["id"] in expected_ids]
    assert [row["id"] for row in expected] == expected_ids
    assert comparable_rows([[row.get(name) for name in grown] for row in expected]) == comparable_rows(
        [list(row.values()) for row in rows.to_pylist()]
    )


# -- deleted rows -----------------------------------------------------------------------------------------------------

ODD_NAMES = {"_metadata": LONG, "row_index": LONG, "file": TEXT, "row": DOUBLE}


@pytest.mark.parametrize("session_join", ["broadcast", "shuffle"])
def test_write_append_deleted_rows_are_not_read(runner: AppendRunner, session_join: str) -> None:
    if session_join == "shuffle":  # lower the limit of deleted rows for a broadcast
        runner.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    source = runner.store_with_deleted(*(number_table(30_000, first=30_000 * n) for n in range(3)))
    _, rows = runner.run(make_plan(COPY_ALL), source)
    assert sorted(rows["n"].to_pylist()) == list(range(90_000))
    _, rows = runner.run(make_plan(replace(COPY_ALL, selector="n >= 29990 AND n < 70000")), source)
    assert sorted(rows["n"].to_pylist()) == list(range(29_990, 70_000))
    grouped = AppendInput(
        COPY_ALL.source, [], {"n": LONG, "x": DOUBLE, "rows": LONG}, "n < 40000", ["n"], {"rows": "COUNT(*)"}
    )
    _, rows = runner.run(make_plan(grouped), source)
    assert rows.num_rows == 40_000
    assert set(rows["rows"].to_pylist()) == {1}


def test_write_append_values_of_deleted_rows_are_not_checked(runner: AppendRunner) -> None:
    append = AppendInput({"k": LONG}, [(None,), (1,), (2,)], {"k": required(LONG)})
    source = runner.store(append.table, append.table)
    deleted = {path: DeletionVector.from_positions([0]) for path in source.paths}
    with pytest.raises(Invalid) as error:
        runner.run(make_plan(append), source)
    assert error.value.reason == "null_in_required_column"
    _, rows = runner.run(make_plan(append), replace(source, rows=4, deleted=deleted))
    assert sorted(rows["k"].to_pylist()) == [1, 1, 2, 2]


def test_write_append_file_without_remaining_rows_writes_nothing(runner: AppendRunner) -> None:
    source = runner.store(number_table(5))
    deleted = {source.paths[0]: DeletionVector.from_positions(range(5))}
    for append in (COPY_ALL, replace(COPY_ALL, selector="n >= 0")):
        files, _ = runner.run(make_plan(append), replace(source, rows=0, deleted=deleted))
        assert files == []


def test_select_rows_with_deleted_rows_supports_any_column_name(runner: AppendRunner) -> None:
    from penstock.engines.spark.append import select_rows

    content = [{"_metadata": n, "row_index": -n, "file": f"f{n}", "row": n / 2} for n in range(6)]
    table = pa.Table.from_pylist(content, schema(ODD_NAMES))
    source = runner.store_with_deleted(table.slice(0, 2), table.slice(2))
    selector = parse("row_index < 0 AND row < 2.5")
    selected = select_rows(runner.spark, source, selector, list(ODD_NAMES), str(runner.folder))
    assert sorted(selected.toArrow().to_pylist(), key=repr) == sorted(content[1:5], key=repr)
    wrong_columns_table = parse("row_index < 0 AND row_index > 0")
    assert select_rows(runner.spark, source, wrong_columns_table, ["file"], str(runner.folder)).count() == 0


# -- files ------------------------------------------------------------------------------------------------------------


def number_table(rows: int, first: int = 0) -> pa.Table:
    return pa.table({"n": pa.arange(first, first + rows), "x": [math.sin(n) for n in range(first, first + rows)]})


COPY_ALL = AppendInput({"n": LONG, "x": DOUBLE}, [], {"n": LONG, "x": DOUBLE})


def test_write_append_many_small_source_files_are_combined(runner: AppendRunner) -> None:
    source = runner.store(*(number_table(10, first=10 * n) for n in range(120)))
    files, rows = runner.run(make_plan(COPY_ALL), source)
    assert len(files) <= 8
    assert sorted(rows["n"].to_pylist()) == list(range(1200))


def test_write_append_small_filtered_files_are_packed(runner: AppendRunner) -> None:
    source = runner.store(*(number_table(20_000, first=20_000 * n) for n in range(12)))
    files, rows = runner.run(make_plan(replace(COPY_ALL, selector="n / 1000 = 7 OR x > 0.9999")), source, 200_000)
    assert len(files) <= 3
    expected = [n for n in range(240_000) if n == 7000 or math.sin(n) > 0.9999]
    assert sorted(rows["n"].to_pylist()) == expected
    assert {path.parent for path in runner.folder.glob("*/*.parquet")} == {Path(file.path).parent for file in files}


def test_write_append_large_result_is_split_near_file_bytes(runner: AppendRunner) -> None:
    source, file_bytes = runner.store(number_table(200_000)), 256 << 10
    files, rows = runner.run(make_plan(COPY_ALL), source, file_bytes)
    sizes = [os.path.getsize(file.path) for file in files]
    assert source.bytes > 8 * file_bytes
    assert max(sizes) < 2 * file_bytes
    assert sum(sizes) / len(sizes) > file_bytes / 2
    assert rows.num_rows == 200_000


@pytest.mark.parametrize(("groups", "max_files"), [(1, 1), (200, 1), (60_000, 4)])
def test_write_append_groups_are_written_to_few_files(groups: int, max_files: int, runner: AppendRunner) -> None:
    table = number_table(60_000).set_column(0, "n", pa.array([n % groups for n in range(60_000)]))
    append = AppendInput({"n": LONG, "x": DOUBLE}, [], {"n": LONG, "x": DOUBLE}, None, ["n"], {"x": "MAX_AGG(x)"})
    files, rows = runner.run(make_plan(append), runner.store(table), 2 << 20)
    assert rows.num_rows == groups
    assert len(files) <= max_files


def test_write_append_reads_only_required_columns(runner: AppendRunner) -> None:
    """Reading the other column would fail, because its declared type is wrong."""
    source = runner.store(number_table(5))
    wrong_schema = replace(source, schema=schema({"n": LONG, "x": TEXT}))
    append = AppendInput({"n": LONG, "x": TEXT}, [], {"n": LONG, "rows": LONG}, "n > 1", ["n"], {"rows": "COUNT(*)"})
    assert runner.run(make_plan(append, wrong_schema.schema), wrong_schema)[1].num_rows == 3


def test_write_append_callback_error_cancels_the_append(runner: AppendRunner) -> None:
    class Enough(Exception):
        pass

    def give_up(_job: Progress) -> None:
        raise Enough

    source, planned = runner.store(number_table(500_000)), make_plan(COPY_ALL)
    with pytest.raises(Enough):
        runner.run(planned, source, on_job=give_up)
    assert list(runner.spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert list(runner.folder.glob("*/*.parquet")) == []
    assert runner.run(planned, source)[1].num_rows == 500_000


def test_write_append_concurrent_appends_do_not_mix(runner: AppendRunner) -> None:
    sources = [runner.store(number_table(1000, first=1000 * n)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        appended = list(pool.map(lambda source: runner.run(make_plan(COPY_ALL), source)[1], sources))
    assert [sorted(rows["n"].to_pylist()) for rows in appended] == [
        list(range(n, n + 1000)) for n in range(0, 4000, 1000)
    ]


# -- random appends ---------------------------------------------------------------------------------------------------

SIZES = {"tiny": (pa.int8(), 8), "small": (pa.int32(), 32), "big": (LONG, 64)}
FUNCTIONS = ("SUM", "AVG", "MIN_AGG", "MAX_AGG", "COUNT")
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (INT, [0, 1, None]),
    "kf": (DOUBLE, [0.0, -0.0, float("nan"), 1.5, None]),
    "kt": (TEXT, ["", "a", "ä", None]),
}
SELECTORS = [
    None,
    None,
    "k = 1 OR k IS NULL",
    "NOT kf > 1",
    "kt LIKE 'a%' OR small > 0",
    "d0 > 0 OR big < 0",
    "d1 != 0",
]


@st.composite
def draw_integer(draw: st.DrawFn, digits: int) -> int:
    """Draw integers of every length, with the limits."""
    largest = 10 ** draw(st.integers(1, digits)) - 1
    return draw(st.sampled_from([largest, -largest, 0, 1, -1, largest // 2]) | st.integers(-largest, largest))


@st.composite
def random_appends(draw: st.DrawFn) -> AppendInput:
    types: dict[str, pa.DataType] = {name: data_type for name, (data_type, _) in KEYS.items()}
    values: dict[str, st.SearchStrategy[Any]] = {
        name: st.sampled_from(key_values) for name, (_, key_values) in KEYS.items()
    }
    for name, (data_type, bits) in SIZES.items():
        types[name], edge = data_type, 2 ** (bits - 1)
        values[name] = st.sampled_from([edge - 1, -edge]) | st.integers(-edge, edge - 1)
    for n in range(4):
        precision = draw(st.sampled_from([1, 9, 18, 27, 28, 29, 38]) | st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        types[f"d{n}"] = money(precision, scale)
        values[f"d{n}"] = draw_integer(precision).map(lambda strategy, scale=scale: Decimal(f"{strategy}E-{scale}"))
    types |= {"x": DOUBLE, "f": pa.float32(), "t": TEXT, "b": pa.bool_()}
    values["x"] = values["f"] = st.sampled_from([0.25, -0.5, 3.0, float("nan")])
    values |= {"t": st.text("aBé🦆", max_size=3), "b": st.booleans()}
    row = st.tuples(*(st.none() | strategy if name not in KEYS else strategy for name, strategy in values.items()))
    rows = draw(st.lists(row, min_size=1, max_size=30))
    keys = draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=2, unique=True))
    pairs = st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from([name for name in types if name not in KEYS]))
    requests = draw(st.lists(pairs, min_size=1, max_size=8, unique=True))
    aggregates, working = {}, {name: types[name] for name in keys}
    for n, (function, name) in enumerate(requests):
        data_type = draw(draw_result_type(function, types[name]))
        if data_type is not None:
            aggregates[f"w{n}"], working[f"w{n}"] = f"{function}({name})", data_type
    aggregates["rows"], working["rows"] = "COUNT(*)", LONG
    return AppendInput(types, rows, working, draw(st.sampled_from(SELECTORS)), keys, aggregates)


@st.composite
def draw_result_type(draw: st.DrawFn, function: str, input_type: pa.DataType) -> pa.DataType | None:
    """Draw a type for the working column, or None if there is none."""
    match function:
        case "COUNT":
            return LONG
        case "SUM" | "AVG" if not pt.is_decimal(input_type):
            if pt.is_integer(input_type):
                return draw(st.sampled_from([LONG, money(38, 2)])) if function == "SUM" else DOUBLE
            return DOUBLE if pt.is_floating(input_type) else None
        case "AVG":
            scale = draw(st.integers(0, 38))
            return money(draw(st.sampled_from([38, max(scale, 1), min(scale + 20, 38)])), scale)
    if not pt.is_decimal(input_type):
        return input_type
    scale = draw(st.integers(input_type.scale, 38) | st.just(input_type.scale))
    return money(draw(st.sampled_from([38, max(scale, input_type.precision)])), scale)


@settings(max_examples=examples(6, soak=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(append=random_appends())
def test_write_append_random_groups_match_the_oracle(runner: AppendRunner, append: AppendInput) -> None:
    half = append.table.num_rows // 2
    source = runner.store_with_deleted(append.table.slice(0, half), append.table.slice(half))
    expected = append_rows(make_operation(append), append.table, schema(append.working))
    if wrong_columns := overflowing_columns(expected, schema(append.working)):
        with pytest.raises(Invalid) as error:
            runner.run(make_plan(append), source)
        assert error.value.reason == "value_does_not_fit"
        assert error.value.context["column"] in wrong_columns
        return
    _, rows = runner.run(make_plan(append), source)
    rows_by_key = {group_key(row, append.group_by): row for row in rows.to_pylist()}
    assert len(rows_by_key) == rows.num_rows == len(expected)
    for row in expected:
        actual = rows_by_key[group_key(row, append.group_by)]
        wrong = {name for name in append.aggregates if not is_same_value(row[name], actual[name])}
        assert not wrong, f"{ {name: (append.aggregates[name], row[name], actual[name]) for name in wrong} }"


def is_same_value(left: Any, right: Any) -> bool:
    """Compare values; doubles may differ in the last digit, because an average of integers is rounded."""
    if isinstance(left, float) and isinstance(right, float) and not math.isnan(left):
        return math.isclose(left, right, rel_tol=1e-15)
    return bool(comparable_value(left) == comparable_value(right))
