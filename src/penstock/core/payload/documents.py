"""JSON and YAML as plain values, read strictly: what two readers could take in two ways is refused.

JSON is what its RFC has: UTF-8, no NaN, no member twice. YAML is another way to write JSON: a bare word is what it is in
JSON, or else text, so that dates, `yes` and `no` stay words. Anchors may be used, within bounds; tags may not.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from penstock.errors import Invalid

MAX_YAML = 4 << 20  # bytes
MAX_DEPTH = 100  # lists and mappings in one another, in YAML; what an alias stands for counts
MAX_VALUES = 200_000  # in a YAML document, each alias with all that it stands for

_LINE = 100  # characters of text that count as one value
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Format(Enum):
    JSON = "JSON"
    YAML = "YAML"


@dataclass(frozen=True, slots=True)
class Document:
    value: Any
    lines: Mapping[str, int] = field(repr=False)  # by JSON pointer, the first is 1

    def line(self, pointer: str) -> int | None:
        """Where a value stands, or what it would be part of; None: that is not known."""
        while pointer and pointer not in self.lines:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer)


def document(data: bytes, format: Format | None, what: str) -> Document:
    """A value, and the lines of its parts. Without a format, text that begins as JSON does is JSON."""
    if format is None:
        format = Format.JSON if data.lstrip()[:1] in (b"{", b"[") else Format.YAML
    if format is Format.YAML:
        return from_yaml(data, what)
    return Document(from_json(data, what), _lines(data.decode("utf-8")))


def from_json(data: bytes, what: str) -> Any:
    """`what` is what a complaint calls the text: "the body", the name of a file."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_word, parse_float=_float
        )
    except UnicodeDecodeError as cause:
        raise Invalid("bad_json", f"{what} is not UTF-8", position=cause.start) from None
    except json.JSONDecodeError as cause:
        where = f"line {cause.lineno}, column {cause.colno}"
        raise Invalid("bad_json", f"{what} is not JSON: {cause.msg} at {where}", position=cause.pos) from None
    except RecursionError:
        raise Invalid("bad_json", f"{what} is nested too deeply") from None
    except _Refused as cause:
        raise Invalid("bad_json", f"{what} is not JSON: {cause}") from None
    except ValueError:
        raise Invalid("bad_json", f"{what} has a number with too many digits") from None


def from_yaml(data: bytes, what: str) -> Document:
    if len(data) > MAX_YAML:
        raise Invalid("bad_yaml", f"{what} has more than {MAX_YAML:,} bytes, which is too long for YAML here")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise Invalid("bad_yaml", f"{what} is not UTF-8", position=cause.start) from None
    try:
        reader = _Reader(text)
        return Document(reader.document(), reader.lines)
    except yaml.reader.ReaderError as cause:
        line = text.count("\n", 0, cause.position) + 1
        told = f"character {text[cause.position]!a} is not allowed"
        raise Invalid("bad_yaml", f"{what} is not YAML: {told} at line {line}", line=line) from None
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        assert mark is not None
        where = {"line": mark.line + 1, "column": mark.column + 1}
        told = f"{cause.problem} at line {where['line']}, column {where['column']}"
        raise Invalid("bad_yaml", f"{what} is not YAML: {told}", **where) from None
    except (ValueError, OverflowError):
        raise Invalid(
            "bad_yaml", f"{what} has a number with too many digits, or a character of no such number"
        ) from None


@dataclass(frozen=True, slots=True)
class _Read:
    value: Any
    values: int  # how many it is, itself and all in it; long text counts as several
    height: int  # of the lists and mappings in it


class _Reader:
    """Builds the value from the parser's events. An anchor's value is built once, and counted wherever it is used."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, _Read] = {}
        self._values = 0
        self.lines: dict[str, int] = {}

    def document(self) -> Any:
        next(self._events)
        if isinstance(next(self._events), StreamEndEvent):
            return None
        value = self._read(next(self._events), "", 0).value
        next(self._events)
        if not isinstance(more := next(self._events), StreamEndEvent):
            _refuse("a second document begins; one is all there can be", more)
        return value

    def _read(self, event: Event, pointer: str, depth: int) -> _Read:
        self.lines[pointer] = _mark(event).line + 1
        match event:
            case AliasEvent():
                return self._aliased(event, depth)
            case ScalarEvent():
                read = self._counted(_Read(_scalar(event), 1 + len(event.value) // _LINE, 0), event, depth)
            case MappingStartEvent():
                parts = dict(self._members(pointer, self._inside(event, depth)))
                read = _collected({name: part.value for name, part in parts.items()}, parts.values())
            case _:
                items = list(self._items(pointer, self._inside(event, depth)))
                read = _collected([item.value for item in items], items)
        assert isinstance(event, NodeEvent)
        if event.anchor:
            self._anchors[event.anchor] = read
        return read

    def _aliased(self, event: AliasEvent, depth: int) -> _Read:
        if event.anchor not in self._anchors:
            _refuse(f"the alias {event.anchor!r} stands for nothing that is complete before it", event)
        return self._counted(self._anchors[event.anchor], event, depth)

    def _inside(self, event: Event, depth: int) -> int:
        """The depth of what a list or mapping holds."""
        assert isinstance(event, CollectionStartEvent)
        if event.tag is not None:
            _refuse_tag(event.tag, event)
        self._counted(_Read(None, 1, 1), event, depth)
        return depth + 1

    def _counted(self, read: _Read, event: Event, depth: int) -> _Read:
        self._values += read.values
        if self._values > MAX_VALUES:
            _refuse(f"there are more than {MAX_VALUES:,} values, each alias with all that it stands for", event)
        if depth + read.height > MAX_DEPTH:
            _refuse(f"more than {MAX_DEPTH} lists and mappings are in one another", event)
        return read

    def _items(self, pointer: str, depth: int) -> Iterator[_Read]:
        place = 0
        while not isinstance(event := next(self._events), SequenceEndEvent):
            yield self._read(event, f"{pointer}/{place}", depth)
            place += 1

    def _members(self, pointer: str, depth: int) -> Iterator[tuple[str, _Read]]:
        names = set[str]()
        while not isinstance(key := next(self._events), MappingEndEvent):
            if not isinstance(key, ScalarEvent) or key.tag is not None:
                _refuse("the name of a member must be text", key)
            if key.value == "<<" and key.style is None:
                _refuse("members cannot be merged with <<; write them out", key)
            if key.value in names:
                _refuse(f"member {key.value[:80]!r} is there twice", key)
            names.add(key.value)
            place = f"{pointer}/{key.value.replace('~', '~0').replace('/', '~1')}"
            read = self._read(next(self._events), place, depth)
            self.lines[place] = _mark(key).line + 1  # a member stands where its name does
            yield key.value, read


def _collected(value: Any, parts: Collection[_Read]) -> _Read:
    values, height = sum(part.values for part in parts), max((part.height for part in parts), default=0)
    return _Read(value, 1 + values, 1 + height)


def _scalar(event: ScalarEvent) -> Any:
    text: str = event.value
    if event.tag is not None:
        _refuse_tag(event.tag, event)
    if event.style is not None:  # quoted, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return json.loads(text, parse_float=_float)
    except _Refused as cause:
        _refuse(str(cause), event)


def _refuse(problem: str, event: Event) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=_mark(event))


def _refuse_tag(tag: str, event: Event) -> NoReturn:
    _refuse(f"the tag {tag!r} is not for here; put text into quotes", event)


def _mark(event: Event) -> yaml.Mark:
    mark = event.start_mark
    assert isinstance(mark, yaml.Mark)
    return mark


def _lines(text: str) -> dict[str, int]:
    """The lines of JSON's values, as far as a reader of YAML can tell: it knows no tabs, and they are blanks here."""
    lines: dict[str, int] = {}
    with suppress(yaml.YAMLError, ValueError, OverflowError):
        reader = _Reader(text.replace("\t", " "))
        lines = reader.lines
        reader.document()
    return lines


class _Refused(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _Refused(f"member {counts.most_common(1)[0][0][:80]!r} is there twice")
    return found


def _refuse_word(word: str) -> NoReturn:
    raise _Refused(f"{word} is no number")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _Refused(f"{text[:80]} is too large a number")
    return number
