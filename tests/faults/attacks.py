"""Attacks of one tenant: requests that cost little to send and much to serve, each with a bounded number of requests."""

import base64
import gzip
import http.client
import io
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

import grpc
import pyarrow as pa
import pyarrow.parquet as pq

from faults.overload_server import FLIGHT_MESSAGE, MIB, SECRET, TIMEOUT_SECONDS, OverloadServer
from flight.schema_bombs import encapsulated, shared_fields
from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.flight import flight_data, ipc_messages, status
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME
from penstock.service.auth.tokens import mint

TENANT = UUID("66666666-6666-6666-6666-666666666666")
RESET = "reset"  # outcome of a connection that the server closed without a response
HELD = "held"  # outcome of a connection that the attacker closed before the request was complete
ABANDONED = "abandoned"  # outcome of a request whose connection the attacker closed before the response
JSON, CSV, PARQUET = "application/json", "text/csv", "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"

_USERS, _THREADS = 4, 16
_MAX_CONNECTIONS = 400  # at the same time; client and server may open 1,024 files each
_RECEIVE_BYTES = 4_096  # receive buffer of a slow reader
_FIELDS = 2_000  # of a schema; the limit
_HEAVY_SQL = "SELECT sum(hash(a.range * b.range)) AS n FROM range(1000000) a, range(1000000) b"
_BODY_BYTES = 3_900_000  # of a JSON body; the limit is 4 MiB


def token(tenant: UUID, user: str, role: Role) -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.claim], ttl=timedelta(hours=1), now=datetime.now(UTC))


@dataclass
class Attacker:
    """Users of one tenant that send requests, and count the outcomes by status."""

    server: OverloadServer
    scale: int = 1  # multiplies the number of requests
    outcomes: Counter[str] = field(default_factory=Counter)  # "413 TOO_MANY_VALUES", "RESOURCE_EXHAUSTED", …
    engaged: threading.Event = field(default_factory=threading.Event)  # the attack is in progress
    released: threading.Event = field(default_factory=threading.Event)  # set by the test: held connections may close
    resources: dict[str, str] = field(default_factory=dict)  # ids that `prepare` has created

    def __post_init__(self) -> None:
        self._tokens = {
            (user, role): token(TENANT, f"mallory{user}", role)
            for user in range(_USERS)
            for role in (Role.VIEWER, Role.ADMIN)
        }

    def renew(self) -> "Attacker":
        """Return an attacker with the same resources for the next attack."""
        return Attacker(self.server, self.scale, resources=self.resources)

    def prepare(self) -> None:
        """Create the schemas, the dataset, the query and the pipeline that attacks use."""
        rows = 500_000
        wide = pa.table({"id": pa.array(range(rows)), "text": pa.array([f"{n % 1000:050}" for n in range(rows)])})
        self._create("dataset", "/datasets?name=target.wide", _parquet(wide), PARQUET)
        self._create("sink", "/datasets?name=target.sink", b"id,text\n1,one\n", CSV)
        fields = [{"name": f"field_{n}", "type": "string"} for n in range(_FIELDS)]
        for n in range(4):
            schema = {"name": f"wide {n}", "type_id": gts.QUERY_RETURNS, "fields": fields}
            self._create("schema", "/gts", json.dumps(schema).encode(), JSON)
        small = [{"name": "id", "type": "number"}, {"name": "text", "type": "string"}]
        schema = {"name": "rows", "type_id": gts.QUERY_RETURNS, "fields": small}
        self._create("rows schema", "/gts", json.dumps(schema).encode(), JSON)
        sql = "SELECT id, text FROM target.wide"
        query = {"name": "all rows", "sql": sql, "returns_schema_id": self.resources["rows schema"]}
        self._create("query", "/queries", json.dumps(query).encode(), JSON)
        source = {"dataset_id": self.resources["sink"]}
        append = {"type": "append", "parameters": {"source": source}}
        pipeline = {"name": "appends", "working": source, "operations": [append]}
        self._create("pipeline", "/pipelines", json.dumps(pipeline).encode(), JSON)

    def storm(self, count: int, send: Callable[[int], object]) -> None:
        """Send many requests at once."""
        with ThreadPoolExecutor(_THREADS) as pool:
            calls = [pool.submit(send, n) for n in range(count * self.scale)]
            self.engaged.set()
            for call in calls:
                call.result()

    def hold(self) -> None:
        """Keep connections open until the test releases them."""
        self.engaged.set()
        assert self.released.wait(TIMEOUT_SECONDS)

    # REST

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = JSON,
        *,
        user: int = 0,
        role: Role = Role.ADMIN,
        headers: dict[str, str] | None = None,
        chunked: bool = False,
    ) -> bytes:
        """Send a request, count its status, and return the body of the response. A chunked body has no Content-Length."""
        connection = http.client.HTTPConnection(self.server.http, timeout=TIMEOUT_SECONDS)
        headers_ = {**self.authorization(user, role), **({"content-type": content_type} if body else {})}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # rejected before the end of the body
                content = (body[n : n + MIB] for n in range(0, len(body), MIB)) if chunked else body or None
                connection.request(method, path, content, headers_ | (headers or {}))
            response = connection.getresponse()
            received = response.read()
            self.outcomes[_outcome(response.status, received)] += 1
            return received
        except (ConnectionError, http.client.HTTPException):
            self.outcomes[RESET] += 1
            return b""
        finally:
            connection.close()

    def authorization(self, user: int = 0, role: Role = Role.ADMIN) -> dict[str, str]:
        return {"authorization": f"Bearer {self._tokens[user % _USERS, role]}"}

    def connect(self, initial_bytes: bytes = b"", *, receive_bytes: int | None = None) -> socket.socket:
        """Open a connection and send some bytes. A small receive buffer makes a slow reader."""
        host, _, port = self.server.http.partition(":")
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect((host, int(port)))
        connection.sendall(initial_bytes)
        return connection

    def head(self, method: str, path: str, user: int = 0, **headers: str) -> bytes:
        """Return the request line and headers of a request."""
        fields = {"host": self.server.http, **self.authorization(user), **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()

    def abandon(self, count: int, request: bytes) -> None:
        """Send requests and close each connection without waiting for the response."""

        def send(_n: int) -> None:
            self.connect(request).close()
            self.outcomes[ABANDONED] += 1

        self.storm(count, send)

    def hold_open(self, count: int, request_of: Callable[[int], bytes]) -> None:
        """Hold connections that have sent a part of a request; then count those that the server has answered."""
        with ExitStack() as stack:
            connections = [stack.enter_context(self.connect(request_of(n))) for n in range(self._connections(count))]
            self.hold()
            for connection in connections:
                connection.setblocking(False)
                try:
                    received = connection.recv(64)
                    self.outcomes[received.split()[1].decode() if received else RESET] += 1
                except BlockingIOError:
                    self.outcomes[HELD] += 1

    def read_slowly(self, count: int, request: Callable[[int], bytes]) -> None:
        """Hold connections that read the beginning of a response and no more."""
        with ExitStack() as stack:
            for n in range(self._connections(count)):
                connection = stack.enter_context(self.connect(request(n), receive_bytes=_RECEIVE_BYTES))
                self.outcomes[connection.recv(64).split()[1].decode()] += 1
            self.hold()

    def _connections(self, count: int) -> int:
        return min(count * self.scale, _MAX_CONNECTIONS)

    # Flight

    def channel(self) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.insecure_channel(self.server.flight, options)

    def call(self, channel: Any, call_type: str, method: str, request: Any, user: int = 0, **options: Any) -> Any:
        """Start a call."""
        metadata = [*self.authorization(user).items(), *options.pop("metadata", ())]
        start = getattr(channel, call_type)(f"/{SERVICE_NAME}/{method}")
        return start(request, metadata=metadata, timeout=TIMEOUT_SECONDS, **options)

    def count(self, read: Callable[[], object]) -> None:
        """Count the status of a call."""
        try:
            read()
            self.outcomes["OK"] += 1
        except grpc.RpcError as error:
            reason = dict(error.trailing_metadata() or ()).get(status.REASON_HEADER)
            code = error.code().name
            # gRPC itself reports a lost connection as UNAVAILABLE, without a reason.
            self.outcomes[RESET if code == "UNAVAILABLE" and reason is None else f"{code} {reason}"] += 1

    def start_action(self, channel: Any, action: str, body: bytes, user: int = 0) -> None:
        request = pb.Action(type=action, body=body).SerializeToString()
        self.count(lambda: list(self.call(channel, "unary_stream", "DoAction", request, user)))

    def _create(self, name: str, path: str, body: bytes, content_type: str) -> None:
        content = json.loads(self.send("POST", path, body, content_type))
        self.resources[name] = content.get("dataset") or content["id"]


def _outcome(status_code: int, content: bytes) -> str:
    if status_code < 400:
        return str(status_code)
    problem = json.loads(content)
    return f"{status_code} {problem['code']}"


@dataclass(frozen=True, slots=True)
class TenantAttack:
    run: Callable[[Attacker], None]
    working_bytes: int = 0  # memory that its requests may use beyond the budget of PENSTOCK_REQUEST_MEMORY


ATTACKS: dict[str, TenantAttack] = {}

Runner = Callable[[Attacker], None]

# Each of two lanes has 12 places for a tenant; a Parquet or Arrow file takes four of them, and a batch of it (32 MiB) is
# in memory as it was read, as it is validated, and as it is written.
_UPLOAD_BYTES = 2 * (12 // 4) * 3 * 32 * MIB

# gRPC holds a message of each DoPut call that is read: 24 of the 32 calls for a tenant.
_PUT_MESSAGES = 24

# A DoGet call holds a decoded row group of its file.
_READERS, _ROW_GROUP_BYTES = 32, 8 * MIB


def _attack(working_bytes: int = 0) -> Callable[[Runner], Runner]:
    def register(run: Runner) -> Runner:
        ATTACKS[run.__name__] = TenantAttack(run, working_bytes)
        return run

    return register


# Bodies.


def _rows(item: bytes, count: int) -> bytes:
    return b'{"rows": [' + b",".join([item] * count) + b"]}"


@_attack()
def json_of_empty_objects(attacker: Attacker) -> None:
    bodies = [_rows(b"{}", _BODY_BYTES // 3), _rows(b"{}", 450_000)]
    path = f"/gts/{attacker.resources['rows schema']}/validate"
    attacker.storm(24, lambda n: attacker.send("POST", path, bodies[n % 2], user=n, role=Role.VIEWER))


@_attack()
def json_of_empty_objects_as_sample(attacker: Attacker) -> None:
    body = _rows(b"{}", _BODY_BYTES // 3)
    attacker.storm(24, lambda n: attacker.send("POST", "/gts/infer", body, user=n, chunked=True))


@_attack()
def json_of_empty_objects_as_dataset(attacker: Attacker) -> None:
    body = b'{"name": "target.new", "schema": [' + b"{}," * (_BODY_BYTES // 3) + b"{}]}"
    attacker.storm(24, lambda n: attacker.send("POST", "/datasets", body, user=n, chunked=True))


@_attack()
def json_of_deep_nesting(attacker: Attacker) -> None:
    depth = _BODY_BYTES // 2
    bodies = [b'{"rows":' + b"[" * depth + b"]" * depth + b"}", b'{"a":' * (_BODY_BYTES // 5)]
    path = f"/gts/{attacker.resources['rows schema']}/validate"
    attacker.storm(16, lambda n: attacker.send("POST", path, bodies[n % 2], user=n, role=Role.VIEWER))


@_attack()
def json_of_many_numbers(attacker: Attacker) -> None:
    bodies = [_rows(b"1e9", 480_000), _rows(b"9" * _BODY_BYTES, 1), _rows(b"1", _BODY_BYTES // 2)]
    path = f"/gts/{attacker.resources['rows schema']}/validate"
    attacker.storm(18, lambda n: attacker.send("POST", path, bodies[n % 3], user=n, role=Role.VIEWER))


@_attack()
def json_of_long_keys(attacker: Attacker) -> None:
    long_key = b'{"' + b"k" * (_BODY_BYTES - 100) + b'": 1}'
    many_keys = b'{"rows": [{' + b",".join(b'"%06d":1' % n for n in range(240_000)) + b"}]}"
    path = f"/gts/{attacker.resources['rows schema']}/validate"
    attacker.storm(16, lambda n: attacker.send("POST", path, (long_key, many_keys)[n % 2], user=n))


@_attack()
def compressed_bodies(attacker: Attacker) -> None:
    body = gzip.compress(bytes(64 * MIB))
    paths = [f"/gts/{attacker.resources['rows schema']}/validate", "/gts/infer", "/datasets?name=target.new"]
    headers = {"content-encoding": "gzip"}
    attacker.storm(12, lambda n: attacker.send("POST", paths[n % 3], body, headers=headers, user=n))


@_attack()
def compressed_text_uploads(attacker: Attacker) -> None:
    text = b"id,text\n" + b"1,1\n" * (16 * MIB)
    bodies = [gzip.compress(text, 1), pa.compress(text, "zstd", asbytes=True)]
    types = [CSV, "application/x-ndjson"]
    path = f"/datasets/{attacker.resources['sink']}/rows"
    attacker.storm(12, lambda n: attacker.send("POST", path, bodies[n % 2], types[n // 2 % 2], user=n))


@_attack(_UPLOAD_BYTES)
def parquet_bombs(attacker: Attacker) -> None:
    long_text = pa.DictionaryArray.from_arrays(pa.array([0] * 12_000, pa.int32()), pa.array(["x" * 20_000]))
    zeros = pa.table({"id": pa.nulls(16 * MIB, pa.int64()).fill_null(0)})
    bodies = [_parquet(pa.table({"text": long_text}), store_schema=False), _parquet(zeros, compression="zstd")]
    paths = ["/datasets?name=target.bomb", f"/datasets/{attacker.resources['sink']}/rows", "/gts/infer"]
    attacker.storm(24, lambda n: attacker.send("POST", paths[n % 3], bodies[n % 2], PARQUET, user=n))


@_attack(_UPLOAD_BYTES)
def arrow_bombs(attacker: Attacker) -> None:
    sink, rows = io.BytesIO(), pa.nulls(24 * MIB, pa.int64()).fill_null(0)
    batch = pa.record_batch({"id": rows, "text": pa.nulls(len(rows), pa.string())})
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    paths = ["/datasets?name=target.bomb", f"/datasets/{attacker.resources['sink']}/rows", "/gts/infer"]
    attacker.storm(24, lambda n: attacker.send("POST", paths[n % 3], sink.getvalue(), ARROW, user=n))


@_attack()
def long_urls_and_headers(attacker: Attacker) -> None:
    targets: Sequence[tuple[str, dict[str, str]]] = [
        ("/gts?$filter=" + "x" * 20_000, {}),
        ("/gts/" + "x" * 60_000, {}),
        ("/gts?$top=1", {"x-padding": "x" * 50_000}),
        ("/gts?$top=1", {"x-padding": "x" * 200_000}),
        ("/gts?$top=1", {f"x-padding-{n}": "x" * 100 for n in range(90)}),
    ]

    def send(n: int) -> None:
        path, headers = targets[n % len(targets)]
        attacker.send("GET", path, headers=headers, user=n)

    attacker.storm(40, send)


# Searches and queries.


def _search_path(terms: int = 180) -> str:
    condition = " or ".join(f"contains(f/name,'q{n}')" for n in range(terms))
    return f"/gts?$filter={quote(f'fields/any(f: {condition})')}"


@_attack()
def search_storm(attacker: Attacker) -> None:
    attacker.storm(24, lambda n: attacker.send("GET", _search_path(), user=n, role=Role.VIEWER))


@_attack()
def abandoned_searches(attacker: Attacker) -> None:
    attacker.abandon(60, attacker.head("GET", _search_path()))


@_attack()
def preview_storm(attacker: Attacker) -> None:
    body = json.dumps({"sql": _HEAVY_SQL.replace("1000000", "6000")}).encode()
    attacker.storm(30, lambda n: attacker.send("POST", "/queries/preview", body, user=n, role=Role.VIEWER))


@_attack()
def abandoned_previews(attacker: Attacker) -> None:
    body = json.dumps({"sql": _HEAVY_SQL}).encode()
    head = attacker.head("POST", "/queries/preview", content_type=JSON, content_length=str(len(body)))
    attacker.abandon(30, head + body)


# Slow clients.


@_attack()
def slow_json_bodies(attacker: Attacker) -> None:
    path = f"/gts/{attacker.resources['rows schema']}/validate"
    prefix = b'{"rows": [' + b" " * MIB

    def send_body(n: int) -> bytes:
        return attacker.head("POST", path, n, content_type=JSON, content_length=str(4 * MIB)) + prefix

    attacker.hold_open(40, send_body)


@_attack()
def slow_uploads(attacker: Attacker) -> None:
    path = f"/datasets/{attacker.resources['sink']}/rows"
    chunk = b"1,1\n" * (MIB // 4 - 1)

    def send_chunks(n: int) -> bytes:
        return attacker.head("POST", path, n, content_type=CSV, content_length=str(1 << 30)) + chunk

    attacker.hold_open(400, send_chunks)


@_attack()
def slow_headers(attacker: Attacker) -> None:
    head = attacker.head("GET", "/gts", x_padding="x" * 1_000)
    attacker.hold_open(200, lambda _: head[:-3])


@_attack()
def idle_connections(attacker: Attacker) -> None:
    attacker.hold_open(300, lambda _: b"")


@_attack()
def slow_readers_of_rows(attacker: Attacker) -> None:
    path = f"/datasets/{attacker.resources['dataset']}/rows"
    attacker.read_slowly(40, lambda n: attacker.head("GET", path, n, accept=ARROW))


@_attack()
def slow_readers_of_results(attacker: Attacker) -> None:
    path = f"/queries/{attacker.resources['query']}/results"
    attacker.read_slowly(12, lambda n: attacker.head("GET", path, n, accept=ARROW))


@_attack()
def slow_readers_of_pages(attacker: Attacker) -> None:
    body = json.dumps({"sql": "SELECT repeat('x', 15_000) AS text FROM range(1_000)"}).encode()

    def request(n: int) -> bytes:
        return attacker.head("POST", "/queries/preview", n, content_type=JSON, content_length=str(len(body))) + body

    attacker.read_slowly(30, request)


# Floods of valid requests.


@_attack()
def upload_storm(attacker: Attacker) -> None:
    path, body = f"/datasets/{attacker.resources['sink']}/rows", b"id,text\n" + b"1,one\n" * 100_000
    attacker.storm(40, lambda n: attacker.send("POST", path, body, CSV, user=n))


@_attack()
def patch_storm(attacker: Attacker) -> None:
    path = f"/gts/{attacker.resources['schema']}"

    def send(n: int) -> None:
        body = json.dumps({"description": f"number {n}"}).encode()
        attacker.send("PATCH", path, body, user=n, headers={"if-match": "*"})

    attacker.storm(40, send)


@_attack()
def validate_storm(attacker: Attacker) -> None:
    path, body = f"/gts/{attacker.resources['rows schema']}/validate", _rows(b'{"id":1,"text":"one"}', 20_000)
    attacker.storm(40, lambda n: attacker.send("POST", path, body, user=n, role=Role.VIEWER))


@_attack()
def inference_storm(attacker: Attacker) -> None:
    bodies = [json.dumps({"sql": "SELECT * FROM target.wide"}).encode(), _rows(b'{"id":1,"text":"one"}', 10_000)]
    attacker.storm(40, lambda n: attacker.send("POST", "/gts/infer", bodies[n % 2], user=n))


@_attack()
def run_submissions(attacker: Attacker) -> None:
    path = f"/pipelines/{attacker.resources['pipeline']}/runs"
    attacker.storm(40, lambda n: attacker.send("POST", path, user=n))


# Flight.

_WIDE = {"schema_name": "target", "table_name": "wide"}
_NO_TABLE = {"schema_name": "target", "table_name": "unknown"}
_SINK = {"schema_name": "target", "table_name": "sink"}


def _descriptor(**members: Any) -> bytes:
    command = json.dumps({"operation": "insert", **members}).encode()
    descriptor: bytes = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=command).SerializeToString()
    return descriptor


def _put_messages(size: int, **members: Any) -> list[bytes]:
    """Return the messages of an insert with one batch of about this size."""
    rows = size // 13
    batch = pa.record_batch({"id": pa.nulls(rows, pa.int64()).fill_null(0), "text": pa.nulls(rows, pa.string())})
    schema = ipc_messages.encode_schema(batch.schema, _descriptor(**members))
    return [schema, *ipc_messages.encode_batch(batch, 1 << 31)]


@_attack()
def flight_schema_bombs(attacker: Attacker) -> None:
    header = shared_fields(18, 2)
    schema = base64.b64encode(encapsulated(header + bytes(900_000))).decode()
    body = json.dumps({**_WIDE, "table_name": "bomb", "arrow_schema": schema}).encode()
    with attacker.channel() as channel:
        attacker.storm(12, lambda n: attacker.start_action(channel, "create_table", body, n))


@_attack()
def flight_json_bombs(attacker: Attacker) -> None:
    body = b'{"schema_name": [' + b"{}," * (_BODY_BYTES // 3) + b"{}]}"
    with attacker.channel() as channel:
        attacker.storm(12, lambda n: attacker.start_action(channel, "list_tables", body, n))


@_attack()
def flight_compressed_messages(attacker: Attacker) -> None:
    messages = _put_messages(FLIGHT_MESSAGE - MIB, **_SINK)

    def put(n: int) -> None:
        with attacker.channel() as channel:
            options = {"compression": grpc.Compression.Gzip}
            attacker.count(lambda: list(attacker.call(channel, "stream_stream", "DoPut", iter(messages), n, **options)))

    attacker.storm(24, put)


@_attack(_PUT_MESSAGES * FLIGHT_MESSAGE)
def flight_rejected_inserts(attacker: Attacker) -> None:
    streams = [
        _put_messages(FLIGHT_MESSAGE - MIB, **_SINK, expected_rows=1),
        _put_messages(FLIGHT_MESSAGE - MIB, **_WIDE, expected_rows=2),
        _put_messages(FLIGHT_MESSAGE - MIB, **_NO_TABLE),
    ]

    def put(n: int) -> None:
        with attacker.channel() as channel:
            attacker.count(lambda: list(attacker.call(channel, "stream_stream", "DoPut", iter(streams[n % 3]), n)))

    attacker.storm(32, put)


@_attack()
def flight_silent_inserts(attacker: Attacker) -> None:
    first = flight_data.encode(b"", descriptor=_descriptor(**_SINK))

    def silent() -> Iterator[bytes]:
        yield first
        attacker.released.wait(TIMEOUT_SECONDS)

    with attacker.channel() as channel:
        count = 64 * attacker.scale
        calls = [attacker.call(channel, "stream_stream", "DoPut", silent(), n) for n in range(count)]
        attacker.hold()
        for call in calls:
            call.cancel()
            attacker.count(lambda call=call: list(call))  # type: ignore[misc]


@_attack()
def flight_transaction_hoarding(attacker: Attacker) -> None:
    with attacker.channel() as channel:
        attacker.storm(200, lambda n: attacker.start_action(channel, "create_transaction", b"{}", n))


@_attack(_READERS * _ROW_GROUP_BYTES)
def flight_slow_readers(attacker: Attacker) -> None:
    ticket = pb.Ticket(ticket=json.dumps(_WIDE).encode()).SerializeToString()
    with ExitStack() as stack:
        calls = []
        for n in range(_READERS * attacker.scale):
            channel = stack.enter_context(attacker.channel())
            call = attacker.call(channel, "unary_stream", "DoGet", ticket, n)
            attacker.count(lambda call=call: next(call))  # type: ignore[misc]
            calls.append(call)
        attacker.hold()
        for call in calls:
            call.cancel()


@_attack(_PUT_MESSAGES * 4 * MIB)
def flight_cancelled_calls(attacker: Attacker) -> None:
    ticket = pb.Ticket(ticket=json.dumps(_WIDE).encode()).SerializeToString()
    messages = _put_messages(4 * MIB, **_SINK)
    with attacker.channel() as channel:

        def read_and_cancel(n: int) -> None:
            call = attacker.call(channel, "unary_stream", "DoGet", ticket, n)
            next(call)
            call.cancel()
            list(call)

        def write_and_cancel(n: int) -> None:
            is_sent = threading.Event()
            call = attacker.call(channel, "stream_stream", "DoPut", _notify_at_end(messages, is_sent), n)
            call.add_callback(is_sent.set)  # rejected before its end
            assert is_sent.wait(TIMEOUT_SECONDS)
            call.cancel()
            list(call)

        def cancel(n: int) -> None:
            attacker.count(lambda: (read_and_cancel if n % 2 else write_and_cancel)(n))

        attacker.storm(100, cancel)


def _notify_at_end(messages: Sequence[bytes], is_sent: threading.Event) -> Iterator[bytes]:
    yield from messages
    is_sent.set()


@_attack()
def flight_large_headers(attacker: Attacker) -> None:
    with attacker.channel() as channel:

        def send(n: int) -> None:
            request = pb.Criteria().SerializeToString()
            metadata = [("x-padding", "x" * (30_000 if n % 2 else 100_000))]
            attacker.count(
                lambda: list(attacker.call(channel, "unary_stream", "ListFlights", request, n, metadata=metadata))
            )

        attacker.storm(20, send)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()
