"""Values that the working dataset cannot hold: noticed inside a job, where columns have numbers, told with their names.

A column that refuses raises in the middle of Spark's pass. Spark wraps what is raised in errors of its own, so it is
a mark that we look for.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from penstock.engines.spark.types import spark_type
from penstock.errors import Invalid


class Refusal(Enum):
    UNFIT = "value_does_not_fit"
    NULL = "null_in_required_column"


_MARK = re.compile(r"penstock refuses (\w+) in column (\d+)")
_WHOLE_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def refuse(why: Refusal, place: int, kind: st.DataType) -> Column:
    """A value of this type that nobody gets to see. `place`: the number of the working column."""
    return F.raise_error(F.lit(f"penstock refuses {why.name} in column {place}")).cast(kind)


def fitted(value: Column, given: pa.DataType, wanted: pa.DataType, place: int) -> Column:
    """The value in a wider type; where it may have too many digits, it is looked at."""
    if given == wanted:
        return value
    kind = spark_type(wanted)
    if not _may_not_fit(given, wanted):
        return value.cast(kind)
    cast = value.try_cast(kind)
    # Of a list, a cast that is only tried drops what does not fit, and keeps the rest.
    lost = ~cast.cast(spark_type(given)).eqNullSafe(value) if pt.is_nested(wanted) else cast.isNull()
    return F.when(value.isNotNull() & lost, refuse(Refusal.UNFIT, place, kind)).otherwise(cast)


def required(value: Column, kind: pa.DataType, place: int) -> Column:
    return F.coalesce(value, refuse(Refusal.NULL, place, spark_type(kind)))


@contextmanager
def named(columns: Sequence[str]) -> Iterator[None]:
    """What a job refuses, in words. `columns`: of the working dataset, by number."""
    try:
        yield
    except PySparkException as cause:
        found = _MARK.search(str(cause))
        if found is None:
            raise
        column = columns[int(found[2])]
        match Refusal[found[1]]:
            case Refusal.UNFIT:
                raise Invalid(
                    "value_does_not_fit",
                    f"column {column!r}: a value has more digits than the working dataset's type; give the column a "
                    "wider type, or select other rows",
                    column=column,
                ) from None
            case Refusal.NULL:
                raise Invalid(
                    "null_in_required_column",
                    f"column {column!r} is required, and a row of the source has no value; select rows that have one",
                    column=column,
                ) from None


def _may_not_fit(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_nested(given):
        inner = zip(_fields(given), _fields(wanted), strict=True)
        return any(_may_not_fit(one.type, other.type) for one, other in inner)
    if not pt.is_decimal(wanted):
        return False
    digits = given.precision - given.scale if pt.is_decimal(given) else _WHOLE_DIGITS[given.bit_width]
    return bool(digits > wanted.precision - wanted.scale)


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]
