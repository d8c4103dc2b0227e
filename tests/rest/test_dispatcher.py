"""Test the dispatcher: lookup of routes, order of dependencies, and release of their resources."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Request, Response
from starlette.types import Message, Receive, Scope, Send

from penstock.errors import Invalid
from penstock.rest.dispatcher import Dispatcher

calls: list[str] = []


async def first(request: Request) -> str:
    calls.append("first")
    return request.url.path


First = Annotated[str, Depends(first)]


async def second(path: First) -> str:
    calls.append("second")
    return f"second of {path}"


async def resource(path: First) -> AsyncIterator[str]:
    calls.append("opened")
    try:
        yield path
    finally:
        calls.append("released")


router = APIRouter(prefix="/things")


@router.get("/fixed")
async def fixed() -> Response:
    return Response("fixed")


@router.get("/{id}/parts/{part}")
async def show_part(id: str, part: str, path: First, text: Annotated[str, Depends(second)]) -> Response:
    return Response(f"{id} {part} {path} {text}")


@router.get("/{id}")
def show(id: str) -> Response:  # runs in a thread
    return Response(f"thing {id}")


@router.post("/{id}")
async def change(request: Request, id: str, path: Annotated[str, Depends(resource)]) -> Response:
    match request.query_params.get("fail"):
        case "invalid":
            raise Invalid("bad_path")
        case "crash":
            raise RuntimeError("crash")
    return Response(path)


async def fall_through(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("not dispatched", 404)(scope, receive, send)


def request(method: str, path: str, query: str = "", root_path: str = "") -> tuple[int, str]:
    """Send a request to the dispatcher, and return the status and the body of the response."""
    calls.clear()
    messages: list[Message] = []

    async def send(message: Message) -> None:
        calls.append(message["type"])
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("no body is read")

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "root_path": root_path}
    scope |= {"headers": [], "server": ("localhost", 80), "scheme": "http"}
    routes = [(route, ()) for route in router.routes]
    asyncio.run(Dispatcher(fall_through, routes)(scope, receive, send))  # type: ignore[arg-type]
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages).decode()


def test_dispatch_calls_each_dependency_once_before_the_route() -> None:
    assert request("GET", "/things/a b/parts/2") == (200, "a b 2 /things/a b/parts/2 second of /things/a b/parts/2")
    assert calls[:2] == ["first", "second"]
    assert calls.count("first") == 1


def test_dispatch_first_matching_route_wins() -> None:
    assert request("GET", "/things/fixed") == (200, "fixed")
    assert request("GET", "/things/other") == (200, "thing other")


@pytest.mark.parametrize(
    ("method", "path", "root_path"),
    [
        ("GET", "/", ""),
        ("GET", "/other/1", ""),
        ("GET", "/things", ""),
        ("GET", "/things/1/2", ""),
        ("DELETE", "/things/1", ""),
        ("GET", "/things/1", "/mounted"),
    ],
)
def test_dispatch_other_requests_pass_to_the_application(method: str, path: str, root_path: str) -> None:
    assert request(method, path, root_path=root_path) == (404, "not dispatched")


def test_dispatch_releases_resources_after_the_response_is_sent() -> None:
    assert request("POST", "/things/1") == (200, "/things/1")
    assert calls == ["first", "opened", "http.response.start", "http.response.body", "released"]


def test_dispatch_releases_resources_after_an_error() -> None:
    status, body = request("POST", "/things/1", "fail=invalid")
    assert (status, '"BAD_PATH"' in body) == (400, True)
    assert calls[-1] == "released"
    with pytest.raises(RuntimeError, match="crash"):
        request("POST", "/things/1", "fail=crash")
    assert calls == ["first", "opened", "released"]


def test_dispatch_route_with_parameter_in_first_segment_is_rejected() -> None:
    general = APIRouter()
    general.add_api_route("/{id}", show, methods=["GET"])
    with pytest.raises(AssertionError, match="first segment"):
        Dispatcher(fall_through, [(general.routes[0], ())])  # type: ignore[list-item]
