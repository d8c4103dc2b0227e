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
from rest.rest_client import TENANT, RestClient, in_process_client, token
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
def token_lake(local_lake: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens, with one dataset."""
    lake = Lake(local_lake._workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local_lake._folder)
    lake.create("finance.tx", TX)
    return lake


def register_query(client: RestClient, sql: str = SQL, fields: Any = FIELDS, name: str = "q", **members: Any) -> str:
    """Register a query and return the path of its results."""
    schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}
    returns = client("POST", "/gts", json=schema, code=201).json()["id"]
    body = {"name": name, "sql": sql, "returns_schema_id": returns, **members}
    return f"/queries/{client('POST', '/queries', json=body, code=201).json()['id']}/results"


def field(name: str, field_type: str = "number", **members: Any) -> dict[str, Any]:
    return {"name": name, "type": field_type, **members}


def parse_exact(response: httpx.Response) -> Any:
    """Parse the body with every digit of its numbers."""
    return json.loads(response.text, parse_float=Decimal)


def column_values(response: httpx.Response, name: str = "id") -> list[Any]:
    return [row[name] for row in response.json()["value"]]


def read_arrow(response: httpx.Response) -> pa.Table:
    return pa.ipc.open_stream(response.content).read_all()


def pages(client: RestClient, path: str | None, size: int = 100) -> Iterator[httpx.Response]:
    while path:
        yield (page := client("GET", path, headers={"prefer": f"odata.maxpagesize={size}"}))
        path = page.json().get("@odata.nextLink")


# -- valid rows


def test_validation_success(client: RestClient, token_lake: Lake) -> None:
    """fdd-analytics-feature-schema-query-returns-test-validation-success"""
    path = register_query(client)
    response = client("GET", path)
    assert parse_exact(response) == {
        "@odata.context": f"/$metadata#{path.strip('/')}",
        "@penstock.versions": {"finance.tx": 1},
        "value": [
            {"id": 1, "region": "EMEA", "amount": Decimal("10.00")},
            {"id": 2, "region": "APAC", "amount": Decimal("-0.10")},
            {"id": 3, "region": "EMEA", "amount": Decimal("2.50")},
            {"id": 4, "region": None, "amount": Decimal("7.00")},
        ],
    }
    assert response.headers["x-penstock-versions"] == "finance.tx:1"
    assert client("GET", "/queries/Q/results").json() == response.json()


def test_run_query_as_arrow_or_parquet_returns_all_rows(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client)
    for headers, read in ((ARROW, read_arrow), (PARQUET, lambda response: pq.read_table(BytesIO(response.content)))):
        response = client("GET", path, headers=headers)
        assert response.headers["content-type"] == headers["accept"]
        assert response.headers["x-penstock-versions"] == "finance.tx:1"
        assert read(response).sort_by("id") == TX
        sorted_page = client("GET", f"{path}?$orderby=amount desc&$skip=1&$top=2", headers=headers)
        assert read(sorted_page).column("id").to_pylist() == [4, 3]
        last_page = client("GET", f"{path}?$skip=3", headers=headers)
        assert read(last_page).column("id").to_pylist() == [4]
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
def test_run_query_applies_odata_options(client: RestClient, token_lake: Lake, options: str) -> None:
    assert column_values(client("GET", f"{register_query(client)}?{options}")) == OPTIONS[options]


def test_run_query_with_count_returns_number_of_rows(client: RestClient, token_lake: Lake) -> None:
    page = client("GET", f"{register_query(client)}?$filter=amount gt 0&$top=1&$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (3, 1)


def test_run_query_page_has_default_and_maximum_size(client: RestClient) -> None:
    path = register_query(client, "SELECT range AS id FROM range(20000)", [field("id")])
    assert column_values(client("GET", path)) == list(range(100))
    large = client("GET", f"{path}?$top=19999")
    assert column_values(large) == list(range(10_000))
    rest = client("GET", large.json()["@odata.nextLink"])
    assert column_values(rest) == list(range(10_000, 19_999))
    assert "@odata.nextLink" not in rest.json()
    assert "@odata.nextLink" not in client("GET", f"{path}?$top=100").json()
    assert [column_values(page) for page in pages(client, f"{path}?$top=5&$skip=2", 2)] == [[2, 3], [4, 5], [6]]
    assert client("GET", path).json()["@penstock.versions"] == {}


def test_run_query_page_of_large_rows_is_shorter(client: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_results, "DEFAULT_PAGE_BYTES", 10_000)
    path = register_query(
        client, "SELECT range AS id, repeat('x', 3000) AS text FROM range(8)", [field("id"), field("text", "string")]
    )
    page_ids = [column_values(page) for page in pages(client, path)]
    assert max(map(len, page_ids)) < 4
    assert [id for ids in page_ids for id in ids] == list(range(8))


def test_run_query_numbers_are_exact(client: RestClient, token_lake: Lake) -> None:
    sql = "SELECT 9223372036854775807 AS a, 12345678901234567890123456789.123456789 AS b, 0.1::DOUBLE AS c, -0.0::DOUBLE d"
    response = client("GET", register_query(client, sql, [field(name) for name in "abcd"]))
    assert parse_exact(response)["value"] == [
        {
            "a": 2**63 - 1,
            "b": Decimal("12345678901234567890123456789.123456789"),
            "c": Decimal("0.1"),
            "d": Decimal("-0.0"),
        }
    ]


DATETIME_CASES: dict[str, tuple[str, str, Any]] = {
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


@pytest.mark.parametrize(("sql", "field_type", "encoded"), DATETIME_CASES.values(), ids=DATETIME_CASES.keys())
def test_run_query_encodes_dates_and_datetimes_by_declared_type(
    client: RestClient, sql: str, field_type: str, encoded: str
) -> None:
    fields = [field("one", field_type), field("many", field_type, array=True), field("none", field_type, optional=True)]
    path = register_query(client, f"SELECT {sql} AS one, [{sql}, {sql}] AS many, NULL AS none", fields)
    response = client("GET", path)
    assert response.json()["value"] == [{"one": encoded, "many": [encoded, encoded], "none": None}]
    assert result_schema.check_rows(result_schema.parse_fields(fields), response.json()["value"], strict=True).valid


def test_run_query_returns_arrays_of_every_scalar_type(client: RestClient) -> None:
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
    assert client("GET", register_query(client, sql, fields)).json()["value"] == [
        {"id": 1, "n": [1.5, 2.25], "s": ["a", '"'], "b": [True], "f": [1, 2]},
        {"id": 2, "n": [], "s": None, "b": [], "f": None},
        {"id": 3, "n": [0.5], "s": [""], "b": [False, True], "f": [3, 4]},
    ]


def test_run_query_arrays_of_naive_datetimes_are_correct_on_later_page(client: RestClient) -> None:
    sql = """SELECT range AS id, CASE WHEN range % 3 = 0 THEN NULL ELSE
        list_transform(range(range % 3), lambda x: TIMESTAMP '2026-01-01' + to_seconds(range * 10 + x)) END AS at FROM range(9)"""
    path = register_query(client, sql, [field("id"), field("at", "datetime", array=True, optional=True)])
    rows = [row for page in pages(client, path, 4) for row in page.json()["value"]]
    assert [row["at"] for row in rows] == [
        None
        if id % 3 == 0
        else [f"2026-01-01T00:{(id * 10 + x) // 60:02}:{(id * 10 + x) % 60:02}Z" for x in range(id % 3)]
        for id in range(9)
    ]


def test_run_query_optional_fields_may_be_missing_and_extra_columns_are_dropped(
    client: RestClient, token_lake: Lake
) -> None:
    fields = [field("id"), field("note", "string", optional=True), field("size", optional=True)]
    path = register_query(client, "SELECT id, NULL AS note, region AS extra FROM finance.tx", fields)
    assert client("GET", f"{path}?$top=1").json()["value"] == [{"id": 1, "note": None}]
    assert client("GET", f"{path}?$top=2&$select=size").json()["value"] == [{}, {}]
    assert client("GET", f"{path}?$select=extra", code=400).json()["code"] == "UNKNOWN_FIELD"
    assert client("GET", f"{path}?$filter=size eq null&$count=true&$top=1").json()["@odata.count"] == 4


@pytest.mark.parametrize("count", [0, 1])
def test_run_query_empty_result_and_single_row_are_valid(client: RestClient, token_lake: Lake, count: int) -> None:
    path = register_query(client, f"{SQL} WHERE id <= {count}")
    page = client("GET", f"{path}?$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (count, count)
    assert read_arrow(client("GET", path, headers=ARROW)).schema.names == ["id", "region", "amount"]
    assert read_arrow(client("GET", path, headers=ARROW)).num_rows == count


def test_run_query_validates_a_million_rows(client: RestClient) -> None:
    sql = "SELECT range AS id, 'row ' || range AS word, range / 4 AS part, DATE '2026-01-01' AS day FROM range(1000000)"
    fields = [field("id"), field("word", "string"), field("part"), field("day", "date")]
    rows = read_arrow(client("GET", register_query(client, sql, fields), headers=ARROW))
    assert rows.num_rows == 1_000_000
    assert rows.column("id").to_numpy().sum() == 499_999_500_000
    assert rows.slice(999_999).to_pylist() == [
        {"id": 999_999, "word": "row 999999", "part": 249_999.75, "day": date(2026, 1, 1)}
    ]


def test_run_query_validates_150_fields(client: RestClient) -> None:
    names = [f"f{number}" for number in range(150)]
    values = ", ".join(f"{number} AS f{number}" for number in range(150))
    path = register_query(client, f"SELECT {values}", [field(name) for name in names])
    assert client("GET", path).json()["value"] == [{name: number for number, name in enumerate(names)}]
    invalid_path = register_query(
        client, "SELECT " + values.replace("149 AS", "nullif(149, 149) AS"), [field(n) for n in names], "broken"
    )
    assert client("GET", invalid_path, code=500).json()["errors"] == [
        {"row": 0, "field": "f149", "expected": "number", "actual": "null", "message": "Type mismatch for field f149"}
    ]


# -- invalid rows


def test_validation_failure(client: RestClient, token_lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """fdd-analytics-feature-schema-query-returns-test-validation-failure"""
    path = register_query(client, "SELECT * FROM finance.tx")
    token_lake.dataset("finance.tx").drop(force=True)
    token_lake.create("finance.tx", pa.table({"id": [1, 2], "amount": ["canary-17", "canary-18"]}))
    with caplog.at_level(logging.WARNING):
        response = client("GET", path, code=500)
    problem = response.json()
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

    token_lake.dataset("finance.tx").drop(force=True)
    token_lake.create("finance.tx", pa.table({"amount": [1.5, 2.5]}))
    problem = client("GET", path, code=500).json()
    assert [(error["row"], error["message"]) for error in problem["errors"]] == [
        (0, "Missing required field: id"),
        (1, "Missing required field: id"),
    ]


INVALID_VALUES: dict[str, tuple[str, dict[str, Any], str]] = {
    "NaN": ("CASE WHEN {at} THEN 'nan'::DOUBLE ELSE 1 END", field("x"), "non-finite number"),
    "an infinity": ("CASE WHEN {at} THEN 'inf'::DOUBLE ELSE 1 END", field("x", optional=True), "non-finite number"),
    "null": ("CASE WHEN {at} THEN NULL ELSE 1 END", field("x"), "null"),
    "a null in an array": ("CASE WHEN {at} THEN [1, NULL] ELSE [1] END", field("x", array=True), "array with null"),
    "an invalid date": ("CASE WHEN {at} THEN '2026-02-30' ELSE '2026-02-28' END", field("x", "date"), "string"),
    "an invalid datetime": ("CASE WHEN {at} THEN '2026-01-31 10:00' ELSE '2026-01-31T10:00:00' END", field("x", "datetime"), "string"),
    "an infinite date": ("CASE WHEN {at} THEN DATE 'infinity' ELSE DATE '2026-01-01' END", field("x", "date"), "date out of range"),
}  # fmt: skip


@pytest.mark.parametrize("accept", [{}, ARROW, PARQUET], ids=["json", "arrow", "parquet"])
@pytest.mark.parametrize(("sql", "declared", "actual"), INVALID_VALUES.values(), ids=INVALID_VALUES.keys())
def test_run_query_with_one_bad_value_returns_no_rows(
    client: RestClient, sql: str, declared: dict[str, Any], actual: str, accept: dict[str, str]
) -> None:
    path = register_query(client, f"SELECT {sql.format(at='range = 9999')} AS x FROM range(10000)", [declared])
    response = client("GET", f"{path}?{'' if accept else '$top=10000'}", headers=accept, code=500)
    (error,) = response.json()["errors"]
    assert (error["field"], error["actual"]) == ("x", actual)


def test_run_query_counts_all_errors_and_describes_100(client: RestClient) -> None:
    path = register_query(client, "SELECT nullif(range % 2, 0) AS x FROM range(100000)", [field("x")])
    problem = client("GET", path, headers=ARROW, code=500).json()
    assert (problem["error_count"], len(problem["errors"])) == (50_000, 100)


def test_run_query_mismatch_contains_no_values(
    client: RestClient, token_lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    canaries = ["canary-text", "4711.4712", "1815-12-10"]
    token_lake.create(
        "secret.rows", pa.table({"a": [canaries[0]], "b": [4711.4712], "c": [date(1815, 12, 10)], "d": ["canary-list"]})
    )
    fields = [field("a", "date"), field("b", optional=True), field("c", "date"), field("d", "datetime", array=True)]
    path = register_query(client, "SELECT a, b, c, [d] AS d FROM secret.rows WHERE b > $min_amount", fields,
                      parameters=[field("min_amount")])  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        for headers in ({}, ARROW, PARQUET):
            response = client("GET", f"{path}?min_amount=4711.25", headers=headers, code=500)
            assert response.json()["error_count"] == 2
            visible = f"{response.text} {response.headers}"
            assert not [canary for canary in [*canaries, "canary-list", "4711"] if canary in visible]
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name != "httpx")
    assert "schema_mismatch" in logged
    assert not [canary for canary in [*canaries, "canary-list"] if canary in logged]


def test_run_query_with_select_validates_selected_fields(client: RestClient, token_lake: Lake) -> None:
    fields = [field("id"), field("region", "string"), field("amount")]
    path = register_query(client, fields=fields)
    assert client("GET", path, code=500).json()["error_count"] == 1
    assert column_values(client("GET", f"{path}?$select=amount,id")) == [1, 2, 3, 4]
    assert list(client("GET", f"{path}?$select=amount,id").json()["value"][0]) == ["amount", "id"]
    assert column_values(client("GET", f"{path}?$filter=region ne null")) == [1, 2, 3]
    client("GET", f"{path}?$select=region", code=500)


def test_run_query_with_missing_schema_reports_schema_id(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client)
    returns = client("GET", path.removesuffix("/results")).json()["returns_schema_id"]
    with sqlite3.connect(token_lake._folder.catalog) as catalog:  # no request can delete a referenced schema
        catalog.execute("UPDATE gts_schemas SET deleted_at = created_at")
    catalog.close()
    problem = client("GET", path, code=500).json()
    assert (problem["error"], problem["code"], problem["schema_id"]) == (
        "Schema not found",
        "SCHEMA_UNAVAILABLE",
        returns,
    )


def test_run_query_records_metrics(client: RestClient, token_lake: Lake) -> None:
    def metric(name: str) -> float:
        lines = client("GET", "/metrics").text.splitlines()
        (value,) = (line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name)
        return float(value)

    valid, invalid = (f'penstock_query_checks_total{{outcome="{outcome}"}}' for outcome in ("valid", "invalid"))
    assert metric(valid) == metric(invalid) == 0
    valid_path, invalid_path = (
        register_query(client),
        register_query(client, fields=[field("region", "string")], name="bad"),
    )
    client("GET", valid_path)
    client("GET", valid_path)  # cached: no rows are validated again
    client("GET", invalid_path, code=500)
    assert (metric(valid), metric(invalid)) == (1, 1)
    assert metric("penstock_query_check_seconds_count") == 2
    assert metric("penstock_query_check_seconds_sum") > 0
    assert metric("penstock_query_seconds_count") == 3


# -- result cache

PARAMETER_CASES: dict[str, tuple[str, str, list[Any]]] = {
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


@pytest.mark.parametrize(("sql", "field_type", "values"), PARAMETER_CASES.values(), ids=PARAMETER_CASES.keys())
def test_result_cache_separates_requests(client: RestClient, sql: str, field_type: str, values: list[Any]) -> None:
    path = register_query(client, sql, [field("v")], parameters=[field("n", field_type, default=values[0])])
    with duckdb.connect() as db:
        for value in [*values, *reversed(values)]:
            expected = db.sql(f"SELECT * FROM ({sql}) ORDER BY ALL", params={"n": value}).to_arrow_table().column("v")
            rows = parse_exact(client("GET", path, params={"n": str(value)}))["value"]
            assert [Decimal(str(row["v"])) for row in rows] == [
                Decimal(str(number)) for number in expected.to_pylist()
            ], value


@settings(max_examples=examples(12, soak=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=4), st.lists(st.decimals(-9, 9, places=2), min_size=2, max_size=3)
)
def test_result_cache_separates_decimal_scales(client: RestClient, scales: list[int], amounts: list[Decimal]) -> None:
    sql = "SELECT round(1.23456::DECIMAL(12, 5), $n::INT) * $x AS v WHERE $x > -100"
    parameters = [field("n", default=1), field("x", default=1)]
    path = register_query(client, sql, [field("v")], f"q{uuid4()}", parameters=parameters)
    for scale in scales:
        for amount in amounts:
            (row,) = parse_exact(client("GET", path, params={"n": str(scale), "x": str(amount)}))["value"]
            rounded = Decimal("1.23456").quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
            assert Decimal(str(row["v"])) == rounded * amount


VOLATILE = {
    "chance": ("SELECT random() AS v", "number"),
    "an id": ("SELECT uuid() AS v", "string"),
    "the time": ("SELECT now() AS v", "datetime"),
    "the time without parentheses": ("SELECT current_timestamp AS v", "datetime"),
    "a sample": ("SELECT range AS v FROM range(1000000) USING SAMPLE 1", "number"),
}


@pytest.mark.parametrize(("sql", "field_type"), VOLATILE.values(), ids=VOLATILE.keys())
def test_result_cache_skips_volatile_queries(
    client: RestClient, rest_context: RestContext, sql: str, field_type: str
) -> None:
    path = register_query(client, sql, [field("v", field_type)])
    texts = {client("GET", path).text for _ in range(3)}
    assert len(texts) > 1
    assert len(rest_context.query_executor._cache) == 0


def test_result_cache_entry_has_size_of_its_rows(client: RestClient, rest_context: RestContext) -> None:
    sql = "SELECT * FROM (VALUES (1, 'a'), (2, repeat('x', 500000 + $n))) t(i, s)"
    path = register_query(client, sql, [field("i"), field("s", "string")], parameters=[field("n", default=0)])
    for n in range(3):
        assert column_values(client("GET", f"{path}?n={n}&$top=1"), "s") == ["a"]
    assert len(rest_context.query_executor._cache) == 3
    assert rest_context.query_executor._cache._bytes < 20_000


def test_result_memory_is_released_after_send_or_disconnect(rest_context: RestContext, client: RestClient) -> None:
    path = register_query(client, "SELECT range AS id FROM range(1000000)", [field("id")])
    budget = rest_context.workspace.memory
    rest_context.query_executor._cache = BoundedCache(0)
    used_bytes = list[int]()

    async def recording_app(scope: Scope, receive: Receive, send: Send) -> None:
        async def record(message: Message) -> None:
            used_bytes.append(budget.used_bytes)
            if disconnects and len(used_bytes) == 3:
                raise ClientDisconnect
            await send(message)

        await app(scope, receive, record)

    app = create_app(rest_context)
    gc.disable()  # memory must be released without garbage collection
    try:
        for disconnects in (False, True):
            used_bytes.clear()
            sending_client = in_process_client(recording_app, token())  # type: ignore[arg-type]
            if disconnects:
                with pytest.raises(AssertionError):
                    sending_client("GET", f"{path}?$filter=id ge 0", headers=ARROW)
            else:
                assert read_arrow(sending_client("GET", path, headers=ARROW)).num_rows == 1_000_000
            assert used_bytes[2] > 0
            assert budget.used_bytes == 0
    finally:
        gc.enable()


def test_cached_result_holds_no_request_memory(client: RestClient, rest_context: RestContext) -> None:
    path = register_query(client, "SELECT range AS n FROM range(1000)", [field("n")])
    first = column_values(client("GET", path), "n")
    gc.collect()
    assert len(rest_context.query_executor._cache) == 1
    assert rest_context.workspace.memory.used_bytes == 0
    assert column_values(client("GET", path), "n") == first


def test_result_larger_than_cache_is_returned(rest_context: RestContext, client: RestClient, token_lake: Lake) -> None:
    path = register_query(client)
    rest_context.query_executor._buffer = ResultBuffer(MemoryBudget(0))
    assert read_arrow(client("GET", path, headers=ARROW)).sort_by("id") == TX
    assert column_values(client("GET", path)) == [1, 2, 3, 4]


# -- large results


def test_run_query_row_larger_than_page_is_rejected(client: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_results, "DEFAULT_PAGE_BYTES", 10_000)
    fields = [field("i"), field("s", "string")]
    path = register_query(client, "SELECT i, repeat('x', 20000 * (i = 2)::INT) AS s FROM range(4) t(i)", fields)
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
    assert read_arrow(client("GET", path, headers=ARROW)).num_rows == 4
    preview = {"sql": "SELECT repeat('x', 20000) AS s"}
    assert client("POST", "/queries/preview", json=preview, code=400).json()["code"] == "QUERY_TOO_LARGE"
    large_preview = client(
        "POST", "/queries/preview", json={"sql": "SELECT repeat('x', 900) AS s FROM range(100)"}
    ).json()
    assert (len(large_preview["value"]) < 12, large_preview["more"]) == (True, True)


LARGE_RESULTS = {
    "a long value": "SELECT repeat(chr(1), 150000000) AS s",
    "a value of the maximum message size": "SELECT repeat('é', 30000000) AS s",
    "long rows": "SELECT repeat(chr(97 + (range % 20)::INT), 350000) AS s FROM range(1000)",
    "many small values": "SELECT list_transform(range(60000000), lambda x: x % 2 = 0) AS s",
}


def test_server_memory_stays_bounded_with_large_results(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--workspace", "lake", "--http-port", "0") as server:
        address = server.address()

        def client(method: str, path: str, *, code: int = 200, **options: Any) -> httpx.Response:
            response = httpx.request(method, address + path, timeout=100, **options)
            assert response.status_code in (200, code), response.text[:500]
            return response

        def peak() -> int:
            lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

        client("POST", "/queries/preview", json={"sql": "SELECT 1 AS n"})
        before = peak()
        for name, sql in LARGE_RESULTS.items():
            client("POST", "/queries/preview", json={"sql": sql}, code=400)
            if name != "many small values":
                path = register_query(client, sql, [field("s", "string")], name)  # type: ignore[arg-type]
                client("GET", path, code=400)
        assert peak() - before < 400 << 20


# -- versions


def test_run_query_paging_returns_each_row_once_during_writes(client: RestClient, token_lake: Lake) -> None:
    numbers = token_lake.create(
        "demo.numbers", pa.table({"id": list(range(0, 1000, 2)), "part": [n % 7 for n in range(500)]})
    )
    sql = "SELECT id, part FROM demo.numbers WHERE part >= $min_amount"
    path = register_query(client, sql, [field("id"), field("part")], parameters=[field("min_amount")])
    ids = list[int]()
    for page_number, page in enumerate(pages(client, f"{path}?min_amount=1&$orderby=part desc&$filter=id lt 900", 60)):
        assert page.json()["@penstock.versions"] == {"demo.numbers": 1}
        ids += column_values(page)
        numbers.append(pa.table({"id": [2 * page_number + 1], "part": [6]}))  # the new row belongs to an earlier page
    expected = [(n % 7, 2 * n) for n in range(450) if n % 7]
    assert ids == [id for part, id in sorted(expected, key=lambda row: (-row[0], row[1]))]


QUERY_ORDERS = {
    "ORDER BY part DESC": lambda row: (-row["part"], row["id"]),
    "ORDER BY part DESC LIMIT 700": lambda row: (-row["part"], row["id"]),
    "ORDER BY id % 10, part": lambda row: (row["id"] % 10, row["part"], row["id"]),
    "ORDER BY ALL DESC": lambda row: (-row["id"], -row["part"]),
    "": lambda row: (row["id"], row["part"]),
}


@pytest.mark.parametrize("order", QUERY_ORDERS)
def test_run_query_without_orderby_keeps_the_order_of_the_query(
    client: RestClient, token_lake: Lake, order: str
) -> None:
    rows = [{"id": id * 7919 % 1000, "part": id % 3} for id in range(1000)]
    token_lake.create("demo.numbers", pa.Table.from_pylist(rows))
    path = register_query(client, f"SELECT id, part FROM demo.numbers {order}", [field("id"), field("part")])
    expected = sorted(rows, key=QUERY_ORDERS[order])[: 700 if "LIMIT" in order else 1000]
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
def test_run_query_own_order_of_any_select_is_made_total(client: RestClient, sql: str) -> None:
    members = {"parameters": [{"name": "two", "type": "number", "default": 2}]} if "$two" in sql else {}
    path = register_query(client, sql.replace("id % 2", "(id % 2)"), [field("id")], **members)
    assert column_values(client("GET", path)) == [1, 3, 5, 7, 0, 2, 4, 6, 8]


def test_next_link_contains_options_and_read_versions(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client, f"{SQL} WHERE region = $region", parameters=[field("region", "string")])
    token_lake.create("a.b", TX)
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
    assert column_values(last) == [3]
    assert "@odata.nextLink" not in last.json()


def test_pinned_versions_reproduce_result_and_newest_is_current(client: RestClient, token_lake: Lake) -> None:
    path = register_query(
        client, "SELECT count(*) AS n, sum(amount) AS total FROM finance.tx", [field("n"), field("total")]
    )
    texts = [client("GET", path).text]
    for turn in range(3):
        token_lake.dataset("finance.tx").append(TX)
        newest = client("GET", path)
        assert newest.json()["@penstock.versions"] == {"finance.tx": turn + 2}
        assert column_values(newest, "n") == [4 * (turn + 2)]
        assert client("GET", path).text == newest.text
        texts.append(newest.text)
    for number, text in enumerate(texts, 1):
        assert client("GET", f"{path}?versions=FINANCE.tx:{number}").text == text
        pinned = client("GET", f"{path}?versions=finance.tx:{number}", headers=ARROW)
        assert read_arrow(pinned).column("n").to_pylist() == [4 * number]
        assert pinned.headers["x-penstock-versions"] == f"finance.tx:{number}"


INVALID_PINS: dict[str, tuple[str, int, str]] = {
    "finance.tx": ("the version is missing", 400, "BAD_PARAMETER"),
    "finance.tx:": ("the version is missing", 400, "BAD_PARAMETER"),
    "finance.tx:-1": ("invalid version", 400, "BAD_PARAMETER"),
    "finance.tx:newest": ("invalid version", 400, "BAD_PARAMETER"),
    "": ("empty", 400, "BAD_PARAMETER"),
    "tx:1": ("invalid dataset name", 400, "BAD_DATASET_NAME"),
    "finance.tx:1,finance.TX:1": ("duplicate", 400, "DUPLICATE_PARAMETER"),
    "finance.budget:1": ("dataset is not read", 400, "UNREAD_DATASET"),
    "finance.tx:0": ("version 0 never exists", 404, "VERSION_NOT_FOUND"),
    "finance.tx:2": ("version does not exist yet", 404, "VERSION_NOT_FOUND"),
}


@pytest.mark.parametrize("pin", INVALID_PINS)
def test_run_query_with_bad_versions_is_rejected(client: RestClient, token_lake: Lake, pin: str) -> None:
    token_lake.create("finance.budget", TX)
    _, status, code = INVALID_PINS[pin]
    response = client("GET", register_query(client), params={"versions": pin}, code=status)
    assert response.json()["code"] == code


def test_query_can_compare_version_with_newest(client: RestClient, token_lake: Lake) -> None:
    sql = """SELECT n.id, o.id IS NULL AS is_new
        FROM finance.tx AS n LEFT JOIN finance.tx AS o AT (VERSION => 1) ON n.id = o.id"""
    path = register_query(client, sql, [field("id"), field("is_new", "boolean")])
    token_lake.dataset("finance.tx").append(TX.slice(0, 2).set_column(0, "id", pa.array([8, 9], pa.int64())))
    result_pages = list(pages(client, f"{path}?$filter=is_new eq true or id gt 1", 4))
    assert [page.json()["@penstock.versions"] for page in result_pages] == [{"finance.tx": 2}] * 2
    assert [id for page in result_pages for id in column_values(page)] == [2, 3, 4, 8, 9]
    assert column_values(client("GET", f"{path}?versions=finance.tx:1")) == [1, 2, 3, 4]
    fixed = register_query(client, "SELECT id FROM finance.tx AS t AT (VERSION => 1)", [field("id")], "fixed")
    assert column_values(client("GET", f"{fixed}?versions=finance.tx:1")) == [1, 2, 3, 4]
    assert client("GET", f"{fixed}?versions=finance.tx:2", code=400).json()["code"] == "IMMUTABLE_VERSION"


def test_run_query_reads_all_datasets_at_one_commit(client: RestClient, token_lake: Lake, soak: bool) -> None:
    def account(balance: int) -> pa.Table:
        return pa.table({"id": [1], "amount": [balance]})

    left, right = token_lake.create("bank.left", account(600)), token_lake.create("bank.right", account(400))
    sql = "SELECT l.amount AS l, r.amount AS r FROM bank.left AS l JOIN bank.right AS r USING (id)"
    path = register_query(client, sql, [field("l"), field("r")])
    stop, transfers = threading.Event(), list[int]()

    def transfer() -> None:
        while not stop.is_set():
            amount = len(transfers) % 600
            with token_lake.transaction() as tx:
                tx.overwrite(left, account(600 - amount))
                tx.overwrite(right, account(400 + amount))
            transfers.append(amount)

    writer = threading.Thread(target=transfer)
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


def test_run_query_with_dropped_dataset_returns_404(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client)
    client("GET", path)
    token_lake.dataset("finance.tx").drop(force=True)
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
INVALID_PARAMETER_VALUES: dict[str, list[str]] = {
    "number": ["", "twelve", "NaN", "0x10", "1_000", "1" * 40],
    "boolean": ["", "1", "True", "yes"],
    "date": ["", "2026-02-30", "31.01.2026", "2026-01-31T00:00:00Z"],
    "datetime": ["", "2026-01-31", "10:00"],
    "string": ["a\0b"],
}


@pytest.mark.parametrize("field_type", PARAMETER_VALUES)
def test_run_query_accepts_parameters_of_every_type(client: RestClient, field_type: str) -> None:
    path = register_query(
        client, "SELECT $Given AS given", [field("given", field_type)], parameters=[field("given", field_type)]
    )
    for text, parsed in PARAMETER_VALUES[field_type]:
        response = client("GET", path, params={"given": text})
        assert parse_exact(response)["value"] == [{"given": parsed}]
    for text in INVALID_PARAMETER_VALUES[field_type]:
        problem = client("GET", path, params={"given": text}, code=400).json()
        assert (problem["code"], problem["errors"][0]["pointer"]) == ("BAD_PARAMETERS", "/given")
    assert client("GET", path, code=400).json()["errors"][0]["code"] == "missing_parameter"


BAD_QUERY_STRINGS: dict[str, str] = {
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


@pytest.mark.parametrize("parameters", BAD_QUERY_STRINGS)
def test_run_query_with_bad_parameters_is_rejected(client: RestClient, parameters: str) -> None:
    path = register_query(client, "SELECT $given AS given", [field("given")], parameters=[field("given")])
    assert client("GET", f"{path}?{parameters}", code=400).json()["code"] == BAD_QUERY_STRINGS[parameters]


def test_run_query_missing_parameter_has_default_or_null(client: RestClient, token_lake: Lake) -> None:
    declared = [field("region", "string", default="EMEA"), field("min_amount", required=False)]
    sql = f"{SQL} WHERE region = $region AND ($min_amount IS NULL OR amount >= $min_amount)"
    path = register_query(client, sql, parameters=declared)
    assert column_values(client("GET", path)) == [1, 3]
    assert column_values(client("GET", f"{path}?min_amount=3")) == [1]
    assert column_values(client("GET", f"{path}?region=APAC")) == [2]


# -- preview of unregistered SQL


def test_preview_returns_first_thousand_rows_and_types(client: RestClient, token_lake: Lake) -> None:
    body = {"sql": f"{SQL} WHERE amount > $Min_Amount ORDER BY id", "parameters": {"min_amount": 2}}
    assert parse_exact(client("POST", "/queries/preview", json=body)) == {
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


SQL_VALUES: dict[str, tuple[str, Any]] = {
    "NaN": ("'nan'::DOUBLE", None),
    "null": ("NULL", None),
    "a time": ("TIME '10:00:00'", "10:00:00"),
    "bytes": ("'ab'::BLOB", "YWI="),
    "a struct": ("{'a': 1, 'b': [TIMESTAMP '2026-01-01 00:00:00']}", {"a": 1, "b": ["2026-01-01T00:00:00"]}),
    "an enum": ("'x'::ENUM('x', 'y')", "x"),
    "a large integer": ("170141183460469231731687303715884105::HUGEINT", 170141183460469231731687303715884105),
}


def test_preview_encodes_every_sql_type(client: RestClient) -> None:
    columns = ", ".join(f'{sql} AS "{name}"' for name, (sql, _) in SQL_VALUES.items())
    (row,) = client("POST", "/queries/preview", json={"sql": f"SELECT {columns}"}).json()["value"]
    assert row == {name: encoded for name, (_, encoded) in SQL_VALUES.items()}
    more_columns = (
        "INTERVAL 1 DAY AS i, MAP {'a': 1} AS m, DATE 'infinity' AS d, TIMESTAMP '-infinity' AS t, 1 AS x, 2 AS x"
    )
    (row,) = client("POST", "/queries/preview", json={"sql": f"SELECT {more_columns}"}).json()["value"]
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


@pytest.mark.parametrize(("body", "code"), PREVIEWS, ids=lambda value: str(value)[:60])
def test_preview_rejects_everything_but_a_safe_select(client: RestClient, body: Any, code: str) -> None:
    response = client("POST", "/queries/preview", json=body, code=400)
    assert response.json()["code"] == code
    assert "canary" not in response.text


@pytest.fixture
def limited_client(rest_context: RestContext) -> Iterator[RestClient]:
    """Return a client of a service with low query limits."""
    limits = QueryLimits(cpu_seconds=1, rows=5_000, bytes=50_000, memory_bytes=256 << 20)
    executor = QueryExecutor(rest_context.workspace, Sandbox(rest_context.workspace.data, limits))
    limited_context = RestContext.create(
        rest_context.workspace, rest_context.tokens, run_worker=rest_context.run_worker, query_executor=executor
    )
    yield in_process_client(create_app(limited_context), token())
    executor.close()


ENDLESS_SQL = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n % 7 FROM t) SELECT count(*) AS n FROM t"
MEMORY_SQL = "SELECT len(list(repeat('x' || range, 1000000))) AS n FROM range(100000)"
EXCESSIVE_QUERIES: dict[str, tuple[str, str, str]] = {
    "rows": ("SELECT range AS n FROM range(5001)", "QUERY_TOO_LARGE", "exceeds 5,000 rows"),
    "bytes": ("SELECT 1000000::DECIMAL(38) AS n FROM range(5000)", "QUERY_TOO_LARGE", "exceeds 50,000 bytes"),
    "time": (ENDLESS_SQL, "QUERY_TIMED_OUT", "more than 1 seconds of CPU time"),
    "memory": (MEMORY_SQL, "QUERY_OUT_OF_MEMORY", "more than 256 MiB of memory"),
}


@pytest.mark.parametrize(("sql", "code", "words"), EXCESSIVE_QUERIES.values(), ids=EXCESSIVE_QUERIES.keys())
def test_query_above_resource_limit_is_stopped(limited_client: RestClient, sql: str, code: str, words: str) -> None:
    path = register_query(limited_client, sql, [field("n")])
    problem = limited_client("GET", path, headers=ARROW, code=400).json()
    assert problem["code"] == code
    assert words in problem["detail"]
    assert limited_client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}).json()["value"] == [{"one": 1}]


def test_query_without_free_slot_returns_retry_after(rest_context: RestContext) -> None:
    sandbox = Sandbox(rest_context.workspace.data, max_running=1, max_waiting=0)
    limited_context = RestContext.create(
        rest_context.workspace,
        rest_context.tokens,
        run_worker=rest_context.run_worker,
        query_executor=QueryExecutor(rest_context.workspace, sandbox),
    )
    client = in_process_client(create_app(limited_context), token())
    with sandbox.process():
        response = client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}, code=503)
        assert (response.json()["code"], response.headers["retry-after"]) == ("SERVER_BUSY", "1")
    client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"})
    sandbox.close()


def test_run_query_with_duplicate_parameter_is_rejected(client: RestClient) -> None:
    body = {"sql": "SELECT $a AS a", "parameters": {"a": 1, "A": 2}}
    for path in ("/queries/preview", "/gts/infer"):
        assert client("POST", path, json=body, code=400).json()["code"] == "DUPLICATE_PARAMETER"


PARAMETER_TYPE_CASES: dict[str, tuple[str, str, str, str]] = {
    "a month": ("date_trunc('month', $x)", "datetime", "datetime", "2026-01-05T00:00:00Z"),
    "the month of a day": ("date_trunc('month', $x)::DATE", "date", "date", "2026-01-05"),
    "a year": ("year($x)", "date", "number", "2026-01-05"),
    "a quantile": ("(SELECT quantile_cont(amount, $x) FROM finance.tx)", "number", "number", "0.5"),
    "a format": ("strptime('2026-01-01', $x)", "string", "datetime", "%Y-%m-%d"),
    "a day later": ("$x + 1", "date", "date", "2026-01-05"),
    "a magnitude": ("abs($x)", "number", "number", "-1.5"),
}


@pytest.mark.parametrize(
    ("sql", "field_type", "returned", "value"), PARAMETER_TYPE_CASES.values(), ids=PARAMETER_TYPE_CASES.keys()
)
def test_create_query_is_accepted_if_some_parameter_value_is_valid(
    client: RestClient, token_lake: Lake, sql: str, field_type: str, returned: str, value: str
) -> None:
    path = register_query(client, f"SELECT {sql} AS v", [field("v", returned)], parameters=[field("x", field_type)])
    assert len(client("GET", path, params={"x": value}).json()["value"]) == 1


def test_create_query_invalid_for_all_parameter_values_is_rejected(client: RestClient) -> None:
    for name, sql, words in (
        ("a", "SELECT $x || 'a' AS v", "Type mismatch for field v"),
        ("b", "SELECT $x AS w", "Missing required field: v"),
        ("c", "SELECT 1 AS V, $x AS w", "the result has V; names are case-sensitive"),
        ("d", "SELECT nothing AS v, $x AS w", '"nothing" was not found'),
    ):
        schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [field("v")]}
        returns = client("POST", "/gts", json=schema, code=201).json()["id"]
        body = {"name": name, "sql": sql, "returns_schema_id": returns, "parameters": [field("x", "string")]}
        assert words in client("POST", "/queries", json=body, code=400).json()["detail"]


def test_infer_schema_uses_parameter_values(client: RestClient) -> None:
    body = {
        "sql": "SELECT $x AS x, date_trunc('month', $day::DATE) AS month",
        "parameters": {"X": 1.5, "day": "2026-01-05"},
    }
    inferred = client("POST", "/gts/infer", json=body).json()["fields"]
    assert [(field["name"], field["type"]) for field in inferred] == [("x", "number"), ("month", "datetime")]
    for parameters, code in (({"y": 1}, "UNKNOWN_PARAMETER"), ([1], "BAD_PAYLOAD"), ({"x": [1]}, "BAD_PAYLOAD")):
        assert client("POST", "/gts/infer", json={**body, "parameters": parameters}, code=400).json()["code"] == code


def test_filter_by_declared_but_missing_field_is_schema_mismatch(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client, "SELECT * FROM finance.tx", [field("id"), field("amount")])
    token_lake.dataset("finance.tx").drop(force=True)
    token_lake.create("finance.tx", pa.table({"id": [1, 2]}))
    for options in ("", "?$filter=amount gt 1", "?$filter=amount ne 1", "?$orderby=amount", "?$filter=amount eq null"):
        problem = client("GET", path + options, code=500).json()
        assert (problem["code"], problem["errors"][0]["message"]) == (
            "SCHEMA_MISMATCH",
            "Missing required field: amount",
        )
    assert client("GET", f"{path}?$top=0").json()["value"] == []  # no row is validated


def test_run_query_counts_rows_without_declared_fields(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client, "SELECT id FROM finance.tx", [field("id"), field("note", "string", optional=True)])
    rows = read_arrow(client("GET", f"{path}?$select=note", headers=ARROW))
    assert (rows.schema.names, rows.num_rows) == ([], 4)
    problem = client("GET", f"{path}?$select=note", headers=PARQUET, code=400).json()
    assert problem["code"] == "NOT_IN_FORMAT"


def audit_details(lake: Lake, action: str) -> list[dict[str, Any]]:
    with sqlite3.connect(lake._folder.catalog) as catalog:
        rows = catalog.execute("SELECT detail FROM audit WHERE action = ? ORDER BY at", [action]).fetchall()
    catalog.close()
    return [json.loads(detail) for (detail,) in rows]


def test_previews_and_inferences_are_audited_without_sql(
    client: RestClient, token_lake: Lake, rest_context: RestContext
) -> None:
    heartbeats = list[float]()
    rest_context.query_executor.on_query(heartbeats.append)
    good, bad = {"sql": SQL}, {"sql": f"{SQL} WHERE word = 'canary'"}
    for path in ("/queries/preview", "/gts/infer"):
        client("POST", path, json=good)
        client("POST", path, json=bad, code=400)
        client("POST", path, json={"sql": "COPY x TO 'canary'"}, code=400)
    previews, proposals = audit_details(token_lake, "query.preview"), audit_details(token_lake, "query.infer")
    assert [records.get("rows") for records in previews] == [4, None, None]
    for records in (previews, proposals):
        assert [record.get("refusal") for record in records] == [None, "query_failed", "not_one_select"]
        assert [record.get("datasets") for record in records] == [{"finance.tx": 1}] * 2 + [None]
        assert records[0]["sql"] == hashlib.sha256(SQL.encode()).hexdigest()
        assert "canary" not in str(records)
    assert len(heartbeats) == 6


def test_query_that_fails_unexpectedly_is_audited(
    token_lake: Lake, rest_context: RestContext, client: RestClient, monkeypatch: Any
) -> None:
    path = register_query(client)
    query = rest_context.query_executor.load(token_lake.caller, path.split("/")[2])
    request = QueryRequest(odata.options([], {}, default_top=9, max_top=9), {}, {})

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(result_schema.ColumnChecker, "add", fail)
    with pytest.raises(ZeroDivisionError):
        rest_context.query_executor.run(token_lake.caller, query, request)
    (facts,) = audit_details(token_lake, "query.run")
    assert (facts["refusal"], facts["datasets"]) == ("unexpected", {"finance.tx": 1})


def test_query_runs_are_audited_with_user_and_outcome(client: RestClient, token_lake: Lake) -> None:
    path = register_query(client, fields=[field("id"), field("region", "string")])
    client("GET", f"{path}?$select=id")
    client("GET", path, code=500)
    with sqlite3.connect(token_lake._folder.catalog) as catalog:
        rows = catalog.execute("SELECT author, detail FROM audit WHERE action = 'query.run' ORDER BY at").fetchall()
    catalog.close()
    details = [json.loads(detail) for _, detail in rows]
    assert {author for author, _ in rows} == {"ada"}
    assert [detail.get("rows", detail.get("refusal")) for detail in details] == [4, "schema_mismatch"]
    assert all(detail["datasets"] == {"finance.tx": 1} for detail in details)
