"""Every error is a problem document without internal details."""

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI

from penstock import errors
from penstock.errors import Conflict, Invalid, NotFound, PenstockError, Unauthenticated, Unavailable
from penstock.rest import problems
from penstock.rest.requests.bodies import parse_json
from rest.dispatched_routes import add_route
from rest.rest_client import PROBLEM_MEMBERS, RestClient
from tools import docs


def add_failing_route(app: FastAPI, error: Exception) -> None:
    def fail() -> None:
        raise error

    add_route(app, "/fail", fail)


def test_status_exists_for_every_error_kind() -> None:
    assert set(problems.STATUS_BY_KIND) == set(errors.KINDS)
    assert {error_class.__name__: status for error_class, status in problems.STATUS_BY_KIND.items()} == {
        "Invalid": 400,
        "Unauthenticated": 401,
        "Forbidden": 403,
        "NotFound": 404,
        "AlreadyExists": 409,
        "Conflict": 409,
        "Unsupported": 409,
        "CommitStateUnknown": 500,
        "Unavailable": 503,
    }


def test_reasons_with_own_status_or_sentence_exist() -> None:
    exempt = {"errors.py", "documents.py"}  # they render the errors of other modules
    sources = [path for path in docs.SOURCE.rglob("*.py") if not (path.parent.name == "http" and path.name in exempt)]
    text = "".join(path.read_text() for path in sources)
    framework_reasons = {"method_not_allowed"}  # reasons of the framework, which the module of the table translates
    assert {
        reason
        for reason in {*problems.STATUS_BY_REASON, *problems.CONTRACT_SENTENCES} - framework_reasons
        if f'"{reason}"' not in text
    } == set()


@pytest.mark.parametrize("error_class", errors.KINDS)
def test_every_error_kind_returns_problem_document(
    app: FastAPI, client: RestClient, error_class: type[PenstockError]
) -> None:
    add_failing_route(app, error_class("odd_thing", "an odd thing happened; try another", thing="x"))
    response = client("GET", "/fail", code=problems.STATUS_BY_KIND[error_class])
    assert response.json() == {
        "type": "urn:penstock:error:odd_thing",
        "title": "Odd thing",
        "status": problems.STATUS_BY_KIND[error_class],
        "detail": "an odd thing happened; try another",
        "instance": "/fail",
        "code": "ODD_THING",
        "error": "Odd thing",
        "thing": "x",
    }
    assert ("retry-after" in response.headers) == (error_class in (Conflict, Unavailable))


CONTRACT = [
    ("schema_not_found", "Schema not found"),
    ("non_scalar_field", "Only scalar types allowed in query returns"),
    ("schema_name_taken", "Schema name already exists"),
    ("schema_in_use", "Schema is referenced by active queries"),
    ("schema_changed", "Schema was modified by another user"),
    ("role_too_low", "Insufficient permissions"),
    ("missing_role", "Insufficient permissions"),
]


@pytest.mark.parametrize(("reason", "sentence"), CONTRACT)
def test_problem_error_member_has_contract_sentence(reason: str, sentence: str) -> None:
    response = problems.problem_response(Invalid(reason, "…", field="amount"), "/gts")
    assert json.loads(response.body)["error"] == sentence
    assert json.loads(response.body)["field"] == "amount"


FACTS: list[tuple[Any, Any]] = [
    (UUID(int=1), str(UUID(int=1))),
    (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00+00:00"),
    (float("nan"), "nan"),
    ((1, {"a": float("inf")}), [1, {"a": "inf"}]),
    ({1: {2}}, {"1": [2]}),
    (2**70, 2**70),
    (ValueError("x"), "x"),
    ("half \ud800", "half \ud800"),
]


@pytest.mark.parametrize(("fact", "encoded"), FACTS, ids=lambda value: ascii(value)[:30])
def test_problem_facts_are_converted_to_json(fact: Any, encoded: Any) -> None:
    assert json.loads(problems.problem_response(NotFound("x_y", "…", fact=fact), "/").body)["fact"] == encoded


@pytest.mark.parametrize("name", PROBLEM_MEMBERS)
def test_problem_facts_do_not_replace_reserved_members(name: str) -> None:
    without_fact, with_fact = (
        problems.problem_response(Invalid("x_y", "…", **facts), "/") for facts in ({}, {name: "mine"})
    )
    assert without_fact.body == with_fact.body


def test_unknown_path_returns_problem_document(client: RestClient) -> None:
    double_slash = "http://localhost//datasets"  # without the host, the client would parse `datasets` as the host
    for path in ("/nothing", "/datasets/", "/datasets/a/b/c", double_slash, "/docs/../x", "/DATASETS"):
        assert client("GET", path, code=404).json()["code"] == "ROUTE_NOT_FOUND"


ALLOWED = [
    ("PUT", "/datasets", "GET, HEAD, POST"),
    ("PATCH", "/datasets/a.b", "DELETE, GET, HEAD"),
    ("POST", "/healthz", "GET, HEAD"),
    ("OPTIONS", "/gts/infer", "POST"),
    ("OPTIONS", "/queries/preview", "POST"),
    ("OPTIONS", "/pipelines/validate", "POST"),
]


@pytest.mark.parametrize(("method", "path", "allowed"), ALLOWED)
def test_wrong_method_returns_allowed_methods_of_path(client: RestClient, method: str, path: str, allowed: str) -> None:
    response = client(method, path, code=405)
    assert response.headers["allow"] == allowed
    assert response.json()["allowed"] == allowed.split(", ")


def test_unexpected_error_is_logged_once_and_hidden_from_the_client(
    app: FastAPI, client: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    add_failing_route(app, RuntimeError("secret words of the database"))
    with caplog.at_level(logging.INFO):
        response = client("GET", "/fail", code=500, headers={"x-request-id": "mine-1"})
    assert "secret words" not in response.text
    assert response.json()["code"] == "INTERNAL_ERROR"
    assert response.json()["request_id"] == "mine-1"
    traces = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in traces if record.exc_info] == ["secret words of the database"]
    assert 'penstock_http_exceptions_total{exception="RuntimeError"} 1.0' in client("GET", "/metrics").text


def test_server_errors_are_logged_and_redacted(
    app: FastAPI, client: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    add_failing_route(app, Unavailable("storage_failed", "the disk is full"))
    client("GET", "/fail", code=503)
    client("GET", "/nothing", code=404)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["storage_failed: the disk is full"]


BAD_JSON: list[tuple[bytes, int | None]] = [
    (b"", 0),
    (b"{", 1),
    (b'{"a": }', 6),
    (b'{"a": 1,}', 8),
    (b"[1] x", 4),
    (b"\xff", 0),
    (b'"\xc3', 1),
    (b"NaN", None),
    (b"[-Infinity]", None),
    (b'{"a": 1, "a": 2}', None),
    (b"[" * 100_000, None),
    (b"1" * 5_000, None),
    (b"'a'", 0),
    (b"\xef\xbb\xbf{}", 0),
]


@pytest.mark.parametrize(("body", "position"), BAD_JSON, ids=lambda value: ascii(value)[:20])
def test_invalid_json_reports_position(body: bytes, position: int | None) -> None:
    with pytest.raises(Invalid) as raised:
        parse_json(body)
    assert raised.value.reason == "bad_json"
    assert raised.value.context.get("position") == position


def test_www_authenticate_without_token_has_no_error() -> None:
    problem = {
        reason: problems.problem_response(Unauthenticated(reason, "…"), "/")
        for reason in ("missing_token", "token_expired")
    }
    assert problem["missing_token"].headers["www-authenticate"] == "Bearer"
    assert problem["token_expired"].headers["www-authenticate"] == 'Bearer error="invalid_token"'
