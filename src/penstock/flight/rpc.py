"""Map the RPC methods of the Flight service to their handlers."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from penstock.core.caller import Role
from penstock.errors import Invalid, Unsupported
from penstock.flight import auth, flight_data
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightLimits
from penstock.flight.interceptor import SERVICE_NAME, FlightCall
from penstock.flight.put_stream import PutStream
from penstock.flight.read_handlers import OpenReader, ReadHandlers
from penstock.flight.table_actions import ActionHandler
from penstock.service.admission import AsyncAdmissionControl

# Consumes a DoPut stream and yields the metadata of each PutResult.
PutHandler = Callable[[PutStream, FlightCall], AsyncGenerator[bytes, None]]

UNIMPLEMENTED = {  # method -> reason
    "PollFlightInfo": "not_implemented.poll_flight_info",
    "DoExchange": "not_implemented.do_exchange",
}
_ADMISSION_SECONDS = 30  # that a DoPut call waits for others to end
_BIDIRECTIONAL = ("DoExchange",)
M = TypeVar("M")


class FlightRpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Dispatch RPC methods. A handler takes a request (bytes or a stream) and a call, and returns bytes or a stream."""

    def __init__(
        self, limits: FlightLimits, put: PutHandler, actions: Mapping[str, ActionHandler], open_reader: OpenReader
    ) -> None:
        self._put, self._actions, self._reads = put, actions, ReadHandlers(open_reader)
        # A waiting call is not read: gRPC holds the bytes of its window, and no message.
        self._puts = AsyncAdmissionControl(limits.puts, limits.streams)
        handlers = {
            "ListFlights": grpc.unary_stream_rpc_method_handler(self._list_flights),
            "GetFlightInfo": grpc.unary_unary_rpc_method_handler(self._get_flight_info),
            "GetSchema": grpc.unary_unary_rpc_method_handler(self._get_schema),
            "DoGet": grpc.unary_stream_rpc_method_handler(self._do_get),
            "DoPut": grpc.stream_stream_rpc_method_handler(self._do_put),
            "DoAction": grpc.unary_stream_rpc_method_handler(self._do_action),
            "Handshake": grpc.stream_stream_rpc_method_handler(self._handshake),
            "ListActions": grpc.unary_stream_rpc_method_handler(self._list_actions),
        }
        for name, reason in UNIMPLEMENTED.items():
            is_bidirectional = name in _BIDIRECTIONAL
            wrap = grpc.stream_stream_rpc_method_handler if is_bidirectional else grpc.unary_stream_rpc_method_handler
            handlers[name] = wrap(_reject_with(reason))
        self._handlers = {f"/{SERVICE_NAME}/{name}": handler for name, handler in handlers.items()}

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)

    async def _list_flights(self, request: bytes, call: FlightCall) -> AsyncGenerator[bytes, None]:
        async for info in self._reads.list_flights(await call.parse(len(request), _parse, pb.Criteria, request), call):
            yield info

    async def _get_flight_info(self, request: bytes, call: FlightCall) -> bytes:
        return await self._reads.get_flight_info(
            await call.parse(len(request), _parse, pb.FlightDescriptor, request), call
        )

    async def _get_schema(self, request: bytes, call: FlightCall) -> bytes:
        return await self._reads.get_schema(await call.parse(len(request), _parse, pb.FlightDescriptor, request), call)

    async def _do_get(self, request: bytes, call: FlightCall) -> AsyncGenerator[bytes, None]:
        ticket = await call.parse(len(request), _parse, pb.Ticket, request)
        async with aclosing(self._reads.do_get(ticket, call)) as messages:
            async for message in messages:
                yield message

    async def _do_put(self, _requests: Any, call: FlightCall) -> AsyncGenerator[bytes, None]:
        call.caller.require(Role.DEVELOPER)
        async with self._puts.admit(call.caller, _ADMISSION_SECONDS):
            stream = PutStream(call.read, call.threads, call.context.limits.message_bytes, call.reserve)
            try:
                async with aclosing(self._put(stream, call)) as results:
                    async for metadata in results:
                        yield pb.PutResult(app_metadata=metadata).SerializeToString()
            finally:
                call.rows_in += stream.rows
                stream.close()

    async def _do_action(self, request: bytes, call: FlightCall) -> AsyncGenerator[bytes, None]:
        action = await call.parse(len(request), _parse, pb.Action, request)
        if action.type not in self._actions:
            raise Unsupported("unknown_action", {"action": action.type[:60], "valid": list(self._actions)})
        handler = self._actions[action.type]
        call.caller.require(handler.role)
        yield pb.Result(body=await handler.handle(call, action.body)).SerializeToString()

    async def _handshake(self, _requests: Any, call: FlightCall) -> AsyncGenerator[bytes, None]:
        """Confirm the token of the call. Clients that take the token from the response receive it again."""
        await call.read()
        own = auth.header_values(call.servicer.invocation_metadata(), "authorization")
        await call.servicer.send_initial_metadata(tuple(("authorization", value) for value in own))
        yield pb.HandshakeResponse().SerializeToString()

    async def _list_actions(self, _request: bytes, _call: FlightCall) -> AsyncGenerator[bytes, None]:
        for name, action in self._actions.items():
            yield pb.ActionType(type=name, description=action.description).SerializeToString()


def reject_put(_stream: PutStream, _call: FlightCall) -> AsyncGenerator[bytes, None]:
    """Reject DoPut, for a read-only server."""
    raise Unsupported("not_implemented.do_put")


def _reject_with(reason: str) -> Callable[[Any, FlightCall], AsyncGenerator[bytes, None]]:
    def reject(_request: Any, _call: FlightCall) -> AsyncGenerator[bytes, None]:
        raise Unsupported(reason)

    return reject


def _parse(message_type: type[M], request: bytes) -> M:
    flight_data.check_field_count(request)
    try:
        return message_type.FromString(request)  # type: ignore[attr-defined, no-any-return]
    except DecodeError:
        raise Invalid("bad_message.protobuf", {"message_type": message_type.__name__}) from None
