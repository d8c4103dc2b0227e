"""Merge rows by key into a plain directory of Parquet files, with the same result on every engine."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as fs

from penstock.core import merge as core_merge
from penstock.core.merge import BATCH_ROWS, MergeResult, New
from penstock.core.progress import Progress, ProgressCallback, ProgressTracker
from penstock.errors import Invalid, Unsupported
from penstock.service import engine_choice
from penstock.service.datasets.row_source import open_source
from penstock.service.directory_target import DirectoryTarget, load_directory, target_schema
from penstock.service.engine_choice import EngineOptions
from penstock.service.merge_session import MergeExecution, plain_integer
from penstock.service.workspace import WriteLimits
from penstock.storage import directory_swap, parquet_directory
from penstock.storage.file_formats import check_file_name


def merge_parquet_dataset_pyarrow(
    source: Any,
    target_path: str | Path,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    dedup_order_by: str | Sequence[str] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    batch_rows: int = BATCH_ROWS,
    progress_callback: Callable[[str, int, int], None] | None = None,
    *,
    add_columns: bool = False,
) -> dict[str, int]:
    """Merge rows by key into a directory of Parquet files with PyArrow, in bounded memory.

    Only files that contain a key of the source are rewritten. The new files replace the old ones in one step: after an
    error or a crash the directory has either its old or its new content.

    Example:
        >>> merge_parquet_dataset_pyarrow(pa.table({"id": [1], "v": ["x"]}), "data/items", "id")
        {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}

    Args:
        source: an Arrow table, batch, reader or dataset, a list of Arrow tables or of dicts, a pandas, Polars or Spark
            DataFrame, or the path of a Parquet, CSV or JSON file or of a folder of Parquet files
        target_path: the local directory; it is created if it does not exist and rows are inserted
        key_columns: name or names of the columns that identify a row
        strategy: "upsert" updates matched rows and inserts new ones; "insert" only inserts; "update" only updates;
            "full_merge" also deletes target rows without a match; "deduplicate" is an upsert of the best source row of
            each key
        dedup_order_by: for "deduplicate", the columns that rank source rows with the same key; the highest wins, of
            equal rows the last
        compression: codec of the written files: zstd, snappy, gzip, lz4, brotli or none (or "uncompressed"); None keeps
            the codec of the existing files, and is zstd for a new directory
        filesystem: a local file system of pyarrow or fsspec, also one restricted to a folder (SubTreeFileSystem,
            DirFileSystem); None is the local file system
        batch_rows: number of target rows that are processed at a time; less needs less memory
        progress_callback: called with the phase ("read", "match", "write", "commit"), the amount done and the total; an
            exception stops the merge, and the directory stays as it was
        add_columns: add columns of the source that the target lacks; otherwise they are an error

    Returns:
        The number of target rows inserted, updated and deleted, and the total afterwards.

    Raises:
        Invalid: an argument, the source or a file of the directory is not valid, such as NULL or duplicate keys
        Unsupported: the engine does not support a column type, or the file system is not local
        Conflict: another process is merging into the directory or has changed a file of it
        Unavailable: a file could not be read or written
    """
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        _receive_events(progress_callback), add_columns=add_columns, engine="pyarrow",
    ).stats  # fmt: skip


def merge_parquet_dataset_duckdb(
    source: Any,
    target_path: str | Path,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    dedup_order_by: str | Sequence[str] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    batch_rows: int = BATCH_ROWS,
    progress_callback: Callable[[str, int, int], None] | None = None,
    *,
    add_columns: bool = False,
) -> dict[str, int]:
    """Merge rows by key into a directory of Parquet files with DuckDB, which uses up to half of the memory.

    Only files that contain a key of the source are rewritten. The new files replace the old ones in one step: after an
    error or a crash the directory has either its old or its new content.

    Example:
        >>> merge_parquet_dataset_duckdb(pa.table({"id": [1], "v": ["x"]}), "data/items", "id")
        {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}

    Args:
        source: an Arrow table, batch, reader or dataset, a list of Arrow tables or of dicts, a pandas, Polars or Spark
            DataFrame, or the path of a Parquet, CSV or JSON file or of a folder of Parquet files
        target_path: the local directory; it is created if it does not exist and rows are inserted
        key_columns: name or names of the columns that identify a row
        strategy: "upsert" updates matched rows and inserts new ones; "insert" only inserts; "update" only updates;
            "full_merge" also deletes target rows without a match; "deduplicate" is an upsert of the best source row of
            each key
        dedup_order_by: for "deduplicate", the columns that rank source rows with the same key; the highest wins, of
            equal rows the last
        compression: codec of the written files: zstd, snappy, gzip, lz4, brotli or none (or "uncompressed"); None keeps
            the codec of the existing files, and is zstd for a new directory
        filesystem: a local file system of pyarrow or fsspec, also one restricted to a folder (SubTreeFileSystem,
            DirFileSystem); None is the local file system
        batch_rows: number of target rows that are processed at a time; less needs less memory
        progress_callback: called with the phase ("read", "match", "write", "commit"), the amount done and the total; an
            exception stops the merge, and the directory stays as it was
        add_columns: add columns of the source that the target lacks; otherwise they are an error

    Returns:
        The number of target rows inserted, updated and deleted, and the total afterwards.

    Raises:
        Invalid: an argument, the source or a file of the directory is not valid, such as NULL or duplicate keys
        Unsupported: the engine does not support a column type, or the file system is not local
        Conflict: another process is merging into the directory or has changed a file of it
        Unavailable: a file could not be read or written, or DuckDB exceeded its memory limit
    """
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        _receive_events(progress_callback), add_columns=add_columns, engine="duckdb",
    ).stats  # fmt: skip


def merge_parquet_dataset_spark(
    source: Any,
    target_path: str | Path,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    dedup_order_by: str | Sequence[str] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    batch_rows: int = BATCH_ROWS,
    progress_callback: Callable[[str, int, int], None] | None = None,
    *,
    add_columns: bool = False,
    spark: Any = None,
) -> dict[str, int]:
    """Merge rows by key into a directory of Parquet files with Spark.

    Only files that contain a key of the source are rewritten; their new versions get new names. The new files replace
    the old ones in one step: after an error or a crash the directory has either its old or its new content.

    Example:
        >>> merge_parquet_dataset_spark(pa.table({"id": [1], "v": ["x"]}), "data/items", "id")
        {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}

    Args:
        source: a Spark, pandas or Polars DataFrame, an Arrow table, batch, reader or dataset, a list of Arrow tables or
            of dicts, or the path of a Parquet, CSV or JSON file or of a folder of Parquet files
        target_path: the local directory, which all workers of the cluster can access; it is created if it does not
            exist and rows are inserted
        key_columns: name or names of the columns that identify a row
        strategy: "upsert" updates matched rows and inserts new ones; "insert" only inserts; "update" only updates;
            "full_merge" also deletes target rows without a match; "deduplicate" is an upsert of the best source row of
            each key
        dedup_order_by: for "deduplicate", the columns that rank source rows with the same key; the highest wins, of
            equal rows the last
        compression: codec of the written files: zstd, snappy, gzip, lz4 or none (or "uncompressed"); None keeps the
            codec of the existing files, and is zstd for a new directory
        filesystem: a local file system of pyarrow or fsspec, also one restricted to a folder (SubTreeFileSystem,
            DirFileSystem); None is the local file system
        batch_rows: number of target rows that are processed at a time where Penstock reads files itself
        progress_callback: called with the phase ("read", "match", "write", "commit"), the amount done and the total; an
            exception stops the merge, and the directory stays as it was
        add_columns: add columns of the source that the target lacks; otherwise they are an error
        spark: the Spark session; None uses that of the source or the active one, or starts a local one

    Returns:
        The number of target rows inserted, updated and deleted, and the total afterwards.

    Raises:
        Invalid: an argument, the source or a file of the directory is not valid, such as NULL or duplicate keys
        Unsupported: Spark does not support a column type or the codec, or the file system is not local
        Conflict: another process is merging into the directory or has changed a file of it
        Unavailable: a file could not be read or written, or Spark or Java failed or could not be started
    """
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        _receive_events(progress_callback), add_columns=add_columns, engine="spark", spark=spark,
    ).stats  # fmt: skip


def merge(
    source: Any,
    target_path: str | Path,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    dedup_order_by: str | Sequence[str] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    batch_rows: int = BATCH_ROWS,
    progress: ProgressCallback | None = None,
    *,
    add_columns: bool = False,
    engine: str = "auto",
    spark: Any = None,
    dry_run: bool = False,
    limits: WriteLimits | None = None,
) -> MergeResult:
    """Merge into a directory, or with `dry_run` return the result that the merge would have.

    Args:
        progress: receives the phases "read", "match", "write" and "commit"; may raise to stop the merge
        engine: "pyarrow", "duckdb", "spark" or "auto"
        limits: limits for the batches of the source

    See `merge_parquet_dataset_pyarrow` for the other arguments and for errors.
    """
    engine_choice.check_name(engine)
    keys = core_merge.normalize_keys(key_columns)
    rules = core_merge.rules_for(strategy)
    target = _local_path(target_path, filesystem)
    parquet_directory.check_plain_directory(target)
    codec = _parse_codec(compression)
    tracker = ProgressTracker(progress)
    does_nothing = rules.new is New.SKIP and not target.exists()  # creates nothing, not even the directory
    hold = directory_swap.scratch_swap if dry_run or does_nothing else directory_swap.locked_swap
    with hold(target) as swap:
        directory = load_directory(target, keys)
        rows = open_source(source, (lambda: directory.schema) if directory.schema is not None else None)
        types = parquet_directory.partition_types(directory, rows.schema)
        schema = target_schema(rows.schema, directory, types, keys)
        plan = core_merge.plan_merge(
            rows.schema,
            schema,
            keys,
            strategy,
            dedup_order_by=dedup_order_by,
            add_columns=add_columns,
            partitions=directory.partitions,
            batch_rows=plain_integer(batch_rows),
        )
        files = DirectoryTarget(directory, types, plan, rows.schema, schema, codec, swap, tracker)
        options = EngineOptions(swap.scratch, spark=spark, on_job=tracker.on_job)
        with MergeExecution(rows, engine, lambda: options, limits or WriteLimits(), swap.path, tracker) as execution:
            execution.open(plan, files.stored_schema)
            rewrite_plan = execution.match(files)
            if not (dry_run or rewrite_plan.empty):
                files.commit(rewrite_plan, execution.write(rewrite_plan, files).files)
                tracker.update(phase="commit", done=1, total=1, unit="parts")
        affected = {file.path for file in (*rewrite_plan.rewrite, *rewrite_plan.drop)}
        return MergeResult(
            rewrite_plan.stats(strategy),
            tuple(os.path.relpath(file.path, target) for file in rewrite_plan.rewrite),
            tuple(os.path.relpath(file.path, target) for file in rewrite_plan.drop),
            unchanged_files=files.file_count - len(affected),
            engine=execution.engine_name,
        )


def recover(target_path: str | Path) -> str | None:
    """Finish or undo an interrupted merge.

    Returns:
        "finished", "undone", or None if no merge was interrupted
    """
    return directory_swap.recover(_local_path(target_path, None))


def foreign_files(target_path: str | Path) -> list[str]:
    """List the Parquet files of a directory that Penstock did not create, by the names that it gives to new files."""
    names = parquet_directory.list_files(_local_path(target_path, None))
    return [name for name in names if not _OWN_FILE_NAME.fullmatch(name.rpartition("/")[2])]


def _receive_events(callback: Callable[[str, int, int], None] | None) -> ProgressCallback | None:
    """Adapt the callback of the public merge functions, which has three positional arguments, to progress events."""
    if callback is None:
        return None

    def on_progress(progress: Progress) -> None:
        assert progress.phase is not None, "a merge reports its phases"
        assert progress.total is not None, "every phase of a merge has a total"
        callback(progress.phase, progress.done, progress.total)

    return on_progress


_OWN_FILE_NAME = re.compile(r"part-[0-9a-f]{32}\.parquet")
_CODECS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


def _parse_codec(compression: str | None) -> str | None:
    if compression is None:
        return None
    codec = compression.lower() if isinstance(compression, str) else compression
    codec = "none" if codec == "uncompressed" else codec
    if codec not in _CODECS:
        raise Invalid("unknown_codec", {"compression": compression, "codecs": ", ".join(_CODECS)})
    return codec


def _local_path(target: str | Path, filesystem: Any) -> Path:
    """Resolve the directory to a local path. Other file systems are refused, because they lack atomic renames."""
    path = os.fsdecode(target)
    if not path.strip() or not _without_scheme(path).strip():
        raise Invalid("empty_path", {"path": path})
    path = _below_root(_without_scheme(path), filesystem)
    if "://" in path:
        raise Unsupported("not_a_local_file_system.url", {"path": path})
    named = Path(path).expanduser()
    resolved = Path(os.path.realpath(named))  # a link and its target share one lock
    check_file_name(resolved)
    if resolved == Path(resolved.anchor):
        raise Invalid("root_directory", {"resolved": resolved})
    if named.is_symlink() and not named.exists():
        raise Invalid("dangling_target", {"path": named, "resolved": resolved})
    return resolved


def _without_scheme(path: str) -> str:
    """Return the path of a `file:` URL (RFC 8089); other paths are returned unchanged.

    Raises:
        Invalid: the URL is relative or names another host
    """
    if not path.startswith("file:"):
        return path
    url = path.removeprefix("file:")
    if url.startswith("//"):
        host, slash, rest = url.removeprefix("//").partition("/")
        if host not in ("", "localhost"):
            raise Invalid("bad_file_url", {"url": path})
        url = f"{slash}{rest}"
    if url.strip() and not url.startswith("/"):
        raise Invalid("bad_file_url", {"url": path})
    return unquote(url)


def _below_root(path: str, filesystem: Any) -> str:
    """Return the path below the root folder of the file system, if it has one.

    Raises:
        Unsupported: the file system is not local
    """
    if filesystem is None or isinstance(filesystem, fs.LocalFileSystem):
        return path
    if isinstance(filesystem, fs.SubTreeFileSystem) and isinstance(filesystem.base_fs, fs.LocalFileSystem):
        return os.path.join(filesystem.base_path, path.lstrip("/"))
    protocols = _fsspec_protocols(filesystem)
    if "dir" in protocols and hasattr(filesystem, "fs") and isinstance(getattr(filesystem, "path", None), str):
        return _below_root(os.path.join(filesystem.path, path.lstrip("/")), filesystem.fs)  # fsspec's DirFileSystem
    if "file" in protocols:
        return path
    raise Unsupported("not_a_local_file_system.type", {"filesystem": type(filesystem).__name__})


def _fsspec_protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = getattr(filesystem, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
