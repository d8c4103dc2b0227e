"""Check inside Spark jobs that values fit the working dataset, and report failures by column name.

A failed check raises inside the job, where columns are numbered. Spark wraps the error, so its message carries a marker
that `translate_check_errors` searches for.
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


class ValueCheckFailed(Enum):
    DOES_NOT_FIT = "value_does_not_fit"
    NULL = "null_in_required_column"


_ERROR_PATTERN = re.compile(r"penstock refuses (\w+) in column (\d+)")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def raise_check_error(check: ValueCheckFailed, column_index: int, data_type: st.DataType) -> Column:
    """Return a column of the given type that raises when it is evaluated."""
    return F.raise_error(F.lit(f"penstock refuses {check.name} in column {column_index}")).cast(data_type)


def cast_checked(value: Column, input_type: pa.DataType, result_type: pa.DataType, column_index: int) -> Column:
    """Cast a value to the working column's type, with a check where it may have too many digits."""
    if input_type == result_type:
        return value
    data_type = spark_type(result_type)
    if not _may_not_fit(input_type, result_type):
        return value.cast(data_type)
    cast = value.try_cast(data_type)
    # try_cast of a list replaces only the items that do not fit, so compare the values.
    is_lost = ~cast.cast(spark_type(input_type)).eqNullSafe(value) if pt.is_nested(result_type) else cast.isNull()
    return F.when(
        value.isNotNull() & is_lost, raise_check_error(ValueCheckFailed.DOES_NOT_FIT, column_index, data_type)
    ).otherwise(cast)


def require_not_null(value: Column, data_type: pa.DataType, column_index: int) -> Column:
    return F.coalesce(value, raise_check_error(ValueCheckFailed.NULL, column_index, spark_type(data_type)))


@contextmanager
def translate_check_errors(columns: Sequence[str]) -> Iterator[None]:
    """Translate failed checks of a job into `Invalid`. `columns`: names of the working columns by index."""
    try:
        yield
    except PySparkException as cause:
        match = _ERROR_PATTERN.search(str(cause))
        if match is None:
            raise
        column = columns[int(match[2])]
        match ValueCheckFailed[match[1]]:
            case ValueCheckFailed.DOES_NOT_FIT:
                raise Invalid(
                    "value_does_not_fit.append",
                    column=column,
                ) from None
            case ValueCheckFailed.NULL:
                raise Invalid(
                    "null_in_required_column.append",
                    column=column,
                ) from None


def _may_not_fit(input_type: pa.DataType, result_type: pa.DataType) -> bool:
    if pt.is_nested(input_type):
        field_pairs = zip(_fields(input_type), _fields(result_type), strict=True)
        return any(_may_not_fit(input_field.type, result_field.type) for input_field, result_field in field_pairs)
    if not pt.is_decimal(result_type):
        return False
    digits = (
        input_type.precision - input_type.scale if pt.is_decimal(input_type) else _INTEGER_DIGITS[input_type.bit_width]
    )
    return bool(digits > result_type.precision - result_type.scale)


def _fields(data_type: pa.DataType) -> list[pa.Field]:
    return [data_type.field(i) for i in range(data_type.num_fields)]
