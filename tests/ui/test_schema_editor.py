"""The editor of schemas: the contract's create and edit flows, its five messages, and what else can come in between."""

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.ui.schemas.form_model import Form, Row, complaints, form, placed, read, row_of, without, written
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
GOOD = Row("order_id")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Form("Orders", rows=(GOOD,)), {}),
        (Form("", rows=(GOOD,)), {"/name": "Schema name is required"}),
        (Form("  ", rows=(GOOD,)), {"/name": "Schema name is required"}),
        (Form("Orders"), {"/fields": "At least one field required"}),
        (Form("Orders", rows=(GOOD, Row())), {"/fields/1/name": "Field name required"}),
        (Form("Orders", rows=(Row("a b"), Row("x-y"))), dict.fromkeys(("/fields/0/name", "/fields/1/name"), "Invalid field name format")),
        (Form("Orders", rows=(Row("a", "object"),)), {"/fields/0/type": "Field type must be scalar"}),
        (Form("Orders", rows=(Row("a", "array"),)), {"/fields/0/type": "Field type must be scalar"}),
        (Form("Orders", rows=(GOOD, GOOD)), {}),  # the contract has no sentence for it: the service tells
        (Form(), {"/name": "Schema name is required", "/fields": "At least one field required"}),
    ],
)  # fmt: skip
def test_each_of_the_five_messages_has_its_place(given: Form, told: dict[str, str]) -> None:
    assert complaints(given) == told


def test_what_the_service_says_goes_to_the_rows_and_moves_with_them() -> None:
    errors = [
        {"pointer": "/fields/1/items", "message": "an array needs items"},
        {"pointer": "/fields/3/name", "message": "there is a field 'a' already"},
        {"pointer": "/metadata", "message": "metadata must be a JSON object"},
    ]
    told = placed(errors)
    assert [row_of(pointer) for pointer in told] == [1, 3, None]
    assert without(told, 1) == {
        "/fields/2/name": "there is a field 'a' already",
        "/metadata": "metadata must be a JSON object",
    }
    assert without(told, 3) == {k: v for k, v in told.items() if k != "/fields/3/name"}


@pytest.mark.parametrize(
    ("field", "row"),
    [
        ({"name": "a", "type": "string[]"}, Row("a", "string", array=True)),
        ({"name": "a", "type": "array", "items": {"type": "date"}}, Row("a", "date", array=True)),
        ({"name": "a b", "type": "number", "array": True, "optional": True}, Row("a b", "number", True, True)),
        ({"name": "a", "type": "object", "properties": {}}, Row("a", "object")),
        ({"name": "a", "type": "string", "fields": []}, Row("a", "object")),
        ({"name": "a", "type": {"x": 1}}, Row("a", "object")),
        ({"type": "string", "description": "x"}, Row("", "string", description="x")),
    ],
)
def test_json_fills_the_form_in_every_spelling_and_wrong_types_stay_in_sight(field: Any, row: Row) -> None:
    found = read(json.dumps({"name": "Orders", "fields": [field], "metadata": {"owner": "sales"}}))
    assert found == Form("Orders", rows=(row,), metadata={"owner": "sales"})


def test_a_form_comes_back_from_its_json_as_it_was() -> None:
    given = Form("Orders", "d", (Row("a", "number", True, True, "x"), Row("b")), {"k": [1]})
    assert read(written(given)) == given == form(given.as_json())
    assert [each.name for each in contract.fields(given.as_json()["fields"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "the schema is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"fields": 1}', "/fields: fields must be an array"),
        ('{"name": 5, "fields": []}', "/name: name must be text"),
        ('{"fields": [{"name": "a", "type": "string", "colour": 1}]}', "/fields/0: a field has no colour"),
        ('{"fields": [{"name": "a", "type": "string", "optional": 1}]}', "/fields/0/optional: optional must be"),
        ('{"fields": [{"name": "a", "type": "string", "description": 1}]}', "/fields/0/description: "),
        ('{"name": "\ud800"}', "not UTF-8"),
    ],
)
def test_json_that_the_form_has_no_place_for_is_refused(text: str, told: str) -> None:
    with pytest.raises(Invalid, match=re.escape(told)):
        read(text)


def field(page: Page, number: int) -> Locator:
    return page.get_by_role("group", name=f"Field {number}", exact=True)


def choose(page: Page, within: Page | Locator, label: str, option: str) -> None:
    within.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def tick(box: Locator) -> None:
    box.click()
    expect(box).to_be_checked()


def save(page: Page) -> None:
    page.get_by_role("button", name="Save Schema").click()


def made(rest: httpx.Client, name: str = "Orders", **more: Any) -> dict[str, Any]:
    fields = [{"name": "order_id", "type": "string"}, {"name": "total", "type": "number", "optional": True}]
    answer = rest.post("/gts", json={"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_designer_creates_a_schema_step_by_step_and_is_told_what_is_wrong_before_it_is_sent(
    visit: Visit, rest: httpx.Client
) -> None:
    page = visit("/schemas/new", Role.DEVELOPER)
    expect(page.get_by_role("button", name="Save Schema")).to_have_count(0)
    page.get_by_label("Schema type").press("ArrowDown")
    expect(page.get_by_role("option", name="Query Returns Schema")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Schema name")).to_be_focused()

    save(page)
    expect(page.get_by_text("Schema name is required")).to_be_visible()
    expect(page.get_by_text("At least one field required")).to_be_visible()
    expect(page.get_by_label("Schema name")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Schema name").fill(EVIL)
    expect(page.get_by_text("Schema name is required")).to_be_hidden()
    page.get_by_label("Schema description").fill(EVIL)

    for _ in range(3):
        page.get_by_role("button", name="Add Field").click()
    expect(page.get_by_text("At least one field required")).to_be_hidden()
    expect(field(page, 3).get_by_label("Name")).to_be_focused()
    field(page, 1).get_by_label("Name").fill("order id")
    field(page, 2).get_by_label("Name").fill("tags")
    choose(page, field(page, 2), "Type", "date")
    tick(field(page, 2).get_by_role("checkbox", name="List"))
    tick(field(page, 2).get_by_role("checkbox", name="Optional"))
    field(page, 2).get_by_label("Description").fill(EVIL)
    save(page)
    expect(field(page, 1).get_by_text("Invalid field name format")).to_be_visible()
    expect(field(page, 2).get_by_role("alert")).to_have_count(0)
    expect(field(page, 3).get_by_text("Field name required")).to_be_visible()

    page.get_by_role("button", name="Edit as JSON").click()
    editor = page.get_by_label("Schema as JSON")
    given = json.loads(editor.input_value())
    given["fields"][2] = {"name": "customer", "type": "object", "properties": {}}
    editor.fill(" " * 1_000_000 + json.dumps(given))
    expect(page.get_by_text("Only the first 240,000 characters fit here; use POST /gts for more.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Only the first 240,000 characters fit here; use POST /gts for more.")).to_be_visible()
    editor.fill(json.dumps(given) + ",")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("the schema is not JSON")).to_be_visible()
    editor.fill(json.dumps(given))
    page.get_by_role("button", name="Apply").click()
    expect(editor).to_be_hidden()
    field(page, 1).get_by_label("Name").fill("order_id")
    save(page)
    expect(field(page, 3).get_by_text("Field type must be scalar")).to_be_visible()
    assert rest.get("/gts").json()["value"] == [], "nothing has been sent so far"

    page.get_by_role("button", name="Remove field 3").click()
    expect(page.get_by_text("Field type must be scalar")).to_be_hidden()
    expect(page.get_by_role("button", name="Add Field")).to_be_focused()
    save(page)
    expect(page.get_by_role("button", name="Open it")).to_be_focused()
    confirmation = page.get_by_role("status").filter(has_text="was created")
    expect(confirmation).to_contain_text(UUID)
    (kept,) = rest.get("/gts").json()["value"]
    expect(confirmation).to_contain_text(kept["id"])
    expect(confirmation).to_contain_text(f"“{EVIL}”")
    assert (kept["name"], kept["description"], kept["state"]) == (EVIL, EVIL, "ACTIVE")
    assert kept["fields"] == [
        {"name": "order_id", "type": "string", "optional": False},
        {"name": "tags", "type": "date", "optional": True, "array": True, "description": EVIL},
    ]

    page.get_by_role("button", name="Open it").click()
    expect(page.get_by_role("heading", level=1, name=EVIL)).to_be_visible()
    expect(page.get_by_role("cell", name=EVIL)).to_be_visible()
    page.get_by_role("button", name="Edit").click()
    expect(field(page, 2).get_by_label("Description")).to_have_value(EVIL)
    assert page.evaluate("window.hacked") is None


def test_a_schema_is_edited_and_server_errors_appear_at_their_row(visit: Visit, rest: httpx.Client) -> None:
    made(rest, "Taken")
    entry = made(rest, "Orders", metadata={"owner": "sales"})
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER, width=NARROW, dark=True, expect=("beforeunload",))
    expect(page.get_by_label("Schema name")).to_have_value("Orders")
    expect(field(page, 2).get_by_role("checkbox", name="Optional")).to_be_checked()
    page.get_by_role("button", name="Add Field").click()
    field(page, 3).get_by_label("Name").fill("order_id")
    save(page)
    expect(field(page, 3).get_by_text("there is a field 'order_id' already")).to_be_visible()
    field(page, 1).get_by_label("Name").fill("order_no")
    expect(page.get_by_text("there is a field 'order_id' already")).to_have_count(0)
    field(page, 1).get_by_label("Name").fill("order_id")
    field(page, 3).get_by_label("Name").fill("placed_on")
    choose(page, field(page, 3), "Type", "date")
    page.get_by_label("Schema name").fill("taken")
    save(page)
    expect(page.get_by_text("there is a schema named 'taken' already")).to_be_visible()

    page.once("dialog", lambda dialog: dialog.dismiss())
    with page.expect_event("dialog") as leaving:
        page.get_by_role("link", name="‹ Orders").click()
    assert leaving.value.type == "beforeunload"

    page.get_by_label("Schema name").fill("Orders by day")
    page.get_by_role("button", name="Remove field 2").click()
    expect(page.get_by_role("button", name="Remove field 2")).to_be_focused()
    page.get_by_role("button", name="Save Schema").evaluate("button => { button.click(); button.click() }")
    expect(page.get_by_role("status")).to_contain_text("“Orders by day” was saved as version 2.")
    expect(page.get_by_role("status")).to_contain_text(entry["id"])
    kept = rest.get(f"/gts/{entry['id']}").json()
    assert [each["name"] for each in kept["fields"]] == ["order_id", "placed_on"]
    assert (kept["name"], kept["metadata"]) == ("Orders by day", {"owner": "sales"})
    page.get_by_role("button", name="Open it").click()
    expect(page.get_by_role("heading", level=1, name="Orders by day")).to_be_visible()


def test_a_conflict_shows_both_sides_and_lets_one_reload_or_overwrite(visit: Visit, rest: httpx.Client) -> None:
    entry = made(rest, description="as it was")
    at = f"/gts/{entry['id']}"
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER, user="grace")

    def both_change_it(version: int) -> None:
        page.get_by_label("Schema description").fill("mine")
        fields = [*entry["fields"], {"name": f"theirs_{version}", "type": "date"}]
        assert rest.patch(at, json={"fields": fields, "description": EVIL, "version": version}).status_code == 200
        save(page)
        expect(page.get_by_text(f"Version {version + 1} was saved by ada")).to_be_visible()
        mine, theirs = (page.get_by_role("region", name=f"What {who} changed") for who in ("you", "they"))
        expect(mine).to_contain_text("→ “mine”")
        expect(mine).not_to_contain_text("theirs")
        expect(theirs).to_contain_text(f"theirs_{version} was added: date, required")

    both_change_it(1)
    expect(page.get_by_role("region", name="What they changed")).to_contain_text(f"“as it was” → “{EVIL}”")
    page.get_by_role("button", name="Keep editing").click()
    expect(page.get_by_label("Schema description")).to_have_value("mine")
    save(page)
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_label("Schema description")).to_have_value(EVIL)
    expect(field(page, 3).get_by_label("Name")).to_have_value("theirs_1")

    both_change_it(2)
    page.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_role("status")).to_contain_text("was saved as version 4.")
    kept = rest.get(at).json()
    assert kept["description"] == "mine"
    assert [each["name"] for each in kept["fields"]] == ["order_id", "total", "theirs_1"]
    assert page.evaluate("window.hacked") is None


def test_a_change_that_breaks_readers_is_told_and_only_an_admin_may_force_it(visit: Visit, rest: httpx.Client) -> None:
    entry = made(rest)
    query = {"name": "orders", "sql": "SELECT 'a' AS order_id", "returns_schema_id": entry["id"]}
    assert rest.post("/queries", json=query).status_code == 201
    for role in (Role.DEVELOPER, Role.ADMIN):
        page = visit(f"/schemas/{entry['id']}/edit", role)
        page.get_by_role("button", name="Remove field 1").click()
        save(page)
        expect(page.get_by_text("This change breaks readers")).to_be_visible()
        expect(page.get_by_text("1 registered query promises to return this schema")).to_be_visible()
        expect(page.get_by_text("order_id was removed: string, required")).to_be_visible()
        if role is Role.DEVELOPER:
            expect(page.get_by_text("An admin can save it all the same")).to_be_visible()
            expect(page.get_by_role("button", name="Save anyway")).to_have_count(0)
            page.get_by_role("button", name="Keep editing").click()
            assert rest.get(f"/gts/{entry['id']}").json()["version"] == 1
        else:
            page.get_by_role("button", name="Save anyway").click()
            expect(page.get_by_role("status")).to_contain_text("was saved as version 2.")


def test_a_schema_is_inferred_from_rows_a_dataset_or_sql_and_opens_in_the_editor(
    visit: Visit, rest: httpx.Client
) -> None:
    rest.post("/datasets", params={"name": "shop.orders"}, content="id,day\n1,2026-01-31\n", headers={"content-type": "text/csv"})  # fmt: skip
    page = visit("/schemas", Role.DEVELOPER)
    page.get_by_role("button", name="Infer from a sample").click()
    dialog = page.get_by_role("dialog", name="Infer from a sample")
    dialog.get_by_role("button", name="Infer", exact=True).press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Infer from a sample").click()
    page.get_by_label("Rows: a JSON array").fill('[{"a": 1, "b": ["x"]}, {"a": null, "b": []}')
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Infer", exact=True).click()
    expect(page.get_by_text("the sample is not JSON")).to_be_visible()
    page.get_by_label("Rows: a JSON array").fill(json.dumps([{EVIL: {"deep": 1}}]))
    page.get_by_role("button", name="Infer", exact=True).click()
    expect(page.get_by_text("Only scalar types allowed in query returns: '<img src=x")).to_be_visible()
    page.get_by_label("Rows: a JSON array").fill('[{"a": 1, "b": ["x"]}, {"a": null, "b": []}]')
    page.get_by_role("button", name="Infer", exact=True).click()
    expect(field(page, 1).get_by_label("Name")).to_have_value("a")
    expect(field(page, 1).get_by_role("checkbox", name="Optional")).to_be_checked()
    expect(field(page, 2).get_by_role("checkbox", name="List")).to_be_checked()

    for way, label, sample, name in (
        ("Rows", "Rows: a JSON array", "csv_name,n\nx,1\n", "csv_name"),
        ("Dataset", "Dataset", "shop.orders", "id"),
        ("SQL", "SQL", "SELECT day FROM shop.orders", "day"),
    ):
        page.get_by_role("button", name="Infer from a sample").click()
        page.get_by_role("button", name=way, exact=True).click()
        page.get_by_label(label).and_(page.locator("input, textarea")).fill(sample)
        page.get_by_role("button", name="Infer", exact=True).click()
        expect(field(page, 1).get_by_label("Name")).to_have_value(name)
        expect(dialog).to_have_count(0)

    field(page, 1).get_by_label("Name").fill("the_day")
    page.get_by_role("button", name="Infer from a sample").click()
    page.get_by_label("Rows: a JSON array").fill('[{"lost": 1}]')
    page.get_by_role("button", name="Infer", exact=True).click()
    asked = page.get_by_role("dialog", name="Replace the field that is there?")
    asked.get_by_role("button", name="Cancel").click()
    expect(asked).to_have_count(0)
    expect(page.get_by_label("Rows: a JSON array")).to_have_value('[{"lost": 1}]')
    dialog.get_by_role("button", name="Cancel").click()
    expect(field(page, 1).get_by_label("Name")).to_have_value("the_day")
    page.get_by_label("Schema name").fill("Days")
    tick(page.get_by_role("checkbox", name="Keep it as a draft"))
    save(page)
    expect(page.get_by_role("status")).to_contain_text("“Days” was created.")
    (kept,) = rest.get("/gts").json()["value"]
    assert (kept["state"], [each["name"] for each in kept["fields"]]) == ("DRAFT", ["the_day"])
    assert page.evaluate("window.hacked") is None


def test_many_fields_come_in_pages_and_an_error_leads_to_its_own(visit: Visit, rest: httpx.Client) -> None:
    entry = made(rest, fields=[{"name": f"f{number}", "type": "string"} for number in range(120)])
    page = visit(f"/schemas/{entry['id']}/edit")
    expect(page.get_by_role("group", name=re.compile("^Field "))).to_have_count(50)
    page.get_by_role("button", name="Next page").click()
    field(page, 60).get_by_label("Name").fill("not good")
    page.get_by_role("button", name="Previous page").click()
    expect(field(page, 1)).to_be_visible()
    save(page)
    expect(field(page, 60).get_by_text("Invalid field name format")).to_be_visible()
    expect(field(page, 60).get_by_label("Name")).to_be_focused()
    page.get_by_role("button", name="Remove field 60").click()
    page.get_by_role("button", name="Add Field").click()
    field(page, 120).get_by_label("Name").fill("last")
    save(page)
    expect(page.get_by_role("status")).to_contain_text("was saved as version 2.")
    names = [each["name"] for each in rest.get(f"/gts/{entry['id']}").json()["fields"]]
    assert names == [*(f"f{number}" for number in range(120) if number != 59), "last"]


def test_what_state_and_role_do_not_allow_cannot_be_edited(visit: Visit, rest: httpx.Client, service: Service) -> None:
    entry = made(rest)
    at = f"/gts/{entry['id']}"
    assert rest.post(f"{at}/transitions", json={"to": "DEPRECATED", "version": 1}).status_code == 200
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER)
    expect(page.get_by_text("The schema is DEPRECATED: only description and metadata can change")).to_be_visible()
    expect(page.get_by_label("Schema name")).to_be_disabled()
    expect(field(page, 1).get_by_label("Name")).to_be_disabled()
    expect(page.get_by_role("button", name="Add Field")).to_be_disabled()
    expect(page.get_by_role("button", name="Remove field 1")).to_be_disabled()
    page.get_by_role("button", name="Edit as JSON").click()
    editor = page.get_by_label("Schema as JSON")
    editor.fill(editor.input_value().replace("total", "sum"))
    page.get_by_role("button", name="Apply").click()
    told = page.get_by_role("dialog", name="Edit as JSON").get_by_text("only description and metadata can change")
    expect(told).to_be_visible()
    editor.fill(editor.input_value().replace("sum", "total").replace("null", '"as JSON"', 1))
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("Schema description")).to_have_value("as JSON")
    page.get_by_label("Schema description").fill("see Orders by day")
    save(page)
    expect(page.get_by_role("status")).to_contain_text("was saved as version 3.")
    assert rest.post(f"{at}/transitions", json={"to": "ARCHIVED", "version": 3}).status_code == 200
    page.goto(f"{service.address}/ui/schemas/{entry['id']}/edit")
    expect(page.get_by_role("alert")).to_contain_text("nothing can change in this state")
    expect(page.get_by_role("button", name="Save Schema")).to_have_count(0)

    viewer = visit("/schemas/new", Role.VIEWER)
    expect(viewer.get_by_role("alert")).to_contain_text("you need the role analytics.developer")
    viewer.goto(f"{service.address}/ui/schemas/{entry['id']}/edit")
    expect(viewer.get_by_role("alert")).to_contain_text("you need the role analytics.developer")
    expect(viewer.get_by_label("Schema name")).to_have_count(0)
