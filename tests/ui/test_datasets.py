"""Dataset pages: list, rows, columns, versions and uploads, within the rights of each role."""

import json
import re
from decimal import Decimal
from typing import Any

import httpx
import pytest
from nicegui.elements.upload_files import SmallFileUpload
from playwright.sync_api import Locator, Page, expect

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.datasets.columns_tab import bin_labels, describe_histogram, has_histogram, to_table_row
from penstock.ui.datasets.detail import describe_append, list_facts
from penstock.ui.datasets.list import group_by_namespace
from penstock.ui.datasets.rows_tab import example_filter
from penstock.ui.datasets.upload import ChosenFile, detect_format
from penstock.ui.datasets.versions_tab import chart_series
from penstock.ui.time_zone import cookie_value, parse_zone
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
COLOURS = """texts => texts.map(text => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    let background = text;
    while ((numbers(getComputedStyle(background).backgroundColor)[3] ?? 1) === 0) background = background.parentElement;
    return [numbers(getComputedStyle(text).fill).slice(0, 3), numbers(getComputedStyle(background).backgroundColor).slice(0, 3)];
})"""  # colours of the texts of a chart and of their backgrounds
CSV, JSONL = {"content-type": "text/csv"}, {"content-type": "application/x-ndjson"}


def make(rest: httpx.Client, name: str, rows: str = "id,word\n1,one\n2,two\n3,three\n") -> dict[str, Any]:
    dataset: dict[str, Any] = (
        rest.post("/datasets", params={"name": name}, content=rows, headers=CSV).raise_for_status().json()
    )
    return dataset


def add(rest: httpx.Client, name: str, rows: str) -> None:
    rest.post(f"/datasets/{name}/rows", content=rows, headers=CSV).raise_for_status()


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).last.click()
    page.get_by_role("option", name=option, exact=True).click()


def choose_file(page: Page, name: str, content: str | bytes) -> None:
    """Choose a file in the upload dialog."""
    body = content if isinstance(content, bytes) else content.encode()
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "", "buffer": body})
    expect(page.get_by_text(f"{name} · ")).to_be_visible()


def containing(part: str) -> re.Pattern[str]:
    return re.compile(re.escape(part))


def contrast(ink: list[int], background: list[int]) -> float:
    """Return the contrast ratio of WCAG."""

    def luminance(colour: list[int]) -> float:
        parts = [channel / 255 for channel in colour]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((luminance(ink), luminance(background)))
    return (bright + 0.05) / (dark + 0.05)


def cells(table: Locator) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]


def assert_harmless(page: Page) -> None:
    assert page.evaluate("window.hacked") is None


# --- the list


def test_dataset_list_groups_by_namespace_and_searches_words(visit: Visit, rest: httpx.Client) -> None:
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
    expect(page.get_by_text("No datasets match.")).to_be_visible()
    page.get_by_label("Search names").fill("")
    choose(page, "Namespace", "Web")
    expect(page.get_by_role("heading", level=2)).to_have_text(["Web"])
    page.get_by_role("link", name="visits").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Web.visits")


def test_new_dataset_dialog_reports_errors_and_creates_dataset_from_file(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/datasets", Role.DEVELOPER)
    page.get_by_text("No datasets yet.").wait_for()
    page.get_by_role("button", name="New dataset").last.click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("Choose a file first.")
    choose_file(page, "rows.data", "id,amount\n1,10.5\n2,x\n")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("Choose the format of the file.")
    choose(page, "Format", "CSV")
    page.get_by_label("Name", exact=True).fill("sales")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("it must have the form namespace.table")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("shop.sales")
    choose_file(page, "broken.parquet", "no parquet at all")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("Cannot read broken.parquet")
    choose_file(page, "nothing.csv", "")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("Cannot read nothing.csv")
    expect(page.get_by_text("Choose another file")).to_be_visible()
    expect(page.get_by_text("0.00%")).to_be_hidden()
    choose_file(page, "rows.jsonl", json.dumps({"id": 1, "note": EVIL, "list": [1, None]}))
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.sales")
    expect(page.get_by_role("cell", name=EVIL)).to_be_visible()
    expect(page.get_by_role("cell", name="[1, null]")).to_be_visible()
    assert_harmless(page)
    assert rest.get("/datasets/shop.sales").json()["rows"] == 1


# --- one dataset


def test_rows_tab_pages_and_filters_rows(visit: Visit, rest: httpx.Client) -> None:
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
    expect(page.get_by_text("Invalid filter expression")).to_be_visible()
    box.fill("")
    page.get_by_label("Previous page").click()
    expect(page.get_by_text("1–50 of 61")).to_be_visible()
    expect(page.get_by_text("Invalid filter expression")).to_have_count(0)
    box.fill(f"`a b` = '{EVIL}x' or nope = 1")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("Column 'nope' not found")).to_be_visible()
    box.fill("`a b` = 'w1' and id < 5")
    expect(page.get_by_text("Column 'nope' not found")).to_have_count(0)
    page.get_by_role("button", name="Filter").click()
    expect(table.locator("tbody tr")).to_have_count(2)
    assert [row[0] for row in cells(table)] == ["1", "4"]
    box.fill("id < 0")
    box.press("Enter")
    expect(page.get_by_text("No rows match the filter.")).to_be_visible()
    assert_harmless(page)


def test_column_header_sorts_rows_of_the_page(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "shop.words", "id,word\n" + "".join(f"{n},w{n % 7}\n" for n in range(60)))
    page = visit("/datasets/shop.words", Role.VIEWER)
    page.get_by_role("tab", name="Rows").click()
    table = page.get_by_role("region", name="Rows of shop.words")
    header = table.get_by_role("columnheader", name="id")
    expect(header).to_have_attribute("aria-sort", "none")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(header.get_by_role("button")).to_be_focused()
    page.keyboard.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(table.get_by_role("row").nth(1)).to_contain_text("49")  # not 9: numbers are compared, not texts
    expect(page.get_by_text("Only the rows of this page are sorted.")).to_be_visible()


def test_timestamps_show_local_time_beside_utc(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "shop.words")
    page = visit("/datasets/shop.words", Role.VIEWER, time_zone="Asia/Kolkata")
    page.get_by_role("tab", name="Versions").click()
    expect(
        page.get_by_text(re.compile(r"^\d+ \w{3} \d{4}, \d\d:\d\d UTC \((\d+ \w{3}, )?\d\d:\d\d local\)$"))
    ).to_be_visible()


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "31 Jan 2026, 23:30 UTC (1 Feb, 00:30 local)"),
        ("America/New_York", "31 Jan 2026, 23:30 UTC (18:30 local)"),
        *((zone, "31 Jan 2026, 23:30 UTC") for zone in ("UTC", "Africa/Accra", "no/zone", "../etc/passwd", "a" * 99, "", 7, None)),
    ],
)  # fmt: skip
def test_format_timestamp_adds_local_time_of_a_valid_zone(zone: Any, text: str) -> None:
    assert formatting.format_timestamp("2026-01-31T23:30:00Z", parse_zone(zone)) == text


def test_version_select_keeps_tab_and_filter_and_queries_that_version(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "a.b")
    add(rest, "a.b", "id,word\n4,'&four\n")
    page = visit("/datasets/a.b", Role.VIEWER)
    box = page.get_by_role("textbox", name="Filter")
    box.fill("id > 1 and word <> '%&\"'")
    box.press("Enter")
    expect(page.get_by_text("1–3", exact=True)).to_be_visible()
    choose(page, "Version", "1 · create · 3 rows")
    expect(page.get_by_text("You are viewing version 1; the newest version is 2.")).to_be_visible()
    expect(box).to_have_value("id > 1 and word <> '%&\"'")
    expect(page.get_by_text("1–2", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Columns").click()
    expect(page.get_by_text("All 3 rows")).to_be_visible()
    choose(page, "Version", "2 · append · 4 rows")
    expect(page.get_by_text("All 4 rows")).to_be_visible()
    expect(page.get_by_role("tab", name="Columns")).to_have_attribute("aria-selected", "true")
    choose(page, "Version", "1 · create · 3 rows")
    expect(page.get_by_text("All 3 rows")).to_be_visible()
    page.get_by_role("button", name="Query dataset").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("3 rows · read a.b v1")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Show the newest version").click()
    expect(page.get_by_text("1–4 of 4")).to_be_visible()
    page.get_by_role("button", name="Query dataset").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("4 rows · read a.b v2")).to_be_visible()


def test_data_table_cuts_long_value_and_opens_full_value(visit: Visit, rest: httpx.Client) -> None:
    long = EVIL + " word" * 1_000 + " end"
    body = "\n".join(json.dumps({"text": text, "n": 7}) for text in (long, "short"))
    rest.post("/datasets", params={"name": "a.b"}, content=body, headers=JSONL).raise_for_status()
    page = visit("/datasets/a.b", Role.VIEWER)
    cell = page.get_by_role("cell", name=EVIL)
    expect(cell.get_by_role("button")).to_be_visible()
    width = cell.get_by_role("button").evaluate("button => button.getBoundingClientRect().width")
    assert 0 < width < 500, "the column leaves room for others"
    expect(page.get_by_role("cell", name="short").get_by_role("button")).to_have_count(0)
    cell.get_by_role("button").press("Enter")
    expect(page.get_by_role("dialog", name="Full value")).to_contain_text(long)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cell.get_by_role("button")).to_be_focused()
    assert_harmless(page)


@pytest.mark.parametrize("dark", [False, True])
def test_chart_text_contrast_in_both_themes(visit: Visit, rest: httpx.Client, dark: bool) -> None:
    make(rest, "a.b")
    page = visit("/datasets/a.b", Role.VIEWER, dark=dark)
    page.get_by_role("tab", name="Versions").click()
    labels = page.get_by_role("img", name="Changes by version").locator("svg text")
    expect(labels.filter(has_text="Inserted")).to_be_visible()
    for ink, background in labels.evaluate_all(COLOURS):
        assert contrast(ink, background) >= 4.5, (ink, background)


def test_columns_tab_shows_statistics_and_histogram(visit: Visit, rest: httpx.Client) -> None:
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
    assert cells(table)[2][-2:] == ["unknown", "short"], "a truncated minimum is not shown"
    assert cells(table)[3][3:] == ["99 (99 %)", "1.5", "1.5"]
    chart = page.get_by_role("img", name="Values of id between 0 and 95: rows from 5 to 5")
    expect(chart).to_be_visible()
    expect(page.get_by_text("All 100 rows.")).to_be_visible()
    choose(page, "Column", "text")
    top = page.get_by_role("list", name="Most frequent values of text")
    expect(top.get_by_role("listitem")).to_have_count(2)
    expect(top).to_contain_text(EVIL)
    expect(top).to_contain_text("50 (50 %)")
    expect(page.get_by_text("All 100 rows; 2 distinct values.")).to_be_visible()
    expect(table.get_by_role("cell", name=EVIL)).to_be_visible()
    choose(page, "Column", "at")
    expect(page.get_by_role("img", name="Values of at between 2026-01-01 and 2026-09-01")).to_be_visible()
    assert_harmless(page)


def test_versions_tab_shows_charts_and_authors(visit: Visit, rest: httpx.Client, service: Service, tenant: Any) -> None:
    make(rest, "a.b")
    with service.rest(tenant, Role.DEVELOPER, user="<b>bob</b>") as bob:
        for number in range(24):
            add(bob, "a.b", f"id,word\n{number},x\n")
    page = visit("/datasets/a.b?version=1", Role.VIEWER)
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_role("img", name="Rows by version")).to_have_attribute(
        "aria-label", containing("Rows from 3 to 27")
    )
    changes = page.get_by_role("img", name="Changes by version")
    expect(changes).to_have_attribute("aria-label", containing("Inserted from 1 to 3; Updated from 0 to 0"))
    table = page.get_by_role("region", name="Versions of a.b")
    expect(page.get_by_text("1–20 of 25")).to_be_visible()
    assert cells(table)[0][2:8] == ["<b>bob</b>", "append", "1", "0", "0", "27"]
    page.get_by_label("Next page").last.click()
    expect(page.get_by_text("21–25 of 25")).to_be_visible()
    assert cells(table)[-1][2:8] == ["ada", "create", "3", "0", "0", "3"]
    table.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_text("You are viewing version 3; the newest version is 25.")).to_be_visible()
    expect(page.get_by_text("1–5 of 5")).to_be_visible()


def test_append_file_with_double_click_appends_once(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "a.b")
    page = visit("/datasets/a.b", Role.DEVELOPER)
    page.get_by_role("button", name="Append a file").click()
    choose_file(page, "more.csv", f'id,word,extra\n4,four,"{EVIL.replace(chr(34), chr(34) * 2)}"\n')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The dataset does not have the columns extra")
    choose_file(page, "more.csv", "id,word\nfour,4\n")
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("id")
    many = "".join(f'{number},"{EVIL.replace(chr(34), chr(34) * 2)}"\n' for number in range(20_000))
    choose_file(page, "many.csv", f"id,word\n{many}")
    page.get_by_role("button", name="Append", exact=True).dblclick()
    expect(page.get_by_text("20,000 rows appended. The newest version is 2.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("1–50 of 20,003")).to_be_visible()
    history = rest.get("/datasets/a.b/history").json()["value"]
    assert [(version["operation"], version["inserted"]) for version in history] == [("append", 20_000), ("create", 3)]
    assert_harmless(page)


def test_append_same_chosen_file_twice_is_replayed(rest: httpx.Client) -> None:
    make(rest, "a.b")
    rows = b"id,word\n9,nine\n"
    chosen = ChosenFile(SmallFileUpload("rows.csv", "", rows))
    receipts = [rest.post("/datasets/a.b/rows", content=rows, headers=chosen.headers("CSV")).json() for _ in range(2)]
    assert [receipt["replayed"] for receipt in receipts] == [False, True]
    chosen_again = ChosenFile(SmallFileUpload("rows.csv", "", rows))
    assert not rest.post("/datasets/a.b/rows", content=rows, headers=chosen_again.headers("CSV")).json()["replayed"]
    assert rest.get("/datasets/a.b").json()["rows"] == 5, "a file that is chosen again is appended again"


def test_dataset_page_without_write_access_has_no_append_button(visit: Visit, rest: httpx.Client) -> None:
    make(rest, "a.b")
    rest.post(
        "/datasets", params={"name": "a.fixed", "read_only": "true"}, content="id\n1\n", headers=CSV
    ).raise_for_status()
    for path, role in (("/datasets/a.b", Role.VIEWER), ("/datasets/a.fixed", Role.DEVELOPER)):
        page = visit(path, role)
        expect(page.get_by_role("button", name="Query dataset")).to_be_visible()
        expect(page.get_by_role("button", name="Append a file")).to_have_count(0)
    expect(page.get_by_text("read-only")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/datasets/no.such", "Dataset 'no.such' not found"),
        ("/datasets/%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E", 'Dataset \'<img src=x onerror="window.hacked=1">\' not found'),
        ("/datasets/a.b?version=7", "Version 7 of a.b does not exist. The newest version is 1."),
        ("/datasets/a.b?version=<b>", "Invalid version '<b>'. A version is a whole number."),
    ],
)  # fmt: skip
def test_dataset_page_of_unknown_dataset_or_version_shows_error(
    visit: Visit, rest: httpx.Client, path: str, message: str
) -> None:
    make(rest, "a.b")
    page = visit(path, Role.VIEWER)
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.get_by_role("link", name="‹ Datasets")).to_have_count(1)
    assert_harmless(page)


def test_dataset_pages_fit_narrow_screen_in_dark_theme(visit: Visit, rest: httpx.Client) -> None:
    long = "a_rather_long_name_" * 5
    make(rest, f"shop.{long}", f"{long},{long}b\n1,{'word' * 50}\n")
    page = visit("/datasets", width=NARROW, dark=True)
    page.get_by_role("link", name=long).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"shop.{long}")
    for tab, text in (("Columns", "All 1 row."), ("Versions", "1–1 of 1"), ("Rows", "1–1 of 1")):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_text(text).last).to_be_visible()
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, tab
    page.get_by_role("button", name="Append a file").click()
    expect(page.get_by_role("button", name="Append", exact=True)).to_be_in_viewport()


# --- without a browser


def test_group_by_namespace_ignores_case() -> None:
    rows = [{"schema_name": "web", "n": 1}, {"schema_name": "Web", "n": 2}, {"schema_name": "x", "n": 3}]
    groups = group_by_namespace(rows, ["Web"])
    assert [(name, [row["n"] for row in group]) for name, group in groups] == [("Web", [1, 2]), ("x", [3])]


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.CSV", "CSV"), ("a.b.jsonl", "JSON lines"), ("a.pq", "Parquet"), ("a.feather", "Arrow"), ("csv", None), ("a.gz", None)],
)  # fmt: skip
def test_detect_format_uses_file_extension(name: str, format: str | None) -> None:
    assert detect_format(name) == format


def test_column_row_distinguishes_unknown_from_empty() -> None:
    column = {"name": "x", "type": "int64", "nullable": True, "nulls": None, "min": None, "max": None}
    assert [to_table_row(column, 5)[key] for key in ("nulls", "min", "max")] == ["unknown"] * 3
    assert [to_table_row({**column, "nulls": 5}, 5)[key] for key in ("nulls", "min", "max")] == [
        "5 (100 %)",
        "–",
        "–",
    ]
    assert to_table_row({**column, "nulls": 0, "min": False, "max": True}, 5)["min"] == "false"


@pytest.mark.parametrize(
    ("starts", "end", "labels"),
    [
        ([0, 20_000], 40_000, ["0", "20,000", "40,000"]),
        ([Decimal("0.0"), Decimal("0.10")], Decimal("20.0"), ["0", "0.1", "20"]),
        ([Decimal("1e308")], Decimal("2e308"), ["1e+308", "inf"]),
        (["2026-01-01", "2026-02-01"], "2026-03-01", ["2026-01-01", "2026-02-01", "2026-03-01"]),
        (["2026-01-01T00:00:00Z"], "2026-01-02T00:00:00Z", ["2026-01-01", "2026-01-02"]),
        (["2026-01-01T00:00:00"], "2026-01-01T00:30:00", ["2026-01-01 00:00:00", "2026-01-01 00:30:00"]),
    ],
)
def test_bin_labels_are_short(starts: list[Any], end: Any, labels: list[str]) -> None:
    bins = [{"from": start, "to": after, "count": 1} for start, after in zip(starts, [*starts[1:], end], strict=True)]
    assert bin_labels(bins) == labels


def test_describe_histogram_mentions_sample() -> None:
    whole = {"rows": 9, "sampled": False, "nulls": 0, "not_finite": 0, "distinct": None}
    assert describe_histogram(whole, 9) == "All 9 rows."
    part = {"rows": 9, "sampled": True, "nulls": 1, "not_finite": 2, "distinct": 3}
    assert describe_histogram(part, 1_000) == (
        "Sample of 9 rows out of 1,000; 1 NULL; 2 NaN or infinite (not shown); 3 distinct values."
    )


def test_example_filter_uses_existing_column() -> None:
    assert (
        example_filter([{"name": "tags", "type": {"list": "string"}}, {"name": "a b", "type": "int64"}])
        == "`a b` > 100"
    )
    assert example_filter([{"name": "day", "type": "date32[day]"}]) == "day >= DATE '2026-01-01'"
    assert has_histogram({"type": {"decimal": [9, 2]}})
    assert not has_histogram({"type": {"list": "string"}})
    assert not has_histogram({"type": "binary"})


def test_describe_append_and_version_facts() -> None:
    receipt = {"replayed": False, "written": [{"inserted": 1, "version": 1_002}]}
    assert describe_append(receipt) == "1 row appended. The newest version is 1002."
    assert "were already appended" in describe_append({**receipt, "replayed": True})
    version = {"rows": 2, "schema": [1], "bytes": 1_500, "files": 1, "at": None, "author": "ada", "read_only": True}
    assert dict(list_facts(version))["Size"] == "1.5 KB in 1 file"
    labels, rows, changes = chart_series(
        [{"version": 1, "at": "2026-01-31T00:00:00Z", "rows": 3, "inserted": 3, "updated": 0, "deleted": 1}]
    )
    assert (labels, rows, changes) == (["v1 · 31 Jan"], [3], {"Inserted": [3], "Updated": [0], "Deleted": [1]})


@pytest.mark.parametrize(
    ("cookies", "zone"),
    [
        ("penstock_time_zone=Asia%2FKolkata", "Asia/Kolkata"),
        ("a=b; penstock_time_zone=UTC; c=d", "UTC"),
        ("", None),
        ("other=1", None),
        ("penstock_time_zone", None),
        ("=;;\0", None),
    ],
)
def test_cookie_value_reads_the_time_zone_of_the_browser(cookies: str, zone: str | None) -> None:
    assert cookie_value({"HTTP_COOKIE": cookies}) == zone
