"""What Spark appends is what the append means, whatever the rows, the names, the types and the sizes of files."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SOAK
from penstock.core.merge import Layout, Output
from penstock.core.pipeline.operations import Append, PlannedAppend, SourceFiles, checked, operation
from penstock.core.selector import parse
from penstock.errors import Invalid
from semantics.append_cases import CASES, DOUBLE, INT, LONG, REFUSED, TEXT, Asked, Case, Refused, money, schema
from semantics.append_oracle import appended, identity, number, unfit

ID = "550e8400-e29b-41d4-a716-446655440000"


class Sink:
    """A folder for new files, that hears how many rows came."""

    def __init__(self, place: Path, working: pa.Schema, file_bytes: int) -> None:
        self.layout, self.file_bytes, self.rows = Layout(working, codec="snappy"), file_bytes, 0
        self._place = place

    def path(self) -> str:
        raise AssertionError("Spark writes folders")

    def folder(self) -> str:
        return f"{self._place}/{uuid4().hex}"

    def beat(self, rows: int) -> None:
        self.rows += rows


@dataclass(frozen=True)
class Desk:
    """A session and a folder: where an append is tried."""

    spark: Any
    place: Path

    def stored(self, *tables: pa.Table, schema: pa.Schema | None = None) -> SourceFiles:
        paths = [f"{self.place}/{uuid4().hex} 100% [x].parquet" for _ in tables]
        for table, path in zip(tables, paths, strict=True):
            pq.write_table(table, path, row_group_size=20_000)
        total = sum(map(os.path.getsize, paths))
        return SourceFiles(schema or tables[0].schema, tuple(paths), sum(t.num_rows for t in tables), total)

    def written(
        self, planned: PlannedAppend, source: SourceFiles, file_bytes: int = 128 << 20, watch: Any = None
    ) -> tuple[list[Output], pa.Table]:
        """The files, and their rows; they are those of the working dataset, and were counted and told."""
        from penstock.engines.spark.append import count, write

        sink = Sink(self.place, planned.working, file_bytes)
        files = write(self.spark, planned, source, sink, watch)
        tables = [pq.read_table(file.path) for file in files]
        types = dict(zip(planned.working.names, planned.working.types, strict=True))
        assert all(dict(zip(t.schema.names, t.schema.types, strict=True)) == types for t in tables)
        assert [file.rows for file in files] == [table.num_rows for table in tables]
        rows = pa.concat_tables([planned.working.empty_table(), *tables], promote_options="permissive")
        assert sink.rows == rows.num_rows == count(self.spark, planned, source)
        return files, rows


@pytest.fixture
def desk(spark: Any, tmp_path: Path) -> Desk:
    from penstock.engines.spark.session import for_merging

    return Desk(for_merging(spark), tmp_path)


def asked_for(asked: Asked) -> Append:
    parameters: dict[str, Any] = {"source": {"dataset_id": ID}}
    if asked.selector:
        parameters["source_selector"] = asked.selector
    if asked.group_by:
        aggregates = [{"column": column, "expression": text} for column, text in asked.aggregates.items()]
        parameters["aggregation"] = {"group_by": list(asked.group_by), "aggregations": aggregates}
    made = operation({"type": "append", "parameters": parameters}, 0)
    assert isinstance(made, Append)
    return made


def planned_for(asked: Asked, source: pa.Schema | None = None) -> PlannedAppend:
    planned = checked(asked_for(asked), source or asked.table.schema, schema(asked.working))
    assert isinstance(planned, PlannedAppend)
    return planned


def plain(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows that can be compared, in an order of their own."""
    return sorted((tuple(map(number, row)) for row in rows), key=repr)


# -- what an append means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_spark_appends_what_the_case_says(case: Case, desk: Desk) -> None:
    files, rows = desk.written(planned_for(case.asked), desk.stored(case.asked.table))
    assert plain([list(row.values()) for row in rows.to_pylist()]) == plain(case.expect)
    assert len(files) == min(len(case.expect), 1)


@pytest.mark.parametrize("case", [case for case in CASES if "lists" not in case.name], ids=lambda case: case.name)
def test_the_oracle_says_what_the_case_says(case: Case) -> None:
    told = appended(asked_for(case.asked), case.asked.table, schema(case.asked.working))
    assert plain([list(row.values()) for row in told]) == plain(case.expect)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_held_is_refused_by_its_column(
    case: Refused, desk: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Invalid) as told:
        desk.written(planned_for(case.asked), desk.stored(case.asked.table))
    assert (told.value.reason, told.value.context) == (case.reason, {"column": case.column})
    assert repr(case.column) in told.value.message
    assert capfd.readouterr() == ("", "")


def test_rows_that_are_not_selected_fail_nothing(desk: Desk) -> None:
    asked = Asked(
        {"k": INT, "v": LONG, "w": TEXT},
        [(1, 5, "a"), (2, 2**62, None)],
        {"k": INT, "v": money(3, 1), "w": pa.field("", TEXT, nullable=False)},
        "k = 1",
    )
    _, rows = desk.written(planned_for(asked), desk.stored(asked.table))
    assert rows.to_pylist() == [{"k": 1, "v": Decimal("5.0"), "w": "a"}]


def test_a_source_without_files_needs_no_spark() -> None:
    asked = Asked({"k": INT}, [], {"k": INT, "n": LONG}, None, ["k"], {"n": "COUNT(*)"})
    for case in (asked, replace(asked, group_by=(), aggregates={})):
        nothing = SourceFiles(case.table.schema, (), 0, 0)
        assert Desk(None, Path()).written(planned_for(case), nothing)[0] == []


def test_selected_rows_have_the_columns_that_were_asked_for(desk: Desk) -> None:
    from penstock.engines.spark.append import selected

    table = pa.table({"a.b": [1, 2, 3], "state": ["on", "off", "on"], "`": [1.5, 2.5, None]})
    source, wanted = desk.stored(table), ["`", "a.b"]
    on = parse("state = 'on'")
    assert selected(desk.spark, source, on, wanted).toArrow().to_pydict() == {"`": [1.5, None], "a.b": [1, 3]}
    assert selected(desk.spark, source, None, ["state"]).count() == 3
    empty = selected(desk.spark, replace(source, paths=(), rows=0, bytes=0), on, wanted)
    assert empty.toArrow().schema.equals(pa.schema([("`", DOUBLE), ("a.b", LONG)]))


# -- old files --------------------------------------------------------------------------------------------------------

GREW = {
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
    ("selector", "kept"),
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
def test_old_files_are_read_as_what_they_have_become(selector: str | None, kept: list[int], desk: Desk) -> None:
    grown = {"id": INT, **{name: new for name, (_, new, _, _) in GREW.items()}, "new": TEXT}
    narrow = schema({"id": INT, **{name: old for name, (old, *_) in GREW.items()}})
    old = [{"id": n} | {name: values[n] for name, (_, _, values, _) in GREW.items()} for n in (0, 1)]
    new = [{"id": 2, "new": "x"} | {name: value for name, (*_, value) in GREW.items()}, {"id": 3}]
    before, after = pa.Table.from_pylist(old, narrow), pa.Table.from_pylist(new, schema(grown))
    planned = planned_for(Asked(grown, [], grown, selector), schema(grown))
    _, rows = desk.written(planned, desk.stored(before, after, schema=schema(grown)))
    expected = [row for row in [*old, *new] if row["id"] in kept]
    assert [row["id"] for row in expected] == kept
    assert plain([[row.get(name) for name in grown] for row in expected]) == plain(
        [list(row.values()) for row in rows.to_pylist()]
    )


# -- files ------------------------------------------------------------------------------------------------------------


def numbers(rows: int, first: int = 0) -> pa.Table:
    return pa.table({"n": pa.arange(first, first + rows), "x": [math.sin(n) for n in range(first, first + rows)]})


AS_IT_IS = Asked({"n": LONG, "x": DOUBLE}, [], {"n": LONG, "x": DOUBLE})


def test_many_small_files_become_few(desk: Desk) -> None:
    source = desk.stored(*(numbers(10, first=10 * n) for n in range(120)))
    files, rows = desk.written(planned_for(AS_IT_IS), source)
    assert len(files) <= 8
    assert sorted(rows["n"].to_pylist()) == list(range(1200))


def test_files_that_a_selector_leaves_small_are_packed(desk: Desk) -> None:
    source = desk.stored(*(numbers(20_000, first=20_000 * n) for n in range(12)))
    files, rows = desk.written(planned_for(replace(AS_IT_IS, selector="n / 1000 = 7 OR x > 0.9999")), source, 200_000)
    assert len(files) <= 3
    wanted = [n for n in range(240_000) if n == 7000 or math.sin(n) > 0.9999]
    assert sorted(rows["n"].to_pylist()) == wanted
    assert {path.parent for path in desk.place.glob("*/*.parquet")} == {Path(file.path).parent for file in files}


def test_large_results_are_split_near_the_wanted_size(desk: Desk) -> None:
    source, wanted = desk.stored(numbers(200_000)), 256 << 10
    files, rows = desk.written(planned_for(AS_IT_IS), source, wanted)
    sizes = [os.path.getsize(file.path) for file in files]
    assert source.bytes > 8 * wanted
    assert max(sizes) < 2 * wanted
    assert sum(sizes) / len(sizes) > wanted / 2
    assert rows.num_rows == 200_000


@pytest.mark.parametrize(("groups", "most"), [(1, 1), (200, 1), (60_000, 4)])
def test_groups_come_in_few_files(groups: int, most: int, desk: Desk) -> None:
    table = numbers(60_000).set_column(0, "n", pa.array([n % groups for n in range(60_000)]))
    asked = Asked({"n": LONG, "x": DOUBLE}, [], {"n": LONG, "x": DOUBLE}, None, ["n"], {"x": "MAX_AGG(x)"})
    files, rows = desk.written(planned_for(asked), desk.stored(table), 2 << 20)
    assert rows.num_rows == groups
    assert len(files) <= most


def test_only_the_columns_that_are_needed_are_read(desk: Desk) -> None:
    """The others cannot be read: the schema says that they are something else."""
    stored = desk.stored(numbers(5))
    lies = replace(stored, schema=schema({"n": LONG, "x": TEXT}))
    asked = Asked({"n": LONG, "x": TEXT}, [], {"n": LONG, "rows": LONG}, "n > 1", ["n"], {"rows": "COUNT(*)"})
    assert desk.written(planned_for(asked, lies.schema), lies)[1].num_rows == 3


def test_who_stops_watching_stops_the_append(desk: Desk) -> None:
    class Enough(Exception):
        pass

    def give_up(_stages: Any) -> None:
        raise Enough

    source, planned = desk.stored(numbers(500_000)), planned_for(AS_IT_IS)
    with pytest.raises(Enough):
        desk.written(planned, source, watch=give_up)
    assert list(desk.spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert list(desk.place.glob("*/*.parquet")) == []
    assert desk.written(planned, source)[1].num_rows == 500_000


def test_two_appends_at_once_do_not_mix(desk: Desk) -> None:
    sources = [desk.stored(numbers(1000, first=1000 * n)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda source: desk.written(planned_for(AS_IT_IS), source)[1], sources))
    assert [sorted(rows["n"].to_pylist()) for rows in made] == [list(range(n, n + 1000)) for n in range(0, 4000, 1000)]


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
def whole(draw: st.DrawFn, digits: int) -> int:
    """Numbers of every length, and those at the ends."""
    most = 10 ** draw(st.integers(1, digits)) - 1
    return draw(st.sampled_from([most, -most, 0, 1, -1, most // 2]) | st.integers(-most, most))


@st.composite
def random_appends(draw: st.DrawFn) -> Asked:
    kinds: dict[str, pa.DataType] = {name: kind for name, (kind, _) in KEYS.items()}
    values: dict[str, st.SearchStrategy[Any]] = {name: st.sampled_from(some) for name, (_, some) in KEYS.items()}
    for name, (kind, bits) in SIZES.items():
        kinds[name], edge = kind, 2 ** (bits - 1)
        values[name] = st.sampled_from([edge - 1, -edge]) | st.integers(-edge, edge - 1)
    for n in range(4):
        precision = draw(st.sampled_from([1, 9, 18, 27, 28, 29, 38]) | st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        kinds[f"d{n}"] = money(precision, scale)
        values[f"d{n}"] = whole(precision).map(lambda it, scale=scale: Decimal(f"{it}E-{scale}"))
    kinds |= {"x": DOUBLE, "f": pa.float32(), "t": TEXT, "b": pa.bool_()}
    values["x"] = values["f"] = st.sampled_from([0.25, -0.5, 3.0, float("nan")])
    values |= {"t": st.text("aBé🦆", max_size=3), "b": st.booleans()}
    one = st.tuples(*(st.none() | it if name not in KEYS else it for name, it in values.items()))
    rows = draw(st.lists(one, min_size=1, max_size=30))
    keys = draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=2, unique=True))
    pairs = st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from([name for name in kinds if name not in KEYS]))
    wanted = draw(st.lists(pairs, min_size=1, max_size=8, unique=True))
    aggregates, working = {}, {name: kinds[name] for name in keys}
    for n, (function, name) in enumerate(wanted):
        kind = draw(results(function, kinds[name]))
        if kind is not None:
            aggregates[f"w{n}"], working[f"w{n}"] = f"{function}({name})", kind
    aggregates["rows"], working["rows"] = "COUNT(*)", LONG
    return Asked(kinds, rows, working, draw(st.sampled_from(SELECTORS)), keys, aggregates)


@st.composite
def results(draw: st.DrawFn, function: str, given: pa.DataType) -> pa.DataType | None:
    """A type for the working column; None: there is none."""
    match function:
        case "COUNT":
            return LONG
        case "SUM" | "AVG" if not pt.is_decimal(given):
            if pt.is_integer(given):
                return draw(st.sampled_from([LONG, money(38, 2)])) if function == "SUM" else DOUBLE
            return DOUBLE if pt.is_floating(given) else None
        case "AVG":
            scale = draw(st.integers(0, 38))
            return money(draw(st.sampled_from([38, max(scale, 1), min(scale + 20, 38)])), scale)
    if not pt.is_decimal(given):
        return given
    scale = draw(st.integers(given.scale, 38) | st.just(given.scale))
    return money(draw(st.sampled_from([38, max(scale, given.precision)])), scale)


@settings(max_examples=200 if SOAK else 6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=random_appends())
def test_random_groups_have_the_aggregates_of_the_oracle(desk: Desk, asked: Asked) -> None:
    source = desk.stored(asked.table)
    expected = appended(asked_for(asked), asked.table, schema(asked.working))
    if at_fault := unfit(expected, schema(asked.working)):
        with pytest.raises(Invalid) as told:
            desk.written(planned_for(asked), source)
        assert told.value.reason == "value_does_not_fit"
        assert told.value.context["column"] in at_fault
        return
    _, rows = desk.written(planned_for(asked), source)
    found = {identity(row, asked.group_by): row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows == len(expected)
    for row in expected:
        told_row = found[identity(row, asked.group_by)]
        wrong = {name for name in asked.aggregates if not same(row[name], told_row[name])}
        assert not wrong, f"{ {name: (asked.aggregates[name], row[name], told_row[name]) for name in wrong} }"


def same(one: Any, other: Any) -> bool:
    """Doubles may differ in the last digit: an average of long numbers is rounded when it is divided."""
    if isinstance(one, float) and isinstance(other, float) and not math.isnan(one):
        return math.isclose(one, other, rel_tol=1e-15)
    return bool(number(one) == number(other))
