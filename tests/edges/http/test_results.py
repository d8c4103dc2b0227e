"""What a query answers over REST fits its schema to the last row, or it is not answered."""

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

from conftest import SOAK
from edges.http.client import TENANT, Client, near, token
from edges.http.test_serve import served
from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core import odata
from penstock.core.caller import Caller, Role
from penstock.rest.requests import media_types as media
from penstock.rest.routes import query_results as results
from penstock.rest.app import application
from penstock.rest.context import Edge
from penstock.lake import Lake
from penstock.service.queries.result_cache import Cache
from penstock.service.queries.result_buffer import Room
from penstock.service.queries.execution import Asked, Results
from penstock.service.queries.sandbox import Limits, Sandbox

ARROW, PARQUET = {"accept": media.ARROW}, {"accept": media.PARQUET}
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
    """What the tokens' tenant has."""
    lake = Lake(local.workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local.home)
    lake.create("finance.tx", TX)
    return lake


def registered(client: Client, sql: str = SQL, fields: Any = FIELDS, name: str = "q", **members: Any) -> str:
    """The address of its results."""
    schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}
    returns = client("POST", "/gts", json=schema, code=201).json()["id"]
    sent = {"name": name, "sql": sql, "returns_schema_id": returns, **members}
    return f"/queries/{client('POST', '/queries', json=sent, code=201).json()['id']}/results"


def field(name: str, kind: str = "number", **members: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **members}


def exact(answer: httpx.Response) -> Any:
    """With every digit of its numbers."""
    return json.loads(answer.text, parse_float=Decimal)


def column(answer: httpx.Response, name: str = "id") -> list[Any]:
    return [row[name] for row in answer.json()["value"]]


def table(answer: httpx.Response) -> pa.Table:
    return pa.ipc.open_stream(answer.content).read_all()


def pages(client: Client, path: str | None) -> Iterator[httpx.Response]:
    while path:
        yield (page := client("GET", path))
        path = page.json().get("@odata.nextLink")


# -- rows that fit


def test_validation_success(client: Client, mine: Lake) -> None:
    """fdd-analytics-feature-schema-query-returns-test-validation-success"""
    path = registered(client)
    answer = client("GET", path)
    assert exact(answer) == {
        "@odata.context": f"$metadata#{path.strip('/')}",
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


def test_all_rows_come_as_arrow_or_parquet(client: Client, mine: Lake) -> None:
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


@pytest.mark.parametrize("asked", OPTIONS)
def test_options_say_which_rows(client: Client, mine: Lake, asked: str) -> None:
    assert column(client("GET", f"{registered(client)}?{asked}")) == OPTIONS[asked]


def test_a_page_says_how_many_rows_there_are(client: Client, mine: Lake) -> None:
    page = client("GET", f"{registered(client)}?$filter=amount gt 0&$top=1&$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (3, 1)


def test_a_page_has_100_rows_unless_asked_and_10_000_at_most(client: Client) -> None:
    path = registered(client, "SELECT range AS id FROM range(20000)", [field("id")])
    assert column(client("GET", path)) == list(range(100))
    assert column(client("GET", f"{path}?$top=19999")) == list(range(10_000))
    assert client("GET", path).json()["@penstock.versions"] == {}


def test_a_page_of_large_rows_is_shorter(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PAGE_BYTES", 10_000)
    path = registered(
        client, "SELECT range AS id, repeat('x', 3000) AS text FROM range(8)", [field("id"), field("text", "string")]
    )
    found = [column(page) for page in pages(client, path)]
    assert max(map(len, found)) < 4
    assert [id for ids in found for id in ids] == list(range(8))


def test_numbers_are_exact(client: Client, mine: Lake) -> None:
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


@pytest.mark.parametrize(("sql", "kind", "told"), MOMENTS.values(), ids=MOMENTS.keys())
def test_dates_and_instants_are_told_as_their_fields_promise(client: Client, sql: str, kind: str, told: str) -> None:
    fields = [field("one", kind), field("many", kind, array=True), field("none", kind, optional=True)]
    path = registered(client, f"SELECT {sql} AS one, [{sql}, {sql}] AS many, NULL AS none", fields)
    answer = client("GET", path)
    assert answer.json()["value"] == [{"one": told, "many": [told, told], "none": None}]
    assert contract.check_rows(contract.fields(fields), answer.json()["value"], strict=True).valid


def test_arrays_of_every_scalar_are_told(client: Client) -> None:
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


def test_arrays_of_naive_instants_keep_their_places_on_a_later_page(client: Client) -> None:
    sql = """SELECT range AS id, CASE WHEN range % 3 = 0 THEN NULL ELSE
        list_transform(range(range % 3), lambda x: TIMESTAMP '2026-01-01' + to_seconds(range * 10 + x)) END AS at FROM range(9)"""
    path = registered(client, sql, [field("id"), field("at", "datetime", array=True, optional=True)])
    rows = [row for page in pages(client, f"{path}?$top=4") for row in page.json()["value"]]
    assert [row["at"] for row in rows] == [
        None
        if id % 3 == 0
        else [f"2026-01-01T00:{(id * 10 + x) // 60:02}:{(id * 10 + x) % 60:02}Z" for x in range(id % 3)]
        for id in range(9)
    ]


def test_optional_fields_may_be_null_or_missing_and_others_are_left_out(client: Client, mine: Lake) -> None:
    fields = [field("id"), field("note", "string", optional=True), field("size", optional=True)]
    path = registered(client, "SELECT id, NULL AS note, region AS extra FROM finance.tx", fields)
    assert client("GET", f"{path}?$top=1").json()["value"] == [{"id": 1, "note": None}]
    assert client("GET", f"{path}?$top=2&$select=size").json()["value"] == [{}, {}]
    assert client("GET", f"{path}?$select=extra", code=400).json()["code"] == "UNKNOWN_FIELD"
    assert client("GET", f"{path}?$filter=size eq null&$count=true&$top=1").json()["@odata.count"] == 4


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_result_and_a_single_row_fit(client: Client, mine: Lake, count: int) -> None:
    path = registered(client, f"{SQL} WHERE id <= {count}")
    page = client("GET", f"{path}?$count=true").json()
    assert (page["@odata.count"], len(page["value"])) == (count, count)
    assert table(client("GET", path, headers=ARROW)).schema.names == ["id", "region", "amount"]
    assert table(client("GET", path, headers=ARROW)).num_rows == count


def test_a_million_rows_are_checked_and_come_as_arrow(client: Client) -> None:
    sql = "SELECT range AS id, 'row ' || range AS word, range / 4 AS part, DATE '2026-01-01' AS day FROM range(1000000)"
    fields = [field("id"), field("word", "string"), field("part"), field("day", "date")]
    rows = table(client("GET", registered(client, sql, fields), headers=ARROW))
    assert rows.num_rows == 1_000_000
    assert rows.column("id").to_numpy().sum() == 499_999_500_000
    assert rows.slice(999_999).to_pylist() == [
        {"id": 999_999, "word": "row 999999", "part": 249_999.75, "day": date(2026, 1, 1)}
    ]


def test_a_hundred_and_fifty_fields_are_checked_one_by_one(client: Client) -> None:
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
    mine.dataset("finance.tx").drop()
    mine.create("finance.tx", pa.table({"id": [1, 2], "amount": ["canary-17", "canary-18"]}))
    with caplog.at_level(logging.WARNING):
        answer = client("GET", path, code=500)
    told = answer.json()
    assert (told["error"], told["code"], told["error_count"]) == ("Schema mismatch", "SCHEMA_MISMATCH", 2)
    assert told["errors"] == [
        {
            "row": row,
            "field": "amount",
            "expected": "number",
            "actual": "string",
            "message": "Type mismatch for field amount",
        }
        for row in range(2)
    ]
    assert path == f"/queries/{told['query_id']}/results"
    assert client("GET", f"/gts/{told['schema_id']}").json()["version"] == told["schema_version"] == 1
    (line,) = caplog.messages
    assert line.startswith("schema_mismatch: the result of 'q' does not fit its schema: 2 errors")

    mine.dataset("finance.tx").drop()
    mine.create("finance.tx", pa.table({"amount": [1.5, 2.5]}))
    told = client("GET", path, code=500).json()
    assert [(each["row"], each["message"]) for each in told["errors"]] == [
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
def test_one_bad_value_anywhere_and_no_row_is_sent(
    client: Client, sql: str, promised: dict[str, Any], actual: str, accept: dict[str, str]
) -> None:
    path = registered(client, f"SELECT {sql.format(at='range = 9999')} AS x FROM range(10000)", [promised])
    answer = client("GET", f"{path}?{'' if accept else '$top=10000'}", headers=accept, code=500)
    (error,) = answer.json()["errors"]
    assert (error["field"], error["actual"]) == ("x", actual)


def test_errors_are_counted_in_full_and_a_hundred_are_described(client: Client) -> None:
    path = registered(client, "SELECT nullif(range % 2, 0) AS x FROM range(100000)", [field("x")])
    told = client("GET", path, headers=ARROW, code=500).json()
    assert (told["error_count"], len(told["errors"])) == (50_000, 100)


def test_a_mismatch_shows_no_value_of_a_row(client: Client, mine: Lake, caplog: pytest.LogCaptureFixture) -> None:
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
            shown = f"{answer.text} {answer.headers}"
            assert not [canary for canary in [*canaries, "canary-list", "4711"] if canary in shown]
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name != "httpx")
    assert "schema_mismatch" in logged
    assert not [canary for canary in [*canaries, "canary-list"] if canary in logged]


def test_select_checks_what_is_selected(client: Client, mine: Lake) -> None:
    fields = [field("id"), field("region", "string"), field("amount")]
    path = registered(client, fields=fields)
    assert client("GET", path, code=500).json()["error_count"] == 1
    assert column(client("GET", f"{path}?$select=amount,id")) == [1, 2, 3, 4]
    assert list(client("GET", f"{path}?$select=amount,id").json()["value"][0]) == ["amount", "id"]
    assert column(client("GET", f"{path}?$filter=region ne null")) == [1, 2, 3]
    client("GET", f"{path}?$select=region", code=500)


def test_a_schema_that_cannot_be_found_is_told_with_its_id(client: Client, mine: Lake) -> None:
    path = registered(client)
    returns = client("GET", path.removesuffix("/results")).json()["returns_schema_id"]
    with sqlite3.connect(mine.home.catalog) as catalog:  # no call of the service takes it away
        catalog.execute("UPDATE gts_schemas SET deleted_at = created_at")
    catalog.close()
    told = client("GET", path, code=500).json()
    assert (told["error"], told["code"], told["schema_id"]) == ("Schema not found", "SCHEMA_UNAVAILABLE", returns)


def test_checks_and_runs_are_counted_and_timed(client: Client, mine: Lake) -> None:
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


# -- what is remembered

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


@pytest.mark.parametrize(("sql", "kind", "given"), DEPENDING.values(), ids=DEPENDING.keys())
def test_an_answer_is_right_whatever_was_asked_before(client: Client, sql: str, kind: str, given: list[Any]) -> None:
    path = registered(client, sql, [field("v")], parameters=[field("n", kind, default=given[0])])
    with duckdb.connect() as db:
        for value in [*given, *reversed(given)]:
            told = db.sql(f"SELECT * FROM ({sql}) ORDER BY ALL", params={"n": value}).to_arrow_table().column("v")
            got = exact(client("GET", path, params={"n": str(value)}))["value"]
            assert [Decimal(str(row["v"])) for row in got] == [Decimal(str(each)) for each in told.to_pylist()], value


@settings(max_examples=200 if SOAK else 12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=4), st.lists(st.decimals(-9, 9, places=2), min_size=2, max_size=3)
)
def test_scales_and_values_never_mix(client: Client, scales: list[int], amounts: list[Decimal]) -> None:
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
def test_what_changes_by_itself_is_asked_anew(client: Client, edge: Edge, sql: str, kind: str) -> None:
    path = registered(client, sql, [field("v", kind)])
    answers = {client("GET", path).text for _ in range(3)}
    assert len(answers) > 1
    assert len(edge.results._cache) == 0


def test_an_answer_that_is_kept_takes_no_more_than_it_shows(client: Client, edge: Edge) -> None:
    sql = "SELECT * FROM (VALUES (1, 'a'), (2, repeat('x', 500000 + $n))) t(i, s)"
    path = registered(client, sql, [field("i"), field("s", "string")], parameters=[field("n", default=0)])
    for n in range(3):
        assert column(client("GET", f"{path}?n={n}&$top=1"), "s") == ["a"]
    assert len(edge.results._cache) == 3
    assert edge.results._cache._held < 20_000


def test_memory_is_counted_until_the_rows_are_sent_or_nobody_takes_them(edge: Edge, client: Client) -> None:
    path, room = registered(client, "SELECT range AS id FROM range(1000000)", [field("id")]), edge.results._room
    edge.results._cache = Cache(0)
    before, seen = room.left, list[int]()

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch(message: Message) -> None:
            seen.append(room.left)
            if cut and len(seen) == 3:
                raise ClientDisconnect
            await send(message)

        await app(scope, receive, watch)

    app = application(edge)
    gc.disable()  # the memory must not wait for it
    try:
        for cut in (False, True):
            seen.clear()
            ask = near(watched, token())  # type: ignore[arg-type]
            if cut:
                with pytest.raises(AssertionError):
                    ask("GET", f"{path}?$filter=id ge 0", headers=ARROW)
            else:
                assert table(ask("GET", path, headers=ARROW)).num_rows == 1_000_000
            assert seen[2] < before
            assert room.left == before
    finally:
        gc.enable()


def test_an_answer_for_which_there_is_no_room_comes_all_the_same(edge: Edge, client: Client, mine: Lake) -> None:
    path = registered(client)
    edge.results._room = Room(0)
    assert table(client("GET", path, headers=ARROW)).sort_by("id") == TX
    assert column(client("GET", path)) == [1, 2, 3, 4]


# -- answers that are large


def test_a_row_that_no_page_can_hold_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PAGE_BYTES", 10_000)
    fields = [field("i"), field("s", "string")]
    path = registered(client, "SELECT i, repeat('x', 20000 * (i = 2)::INT) AS s FROM range(4) t(i)", fields)
    first = client("GET", f"{path}?$count=true").json()
    assert ([row["i"] for row in first["value"]], first["@odata.count"]) == ([0, 1], 4)
    told = client("GET", first["@odata.nextLink"], code=400).json()
    assert (told["code"], "fewer fields" in told["detail"]) == ("QUERY_TOO_LARGE", True)
    assert [row["i"] for page in pages(client, f"{path}?$select=i&$top=2") for row in page.json()["value"]] == [
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


def test_a_served_process_stays_small_whatever_its_queries_answer(tmp_path: Path) -> None:
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


def test_paging_gives_every_row_once_while_others_write(client: Client, mine: Lake) -> None:
    numbers = mine.create(
        "demo.numbers", pa.table({"id": list(range(0, 1000, 2)), "part": [n % 7 for n in range(500)]})
    )
    sql = "SELECT id, part FROM demo.numbers WHERE part >= $least"
    path = registered(client, sql, [field("id"), field("part")], parameters=[field("least")])
    seen = list[int]()
    for turn, page in enumerate(pages(client, f"{path}?least=1&$orderby=part desc&$top=60&$filter=id lt 900")):
        assert page.json()["@penstock.versions"] == {"demo.numbers": 1}
        seen += column(page)
        numbers.append(pa.table({"id": [2 * turn + 1], "part": [6]}))  # it would be on a page before
    kept = [(n % 7, 2 * n) for n in range(450) if n % 7]
    assert seen == [id for part, id in sorted(kept, key=lambda row: (-row[0], row[1]))]


def test_a_next_link_holds_all_that_was_asked_and_what_was_read(client: Client, mine: Lake) -> None:
    path = registered(client, f"{SQL} WHERE region = $region", parameters=[field("region", "string")])
    mine.create("a.b", TX)
    page = client("GET", path, params={"region": "EMEA", "$top": "1", "$filter": "amount gt 0 and id ne 9"}).json()
    link = urlsplit(page["@odata.nextLink"])
    assert link.path == path
    assert parse_qs(link.query) == {
        "region": ["EMEA"], "$top": ["1"], "$filter": ["amount gt 0 and id ne 9"], "versions": ["finance.tx:1"], "$skip": ["1"],
    }  # fmt: skip
    last = client("GET", page["@odata.nextLink"])
    assert column(last) == [3]
    assert "@odata.nextLink" not in last.json()


def test_pinned_versions_reproduce_an_answer_and_the_newest_is_never_stale(client: Client, mine: Lake) -> None:
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
    "finance.tx:1,finance.TX:1": ("twice", 400, "DOUBLED_PARAMETER"),
    "finance.budget:1": ("not read", 400, "UNREAD_DATASET"),
    "finance.tx:0": ("there is none", 404, "VERSION_NOT_FOUND"),
    "finance.tx:2": ("not yet", 404, "VERSION_NOT_FOUND"),
}


@pytest.mark.parametrize("pin", PINS)
def test_versions_that_cannot_be_read_are_refused(client: Client, mine: Lake, pin: str) -> None:
    mine.create("finance.budget", TX)
    _, status, code = PINS[pin]
    answer = client("GET", registered(client), params={"versions": pin}, code=status)
    assert answer.json()["code"] == code


def test_a_query_may_compare_a_version_with_the_newest(client: Client, mine: Lake) -> None:
    sql = """SELECT n.id, o.id IS NULL AS is_new
        FROM finance.tx AS n LEFT JOIN finance.tx AS o AT (VERSION => 1) ON n.id = o.id"""
    path = registered(client, sql, [field("id"), field("is_new", "boolean")])
    mine.dataset("finance.tx").append(TX.slice(0, 2).set_column(0, "id", pa.array([8, 9], pa.int64())))
    found = list(pages(client, f"{path}?$top=4&$filter=is_new eq true or id gt 1"))
    assert [page.json()["@penstock.versions"] for page in found] == [{"finance.tx": 2}] * 2
    assert [id for page in found for id in column(page)] == [2, 3, 4, 8, 9]
    assert column(client("GET", f"{path}?versions=finance.tx:1")) == [1, 2, 3, 4]
    fixed = registered(client, "SELECT id FROM finance.tx AS t AT (VERSION => 1)", [field("id")], "fixed")
    assert column(client("GET", f"{fixed}?versions=finance.tx:1")) == [1, 2, 3, 4]
    assert client("GET", f"{fixed}?versions=finance.tx:2", code=400).json()["code"] == "VERSION_IS_FIXED"


def test_two_datasets_are_always_read_at_one_moment(client: Client, mine: Lake, soak: bool) -> None:
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


def test_a_dropped_dataset_is_missed(client: Client, mine: Lake) -> None:
    path = registered(client)
    client("GET", path)
    mine.dataset("finance.tx").drop()
    for pin in ("", "?versions=finance.tx:1"):
        told = client("GET", path + pin, code=404).json()
        assert (told["code"], told["dataset"]) == ("DATASET_NOT_FOUND", "finance.tx")


# -- parameters

GIVEN: dict[str, list[tuple[str, Any]]] = {
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


@pytest.mark.parametrize("kind", GIVEN)
def test_a_parameter_of_every_type_comes_with_the_address(client: Client, kind: str) -> None:
    path = registered(client, "SELECT $Given AS given", [field("given", kind)], parameters=[field("given", kind)])
    for sent, told in GIVEN[kind]:
        answer = client("GET", path, params={"given": sent})
        assert exact(answer)["value"] == [{"given": told}]
    for sent in WRONG[kind]:
        refusal = client("GET", path, params={"given": sent}, code=400).json()
        assert (refusal["code"], refusal["errors"][0]["pointer"]) == ("BAD_PARAMETERS", "/given")
    assert client("GET", path, code=400).json()["errors"][0]["code"] == "missing_parameter"


ADDRESSES: dict[str, str] = {
    "given=1&given=2": "DOUBLED_PARAMETER",
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


@pytest.mark.parametrize("asked", ADDRESSES)
def test_an_address_that_makes_no_sense_is_refused(client: Client, asked: str) -> None:
    path = registered(client, "SELECT $given AS given", [field("given")], parameters=[field("given")])
    assert client("GET", f"{path}?{asked}", code=400).json()["code"] == ADDRESSES[asked]


def test_what_is_not_given_has_its_default_or_is_null(client: Client, mine: Lake) -> None:
    declared = [field("region", "string", default="EMEA"), field("least", required=False)]
    sql = f"{SQL} WHERE region = $region AND ($least IS NULL OR amount >= $least)"
    path = registered(client, sql, parameters=declared)
    assert column(client("GET", path)) == [1, 3]
    assert column(client("GET", f"{path}?least=3")) == [1]
    assert column(client("GET", f"{path}?region=APAC")) == [2]


# -- SQL that nobody has registered


def test_a_preview_shows_the_first_thousand_rows_and_their_types(client: Client, mine: Lake) -> None:
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
        told = client("POST", "/queries/preview", json={"sql": f"SELECT * FROM range({count})"}).json()
        assert (len(told["value"]), told["more"]) == (1000, count > 1000)


ODD: dict[str, tuple[str, Any]] = {
    "NaN": ("'nan'::DOUBLE", None),
    "null": ("NULL", None),
    "a time": ("TIME '10:00:00'", "10:00:00"),
    "bytes": ("'ab'::BLOB", "YWI="),
    "a struct": ("{'a': 1, 'b': [TIMESTAMP '2026-01-01 00:00:00']}", {"a": 1, "b": ["2026-01-01T00:00:00"]}),
    "an enum": ("'x'::ENUM('x', 'y')", "x"),
    "a large integer": ("170141183460469231731687303715884105::HUGEINT", 170141183460469231731687303715884105),
}


def test_a_preview_finds_words_for_whatever_sql_makes(client: Client) -> None:
    columns = ", ".join(f'{sql} AS "{name}"' for name, (sql, _) in ODD.items())
    (row,) = client("POST", "/queries/preview", json={"sql": f"SELECT {columns}"}).json()["value"]
    assert row == {name: told for name, (_, told) in ODD.items()}
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
def test_what_is_no_honest_select_is_refused(client: Client, sent: Any, code: str) -> None:
    told = client("POST", "/queries/preview", json=sent, code=400)
    assert told.json()["code"] == code
    assert "canary" not in told.text


@pytest.fixture
def tight(edge: Edge) -> Iterator[Client]:
    """A service that gives a query little of everything."""
    few = Limits(cpu_seconds=1, rows=5_000, bytes=50_000, memory=256 << 20)
    made = Results(edge.workspace, Sandbox(edge.workspace.data, few))
    narrow = Edge(edge.workspace, edge.tokens, runner=edge.runner, results=made)
    yield near(application(narrow), token())
    made.close()


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n % 7 FROM t) SELECT count(*) AS n FROM t"
LONG = "SELECT len(list(repeat('x' || range, 1000000))) AS n FROM range(100000)"
GREEDY: dict[str, tuple[str, str, str]] = {
    "rows": ("SELECT range AS n FROM range(5001)", "QUERY_TOO_LARGE", "more than 5,000 rows"),
    "bytes": ("SELECT 1000000::DECIMAL(38) AS n FROM range(5000)", "QUERY_TOO_LARGE", "more than 50,000 bytes"),
    "time": (ENDLESS, "QUERY_TIMED_OUT", "more than 1 seconds of CPU time"),
    "memory": (LONG, "QUERY_OUT_OF_MEMORY", "more than 256 MiB of memory"),
}


@pytest.mark.parametrize(("sql", "code", "words"), GREEDY.values(), ids=GREEDY.keys())
def test_a_query_that_takes_too_much_is_ended_and_told_its_limit(
    tight: Client, sql: str, code: str, words: str
) -> None:
    path = registered(tight, sql, [field("n")])
    told = tight("GET", path, headers=ARROW, code=400).json()
    assert told["code"] == code
    assert words in told["detail"]
    assert tight("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}).json()["value"] == [{"one": 1}]


def test_a_query_for_which_there_is_no_place_is_told_to_come_back(edge: Edge) -> None:
    sandbox = Sandbox(edge.workspace.data, at_once=1, waiting=0)
    full = Edge(edge.workspace, edge.tokens, runner=edge.runner, results=Results(edge.workspace, sandbox))
    client = near(application(full), token())
    with sandbox.cell():
        told = client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"}, code=503)
        assert (told.json()["code"], told.headers["retry-after"]) == ("QUERIES_BUSY", "1")
    client("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"})
    sandbox.close()


def test_two_values_for_one_parameter_are_refused(client: Client) -> None:
    sent = {"sql": "SELECT $a AS a", "parameters": {"a": 1, "A": 2}}
    for path in ("/queries/preview", "/gts/infer"):
        assert client("POST", path, json=sent, code=400).json()["code"] == "DOUBLED_PARAMETER"


DESCRIBED: dict[str, tuple[str, str, str, str]] = {
    "a month": ("date_trunc('month', $x)", "datetime", "datetime", "2026-01-05T00:00:00Z"),
    "the month of a day": ("date_trunc('month', $x)::DATE", "date", "date", "2026-01-05"),
    "a year": ("year($x)", "date", "number", "2026-01-05"),
    "a quantile": ("(SELECT quantile_cont(amount, $x) FROM finance.tx)", "number", "number", "0.5"),
    "a format": ("strptime('2026-01-01', $x)", "string", "datetime", "%Y-%m-%d"),
    "a day later": ("$x + 1", "date", "date", "2026-01-05"),
    "a magnitude": ("abs($x)", "number", "number", "-1.5"),
}


@pytest.mark.parametrize(("sql", "kind", "returned", "given"), DESCRIBED.values(), ids=DESCRIBED.keys())
def test_a_query_is_registered_if_some_value_of_its_parameters_makes_sense(
    client: Client, mine: Lake, sql: str, kind: str, returned: str, given: str
) -> None:
    path = registered(client, f"SELECT {sql} AS v", [field("v", returned)], parameters=[field("x", kind)])
    assert len(client("GET", path, params={"x": given}).json()["value"]) == 1


def test_what_no_value_can_mend_is_refused_with_its_first_field(client: Client) -> None:
    for name, sql, words in (
        ("a", "SELECT $x || 'a' AS v", "Type mismatch for field v"),
        ("b", "SELECT $x AS w", "Missing required field: v"),
        ("c", "SELECT 1 AS V, $x AS w", "the result has V; names are told apart by their case"),
        ("d", "SELECT nothing AS v, $x AS w", '"nothing" was not found'),
    ):
        schema = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [field("v")]}
        returns = client("POST", "/gts", json=schema, code=201).json()["id"]
        sent = {"name": name, "sql": sql, "returns_schema_id": returns, "parameters": [field("x", "string")]}
        assert words in client("POST", "/queries", json=sent, code=400).json()["detail"]


def test_a_schema_is_inferred_with_values_for_parameters(client: Client) -> None:
    sent = {
        "sql": "SELECT $x AS x, date_trunc('month', $day::DATE) AS month",
        "parameters": {"X": 1.5, "day": "2026-01-05"},
    }
    told = client("POST", "/gts/infer", json=sent).json()["fields"]
    assert [(each["name"], each["type"]) for each in told] == [("x", "number"), ("month", "datetime")]
    for wrong, code in (({"y": 1}, "UNKNOWN_PARAMETER"), ([1], "BAD_PAYLOAD"), ({"x": [1]}, "BAD_PAYLOAD")):
        assert client("POST", "/gts/infer", json={**sent, "parameters": wrong}, code=400).json()["code"] == code


def test_a_filter_by_a_promised_field_that_is_missing_breaks_the_promise(client: Client, mine: Lake) -> None:
    path = registered(client, "SELECT * FROM finance.tx", [field("id"), field("amount")])
    mine.dataset("finance.tx").drop()
    mine.create("finance.tx", pa.table({"id": [1, 2]}))
    for asked in ("", "?$filter=amount gt 1", "?$filter=amount ne 1", "?$orderby=amount", "?$filter=amount eq null"):
        told = client("GET", path + asked, code=500).json()
        assert (told["code"], told["errors"][0]["message"]) == ("SCHEMA_MISMATCH", "Missing required field: amount")
    assert client("GET", f"{path}?$top=0").json()["value"] == []  # no row, no promise


def test_rows_of_which_no_field_is_there_are_counted(client: Client, mine: Lake) -> None:
    path = registered(client, "SELECT id FROM finance.tx", [field("id"), field("note", "string", optional=True)])
    rows = table(client("GET", f"{path}?$select=note", headers=ARROW))
    assert (rows.schema.names, rows.num_rows) == ([], 4)
    told = client("GET", f"{path}?$select=note", headers=PARQUET, code=400).json()
    assert told["code"] == "NOT_IN_FORMAT"


def recorded(lake: Lake, action: str) -> list[dict[str, Any]]:
    with sqlite3.connect(lake.home.catalog) as catalog:
        rows = catalog.execute("SELECT detail FROM audit WHERE action = ? ORDER BY at", [action]).fetchall()
    catalog.close()
    return [json.loads(detail) for (detail,) in rows]


def test_previews_and_proposals_are_on_record_without_their_sql(client: Client, mine: Lake, edge: Edge) -> None:
    heard = list[float]()
    edge.results.hear_runs(heard.append)
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
    assert len(heard) == 6


def test_a_run_that_ends_in_a_bug_is_on_record(mine: Lake, edge: Edge, client: Client, monkeypatch: Any) -> None:
    path = registered(client)
    opened = edge.results.opened(mine.caller, path.split("/")[2])
    asked = Asked(odata.options([], {}, default_top=9, max_top=9), {}, {})

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(contract.Checker, "add", broken)
    with pytest.raises(ZeroDivisionError):
        edge.results.run(mine.caller, opened, asked)
    (facts,) = recorded(mine, "query.run")
    assert (facts["refusal"], facts["datasets"]) == ("unexpected", {"finance.tx": 1})


def test_who_ran_what_and_how_it_ended_is_on_record(client: Client, mine: Lake) -> None:
    path = registered(client, fields=[field("id"), field("region", "string")])
    client("GET", f"{path}?$select=id")
    client("GET", path, code=500)
    with sqlite3.connect(mine.home.catalog) as catalog:
        rows = catalog.execute("SELECT author, detail FROM audit WHERE action = 'query.run' ORDER BY at").fetchall()
    catalog.close()
    facts = [json.loads(detail) for _, detail in rows]
    assert {author for author, _ in rows} == {"ada"}
    assert [each.get("rows", each.get("refusal")) for each in facts] == [4, "schema_mismatch"]
    assert all(each["datasets"] == {"finance.tx": 1} for each in facts)
