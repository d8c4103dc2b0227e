"""What is kept in versions, over REST: shown with an ETag, changed for the version that was read, its past told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import Path, Request, Response

from penstock.rest.requests import media_types as media
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.query_params import number, parameters
from penstock.rest.requests.preconditions import has
from penstock.rest.openapi.document import answers, header, query

_LAST = 2**31 - 1  # nothing has as many versions
_PAGE = 100  # of a history, unless asked for

IF_MATCH = header("if-match", "The version that the change is made for, as its ETag.", example='"1"')
IF_NONE_MATCH = header("if-none-match", "An ETag that is known.", example='"1"')
_LISTED = [
    query("before", "Only versions below this one.", kind=shapes.COUNT, example=10),
    query("$top", "How many at most.", kind=shapes.COUNT, example=_PAGE),
]

Number = Annotated[str, Path(description="The version.", examples=["1"])]


class Versioned(Protocol):
    @property
    def version(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...


def shown(one: Versioned, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return media.json(one.as_json(), status, _tagged(one, headers))


def shown_unless_known(request: Request, one: Versioned, headers: Mapping[str, str] | None = None) -> Response:
    """Only the headers, to who has it already."""
    tagged = _tagged(one, headers)
    return Response(status_code=304, headers=tagged) if has(request, tagged["etag"]) else shown(one, headers)


def listed(thing: str, shape: str, example: Any) -> dict[str, Any]:
    """What the document says of a route that lists versions."""
    value = shapes.members({"value": shapes.many(shapes.of(shape))})
    told = answers(200, "The newest first.", {"value": [example]}, value, errors=[400, 403, 404])
    return {"summary": f"List a {thing}'s versions", "responses": told, "openapi_extra": {"parameters": _LISTED}}


def versions(request: Request, found: Callable[..., Sequence[Versioned]]) -> Response:
    """What the service finds `before` a version, up to a `limit`."""
    asked = parameters(request)
    before, limit = min(number(asked, "before", _LAST), _LAST), number(asked, "$top", _PAGE)
    return media.json({"value": [each.as_json() for each in found(before=before, limit=limit)]})


def numbered(asked: dict[str, str], name: str = "version") -> int:
    return min(number(asked, name, 0), _LAST)


def _tagged(one: Versioned, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"etag": f'"{one.version}"', **(headers or {})}
