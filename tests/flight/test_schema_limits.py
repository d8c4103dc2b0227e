"""Schemas of untrusted messages are measured before Arrow reads them, after the role check and in a thread."""

import asyncio
import base64
import threading
from typing import Any

import pyarrow as pa
import pytest

from flight.raw_client import CallRejected, RawClient, command_descriptor
from flight.schema_bombs import encapsulated, shared_fields
from penstock.core.caller import Role
from penstock.core.formatting import format_value
from penstock.flight import flight_data
from penstock.flight.context import FlightContext
from penstock.flight.interceptor import FlightCall
from penstock.flight.thread_pool import ThreadPool
from penstock.lake import Lake
from penstock.service.datasets import ipc_batches

ORDERS_REFERENCE = {"schema_name": "shop", "table_name": "orders"}
PADDING = 900_000  # Arrow reads a number of fields in proportion to the bytes of the message

BOMBS: dict[str, tuple[bytes, str]] = {
    "fields": (shared_fields(17, 2), "16,384 fields, nested ones included"),
    "depth": (shared_fields(65, 1), "64 levels"),
    "names": (shared_fields(3, 20, name=b"x" * 1_000), "1,048,576 bytes"),
    "metadata": (shared_fields(1, 1, name=b"x" * 1_000, pairs=2_000), "1,048,576 bytes"),
    "header": (shared_fields(1, 1) + bytes(1 << 20), "1,048,576 bytes"),
}


def create_body(header: bytes) -> dict[str, Any]:
    return {**ORDERS_REFERENCE, "arrow_schema": base64.b64encode(encapsulated(header)).decode()}


@pytest.mark.parametrize(("header", "limit"), BOMBS.values(), ids=BOMBS)
def test_schema_over_limit_is_rejected(raw_client: RawClient, header: bytes, limit: str) -> None:
    header += bytes(max(PADDING - len(header), 0))
    descriptor = flight_data.encode(b"", descriptor=command_descriptor(operation="insert").SerializeToString())
    for send in (
        lambda: raw_client.do_action("create_table", create_body(header)),
        lambda: raw_client.put([descriptor, flight_data.encode(header)]),
    ):
        with pytest.raises(CallRejected) as raised:
            send()
        assert (raised.value.code, raised.value.reason) == ("RESOURCE_EXHAUSTED", "schema_too_large")
        assert raised.value.message == f"The schema exceeds the limit of {limit}. Use fewer or simpler columns"


def test_schema_at_limit_is_accepted() -> None:
    nested = pa.int64()
    for _ in range(63):
        nested = pa.struct([("f", nested)])
    wide = pa.schema([(f"c{n}", pa.list_(pa.int64())) for n in range(4_096)])
    for schema in (pa.schema([("deep", nested)]), wide.with_metadata({"pandas": "x" * 200_000})):
        assert ipc_batches.decode_schema(schema.serialize()).equals(schema, check_metadata=True)


def test_schema_walk_accepts_every_type() -> None:
    types = [
        pa.timestamp("ns", "Europe/Paris"),
        pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.string()),
        pa.map_(pa.string(), pa.list_(pa.decimal128(9, 2))),
        pa.fixed_shape_tensor(pa.int32(), (2, 3)),
    ]
    schema = pa.schema([(f"c{n}", data_type) for n, data_type in enumerate(types)])
    assert ipc_batches.decode_schema(schema.serialize()).equals(schema)


def test_create_table_checks_role_before_body(raw_client: RawClient) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.as_caller(Role.VIEWER).do_action("create_table", create_body(b"no schema"))
    assert raised.value.code == "PERMISSION_DENIED"


def test_rejected_type_is_printed_with_200_characters(raw_client: RawClient) -> None:
    wide = pa.struct([(f"field {n}", pa.time32("s")) for n in range(1_000)])
    body = base64.b64encode(pa.schema([("c", wide)]).serialize()).decode()
    with pytest.raises(CallRejected) as raised:
        raw_client.do_action("create_table", {**ORDERS_REFERENCE, "arrow_schema": body})
    assert format_value(wide) in raised.value.message
    assert len(format_value(wide)) == len(raised.value.facts["type"]) == 200


def test_parse_of_long_request_runs_in_thread(flight_context: FlightContext, lake: Lake) -> None:
    async def parser_threads() -> list[int]:
        threads, task = ThreadPool(1), asyncio.current_task()
        assert task
        call = FlightCall(flight_context, lake.caller, threads, None, task)
        return [await call.parse(size, threading.get_ident) for size in (100, 10_000)]

    short_request_thread, long_request_thread = asyncio.run(parser_threads())
    assert short_request_thread == threading.get_ident() != long_request_thread


LONG_BODIES: dict[str, tuple[str, bytes]] = {
    "bytes": ("list_tables", b'{"schema_name": "' + b"x" * (64 << 10) + b'"}'),
    "values": ("create_table", b'{"schema_name": [' + b"{}," * 20_000 + b"{}]}"),
    "objects": ("list_tables", b'{"schema_name": [' + b"{}," * 17_000 + b"{}]}"),
}


@pytest.mark.parametrize(("action", "body"), LONG_BODIES.values(), ids=LONG_BODIES)
def test_action_body_over_limit_is_rejected_before_parsing(raw_client: RawClient, action: str, body: bytes) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.do_action(action, body)
    assert (raised.value.code, raised.value.reason) == ("RESOURCE_EXHAUSTED", "command_too_large")


def test_message_of_many_fields_is_rejected(raw_client: RawClient) -> None:
    fields = b"\x28\x00" * 100  # field 5, a number
    for send in (lambda: raw_client.put([fields]), lambda: raw_client.call_unary("GetFlightInfo", b"\x1a\x00" * 100)):
        with pytest.raises(CallRejected) as raised:
            send()
        assert raised.value.message == "The message has more than 64 fields"
