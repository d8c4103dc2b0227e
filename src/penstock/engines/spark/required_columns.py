"""Write NOT NULL columns with Spark, which derives NOT NULL from expressions that are never NULL."""

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from penstock.engines.spark.types import spark_type


def declare_required(column: Column, field: pa.Field) -> Column:
    """Return the column with the NOT NULL of the field, at every depth.

    The values must be free of NULL there: sources are checked, and files that declare NOT NULL store no NULL.
    """
    if not _has_required_fields(field):
        return column
    column = _declare_inner(column, field.type)
    return column if field.nullable else F.coalesce(column, F.expr(_any_value(spark_type(field.type))))


def _declare_inner(column: Column, data_type: pa.DataType) -> Column:
    if not any(_has_required_fields(inner) for inner in _inner_fields(data_type)):
        return column
    if pt.is_struct(data_type):
        fields = [declare_required(column.getField(inner.name), inner).alias(inner.name) for inner in data_type]
        return F.when(column.isNotNull(), F.struct(*fields))
    if pt.is_map(data_type):
        return F.transform_values(column, lambda _, value: declare_required(value, data_type.item_field))
    return F.transform(column, lambda value: declare_required(value, data_type.value_field))


def _has_required_fields(field: pa.Field) -> bool:
    return not field.nullable or any(map(_has_required_fields, _inner_fields(field.type)))


def _inner_fields(data_type: pa.DataType) -> list[pa.Field]:
    """Return the fields that may be NULL; the keys of a map never are."""
    if pt.is_struct(data_type):
        return list(data_type)
    if pt.is_map(data_type):
        return [data_type.item_field]
    return [data_type.value_field] if pt.is_list(data_type) or pt.is_large_list(data_type) else []


_LITERALS: dict[st.DataType, str] = {
    st.BooleanType(): "false", st.ByteType(): "0Y", st.ShortType(): "0S", st.IntegerType(): "0", st.LongType(): "0L",
    st.FloatType(): "0F", st.DoubleType(): "0D", st.StringType(): "''", st.BinaryType(): "X''",
    st.DateType(): "DATE'1970-01-01'", st.TimestampType(): "TIMESTAMP_LTZ'1970-01-01'",
    st.TimestampNTZType(): "TIMESTAMP_NTZ'1970-01-01'",
}  # fmt: skip


def _any_value(data_type: st.DataType) -> str:
    """Return a literal of exactly this type. It is never written: it only makes an expression NOT NULL."""
    match data_type:
        case st.DecimalType(precision=precision, scale=scale):
            fraction = f".{'9' * scale}" if scale else ""
            return f"{'9' * (precision - scale) or '0'}{fraction}BD"
        case st.StructType(fields=fields):
            values = [f"'{_escape_text(field.name)}', {_any_value(field.dataType)}" for field in fields]
            return f"named_struct({', '.join(values)})"
        case st.ArrayType(elementType=element_type):
            return f"array({_any_value(element_type)})"
        case st.MapType(keyType=key_type, valueType=value_type):
            return f"map({_any_value(key_type)}, {_any_value(value_type)})"
    return _LITERALS[data_type]


def _escape_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
