"""Random programs of merges, in every engine, against the oracle: row for row and count for count."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from conftest import SOAK
from engines import merge_oracle
from engines.merge_oracle import InvalidMerge, Row
from engines.parquet_directories import assert_same_rows, read_bytes, read_tables, rows_of, write_directory
from penstock.errors import Invalid
from penstock.lake import Dataset

Merge = Callable[[pa.Table, list[str], dict[str, Any]], dict[str, int]]
NAN = float("nan")

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "number": (pa.int64(), [-1, 0, 1, 2, 3, 2**53, 2**53 + 1]),
    "text": (pa.string(), ["", "a", "A", "ä", "a ", "🦆"]),
    "float": (pa.float64(), [NAN, 0.0, -0.0, 1.5, float("inf"), float("-inf")]),
    "small": (pa.int8(), [1, 2]),
}
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "word": (pa.string(), ["", "x", "y", None]),
    "size": (pa.float64(), [NAN, -0.0, 0.0, 2.5, None]),
    "n": (pa.int32(), [0, 1, 2, None]),
    "region": (pa.string(), ["EU", "a b", None]),
    "more": (pa.date32(), [None]),
}
TYPES = {name: data_type for name, (data_type, _) in (KEYS | VALUES).items()}


@dataclass(frozen=True)
class Step:
    strategy: str
    rows: list[Row]
    columns: list[str]  # columns of the source
    order_by: list[str]
    wide: bool  # whether `n` is int64
    batch_rows: int

    @property
    def source(self) -> pa.Table:
        return table(self.rows, self.columns, wide=self.wide)

    @property
    def options(self) -> dict[str, Any]:
        # Columns may always be added: a later source may have more columns than the first.
        options = {"strategy": self.strategy, "batch_rows": self.batch_rows, "add_columns": True}
        return options | ({"dedup_order_by": self.order_by} if self.order_by else {})


@dataclass(frozen=True)
class Program:
    keys: list[str]
    columns: list[str]
    files: list[list[Row]] | None
    parted: bool  # the region is a partition column
    steps: list[Step]

    def tables(self) -> dict[str, pa.Table] | None:
        if self.files is None:
            return None
        if not self.parted:
            return {f"{index}.parquet": table(file_rows, self.columns) for index, file_rows in enumerate(self.files)}
        folders = {None: "__HIVE_DEFAULT_PARTITION__", "EU": "EU", "a b": "a%20b"}
        stored = [name for name in self.columns if name != "region"]
        return {
            f"region={folder}/{index}.parquet": table([row for row in file_rows if row["region"] == region], stored)
            for index, file_rows in enumerate(self.files)
            for region, folder in folders.items()
            if any(row["region"] == region for row in file_rows)
        }


def table(rows: list[Row], columns: list[str], *, wide: bool = False) -> pa.Table:
    types = {**TYPES, "n": pa.int64() if wide else pa.int32()}
    return pa.table({name: pa.array([row[name] for row in rows], types[name]) for name in columns})


@st.composite
def programs(draw: st.DrawFn, *, plain: bool) -> Program:
    keys = draw(
        st.sampled_from([["number"], ["text"], ["float"], ["small", "text"], ["float", "number"], ["small", "region"]])
    )
    columns = [*keys, *(name for name in ("word", "size", "n", "region") if name not in keys)]
    columns = draw(st.permutations(columns))
    partitioned = plain and draw(st.booleans())
    flaw = draw(st.sampled_from([None] * 8 + ["source", "target"]))

    def rows(side: str, names: list[str], max_size: int) -> list[Row]:
        def values(name: str) -> st.SearchStrategy[Any]:
            values_of_column = (KEYS | VALUES)[name][1]
            nulls = [None] if flaw == side or name not in keys else []
            return st.sampled_from([value for value in values_of_column if value is not None] + nulls)

        return draw(st.lists(st.fixed_dictionaries({name: values(name) for name in names}), max_size=max_size))

    def step() -> Step:
        strategy = draw(st.sampled_from(["upsert", "insert", "update", "full_merge", "deduplicate"]))
        source_columns = [name for name in columns if name in keys or draw(st.integers(0, 3))]
        source_columns += ["more"] if draw(st.integers(0, 5)) == 0 else []
        source_rows = rows("source", source_columns, 6)
        if strategy != "deduplicate" and draw(st.integers(0, 5)):
            source_rows = merge_oracle.deduplicate(source_rows, keys, [])
        flat = [name for name in source_columns if name not in {"more"}]
        order_by = draw(st.lists(st.sampled_from(flat), max_size=2, unique=True)) if strategy == "deduplicate" else []
        return Step(
            strategy, source_rows, source_columns, order_by, draw(st.booleans()), draw(st.sampled_from([1, 2, 3, 100]))
        )

    number = draw(st.integers(-1, 3))
    target_rows = None if number < 0 else [rows("target", columns, 4) for _ in range(number)]
    steps = [step() for _ in range(draw(st.integers(1, 3)))]
    return Program(keys, columns, target_rows, partitioned, steps)


def run(program: Program, merge: Merge, current_rows: Callable[[], list[Row]]) -> None:
    """Assert that every step returns the result or the error of the oracle."""
    rows, columns = [row for file_rows in program.files or [] for row in file_rows], list(program.columns)
    for step in program.steps:
        new_columns = columns + [name for name in step.columns if name not in columns]
        after, counts, rejected = _expect_result(program, step, rows, new_columns)
        if rejected:
            with pytest.raises(Invalid) as error:
                merge(step.source, program.keys, step.options)
            assert error.value.reason == rejected
        else:
            assert merge(step.source, program.keys, step.options) == counts
            rows, columns = after, new_columns
        assert assert_same_rows(fill_columns(current_rows(), columns), fill_columns(rows, columns))


def _expect_result(
    program: Program, step: Step, rows: list[Row], columns: list[str]
) -> tuple[list[Row], dict[str, int], str]:
    try:
        return *merge_oracle.merge(rows, step.rows, columns, program.keys, step.strategy, step.order_by), ""
    except InvalidMerge as rejected:
        return rows, {}, str(rejected)


def run_plain(program: Program, merge: Callable[..., dict[str, int]], path: Path) -> None:
    write_directory(path, program.tables())

    def merged(source: pa.Table, keys: list[str], options: dict[str, Any]) -> dict[str, int]:
        before = read_bytes(path.parent)
        try:
            return merge(source, path, keys, **options)
        except Invalid:
            assert read_bytes(path.parent) == before, "a merge that fails changes nothing and leaves nothing"
            raise

    def current_rows() -> list[Row]:
        after = read_tables(path)
        assert len({tuple(file_rows.schema.names + file_rows.schema.types) for file_rows in after.values()}) <= 1, (
            "one type for all"
        )
        assert all(name.endswith(".parquet") for name in read_bytes(path.parent)), "nothing but data remains"
        return [row for name, file_rows in after.items() for row in rows_of(name, file_rows)]

    run(program, merged, current_rows)


def run_dataset(program: Program, engine: str, dataset: Dataset, *, has_rows: bool = False) -> None:
    """Run the steps on a dataset; `has_rows`: it contains the rows of the program already."""
    for file_rows in [] if has_rows else program.files or []:
        dataset.append(table(file_rows, program.columns))

    def merged(source: pa.Table, keys: list[str], options: dict[str, Any]) -> dict[str, int]:
        version = dataset.version
        try:
            return dict(dataset.merge(source, key_columns=keys, engine=engine, **options).stats)
        except Invalid:
            assert dataset.version == version
            raise

    def current_rows() -> list[Row]:
        after = dataset.to_arrow(row_ids=True)
        assert len(set(after["rowid"].to_pylist())) == len(after)
        return list(after.drop_columns(["rowid"]).to_pylist())

    run(program, merged, current_rows)


def fill_columns(rows: list[Row], columns: list[str]) -> list[Row]:
    """Fill missing columns with NULL."""
    return [dict.fromkeys(columns) | row for row in rows]


def examples(usual: int, full: int) -> settings:
    return settings(
        max_examples=full if SOAK else usual,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    )


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@examples(60, 2000)
@given(program=programs(plain=True))
def test_merge_random_directories_match_the_oracle(engine: str, program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_plain(program, getattr(penstock, f"merge_parquet_dataset_{engine}"), Path(folder) / "target")


@examples(6, 100)
@given(program=programs(plain=True))
def test_merge_random_directories_match_the_oracle_on_spark(spark: Any, program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_plain(program, partial(penstock.merge_parquet_dataset_spark, spark=spark), Path(folder) / "target")


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@examples(40, 1000)
@given(program=programs(plain=False))
def test_merge_random_datasets_match_the_oracle(
    engine: str, program: Program, create_dataset: Callable[..., Dataset]
) -> None:
    run_dataset(program, engine, create_dataset(schema=table([], program.columns).schema))
