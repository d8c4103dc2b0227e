"""What a merge means: source rows meet target rows on a key, and a write says what becomes of each group.

    matched   target rows whose key the source has, too     KEEP | UPDATE
    new       source rows whose key no target row has       INSERT | SKIP
    rest      target rows whose key the source has not      KEEP | DELETE

Everything here is decided without touching a row. An engine finds the matches and writes the files; it never asks
which strategy it serves.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.dataset.changes import Counts, Receipt
from penstock.core.names import check_columns
from penstock.core.merge.key_ranges import Reach
from penstock.core.dataset.column_stats import Bounds
from penstock.core.schema.type_widening import unified
from penstock.errors import Invalid

BATCH_ROWS = 128 << 10  # rows of the target that are held at once


class Matched(Enum):
    KEEP = "keep"
    UPDATE = "update"


class New(Enum):
    INSERT = "insert"
    SKIP = "skip"


class Rest(Enum):
    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Write:
    matched: Matched = Matched.KEEP
    new: New = New.INSERT
    rest: Rest = Rest.KEEP
    deduplicates: bool = False  # of several source rows with one key the highest is taken; otherwise they are refused


STRATEGIES: dict[str, Write] = {
    "upsert": Write(matched=Matched.UPDATE),
    "insert": Write(),
    "update": Write(matched=Matched.UPDATE, new=New.SKIP),
    "full_merge": Write(matched=Matched.UPDATE, rest=Rest.DELETE),
    "deduplicate": Write(matched=Matched.UPDATE, deduplicates=True),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One merge, with every name and type settled."""

    write: Write
    keys: tuple[str, ...]
    schema: pa.Schema  # of the rows afterwards; dictionaries appear as the values that they stand for
    given: tuple[str, ...]  # the columns that the source brings; the others keep the target's value, or become NULL
    order_by: tuple[str, ...] = ()  # for deduplication, the weightiest first
    partitions: tuple[str, ...] = ()  # columns whose values are in the names of folders
    row_ids: bool = False  # are rows known by number, and is the number carried into rewritten files?
    batch_rows: int = BATCH_ROWS

    @property
    def source_schema(self) -> pa.Schema:
        """What an engine gets as the source: exactly these columns, in this order."""
        return pa.schema([self.schema.field(name) for name in self.given])

    @property
    def rewrites(self) -> bool:
        """Are whole rows of the target written again, beside those that the source brings?"""
        return self.write.matched is Matched.UPDATE and self.keeps_columns

    @property
    def keeps_columns(self) -> bool:
        """Do target rows give anything but their key to the result?"""
        return self.write.rest is Rest.KEEP or set(self.given) != set(self.schema.names)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a Parquet file is to be laid out: as its predecessor was."""

    schema: pa.Schema  # what is stored, in order: partition columns are not; `_rowid` is, where ids are carried
    codec: str = "zstd"  # pyarrow's word for it
    group_rows: int = 128 << 10
    options: Mapping[str, Any] = field(default_factory=dict)  # more that pyarrow's writer should do
    differences: bool = False  # may whole numbers be told by what they add to the one before? Not all readers know it


@dataclass(frozen=True, slots=True)
class TargetFile:
    path: str  # where it can be opened
    rows: int
    layout: Layout
    parts: Mapping[str, Any] = field(default_factory=dict)  # what its folder says of the partition columns
    bounds: Bounds = field(default_factory=dict)  # of its key columns, as far as they are known
    first_row_id: int | None = None  # with row ids: row i has first_row_id + i; None: the file carries them

    def __hash__(self) -> int:
        return hash(self.path)


class Sink(Protocol):
    """Where an engine's new files go. Paths are given out once; a file that is written in the end is `Output`."""

    layout: Layout  # of files with new rows
    file_bytes: int  # a file with new rows is closed when it reaches this size

    def path(self) -> str:
        """A path for a new file, in a folder that exists."""
        ...

    def folder(self) -> str:
        """A path for a folder that does not exist yet, for engines that write folders."""
        ...

    def beat(self, rows: int) -> None:
        """Hears how many rows were written since it last heard; may raise to stop the work."""
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """A file that an engine has written and closed."""

    path: str
    rows: int
    replaces: TargetFile | None = None  # the one file whose rows these are, where there is one
    parts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """What meets what."""

    found: Mapping[str, int]  # path of a file → its rows whose key the source has; files without any are left out
    new: int  # source rows whose key no file has
    rows: int  # source rows, once duplicates are gone


class Session(Protocol):
    """A source in an engine's hands, checked: no NULL in a key, no key twice. Ends with `close`."""

    reach: Reach  # where the source's keys lie: files beyond it need not be opened

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        """How many rows of the files have NULL in which key column; columns without any are left out."""
        ...

    def match(self, files: Sequence[TargetFile]) -> Match:
        """Find which rows of the files have a source key. Reads key columns alone."""
        ...

    def write(self, work: "Work", sink: Sink) -> list[Output]:
        """Write the rewritten files and the new rows of the last match."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    name: str

    def open(self, plan: Plan, source: Any) -> Session:
        """Take in the source: an Arrow table in `plan.source_schema`, or a frame of the engine's own."""
        ...

    def refuses(self, schema: pa.Schema) -> str | None:
        """Why files of this schema are not for this engine (which column, which type), if they are not."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a match comes to: which files are written anew, which go, and what is counted."""

    rewrite: tuple[TargetFile, ...]
    drop: tuple[TargetFile, ...]  # no row of theirs is left
    insert: bool  # are there new rows to write?
    counts: Counts
    before: int
    after: int
    deletes: bool = False  # do rows go that the source does not know?

    @property
    def empty(self) -> bool:
        return not (self.rewrite or self.drop or self.insert)

    def assert_written(self, rows: int) -> None:
        """What an engine wrote, in rows, must be what was counted: before anything is put in place."""
        change = rows - sum(file.rows for file in (*self.rewrite, *self.drop))
        if change != self.counts.inserted - self.counts.deleted:
            raise AssertionError(f"an engine counted {self.counts}, and wrote {change:+} rows")

    def stats(self, strategy: str) -> dict[str, int]:
        return compute_merge_stats(
            strategy=strategy,
            target_before=self.before,
            target_after=self.after,
            inserted=self.counts.inserted,
            updated=self.counts.updated,
            deleted=self.counts.deleted,
        )


Progress = Callable[[str, int, int], None]  # hears the stage, how much of it is done, and how much there is


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did, or would do."""

    stats: dict[str, int]
    rewritten: tuple[str, ...] = ()  # files of the target that are replaced
    dropped: tuple[str, ...] = ()  # files that go, and leave nothing
    kept: int = 0  # how many files stay as they are
    engine: str = ""
    receipt: Receipt | None = None  # of a dataset's new version


def decide(plan: Plan, files: Sequence[TargetFile], match: Match, *, before: int, whole: bool = False) -> Work:
    """What is to be done about these files. `before`: rows of the whole target; `whole`: every file is written anew.

    An empty source changes nothing, unless what it lacks is to be deleted.
    """
    write = plan.write
    found = sum(match.found.values())
    updated = found if write.matched is Matched.UPDATE else 0
    inserted = match.new if write.new is New.INSERT else 0
    deleted = before - found if write.rest is Rest.DELETE else 0
    drop: tuple[TargetFile, ...] = ()
    if write.rest is Rest.DELETE:
        drop = tuple(f for f in files if f.path not in match.found)
    rewrite: tuple[TargetFile, ...] = ()
    if whole and (before or inserted):
        drop = (*drop, *(f for f in files if not f.rows and f not in set(drop)))
        rewrite = tuple(f for f in files if f not in set(drop))
    elif updated or deleted:
        rewrite = tuple(f for f in files if f.path in match.found)
    return Work(
        rewrite=rewrite,
        drop=drop,
        insert=inserted > 0,
        counts=Counts(inserted, updated, deleted),
        before=before,
        after=before + inserted - deleted,
        deletes=write.rest is Rest.DELETE,
    )


def plan(
    source: pa.Schema,
    target: pa.Schema | None,
    key_columns: str | Sequence[str],
    strategy: str = "upsert",
    *,
    dedup_order_by: str | Sequence[str] | None = None,
    add_columns: bool = False,
    partitions: Sequence[str] = (),
    row_ids: bool = False,
    batch_rows: int = BATCH_ROWS,
) -> Plan:
    """Settle a merge of such a source into such a target (None: there is none yet), or refuse it."""
    keys = normalize_keys(key_columns)
    write = strategy_named(strategy)
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise Invalid("bad_batch_rows", f"batch_rows is {batch_rows!r}; it is a number of rows, 1 or more")
    check_columns(source.names, reserved=row_ids)
    validate_keys_and_schema(source, target, keys)
    order_by = _order_by(dedup_order_by, source, write, strategy)
    schema = _decoded(source if target is None else unify_schemas(source, target))
    if target is not None and not add_columns and (extra := [n for n in source.names if n not in target.names]):
        raise Invalid(
            "extra_columns",
            f"the source has columns that the target lacks: {_listed(extra)}; the target has {_listed(target.names)} "
            "(add_columns=True, or --add-columns, adds them)",
            extra_columns=extra,
            columns=target.names,
        )
    if nothing := [f.name for f in schema if pt.is_null(f.type) and f.name in source.names]:
        raise Invalid(
            "type_not_kept",
            f"column {nothing[0]!r} of the source holds nothing but NULL, so its type is not known; cast it to the type "
            "that it should have",
            column=nothing[0],
        )
    given = tuple(name for name in schema.names if name in source.names)
    if write.new is New.INSERT:
        for missing in schema:
            if missing.name not in given and not missing.nullable:
                raise Invalid(
                    "missing_column",
                    f"column {missing.name!r} is required, and the source lacks it: new rows could not be inserted",
                    column=missing.name,
                )
    return Plan(write, tuple(keys), schema, given, order_by, tuple(partitions), row_ids, batch_rows)


def strategy_named(strategy: str) -> Write:
    try:
        return STRATEGIES[strategy]
    except (KeyError, TypeError):
        raise Invalid(
            "unknown_strategy", f"{strategy!r} is no strategy; there are {_listed(list(STRATEGIES))}"
        ) from None


def normalize_keys(key_columns: str | Sequence[str]) -> list[str]:
    """The names of the key columns: blanks trimmed, duplicates dropped, at least one."""
    given: list[Any] = [key_columns]
    if isinstance(key_columns, Iterable) and not isinstance(key_columns, str | bytes):
        given = list(key_columns)
    if not all(isinstance(name, str) for name in given):
        raise Invalid("bad_keys", f"key_columns is {key_columns!r}; it is the name of a column, or a list of names")
    keys = list(dict.fromkeys(name.strip() for name in given))
    if not keys or "" in keys:
        raise Invalid("bad_keys", "key_columns is empty; name at least one column that tells rows apart")
    return keys


def validate_keys_and_schema(
    source_schema: pa.Schema, target_schema: pa.Schema | None, key_columns: Sequence[str]
) -> None:
    """Are the keys in both schemas, with types that can be compared, and do all common columns fit together?"""
    keys = normalize_keys(key_columns)
    for side, schema in (("source", source_schema), ("target", target_schema)):
        if schema is None:
            continue
        if missing := [key for key in keys if key not in schema.names]:
            raise Invalid(
                "no_key_column",
                f"key columns are missing in the {side}: {_listed(missing)}; it has {_listed(schema.names)}",
                side=side,
                missing=missing,
                columns=schema.names,
            )
        for key in keys:
            kind = schema.field(key).type
            odd = pt.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)
            if odd or (pt.is_null(kind) and side == "target"):
                raise Invalid(
                    "bad_key_type",
                    f"key column {key!r} of the {side} is {kind}; a key is a number, text, bytes, a date or a time",
                    side=side,
                    column=key,
                )
    if target_schema is not None:
        unify_schemas(source_schema, target_schema)


def unify_schemas(source_schema: pa.Schema, target_schema: pa.Schema) -> pa.Schema:
    """The target's columns in their order, widened where the source needs it; then the columns that it lacks."""
    fields = []
    for old in target_schema:
        if old.name not in source_schema.names:
            fields.append(old)
            continue
        new = source_schema.field(old.name)
        kind = unified(old.type, new.type)
        if kind is None:
            raise Invalid(
                "type_mismatch",
                f"column {old.name!r} is {old.type} in the target and {new.type} in the source, and no type holds "
                f"both: cast the source's column to {old.type}",
                column=old.name,
                expected=str(old.type),
                actual=str(new.type),
            )
        fields.append(old.with_type(kind))
    added = [f.with_nullable(True).remove_metadata() for f in source_schema if f.name not in target_schema.names]
    check_columns([field.name for field in (*fields, *added)], reserved=False)
    return pa.schema([*fields, *added], metadata=target_schema.metadata)


def compute_merge_stats(
    *, strategy: str, target_before: int, target_after: int, inserted: int, updated: int, deleted: int
) -> dict[str, int]:
    """What a merge answers. The counts must add up."""
    strategy_named(strategy)
    counts = {"inserted": inserted, "updated": updated, "deleted": deleted, "total": target_after}
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in (*counts.values(), target_before)):
        raise Invalid("bad_counts", f"the counts of a merge are whole numbers, 0 or more: {counts}")
    if target_before + inserted - deleted != target_after:
        raise Invalid(
            "bad_counts",
            f"the counts do not add up: {target_before} rows, {inserted} inserted and {deleted} deleted "
            f"do not leave {target_after}",
        )
    return counts


def null_keys(side: str, counts: Mapping[str, int]) -> Invalid:
    """The refusal of NULL in a key. `counts`: how many, for each key column that has some."""
    told = ", ".join(f"{count:,} in column {name!r}" for name, count in counts.items())
    return Invalid(
        "null_keys",
        f"the {side} has NULL in its key: {told}; a key needs a value in every row: remove those rows or fill them",
        side=side,
        nulls=dict(counts),
    )


def duplicate_keys(keys: Sequence[str], rows: int, example: Sequence[Any]) -> Invalid:
    """The refusal of a source in which a key stands twice. `rows`: how many stand in the way."""
    shown = ", ".join(f"{name}={str(value)[:80]!r}" for name, value in zip(keys, example, strict=True))
    return Invalid(
        "duplicate_keys",
        f"the source has {rows:,} {'row' if rows == 1 else 'rows'} whose key stood there before, such as {shown}; "
        "which one counts would be chance: use strategy 'deduplicate', or make the keys unique",
        rows=rows,
    )


def _order_by(given: str | Sequence[str] | None, source: pa.Schema, write: Write, strategy: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if not write.deduplicates:
        raise Invalid(
            "order_not_wanted",
            f"dedup_order_by goes with strategy 'deduplicate'; strategy {strategy!r} has no use for it",
        )
    names = [given] if isinstance(given, str) else list(given)
    names = list(dict.fromkeys(name.strip() for name in names))
    if unknown := [name for name in names if name not in source.names]:
        raise Invalid(
            "no_such_column",
            f"dedup_order_by names columns that the source lacks: {_listed(unknown)}; it has {_listed(source.names)}",
            missing=unknown,
        )
    for name in names:
        if pt.is_nested(source.field(name).type):
            raise Invalid(
                "bad_order", f"dedup_order_by: column {name!r} is {source.field(name).type}, which has no order"
            )
    return tuple(names)


def _decoded(schema: pa.Schema) -> pa.Schema:
    """The schema with the types that are worked in: values for dictionaries, plain text and bytes for views."""
    return pa.schema([pa.field(f.name, _worked_in(f.type), f.nullable) for f in schema])


def _worked_in(kind: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(kind):
        return _worked_in(kind.value_type)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in list(names)[:20]) + (" and more" if len(names) > 20 else "")
