"""Check that every response of the service matches its OpenAPI document, for valid and invalid requests of every caller."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.schemas import OpenApiSchema

from penstock.cancellation import CancelToken
from penstock.core.caller import Role, caller_from_claims
from penstock.core.registry import gts
from penstock.errors import Unsupported
from penstock.rest.context import RestContext
from penstock.rest.requests import media_types
from penstock.rest.routes import api_docs
from penstock.service.pipelines.run_worker import RunLimits, RunWorker
from rest.rest_client import TENANT, RestClient, bearer, token, wait_for_run

CALLERS = {
    "an admin": bearer(token(Role.ADMIN)),
    "a viewer": bearer(token(Role.VIEWER)),
    "a forger": bearer("e30.e30.e30"),
    "no token": {},
}
OPEN = {"/healthz", "/readyz", "/metrics"}
FIELDS = [{"name": "order_id", "type": "string"}]
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "amount", "type": {"decimal": [12, 2]}}]
SCHEMA = {"name": "Orders", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
METADATA = {"owner": "sales"}
SQL = "SELECT id::VARCHAR AS order_id FROM shop.orders WHERE amount >= $min_amount"
PARAMETERS = [{"name": "min_amount", "type": "number", "default": 0}]
KEY = {"idempotency-key": "nightly"}


def query(schema: str, name: str = "Large orders", **members: Any) -> dict[str, Any]:
    return {"name": name, "sql": SQL, "parameters": PARAMETERS, "returns_schema_id": schema, **members}


def pipeline(dataset: str, name: str = "Nightly") -> dict[str, Any]:
    """Return a pipeline that appends an empty dataset to itself."""
    append = {"type": "append", "order": 0, "parameters": {"source": {"dataset_id": dataset}}}
    return {"name": name, "working": {"dataset_id": dataset}, "operations": [append]}


@pytest.fixture
def rest_context(rest_context: RestContext) -> Iterator[RestContext]:
    """Return a context with room for all runs that generated requests may start."""
    context = replace(
        rest_context,
        run_worker=RunWorker(rest_context.workspace, RunLimits(max_queued=100_000, max_queued_per_tenant=100_000)),
    )
    yield context
    context.run_worker.close()


@schemathesis.serializer(*media_types.FILE_FORMATS)
def serialize_file(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture
def openapi(app: FastAPI) -> dict[str, Any]:
    document: dict[str, Any] = app.openapi()
    return document


@pytest.fixture
def document(app: FastAPI) -> OpenApiSchema:
    # The document declares a filter or a patch as text, but each has its own grammar, so a valid text may be rejected.
    rejected = {"expected-statuses": [400, 401, 403, 404, 405, 406, 409, 412, 415]}
    # Requests without a token are tested below: this check would send the token.
    disabled = {"enabled": False}
    checks = {"positive_data_acceptance": disabled, "ignored_auth": disabled, "negative_data_rejection": rejected}
    generation = {"deterministic": True, "database": "none", "with-security-parameters": False}
    config = schemathesis.Config.from_dict({"checks": checks, "generation": generation})
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config)


def operations(openapi: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


# --- the document


def test_document_is_valid_openapi_3_1(document: OpenApiSchema, openapi: dict[str, Any]) -> None:
    assert openapi["openapi"].startswith("3.1.")
    document.validate()


def test_document_contains_every_route_except_its_own(app: FastAPI, openapi: dict[str, Any]) -> None:
    own = {route.path for route in api_docs.router.routes if isinstance(route, APIRoute)}
    served = {(route.path, method) for route in app.state.routes for method in route.methods}
    documented = {(path, method.upper()) for path, methods in openapi["paths"].items() for method in methods}
    assert {(path, method) for path, method in served if path not in own} == documented
    assert own & {path for path, _ in documented} == set()


def test_every_operation_has_descriptions_of_all_parameters(openapi: dict[str, Any]) -> None:
    for label, operation in operations(openapi):
        assert operation["summary"], label
        assert operation["tags"], label
        for parameter in operation.get("parameters", []):
            name = f"{label}: {parameter['name']}"
            assert parameter["description"], name
            assert parameter["schema"], name
            assert "example" in parameter or parameter["schema"]["examples"], name
        assert {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"} == {
            part[1:-1] for part in label.split("/") if part.startswith("{")
        }
        for media_type, body in operation.get("requestBody", {"content": {}})["content"].items():
            assert body["schema"], f"{label}: {media_type}"
            assert "example" in body or body["schema"]["format"] == "binary", f"{label}: {media_type}"


def test_every_operation_declares_each_possible_status(openapi: dict[str, Any]) -> None:
    for label, operation in operations(openapi):
        expected = set[str]()
        if label.partition(" ")[2] not in OPEN:
            expected |= {"400", "401", "403", "500", "503"}
        if "{" in label:
            expected |= {"404"}
        if "requestBody" in operation:
            expected |= {"413", "415"}
        if any(parameter["name"] == "if-match" for parameter in operation.get("parameters", [])):
            expected |= {"409", "412"}
        if any(parameter["name"] == "if-none-match" for parameter in operation.get("parameters", [])):
            expected |= {"304"}
        assert expected <= operation["responses"].keys(), label
        assert "422" not in operation["responses"], label


def test_every_response_has_schema_and_matching_example(openapi: dict[str, Any]) -> None:
    example_count = 0
    for label, operation in operations(openapi):
        bodies = [
            (response["content"], code) for code, response in operation["responses"].items() if "content" in response
        ]
        bodies += [(operation["requestBody"]["content"], "sent")] if "requestBody" in operation else []
        for content, code in bodies:
            for media_type, body in content.items():
                assert body["schema"], (label, code, media_type)
                if "example" in body:
                    schema = {**body["schema"], "components": openapi["components"]}
                    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
                    errors = [error.message for error in validator.iter_errors(body["example"])]
                    assert not errors, (label, code, media_type, errors)
                    example_count += 1
                else:
                    assert body["schema"] == {"type": "string", "format": "binary"}, (label, code, media_type)
    assert example_count > 100


def test_every_component_is_used_and_every_link_resolves(openapi: dict[str, Any]) -> None:
    used = set(_references(openapi))
    assert used == {f"#/components/schemas/{name}" for name in openapi["components"]["schemas"]}
    ids = {operation["operationId"]: label for label, operation in operations(openapi)}
    assert len(ids) == len(list(operations(openapi)))
    collections = [
        ("/gts", "/gts/{id}"),
        ("/queries", "/queries/{id}"),
        ("/datasets", "/datasets/{dataset}"),
        ("/pipelines", "/pipelines/{id}"),
    ]
    for collection, entity_path in collections:
        links = openapi["paths"][collection]["post"]["responses"]["201"]["links"]
        linked = {ids[link["operationId"]] for link in links.values()}
        assert linked == {label for label in ids.values() if label.partition(" ")[2].startswith(entity_path)}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# --- responses match the document


@pytest.fixture
def execution_id(rest_context: RestContext) -> Iterator[str]:
    """Register an execution of the caller until a test cancels it."""
    caller = caller_from_claims({"sub": "ada", "tenant_id": str(TENANT), "roles": [Role.ADMIN.claim]})
    with (
        pytest.raises(Unsupported, match="cancelled"),
        rest_context.query_executor.executions.register(caller, "totals", CancelToken()) as execution,
    ):
        yield str(execution.id)


def test_successful_response_of_every_operation_matches_document(
    document: OpenApiSchema, client: RestClient, execution_id: str
) -> None:
    schema = client("POST", "/gts", json=SCHEMA, code=201).json()["id"]
    old = client("POST", "/gts", json={**SCHEMA, "name": "Old"}, code=201).json()["id"]
    older = client("POST", "/gts", json={**SCHEMA, "name": "Older"}, code=201).json()["id"]
    dataset = client("POST", "/datasets", json={"name": "shop.orders", "schema": COLUMNS}, code=201).json()["id"]
    empty = client("POST", "/datasets", json={"name": "shop.empty", "schema": COLUMNS}, code=201).json()["id"]
    query_id = client("POST", "/queries", json=query(old), code=201).json()["id"]
    pipeline_id = client("POST", "/pipelines", json=pipeline(empty), code=201).json()["id"]
    run = wait_for_run(client, client("POST", f"/pipelines/{pipeline_id}/runs", code=202, headers=KEY).json())["id"]
    by_id, by_name = {"id": schema}, {"dataset": "shop.orders"}
    by_pipeline, by_run, by_query = {"id": pipeline_id}, {"id": run}, {"id": query_id}
    (append,) = pipeline(empty)["operations"]
    requests: list[tuple[str, dict[str, Any], int]] = [
        ("GET /me", {}, 200),
        ("GET /healthz", {}, 200),
        ("GET /readyz", {}, 200),
        ("GET /metrics", {}, 200),
        ("POST /gts", {"body": {**SCHEMA, "name": "More", "metadata": METADATA}}, 201),
        ("POST /gts", {"body": {"entity": {**SCHEMA, "name": "Draft", "state": "DRAFT"}}}, 201),
        ("GET /gts", {}, 200),
        ("GET /gts", {"query": {"$count": "true", "$top": "1", "$select": "id,metadata"}}, 200),
        ("GET /gts/$count", {"query": {"$filter": "version eq 1"}}, 200),
        ("GET /", {}, 200),
        ("GET /$metadata", {}, 200),
        ("GET /$metadata", {"headers": {"accept": "application/json"}}, 200),
        ("GET /gts", {"query": {"$filter": f"type_id eq '{gts.BASE_TYPE}'"}}, 200),
        ("POST /gts/infer", {"body": {"dataset": "shop.orders", "version": 1}}, 200),
        ("POST /gts/infer", {"body": {"rows": [{"a": 1}], "name": "A"}}, 200),
        ("POST /gts/infer", {"body": {"sql": SQL}}, 200),
        ("POST /gts/infer", {"body": b"a,b\n1,x\n", "media_type": "text/csv"}, 200),
        ("GET /gts/{id}", {"path_parameters": by_id}, 200),
        ("GET /gts/{id}", {"path_parameters": by_id, "headers": {"if-none-match": '"1"'}}, 304),
        ("PUT /gts/{id}", {"path_parameters": by_id, "body": {**SCHEMA, "description": "All", "version": 1}}, 200),
        ("PATCH /gts/{id}", {"path_parameters": by_id, "body": {"description": None, "version": 2}}, 200),
        (
            "PATCH /gts/{id}",
            {
                "path_parameters": by_id,
                "body": [
                    {"op": "test", "path": "/version", "value": 3},
                    {"op": "add", "path": "/fields/-", "value": {"name": "tags", "type": "string[]"}},
                ],
                "media_type": "application/json-patch+json",
            },
            200,
        ),
        (
            "POST /gts/{id}/transitions",
            {"path_parameters": {"id": older}, "body": {"to": "DEPRECATED", "version": 1, "reason": "old"}},
            200,
        ),
        ("GET /gts/{id}", {"path_parameters": {"id": older}}, 200),
        ("GET /gts/{id}/versions", {"path_parameters": by_id}, 200),
        ("GET /gts/{id}/versions/{version}", {"path_parameters": {**by_id, "version": "4"}}, 200),
        ("GET /gts/{id}/diff", {"path_parameters": by_id, "query": {"from": "1", "to": "4"}}, 200),
        ("POST /gts/{id}/compatibility", {"path_parameters": by_id, "body": {"fields": FIELDS}}, 200),
        ("GET /gts/{id}/references", {"path_parameters": by_id}, 200),
        ("GET /gts/{id}/json-schema", {"path_parameters": by_id}, 200),
        ("POST /gts/{id}/validate", {"path_parameters": by_id, "body": {"rows": [{"order_id": 1}, 2]}}, 200),
        ("POST /gts/{id}/validate", {"path_parameters": by_id, "body": {"rows": "none", "strict": True}}, 200),
        ("DELETE /gts/{id}", {"path_parameters": by_id}, 204),
        ("POST /gts/{id}/undelete", {"path_parameters": by_id}, 200),
        ("POST /datasets", {"body": {"name": "a.b", "schema": [{"name": "s", "type": {"struct": [["x", "int64"]]}}]}}, 201),
        ("POST /datasets", {"query": {"name": "a.c"}, "body": b'{"a": 1}\n', "media_type": "application/x-ndjson"}, 201),
        ("GET /datasets", {}, 200),
        ("GET /datasets", {"query": {"$count": "true", "$top": "1", "$select": "id,schema"}}, 200),
        ("GET /datasets/{dataset}", {"path_parameters": by_name}, 200),
        (
            "GET /datasets/{dataset}",
            {"path_parameters": by_name, "headers": {"if-none-match": f'"{dataset}.1"'}},
            304,
        ),
        (
            "POST /datasets/{dataset}/rows",
            {"path_parameters": by_name, "body": b"id,amount\n1,12.50\n2,\n", "media_type": "text/csv"},
            200,
        ),
        ("GET /datasets/{dataset}/schema", {"path_parameters": by_name, "query": {"version": "1"}}, 200),
        ("GET /datasets/{dataset}/history", {"path_parameters": by_name, "query": {"$top": "1"}}, 200),
        ("GET /datasets/{dataset}/profile", {"path_parameters": by_name, "query": {"column": "amount"}}, 200),
        ("GET /datasets/{dataset}/rows", {"path_parameters": by_name, "query": {"$top": "1"}}, 200),
        ("GET /datasets/{dataset}/rows", {"path_parameters": by_name, "headers": {"accept": media_types.ARROW}}, 200),
        ("GET /datasets/{dataset}/rows", {"path_parameters": by_name, "headers": {"accept": media_types.PARQUET}}, 200),
        ("POST /datasets/{dataset}/operations", {"path_parameters": by_name, "body": append}, 200),
        ("POST /datasets/{dataset}/operations", {"path_parameters": {"dataset": dataset}, "body": {**append, "x": 1}}, 200),
        ("POST /queries", {"body": {"entity": query(old, "More", description="d", state="DRAFT")}}, 201),
        ("GET /queries", {}, 200),
        ("GET /queries", {"query": {"$count": "true", "$top": "1", "$select": "id,sql,datasets"}}, 200),
        ("GET /queries/executions", {}, 200),
        ("DELETE /queries/executions/{id}", {"path_parameters": {"id": execution_id}}, 204),
        ("GET /queries/{id}", {"path_parameters": by_query}, 200),
        ("GET /queries/{id}", {"path_parameters": by_query, "headers": {"if-none-match": '"1"'}}, 304),
        ("GET /queries/{id}/results", {"path_parameters": by_query, "query": {"$top": "1", "$count": "true"}}, 200),
        ("GET /queries/{id}/results", {"path_parameters": by_query, "query": {"min_amount": "1", "versions": "shop.orders:2"}}, 200),
        ("GET /queries/{id}/results", {"path_parameters": by_query, "headers": {"accept": media_types.ARROW}}, 200),
        ("GET /queries/{id}/results", {"path_parameters": by_query, "headers": {"accept": media_types.PARQUET}}, 200),
        ("POST /queries/preview", {"body": {"sql": SQL, "parameters": {"min_amount": 1.5}}}, 200),
        ("POST /queries/preview", {"body": {"sql": "SELECT 1.5 AS a, [{'b': 'x'}] AS c, NULL AS d"}}, 200),
        ("PUT /queries/{id}", {"path_parameters": by_query, "body": {**query(old, "Larger"), "version": 1}}, 200),
        ("POST /queries/{id}/transitions", {"path_parameters": by_query, "body": {"to": "DEPRECATED", "version": 2}}, 200),
        ("GET /queries/{id}/versions", {"path_parameters": by_query}, 200),
        ("GET /queries/{id}/versions/{version}", {"path_parameters": {**by_query, "version": "3"}}, 200),
        ("DELETE /queries/{id}", {"path_parameters": by_query}, 204),
        ("POST /queries/{id}/undelete", {"path_parameters": by_query}, 200),
        ("POST /pipelines", {"body": pipeline(empty, "More")}, 201),
        ("GET /pipelines", {}, 200),
        ("GET /pipelines", {"query": {"$count": "true", "$top": "1", "$select": "id,output"}}, 200),
        ("POST /pipelines/validate", {"body": pipeline(empty)}, 200),
        ("POST /pipelines/validate", {"body": pipeline(schema)}, 200),
        ("POST /pipelines/validate", {"body": [7]}, 200),
        ("GET /pipelines/{id}", {"path_parameters": by_pipeline}, 200),
        ("GET /pipelines/{id}", {"path_parameters": by_pipeline, "headers": {"if-none-match": '"1"'}}, 304),
        (
            "PUT /pipelines/{id}",
            {"path_parameters": by_pipeline, "body": {**pipeline(empty, "Weekly"), "version": 1}},
            200,
        ),
        ("POST /pipelines/{id}/runs", {"path_parameters": by_pipeline}, 202),
        ("POST /pipelines/{id}/runs", {"path_parameters": by_pipeline, "body": {}}, 202),
        ("GET /runs", {}, 200),
        ("GET /runs", {"query": {"$count": "true", "$top": "1", "$select": "id,results"}}, 200),
        ("GET /runs/{id}", {"path_parameters": by_run}, 200),
        ("POST /runs/{id}/cancel", {"path_parameters": by_run}, 200),
        ("DELETE /pipelines/{id}", {"path_parameters": by_pipeline}, 204),
        ("POST /pipelines/{id}/undelete", {"path_parameters": by_pipeline}, 200),
        ("DELETE /datasets/{dataset}", {"path_parameters": by_name, "query": {"force": "true"}}, 204),
    ]  # fmt: skip
    operations_by_label = {operation.label: operation for operation in all_operations(document)}
    assert {label for label, _, _ in requests} == operations_by_label.keys()
    for label, request, status in requests:
        options = {"media_type": "application/json", **request} if "body" in request else request
        response = operations_by_label[label].Case(**options).call_and_validate(headers=bearer(token()))
        assert response.status_code == status, (label, request, response.text)


@pytest.mark.parametrize("caller", CALLERS)
def test_generated_requests_return_documented_responses(
    document: OpenApiSchema, client: RestClient, caller: str, soak: bool
) -> None:
    is_anonymous = caller in ("a forger", "no token")
    schema = client("POST", "/gts", json=SCHEMA, code=201).json()["id"]
    client("POST", "/datasets", json={"name": "shop.orders", "schema": COLUMNS}, code=201)
    empty = client("POST", "/datasets", json={"name": "shop.empty", "schema": COLUMNS}, code=201).json()["id"]
    pipeline_id = client("POST", "/pipelines", json=pipeline(empty), code=201).json()["id"]
    run = client("POST", f"/pipelines/{pipeline_id}/runs", code=202).json()["id"]
    query_id = client("POST", "/queries", json=query(schema), code=201).json()["id"]
    ids = {"gts": schema, "queries": query_id, "pipelines": pipeline_id, "runs": run}
    statuses = Counter[str]()

    def send(case: Case) -> None:
        response = case.call_and_validate(headers=CALLERS[caller])
        statuses[f"{response.status_code // 100}xx"] += 1
        assert not is_anonymous or case.operation.path in OPEN or response.status_code in (401, 405)

    # DELETE comes last: until then the entities exist.
    for operation in sorted(all_operations(document), key=lambda operation: operation.method == "delete"):
        values = {"id": ids.get(operation.path.split("/")[1], ""), "dataset": "shop.orders", "version": "1"}
        path_parameters = {parameter.name: values[parameter.name] for parameter in operation.path_parameters}
        for case in coverage_cases(document, operation, step=1 if soak else 9, path_parameters=path_parameters):
            send(case)
        examples = 100 if soak else 6 if caller == "an admin" else 3
        if is_anonymous:
            continue  # rejected before the request is parsed
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not _can_be_wrong(operation):
                continue
            for options in [{}, {"path_parameters": path_parameters}] if path_parameters else [{}]:
                _run_examples(operation.as_strategy(generation_mode=mode, **options), examples, send)
    assert statuses["4xx"] > 100
    assert is_anonymous or statuses["2xx"] > 20
    assert "5xx" not in statuses


CREATE_OPERATIONS = {
    "POST /gts": (SCHEMA, "GET /gts/{id}"),
    "POST /queries": (query("", sql="SELECT 'A-1' AS order_id", parameters=None), "GET /queries/{id}"),
    "POST /datasets": ({"name": "shop.orders", "schema": COLUMNS}, "GET /datasets/{dataset}"),
    "POST /pipelines": (pipeline(str(uuid4())), "GET /pipelines/{id}"),
}


@pytest.mark.parametrize("create_label", CREATE_OPERATIONS)
def test_created_entities_can_be_used_by_documented_links(
    document: OpenApiSchema, create_label: str, soak: bool
) -> None:
    operations_by_label = {operation.label: operation for operation in all_operations(document)}
    by_id = {operation.definition.raw["operationId"]: operation for operation in operations_by_label.values()}
    links = list(operations_by_label[create_label].definition.raw["responses"]["201"]["links"].values())
    strategies = {name: operation.as_strategy() for name, operation in by_id.items()}
    create_body, show_label = CREATE_OPERATIONS[create_label]
    responses = Counter[tuple[str, int]]()

    def scenario(data: st.DataObject) -> None:
        headers = bearer(token(tenant=uuid4()))  # scenarios do not share entities

        def post(label: str, body: dict[str, Any]) -> Any:
            return (
                operations_by_label[label]
                .Case(body=body, media_type="application/json")
                .call_and_validate(headers=headers)
                .json()
            )

        references = (
            {"returns_schema_id": post("POST /gts", SCHEMA)["id"]} if "returns_schema_id" in create_body else {}
        )
        created, is_deleted = post(create_label, create_body | references), False
        for link in data.draw(st.lists(st.sampled_from(links), max_size=8)):
            ((name, expression),) = link["parameters"].items()
            assert expression == "$response.body#/id"
            path_parameters = {name: created["id"]}
            current = (
                operations_by_label[show_label].Case(path_parameters=path_parameters).call_and_validate(headers=headers)
            )
            assert current.status_code == (404 if is_deleted else 200)
            case = data.draw(strategies[link["operationId"]])
            case.path_parameters = {**case.path_parameters, **path_parameters}
            if "requestBody" in link:
                assert link["requestBody"] == "$response.body"
                case.body, case.media_type = current.json(), "application/json"
            response = case.call_and_validate(headers=headers)
            responses[case.operation.label, response.status_code] += 1
            is_undeletion = case.operation.path.endswith("/undelete")
            assert response.status_code >= 400 or is_deleted == is_undeletion
            is_deleted = (is_deleted or response.status_code == 204) and not (
                is_undeletion and response.status_code == 200
            )

    _settings(300 if soak else 40)(hypothesis.given(st.data())(scenario))()
    succeeded = {label for label, status in responses if status < 300}
    assert len(succeeded) > len(links) // 2, responses


def all_operations(document: OpenApiSchema) -> list[APIOperation]:
    return [result.ok() for result in document.get_all_operations()]


def coverage_cases(
    document: OpenApiSchema, operation: APIOperation, *, step: int, path_parameters: dict[str, str]
) -> Iterator[Case]:
    """Yield cases that satisfy and violate each keyword of each schema; every second case uses existing path parameters."""
    config = document.config.generation_for(operation=operation)
    cases = document.iter_coverage_cases(operation, generation_modes=list(GenerationMode), generation_config=config)
    for number, case in enumerate(cases):
        if number % step:
            continue
        if number // step % 2 and path_parameters:
            case.path_parameters = dict(path_parameters)
        yield case


def _can_be_wrong(operation: APIOperation) -> bool:
    """Return whether a request to the operation can have a wrong type: not if it takes only texts, files or any JSON."""
    if operation.path == "/pipelines/validate":
        return False
    return bool(operation.query) or any(media_types.is_json(body.media_type) for body in operation.body)


def _settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _run_examples(strategy: Any, examples: int, send: Any) -> None:
    _settings(examples)(hypothesis.given(case=strategy)(lambda case: send(case)))()
