"""The notice after a deletion, and its button Undo."""

from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.core.caller import Role
from penstock.core.registry import gts
from ui.conftest import NARROW, Service, Visit

UNKNOWN = "00000000-0000-4000-8000-000000000000"
OPERATION = {"type": "append", "parameters": {"source": {"dataset_id": UNKNOWN}}}
ENTITIES = {"schema": ("/gts", "/schemas"), "query": ("/queries", "/queries"), "pipeline": ("/pipelines", "/pipelines")}


def create(rest: httpx.Client, entity: str, name: str = "Monthly") -> str:
    """Create an entity and return its id; a query gets a result schema of its own."""
    schema = {"type_id": gts.QUERY_RETURNS, "fields": [{"name": "a", "type": "number"}]}
    contents: dict[str, dict[str, Any]] = {
        "schema": schema,
        "query": {"sql": "SELECT 1 AS a"},
        "pipeline": {"working": {"dataset_id": UNKNOWN}, "operations": [OPERATION]},
    }
    content = contents[entity]
    if entity == "query":
        content["returns_schema_id"] = create(rest, "schema", f"Result of {name}")
    response = rest.post(ENTITIES[entity][0], json={"name": name, **content})
    return str(response.raise_for_status().json()["id"])


def delete(page: Page, name: str = "Monthly") -> Locator:
    """Delete the entity of the page, and return the notice."""
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the deletion can be undone")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    notice = page.locator(".q-notification").filter(has_text="Deleted the")
    expect(notice.get_by_role("button", name="Undo")).to_be_visible()
    return notice


@pytest.mark.parametrize("entity", ENTITIES)
def test_undo_button_after_deletion_opens_the_entity_again(
    visit: Visit, rest: httpx.Client, service: Service, entity: str
) -> None:
    api_path, page_path = ENTITIES[entity]
    id = create(rest, entity)
    page = visit(f"{page_path}/{id}", Role.DEVELOPER if entity == "pipeline" else Role.ADMIN)
    notice = delete(page)
    expect(notice).to_contain_text(f"Deleted the {entity} Monthly.")
    assert rest.get(f"{api_path}/{id}").status_code == 404
    notice.get_by_role("button", name="Undo").dblclick()
    expect(page.get_by_role("heading", name="Monthly", level=1)).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text=f"Undid the deletion of the {entity} Monthly.")).to_be_visible()
    assert page.url == f"{service.address}/ui{page_path}/{id}"
    assert rest.get(f"{api_path}/{id}").json()["version"] == 2
    if entity == "query":
        page.get_by_text("Version 2: undelete by ada").click()
        expect(page.get_by_text("The deletion was undone.")).to_be_visible()


def test_undo_button_with_taken_name_shows_the_reason_and_can_be_used_again(visit: Visit, rest: httpx.Client) -> None:
    id = create(rest, "schema")
    page = visit(f"/schemas/{id}", width=NARROW)
    notice = delete(page)
    other = create(rest, "schema")
    notice.get_by_role("button", name="Undo").click()
    error = page.get_by_role("alert").filter(has_text="cannot be undone")
    expect(error).to_contain_text("another schema is named 'Monthly'. Rename or delete it first.")
    assert rest.get(f"/gts/{id}").status_code == 404
    rest.delete(f"/gts/{other}").raise_for_status()
    notice.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="Monthly", level=1)).to_be_visible()


def test_undo_button_with_deleted_result_schema_shows_the_reason(visit: Visit, rest: httpx.Client) -> None:
    id = create(rest, "query")
    schema = rest.get(f"/queries/{id}").json()["returns_schema_id"]
    page = visit(f"/queries/{id}")
    notice = delete(page)
    rest.delete(f"/gts/{schema}").raise_for_status()
    notice.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("alert").filter(has_text="The result schema of the query is deleted.")).to_be_visible()


def test_deletion_notice_is_closed_by_its_button_and_appears_once(visit: Visit, rest: httpx.Client) -> None:
    page = visit(f"/schemas/{create(rest, 'schema')}", dark=True)
    notice = delete(page)
    notice.get_by_role("button", name="Close").press("Enter")
    expect(notice).to_have_count(0)
    page.reload()
    expect(page.get_by_text("No schemas in these states.")).to_be_visible()
    expect(page.get_by_text("Deleted the schema")).to_have_count(0)
