"""Datasets on the page: found, looked at from every side, filled by a file, and never more than the role allows."""

import json
import re
from decimal import Decimal
from typing import Any

import httpx
import pytest
from nicegui.elements.upload_files import SmallFileUpload
from playwright.sync_api import Locator, Page, expect

from penstock.core.caller import Role
from penstock.ui.datasets.columns_tab import can_be_spread, edges, read_in_words, share, told_of
from penstock.ui.datasets.detail import appended, facts
from penstock.ui.datasets.list import by_schema
from penstock.ui.datasets.rows_tab import example
from penstock.ui.datasets.upload import Brought, format_of
from penstock.ui.datasets.versions_tab import series
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
COLOURS = """texts => texts.map(text => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    let paper = text;
    while ((numbers(getComputedStyle(paper).backgroundColor)[3] ?? 1) === 0) paper = paper.parentElement;
    return [numbers(getComputedStyle(text).fill).slice(0, 3), numbers(getComputedStyle(paper).backgroundColor).slice(0, 3)];
})"""  # of texts in a drawing, and of what is behind them
CSV, JSONL = {"content-type": "text/csv"}, {"content-type": "application/x-ndjson"}


def make(rest: httpx.Client, name: str, rows: str = "id,word\n1,one\n2,two\n3,three\n") -> dict[str, Any]:
    told: dict[str, Any] = (
        rest.post("/datasets", params={"name": name}, content=rows, headers=CSV).raise_for_status().json()
    )
    return told


def add(rest: httpx.Client, name: str, rows: str) -> None:
    rest.post(f"/datasets/{name}/rows", content=rows, headers=CSV).raise_for_status()


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).last.click()
    page.get_by_role("option", name=option, exact=True).click()


def bring(page: Page, name: str, content: str | bytes) -> None:
    """Choose a file in the dialog."""
    body = content if isinstance(content, bytes) else content.encode()
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "", "buffer": body})
    expect(page.get_by_text(f"{name} · ")).to_be_visible()


def holding(part: str) -> re.Pattern[str]:
    return re.compile(re.escape(part))


def contrast(ink: list[int], paper: list[int]) -> float:
    """As WCAG has it."""

    def light(colour: list[int]) -> float:
        parts = [each / 255 for each in colour]
        red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(ink), light(paper)))
    return (bright + 0.05) / (dark + 0.05)


def cells(table: Locator) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]


def assert_harmless(page: Page) -> None:
    assert page.evaluate("window.hacked") is None


# --- the list


def test_datasets_are_browsed_by_schema_and_found_by_words(visit: Visit, rest: httpx.Client) -> None:
    for name in ("shop.orders", "Web.visits", "web.clicks", "shop.customers"):
        make(rest, name)
    page = visit("/datasets", Role.VIEWER)
    expect(page.get_by_role("heading", level=2)).to_have_text(["shop", "Web"])
    shop = page.get_by_role("region", name="Datasets of shop")
    assert [row[:3] for row in cells(shop)] == [["customers", "2", "3"], ["orders", "2", "3"]]
    expect(page.get_by_text("1–4 of 4")).to_be_visible()
    expect(page.get_by_role("button", name="New dataset")).to_have_count(0)
    page.get_by_label("Search names").fill("CLI")
    expect(page.get_by_role("link", name="clicks")).to_be_visible()
    expect(shop).to_have_count(0)
    page.get_by_label("Search names").fill("nothing of the kind")
    expect(page.get_by_text("No dataset has such a name.")).to_be_visible()
    page.get_by_label("Search names").fill("")
    choose(page, "Schema", "Web")
    expect(page.get_by_role("heading", level=2)).to_have_text(["Web"])
    page.get_by_role("link", name="visits").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Web.visits")


def test_the_first_dataset_is_made_of_a_file(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/datasets", Role.DEVELOPER)
    page.get_by_text("There are no datasets yet.").wait_for()
    page.get_by_role("button", name="New dataset").last.click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("Choose a file first.")
    bring(page, "rows.data", "id,amount\n1,10.5\n2,x\n")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("Say which format the file has.")
    choose(page, "Format", "CSV")
    page.get_by_label("Name", exact=True).fill("sales")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("names no table: write schema.table")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("shop.sales")
    bring(page, "broken.parquet", "no parquet at all")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("broken.parquet cannot be read")
    bring(page, "nothing.csv", "")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("nothing.csv cannot be read")
    expect(page.get_by_text("Choose another file")).to_be_visible()
    expect(page.get_by_text("0.00%")).to_be_hidden()
    bring(page, "rows.jsonl", json.dumps({"id": 1, "note": EVIL, "list": [1, None]}))
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.sales")
    expect(page.get_by_role("cell", name=EVIL)).to_be_visible()
    expect(page.get_by_role("cell", name="[1, null]")).to_be_visible()
    assert_harmless(page)
    assert rest.get("/datasets/shop.sales").json()["rows"] == 1


# --- one of them


def test_rows_of_any_version_are_paged_and_filtered(visit: Visit, rest: httpx.Client) -> None:
    columns = [
        {"name": "id", "type": "int64"},
        {"name": "price", "type": "decimal(38,2)"},
        {"name": "a b", "type": "string"},
    ]
    rest.post("/datasets", json={"name": "shop.prices", "schema": columns}).raise_for_status()
    add(rest, "shop.prices", "id,price,a b\n" + "".join(f"{i},12345678901234567890.25,w{i % 3}\n" for i in range(60)))
    add(rest, "shop.prices", f'id,price,a b\n99,,"{EVIL.replace(chr(34), chr(34) * 2)}"\n')
    page = visit("/datasets/shop.prices", Role.VIEWER)
    table = page.get_by_role("region", name="Rows of shop.prices")
    expect(page.get_by_text("1–50 of 61")).to_be_visible()
    assert cells(table)[0] == ["0", "12345678901234567890.25", "w0"]
    page.get_by_label("Next page").click()
    expect(page.get_by_text("51–61 of 61")).to_be_visible()
    assert cells(table)[-1] == ["99", "∅", EVIL]
    box = page.get_by_role("textbox", name="Filter")
    box.fill("id >")
    box.press("Enter")
    expect(page.get_by_text("the selector cannot be read")).to_be_visible()
    box.fill("")
    page.get_by_label("Previous page").click()
    expect(page.get_by_text("1–50 of 61")).to_be_visible()
    expect(page.get_by_text("the selector cannot be read")).to_have_count(0)
    box.fill(f"`a b` = '{EVIL}x' or nope = 1")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("there is no column 'nope'")).to_be_visible()
    box.fill("`a b` = 'w1' and id < 5")
    expect(page.get_by_text("there is no column")).to_have_count(0)
    page.get_by_role("button", name="Filter").click()
    expect(table.locator("tbody tr")).to_have_count(2)
    assert [row[0] for row in cells(table)] == ["1", "4"]
    box.fill("id < 0")
    box.press("Enter")
    expect(page.get_by_text("No row fits the filter.")).to_be_visible()
    assert_harmless(page)


def test_another_version_shows_what_was_looked_at_and_is_the_one_that_is_queried(
    visit: Visit, rest: httpx.Client
) -> None:
    make(rest, "a.b")
    add(rest, "a.b", "id,word\n4,'&four\n")
    page = visit("/datasets/a.b", Role.VIEWER)
    box = page.get_by_role("textbox", name="Filter")
    box.fill("id > 1 and word <> '%&\"'")
    box.press("Enter")
    expect(page.get_by_text("1–3", exact=True)).to_be_visible()
    choose(page, "Version", "1 · create · 3 rows")
    expect(page.get_by_text("This is how it was at version 1; the newest is 2.")).to_be_visible()
    expect(box).to_have_value("id > 1 and word <> '%&\"'")
    expect(page.get_by_text("1–2", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Columns").click()
    expect(page.get_by_text("All 3 rows")).to_be_visible()
    choose(page, "Version", "2 · append · 4 rows")
    expect(page.get_by_text("All 4 rows")).to_be_visible()
    expect(page.get_by_role("tab", name="Columns")).to_have_attribute("aria-selected", "true")
    choose(page, "Version", "1 · create · 3 rows")
    expect(page.get_by_text("All 3 rows")).to_be_visible()
    page.get_by_role("button", name="Query it").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("3 rows · read a.b v1")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Show the newest").click()
    expect(page.get_by_text("1–4 of 4")).to_be_visible()
    page.get_by_role("button", name="Query it").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("4 rows · read a.b v2")).to_be_visible()


def test_a_long_value_is_cut_in_the_table_and_can_be_read_as_a_whole(visit: Visit, rest: httpx.Client) -> None:
    long = EVIL + " word" * 1_000 + " end"
    body = "\n".join(json.dumps({"text": text, "n": 7}) for text in (long, "short"))
    rest.post("/datasets", params={"name": "a.b"}, content=body, headers=JSONL).raise_for_status()
    page = visit("/datasets/a.b", Role.VIEWER)
    cell = page.get_by_role("cell", name=EVIL)
    expect(cell.get_by_role("button")).to_be_visible()
    width = cell.get_by_role("button").evaluate("button => button.getBoundingClientRect().width")
    assert 0 < width < 500, "it leaves room for others"
    expect(page.get_by_role("cell", name="short").get_by_role("button")).to_have_count(0)
    cell.get_by_role("button").press("Enter")
    expect(page.get_by_role("dialog", name="The whole value")).to_contain_text(long)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cell.get_by_role("button")).to_be_focused()
    assert_harmless(page)


@pytest.mark.parametrize("dark", [False, True])
def test_charts_can_be_read_in_either_theme(visit: Visit, rest: httpx.Client, dark: bool) -> None:
    make(rest, "a.b")
    page = visit("/datasets/a.b", Role.VIEWER, dark=dark)
    page.get_by_role("tab", name="Versions").click()
    labels = page.get_by_role("img", name="Changes by version").locator("svg text")
    expect(labels.filter(has_text="Inserted")).to_be_visible()
    for ink, paper in labels.evaluate_all(COLOURS):
        assert contrast(ink, paper) >= 4.5, (ink, paper)


def test_columns_tell_what_is_known_and_how_values_are_spread(visit: Visit, rest: httpx.Client) -> None:
    rows = [
        {
            "id": i,
            "at": f"2026-{1 + i % 9:02}-02T12:00:00",
            "text": EVIL if i % 2 else "short",
            "gone": None if i else 1.5,
        }
        for i in range(100)
    ]
    body = "\n".join(map(json.dumps, rows))
    rest.post("/datasets", params={"name": "a.b"}, content=body, headers=JSONL).raise_for_status()
    page = visit("/datasets/a.b", Role.VIEWER)
    page.get_by_role("tab", name="Columns").click()
    table = page.get_by_role("region", name="Columns of a.b")
    expect(table.locator("tbody tr")).to_have_count(4)
    assert cells(table)[0] == ["id", "int64", "yes", "0", "0", "99"]
    assert cells(table)[2][-2:] == ["unknown", "short"], "what was cut is not told"
    assert cells(table)[3][3:] == ["99 (99 %)", "1.5", "1.5"]
    chart = page.get_by_role("img", name="Values of id between 0 and 95: rows from 5 to 5")
    expect(chart).to_be_visible()
    expect(page.get_by_text("All 100 rows.")).to_be_visible()
    choose(page, "Column", "text")
    top = page.get_by_role("list", name="Most frequent values of text")
    expect(top.get_by_role("listitem")).to_have_count(2)
    expect(top).to_contain_text(EVIL)
    expect(top).to_contain_text("50 (50 %)")
    expect(page.get_by_text("All 100 rows; 2 different values.")).to_be_visible()
    expect(table.get_by_role("cell", name=EVIL)).to_be_visible()
    choose(page, "Column", "at")
    expect(page.get_by_role("img", name="Values of at between 2026-01-01 and 2026-09-01")).to_be_visible()
    assert_harmless(page)


def test_versions_are_drawn_and_tell_who_did_what(
    visit: Visit, rest: httpx.Client, service: Service, tenant: Any
) -> None:
    make(rest, "a.b")
    with service.rest(tenant, Role.DEVELOPER, user="<b>bob</b>") as bob:
        for number in range(24):
            add(bob, "a.b", f"id,word\n{number},x\n")
    page = visit("/datasets/a.b?version=1", Role.VIEWER)
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_role("img", name="Rows by version")).to_have_attribute(
        "aria-label", holding("Rows from 3 to 27")
    )
    changes = page.get_by_role("img", name="Changes by version")
    expect(changes).to_have_attribute("aria-label", holding("Inserted from 1 to 3; Updated from 0 to 0"))
    table = page.get_by_role("region", name="Versions of a.b")
    expect(page.get_by_text("1–20 of 25")).to_be_visible()
    assert cells(table)[0][2:8] == ["<b>bob</b>", "append", "1", "0", "0", "27"]
    page.get_by_label("Next page").last.click()
    expect(page.get_by_text("21–25 of 25")).to_be_visible()
    assert cells(table)[-1][2:8] == ["ada", "create", "3", "0", "0", "3"]
    table.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_text("This is how it was at version 3; the newest is 25.")).to_be_visible()
    expect(page.get_by_text("1–5 of 5")).to_be_visible()


def test_a_file_is_appended_once_however_often_one_clicks(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "a.b")
    page = visit("/datasets/a.b", Role.DEVELOPER)
    page.get_by_role("button", name="Append a file").click()
    bring(page, "more.csv", f'id,word,extra\n4,four,"{EVIL.replace(chr(34), chr(34) * 2)}"\n')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The rows have columns that the dataset lacks: extra")
    bring(page, "more.csv", "id,word\nfour,4\n")
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("id")
    many = "".join(f'{number},"{EVIL.replace(chr(34), chr(34) * 2)}"\n' for number in range(20_000))
    bring(page, "many.csv", f"id,word\n{many}")
    page.get_by_role("button", name="Append", exact=True).dblclick()
    expect(page.get_by_text("20,000 rows appended. The newest version is 2.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("1–50 of 20,003")).to_be_visible()
    history = rest.get("/datasets/a.b/history").json()["value"]
    assert [(each["operation"], each["inserted"]) for each in history] == [("append", 20_000), ("create", 3)]
    assert_harmless(page)


def test_a_file_that_is_sent_again_is_not_appended_again(rest: httpx.Client) -> None:
    make(rest, "a.b")
    rows = b"id,word\n9,nine\n"
    brought = Brought(SmallFileUpload("rows.csv", "", rows))
    sent = [rest.post("/datasets/a.b/rows", content=rows, headers=brought.headers("CSV")).json() for _ in range(2)]
    assert [each["replayed"] for each in sent] == [False, True]
    same = Brought(SmallFileUpload("rows.csv", "", rows))
    assert not rest.post("/datasets/a.b/rows", content=rows, headers=same.headers("CSV")).json()["replayed"]
    assert rest.get("/datasets/a.b").json()["rows"] == 5, "who chooses it anew means it"


def test_who_may_not_write_is_not_asked_to(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "a.b")
    rest.post(
        "/datasets", params={"name": "a.fixed", "read_only": "true"}, content="id\n1\n", headers=CSV
    ).raise_for_status()
    for path, role in (("/datasets/a.b", Role.VIEWER), ("/datasets/a.fixed", Role.DEVELOPER)):
        page = visit(path, role)
        expect(page.get_by_role("button", name="Query it")).to_be_visible()
        expect(page.get_by_role("button", name="Append a file")).to_have_count(0)
    expect(page.get_by_text("read-only")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/datasets/no.such", "There is no dataset 'no.such'"),
        ("/datasets/%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E", 'There is no dataset \'<img src=x onerror="window.hacked=1">'),
        ("/datasets/a.b?version=7", "Version 7 of a.b does not exist; the newest is 1."),
        ("/datasets/a.b?version=<b>", "'<b>' is no version: a version is a number."),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_in_words(visit: Visit, rest: httpx.Client, path: str, sentence: str) -> None:
    make(rest, "a.b")
    page = visit(path, Role.VIEWER)
    expect(page.get_by_role("alert")).to_contain_text(sentence)
    expect(page.get_by_role("link", name="‹ Datasets")).to_have_count(1)
    assert_harmless(page)


def test_everything_fits_on_a_telephone_in_the_dark(visit: Visit, rest: httpx.Client) -> None:
    long = "a_rather_long_name_" * 5
    make(rest, f"shop.{long}", f"{long},{long}b\n1,{'word' * 50}\n")
    page = visit("/datasets", width=NARROW, dark=True)
    page.get_by_role("link", name=long).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"shop.{long}")
    for tab, shown in (("Columns", "All 1 row."), ("Versions", "1–1 of 1"), ("Rows", "1–1 of 1")):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_text(shown).last).to_be_visible()
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, tab
    page.get_by_role("button", name="Append a file").click()
    expect(page.get_by_role("button", name="Append", exact=True)).to_be_in_viewport()


# --- what is decided without a browser


def test_schemas_that_differ_in_case_are_one() -> None:
    rows = [{"schema_name": "web", "n": 1}, {"schema_name": "Web", "n": 2}, {"schema_name": "x", "n": 3}]
    found = by_schema(rows, ["Web"])
    assert [(name, [each["n"] for each in group]) for name, group in found] == [("Web", [1, 2]), ("x", [3])]


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.CSV", "CSV"), ("a.b.jsonl", "JSON lines"), ("a.pq", "Parquet"), ("a.feather", "Arrow"), ("csv", None), ("a.gz", None)],
)  # fmt: skip
def test_a_name_tells_the_format(name: str, format: str | None) -> None:
    assert format_of(name) == format


def test_unknown_and_nothing_are_told_apart() -> None:
    column = {"name": "x", "type": "int64", "nullable": True, "nulls": None, "min": None, "max": None}
    assert [told_of(column, 5)[each] for each in ("nulls", "min", "max")] == ["unknown"] * 3
    assert [told_of({**column, "nulls": 5}, 5)[each] for each in ("nulls", "min", "max")] == ["5 (100 %)", "–", "–"]
    assert told_of({**column, "nulls": 0, "min": False, "max": True}, 5)["min"] == "false"
    assert (share(0, 5), share(1, 1000), share(1, 2), share(1, 0)) == ("", " (< 1 %)", " (50 %)", "")


@pytest.mark.parametrize(
    ("starts", "end", "told"),
    [
        ([0, 20_000], 40_000, ["0", "20,000", "40,000"]),
        ([Decimal("0.0"), Decimal("0.10")], Decimal("20.0"), ["0", "0.1", "20"]),
        ([Decimal("1e308")], Decimal("2e308"), ["1e+308", "inf"]),
        (["2026-01-01", "2026-02-01"], "2026-03-01", ["2026-01-01", "2026-02-01", "2026-03-01"]),
        (["2026-01-01T00:00:00Z"], "2026-01-02T00:00:00Z", ["2026-01-01", "2026-01-02"]),
        (["2026-01-01T00:00:00"], "2026-01-01T00:30:00", ["2026-01-01 00:00:00", "2026-01-01 00:30:00"]),
    ],
)
def test_edges_are_short(starts: list[Any], end: Any, told: list[str]) -> None:
    bins = [{"from": start, "to": after, "count": 1} for start, after in zip(starts, [*starts[1:], end], strict=True)]
    assert edges(bins) == told


def test_a_sample_says_so() -> None:
    whole = {"rows": 9, "sampled": False, "nulls": 0, "not_finite": 0, "distinct": None}
    assert read_in_words(whole, 9) == "All 9 rows."
    part = {"rows": 9, "sampled": True, "nulls": 1, "not_finite": 2, "distinct": 3}
    assert read_in_words(part, 1_000) == (
        "A sample of 9 rows of 1,000, from everywhere in the dataset; 1 NULL; "
        "2 NaN or infinite, which are not drawn; 3 different values."
    )


def test_a_condition_is_offered_for_a_column_that_is_there() -> None:
    assert example([{"name": "tags", "type": {"list": "string"}}, {"name": "a b", "type": "int64"}]) == "`a b` > 100"
    assert example([{"name": "day", "type": "date32[day]"}]) == "day >= DATE '2026-01-01'"
    assert can_be_spread({"type": {"decimal": [9, 2]}})
    assert not can_be_spread({"type": {"list": "string"}})
    assert not can_be_spread({"type": "binary"})


def test_what_was_written_is_told_in_words() -> None:
    receipt = {"replayed": False, "written": [{"inserted": 1, "version": 1_002}]}
    assert appended(receipt) == "1 row appended. The newest version is 1,002."
    assert "had been appended before" in appended({**receipt, "replayed": True})
    version = {"rows": 2, "schema": [1], "bytes": 1_500, "files": 1, "at": None, "author": "ada", "read_only": True}
    assert dict(facts(version))["Size"] == "1.5 KB in 1 file"
    labels, rows, changes = series(
        [{"version": 1, "at": "2026-01-31T00:00:00Z", "rows": 3, "inserted": 3, "updated": 0, "deleted": 1}]
    )
    assert (labels, rows, changes) == (["v1 · 31 Jan"], [3], {"Inserted": [3], "Updated": [0], "Deleted": [1]})
