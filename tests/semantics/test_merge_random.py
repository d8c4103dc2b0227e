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
from penstock.errors import Invalid
from penstock.lake import Dataset
from semantics import oracle
from semantics.directories import content, lay, read, rows_of, same
from semantics.oracle import Refused, Row

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
TYPES = {name: kind for name, (kind, _) in (KEYS | VALUES).items()}


@dataclass(frozen=True)
class Step:
    strategy: str
    rows: list[Row]
    columns: list[str]  # what the source brings
    order_by: list[str]
    wide: bool  # does `n` come as int64?
    batch_rows: int

    @property
    def source(self) -> pa.Table:
        return table(self.rows, self.columns, wide=self.wide)

    @property
    def options(self) -> dict[str, Any]:
        # Columns may always be added: a directory that was made by a narrow source meets a wider one later.
        options = {"strategy": self.strategy, "batch_rows": self.batch_rows, "add_columns": True}
        return options | ({"dedup_order_by": self.order_by} if self.order_by else {})


@dataclass(frozen=True)
class Program:
    keys: list[str]
    columns: list[str]
    files: list[list[Row]] | None
    parted: bool  # is the region told by folders?
    steps: list[Step]

    def tables(self) -> dict[str, pa.Table] | None:
        if self.files is None:
            return None
        if not self.parted:
            return {f"{at}.parquet": table(held, self.columns) for at, held in enumerate(self.files)}
        folders = {None: "__HIVE_DEFAULT_PARTITION__", "EU": "EU", "a b": "a%20b"}
        stored = [name for name in self.columns if name != "region"]
        return {
            f"region={folder}/{at}.parquet": table([row for row in held if row["region"] == region], stored)
            for at, held in enumerate(self.files)
            for region, folder in folders.items()
            if any(row["region"] == region for row in held)
        }


def table(rows: list[Row], columns: list[str], *, wide: bool = False) -> pa.Table:
    kinds = {**TYPES, "n": pa.int64() if wide else pa.int32()}
    return pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in columns})


@st.composite
def programs(draw: st.DrawFn, *, plain: bool) -> Program:
    keys = draw(
        st.sampled_from([["number"], ["text"], ["float"], ["small", "text"], ["float", "number"], ["small", "region"]])
    )
    columns = [*keys, *(name for name in ("word", "size", "n", "region") if name not in keys)]
    columns = draw(st.permutations(columns))
    parted = plain and draw(st.booleans())
    flaw = draw(st.sampled_from([None] * 8 + ["source", "target"]))

    def rows(side: str, names: list[str], most: int) -> list[Row]:
        def values(name: str) -> st.SearchStrategy[Any]:
            known = (KEYS | VALUES)[name][1]
            nulls = [None] if flaw == side or name not in keys else []
            return st.sampled_from([value for value in known if value is not None] + nulls)

        return draw(st.lists(st.fixed_dictionaries({name: values(name) for name in names}), max_size=most))

    def step() -> Step:
        strategy = draw(st.sampled_from(["upsert", "insert", "update", "full_merge", "deduplicate"]))
        brought = [name for name in columns if name in keys or draw(st.integers(0, 3))]
        brought += ["more"] if draw(st.integers(0, 5)) == 0 else []
        given_rows = rows("source", brought, 6)
        if strategy != "deduplicate" and draw(st.integers(0, 5)):
            given_rows = oracle.deduplicated(given_rows, keys, [])
        flat = [name for name in brought if name not in {"more"}]
        order_by = draw(st.lists(st.sampled_from(flat), max_size=2, unique=True)) if strategy == "deduplicate" else []
        return Step(strategy, given_rows, brought, order_by, draw(st.booleans()), draw(st.sampled_from([1, 2, 3, 100])))

    number = draw(st.integers(-1, 3))
    held = None if number < 0 else [rows("target", columns, 4) for _ in range(number)]
    steps = [step() for _ in range(draw(st.integers(1, 3)))]
    return Program(keys, columns, held, parted, steps)


def run(program: Program, merge: Merge, rows_now: Callable[[], list[Row]]) -> None:
    """Every step does what the oracle says, or is refused as the oracle refuses it."""
    rows, columns = [row for held in program.files or [] for row in held], list(program.columns)
    for step in program.steps:
        wanted = columns + [name for name in step.columns if name not in columns]
        after, counts, refused = _foretold(program, step, rows, wanted)
        if refused:
            with pytest.raises(Invalid) as refusal:
                merge(step.source, program.keys, step.options)
            assert refusal.value.reason == refused
        else:
            assert merge(step.source, program.keys, step.options) == counts
            rows, columns = after, wanted
        assert same(filled(rows_now(), columns), filled(rows, columns))


def _foretold(
    program: Program, step: Step, rows: list[Row], columns: list[str]
) -> tuple[list[Row], dict[str, int], str]:
    try:
        return *oracle.merge(rows, step.rows, columns, program.keys, step.strategy, step.order_by), ""
    except Refused as refused:
        return rows, {}, str(refused)


def run_plain(program: Program, merge: Callable[..., dict[str, int]], place: Path) -> None:
    lay(place, program.tables())

    def merged(source: pa.Table, keys: list[str], options: dict[str, Any]) -> dict[str, int]:
        before = content(place.parent)
        try:
            return merge(source, place, keys, **options)
        except Invalid:
            assert content(place.parent) == before, "a merge that fails changes nothing and leaves nothing"
            raise

    def rows_now() -> list[Row]:
        after = read(place)
        assert len({tuple(held.schema.names + held.schema.types) for held in after.values()}) <= 1, "one type for all"
        assert all(name.endswith(".parquet") for name in content(place.parent)), "nothing but data remains"
        return [row for name, held in after.items() for row in rows_of(name, held)]

    run(program, merged, rows_now)


def run_dataset(program: Program, engine: str, dataset: Dataset) -> None:
    for held in program.files or []:
        dataset.append(table(held, program.columns))

    def merged(source: pa.Table, keys: list[str], options: dict[str, Any]) -> dict[str, int]:
        version = dataset.version
        try:
            return dict(dataset.merge(source, key_columns=keys, engine=engine, **options).stats)
        except Invalid:
            assert dataset.version == version
            raise

    def rows_now() -> list[Row]:
        after = dataset.to_arrow(row_ids=True)
        assert len(set(after["rowid"].to_pylist())) == len(after)
        return list(after.drop_columns(["rowid"]).to_pylist())

    run(program, merged, rows_now)


def filled(rows: list[Row], columns: list[str]) -> list[Row]:
    """With NULL for columns that are not there (yet)."""
    return [dict.fromkeys(columns) | row for row in rows]


def examples(usual: int, full: int) -> settings:
    return settings(
        max_examples=full if SOAK else usual,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    )


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@examples(60, 2000)
@given(program=programs(plain=True))
def test_a_plain_directory_is_what_the_oracle_says(engine: str, program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_plain(program, getattr(penstock, f"merge_parquet_dataset_{engine}"), Path(folder) / "target")


@examples(6, 100)
@given(program=programs(plain=True))
def test_with_spark_too(spark: Any, program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_plain(program, partial(penstock.merge_parquet_dataset_spark, spark=spark), Path(folder) / "target")


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@examples(40, 1000)
@given(program=programs(plain=False))
def test_a_dataset_is_what_the_oracle_says(engine: str, program: Program, made: Callable[..., Dataset]) -> None:
    run_dataset(program, engine, made(schema=table([], program.columns).schema))
