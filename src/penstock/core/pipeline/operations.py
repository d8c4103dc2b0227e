"""What a pipeline does to its working dataset, one operation after the other: appends and merges, as frozen data.

    operation(value, place)              JSON as an operation, or the first thing that is wrong with its shape
    checked(operation, source, working)  the operation with every column and type settled, for an engine
    envelope(error), success(…)          what the caller is told, as JSON

A shape error needs nothing but the JSON. Everything else is found in one order, before any row is read: the dataset,
its version, the selector, the columns that group, each aggregate (its column, function and input), columns that the
working dataset lacks, and at last the types.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar
from uuid import UUID

import pyarrow as pa

from penstock.core import merge as merging
from penstock.core import selector as selectors
from penstock.core.pipeline.aggregates import Aggregate, Function, aggregate, result_type
from penstock.core.dataset.changes import Counts
from penstock.core.names import MAX_COLUMNS, unstorable, uuid
from penstock.core.schema.canonical import widens
from penstock.errors import Invalid, NotFound, PenstockError

MAX_ALIAS = 255
MAX_TEXT = 10_000  # characters of the name of a column, or of an aggregate; a selector has its own limit
MAX_WHOLE = 2**63 - 1

# Every code and its sentence, which clients know. A column that a selector names and nobody has is told otherwise.
MESSAGES = {
    "append_000": "Invalid append operation",
    "append_001": "Dataset not found",
    "append_002": "Dataset version not found",
    "append_003": "Appended rows contain columns not in working dataset",
    "append_004": "Failed to parse source_selector expression",
    "append_005": "Invalid aggregation function",
    "append_006": "Column referenced in aggregation not found in source dataset",
    "append_007": "Column types do not match",
    "merge_000": "Invalid merge operation",
    "merge_001": "Dataset not found",
    "merge_002": "Dataset version not found",
    "merge_003": "Key columns do not match",
    "merge_004": "Schemas do not match",
    "merge_005": "Key columns contain NULL",
    "merge_006": "Source rows contain duplicate keys",
    "merge_007": "Failed to parse source_selector expression",
}
NO_SUCH_COLUMN = "Column referenced in expression not found in source dataset"


@dataclass(frozen=True, slots=True)
class Ref:
    dataset: UUID
    version: int | None = None  # None: the newest

    def as_json(self) -> dict[str, Any]:
        return {"dataset_id": str(self.dataset)} | _present(dataset_version=self.version)


@dataclass(frozen=True, slots=True)
class Append:
    type: ClassVar[str] = "append"

    order: int
    alias: str | None
    source: Ref
    selector: str | None = None
    group_by: tuple[str, ...] = ()  # empty: the rows are appended as they are
    aggregates: tuple[Aggregate, ...] = ()

    def as_json(self) -> dict[str, Any]:
        aggregation = {
            "group_by": list(self.group_by),
            "aggregations": [{"column": each.column, "expression": each.expression} for each in self.aggregates],
        }
        parameters = {"source": self.source.as_json()} | _present(
            source_selector=self.selector, aggregation=aggregation if self.group_by else None
        )
        return {"type": self.type, "order": self.order, **_present(alias=self.alias), "parameters": parameters}


@dataclass(frozen=True, slots=True)
class Merge:
    type: ClassVar[str] = "merge"

    order: int
    alias: str | None
    source: Ref
    selector: str | None
    keys: tuple[str, ...]
    strategy: str
    dedup_order_by: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        parameters = {
            "source": self.source.as_json(),
            **_present(source_selector=self.selector),
            "key_columns": list(self.keys),
            "strategy": self.strategy,
            **_present(dedup_order_by=list(self.dedup_order_by) or None),
        }
        return {"type": self.type, "order": self.order, **_present(alias=self.alias), "parameters": parameters}


Operation: TypeAlias = Append | Merge
Otherwise = TypeVar("Otherwise")
TYPES = (Append.type, Merge.type)


# -- reading ----------------------------------------------------------------------------------------------------------


def operation(value: Any, place: int) -> Operation:
    """The operation that JSON describes. `place`: its index in the list, which is its order unless it says otherwise."""
    found, faults = examined(value, place)
    if found is None:
        raise faults[0]
    return found


def examined(value: Any, place: int) -> tuple[Operation | None, list[Invalid]]:
    """The operation, or everything that is wrong with its shape."""
    members = Members(value, required=("parameters",), optional=None)
    order = members.whole("order", 0, place)
    type = members.get("type")
    if type not in TYPES:
        named = ascii(type[:60]) if isinstance(type, str) else "this"
        refusal = Invalid(
            "unknown_operation",
            f"{named} is no operation; the types of operations are {' and '.join(TYPES)}",
            pointer="/type" if isinstance(value, dict) else "",
            types=list(TYPES),
            operation_order=order,
        )
        return None, [refusal]
    alias = members.text("alias", MAX_ALIAS) if "alias" in members else None
    found = _append(members, order, alias) if type == Append.type else _merge(members, order, alias)
    reason = f"{type}_000"
    faults = [
        Invalid(reason, MESSAGES[reason], pointer=pointer, problem=problem, operation_order=order)
        for pointer, problem in members.faults
    ]
    return None if faults else found, faults


class Members:
    """A JSON object that is being read. What is wrong is noted, by JSON pointer, and a stand-in is read instead."""

    def __init__(
        self,
        value: Any,
        pointer: str = "",
        faults: list[tuple[str, str]] | None = None,
        *,
        required: Sequence[str] = (),
        optional: Sequence[str] | None = (),  # None: others are let pass
    ) -> None:
        self.pointer = pointer
        self.faults: list[tuple[str, str]] = [] if faults is None else faults
        self._given: dict[str, Any] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            self.faults.append((pointer, "must be an object"))
            return
        for name in required:
            if name not in value:
                self.fault(name, "is missing")
        if optional is not None:
            known = (*required, *optional)
            for name in value:
                if name not in known:
                    self.fault(_token(name), f"is no member here; there are {', '.join(known)}")

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> Any:
        return self._given.get(name)

    def fault(self, path: str, problem: str) -> None:
        self.faults.append((f"{self.pointer}/{path}", problem))

    def inner(self, name: str, *, required: Sequence[str], optional: Sequence[str] = ()) -> "Members":
        if name not in self:  # noted before, if it is required
            return Members({})
        return Members(self.get(name), f"{self.pointer}/{name}", self.faults, required=required, optional=optional)

    def ref(self, name: str) -> Ref:
        members = self.inner(name, required=("dataset_id",), optional=("dataset_version",))
        version = members.whole("dataset_version", 1, None)
        given = members.get("dataset_id")
        if isinstance(given, str) and (id := uuid(given)):
            return Ref(id, version)
        if "dataset_id" in members:
            members.fault("dataset_id", "must be a UUID, such as 550e8400-e29b-41d4-a716-446655440000")
        return Ref(UUID(int=0), version)

    def text(self, name: str, most: int | None = MAX_TEXT) -> str:
        return str(self.get(name)) if name in self and self._is_text(name, self.get(name), most) else ""

    def texts(self, name: str) -> list[str]:
        return [item for place, item in enumerate(self.items(name)) if self._is_text(f"{name}/{place}", item)]

    def names(self, name: str) -> tuple[str, ...]:
        """One name or a list of names: blanks trimmed, duplicates dropped."""
        given = self.get(name)
        one = isinstance(given, str)
        listed = enumerate([given] if one else self.items(name))
        words = [word for place, word in listed if self._is_text(name if one else f"{name}/{place}", word)]
        names = tuple(dict.fromkeys(word.strip() for word in words))
        if "" in names:
            self.fault(name, "names a column by nothing but blanks")
        return names

    def items(self, name: str, most: int = MAX_COLUMNS) -> list[Any]:
        given = self.get(name)
        if not isinstance(given, list):
            if name in self:
                self.fault(name, "must be a list")
            return []
        if not given:
            self.fault(name, "must not be empty")
        if len(given) > most:
            self.fault(name, f"has {len(given):,} items; at most {most:,} are allowed")
        return given[:most]

    def whole(self, name: str, least: int, otherwise: Otherwise) -> int | Otherwise:
        match self.get(name):
            case bool():
                pass
            case int() | float() as number if least <= number <= MAX_WHOLE and number == int(number):
                return int(number)  # 2.0 is an integer to JSON Schema
        if name in self:
            self.fault(name, f"must be a whole number from {least} to {MAX_WHOLE}")
        return otherwise

    def _is_text(self, path: str, value: Any, most: int | None = MAX_TEXT) -> bool:
        if not isinstance(value, str):
            self.fault(path, "must be text")
        elif most is not None and len(value) > most:
            self.fault(path, f"has {len(value):,} characters; at most {most:,} are allowed")
        elif unstorable(value):
            self.fault(path, "holds NUL or half a character, which cannot be kept")
        else:
            return True
        return False


def _append(members: Members, order: int, alias: str | None) -> Append:
    parameters = members.inner("parameters", required=("source",), optional=("source_selector", "aggregation"))
    source, selector = parameters.ref("source"), _selector(parameters)
    aggregation = parameters.inner("aggregation", required=("group_by", "aggregations"))
    places: dict[str, Any] = {}  # where a column is named that the rows are to have
    for place, column in enumerate(group_by := aggregation.texts("group_by")):
        places[f"group_by/{place}"] = column
    aggregates = []
    for place, item in enumerate(aggregation.items("aggregations")):
        path = f"aggregations/{place}"
        each = Members(item, f"{aggregation.pointer}/{path}", members.faults, required=("column", "expression"))
        aggregates.append(aggregate(each.text("column"), each.text("expression")))
        places[f"{path}/column"] = each.get("column")
    if not members.faults:
        _refuse_repeated(aggregation, places)
    return Append(order, alias, source, selector, tuple(group_by), tuple(aggregates))


def _refuse_repeated(aggregation: Members, places: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for path, column in places.items():
        if first.setdefault(column, path) != path:
            aggregation.fault(path, f"column {column[:60]!a} is there before, as {first[column]}")


def _merge(members: Members, order: int, alias: str | None) -> Merge:
    parameters = members.inner(
        "parameters", required=("source", "key_columns", "strategy"), optional=("source_selector", "dedup_order_by")
    )
    source, selector = parameters.ref("source"), _selector(parameters)
    keys, order_by = parameters.names("key_columns"), parameters.names("dedup_order_by")
    given = parameters.get("strategy")
    strategy = given if isinstance(given, str) else ""
    if strategy in merging.STRATEGIES:
        if order_by and not merging.STRATEGIES[strategy].deduplicates:
            parameters.fault("dedup_order_by", f"goes with strategy 'deduplicate'; {strategy!r} has no use for it")
    elif "strategy" in parameters:
        parameters.fault("strategy", f"must be one of {', '.join(merging.STRATEGIES)}")
    return Merge(order, alias, source, selector, keys, strategy, order_by)


def _selector(parameters: Members) -> str | None:
    """The text alone: its length and its grammar are judged in their turn."""
    return parameters.text("source_selector", None) if "source_selector" in parameters else None


def _token(name: str) -> str:
    """A member's name as a part of a JSON pointer, safe to print."""
    escaped = name[:60].replace("~", "~0").replace("/", "~1")
    return escaped.encode("utf-8", "backslashreplace").decode()


def _present(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


# -- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Computed:
    """An aggregate with its type settled."""

    function: Function
    input: str | None  # a column of the source; None: the rows themselves
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a column of the working dataset gets its new values."""

    column: str
    type: pa.DataType  # what they are cast to; nothing is lost, or the operation fails
    origin: str | Computed | None  # a column of the source, an aggregate, or nothing: NULL


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    selector: selectors.Node | None  # bound; None: every row
    group_by: tuple[str, ...]  # columns of the source; NULL is a group too; empty: rows are taken as they are
    aggregates: tuple[Computed, ...]
    feeds: tuple[Feed, ...]  # one for each working column, in order
    working: pa.Schema  # the working dataset's schema afterwards


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    selector: selectors.Node | None
    keys: tuple[str, ...]
    strategy: str
    dedup_order_by: tuple[str, ...]
    columns: tuple[str, ...]  # that the source brings, in the working dataset's order
    working: pa.Schema  # afterwards: a merge may widen it


Planned: TypeAlias = PlannedAppend | PlannedMerge


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The rows that an operation reads: files of one version of its source."""

    schema: pa.Schema  # of that version; older files may lack columns (they are NULL) or hold narrower types
    paths: tuple[str, ...]  # where they can be opened; files that cannot hold a wanted row are left out
    rows: int
    bytes: int


def dataset_not_found(operation: Operation) -> NotFound:
    return _missing(operation, "001", dataset_id=str(operation.source.dataset))


def version_not_found(operation: Operation, newest: int) -> NotFound:
    ref = operation.source
    facts = {"requested_version": ref.version, "actual_version": newest}
    return _missing(operation, "002", dataset_id=str(ref.dataset), **facts)


def checked(operation: Operation, source: pa.Schema, working: pa.Schema) -> Planned:
    """The operation with every column and type settled, or the first reason why it cannot be done."""
    if isinstance(operation, Append):
        return _checked_append(operation, source, working)
    return _checked_merge(operation, source, working)


def translated(operation: Operation, refusal: Invalid) -> Invalid:
    """What the core or an engine refused, in the words of the operation; what has no such words stays as it is."""
    number = _CODES[operation.type].get(refusal.reason)
    if number is None:
        return refusal
    return _refused(operation, number, problem=refusal.message, **refusal.context)


_ROWS = ("value_does_not_fit", "null_in_required_column")  # what the schemas allow, and the rows do not
_CODES: dict[str, dict[str, str]] = {
    "append": dict.fromkeys(_ROWS, "007"),
    "merge": {
        **dict.fromkeys(("no_key_column", "bad_key_type"), "003"),
        **dict.fromkeys(
            ("type_mismatch", "extra_columns", "missing_column", "no_such_column", "bad_order", "doubled_column_name"),
            "004",
        ),
        **dict.fromkeys(_ROWS, "004"),
        "null_keys": "005",
        "duplicate_keys": "006",
    },
}


def _checked_append(operation: Append, source: pa.Schema, working: pa.Schema) -> PlannedAppend:
    selector = _bound(operation, source, unparsed="004", no_column="006")
    for column in operation.group_by:
        _in_source(operation, column, "group_by", source)
    _in_working(operation, operation.group_by, working)
    for each in operation.aggregates:
        _in_working(operation, [each.column], working)
        if each.function is None:
            facts = {"expression": each.expression, "supported_functions": [str(known) for known in Function]}
            raise _refused(operation, "005", **facts)
        if each.input is not None:
            _in_source(operation, each.input, "aggregation", source)
    brought = operation.group_by or tuple(source.names)
    _in_working(operation, brought, working)
    outputs = {each.column: each for each in operation.aggregates}
    feeds = tuple(
        _aggregated(operation, outputs[field.name], field, source)
        if field.name in outputs
        else _copied(operation, field, source if field.name in brought else pa.schema([]))
        for field in working
    )
    origins = {feed.column: feed.origin for feed in feeds}
    computed = tuple(origin for name in outputs if isinstance(origin := origins[name], Computed))
    return PlannedAppend(selector, operation.group_by, computed, feeds, working)


def _checked_merge(operation: Merge, source: pa.Schema, working: pa.Schema) -> PlannedMerge:
    selector = _bound(operation, source, unparsed="007", no_column="007")
    keys, order_by = operation.keys, operation.dedup_order_by
    try:
        plan = merging.plan(source, working, keys, operation.strategy, dedup_order_by=order_by or None)
    except Invalid as refusal:
        raise translated(operation, refusal) from None
    return PlannedMerge(selector, plan.keys, operation.strategy, plan.order_by, plan.given, plan.schema)


def _bound(operation: Operation, source: pa.Schema, *, unparsed: str, no_column: str) -> selectors.Node | None:
    if operation.selector is None:
        return None
    try:
        return selectors.bind(selectors.parse(operation.selector), source)
    except Invalid as refusal:
        facts = refusal.context
        if refusal.reason == "no_such_column":
            raise _no_column(operation, no_column, NO_SUCH_COLUMN, facts["column"], "source_selector", source) from None
        text = facts.get("expression", operation.selector)  # one that is too long was cut
        raise _refused(operation, unparsed, expression=text, parse_error=facts["parse_error"]) from None


def _in_source(operation: Append, column: str, context: str, source: pa.Schema) -> None:
    if column not in source.names:
        raise _no_column(operation, "006", MESSAGES["append_006"], column, context, source)


def _in_working(operation: Append, columns: Iterable[str], working: pa.Schema) -> None:
    if extra := sorted(set(columns) - set(working.names)):
        raise _refused(operation, "003", extra_columns=extra, working_columns=list(working.names))


def _copied(operation: Append, field: pa.Field, brought: pa.Schema) -> Feed:
    if field.name in brought.names:
        given = brought.field(field.name).type
        if not widens(given, field.type):
            raise _mismatch(
                operation, field, given, f"{given} does not widen to {field.type}; cast the source's column"
            )
        return Feed(field.name, field.type, field.name)
    if not field.nullable:
        raise _mismatch(operation, field, None, "the column is required, and the appended rows lack it")
    return Feed(field.name, field.type, None)


def _aggregated(operation: Append, each: Aggregate, field: pa.Field, source: pa.Schema) -> Feed:
    assert each.function is not None  # refused before
    given = None if each.input is None else source.field(each.input).type
    result = result_type(each.function, given, field.type)
    if result is None:
        raise _mismatch(operation, field, given, f"{each.function} cannot be computed of {given}")
    if not widens(result, field.type):
        raise _mismatch(
            operation, field, result, f"{each.expression} is {result}, which does not widen to {field.type}"
        )
    return Feed(field.name, field.type, Computed(each.function, each.input, result))


def _mismatch(operation: Append, field: pa.Field, given: pa.DataType | None, problem: str) -> Invalid:
    types = {"source_type": None if given is None else str(given), "working_type": str(field.type)}
    return _refused(operation, "007", column=field.name, **types, problem=problem)


def _no_column(
    operation: Operation, number: str, message: str, column: str, context: str, source: pa.Schema
) -> Invalid:
    facts = {"column": column, "context": context, "source_columns": list(source.names)}
    return Invalid(f"{operation.type}_{number}", message, **facts, operation_order=operation.order)


def _refused(operation: Operation, number: str, **facts: Any) -> Invalid:
    reason = f"{operation.type}_{number}"
    return Invalid(reason, MESSAGES[reason], **facts, operation_order=operation.order)


def _missing(operation: Operation, number: str, **facts: Any) -> NotFound:
    reason = f"{operation.type}_{number}"
    return NotFound(reason, MESSAGES[reason], **facts, operation_order=operation.order)


# -- answering --------------------------------------------------------------------------------------------------------


def envelope(error: PenstockError) -> dict[str, Any]:
    return {"error": {"code": error.reason.upper(), "message": error.message, "details": dict(error.context)}}


def success(operation: Operation, counts: Counts, rows_before: int, milliseconds: int) -> dict[str, Any]:
    rows_after = rows_before + counts.inserted - counts.deleted
    source = {"source_dataset_id": str(operation.source.dataset)}
    common = {
        "working_dataset_rows_before": rows_before,
        "working_dataset_rows_after": rows_after,
        "execution_time_ms": milliseconds,
    }
    filtered = {"filtered": operation.selector is not None}
    if isinstance(operation, Append):
        aggregated = {"aggregated": bool(operation.group_by)}
        result = {"rows_appended": counts.inserted, **source, **common, **aggregated, **filtered}
    else:
        merged = {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
        result = {**merged, "total": rows_after, **source, **common, **filtered}
    return {"success": True, "operation": operation.type, "order": operation.order, "result": result}
