"""Pages of searches over REST, on both databases: `$top`, next links and positions."""

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest

from penstock.core.caller import Caller, Role, user_id
from penstock.core.registry import gts
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.pipelines.run_worker import RunWorker
from rest.rest_client import SECRET, RestClient, in_process_client, token
from support.workspaces import WorkspaceFixture


@pytest.fixture
def lake(workspace: WorkspaceFixture) -> Iterator[Lake]:
    with workspace.open() as opened:
        yield opened


@pytest.fixture
def tenant() -> UUID:
    return uuid4()


@pytest.fixture
def client(lake: Lake, tenant: UUID) -> Iterator[RestClient]:
    idle_worker = RunWorker(lake._workspace, takes_queued_runs=False)  # a run that starts would start Spark
    context = RestContext.create(lake._workspace, TokenVerifier(SECRET), run_worker=idle_worker)
    yield RestClient(in_process_client(create_app(context), None)._send, token(tenant=tenant))
    context.run_worker.close()
    context.query_executor.close()


def create(client: RestClient, name: str, **members: Any) -> str:
    payload = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": [{"name": "a", "type": "string"}], **members}
    return str(client("POST", "/gts", json=payload, code=201).json()["id"])


def follow(client: RestClient, path: str, page_size: int, **params: str) -> Iterator[dict[str, Any]]:
    """Yield the pages of a search."""
    headers = {"prefer": f"odata.maxpagesize={page_size}"}
    page = client("GET", path, params=params, headers=headers)
    assert page.headers["preference-applied"] == headers["prefer"]
    while True:
        yield page.json()
        if "@odata.nextLink" not in page.json():
            return
        page = client("GET", page.json()["@odata.nextLink"])


def names(pages: Iterator[dict[str, Any]]) -> list[str]:
    return [item["name"] for page in pages for item in page["value"]]


def test_top_limits_the_items_of_all_pages_together(client: RestClient) -> None:
    for number in range(9):
        create(client, f"schema {number}")
    assert "@odata.nextLink" not in client("GET", "/gts", params={"$top": "4"}).json()
    limited = list(follow(client, "/gts", 2, **{"$top": "5", "$orderby": "name", "$count": "true"}))
    assert [len(page["value"]) for page in limited] == [2, 2, 1]
    assert [page["@odata.count"] for page in limited] == [9, 9, 9]
    assert names(iter(limited)) == [f"schema {number}" for number in range(5)]
    skipped = follow(client, "/gts", 2, **{"$top": "5", "$skip": "6", "$orderby": "name"})
    assert names(skipped) == ["schema 6", "schema 7", "schema 8"]
    assert "@odata.nextLink" not in client("GET", "/gts", params={"$top": "0"}).json()
    assert "@odata.nextLink" not in client("GET", "/gts", params={"$top": "9"}).json()


@pytest.mark.parametrize("orderby", ["", "name", "description desc", "state, version desc, updated_at"])
def test_pages_fit_together_while_entries_are_created_and_deleted(client: RestClient, orderby: str) -> None:
    ids = {}
    for number in range(8):
        name = f"schema {number}"
        ids[name] = create(client, name, **({"description": f"d{number // 2}"} if number % 3 else {}))
    params = {"$orderby": orderby} if orderby else {}
    order = names(follow(client, "/gts", 200, **params))
    listed_names, pages = list[str](), follow(client, "/gts", 3, **params)
    for page_number, page in enumerate(pages):
        listed_names += [item["name"] for item in page["value"]]
        if page_number == 0:  # a deleted entry before the position, and new ones anywhere
            client("DELETE", f"/gts/{ids[order[0]]}", code=204)
            client("DELETE", f"/gts/{ids[order[2]]}", code=204)
            create(client, "another")
    assert [name for name in listed_names if name != "another"] == order


def test_next_links_of_every_search_return_every_item_once(client: RestClient, lake: Lake, tenant: UUID) -> None:
    token_lake = Lake(lake._workspace, Caller(tenant, user_id("", "ada"), "ada", Role.ADMIN), lake._folder)
    returns = create(client, "r")
    for number in range(5):
        dataset = token_lake.create(f"shop.t{number}", {"id": [1]}).current()
        query = {"name": f"q{number}", "sql": "SELECT 'x' AS a", "returns_schema_id": returns}
        client("POST", "/queries", json=query, code=201)
        merge = {"source": {"dataset_id": str(dataset.id)}, "key_columns": "id", "strategy": "upsert"}
        operations = [{"type": "merge", "parameters": merge}]
        pipeline = {"name": f"p{number}", "working": {"dataset_id": str(dataset.id)}, "operations": operations}
        path = f"/pipelines/{client('POST', '/pipelines', json=pipeline, code=201).json()['id']}/runs"
        run = client("POST", path, code=202).json()
        client("POST", f"/runs/{run['id']}/cancel", code=202)
    for path, prefix in (("/datasets", "shop.t"), ("/queries", "q"), ("/pipelines", "p"), ("/runs", "p")):
        for orderby in ("", "name desc", "created_at"):
            found_names = names(follow(client, path, 2, **({"$orderby": orderby} if orderby else {})))
            assert sorted(found_names) == [f"{prefix}{number}" for number in range(5)], (path, orderby)


@pytest.mark.parametrize("collection", ["/gts", "/queries"])
def test_revisions_have_next_links_within_top(client: RestClient, collection: str) -> None:
    path = f"{collection}/{create(client, 'r')}"
    if collection == "/queries":
        query = {"name": "q", "sql": "SELECT 'x' AS a", "returns_schema_id": path.rpartition("/")[2]}
        path = f"/queries/{client('POST', '/queries', json=query, code=201).json()['id']}"
    for version in range(1, 7):  # transitions between two states
        state = "DEPRECATED" if version % 2 else "ACTIVE"
        client("POST", f"{path}/transitions", json={"to": state, "version": version})

    def versions(page_size: int, **params: str) -> list[list[int]]:
        pages = follow(client, f"{path}/versions", page_size, **params)
        return [[item["version"] for item in page["value"]] for page in pages]

    assert versions(3) == [[7, 6, 5], [4, 3, 2], [1]]
    assert versions(2, **{"$top": "3"}) == [[7, 6], [5]]
    assert versions(2, before="4") == [[3, 2], [1]]
    assert versions(7) == [[7, 6, 5, 4, 3, 2, 1]]
    assert "@odata.nextLink" not in client("GET", f"{path}/versions?$top=2").json()
    assert client("GET", f"{path}/versions?$top=0").json() == {"value": []}
    for option in ("$top=x", "$top=-1", "$skiptoken=x", "before=x"):
        client("GET", f"{path}/versions?{option}", code=400)
    pages = follow(client, f"{path}/versions", 3)
    listed_versions = [item["version"] for item in next(pages)["value"]]
    client("POST", f"{path}/transitions", json={"to": "DEPRECATED", "version": 7})  # a new version before the position
    assert listed_versions + [item["version"] for page in pages for item in page["value"]] == [7, 6, 5, 4, 3, 2, 1]


def test_revisions_without_top_are_pages_of_one_hundred(client: RestClient) -> None:
    path = f"/gts/{create(client, 'r')}"
    for version in range(1, 103):
        client("PATCH", path, json={"description": f"{version}", "version": version})
    page = client("GET", f"{path}/versions").json()
    assert [item["version"] for item in page["value"]] == list(range(103, 3, -1))
    page = client("GET", page["@odata.nextLink"]).json()
    assert [item["version"] for item in page["value"]] == [3, 2, 1]
    assert "@odata.nextLink" not in page


def test_next_link_has_an_opaque_token_that_is_validated(client: RestClient) -> None:
    for number in range(3):
        create(client, f"schema {number}", description="ä" * 5_000 + str(number))
    params = {"$orderby": "description,name", "$filter": "contains(name,'schema')"}
    first = next(follow(client, "/gts", 1, **params))
    link = urlsplit(first["@odata.nextLink"])
    options = {name: values[0] for name, values in parse_qs(link.query).items()}
    skiptoken = options.pop("$skiptoken")
    assert options == params
    assert len(skiptoken) < 8_000
    client("GET", "/gts", params={**options, "$skiptoken": skiptoken})
    other = client("GET", "/gts", params={"$skiptoken": skiptoken}, code=400).json()
    assert (other["code"], other["option"]) == ("BAD_SKIPTOKEN", "$skiptoken")
    for extra in ({"$top": "1"}, {"$skip": "1"}):
        client("GET", "/gts", params={**options, "$skiptoken": skiptoken, **extra}, code=400)

    digest, limit, page, key = json.loads(base64.urlsafe_b64decode(skiptoken + "=" * (-len(skiptoken) % 4)))
    bad_keys = [
        [],
        key[:1],
        [*key, 1],
        [1, *key[1:]],
        [key[0], None, key[2]],
        [key[0], key[1], "x"],
        [[], *key[1:]],
        {},
    ]
    bad_tokens = [[digest, limit, page, bad] for bad in bad_keys]
    bad_tokens += [[digest, -1, page, key], [digest, True, page, key], [digest, limit, 0, key], [digest, limit, page]]
    bad_tokens += [[digest, limit, page, ["\0", *key[1:]]], [digest, limit, page, ["x" * 501, *key[1:]]]]
    texts = [base64.urlsafe_b64encode(json.dumps(bad).encode()).decode().rstrip("=") for bad in bad_tokens]
    for text in (*texts, "", "x", "é", "[]", skiptoken[:-2], "A" * 9_000, skiptoken + "*"):
        problem = client("GET", "/gts", params={**options, "$skiptoken": text}, code=400).json()
        assert problem["code"] == "BAD_SKIPTOKEN", text


BASE, BUILT_IN = gts.BASE_TYPE, str(gts.parse(gts.QUERY_RETURNS).uuid)
BUILT_IN_SELECTED = {  # filter → whether the response contains the built-in type
    f"type_id eq '{BASE}'": True,
    f"type_id in ('x', '{BASE}')": True,
    f"id eq {BUILT_IN}": True,
    f"type_id eq '{BASE}' or startswith(name, 'P')": True,
    f"type_id eq '{BASE}' and name eq 'x'": False,
    f"type_id ne '{BASE}'": False,
    f"not (type_id eq '{BASE}')": False,
    f"name ne '{BASE}'": False,
    f"description eq '{BASE}' or version eq 1": False,
    f"name in ('{BASE}') or version eq 1": False,
    "version eq 1": False,
}


@pytest.mark.parametrize("condition", BUILT_IN_SELECTED)
def test_search_returns_the_built_in_type_only_if_the_filter_selects_it(client: RestClient, condition: str) -> None:
    create(client, "P")
    page = client("GET", "/gts", params={"$filter": condition, "$count": "true"}).json()
    assert (BUILT_IN in [item["id"] for item in page["value"]]) == BUILT_IN_SELECTED[condition]
    assert page["@odata.count"] == len(page["value"])


@pytest.mark.parametrize("orderby", ["name", "name desc", "created_at", "description desc, name", ""])
def test_search_orders_the_built_in_type_among_the_others(client: RestClient, orderby: str) -> None:
    for name in ("Alpha", "Zeta", "beta", "Quartz"):
        create(client, name, **({"description": "Z"} if name == "Zeta" else {}))
    params = {"$filter": f"type_id eq '{BASE}' or version eq 1"} | ({"$orderby": orderby} if orderby else {})
    all_names = names(follow(client, "/gts", 200, **params))
    assert sorted(all_names) == ["Alpha", "Quartz", "Query Returns Schema", "Zeta", "beta"]
    if "name" in orderby and "description" not in orderby:
        assert all_names == sorted(all_names, reverse="desc" in orderby)
    if orderby in ("", "created_at"):
        assert all_names.index("Query Returns Schema") == (0 if orderby else 4)
    for size in (1, 2, 3):
        assert names(follow(client, "/gts", size, **params)) == all_names
    for skip in range(6):
        page = client("GET", "/gts", params={**params, "$skip": str(skip), "$top": "2", "$count": "true"}).json()
        assert ([item["name"] for item in page["value"]], page["@odata.count"]) == (all_names[skip : skip + 2], 5)


@pytest.mark.parametrize("header", ["odata.maxpagesize=0", "odata.maxpagesize=x", "return=minimal", ""])
def test_prefer_header_without_a_page_size_is_ignored(client: RestClient, header: str) -> None:
    create(client, "one")
    response = client("GET", "/gts", headers={"prefer": header})
    assert "preference-applied" not in response.headers
    listed = client("GET", "/gts", headers={"prefer": "respond-async, maxpagesize=1; x=y"})
    assert listed.headers["preference-applied"] == "odata.maxpagesize=1"
