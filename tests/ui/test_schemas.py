"""Schemas as people find them, look at them, and take them through their lives."""

import json
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.core.result_schema import FieldType
from penstock.core.registry.lifecycle import State
from penstock.ui import lifecycle_badges as states
from penstock.ui.schemas import diff_text as changes
from penstock.ui.schemas.diff_text import Line
from penstock.ui.schemas.inputs import LONGEST, is_cut
from penstock.ui.schemas.list import TOP
from penstock.ui.schemas.validate_tab import example
from penstock.ui.search_list import AskedByState
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
HOSTILE = f"{EVIL} '&?#%20`${{7*7}}`"
FIELDS = [{"name": "order_id", "type": "string", "optional": False}, {"name": "total", "type": "number", "optional": True}]  # fmt: skip


def made(rest: httpx.Client, name: str = "Orders", **more: Any) -> dict[str, Any]:
    answer = rest.post("/gts", json={"name": name, "type_id": gts.QUERY_RETURNS, "fields": FIELDS, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("state", "role", "verbs"),
    [
        (State.DRAFT, Role.VIEWER, []),
        (State.DRAFT, Role.DEVELOPER, ["publish", "abandon"]),
        (State.ACTIVE, Role.DEVELOPER, []),
        (State.ACTIVE, Role.ADMIN, ["deprecate"]),
        (State.DEPRECATED, Role.ADMIN, ["reactivate", "archive"]),
        (State.ARCHIVED, Role.ADMIN, ["restore"]),
    ],
)
def test_each_role_is_offered_the_steps_that_it_may_take(state: State, role: Role, verbs: list[str]) -> None:
    assert [verb for _, verb in states.steps(state, role)] == verbs


def test_a_list_shows_all_but_the_archived_until_asked() -> None:
    def asked(**chosen: frozenset[State]) -> str | None:
        options = AskedByState("id", **chosen).options()
        return options and options["filter"]

    assert asked() == "state in ('DRAFT', 'ACTIVE', 'DEPRECATED')"
    assert asked(states=frozenset({State.ARCHIVED})) == "state in ('ARCHIVED')"
    assert asked(states=frozenset()) is None


def test_differences_are_told_in_words() -> None:
    old = {"name": "Orders", "description": None, "metadata": None, "state": "DRAFT", "fields": [
        {"name": "a", "type": "string", "optional": False}, {"name": "b", "type": "number", "optional": True},
        {"name": "c", "type": "date", "optional": False},
    ]}  # fmt: skip
    new = {"name": "Orders", "description": "x" * 500, "metadata": {"k": 1}, "fields": [
        {"name": "b", "type": "number", "optional": False, "array": True, "description": "n"},
        {"name": "a", "type": "boolean", "optional": True}, {"name": "d", "type": "date", "optional": True, "array": True},
    ]}  # fmt: skip
    found = changes.lines(old, new)
    assert found[0].text == f"description: nothing → “{'x' * 119}…”"
    assert found[1:] == [
        Line("~", "metadata: nothing → “{\"k\": 1}”"),
        Line("−", "c was removed: date, required", breaks=True),
        Line("~", "b is now a list", breaks=True),
        Line("~", "b is now required"),
        Line("~", "b: description nothing → “n”"),
        Line("~", "a: type “string” → “boolean”", breaks=True),
        Line("~", "a is now optional", breaks=True),
        Line("+", "d was added: list of date, optional"),
        Line("~", "the order is now b, a"),
    ]  # fmt: skip
    assert changes.lines(old, old) == []
    assert [line.text for line in changes.lines(old, {**old, "state": "ACTIVE"})] == ["state: “DRAFT” → “ACTIVE”"]


def test_the_example_row_fits_whatever_the_fields_are() -> None:
    fields = [{"name": f"{kind}_{array}", "type": str(kind), "array": array} for kind in FieldType for array in (True, False)]  # fmt: skip
    assert contract.check_rows(contract.fields(fields), [example(fields)], strict=True).valid


@pytest.mark.parametrize("text", ["x" * LONGEST, "\n" * LONGEST, "\N{WATER WAVE}" * (LONGEST // 2), "\ud800" * LONGEST])
def test_a_text_that_may_have_been_cut_is_known_by_what_browsers_count(text: str) -> None:
    assert is_cut(text)
    assert not is_cut(text[1:])


def test_schemas_are_found_by_words_and_states_a_page_at_a_time(visit: Visit, rest: httpx.Client) -> None:
    page = visit("/schemas", Role.DEVELOPER)
    expect(page.get_by_text("There is no schema in these states. A schema says what")).to_be_visible()
    for number in range(TOP + 2):
        made(rest, f"Report {number:02}")
    made(rest, EVIL, description=EVIL)
    gone = made(rest, "Gone", state="DRAFT")
    assert rest.post(f"/gts/{gone['id']}/transitions", json={"to": "ARCHIVED", "version": 1}).status_code == 200
    page.reload()
    links = page.get_by_role("region", name="Schemas").get_by_role("link")
    expect(links).to_have_count(TOP)
    expect(page.get_by_text(f"1–{TOP} of {TOP + 3}")).to_be_visible()
    expect(page.get_by_role("link", name=EVIL)).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text(f"{TOP + 1}–{TOP + 3} of {TOP + 3}")).to_be_visible()
    expect(links).to_have_count(3)

    words = page.get_by_label("Search names and descriptions")
    words.fill("report 07")
    expect(links).to_have_text(["Report 07"])
    words.fill('"report 07')
    expect(page.get_by_text("a quote is not closed")).to_be_visible()
    words.fill("gone")
    expect(page.get_by_text("No schema in these states has all of these words")).to_be_visible()
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
    expect(page.get_by_text(f"{TOP + 1}–{TOP + 3} of {TOP + 3}")).to_be_visible()
    words.fill(HOSTILE)
    expect(page.get_by_text("No schema in these states has all of these words")).to_be_visible()
    page.wait_for_url("**words=*")
    page.reload()
    expect(words).to_have_value(HOSTILE)
    page.goto(f"{page.url.partition('?')[0]}?page=9")  # which there is no more
    expect(page.get_by_text(f"1–{TOP} of {TOP + 3}")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_a_schema_goes_through_its_states_with_reasons_and_is_deleted(
    visit: Visit, rest: httpx.Client, service: Service
) -> None:
    entry = made(rest, state="DRAFT")

    def step(verb: str, now: str, reason: str = "") -> None:
        page.get_by_role("button", name=verb, exact=True).click()
        dialog = page.get_by_role("dialog", name=f"{verb} Orders?")
        dialog.get_by_label("Reason (optional)").fill(reason)
        if reason:
            dialog.get_by_role("button", name=verb, exact=True).click()
        else:
            dialog.get_by_label("Reason (optional)").press("Enter")
        expect(page.get_by_text(f"It is {now} now.")).to_be_visible()

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
    expect(page.get_by_role("note")).to_contain_text("New queries cannot use it. It is archived on")
    step("Archive", "archived")
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)
    step("Restore", "deprecated")
    step("Reactivate", "active")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There is no schema in these states.")).to_be_visible()
    assert rest.get(f"/gts/{entry['id']}").status_code == 404
    page.goto(f"{service.address}/ui/schemas/{entry['id']}")
    expect(page.get_by_role("alert")).to_contain_text("There is no such schema")


def test_history_references_rows_and_json_are_a_click_away(visit: Visit, rest: httpx.Client) -> None:
    entry = made(rest)
    at = f"/gts/{entry['id']}"
    changed = [{"name": "order_id", "type": "number"}, FIELDS[1], {"name": "day", "type": "date"}]
    assert rest.patch(at, json={"fields": changed, "version": 1}).status_code == 200
    assert rest.patch(at, json={"description": EVIL, "version": 2}).status_code == 200
    name = EVIL.replace("/", "|")  # no part of an address, as the names of queries must be
    query = {"name": name, "sql": "SELECT 1 AS order_id, DATE '2026-01-31' AS day", "returns_schema_id": entry["id"]}
    assert rest.post("/queries", json=query).status_code == 201
    page = visit(f"/schemas/{entry['id']}", Role.ADMIN)
    expect(page.get_by_text(EVIL)).to_be_visible()
    expect(page).to_have_title("Orders · Penstock")
    expect(page.get_by_text(entry["id"], exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Copy the id")).to_be_visible()

    page.get_by_role("tab", name="History").click()
    expect(page.get_by_text(f"description: nothing → “{EVIL}”")).to_be_visible()
    page.get_by_role("combobox", name="From version").click()
    page.get_by_role("option", name="1 · create").click()
    expect(page.get_by_text("order_id: type “string” → “number”")).to_be_visible()
    expect(page.get_by_text("breaks readers")).to_have_count(1)
    expect(page.get_by_text("day was added: date, required")).to_be_visible()

    page.get_by_role("tab", name="References").click()
    expect(page.get_by_text("1 query returns rows of this schema.")).to_be_visible()
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert").filter(has_text="refer")).to_be_visible()
    page.get_by_role("button", name="Close").click()

    page.get_by_role("tab", name="Try rows").click()
    rows = page.get_by_label("Rows: a JSON array of objects")
    check = page.get_by_role("button", name="Check rows")
    check.click()
    expect(page.get_by_text("The row fits the schema.")).to_be_visible()
    rows.fill('"' * 2_000_000)
    said = page.get_by_text(f"Only the first 240,000 characters fit here; use POST {at}/validate for more.")
    expect(said).to_be_visible()
    expect(rows).to_have_attribute("aria-invalid", "true")
    check.click()
    expect(page.get_by_text("The row fits the schema.")).to_be_hidden()
    expect(said).to_be_visible()
    rows.fill(json.dumps([{"order_id": EVIL, EVIL: 1}, {"order_id": 1, "day": "2026-01-31"}]))
    check.click()
    expect(page.get_by_text("2 things do not fit the schema.")).to_be_visible()
    expect(said).to_be_hidden()
    expect(rows).not_to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("cell", name="Type mismatch for field order_id")).to_be_visible()
    expect(page.get_by_role("cell", name="Missing required field: day")).to_be_visible()
    page.get_by_role("checkbox", name="Refuse fields").click()
    check.click()
    expect(page.get_by_text("3 things do not fit the schema.")).to_be_visible()
    expect(page.get_by_role("cell", name="Unexpected field: <img src=x")).to_be_visible()
    rows.fill("[")
    check.click()
    expect(page.get_by_text("this is not JSON")).to_be_visible()

    page.get_by_role("tab", name="JSON").click()
    told = json.loads(page.get_by_label("As the API tells it", exact=True).input_value())
    assert told == rest.get(at).json()
    exported = json.loads(page.get_by_label("JSON Schema of a row", exact=True).input_value())
    assert exported == rest.get(f"{at}/json-schema").json()
    assert page.evaluate("window.hacked") is None


def test_a_viewer_sees_it_all_and_can_change_nothing(visit: Visit, rest: httpx.Client) -> None:
    entry = made(rest, state="DRAFT")
    page = visit("/schemas", Role.VIEWER, width=NARROW, dark=True)
    expect(page.get_by_role("link", name="Orders")).to_be_visible()
    for name in ("New schema", "Infer from a sample"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("link", name="Orders").click()
    expect(page.get_by_role("region", name="Fields").get_by_role("cell", name="order_id")).to_be_visible()
    for name in ("Edit", "Delete", "Publish", "Abandon"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("tab", name="Try rows").click()
    page.get_by_role("button", name="Check rows").click()
    expect(page.get_by_text("The row fits the schema.")).to_be_visible()
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_text("Version 1 is the only one so far.")).to_be_visible()
    page.get_by_role("tab", name="JSON").click()
    box = page.get_by_label("As the API tells it", exact=True)
    expect(box).not_to_be_editable()
    assert json.loads(box.input_value())["id"] == entry["id"]
