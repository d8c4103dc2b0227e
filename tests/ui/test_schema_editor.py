"""Schema editor: the create and edit flows of the contract, its five messages, conflicts and inference."""

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.core import result_schema
from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.errors import Invalid
from penstock.ui.schemas.form_model import (
    FieldFormData,
    SchemaFormData,
    drop_row,
    locate_errors,
    parse_form,
    row_index,
    to_form_data,
    to_json_text,
    validate_form,
)
from ui.conftest import NARROW, Service, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
GOOD = FieldFormData("order_id")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (SchemaFormData("Orders", rows=(GOOD,)), {}),
        (SchemaFormData("", rows=(GOOD,)), {"/name": "Schema name is required"}),
        (SchemaFormData("  ", rows=(GOOD,)), {"/name": "Schema name is required"}),
        (SchemaFormData("Orders"), {"/fields": "At least one field required"}),
        (SchemaFormData("Orders", rows=(GOOD, FieldFormData())), {"/fields/1/name": "Field name required"}),
        (SchemaFormData("Orders", rows=(FieldFormData("a b"), FieldFormData("x-y"))), dict.fromkeys(("/fields/0/name", "/fields/1/name"), "Invalid field name format")),
        (SchemaFormData("Orders", rows=(FieldFormData("a", "object"),)), {"/fields/0/type": "Field type must be scalar"}),
        (SchemaFormData("Orders", rows=(FieldFormData("a", "array"),)), {"/fields/0/type": "Field type must be scalar"}),
        (SchemaFormData("Orders", rows=(GOOD, GOOD)), {}),  # the contract has no message for it: the service reports it
        (SchemaFormData(), {"/name": "Schema name is required", "/fields": "At least one field required"}),
    ],
)  # fmt: skip
def test_validate_form_reports_contract_messages_at_pointers(form: SchemaFormData, expected: dict[str, str]) -> None:
    assert validate_form(form) == expected


def test_locate_errors_and_drop_row_move_errors_with_rows() -> None:
    errors = [
        {"pointer": "/fields/1/items", "message": "an array needs items"},
        {"pointer": "/fields/3/name", "message": "Duplicate field name 'a'"},
        {"pointer": "/metadata", "message": "metadata must be a JSON object"},
    ]
    located = locate_errors(errors)
    assert [row_index(pointer) for pointer in located] == [1, 3, None]
    assert drop_row(located, 1) == {
        "/fields/2/name": "Duplicate field name 'a'",
        "/metadata": "metadata must be a JSON object",
    }
    assert drop_row(located, 3) == {k: v for k, v in located.items() if k != "/fields/3/name"}


@pytest.mark.parametrize(
    ("field", "row"),
    [
        ({"name": "a", "type": "string[]"}, FieldFormData("a", "string", array=True)),
        ({"name": "a", "type": "array", "items": {"type": "date"}}, FieldFormData("a", "date", array=True)),
        (
            {"name": "a b", "type": "number", "array": True, "optional": True},
            FieldFormData("a b", "number", True, True),
        ),
        ({"name": "a", "type": "object", "properties": {}}, FieldFormData("a", "object")),
        ({"name": "a", "type": "string", "fields": []}, FieldFormData("a", "object")),
        ({"name": "a", "type": {"x": 1}}, FieldFormData("a", "object")),
        ({"type": "string", "description": "x"}, FieldFormData("", "string", description="x")),
    ],
)
def test_parse_form_accepts_all_notations_and_keeps_invalid_types(field: Any, row: FieldFormData) -> None:
    form = parse_form(json.dumps({"name": "Orders", "fields": [field], "metadata": {"owner": "sales"}}))
    assert form == SchemaFormData("Orders", rows=(row,), metadata={"owner": "sales"})


def test_form_data_round_trips_through_json() -> None:
    form = SchemaFormData(
        "Orders", "d", (FieldFormData("a", "number", True, True, "x"), FieldFormData("b")), {"k": [1]}
    )
    assert parse_form(to_json_text(form)) == form == to_form_data(form.as_json())
    assert [each.name for each in result_schema.parse_fields(form.as_json()["fields"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the schema is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"fields": 1}', "/fields: fields must be an array"),
        ('{"name": 5, "fields": []}', "/name: name must be a string"),
        ('{"fields": [{"name": "a", "type": "string", "colour": 1}]}', "/fields/0: Unknown field members: colour"),
        ('{"fields": [{"name": "a", "type": "string", "optional": 1}]}', "/fields/0/optional: optional must be"),
        ('{"fields": [{"name": "a", "type": "string", "description": 1}]}', "/fields/0/description: "),
        ('{"name": "\ud800"}', "not valid UTF-8"),
    ],
)
def test_parse_form_rejects_json_that_form_cannot_show(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        parse_form(text)


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


def create_schema(rest: httpx.Client, name: str = "Orders", **more: Any) -> dict[str, Any]:
    fields = [{"name": "order_id", "type": "string"}, {"name": "total", "type": "number", "optional": True}]
    response = rest.post("/gts", json={"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields, **more})
    assert response.status_code == 201, response.text
    schema: dict[str, Any] = response.json()
    return schema


def test_create_schema_reports_contract_errors_before_sending(visit: Visit, rest: httpx.Client) -> None:
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
    schema = json.loads(editor.input_value())
    schema["fields"][2] = {"name": "customer", "type": "object", "properties": {}}
    editor.fill(" " * 1_000_000 + json.dumps(schema))
    expect(
        page.get_by_text("Only the first 240,000 characters were accepted. Use POST /gts for longer texts.")
    ).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Apply").click()
    expect(
        page.get_by_text("Only the first 240,000 characters were accepted. Use POST /gts for longer texts.")
    ).to_be_visible()
    editor.fill(json.dumps(schema) + ",")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("the schema is not valid JSON")).to_be_visible()
    editor.fill(json.dumps(schema))
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
    expect(page.get_by_role("button", name="Open schema")).to_be_focused()
    confirmation = page.get_by_role("status").filter(has_text="was created")
    expect(confirmation).to_contain_text(UUID)
    (stored,) = rest.get("/gts").json()["value"]
    expect(confirmation).to_contain_text(stored["id"])
    expect(confirmation).to_contain_text(f"“{EVIL}”")
    assert (stored["name"], stored["description"], stored["state"]) == (EVIL, EVIL, "ACTIVE")
    assert stored["fields"] == [
        {"name": "order_id", "type": "string", "optional": False},
        {"name": "tags", "type": "date", "optional": True, "array": True, "description": EVIL},
    ]

    page.get_by_role("button", name="Open schema").click()
    expect(page.get_by_role("heading", level=1, name=EVIL)).to_be_visible()
    expect(page.get_by_role("cell", name=EVIL)).to_be_visible()
    page.get_by_role("button", name="Edit").click()
    expect(field(page, 2).get_by_label("Description")).to_have_value(EVIL)
    assert page.evaluate("window.hacked") is None


def test_edit_schema_shows_service_errors_at_rows(visit: Visit, rest: httpx.Client) -> None:
    create_schema(rest, "Taken")
    entry = create_schema(rest, "Orders", metadata={"owner": "sales"})
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER, width=NARROW, dark=True, expect=("beforeunload",))
    expect(page.get_by_label("Schema name")).to_have_value("Orders")
    expect(field(page, 2).get_by_role("checkbox", name="Optional")).to_be_checked()
    page.get_by_role("button", name="Add Field").click()
    field(page, 3).get_by_label("Name").fill("order_id")
    save(page)
    expect(field(page, 3).get_by_text("Duplicate field name 'order_id'")).to_be_visible()
    field(page, 1).get_by_label("Name").fill("order_no")
    expect(page.get_by_text("Duplicate field name 'order_id'")).to_have_count(0)
    field(page, 1).get_by_label("Name").fill("order_id")
    field(page, 3).get_by_label("Name").fill("placed_on")
    choose(page, field(page, 3), "Type", "date")
    page.get_by_label("Schema name").fill("taken")
    save(page)
    expect(page.get_by_text("A schema named 'taken' already exists")).to_be_visible()

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
    stored = rest.get(f"/gts/{entry['id']}").json()
    assert [field_["name"] for field_ in stored["fields"]] == ["order_id", "placed_on"]
    assert (stored["name"], stored["metadata"]) == ("Orders by day", {"owner": "sales"})
    page.get_by_role("button", name="Open schema").click()
    expect(page.get_by_role("heading", level=1, name="Orders by day")).to_be_visible()


def test_schema_conflict_shows_both_sides_and_offers_reload_or_overwrite(visit: Visit, rest: httpx.Client) -> None:
    entry = create_schema(rest, description="as it was")
    at = f"/gts/{entry['id']}"
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER, user="grace")

    def change_by_both_users(version: int) -> None:
        page.get_by_label("Schema description").fill("own_changes")
        fields = [*entry["fields"], {"name": f"theirs_{version}", "type": "date"}]
        assert rest.patch(at, json={"fields": fields, "description": EVIL, "version": version}).status_code == 200
        save(page)
        expect(page.get_by_text(f"Version {version + 1} was saved by ada")).to_be_visible()
        own_changes, other_changes = (
            page.get_by_role("region", name=f"{owner} changes") for owner in ("Your", "Their")
        )
        expect(own_changes).to_contain_text("→ “own_changes”")
        expect(own_changes).not_to_contain_text("other_changes")
        expect(other_changes).to_contain_text(f"theirs_{version} was added: date, required")

    change_by_both_users(1)
    expect(page.get_by_role("region", name="Their changes")).to_contain_text(f"“as it was” → “{EVIL}”")
    page.get_by_role("button", name="Keep editing").click()
    expect(page.get_by_label("Schema description")).to_have_value("own_changes")
    save(page)
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_label("Schema description")).to_have_value(EVIL)
    expect(field(page, 3).get_by_label("Name")).to_have_value("theirs_1")

    change_by_both_users(2)
    page.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_role("status")).to_contain_text("was saved as version 4.")
    stored = rest.get(at).json()
    assert stored["description"] == "own_changes"
    assert [field_["name"] for field_ in stored["fields"]] == ["order_id", "total", "theirs_1"]
    assert page.evaluate("window.hacked") is None


def test_breaking_change_shows_effects_and_only_admin_can_force_it(visit: Visit, rest: httpx.Client) -> None:
    entry = create_schema(rest)
    query = {"name": "orders", "sql": "SELECT 'a' AS order_id", "returns_schema_id": entry["id"]}
    assert rest.post("/queries", json=query).status_code == 201
    for role in (Role.DEVELOPER, Role.ADMIN):
        page = visit(f"/schemas/{entry['id']}/edit", role)
        page.get_by_role("button", name="Remove field 1").click()
        save(page)
        expect(page.get_by_text("Breaking change", exact=True)).to_be_visible()
        expect(page.get_by_text("1 registered query returns this schema")).to_be_visible()
        expect(page.get_by_text("order_id was removed: string, required")).to_be_visible()
        if role is Role.DEVELOPER:
            expect(page.get_by_text("To save it anyway, you need the role analytics.admin")).to_be_visible()
            expect(page.get_by_role("button", name="Save anyway")).to_have_count(0)
            page.get_by_role("button", name="Keep editing").click()
            assert rest.get(f"/gts/{entry['id']}").json()["version"] == 1
        else:
            page.get_by_role("button", name="Save anyway").click()
            expect(page.get_by_role("status")).to_contain_text("was saved as version 2.")


def test_infer_schema_from_rows_dataset_or_sql_fills_editor(visit: Visit, rest: httpx.Client) -> None:
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
    expect(page.get_by_text("the sample is not valid JSON")).to_be_visible()
    page.get_by_label("Rows: a JSON array").fill(json.dumps([{EVIL: {"deep": 1}}]))
    page.get_by_role("button", name="Infer", exact=True).click()
    expect(page.get_by_text("Only scalar types allowed in query returns: '<img src=x")).to_be_visible()
    page.get_by_label("Rows: a JSON array").fill('[{"a": 1, "b": ["x"]}, {"a": null, "b": []}]')
    page.get_by_role("button", name="Infer", exact=True).click()
    expect(field(page, 1).get_by_label("Name")).to_have_value("a")
    expect(field(page, 1).get_by_role("checkbox", name="Optional")).to_be_checked()
    expect(field(page, 2).get_by_role("checkbox", name="List")).to_be_checked()

    for source, label, sample, name in (
        ("Rows", "Rows: a JSON array", "csv_name,n\nx,1\n", "csv_name"),
        ("Dataset", "Dataset", "shop.orders", "id"),
        ("SQL", "SQL", "SELECT day FROM shop.orders", "day"),
    ):
        page.get_by_role("button", name="Infer from a sample").click()
        page.get_by_role("button", name=source, exact=True).click()
        page.get_by_label(label).and_(page.locator("input, textarea")).fill(sample)
        page.get_by_role("button", name="Infer", exact=True).click()
        expect(field(page, 1).get_by_label("Name")).to_have_value(name)
        expect(dialog).to_have_count(0)

    field(page, 1).get_by_label("Name").fill("the_day")
    page.get_by_role("button", name="Infer from a sample").click()
    page.get_by_label("Rows: a JSON array").fill('[{"lost": 1}]')
    page.get_by_role("button", name="Infer", exact=True).click()
    question = page.get_by_role("dialog", name="Replace the existing field?")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_have_count(0)
    expect(page.get_by_label("Rows: a JSON array")).to_have_value('[{"lost": 1}]')
    dialog.get_by_role("button", name="Cancel").click()
    expect(field(page, 1).get_by_label("Name")).to_have_value("the_day")
    page.get_by_label("Schema name").fill("Days")
    tick(page.get_by_role("checkbox", name="Save as draft"))
    save(page)
    expect(page.get_by_role("status")).to_contain_text("“Days” was created.")
    (stored,) = rest.get("/gts").json()["value"]
    assert (stored["state"], [field_["name"] for field_ in stored["fields"]]) == ("DRAFT", ["the_day"])
    assert page.evaluate("window.hacked") is None


def test_schema_form_with_many_fields_pages_to_first_error(visit: Visit, rest: httpx.Client) -> None:
    entry = create_schema(rest, fields=[{"name": f"f{number}", "type": "string"} for number in range(120)])
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


def test_schema_editor_respects_state_and_role(visit: Visit, rest: httpx.Client, service: Service) -> None:
    entry = create_schema(rest)
    at = f"/gts/{entry['id']}"
    assert rest.post(f"{at}/transitions", json={"to": "DEPRECATED", "version": 1}).status_code == 200
    page = visit(f"/schemas/{entry['id']}/edit", Role.DEVELOPER)
    expect(
        page.get_by_text("The schema is DEPRECATED. In this state only description, metadata can change")
    ).to_be_visible()
    expect(page.get_by_label("Schema name")).to_be_disabled()
    expect(field(page, 1).get_by_label("Name")).to_be_disabled()
    expect(page.get_by_role("button", name="Add Field")).to_be_disabled()
    expect(page.get_by_role("button", name="Remove field 1")).to_be_disabled()
    page.get_by_role("button", name="Edit as JSON").click()
    editor = page.get_by_label("Schema as JSON")
    editor.fill(editor.input_value().replace("total", "sum"))
    page.get_by_role("button", name="Apply").click()
    error = page.get_by_role("dialog", name="Edit as JSON").get_by_text("only description, metadata can change")
    expect(error).to_be_visible()
    editor.fill(editor.input_value().replace("sum", "total").replace("null", '"as JSON"', 1))
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("Schema description")).to_have_value("as JSON")
    page.get_by_label("Schema description").fill("see Orders by day")
    save(page)
    expect(page.get_by_role("status")).to_contain_text("was saved as version 3.")
    assert rest.post(f"{at}/transitions", json={"to": "ARCHIVED", "version": 3}).status_code == 200
    page.goto(f"{service.address}/ui/schemas/{entry['id']}/edit")
    expect(page.get_by_role("alert")).to_contain_text("It cannot be changed in this state")
    expect(page.get_by_role("button", name="Save Schema")).to_have_count(0)

    viewer = visit("/schemas/new", Role.VIEWER)
    expect(viewer.get_by_role("alert")).to_contain_text("you need the role analytics.developer")
    viewer.goto(f"{service.address}/ui/schemas/{entry['id']}/edit")
    expect(viewer.get_by_role("alert")).to_contain_text("you need the role analytics.developer")
    expect(viewer.get_by_label("Schema name")).to_have_count(0)
