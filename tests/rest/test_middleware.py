"""Request ids, access log, metrics, limits of size and time, health checks and API documentation."""

import http.client
import json
import logging
import re
import socket
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Response
from starlette.types import Message, Receive, Scope, Send

from penstock.catalog.database import Database
from penstock.json_logs import REQUEST_ID, JsonFormatter
from penstock.rest.app import create_app
from penstock.rest.context import HttpLimits, RestContext
from penstock.service.workspace import Workspace
from rest.dispatched_routes import add_route
from rest.rest_client import RestClient, check_response, in_process_client, serve, token

# --- request ids


@pytest.mark.parametrize("request_id", ["a", "A-z_0.9", "x" * 128])
def test_valid_request_id_is_returned(client: RestClient, request_id: str) -> None:
    assert client("GET", "/healthz", headers={"x-request-id": request_id}).headers["x-request-id"] == request_id


@pytest.mark.parametrize("invalid_id", ["", "x" * 129, "a b", "a\tb", '"', "a,b"])
def test_invalid_request_id_is_replaced(client: RestClient, invalid_id: str) -> None:
    request_id = client("GET", "/healthz", headers={"x-request-id": invalid_id}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", request_id)


def test_every_response_has_its_own_request_id(client: RestClient) -> None:
    request_ids = [
        client("GET", path, code=code).headers["x-request-id"] for path, code in [("/healthz", 200), ("/x", 404)]
    ]
    assert len(set(request_ids)) == 2


# --- access log


def access_log_lines(records: list[logging.LogRecord]) -> list[dict[str, object]]:
    return [json.loads(JsonFormatter().format(record)) for record in records if record.name == "penstock.access"]


def test_access_log_writes_one_line_without_secrets(client: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client(
            "GET",
            "/datasets/shop.orders/rows",
            code=404,
            params={"where": "password = 'hush'"},
            headers={"cookie": "hush"},
        )
    (line,) = access_log_lines(caplog.records)
    members = {name: line[name] for name in ("method", "route", "path", "status", "tenant", "message")}
    assert members == {
        "method": "GET",
        "route": "/datasets/{dataset}/rows",
        "path": "/datasets/shop.orders/rows",
        "status": 404,
        "tenant": "11111111-2222-3333-4444-555555555555",
        "message": "request",
    }
    assert line["ms"] > 0  # type: ignore[operator]
    assert line["bytes"] > 0  # type: ignore[operator]
    text = "".join(JsonFormatter().format(record) for record in caplog.records if record.name.startswith("penstock"))
    assert "hush" not in text
    assert token()[:30] not in text


def test_access_log_escapes_line_breaks_in_path(client: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client("GET", "/x%0a%7b%22level%22%3a%22error%22%7d", code=404)
    assert [line["path"] for line in access_log_lines(caplog.records)] == ['/x\n{"level":"error"}']
    assert "\n" not in JsonFormatter().format(caplog.records[-1])


def test_log_lines_of_a_request_contain_its_id(
    app: FastAPI, client: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    def route() -> Response:
        request_ids.append(REQUEST_ID.get())
        return Response()

    request_ids: list[str | None] = []
    add_route(app, "/work", route)
    client("GET", "/work", headers={"x-request-id": "mine"})
    assert request_ids == ["mine"]
    assert REQUEST_ID.get() is None


# --- metrics


def test_metrics_count_requests_by_route_not_by_path(client: RestClient) -> None:
    for name in ("a.b", "c.d", "e.f"):
        client("GET", f"/datasets/{name}", code=404)
    client("GET", "/favourite-cakes", code=404)
    client("BREW", "/datasets", code=405)
    text = client("GET", "/metrics").text
    assert 'penstock_http_requests_total{method="GET",route="/datasets/{dataset}",status="404"} 3.0' in text
    assert 'penstock_http_requests_total{method="GET",route="(unknown)",status="404"} 1.0' in text
    assert 'method="other"' in text
    assert 'penstock_http_request_seconds_count{route="/datasets/{dataset}"} 3.0' in text
    assert "penstock_http_in_flight 1.0" in text  # this very request
    assert "a.b" not in text
    assert "cakes" not in text
    assert "BREW" not in text


def test_metrics_of_two_applications_are_separate(rest_context: RestContext) -> None:
    first, second = (in_process_client(create_app(rest_context), None) for _ in range(2))
    first("GET", "/healthz")
    assert 'route="/healthz"' in first("GET", "/metrics").text
    assert 'route="/healthz"' not in second("GET", "/metrics").text


# --- headers


def test_responses_are_not_cacheable_by_default(client: RestClient) -> None:
    headers = client("GET", "/datasets").headers
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert client("GET", "/docs/swagger-ui.css").headers["cache-control"] == "public, max-age=86400"


def test_head_returns_headers_of_get_without_body(client: RestClient) -> None:
    get, head = client("GET", "/healthz"), client("HEAD", "/healthz")
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]
    client("HEAD", "/nothing", code=404)


# --- parameters

UNCHECKED_ROUTES = {
    "/queries/{id}/results": "a query declares its own parameters",
    "/healthz": "monitoring probes may add parameters",
    "/readyz": "monitoring probes may add parameters",
    "/metrics": "monitoring probes may add parameters",
    "/openapi.json": "a part of a page",
    "/docs": "a page",
    "/docs/start.js": "a part of a page",
    "/docs/swagger-ui-bundle.js": "a part of a page",
    "/docs/swagger-ui.css": "a part of a page",
    "/docs/favicon.png": "a part of a page",
    "/favicon.ico": "a part of a page",
}


def test_every_route_rejects_unknown_parameters(app: FastAPI, client: RestClient) -> None:
    routes = [(method, route.path) for route in app.state.routes for method in route.methods]
    assert UNCHECKED_ROUTES.keys() < {path for _, path in routes}
    for method, path in routes:
        if path not in UNCHECKED_ROUTES:
            problem = client(method, f"{path}?unheard_of=1", code=400).json()
            code = problem["error"]["code"] if path.endswith("/operations") else problem["code"]
            assert code in ("UNKNOWN_PARAMETER", "UNKNOWN_OPTION"), (method, path)
            assert client.without_token()(method, f"{path}?unheard_of=1", code=401).json()["code"] == "MISSING_TOKEN"


# --- limits


def test_url_above_limit_is_rejected(client: RestClient) -> None:
    free_bytes = HttpLimits().max_url_bytes - len("/healthz") - len("x=")
    client("GET", f"/healthz?x={'a' * free_bytes}")
    assert client("GET", f"/healthz?x={'a' * (free_bytes + 1)}", code=414).json()["code"] == "URL_TOO_LONG"


def test_json_body_above_limit_is_rejected(rest_context: RestContext) -> None:
    client = in_process_client(create_app(replace(rest_context, limits=HttpLimits(max_json_bytes=100))), token())
    body = b'{"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]}'.ljust(100)
    headers = {"content-type": "application/json"}
    client("POST", "/datasets", code=201, content=body, headers=headers)
    assert client("POST", "/datasets", code=413, content=body + b" ", headers=headers).json()["limit"] == 100
    client("POST", "/datasets", code=413, content=iter([body, b" "]), headers=headers)
    client("POST", "/datasets/demo.x/rows", content=b"id\n" + b"1\n" * 200, headers={"content-type": "text/csv"})


def test_upload_above_limit_is_rejected_and_leaves_no_file(rest_context: RestContext) -> None:
    client = in_process_client(create_app(replace(rest_context, limits=HttpLimits(max_upload_bytes=50))), token())
    headers, rows = {"content-type": "text/csv"}, b"id\n" + b"1\n" * 30
    client("POST", "/datasets?name=demo.x", code=413, content=rows, headers=headers)
    client(
        "POST", "/datasets?name=demo.x", code=413, content=(rows[i : i + 5] for i in range(0, 63, 5)), headers=headers
    )
    assert client("GET", "/datasets").json()["value"] == []


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname
    return socket.create_connection((parts.hostname, parts.port or 0), timeout=20)


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the other side closes the connection."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


GENEROUS_LIMITS = HttpLimits(response_timeout_seconds=4.0)  # a busy machine may need seconds to start a response
SHORT_LIMITS = HttpLimits(
    header_timeout_seconds=0.3,
    idle_timeout_seconds=1,
    response_timeout_seconds=0.3,
    max_header_bytes=20_000,
    drain_seconds=5,
)


def test_server_enforces_size_limits(rest_context: RestContext) -> None:
    with serve(create_app(rest_context), replace(SHORT_LIMITS, header_timeout_seconds=20.0)) as address:
        with connect(address) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 30_000)
            response = read_to_end(connection)
        assert response.startswith(b"HTTP/1.1 431 ")
        assert b'"code": "HEADERS_TOO_LARGE"' in response
        with connect(address) as connection:
            connection.sendall(b"no HTTP request\r\n\r\n")
            response = read_to_end(connection)
        assert response.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in response
        with connect(address) as connection:
            connection.sendall(
                b"POST /datasets HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 999999999\r\n\r\n"
            )
            assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")  # before the body is sent


def test_connection_with_slow_headers_is_closed(rest_context: RestContext) -> None:
    with serve(create_app(rest_context), SHORT_LIMITS) as address, connect(address) as silent, connect(address) as slow:
        slow.sendall(b"GET /healthz HT")
        assert read_to_end(silent) == read_to_end(slow) == b""


def test_idle_connection_is_closed_after_requests(rest_context: RestContext) -> None:
    with serve(create_app(rest_context), replace(SHORT_LIMITS, header_timeout_seconds=20.0)) as address:
        parts = urlsplit(address)
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b'{"status":"up"}'
        assert connection.sock.recv(1) == b""  # the server closed it after a second
        connection.close()


def test_body_that_does_not_arrive_times_out(rest_context: RestContext) -> None:
    rest_context = replace(rest_context, limits=SHORT_LIMITS)
    with (
        serve(create_app(rest_context), replace(SHORT_LIMITS, header_timeout_seconds=20.0)) as address,
        connect(address) as connection,
    ):
        connection.sendall(
            b"POST /datasets HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 10\r\n\r\n{"
        )
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"BODY_TIMED_OUT" in response


def add_blocking_route(app: FastAPI) -> threading.Event:
    """Add a route that does not respond until the returned event is set."""
    released = threading.Event()

    def wait() -> Response:
        assert released.wait(30)
        return Response("at last")

    add_route(app, "/wait", wait)
    return released


def test_slow_request_returns_timeout_error(rest_context: RestContext) -> None:
    app = create_app(replace(rest_context, limits=SHORT_LIMITS))
    released = add_blocking_route(app)
    with serve(app, SHORT_LIMITS) as address:
        response = httpx.get(f"{address}/wait", timeout=20)
        check_response(response)
        assert (response.status_code, response.json()["code"]) == (503, "REQUEST_TIMED_OUT")
        assert response.headers["retry-after"] == "1"
        assert httpx.get(f"{address}/healthz").status_code == 200
        released.set()


def test_started_response_has_no_timeout(rest_context: RestContext) -> None:
    from fastapi.responses import StreamingResponse

    app = create_app(replace(rest_context, limits=GENEROUS_LIMITS))
    pause = threading.Event()

    def chunks() -> object:
        yield b"one "
        pause.wait(GENEROUS_LIMITS.response_timeout_seconds * 1.5)
        yield b"two"

    add_route(app, "/long", lambda: StreamingResponse(chunks()))
    with serve(app, GENEROUS_LIMITS) as address:
        assert httpx.get(f"{address}/long", timeout=60).text == "one two"


def test_exception_in_started_response_closes_connection(
    rest_context: RestContext, caplog: pytest.LogCaptureFixture
) -> None:
    from fastapi.responses import StreamingResponse

    app = create_app(rest_context)

    def chunks() -> object:
        yield b"one "
        raise RuntimeError("the disk has failed")

    add_route(app, "/broken", lambda: StreamingResponse(chunks()))
    with serve(app, SHORT_LIMITS) as address, pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{address}/broken", timeout=20)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_client_disconnect_is_not_logged_as_error(rest_context: RestContext, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(rest_context)
    with serve(app, SHORT_LIMITS) as address:
        with connect(address) as connection:
            connection.sendall(
                b"POST /datasets?name=demo.x HTTP/1.1\r\nhost: x\r\ncontent-type: text/csv\r\n"
                b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 1000\r\n\r\nid\n1\n"
            )
        check_response(httpx.get(f"{address}/healthz"))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert in_process_client(app, token())("GET", "/datasets").json()["value"] == []


def test_stalled_client_is_disconnected_without_error(
    rest_context: RestContext, caplog: pytest.LogCaptureFixture
) -> None:
    from fastapi.responses import StreamingResponse

    app = create_app(replace(rest_context, limits=GENEROUS_LIMITS))
    produced = list[int]()

    def chunks() -> object:
        for n in range(1_000):
            produced.append(n)
            yield b"x" * (3 << 20)

    add_route(app, "/long", lambda: StreamingResponse(chunks()))
    with caplog.at_level(logging.INFO), serve(app, GENEROUS_LIMITS) as address, connect(address) as connection:
        connection.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        pause, deadline = threading.Event(), time.monotonic() + 240
        while not access_log_lines(caplog.records):
            assert time.monotonic() < deadline
            pause.wait(0.02)
    assert len(produced) < 100
    assert not [record for record in caplog.records if record.exc_info]
    (line,) = access_log_lines(caplog.records)
    assert line["disconnected"] is True


def test_large_response_is_sent_in_chunks(rest_context: RestContext) -> None:
    sizes, content = list[int](), bytes(range(256)) * 4096 * 3 + b"end"
    app = create_app(rest_context)
    add_route(app, "/large", lambda: Response(content))

    async def recording_app(scope: Scope, receive: Receive, send: Send) -> None:
        async def record(message: Message) -> None:
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, record)

    assert in_process_client(recording_app, token())("GET", "/large").content == content  # type: ignore[arg-type]
    assert sizes == [0, 1 << 20, 1 << 20, 1 << 20, 3]


# --- health


def test_healthz_succeeds_without_database(rest_context: RestContext) -> None:
    unreachable = Workspace(Database("postgresql://canary@127.0.0.1:1/none"), rest_context.workspace.store)
    client = in_process_client(create_app(replace(rest_context, workspace=unreachable)), None)
    client("GET", "/healthz")
    response = client("GET", "/readyz", code=503)
    assert response.json()["parts"] == {"catalog": "database_unavailable", "store": "ok"}
    assert "canary" not in response.text
    unreachable.db.close()


def test_readyz_with_read_only_store_fails(rest_context: RestContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(28, "no space left on device")

    client = in_process_client(create_app(rest_context), None)
    assert client("GET", "/readyz").json() == {"status": "ready", "parts": {"catalog": "ok", "store": "ok"}}
    monkeypatch.setattr(rest_context.workspace.store, "create", fail)
    assert client("GET", "/readyz", code=503).json()["parts"] == {"catalog": "ok", "store": "storage_failed"}


def test_readyz_leaves_no_file(rest_context: RestContext) -> None:
    in_process_client(create_app(rest_context), None)("GET", "/readyz")
    assert list(rest_context.workspace.store.files("scratch")) == []


# --- API documentation


def test_docs_page_loads_nothing_from_other_hosts(client: RestClient) -> None:
    page = client("GET", "/docs")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "http" not in page.text
    assert "<script>" not in page.text
    parts = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(parts) == 4
    for part in parts:
        assert len(client("GET", f"/{part}").content) > 50
    assert client("GET", "/favicon.ico").headers["content-type"] == "image/png"


def operations(document: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
    paths: dict[str, dict[str, dict[str, object]]] = document["paths"]  # type: ignore[assignment]
    return [(f"{method} {path}", operation) for path, methods in paths.items() for method, operation in methods.items()]


def test_openapi_describes_every_route_with_examples(client: RestClient) -> None:
    document = client("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert document["security"] == [{"bearer": []}]
    assert {tag for _, operation in operations(document) for tag in operation["tags"]} <= {
        t["name"] for t in document["tags"]
    }
    for name, operation in operations(document):
        assert operation["summary"], name
        assert "422" not in operation["responses"], name
        assert min(operation["responses"]) < "300", name
        for code, response in operation["responses"].items():
            content = response.get("content", {})
            if code >= "400" and name.endswith("/operations") and code != "401":  # the error format of operations
                assert content["application/json"]["example"]["error"]["code"], (name, code)
            elif code >= "400":
                assert content["application/problem+json"]["example"]["status"] == int(code), name
            elif code not in ("204", "304"):
                assert any("example" in body for body in content.values()), (name, code)
        if operation.get("security") != []:
            assert {"401", "403", "500"} <= set(operation["responses"]), name
        for parameter in operation.get("parameters", []):
            assert parameter["in"] == "path" or "example" in parameter, (name, parameter["name"])


def test_openapi_describes_only_served_routes(app: FastAPI, client: RestClient) -> None:
    served = {f"{m.lower()} {r.path}" for r in app.state.routes if r.include_in_schema for m in r.methods}
    assert {name for name, _ in operations(client("GET", "/openapi.json").json())} == served
