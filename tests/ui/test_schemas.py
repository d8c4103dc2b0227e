"""Schema pages: list, tabs, lifecycle transitions and roles."""

import json
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core import result_schema
from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.result_schema import FieldType
from penstock.ui import lifecycle_badges
from penstock.ui.schemas import diff_text
from penstock.ui.schemas.diff_text import DiffLine
from penstock.ui.schemas.inputs import MAX_CHARS, is_truncated
from penstock.ui.schemas.list import PAGE_SCHEMAS
from penstock.ui.schemas.validate_tab import example_row
from penstock.ui.search_list import StateSearchParams
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
HOSTILE = f"{EVIL} '&?#%20`${{7*7}}`"
FIELDS = [{"name": "order_id", "type": "string", "optional": False}, {"name": "total", "type": "number", "optional": True}]  # fmt: skip


def create_schema(rest: httpx.Client, name: str = "Orders", **more: Any) -> dict[str, Any]:
    response = rest.post("/gts", json={"name": name, "type_id": gts.QUERY_RETURNS, "fields": FIELDS, **more})
    assert response.status_code == 201, response.text
    schema: dict[str, Any] = response.json()
    return schema


@pytest.mark.parametrize(
    ("state", "role", "verbs"),
    [
        (LifecycleState.DRAFT, Role.VIEWER, []),
        (LifecycleState.DRAFT, Role.DEVELOPER, ["publish", "abandon"]),
        (LifecycleState.ACTIVE, Role.DEVELOPER, []),
        (LifecycleState.ACTIVE, Role.ADMIN, ["deprecate"]),
        (LifecycleState.DEPRECATED, Role.ADMIN, ["reactivate", "archive"]),
        (LifecycleState.ARCHIVED, Role.ADMIN, ["restore"]),
    ],
)
def test_allowed_transitions_depend_on_state_and_role(state: LifecycleState, role: Role, verbs: list[str]) -> None:
    assert [verb for _, verb in lifecycle_badges.allowed_transitions(state, role)] == verbs


def test_state_search_params_exclude_archived_by_default() -> None:
    def filter_of(**chosen: frozenset[LifecycleState]) -> str | None:
        options = StateSearchParams("id", **chosen).odata_options()
        return options and options["filter"]

    assert filter_of() == "state in ('DRAFT', 'ACTIVE', 'DEPRECATED')"
    assert filter_of(states=frozenset({LifecycleState.ARCHIVED})) == "state in ('ARCHIVED')"
    assert filter_of(states=frozenset()) is None


def test_diff_entities_describes_every_change() -> None:
    old = {"name": "Orders", "description": None, "metadata": None, "state": "DRAFT", "fields": [
        {"name": "a", "type": "string", "optional": False}, {"name": "b", "type": "number", "optional": True},
        {"name": "c", "type": "date", "optional": False},
    ]}  # fmt: skip
    new = {"name": "Orders", "description": "x" * 500, "metadata": {"k": 1}, "fields": [
        {"name": "b", "type": "number", "optional": False, "array": True, "description": "n"},
        {"name": "a", "type": "boolean", "optional": True}, {"name": "d", "type": "date", "optional": True, "array": True},
    ]}  # fmt: skip
    lines = diff_text.diff_entities(old, new)
    assert lines[0].text == f"description: nothing → “{'x' * 119}…”"
    assert lines[1:] == [
        DiffLine("~", "metadata: nothing → “{\"k\": 1}”"),
        DiffLine("−", "c was removed: date, required", is_breaking=True),
        DiffLine("~", "b is now a list", is_breaking=True),
        DiffLine("~", "b is now required"),
        DiffLine("~", "b: description nothing → “n”"),
        DiffLine("~", "a: type “string” → “boolean”", is_breaking=True),
        DiffLine("~", "a is now optional", is_breaking=True),
        DiffLine("+", "d was added: list of date, optional"),
        DiffLine("~", "order changed to b, a"),
    ]  # fmt: skip
    assert diff_text.diff_entities(old, old) == []
    assert [line.text for line in diff_text.diff_entities(old, {**old, "state": "ACTIVE"})] == [
        "state: “DRAFT” → “ACTIVE”"
    ]


def test_example_row_matches_any_fields() -> None:
    fields = [{"name": f"{type_}_{array}", "type": str(type_), "array": array} for type_ in FieldType for array in (True, False)]  # fmt: skip
    assert result_schema.check_rows(result_schema.parse_fields(fields), [example_row(fields)], strict=True).valid


@pytest.mark.parametrize(
    "text", ["x" * MAX_CHARS, "\n" * MAX_CHARS, "\N{WATER WAVE}" * (MAX_CHARS // 2), "\ud800" * MAX_CHARS]
)
def test_is_truncated_counts_utf16_units(text: str) -> None:
    assert is_truncated(text)
    assert not is_truncated(text[1:])


def test_schema_list_searches_filters_and_pages(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/schemas", Role.DEVELOPER)
    expect(page.get_by_text("No schemas in these states. A result schema declares")).to_be_visible()
    for number in range(PAGE_SCHEMAS + 2):
        create_schema(rest, f"Report {number:02}")
    create_schema(rest, EVIL, description=EVIL)
    gone = create_schema(rest, "Gone", state="DRAFT")
    assert rest.post(f"/gts/{gone['id']}/transitions", json={"to": "ARCHIVED", "version": 1}).status_code == 200
    page.reload()
    links = page.get_by_role("region", name="Schemas").get_by_role("link")
    expect(links).to_have_count(PAGE_SCHEMAS)
    expect(page.get_by_text(f"1–{PAGE_SCHEMAS} of {PAGE_SCHEMAS + 3}")).to_be_visible()
    expect(page.get_by_role("link", name=EVIL)).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text(f"{PAGE_SCHEMAS + 1}–{PAGE_SCHEMAS + 3} of {PAGE_SCHEMAS + 3}")).to_be_visible()
    expect(links).to_have_count(3)

    words = page.get_by_label("Search names and descriptions")
    words.fill("report 07")
    expect(links).to_have_text(["Report 07"])
    words.fill('"report 07')
    expect(page.get_by_text("a quote is not closed")).to_be_visible()
    words.fill("gone")
    expect(page.get_by_text("No schemas match.")).to_be_visible()
    archived = page.get_by_role("button", name="Archived")
    expect(archived).to_have_attribute("aria-pressed", "false")
    archived.click()
    expect(archived).to_have_attribute("aria-pressed", "true")
    expect(links).to_have_text(["Gone"])
    words.fill("")
    for name in ("Active", "Draft", "Deprecated"):
        page.get_by_role("button", name=name).click()
    expect(links).to_have_text(["Gone"])
    archived.click()
    expect(page.get_by_text("Choose at least one state.")).to_be_visible()
    archived.click()
    links.click()
    expect(page.get_by_role("heading", level=1, name="Gone")).to_be_visible()
    page.go_back()
    expect(links).to_have_text(["Gone"])
    expect(archived).to_have_attribute("aria-pressed", "true")
    page.goto(f"{page.url.partition('?')[0]}?page=2")
    expect(page.get_by_text(f"{PAGE_SCHEMAS + 1}–{PAGE_SCHEMAS + 3} of {PAGE_SCHEMAS + 3}")).to_be_visible()
    words.fill(HOSTILE)
    expect(page.get_by_text("No schemas match.")).to_be_visible()
    page.wait_for_url("**words=*")
    page.reload()
    expect(words).to_have_value(HOSTILE)
    page.goto(f"{page.url.partition('?')[0]}?page=9")  # which no longer exists
    expect(page.get_by_text(f"1–{PAGE_SCHEMAS} of {PAGE_SCHEMAS + 3}")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_schema_transitions_with_reasons_and_delete(visit: Visit, rest: httpx.Client, service: Service) -> None:
    entry = create_schema(rest, state="DRAFT")

    def step(verb: str, now: str, reason: str = "") -> None:
        page.get_by_role("button", name=verb, exact=True).click()
        dialog = page.get_by_role("dialog", name=f"{verb} Orders?")
        dialog.get_by_label("Reason (optional)").fill(reason)
        if reason:
            dialog.get_by_role("button", name=verb, exact=True).click()
        else:
            dialog.get_by_label("Reason (optional)").press("Enter")
        expect(page.get_by_text(f"The schema is now {now}.")).to_be_visible()

    page = visit(f"/schemas/{entry['id']}", Role.DEVELOPER)
    expect(page.get_by_role("button", name="Abandon")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert rest.get(f"/gts/{entry['id']}").json()["state"] == "DRAFT"
    step("Publish", "active", EVIL)
    expect(page.get_by_text("Version 2", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Deprecate")).to_have_count(0)
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_role("cell", name=EVIL)).to_be_visible()
    expect(page.get_by_text("state: “DRAFT” → “ACTIVE”")).to_be_visible()
    assert page.evaluate("window.hacked") is None

    page = visit(f"/schemas/{entry['id']}", Role.ADMIN)
    step("Deprecate", "deprecated", "see Orders by day")
    expect(page.get_by_role("note")).to_contain_text("New queries cannot use this schema. It will be archived on")
    step("Archive", "archived")
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)
    step("Restore", "deprecated")
    step("Reactivate", "active")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No schemas in these states.")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="Deleted the schema")).to_be_visible()
    assert rest.get(f"/gts/{entry['id']}").status_code == 404
    page.goto(f"{service.address}/ui/schemas/{entry['id']}")
    expect(page.get_by_role("alert")).to_contain_text("Schema not found")


def test_schema_tabs_show_history_references_validation_and_json(visit: Visit, rest: httpx.Client) -> None:
    entry = create_schema(rest)
    at = f"/gts/{entry['id']}"
    changed = [{"name": "order_id", "type": "number"}, FIELDS[1], {"name": "day", "type": "date"}]
    assert rest.patch(at, json={"fields": changed, "version": 1}).status_code == 200
    assert rest.patch(at, json={"description": EVIL, "version": 2}).status_code == 200
    name = EVIL.replace("/", "|")  # query names cannot contain a slash
    query = {"name": name, "sql": "SELECT 1 AS order_id, DATE '2026-01-31' AS day", "returns_schema_id": entry["id"]}
    assert rest.post("/queries", json=query).status_code == 201
    page = visit(f"/schemas/{entry['id']}", Role.ADMIN)
    expect(page.get_by_text(EVIL)).to_be_visible()
    expect(page).to_have_title("Orders · Penstock")
    expect(page.get_by_text(entry["id"], exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Copy id")).to_be_visible()

    page.get_by_role("tab", name="History").click()
    expect(page.get_by_text(f"description: nothing → “{EVIL}”")).to_be_visible()
    page.get_by_role("combobox", name="From version").click()
    page.get_by_role("option", name="1 · create").click()
    expect(page.get_by_text("order_id: type “string” → “number”")).to_be_visible()
    expect(page.get_by_text("breaking", exact=True)).to_have_count(1)
    expect(page.get_by_text("day was added: date, required")).to_be_visible()

    page.get_by_role("tab", name="References").click()
    expect(page.get_by_text("1 query returns rows of this schema.")).to_be_visible()
    expect(page.get_by_role("link", name=name)).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_be_disabled()
    expect(page.get_by_role("note")).to_contain_text(
        "1 query refers to this schema, so it cannot be deleted or archived."
    )

    page.get_by_role("tab", name="Validate rows").click()
    rows = page.get_by_label("Rows: a JSON array of objects")
    check = page.get_by_role("button", name="Validate", exact=True)
    check.click()
    expect(page.get_by_text("The row is valid.")).to_be_visible()
    rows.fill('"' * 2_000_000)
    error = page.get_by_text(
        f"Only the first 240,000 characters were accepted. Use POST {at}/validate for longer texts."
    )
    expect(error).to_be_visible()
    expect(rows).to_have_attribute("aria-invalid", "true")
    check.click()
    expect(page.get_by_text("The row is valid.")).to_be_hidden()
    expect(error).to_be_visible()
    rows.fill(json.dumps([{"order_id": EVIL, EVIL: 1}, {"order_id": 1, "day": "2026-01-31"}]))
    check.click()
    expect(page.get_by_text("2 errors found.")).to_be_visible()
    expect(error).to_be_hidden()
    expect(rows).not_to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("cell", name="Type mismatch for field order_id")).to_be_visible()
    expect(page.get_by_role("cell", name="Missing required field: day")).to_be_visible()
    page.get_by_role("checkbox", name="Reject unknown fields").click()
    check.click()
    expect(page.get_by_text("3 errors found.")).to_be_visible()
    expect(page.get_by_role("cell", name="Unexpected field: <img src=x")).to_be_visible()
    rows.fill("[")
    check.click()
    expect(page.get_by_text("the text is not valid JSON")).to_be_visible()

    page.get_by_role("tab", name="JSON").click()
    representation = json.loads(page.get_by_label("API representation", exact=True).input_value())
    assert representation == rest.get(at).json()
    exported = json.loads(page.get_by_label("JSON Schema of a row", exact=True).input_value())
    assert exported == rest.get(f"{at}/json-schema").json()
    assert page.evaluate("window.hacked") is None


def test_viewer_can_view_but_not_change_schemas(visit: Visit, rest: httpx.Client) -> None:
    entry = create_schema(rest, state="DRAFT")
    page = visit("/schemas", Role.VIEWER, width=NARROW, dark=True)
    expect(page.get_by_role("link", name="Orders")).to_be_visible()
    for name in ("New schema", "Infer from a sample"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("link", name="Orders").click()
    expect(page.get_by_role("region", name="Fields").get_by_role("cell", name="order_id")).to_be_visible()
    for name in ("Edit", "Delete", "Publish", "Abandon"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("tab", name="Validate rows").click()
    page.get_by_role("button", name="Validate", exact=True).click()
    expect(page.get_by_text("The row is valid.")).to_be_visible()
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_text("Version 1 is the only version.")).to_be_visible()
    page.get_by_role("tab", name="JSON").click()
    box = page.get_by_label("API representation", exact=True)
    expect(box).not_to_be_editable()
    assert json.loads(box.input_value())["id"] == entry["id"]
