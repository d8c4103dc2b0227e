"""Queries are registered over REST if they can keep their promise, and changed by those who know what they change."""

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from edges.http.client import OTHER, TENANT, Client
from penstock.core.registry import gts
from penstock.core.caller import Caller, Role
from penstock.lake import Lake

FIELDS = [{"name": "id", "type": "number"}, {"name": "region", "type": "string", "optional": True}]
SQL = "SELECT id, region FROM finance.tx"
PARAMETERS = [{"name": "region", "type": "string"}]


@pytest.fixture(autouse=True)
def mine(local: Lake) -> Lake:
    """What the tokens' tenant has."""
    lake = Lake(local.workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local.home)
    lake.create("finance.tx", pa.table({"id": [1, 2], "region": ["EMEA", None], "at": ["x", "y"]}))
    return lake


def schema(client: Client, name: str = "Transactions", fields: Any = FIELDS) -> str:
    sent = {"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}
    made: str = client("POST", "/gts", json=sent, code=201).json()["id"]
    return made


def sent(returns: str, name: str = "all", sql: str = SQL, **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": sql, "returns_schema_id": returns, **members}


def made(client: Client, **members: Any) -> dict[str, Any]:
    told: dict[str, Any] = client("POST", "/queries", json=sent(schema(client), **members), code=201).json()
    return told


def test_a_query_is_shown_as_it_was_registered_by_id_and_by_name(client: Client) -> None:
    sql = "SELECT id, region FROM Finance.TX AS t AT (VERSION => 1) WHERE region = $region"
    asked = sent(schema(client), "Ümsatz & 100 %", sql, description="d", parameters=PARAMETERS)
    answer = client("POST", "/queries", json=asked, code=201)
    told = answer.json()
    assert told == {
        **asked,
        "id": told["id"],
        "state": "ACTIVE",
        "parameters": [{"name": "region", "type": "string", "required": True}],
        "datasets": [{"schema_name": "Finance", "table_name": "TX", "version": 1}],
        "version": 1,
        **{name: told[name] for name in ("state_changed_at", "created_at", "created_by", "updated_at", "updated_by")},
    }
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["location"] == f"/queries/{told['id']}"
    assert client("GET", answer.headers["location"]).json() == told
    assert client("GET", f"/queries/{told['id']}", headers={"if-none-match": '"1"'}, code=304).text == ""
    renamed = client("PUT", f"/queries/{told['id']}", json={**told, "name": "Ümsatz 100 %"}).json()
    assert client("GET", f"/queries/{quote('ümsatz 100 %', safe='')}").json() == renamed


def test_queries_are_found_by_what_they_are(client: Client) -> None:
    returns = schema(client)
    for name in ("alpha", "beta", "gamma"):
        client("POST", "/queries", json=sent(returns, name), code=201)
    page = client(
        "GET", "/queries?$filter=name ne 'beta'&$orderby=name desc&$top=1&$count=true&$select=name,sql"
    ).json()
    assert page["value"] == [{"name": "gamma", "sql": SQL}]
    assert page["@odata.count"] == 2
    rest = client("GET", page["@odata.nextLink"]).json()
    assert rest["value"] == [{"name": "alpha", "sql": SQL}]
    assert "@odata.nextLink" not in rest
    assert len(client("GET", f"/queries?$filter=returns_schema_id eq {returns}").json()["value"]) == 3
    assert client("GET", "/queries?$filter=sql eq 'x'", code=400).json()["code"] == "UNKNOWN_FIELD"


MISFITS: dict[str, tuple[str, list[dict[str, Any]]]] = {
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
                "hint": "the result has ID; names are told apart by their case",
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


@pytest.mark.parametrize(("sql", "errors"), MISFITS.values(), ids=MISFITS.keys())
def test_what_can_never_fit_is_refused_at_once(client: Client, sql: str, errors: list[dict[str, Any]]) -> None:
    returns = schema(client)
    told = client("POST", "/queries", json=sent(returns, sql=sql), code=400).json()
    assert told["code"] == "QUERY_DOES_NOT_FIT"
    assert told["schema_id"] == returns
    assert told["errors"] == [{"pointer": "/sql", **each} for each in errors]
    kept = client("POST", "/queries", json=sent(returns), code=201).json()
    again = client("PUT", f"/queries/{kept['id']}", json={**kept, "sql": sql}, code=400).json()
    assert again["errors"] == told["errors"]
    assert client("GET", f"/queries/{kept['id']}").json() == kept


REFUSALS: dict[str, tuple[dict[str, Any], int, str]] = {
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


@pytest.mark.parametrize(("change", "status", "code"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_run_is_not_registered(client: Client, change: dict[str, Any], status: int, code: str) -> None:
    asked = {**sent(schema(client)), **change}
    assert client("POST", "/queries", json=asked, code=status).json()["code"] == code
    assert client("GET", "/queries").json()["value"] == []


def test_a_name_is_taken_once(client: Client) -> None:
    kept = made(client)
    told = client("POST", "/queries", json=sent(kept["returns_schema_id"], " ALL"), code=409).json()
    assert told["code"] == "QUERY_NAME_TAKEN"


def test_a_change_says_its_version_in_the_body_or_as_a_condition(client: Client) -> None:
    kept = made(client)
    here, new = f"/queries/{kept['id']}", {**sent(kept["returns_schema_id"]), "description": "new"}
    assert client("PUT", here, json=new, code=400).json()["code"] == "NO_VERSION"
    assert client("PUT", here, json={**new, "version": 2}, code=409).json()["current_version"] == 1
    assert client("PUT", here, json=new, headers={"if-match": '"2"'}, code=412).json()["current_version"] == 1
    answer = client("PUT", here, json=new, headers={"if-match": '"1"'})
    assert (answer.json()["version"], answer.headers["etag"]) == (2, '"2"')
    assert client("PUT", here, json={**kept, "version": 2}).json()["version"] == 3
    revisions = client("GET", f"{here}/versions?$top=2").json()["value"]
    assert [(each["version"], each["change"], each["author"]) for each in revisions] == [
        (3, "update", "ada"),
        (2, "update", "ada"),
    ]
    (first,) = client("GET", f"{here}/versions?before=2").json()["value"]
    assert first == client("GET", f"{here}/versions/1").json()
    assert (first["sql"], first["description"], first["datasets"]) == (SQL, None, kept["datasets"])
    for unknown in ("0", "4", "99999999999"):
        client("GET", f"{here}/versions/{unknown}", code=404)
    client("GET", f"{here}/versions/one", code=400)
    assert client("DELETE", here, headers={"if-match": '"1"'}, code=412).json()["code"] == "PRECONDITION_FAILED"
    client("DELETE", here, headers={"if-match": '"3"'}, code=204)
    assert client("GET", here, code=404).json()["code"] == "QUERY_NOT_FOUND"


def test_a_deprecated_query_says_so_and_an_archived_one_is_not_run(client: Client) -> None:
    kept = made(client)
    here = f"/queries/{kept['id']}"
    assert "deprecation" not in client("GET", here).headers
    moved = client("POST", f"{here}/transitions", json={"to": "DEPRECATED", "version": 1, "reason": "old"})
    assert moved.json()["state"] == "DEPRECATED"
    for path in (here, f"{here}/results"):
        assert client("GET", path).headers["deprecation"] == moved.headers["deprecation"]
    assert client("GET", here, headers={"if-none-match": '"2"'}, code=304).headers["deprecation"]
    assert moved.headers["deprecation"].removeprefix("@").isdigit()
    assert client("POST", f"{here}/transitions", json={"to": "DRAFT", "version": 2}, code=409).json()["possible"]
    client("POST", f"{here}/transitions", json={"to": "ARCHIVED", "version": 2})
    assert client("GET", f"{here}/results", code=409).json()["code"] == "QUERY_ARCHIVED"
    assert client("GET", here).json()["state"] == "ARCHIVED"


def test_a_schema_is_kept_while_a_query_refers_to_it(client: Client) -> None:
    kept = made(client)
    told = client("DELETE", f"/gts/{kept['returns_schema_id']}", code=409).json()
    assert (told["error"], told["query_count"]) == ("Schema is referenced by active queries", 1)
    client("DELETE", f"/queries/{kept['id']}", code=204)
    client("DELETE", f"/gts/{kept['returns_schema_id']}", code=204)


def test_viewers_read_and_run_developers_write_and_admins_delete(client: Client) -> None:
    kept = made(client)
    here, viewer, developer = f"/queries/{kept['id']}", client.as_(Role.VIEWER), client.as_(Role.DEVELOPER)
    for path in ("/queries", here, f"{here}/versions", f"{here}/versions/1", f"{here}/results"):
        viewer("GET", path)
        client.nobody()("GET", path, code=401)
    viewer("POST", "/queries/preview", json={"sql": "SELECT 1 AS one"})
    refused: list[tuple[Client, str, str, Any, str]] = [
        (viewer, "POST", "/queries", sent(kept["returns_schema_id"], "other"), "analytics.developer"),
        (viewer, "PUT", here, {**kept, "name": "other"}, "analytics.developer"),
        (viewer, "POST", f"{here}/transitions", {"to": "DEPRECATED", "version": 1}, "analytics.developer"),
        (viewer, "POST", "/gts/infer", {"sql": SQL}, "analytics.developer"),
        (developer, "POST", f"{here}/transitions", {"to": "DEPRECATED", "version": 1}, "analytics.admin"),
        (developer, "DELETE", here, None, "analytics.admin"),
    ]
    for who, method, path, body, role in refused:
        told = who(method, path, json=body, code=403).json()
        assert (told["error"], told["required_role"]) == ("Insufficient permissions", role)
    developer("PUT", here, json={**kept, "name": "other"})
    developer("POST", "/queries", json=sent(kept["returns_schema_id"]), code=201)
    client("DELETE", here, code=204)


def test_a_foreign_query_answers_as_an_unknown_one(client: Client) -> None:
    kept, stranger = made(client), client.as_(tenant=OTHER)
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("GET", "/versions", None), ("GET", "/versions/1", None), ("GET", "/results", None),
        ("PUT", "", kept), ("POST", "/transitions", {"to": "DEPRECATED", "version": 1}), ("DELETE", "", None),
    ]  # fmt: skip
    for method, tail, body in asked:
        answers = set()
        for key in (kept["id"], str(uuid4())):
            answer = stranger(method, f"/queries/{key}{tail}", json=body, code=404)
            answers.add(answer.text.replace(key, "ID"))
        assert len(answers) == 1
    assert stranger("GET", "/queries/all", code=404).json()["code"] == "QUERY_NOT_FOUND"
    assert stranger("GET", "/queries?$count=true").json()["@odata.count"] == 0
    assert client("GET", f"/queries/{kept['id']}").json() == kept


def test_a_query_reads_the_datasets_of_its_own_tenant_only(client: Client) -> None:
    stranger = client.as_(tenant=OTHER)
    theirs = schema(stranger)
    asked: list[tuple[str, Any]] = [
        ("/queries", sent(theirs)),
        ("/queries/preview", {"sql": SQL}),
        ("/gts/infer", {"sql": SQL}),
    ]
    for path, body in asked:
        told = stranger("POST", path, json=body, code=404).json()
        assert (told["code"], told["dataset"]) == ("DATASET_NOT_FOUND", "finance.tx")
    assert stranger("POST", "/queries", json=sent(schema(client)), code=404).json()["code"] == "SCHEMA_NOT_FOUND"


def test_a_schema_is_inferred_from_sql_and_fits_it(client: Client) -> None:
    sql = (
        "SELECT id, region, id > $least AS large, [region] AS regions, DATE '2026-01-31' AS day, now() AS moment "
        "FROM finance.tx"
    )
    told = client("POST", "/gts/infer", json={"sql": sql}).json()
    assert [(each["name"], each["type"], each.get("array", False)) for each in told["fields"]] == [
        ("id", "number", False),
        ("region", "string", False),
        ("large", "boolean", False),
        ("regions", "string", True),
        ("day", "date", False),
        ("moment", "datetime", False),
    ]
    assert told["name"] == "Query"
    proposal = client("POST", "/gts/infer", json={"sql": sql, "name": "Large ones"}).json()
    returns = client("POST", "/gts", json=proposal, code=201).json()["id"]
    parameters = [{"name": "least", "type": "number"}]
    client("POST", "/queries", json=sent(returns, sql=sql, parameters=parameters), code=201)
    client("GET", "/queries/all/results?least=1&$select=id,large,day,moment")
    for wrong in ({"sql": 7}, {"sql": SQL, "version": 1}, {"sql": SQL, "rows": []}):
        assert client("POST", "/gts/infer", json=wrong, code=400).json()["code"] == "BAD_PAYLOAD"
    assert client("POST", "/gts/infer", json={"sql": "SELECT {'a': 1} AS a"}, code=400).json()["field"] == "a"
