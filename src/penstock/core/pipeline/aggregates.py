"""Aggregates: functions over a source column, computed per group.

    COUNT               a long; `COUNT(*)` counts rows, `COUNT(c)` rows in which c is not NULL
    SUM                 a long for integers, a double for floats, the working column's decimal for decimals
    AVG                 a double for integers and floats, for decimals the working column's decimal, rounded half-up
    MIN_AGG, MAX_AGG    the type of the column; for decimals the working column's decimal

NULL is ignored, and a group with only NULL has the result NULL, except for COUNT. Half-up rounds away from zero, once,
from the exact quotient. A result that does not fit its type fails the operation. Only AVG loses decimal places.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.types as pt


class Function(StrEnum):
    SUM = "SUM"
    COUNT = "COUNT"
    AVG = "AVG"
    MIN = "MIN_AGG"
    MAX = "MAX_AGG"


# The column, bare or in backquotes: for names with parentheses, backquotes (doubled), commas, stars or outer blanks, and
# for names that begin with the word DISTINCT.
_CALL = re.compile(r"(?P<function>\w+)\([ \t]*(?:(?P<bare>[^()`\r\n]*[^()`\s])|`(?P<quoted>(?:[^`]|``)+)`)[ \t]*\)")
_NOT_A_COLUMN = re.compile(r"[,*]|^(?:DISTINCT|ALL)\s", re.IGNORECASE)  # an argument list, a star, a quantifier
_FUNCTIONS = {str(function): function for function in Function}


@dataclass(frozen=True, slots=True)
class Aggregate:
    column: str  # working column for the result
    expression: str
    function: Function | None  # None: not a supported expression, which planning reports
    input: str | None  # a source column; None: the rows themselves


def parse_aggregate(column: str, expression: str) -> Aggregate:
    """Parse an aggregate expression such as `SUM(amount)`."""
    match = _CALL.fullmatch(expression)
    function = _FUNCTIONS.get(match["function"]) if match else None
    if not match or function is None:
        return Aggregate(column, expression, None, None)
    if match["bare"] == "*":
        return Aggregate(column, expression, function if function is Function.COUNT else None, None)
    if match["bare"] and _NOT_A_COLUMN.search(match["bare"]):
        return Aggregate(column, expression, None, None)
    return Aggregate(column, expression, function, match["bare"] or match["quoted"].replace("``", "`"))


def result_type(function: Function, input_type: pa.DataType | None, working: pa.DataType) -> pa.DataType | None:
    """Return the result type of a function over a column (None: over rows) for a working column.

    Returns None if the function does not support the column's type.
    """
    match function:
        case Function.COUNT:
            return pa.int64()
        case Function.SUM | Function.AVG if pt.is_integer(input_type):
            return pa.int64() if function is Function.SUM else pa.float64()
        case Function.SUM | Function.AVG if pt.is_floating(input_type):
            return pa.float64()
        case Function.SUM | Function.AVG if not pt.is_decimal(input_type):
            return None
        case Function.AVG:
            return working if pt.is_decimal(working) else input_type
        case _ if input_type is None or pt.is_nested(input_type):
            return None
    if pt.is_decimal(input_type) and pt.is_decimal(working) and input_type.scale <= working.scale:
        return working
    return input_type
