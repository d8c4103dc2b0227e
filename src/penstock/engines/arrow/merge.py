"""Merge with PyArrow: files are streamed batch by batch, and only the source's keys are held."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.dataset.row_groups import groups
from penstock.core.merge.key_index import Keys, comparable, first_repeat, highest
from penstock.core.merge import Match, Matched, Output, Plan, Rest, Sink, TargetFile, Work
from penstock.core.names import CARRIED
from penstock.core.merge.key_ranges import Reach
from penstock.core.schema.canonical import conform
from penstock.engines.arrow.parquet_io import ROW_ID, Pieces, Workers, batches, replaced, stretches, written


class Arrow:
    name = "pyarrow"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers

    def open(self, plan: Plan, source: pa.Table) -> "ArrowSession":
        return ArrowSession(plan, source, Workers(self._workers))

    def refuses(self, _schema: pa.Schema) -> str | None:
        return None  # what Arrow reads from Parquet, it writes


class ArrowSession:
    def __init__(self, plan: Plan, source: pa.Table, workers: Workers) -> None:
        self._plan, self._workers = plan, workers
        keys = [comparable(source[name]) for name in plan.keys]
        if nulls := {name: key.null_count for name, key in zip(plan.keys, keys, strict=True) if key.null_count}:
            raise merge.null_keys("source", nulls)
        numbers = Keys(keys).numbers
        if plan.write.deduplicates:
            kept = highest(numbers, [source[name] for name in plan.order_by])
            if len(kept) < source.num_rows:
                source, keys = Pieces(source).take(kept.to_numpy()), [key.take(kept) for key in keys]
        elif repeat := first_repeat(numbers):
            rows, at = repeat
            raise merge.duplicate_keys(plan.keys, rows, [source[name][at].as_py() for name in plan.keys])
        self._source, self._keys = Pieces(source), keys
        self.reach = Reach.of(pa.table(dict(zip(plan.keys, keys, strict=True))))
        self._first = next((i for i, name in enumerate(plan.keys) if name in self.reach.columns), None)
        self._order = None if self._first is None else pc.array_sort_indices(keys[self._first])
        self._met: dict[str, _Met] = {}
        self._hit = np.zeros(source.num_rows, dtype=bool)

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        counts = dict.fromkeys(self._plan.keys, 0)
        for each in self._workers.each(self._nulls_in, files):
            for name, count in each.items():
                counts[name] += count
        return {name: count for name, count in counts.items() if count}

    def match(self, files: Sequence[TargetFile]) -> Match:
        found = self._workers.each(self._meet, files, 2)  # keys are small: one reads while the other looks them up
        self._met = {file.path: met for file, met in zip(files, found, strict=True) if len(met)}
        self._hit[:] = False
        for met in self._met.values():
            self._hit[met.places] = True
        counts = {path: len(met) for path, met in self._met.items()}
        return Match(counts, int(len(self._hit) - self._hit.sum()), len(self._hit))

    def write(self, work: Work, sink: Sink) -> list[Output]:
        outputs: list[Output] = []
        elsewhere: dict[tuple[Any, ...], list[pa.Table]] = {}  # partition → rows for new files
        few = [f for f in work.rewrite if self._leaves_few(f) and f.layout.codec == sink.layout.codec]
        many = [file for file in work.rewrite if file not in set(few)]
        for output, moved in self._workers.each(lambda file: self._rewrite(file, sink), many):
            outputs += [output] if output else []
            for parts, rows in moved:
                elsewhere.setdefault(parts, []).append(rows)
        gathered = list(self._workers.each(lambda file: _table(self._successor(file)), few))
        if self._plan.row_ids:  # what carries its ids is not put with what has none yet
            outputs += written(gathered, {}, few[0].layout if few else sink.layout, sink)
            gathered = []
        if work.insert:
            fresh = self._source.take(np.flatnonzero(~self._hit))
            gathered.append(_table(conform(batch, self._plan.schema) for batch in fresh.to_batches()))
        for rows in gathered:
            for parts, part in self._by_parts(rows):
                elsewhere.setdefault(parts, []).append(part)
        for parts, tables in elsewhere.items():
            outputs += written(tables, dict(zip(self._plan.partitions, parts, strict=True)), sink.layout, sink)
        return outputs

    def close(self) -> None:
        self._met.clear()

    # Matching

    def _nulls_in(self, file: TargetFile) -> dict[str, int]:
        counts = {name: file.rows for name in self._plan.keys if name in file.parts and file.parts[name] is None}
        stored = [name for name in self._plan.keys if name not in file.parts]
        missing = pc.field(stored[0]).is_null() if stored else None
        for name in stored[1:]:
            missing = missing | pc.field(name).is_null()
        for batch in self._batches(file, stored, missing) if stored else ():
            for name in stored:
                counts[name] = counts.get(name, 0) + batch.column(name).null_count
        return counts

    def _meet(self, file: TargetFile) -> "_Met":
        """Which of the file's rows have a key of the source, and which."""
        mine = self._near(file)
        keys = self._keys if mine is None else [key.take(mine) for key in self._keys]
        if not len(keys[0]):
            return _Met.of([])
        lookup, met = Keys(keys), []
        # A lookup builds its table of the source's keys each time, so it is asked about many rows at once.
        rows = max(self._plan.batch_rows, len(keys[0]))
        held = [name for name in self._plan.keys if name not in file.parts]
        schema = pa.schema([self._plan.schema.field(name).with_nullable(True) for name in held])
        read = file.path, self._read_schema(file), held, self._plan.batch_rows
        for start, stretch in stretches(*read, self._range(keys, file)):
            for block in groups(stretch, schema, rows):
                positions, places = lookup.meet(self._key_columns(block, file))
                met.append(_Met(positions + start, places))
                start += block.num_rows
        whole = _Met.of(met)
        return whole if mine is None else _Met(whole.positions, mine.to_numpy()[whole.places])

    def _near(self, file: TargetFile) -> pa.Array | None:
        """Those of the source's rows that lie within the file's range on one key column; None: all of them."""
        if self._first is None or self._order is None:
            return None
        name = self._plan.keys[self._first]
        low, high = file.bounds.get(name, (None, None))
        if low is None or high is None:
            return None
        first, last = self.reach.between(name, low, high)
        values = self.reach.columns[name]
        if (first, last) == (0, len(values)):
            return None
        near = values.slice(first, last - first)
        if len(values) == len(self._order):  # every value stands once, so sorted values and sorted rows are in step
            return self._order.slice(first, last - first)
        return pa.array(np.flatnonzero(pc.is_in(self._keys[self._first], value_set=near)))

    def _range(self, keys: Sequence[pa.Array], file: TargetFile) -> pc.Expression | None:
        """A filter around the source's keys: what lies beyond the lowest and the highest need not be read."""
        said: pc.Expression | None = None
        for name, key in zip(self._plan.keys, keys, strict=True):
            if name in file.parts or name not in self.reach.columns or pt.is_boolean(key.type):
                continue
            ends = pc.min_max(key)
            low, high = (ends[end].cast(self._plan.schema.field(name).type) for end in ("min", "max"))
            within = (pc.field(name) >= low) & (pc.field(name) <= high)
            said = within if said is None else said & within
        return said

    def _key_columns(self, rows: pa.Table | pa.RecordBatch, file: TargetFile) -> list[pa.Array]:
        return [
            comparable(
                _repeated(file.parts[name], self._plan.schema.field(name).type, rows.num_rows)
                if name in file.parts
                else rows.column(name)
            )
            for name in self._plan.keys
        ]

    # Writing

    def _leaves_few(self, file: TargetFile) -> bool:
        """Are most of its rows deleted, and the others the source's own? Those need no file for themselves."""
        return not self._plan.keeps_columns and 2 * len(self._met[file.path]) <= file.rows

    def _rewrite(self, file: TargetFile, sink: Sink) -> tuple[Output | None, list[tuple[tuple[Any, ...], pa.Table]]]:
        """The file's successor, if it has one, and rows that belong into other partitions now."""
        moved: list[tuple[tuple[Any, ...], pa.Table]] = []
        here = tuple(file.parts[name] for name in self._plan.partitions)

        def staying() -> Iterator[pa.RecordBatch]:
            for batch in self._successor(file):
                for parts, rows in self._by_parts(pa.Table.from_batches([batch])) if here else ():
                    if parts != here:
                        moved.append((parts, rows))
                    else:
                        yield from rows.combine_chunks().to_batches()
                if not here:
                    yield batch

        output = next(written([staying()], file.parts, file.layout, sink, one=True), None)
        return (replace(output, replaces=file) if output else None), moved

    def _successor(self, file: TargetFile) -> Iterator[pa.RecordBatch]:
        """The file's rows, in their order, as they are afterwards."""
        plan, met = self._plan, self._met.get(file.path, _Met.of([]))
        brought = self._source.take(met.places)
        reads = [name for name in plan.schema.names if name not in file.parts] if plan.keeps_columns else []
        reads += [CARRIED] if plan.row_ids and file.first_row_id is None else []
        if not reads:
            yield from self._picked(None, file, met, brought).to_batches()
            return
        position = 0
        for batch in self._batches(file, reads):
            if self._workers.stopped:
                return
            here, first, last = met.between(position, batch.num_rows)
            new = brought.slice(first, last - first)
            if plan.write.rest is Rest.DELETE:
                rows = self._picked(batch.take(pa.array(here.positions)), file, here.shifted(position), new)
                yield from rows.to_batches()
            else:
                rows = self._whole(batch, file, position)
                yield self._updated(rows, here.positions, new) if last > first else rows
            position += batch.num_rows

    def _picked(self, old: pa.RecordBatch | None, file: TargetFile, met: "_Met", new: pa.Table) -> pa.Table:
        """Matched rows alone: what the source brings, and of the old rows what it does not."""
        columns = []
        for field in self._plan.schema:
            if field.name in self._plan.given and self._plan.write.matched is Matched.UPDATE:
                columns.append(new[field.name])
            elif field.name in file.parts:
                columns.append(_repeated(file.parts[field.name], field.type, len(met)))
            else:
                assert old is not None
                columns.append(old.column(field.name))
        fields = list(self._plan.schema)
        if self._plan.row_ids:
            first = file.first_row_id
            columns.append(
                old.column(CARRIED) if first is None and old is not None else pa.array(met.positions + first)
            )
            fields.append(ROW_ID)
        return pa.table(columns, schema=pa.schema(fields)).combine_chunks()

    def _whole(self, batch: pa.RecordBatch, file: TargetFile, position: int) -> pa.RecordBatch:
        """The batch with the columns that its folder tells, and with its row ids."""
        columns = [
            _repeated(file.parts[field.name], field.type, len(batch))
            if field.name in file.parts
            else batch.column(field.name)
            for field in self._plan.schema
        ]
        fields = [field.with_nullable(True) for field in self._plan.schema]
        if self._plan.row_ids:
            first = file.first_row_id
            ids = batch.column(CARRIED) if first is None else pa.arange(first + position, first + position + len(batch))
            columns.append(ids)
            fields.append(ROW_ID)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _updated(self, rows: pa.RecordBatch, positions: Any, new: pa.Table) -> pa.RecordBatch:
        if self._plan.write.matched is not Matched.UPDATE:
            return rows
        given = {
            field.name
            for field in rows.schema
            if field.name in self._plan.given and (field.name not in self._plan.keys or pt.is_floating(field.type))
        }
        return replaced(rows, positions, new, given)

    def _by_parts(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        names = self._plan.partitions
        if not rows.num_rows:
            return
        if not names:
            yield (), rows
            return
        numbers = Keys([comparable(rows[name]) for name in names]).numbers
        codes = numbers.dictionary_encode(null_encoding="encode").indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            part = rows if len(places) == rows.num_rows else rows.take(places)
            yield tuple(part[name][0].as_py() for name in names), part

    # Reading

    def _read_schema(self, file: TargetFile) -> pa.Schema:
        fields = [field for field in self._plan.schema if field.name not in file.parts]
        return pa.schema([*fields, ROW_ID] if self._plan.row_ids else fields)

    def _batches(
        self, file: TargetFile, columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        return batches(file.path, self._read_schema(file), columns, self._plan.batch_rows, where=where)


@dataclass(frozen=True, slots=True)
class _Met:
    """Rows of a file that have a key of the source: their positions, in order, and the places of those keys."""

    positions: Any
    places: Any

    @classmethod
    def of(cls, parts: "Sequence[_Met]") -> "_Met":
        empty = np.zeros(0, dtype=np.int64)
        return cls(
            np.concatenate([empty, *(part.positions for part in parts)]),
            np.concatenate([empty, *(part.places for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.positions)

    def between(self, start: int, rows: int) -> "tuple[_Met, int, int]":
        """Those among `rows` rows from `start` on, counted from there; and where they begin and end in the list."""
        first, last = np.searchsorted(self.positions, [start, start + rows])
        return _Met(self.positions[first:last] - start, self.places[first:last]), int(first), int(last)

    def shifted(self, start: int) -> "_Met":
        return _Met(self.positions + start, self.places)


def _table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    held = list(batches)
    return pa.Table.from_batches(held) if held else pa.table({})


def _repeated(value: Any, kind: pa.DataType, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), times)
