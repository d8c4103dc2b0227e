"""Every page names the role that its hidden actions need."""

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import LifecycleState
from penstock.ui.lifecycle_badges import transition_roles
from penstock.ui.role_notes import describe_missing_roles
from ui.conftest import NARROW, Service, Visit
from ui.test_deletion_notice import create

DEVELOPER, ADMIN = Role.DEVELOPER.claim, Role.ADMIN.claim


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (Role.VIEWER, "To edit or publish it, you need the role {0}. To delete it, you need the role {1}."),
        (Role.DEVELOPER, "To delete it, you need the role {1}."),
        (Role.ADMIN, ""),
    ],
)
def test_describe_missing_roles_names_each_role_that_the_user_lacks(role: Role, text: str) -> None:
    actions = {"edit": Role.DEVELOPER, "delete": Role.ADMIN, "publish": Role.DEVELOPER}
    assert describe_missing_roles(role, actions, "it") == text.format(DEVELOPER, ADMIN)


def test_describe_missing_roles_joins_three_verbs_with_commas() -> None:
    actions = dict.fromkeys(("edit", "archive", "delete"), Role.ADMIN)
    assert (
        describe_missing_roles(Role.VIEWER, actions, "it")
        == f"To edit, archive or delete it, you need the role {ADMIN}."
    )


def test_transition_roles_of_draft_need_developers() -> None:
    assert transition_roles(LifecycleState.DRAFT) == {"publish": Role.DEVELOPER, "abandon": Role.DEVELOPER}


PAGES: dict[str, dict[Role, str]] = {
    "/": {Role.VIEWER: f"To create datasets, schemas, queries and pipelines, you need the role {DEVELOPER}."},
    "/schemas": {Role.VIEWER: f"To create schemas, you need the role {DEVELOPER}."},
    "/schemas/new": {Role.VIEWER: f"To create or change them, you need the role {DEVELOPER}."},
    "/schemas/{schema}": {
        Role.VIEWER: f"To edit this schema, you need the role {DEVELOPER}. To deprecate or delete this schema, you need the "
        f"role {ADMIN}.",
        Role.DEVELOPER: f"To deprecate or delete this schema, you need the role {ADMIN}.",
    },
    "/schemas/{schema}/edit": {Role.VIEWER: f"To create or change them, you need the role {DEVELOPER}."},
    "/datasets": {Role.VIEWER: f"To create datasets, you need the role {DEVELOPER}."},
    "/datasets/shop.orders": {Role.VIEWER: f"To append rows to this dataset, you need the role {DEVELOPER}."},
    "/queries": {Role.VIEWER: f"To register queries, you need the role {DEVELOPER}."},
    "/queries/new": {Role.VIEWER: f"To save the SQL as a query, you need the role {DEVELOPER}."},
    "/queries/{query}": {
        Role.VIEWER: f"To edit this query, you need the role {DEVELOPER}. To deprecate or delete this query, you need the "
        f"role {ADMIN}.",
        Role.DEVELOPER: f"To deprecate or delete this query, you need the role {ADMIN}.",
    },
    "/queries/{query}/edit": {Role.VIEWER: f"To save this query, you need the role {DEVELOPER}."},
    "/pipelines": {Role.VIEWER: f"To create pipelines, you need the role {DEVELOPER}."},
    "/pipelines/new": {Role.VIEWER: f"To create, change, run or delete them, you need the role {DEVELOPER}."},
    "/pipelines/{pipeline}": {Role.VIEWER: f"To create, change, run or delete them, you need the role {DEVELOPER}."},
    "/runs/{run}": {Role.VIEWER: f"To repeat this run, you need the role {DEVELOPER}."},
}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER, Role.ADMIN], ids=lambda role: role.name.lower())
def test_pages_name_the_roles_that_hidden_actions_need(
    visit: Visit, rest: httpx.Client, service: Service, role: Role
) -> None:
    ids = create_entities(rest)
    page = visit("/", role, width=NARROW if role is Role.VIEWER else 1280)
    for path, texts in PAGES.items():
        page.goto(f"{service.address}/ui{path.format(**ids)}")
        if role in texts:
            expect(page.get_by_text(texts[role])).to_be_visible()
        else:
            page.get_by_role("heading", level=1).first.wait_for()
            expect(page.get_by_text("you need the role")).to_have_count(0)


def create_entities(rest: httpx.Client) -> dict[str, Any]:
    """Create a dataset, a schema, a query, a pipeline and a cancelled run."""
    csv = {"content-type": "text/csv"}
    rest.post("/datasets", params={"name": "shop.orders"}, content="id\n1\n", headers=csv).raise_for_status()
    ids: dict[str, Any] = {entity: create(rest, entity) for entity in ("schema", "query", "pipeline")}
    run = rest.post(f"/pipelines/{ids['pipeline']}/runs").raise_for_status().json()["id"]
    rest.post(f"/runs/{run}/cancel").raise_for_status()
    while rest.get(f"/runs/{run}").json()["ended_at"] is None:
        pass
    return {**ids, "run": run}
