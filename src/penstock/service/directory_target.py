"""A plain directory of Parquet files as the target of a merge: its files, their layouts, and the commit."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.core import merge as core_merge
from penstock.core.dataset.column_stats import stat_value
from penstock.core.merge import FileLayout, MergePlan, OutputFile, RewritePlan, TargetFile
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.progress import ProgressTracker
from penstock.errors import Conflict
from penstock.storage import parquet_directory
from penstock.storage.directory_swap import DirectorySwap
from penstock.storage.file_formats import translate_file_names
from penstock.storage.parquet_directory import ParquetDirectory, ParquetDirectoryFile

_FILE_BYTES = 128 << 20


def load_directory(path: Path, keys: Sequence[str]) -> ParquetDirectory:
    """Read the footers of all files of a directory.

    Raises:
        Invalid: the name of a file is not UTF-8
    """
    with translate_file_names():
        return parquet_directory.read_directory(path, keys)


def target_schema(
    source: pa.Schema, directory: ParquetDirectory, types: pa.Schema, keys: Sequence[str]
) -> pa.Schema | None:
    """Return all columns of the target, then partition columns that no file stores; None if the target has no files."""
    if directory.schema is None:
        core_merge.validate_keys_and_schema(source, None, keys)
        return None
    folder_columns = [field for field in types if field.name not in directory.schema.names]
    return pa.schema([*directory.schema, *folder_columns], metadata=directory.schema.metadata)


class DirectoryTarget:
    """The files of a directory as a `MergeTarget`.

    Args:
        directory: files of the directory
        types: types of the partition columns
        plan: the merge
        source: schema of the source
        schema: schema of the target, from `target_schema`
        codec: compression of new files; None keeps that of the existing files
        swap: stages and commits files
        progress: tracks the written rows
    """

    edit_policy = None  # a directory has no deletion vectors

    def __init__(
        self,
        directory: ParquetDirectory,
        types: pa.Schema,
        plan: MergePlan,
        source: pa.Schema,
        schema: pa.Schema | None,
        codec: str | None,
        swap: DirectorySwap,
        progress: ProgressTracker,
    ) -> None:
        self._directory, self._types, self._plan, self._codec, self._swap = directory, types, plan, codec, swap
        self._progress = progress
        unified = source if schema is None else core_merge.unify_schemas(source, schema)
        before = directory.schema
        folder_columns = set(plan.partitions) - set(before.names if before is not None else ())
        fields = [unified.field(name) for name in plan.schema.names if name not in folder_columns]
        self.stored_schema = pa.schema(fields, metadata=None if before is None else before.metadata)
        self.rewrites_all = before is not None and pa.schema(fields) != pa.schema(list(before))
        self._directory_files = {directory.located(file): file for file in directory.files}
        self._files = [self._target_file(file) for file in directory.files]

    @property
    def rows(self) -> int:
        return self._directory.rows

    @property
    def file_count(self) -> int:
        return len(self._files)

    def files_with_possible_nulls(self) -> list[TargetFile]:
        keys = self._plan.keys
        return [
            file
            for file in self._files
            if self._directory_files[file.path].nulls != 0
            or any(file.partition_values.get(key, 0) is None for key in keys)
        ]

    def open_files(self, _files: Iterable[TargetFile]) -> AbstractContextManager[None]:
        return nullcontext()

    def files(self, _key_ranges: KeyRanges | None) -> list[TargetFile]:
        return self._files

    def layout(self, rewrite_plan: RewritePlan) -> RewritePlan:
        """Read the layouts of the files to rewrite; those of other files are not needed."""
        rewrite = tuple(replace(f, layout=self._layout(self._directory_files[f.path])) for f in rewrite_plan.rewrite)
        return replace(rewrite_plan, rewrite=rewrite)

    def sink(self) -> "DirectorySink":
        """Return a sink whose layout is that of the first file."""
        if self._directory.files:
            layout = self._layout(self._directory.files[0])
        else:
            layout = FileLayout(self.stored_schema, self._codec or "zstd", stores_required=True)
        return DirectorySink(self._swap, layout, self._progress)

    def commit(self, rewrite_plan: RewritePlan, outputs: Sequence[OutputFile]) -> None:
        """Replace old files by new ones.

        Raises:
            Conflict: another process has changed one of the old files
        """
        directory = self._directory
        rewrite_plan.assert_written(sum(output.rows for output in outputs), deleted=0)
        affected = {file.path for file in (*rewrite_plan.rewrite, *rewrite_plan.drop)}
        for path, file in self._directory_files.items():
            if path in affected and not directory.unchanged(file):
                raise Conflict("directory_changed", {"file": path})
        replaced = {output.replaces.path for output in outputs if output.replaces}
        folders = self._partition_folders()
        moves = []
        for output in outputs:
            self._copy_mode(output)
            moves.append((output.path, self._final_name(output, folders)))
        removes = [os.path.relpath(path, directory.path) for path in sorted(affected - replaced)]
        removes += self._stale_checksums([name for _, name in moves] + removes)
        removes += self._stale_summaries(removes_all=rewrite_plan.after == 0)
        self._swap.commit(moves, removes, remove_directory=rewrite_plan.after == 0 and rewrite_plan.deletes)

    def _target_file(self, file: ParquetDirectoryFile) -> TargetFile:
        values = parquet_directory.partition_values(file.parts, self._types)
        partition_bounds = {name: _value_bounds(values[name]) for name in self._plan.keys if name in values}
        return TargetFile(
            self._directory.located(file),
            file.rows,
            FileLayout(self.stored_schema),
            values,
            {**file.bounds, **partition_bounds},
        )

    def _layout(self, file: ParquetDirectoryFile) -> FileLayout:
        layout = self._directory.layout(file)
        options = {name: value for name, value in layout.options.items() if not (self._codec and name == "compression")}
        new_columns = [name for name in self.stored_schema.names if name not in file.schema.names]
        if isinstance(columns := options.get("use_dictionary"), list):
            options["use_dictionary"] = columns + new_columns
        if isinstance(codecs := options.get("compression"), dict):
            options["compression"] = codecs | dict.fromkeys(new_columns, layout.codec)
        schema = self.stored_schema.with_metadata(file.schema.metadata)
        return replace(layout, schema=schema, codec=self._codec or layout.codec, options=options)

    def _partition_folders(self) -> dict[tuple[Any, ...], str]:
        """Return the existing folder of each combination of partition values."""
        return {
            tuple(parquet_directory.partition_values(file.parts, self._types).values()): file.name.rpartition("/")[0]
            for file in self._directory.files
        }

    def _final_name(self, output: OutputFile, folders: dict[tuple[Any, ...], str]) -> str:
        if output.replaces:
            return os.path.relpath(output.replaces.path, self._directory.path)
        values = {name: output.partition_values[name] for name in self._directory.partitions}
        folder = folders.get(tuple(values.values())) if values else ""
        folder = parquet_directory.partition_folder(values, self._types) if folder is None else folder
        return f"{folder}/part-{uuid4().hex}.parquet".lstrip("/")

    def _copy_mode(self, output: OutputFile) -> None:
        """Give a new file the permissions of the file that it replaces, or of the first file."""
        if self._directory.files:
            first = self._directory.located(self._directory.files[0])
            os.chmod(output.path, os.stat(output.replaces.path if output.replaces else first).st_mode)

    def _stale_summaries(self, *, removes_all: bool) -> list[str]:
        """List the summary files of Dask and Hadoop that become wrong; readers then use the footers of the files.

        `_metadata` repeats all footers and is wrong after any change; `_common_metadata` is the schema.
        """
        names = ["_metadata", *(["_common_metadata"] if self.rewrites_all or removes_all else [])]
        return [name for name in names if (self._directory.path / name).exists()]

    def _stale_checksums(self, names: Sequence[str]) -> list[str]:
        """List the checksum files that Hadoop wrote for files that change."""
        checksums = []
        for name in names:
            folder, _, base = name.rpartition("/")
            if (self._directory.path / folder / f".{base}.crc").exists():
                checksums.append(f"{folder}/.{base}.crc".lstrip("/"))
        return checksums


@dataclass
class DirectorySink:
    """Sink for new files of a directory, in its staging folder."""

    swap: DirectorySwap
    layout: FileLayout
    progress: ProgressTracker
    file_bytes: int = _FILE_BYTES

    def path(self) -> str:
        return self.swap.path()

    def folder(self) -> str:
        return self.swap.folder()

    def add_rows(self, rows: int) -> None:
        self.progress.add(rows)


def _value_bounds(value: Any) -> tuple[Any, Any]:
    try:
        return stat_value(value), stat_value(value)
    except TypeError:
        return None, None
