"""DuckDB connections and statements: values are bound as parameters, errors are translated."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from penstock.errors import Invalid, Unavailable

Connection: TypeAlias = duckdb.DuckDBPyConnection

READ_FILES_SQL = "read_parquet($files, union_by_name = true, hive_partitioning = false, int96_as = 'timestamp_ns')"

_COPY = (
    "COPY ({rows}) TO $path (FORMAT parquet, COMPRESSION $codec, ROW_GROUP_SIZE $group_rows, KV_METADATA $footer, "
    "PRESERVE_ORDER true, USE_TMP_FILE false)"
)
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


def connect(memory_limit: str, temp_directory: str) -> Connection:
    """Open a new in-memory database. Without a temporary directory, a merge larger than memory fails."""
    limits = {"memory_limit": memory_limit, "temp_directory": temp_directory}
    return _configure(duckdb.connect(":memory:", config=_SETTINGS | limits))


def open_cursor(db: Connection) -> Connection:
    """Open another connection to the same database, for another thread."""
    return _configure(db.cursor())


def _configure(db: Connection) -> Connection:
    execute(db, "SET TimeZone = 'UTC'")
    execute(db, "SET enable_progress_bar = false")
    return db


def execute(db: Connection, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    """Execute a statement and return all rows, so that it has ended before the next one starts."""
    with translate_errors():
        return db.execute(sql, values).fetchall()


def fetch_integer(db: Connection, sql: str, **values: Any) -> int:
    return int(execute(db, sql, **values)[0][0])


def fetch_table(db: Connection, sql: str, **values: Any) -> pa.Table:
    with translate_errors():
        return db.sql(sql, params=values).to_arrow_table()


def open_result(db: Connection, sql: str, batch_rows: int, **values: Any) -> pa.RecordBatchReader:
    """Execute a query and return a reader of its rows in order. The connection is in use until the reader ends."""
    with translate_errors():
        return db.sql(sql, params=values).to_arrow_reader(batch_rows)


def copy_to_file(db: Connection, rows: str, **values: Any) -> int:
    """Write the result of a query to a Parquet file, in order, and return the number of rows.

    Args:
        values: `path`, `codec`, `group_rows` and `footer` of the file, and the parameters of the query
    """
    return fetch_integer(db, _COPY.format(rows=rows), **values)


def escape_globs(paths: Iterable[str]) -> list[str]:
    """Escape `*`, `?` and `[` in paths, which DuckDB would expand as glob patterns."""
    return ["".join(f"[{c}]" if c in "*?[" else c for c in path) for path in paths]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate errors of DuckDB, also while a result is read."""
    try:
        yield
    except duckdb.OutOfMemoryException as cause:
        raise Unavailable("out_of_memory", {"cause": _first_line(cause)}) from None
    except duckdb.IOException as cause:
        raise Unavailable("storage_failed.duckdb", {"cause": _first_line(cause)}) from None
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as cause:
        raise Invalid("value_does_not_fit.duckdb", {"cause": _first_line(cause)}) from None
    except duckdb.Error as cause:
        if type(cause) is duckdb.Error:  # an error of its Parquet reader, such as a corrupt page
            raise Unavailable("storage_failed.duckdb", {"cause": _first_line(cause)}) from None
        raise
    except RuntimeError as cause:
        if str(cause) == "Query interrupted":  # DuckDB reports Ctrl-C this way
            raise KeyboardInterrupt from None
        raise


def _first_line(cause: Exception) -> str:
    return str(cause).partition("\n")[0][:300]
