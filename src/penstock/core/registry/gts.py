"""Names of types, and of things that have one, in the Global Type System: a chain that says what derives from what.

`gts.acme.shop.orders.order.v1~` is a type, and `gts.acme.shop.orders.order.v1~acme.shop._.gift.v1.2~` one that derives
from it. Without the last `~` the last link names an instance of the type before it, and so does a UUID in its place.
"""

import re
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import NAMESPACE_URL, UUID, uuid5

from penstock.core.names import uuid
from penstock.errors import Invalid

BASE = "gts.hypernetix.hyperspot.ax.schema.v1~"  # abstract: no schema is of this very type
QUERY_RETURNS = f"{BASE}hypernetix.hyperspot.ax.query_returns.v1~"

MAX_LENGTH = 1_024
MAX_STORED = 255

_PREFIX = "gts."
_URI = "gts://"
_SPACE = uuid5(NAMESPACE_URL, "gts")  # the system's own, so that others find the same UUID for the same name
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_WORD = re.compile(r"(?!_\Z)[a-z_][a-z0-9_]*")
_WORDS = (  # of a segment, in their order
    ("a vendor in lower case", _WORD),
    ("a package in lower case", _WORD),
    ("a namespace in lower case, or _ for none", re.compile(r"[a-z_][a-z0-9_]*")),
    ("a type in lower case", _WORD),
    ("a version such as v1", re.compile(r"v(0|[1-9][0-9]*)")),
    ("a minor version such as 2", re.compile(r"0|[1-9][0-9]*")),
)
_LEAST = 5  # words; the minor version may be missing


@dataclass(frozen=True, slots=True)
class Segment:
    vendor: str
    package: str
    namespace: str
    type: str
    major: int
    minor: int | None = None

    def __str__(self) -> str:
        minor = "" if self.minor is None else f".{self.minor}"
        return f"{self.vendor}.{self.package}.{self.namespace}.{self.type}.v{self.major}{minor}"


@dataclass(frozen=True, slots=True)
class GtsId:
    segments: tuple[Segment, ...]
    is_type: bool = True
    tail: UUID | None = None  # of an instance that has no name but this

    @property
    def text(self) -> str:
        links = [*map(str, self.segments), *([str(self.tail)] if self.tail else [])]
        return _PREFIX + "~".join(links) + ("~" if self.is_type else "")

    @property
    def uuid(self) -> UUID:
        """The same for the same text, everywhere and always."""
        return uuid5(_SPACE, self.text)


def parse(text: str) -> GtsId:
    body = text.removeprefix(_URI)
    if len(body) > MAX_LENGTH:
        _refuse(text, f"at most {MAX_LENGTH:,} characters", MAX_LENGTH)
    at = len(text) - len(body)
    if not body.startswith(_PREFIX):
        _refuse(text, f"{_PREFIX!r}", at)
    at += len(_PREFIX)
    *before, last = body.removeprefix(_PREFIX).split("~")
    segments = []
    for link in before:
        segments.append(_segment(text, link, at))
        at += len(link) + 1
    if before and not last:
        return GtsId(tuple(segments))
    if before and _UUID.fullmatch(last):
        return GtsId(tuple(segments), is_type=False, tail=UUID(last))
    segments.append(_segment(text, last, at))
    if not before:
        _refuse(text, "'~': this names no type, and an instance stands behind its type", len(text))
    return GtsId(tuple(segments), is_type=False)


def schema_key(text: str) -> UUID | None:
    """The UUID of a schema, given as it is or behind the schema's type; None for what can be no schema."""
    kind, tilde, key = text.rpartition("~")
    if tilde:
        try:
            assert_schema_type(f"{kind}~")
        except Invalid:
            return None
    return uuid(key)


def assert_schema_type(text: Any) -> str:
    """The type id of a payload as it is stored, if a schema may be of that type."""
    if not isinstance(text, str):
        raise Invalid("bad_gts_id", f"a type id is text, such as {QUERY_RETURNS}")
    # Other editions (query_returns.v1.2) are refused: searches find schemas by how their type's text begins.
    kind = parse(text).text
    if kind == BASE:
        problem = f"is abstract; use {QUERY_RETURNS} or a type that derives from it"
        raise Invalid("abstract_schema_type", f"{kind} {problem}", gts_id=kind)
    if not kind.startswith(QUERY_RETURNS):
        problem = f"is no type of query returns; use {QUERY_RETURNS} or a type that derives from it"
    elif not kind.endswith("~"):
        problem = "names an instance; a type ends in '~'"
    elif len(kind) > MAX_STORED:
        problem = f"has {len(kind)} characters; the type of a schema has at most {MAX_STORED}"
    else:
        return kind
    raise Invalid("bad_schema_type", f"{kind} {problem}", gts_id=kind)


def _segment(given: str, link: str, at: int) -> Segment:
    words = link.split(".")
    _check_words(given, words, at)
    if len(words) < _LEAST:
        _refuse(given, f"'.' and {_WORDS[len(words)][0]}", at + len(link))
    vendor, package, namespace, kind, version, *minor = words
    return Segment(vendor, package, namespace, kind, int(version[1:]), int(minor[0]) if minor else None)


def _check_words(given: str, words: list[str], at: int) -> None:
    for place, word in enumerate(words):
        if place == len(_WORDS):
            _refuse(given, "'~' or the end", at - 1)
        wanted, shape = _WORDS[place]
        if not shape.fullmatch(word):
            _refuse(given, wanted, at)
        at += len(word) + 1


def _refuse(given: str, wanted: str, position: int) -> NoReturn:
    raise Invalid(
        "bad_gts_id",
        f"this is no GTS id: expected {wanted} at position {position}",
        gts_id=ascii(given[:MAX_LENGTH])[1:-1],  # whatever it is, it can be printed
        position=position,
    )
