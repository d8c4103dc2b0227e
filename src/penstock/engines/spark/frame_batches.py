"""Read the rows of a Spark DataFrame as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.engines.spark.session import error_message
from penstock.engines.spark.types import arrow_schema
from penstock.errors import Invalid


def collect_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the types of `arrow_schema`: instants in UTC, whatever the time zone of the session is.

    The rows are collected in this process: to stream them, Spark's workers would have to run Python.

    Raises:
        Invalid: the DataFrame cannot be computed, or is larger than spark.driver.maxResultSize
    """
    schema = arrow_schema(frame)
    try:
        table = frame.toArrow()
    except (Py4JError, PySparkException) as cause:
        raise Invalid("source_failed", {"cause": error_message(cause)}) from cause
    yield from table.cast(schema).to_batches()
