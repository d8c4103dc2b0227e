"""An HTTP proxy in front of an S3 server: it counts requests by kind and injects faults into the n-th of them.

    with FaultProxy(s3_server.endpoint) as proxy:                # clients use proxy.endpoint
        with proxy.inject(Fault.SLOW_DOWN, Kind.PUT, first=2, times=None) as injection:
            ...                                                  # the second PUT and every later one fails
        assert injection.fired and proxy.counts()[Kind.PUT] == 3

Signatures stay valid, because the proxy passes on `Host` and every other header. Bodies of objects are streamed.
"""

import http.client
import os
import select
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.s3_requests import Kind, kind_of, shorten_listing

_CHUNK_BYTES = 1 << 16


class Fault(Enum):
    """The failure of a request, as the client sees it. Unless noted, the S3 server does not receive the request."""

    FORBIDDEN = (403, "AccessDenied")
    WRONG_SECRET = (403, "SignatureDoesNotMatch")
    CLOCK_SKEW = (403, "RequestTimeTooSkewed")
    NO_KEY = (404, "NoSuchKey")
    NO_BUCKET = (404, "NoSuchBucket")
    TOO_MANY_REQUESTS = (429, "TooManyRequests")
    INTERNAL_ERROR = (500, "InternalError")
    SLOW_DOWN = (503, "SlowDown")
    RESET = "the connection is reset"
    STALL = "no response, until the injection ends"
    CUT_UPLOAD = (
        "the S3 server receives half of the body, then both connections are closed"  # nothing of a chunked body
    )
    LOST_REPLY = "the S3 server carries out the request, then the connection is closed without a response"
    CUT_BODY = "half of the body of the response, then the connection is closed"
    STALL_BODY = "half of the body of the response, then nothing until the injection ends"
    WRONG_BYTES = "one byte of the body of the response is changed"
    SHORT_LISTING = "a complete listing without its second half"
    STALE_LISTING = "the previous response to the same list request"


_BODY_FAULTS = (Fault.CUT_BODY, Fault.STALL_BODY, Fault.WRONG_BYTES)
_UPLOADS = frozenset({Kind.PUT, Kind.PUT_PART})
_APPLICABLE = {
    Fault.CUT_UPLOAD: _UPLOADS, Fault.CUT_BODY: frozenset({Kind.GET}), Fault.STALL_BODY: frozenset({Kind.GET}),
    Fault.WRONG_BYTES: frozenset({Kind.GET}), Fault.SHORT_LISTING: frozenset({Kind.LIST}), Fault.STALE_LISTING: frozenset({Kind.LIST}),
}  # fmt: skip


def applicable_kinds(fault: Fault) -> frozenset[Kind]:
    """Return the kinds of requests that a fault applies to."""
    return _APPLICABLE.get(fault, frozenset(Kind))


@dataclass(slots=True)
class ProxiedRequest:
    method: str
    target: str  # path and query
    kind: Kind
    range: str | None
    sent_bytes: int = 0  # length of the body of the request; 0 if it is sent in chunks
    status: int | None = None  # of the S3 server; None: no response, or not received by the S3 server
    received_bytes: int = 0  # length of the body of the response
    fault: Fault | None = None


@dataclass(slots=True)
class Injection:
    """One fault for the requests from number `first` on, counted among those of its kinds since it was injected."""

    fault: Fault
    kinds: frozenset[Kind]
    first: int
    times: int | None  # None: every later request
    matched: int = 0  # requests of these kinds
    fired: int = 0  # requests that failed: 0 means that the block sent fewer than `first`
    ended: threading.Event = field(default_factory=threading.Event)

    def applies(self, kind: Kind) -> bool:
        """Count a request and return whether it fails."""
        if kind not in self.kinds:
            return False
        self.matched += 1
        is_hit = self.matched >= self.first and (self.times is None or self.matched < self.first + self.times)
        self.fired += is_hit
        return is_hit

    def retract(self) -> None:
        """Count a request as passed on: the fault changed nothing."""
        self.fired -= 1


class FaultProxy(ThreadingHTTPServer):
    """A proxy on a free loopback port. Leave its `with` block to close every connection."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.latency_seconds = 0.0  # before each request
        self.requests: list[ProxiedRequest] = []
        self.listings: dict[str, bytes] = {}  # the last response by target
        self.closed = threading.Event()
        self.connections: set[socket.socket] = set()
        self.errors: list[BaseException] = []
        self._injections: list[Injection] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "FaultProxy":
        threading.Thread(target=self.serve_forever, args=(0.05,), name="fault-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.closed.set()
        with self._lock:
            for injection in self._injections:
                injection.ended.set()
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        assert not self.errors, f"the proxy failed: {self.errors}"

    def counts(self) -> Counter[Kind]:
        """Return the number of received requests by kind."""
        return Counter(request.kind for request in list(self.requests))

    def clear(self) -> None:
        """Discard the recorded requests."""
        self.requests.clear()

    @contextmanager
    def inject(self, fault: Fault, *kinds: Kind, first: int = 1, times: int | None = 1) -> Iterator[Injection]:
        """Fail the n-th request within the block.

        Args:
            fault: the failure
            kinds: the kinds of requests that are counted and fail. Default: all that the fault applies to
            first: the number of the first request that fails, from 1
            times: how many requests fail; None: every request from `first` on

        Raises:
            ValueError: the fault does not apply to one of the kinds
        """
        applicable = applicable_kinds(fault)
        if excess := set(kinds) - applicable:
            raise ValueError(f"{fault.name} does not apply to {sorted(excess)}. Valid kinds: {sorted(applicable)}")
        injection = Injection(fault, frozenset(kinds) or applicable, first, times)
        with self._lock:
            self._injections.append(injection)
        try:
            yield injection
        finally:
            with self._lock:
                self._injections.remove(injection)
            injection.ended.set()

    def record(self, request: ProxiedRequest) -> Injection | None:
        """Record a request and return the injection that it fails by."""
        with self._lock:
            self.requests.append(request)
            hits = [injection for injection in self._injections if injection.applies(request.kind)]
            for other in hits[1:]:
                other.retract()  # one request fails in one way
        request.fault = hits[0].fault if hits else None
        return hits[0] if hits else None

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Ignore connections that the client closes; other errors are those of the proxy."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.errors.append(error)


class _Disconnected(Exception):
    """The connection to the client is to be closed without a further byte."""


class _Handler(BaseHTTPRequestHandler):
    """Passes on the requests of one connection, one after the other, over one connection to the S3 server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # flushed after each request
    server: FaultProxy

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection(self.server.upstream)

    def finish(self) -> None:
        self._upstream.close()
        with suppress(OSError, ValueError):
            super().finish()

    def handle_expect_100(self) -> bool:
        return True  # the S3 server decides

    def _handle(self) -> None:
        try:
            self._forward()
            self.wfile.flush()
        except _Disconnected:
            self.close_connection = True
        except (OSError, http.client.IncompleteRead):  # either connection is lost: close the other
            self.close_connection = True
            self._upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _forward(self) -> None:
        sent_bytes = int(self.headers.get("Content-Length") or 0)
        kind = kind_of(self.command, self.path, "x-amz-copy-source" in self.headers)
        request = ProxiedRequest(self.command, self.path, kind, self.headers.get("Range"), sent_bytes)
        injection = self.server.record(request)
        fault = injection.fault if injection else None
        if self.server.latency_seconds:
            self.server.closed.wait(self.server.latency_seconds)
        match fault:
            case Fault(value=(int(status), str(code))):
                return self._send_error(status, code)
            case Fault.RESET:
                self._reset()
            case Fault.STALL if injection:
                injection.ended.wait()
                raise _Disconnected
        if fault is Fault.CUT_UPLOAD and sent_bytes < 2:
            raise _Disconnected
        self._send_upstream(sent_bytes // 2 if fault is Fault.CUT_UPLOAD else None)
        response = self._upstream.getresponse()
        request.status = response.status
        if kind is Kind.LIST:
            return self._relay_listing(request, response, injection)
        request.received_bytes = response.length or 0
        if fault is Fault.LOST_REPLY:
            response.read()
            raise _Disconnected
        return self._relay(response, injection)

    def _send_error(self, status: int, code: str) -> None:
        if self._waits_for_continue():
            self.close_connection = True  # the client does not send the body
        else:
            for _ in self._body():
                pass
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        """Close the connection so that the client receives RST, not FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        raise _Disconnected

    def _send_upstream(self, cut_at: int | None) -> None:
        """Send the request; close both connections after `cut_at` bytes of the body, if given."""
        upstream, is_chunked = self._upstream, "chunked" in self.headers.get("Transfer-Encoding", "")
        if upstream.sock and select.select([upstream.sock], [], [], 0)[0]:  # closed by the S3 server meanwhile
            upstream.close()
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders()
        if self._waits_for_continue():
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        sent = 0
        for piece in self._body():
            if cut_at is not None and sent + len(piece) >= cut_at:
                upstream.send(piece[: cut_at - sent])
                upstream.close()
                raise _Disconnected
            sent += len(piece)
            with suppress(ConnectionError):  # the S3 server may respond, and close, before it has the whole body
                upstream.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
        if is_chunked:
            with suppress(ConnectionError):
                upstream.send(b"0\r\n\r\n")

    def _waits_for_continue(self) -> bool:
        return "100-continue" in self.headers.get("Expect", "").lower()

    def _body(self) -> Iterator[bytes]:
        """Read the body of the request, without the chunks that it is sent in."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                yield self._read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self._read(min(left, _CHUNK_BYTES))
            left -= len(piece)
            yield piece

    def _read(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if len(piece) < size:
            self._upstream.close()  # the client closed the connection within the body: so does the proxy
            raise _Disconnected
        return piece

    def _relay_listing(
        self, request: ProxiedRequest, response: http.client.HTTPResponse, injection: Injection | None
    ) -> None:
        """Pass on a listing, or one that is short or stale. Listings are read whole."""
        body, fault = response.read(), injection.fault if injection else None
        listing = body
        if fault is Fault.LOST_REPLY:
            raise _Disconnected
        if fault is Fault.SHORT_LISTING:
            body = shorten_listing(listing)
        elif fault is Fault.STALE_LISTING:
            body = self.server.listings.get(self.path, listing)
        elif response.status == 200:
            self.server.listings[self.path] = listing
        if injection and body == listing:
            injection.retract()
        request.received_bytes = len(body)
        self._send_head(response, len(body))
        self.wfile.write(body)

    def _relay(self, response: http.client.HTTPResponse, injection: Injection | None) -> None:
        """Pass on a response, with a fault in its body if there is one."""
        fault, length = injection.fault if injection else None, response.length
        has_body = self.command != "HEAD" and response.status not in (204, 304)
        if injection and fault in _BODY_FAULTS and not (has_body and response.status < 300 and length):
            injection.retract()
            fault = None
        self._send_head(response, length if has_body else None)
        if not has_body:
            response.close()
        sent, middle = 0, (length or 0) // 2
        while has_body and (piece := response.read(_CHUNK_BYTES)):
            if fault in (Fault.CUT_BODY, Fault.STALL_BODY) and sent + len(piece) > middle:
                self.wfile.write(piece[: middle - sent])
                self.wfile.flush()
                if fault is Fault.STALL_BODY and injection:
                    injection.ended.wait()
                self._upstream.close()
                raise _Disconnected
            if fault is Fault.WRONG_BYTES and sent <= middle < sent + len(piece):
                at = middle - sent
                piece = piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
            sent += len(piece)
            self.wfile.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
        if has_body and length is None:
            self.wfile.write(b"0\r\n\r\n")

    def _send_head(self, response: http.client.HTTPResponse, length: int | None) -> None:
        """Send status and headers, with this length of the body."""
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if length is None or name.lower() not in ("content-length", "transfer-encoding"):
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
