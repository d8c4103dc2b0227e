"""Whatever goes wrong, a client hears it in one shape, and nothing of the machinery."""

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI

from edges.http.client import OWN, Client
from penstock import errors as kinds
from penstock.errors import Conflict, Invalid, NotFound, PenstockError, Unauthenticated, Unavailable
from penstock.rest import problems as errors
from penstock.rest.requests.bodies import parsed
from tools import docs


def raising(app: FastAPI, error: Exception) -> None:
    def fail() -> None:
        raise error

    app.add_api_route("/fail", fail, methods=["GET"])


def test_every_kind_has_a_status() -> None:
    assert set(errors.STATUS) == set(kinds.KINDS)
    assert {kind.__name__: status for kind, status in errors.STATUS.items()} == {
        "Invalid": 400,
        "Unauthenticated": 401,
        "Forbidden": 403,
        "NotFound": 404,
        "AlreadyExists": 409,
        "Conflict": 409,
        "Unsupported": 409,
        "Undecided": 500,
        "Unavailable": 503,
    }


def test_a_reason_with_a_status_or_a_sentence_of_its_own_is_raised_somewhere() -> None:
    told = {"errors.py", "documents.py"}  # of the edge itself: they tell what others raise
    sources = [path for path in docs.SOURCE.rglob("*.py") if not (path.parent.name == "http" and path.name in told)]
    text = "".join(path.read_text() for path in sources)
    own = {"method_not_allowed"}  # the framework's own, translated in the table's module
    assert {reason for reason in {*errors.STATUS_OF, *errors.SENTENCES} - own if f'"{reason}"' not in text} == set()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_kind_is_told_as_a_problem(app: FastAPI, client: Client, kind: type[PenstockError]) -> None:
    raising(app, kind("odd_thing", "an odd thing happened; try another", thing="x"))
    told = client("GET", "/fail", code=errors.STATUS[kind])
    assert told.json() == {
        "type": "urn:penstock:error:odd_thing",
        "title": "Odd thing",
        "status": errors.STATUS[kind],
        "detail": "an odd thing happened; try another",
        "instance": "/fail",
        "code": "ODD_THING",
        "error": "Odd thing",
        "thing": "x",
    }
    assert ("retry-after" in told.headers) == (kind in (Conflict, Unavailable))


CONTRACT = [
    ("schema_not_found", "Schema not found"),
    ("non_scalar_field", "Only scalar types allowed in query returns"),
    ("schema_name_taken", "Schema name already exists"),
    ("schema_in_use", "Schema is referenced by active queries"),
    ("schema_changed", "Schema was modified by another user"),
    ("role_too_low", "Insufficient permissions"),
    ("no_role", "Insufficient permissions"),
]


@pytest.mark.parametrize(("reason", "sentence"), CONTRACT)
def test_clients_find_the_sentences_they_look_for(reason: str, sentence: str) -> None:
    told = errors.answer(Invalid(reason, "…", field="amount"), "/gts")
    assert json.loads(told.body)["error"] == sentence
    assert json.loads(told.body)["field"] == "amount"


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


@pytest.mark.parametrize(("fact", "told"), FACTS, ids=lambda value: ascii(value)[:30])
def test_facts_are_told_as_json(fact: Any, told: Any) -> None:
    assert json.loads(errors.answer(NotFound("x_y", "…", fact=fact), "/").body)["fact"] == told


@pytest.mark.parametrize("name", OWN)
def test_a_fact_never_takes_the_place_of_the_problem_s_own(name: str) -> None:
    plain, clashing = (errors.answer(Invalid("x_y", "…", **facts), "/") for facts in ({}, {name: "mine"}))
    assert plain.body == clashing.body


def test_where_there_is_no_route_there_is_a_problem(client: Client) -> None:
    for path in ("/nothing", "/datasets/", "/datasets/a/b/c", "//datasets", "/docs/../x", "/DATASETS"):
        assert client("GET", path, code=404).json()["code"] == "NO_SUCH_ROUTE"


ALLOWED = [
    ("PUT", "/datasets", "GET, HEAD, POST"),
    ("PATCH", "/datasets/a.b", "DELETE, GET, HEAD"),
    ("POST", "/healthz", "GET, HEAD"),
    ("OPTIONS", "/gts/infer", "POST"),
    ("OPTIONS", "/queries/preview", "POST"),
    ("OPTIONS", "/pipelines/validate", "POST"),
]


@pytest.mark.parametrize(("method", "path", "allowed"), ALLOWED)
def test_a_wrong_method_hears_the_right_ones(client: Client, method: str, path: str, allowed: str) -> None:
    told = client(method, path, code=405)
    assert told.headers["allow"] == allowed
    assert told.json()["allowed"] == allowed.split(", ")


def test_a_bug_is_logged_once_with_its_traceback_and_told_without(
    app: FastAPI, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    raising(app, RuntimeError("secret words of the database"))
    with caplog.at_level(logging.INFO):
        told = client("GET", "/fail", code=500, headers={"x-request-id": "mine-1"})
    assert "secret words" not in told.text
    assert told.json()["code"] == "INTERNAL_ERROR"
    assert told.json()["request_id"] == "mine-1"
    traces = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in traces if record.exc_info] == ["secret words of the database"]
    assert 'penstock_http_exceptions_total{exception="RuntimeError"} 1.0' in client("GET", "/metrics").text


def test_what_only_the_operator_can_mend_is_in_the_log(
    app: FastAPI, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    raising(app, Unavailable("storage_failed", "the disk is full"))
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
def test_what_is_no_json_is_refused_where_it_stops_being_some(body: bytes, position: int | None) -> None:
    with pytest.raises(Invalid) as refusal:
        parsed(body)
    assert refusal.value.reason == "bad_json"
    assert refusal.value.context.get("position") == position


def test_only_who_sent_nothing_hears_no_word_of_an_invalid_token() -> None:
    told = {reason: errors.answer(Unauthenticated(reason, "…"), "/") for reason in ("no_token", "token_expired")}
    assert told["no_token"].headers["www-authenticate"] == "Bearer"
    assert told["token_expired"].headers["www-authenticate"] == 'Bearer error="invalid_token"'
