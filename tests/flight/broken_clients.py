"""Clients that disconnect or stall in the middle of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

import grpc

from flight.raw_client import TIMEOUT_SECONDS, token
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME


@dataclass
class InterruptedStream:
    """A stream that stalls or ends after some of its messages."""

    messages: list[bytes]
    completes: bool = False
    stopped: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)

    def __iter__(self) -> Iterator[bytes]:
        yield from self.messages
        self.stopped.set()
        if not self.completes:
            self.released.wait(TIMEOUT_SECONDS)


class InterruptedStreams:
    """Several interrupted streams on one connection."""

    def __init__(
        self, address: str, plans: list[tuple[InterruptedStream, str | None]], timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Start a DoPut for each plan: a stream and its transaction id."""
        self._channel = grpc.insecure_channel(address.split("://")[1], [("grpc.use_local_subchannel_pool", 1)])
        self._streams = [stream for stream, _ in plans]
        put = self._channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
        self.calls = [put(iter(stream), metadata=_headers(tx), timeout=timeout) for stream, tx in plans]
        assert all(stream.stopped.wait(TIMEOUT_SECONDS) for stream in self._streams)
        # One connection keeps the order: a response to these calls proves that the server received the messages above.
        list_actions = self._channel.unary_stream(f"/{SERVICE_NAME}/ListActions")
        for _ in range(10):
            list(list_actions(pb.Empty().SerializeToString(), metadata=_headers(None), timeout=TIMEOUT_SECONDS))

    def cancel(self) -> None:
        for call in self.calls:
            call.cancel()

    def close(self) -> None:
        for stream in self._streams:
            stream.released.set()
        self._channel.close()


def wait_to_be_killed(address: str, plans: list[tuple[list[bytes], bool, str | None]], connection: Connection) -> None:
    """Run the client in a separate process."""
    streams = InterruptedStreams(
        address, [(InterruptedStream(messages, completes), tx) for messages, completes, tx in plans]
    )
    connection.send(len(streams.calls))
    Event().wait(TIMEOUT_SECONDS)


def _headers(transaction: str | None) -> list[tuple[str, Any]]:
    headers = [("authorization", f"Bearer {token()}")]
    return headers if transaction is None else [*headers, ("x-transaction-id", transaction)]
