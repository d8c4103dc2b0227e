"""Arrow's types and Spark's: which are the same, and which Spark would change."""

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type

from penstock.errors import Invalid

_SAME: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], st.DataType]]] = [
    (pt.is_boolean, lambda _: st.BooleanType()),
    (pt.is_int8, lambda _: st.ByteType()),
    (pt.is_int16, lambda _: st.ShortType()),
    (pt.is_int32, lambda _: st.IntegerType()),
    (pt.is_int64, lambda _: st.LongType()),
    (pt.is_float32, lambda _: st.FloatType()),
    (pt.is_float64, lambda _: st.DoubleType()),
    (lambda t: pt.is_decimal128(t) and 0 <= t.scale <= t.precision, lambda t: st.DecimalType(t.precision, t.scale)),
    # One type in several forms: readers of a directory take them for each other.
    (lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t), lambda _: st.StringType()),
    (lambda t: pt.is_binary(t) or pt.is_large_binary(t) or pt.is_binary_view(t), lambda _: st.BinaryType()),
    (pt.is_date32, lambda _: st.DateType()),
    (lambda t: pt.is_timestamp(t) and t.unit == "us" and t.tz is None, lambda _: st.TimestampNTZType()),
    (lambda t: pt.is_timestamp(t) and t.unit == "us" and t.tz == "UTC", lambda _: st.TimestampType()),
    (lambda t: pt.is_list(t) or pt.is_large_list(t), lambda t: st.ArrayType(spark_type(t.value_type))),
    (pt.is_struct, lambda t: st.StructType([st.StructField(f.name, spark_type(f.type)) for f in t])),
    (pt.is_map, lambda t: st.MapType(spark_type(t.key_type), spark_type(t.item_type))),
    (lambda t: pt.is_dictionary(t) and pt.is_string(t.value_type), lambda _: st.StringType()),
]


def spark_type(kind: pa.DataType) -> st.DataType:
    """The type of Spark's that is stored in the same way."""
    if not isinstance(kind, pa.BaseExtensionType):
        for matches, same in _SAME:
            if matches(kind):
                return same(kind)
    raise _Changed(str(kind))


def refusal(schema: pa.Schema) -> str | None:
    """Which column Spark would change when it reads and writes it back, if there is one."""
    for field in schema:
        try:
            spark_type(field.type)
        except _Changed as changed:
            inside = "" if str(changed) == str(field.type) else f" (in it {changed})"
            return f"column {field.name!r} is {field.type}{inside}, which Spark does not keep as it is"
        if field.name == "_metadata":
            return "column '_metadata' has the name under which Spark tells where a row is from"
    return None


def is_frame(source: Any) -> bool:
    """Is it a frame of Spark's?"""
    return "pyspark" in sys.modules and isinstance(source, DataFrame)


def schema_of(frame: DataFrame) -> pa.Schema:
    """The columns of a frame, with Arrow's types."""
    if frame.isStreaming:
        raise Invalid("no_rows", "a streaming frame has no end; merge the batches that foreachBatch gives")
    return pa.schema([pa.field(f.name, _arrow_type(f), f.nullable) for f in frame.schema])


def _arrow_type(field: st.StructField) -> pa.DataType:
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except (PySparkException, TypeError, ValueError):
        raise Invalid(
            "type_not_kept",
            f"column {field.name!r}: type {field.dataType.simpleString()} cannot be kept; cast it to another",
            column=field.name,
        ) from None


class _Changed(Exception):
    """The type that Spark would change."""
