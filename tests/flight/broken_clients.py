"""Clients that break off: streams that stop somewhere, and then end as no stream should."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

import grpc

from flight.raw_client import SECONDS, token
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME


@dataclass
class Stuck:
    """A stream that stalls or ends after some of its messages."""

    sent: list[bytes]
    ends: bool = False
    stopped: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)

    def __iter__(self) -> Iterator[bytes]:
        yield from self.sent
        self.stopped.set()
        if not self.ends:
            self.released.wait(SECONDS)


class Streams:
    """Several of them on one connection."""

    def __init__(self, address: str, plans: list[tuple[Stuck, str | None]], timeout: float = SECONDS) -> None:
        """`plans`: what is sent, and in which transaction."""
        self._channel = grpc.insecure_channel(address.split("://")[1], [("grpc.use_local_subchannel_pool", 1)])
        self._stuck = [stuck for stuck, _ in plans]
        put = self._channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
        self.calls = [put(iter(stuck), metadata=_headers(tx), timeout=timeout) for stuck, tx in plans]
        assert all(stuck.stopped.wait(SECONDS) for stuck in self._stuck)
        # What comes back for these was sent after all that, on the same connection.
        ask = self._channel.unary_stream(f"/{SERVICE_NAME}/ListActions")
        for _ in range(10):
            list(ask(pb.Empty().SerializeToString(), metadata=_headers(None), timeout=SECONDS))

    def cancel(self) -> None:
        for call in self.calls:
            call.cancel()

    def close(self) -> None:
        for stuck in self._stuck:
            stuck.released.set()
        self._channel.close()


def wait_to_be_killed(address: str, plans: list[tuple[list[bytes], bool, str | None]], talk: Connection) -> None:
    """Run the client in a separate process."""
    streams = Streams(address, [(Stuck(sent, ends), tx) for sent, ends, tx in plans])
    talk.send(len(streams.calls))
    Event().wait(SECONDS)


def _headers(transaction: str | None) -> list[tuple[str, Any]]:
    own = [("authorization", f"Bearer {token()}")]
    return own if transaction is None else [*own, ("x-transaction-id", transaction)]
