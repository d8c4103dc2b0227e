"""Table actions of DoAction: results and error messages."""

import base64
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.conftest import EVENTS
from flight.raw_client import Raw, Refused, arrows, token
from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.core.registry import gts
from penstock.core.registry.query import QueryDatasetRef
from penstock.flight import flight_pb2 as pb
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.datasets import read
from penstock.service.queries import definitions as query_definitions
from penstock.service.queries.definitions import QueryInspection
from penstock.service.registry import schemas

AT = {"schema_name": "analytics", "table_name": "events"}
NEW = {"schema_name": "shop", "table_name": "orders"}
SCHEMA = pa.schema([pa.field("x", pa.int32(), nullable=False), ("y", pa.large_string())])
MADE = {**NEW, "arrow_schema": base64.b64encode(SCHEMA.serialize()).decode()}


def test_list_actions_returns_every_action(server: FlightServer, raw: Raw) -> None:
    response = [pb.ActionType.FromString(item) for item in raw.many("ListActions", pb.Empty())]
    assert [item.type for item in response] == ["list_schemas", "list_tables", "create_table", "drop_table"]
    client, options = arrows(server, token())
    with client:
        assert [item.type for item in client.list_actions(options)] == [item.type for item in response]


def test_table_actions_create_list_and_drop_a_table(raw: Raw, lake: Lake) -> None:
    response = raw.act("create_table", MADE)
    stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(response.pop("arrow_schema"))))
    assert response == {"status": "success", **NEW, "version": 1}
    made = lake.dataset("shop.orders")
    assert stored.equals(made.schema)
    assert made.schema.equals(pa.schema([SCHEMA.field(0), ("y", pa.string())]))
    assert raw.act("list_schemas") == raw.act("list_schemas", {}) == {"schemas": ["analytics", "shop"]}
    events, orders = {**AT, "version": 2, "rows": 5}, {**NEW, "version": 1, "rows": 0}
    assert raw.act("list_tables") == {"tables": [events, orders]}
    assert raw.act("list_tables", {"schema_name": "Shop"}) == {"tables": [orders]}
    assert raw.act("drop_table", NEW) == {"status": "success", **NEW}
    assert raw.act("list_schemas") == {"schemas": ["analytics"]}


def test_drop_table_that_a_query_reads_requires_force(raw: Raw, lake: Lake) -> None:
    ws, caller = lake._workspace, lake.caller
    fields = [{"name": "n", "type": "number"}]
    returns = schemas.create(ws, caller, {"name": "n", "type_id": gts.QUERY_RETURNS, "fields": fields})
    query = {"name": "counted", "sql": "SELECT 1 AS n", "returns_schema_id": str(returns.id)}
    reads = QueryInspection((QueryDatasetRef("Analytics", "events"),), ())
    query_definitions.create(ws, caller, query, lambda _: reads)
    with pytest.raises(Refused) as refused:
        raw.act("drop_table", AT)
    assert (refused.value.code, refused.value.reason) == ("FAILED_PRECONDITION", "dataset_in_use")
    assert "counted" in refused.value.sentence
    assert raw.act("drop_table", {**AT, "force": True}) == {"status": "success", **AT}


def test_create_table_without_row_ids_or_read_only(raw: Raw, lake: Lake) -> None:
    raw.act("create_table", {**MADE, "row_ids": False, "read_only": True})
    made = read.find(lake._workspace, lake.caller, DatasetName("shop", "orders"))
    assert (made.row_ids, made.read_only) == (False, True)


def test_list_tables_ignores_case_of_schema(raw: Raw, lake: Lake) -> None:
    lake.create("Analytics.more", EVENTS)
    assert len(raw.act("list_schemas")["schemas"]) == 1


REFUSED: list[tuple[str, Any, str, str]] = [
    ("create_table", {**MADE, **AT}, "ALREADY_EXISTS", "table 'analytics.events' already exists"),
    ("create_table", {**MADE, "table_name": "or ders"}, "INVALID_ARGUMENT", "Invalid table name 'or ders'"),
    ("create_table", NEW, "INVALID_ARGUMENT", "Missing member 'arrow_schema' in the body of create_table"),
    (
        "create_table",
        {**MADE, "arrow_schema": "x"},
        "INVALID_ARGUMENT",
        "The member 'arrow_schema' in the body of create_table",
    ),
    (
        "create_table",
        {**NEW, "arrow_schema": base64.b64encode(pa.schema([("t", pa.time32("s"))]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "Column 't': a dataset cannot store type time32[s]",
    ),
    (
        "create_table",
        {**NEW, "arrow_schema": base64.b64encode(pa.schema([("rowid", pa.int64())]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "Column name 'rowid' is reserved",
    ),
    ("drop_table", NEW, "NOT_FOUND", "schema 'shop' not found"),
    ("drop_table", {**AT, "table_name": "x"}, "NOT_FOUND", "table 'analytics.x' not found"),
    ("drop_table", b"", "INVALID_ARGUMENT", "the body of drop_table is not valid JSON"),
    ("list_tables", {"schema_name": "shop"}, "NOT_FOUND", "schema 'shop' not found"),
    ("list_tables", {"schema": "shop"}, "INVALID_ARGUMENT", "Unknown member 'schema' in the body of list_tables"),
    ("list_schemas", {"x": 1}, "INVALID_ARGUMENT", "Unknown member 'x' in the body of list_schemas"),
    ("vacuum", None, "UNIMPLEMENTED", "Unknown action 'vacuum'. Valid actions: list_schemas"),
    ("", None, "UNIMPLEMENTED", "Unknown action ''"),
]


@pytest.mark.parametrize(
    ("action", "body", "code", "sentence"), REFUSED, ids=[f"{action} {message}" for action, _, _, message in REFUSED]
)
def test_table_action_with_bad_request_returns_message(
    raw: Raw, action: str, body: Any, code: str, sentence: str
) -> None:
    with pytest.raises(Refused) as raised:
        raw.act(action, body)
    assert raised.value.code == code
    assert raised.value.sentence.startswith(sentence)


ROLES = [
    (Role.VIEWER, "create_table", MADE, "analytics.developer"),
    (Role.VIEWER, "drop_table", AT, "analytics.admin"),
    (Role.DEVELOPER, "drop_table", AT, "analytics.admin"),
]


@pytest.mark.parametrize(("role", "action", "body", "needed"), ROLES)
def test_table_action_with_low_role_names_required_role(
    raw: Raw, role: Role, action: str, body: Any, needed: str
) -> None:
    with pytest.raises(Refused) as raised:
        raw.as_(role).act(action, body)
    assert (raised.value.code, raised.value.reason) == ("PERMISSION_DENIED", "role_too_low")
    assert raised.value.facts == {"required_role": needed}


def test_table_actions_require_developer_to_create_and_admin_to_drop(raw: Raw) -> None:
    raw.as_(Role.DEVELOPER).act("create_table", MADE)
    raw.as_(Role.ADMIN).act("drop_table", NEW)


@pytest.mark.parametrize(("action", "body"), [("create_table", MADE), ("drop_table", AT)])
def test_table_actions_in_transaction_are_rejected(raw: Raw, action: str, body: Any) -> None:
    with pytest.raises(Refused) as raised:
        raw.act(action, body, x_transaction_id="550e8400-e29b-41d4-a716-446655440000")
    assert (raised.value.code, raised.value.reason) == ("FAILED_PRECONDITION", "not_in_transaction")


def test_table_action_with_unknown_transaction_is_not_found(raw: Raw) -> None:
    for named in ("550e8400-e29b-41d4-a716-446655440000", "x"):
        with pytest.raises(Refused) as raised:
            raw.get(AT, x_transaction_id=named)
        assert (raised.value.code, raised.value.sentence) == ("NOT_FOUND", f"Transaction {named!r} not found")


def test_table_action_errors_reach_pyarrow(server: FlightServer) -> None:
    client, options = arrows(server, token())
    with client:
        [response] = client.do_action(fl.Action("list_schemas", b""), options)
        assert response.body.to_pybytes() == b'{"schemas": ["analytics"]}'
        with pytest.raises(pa.ArrowException, match=r"table 'analytics\.x' not found"):
            list(client.do_action(fl.Action("drop_table", b'{"schema_name": "analytics", "table_name": "x"}'), options))
