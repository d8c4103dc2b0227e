"""Read request bodies: strict JSON in memory, or rows in a temporary file."""

import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import anyio.to_thread
from fastapi import Depends, Request

from penstock.core.caller import Caller, Role
from penstock.core.payload import documents, json_cost
from penstock.errors import Invalid
from penstock.rest.auth import authenticate_request
from penstock.rest.context import context_of
from penstock.rest.requests import media_types
from penstock.service.memory_budget import Reservation

_WRITE_BYTES = 1 << 20
_BODY_COPIES = 2  # its parts, and the whole
_INLINE_BYTES = 32 << 10  # a smaller body takes less time than passing it to a thread
_MAX_EMPTY_BODY_BYTES = 1 << 10

CallerDep = Annotated[Caller, Depends(authenticate_request)]


def receive_json(*accepted: str, role: Role = Role.VIEWER) -> Callable[..., AsyncIterator[bytes]]:
    """Return a dependency that reads a JSON body of one of these media types into memory.

    Only JSON media types may be passed: other bodies have a limit that is too large for memory. The memory of the body
    and of its values is reserved until the response is sent.

    Args:
        accepted: media types
        role: lowest role of a caller whose body is received
    """

    async def receive(request: Request, caller: CallerDep) -> AsyncIterator[bytes]:
        caller.require(role)  # authentication and the role precede reading
        media_types.require_content_type(request.headers.get("content-type"), accepted)
        _require_no_encoding(request)
        with context_of(request).workspace.memory.reserve(caller) as reservation:
            yield await _read_json(request, reservation)

    return receive


async def _read_json(request: Request, reservation: Reservation) -> bytes:
    chunks = list[bytes]()
    async for chunk in request.stream():
        reservation.grow(_BODY_COPIES * len(chunk))
        chunks.append(chunk)
    body = b"".join(chunks)
    chunks.clear()
    limit = context_of(request).limits.max_json_values
    if len(body) < _INLINE_BYTES:
        cost = json_cost.check_json_cost(body, limit)
    else:
        cost = await anyio.to_thread.run_sync(json_cost.check_json_cost, body, limit)
    reservation.grow(max(cost.bytes - reservation.size, 0))
    return body


Body = Annotated[bytes, Depends(receive_json(media_types.JSON))]
DeveloperBody = Annotated[bytes, Depends(receive_json(media_types.JSON, role=Role.DEVELOPER))]


async def require_empty_body(request: Request, _caller: CallerDep) -> None:
    """Require that the request has no body or the body `{}`; a dependency.

    Raises:
        Invalid: the body contains anything else
    """
    header, body = request.headers.get("content-type"), bytearray()
    if not media_types.is_json(header):
        async for chunk in request.stream():
            if chunk:
                media_types.require_content_type(header, (media_types.JSON,))
        return
    _require_no_encoding(request)
    async for chunk in request.stream():
        if len(body) + len(chunk) > _MAX_EMPTY_BODY_BYTES:
            raise Invalid("bad_payload.not_empty")
        body += chunk
    if body and parse_json(bytes(body)) != {}:
        raise Invalid("bad_payload.not_empty")


EmptyBody = Annotated[None, Depends(require_empty_body)]


def parse_json(body: bytes) -> Any:
    """Parse a JSON body strictly."""
    return documents.parse_json(body, "the body")


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON body that must be an object."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise Invalid("bad_json.not_an_object")
    return value


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A request body: rows in a temporary file, or JSON in memory."""

    media_type: str
    path: Path = Path()  # of the rows
    json: bytes = b""


def receive_upload(*accepted: str) -> Callable[..., AsyncIterator[UploadedFile]]:
    """Return a dependency that saves a body of one of these media types to a file for the time of the request.

    JSON is read into memory, within the limits of `receive_json`.
    """

    async def receive(request: Request, caller: CallerDep) -> AsyncIterator[UploadedFile]:
        caller.require(Role.DEVELOPER)  # before the body is received: it may be large
        media_type = media_types.require_content_type(request.headers.get("content-type"), accepted)
        _require_no_encoding(request)
        with context_of(request).workspace.memory.reserve(caller) as reservation:
            if media_type == media_types.JSON:
                yield UploadedFile(media_type, json=await _read_json(request, reservation))
                return
            reservation.grow(_WRITE_BYTES)
            with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
                path = Path(folder) / f"body.{media_types.FILE_FORMATS[media_type]}"
                with path.open("wb") as file:
                    await _save(request, file)
                yield UploadedFile(media_type, path)

    return receive


def _require_no_encoding(request: Request) -> None:
    if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        raise Invalid("unsupported_media_type.encoded", {"encoding": encoding[:80]})


async def _save(request: Request, file: BinaryIO) -> None:
    buffer = bytearray()
    async for chunk in request.stream():
        buffer += chunk
        if len(buffer) >= _WRITE_BYTES:
            await anyio.to_thread.run_sync(file.write, bytes(buffer))
            buffer.clear()
    await anyio.to_thread.run_sync(file.write, bytes(buffer))
