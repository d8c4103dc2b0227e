"""Text to tokens, and what a literal stands for."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import isinf
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from penstock.core.names import unstorable
from penstock.core.odata.nodes import Kind, Literal

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


class Token(NamedTuple):
    kind: TokenKind
    text: str
    at: int

    @property
    def key(self) -> str:
        """The token as the grammar spells it; a quoted word is never an operator."""
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


def tokens(text: str) -> list[Token]:
    """The last one is an END."""
    return [_token(found) for found in _TOKEN.finditer(text)]


def literal(token: Token) -> Literal | None:
    """What a token stands for, None where it is no literal. Raises `ValueError` with a sentence."""
    match token.kind:
        case TokenKind.TEXT:
            return Literal(unquoted(token.text), Kind.TEXT)
        case TokenKind.NUMBER:
            return _number(token.text)
        case TokenKind.GUID | TokenKind.INSTANT | TokenKind.DATE:
            kind = _WRITTEN_BARE[token.kind]
            return Literal(READ[kind](token.text), kind)
    return None


def unquoted(text: str) -> str:
    inside = text[1:-1].replace("''", "'")
    if unstorable(inside):
        raise ValueError("text cannot hold the character NUL or half of a surrogate pair")
    return inside


def _guid(text: str) -> UUID:
    if not re.fullmatch(_GUID, text):
        raise ValueError("a GUID looks like 01234567-89ab-cdef-0123-456789abcdef")
    return UUID(text)


def _date(text: str) -> date:
    if not re.fullmatch(_DATE, text):
        raise ValueError("a date looks like 2026-01-31")
    return _real(date.fromisoformat, text)


def _instant(text: str) -> datetime:
    """The moment in UTC. Without a zone it is UTC already, a date alone is its midnight."""
    if re.fullmatch(_DATE, text):
        text += "T00:00"
    if not re.fullmatch(_INSTANT, text):
        raise ValueError("an instant looks like 2026-01-31T10:00:00Z")
    moment = _real(datetime.fromisoformat, re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text))
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text} lies outside of the years 1 to 9999 of UTC") from None


def _real(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError:  # it has the shape, as 2026-02-30 has
        raise ValueError(f"{text} is not in the calendar") from None


def _number(text: str) -> Literal:
    if text.strip("+-") in ("INF", "NaN"):
        raise ValueError("INF and NaN cannot be compared")
    if text.lstrip("+-").isdigit():
        if len(text.lstrip("+-0")) > 19 or not -(2**63) <= (whole := int(text)) < 2**63:
            raise ValueError("an integer has at most 64 bits")
        return Literal(whole, Kind.INTEGER)
    near, digits = float(text), text.lower().partition("e")[0]
    if isinf(near) or (near == 0 and digits.strip("+-0.")):
        raise ValueError("a number lies between 1e-307 and 1e308, or is 0")
    return Literal(Decimal(text), Kind.NUMBER)


def _token(found: re.Match[str]) -> Token:
    kind = TokenKind(found.lastgroup)  # there is one: END and BAD match whatever the others leave
    return Token(kind, found[kind.value], found.start(kind.value))


READ: dict[Kind, Callable[[str], Any]] = {Kind.GUID: _guid, Kind.INSTANT: _instant, Kind.DATE: _date}
_WRITTEN_BARE = {TokenKind.GUID: Kind.GUID, TokenKind.INSTANT: Kind.INSTANT, TokenKind.DATE: Kind.DATE}
