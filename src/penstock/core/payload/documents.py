"""Parse JSON and YAML strictly: ambiguous documents are errors.

JSON follows its RFC: UTF-8, no NaN, no duplicate members. YAML is another notation of JSON: a plain word is a JSON value
or else text, so that dates, `yes` and `no` remain text. Anchors are allowed within limits; tags are not.
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

MAX_YAML_BYTES = 4 << 20  # bytes
MAX_DEPTH = 100  # nested lists and mappings in YAML, including those of an alias
MAX_VALUES = 200_000  # in a YAML document; an alias counts with all its values

_TEXT_UNIT = 100  # characters of text that count as one value
_PLAIN_VALUES = {"null": None, "~": None, "": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Format(Enum):
    JSON = "JSON"
    YAML = "YAML"


@dataclass(frozen=True, slots=True)
class Document:
    value: Any
    lines: Mapping[str, int] = field(repr=False)  # JSON pointer → line number, from 1

    def line(self, pointer: str) -> int | None:
        """Return the line of a value, or of the closest value around it; None if unknown."""
        while pointer and pointer not in self.lines:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer)


def format_of(file_name: str) -> Format | None:
    """Return the format that the suffix of a file name names, or None."""
    suffixes = {".json": Format.JSON, ".yaml": Format.YAML, ".yml": Format.YAML}
    return next((format for suffix, format in suffixes.items() if file_name.lower().endswith(suffix)), None)


def parse_document(data: bytes, format: Format | None, subject: str) -> Document:
    """Parse a document with the lines of its values. Without a format, text that begins like JSON is JSON."""
    if format is None:
        format = Format.JSON if data.lstrip()[:1] in (b"{", b"[") else Format.YAML
    if format is Format.YAML:
        return parse_yaml(data, subject)
    return Document(parse_json(data, subject), _find_lines(data.decode("utf-8")))


def parse_json(data: bytes, subject: str) -> Any:
    """Parse JSON. `subject` names the text in error messages: "the body", or a file name."""
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_check_members,
            parse_constant=_fail_constant,
            parse_float=_parse_float,
        )
    except UnicodeDecodeError as cause:
        raise Invalid("bad_json.not_utf8", {"subject": subject}, position=cause.start) from None
    except json.JSONDecodeError as cause:
        location = f"line {cause.lineno}, column {cause.colno}"
        raise Invalid(
            "bad_json.syntax", {"subject": subject, "problem": cause.msg, "location": location}, position=cause.pos
        ) from None
    except RecursionError:
        raise Invalid("bad_json.too_deep", {"subject": subject}) from None
    except _JsonError as cause:
        raise Invalid("bad_json.not_json", {"subject": subject, "problem": cause}) from None
    except ValueError:
        raise Invalid("bad_json.number_too_long", {"subject": subject}) from None


def parse_yaml(data: bytes, subject: str) -> Document:
    if len(data) > MAX_YAML_BYTES:
        raise Invalid("bad_yaml.too_large", {"subject": subject, "max_bytes": MAX_YAML_BYTES})
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise Invalid("bad_yaml.not_utf8", {"subject": subject}, position=cause.start) from None
    try:
        reader = _YamlParser(text)
        return Document(reader.document(), reader.lines)
    except yaml.reader.ReaderError as cause:
        line = text.count("\n", 0, cause.position) + 1
        problem = f"character {text[cause.position]!a} is not allowed"
        raise Invalid("bad_yaml.character", {"subject": subject, "problem": problem}, line=line) from None
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        assert mark is not None
        location = {"line": mark.line + 1, "column": mark.column + 1}
        problem = f"{cause.problem} at line {location['line']}, column {location['column']}"
        raise Invalid("bad_yaml.syntax", {"subject": subject, "problem": problem}, **location) from None
    except (ValueError, OverflowError):
        raise Invalid("bad_yaml.bad_number", {"subject": subject}) from None


@dataclass(frozen=True, slots=True)
class _ParsedValue:
    value: Any
    values: int  # number of values including nested ones; long text counts as several
    height: int  # nesting depth of lists and mappings


class _YamlParser:
    """Build the value from YAML events. The value of an anchor is built once, and counted for each alias."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, _ParsedValue] = {}
        self._values = 0
        self.lines: dict[str, int] = {}

    def document(self) -> Any:
        next(self._events)
        if isinstance(next(self._events), StreamEndEvent):
            return None
        value = self._parse_value(next(self._events), "", 0).value
        next(self._events)
        if not isinstance(extra := next(self._events), StreamEndEvent):
            _fail("only one document is allowed", extra)
        return value

    def _parse_value(self, event: Event, pointer: str, depth: int) -> _ParsedValue:
        self.lines[pointer] = _start_mark(event).line + 1
        match event:
            case AliasEvent():
                return self._parse_alias(event, depth)
            case ScalarEvent():
                parsed = self._count(
                    _ParsedValue(_parse_scalar(event), 1 + len(event.value) // _TEXT_UNIT, 0), event, depth
                )
            case MappingStartEvent():
                parts = dict(self._parse_members(pointer, self._enter(event, depth)))
                parsed = _combine({name: part.value for name, part in parts.items()}, parts.values())
            case _:
                items = list(self._parse_items(pointer, self._enter(event, depth)))
                parsed = _combine([item.value for item in items], items)
        assert isinstance(event, NodeEvent)
        if event.anchor:
            self._anchors[event.anchor] = parsed
        return parsed

    def _parse_alias(self, event: AliasEvent, depth: int) -> _ParsedValue:
        if event.anchor not in self._anchors:
            _fail(f"the alias {event.anchor!r} has no complete anchor before it", event)
        return self._count(self._anchors[event.anchor], event, depth)

    def _enter(self, event: Event, depth: int) -> int:
        """Return the depth of the items of a list or mapping."""
        assert isinstance(event, CollectionStartEvent)
        if event.tag is not None:
            _fail_tag(event.tag, event)
        self._count(_ParsedValue(None, 1, 1), event, depth)
        return depth + 1

    def _count(self, parsed: _ParsedValue, event: Event, depth: int) -> _ParsedValue:
        self._values += parsed.values
        if self._values > MAX_VALUES:
            _fail(f"more than {MAX_VALUES:,} values, including those of aliases", event)
        if depth + parsed.height > MAX_DEPTH:
            _fail(f"more than {MAX_DEPTH} nested lists and mappings", event)
        return parsed

    def _parse_items(self, pointer: str, depth: int) -> Iterator[_ParsedValue]:
        position = 0
        while not isinstance(event := next(self._events), SequenceEndEvent):
            yield self._parse_value(event, f"{pointer}/{position}", depth)
            position += 1

    def _parse_members(self, pointer: str, depth: int) -> Iterator[tuple[str, _ParsedValue]]:
        names = set[str]()
        while not isinstance(key := next(self._events), MappingEndEvent):
            if not isinstance(key, ScalarEvent) or key.tag is not None:
                _fail("a member name must be text", key)
            if key.value == "<<" and key.style is None:
                _fail("merging members with << is not supported; write them out", key)
            if key.value in names:
                _fail(f"member {key.value[:80]!r} is duplicated", key)
            names.add(key.value)
            position = f"{pointer}/{key.value.replace('~', '~0').replace('/', '~1')}"
            parsed = self._parse_value(next(self._events), position, depth)
            self.lines[position] = _start_mark(key).line + 1  # the line of a member is that of its name
            yield key.value, parsed


def _combine(value: Any, parts: Collection[_ParsedValue]) -> _ParsedValue:
    values, height = sum(part.values for part in parts), max((part.height for part in parts), default=0)
    return _ParsedValue(value, 1 + values, 1 + height)


def _parse_scalar(event: ScalarEvent) -> Any:
    text: str = event.value
    if event.tag is not None:
        _fail_tag(event.tag, event)
    if event.style is not None:  # quoted or block text
        return text
    if text in _PLAIN_VALUES:
        return _PLAIN_VALUES[text]
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return json.loads(text, parse_float=_parse_float)
    except _JsonError as cause:
        _fail(str(cause), event)


def _fail(problem: str, event: Event) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=_start_mark(event))


def _fail_tag(tag: str, event: Event) -> NoReturn:
    _fail(f"the tag {tag!r} is not supported; put text into quotes", event)


def _start_mark(event: Event) -> yaml.Mark:
    mark = event.start_mark
    assert isinstance(mark, yaml.Mark)
    return mark


def _find_lines(text: str) -> dict[str, int]:
    """Return the lines of JSON values as far as a YAML parser can read them; it does not accept tabs."""
    lines: dict[str, int] = {}
    with suppress(yaml.YAMLError, ValueError, OverflowError):
        reader = _YamlParser(text.replace("\t", " "))
        lines = reader.lines
        reader.document()
    return lines


class _JsonError(Exception):
    pass


def _check_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _JsonError(f"member {counts.most_common(1)[0][0][:80]!r} is duplicated")
    return members


def _fail_constant(word: str) -> NoReturn:
    raise _JsonError(f"{word} is not a JSON number")


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _JsonError(f"the number {text[:80]} is too large")
    return number
