"""What the address of a request asks for."""

import re
from collections.abc import Sequence
from typing import Any, overload
from urllib.parse import quote, urlencode

from fastapi import Request

from penstock.errors import Invalid
from penstock.rest.requests.bodies import Who

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|\Z)")
_FLAGS = {"true": True, "false": False}


async def known(request: Request, _who: Who) -> None:
    """The dependency of every route that works for somebody: what it would not look at is refused."""
    if "$filter" not in _declared(request):  # what has one is read, and refused, by core.odata
        parameters(request)


def parameters(request: Request, names: Sequence[str] | None = None) -> dict[str, str]:
    """The parameters of the query, each once, and none but these; unless given, those that the document has."""
    names = _declared(request) if names is None else names
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            known = f"there are {', '.join(names)}" if names else "there are none here"
            raise Invalid("unknown_parameter", f"{name[:80]!r} is no parameter; {known}", parameter=name[:80])
        if name in found:
            raise Invalid("doubled_parameter", f"{name} is there twice", parameter=name)
        found[name] = value
    return found


def _declared(request: Request) -> list[str]:
    told = (request.scope["route"].openapi_extra or {}).get("parameters", [])
    return [each["name"] for each in told if each["in"] == "query"]


@overload
def number(asked: dict[str, str], name: str, default: int) -> int: ...
@overload
def number(asked: dict[str, str], name: str, default: None = None) -> int | None: ...
def number(asked: dict[str, str], name: str, default: int | None = None) -> int | None:
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Invalid("bad_parameter", f"{name} is a number from 0 on", parameter=name)
    return int(text)


def flag(asked: dict[str, str], name: str) -> bool:
    if asked[name] not in _FLAGS:
        raise Invalid("bad_parameter", f"{name} is true or false", parameter=name)
    return _FLAGS[asked[name]]


def columns(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        if not (match := _COLUMN.match(text, at)):
            raise Invalid("bad_parameter", "columns are names separated by commas", parameter="columns")
        found.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end()
    if len(set(found)) < len(found):
        raise Invalid("doubled_parameter", "a column is there twice", parameter="columns")
    return found


def next_link(request: Request, changes: dict[str, Any]) -> str:
    """This request's address, with some parameters changed."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
    return f"{request.url.path}?{urlencode([*kept, *changes.items()], quote_via=quote, safe='$')}"
