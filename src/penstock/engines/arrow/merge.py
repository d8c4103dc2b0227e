"""Merge engine on PyArrow: stream target files batch by batch and hold only the source in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.dataset.deletion_vector import DeletionVector, remaining
from penstock.core.dataset.row_groups import split_row_groups
from penstock.core.merge import (
    FileSink,
    MatchCounts,
    Matched,
    MergeOutput,
    MergePlan,
    OutputFile,
    Rest,
    RewritePlan,
    TargetFile,
)
from penstock.core.merge.key_index import KeyIndex, best_per_key, comparable, first_repeat
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.schema.compatibility import cast_batch
from penstock.engines.arrow.parquet_io import (
    ROW_ID,
    RowPicker,
    WorkerThreads,
    filter_batches,
    read_batches,
    read_positions,
    read_row_group_runs,
    replace_values,
    write_files,
)


class ArrowEngine:
    name = "pyarrow"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers

    def open(self, plan: MergePlan, source: pa.Table) -> "ArrowMergeSession":
        return ArrowMergeSession(plan, source, WorkerThreads(self._workers))

    def explain_unsupported(self, _schema: pa.Schema) -> str | None:
        return None  # Arrow writes every type that it reads from Parquet


class ArrowMergeSession:
    def __init__(self, plan: MergePlan, source: pa.Table, workers: WorkerThreads) -> None:
        self._plan, self._workers = plan, workers
        keys = [comparable(source[name]) for name in plan.keys]
        if nulls := {name: key.null_count for name, key in zip(plan.keys, keys, strict=True) if key.null_count}:
            raise merge.null_keys("source", nulls)
        key_numbers = KeyIndex(keys).numbers
        if plan.rules.deduplicates:
            best_rows = best_per_key(key_numbers, [source[name] for name in plan.order_by])
            if len(best_rows) < source.num_rows:
                source, keys = RowPicker(source).take(best_rows.to_numpy()), [key.take(best_rows) for key in keys]
        elif repeated_key := first_repeat(key_numbers):
            rows, row = repeated_key
            raise merge.duplicate_keys(plan.keys, rows, [source[name][row].as_py() for name in plan.keys])
        self._source, self._keys = RowPicker(source), keys
        self.key_ranges = KeyRanges.of(pa.table(dict(zip(plan.keys, keys, strict=True))))
        self._range_key = next((i for i, name in enumerate(plan.keys) if name in self.key_ranges.columns), None)
        self._key_order = None if self._range_key is None else pc.array_sort_indices(keys[self._range_key])
        self._matches: dict[str, _KeyMatches] = {}
        self._is_matched = np.zeros(source.num_rows, dtype=bool)

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        counts = dict.fromkeys(self._plan.keys, 0)
        for file_counts in self._workers.map(self._count_nulls, files):
            for name, count in file_counts.items():
                counts[name] += count
        return {name: count for name, count in counts.items() if count}

    def match(self, files: Sequence[TargetFile]) -> MatchCounts:
        file_matches = self._workers.map(
            self._match_file, files, 2
        )  # key columns are small: one thread reads while another looks up
        self._matches = {file.path: matches for file, matches in zip(files, file_matches, strict=True) if len(matches)}
        self._is_matched[:] = False
        for matches in self._matches.values():
            self._is_matched[matches.source_rows] = True
        counts = {path: len(matches) for path, matches in self._matches.items()}
        return MatchCounts(counts, int(len(self._is_matched) - self._is_matched.sum()), len(self._is_matched))

    def write(self, rewrite_plan: RewritePlan, sink: FileSink) -> MergeOutput:
        updated = self._write_updated_rows(rewrite_plan.mark, sink)
        deleted = {f: DeletionVector.from_positions(self._matches[f.path].positions) for f in rewrite_plan.mark}
        return MergeOutput((*updated, *self._write_files(rewrite_plan, sink)), deleted)

    def _write_files(self, rewrite_plan: RewritePlan, sink: FileSink) -> list[OutputFile]:
        outputs: list[OutputFile] = []
        rows_by_partition: dict[tuple[Any, ...], list[pa.Table]] = {}  # partition values → rows for new files
        merged_files = [
            f for f in rewrite_plan.rewrite if self._needs_no_file(f) and f.layout.codec == sink.layout.codec
        ]
        merged = set(merged_files)
        rewritten_files = [file for file in rewrite_plan.rewrite if file not in merged]
        for output, moved in self._workers.map(lambda file: self._rewrite_file(file, sink), rewritten_files):
            outputs += [output] if output else []
            for partition, rows in moved:
                rows_by_partition.setdefault(partition, []).append(rows)
        other_rows = list(
            self._workers.map(lambda file: table_from_batches(self._rewritten_batches(file)), merged_files)
        )
        if self._plan.row_ids:  # rows with stored ids and rows without ids must not share a file
            outputs += write_files(other_rows, {}, merged_files[0].layout if merged_files else sink.layout, sink)
            other_rows = []
        if rewrite_plan.insert:
            new_rows = self._source.take(np.flatnonzero(~self._is_matched))
            other_rows.append(
                table_from_batches(cast_batch(batch, self._plan.schema) for batch in new_rows.to_batches())
            )
        for rows in other_rows:
            for partition, partition_rows in self._split_by_partition(rows):
                rows_by_partition.setdefault(partition, []).append(partition_rows)
        for partition, tables in rows_by_partition.items():
            outputs += write_files(tables, dict(zip(self._plan.partitions, partition, strict=True)), sink.layout, sink)
        return outputs

    def close(self) -> None:
        self._matches.clear()

    # Matching

    def _count_nulls(self, file: TargetFile) -> dict[str, int]:
        counts = {
            name: file.live_rows
            for name in self._plan.keys
            if name in file.partition_values and file.partition_values[name] is None
        }
        stored = [name for name in self._plan.keys if name not in file.partition_values]
        is_missing = pc.field(stored[0]).is_null() if stored else None
        for name in stored[1:]:
            is_missing = is_missing | pc.field(name).is_null()
        schema = pa.schema([self._plan.schema.field(name).with_nullable(True) for name in stored])
        for batch in filter_batches(self._live_batches(file, stored), schema, is_missing) if stored else ():
            for name in stored:
                counts[name] = counts.get(name, 0) + batch.column(name).null_count
        return counts

    def _match_file(self, file: TargetFile) -> "_KeyMatches":
        """Match the rows of one file with the keys of the source."""
        nearby_rows = self._source_rows_near(file)
        keys = self._keys if nearby_rows is None else [key.take(nearby_rows) for key in self._keys]
        if not len(keys[0]):
            return _KeyMatches.concat([])
        lookup, parts = KeyIndex(keys), []
        # Every lookup builds a hash table of the source keys, so each call gets many of the rows that may match.
        block_rows = max(self._plan.batch_rows, len(keys[0]))
        stored_keys = [name for name in self._plan.keys if name not in file.partition_values]
        fields = [self._plan.schema.field(name).with_nullable(True) for name in stored_keys]
        position = pa.field(f"position of {stored_keys}", pa.int64(), nullable=False)  # longer than every key's name
        schema = pa.schema([*fields, position])
        batches = self._key_batches(file, stored_keys, keys, position)
        for block in split_row_groups(
            filter_batches(batches, schema, self._key_filter(keys, file)), schema, block_rows
        ):
            hits, source_rows = lookup.lookup(self._key_columns(block, file))
            parts.append(_KeyMatches(block[position.name].to_numpy()[hits], source_rows))
        all_matches = _KeyMatches.concat(parts)
        return (
            all_matches
            if nearby_rows is None
            else _KeyMatches(all_matches.positions, nearby_rows.to_numpy()[all_matches.source_rows])
        )

    def _key_batches(
        self, file: TargetFile, stored_keys: Sequence[str], keys: Sequence[pa.Array], position: pa.Field
    ) -> Iterator[pa.RecordBatch]:
        """Yield the key columns with the position of each row, without row groups outside of the range of the keys."""
        if not stored_keys:  # every row has the key of the folder
            for start in range(0, file.rows, self._plan.batch_rows):
                rows = pa.arange(start, min(start + self._plan.batch_rows, file.rows))
                yield pa.RecordBatch.from_arrays([rows], schema=pa.schema([position]))
            return
        scan = file.path, self._read_schema(file), stored_keys, self._plan.batch_rows
        for start, run in read_row_group_runs(*scan, self._key_range_filter(keys, file)):
            for batch in run:
                rows = batch.append_column(position, pa.arange(start, start + batch.num_rows))
                yield remaining(rows, start, file.deleted)
                start += batch.num_rows

    def _key_filter(self, keys: Sequence[pa.Array], file: TargetFile) -> pc.Expression | None:
        """Return a filter for rows whose key columns have values of the source."""
        expression: pc.Expression | None = None
        for name, key in zip(self._plan.keys, keys, strict=True):
            if name in file.partition_values or pt.is_floating(key.type):  # equal floats may have different hashes
                continue
            values = pc.unique(key).cast(self._plan.schema.field(name).type)
            expression = pc.field(name).isin(values) if expression is None else expression & pc.field(name).isin(values)
        return expression

    def _source_rows_near(self, file: TargetFile) -> pa.Array | None:
        """Return the source rows within the file's bounds of one key column, or None for all rows."""
        if self._range_key is None or self._key_order is None:
            return None
        name = self._plan.keys[self._range_key]
        low, high = file.bounds.get(name, (None, None))
        if low is None or high is None:
            return None
        first, last = self.key_ranges.between(name, low, high)
        values = self.key_ranges.columns[name]
        if (first, last) == (0, len(values)):
            return None
        nearby_values = values.slice(first, last - first)
        if len(values) == len(self._key_order):  # values are unique, so sorted values and sorted rows correspond
            return self._key_order.slice(first, last - first)
        return pa.array(np.flatnonzero(pc.is_in(self._keys[self._range_key], value_set=nearby_values)))

    def _key_range_filter(self, keys: Sequence[pa.Array], file: TargetFile) -> pc.Expression | None:
        """Return a filter for the range between the lowest and the highest source key."""
        expression: pc.Expression | None = None
        for name, key in zip(self._plan.keys, keys, strict=True):
            if name in file.partition_values or name not in self.key_ranges.columns or pt.is_boolean(key.type):
                continue
            bounds = pc.min_max(key)
            low, high = (bounds[bound].cast(self._plan.schema.field(name).type) for bound in ("min", "max"))
            within = (pc.field(name) >= low) & (pc.field(name) <= high)
            expression = within if expression is None else expression & within
        return expression

    def _key_columns(self, rows: pa.Table | pa.RecordBatch, file: TargetFile) -> list[pa.Array]:
        return [
            comparable(
                repeat_value(file.partition_values[name], self._plan.schema.field(name).type, rows.num_rows)
                if name in file.partition_values
                else rows.column(name)
            )
            for name in self._plan.keys
        ]

    # Writing

    def _needs_no_file(self, file: TargetFile) -> bool:
        """Return True if a full merge deletes most rows of the file and the source supplies all columns of the others.

        The remaining rows are then written together with the new rows.
        """
        return not self._plan.keeps_columns and 2 * len(self._matches[file.path]) <= file.live_rows

    def _write_updated_rows(self, files: Sequence[TargetFile], sink: FileSink) -> Iterator[OutputFile]:
        """Write the updated rows of marked files, with their row ids if the target has any."""
        if not files:
            return iter(())
        tables = self._workers.map(lambda file: table_from_batches(self._updated_batches(file)), files)
        return write_files(tables, {}, files[0].layout, sink)

    def _updated_batches(self, file: TargetFile) -> Iterator[pa.RecordBatch]:
        """Yield the matched rows of a file with their new values."""
        plan, matches = self._plan, self._matches[file.path]
        source_rows = self._source.take(matches.source_rows)
        stored_columns = [name for name in plan.schema.names if name not in plan.source_columns]
        stored_columns += [STORED_ROW_ID_COLUMN] if plan.row_ids and file.first_row_id is None else []
        if not stored_columns:
            yield from self._matched_rows(None, file, matches, source_rows).to_batches()
            return
        first = 0
        for batch in read_positions(
            file.path, self._read_schema(file), stored_columns, plan.batch_rows, matches.positions
        ):
            last = first + batch.num_rows
            part = _KeyMatches(matches.positions[first:last], matches.source_rows[first:last])
            yield from self._matched_rows(batch, file, part, source_rows.slice(first, batch.num_rows)).to_batches()
            first = last

    def _rewrite_file(
        self, file: TargetFile, sink: FileSink
    ) -> tuple[OutputFile | None, list[tuple[tuple[Any, ...], pa.Table]]]:
        """Write the new version of a file.

        Returns:
            the new file (None if no row is left), and the rows that moved to other partitions
        """
        moved: list[tuple[tuple[Any, ...], pa.Table]] = []
        file_partition = tuple(file.partition_values[name] for name in self._plan.partitions)

        def remaining_batches() -> Iterator[pa.RecordBatch]:
            for batch in self._rewritten_batches(file):
                for partition, rows in (
                    self._split_by_partition(pa.Table.from_batches([batch])) if file_partition else ()
                ):
                    if partition != file_partition:
                        moved.append((partition, rows))
                    else:
                        yield from rows.combine_chunks().to_batches()
                if not file_partition:
                    yield batch

        output = next(
            write_files([remaining_batches()], file.partition_values, file.layout, sink, single_file=True), None
        )
        return (replace(output, replaces=file) if output else None), moved

    def _rewritten_batches(self, file: TargetFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the file after the merge, in file order."""
        plan, matches = self._plan, self._matches.get(file.path, _KeyMatches.concat([]))
        source_rows = self._source.take(matches.source_rows)
        stored_columns = (
            [name for name in plan.schema.names if name not in file.partition_values] if plan.keeps_columns else []
        )
        stored_columns += [STORED_ROW_ID_COLUMN] if plan.row_ids and file.first_row_id is None else []
        if not stored_columns:
            yield from self._matched_rows(None, file, matches, source_rows).to_batches()
            return
        position = 0
        for batch in self._batches(file, stored_columns):
            if self._workers.is_stopped:
                return
            batch_matches, first, last = matches.slice(position, batch.num_rows)
            new_rows = source_rows.slice(first, last - first)
            if plan.rules.rest is Rest.DELETE:
                rows = self._matched_rows(
                    batch.take(pa.array(batch_matches.positions)), file, batch_matches.shift(position), new_rows
                )
                yield from rows.to_batches()
            else:
                rows = self._complete_batch(batch, file, position)
                rows = self._update_batch(rows, batch_matches.positions, new_rows) if last > first else rows
                yield remaining(rows, position, file.deleted)
            position += batch.num_rows

    def _matched_rows(
        self, old_rows: pa.RecordBatch | None, file: TargetFile, matches: "_KeyMatches", new_rows: pa.Table
    ) -> pa.Table:
        """Return the matched rows only: source values, and old values of columns that the source lacks."""
        columns = []
        for field in self._plan.schema:
            if field.name in self._plan.source_columns and self._plan.rules.matched is Matched.UPDATE:
                columns.append(new_rows[field.name])
            elif field.name in file.partition_values:
                columns.append(repeat_value(file.partition_values[field.name], field.type, len(matches)))
            else:
                assert old_rows is not None
                columns.append(old_rows.column(field.name))
        fields = list(self._plan.schema)
        if self._plan.row_ids:
            first_row_id = file.first_row_id
            columns.append(
                old_rows.column(STORED_ROW_ID_COLUMN)
                if first_row_id is None and old_rows is not None
                else pa.array(matches.positions + first_row_id)
            )
            fields.append(ROW_ID)
        return pa.table(columns, schema=pa.schema(fields)).combine_chunks()

    def _complete_batch(self, batch: pa.RecordBatch, file: TargetFile, position: int) -> pa.RecordBatch:
        """Add the partition columns and the row ids to a batch."""
        columns = [
            repeat_value(file.partition_values[field.name], field.type, len(batch))
            if field.name in file.partition_values
            else batch.column(field.name)
            for field in self._plan.schema
        ]
        fields = [field.with_nullable(True) for field in self._plan.schema]
        if self._plan.row_ids:
            first_row_id = file.first_row_id
            row_ids = (
                batch.column(STORED_ROW_ID_COLUMN)
                if first_row_id is None
                else pa.arange(first_row_id + position, first_row_id + position + len(batch))
            )
            columns.append(row_ids)
            fields.append(ROW_ID)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _update_batch(self, rows: pa.RecordBatch, positions: Any, new_rows: pa.Table) -> pa.RecordBatch:
        if self._plan.rules.matched is not Matched.UPDATE:
            return rows
        updated_columns = {
            field.name
            for field in rows.schema
            if field.name in self._plan.source_columns
            and (field.name not in self._plan.keys or pt.is_floating(field.type))
        }
        return replace_values(rows, positions, new_rows, updated_columns)

    def _split_by_partition(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        names = self._plan.partitions
        if not rows.num_rows:
            return
        if not names:
            yield (), rows
            return
        partition_numbers = KeyIndex([comparable(rows[name]) for name in names]).numbers
        codes = partition_numbers.dictionary_encode(null_encoding="encode").indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        for row_indices in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            partition_rows = rows if len(row_indices) == rows.num_rows else rows.take(row_indices)
            yield tuple(partition_rows[name][0].as_py() for name in names), partition_rows

    # Reading

    def _read_schema(self, file: TargetFile) -> pa.Schema:
        fields = [field for field in self._plan.schema if field.name not in file.partition_values]
        return pa.schema([*fields, ROW_ID] if self._plan.row_ids else fields)

    def _live_batches(self, file: TargetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the deletion vector of the file leaves."""
        position = 0
        for batch in self._batches(file, columns):
            yield remaining(batch, position, file.deleted)
            position += batch.num_rows

    def _batches(self, file: TargetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return read_batches(file.path, self._read_schema(file), columns, self._plan.batch_rows)


@dataclass(frozen=True, slots=True)
class _KeyMatches:
    """Matched rows of a file: ascending row positions, and the source row of each."""

    positions: Any
    source_rows: Any

    @classmethod
    def concat(cls, parts: "Sequence[_KeyMatches]") -> "_KeyMatches":
        empty = np.zeros(0, dtype=np.int64)
        return cls(
            np.concatenate([empty, *(part.positions for part in parts)]),
            np.concatenate([empty, *(part.source_rows for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.positions)

    def slice(self, start: int, rows: int) -> "tuple[_KeyMatches, int, int]":
        """Return the matches among `rows` rows from `start`, relative to `start`, and their first and last index."""
        first, last = np.searchsorted(self.positions, [start, start + rows])
        return _KeyMatches(self.positions[first:last] - start, self.source_rows[first:last]), int(first), int(last)

    def shift(self, start: int) -> "_KeyMatches":
        return _KeyMatches(self.positions + start, self.source_rows)


def table_from_batches(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    batch_list = list(batches)
    return pa.Table.from_batches(batch_list) if batch_list else pa.table({})


def repeat_value(value: Any, data_type: pa.DataType, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, data_type), times)
