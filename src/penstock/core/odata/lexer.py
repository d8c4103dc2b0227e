"""Split OData text into tokens, and parse literals."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import isinf
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from penstock.core.names import has_invalid_characters
from penstock.core.odata.nodes import FieldKind, ODataLiteral

T = TypeVar("T")


class TokenKind(Enum):
    GUID = "guid"
    INSTANT = "instant"
    DATE = "date"
    NUMBER = "number"
    WORD = "word"
    TEXT = "text"
    SIGN = "sign"
    END = "end"
    BAD = "bad"


class ODataToken(NamedTuple):
    kind: TokenKind
    text: str
    at: int

    @property
    def key(self) -> str:
        """Return the token as the grammar spells it; a quoted word is never an operator."""
        return self.text if self.kind in (TokenKind.WORD, TokenKind.SIGN) else ""


_GUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_INSTANT = _DATE + r"T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,12})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"

_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<guid>    {_GUID}(?!\w) )
    | (?P<instant> {_INSTANT}(?!\w) )
    | (?P<date>    {_DATE}(?!\w) )
    | (?P<number>  [+-]?(?:INF|NaN|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?!\w) )
    | (?P<word>    [^\W\d]\w* )
    | (?P<text>    '(?:[^']|'')*+' )
    | (?P<sign>    [(),:/] )
    | (?P<end>     \Z )
    | (?P<bad>     . )
    )""",
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[ODataToken]:
    """Split the text into tokens; the last one is END."""
    return [_to_token(match) for match in _TOKEN.finditer(text)]


def parse_literal(token: ODataToken) -> ODataLiteral | None:
    """Return the literal of a token; None if it is not a literal.

    Raises:
        ValueError: with a message for the caller
    """
    match token.kind:
        case TokenKind.TEXT:
            return ODataLiteral(unquote(token.text), FieldKind.TEXT)
        case TokenKind.NUMBER:
            return _parse_number(token.text)
        case TokenKind.GUID | TokenKind.INSTANT | TokenKind.DATE:
            kind = _UNQUOTED_KINDS[token.kind]
            return ODataLiteral(TEXT_PARSERS[kind](token.text), kind)
    return None


def unquote(text: str) -> str:
    inside = text[1:-1].replace("''", "'")
    if has_invalid_characters(inside):
        raise ValueError("text must not contain NUL or an unpaired surrogate")
    return inside


def _parse_guid(text: str) -> UUID:
    if not re.fullmatch(_GUID, text):
        raise ValueError("a GUID looks like 01234567-89ab-cdef-0123-456789abcdef")
    return UUID(text)


def _parse_date(text: str) -> date:
    if not re.fullmatch(_DATE, text):
        raise ValueError("a date looks like 2026-01-31")
    return _parse_calendar(date.fromisoformat, text)


def _parse_instant(text: str) -> datetime:
    """Parse an instant. Without a time zone it is UTC; a date alone is its midnight."""
    if re.fullmatch(_DATE, text):
        text += "T00:00"
    if not re.fullmatch(_INSTANT, text):
        raise ValueError("an instant looks like 2026-01-31T10:00:00Z")
    if re.search(r"\.[0-9]{6}0*[1-9]", text):
        raise ValueError("an instant has at most 6 decimal places of a second")
    instant = _parse_calendar(datetime.fromisoformat, re.sub(r"(\.[0-9]{6})0+", r"\1", text))
    try:
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text} is outside of the years 1 to 9999 in UTC") from None


def _parse_calendar(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError:  # the pattern matched, as for 2026-02-30
        raise ValueError(f"{text} is not a calendar date") from None


def _parse_number(text: str) -> ODataLiteral:
    if text.strip("+-") in ("INF", "NaN"):
        raise ValueError("INF and NaN cannot be compared")
    if text.lstrip("+-").isdigit():
        if len(text.lstrip("+-0")) > 19 or not -(2**63) <= (whole := int(text)) < 2**63:
            raise ValueError("an integer has at most 64 bits")
        return ODataLiteral(whole, FieldKind.INTEGER)
    approximate, digits = float(text), text.lower().partition("e")[0]
    if isinf(approximate) or (approximate == 0 and digits.strip("+-0.")):
        raise ValueError("a number must be 0 or between 1e-307 and 1e308")
    return ODataLiteral(Decimal(text), FieldKind.NUMBER)


def _to_token(match: re.Match[str]) -> ODataToken:
    kind = TokenKind(match.lastgroup)  # never None: END and BAD match what the others leave
    return ODataToken(kind, match[kind.value], match.start(kind.value))


TEXT_PARSERS: dict[FieldKind, Callable[[str], Any]] = {
    FieldKind.GUID: _parse_guid,
    FieldKind.INSTANT: _parse_instant,
    FieldKind.DATE: _parse_date,
}
_UNQUOTED_KINDS = {TokenKind.GUID: FieldKind.GUID, TokenKind.INSTANT: FieldKind.INSTANT, TokenKind.DATE: FieldKind.DATE}
