"""Talk to DuckDB: values are bound, never written into a statement, and its errors become ours."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from penstock.core.merge import Layout
from penstock.engines.duckdb.types import metadata
from penstock.errors import Invalid, Unavailable

Connection: TypeAlias = duckdb.DuckDBPyConnection

FILES = "read_parquet($files, union_by_name = true, hive_partitioning = false, int96_as = 'timestamp_ns')"

_COPY = (
    "COPY ({rows}) TO $path (FORMAT parquet, COMPRESSION $codec, ROW_GROUP_SIZE $group_rows, KV_METADATA $footer, "
    "PRESERVE_ORDER true, USE_TMP_FILE false)"
)
_CODECS = {"none": "uncompressed", "lz4": "lz4_raw"}  # where pyarrow's word is not DuckDB's
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


def connect(memory_limit: str, temp_directory: str) -> Connection:
    """A database of its own, in memory. Without a folder for what does not fit there, a merge that needs one fails."""
    limits = {"memory_limit": memory_limit, "temp_directory": temp_directory}
    return _set_up(duckdb.connect(":memory:", config=_SETTINGS | limits))


def cursor(db: Connection) -> Connection:
    """Another connection to the same database, for another thread."""
    return _set_up(db.cursor())


def _set_up(db: Connection) -> Connection:
    run(db, "SET TimeZone = 'UTC'")
    run(db, "SET enable_progress_bar = false")
    return db


def run(db: Connection, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    """Everything that the statement gives: the next one is not begun before this one has ended."""
    with _told():
        return db.execute(sql, values).fetchall()


def one(db: Connection, sql: str, **values: Any) -> int:
    return int(run(db, sql, **values)[0][0])


def table(db: Connection, sql: str, **values: Any) -> pa.Table:
    with _told():
        return db.sql(sql, params=values).to_arrow_table()


def copy(db: Connection, rows: str, path: str, layout: Layout, **values: Any) -> int:
    """Write the rows of a query into a new file, in their order, and say how many they were."""
    return one(
        db,
        _COPY.format(rows=rows),
        path=path,
        codec=_CODECS.get(layout.codec.lower(), layout.codec.lower()),
        group_rows=layout.group_rows,
        footer=metadata(layout.schema),
        **values,
    )


def literal(paths: Iterable[str]) -> list[str]:
    """Paths that DuckDB takes as they are: it would look for files that match * ? and [."""
    return ["".join(f"[{c}]" if c in "*?[" else c for c in path) for path in paths]


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as cause:
        raise Unavailable("out_of_memory", f"DuckDB needs more memory than it may use: {_said(cause)}") from None
    except duckdb.IOException as cause:
        raise Unavailable("storage_failed", f"DuckDB cannot read or write a file: {_said(cause)}") from None
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as cause:
        raise Invalid("value_does_not_fit", f"DuckDB refuses a value: {_said(cause)}") from None
    except RuntimeError as cause:
        if str(cause) == "Query interrupted":  # what DuckDB makes of Ctrl-C
            raise KeyboardInterrupt from None
        raise


def _said(cause: Exception) -> str:
    return str(cause).partition("\n")[0][:300]
