"""Registered queries over REST: create, change, preconditions."""

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.core.caller import Caller, Role
from penstock.core.registry import gts
from penstock.lake import Lake
from rest.rest_client import OTHER_TENANT, TENANT, RestClient

FIELDS = [{"name": "id", "type": "number"}, {"name": "region", "type": "string", "optional": True}]
SQL = "SELECT id, region FROM finance.tx"
PARAMETERS = [{"name": "region", "type": "string"}]


@pytest.fixture(autouse=True)
def token_lake(local_lake: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens, with one dataset."""
    lake = Lake(local_lake._workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local_lake._folder)
    lake.create("finance.tx", pa.table({"id": [1, 2], "region": ["EMEA", None], "at": ["x", "y"]}))
    return lake


def create_schema(client: RestClient, name: str = "Transactions", fields: Any = FIELDS) -> str:
    body = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}
    schema_id: str = client("POST", "/gts", json=body, code=201).json()["id"]
    return schema_id


def query_body(returns: str, name: str = "all", sql: str = SQL, **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": sql, "returns_schema_id": returns, **members}


def create_query(client: RestClient, **members: Any) -> dict[str, Any]:
    query: dict[str, Any] = client(
        "POST", "/queries", json=query_body(create_schema(client), **members), code=201
    ).json()
    return query


def test_show_query_by_id_and_by_name(client: RestClient) -> None:
    sql = "SELECT id, region FROM Finance.TX AS t AT (VERSION => 1) WHERE region = $region"
    draft = query_body(create_schema(client), "Ümsatz & 100 %", sql, description="d", parameters=PARAMETERS)
    response = client("POST", "/queries", json=draft, code=201)
    query = response.json()
    assert query == {
        **draft,
        "id": query["id"],
        "state": "ACTIVE",
        "parameters": [{"name": "region", "type": "string", "required": True}],
        "datasets": [{"schema_name": "Finance", "table_name": "TX", "version": 1}],
        "version": 1,
        **{name: query[name] for name in ("state_changed_at", "created_at", "created_by", "updated_at", "updated_by")},
    }
    assert response.headers["etag"] == '"1"'
    assert response.headers["location"] == f"/queries/{query['id']}"
    assert client("GET", response.headers["location"]).json() == query
    assert client("GET", f"/queries/{query['id']}", headers={"if-none-match": '"1"'}, code=304).text == ""
    renamed = client("PUT", f"/queries/{query['id']}", json={**query, "name": "Ümsatz 100 %"}).json()
    assert client("GET", f"/queries/{quote('ümsatz 100 %', safe='')}").json() == renamed


def test_search_queries_filters_by_members(client: RestClient) -> None:
    returns = create_schema(client)
    for name in ("alpha", "beta", "gamma"):
        client("POST", "/queries", json=query_body(returns, name), code=201)
    searched = "/queries?$filter=name ne 'beta'&$orderby=name desc&$count=true&$select=name,sql"
    page = client("GET", searched, headers={"prefer": "odata.maxpagesize=1"}).json()
    assert page["value"] == [{"name": "gamma", "sql": SQL}]
    assert page["@odata.count"] == 2
    second_page = client("GET", page["@odata.nextLink"]).json()
    assert second_page["value"] == [{"name": "alpha", "sql": SQL}]
    assert "@odata.nextLink" not in second_page
    assert len(client("GET", f"/queries?$filter=returns_schema_id eq {returns}").json()["value"]) == 3
    assert client("GET", "/queries?$filter=sql eq 'x'", code=400).json()["code"] == "UNKNOWN_FIELD"


MISMATCHES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a missing field": (
        "SELECT region FROM finance.tx",
        [{"field": "id", "expected": "number", "actual": None, "message": "Missing required field: id"}],
    ),
    "a field in another case": (
        "SELECT id AS ID FROM finance.tx",
        [
            {
                "field": "id",
                "expected": "number",
                "actual": None,
                "message": "Missing required field: id",
                "hint": "the result has ID; names are case-sensitive",
            }
        ],
    ),
    "wrong types": (
        "SELECT region AS id, id AS region FROM finance.tx",
        [
            {"field": "id", "expected": "number", "actual": "string", "message": "Type mismatch for field id"},
            {"field": "region", "expected": "string", "actual": "number", "message": "Type mismatch for field region"},
        ],
    ),
    "an array for a scalar": (
        "SELECT [id] AS id FROM finance.tx",
        [{"field": "id", "expected": "number", "actual": "number[]", "message": "Type mismatch for field id"}],
    ),
}


@pytest.mark.parametrize(("sql", "errors"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_create_query_that_cannot_match_schema_is_rejected(
    client: RestClient, sql: str, errors: list[dict[str, Any]]
) -> None:
    returns = create_schema(client)
    problem = client("POST", "/queries", json=query_body(returns, sql=sql), code=400).json()
    assert problem["code"] == "QUERY_DOES_NOT_FIT"
    assert problem["schema_id"] == returns
    assert problem["errors"] == [{"pointer": "/sql", **error} for error in errors]
    query = client("POST", "/queries", json=query_body(returns), code=201).json()
    replacement = client("PUT", f"/queries/{query['id']}", json={**query, "sql": sql}, code=400).json()
    assert replacement["errors"] == problem["errors"]
    assert client("GET", f"/queries/{query['id']}").json() == query


INVALID_QUERIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "an unknown member": ({"owner": "me"}, 400, "BAD_QUERY"),
    "no SQL": ({"sql": " "}, 400, "BAD_QUERY"),
    "an unknown schema": ({"returns_schema_id": str(uuid4())}, 404, "SCHEMA_NOT_FOUND"),
    "an unknown dataset": ({"sql": "SELECT 1 AS id FROM finance.none"}, 404, "DATASET_NOT_FOUND"),
    "a dataset without a schema": ({"sql": "SELECT 1 AS id FROM tx"}, 404, "DATASET_NOT_FOUND"),
    "an unknown version": ({"sql": "SELECT id FROM finance.tx AS t AT (VERSION => 9)"}, 404, "VERSION_NOT_FOUND"),
    "an unknown column": ({"sql": "SELECT amount AS id FROM finance.tx"}, 400, "QUERY_FAILED"),
    "no SELECT": ({"sql": "DROP TABLE finance.tx"}, 400, "NOT_ONE_SELECT"),
    "two statements": ({"sql": f"{SQL}; {SQL}"}, 400, "NOT_ONE_SELECT"),
    "a file": ({"sql": "SELECT content AS id FROM read_text('/etc/passwd')"}, 400, "BAD_SQL"),
    "a syntax error": ({"sql": "SELEC id"}, 400, "BAD_SQL"),
    "an undeclared parameter": ({"sql": f"{SQL} WHERE id = $id"}, 400, "BAD_PLACEHOLDERS"),
    "an unused parameter": ({"parameters": PARAMETERS}, 400, "BAD_PLACEHOLDERS"),
    "a parameter of no type": ({"parameters": [{"name": "x", "type": "integer"}]}, 400, "BAD_QUERY"),
}


@pytest.mark.parametrize(("change", "status", "code"), INVALID_QUERIES.values(), ids=INVALID_QUERIES.keys())
def test_create_query_with_invalid_sql_is_rejected(
    client: RestClient, change: dict[str, Any], status: int, code: str
) -> None:
    draft = {**query_body(create_schema(client)), **change}
    assert client("POST", "/queries", json=draft, code=status).json()["code"] == code
    assert client("GET", "/queries").json()["value"] == []


def test_create_query_with_taken_name_is_rejected(client: RestClient) -> None:
    query = create_query(client)
    problem = client("POST", "/queries", json=query_body(query["returns_schema_id"], " ALL"), code=409).json()
    assert problem["code"] == "QUERY_NAME_TAKEN"


def test_replace_query_requires_version_in_body_or_if_match(client: RestClient) -> None:
    query = create_query(client)
    path, new = f"/queries/{query['id']}", {**query_body(query["returns_schema_id"]), "description": "new"}
    assert client("PUT", path, json=new, code=400).json()["code"] == "MISSING_VERSION"
    assert client("PUT", path, json={**new, "version": 2}, code=409).json()["current_version"] == 1
    assert client("PUT", path, json=new, headers={"if-match": '"2"'}, code=412).json()["current_version"] == 1
    response = client("PUT", path, json=new, headers={"if-match": '"1"'})
    assert (response.json()["version"], response.headers["etag"]) == (2, '"2"')
    assert client("PUT", path, json={**query, "version": 2}).json()["version"] == 3
    revisions = client("GET", f"{path}/versions?$top=2").json()["value"]
    assert [(revision["version"], revision["change"], revision["author"]) for revision in revisions] == [
        (3, "update", "ada"),
        (2, "update", "ada"),
    ]
    (first,) = client("GET", f"{path}/versions?before=2").json()["value"]
    assert first == client("GET", f"{path}/versions/1").json()
    assert (first["sql"], first["description"], first["datasets"]) == (SQL, None, query["datasets"])
    for unknown in ("0", "4", "99999999999"):
        client("GET", f"{path}/versions/{unknown}", code=404)
    client("GET", f"{path}/versions/one", code=400)
    assert client("DELETE", path, headers={"if-match": '"1"'}, code=412).json()["code"] == "PRECONDITION_FAILED"
    client("DELETE", path, headers={"if-match": '"3"'}, code=204)
    assert client("GET", path, code=404).json()["code"] == "QUERY_NOT_FOUND"


def test_deprecated_query_has_header_and_archived_query_does_not_run(client: RestClient) -> None:
    query = create_query(client)
    query_path = f"/queries/{query['id']}"
    assert "deprecation" not in client("GET", query_path).headers
    moved = client("POST", f"{query_path}/transitions", json={"to": "DEPRECATED", "version": 1, "reason": "old"})
    assert moved.json()["state"] == "DEPRECATED"
    for path in (query_path, f"{query_path}/results"):
        assert client("GET", path).headers["deprecation"] == moved.headers["deprecation"]
    assert client("GET", query_path, headers={"if-none-match": '"2"'}, code=304).headers["deprecation"]
    assert moved.headers["deprecation"].removeprefix("@").isdigit()
    assert client("POST", f"{query_path}/transitions", json={"to": "DRAFT", "version": 2}, code=409).json()["possible"]
    client("POST", f"{query_path}/transitions", json={"to": "ARCHIVED", "version": 2})
    assert client("GET", f"{query_path}/results", code=409).json()["code"] == "QUERY_ARCHIVED"
    assert client("GET", query_path).json()["state"] == "ARCHIVED"


def test_delete_schema_referenced_by_query_is_rejected(client: RestClient) -> None:
    query = create_query(client)
    problem = client("DELETE", f"/gts/{query['returns_schema_id']}", code=409).json()
    assert (problem["error"], problem["query_count"]) == ("Schema is referenced by active queries", 1)
    client("DELETE", f"/queries/{query['id']}", code=204)
    client("DELETE", f"/gts/{query['returns_schema_id']}", code=204)


def test_delete_schema_referenced_by_archived_queries_does_not_call_them_active(client: RestClient) -> None:
    query = create_query(client)
    path, schema_path = f"/queries/{query['id']}", f"/gts/{query['returns_schema_id']}"
    for version, state in enumerate(("DEPRECATED", "ARCHIVED"), 1):
        client("POST", f"{path}/transitions", json={"to": state, "version": version})
    problem = client("DELETE", schema_path, code=409).json()
    assert (problem["error"], problem["query_count"]) == ("Schema referenced by archived queries", 1)
    active = client("POST", "/queries", json=query_body(query["returns_schema_id"], "still active"), code=201).json()
    problem = client("DELETE", schema_path, code=409).json()
    assert (problem["error"], problem["query_count"]) == ("Schema is referenced by active queries", 2)
    client("DELETE", f"/queries/{active['id']}", code=204)


def test_query_routes_require_roles(client: RestClient) -> None:
    query = create_query(client)
    query_path, viewer, developer = (
        f"/queries/{query['id']}",
        client.as_caller(Role.VIEWER),
        client.as_caller(Role.DEVELOPER),
    )
    for path in ("/queries", query_path, f"{query_path}/versions", f"{query_path}/versions/1", f"{query_path}/results"):
        viewer("GET", path)
        client.without_token()("GET", path, code=401)
    viewer("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"})
    forbidden: list[tuple[RestClient, str, str, Any, str]] = [
        (viewer, "POST", "/queries", query_body(query["returns_schema_id"], "other"), "analytics.developer"),
        (viewer, "PUT", query_path, {**query, "name": "other"}, "analytics.developer"),
        (viewer, "POST", f"{query_path}/transitions", {"to": "DEPRECATED", "version": 1}, "analytics.developer"),
        (viewer, "POST", "/gts/infer", {"sql": SQL}, "analytics.developer"),
        (developer, "POST", f"{query_path}/transitions", {"to": "DEPRECATED", "version": 1}, "analytics.admin"),
        (developer, "DELETE", query_path, None, "analytics.admin"),
    ]
    for caller, method, path, body, role in forbidden:
        problem = caller(method, path, json=body, code=403).json()
        assert (problem["error"], problem["required_role"]) == ("Insufficient permissions", role)
    developer("PUT", query_path, json={**query, "name": "other"})
    developer("POST", "/queries", json=query_body(query["returns_schema_id"]), code=201)
    client("DELETE", query_path, code=204)


def test_query_of_other_tenant_returns_same_404_as_unknown_one(client: RestClient) -> None:
    query, other_tenant = create_query(client), client.as_caller(tenant=OTHER_TENANT)
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("GET", "/versions", None), ("GET", "/versions/1", None), ("GET", "/results", None),
        ("PUT", "", query), ("POST", "/transitions", {"to": "DEPRECATED", "version": 1}), ("DELETE", "", None),
    ]  # fmt: skip
    for method, suffix, body in requests:
        texts = set()
        for key in (query["id"], str(uuid4())):
            response = other_tenant(method, f"/queries/{key}{suffix}", json=body, code=404)
            texts.add(response.text.replace(key, "ID"))
        assert len(texts) == 1
    assert other_tenant("GET", "/queries/all", code=404).json()["code"] == "QUERY_NOT_FOUND"
    assert other_tenant("GET", "/queries?$count=true").json()["@odata.count"] == 0
    assert client("GET", f"/queries/{query['id']}").json() == query


def test_query_reads_only_datasets_of_its_tenant(client: RestClient) -> None:
    other_tenant = client.as_caller(tenant=OTHER_TENANT)
    schema_id = create_schema(other_tenant)
    requests: list[tuple[str, Any]] = [
        ("/queries", query_body(schema_id)),
        ("/queries/preview", {"sql": SQL}),
        ("/gts/infer", {"sql": SQL}),
    ]
    for path, body in requests:
        problem = other_tenant("POST", path, json=body, code=404).json()
        assert (problem["code"], problem["dataset"]) == ("DATASET_NOT_FOUND", "finance.tx")
    assert (
        other_tenant("POST", "/queries", json=query_body(create_schema(client)), code=404).json()["code"]
        == "SCHEMA_NOT_FOUND"
    )


def test_infer_schema_from_sql_matches_result(client: RestClient) -> None:
    sql = (
        "SELECT id, region, id > $min_amount AS large, [region] AS regions, DATE '2026-01-31' AS day, now() AS moment "
        "FROM finance.tx"
    )
    inferred = client("POST", "/gts/infer", json={"sql": sql}).json()
    assert [(field["name"], field["type"], field.get("array", False)) for field in inferred["fields"]] == [
        ("id", "number", False),
        ("region", "string", False),
        ("large", "boolean", False),
        ("regions", "string", True),
        ("day", "date", False),
        ("moment", "datetime", False),
    ]
    assert inferred["name"] == "Query"
    proposal = client("POST", "/gts/infer", json={"sql": sql, "name": "Large rows"}).json()
    returns = client("POST", "/gts", json=proposal, code=201).json()["id"]
    parameters = [{"name": "min_amount", "type": "number"}]
    client("POST", "/queries", json=query_body(returns, sql=sql, parameters=parameters), code=201)
    client("GET", "/queries/all/results?min_amount=1&$select=id,large,day,moment")
    for body in ({"sql": 7}, {"sql": SQL, "version": 1}, {"sql": SQL, "rows": []}):
        assert client("POST", "/gts/infer", json=body, code=400).json()["code"] == "BAD_PAYLOAD"
    assert client("POST", "/gts/infer", json={"sql": "SELECT {'a': 1} AS a"}, code=400).json()["field"] == "a"
