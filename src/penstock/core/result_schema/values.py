"""Check single JSON values against field types."""

import re
from decimal import Decimal
from math import isfinite
from typing import Any

from penstock.core.result_schema.field import FieldType

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # year 0 does not exist
_LEAP_SUFFIX = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_LEAP_SUFFIX}|{_LEAP_SUFFIX}00)"
# Patterns of valid days, used for single values and for whole columns.
DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# RFC 3339, also without an offset. No leap seconds: a timestamp column cannot store them.
DATETIME = (
    rf"{DATE}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)
_DATE_PATTERN, _DATETIME_PATTERN = re.compile(DATE), re.compile(DATETIME)


def is_valid(field_type: FieldType, value: Any) -> bool:
    """Check whether a JSON value is valid for a field type."""
    match field_type:
        case FieldType.STRING:
            return isinstance(value, str)
        case FieldType.BOOLEAN:
            return isinstance(value, bool)
        case FieldType.NUMBER:
            return json_type(value) == "number"
        case FieldType.DATE:
            return isinstance(value, str) and _DATE_PATTERN.fullmatch(value) is not None
        case FieldType.DATETIME:
            return isinstance(value, str) and _DATETIME_PATTERN.fullmatch(value) is not None


def json_type(value: Any) -> str:
    """Return the JSON type name of a value; NaN and infinities do not exist in JSON."""
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
