"""No page renders a user's text as markup, even if every text of the tenant is markup."""

import re
from typing import Any
from uuid import UUID

import httpx
from playwright.sync_api import expect

from penstock.core.registry import gts
from ui.conftest import NARROW, Service, Visit
from ui.test_queries import HOSTILE, HOSTILE_NAME

USER = '<img src=x onerror="window.hacked=1">{{7*7}} eve'
PAGES = (  # paths, and whether the page shows a text of a user
    ("/", True),
    ("/schemas", True),
    ("/schemas/new", False),
    ("/schemas/{schema}", True),
    ("/schemas/{schema}/edit", True),
    ("/datasets", False),  # dataset names cannot contain markup
    ("/datasets/shop.odd", True),
    ("/pipelines", True),
    ("/pipelines/new", False),
    ("/pipelines/{pipeline}", True),
    ("/runs", True),
    ("/runs/{run}", True),
    ("/queries", True),
    ("/queries/new", False),
    ("/queries/{query}", True),
    ("/queries/{query}/edit", True),
    ("/schemas/<img src=x onerror=window.hacked=1>", False),  # shows an error
    ("/datasets/<img src=x onerror=window.hacked=1>", False),
    ("/pipelines/<img src=x onerror=window.hacked=1>", False),
    ("/runs/<img src=x onerror=window.hacked=1>", False),
    ("/queries/<img src=x onerror=window.hacked=1>", False),
    ("/queries?words=<img src=x onerror=window.hacked=1>{{{{7*7}}}}&page=<b>&states=<b>", True),
    ("/queries/new?dataset=<img src=x onerror=window.hacked=1>&version=<b>", False),
)
DIALOGS = {  # buttons that open a dialog with a text of a user
    "/schemas/{schema}": ("Deprecate",),
    "/schemas/{schema}/edit": ("Edit as JSON",),
    "/datasets/shop.odd": ("Show full value",),
    "/pipelines/{pipeline}": ("Delete",),
    "/queries/{query}": ("Delete", "Deprecate"),
}
CLOSE_BUTTON = re.compile("^(Cancel|Close)$")
TABS_WITHOUT_USER_TEXT = ("Validate rows",)
SHOWS_USER_TEXT = """selector => {
    const content = document.querySelector(selector);
    if (!content) return false;
    const written = [...content.querySelectorAll("input, textarea")].map(each => each.value);
    return [content.innerText, ...written].some(each => each.includes("{{7*7}}"));
}"""
NO_MARKUP = """() => [
    window.hacked,
    document.querySelectorAll("img[src='x'], img[onerror]").length,
    [...document.querySelectorAll("script")].filter(each => each.textContent === "window.hacked=1").length,
]"""


def test_no_page_renders_user_text_as_markup(visit: Visit, service: Service, tenant: UUID) -> None:
    with service.rest(tenant, user=USER) as rest:
        ids = _create_hostile_resources(rest)
    page = visit("/", user=USER, width=NARROW, dark=True, expect=("404",))  # for schema ids that cannot exist
    for path, has_user_text in PAGES:
        page.goto(f"{service.address}/ui{path.format(**ids)}")
        if path.startswith("/schemas/<"):
            page.wait_for_load_state()
        else:
            page.get_by_text(f"{USER} · admin").wait_for(state="attached")
            page.get_by_role("main").get_by_role("heading").or_(page.get_by_role("alert")).first.wait_for()
        if has_user_text:
            page.wait_for_function(SHOWS_USER_TEXT, arg=".q-page-container")
        for name in DIALOGS.get(path, ()):
            page.get_by_role("button", name=name, exact=True).or_(page.get_by_title(name)).first.click()
            page.wait_for_function(SHOWS_USER_TEXT, arg=".q-dialog")
            assert page.evaluate(NO_MARKUP) == [None, 0, 0], (path, name)
            page.get_by_role("dialog").get_by_role("button", name=CLOSE_BUTTON).click()
            expect(page.get_by_role("dialog")).to_have_count(0)
        for tab in page.get_by_role("tab").all():
            tab.click()
            if (name := tab.inner_text()) in TABS_WITHOUT_USER_TEXT:
                page.get_by_role("tabpanel").get_by_role("textbox").first.wait_for()
            else:
                page.wait_for_function(SHOWS_USER_TEXT, arg="[role=tabpanel]")
            assert page.evaluate(NO_MARKUP) == [None, 0, 0], (path, name)
        assert page.evaluate(NO_MARKUP) == [None, 0, 0], path
    page.goto(f"{service.address}/ui/schemas/{ids['unused']}")  # only a schema without queries can be deleted
    page.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_function(SHOWS_USER_TEXT, arg=".q-dialog")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert").filter(has_text="Deleted the schema")).to_contain_text(HOSTILE)
    assert page.evaluate(NO_MARKUP) == [None, 0, 0]


def _create_hostile_resources(rest: httpx.Client) -> dict[str, str]:
    def post(path: str, body: Any) -> Any:
        return rest.post(path, json=body).raise_for_status().json()

    quoted = HOSTILE.replace('"', '""')
    rows = f'word,"{quoted}"\n"{quoted}","{quoted}"\n'
    response = rest.post("/datasets?name=shop.odd", content=rows, headers={"content-type": "text/csv"})
    dataset = response.raise_for_status().json()["id"]
    fields = [{"name": "word", "type": "string", "description": HOSTILE}]
    metadata = {HOSTILE: HOSTILE}
    schema = post(
        "/gts",
        {
            "name": HOSTILE,
            "description": HOSTILE,
            "type_id": gts.QUERY_RETURNS,
            "fields": fields,
            "metadata": metadata,
            "state": "DRAFT",
        },
    )
    post(f"/gts/{schema['id']}/transitions", {"to": "ACTIVE", "version": 1, "reason": HOSTILE})
    unused = post("/gts", {"name": f"{HOSTILE} unused", "type_id": gts.QUERY_RETURNS, "fields": fields})
    query = post(
        "/queries",
        {
            "name": HOSTILE_NAME,
            "description": HOSTILE,
            "sql": f"SELECT word FROM shop.odd WHERE $word <> '' -- {HOSTILE}",
            "parameters": [{"name": "word", "type": "string", "default": HOSTILE}],
            "returns_schema_id": schema["id"],
            "state": "DRAFT",
        },
    )
    post(f"/queries/{query['id']}/transitions", {"to": "ACTIVE", "version": 1, "reason": HOSTILE})
    source = {"source": {"dataset_id": dataset}, "source_selector": f"word = '{HOSTILE}'"}
    pipeline = post(
        "/pipelines",
        {
            "name": HOSTILE,
            "working": {"dataset_id": dataset},
            "operations": [{"type": "append", "alias": HOSTILE[:60], "parameters": source}],
        },
    )
    run = post(f"/pipelines/{pipeline['id']}/runs", None)
    post(f"/runs/{run['id']}/cancel", None)  # before it needs Spark
    return {
        "schema": schema["id"],
        "unused": unused["id"],
        "query": query["id"],
        "pipeline": pipeline["id"],
        "run": run["id"],
    }
