"""Map Arrow types to Spark types, and find types that Spark would change."""

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type

from penstock.core.formatting import format_value
from penstock.errors import Invalid

_SPARK_TYPES: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], st.DataType]]] = [
    (pt.is_boolean, lambda _: st.BooleanType()),
    (pt.is_int8, lambda _: st.ByteType()),
    (pt.is_int16, lambda _: st.ShortType()),
    (pt.is_int32, lambda _: st.IntegerType()),
    (pt.is_int64, lambda _: st.LongType()),
    (pt.is_float32, lambda _: st.FloatType()),
    (pt.is_float64, lambda _: st.DoubleType()),
    (lambda t: pt.is_decimal128(t) and 0 <= t.scale <= t.precision, lambda t: st.DecimalType(t.precision, t.scale)),
    # Forms of one Parquet type, which readers of a directory treat as the same.
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


def spark_type(data_type: pa.DataType) -> st.DataType:
    """Return the Spark type that is stored in the same way."""
    if not isinstance(data_type, pa.BaseExtensionType):
        for matches, make_type in _SPARK_TYPES:
            if matches(data_type):
                return make_type(data_type)
    raise _UnsupportedType(str(data_type))


def describe_unsupported_column(schema: pa.Schema) -> str | None:
    """Describe the first column that Spark would change when it reads and writes it, or return None."""
    for field in schema:
        try:
            spark_type(field.type)
        except _UnsupportedType as error:
            inner = "" if str(error) == str(field.type) else f" (in it {format_value(error)})"
            return f"Column {field.name!r} has type {format_value(field.type)}{inner}, which Spark would change"
        if field.name == "_metadata":
            return "Column '_metadata' has a name that Spark reserves for file metadata"
    return None


def is_dataframe(source: Any) -> bool:
    """Return True if the source is a Spark DataFrame."""
    return "pyspark" in sys.modules and isinstance(source, DataFrame)


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a DataFrame."""
    if frame.isStreaming:
        raise Invalid("unsupported_source.streaming_frame")
    return pa.schema([pa.field(f.name, _arrow_type(f), f.nullable) for f in frame.schema])


def _arrow_type(field: st.StructField) -> pa.DataType:
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except (PySparkException, TypeError, ValueError):
        raise Invalid(
            "unsupported_type.frame",
            {"name": field.name, "data_type": field.dataType.simpleString()},
            column=field.name,
        ) from None


class _UnsupportedType(Exception):
    """A type that Spark would change."""
