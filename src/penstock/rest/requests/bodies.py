"""What a request brings: JSON that is read strictly, or rows that are set aside in a file until they are written."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import anyio.to_thread
from fastapi import Depends, Request

from penstock.core.payload import documents as text
from penstock.core.caller import Caller, Role
from penstock.errors import Invalid
from penstock.rest.requests import media_types as media
from penstock.rest.auth import caller

_PIECE = 1 << 20

Who = Annotated[Caller, Depends(caller)]


def content(*kinds: str) -> Callable[..., Awaitable[bytes]]:
    """A dependency: a small body as it came, of one of these types, all JSON: that has a limit which others have not."""

    async def received(request: Request, _who: Who) -> bytes:  # who sends it is asked first
        media.assert_sent(request.headers.get("content-type"), kinds)
        _assert_plain(request)
        return await request.body()

    return received


Body = Annotated[bytes, Depends(content(media.JSON))]


async def nothing(request: Request, _who: Who) -> None:
    """A body that says nothing: none at all, or {}."""
    kind = request.headers.get("content-type")
    if not media.is_json(kind):
        async for piece in request.stream():
            if piece:
                media.assert_sent(kind, (media.JSON,))
        return
    _assert_plain(request)
    if (body := await request.body()) and parsed(body) != {}:
        raise Invalid("bad_payload", "there is nothing to say here: send no body, or {}")


def parsed(body: bytes) -> Any:
    return text.from_json(body, "the body")


def parsed_object(body: bytes) -> dict[str, Any]:
    value = parsed(body)
    if not isinstance(value, dict):
        raise Invalid("bad_json", "the body must be a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class Upload:
    path: Path
    kind: str  # its media type


def upload(*kinds: str) -> Callable[..., AsyncIterator[Upload]]:
    """A dependency: the body, of one of these types, in a file that is gone after the request."""

    async def received(request: Request, who: Who) -> AsyncIterator[Upload]:
        who.require(Role.DEVELOPER)  # whoever may not write need not send it all
        kind = media.assert_sent(request.headers.get("content-type"), kinds)
        _assert_plain(request)
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            path = Path(folder) / f"body.{media.FORMATS.get(kind, 'json')}"
            with path.open("wb") as file:
                await _save(request, file)
            yield Upload(path, kind)

    return received


def _assert_plain(request: Request) -> None:
    if (packed := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        raise Invalid(
            "unsupported_media_type", f"content-encoding {packed[:80]!r} is not served here; send plain bytes"
        )


async def _save(request: Request, file: BinaryIO) -> None:
    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) >= _PIECE:
            await anyio.to_thread.run_sync(file.write, bytes(held))
            held.clear()
    await anyio.to_thread.run_sync(file.write, bytes(held))
