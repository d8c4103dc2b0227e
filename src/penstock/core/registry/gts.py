"""Parse ids of the Global Type System (GTS): a chain of types, each derived from the one before.

`gts.acme.shop.orders.order.v1~` is a type, and `gts.acme.shop.orders.order.v1~acme.shop._.gift.v1.2~` is derived from it.
Without the last `~` the last segment names an instance of the type before it, and so does a UUID in its place.
"""

import re
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import NAMESPACE_URL, UUID, uuid5

from penstock.core.names import parse_uuid
from penstock.errors import Invalid

BASE_TYPE = "gts.hypernetix.hyperspot.ax.schema.v1~"  # abstract: a schema must have a derived type
QUERY_RETURNS = f"{BASE_TYPE}hypernetix.hyperspot.ax.query_returns.v1~"

MAX_LENGTH = 1_024
MAX_STORED_LENGTH = 255

_PREFIX = "gts."
_URI_PREFIX = "gts://"
_GTS_NAMESPACE = uuid5(
    NAMESPACE_URL, "gts"
)  # GTS's own namespace, so that other systems derive the same UUID from a name
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_PART = re.compile(r"(?!_\Z)[a-z_][a-z0-9_]*")
_SEGMENT_PARTS = (  # parts of a segment, in order
    ("a vendor in lower case", _PART),
    ("a package in lower case", _PART),
    ("a namespace in lower case, or _ for none", re.compile(r"[a-z_][a-z0-9_]*")),
    ("a type in lower case", _PART),
    ("a version such as v1", re.compile(r"v(0|[1-9][0-9]*)")),
    ("a minor version such as 2", re.compile(r"0|[1-9][0-9]*")),
)
_MIN_PARTS = 5  # parts; the minor version is optional


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
    tail: UUID | None = None  # of an instance without a name

    @property
    def text(self) -> str:
        links = [*map(str, self.segments), *([str(self.tail)] if self.tail else [])]
        return _PREFIX + "~".join(links) + ("~" if self.is_type else "")

    @property
    def uuid(self) -> UUID:
        """Return a UUID that depends only on the text."""
        return uuid5(_GTS_NAMESPACE, self.text)


def parse(text: str) -> GtsId:
    body = text.removeprefix(_URI_PREFIX)
    if len(body) > MAX_LENGTH:
        _fail(text, f"at most {MAX_LENGTH:,} characters", MAX_LENGTH)
    position = len(text) - len(body)
    if not body.startswith(_PREFIX):
        _fail(text, f"{_PREFIX!r}", position)
    position += len(_PREFIX)
    *complete, last = body.removeprefix(_PREFIX).split("~")
    segments = []
    for segment in complete:
        segments.append(_parse_segment(text, segment, position))
        position += len(segment) + 1
    if complete and not last:
        return GtsId(tuple(segments))
    if complete and _UUID.fullmatch(last):
        return GtsId(tuple(segments), is_type=False, tail=UUID(last))
    segments.append(_parse_segment(text, last, position))
    if not complete:
        _fail(text, "'~', because an instance follows its type", len(text))
    return GtsId(tuple(segments), is_type=False)


def parse_schema_id(text: str) -> UUID | None:
    """Parse the UUID of a schema, alone or after the schema's type; return None for any other text."""
    type_id, tilde, key = text.rpartition("~")
    if tilde:
        try:
            parse_schema_type(f"{type_id}~")
        except Invalid:
            return None
    return parse_uuid(key)


def parse_schema_type(text: Any) -> str:
    """Return the normalised type id of a payload, if a schema may have that type."""
    if not isinstance(text, str):
        raise Invalid("bad_gts_id.not_text", {"query_returns": QUERY_RETURNS})
    # Other versions (query_returns.v1.2) are an error: searches find schemas by the prefix of their type.
    type_id = parse(text).text
    if type_id == BASE_TYPE:
        raise Invalid("abstract_schema_type", {"base": QUERY_RETURNS}, gts_id=type_id)
    if not type_id.startswith(QUERY_RETURNS):
        raise Invalid("bad_schema_type.other_type", {"base": QUERY_RETURNS}, gts_id=type_id)
    if not type_id.endswith("~"):
        raise Invalid("bad_schema_type.instance", gts_id=type_id)
    if len(type_id) > MAX_STORED_LENGTH:
        raise Invalid(
            "bad_schema_type.too_long", {"length": len(type_id), "max_length": MAX_STORED_LENGTH}, gts_id=type_id
        )
    return type_id


def _parse_segment(text: str, segment: str, position: int) -> Segment:
    parts = segment.split(".")
    _check_parts(text, parts, position)
    if len(parts) < _MIN_PARTS:
        _fail(text, f"'.' and {_SEGMENT_PARTS[len(parts)][0]}", position + len(segment))
    vendor, package, namespace, type, version, *minor = parts
    return Segment(vendor, package, namespace, type, int(version[1:]), int(minor[0]) if minor else None)


def _check_parts(text: str, parts: list[str], position: int) -> None:
    for index, part in enumerate(parts):
        if index == len(_SEGMENT_PARTS):
            _fail(text, "'~' or the end", position - 1)
        expected, pattern = _SEGMENT_PARTS[index]
        if not pattern.fullmatch(part):
            _fail(text, expected, position)
        position += len(part) + 1


def _fail(text: str, expected: str, position: int) -> NoReturn:
    raise Invalid(
        "bad_gts_id.syntax",
        {"expected": expected},
        gts_id=ascii(text[:MAX_LENGTH])[1:-1],  # escaped, so that it can be printed
        position=position,
    )
