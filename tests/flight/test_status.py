"""Conversion of errors to gRPC statuses, and logging."""

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import grpc
import pytest

from flight.raw_client import CallRejected, RawClient, running_server, token
from penstock import errors
from penstock.core.caller import Role
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.flight import status
from penstock.flight.context import FlightContext
from penstock.flight.interceptor import FlightCall
from penstock.flight.table_actions import ActionHandler
from tools import docs


def failing_action(error: Exception) -> Any:
    async def fail(_call: FlightCall, _body: bytes) -> bytes:
        raise error

    return {"fail": ActionHandler("It fails.", Role.VIEWER, fail)}


def call_error(flight_context: FlightContext, error: Exception, **headers: str) -> CallRejected:
    with (
        running_server(flight_context, actions=failing_action(error)) as server,
        RawClient(server, token()) as raw_client,
        pytest.raises(CallRejected) as raised,
    ):
        raw_client.do_action("fail", **headers)
    return raised.value


def test_every_error_kind_has_a_code() -> None:
    assert set(status.CODE_BY_KIND) == set(errors.KINDS)
    assert {error_class.__name__: code.name for error_class, code in status.CODE_BY_KIND.items()} == {
        "Invalid": "INVALID_ARGUMENT",
        "Unauthenticated": "UNAUTHENTICATED",
        "Forbidden": "PERMISSION_DENIED",
        "NotFound": "NOT_FOUND",
        "AlreadyExists": "ALREADY_EXISTS",
        "Conflict": "ABORTED",
        "Unsupported": "FAILED_PRECONDITION",
        "CommitStateUnknown": "UNKNOWN",
        "Unavailable": "UNAVAILABLE",
    }


def test_every_reason_with_a_code_exists_and_every_limit_has_one() -> None:
    raised = {entry.reason for entry in docs.list_errors()}
    assert set(status.CODE_BY_REASON) - raised == set()
    limits = {reason for reason in raised if reason.endswith("_too_large") or reason.startswith("too_many")}
    raised_elsewhere = {
        "body_too_large", "too_many_values", "input_too_large", "headers_too_large", "query_too_large", "too_many_fields",
        "too_many_parameters", "too_many_runs",
    }  # fmt: skip
    invalid_schemas = {"too_many_columns"}  # fewer calls do not help
    assert limits - set(status.CODE_BY_REASON) == raised_elsewhere | invalid_schemas


@pytest.mark.parametrize("error_class", errors.KINDS)
def test_status_contains_kind_reason_and_facts(error_class: type[PenstockError]) -> None:
    response = status.to_call_status(error_class("odd_thing", "an odd thing happened; try another", thing="x"), "r1")
    assert (response.code, response.message) == (status.CODE_BY_KIND[error_class], "an odd thing happened; try another")
    assert dict(response.trailing_metadata) == {
        "penstock-kind": error_class.__name__,
        "penstock-reason": "odd_thing",
        "penstock-facts": '{"thing": "x"}',
        "x-request-id": "r1",
    }


FACTS: dict[str, Any] = {
    "id": UUID(int=1),
    "at": datetime(2026, 1, 31, tzinfo=UTC),
    "cause": ValueError("x"),
    "ä": "\n",
}


def test_status_facts_are_ascii() -> None:
    response = dict(status.to_call_status(NotFound("x_y", "…", **FACTS), "r").trailing_metadata)["penstock-facts"]
    assert response.isascii()
    assert response.isprintable()
    assert json.loads(response)["ä"] == "\n"


MESSAGES = [("ä" * 10_000, {}), ("half \ud800", {}), ("x", {"columns": ["c" * 100] * 1_000}), ("line\nbreak\0", {})]


@pytest.mark.parametrize(("message", "facts"), MESSAGES, ids=["long", "surrogate", "many facts", "odd"])
def test_status_with_any_message_reaches_the_client(
    flight_context: FlightContext, message: str, facts: dict[str, Any]
) -> None:
    response = call_error(flight_context, Invalid("odd_thing", message, **facts))
    assert (response.code, response.reason) == ("INVALID_ARGUMENT", "odd_thing")
    assert response.message[:4] == message[:4]


def test_unexpected_error_is_logged_once_and_hidden_from_the_client(
    flight_context: FlightContext, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        response = call_error(flight_context, RuntimeError("secret words of the database"), x_request_id="mine-1")
    assert response == CallRejected(
        "INTERNAL",
        "Internal error. Request id: mine-1",
        "internal_error",
        {},
    )
    traces = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in traces if record.exc_info] == ["secret words of the database"]
    assert traces[0].facts == {"request_id": "mine-1"}  # type: ignore[attr-defined]


def test_error_for_the_operator_is_logged(flight_context: FlightContext, caplog: pytest.LogCaptureFixture) -> None:
    response = call_error(flight_context, Unavailable("database_unavailable", "host db.internal said no"))
    assert (response.code, response.message) == ("UNAVAILABLE", "The catalog is not reachable. Try again later")
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["database_unavailable: host db.internal said no"]


def test_every_call_is_logged_and_counted(flight_context: FlightContext, caplog: pytest.LogCaptureFixture) -> None:
    received: list[Any] = []
    with (
        caplog.at_level(logging.INFO, "penstock.access"),
        running_server(
            FlightContext(flight_context.workspace, flight_context.tokens, on_call=received.append)
        ) as server,
        RawClient(server, token()) as raw_client,
    ):
        raw_client.get({"schema_name": "analytics", "table_name": "events"}, x_request_id="mine-2")
        with pytest.raises(CallRejected):
            raw_client.do_action("nothing")
    facts = [record.facts for record in caplog.records if record.name == "penstock.access"]  # type: ignore[attr-defined]
    assert [(f["method"], f["code"], f["rows_out"]) for f in facts] == [
        ("DoGet", "OK", 5),
        ("DoAction", grpc.StatusCode.UNIMPLEMENTED.name, 0),
    ]
    assert facts[0]["request_id"] == "mine-2"
    assert {f["tenant"] for f in facts} == {"11111111-2222-3333-4444-555555555555"}
    assert [(item.method, item.code, item.rows_out) for item in received] == [
        ("DoGet", "OK", 5),
        ("DoAction", "UNIMPLEMENTED", 0),
    ]
