"""What a request brings: JSON that is read strictly, or rows that are set aside in a file until they are written."""

import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import anyio.to_thread
from fastapi import Depends, Request

from penstock.core.caller import Caller, Role
from penstock.errors import Invalid
from penstock.http import media
from penstock.http.who import caller

_PIECE = 1 << 20

Who = Annotated[Caller, Depends(caller)]


async def content(request: Request, _who: Who) -> bytes:
    """A small body as it came. Who sends it is asked first, and what it is: JSON has a limit that other bodies have not."""
    if not media.is_json(request.headers.get("content-type")):
        media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    _assert_plain(request)
    return await request.body()


def parsed(body: bytes) -> Any:
    """JSON as the RFC has it: UTF-8, no NaN, no member twice."""
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse)
    except UnicodeDecodeError as cause:
        raise Invalid("bad_json", "the body is not UTF-8", position=cause.start) from None
    except json.JSONDecodeError as cause:
        where = f"line {cause.lineno}, column {cause.colno}"
        raise Invalid("bad_json", f"the body is not JSON: {cause.msg} at {where}", position=cause.pos) from None
    except RecursionError:
        raise Invalid("bad_json", "the body is nested too deeply") from None
    except _Refused as cause:
        raise Invalid("bad_json", f"the body is not JSON: {cause}") from None
    except ValueError:
        raise Invalid("bad_json", "the body has a number with too many digits") from None


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


class _Refused(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _Refused(f"member {counts.most_common(1)[0][0][:80]!r} is there twice")
    return found


def _refuse(word: str) -> Any:
    raise _Refused(f"{word} is no number")
