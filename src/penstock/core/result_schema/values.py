"""One value, as JSON brings it: is it of a field's type, and what is it called?"""

import re
from decimal import Decimal
from math import isfinite
from typing import Any

from penstock.core.result_schema.field import FieldType

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # there is no year 0
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
# Patterns of days that there are, so that one and the same text judges a value here and a column elsewhere.
DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# RFC 3339, and without an offset too. No leap seconds: no timestamp of a dataset can hold one.
MOMENT = (
    rf"{DATE}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)
_DATE, _MOMENT = re.compile(DATE), re.compile(MOMENT)


def good(kind: FieldType, value: Any) -> bool:
    """Is this value one of the type?"""
    match kind:
        case FieldType.STRING:
            return isinstance(value, str)
        case FieldType.BOOLEAN:
            return isinstance(value, bool)
        case FieldType.NUMBER:
            return json_type(value) == "number"
        case FieldType.DATE:
            return isinstance(value, str) and _DATE.fullmatch(value) is not None
        case FieldType.DATETIME:
            return isinstance(value, str) and _MOMENT.fullmatch(value) is not None


def json_type(value: Any) -> str:
    """What JSON calls such a value; NaN and the infinities have no place in JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case float() if not isfinite(value):
            return "non-finite number"
        case Decimal() if not value.is_finite():
            return "non-finite number"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def shown(text: str) -> str:
    """Text from outside, safe to print: escaped and cut."""
    return ascii(text[:128])[1:-1]
