"""The first page says what this is, how it is, what happened, and what to do next."""

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.ui.home import UPLOAD, WHAT, Has, in_words, next_things
from ui.conftest import NARROW, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
CSV = {"content-type": "text/csv"}


def test_a_newcomer_uploads_a_file_and_sees_what_came_of_it(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/", Role.DEVELOPER)
    expect(page.get_by_text(WHAT)).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Ready: catalog and store can be used")
    for nothing in ("No dataset yet.", "No pipeline has run yet.", "No schema yet."):
        expect(page.get_by_text(nothing)).to_be_visible()
    expect(page.get_by_role("button", name="Try it:")).to_have_count(3)
    page.get_by_role("button", name="Try it: Upload a file").click()
    page.get_by_label("Name", exact=True).fill("shop.orders")
    page.locator("input[type=file]").set_input_files({"name": "o.csv", "mimeType": "text/csv", "buffer": b"id\n1\n2\n"})
    expect(page.get_by_text("o.csv · 7 B")).to_be_visible()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.orders")
    page.get_by_role("link", name="Home").click()
    expect(page.get_by_role("region", name="Datasets that changed")).to_contain_text("shop.orders")
    page.get_by_role("button", name="Try it: Look at shop.orders").click()
    expect(page.get_by_text("1–2 of 2")).to_be_visible()
    assert rest.get("/datasets/shop.orders").json()["rows"] == 2


def test_what_changed_lately_is_first_and_only_text(visit: Visit, rest: httpx.Client) -> None:
    for name in ("a.first", "a.second"):
        rest.post("/datasets", params={"name": name}, content=b"id\n1\n", headers=CSV).raise_for_status()
    rest.post("/datasets/a.first/rows", content=b"id\n2\n", headers=CSV).raise_for_status()
    schema = {"name": EVIL, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}]}
    made = rest.post("/gts", json=schema).raise_for_status().json()
    page = visit("/", Role.VIEWER, user="<b>eve</b>", width=NARROW, dark=True)
    rows = page.get_by_role("region", name="Datasets that changed").locator("tbody tr")
    expect(rows).to_have_count(2)
    assert [row.locator("td").all_inner_texts()[:4] for row in rows.all()] == [
        ["a.first", "append", "2", "ada"],
        ["a.second", "create", "1", "ada"],
    ]
    expect(page.get_by_role("region", name="Schemas that changed").get_by_role("link", name=EVIL)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    expect(page.get_by_role("button", name="Try it: Read the schemas")).to_be_visible()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Every route, to read and to try").click()
    expect(opened.value).to_have_title("Penstock")
    assert opened.value.url.endswith("/docs")
    opened.value.close()
    page.get_by_role("link", name=EVIL).click()
    page.wait_for_url(f"**/schemas/{made['id']}")


WAYS: dict[str, tuple[Has, Role, list[str]]] = {
    "nothing is there": (Has(), Role.DEVELOPER, [UPLOAD, "/schemas/new", "/queries/new"]),
    "there is data": (Has("a.b"), Role.DEVELOPER, ["/schemas/new", "/pipelines/new", "/datasets/a.b"]),
    "a schema waits for a query": (
        Has("a.b", schemas=1),
        Role.ADMIN,
        ["/queries/new", "/pipelines/new", "/datasets/a.b"],
    ),
    "a pipeline never ran": (Has("a.b", 1, 1, 1), Role.DEVELOPER, ["/pipelines", "/datasets/a.b", "/queries/new"]),
    "all is there": (Has("a.b", 1, 1, 1, 1), Role.DEVELOPER, ["/datasets/a.b", "/queries/new", UPLOAD]),
    "a viewer has nothing to see": (Has(), Role.VIEWER, ["/datasets", "/schemas", "/queries/new"]),
    "a viewer may ask": (Has("a.b", 1, 1, 1, 1), Role.VIEWER, ["/datasets/a.b", "/queries", "/queries/new"]),
}


@pytest.mark.parametrize(("has", "role", "ways"), WAYS.values(), ids=list(WAYS))
def test_what_to_try_next_depends_on_what_is_there(has: Has, role: Role, ways: list[str]) -> None:
    things = next_things(has, role)
    assert [each.to for each in things] == ways
    assert len({each.title for each in things}) == 3


@pytest.mark.parametrize("pipelines", [0, 1])
@pytest.mark.parametrize("queries", [0, 1])
@pytest.mark.parametrize("schemas", [0, 1])
@pytest.mark.parametrize("dataset", [None, "a.b"])
def test_there_are_always_three_and_a_viewer_is_never_told_to_write(
    dataset: str | None, schemas: int, queries: int, pipelines: int
) -> None:
    has = Has(dataset, schemas, pipelines, queries)
    assert all(len(next_things(has, role)) == 3 for role in Role)
    written: set[Any] = {UPLOAD, "/schemas/new", "/pipelines/new"}
    assert not written & {each.to for each in next_things(has, Role.VIEWER)}


def test_what_ails_the_service_is_said_in_words() -> None:
    assert in_words({"catalog": "ok", "store": "ok"}) == "Ready: catalog and store can be used"
    assert in_words({"catalog": "ok", "store": "store_full"}) == "Not ready: store: store full"
