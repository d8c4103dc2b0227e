"""The query sandbox: results, limits, confinement and redacted error messages."""

import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples, skip_untested
from penstock.core.dataset.column_stats import ColumnStats, stat_value, to_json
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.service.queries.sandbox import (
    QueryLimits,
    QueryProcess,
    Relation,
    RelationFile,
    ResultStream,
    Sandbox,
    TableRef,
    landlock,
)
from penstock.service.queries.sandbox.error_messages import redact_message
from penstock.service.queries.sandbox.protocol import MAX_RESPONSE_BYTES, Channel, MessageType
from penstock.service.queries.sandbox.sql_analysis import VOLATILE, VOLATILE_WORDS
from service.sandbox_attacks import ATTACKS, BOMBS, SandboxAttack

TIGHT = QueryLimits(seconds=20, cpu_seconds=1, memory_bytes=256 << 20, rows=100_000, bytes=8 << 20)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "word": ["one", "two", "three", None],
        "price": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal("4.00")], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 1, n) for n in range(1, 5)], pa.date32()),
        "at": pa.array([datetime(2026, 1, n, tzinfo=UTC) for n in range(1, 5)], pa.timestamp("us", "UTC")),
        "ratio": [0.5, float("nan"), None, 2.0],
    }
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def sandbox(data: str) -> Iterator[Sandbox]:
    yield from close_after(Sandbox(data))


@pytest.fixture(scope="module")
def limited_sandbox(data: str) -> Iterator[Sandbox]:
    yield from close_after(Sandbox(data, TIGHT))


def close_after(sandbox: Sandbox) -> Iterator[Sandbox]:
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "secret.csv").write_text("a\n42\n")
    (folder / "secret.db").write_bytes(b"")
    (folder / "link.csv").symlink_to(folder / "secret.csv")
    pq.write_table(ROWS, folder / "secret.parquet")
    return folder


@pytest.fixture(scope="module")
def finance(folder: Path) -> Relation:
    """Create a dataset whose files store row ids, like rewritten files. One file has a deletion vector."""
    rows = ROWS.append_column("_rowid", pa.array([7, 8, 9, 10]))
    plain = stored(folder / "tx.parquet", rows.slice(0, 2))
    marked = stored(folder / "marked.parquet", pa.concat_tables([rows.slice(0, 1), rows.slice(2)]))
    deleted = DeletionVector.from_positions([0])
    return Relation(ROWS.schema, [*plain.files, *(replace(file, deleted=deleted) for file in marked.files)])


def stored(path: Path, rows: pa.Table, schema: pa.Schema | None = None) -> Relation:
    pq.write_table(rows, path)
    return Relation(schema or rows.schema, [RelationFile(str(path), rows.num_rows)])


def run_query(sandbox: Sandbox, sql: str, datasets: Mapping[str, Relation], **parameters: Any) -> pa.Table:
    """Run a query as the service does: look up the datasets that it names, or report those that do not exist."""
    with sandbox.process() as cell:
        parsed = cell.parse(sql)
        relations: dict[TableRef, Relation] = {}
        for ref in parsed.tables:
            name = f"{ref.schema}.{ref.table}".lower() + ("" if ref.version is None else f"@{ref.version}")
            if name not in datasets:
                raise NotFound("dataset_not_found", f"Dataset {name!r} not found")
            relations[ref] = datasets[name]
        cell.bind(relations)
        return cell.run(parameters=parameters).table()


def error_of(action: Callable[[], Any]) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        action()
    return raised.value


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Attacks


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_ends_with_expected_error(
    limited_sandbox: Sandbox, finance: Relation, folder: Path, attack: SandboxAttack
) -> None:
    before = contents(folder)
    raised = error_of(
        lambda: run_query(limited_sandbox, attack.sql.replace("{folder}", str(folder)), {"finance.tx": finance})
    )
    assert raised.reason in attack.ends, raised.message
    assert "Traceback" not in raised.message
    assert len(raised.message) < 1_000
    assert contents(folder) == before
    assert run_query(limited_sandbox, "SELECT sum(id) AS n FROM finance.tx", {"finance.tx": finance}).to_pydict() == {
        "n": [10]
    }


def test_service_memory_stays_bounded_under_attack(limited_sandbox: Sandbox, finance: Relation) -> None:
    bombs = [bomb.sql for bomb in BOMBS if "row" in bomb.name or "value" in bomb.name or "column" in bomb.name]
    assert len(bombs) >= 4

    def drop_all() -> None:
        for sql in bombs:
            error_of(lambda sql=sql: run_query(limited_sandbox, sql, {"finance.tx": finance}))  # type: ignore[misc]
        gc.collect()
        pa.default_memory_pool().release_unused()

    drop_all()
    before = resident()
    drop_all()
    assert resident() - before < 16 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_idle_query_ends_at_deadline(data: str, finance: Relation) -> None:
    for sandbox in close_after(Sandbox(data, replace(TIGHT, seconds=1))):
        raised = error_of(lambda sandbox=sandbox: run_query(sandbox, "SELECT sleep_ms(60000)", {}))  # type: ignore[misc]
        assert (raised.reason, raised.context) == ("query_timed_out", {"seconds": 1})
        assert "1 seconds" in raised.message


def test_exceeded_limit_is_reported(limited_sandbox: Sandbox) -> None:
    assert "100,000 rows" in error_of(lambda: run_query(limited_sandbox, "FROM range(1000000)", {})).message
    assert "8,388,608 bytes" in error_of(lambda: run_query(limited_sandbox, "SELECT repeat('x', 9000000)", {})).message
    assert (
        "256 MiB"
        in error_of(lambda: run_query(limited_sandbox, "SELECT len(list(i)) FROM range(9000000000) t(i)", {})).message
    )
    assert "100,000" in error_of(lambda: run_query(limited_sandbox, "SELECT 1" + " " * 100_000, {})).message


# Results


def test_run_returns_stored_rows(sandbox: Sandbox, finance: Relation) -> None:
    assert run_query(sandbox, "FROM finance.tx ORDER BY id", {"finance.tx": finance}).schema == ROWS.schema
    response = run_query(sandbox, "SELECT * EXCLUDE (ratio) FROM finance.tx ORDER BY id", {"finance.tx": finance})
    assert response.to_pylist() == ROWS.drop_columns("ratio").to_pylist()


RESULT_CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a name of WITH": ("WITH tx AS (SELECT max(id) AS n FROM finance.tx) FROM tx", [{"n": 4}]),
    "a recursive name": (
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT sum(n)::INT AS n FROM t",
        [{"n": 6}],
    ),
    "an outer name inside": ("WITH a AS (SELECT 1 AS n) SELECT (SELECT max(n) FROM a) AS n", [{"n": 1}]),
    "another case": ('SELECT count(*) AS n FROM FINANCE."TX" JOIN finance.tx USING (ID)', [{"n": 4}]),
    "a column by its dataset": ("SELECT finance.tx.id AS n FROM finance.tx WHERE tx.id = 2", [{"n": 2}]),
    "a pinned version": ("SELECT count(*) AS n FROM finance.tx AS t AT (VERSION => 1) WHERE t.id > 0", [{"n": 1}]),
    "a pinned version without a name": ("SELECT tx.id AS n FROM finance.tx AT (VERSION => 1)", [{"n": 1}]),
    "two versions": (
        "SELECT a.id AS n FROM finance.tx AS a AT (VERSION => 1) FULL JOIN finance.tx AS b USING (id) WHERE a.id > 0",
        [{"n": 1}],
    ),
    "a dataset in a schema of DuckDB's": ("SELECT x.n FROM main.x, temp.x AS y, memory.x AS z", [{"n": 9}]),
    "a dataset in the information schema": ("SELECT n FROM information_schema.x", [{"n": 9}]),
    "an open comment at the end": ("SELECT 1 AS n -- AS q", [{"n": 1}]),
    "a semicolon at the end": ("SELECT 1 AS n;", [{"n": 1}]),
    "a text that looks like SQL": ("SELECT 'x'') AS q; DROP' AS n", [{"n": "x') AS q; DROP"}]),
    "a fixed number of enumerations": ("SELECT array_value('x'::ENUM('x'), 'x'::ENUM('x')) AS l", [{"l": ["x", "x"]}]),
    "an enumeration": ("SELECT 'a'::ENUM('a', 'b') AS n, ['b'::ENUM('b')] AS l", [{"n": "a", "l": ["b"]}]),
    "an unusual column name": ('SELECT 1 AS "a "" ) ;-- é"', [{'a " ) ;-- é': 1}]),
    "functions that make rows": ("SELECT n FROM unnest([5]) u(n), range(1), generate_series(1, 1)", [{"n": 5}]),
    "a pivot": ("FROM (SELECT 1 AS k, 2 AS v) PIVOT (sum(v)::INT FOR k IN (1))", [{"1": 2}]),
    "NaN is above all numbers": ("SELECT id AS n FROM finance.tx WHERE ratio > 1 ORDER BY 1", [{"n": 2}, {"n": 4}]),
}


@pytest.mark.parametrize(("sql", "rows"), RESULT_CASES.values(), ids=RESULT_CASES.keys())
def test_run_supports_legitimate_queries(
    sandbox: Sandbox, finance: Relation, folder: Path, tmp_path: Path, sql: str, rows: list[dict[str, Any]]
) -> None:
    nine = stored(tmp_path / "x.parquet", pa.table({"n": [9]}))
    systems = dict.fromkeys(("main.x", "temp.x", "memory.x", "information_schema.x"), nine)
    first = stored(tmp_path / "first.parquet", ROWS.slice(0, 1))
    assert run_query(sandbox, sql, {"finance.tx": finance, "finance.tx@1": first, **systems}).to_pylist() == rows


VALUES = [
    True, 7, 2**70, 1.5, Decimal("12.345"), "x' OR true --", date(2026, 2, 3), datetime(2026, 2, 3, 4, 5, 6, 7),
    datetime(2026, 2, 3, 4, tzinfo=UTC), None,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_parameter_keeps_its_type(sandbox: Sandbox, value: Any) -> None:
    response = run_query(sandbox, "SELECT $value AS v", {}, value=value).column("v")
    assert response.to_pylist() == [value]
    assert isinstance(response[0].as_py(), Decimal if value == 2**70 else type(value))


def test_parse_returns_tables_and_parameters(sandbox: Sandbox) -> None:
    with sandbox.process() as cell:
        parsed = cell.parse("FROM a.b AS x AT (VERSION => 3), A.B y, a.c WHERE x.d > $low AND y.d IN ($low, $High)")
    assert parsed.tables == (TableRef("a", "b", 3), TableRef("A", "B"), TableRef("a", "c"))
    assert sorted(parsed.parameters) == ["High", "low"]


COMPARED: dict[str, bool] = {
    "SELECT a FROM x.y": True,
    "SELECT a FROM x.y WHERE a > $n": True,
    "SELECT a FROM x.y WHERE NOT (a = $n OR $n IS NULL) AND b BETWEEN $n AND 3 AND c NOT IN (1, $m)": True,
    "SELECT a FROM x.y AS s JOIN x.y AS t ON s.a = $n WHERE s.b IS NOT DISTINCT FROM $m": True,
    "SELECT a, count(*) FROM x.y GROUP BY 1 HAVING count(*) > $n": True,
    "SELECT a FROM x.y QUALIFY row_number() OVER (ORDER BY a) = $n": True,
    "SELECT (SELECT max(a) FROM x.y WHERE a < $n)": True,
    "WITH w AS (SELECT a FROM x.y WHERE a <> $n) FROM w": True,
    "SELECT $n": False,
    "SELECT a > $n FROM x.y": False,
    "SELECT round(a, $n) FROM x.y": False,
    "SELECT round(a, ($n > 1)::INT) FROM x.y": False,
    "SELECT round(a, CASE WHEN $n IN (1) THEN 1 ELSE 2 END) FROM x.y": False,
    "SELECT a FROM x.y WHERE a > $n AND round(a, $n) > 1": False,
    "SELECT a FROM x.y WHERE a + $n > 1": False,
    "SELECT ({'a': 1, 'b': 2.5})[$k]": False,
    "SELECT COLUMNS($k) FROM x.y": False,
    "SELECT a FROM x.y LIMIT $n": False,
    "SELECT a FROM x.y ORDER BY $n": False,
    "FROM range($n)": False,
    "SELECT CASE WHEN a > $n THEN 1 ELSE 2.5 END FROM x.y": False,
}


@pytest.mark.parametrize("sql", COMPARED)
def test_parse_detects_parameters_in_comparisons_only(sandbox: Sandbox, sql: str) -> None:
    with sandbox.process() as cell:
        assert cell.parse(sql).params_in_comparisons_only == COMPARED[sql]


REPEATABLE: dict[str, bool] = {
    "SELECT a, uuid, random, now, today FROM x.y": True,
    "SELECT age(a, b), hash(a), 'now()' FROM x.y": False,  # age(a) counts from the current date
    "SELECT a FROM x.y WHERE day < CURRENT_DATE": False,
    "SELECT current_timestamp": False,
    "SELECT localtime": False,
    "SELECT Now()": False,
    "SELECT main.now()": False,
    "SELECT list_transform([1], lambda x: x + random())": False,
    "SELECT a FROM x.y ORDER BY uuid()": False,
    "SELECT a FROM x.y WHERE b > ago(INTERVAL 1 DAY)": False,
    "WITH w AS (SELECT today() AS d) FROM w": False,
    "SELECT a FROM x.y USING SAMPLE 5": False,
    "SELECT a FROM x.y TABLESAMPLE 10%": False,
    "SELECT a FROM x.y WHERE b IN (SELECT b FROM x.y USING SAMPLE 10%)": False,
}


@pytest.mark.parametrize("sql", REPEATABLE)
def test_parse_detects_repeatable_statements(sandbox: Sandbox, sql: str) -> None:
    with sandbox.process() as cell:
        assert cell.parse(sql).repeatable == REPEATABLE[sql]


def test_volatile_list_contains_every_volatile_function() -> None:
    with duckdb.connect() as db:
        response = db.execute("SELECT function_name, stability, macro_definition FROM duckdb_functions()").fetchall()
        names = {name for name, *_ in response}
        volatile = {name for name, stability, _ in response if stability not in (None, "CONSISTENT")}
        assert volatile <= VOLATILE
        # Functions that DuckDB does not report as volatile: macros, and functions of the time or of random values.
        macro_calls = {name: set(re.findall(r"\w+", macro)) for name, _, macro in response if macro}
        assert {
            name for name, words in macro_calls.items() if words & (VOLATILE | VOLATILE_WORDS) - {"error"}
        } <= VOLATILE
        assert VOLATILE - volatile <= macro_calls.keys() | {
            "age",
            "current_localtime",
            "current_localtimestamp",
            "reservoir_quantile",
        }
        assert names >= VOLATILE
        for name in VOLATILE | VOLATILE_WORDS:
            try:
                db.sql(f"SELECT {name}")
                is_unquoted = True
            except duckdb.BinderException:
                is_unquoted = False
            assert is_unquoted == (name in VOLATILE_WORDS), name


def test_parse_syntax_error_reports_position(sandbox: Sandbox) -> None:
    raised = error_of(lambda: run_query(sandbox, "SELECT id FORM finance.tx x y", {}))
    assert (raised.reason, raised.context) == ("bad_sql", {"position": 15})


def test_process_runs_several_requests(sandbox: Sandbox, finance: Relation) -> None:
    with sandbox.process() as cell:
        (ref,) = cell.parse("SELECT id, word FROM finance.tx WHERE id > $low").tables
        cell.bind({ref: finance})
        assert cell.describe() == pa.schema([("id", pa.int64()), ("word", pa.string())])
        page = cell.run(
            'SELECT "word" FROM ', ' AS q WHERE "id" < $_high ORDER BY "id" LIMIT 1', {"low": 1, "_high": 9}
        )
        assert page.table().to_pydict() == {"word": ["two"]}
        assert error_of(lambda: cell.run(after=" AS q WHERE nothing", parameters={"low": 1})).reason == "query_failed"
        assert error_of(lambda: cell.run()).reason == "missing_parameter"
        count = cell.run("SELECT count(*) AS n FROM ", " AS q", {"low": 1})
        assert count.table().to_pydict() == {"n": [3]}


def test_unfinished_result_kills_process(sandbox: Sandbox) -> None:
    with sandbox.process() as cell:
        cell.parse("FROM range(1000000)")
        cell.bind({})
        rows = iter(cell.run())
        assert next(rows).num_rows > 0
        rows.close()  # type: ignore[attr-defined]
        assert error_of(lambda: cell.parse("SELECT 1")).kind == "Invalid"
    assert run_query(sandbox, "SELECT 1 AS n", {}).to_pydict() == {"n": [1]}


def test_run_with_max_bytes_uses_small_batches_and_own_limit(sandbox: Sandbox) -> None:
    with sandbox.process() as cell:
        cell.parse("SELECT repeat('x', 100000) AS s FROM range(1000)")
        cell.bind({})
        rows = cell.run(max_bytes=20 << 20)
        sizes = [batch.nbytes for batch, _ in zip(rows, range(5), strict=False)]
        assert max(sizes) < 4 << 20
        rows.close()
    with sandbox.process() as cell:
        cell.parse("SELECT repeat('x', 9000000) AS s")
        cell.bind({})
        assert "8,388,608 bytes" in error_of(lambda: cell.run(max_bytes=8 << 20).table()).message


def test_describe_reads_no_file(sandbox: Sandbox, tmp_path: Path) -> None:
    missing = Relation(ROWS.schema, [RelationFile(str(tmp_path / "gone.parquet"), 4)])
    with sandbox.process() as cell:
        (ref,) = cell.parse("SELECT word, sum(id) AS n FROM finance.tx GROUP BY 1").tables
        cell.bind({ref: missing})
        assert cell.describe() == pa.schema([("word", pa.string()), ("n", pa.decimal128(38, 0))])


# Files


def test_run_reads_old_files_with_missing_or_narrower_columns(sandbox: Sandbox, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(12, 2)), ("new", pa.string())])
    old = stored(
        tmp_path / "old.parquet", pa.table({"id": pa.array([1], pa.int16()), "amount": pa.array([5], pa.int32())})
    )
    new = stored(tmp_path / "new.parquet", pa.table([[2], [Decimal("6.50")], ["x"]], schema=schema))
    required = pa.schema([field.with_nullable(False) for field in schema])
    both = Relation(required, [*old.files, *new.files])
    for condition in ("true", "id >= 1 AND amount > 4", "new = 'x' OR id = 1", "new IS NULL OR amount = 6.5"):
        response = run_query(sandbox, f"FROM s.t WHERE {condition} ORDER BY id", {"s.t": both})
        assert response.schema == schema
        assert response.to_pydict() == {"id": [1, 2], "amount": [Decimal("5.00"), Decimal("6.50")], "new": [None, "x"]}


BOUNDS: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "whole numbers": (pa.int32(), 10, 20, "c < 5"),
    "texts": (pa.string(), "k", "p", "c = 'z'"),
    "dates": (pa.date32(), date(2026, 1, 1), date(2026, 1, 31), "c > DATE '2026-03-01'"),
    "instants": (pa.timestamp("us", "UTC"), datetime(2026, 1, 1), datetime(2026, 1, 2), "c < TIMESTAMPTZ '2025-01-01 00:00Z'"),
    "naive times": (pa.timestamp("us"), datetime(2026, 1, 1), datetime(2026, 1, 2), "c < TIMESTAMP '2025-01-01'"),
    "decimals": (pa.decimal128(9, 2), Decimal("1.00"), Decimal("2.00"), "c >= 2.5"),
}  # fmt: skip


@pytest.mark.parametrize(("data_type", "low", "high", "condition"), BOUNDS.values(), ids=BOUNDS.keys())
@pytest.mark.parametrize("nulls", [0, 1])
def test_run_skips_files_by_statistics(
    sandbox: Sandbox, tmp_path: Path, data_type: pa.DataType, low: Any, high: Any, condition: str, nulls: int
) -> None:
    absent = RelationFile(
        str(tmp_path / "gone.parquet"), 3, to_json({"c": ColumnStats(stat_value(low), stat_value(high), nulls)})
    )
    dataset = Relation(pa.schema([("c", data_type)]), [absent])
    assert run_query(sandbox, f"SELECT count(*) AS n FROM s.t WHERE {condition}", {"s.t": dataset}).to_pydict() == {
        "n": [0]
    }
    raised = error_of(
        lambda: run_query(sandbox, f"SELECT count(*) AS n FROM s.t WHERE NOT ({condition})", {"s.t": dataset})
    )
    assert (raised.kind, raised.reason) == ("Unavailable", "file_unreadable")
    assert str(tmp_path) not in raised.message


values = st.one_of(st.none(), st.integers(-3, 3))
conditions = st.tuples(
    st.sampled_from(["n", "f", "w"]), st.sampled_from(["<", "<=", "=", "<>", ">=", ">", "IS DISTINCT FROM"]), st.integers(-3, 3)
)  # fmt: skip


@settings(max_examples=examples(15, soak=200))
@given(
    st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=3),
    conditions,
    conditions,
    st.sampled_from(["AND", "OR"]),
)
def test_run_with_statistics_returns_all_matching_rows(
    sandbox: Sandbox,
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[int | None]],
    condition_1: Any,
    condition_2: Any,
    word: str,
) -> None:
    """Assert that a query returns the same rows with and without file statistics."""
    condition = f" {word} ".join(
        f"{column} {sign} {_literal(column, value)}" for column, sign, value in (condition_1, condition_2)
    )
    tables = [_table(part) for part in parts]
    folder = tmp_path_factory.mktemp("parts")
    files = []
    for n, table in enumerate(tables):
        pq.write_table(table, folder / f"{n}.parquet")
        files.append(RelationFile(str(folder / f"{n}.parquet"), table.num_rows, to_json(_bounds(table))))
    pruned = Relation(tables[0].schema, files)
    single_file = stored(folder / "whole.parquet", pa.concat_tables(tables))
    sql = "SELECT s.n, s.w FROM {} s WHERE " + condition + " ORDER BY ALL"
    assert run_query(sandbox, sql.format("a.b"), {"a.b": pruned}) == run_query(
        sandbox, sql.format("a.c"), {"a.c": single_file}
    )


def _literal(column: str, value: int) -> str:
    return f"'{value}'" if column == "w" else str(value)


def _table(part: list[int | None]) -> pa.Table:
    numbers = pa.array(part, pa.int64())
    floats = pa.array([None if n is None else float("nan") if n == 3 else float(n) for n in part], pa.float64())
    return pa.table({"n": numbers, "f": floats, "w": numbers.cast(pa.string())})


def _bounds(table: pa.Table) -> dict[str, ColumnStats]:
    stats = {}
    for name in table.column_names:
        minmax = pc.min_max(table[name]).as_py()
        stats[name] = ColumnStats(minmax["min"], minmax["max"], table[name].null_count)
    return stats


# Error messages


MESSAGES = {
    "Conversion Error: Could not convert string 'secret' to INT32": "Conversion Error: a value could not be converted",
    "Out of Range Error: Overflow in multiplication of INT32 (42 * 43)!": "Out of Range Error: a value is out of range",
    "IO Error: Cannot open file '/data/t/x.parquet': 0x7f12 gone": "IO Error: a read failed",
    "Unheard Of Error: secret": "DuckDB could not execute the query",
    "something else with /a/path": "DuckDB could not execute the query",
}
STATEMENTS = {
    'Binder Error: Referenced column "secret" not found\nLINE 1: …': 'Binder Error: Referenced column "secret" not found',
    "Invalid: Binder Error: secret": "Binder Error: secret",
    "Catalog Error: secret '/data/t/x.parquet' at 0x7f12": "Catalog Error: secret '…' at …",
}


@pytest.mark.parametrize(("message", "passed_on"), MESSAGES.items())
def test_redact_message_removes_values_and_paths(message: str, passed_on: str) -> None:
    assert redact_message(message) == redact_message(message, before_execution=True) == passed_on


@pytest.mark.parametrize(("message", "passed_on"), STATEMENTS.items())
def test_redact_message_keeps_statement_errors_before_execution_only(message: str, passed_on: str) -> None:
    assert redact_message(message, before_execution=True) == passed_on
    assert "secret" not in redact_message(message)


def test_redact_message_truncates_long_text() -> None:
    assert len(redact_message("Binder Error: " + "x" * 10_000, before_execution=True)) == 500


SAFE_MESSAGES = [
    "word::INT", "strptime(word, '%d')", "error(word)", "timezone(word, TIMESTAMPTZ '2026-01-01 00:00:00+00')",
    "time_bucket(INTERVAL 1 DAY, TIMESTAMPTZ '2026-01-01 00:00:00+00', word)", "date_part(word, DATE '2026-01-01')",
    "word::JSON", "from_hex(word)", "regexp_matches('a', '(' || word)", "printf('%d', word)", "format('{:d}', word)",
    "list_sort([1, 2], word)", "enum_range(word)", "map([word, word], [1, 2])", "nextval(word)", "getvariable(word)",
    "word::ENUM('x')", "make_timestamp(id * 1000000, 99, 1, 1, 1, 1.0)", "(id * 100)::TINYINT", "icu_sort_key(word, word)",
]  # fmt: skip


@pytest.mark.parametrize("value", SAFE_MESSAGES)
def test_run_conversion_error_hides_value(sandbox: Sandbox, finance: Relation, value: str) -> None:
    try:
        run_query(sandbox, f"SELECT {value} AS v FROM finance.tx WHERE id > 2", {"finance.tx": finance})
    except PenstockError as error:
        assert error.reason == "query_failed"  # noqa: PT017
        assert not any(word in error.message for word in ("three", "3", "300", "400"))  # noqa: PT017


def test_binder_error_keeps_duckdb_message(sandbox: Sandbox, finance: Relation) -> None:
    for sql, words in {"SELECT nope FROM finance.tx": '"nope" not found', "SELECT nope(1)": "name nope"}.items():
        assert words in error_of(lambda sql=sql: run_query(sandbox, sql, {"finance.tx": finance})).message  # type: ignore[misc]


def test_integer_over_38_digits_is_reported(sandbox: Sandbox) -> None:
    raised = error_of(lambda: run_query(sandbox, "SELECT 170141183460469231731687303715884105727::HUGEINT AS n", {}))
    assert "more than 38 digits" in raised.message


# Invalid child output


def frame(frame_type: bytes, content: Any, length: int | None = None) -> bytes:
    return frame_type + (len(content) if length is None else length).to_bytes(8, "little") + bytes(content)


def compressed_batch(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    _, batch = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return bytes(batch.serialize())


def invalid_offset_batch() -> bytes:
    """Return a text column with an offset outside of its buffer, which only a full validation finds."""
    offsets = pa.array([0, 1 << 30, 1], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])
    return bytes(pa.record_batch([column], names=["c"]).serialize())


FEW = replace(TIGHT, rows=10)


def batches_of_rows(rows: int) -> bytes:
    return frame(b"a", pa.record_batch([pa.nulls(rows, pa.string())], names=["c"]).serialize())


TEXTS = pa.schema([("c", pa.string())])
SCHEMA, DONE = frame(b"a", TEXTS.serialize()), frame(b"d", b"")
INVALID_RESPONSES: dict[str, tuple[bytes, str]] = {
    "no message": (b"\xff" * 64, "query_failed"),
    "an invalid schema": (frame(b"a", b"garbage"), "query_failed"),
    "no schema": (frame(b"s", b"{}"), "query_failed"),
    "an error that is not JSON": (frame(b"r", b"garbage"), "query_failed"),
    "an error of an unknown kind": (frame(b"r", b'{"reason": "forged", "message": "x"}'), "query_failed"),
    "an error that is a list": (frame(b"r", b"[]"), "query_failed"),
    "a schema longer than memory": (frame(b"a", b"", 1 << 62), "query_too_large"),
    "an error longer than memory": (frame(b"r", b"", 1 << 62), "query_too_large"),
    "a batch longer than allowed": (SCHEMA + frame(b"a", b"", TIGHT.bytes + 1), "query_too_large"),
    "an invalid batch": (SCHEMA + frame(b"a", b"garbage") + DONE, "query_failed"),
    "a batch that is a schema": (SCHEMA + SCHEMA + DONE, "query_failed"),
    "a batch of another schema": (SCHEMA + frame(b"a", bytes(ROWS.to_batches()[0].serialize())) + DONE, "query_failed"),
    "an invalid offset": (SCHEMA + frame(b"a", invalid_offset_batch()) + DONE, "query_failed"),
    "a compressed batch": (
        SCHEMA + frame(b"a", compressed_batch(pa.table({"c": ["x" * 100_000]}))) + DONE,
        "query_failed",
    ),
    "more rows than allowed": (SCHEMA + batches_of_rows(FEW.rows + 1) + DONE, "query_too_large"),
    "an end in the middle": (SCHEMA, "query_failed"),
}


@pytest.mark.parametrize(("sends", "reason"), INVALID_RESPONSES.values(), ids=INVALID_RESPONSES.keys())
def test_invalid_response_of_process_is_rejected(sends: bytes, reason: str) -> None:
    parent_end, child_end = socket.socketpair()
    ended, tell = os.pipe()
    killed = threading.Event()
    with parent_end, child_end, os.fdopen(ended, "rb", 0), os.fdopen(tell, "wb", 0) as telling:
        telling.write(b"0")
        child_end.sendall(sends)
        child_end.shutdown(socket.SHUT_WR)
        cell = QueryProcess(FEW, Channel(parent_end, MAX_RESPONSE_BYTES), ended, killed.set)
        raised = error_of(lambda: cell.run().table())
    assert (raised.kind, raised.reason) == ("Invalid", reason)
    assert killed.is_set() == (b"forged" not in sends)  # a well-formed error is valid


def test_valid_response_of_process_is_accepted() -> None:
    parent_end, child_end = socket.socketpair()
    batch = pa.record_batch([["x", None]], schema=TEXTS)
    with parent_end, child_end:
        line = Channel(child_end, MAX_RESPONSE_BYTES)
        for message in (TEXTS.serialize(), batch.serialize()):
            line.send(MessageType.ARROW, message)
        line.send_message(MessageType.DONE)
        rows: ResultStream = QueryProcess(TIGHT, Channel(parent_end, MAX_RESPONSE_BYTES), -1, lambda: None).run()
        assert rows.schema == TEXTS
        assert list(rows) == [batch]


# Processes


def test_killed_fork_server_is_restarted(data: str, finance: Relation) -> None:
    for sandbox in close_after(Sandbox(data, ready_processes=1)):
        assert run_query(sandbox, "SELECT 1 AS n", {}).to_pydict() == {"n": [1]}
        fork_server = fork_server_of(sandbox)
        children = children_of(fork_server)
        with sandbox.process() as cell:
            cell.parse("SELECT count(*) FROM range(100000000000) t(i) WHERE i % 3 = 4")
            cell.bind({})
            os.kill(fork_server, signal.SIGKILL)
            raised = error_of(lambda cell=cell: cell.run())  # type: ignore[misc]
            assert (raised.kind, raised.reason) == ("Unavailable", "query_interrupted")
        assert all(map(has_ended, children))
        assert run_query(sandbox, "SELECT 2 AS n", {}).to_pydict() == {"n": [2]}
        assert fork_server_of(sandbox) != fork_server


def test_externally_killed_process_raises_unavailable(data: str) -> None:
    for sandbox in close_after(Sandbox(data, ready_processes=1)):
        with sandbox.process() as cell:
            cell.parse("SELECT count(*) FROM range(100000000000) t(i) WHERE i % 3 = 4")
            cell.bind({})
            for child in children_of(fork_server_of(sandbox)):
                os.kill(child, signal.SIGKILL)
            raised = error_of(lambda cell=cell: cell.run())  # type: ignore[misc]
        assert (raised.kind, raised.reason) == ("Unavailable", "query_interrupted")


_SERVICE = """
import sys
from penstock.service.queries.sandbox import Sandbox
sandbox = Sandbox(sys.argv[1])
with sandbox.process() as process:
    process.parse("SELECT count(*) FROM range(100000000000) t(i) WHERE i % 3 = 4")
    process.bind({})
    print(sandbox._fork_server._process.pid, flush=True)
    process.run()
"""


def test_killed_service_leaves_no_processes(data: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _SERVICE, data], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        fork_server = int(service.stdout.readline())
        processes = [fork_server, *children_of(fork_server)]
        assert len(processes) > 1
        process_ends = [os.pidfd_open(process) for process in processes]
        service.kill()
    for end in process_ends:
        assert select.select([end], [], [], 60)[0], "a process outlived the service"
        os.close(end)


def test_closed_sandbox_has_no_processes_and_rejects_queries(data: str) -> None:
    sandbox = Sandbox(data)
    sandbox.close()  # no process was started
    sandbox = Sandbox(data)
    run_query(sandbox, "SELECT 1", {})
    fork_server = fork_server_of(sandbox)
    processes = [fork_server, *children_of(fork_server)]
    sandbox.close()
    assert all(map(has_ended, processes))
    with pytest.raises(Unavailable):
        run_query(sandbox, "SELECT 1", {})


def test_process_has_no_privileges_and_no_secrets(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JWT_SECRET", "secret value")
    for sandbox in close_after(Sandbox(data, ready_processes=1)):
        with sandbox.process() as cell:
            cell.parse("SELECT 1")
            fork_server = fork_server_of(sandbox)
            assert status(fork_server, "Threads") == "1"
            for process in [fork_server, *children_of(fork_server)]:
                assert b"secret value" not in Path(f"/proc/{process}/environ").read_bytes()
                while not os.readlink(f"/proc/{process}/cwd").endswith(" (deleted)"):  # the process is starting
                    time.sleep(0.01)
            # A process that has responded is confined.
            confined = [p for p in children_of(fork_server) if status(p, "NoNewPrivs") == "1"]
            limits = [Path(f"/proc/{p}/limits").read_text() for p in confined]
            assert any(limit(text, "Max address space") != "unlimited" for text in limits)
            for text in limits:
                assert limit(text, "Max file size") == "0"
                assert limit(text, "Max core file size") == "0"
                assert limit(text, "Max open files") == str(sandbox.limits.open_files)
            for child in confined:
                descriptors = {
                    os.readlink(f"/proc/{child}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{child}/fd")
                }
                assert descriptors <= {"socket", "/dev/null"}


_CHILD = """
import json, os, socket, sys
from penstock.service.queries.sandbox.limits import QueryLimits, confine
folder, port = json.loads(sys.argv[1])
os.chdir(folder)
before = os.open("..", os.O_PATH)
confine(QueryLimits(), folder, os.getppid())
def fill(): os.write(os.open("new", os.O_CREAT | os.O_WRONLY), b"x")
def truncate(): os.open("secret.csv", os.O_WRONLY | os.O_TRUNC)
def connect(): socket.create_connection(("127.0.0.1", port))
def execute(): os.execv(sys.executable, [sys.executable, "--version"])
acts = [fill, truncate, connect, execute, lambda: os.remove("secret.csv"), lambda: os.rename("secret.csv", "x"),
        lambda: os.mkdir("new"), lambda: os.symlink("secret.csv", "new"), lambda: os.kill(os.getppid(), 0)]
elsewhere = ["/etc/passwd", "../catalog.db", "out.csv", f"/proc/{os.getppid()}/environ"]
acts += [lambda path=path: open(path).close() for path in elsewhere]
acts += [lambda: os.listdir(".."), lambda: os.listdir("/"), lambda: os.open("catalog.db", os.O_RDONLY, dir_fd=before)]
done = []
for number, act in enumerate(acts):
    try:
        act()
        done.append(number)
    except PermissionError:
        pass
print(json.dumps([done, open("secret.csv").read()]))
"""


def test_python_code_in_process_cannot_read_write_or_connect(tmp_path: Path) -> None:
    if landlock.version() < 6:
        skip_untested("code in a child process", "the kernel has no Landlock, or an old one")
    folder, catalog = tmp_path / "data", tmp_path / "catalog.db"
    folder.mkdir()
    catalog.write_text("catalog")
    (folder / "secret.csv").write_text("a\n42\n")
    (folder / "out.csv").symlink_to(catalog)
    before = contents(folder)
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = json.dumps([str(folder), server.getsockname()[1]])
        response = subprocess.run([sys.executable, "-c", _CHILD, task], capture_output=True, text=True, timeout=60)
    assert json.loads(response.stdout or response.stderr) == [[], "a\n42\n"]
    assert contents(folder) == before


def test_file_outside_data_folder_is_not_readable(tmp_path: Path, finance: Relation) -> None:
    if landlock.version() < 1:
        skip_untested("a read of a file outside of the data folder", "the kernel has no Landlock")
    for sandbox in close_after(Sandbox(str(tmp_path / "new folder"))):
        raised = error_of(lambda opened=sandbox: run_query(opened, "SELECT * FROM finance.tx", {"finance.tx": finance}))  # type: ignore[misc]
        assert (raised.kind, raised.reason) == ("Unavailable", "file_unreadable")
        here = tmp_path / "new folder" / "rows.parquet"
        pq.write_table(ROWS, here)
        outside = Relation(ROWS.schema, [RelationFile(str(here), ROWS.num_rows)])
        assert run_query(sandbox, "SELECT id FROM finance.tx", {"finance.tx": outside}).num_rows == ROWS.num_rows


_DOORLESS = """
import json, sys
from penstock.service.queries.sandbox.worker import _connect
from penstock.service.queries.sandbox.limits import QueryLimits
db = _connect(QueryLimits())
done = []
for sql in json.loads(sys.stdin.read()):
    try:
        db.execute(sql).fetchall()
        done.append(sql)
    except Exception:
        pass
print(json.dumps(done))
"""


def test_duckdb_without_sql_analysis_cannot_access_files(folder: Path) -> None:
    words = ("{folder}", "/etc/passwd", "INSTALL", "LOAD", "SET ", "PRAGMA threads")
    statements = [
        attack.sql.replace("{folder}", str(folder)) for attack in ATTACKS if any(w in attack.sql for w in words)
    ]
    statements = [sql for sql in statements if not sql.startswith("SET VARIABLE")]
    assert len(statements) > 60
    before = contents(folder)
    response = subprocess.run(
        [sys.executable, "-c", _DOORLESS], input=json.dumps(statements), capture_output=True, text=True, timeout=60
    )
    assert json.loads(response.stdout or response.stderr) == []
    assert contents(folder) == before


def test_sandbox_is_thread_safe(sandbox: Sandbox, finance: Relation) -> None:
    def condition_1(n: int) -> list[int]:
        sql = "SELECT id + $n AS n FROM finance.tx ORDER BY 1"
        return run_query(sandbox, sql, {"finance.tx": finance}, n=n).column("n").to_pylist()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(condition_1, range(24))) == [[n + 1, n + 2, n + 3, n + 4] for n in range(24)]


def test_admission_waits_for_running_query(data: str) -> None:
    for sandbox in close_after(Sandbox(data, QueryLimits(seconds=0.2), max_running=1)):
        with sandbox.process(), pytest.raises(Unavailable) as raised, sandbox.process():
            raise AssertionError("a second query runs")
        assert raised.value.reason == "server_busy"


def fork_server_of(sandbox: Sandbox) -> int:
    assert sandbox._fork_server is not None
    return sandbox._fork_server._process.pid


def children_of(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def has_ended(process: int) -> bool:
    """Return whether the process ends within a long time."""
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], 60)[0])
    finally:
        os.close(end)


def status(process: int, name: str) -> str:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name + ":"))


def limit(text: str, name: str) -> str:
    return next(line.removeprefix(name).split()[0] for line in text.splitlines() if line.startswith(name))
