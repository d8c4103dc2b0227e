"""Merge into a plain directory of Parquet files: one meaning, whichever engine does it."""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as fs

from penstock.core import merge as meaning
from penstock.core.merge import (BATCH_ROWS, Engine, Layout, Merged, New, Output, Plan, Progress, Rest, Session, TargetFile, Work)
from penstock.core.dataset.column_stats import plain
from penstock.errors import Conflict, Invalid, Unsupported
from penstock.service import engine_choice as engines
from penstock.service.engine_choice import Tools
from penstock.service.datasets.row_source import Rows, checked, opened
from penstock.service.workspace import Limits
from penstock.storage import parquet_directory as directory
from penstock.storage import directory_swap as swap
from penstock.storage.parquet_directory import Directory, PlainFile
from penstock.storage.spool import spool

_FILE_BYTES = 128 << 20


def merge_parquet_dataset_pyarrow(
    source: Any,
    target_path: str | Path,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    dedup_order_by: str | Sequence[str] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    batch_rows: int = BATCH_ROWS,
    progress_callback: Progress | None = None,
    *,
    add_columns: bool = False,
) -> dict[str, int]:
    """Merge rows into a directory of Parquet files with PyArrow, in bounded memory.

    >>> merge_parquet_dataset_pyarrow(pa.table({"id": [1], "v": ["x"]}), "data/items", "id")
    {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}

    `source`: an Arrow table, batch, reader or dataset, a pandas, Polars or Spark frame, a path of Parquet files.
    `strategy`: upsert, insert, update, full_merge or deduplicate. The answer counts rows of the target.
    """
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        progress_callback, add_columns=add_columns, engine="pyarrow",
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
    progress_callback: Progress | None = None,
    *,
    add_columns: bool = False,
) -> dict[str, int]:
    """The same as `merge_parquet_dataset_pyarrow`, done by DuckDB."""
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        progress_callback, add_columns=add_columns, engine="duckdb",
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
    progress_callback: Progress | None = None,
    *,
    add_columns: bool = False,
    spark: Any = None,
) -> dict[str, int]:
    """The same as `merge_parquet_dataset_pyarrow`, done by Spark: in the session `spark`, or in the active one."""
    return merge(
        source, target_path, key_columns, strategy, dedup_order_by, compression, filesystem, batch_rows,
        progress_callback, add_columns=add_columns, engine="spark", spark=spark,
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
    progress_callback: Progress | None = None,
    *,
    add_columns: bool = False,
    engine: str = "auto",
    spark: Any = None,
    dry_run: bool = False,
    limits: Limits | None = None,
) -> Merged:
    """Merge into a directory, or with `dry_run` only say what that would do."""
    engines.check_name(engine)
    keys = meaning.normalize_keys(key_columns)
    write = meaning.strategy_named(strategy)
    target = _local(target_path, filesystem)
    directory.check(target)
    codec = _checked_codec(compression)
    heard = progress_callback or (lambda _stage, _done, _total: None)
    skips = write.new is New.SKIP and not target.exists()  # nothing to update: nothing is made, not even a folder
    with swap.aside(target) if dry_run or skips else swap.held(target) as hold:
        there = directory.read(target, keys)
        rows = opened(source, (lambda: there.schema) if there.schema is not None else None)
        types = directory.part_types(there, rows.schema)
        stored = _stored(rows.schema, there, types, keys)
        plan = meaning.plan(
            rows.schema,
            stored,
            keys,
            strategy,
            dedup_order_by=dedup_order_by,
            add_columns=add_columns,
            partitions=there.partitions,
            batch_rows=batch_rows,
        )
        layouts = _Layouts(there, plan, rows.schema, stored, codec)
        hand = engines.chosen(engine, plan, layouts.schema, rows, Tools(hold.scratch, spark=spark))
        files = {each.path: each for each in map(layouts.target(types), there.files)}
        heard("read", 0, 1)
        session = hand.open(plan, _handed(rows, plan, hand, hold, limits or Limits()))
        try:
            heard("read", 1, 1)
            work = _matched(session, plan, there, files, whole=layouts.grow, heard=heard)
            if not (dry_run or work.empty):
                work = layouts.laid_out(work)
                sink = _Staged(hold, layouts.fresh(), heard, sum(f.rows for f in work.rewrite) + work.counts.inserted)
                _put(hold, there, types, work, session.write(work, sink))
                heard("commit", 1, 1)
        finally:
            session.close()
        touched = {file.path for file in (*work.rewrite, *work.drop)}
        return Merged(
            work.stats(strategy),
            tuple(os.path.relpath(file.path, target) for file in work.rewrite),
            tuple(os.path.relpath(file.path, target) for file in work.drop),
            len(files) - len(touched),
            hand.name,
        )


def foreign_files(target_path: str | Path) -> list[str]:
    """List the Parquet files of a directory that Penstock did not create, by the names that it gives to new files."""
    names = directory.file_names(_local(target_path, None))
    return [name for name in names if not _OWN_FILE_NAME.fullmatch(name.rpartition("/")[2])]


_OWN_FILE_NAME = re.compile(r"part-[0-9a-f]{32}\.parquet")


def recover(target_path: str | Path) -> str | None:
    """Finish or undo a merge that was interrupted: "finished", "undone", or None where there was none."""
    return swap.recover(_local(target_path, None))


def _handed(rows: Rows, plan: Plan, hand: Engine, hold: swap.Swap, limits: Limits) -> Any:
    """What the engine gets: a frame of its own, or a table with the plan's types."""
    if hand.name == "spark" and rows.frame is not None:
        return rows.frame
    schema = plan.source_schema
    return spool(schema, checked(rows.batches(), schema, limits), hold.path)


def _stored(source: pa.Schema, there: Directory, types: pa.Schema, keys: Sequence[str]) -> pa.Schema | None:
    """All columns of the target, those of the folders at the end; None if there are no rows yet."""
    if there.schema is None:
        meaning.validate_keys_and_schema(source, None, keys)
        return None
    files = [field for field in there.schema if field.name not in types.names]
    return pa.schema([*files, *types], metadata=there.schema.metadata)


class _Layouts:
    """How the files of a directory are laid out, and how their successors will be."""

    def __init__(
        self, there: Directory, plan: Plan, source: pa.Schema, target: pa.Schema | None, codec: str | None
    ) -> None:
        self._there, self._plan, self._codec = there, plan, codec
        self._plain = {there.located(file): file for file in there.files}
        whole = source if target is None else meaning.unify_schemas(source, target)
        kept = [whole.field(name) for name in plan.schema.names if name not in plan.partitions]
        self.schema = pa.schema(kept, metadata=None if target is None else target.metadata)
        self.grow = target is not None and pa.schema(kept) != pa.schema(
            [field for field in target if field.name not in plan.partitions]
        )

    def target(self, types: pa.Schema) -> Callable[[PlainFile], TargetFile]:
        def made(file: PlainFile) -> TargetFile:
            values = directory.part_values(file.parts, types)
            parts = {name: _bound(values[name]) for name in self._plan.keys if name in values}
            return TargetFile(
                self._there.located(file),
                file.rows,
                Layout(self.schema),
                values,
                {**file.bounds, **parts},
            )

        return made

    def fresh(self) -> Layout:
        """For new rows: as the first file is."""
        if not self._there.files:
            return Layout(self.schema, self._codec or "zstd")
        return self._of(self._there.files[0])

    def laid_out(self, work: Work) -> Work:
        """The work, with the layout of every file that is written anew. Others need not be asked."""
        return replace(
            work, rewrite=tuple(replace(file, layout=self._of(self._plain[file.path])) for file in work.rewrite)
        )

    def _of(self, file: PlainFile) -> Layout:
        layout = self._there.layout(file)
        options = {name: value for name, value in layout.options.items() if not (self._codec and name == "compression")}
        new = [name for name in self.schema.names if name not in file.schema.names]
        if isinstance(columns := options.get("use_dictionary"), list):
            options["use_dictionary"] = columns + new
        if isinstance(codecs := options.get("compression"), dict):
            options["compression"] = codecs | dict.fromkeys(new, layout.codec)
        schema = self.schema.with_metadata(file.schema.metadata)
        return replace(layout, schema=schema, codec=self._codec or layout.codec, options=options)


def _matched(
    session: Session, plan: Plan, there: Directory, files: Mapping[str, TargetFile], *, whole: bool, heard: Progress
) -> Work:
    known = {there.located(file) for file in there.files if file.nulls == 0}
    doubtful = [
        file
        for file in files.values()
        if file.path not in known or any(file.parts.get(k, 0) is None for k in plan.keys)
    ]
    if nulls := session.nulls(doubtful):
        raise meaning.null_keys("target", nulls)
    everything = list(files.values())
    near = everything if plan.write.rest is Rest.DELETE else [f for f in everything if session.reach.meets(f.bounds)]
    heard("match", 0, len(near))
    match = session.match(near)
    heard("match", len(near), len(near))
    # An empty source is no reason to write a directory anew.
    return meaning.decide(plan, everything, match, before=there.rows, whole=whole and match.rows > 0)


@dataclass
class _Staged:
    """Where an engine puts new files of a directory."""

    hold: swap.Swap
    layout: Layout
    heard: Progress
    total: int
    done: int = 0
    file_bytes: int = _FILE_BYTES
    turn: threading.Lock = field(default_factory=threading.Lock)

    def path(self) -> str:
        return self.hold.path()

    def folder(self) -> str:
        return self.hold.folder()

    def beat(self, rows: int) -> None:
        with self.turn:  # workers come at the same time
            self.done = min(self.done + rows, self.total)
            self.heard("write", self.done, self.total)


def _put(hold: swap.Swap, there: Directory, types: pa.Schema, work: Work, outputs: Sequence[Output]) -> None:
    """Put new files in place of old ones, unless somebody else has changed those."""
    work.assert_written(sum(output.rows for output in outputs))
    touched = {file.path for file in (*work.rewrite, *work.drop)}
    for file in there.files:
        if there.located(file) in touched and not there.unchanged(file):
            raise Conflict(
                "directory_changed",
                f"{there.located(file)} was changed by somebody else during the merge; nothing was written, try again",
            )
    folders = {tuple(directory.part_values(f.parts, types).values()): f.name.rpartition("/")[0] for f in there.files}
    moves, replaced = [], set()
    for output in outputs:
        if output.replaces:
            final = os.path.relpath(output.replaces.path, there.path)
            replaced.add(output.replaces.path)
        else:
            parts = {name: output.parts[name] for name in there.partitions}
            folder = folders.get(tuple(parts.values())) if parts else ""
            folder = directory.folder(parts, types) if folder is None else folder
            final = f"{folder}/part-{uuid4().hex}.parquet".lstrip("/")
        if there.files:
            os.chmod(
                output.path, os.stat(output.replaces.path if output.replaces else there.located(there.files[0])).st_mode
            )
        moves.append((output.path, final))
    removes = [os.path.relpath(path, there.path) for path in sorted(touched - replaced)]
    for name in [final for _, final in moves] + removes:  # Hadoop's checksum of a file that is no longer what it was
        folder, _, base = name.rpartition("/")
        removes += [f"{folder}/.{base}.crc".lstrip("/")] if (there.path / folder / f".{base}.crc").exists() else []
    hold.commit(moves, removes, remove_directory=work.after == 0 and work.deletes)


def _bound(value: Any) -> tuple[Any, Any]:
    try:
        return plain(value), plain(value)
    except TypeError:
        return None, None


def _checked_codec(compression: str | None) -> str | None:
    if compression is None or (isinstance(compression, str) and compression.lower() in _CODECS):
        return compression and compression.lower()
    raise Invalid("unknown_codec", f"{compression!r} is no compression; there are {', '.join(_CODECS)}")


_CODECS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


def _local(target: str | Path, filesystem: Any) -> Path:
    """Where the directory is on this machine. Renames must be atomic, so other file systems are refused."""
    path = os.fspath(target)
    if not path.removeprefix("file://").strip():
        raise Invalid(
            "empty_path", f"The target path is empty ({path!r}). Name the directory, or write '.' for the current one"
        )
    if isinstance(filesystem, fs.SubTreeFileSystem) and isinstance(filesystem.base_fs, fs.LocalFileSystem):
        path = os.path.join(filesystem.base_path, path.lstrip("/"))
    elif not (filesystem is None or isinstance(filesystem, fs.LocalFileSystem) or _is_local(filesystem)):
        raise Unsupported(
            "not_a_local_file_system",
            f"{type(filesystem).__name__}: a directory is changed by atomic renames, which need a local or mounted file "
            "system; keep shared data in a Penstock dataset",
        )
    path = path.removeprefix("file://")
    if "://" in path:
        raise Unsupported(
            "not_a_local_file_system", f"{path} is no local directory; mount it, or use a Penstock dataset"
        )
    resolved = Path(os.path.realpath(Path(path).expanduser()))  # a link and its target share one lock
    if resolved == Path(resolved.anchor):
        raise Invalid("root_directory", f"{resolved} is the root directory. Name a directory below it")
    return resolved


def _is_local(filesystem: Any) -> bool:
    """One of fsspec's, which names its protocols."""
    protocol = getattr(filesystem, "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))
