"""The methods of the Flight service: which there are, and who serves them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import Invalid, Unsupported
from penstock.flight import flight_pb2 as pb
from penstock.flight.table_actions import Action
from penstock.flight.interceptor import SERVICE, Call
from penstock.flight.put_stream import Incoming
from penstock.flight.read_handlers import Opened, Reads

# What becomes of rows that come in; what it gives are the answers, each the metadata of a PutResult.
Put = Callable[[Incoming, Call], AsyncGenerator[bytes, None]]

NOT_SERVED = {
    "Handshake": "there is no handshake; send a token with every call: authorization: Bearer …",
    "PollFlightInfo": "there is nothing to wait for; GetFlightInfo answers at once",
    "DoExchange": "DoExchange is not served; DoPut writes and DoGet reads",
}
_STREAMED = ("Handshake", "DoExchange")  # both ways
M = TypeVar("M")


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Each method gets bytes, or a stream of them, and a call; and gives bytes, or a stream of them."""

    def __init__(self, put: Put, actions: Mapping[str, Action], opened: Opened) -> None:
        self._put, self._actions, self._reads = put, actions, Reads(opened)
        handlers = {
            "ListFlights": grpc.unary_stream_rpc_method_handler(self._list_flights),
            "GetFlightInfo": grpc.unary_unary_rpc_method_handler(self._get_flight_info),
            "GetSchema": grpc.unary_unary_rpc_method_handler(self._get_schema),
            "DoGet": grpc.unary_stream_rpc_method_handler(self._do_get),
            "DoPut": grpc.stream_stream_rpc_method_handler(self._do_put),
            "DoAction": grpc.unary_stream_rpc_method_handler(self._do_action),
            "ListActions": grpc.unary_stream_rpc_method_handler(self._list_actions),
        }
        for name, why in NOT_SERVED.items():
            kind = grpc.stream_stream_rpc_method_handler if name in _STREAMED else grpc.unary_stream_rpc_method_handler
            handlers[name] = kind(_refusal(why))
        self._handlers = {f"/{SERVICE}/{name}": handler for name, handler in handlers.items()}

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)

    def _list_flights(self, asked: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        return self._reads.all(_read(pb.Criteria, asked), call)

    async def _get_flight_info(self, asked: bytes, call: Call) -> bytes:
        return await self._reads.info(_read(pb.FlightDescriptor, asked), call)

    async def _get_schema(self, asked: bytes, call: Call) -> bytes:
        return await self._reads.schema(_read(pb.FlightDescriptor, asked), call)

    def _do_get(self, asked: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        return self._reads.get(_read(pb.Ticket, asked), call)

    async def _do_put(self, _sent: Any, call: Call) -> AsyncGenerator[bytes, None]:
        incoming = Incoming(call.read, call.work, call.edge.limits.message_bytes)
        try:
            async with aclosing(self._put(incoming, call)) as answers:
                async for metadata in answers:
                    yield pb.PutResult(app_metadata=metadata).SerializeToString()
        finally:
            call.rows_in += incoming.rows
            incoming.close()

    async def _do_action(self, asked: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        action = _read(pb.Action, asked)
        if action.type not in self._actions:
            known = ", ".join(self._actions)
            raise Unsupported("unknown_action", f"there is no action {action.type[:60]!a}; there are {known}")
        yield pb.Result(body=await self._actions[action.type].do(call, action.body)).SerializeToString()

    async def _list_actions(self, _asked: bytes, _call: Call) -> AsyncGenerator[bytes, None]:
        for name, action in self._actions.items():
            yield pb.ActionType(type=name, description=action.description).SerializeToString()


def no_put(_incoming: Incoming, _call: Call) -> AsyncGenerator[bytes, None]:
    """For a server that only reads."""
    raise Unsupported("not_served", "rows are not taken here")


def _refusal(why: str) -> Callable[[Any, Call], AsyncGenerator[bytes, None]]:
    def refuse(_asked: Any, _call: Call) -> AsyncGenerator[bytes, None]:
        raise Unsupported("not_served", why)

    return refuse


def _read(kind: type[M], asked: bytes) -> M:
    try:
        return kind.FromString(asked)  # type: ignore[attr-defined, no-any-return]
    except DecodeError:
        raise Invalid("bad_message", f"this is no {kind.__name__} message that can be read") from None
