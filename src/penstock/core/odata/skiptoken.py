"""Encode the position after the last item of a page as the value of `$skiptoken`."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.names import has_invalid_characters
from penstock.errors import Invalid

MAX_TOKEN_LENGTH = 8_000  # characters
MAX_KEY_TEXT = 500  # characters of a text in a key
_MAX_NUMBER = 2**63 - 1
_MAX_KEY_VALUES = 32
_BOUND_OPTIONS = ("$filter", "$orderby", "$search")  # a position is meaningful only with the same values


@dataclass(frozen=True, slots=True)
class SkipToken:
    """A position in the result of a search: sort key of the last item, and the number of items that may follow."""

    key: tuple[Any, ...]  # JSON scalars
    page_size: int
    limit: int | None = None  # what `$top` leaves for the following pages; None: no limit


def encode(token: SkipToken, options: Mapping[str, str]) -> str:
    """Encode a position in the result of the options."""
    text = json.dumps([_digest(options), token.limit, token.page_size, token.key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(text: str, options: Mapping[str, str]) -> SkipToken:
    """Decode a position.

    Raises:
        Invalid: the text is not a token, or the token of other options
    """
    if len(text) > MAX_TOKEN_LENGTH:
        raise bad_token()
    try:
        value = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise bad_token() from None
    match value:
        case [str(digest), None | int() as limit, int(page_size), [*key]] if (
            not isinstance(limit, bool)
            and (limit is None or 0 < limit <= _MAX_NUMBER)
            and not isinstance(page_size, bool)
            and 0 < page_size <= _MAX_NUMBER
            and 0 < len(key) <= _MAX_KEY_VALUES
            and all(map(_is_key_value, key))
        ):
            if digest != _digest(options):
                raise Invalid("bad_skiptoken.other_options", option="$skiptoken")
            return SkipToken(tuple(key), page_size, limit)
    raise bad_token()


def integer_key(key: tuple[Any, ...], max_value: int = _MAX_NUMBER) -> int:
    """Return the key of a list whose positions are numbers.

    Raises:
        Invalid: the key belongs to another list
    """
    match key:
        case (int(number),) if not isinstance(number, bool) and 0 < number <= max_value:
            return number
    raise bad_token()


def bad_token() -> Invalid:
    """Return the error for a token that no next link contains."""
    return Invalid("bad_skiptoken", option="$skiptoken")


def _is_key_value(value: Any) -> bool:
    match value:
        case None | bool():
            return True
        case int():
            return -_MAX_NUMBER - 1 <= value <= _MAX_NUMBER
        case str():
            return len(value) <= MAX_KEY_TEXT and not has_invalid_characters(value)
    return False


def _digest(options: Mapping[str, str]) -> str:
    texts = [options.get(name) for name in _BOUND_OPTIONS]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
