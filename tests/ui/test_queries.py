"""Queries for people: SQL that is tried, charted, checked, kept, changed and run."""

import io
from decimal import Decimal
from typing import Any

import duckdb
import httpx
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Dialog, Page, expect

from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.core.result_schema import FieldType
from penstock.core.registry.lifecycle import State
from penstock.errors import Invalid
from penstock.ui.queries import dataset_browser as palette
from penstock.ui.queries import save_form as registration
from penstock.ui.queries import result_view as results
from penstock.ui.queries import run_panel as running
from penstock.ui.queries import sql_text as sql
from penstock.ui.queries import parameter_form as values
from penstock.ui.queries import validation_report as verdict
from ui.conftest import NARROW, WIDE, Visit

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
HOSTILE_NAME = '<img src=x onerror="window.hacked=1">{{7*7}}'  # without what an address would stumble over
ORDERS = "id,region,amount\n1,EMEA,120.5\n2,APAC,80\n3,EMEA,9.5\n4,AMER,\n"
BY_REGION = "SELECT region, sum(amount) AS total FROM shop.orders WHERE amount > $least GROUP BY region ORDER BY region"


# -- what needs no browser


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
def test_parameters_are_found_where_they_mean_something(text: str, names: list[str]) -> None:
    assert sql.placeholders(text) == names


def test_words_that_sql_keeps_for_itself_are_those_of_duckdb() -> None:
    asked = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    found = duckdb.connect().execute(asked).fetchall()
    assert sorted(sql.RESERVED.split("|")) == sorted(word for (word,) in found)


@pytest.mark.parametrize("name", ["plain", "Order", "a b", 'say "hi"', "1st", HOSTILE, "été"])
def test_a_column_is_spelled_as_duckdb_reads_it(name: str) -> None:
    (column,) = duckdb.connect().execute(f"SELECT 1 AS {sql.identifier(name)}").description or []
    assert column[0] == name


def test_a_place_is_told_as_people_count() -> None:
    assert sql.place("SELEC 1", 0) == "line 1, column 1"
    assert sql.place("SELECT 'é',\n  FRM x", 15) == "line 2, column 3"  # é is two bytes


def test_values_are_what_their_types_say() -> None:
    entries = [
        values.Entry("n", FieldType.NUMBER, "12.5"),
        values.Entry("b", FieldType.BOOLEAN, "true"),
        values.Entry("d", FieldType.DATE, "", default="2026-01-31"),
        values.Entry("s", required=False),
    ]
    assert values.tried(entries) == {"n": 12.5, "b": True, "d": "2026-01-31", "s": None}
    assert values.declared(entries) == [
        {"name": "n", "type": "number", "required": True},
        {"name": "b", "type": "boolean", "required": True},
        {"name": "d", "type": "date", "default": "2026-01-31"},
        {"name": "s", "type": "string", "required": False},
    ]
    with pytest.raises(Invalid, match="a value is needed") as refused:
        values.tried([values.Entry("a"), values.Entry("b", default="x"), values.Entry("c", required=False)])
    assert refused.value.context["errors"] == [{"pointer": "/a", "message": "a value is needed"}]
    with pytest.raises(Invalid, match="parameter n: expected a number"):
        values.tried([values.Entry("n", FieldType.NUMBER, "twelve")])


def test_a_declared_parameter_goes_into_the_form_and_comes_out_the_same() -> None:
    declared = [
        {"name": "a", "type": "boolean", "required": False, "default": True},
        {"name": "b", "type": "number", "required": False},
    ]
    assert values.declared(map(values.declared_as, declared)) == [
        {"name": "a", "type": "boolean", "default": True},
        {"name": "b", "type": "number", "required": False},
    ]


def test_a_chart_begins_with_words_along_and_numbers_up() -> None:
    answer = {
        "columns": [
            {"name": "n", "type": "int64"},
            {"name": "word", "type": "string"},
            {"name": "m", "type": {"decimal": [5, 2]}},
        ],
        "value": [{"n": 1, "word": "a", "m": Decimal("1.50")}, {"n": 2, "word": None, "m": None}],
    }
    rows = results.previewed(answer)
    assert results.axes(rows) == ("word", "n")
    assert results.points(rows, "word", "m") == (["a", "∅"], [1.5, None])


def test_a_promised_field_that_no_row_has_is_no_column() -> None:
    fields = [{"name": "a", "type": "string"}, {"name": "b", "type": "number"}]
    assert [each.name for each in results.promised({"value": [{"a": "x"}]}, fields).columns] == ["a"]
    assert [each.name for each in results.promised({"value": []}, fields).columns] == ["a", "b"]


def test_as_many_rows_are_sent_to_be_checked_as_fit() -> None:
    rows: list[dict[str, Any]] = [{"x": Decimal("1.5"), "l": [Decimal("2.5")]}] * 5
    assert verdict.sendable(rows) == [{"x": 1.5, "l": [2.5]}] * 5
    assert len(verdict.sendable(rows, 60)) == 2


def test_parameters_and_options_of_the_same_name_are_told_apart() -> None:
    found = running.address("i", {"top": "a&b", "none": ""}, {"top": "5", "filter": "x eq 'ü'", "orderby": ""})
    assert found == "/queries/i/results?top=a%26b&%24top=5&%24filter=x%20eq%20%27%C3%BC%27"
    assert running.file_name('a "b"/c <d>', "parquet") == "a-b-c-d.parquet"
    assert running.file_name("...", "arrows") == "rows.arrows"


def test_differences_are_told_line_by_line() -> None:
    old = {"name": "n", "sql": "SELECT 1\nFROM a", "parameters": [{"name": "p", "type": "date", "required": True}]}
    new = {
        "name": "n",
        "sql": "SELECT 2\nFROM a",
        "parameters": [{"name": "p", "type": "date", "default": "2026-01-01"}],
    }
    assert registration.differences(old, old) == []
    assert registration.differences(old, new) == [
        registration.Difference("SQL", ("− SELECT 1", "+ SELECT 2", "  FROM a")),
        registration.Difference("Parameters", ("− $p: date, required", "+ $p: date, 2026-01-01 unless given")),
    ]


def test_what_can_still_change_is_what_the_core_says() -> None:
    assert [state for state in State if registration.is_editable(state)] == [State.DRAFT, State.ACTIVE]


def test_names_are_offered_once() -> None:
    column = {"name": "Order", "type": "int64"}
    datasets = [{"schema_name": "s", "table_name": t, "schema": [column]} for t in ("a", "select")]
    assert [each["label"] for each in palette.offered(datasets)] == ["s.a", 's."select"', '"Order"']


# -- in the browser


def test_sql_is_written_tried_charted_checked_saved_and_run(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    page = visit("/queries")
    page.get_by_role("button", name="New query").first.click()
    editor = page.get_by_label("SQL", exact=True)
    expect(editor).to_contain_text("FROM shop.orders")  # something to begin with
    _write(page, "SELECT region, sum(amount) AS total FROM ")
    page.get_by_label("Find a dataset").fill("nothing like it")
    expect(page.get_by_text("No dataset has such a name.")).to_be_visible()
    page.get_by_label("Find a dataset").fill("ORD")
    page.get_by_label("Insert shop.orders").click()
    page.keyboard.insert_text(" WHERE ")
    page.get_by_label("Columns of shop.orders").click()
    page.get_by_label("Insert amount").click()
    page.keyboard.insert_text(" > $least GROUP BY ALL ORDER BY regi")
    page.keyboard.press("Control+Space")
    expect(page.get_by_role("listbox").get_by_text("region", exact=True)).to_be_visible()  # it is completed
    page.keyboard.press("Escape")
    page.keyboard.insert_text("on")
    page.get_by_label("Type of least").click()
    page.get_by_role("option", name="number").click()
    page.get_by_label("Value of least").fill("10")
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
    page.get_by_role("button", name="Infer a schema").click()
    refusal = page.get_by_role("alert").filter(has_text="nothing")
    expect(refusal).to_be_visible()  # at the box of the schema
    expect(page.get_by_role("button", name="Close")).to_have_count(0)
    editor.click()
    page.keyboard.press("Control+z")
    expect(page.get_by_label("Value of least")).to_have_value("10")
    page.get_by_role("button", name="Infer a schema").click()
    page.get_by_role("button", name="Create schema").click()
    expect(refusal).to_have_count(0)
    expect(page.get_by_text("2 rows checked: all fit Sales by region.")).to_be_visible()
    page.get_by_label("Description").fill("One row a region")
    page.get_by_role("button", name="Save query").dblclick()  # which saves it once

    expect(page.get_by_role("heading", name="Sales by region")).to_be_visible()
    expect(page.get_by_text("One row a region", exact=True)).to_be_visible()
    expect(page.get_by_role("group", name="Parameter least")).to_contain_text("number")
    expect(page.get_by_text("OData, such as region desc")).to_be_visible()
    expect(page.get_by_role("link", name="shop.orders")).to_have_attribute("href", "/ui/datasets/shop.orders")
    kept = rest.get("/queries/Sales by region").json()
    assert kept["parameters"] == [{"name": "least", "type": "number", "required": True}]
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("parameter least is required")).to_be_visible()
    page.get_by_label("Value of least").fill("0")
    page.get_by_label("Filter").fill("total gt")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("$filter")).to_be_visible()  # at the filter, in the service's words
    page.get_by_label("Filter").fill("total gt 100")
    page.get_by_label("Order by").fill("total desc")
    page.get_by_label("Order by").press("Enter")
    expect(page.get_by_text("Every row fits Sales by region.")).to_be_visible()
    expect(page.get_by_text("1 row on this page · read shop.orders v1")).to_be_visible()
    expect(page.get_by_label("Sales by region", exact=True)).to_contain_text("130")
    with page.expect_download() as coming:
        page.get_by_role("button", name="Download Parquet").click()
    table = pq.read_table(io.BytesIO(coming.value.path().read_bytes()))
    assert coming.value.suggested_filename == "Sales-by-region.parquet"
    assert table.to_pylist() == [{"region": "EMEA", "total": 130.0}]


def test_what_is_wrong_is_told_in_words_and_where(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    taken = _registered(rest, "Taken", "SELECT region FROM shop.orders", _schema(rest, "Regions", region="string"))
    page = visit("/queries/new?dataset=shop.orders")
    _write(page, "SELECT region\nFRM shop.orders")
    page.get_by_role("button", name="Preview").click()
    alert = page.get_by_role("alert").filter(has_text="syntax error")
    expect(alert).to_contain_text('The statement cannot be read: syntax error at or near "shop" (line 2, column 5).')
    _write(page, "SELECT amount FROM shop.orders WHERE amount > $least")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("group", name="Parameter least")).to_contain_text("a value is needed")
    page.get_by_role("checkbox", name="Required").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("No data")  # NULL is greater than nothing
    page.get_by_role("checkbox", name="Required").click()
    page.get_by_label("Type of least").click()
    page.get_by_role("option", name="number").click()
    page.get_by_label("Value of least").fill("many")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("parameter least: expected a number of at most 38 digits")).to_be_visible()
    expect(alert).to_have_count(0)
    page.get_by_role("button", name="Infer a schema").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.get_by_label("Value of least").fill("1")
    page.get_by_label("Default of least").fill("few")
    page.get_by_role("button", name="Save query").click()  # all that is wrong is told at once
    expect(page.get_by_text("expected a number of at most 38 digits")).to_be_visible()
    expect(page.get_by_text("Choose a schema that the rows must fit")).to_be_visible()
    expect(page.get_by_text("name must not be blank")).to_be_visible()
    expect(page.get_by_label("Default of least")).to_be_focused()
    page.get_by_label("Default of least").fill("")
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_label("Schema that the rows must fit")).to_be_focused()
    _choose_schema(page, "Regions")
    page.get_by_label("Name", exact=True).fill("a/b")
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_text("name must not hold /")).to_be_visible()
    page.get_by_label("Name", exact=True).fill(" TAKEN ")
    page.get_by_role("button", name="Save query").click()
    wrong = page.get_by_label("What does not fit")
    expect(wrong.get_by_role("row").nth(1)).to_contain_text("Missing required field: region")
    page.get_by_role("button", name="Close").click()
    _write(page, "SELECT region FROM shop.orders")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("4 rows checked: all fit Regions.")).to_be_visible()
    page.get_by_role("button", name="Save query").click()
    expect(page.get_by_text("there is a query named 'TAKEN' already")).to_be_visible()
    assert rest.get("/queries", params={"$count": "true"}).json()["@odata.count"] == 1
    assert rest.get(f"/queries/{taken}").json()["version"] == 1


def test_rows_that_break_the_promise_are_told_by_field_and_row(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    schema = _schema(rest, "Amounts", id="number", amount="number")
    id = _registered(rest, "Amounts", "SELECT id, amount FROM shop.orders", schema)
    page = visit(f"/queries/{id}")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("The rows do not fit Amounts: 1 error.")
    cells = page.get_by_label("What does not fit").get_by_role("row").nth(1).get_by_role("cell")
    expect(cells).to_have_text(["4", "amount", "number", "null", "Type mismatch for field amount"])
    page.get_by_label("Filter").fill("id lt 4")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Every row fits Amounts.")).to_be_visible()
    page.get_by_label("Filter").fill("id gt 4")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("There are no rows, so nothing could break what Amounts promises.")).to_be_visible()


def test_pages_of_a_result_stay_at_the_versions_they_began_with(visit: Visit, rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.many", content="n\n" + "\n".join(map(str, range(250))), headers={"content-type": "text/csv"}).raise_for_status()  # fmt: skip
    id = _registered(rest, "Many", "SELECT n FROM shop.many", _schema(rest, "Numbers", n="number"))
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


def test_queries_are_found_by_words_and_states_and_page_by_page(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/queries", Role.VIEWER)
    expect(page.get_by_text("There is no query in these states.")).to_be_visible()
    _dataset(rest)
    schema = _schema(rest, "Regions", region="string")
    for number in range(22):
        _registered(rest, f"Query {number:02}", "SELECT region FROM shop.orders", schema, description="odd" if number % 2 else "even")  # fmt: skip
    draft = _registered(rest, "A draft", "SELECT region FROM shop.orders", schema, state="DRAFT")
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
    expect(page.get_by_text("There is no query in these states.")).to_be_visible()
    page.get_by_role("button", name="Archived").click()
    table.get_by_role("link", name="A draft").click()
    expect(page.get_by_text("Version 2: abandon by ada")).to_be_visible()
    expect(page.get_by_role("button", name="Run")).to_have_count(0)


def test_a_viewer_tries_and_runs_and_keeps_nothing(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    id = _registered(rest, "Totals", BY_REGION, _schema(rest, "By region", region="string", total="number"), parameters=[{"name": "least", "type": "number", "default": 10}])  # fmt: skip
    page = visit(f"/queries/{id}", Role.VIEWER, width=NARROW, dark=True)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Every row fits By region.")).to_be_visible()
    for name in ("Edit", "Delete", "Deprecate"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    page.get_by_role("button", name="Try changes").click()
    expect(page.get_by_label("Value of least")).to_be_visible()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("2 rows checked: all fit By region.")).to_be_visible()
    for name in ("Save changes", "Infer a schema"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_label("Default of least")).to_have_count(0)


def test_a_query_goes_through_its_states_and_its_versions_tell_of_it(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    schema = _schema(rest, "Regions", region="string")
    id = _registered(rest, "Regions", "SELECT region\nFROM shop.orders", schema, state="DRAFT")
    developer = visit(f"/queries/{id}", Role.DEVELOPER, user="bob")
    developer.get_by_role("button", name="Publish").click()
    developer.get_by_label("Reason (optional)").fill("it is right")
    developer.get_by_role("dialog").get_by_role("button", name="Publish").click()
    developer.get_by_text("Version 2: publish by bob").click()
    expect(developer.get_by_text("Reason: it is right")).to_be_visible()
    expect(developer.get_by_text("Only its state: it is active.")).to_be_visible()
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
    expect(admin.get_by_text("It is deprecated: its SQL can be tried here, and not changed.")).to_be_visible()
    admin.get_by_role("link", name="‹ Query").click()
    admin.get_by_role("button", name="Delete").click()
    admin.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(admin.get_by_text("There is no query in these states.")).to_be_visible()
    assert rest.get(f"/queries/{id}").status_code == 404


def test_nobody_overwrites_a_change_unseen(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    schema = _schema(rest, "Regions", region="string")
    id = _registered(rest, "Regions", "SELECT region FROM shop.orders", schema)
    page = visit(f"/queries/{id}/edit")
    page.get_by_label("Description").fill("mine")
    theirs = rest.get(f"/queries/{id}").json()
    rest.put(f"/queries/{id}", json={**theirs, "sql": "SELECT region FROM shop.orders -- theirs"}).raise_for_status()
    page.get_by_role("button", name="Save changes").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("It is at version 2 by now.")).to_be_visible()
    expect(dialog.get_by_text("+ mine")).to_be_visible()
    expect(dialog.get_by_text("+ SELECT region FROM shop.orders -- theirs")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    assert rest.get(f"/queries/{id}").json()["version"] == 2
    page.get_by_role("button", name="Save changes").click()
    dialog.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_text("Version 3: update by ada")).to_be_visible()
    assert rest.get(f"/queries/{id}").json()["description"] == "mine"

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Description").fill("mine again")
    rest.put(f"/queries/{id}", json={**rest.get(f"/queries/{id}").json(), "description": "theirs"}).raise_for_status()
    page.get_by_role("button", name="Save changes").click()
    dialog.get_by_role("button", name="Reload").click()
    expect(page.get_by_label("Description")).to_have_value("theirs")


def test_what_is_not_saved_is_not_left_without_a_word(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    page = visit("/queries/new", expect=("beforeunload",))
    asked: list[str] = []

    def leave(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", leave)
    _write(page, "SELECT 1 AS one")
    page.wait_for_function("window.penstockUnsaved === true")
    page.get_by_role("link", name="Schemas").click()
    expect(page.get_by_role("heading", name="Schemas")).to_be_visible()
    assert asked == ["beforeunload"]


def test_going_back_keeps_what_is_not_saved_too(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
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


def test_what_is_as_it_was_read_can_be_left(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    schema = _schema(rest, "By region", region="string", total="number")
    given = [{"name": "least", "type": "number", "default": 10}]
    id = _registered(rest, "Totals", BY_REGION.replace(" FROM", "\r\nFROM"), schema, parameters=given)
    page = visit(f"/queries/{id}/edit")
    expect(page.get_by_label("Schema that the rows must fit")).to_have_value("By region")
    page.get_by_label("Value of least").fill("20")  # to try, and not to keep
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("2 rows checked: all fit By region.")).to_be_visible()
    assert not page.evaluate("window.penstockUnsaved")
    for label, now, before in (("Name", "Other", "Totals"), ("Default of least", "11", "10")):
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


def test_a_text_that_would_not_reach_the_service_is_not_taken(visit: Visit, rest: httpx.Client) -> None:
    _dataset(rest)
    page = visit("/queries/new")
    _write(page, "SELECT 'old' AS word")
    refusal = page.get_by_role("alert").filter(has_text="too long for this page")
    for text in ("x" * 1_200_000, '"' * 299_000):  # which the way there makes four times as long
        _paste(page, "SQL", text)
        expect(refusal).to_contain_text("send it through the API")
        page.get_by_role("button", name="Close").click()
        expect(refusal).to_have_count(0)
        expect(page.get_by_label("SQL", exact=True)).to_have_text("SELECT 'old' AS word")
    _paste(page, "SQL", f"SELECT 'new' AS word -- {'x' * 90_000}")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("Preview", exact=True).get_by_role("cell")).to_have_text("new")
    expect(refusal).to_have_count(0)
    other = visit("/pipelines/new")
    expect(other.get_by_text("Nothing is wrong: it can run.")).to_be_visible()
    _paste(other, "Pipeline as JSON", " " * 1_200_000)
    expect(other.get_by_role("alert").filter(has_text="too long for this page")).to_be_visible()
    expect(other.get_by_label("Pipeline as JSON")).to_contain_text("shop.orders without doubles")


@pytest.mark.parametrize(("width", "height"), [(WIDE, 900), (NARROW, 844)])
def test_rows_come_where_they_are_seen(visit: Visit, rest: httpx.Client, width: int, height: int) -> None:
    _dataset(rest)
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
    page.keyboard.press("Control+Enter")  # far above the rows
    expect(rows.get_by_role("columnheader")).to_have_count(5)
    expect(rows.get_by_role("cell", name="EMEA").first).to_be_in_viewport()


def test_texts_of_others_stay_texts(visit: Visit, rest: httpx.Client) -> None:
    quoted = HOSTILE.replace('"', '""')
    rows = f'id,"{quoted}"\n1,"{quoted}"\n'
    rest.post("/datasets?name=shop.odd", content=rows, headers={"content-type": "text/csv"}).raise_for_status()
    schema = _schema(rest, HOSTILE, word="string")
    text = f"SELECT \"{quoted}\" AS word FROM shop.odd WHERE $word <> '' -- {HOSTILE}"
    given = [{"name": "word", "type": "string", "default": HOSTILE}]
    id = _registered(rest, HOSTILE_NAME, text, schema, description=HOSTILE, parameters=given)
    page = visit(f"/queries/{id}", width=NARROW)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text(f"Every row fits {HOSTILE}.")).to_be_visible()
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


# -- what must be there before


def _write(page: Page, text: str) -> None:
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def _paste(page: Page, label: str, text: str) -> None:
    """In place of all that is there."""
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
    page.get_by_label("Schema that the rows must fit").fill(name)
    page.get_by_role("option", name=name).click()


def _dataset(rest: httpx.Client) -> None:
    rest.post("/datasets?name=shop.orders", content=ORDERS, headers={"content-type": "text/csv"}).raise_for_status()


def _schema(rest: httpx.Client, name: str, **fields: str) -> str:
    shape = [{"name": field, "type": kind} for field, kind in fields.items()]
    answer = rest.post("/gts", json={"name": name, "type_id": gts.QUERY_RETURNS, "fields": shape})
    return str(answer.raise_for_status().json()["id"])


def _registered(rest: httpx.Client, name: str, text: str, schema: str, **more: Any) -> str:
    answer = rest.post("/queries", json={"name": name, "sql": text, "returns_schema_id": schema, **more})
    return str(answer.raise_for_status().json()["id"])
