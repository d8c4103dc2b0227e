"""Home page: introduction, health, recent changes and next steps."""

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.ui.home import INTRODUCTION, UPLOAD, TenantContents, describe_health, suggest_next_steps
from ui.conftest import NARROW, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
CSV = {"content-type": "text/csv"}


def test_home_of_empty_tenant_uploads_file_and_lists_dataset(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/", Role.DEVELOPER)
    expect(page.get_by_text(INTRODUCTION)).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Ready: catalog, store and spark are available")
    for empty_text in ("No datasets yet.", "No runs yet.", "No schemas yet."):
        expect(page.get_by_text(empty_text)).to_be_visible()
    expect(page.get_by_role("button", name="Try it:")).to_have_count(3)
    page.get_by_role("button", name="Try it: Upload a file").click()
    page.get_by_label("Name", exact=True).fill("shop.orders")
    page.locator("input[type=file]").set_input_files({"name": "o.csv", "mimeType": "text/csv", "buffer": b"id\n1\n2\n"})
    expect(page.get_by_text("o.csv · 7 B")).to_be_visible()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.orders")
    page.get_by_role("link", name="Home").click()
    expect(page.get_by_role("region", name="Recently changed datasets")).to_contain_text("shop.orders")
    page.get_by_role("button", name="Try it: View shop.orders").click()
    expect(page.get_by_text("1–2 of 2")).to_be_visible()
    assert rest.get("/datasets/shop.orders").json()["rows"] == 2


def test_home_lists_newest_changes_first_and_as_text(visit: Visit, rest: httpx.Client) -> None:
    for name in ("a.first", "a.second"):
        rest.post("/datasets", params={"name": name}, content=b"id\n1\n", headers=CSV).raise_for_status()
    rest.post("/datasets/a.first/rows", content=b"id\n2\n", headers=CSV).raise_for_status()
    schema = {"name": EVIL, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}]}
    created = rest.post("/gts", json=schema).raise_for_status().json()
    page = visit("/", Role.VIEWER, user="<b>eve</b>", width=NARROW, dark=True)
    rows = page.get_by_role("region", name="Recently changed datasets").locator("tbody tr")
    expect(rows).to_have_count(2)
    assert [row.locator("td").all_inner_texts()[:4] for row in rows.all()] == [
        ["a.first", "append", "2", "ada"],
        ["a.second", "create", "1", "ada"],
    ]
    expect(page.get_by_role("region", name="Recently changed schemas").get_by_role("link", name=EVIL)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    expect(page.get_by_role("button", name="Try it: View the schemas")).to_be_visible()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="API reference").click()
    expect(opened.value).to_have_title("Penstock")
    assert opened.value.url.endswith("/docs")
    opened.value.close()
    page.get_by_role("link", name=EVIL).click()
    page.wait_for_url(f"**/schemas/{created['id']}")


CASES: dict[str, tuple[TenantContents, Role, list[str]]] = {
    "empty tenant": (TenantContents(), Role.DEVELOPER, [UPLOAD, "/schemas/new", "/queries/new"]),
    "one dataset": (TenantContents("a.b"), Role.DEVELOPER, ["/schemas/new", "/pipelines/new", "/datasets/a.b"]),
    "schema without query": (
        TenantContents("a.b", schemas=1),
        Role.ADMIN,
        ["/queries/new", "/pipelines/new", "/datasets/a.b"],
    ),
    "pipeline without run": (
        TenantContents("a.b", 1, 1, 1),
        Role.DEVELOPER,
        ["/pipelines", "/datasets/a.b", "/queries/new"],
    ),
    "all resources": (TenantContents("a.b", 1, 1, 1, 1), Role.DEVELOPER, ["/datasets/a.b", "/queries/new", UPLOAD]),
    "viewer of empty tenant": (TenantContents(), Role.VIEWER, ["/datasets", "/schemas", "/queries/new"]),
    "viewer of full tenant": (
        TenantContents("a.b", 1, 1, 1, 1),
        Role.VIEWER,
        ["/datasets/a.b", "/queries", "/queries/new"],
    ),
}


@pytest.mark.parametrize(("contents", "role", "targets"), CASES.values(), ids=list(CASES))
def test_suggest_next_steps_depends_on_tenant_contents(
    contents: TenantContents, role: Role, targets: list[str]
) -> None:
    steps = suggest_next_steps(contents, role)
    assert [step.target for step in steps] == targets
    assert len({step.title for step in steps}) == 3


@pytest.mark.parametrize("pipelines", [0, 1])
@pytest.mark.parametrize("queries", [0, 1])
@pytest.mark.parametrize("schemas", [0, 1])
@pytest.mark.parametrize("dataset", [None, "a.b"])
def test_suggest_next_steps_returns_three_without_writes_for_viewers(
    dataset: str | None, schemas: int, queries: int, pipelines: int
) -> None:
    contents = TenantContents(dataset, schemas, pipelines, queries)
    assert all(len(suggest_next_steps(contents, role)) == 3 for role in Role)
    write_targets: set[Any] = {UPLOAD, "/schemas/new", "/pipelines/new"}
    assert not write_targets & {step.target for step in suggest_next_steps(contents, Role.VIEWER)}


def test_describe_health_names_failed_parts() -> None:
    assert describe_health({"catalog": "ok", "store": "ok"}) == "Ready: catalog and store are available"
    assert describe_health({"catalog": "ok", "store": "store_full"}) == "Not ready: store: store full"
