"""Table actions of DoAction: results and error messages."""

import base64
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.conftest import EVENTS
from flight.raw_client import CallRejected, RawClient, connect_pyarrow, token
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

TABLE_REFERENCE = {"schema_name": "analytics", "table_name": "events"}
ORDERS_REFERENCE = {"schema_name": "shop", "table_name": "orders"}
SCHEMA = pa.schema([pa.field("x", pa.int32(), nullable=False), ("y", pa.large_string())])
CREATE_BODY = {**ORDERS_REFERENCE, "arrow_schema": base64.b64encode(SCHEMA.serialize()).decode()}


def test_list_actions_returns_every_action(server: FlightServer, raw_client: RawClient) -> None:
    response = [pb.ActionType.FromString(item) for item in raw_client.call_stream("ListActions", pb.Empty())]
    assert [item.type for item in response] == ["list_schemas", "list_tables", "create_table", "drop_table"]
    client, options = connect_pyarrow(server, token())
    with client:
        assert [item.type for item in client.list_actions(options)] == [item.type for item in response]


def test_table_actions_create_list_and_drop_a_table(raw_client: RawClient, lake: Lake) -> None:
    response = raw_client.do_action("create_table", CREATE_BODY)
    stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(response.pop("arrow_schema"))))
    assert response == {"status": "success", **ORDERS_REFERENCE, "version": 1}
    dataset = lake.dataset("shop.orders")
    assert stored.equals(dataset.schema)
    assert dataset.schema.equals(pa.schema([SCHEMA.field(0), ("y", pa.string())]))
    assert (
        raw_client.do_action("list_schemas")
        == raw_client.do_action("list_schemas", {})
        == {"schemas": ["analytics", "shop"]}
    )
    events, orders = {**TABLE_REFERENCE, "version": 2, "rows": 5}, {**ORDERS_REFERENCE, "version": 1, "rows": 0}
    assert raw_client.do_action("list_tables") == {"tables": [events, orders]}
    assert raw_client.do_action("list_tables", {"schema_name": "Shop"}) == {"tables": [orders]}
    assert raw_client.do_action("drop_table", ORDERS_REFERENCE) == {"status": "success", **ORDERS_REFERENCE}
    assert raw_client.do_action("list_schemas") == {"schemas": ["analytics"]}


def test_drop_table_that_a_query_reads_requires_force(raw_client: RawClient, lake: Lake) -> None:
    workspace, caller = lake._workspace, lake.caller
    fields = [{"name": "n", "type": "number"}]
    returns = schemas.create(workspace, caller, {"name": "n", "type_id": gts.QUERY_RETURNS, "fields": fields})
    query = {"name": "counted", "sql": "SELECT 1 AS n", "returns_schema_id": str(returns.id)}
    inspection = QueryInspection((QueryDatasetRef("Analytics", "events"),), ())
    query_definitions.create(workspace, caller, query, lambda _: inspection)
    with pytest.raises(CallRejected) as raised:
        raw_client.do_action("drop_table", TABLE_REFERENCE)
    assert (raised.value.code, raised.value.reason) == ("FAILED_PRECONDITION", "dataset_in_use")
    assert "counted" in raised.value.message
    assert raw_client.do_action("drop_table", {**TABLE_REFERENCE, "force": True}) == {
        "status": "success",
        **TABLE_REFERENCE,
    }


def test_create_table_without_row_ids_or_read_only(raw_client: RawClient, lake: Lake) -> None:
    raw_client.do_action("create_table", {**CREATE_BODY, "row_ids": False, "read_only": True})
    dataset = read.find(lake._workspace, lake.caller, DatasetName("shop", "orders"))
    assert (dataset.row_ids, dataset.read_only) == (False, True)


def test_list_tables_ignores_case_of_schema(raw_client: RawClient, lake: Lake) -> None:
    lake.create("Analytics.more", EVENTS)
    assert len(raw_client.do_action("list_schemas")["schemas"]) == 1


INVALID_ACTIONS: list[tuple[str, Any, str, str]] = [
    ("create_table", {**CREATE_BODY, **TABLE_REFERENCE}, "ALREADY_EXISTS", "table 'analytics.events' already exists"),
    ("create_table", {**CREATE_BODY, "table_name": "or ders"}, "INVALID_ARGUMENT", "Invalid table name 'or ders'"),
    ("create_table", ORDERS_REFERENCE, "INVALID_ARGUMENT", "Missing member 'arrow_schema' in the body of create_table"),
    (
        "create_table",
        {**CREATE_BODY, "arrow_schema": "x"},
        "INVALID_ARGUMENT",
        "The member 'arrow_schema' in the body of create_table",
    ),
    (
        "create_table",
        {**ORDERS_REFERENCE, "arrow_schema": base64.b64encode(pa.schema([("t", pa.time32("s"))]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "Column 't': a dataset cannot store type time32[s]",
    ),
    (
        "create_table",
        {**ORDERS_REFERENCE, "arrow_schema": base64.b64encode(pa.schema([("rowid", pa.int64())]).serialize()).decode()},
        "INVALID_ARGUMENT",
        "Column name 'rowid' is reserved",
    ),
    ("drop_table", ORDERS_REFERENCE, "NOT_FOUND", "schema 'shop' not found"),
    ("drop_table", {**TABLE_REFERENCE, "table_name": "x"}, "NOT_FOUND", "table 'analytics.x' not found"),
    ("drop_table", b"", "INVALID_ARGUMENT", "the body of drop_table is not valid JSON"),
    ("list_tables", {"schema_name": "shop"}, "NOT_FOUND", "schema 'shop' not found"),
    ("list_tables", {"schema": "shop"}, "INVALID_ARGUMENT", "Unknown member 'schema' in the body of list_tables"),
    ("list_schemas", {"x": 1}, "INVALID_ARGUMENT", "Unknown member 'x' in the body of list_schemas"),
    ("vacuum", None, "UNIMPLEMENTED", "Unknown action 'vacuum'. Valid actions: list_schemas"),
    ("", None, "UNIMPLEMENTED", "Unknown action ''"),
]


@pytest.mark.parametrize(
    ("action", "body", "code", "message"),
    INVALID_ACTIONS,
    ids=[f"{action} {message}" for action, _, _, message in INVALID_ACTIONS],
)
def test_table_action_with_bad_request_returns_message(
    raw_client: RawClient, action: str, body: Any, code: str, message: str
) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.do_action(action, body)
    assert raised.value.code == code
    assert raised.value.message.startswith(message)


ROLES = [
    (Role.VIEWER, "create_table", CREATE_BODY, "analytics.developer"),
    (Role.VIEWER, "drop_table", TABLE_REFERENCE, "analytics.admin"),
    (Role.DEVELOPER, "drop_table", TABLE_REFERENCE, "analytics.admin"),
]


@pytest.mark.parametrize(("role", "action", "body", "required_role"), ROLES)
def test_table_action_with_low_role_names_required_role(
    raw_client: RawClient, role: Role, action: str, body: Any, required_role: str
) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.as_caller(role).do_action(action, body)
    assert (raised.value.code, raised.value.reason) == ("PERMISSION_DENIED", "role_too_low")
    assert raised.value.facts == {"required_role": required_role}


def test_table_actions_require_developer_to_create_and_admin_to_drop(raw_client: RawClient) -> None:
    raw_client.as_caller(Role.DEVELOPER).do_action("create_table", CREATE_BODY)
    raw_client.as_caller(Role.ADMIN).do_action("drop_table", ORDERS_REFERENCE)


@pytest.mark.parametrize(("action", "body"), [("create_table", CREATE_BODY), ("drop_table", TABLE_REFERENCE)])
def test_table_actions_in_transaction_are_rejected(raw_client: RawClient, action: str, body: Any) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.do_action(action, body, x_transaction_id="550e8400-e29b-41d4-a716-446655440000")
    assert (raised.value.code, raised.value.reason) == ("FAILED_PRECONDITION", "not_in_transaction")


def test_table_action_with_unknown_transaction_is_not_found(raw_client: RawClient) -> None:
    for transaction_id in ("550e8400-e29b-41d4-a716-446655440000", "x"):
        with pytest.raises(CallRejected) as raised:
            raw_client.get(TABLE_REFERENCE, x_transaction_id=transaction_id)
        assert (raised.value.code, raised.value.message) == ("NOT_FOUND", f"Transaction {transaction_id!r} not found")


def test_table_action_errors_reach_pyarrow(server: FlightServer) -> None:
    client, options = connect_pyarrow(server, token())
    with client:
        [response] = client.do_action(fl.Action("list_schemas", b""), options)
        assert response.body.to_pybytes() == b'{"schemas": ["analytics"]}'
        with pytest.raises(pa.ArrowException, match=r"table 'analytics\.x' not found"):
            list(client.do_action(fl.Action("drop_table", b'{"schema_name": "analytics", "table_name": "x"}'), options))
