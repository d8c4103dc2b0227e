"""Query pages: write, preview, chart, validate, save, change and run SQL."""

import csv
import io
import json
from decimal import Decimal
from typing import Any

import duckdb
import httpx
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Dialog, Page, expect

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.result_schema import FieldType
from penstock.errors import Invalid
from penstock.ui.data_table import SortOrder
from penstock.ui.queries import (
    dataset_browser,
    parameter_form,
    result_view,
    row_files,
    run_panel,
    save_form,
    sql_text,
    validation_report,
)
from ui.conftest import NARROW, WIDE, Visit

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
HOSTILE_NAME = '<img src=x onerror="window.hacked=1">{{7*7}}'  # without characters that query names cannot have
ORDERS = "id,region,amount\n1,EMEA,120.5\n2,APAC,80\n3,EMEA,9.5\n4,AMER,\n"
BY_REGION = (
    "SELECT region, sum(amount) AS total FROM shop.orders WHERE amount > $minimum GROUP BY region ORDER BY region"
)


# -- without a browser


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT $a, $B, $b, $A", ["a", "B"]),
        ("SELECT '$no', \"$no\", $$ $no $$, $t$ $no $t$, E'it\\'s $no', $yes", ["yes"]),
        ("SELECT 1 -- $no\n/* $no */ , $yes", ["yes"]),
        ("SELECT 'it''s $no' || $yes || '$not closed", ["yes"]),
        ("SELECT a$b, $1, $été", ["été"]),
    ],
)
def test_find_parameters_skips_literals_and_comments(text: str, names: list[str]) -> None:
    assert sql_text.find_parameters(text) == names


def test_reserved_words_match_duckdb() -> None:
    sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    keywords = duckdb.connect().execute(sql).fetchall()
    assert sorted(sql_text.RESERVED_WORDS.split("|")) == sorted(word for (word,) in keywords)


@pytest.mark.parametrize("name", ["plain", "Order", "a b", 'say "hi"', "1st", HOSTILE, "été"])
def test_quote_identifier_round_trips_through_duckdb(name: str) -> None:
    (column,) = duckdb.connect().execute(f"SELECT 1 AS {sql_text.quote_identifier(name)}").description or []
    assert column[0] == name


def test_describe_position_counts_lines_and_columns() -> None:
    assert sql_text.describe_position("SELEC 1", 0) == "line 1, column 1"
    assert sql_text.describe_position("SELECT 'é',\n  FRM x", 15) == "line 2, column 3"  # é is two bytes


def test_to_values_and_to_declarations_follow_types() -> None:
    entries = [
        parameter_form.ParameterEntry("n", FieldType.NUMBER, "12.5"),
        parameter_form.ParameterEntry("b", FieldType.BOOLEAN, "true"),
        parameter_form.ParameterEntry("d", FieldType.DATE, "", default="2026-01-31"),
        parameter_form.ParameterEntry("s", required=False),
    ]
    assert parameter_form.to_values(entries) == {"n": 12.5, "b": True, "d": "2026-01-31", "s": None}
    assert parameter_form.to_declarations(entries) == [
        {"name": "n", "type": "number", "required": True},
        {"name": "b", "type": "boolean", "required": True},
        {"name": "d", "type": "date", "default": "2026-01-31"},
        {"name": "s", "type": "string", "required": False},
    ]
    with pytest.raises(Invalid, match="A value is required") as raised:
        parameter_form.to_values(
            [
                parameter_form.ParameterEntry("a"),
                parameter_form.ParameterEntry("b", default="x"),
                parameter_form.ParameterEntry("c", required=False),
            ]
        )
    assert raised.value.context["errors"] == [{"pointer": "/a", "message": "A value is required"}]
    with pytest.raises(Invalid, match="Parameter n: expected a number"):
        parameter_form.to_values([parameter_form.ParameterEntry("n", FieldType.NUMBER, "twelve")])


def test_declared_parameters_round_trip_through_entries() -> None:
    declared = [
        {"name": "a", "type": "boolean", "required": False, "default": True},
        {"name": "b", "type": "number", "required": False},
    ]
    assert parameter_form.to_declarations(map(parameter_form.to_entry, declared)) == [
        {"name": "a", "type": "boolean", "default": True},
        {"name": "b", "type": "number", "required": False},
    ]


def test_default_axes_are_first_text_and_first_number() -> None:
    answer = {
        "columns": [
            {"name": "n", "type": "int64"},
            {"name": "word", "type": "string"},
            {"name": "m", "type": {"decimal": [5, 2]}},
        ],
        "value": [{"n": 1, "word": "a", "m": Decimal("1.50")}, {"n": 2, "word": None, "m": None}],
    }
    rows = result_view.from_preview(answer)
    assert result_view.default_axes(rows) == ("word", "n")
    assert result_view.chart_points(rows, "word", "m") == (["a", "∅"], [1.5, None])


def test_from_result_omits_optional_field_without_values() -> None:
    fields = [{"name": "a", "type": "string"}, {"name": "b", "type": "number"}]
    assert [column.name for column in result_view.from_result({"value": [{"a": "x"}]}, fields).columns] == ["a"]
    assert [column.name for column in result_view.from_result({"value": []}, fields).columns] == ["a", "b"]


def test_limit_rows_stops_at_max_bytes() -> None:
    rows: list[dict[str, Any]] = [{"x": Decimal("1.5"), "l": [Decimal("2.5")]}] * 5
    assert validation_report.limit_rows(rows) == [{"x": 1.5, "l": [2.5]}] * 5
    assert len(validation_report.limit_rows(rows, 60)) == 2


def test_build_results_url_separates_parameters_from_options() -> None:
    url = run_panel.build_results_url(
        "i", {"top": "a&b", "none": ""}, {"top": "5", "filter": "x eq 'ü'", "orderby": ""}
    )
    assert url == "/queries/i/results?top=a%26b&%24top=5&%24filter=x%20eq%20%27%C3%BC%27"
    assert run_panel.build_file_name('a "b"/c <d>', "parquet") == "a-b-c-d.parquet"
    assert run_panel.build_file_name("...", "arrows") == "rows.arrows"


def test_diff_members_compares_line_by_line() -> None:
    old = {"name": "n", "sql": "SELECT 1\nFROM a", "parameters": [{"name": "p", "type": "date", "required": True}]}
    new = {
        "name": "n",
        "sql": "SELECT 2\nFROM a",
        "parameters": [{"name": "p", "type": "date", "default": "2026-01-01"}],
    }
    assert save_form.diff_members(old, old) == []
    assert save_form.diff_members(old, new) == [
        save_form.MemberDiff("SQL", ("− SELECT 1", "+ SELECT 2", "  FROM a")),
        save_form.MemberDiff("Parameters", ("− $p: date, required", "+ $p: date, default 2026-01-01")),
    ]


def test_is_editable_follows_lifecycle() -> None:
    assert [state for state in LifecycleState if save_form.is_editable(state)] == [
        LifecycleState.DRAFT,
        LifecycleState.ACTIVE,
    ]


def test_list_completions_has_no_duplicates() -> None:
    column = {"name": "Order", "type": "int64"}
    datasets = [{"schema_name": "s", "table_name": t, "schema": [column]} for t in ("a", "select")]
    assert [completion["label"] for completion in dataset_browser.list_completions(datasets)] == [
        "s.a",
        's."select"',
        '"Order"',
    ]


# -- with a browser


def test_query_is_written_previewed_charted_validated_saved_and_run(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    page = visit("/queries")
    page.get_by_role("button", name="New query").first.click()
    editor = page.get_by_label("SQL", exact=True)
    expect(editor).to_contain_text("FROM shop.orders")  # the example
    _write(page, "SELECT region, sum(amount) AS total FROM ")
    page.get_by_label("Find a dataset").fill("nothing like it")
    expect(page.get_by_text("No datasets match.")).to_be_visible()
    page.get_by_label("Find a dataset").fill("ORD")
    page.get_by_label("Insert shop.orders").click()
    page.keyboard.insert_text(" WHERE ")
    page.get_by_label("Columns of shop.orders").click()
    page.get_by_label("Insert amount").click()
    page.keyboard.insert_text(" > $minimum GROUP BY ALL ORDER BY regi")
    page.keyboard.press("Control+Space")
    expect(page.get_by_role("listbox").get_by_text("region", exact=True)).to_be_visible()  # autocompletion
    page.keyboard.press("Escape")
    page.keyboard.insert_text("on")
    page.get_by_label("Type of minimum").click()
    page.get_by_role("option", name="number").click()
    page.get_by_label("Value of minimum").fill("10")
    editor.click()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("2 rows · read shop.orders v1")).to_be_visible()
    rows = page.get_by_label("Preview", exact=True)
    expect(rows).to_contain_text("120.5")
    expect(rows.get_by_role("columnheader").last).to_have_text("total · double")

    page.get_by_role("tab", name="Chart").click()
    expect(page.get_by_role("img", name="Preview: total by region between APAC and EMEA")).to_be_visible()
    page.get_by_role("button", name="Lines").click()
    expect(page.get_by_role("img", name="total from 80.0 to 120.5")).to_be_visible()

    page.get_by_label("Name", exact=True).fill("Sales by region")
    _write(page, "SELECT NULL AS nothing")
    page.get_by_role("button", name="Infer schema").click()
    error = page.get_by_role("alert").filter(has_text="nothing")
    expect(error).to_be_visible()  # at the schema picker
    expect(page.get_by_role("button", name="Close")).to_have_count(0)
    editor.click()
    page.keyboard.press("Control+z")
    expect(page.get_by_label("Value of minimum")).to_have_value("10")
    page.get_by_role("button", name="Infer schema").click()
    page.get_by_role("button", name="Create schema").click()
    expect(error).to_have_count(0)
    expect(page.get_by_text("2 rows validated: all match Sales by region.")).to_be_visible()
    page.get_by_label("Description").fill("One row a region")
    page.get_by_role("button", name="Save query").dblclick()  # saves once

    expect(page.get_by_role("heading", name="Sales by region")).to_be_visible()
    expect(page.get_by_text("One row a region", exact=True)).to_be_visible()
    expect(page.get_by_role("group", name="Parameter minimum")).to_contain_text("number")
    expect(page.get_by_text("OData, for example region desc")).to_be_visible()
    expect(page.get_by_role("link", name="shop.orders")).to_have_attribute("href", "/ui/datasets/shop.orders")
    saved = rest.get("/queries/Sales by region").json()
    assert saved["parameters"] == [{"name": "minimum", "type": "number", "required": True}]
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Parameter minimum is required")).to_be_visible()
    page.get_by_label("Value of minimum").fill("0")
    page.get_by_label("Filter").fill("total gt")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("$filter")).to_be_visible()  # message of the service at the filter
    page.get_by_label("Filter").fill("total gt 100")
    page.get_by_label("Order by").fill("total desc")
    page.get_by_label("Order by").press("Enter")
    expect(page.get_by_text("All rows match Sales by region.")).to_be_visible()
    expect(page.get_by_text("1 row on this page · read shop.orders v1")).to_be_visible()
    expect(page.get_by_label("Sales by region", exact=True)).to_contain_text("130")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download Parquet").click()
    table = pq.read_table(io.BytesIO(download.value.path().read_bytes()))
    assert download.value.suggested_filename == "Sales-by-region.parquet"
    assert table.to_pylist() == [{"region": "EMEA", "total": 130.0}]
    page.get_by_label("Filter").fill("")
    for name, text in (
        ("CSV", "region,total\nEMEA,130.0\nAPAC,80.0\n"),
        ("JSON", '[\n{"region": "EMEA", "total": 130.0},\n{"region": "APAC", "total": 80.0}\n]\n'),
    ):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Download {name}").click()
        assert download.value.suggested_filename == f"Sales-by-region.{name.lower()}"
        assert download.value.path().read_text() == text


def test_query_editor_shows_errors_at_their_inputs(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    taken = _register_query(
        rest, "Taken", "SELECT region FROM shop.orders", _create_schema(rest, "Regions", region="string")
    )
    page = visit("/queries/new?dataset=shop.orders")
    _write(page, "SELECT region\nFRM shop.orders")
    page.get_by_role("button", name="Preview").click()
    alert = page.get_by_role("alert").filter(has_text="syntax error")
    expect(alert).to_contain_text('Cannot parse the statement: syntax error at or near "shop" (line 2, column 5).')
    _write(page, "SELECT amount FROM shop.orders WHERE amount > $minimum")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("group", name="Parameter minimum")).to_contain_text("A value is required")
    page.get_by_role("checkbox", name="Required").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("No data")  # a comparison with NULL matches no row
    page.get_by_role("checkbox", name="Required").click()
    page.get_by_label("Type of minimum").click()
    page.get_by_role("option", name="number").click()
    page.get_by_label("Value of minimum").fill("many")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Parameter minimum: expected a number of at most 38 digits")).to_be_visible()
    expect(alert).to_have_count(0)
    page.get_by_role("button", name="Infer schema").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.get_by_label("Value of minimum").fill("1")
    page.get_by_label("Default of minimum").fill("few")
    page.get_by_role("button", name="Save query").click()  # all errors are shown at once
    expect(page.get_by_text("expected a number of at most 38 digits")).to_be_visible()
    expect(page.get_by_text("Choose a result schema")).to_be_visible()
    expect(page.get_by_text("name must not be blank")).to_be_visible()
    expect(page.get_by_label("Default of minimum")).to_be_focused()
    page.get_by_label("Default of minimum").fill("")
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_label("Result schema")).to_be_focused()
    _choose_schema(page, "Regions")
    page.get_by_label("Name", exact=True).fill("a/b")
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_text("name must not contain '/'")).to_be_visible()
    page.get_by_label("Name", exact=True).fill(" TAKEN ")
    page.get_by_role("button", name="Save query").click()
    errors = page.get_by_label("Validation errors")
    expect(errors.get_by_role("row").nth(1)).to_contain_text("Missing required field: region")
    page.get_by_role("button", name="Close").click()
    _write(page, "SELECT region FROM shop.orders")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("4 rows validated: all match Regions.")).to_be_visible()
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_text("A query named 'TAKEN' already exists")).to_be_visible()
    assert rest.get("/queries", params={"$count": "true"}).json()["@odata.count"] == 1
    assert rest.get(f"/queries/{taken}").json()["version"] == 1


def test_run_panel_reports_schema_mismatch_by_field_and_row(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    schema = _create_schema(rest, "Amounts", id="number", amount="number")
    id = _register_query(rest, "Amounts", "SELECT id, amount FROM shop.orders", schema)
    page = visit(f"/queries/{id}")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("The rows do not match Amounts: 1 error.")
    cells = page.get_by_label("Validation errors").get_by_role("row").nth(1).get_by_role("cell")
    expect(cells).to_have_text(["4", "amount", "number", "null", "Type mismatch for field amount"])
    page.get_by_label("Filter").fill("id lt 4")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("All rows match Amounts.")).to_be_visible()
    page.get_by_label("Filter").fill("id gt 4")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("The result has no rows, so it matches Amounts.")).to_be_visible()


def test_cancel_button_ends_running_query_and_preview(visit: Visit, rest: httpx.Client) -> None:
    endless = "SELECT count(*) AS n FROM range(100000000000) t(i) WHERE i % 3 = 4"
    id = _register_query(rest, "Endless", endless, _create_schema(rest, "Numbers", n="number"))
    page = visit(f"/queries/{id}", Role.VIEWER)
    cancel = page.get_by_role("button", name="Cancel")
    for button in ("Run", "Preview"):
        expect(cancel).to_have_count(0)
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Running…")).to_be_visible()
        cancel.click()
        expect(page.get_by_role("alert").filter(has_text="The query was cancelled.")).to_be_visible()
        expect(cancel).to_have_count(0)
        expect(page.get_by_role("button", name=button, exact=True)).to_be_enabled()
        assert rest.get("/queries/executions").json()["value"] == []
        if button == "Run":
            page.get_by_role("button", name="Try changes").click()


def test_row_files_keep_digits_texts_and_missing_values() -> None:
    rows: list[dict[str, Any]] = [
        {"n": Decimal("12345678901234567890.10"), "s": 'a "b",\nc', "l": [Decimal("1.50"), None, "é"], "b": True},
        {"n": None, "s": "", "l": None, "b": None},
    ]
    assert list(csv.reader(io.StringIO(row_files.to_csv(list(rows[0]), rows).decode(), newline=""))) == [
        ["n", "s", "l", "b"],
        ["12345678901234567890.10", 'a "b",\nc', '[1.50, null, "é"]', "true"],
        ["", "", "", ""],
    ]
    assert json.loads(row_files.to_json((), rows), parse_float=Decimal) == rows
    assert row_files.to_csv(["a"], []) == b"a\n"
    assert json.loads(row_files.to_json((), [])) == []


def test_sort_order_puts_numbers_before_texts_and_missing_values_last() -> None:
    rows = [{"v": value} for value in ("b", Decimal("1.5"), None, 10, "a", 2.0, [1])]
    ascending = [row["v"] for row in SortOrder("v").sort(rows)]
    assert ascending == [Decimal("1.5"), 2.0, 10, [1], "a", "b", None]
    assert [row["v"] for row in SortOrder("v", descending=True).sort(rows)] == [*ascending[-2::-1], None]
    assert run_panel.parse_order(" total desc ") == SortOrder("total", descending=True)
    assert run_panel.parse_order("total") == SortOrder("total")
    assert run_panel.parse_order("a, b desc") is run_panel.parse_order("") is None


def test_column_header_sorts_preview_and_result(visit: Visit, rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.many", content="n\n" + "\n".join(map(str, range(250))), headers={"content-type": "text/csv"}).raise_for_status()  # fmt: skip
    sql = "SELECT n, (n * 7) % 250 AS m FROM shop.many"
    id = _register_query(rest, "Many", sql, _create_schema(rest, "Numbers", n="number", m="number"))
    page = visit(f"/queries/{id}", Role.VIEWER)
    for button, table_name in (("Run", "Many"), ("Preview", "Preview")):
        page.get_by_role("button", name=button, exact=True).click()
        table = page.get_by_label(table_name, exact=True)
        header = table.get_by_role("columnheader", name="n · ")
        expect(header).to_have_attribute("aria-sort", "none")
        header.get_by_role("button").focus()
        for order, first in (("ascending", "0"), ("descending", "249")):
            page.keyboard.press("Enter")
            expect(header).to_have_attribute("aria-sort", order)
            expect(table.get_by_role("row").nth(1).get_by_role("cell").first).to_have_text(first)
            expect(header.get_by_role("button")).to_be_focused()
        other = table.get_by_role("columnheader", name="m · ")
        other.get_by_role("button").click()
        expect(other).to_have_attribute("aria-sort", "ascending")
        expect(header).to_have_attribute("aria-sort", "none")
        if button == "Run":
            expect(page.get_by_label("Order by")).to_have_value("m")
            page.get_by_label("Next page").click()
            expect(table.get_by_role("row").nth(1).get_by_role("cell").nth(1)).to_have_text("100")
            expect(other.get_by_role("button")).not_to_be_focused()
            page.get_by_role("button", name="Try changes").click()


def test_column_header_keeps_the_focus_when_it_is_drawn_again(visit: Visit, rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.many", content="n\n1\n2", headers={"content-type": "text/csv"}).raise_for_status()
    id = _register_query(rest, "Many", "SELECT n FROM shop.many", _create_schema(rest, "Numbers", n="number"))
    page = visit(f"/queries/{id}", Role.VIEWER)
    page.get_by_role("button", name="Run", exact=True).click()
    button = page.get_by_label("Many", exact=True).get_by_role("columnheader", name="n · ").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Many", exact=True).get_by_role("columnheader")).to_have_attribute(
        "aria-sort", "ascending"
    )
    for _ in range(150):  # a page may change long after the user has sorted a table
        page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(button).to_be_focused()
    button.evaluate("button => button.replaceWith(button.cloneNode(true))")
    expect(button).to_be_focused()
    page.get_by_role("heading", level=1).click()
    button.evaluate("button => button.replaceWith(button.cloneNode(true))")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(button).not_to_be_focused()


def test_result_pages_keep_versions_of_first_page(visit: Visit, rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.many", content="n\n" + "\n".join(map(str, range(250))), headers={"content-type": "text/csv"}).raise_for_status()  # fmt: skip
    id = _register_query(rest, "Many", "SELECT n FROM shop.many", _create_schema(rest, "Numbers", n="number"))
    page = visit(f"/queries/{id}")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("1–100", exact=True)).to_be_visible()
    rest.post("/datasets/shop.many/rows", content="n\n-1\n", headers={"content-type": "text/csv"}).raise_for_status()
    page.get_by_label("Next page").click()
    expect(page.get_by_text("101–200", exact=True)).to_be_visible()
    page.get_by_label("Next page").click()
    expect(page.get_by_text("201–250", exact=True)).to_be_visible()
    expect(page.get_by_text("50 rows on this page · read shop.many v1")).to_be_visible()
    expect(page.get_by_label("Next page")).to_be_disabled()
    page.get_by_label("Previous page").click()
    expect(page.get_by_text("101–200", exact=True)).to_be_visible()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("100 rows on this page · read shop.many v2")).to_be_visible()
    expect(page.get_by_label("Many", exact=True).get_by_role("row").nth(1)).to_have_text("-1")


def test_query_list_searches_filters_and_pages(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/queries", Role.VIEWER)
    expect(page.get_by_text("No queries in these states.")).to_be_visible()
    _create_dataset(rest)
    schema = _create_schema(rest, "Regions", region="string")
    for number in range(22):
        _register_query(rest, f"Query {number:02}", "SELECT region FROM shop.orders", schema, description="odd" if number % 2 else "even")  # fmt: skip
    draft = _register_query(rest, "A draft", "SELECT region FROM shop.orders", schema, state="DRAFT")
    rest.post(f"/queries/{draft}/transitions", json={"to": "ARCHIVED", "version": 1}).raise_for_status()
    page.reload()
    table = page.get_by_label("Queries", exact=True)
    expect(table.get_by_role("row")).to_have_count(21)
    expect(page.get_by_text("1–20 of 22")).to_be_visible()
    page.get_by_label("Next page").click()
    expect(page.get_by_text("21–22 of 22")).to_be_visible()
    page.get_by_label("Search names and descriptions").fill("odd 13")
    expect(page.get_by_text("1–1 of 1")).to_be_visible()
    expect(table.get_by_role("link", name="Query 13")).to_be_visible()
    page.get_by_label("Search names and descriptions").fill("")
    page.get_by_role("button", name="Active").click()
    expect(page.get_by_text("No queries in these states.")).to_be_visible()
    page.get_by_role("button", name="Archived").click()
    table.get_by_role("link", name="A draft").click()
    expect(page.get_by_text("Version 2: abandon by ada")).to_be_visible()
    expect(page.get_by_role("button", name="Run")).to_have_count(0)


def test_viewer_can_run_and_try_queries_but_not_save(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    id = _register_query(rest, "Totals", BY_REGION, _create_schema(rest, "By region", region="string", total="number"), parameters=[{"name": "minimum", "type": "number", "default": 10}])  # fmt: skip
    page = visit(f"/queries/{id}", Role.VIEWER, width=NARROW, dark=True)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("All rows match By region.")).to_be_visible()
    for name in ("Edit", "Delete", "Deprecate"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    page.get_by_role("button", name="Try changes").click()
    expect(page.get_by_label("Value of minimum")).to_be_visible()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("2 rows validated: all match By region.")).to_be_visible()
    for name in ("Save changes", "Infer schema"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_label("Default of minimum")).to_have_count(0)


def test_query_transitions_appear_in_versions(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    schema = _create_schema(rest, "Regions", region="string")
    id = _register_query(rest, "Regions", "SELECT region\nFROM shop.orders", schema, state="DRAFT")
    developer = visit(f"/queries/{id}", Role.DEVELOPER, user="bob")
    developer.get_by_role("button", name="Publish").click()
    developer.get_by_label("Reason (optional)").fill("it is right")
    developer.get_by_role("dialog").get_by_role("button", name="Publish").click()
    developer.get_by_text("Version 2: publish by bob").click()
    expect(developer.get_by_text("Reason: it is right")).to_be_visible()
    expect(developer.get_by_text("Only the state changed: active.")).to_be_visible()
    for name in ("Deprecate", "Delete"):
        expect(developer.get_by_role("button", name=name)).to_have_count(0)
    developer.get_by_role("button", name="Edit").click()
    expect(developer.get_by_label("Name", exact=True)).to_have_value("Regions")
    _write(developer, "SELECT DISTINCT region\nFROM shop.orders")
    developer.get_by_role("button", name="Save changes").dblclick()
    developer.get_by_text("Version 3: update by bob").click()
    expect(developer.get_by_text("+ SELECT DISTINCT region")).to_be_visible()

    admin = visit(f"/queries/{id}")
    admin.get_by_role("button", name="Deprecate").click()
    admin.get_by_role("dialog").get_by_role("button", name="Deprecate").click()
    expect(admin.get_by_role("button", name="Reactivate")).to_be_visible()
    admin.get_by_role("button", name="Try changes").click()
    expect(admin.get_by_text("This query is deprecated. You can try its SQL, but not save changes.")).to_be_visible()
    admin.get_by_role("link", name="‹ Query").click()
    admin.get_by_role("button", name="Delete").click()
    admin.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(admin.get_by_text("No queries in these states.")).to_be_visible()
    expect(admin.get_by_role("alert").filter(has_text="Deleted the query Regions.")).to_be_visible()
    admin.reload()
    expect(admin.get_by_text("No queries in these states.")).to_be_visible()
    expect(admin.get_by_text("Deleted the query")).to_have_count(0)
    assert rest.get(f"/queries/{id}").status_code == 404


def test_query_conflict_offers_overwrite_or_reload(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    schema = _create_schema(rest, "Regions", region="string")
    id = _register_query(rest, "Regions", "SELECT region FROM shop.orders", schema)
    page = visit(f"/queries/{id}/edit")
    page.get_by_label("Description").fill("mine")
    stored = rest.get(f"/queries/{id}").json()
    rest.put(f"/queries/{id}", json={**stored, "sql": "SELECT region FROM shop.orders -- stored"}).raise_for_status()
    page.get_by_role("button", name="Save changes").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The saved version is now 2.")).to_be_visible()
    expect(dialog.get_by_text("+ mine")).to_be_visible()
    expect(dialog.get_by_text("+ SELECT region FROM shop.orders -- stored")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    assert rest.get(f"/queries/{id}").json()["version"] == 2
    page.get_by_role("button", name="Save changes").click()
    dialog.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_text("Version 3: update by ada")).to_be_visible()
    assert rest.get(f"/queries/{id}").json()["description"] == "mine"

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Description").fill("mine again")
    rest.put(f"/queries/{id}", json={**rest.get(f"/queries/{id}").json(), "description": "stored"}).raise_for_status()
    page.get_by_role("button", name="Save changes").click()
    dialog.get_by_role("button", name="Reload").click()
    expect(page.get_by_label("Description")).to_have_value("stored")


def test_query_editor_guards_unsaved_changes(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    page = visit("/queries/new", expect=("beforeunload",))
    dialogs: list[str] = []

    def leave(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.accept()

    page.on("dialog", leave)
    _write(page, "SELECT 1 AS one")
    page.wait_for_function("window.penstockUnsaved === true")
    page.get_by_role("link", name="Schemas").click()
    expect(page.get_by_role("heading", name="Schemas")).to_be_visible()
    assert dialogs == ["beforeunload"]


def test_query_editor_guards_unsaved_changes_on_back(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    page = visit("/queries", expect=("beforeunload",))
    page.get_by_role("button", name="New query").first.click()
    _write(page, "SELECT 1 AS one")
    page.wait_for_function("window.penstockUnsaved === true")
    page.once("dialog", lambda dialog: dialog.dismiss())
    with page.expect_event("dialog"):
        page.evaluate("history.back()")
    expect(page.get_by_label("SQL", exact=True)).to_have_text("SELECT 1 AS one")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("1 row", exact=True)).to_be_visible()


def test_query_editor_without_changes_is_not_guarded(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    schema = _create_schema(rest, "By region", region="string", total="number")
    parameters = [{"name": "minimum", "type": "number", "default": 10}]
    id = _register_query(rest, "Totals", BY_REGION.replace(" FROM", "\r\nFROM"), schema, parameters=parameters)
    page = visit(f"/queries/{id}/edit")
    expect(page.get_by_label("Result schema")).to_have_value("By region")
    page.get_by_label("Value of minimum").fill("20")  # a value for the preview is not saved
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("2 rows validated: all match By region.")).to_be_visible()
    assert not page.evaluate("window.penstockUnsaved")
    for label, now, before in (("Name", "Other", "Totals"), ("Default of minimum", "11", "10")):
        page.get_by_label(label, exact=True).fill(now)
        page.wait_for_function("window.penstockUnsaved === true")
        page.get_by_label(label, exact=True).fill(before)
        page.wait_for_function("window.penstockUnsaved === false")
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text(", $more")
    page.wait_for_function("window.penstockUnsaved === true")
    page.keyboard.press("Control+z")
    page.wait_for_function("window.penstockUnsaved === false")


def test_code_editor_rejects_too_long_text(visit: Visit, rest: httpx.Client) -> None:
    _create_dataset(rest)
    page = visit("/queries/new")
    _write(page, "SELECT 'old' AS word")
    error = page.get_by_role("alert").filter(has_text="too long for this page")
    for text in ("x" * 1_200_000, '"' * 299_000):  # which the transport makes four times as long
        _paste(page, "SQL", text)
        expect(error).to_contain_text("Use the API for longer texts")
        page.get_by_role("button", name="Close").click()
        expect(error).to_have_count(0)
        expect(page.get_by_label("SQL", exact=True)).to_have_text("SELECT 'old' AS word")
    _paste(page, "SQL", f"SELECT 'new' AS word -- {'x' * 90_000}")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Preview", exact=True).get_by_role("cell")).to_have_text("new")
    expect(error).to_have_count(0)
    other = visit("/pipelines/new")
    expect(other.get_by_text("The pipeline is valid.")).to_be_visible()
    _paste(other, "Pipeline as JSON", " " * 1_200_000)
    expect(other.get_by_role("alert").filter(has_text="too long for this page")).to_be_visible()
    expect(other.get_by_label("Pipeline as JSON")).to_contain_text("shop.orders deduplicated")


@pytest.mark.parametrize(("width", "height"), [(WIDE, 900), (NARROW, 844)])
def test_preview_scrolls_results_into_view(visit: Visit, rest: httpx.Client, width: int, height: int) -> None:
    _create_dataset(rest)
    page = visit("/queries/new", width=width)
    page.set_viewport_size({"width": width, "height": height})
    expect(page.get_by_label("Find a dataset")).to_be_visible(visible=width == WIDE)
    rows = page.get_by_label("Preview", exact=True)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("status").filter(has_text="4 rows · read shop.orders v1")).to_be_visible()
    expect(rows.get_by_role("cell", name="EMEA").first).to_be_in_viewport()
    _write(page, "SELECT region, $a, $b, $c, $d FROM shop.orders")
    expect(page.get_by_label("Value of d")).to_be_visible()
    for name in "abcd":
        page.get_by_label(f"Value of {name}").fill("x")
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+Enter")  # the editor is far above the rows
    expect(rows.get_by_role("columnheader")).to_have_count(5)
    expect(rows.get_by_role("cell", name="EMEA").first).to_be_in_viewport()


def test_query_pages_render_user_text_as_text(visit: Visit, rest: httpx.Client) -> None:
    quoted = HOSTILE.replace('"', '""')
    rows = f'id,"{quoted}"\n1,"{quoted}"\n'
    rest.post("/datasets?name=shop.odd", content=rows, headers={"content-type": "text/csv"}).raise_for_status()
    schema = _create_schema(rest, HOSTILE, word="string")
    text = f"SELECT \"{quoted}\" AS word FROM shop.odd WHERE $word <> '' -- {HOSTILE}"
    parameters = [{"name": "word", "type": "string", "default": HOSTILE}]
    id = _register_query(rest, HOSTILE_NAME, text, schema, description=HOSTILE, parameters=parameters)
    page = visit(f"/queries/{id}", width=NARROW)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text(f"All rows match {HOSTILE}.")).to_be_visible()
    expect(page.get_by_label(HOSTILE_NAME, exact=True).get_by_role("cell")).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Chart").click()
    page.get_by_text("Version 1: create by ada").click()
    expect(page.get_by_text(f"+ {HOSTILE}")).to_be_visible()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Datasets").click()
    page.get_by_label("Columns of shop.odd").click()
    page.get_by_label(f'Insert "{quoted}"').click()
    expect(page.get_by_label("SQL", exact=True)).to_contain_text(f'"{quoted}"')
    _write(page, f"SELECT *, '{HOSTILE}' AS \"{quoted}x\" FROM shop.odd")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Preview", exact=True).get_by_role("cell").last).to_have_text(HOSTILE)
    _write(page, f'SELECT "{quoted}y" FROM shop.odd')
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert").filter(has_text=HOSTILE)).to_be_visible()
    assert page.evaluate("window.hacked") is None


# -- helpers


def _write(page: Page, text: str) -> None:
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def _paste(page: Page, label: str, text: str) -> None:
    """Replace the text of an editor by pasting."""
    editor = page.get_by_label(label, exact=True)
    editor.click()
    page.keyboard.press("Control+a")
    editor.evaluate(
        """(editor, text) => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", text);
          editor.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
        }""",
        text,
    )


def _choose_schema(page: Page, name: str) -> None:
    page.get_by_label("Result schema").fill(name)
    page.get_by_role("option", name=name).click()


def _create_dataset(rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.orders", content=ORDERS, headers={"content-type": "text/csv"}).raise_for_status()


def _create_schema(rest: httpx.Client, schema_name: str, **fields: str) -> str:
    field_list = [{"name": name, "type": type_} for name, type_ in fields.items()]
    response = rest.post("/gts", json={"name": schema_name, "type_id": gts.QUERY_RETURNS, "fields": field_list})
    return str(response.raise_for_status().json()["id"])


def _register_query(rest: httpx.Client, name: str, text: str, schema: str, **more: Any) -> str:
    response = rest.post("/queries", json={"name": name, "sql": text, "returns_schema_id": schema, **more})
    return str(response.raise_for_status().json()["id"])
