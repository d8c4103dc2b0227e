"""On which condition is this asked? What a request says in If-Match and If-None-Match."""

from fastapi import Request

from penstock.errors import Invalid
from penstock.service.registry.preconditions import Expected


def expected(request: Request) -> Expected | None:
    """The version that an If-Match header names."""
    said = request.headers.get("if-match")
    if said is None:
        return None
    if said.strip() == "*":
        return Expected(None, condition=True)
    word = said.strip().removeprefix('"').removesuffix('"')
    if not (word.isdecimal() and word.isascii() and len(word) < 10 and said.strip() == f'"{word}"'):
        raise Invalid("bad_condition", 'If-Match must be one ETag as it was given, such as "3"', header="if-match")
    return Expected(int(word), condition=True)


def has(request: Request, tag: str) -> bool:
    """Does the caller have it already, as it is?"""
    tags = (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(","))
    return any(each in (tag, "*") for each in tags)
