"""Query results over REST: every row is validated against the result schema before any is returned."""

import gc
import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from conftest import examples
from penstock.core import odata, result_schema
from penstock.core.bounded_cache import BoundedCache
from penstock.core.caller import Caller, Role
from penstock.core.registry import gts
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.rest.requests import media_types
from penstock.rest.routes import query_results
from penstock.service.memory_budget import MemoryBudget
from penstock.service.queries.execution import QueryExecutor, QueryRequest
from penstock.service.queries.result_buffer import ResultBuffer
from penstock.service.queries.sandbox import QueryLimits, Sandbox
from rest.rest_client import TENANT, Client, in_process_client, token
from rest.test_serve import served

ARROW, PARQUET = {"accept": media_types.ARROW}, {"accept": media_types.PARQUET}
TX = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "region": ["EMEA", "APAC", "EMEA", None],
        "amount": pa.array(
            [Decimal("10.00"), Decimal("-0.10"), Decimal("2.50"), Decimal("7.00")], pa.decimal128(12, 2)
        ),
    }
)
FIELDS = [
    {"name": "id", "type": "number"},
    {"name": "region", "type": "string", "optional": True},
    {"name": "amount", "type": "number"},
]
SQL = "SELECT id, region, amount FROM finance.tx"


@pytest.fixture
def mine(local: Lake) -> Lake:
    """Datasets of the tenant of the tokens."""
    lake = Lake(local._workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local._folder)
    lake.create("finance.tx", TX)
    return lake


def registered(client: Client, sql: str = SQL, fields: Any = FIELDS, name: str = "q", **members: Any) -> str:
    """Register a query and return the path of its results."""
    schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}
    returns = client("POST", "/gts", json=schema, code=201).json()["id"]
    sent = {"name": name, "sql": sql, "returns_schema_id": returns, **members}
    return f"/queries/{client('POST', '/queries', json=sent, code=201).json()['id']}/results"


def field(name: str, kind: str = "number", **members: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **members}


def exact(answer: httpx.Response) -> Any:
    """Parse the body with every digit of its numbers."""
    return json.loads(answer.text, parse_float=Decimal)


def column(answer: httpx.Response, name: str = "id") -> list[Any]:
    return [row[name] for row in answer.json()["value"]]


def table(answer: httpx.Response) -> pa.Table:
    return pa.ipc.open_stream(answer.content).read_all()


def pages(client: Client, path: str | None, size: int = 100) -> Iterator[httpx.Response]:
    while path:
        yield (page := client("GET", path, headers={"prefer": f"odata.maxpagesize={size}"}))
        path = page.json().get("@odata.nextLink")


# -- valid rows


def test_validation_success(client: Client, mine: Lake) -> None:
    """fdd-analytics-feature-schema-query-returns-test-validation-success"""
    path = registered(client)
    answer = client("GET", path)
    assert exact(answer) == {
        "@odata.context": f"/$metadata#{path.strip('/')}",
        "@penstock.versions": {"finance.tx": 1},
        "value": [
            {"id": 1, "region": "EMEA", "amount": Decimal("10.00")},
            {"id": 2, "region": "APAC", "amount": Decimal("-0.10")},
            {"id": 3, "region": "EMEA", "amount": Decimal("2.50")},
            {"id": 4, "region": None, "amount": Decimal("7.00")},
        ],
    }
    assert answer.headers["x-penstock-versions"] == "finance.tx:1"
    assert client("GET", "/queries/Q/results").json() == answer.json()


def test_run_query_as_arrow_or_parquet_returns_all_rows(client: Client, mine: Lake) -> None:
    path = registered(client)
    for headers, read in ((ARROW, table), (PARQUET, lambda answer: pq.read_table(BytesIO(answer.content)))):
        answer = client("GET", path, headers=headers)
        assert answer.headers["content-type"] == headers["accept"]
        assert answer.headers["x-penstock-versions"] == "finance.tx:1"
        assert read(answer).sort_by("id") == TX
        part = client("GET", f"{path}?$orderby=amount desc&$skip=1&$top=2", headers=headers)
        assert read(part).column("id").to_pylist() == [4, 3]
        rest = client("GET", f"{path}?$skip=3", headers=headers)
        assert read(rest).column("id").to_pylist() == [4]
        assert client("GET", f"{path}?$count=true", headers=headers, code=400).json()["option"] == "$count"
    client("GET", path, headers={"accept": "text/csv"}, code=406)


OPTIONS: dict[str, list[int]] = {
    "$filter=amount gt 2.4&$orderby=amount desc": [1, 4, 3],
    "$filter=region ne 'EMEA'": [2, 4],
    "$filter=region eq null": [4],
    "$filter=amount eq -0.1 or contains(tolower(region), 'em')": [1, 2, 3],
    "$orderby=region desc": [1, 3, 2, 4],
    "$top=2&$skip=1": [2, 3],
    "$top=0": [],
    "$skip=9": [],
}


@pytest.mark.parametrize("options", OPTIONS)
def test_run_query_applies_odata_options(client: Client, mine: Lake, options: str) -> None:
    assert column(client("GET", f"{registered(client)}?{options}")) == OPTIONS[options]


def test_run_query_with_count_returns_number_of_rows(client: Client, mine: Lake) -> None:
    page = client("GET", f"{registered(client)}?$filter=amount gt 0&$top=1&$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (3, 1)


def test_run_query_page_has_default_and_maximum_size(client: Client) -> None:
    path = registered(client, "SELECT range AS id FROM range(20000)", [field("id")])
    assert column(client("GET", path)) == list(range(100))
    large = client("GET", f"{path}?$top=19999")
    assert column(large) == list(range(10_000))
    rest = client("GET", large.json()["@odata.nextLink"])
    assert column(rest) == list(range(10_000, 19_999))
    assert "@odata.nextLink" not in rest.json()
    assert "@odata.nextLink" not in client("GET", f"{path}?$top=100").json()
    assert [column(page) for page in pages(client, f"{path}?$top=5&$skip=2", 2)] == [[2, 3], [4, 5], [6]]
    assert client("GET", path).json()["@penstock.versions"] == {}


def test_run_query_page_of_large_rows_is_shorter(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_results, "DEFAULT_PAGE_BYTES", 10_000)
    path = registered(
        client, "SELECT range AS id, repeat('x', 3000) AS text FROM range(8)", [field("id"), field("text", "string")]
    )
    found = [column(page) for page in pages(client, path)]
    assert max(map(len, found)) < 4
    assert [id for ids in found for id in ids] == list(range(8))


def test_run_query_numbers_are_exact(client: Client, mine: Lake) -> None:
    sql = "SELECT 9223372036854775807 AS a, 12345678901234567890123456789.123456789 AS b, 0.1::DOUBLE AS c, -0.0::DOUBLE d"
    answer = client("GET", registered(client, sql, [field(name) for name in "abcd"]))
    assert exact(answer)["value"] == [
        {
            "a": 2**63 - 1,
            "b": Decimal("12345678901234567890123456789.123456789"),
            "c": Decimal("0.1"),
            "d": Decimal("-0.0"),
        }
    ]


MOMENTS: dict[str, tuple[str, str, Any]] = {
    "a date": ("DATE '2026-01-31'", "date", "2026-01-31"),
    "a date of text": ("'2026-01-31'", "date", "2026-01-31"),
    "an early date": ("DATE '0044-03-15'", "date", "0044-03-15"),
    "a naive timestamp": ("TIMESTAMP '2026-01-31 10:00:00'", "datetime", "2026-01-31T10:00:00Z"),
    "a part of a second": ("TIMESTAMP '2026-01-31 10:00:00.25'", "datetime", "2026-01-31T10:00:00.250000Z"),
    "whole seconds": ("TIMESTAMP_S '2026-01-31 10:00:00'", "datetime", "2026-01-31T10:00:00Z"),
    "nanoseconds": ("TIMESTAMP_NS '2026-01-31 10:00:00.000000001'", "datetime", "2026-01-31T10:00:00.000000001Z"),
    "a zoned timestamp": ("TIMESTAMPTZ '2026-01-31 10:00:00+02'", "datetime", "2026-01-31T08:00:00Z"),
    "a zoned text": ("'2026-01-31T10:00:00+02:00'", "datetime", "2026-01-31T10:00:00+02:00"),
    "a text in UTC": ("'2026-01-31T10:00:00z'", "datetime", "2026-01-31T10:00:00z"),
    "a naive text": ("'2026-01-31T10:00:00.5'", "datetime", "2026-01-31T10:00:00.5Z"),
}


@pytest.mark.parametrize(("sql", "kind", "encoded"), MOMENTS.values(), ids=MOMENTS.keys())
def test_run_query_encodes_dates_and_datetimes_by_declared_type(
    client: Client, sql: str, kind: str, encoded: str
) -> None:
    fields = [field("one", kind), field("many", kind, array=True), field("none", kind, optional=True)]
    path = registered(client, f"SELECT {sql} AS one, [{sql}, {sql}] AS many, NULL AS none", fields)
    answer = client("GET", path)
    assert answer.json()["value"] == [{"one": encoded, "many": [encoded, encoded], "none": None}]
    assert result_schema.check_rows(result_schema.parse_fields(fields), answer.json()["value"], strict=True).valid


def test_run_query_returns_arrays_of_every_scalar_type(client: Client) -> None:
    sql = """SELECT * FROM (VALUES
        (1, [1.5, 2.25], ['a', '"'], [true], [1, 2]::INT[2]), (2, [], NULL, [], NULL), (3, [0.5], [''], [false, true], [3, 4])
    ) AS t(id, n, s, b, f)"""
    fields = [
        field("id"),
        field("n", array=True),
        field("s", "string", array=True, optional=True),
        field("b", "boolean", array=True),
        field("f", array=True, optional=True),
    ]
    assert client("GET", registered(client, sql, fields)).json()["value"] == [
        {"id": 1, "n": [1.5, 2.25], "s": ["a", '"'], "b": [True], "f": [1, 2]},
        {"id": 2, "n": [], "s": None, "b": [], "f": None},
        {"id": 3, "n": [0.5], "s": [""], "b": [False, True], "f": [3, 4]},
    ]


def test_run_query_arrays_of_naive_datetimes_are_correct_on_later_page(client: Client) -> None:
    sql = """SELECT range AS id, CASE WHEN range % 3 = 0 THEN NULL ELSE
        list_transform(range(range % 3), lambda x: TIMESTAMP '2026-01-01' + to_seconds(range * 10 + x)) END AS at FROM range(9)"""
    path = registered(client, sql, [field("id"), field("at", "datetime", array=True, optional=True)])
    rows = [row for page in pages(client, path, 4) for row in page.json()["value"]]
    assert [row["at"] for row in rows] == [
        None
        if id % 3 == 0
        else [f"2026-01-01T00:{(id * 10 + x) // 60:02}:{(id * 10 + x) % 60:02}Z" for x in range(id % 3)]
        for id in range(9)
    ]


def test_run_query_optional_fields_may_be_missing_and_extra_columns_are_dropped(client: Client, mine: Lake) -> None:
    fields = [field("id"), field("note", "string", optional=True), field("size", optional=True)]
    path = registered(client, "SELECT id, NULL AS note, region AS extra FROM finance.tx", fields)
    assert client("GET", f"{path}?$top=1").json()["value"] == [{"id": 1, "note": None}]
    assert client("GET", f"{path}?$top=2&$select=size").json()["value"] == [{}, {}]
    assert client("GET", f"{path}?$select=extra", code=400).json()["code"] == "UNKNOWN_FIELD"
    assert client("GET", f"{path}?$filter=size eq null&$count=true&$top=1").json()["@odata.count"] == 4


@pytest.mark.parametrize("count", [0, 1])
def test_run_query_empty_result_and_single_row_are_valid(client: Client, mine: Lake, count: int) -> None:
    path = registered(client, f"{SQL} WHERE id <= {count}")
    page = client("GET", f"{path}?$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (count, count)
    assert table(client("GET", path, headers=ARROW)).schema.names == ["id", "region", "amount"]
    assert table(client("GET", path, headers=ARROW)).num_rows == count


def test_run_query_validates_a_million_rows(client: Client) -> None:
    sql = "SELECT range AS id, 'row ' || range AS word, range / 4 AS part, DATE '2026-01-01' AS day FROM range(1000000)"
    fields = [field("id"), field("word", "string"), field("part"), field("day", "date")]
    rows = table(client("GET", registered(client, sql, fields), headers=ARROW))
    assert rows.num_rows == 1_000_000
    assert rows.column("id").to_numpy().sum() == 499_999_500_000
    assert rows.slice(999_999).to_pylist() == [
        {"id": 999_999, "word": "row 999999", "part": 249_999.75, "day": date(2026, 1, 1)}
    ]


def test_run_query_validates_150_fields(client: Client) -> None:
    names = [f"f{number}" for number in range(150)]
    values = ", ".join(f"{number} AS f{number}" for number in range(150))
    path = registered(client, f"SELECT {values}", [field(name) for name in names])
    assert client("GET", path).json()["value"] == [{name: number for number, name in enumerate(names)}]
    broken = registered(
        client, "SELECT " + values.replace("149 AS", "nullif(149, 149) AS"), [field(n) for n in names], "broken"
    )
    assert client("GET", broken, code=500).json()["errors"] == [
        {"row": 0, "field": "f149", "expected": "number", "actual": "null", "message": "Type mismatch for field f149"}
    ]


# -- rows that do not


def test_validation_failure(client: Client, mine: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """fdd-analytics-feature-schema-query-returns-test-validation-failure"""
    path = registered(client, "SELECT * FROM finance.tx")
    mine.dataset("finance.tx").drop(force=True)
    mine.create("finance.tx", pa.table({"id": [1, 2], "amount": ["canary-17", "canary-18"]}))
    with caplog.at_level(logging.WARNING):
        answer = client("GET", path, code=500)
    problem = answer.json()
    assert (problem["error"], problem["code"], problem["error_count"]) == ("Schema mismatch", "SCHEMA_MISMATCH", 2)
    assert problem["errors"] == [
        {
            "row": row,
            "field": "amount",
            "expected": "number",
            "actual": "string",
            "message": "Type mismatch for field amount",
        }
        for row in range(2)
    ]
    assert path == f"/queries/{problem['query_id']}/results"
    assert client("GET", f"/gts/{problem['schema_id']}").json()["version"] == problem["schema_version"] == 1
    (line,) = caplog.messages
    assert line.startswith("schema_mismatch: The result of 'q' does not match its schema: 2 errors")

    mine.dataset("finance.tx").drop(force=True)
    mine.create("finance.tx", pa.table({"amount": [1.5, 2.5]}))
    problem = client("GET", path, code=500).json()
    assert [(each["row"], each["message"]) for each in problem["errors"]] == [
        (0, "Missing required field: id"),
        (1, "Missing required field: id"),
    ]


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "NaN": ("CASE WHEN {at} THEN 'nan'::DOUBLE ELSE 1 END", field("x"), "non-finite number"),
    "an infinity": ("CASE WHEN {at} THEN 'inf'::DOUBLE ELSE 1 END", field("x", optional=True), "non-finite number"),
    "null": ("CASE WHEN {at} THEN NULL ELSE 1 END", field("x"), "null"),
    "a null in an array": ("CASE WHEN {at} THEN [1, NULL] ELSE [1] END", field("x", array=True), "array with null"),
    "no day": ("CASE WHEN {at} THEN '2026-02-30' ELSE '2026-02-28' END", field("x", "date"), "string"),
    "no instant": ("CASE WHEN {at} THEN '2026-01-31 10:00' ELSE '2026-01-31T10:00:00' END", field("x", "datetime"), "string"),
    "a day without end": ("CASE WHEN {at} THEN DATE 'infinity' ELSE DATE '2026-01-01' END", field("x", "date"), "date out of range"),
}  # fmt: skip


@pytest.mark.parametrize("accept", [{}, ARROW, PARQUET], ids=["json", "arrow", "parquet"])
@pytest.mark.parametrize(("sql", "promised", "actual"), BROKEN.values(), ids=BROKEN.keys())
def test_run_query_with_one_bad_value_returns_no_rows(
    client: Client, sql: str, promised: dict[str, Any], actual: str, accept: dict[str, str]
) -> None:
    path = registered(client, f"SELECT {sql.format(at='range = 9999')} AS x FROM range(10000)", [promised])
    answer = client("GET", f"{path}?{'' if accept else '$top=10000'}", headers=accept, code=500)
    (error,) = answer.json()["errors"]
    assert (error["field"], error["actual"]) == ("x", actual)


def test_run_query_counts_all_errors_and_describes_100(client: Client) -> None:
    path = registered(client, "SELECT nullif(range % 2, 0) AS x FROM range(100000)", [field("x")])
    problem = client("GET", path, headers=ARROW, code=500).json()
    assert (problem["error_count"], len(problem["errors"])) == (50_000, 100)


def test_run_query_mismatch_contains_no_values(client: Client, mine: Lake, caplog: pytest.LogCaptureFixture) -> None:
    canaries = ["canary-text", "4711.4712", "1815-12-10"]
    mine.create(
        "secret.rows", pa.table({"a": [canaries[0]], "b": [4711.4712], "c": [date(1815, 12, 10)], "d": ["canary-list"]})
    )
    fields = [field("a", "date"), field("b", optional=True), field("c", "date"), field("d", "datetime", array=True)]
    path = registered(client, "SELECT a, b, c, [d] AS d FROM secret.rows WHERE b > $least", fields,
                      parameters=[field("least")])  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        for headers in ({}, ARROW, PARQUET):
            answer = client("GET", f"{path}?least=4711.25", headers=headers, code=500)
            assert answer.json()["error_count"] == 2
            visible = f"{answer.text} {answer.headers}"
            assert not [canary for canary in [*canaries, "canary-list", "4711"] if canary in visible]
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name != "httpx")
    assert "schema_mismatch" in logged
    assert not [canary for canary in [*canaries, "canary-list"] if canary in logged]


def test_run_query_with_select_validates_selected_fields(client: Client, mine: Lake) -> None:
    fields = [field("id"), field("region", "string"), field("amount")]
    path = registered(client, fields=fields)
    assert client("GET", path, code=500).json()["error_count"] == 1
    assert column(client("GET", f"{path}?$select=amount,id")) == [1, 2, 3, 4]
    assert list(client("GET", f"{path}?$select=amount,id").json()["value"][0]) == ["amount", "id"]
    assert column(client("GET", f"{path}?$filter=region ne null")) == [1, 2, 3]
    client("GET", f"{path}?$select=region", code=500)


def test_run_query_with_missing_schema_reports_schema_id(client: Client, mine: Lake) -> None:
    path = registered(client)
    returns = client("GET", path.removesuffix("/results")).json()["returns_schema_id"]
    with sqlite3.connect(mine._folder.catalog) as catalog:  # no request can delete a referenced schema
        catalog.execute("UPDATE gts_schemas SET deleted_at = created_at")
    catalog.close()
    problem = client("GET", path, code=500).json()
    assert (problem["error"], problem["code"], problem["schema_id"]) == (
        "Schema not found",
        "SCHEMA_UNAVAILABLE",
        returns,
    )


def test_run_query_records_metrics(client: Client, mine: Lake) -> None:
    def measured(name: str) -> float:
        lines = client("GET", "/metrics").text.splitlines()
        (value,) = (line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name)
        return float(value)

    valid, invalid = (f'penstock_query_checks_total{{outcome="{word}"}}' for word in ("valid", "invalid"))
    assert measured(valid) == measured(invalid) == 0
    good, bad = registered(client), registered(client, fields=[field("region", "string")], name="bad")
    client("GET", good)
    client("GET", good)  # as the first; nothing is to be checked
    client("GET", bad, code=500)
    assert (measured(valid), measured(invalid)) == (1, 1)
    assert measured("penstock_query_check_seconds_count") == 2
    assert measured("penstock_query_check_seconds_sum") > 0
    assert measured("penstock_query_seconds_count") == 3


# -- result cache

DEPENDING: dict[str, tuple[str, str, list[Any]]] = {
    "a scale": ("SELECT round(12.34567::DECIMAL(12, 4), $n) AS v", "number", [1, 3, 4, 0, 2]),
    "a scale by a test": ("SELECT round(12.34567::DECIMAL(12, 4), ($n > 2)::INT) AS v", "number", [1, 3, 2, 4]),
    "a scale by a case": ("SELECT round(1.2345, CASE WHEN $n IN (1, 2) THEN 1 ELSE 3 END) AS v", "number", [1, 3, 2]),
    "a member": ("SELECT ({'a': 1, 'b': 2.75})[$n] AS v", "string", ["a", "b", "a"]),
    "a member by its name": ("SELECT struct_extract({'a': 1, 'b': 2.75}, $n) AS v", "string", ["a", "b"]),
    "an aggregate": ("SELECT list_aggregate([1, 2, 4], $n) AS v", "string", ["sum", "avg"]),
    "the value": ("SELECT $n AS v", "number", [1, Decimal("1.5"), 3_000_000_000, Decimal("0.125"), 10**20, -1]),
    "a sum": ("SELECT sum(v * $n) AS v FROM (VALUES (1), (2)) t(v)", "number", [1, Decimal("0.25"), 10**12]),
    "a test": ("SELECT v FROM (VALUES (1), (2), (3)) t(v) WHERE v >= $n", "number", [1, Decimal("2.5"), 3_000_000_000]),
}


@pytest.mark.parametrize(("sql", "kind", "values"), DEPENDING.values(), ids=DEPENDING.keys())
def test_result_cache_separates_requests(client: Client, sql: str, kind: str, values: list[Any]) -> None:
    path = registered(client, sql, [field("v")], parameters=[field("n", kind, default=values[0])])
    with duckdb.connect() as db:
        for value in [*values, *reversed(values)]:
            expected = db.sql(f"SELECT * FROM ({sql}) ORDER BY ALL", params={"n": value}).to_arrow_table().column("v")
            got = exact(client("GET", path, params={"n": str(value)}))["value"]
            assert [Decimal(str(row["v"])) for row in got] == [Decimal(str(each)) for each in expected.to_pylist()], (
                value
            )


@settings(max_examples=examples(12, soak=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=4), st.lists(st.decimals(-9, 9, places=2), min_size=2, max_size=3)
)
def test_result_cache_separates_decimal_scales(client: Client, scales: list[int], amounts: list[Decimal]) -> None:
    sql = "SELECT round(1.23456::DECIMAL(12, 5), $n::INT) * $x AS v WHERE $x > -100"
    parameters = [field("n", default=1), field("x", default=1)]
    path = registered(client, sql, [field("v")], f"q{uuid4()}", parameters=parameters)
    for scale in scales:
        for amount in amounts:
            (row,) = exact(client("GET", path, params={"n": str(scale), "x": str(amount)}))["value"]
            rounded = Decimal("1.23456").quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
            assert Decimal(str(row["v"])) == rounded * amount


VOLATILE = {
    "chance": ("SELECT random() AS v", "number"),
    "an id": ("SELECT uuid() AS v", "string"),
    "the time": ("SELECT now() AS v", "datetime"),
    "the time without parentheses": ("SELECT current_timestamp AS v", "datetime"),
    "a sample": ("SELECT range AS v FROM range(1000000) USING SAMPLE 1", "number"),
}


@pytest.mark.parametrize(("sql", "kind"), VOLATILE.values(), ids=VOLATILE.keys())
def test_result_cache_skips_volatile_queries(client: Client, edge: RestContext, sql: str, kind: str) -> None:
    path = registered(client, sql, [field("v", kind)])
    answers = {client("GET", path).text for _ in range(3)}
    assert len(answers) > 1
    assert len(edge.query_executor._cache) == 0


def test_result_cache_entry_has_size_of_its_rows(client: Client, edge: RestContext) -> None:
    sql = "SELECT * FROM (VALUES (1, 'a'), (2, repeat('x', 500000 + $n))) t(i, s)"
    path = registered(client, sql, [field("i"), field("s", "string")], parameters=[field("n", default=0)])
    for n in range(3):
        assert column(client("GET", f"{path}?n={n}&$top=1"), "s") == ["a"]
    assert len(edge.query_executor._cache) == 3
    assert edge.query_executor._cache._bytes < 20_000


def test_result_memory_is_released_after_send_or_disconnect(edge: RestContext, client: Client) -> None:
    path = registered(client, "SELECT range AS id FROM range(1000000)", [field("id")])
    budget = edge.workspace.memory
    edge.query_executor._cache = BoundedCache(0)
    seen = list[int]()

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch(message: Message) -> None:
            seen.append(budget.used_bytes)
            if cut and len(seen) == 3:
                raise ClientDisconnect
            await send(message)

        await app(scope, receive, watch)

    app = create_app(edge)
    gc.disable()  # the memory must not wait for it
    try:
        for cut in (False, True):
            seen.clear()
            ask = in_process_client(watched, token())  # type: ignore[arg-type]
            if cut:
                with pytest.raises(AssertionError):
                    ask("GET", f"{path}?$filter=id ge 0", headers=ARROW)
            else:
                assert table(ask("GET", path, headers=ARROW)).num_rows == 1_000_000
            assert seen[2] > 0
            assert budget.used_bytes == 0
    finally:
        gc.enable()


def test_cached_result_holds_no_request_memory(client: Client, edge: RestContext) -> None:
    path = registered(client, "SELECT range AS n FROM range(1000)", [field("n")])
    first = column(client("GET", path), "n")
    gc.collect()
    assert len(edge.query_executor._cache) == 1
    assert edge.workspace.memory.used_bytes == 0
    assert column(client("GET", path), "n") == first


def test_result_larger_than_cache_is_returned(edge: RestContext, client: Client, mine: Lake) -> None:
    path = registered(client)
    edge.query_executor._buffer = ResultBuffer(MemoryBudget(0))
    assert table(client("GET", path, headers=ARROW)).sort_by("id") == TX
    assert column(client("GET", path)) == [1, 2, 3, 4]


# -- answers that are large


def test_run_query_row_larger_than_page_is_rejected(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_results, "DEFAULT_PAGE_BYTES", 10_000)
    fields = [field("i"), field("s", "string")]
    path = registered(client, "SELECT i, repeat('x', 20000 * (i = 2)::INT) AS s FROM range(4) t(i)", fields)
    first = client("GET", f"{path}?$count=true").json()
    assert ([row["i"] for row in first["value"]], first["@odata.count"]) == ([0, 1], 4)
    problem = client("GET", first["@odata.nextLink"], code=400).json()
    assert (problem["code"], "fewer fields" in problem["detail"]) == ("QUERY_TOO_LARGE", True)
    assert [row["i"] for page in pages(client, f"{path}?$select=i", 2) for row in page.json()["value"]] == [
        0,
        1,
        2,
        3,
    ]
    assert table(client("GET", path, headers=ARROW)).num_rows == 4
    preview = {"sql": "SELECT repeat('x', 20000) AS s"}
    assert client("POST", "/queries/preview", json=preview, code=400).json()["code"] == "QUERY_TOO_LARGE"
    many = client("POST", "/queries/preview", json={"sql": "SELECT repeat('x', 900) AS s FROM range(100)"}).json()
    assert (len(many["value"]) < 12, many["more"]) == (True, True)


LARGE = {
    "one long value": "SELECT repeat(chr(1), 150000000) AS s",
    "a value that just fits a message": "SELECT repeat('é', 30000000) AS s",
    "long rows": "SELECT repeat(chr(97 + (range % 20)::INT), 350000) AS s FROM range(1000)",
    "many small values": "SELECT list_transform(range(60000000), lambda x: x % 2 = 0) AS s",
}


def test_server_memory_stays_bounded_with_large_results(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--workspace", "lake", "--http-port", "0") as server:
        address = server.address()

        def client(method: str, path: str, *, code: int = 200, **options: Any) -> httpx.Response:
            answer = httpx.request(method, address + path, timeout=100, **options)
            assert answer.status_code in (200, code), answer.text[:500]
            return answer

        def peak() -> int:
            lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

        client("POST", "/queries/preview", json={"sql": "SELECT 1 AS n"})
        before = peak()
        for name, sql in LARGE.items():
            client("POST", "/queries/preview", json={"sql": sql}, code=400)
            if name != "many small values":
                path = registered(client, sql, [field("s", "string")], name)  # type: ignore[arg-type]
                client("GET", path, code=400)
        assert peak() - before < 400 << 20


# -- versions


def test_run_query_paging_returns_each_row_once_during_writes(client: Client, mine: Lake) -> None:
    numbers = mine.create(
        "demo.numbers", pa.table({"id": list(range(0, 1000, 2)), "part": [n % 7 for n in range(500)]})
    )
    sql = "SELECT id, part FROM demo.numbers WHERE part >= $least"
    path = registered(client, sql, [field("id"), field("part")], parameters=[field("least")])
    seen = list[int]()
    for turn, page in enumerate(pages(client, f"{path}?least=1&$orderby=part desc&$filter=id lt 900", 60)):
        assert page.json()["@penstock.versions"] == {"demo.numbers": 1}
        seen += column(page)
        numbers.append(pa.table({"id": [2 * turn + 1], "part": [6]}))  # it would be on a page before
    expected = [(n % 7, 2 * n) for n in range(450) if n % 7]
    assert seen == [id for part, id in sorted(expected, key=lambda row: (-row[0], row[1]))]


OWN_ORDERS = {
    "ORDER BY part DESC": lambda row: (-row["part"], row["id"]),
    "ORDER BY part DESC LIMIT 700": lambda row: (-row["part"], row["id"]),
    "ORDER BY id % 10, part": lambda row: (row["id"] % 10, row["part"], row["id"]),
    "ORDER BY ALL DESC": lambda row: (-row["id"], -row["part"]),
    "": lambda row: (row["id"], row["part"]),
}


@pytest.mark.parametrize("order", OWN_ORDERS)
def test_run_query_without_orderby_keeps_the_order_of_the_query(client: Client, mine: Lake, order: str) -> None:
    rows = [{"id": id * 7919 % 1000, "part": id % 3} for id in range(1000)]
    mine.create("demo.numbers", pa.Table.from_pylist(rows))
    path = registered(client, f"SELECT id, part FROM demo.numbers {order}", [field("id"), field("part")])
    expected = sorted(rows, key=OWN_ORDERS[order])[: 700 if "LIMIT" in order else 1000]
    assert [row for page in pages(client, path, 90) for row in page.json()["value"]] == expected
    filtered = [
        row for page in pages(client, f"{path}?$filter=part ne 1&$select=id", 300) for row in page.json()["value"]
    ]
    assert filtered == [{"id": row["id"]} for row in expected if row["part"] != 1]
    by_id = pages(client, f"{path}?$orderby=id desc", 500)
    assert [row["id"] for page in by_id for row in page.json()["value"]] == sorted(
        (row["id"] for row in expected), reverse=True
    )


@pytest.mark.parametrize(
    "sql",
    [
        "WITH t AS (SELECT * FROM range(9) r(id)) SELECT id FROM t ORDER BY id % 2 DESC",
        "SELECT * FROM range(5) r(id) UNION ALL SELECT * FROM range(5, 9) ORDER BY id % 2 DESC",
        "SELECT id FROM range(9) r(id) ORDER BY id % 2 DESC",
        'SELECT id AS "the id", id FROM range(9) r(id) ORDER BY id % $two DESC',
    ],
)
def test_run_query_own_order_of_any_select_is_made_total(client: Client, sql: str) -> None:
    more = {"parameters": [{"name": "two", "type": "number", "default": 2}]} if "$two" in sql else {}
    path = registered(client, sql.replace("id % 2", "(id % 2)"), [field("id")], **more)
    assert column(client("GET", path)) == [1, 3, 5, 7, 0, 2, 4, 6, 8]


def test_next_link_contains_options_and_read_versions(client: Client, mine: Lake) -> None:
    path = registered(client, f"{SQL} WHERE region = $region", parameters=[field("region", "string")])
    mine.create("a.b", TX)
    params = {"region": "EMEA", "$filter": "amount gt 0 and id ne 9"}
    page = client("GET", path, params=params, headers={"prefer": "odata.maxpagesize=1"}).json()
    link = urlsplit(page["@odata.nextLink"])
    assert link.path == path
    options = parse_qs(link.query)
    assert options.pop("$skiptoken")
    assert options == {"region": ["EMEA"], "$filter": ["amount gt 0 and id ne 9"], "versions": ["finance.tx:1"]}
    for bad in ("WzFd", "x", ""):
        assert client("GET", f"{path}?region=EMEA&$skiptoken={bad}", code=400).json()["code"] == "BAD_SKIPTOKEN"
    last = client("GET", page["@odata.nextLink"])
    assert column(last) == [3]
    assert "@odata.nextLink" not in last.json()


def test_pinned_versions_reproduce_result_and_newest_is_current(client: Client, mine: Lake) -> None:
    path = registered(
        client, "SELECT count(*) AS n, sum(amount) AS total FROM finance.tx", [field("n"), field("total")]
    )
    then = [client("GET", path).text]
    for turn in range(3):
        mine.dataset("finance.tx").append(TX)
        now = client("GET", path)
        assert now.json()["@penstock.versions"] == {"finance.tx": turn + 2}
        assert column(now, "n") == [4 * (turn + 2)]
        assert client("GET", path).text == now.text
        then.append(now.text)
    for number, text in enumerate(then, 1):
        assert client("GET", f"{path}?versions=FINANCE.tx:{number}").text == text
        old = client("GET", f"{path}?versions=finance.tx:{number}", headers=ARROW)
        assert table(old).column("n").to_pylist() == [4 * number]
        assert old.headers["x-penstock-versions"] == f"finance.tx:{number}"


PINS: dict[str, tuple[str, int, str]] = {
    "finance.tx": ("the version is missing", 400, "BAD_PARAMETER"),
    "finance.tx:": ("the version is missing", 400, "BAD_PARAMETER"),
    "finance.tx:-1": ("no version", 400, "BAD_PARAMETER"),
    "finance.tx:newest": ("no version", 400, "BAD_PARAMETER"),
    "": ("nothing", 400, "BAD_PARAMETER"),
    "tx:1": ("no dataset's name", 400, "BAD_DATASET_NAME"),
    "finance.tx:1,finance.TX:1": ("twice", 400, "DUPLICATE_PARAMETER"),
    "finance.budget:1": ("not read", 400, "UNREAD_DATASET"),
    "finance.tx:0": ("there is none", 404, "VERSION_NOT_FOUND"),
    "finance.tx:2": ("not yet", 404, "VERSION_NOT_FOUND"),
}


@pytest.mark.parametrize("pin", PINS)
def test_run_query_with_bad_versions_is_rejected(client: Client, mine: Lake, pin: str) -> None:
    mine.create("finance.budget", TX)
    _, status, code = PINS[pin]
    answer = client("GET", registered(client), params={"versions": pin}, code=status)
    assert answer.json()["code"] == code


def test_query_can_compare_version_with_newest(client: Client, mine: Lake) -> None:
    sql = """SELECT n.id, o.id IS NULL AS is_new
        FROM finance.tx AS n LEFT JOIN finance.tx AS o AT (VERSION => 1) ON n.id = o.id"""
    path = registered(client, sql, [field("id"), field("is_new", "boolean")])
    mine.dataset("finance.tx").append(TX.slice(0, 2).set_column(0, "id", pa.array([8, 9], pa.int64())))
    found = list(pages(client, f"{path}?$filter=is_new eq true or id gt 1", 4))
    assert [page.json()["@penstock.versions"] for page in found] == [{"finance.tx": 2}] * 2
    assert [id for page in found for id in column(page)] == [2, 3, 4, 8, 9]
    assert column(client("GET", f"{path}?versions=finance.tx:1")) == [1, 2, 3, 4]
    fixed = registered(client, "SELECT id FROM finance.tx AS t AT (VERSION => 1)", [field("id")], "fixed")
    assert column(client("GET", f"{fixed}?versions=finance.tx:1")) == [1, 2, 3, 4]
    assert client("GET", f"{fixed}?versions=finance.tx:2", code=400).json()["code"] == "IMMUTABLE_VERSION"


def test_run_query_reads_all_datasets_at_one_commit(client: Client, mine: Lake, soak: bool) -> None:
    def account(balance: int) -> pa.Table:
        return pa.table({"id": [1], "amount": [balance]})

    left, right = mine.create("bank.left", account(600)), mine.create("bank.right", account(400))
    sql = "SELECT l.amount AS l, r.amount AS r FROM bank.left AS l JOIN bank.right AS r USING (id)"
    path = registered(client, sql, [field("l"), field("r")])
    stop, moved = threading.Event(), list[int]()

    def move() -> None:
        while not stop.is_set():
            taken = len(moved) % 600
            with mine.transaction() as tx:
                tx.overwrite(left, account(600 - taken))
                tx.overwrite(right, account(400 + taken))
            moved.append(taken)

    writer = threading.Thread(target=move)
    writer.start()
    try:
        states = set()
        for _ in range(1000 if soak else 25):
            (row,) = client("GET", path).json()["value"]
            assert row["l"] + row["r"] == 1000
            states.add(row["l"])
    finally:
        stop.set()
        writer.join()
    assert len(states) > 2


def test_run_query_with_dropped_dataset_returns_404(client: Client, mine: Lake) -> None:
    path = registered(client)
    client("GET", path)
    mine.dataset("finance.tx").drop(force=True)
    for pin in ("", "?versions=finance.tx:1"):
        problem = client("GET", path + pin, code=404).json()
        assert (problem["code"], problem["dataset"]) == ("DATASET_NOT_FOUND", "finance.tx")


# -- parameters

PARAMETER_VALUES: dict[str, list[tuple[str, Any]]] = {
    "string": [("EMEA", "EMEA"), ("", ""), ("'; DROP TABLE x --", "'; DROP TABLE x --"), ("ä&=+ $1", "ä&=+ $1")],
    "number": [("12", 12), ("-0.50", Decimal("-0.5")), ("1e3", 1000), ("9223372036854775807", 2**63 - 1)],
    "boolean": [("true", True), ("false", False)],
    "date": [("2026-01-31", "2026-01-31")],
    "datetime": [
        ("2026-01-31T10:00:00+02:00", "2026-01-31T08:00:00Z"),
        ("2026-01-31T10:00:00", "2026-01-31T10:00:00Z"),
    ],
}
WRONG: dict[str, list[str]] = {
    "number": ["", "twelve", "NaN", "0x10", "1_000", "1" * 40],
    "boolean": ["", "1", "True", "yes"],
    "date": ["", "2026-02-30", "31.01.2026", "2026-01-31T00:00:00Z"],
    "datetime": ["", "2026-01-31", "10:00"],
    "string": ["a\0b"],
}


@pytest.mark.parametrize("kind", PARAMETER_VALUES)
def test_run_query_accepts_parameters_of_every_type(client: Client, kind: str) -> None:
    path = registered(client, "SELECT $Given AS given", [field("given", kind)], parameters=[field("given", kind)])
    for sent, parsed in PARAMETER_VALUES[kind]:
        answer = client("GET", path, params={"given": sent})
        assert exact(answer)["value"] == [{"given": parsed}]
    for sent in WRONG[kind]:
        problem = client("GET", path, params={"given": sent}, code=400).json()
        assert (problem["code"], problem["errors"][0]["pointer"]) == ("BAD_PARAMETERS", "/given")
    assert client("GET", path, code=400).json()["errors"][0]["code"] == "missing_parameter"


ADDRESSES: dict[str, str] = {
    "given=1&given=2": "DUPLICATE_PARAMETER",
    "given=1&other=2": "BAD_PARAMETERS",
    "given=1&format=csv": "BAD_PARAMETERS",
    "given=1&$search=x": "BAD_OPTION",
    "given=1&$expand=x": "UNKNOWN_OPTION",
    "given=1&$top=1&$top=2": "BAD_OPTION",
    "given=1&$top=-1": "BAD_OPTION",
    "given=1&$filter=given eq": "BAD_FILTER",
    "given=1&$filter=other eq 1": "UNKNOWN_FIELD",
    "given=1&$orderby=other": "UNKNOWN_FIELD",
}


@pytest.mark.parametrize("parameters", ADDRESSES)
def test_run_query_with_bad_parameters_is_rejected(client: Client, parameters: str) -> None:
    path = registered(client, "SELECT $given AS given", [field("given")], parameters=[field("given")])
    assert client("GET", f"{path}?{parameters}", code=400).json()["code"] == ADDRESSES[parameters]


def test_run_query_missing_parameter_has_default_or_null(client: Client, mine: Lake) -> None:
    declared = [field("region", "string", default="EMEA"), field("least", required=False)]
    sql = f"{SQL} WHERE region = $region AND ($least IS NULL OR amount >= $least)"
    path = registered(client, sql, parameters=declared)
    assert column(client("GET", path)) == [1, 3]
    assert column(client("GET", f"{path}?least=3")) == [1]
    assert column(client("GET", f"{path}?region=APAC")) == [2]


# -- preview of unregistered SQL


def test_preview_returns_first_thousand_rows_and_types(client: Client, mine: Lake) -> None:
    sent = {"sql": f"{SQL} WHERE amount > $Least ORDER BY id", "parameters": {"least": 2}}
    assert exact(client("POST", "/queries/preview", json=sent)) == {
        "columns": [
            {"name": "id", "type": "int64"},
            {"name": "region", "type": "string"},
            {"name": "amount", "type": {"decimal": [12, 2]}},
        ],
        "@penstock.versions": {"finance.tx": 1},
        "more": False,
        "value": [
            {"id": 1, "region": "EMEA", "amount": Decimal("10.00")},
            {"id": 3, "region": "EMEA", "amount": Decimal("2.50")},
            {"id": 4, "region": None, "amount": Decimal("7.00")},
        ],
    }
    for count in (1000, 1001):
        preview = client("POST", "/queries/preview", json={"sql": f"SELECT * FROM range({count})"}).json()
        assert (len(preview["value"]), preview["more"]) == (1000, count > 1000)


ODD: dict[str, tuple[str, Any]] = {
    "NaN": ("'nan'::DOUBLE", None),
    "null": ("NULL", None),
    "a time": ("TIME '10:00:00'", "10:00:00"),
    "bytes": ("'ab'::BLOB", "YWI="),
    "a struct": ("{'a': 1, 'b': [TIMESTAMP '2026-01-01 00:00:00']}", {"a": 1, "b": ["2026-01-01T00:00:00"]}),
    "an enum": ("'x'::ENUM('x', 'y')", "x"),
    "a large integer": ("170141183460469231731687303715884105::HUGEINT", 170141183460469231731687303715884105),
}


def test_preview_encodes_every_sql_type(client: Client) -> None:
    columns = ", ".join(f'{sql} AS "{name}"' for name, (sql, _) in ODD.items())
    (row,) = client("POST", "/queries/preview", json={"sql": f"SELECT {columns}"}).json()["value"]
    assert row == {name: encoded for name, (_, encoded) in ODD.items()}
    odder = "INTERVAL 1 DAY AS i, MAP {'a': 1} AS m, DATE 'infinity' AS d, TIMESTAMP '-infinity' AS t, 1 AS x, 2 AS x"
    (row,) = client("POST", "/queries/preview", json={"sql": f"SELECT {odder}"}).json()["value"]
    assert all(isinstance(row[name], str) for name in "imdt")
    assert list(row)[-2:] == ["x", "x_1"]


PREVIEWS: list[tuple[Any, str]] = [
    ({}, "BAD_PAYLOAD"),
    ({"sql": 1}, "BAD_PAYLOAD"),
    ({"sql": "SELECT 1", "limit": 5}, "BAD_PAYLOAD"),
    ({"sql": "SELECT 1", "parameters": [1]}, "BAD_PAYLOAD"),
    ({"sql": "SELECT $a", "parameters": {"a": [1]}}, "BAD_PAYLOAD"),
    ({"sql": "SELECT $a"}, "MISSING_PARAMETER"),
    ({"sql": "SELECT $a", "parameters": {"a": 1, "b": 2}}, "UNKNOWN_PARAMETER"),
    ({"sql": "SELECT ?"}, "BAD_SQL"),
    ({"sql": ""}, "NOT_ONE_SELECT"),
    ({"sql": "SELECT 1; SELECT 2"}, "NOT_ONE_SELECT"),
    ({"sql": "COPY (SELECT 1) TO '/tmp/x'"}, "NOT_ONE_SELECT"),
    ({"sql": "SET memory_limit = '9GB'"}, "NOT_ONE_SELECT"),
    ({"sql": "SELECT * FROM read_csv('/etc/passwd')"}, "BAD_SQL"),
    ({"sql": "SELECT getenv('HOME')"}, "QUERY_FAILED"),
    ({"sql": "SELECT 'canary'::INT"}, "QUERY_FAILED"),
]


@pytest.mark.parametrize(("sent", "code"), PREVIEWS, ids=lambda value: str(value)[:60])
def test_preview_rejects_everything_but_a_safe_select(client: Client, sent: Any, code: str) -> None:
    response = client("POST", "/queries/preview", json=sent, code=400)
    assert response.json()["code"] == code
    assert "canary" not in response.text


@pytest.fixture
def tight(edge: RestContext) -> Iterator[Client]:
    """Return a client of a service with low query limits."""
    few = QueryLimits(cpu_seconds=1, rows=5_000, bytes=50_000, memory_bytes=256 << 20)
    made = QueryExecutor(edge.workspace, Sandbox(edge.workspace.data, few))
    narrow = RestContext.create(edge.workspace, edge.tokens, run_worker=edge.run_worker, query_executor=made)
    yield in_process_client(create_app(narrow), token())
    made.close()


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n % 7 FROM t) SELECT count(*) AS n FROM t"
LONG = "SELECT len(list(repeat('x' || range, 1000000))) AS n FROM range(100000)"
GREEDY: dict[str, tuple[str, str, str]] = {
    "rows": ("SELECT range AS n FROM range(5001)", "QUERY_TOO_LARGE", "exceeds 5,000 rows"),
    "bytes": ("SELECT 1000000::DECIMAL(38) AS n FROM range(5000)", "QUERY_TOO_LARGE", "exceeds 50,000 bytes"),
    "time": (ENDLESS, "QUERY_TIMED_OUT", "more than 1 seconds of CPU time"),
    "memory": (LONG, "QUERY_OUT_OF_MEMORY", "more than 256 MiB of memory"),
}


@pytest.mark.parametrize(("sql", "code", "words"), GREEDY.values(), ids=GREEDY.keys())
def test_query_above_resource_limit_is_stopped(tight: Client, sql: str, code: str, words: str) -> None:
    path = registered(tight, sql, [field("n")])
    problem = tight("GET", path, headers=ARROW, code=400).json()
    assert problem["code"] == code
    assert words in problem["detail"]
    assert tight("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}).json()["value"] == [{"one": 1}]


def test_query_without_free_slot_returns_retry_after(edge: RestContext) -> None:
    sandbox = Sandbox(edge.workspace.data, max_running=1, max_waiting=0)
    full = RestContext.create(
        edge.workspace, edge.tokens, run_worker=edge.run_worker, query_executor=QueryExecutor(edge.workspace, sandbox)
    )
    client = in_process_client(create_app(full), token())
    with sandbox.process():
        response = client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}, code=503)
        assert (response.json()["code"], response.headers["retry-after"]) == ("SERVER_BUSY", "1")
    client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"})
    sandbox.close()


def test_run_query_with_duplicate_parameter_is_rejected(client: Client) -> None:
    sent = {"sql": "SELECT $a AS a", "parameters": {"a": 1, "A": 2}}
    for path in ("/queries/preview", "/gts/infer"):
        assert client("POST", path, json=sent, code=400).json()["code"] == "DUPLICATE_PARAMETER"


DESCRIBED: dict[str, tuple[str, str, str, str]] = {
    "a month": ("date_trunc('month', $x)", "datetime", "datetime", "2026-01-05T00:00:00Z"),
    "the month of a day": ("date_trunc('month', $x)::DATE", "date", "date", "2026-01-05"),
    "a year": ("year($x)", "date", "number", "2026-01-05"),
    "a quantile": ("(SELECT quantile_cont(amount, $x) FROM finance.tx)", "number", "number", "0.5"),
    "a format": ("strptime('2026-01-01', $x)", "string", "datetime", "%Y-%m-%d"),
    "a day later": ("$x + 1", "date", "date", "2026-01-05"),
    "a magnitude": ("abs($x)", "number", "number", "-1.5"),
}


@pytest.mark.parametrize(("sql", "kind", "returned", "value"), DESCRIBED.values(), ids=DESCRIBED.keys())
def test_create_query_is_accepted_if_some_parameter_value_is_valid(
    client: Client, mine: Lake, sql: str, kind: str, returned: str, value: str
) -> None:
    path = registered(client, f"SELECT {sql} AS v", [field("v", returned)], parameters=[field("x", kind)])
    assert len(client("GET", path, params={"x": value}).json()["value"]) == 1


def test_create_query_invalid_for_all_parameter_values_is_rejected(client: Client) -> None:
    for name, sql, words in (
        ("a", "SELECT $x || 'a' AS v", "Type mismatch for field v"),
        ("b", "SELECT $x AS w", "Missing required field: v"),
        ("c", "SELECT 1 AS V, $x AS w", "the result has V; names are case-sensitive"),
        ("d", "SELECT nothing AS v, $x AS w", '"nothing" was not found'),
    ):
        schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [field("v")]}
        returns = client("POST", "/gts", json=schema, code=201).json()["id"]
        sent = {"name": name, "sql": sql, "returns_schema_id": returns, "parameters": [field("x", "string")]}
        assert words in client("POST", "/queries", json=sent, code=400).json()["detail"]


def test_infer_schema_uses_parameter_values(client: Client) -> None:
    sent = {
        "sql": "SELECT $x AS x, date_trunc('month', $day::DATE) AS month",
        "parameters": {"X": 1.5, "day": "2026-01-05"},
    }
    inferred = client("POST", "/gts/infer", json=sent).json()["fields"]
    assert [(each["name"], each["type"]) for each in inferred] == [("x", "number"), ("month", "datetime")]
    for wrong, code in (({"y": 1}, "UNKNOWN_PARAMETER"), ([1], "BAD_PAYLOAD"), ({"x": [1]}, "BAD_PAYLOAD")):
        assert client("POST", "/gts/infer", json={**sent, "parameters": wrong}, code=400).json()["code"] == code


def test_filter_by_declared_but_missing_field_is_schema_mismatch(client: Client, mine: Lake) -> None:
    path = registered(client, "SELECT * FROM finance.tx", [field("id"), field("amount")])
    mine.dataset("finance.tx").drop(force=True)
    mine.create("finance.tx", pa.table({"id": [1, 2]}))
    for options in ("", "?$filter=amount gt 1", "?$filter=amount ne 1", "?$orderby=amount", "?$filter=amount eq null"):
        problem = client("GET", path + options, code=500).json()
        assert (problem["code"], problem["errors"][0]["message"]) == (
            "SCHEMA_MISMATCH",
            "Missing required field: amount",
        )
    assert client("GET", f"{path}?$top=0").json()["value"] == []  # no row is validated


def test_run_query_counts_rows_without_declared_fields(client: Client, mine: Lake) -> None:
    path = registered(client, "SELECT id FROM finance.tx", [field("id"), field("note", "string", optional=True)])
    rows = table(client("GET", f"{path}?$select=note", headers=ARROW))
    assert (rows.schema.names, rows.num_rows) == ([], 4)
    problem = client("GET", f"{path}?$select=note", headers=PARQUET, code=400).json()
    assert problem["code"] == "NOT_IN_FORMAT"


def recorded(lake: Lake, action: str) -> list[dict[str, Any]]:
    with sqlite3.connect(lake._folder.catalog) as catalog:
        rows = catalog.execute("SELECT detail FROM audit WHERE action = ? ORDER BY at", [action]).fetchall()
    catalog.close()
    return [json.loads(detail) for (detail,) in rows]


def test_previews_and_inferences_are_audited_without_sql(client: Client, mine: Lake, edge: RestContext) -> None:
    beats = list[float]()
    edge.query_executor.on_query(beats.append)
    good, bad = {"sql": SQL}, {"sql": f"{SQL} WHERE word = 'canary'"}
    for path in ("/queries/preview", "/gts/infer"):
        client("POST", path, json=good)
        client("POST", path, json=bad, code=400)
        client("POST", path, json={"sql": "COPY x TO 'canary'"}, code=400)
    previews, proposals = recorded(mine, "query.preview"), recorded(mine, "query.infer")
    assert [each.get("rows") for each in previews] == [4, None, None]
    for each in (previews, proposals):
        assert [one.get("refusal") for one in each] == [None, "query_failed", "not_one_select"]
        assert [one.get("datasets") for one in each] == [{"finance.tx": 1}] * 2 + [None]
        assert each[0]["sql"] == hashlib.sha256(SQL.encode()).hexdigest()
        assert "canary" not in str(each)
    assert len(beats) == 6


def test_query_that_fails_unexpectedly_is_audited(
    mine: Lake, edge: RestContext, client: Client, monkeypatch: Any
) -> None:
    path = registered(client)
    opened = edge.query_executor.load(mine.caller, path.split("/")[2])
    request = QueryRequest(odata.options([], {}, default_top=9, max_top=9), {}, {})

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(result_schema.ColumnChecker, "add", broken)
    with pytest.raises(ZeroDivisionError):
        edge.query_executor.run(mine.caller, opened, request)
    (facts,) = recorded(mine, "query.run")
    assert (facts["refusal"], facts["datasets"]) == ("unexpected", {"finance.tx": 1})


def test_query_runs_are_audited_with_user_and_outcome(client: Client, mine: Lake) -> None:
    path = registered(client, fields=[field("id"), field("region", "string")])
    client("GET", f"{path}?$select=id")
    client("GET", path, code=500)
    with sqlite3.connect(mine._folder.catalog) as catalog:
        rows = catalog.execute("SELECT author, detail FROM audit WHERE action = 'query.run' ORDER BY at").fetchall()
    catalog.close()
    facts = [json.loads(detail) for _, detail in rows]
    assert {author for author, _ in rows} == {"ada"}
    assert [each.get("rows", each.get("refusal")) for each in facts] == [4, "schema_mismatch"]
    assert all(each["datasets"] == {"finance.tx": 1} for each in facts)
