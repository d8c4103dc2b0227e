"""Every error has its gRPC code, a sentence, and facts for who looks closer; a bug tells nothing of itself."""

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import grpc
import pytest

from edges.flight.stage import Raw, Refused, served, token
from penstock import errors as kinds
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.flight import status as errors
from penstock.flight.table_actions import Action
from penstock.flight.interceptor import Call
from penstock.flight.context import Edge
from tools import docs


def failing(error: Exception) -> Any:
    async def fail(_call: Call, _body: bytes) -> bytes:
        raise error

    return {"fail": Action("It fails.", fail)}


def refusal(edge: Edge, error: Exception, **headers: str) -> Refused:
    with served(edge, actions=failing(error)) as server, Raw(server, token()) as raw, pytest.raises(Refused) as told:
        raw.act("fail", **headers)
    return told.value


def test_every_kind_has_a_code() -> None:
    assert set(errors.CODE) == set(kinds.KINDS)
    assert {kind.__name__: code.name for kind, code in errors.CODE.items()} == {
        "Invalid": "INVALID_ARGUMENT",
        "Unauthenticated": "UNAUTHENTICATED",
        "Forbidden": "PERMISSION_DENIED",
        "NotFound": "NOT_FOUND",
        "AlreadyExists": "ALREADY_EXISTS",
        "Conflict": "ABORTED",
        "Unsupported": "FAILED_PRECONDITION",
        "Undecided": "UNKNOWN",
        "Unavailable": "UNAVAILABLE",
    }


def test_a_reason_with_a_code_of_its_own_is_raised_somewhere_and_every_limit_has_one() -> None:
    raised = {each.reason for each in docs.raised()}
    assert set(errors.CODE_OF) - raised == set()
    limits = {reason for reason in raised if reason.endswith("_too_large") or reason.startswith("too_many")}
    elsewhere = {
        "body_too_large", "file_too_large", "headers_too_large", "query_too_large", "too_many_fields",
        "too_many_parameters", "too_many_runs",
    }  # fmt: skip
    wrong_anyhow = {"too_many_columns"}  # however few calls there are
    assert limits - set(errors.CODE_OF) == elsewhere | wrong_anyhow


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_kind_is_told_with_its_reason_and_facts(kind: type[PenstockError]) -> None:
    told = errors.told(kind("odd_thing", "an odd thing happened; try another", thing="x"), "r1")
    assert (told.code, told.sentence) == (errors.CODE[kind], "an odd thing happened; try another")
    assert dict(told.trailing) == {
        "penstock-kind": kind.__name__,
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


def test_facts_are_told_in_plain_letters() -> None:
    told = dict(errors.told(NotFound("x_y", "…", **FACTS), "r").trailing)["penstock-facts"]
    assert told.isascii()
    assert told.isprintable()
    assert json.loads(told)["ä"] == "\n"


LONG = [("ä" * 10_000, {}), ("half \ud800", {}), ("x", {"columns": ["c" * 100] * 1_000}), ("line\nbreak\0", {})]


@pytest.mark.parametrize(("sentence", "facts"), LONG, ids=["long", "unsayable", "many facts", "odd"])
def test_whatever_an_error_says_it_reaches_the_client(edge: Edge, sentence: str, facts: dict[str, Any]) -> None:
    told = refusal(edge, Invalid("odd_thing", sentence, **facts))
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "odd_thing")
    assert told.sentence[:4] == sentence[:4]


def test_a_bug_is_logged_once_with_its_traceback_and_told_without(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        told = refusal(edge, RuntimeError("secret words of the database"), x_request_id="mine-1")
    assert told == Refused(
        "INTERNAL",
        "something went wrong that is not your fault; the log tells more under request mine-1",
        "internal_error",
        {},
    )
    traces = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in traces if record.exc_info] == ["secret words of the database"]
    assert traces[0].facts == {"request_id": "mine-1"}  # type: ignore[attr-defined]


def test_what_only_the_operator_can_mend_is_in_the_log(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    told = refusal(edge, Unavailable("database_unavailable", "host db.internal said no"))
    assert (told.code, told.sentence) == ("UNAVAILABLE", "the catalog cannot be reached; try again later")
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["database_unavailable: host db.internal said no"]


def test_every_call_is_one_line_of_the_log_and_is_counted(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    with (
        caplog.at_level(logging.INFO, "penstock.access"),
        served(Edge(edge.workspace, edge.tokens, heard=heard.append)) as server,
        Raw(server, token()) as raw,
    ):
        raw.get({"schema_name": "analytics", "table_name": "events"}, x_request_id="mine-2")
        with pytest.raises(Refused):
            raw.act("nothing")
    facts = [record.facts for record in caplog.records if record.name == "penstock.access"]  # type: ignore[attr-defined]
    assert [(f["method"], f["code"], f["rows_out"]) for f in facts] == [
        ("DoGet", "OK", 5),
        ("DoAction", grpc.StatusCode.UNIMPLEMENTED.name, 0),
    ]
    assert facts[0]["request_id"] == "mine-2"
    assert {f["tenant"] for f in facts} == {"11111111-2222-3333-4444-555555555555"}
    assert [(each.method, each.code, each.rows_out) for each in heard] == [
        ("DoGet", "OK", 5),
        ("DoAction", "UNIMPLEMENTED", 0),
    ]
