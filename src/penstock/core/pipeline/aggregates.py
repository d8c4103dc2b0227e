"""What an aggregate is: a function over a column of the source, computed once for each group.

    COUNT               a long; `COUNT(*)` counts rows, `COUNT(c)` those in which c has a value
    SUM                 of integers a long, of floats a double, of decimals the working column's decimal
    AVG                 of integers and floats a double, of decimals the working column's decimal, rounded half-up
    MIN_AGG, MAX_AGG    the type of the column; of decimals the working column's decimal

NULL is left out, and a group of nothing but NULL has NULL for everything but COUNT. Half-up is away from zero, once,
from the exact quotient. What does not fit its type fails the operation. Digits after the point are lost by AVG alone.
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


# The column as it stands, or in backquotes: for names with parentheses, backquotes (doubled) or blanks at an end.
_CALL = re.compile(r"(?P<function>\w+)\([ \t]*(?:(?P<bare>[^()`\r\n]*[^()`\s])|`(?P<quoted>(?:[^`]|``)+)`)[ \t]*\)")
_FUNCTIONS = {str(function): function for function in Function}


@dataclass(frozen=True, slots=True)
class Aggregate:
    column: str  # of the working dataset, where the result goes
    expression: str
    function: Function | None  # None: the expression is none of ours; it is refused when its turn comes
    input: str | None  # a column of the source; None: the rows themselves


def aggregate(column: str, expression: str) -> Aggregate:
    found = _CALL.fullmatch(expression)
    function = _FUNCTIONS.get(found["function"]) if found else None
    if not found or function is None:
        return Aggregate(column, expression, None, None)
    if found["bare"] == "*":
        return Aggregate(column, expression, function if function is Function.COUNT else None, None)
    return Aggregate(column, expression, function, found["bare"] or found["quoted"].replace("``", "`"))


def result_type(function: Function, given: pa.DataType | None, working: pa.DataType) -> pa.DataType | None:
    """What the function makes of such a column (None: of rows) for a working column; None: it cannot take the type."""
    match function:
        case Function.COUNT:
            return pa.int64()
        case Function.SUM | Function.AVG if pt.is_integer(given):
            return pa.int64() if function is Function.SUM else pa.float64()
        case Function.SUM | Function.AVG if pt.is_floating(given):
            return pa.float64()
        case Function.SUM | Function.AVG if not pt.is_decimal(given):
            return None
        case Function.AVG:
            return working if pt.is_decimal(working) else given
        case _ if given is None or pt.is_nested(given):
            return None
    if pt.is_decimal(given) and pt.is_decimal(working) and given.scale <= working.scale:
        return working
    return given
