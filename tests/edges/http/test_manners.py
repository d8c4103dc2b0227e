"""How every request is treated, whatever it asks for."""

import http.client
import json
import logging
import re
import socket
import threading
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Response
from starlette.types import Message, Receive, Scope, Send

from edges.http.client import Client, check, near, token, wire
from penstock.catalog.database import Database
from penstock.rest.app import application
from penstock.rest.context import Edge, HttpLimits
from penstock.json_logs import REQUEST_ID, JsonLines
from penstock.service.workspace import Workspace

# --- request ids


@pytest.mark.parametrize("sent", ["a", "A-z_0.9", "x" * 128])
def test_a_good_request_id_is_kept(client: Client, sent: str) -> None:
    assert client("GET", "/healthz", headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a\tb", '"', "a,b"])
def test_a_bad_request_id_is_replaced(client: Client, sent: str) -> None:
    told = client("GET", "/healthz", headers={"x-request-id": sent}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", told)


def test_two_requests_have_two_ids_and_an_error_has_one_too(client: Client) -> None:
    told = [client("GET", path, code=code).headers["x-request-id"] for path, code in [("/healthz", 200), ("/x", 404)]]
    assert len(set(told)) == 2


# --- the log


def lines(records: list[logging.LogRecord]) -> list[dict[str, object]]:
    return [json.loads(JsonLines().format(record)) for record in records if record.name == "penstock.access"]


def test_a_request_is_one_line_without_its_secrets(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client(
            "GET",
            "/datasets/shop.orders/rows",
            code=404,
            params={"where": "password = 'hush'"},
            headers={"cookie": "hush"},
        )
    (line,) = lines(caplog.records)
    told = {name: line[name] for name in ("method", "route", "path", "status", "tenant", "message")}
    assert told == {
        "method": "GET",
        "route": "/datasets/{dataset}/rows",
        "path": "/datasets/shop.orders/rows",
        "status": 404,
        "tenant": "11111111-2222-3333-4444-555555555555",
        "message": "request",
    }
    assert line["ms"] > 0  # type: ignore[operator]
    assert line["bytes"] > 0  # type: ignore[operator]
    text = "".join(JsonLines().format(record) for record in caplog.records if record.name.startswith("penstock"))
    assert "hush" not in text
    assert token()[:30] not in text


def test_a_line_break_in_a_path_stays_in_its_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client("GET", "/x%0a%7b%22level%22%3a%22error%22%7d", code=404)
    assert [line["path"] for line in lines(caplog.records)] == ['/x\n{"level":"error"}']
    assert "\n" not in JsonLines().format(caplog.records[-1])


def test_lines_from_within_a_request_carry_its_id(
    app: FastAPI, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> Response:
        seen.append(REQUEST_ID.get())
        return Response()

    seen: list[str | None] = []
    app.add_api_route("/work", work, methods=["GET"])
    client("GET", "/work", headers={"x-request-id": "mine"})
    assert seen == ["mine"]
    assert REQUEST_ID.get() is None


# --- metrics


def test_requests_are_counted_by_route_and_never_by_path(client: Client) -> None:
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


def test_two_applications_do_not_count_for_each_other(edge: Edge) -> None:
    one, two = (near(application(edge), None) for _ in range(2))
    one("GET", "/healthz")
    assert 'route="/healthz"' in one("GET", "/metrics").text
    assert 'route="/healthz"' not in two("GET", "/metrics").text


# --- headers


def test_answers_are_not_kept_by_anybody_unless_they_say_so(client: Client) -> None:
    told = client("GET", "/datasets").headers
    assert told["cache-control"] == "no-store"
    assert told["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in told["content-security-policy"]
    assert client("GET", "/docs/swagger-ui.css").headers["cache-control"] == "public, max-age=86400"


def test_head_is_get_without_a_body(client: Client) -> None:
    got, asked = client("GET", "/healthz"), client("HEAD", "/healthz")
    assert asked.content == b""
    assert asked.headers["content-length"] == got.headers["content-length"]
    client("HEAD", "/nothing", code=404)


# --- parameters

FREE = {
    "/queries/{id}/results": "a query has parameters of its own",
    "/healthz": "a probe may add what it likes",
    "/readyz": "a probe may add what it likes",
    "/metrics": "a probe may add what it likes",
    "/openapi.json": "a part of a page",
    "/docs": "a page",
    "/docs/start.js": "a part of a page",
    "/docs/swagger-ui-bundle.js": "a part of a page",
    "/docs/swagger-ui.css": "a part of a page",
    "/docs/favicon.png": "a part of a page",
    "/favicon.ico": "a part of a page",
}


def test_a_parameter_that_nobody_would_look_at_is_refused_by_every_route(app: FastAPI, client: Client) -> None:
    served = [(method, route.path) for route in app.state.routes for method in route.methods]
    assert FREE.keys() < {path for _, path in served}
    for method, path in served:
        if path not in FREE:
            told = client(method, f"{path}?unheard_of=1", code=400).json()
            code = told["error"]["code"] if path.endswith("/operations") else told["code"]
            assert code in ("UNKNOWN_PARAMETER", "UNKNOWN_OPTION"), (method, path)
            assert client.nobody()(method, f"{path}?unheard_of=1", code=401).json()["code"] == "NO_TOKEN"


# --- limits


def test_an_address_may_be_long_but_not_endless(client: Client) -> None:
    room = HttpLimits().url_bytes - len("/healthz") - len("x=")
    client("GET", f"/healthz?x={'a' * room}")
    assert client("GET", f"/healthz?x={'a' * (room + 1)}", code=414).json()["code"] == "URL_TOO_LONG"


def test_a_body_of_json_may_not_be_large(edge: Edge) -> None:
    client = near(application(replace(edge, limits=HttpLimits(json_bytes=100))), token())
    fitting = b'{"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]}'.ljust(100)
    sent = {"content-type": "application/json"}
    client("POST", "/datasets", code=201, content=fitting, headers=sent)
    assert client("POST", "/datasets", code=413, content=fitting + b" ", headers=sent).json()["limit"] == 100
    client("POST", "/datasets", code=413, content=iter([fitting, b" "]), headers=sent)
    client("POST", "/datasets/demo.x/rows", content=b"id\n" + b"1\n" * 200, headers={"content-type": "text/csv"})


def test_an_upload_has_a_limit_of_its_own_and_leaves_nothing(edge: Edge) -> None:
    client = near(application(replace(edge, limits=HttpLimits(upload_bytes=50))), token())
    sent, rows = {"content-type": "text/csv"}, b"id\n" + b"1\n" * 30
    client("POST", "/datasets?name=demo.x", code=413, content=rows, headers=sent)
    client("POST", "/datasets?name=demo.x", code=413, content=(rows[i : i + 5] for i in range(0, 63, 5)), headers=sent)
    assert client("GET", "/datasets").json()["value"] == []


def raw(address: str) -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname
    return socket.create_connection((parts.hostname, parts.port or 0), timeout=20)


def heard(place: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    return b"".join(iter(lambda: place.recv(65_536), b""))


QUICK = HttpLimits(header_seconds=0.3, idle_seconds=1, answer_seconds=0.3, header_bytes=20_000, drain_seconds=5)


def test_on_the_wire_limits_are_kept_and_told(edge: Edge) -> None:
    with wire(application(edge), replace(QUICK, header_seconds=20.0)) as address:
        with raw(address) as place:
            place.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 30_000)
            told = heard(place)
        assert told.startswith(b"HTTP/1.1 431 ")
        assert b'"code": "HEADERS_TOO_LARGE"' in told
        with raw(address) as place:
            place.sendall(b"what is this\r\n\r\n")
            told = heard(place)
        assert told.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in told
        with raw(address) as place:
            place.sendall(
                b"POST /datasets HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 999999999\r\n\r\n"
            )
            assert heard(place).startswith(b"HTTP/1.1 413 ")  # nothing of it was sent


def test_who_takes_for_ever_to_ask_is_cut(edge: Edge) -> None:
    with wire(application(edge), QUICK) as address, raw(address) as silent, raw(address) as slow:
        slow.sendall(b"GET /healthz HT")
        assert heard(silent) == heard(slow) == b""


def test_a_connection_serves_many_requests_and_then_may_not_idle(edge: Edge) -> None:
    with wire(application(edge), replace(QUICK, header_seconds=20.0)) as address:
        parts = urlsplit(address)
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b'{"status":"up"}'
        assert connection.sock.recv(1) == b""  # after a second
        connection.close()


def test_a_body_that_does_not_come_is_not_waited_for(edge: Edge) -> None:
    edge = replace(edge, limits=QUICK)
    with wire(application(edge), replace(QUICK, header_seconds=20.0)) as address, raw(address) as place:
        place.sendall(
            b"POST /datasets HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 10\r\n\r\n{"
        )
        told = heard(place)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"BODY_TIMED_OUT" in told


def stuck(app: FastAPI) -> threading.Event:
    """A route that does not answer until the event is set."""
    go = threading.Event()

    def wait() -> Response:
        assert go.wait(30)
        return Response("at last")

    app.add_api_route("/wait", wait, methods=["GET"])
    return go


def test_work_that_takes_too_long_is_answered_for(edge: Edge) -> None:
    app = application(replace(edge, limits=QUICK))
    go = stuck(app)
    with wire(app, QUICK) as address:
        told = httpx.get(f"{address}/wait", timeout=20)
        check(told)
        assert (told.status_code, told.json()["code"]) == (503, "REQUEST_TIMED_OUT")
        assert told.headers["retry-after"] == "1"
        assert httpx.get(f"{address}/healthz").status_code == 200
        go.set()


def test_once_an_answer_has_begun_it_may_take_its_time(edge: Edge) -> None:
    from fastapi.responses import StreamingResponse

    app = application(replace(edge, limits=QUICK))
    pause = threading.Event()

    def pieces() -> object:
        yield b"one "
        pause.wait(QUICK.answer_seconds * 2)
        yield b"two"

    app.add_api_route("/long", lambda: StreamingResponse(pieces()), methods=["GET"], response_model=None)  # type: ignore[arg-type]
    with wire(app, QUICK) as address:
        assert httpx.get(f"{address}/long", timeout=20).text == "one two"


def test_an_answer_that_breaks_in_its_middle_is_seen_to_be_broken(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    from fastapi.responses import StreamingResponse

    app = application(edge)

    def pieces() -> object:
        yield b"one "
        raise RuntimeError("the disk is gone")

    app.add_api_route("/broken", lambda: StreamingResponse(pieces()), methods=["GET"], response_model=None)  # type: ignore[arg-type]
    with wire(app, QUICK) as address, pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{address}/broken", timeout=20)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_client_that_hangs_up_is_no_bug(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    app = application(edge)
    with wire(app, QUICK) as address:
        with raw(address) as place:
            place.sendall(
                b"POST /datasets?name=demo.x HTTP/1.1\r\nhost: x\r\ncontent-type: text/csv\r\n"
                b"authorization: Bearer " + token().encode() + b"\r\ncontent-length: 1000\r\n\r\nid\n1\n"
            )
        check(httpx.get(f"{address}/healthz"))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert near(app, token())("GET", "/datasets").json()["value"] == []


def test_a_client_that_takes_nothing_is_cut_and_no_bug(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    from fastapi.responses import StreamingResponse

    app = application(replace(edge, limits=QUICK))
    given = list[int]()

    def pieces() -> object:
        for n in range(1_000):
            given.append(n)
            yield b"x" * (3 << 20)

    app.add_api_route("/long", lambda: StreamingResponse(pieces()), methods=["GET"], response_model=None)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO), wire(app, QUICK) as address, raw(address) as place:
        place.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        turn = threading.Event()
        for _ in range(1_000):
            if lines(caplog.records):
                break
            turn.wait(0.02)
    assert len(given) < 100
    assert not [record for record in caplog.records if record.exc_info]
    (line,) = lines(caplog.records)
    assert line["disconnected"] is True


def test_a_large_answer_is_given_piece_by_piece(edge: Edge) -> None:
    sizes, content = list[int](), bytes(range(256)) * 4096 * 3 + b"end"
    app = application(edge)
    app.add_api_route("/large", lambda: Response(content), methods=["GET"], response_model=None)

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch(message: Message) -> None:
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, watch)

    assert near(watched, token())("GET", "/large").content == content  # type: ignore[arg-type]
    assert sizes == [0, 1 << 20, 1 << 20, 1 << 20, 3]


# --- health


def test_a_process_is_up_even_without_its_database(edge: Edge) -> None:
    gone = Workspace(Database("postgresql://nobody@127.0.0.1:1/none"), edge.workspace.store)
    client = near(application(replace(edge, workspace=gone)), None)
    client("GET", "/healthz")
    told = client("GET", "/readyz", code=503)
    assert told.json()["parts"] == {"catalog": "database_unavailable", "store": "ok"}
    assert "nobody" not in told.text
    gone.db.close()


def test_a_store_that_cannot_be_written_is_not_ready(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> None:
        raise OSError(28, "no space left on device")

    client = near(application(edge), None)
    assert client("GET", "/readyz").json() == {"status": "ready", "parts": {"catalog": "ok", "store": "ok"}}
    monkeypatch.setattr(edge.workspace.store, "create", full)
    assert client("GET", "/readyz", code=503).json()["parts"] == {"catalog": "ok", "store": "failed"}


def test_being_ready_leaves_no_file(edge: Edge) -> None:
    near(application(edge), None)("GET", "/readyz")
    assert list(edge.workspace.store.files("scratch")) == []


# --- the documents


def test_the_page_takes_nothing_from_elsewhere(client: Client) -> None:
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
    return [(f"{method} {path}", found) for path, each in paths.items() for method, found in each.items()]


def test_every_route_is_described_with_examples(client: Client) -> None:
    document = client("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert document["security"] == [{"bearer": []}]
    assert {tag for _, each in operations(document) for tag in each["tags"]} <= {t["name"] for t in document["tags"]}
    for name, operation in operations(document):
        assert operation["summary"], name
        assert "422" not in operation["responses"], name
        assert min(operation["responses"]) < "300", name
        for code, answer in operation["responses"].items():
            shown = answer.get("content", {})
            if code >= "400" and name.endswith("/operations") and code != "401":  # told in the words of operations
                assert shown["application/json"]["example"]["error"]["code"], (name, code)
            elif code >= "400":
                assert shown["application/problem+json"]["example"]["status"] == int(code), name
            elif code not in ("204", "304"):
                assert any("example" in each for each in shown.values()), (name, code)
        if operation.get("security") != []:
            assert {"401", "403", "500"} <= set(operation["responses"]), name
        for parameter in operation.get("parameters", []):
            assert parameter["in"] == "path" or "example" in parameter, (name, parameter["name"])


def test_what_is_described_is_what_is_served(app: FastAPI, client: Client) -> None:
    served = {f"{m.lower()} {r.path}" for r in app.state.routes if r.include_in_schema for m in r.methods}
    assert {name for name, _ in operations(client("GET", "/openapi.json").json())} == served
