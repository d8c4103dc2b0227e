"""Parse and check the query string of a request."""

import re
from collections.abc import Sequence
from typing import overload

from fastapi import Request

from penstock.errors import Invalid
from penstock.rest.requests.bodies import CallerDep

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|\Z)")
_BOOLEANS = {"true": True, "false": False}
_MAX_INTEGER_DIGITS = 18  # fits into 64 bits


async def reject_unknown_params(request: Request, _caller: CallerDep) -> None:
    """Reject parameters that the route does not declare; a dependency of every route that needs a caller."""
    if "$filter" not in _declared_params(request):  # core.odata checks the options of a search
        query_params(request)


def query_params(request: Request, names: Sequence[str] | None = None) -> dict[str, str]:
    """Return the query parameters of a request.

    Args:
        request: the request
        names: the allowed parameters; by default those that the OpenAPI document declares for the route

    Raises:
        Invalid: a parameter is unknown or occurs twice
    """
    names = _declared_params(request) if names is None else names
    params: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            if not names:
                raise Invalid("unknown_parameter.none_allowed", parameter=name[:80])
            raise Invalid("unknown_parameter.query", {"valid": names}, parameter=name[:80])
        if name in params:
            raise Invalid("duplicate_parameter.query", {"name": name}, parameter=name)
        params[name] = value
    return params


def _declared_params(request: Request) -> list[str]:
    declared = (request.scope["route"].openapi_extra or {}).get("parameters", [])
    return [parameter["name"] for parameter in declared if parameter["in"] == "query"]


@overload
def int_param(params: dict[str, str], name: str, default: int) -> int: ...
@overload
def int_param(params: dict[str, str], name: str, default: None = None) -> int | None: ...
def int_param(params: dict[str, str], name: str, default: int | None = None) -> int | None:
    """Return a non-negative integer parameter, or the default if it is missing."""
    text = params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_INTEGER_DIGITS):
        raise Invalid("bad_parameter.not_an_integer", {"name": name}, parameter=name)
    return int(text)


def bool_param(params: dict[str, str], name: str) -> bool:
    """Return a parameter that must be `true` or `false`."""
    if params[name] not in _BOOLEANS:
        raise Invalid("bad_parameter.not_a_boolean", {"name": name}, parameter=name)
    return _BOOLEANS[params[name]]


def parse_columns(text: str, parameter: str = "columns") -> list[str]:
    """Parse column names separated by commas; a name may be in backquotes, with `` for a backquote in it."""
    names, position = [], 0
    while position < len(text):
        if not (match := _COLUMN.match(text, position)):
            raise Invalid("bad_parameter.columns", parameter=parameter)
        names.append(match[1].replace("``", "`") if match[1] else match[2])
        position = match.end()
    if len(set(names)) < len(names):
        raise Invalid("duplicate_parameter.columns", parameter=parameter)
    return names
