"""What DoAction does with tables, and what it says when it does not."""

import base64
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from edges.flight.conftest import EVENTS
from edges.flight.stage import Raw, Refused, arrows, token
from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.flight import flight_pb2 as pb
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.datasets import read

AT = {"schema_name": "analytics", "table_name": "events"}
NEW = {"schema_name": "shop", "table_name": "orders"}
SCHEMA = pa.schema([pa.field("x", pa.int32(), nullable=False), ("y", pa.large_string())])
MADE = {**NEW, "arrow_schema": base64.b64encode(SCHEMA.serialize()).decode()}


def test_list_actions_tells_all_of_them(server: FlightServer, raw: Raw) -> None:
    told = [pb.ActionType.FromString(each) for each in raw.many("ListActions", pb.Empty())]
    assert [each.type for each in told] == ["list_schemas", "list_tables", "create_table", "drop_table"]
    client, options = arrows(server, token())
    with client:
        assert [each.type for each in client.list_actions(options)] == [each.type for each in told]


def test_a_table_is_made_listed_and_dropped(raw: Raw, lake: Lake) -> None:
    assert raw.act("create_table", MADE) == {"status": "success", **NEW, "version": 1}
    made = lake.dataset("shop.orders")
    assert made.schema.equals(pa.schema([SCHEMA.field(0), ("y", pa.string())]))
    assert raw.act("list_schemas") == raw.act("list_schemas", {}) == {"schemas": ["analytics", "shop"]}
    events, orders = {**AT, "version": 2, "rows": 5}, {**NEW, "version": 1, "rows": 0}
    assert raw.act("list_tables") == {"tables": [events, orders]}
    assert raw.act("list_tables", {"schema_name": "Shop"}) == {"tables": [orders]}
    assert raw.act("drop_table", NEW) == {"status": "success", **NEW}
    assert raw.act("list_schemas") == {"schemas": ["analytics"]}


def test_a_table_may_keep_no_ids_and_take_no_rows(raw: Raw, lake: Lake) -> None:
    raw.act("create_table", {**MADE, "row_ids": False, "read_only": True})
    made = read.find(lake.workspace, lake.caller, DatasetName("shop", "orders"))
    assert (made.row_ids, made.read_only) == (False, True)


def test_schemas_that_differ_in_case_are_one(raw: Raw, lake: Lake) -> None:
    lake.create("Analytics.more", EVENTS)
    assert len(raw.act("list_schemas")["schemas"]) == 1


REFUSED: list[tuple[str, Any, str, str]] = [
    ("create_table", {**MADE, **AT}, "ALREADY_EXISTS", "table 'analytics.events' already exists"),
    ("create_table", {**MADE, "table_name": "or ders"}, "INVALID_ARGUMENT", "'or ders' is no table name"),
    ("create_table", NEW, "INVALID_ARGUMENT", "the body of create_table lacks 'arrow_schema'"),
    ("create_table", {**MADE, "arrow_schema": "x"}, "INVALID_ARGUMENT", "'arrow_schema' in the body of create_table"),
    (
        "create_table",
        {**NEW, "arrow_schema": base64.b64encode(pa.schema([("t", pa.time32("s"))]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "column 't': type time32[s] cannot be kept",
    ),
    (
        "create_table",
        {**NEW, "arrow_schema": base64.b64encode(pa.schema([("rowid", pa.int64())]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "column 'rowid': the names rowid and _rowid are Penstock's own",
    ),
    ("drop_table", NEW, "NOT_FOUND", "schema 'shop' not found"),
    ("drop_table", {**AT, "table_name": "x"}, "NOT_FOUND", "table 'analytics.x' not found"),
    ("drop_table", b"", "INVALID_ARGUMENT", "the body of drop_table is not JSON"),
    ("list_tables", {"schema_name": "shop"}, "NOT_FOUND", "schema 'shop' not found"),
    ("list_tables", {"schema": "shop"}, "INVALID_ARGUMENT", "'schema' is no member of the body of list_tables"),
    ("list_schemas", {"x": 1}, "INVALID_ARGUMENT", "'x' is no member of the body of list_schemas"),
    ("vacuum", None, "UNIMPLEMENTED", "there is no action 'vacuum'; there are list_schemas"),
    ("", None, "UNIMPLEMENTED", "there is no action ''"),
]


@pytest.mark.parametrize(
    ("action", "body", "code", "sentence"), REFUSED, ids=[f"{action} {said}" for action, _, _, said in REFUSED]
)
def test_what_cannot_be_done_is_refused_in_words(raw: Raw, action: str, body: Any, code: str, sentence: str) -> None:
    with pytest.raises(Refused) as refusal:
        raw.act(action, body)
    assert refusal.value.code == code
    assert refusal.value.sentence.startswith(sentence)


ROLES = [
    (Role.VIEWER, "create_table", MADE, "analytics.developer"),
    (Role.VIEWER, "drop_table", AT, "analytics.admin"),
    (Role.DEVELOPER, "drop_table", AT, "analytics.admin"),
]


@pytest.mark.parametrize(("role", "action", "body", "needed"), ROLES)
def test_a_role_that_is_too_low_hears_which_is_needed(
    raw: Raw, role: Role, action: str, body: Any, needed: str
) -> None:
    with pytest.raises(Refused) as refusal:
        raw.as_(role).act(action, body)
    assert (refusal.value.code, refusal.value.reason) == ("PERMISSION_DENIED", "role_too_low")
    assert refusal.value.facts == {"required_role": needed}


def test_developers_make_and_admins_drop(raw: Raw) -> None:
    raw.as_(Role.DEVELOPER).act("create_table", MADE)
    raw.as_(Role.ADMIN).act("drop_table", NEW)


@pytest.mark.parametrize(("action", "body"), [("create_table", MADE), ("drop_table", AT)])
def test_tables_are_not_made_or_dropped_within_a_transaction(raw: Raw, action: str, body: Any) -> None:
    with pytest.raises(Refused) as refusal:
        raw.act(action, body, x_transaction_id="550e8400-e29b-41d4-a716-446655440000")
    assert (refusal.value.code, refusal.value.reason) == ("FAILED_PRECONDITION", "not_in_transaction")


def test_a_transaction_that_nobody_knows_is_not_found(raw: Raw) -> None:
    for named in ("550e8400-e29b-41d4-a716-446655440000", "x"):
        with pytest.raises(Refused) as refusal:
            raw.get(AT, x_transaction_id=named)
        assert (refusal.value.code, refusal.value.sentence) == ("NOT_FOUND", f"there is no transaction {named!r}")


def test_pyarrow_hears_the_same(server: FlightServer) -> None:
    client, options = arrows(server, token())
    with client:
        [told] = client.do_action(fl.Action("list_schemas", b""), options)
        assert told.body.to_pybytes() == b'{"schemas": ["analytics"]}'
        with pytest.raises(pa.ArrowException, match=r"table 'analytics\.x' not found"):
            list(client.do_action(fl.Action("drop_table", b'{"schema_name": "analytics", "table_name": "x"}'), options))
