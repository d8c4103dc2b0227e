"""Plan a pipeline operation: resolve every column and type before a row is read.

Errors are found in a fixed order: the dataset, its version, the selector, the grouping columns, each aggregate (its
column, function and input), columns that the working dataset lacks, and finally the types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core import merge as core_merge
from penstock.core import selector as core_selector
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.formatting import format_value
from penstock.core.pipeline.aggregates import Aggregate, Function, result_type
from penstock.core.pipeline.operations import AppendOperation, MergeOperation, Operation, describe_operation
from penstock.core.pipeline.responses import COLUMN_NOT_FOUND_MESSAGE, MESSAGES
from penstock.core.schema.compatibility import can_widen
from penstock.errors import Invalid, NotFound, PenstockError


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """An aggregate with a resolved type."""

    function: Function
    input: str | None  # a source column; None: the rows themselves
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Source of the new values of a working column."""

    column: str
    type: pa.DataType  # values are cast to it without loss, or the operation fails
    origin: str | AggregateColumn | None  # a source column, an aggregate, or None for NULL


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    selector: core_selector.Node | None  # bound; None: every row
    group_by: tuple[str, ...]  # source columns; NULL is a group; empty: rows are appended unchanged
    aggregates: tuple[AggregateColumn, ...]
    feeds: tuple[ColumnSource, ...]  # one per working column, in order
    working: pa.Schema  # schema of the working dataset afterwards


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    selector: core_selector.Node | None
    keys: tuple[str, ...]
    strategy: str
    dedup_order_by: tuple[str, ...]
    columns: tuple[str, ...]  # source columns, in the working dataset's order
    working: pa.Schema  # schema afterwards: a merge may widen it


Planned: TypeAlias = PlannedAppend | PlannedMerge


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Data files of one version of an operation's source."""

    schema: pa.Schema  # of that version; older files may lack columns (read as NULL) or have narrower types
    paths: tuple[str, ...]  # files that can be opened, without those whose statistics exclude every selected row
    rows: int  # without deleted ones
    bytes: int
    deleted: Mapping[str, DeletionVector] = field(default_factory=dict)  # path of a file → its deleted rows

    @property
    def stored_rows(self) -> int:
        """Return the number of rows with the deleted ones."""
        return self.rows + sum(map(len, self.deleted.values()))


def dataset_not_found(operation: Operation) -> NotFound:
    """Return the error for an unknown source dataset."""
    return _not_found_error(operation, "001", dataset_id=str(operation.source.dataset))


def version_not_found(operation: Operation, newest: int) -> NotFound:
    """Return the error for an unknown version of the source dataset."""
    ref = operation.source
    facts = {"requested_version": ref.version, "actual_version": newest}
    return _not_found_error(operation, "002", dataset_id=str(ref.dataset), **facts)


def plan_operation(operation: Operation, source: pa.Schema, working: pa.Schema) -> Planned:
    """Resolve every column and type of an operation.

    Raises:
        Invalid: the first error
    """
    if isinstance(operation, AppendOperation):
        return _plan_append(operation, source, working)
    return _plan_merge(operation, source, working)


def translate_error(operation: Operation, error: PenstockError) -> PenstockError:
    """Translate an error of the core or an engine to the operation's code; others get the operation's order."""
    number = _CODE_NUMBERS[operation.type].get(error.reason)
    if number is None:
        return type(error)(error.reason, error.message, **{**error.context, **_describe(operation)})
    return _operation_error(operation, number, problem=error.message, **error.context)


_ROW_ERRORS = ("value_does_not_fit", "null_in_required_column")  # errors in rows that the schemas do not reveal
_CODE_NUMBERS: dict[str, dict[str, str]] = {
    "append": dict.fromkeys(_ROW_ERRORS, "007"),
    "merge": {
        **dict.fromkeys(("missing_key_column", "bad_key_type"), "003"),
        **dict.fromkeys(
            (
                "type_mismatch",
                "extra_columns",
                "missing_column",
                "column_not_found",
                "bad_order",
                "duplicate_column_name",
            ),
            "004",
        ),
        **dict.fromkeys(_ROW_ERRORS, "004"),
        "null_keys": "005",
        "duplicate_keys": "006",
    },
}


def _plan_append(operation: AppendOperation, source: pa.Schema, working: pa.Schema) -> PlannedAppend:
    selector = _bind_selector(operation, source, parse_code="004", column_code="006")
    for column in operation.group_by:
        _check_source_column(operation, column, "group_by", source)
    _check_working_columns(operation, operation.group_by, working)
    for aggregate in operation.aggregates:
        _check_working_columns(operation, [aggregate.column], working)
        if aggregate.function is None:
            facts = {
                "expression": aggregate.expression,
                "supported_functions": [str(function) for function in Function],
            }
            raise _operation_error(operation, "005", **facts)
        if aggregate.input is not None:
            _check_source_column(operation, aggregate.input, "aggregation", source)
    columns = operation.group_by or tuple(source.names)
    _check_working_columns(operation, columns, working)
    outputs = {aggregate.column: aggregate for aggregate in operation.aggregates}
    feeds = tuple(
        _aggregate_column(operation, outputs[field.name], field, source)
        if field.name in outputs
        else _copy_column(operation, field, source if field.name in columns else pa.schema([]))
        for field in working
    )
    origins = {feed.column: feed.origin for feed in feeds}
    computed = tuple(origin for name in outputs if isinstance(origin := origins[name], AggregateColumn))
    return PlannedAppend(selector, operation.group_by, computed, feeds, working)


def _plan_merge(operation: MergeOperation, source: pa.Schema, working: pa.Schema) -> PlannedMerge:
    selector = _bind_selector(operation, source, parse_code="007", column_code="007")
    keys, order_by = operation.keys, operation.dedup_order_by
    try:
        plan = core_merge.plan_merge(source, working, keys, operation.strategy, dedup_order_by=order_by or None)
    except Invalid as error:
        raise translate_error(operation, error) from None
    return PlannedMerge(selector, plan.keys, operation.strategy, plan.order_by, plan.source_columns, plan.schema)


def _bind_selector(
    operation: Operation, source: pa.Schema, *, parse_code: str, column_code: str
) -> core_selector.Node | None:
    if operation.selector is None:
        return None
    try:
        return core_selector.bind(core_selector.parse(operation.selector), source)
    except Invalid as error:
        facts = error.context
        if error.reason == "column_not_found":
            raise _column_not_found(
                operation, column_code, COLUMN_NOT_FOUND_MESSAGE, facts["column"], "source_selector", source
            ) from None
        text = facts.get("expression", operation.selector)  # truncated if it is too long
        raise _operation_error(operation, parse_code, expression=text, parse_error=facts["parse_error"]) from None


def _check_source_column(operation: AppendOperation, column: str, context: str, source: pa.Schema) -> None:
    if column not in source.names:
        raise _column_not_found(operation, "006", MESSAGES["append_006"], column, context, source)


def _check_working_columns(operation: AppendOperation, columns: Iterable[str], working: pa.Schema) -> None:
    if extra := sorted(set(columns) - set(working.names)):
        raise _operation_error(operation, "003", extra_columns=extra, working_columns=list(working.names))


def _copy_column(operation: AppendOperation, field: pa.Field, source: pa.Schema) -> ColumnSource:
    if field.name in source.names:
        source_type = source.field(field.name).type
        if not can_widen(source_type, field.type):
            raise _type_mismatch(
                operation,
                field,
                source_type,
                f"{format_value(source_type)} does not widen to {format_value(field.type)}; cast the source column",
            )
        return ColumnSource(field.name, field.type, field.name)
    if not field.nullable:
        raise _type_mismatch(operation, field, None, "the column is required, but the appended rows do not have it")
    return ColumnSource(field.name, field.type, None)


def _aggregate_column(
    operation: AppendOperation, aggregate: Aggregate, field: pa.Field, source: pa.Schema
) -> ColumnSource:
    assert aggregate.function is not None  # checked before
    input_type = None if aggregate.input is None else source.field(aggregate.input).type
    result = result_type(aggregate.function, input_type, field.type)
    if result is None:
        raise _type_mismatch(operation, field, input_type, f"{aggregate.function} does not support {input_type}")
    if not can_widen(result, field.type):
        raise _type_mismatch(
            operation,
            field,
            result,
            f"{aggregate.expression} is {result}, which does not widen to {format_value(field.type)}",
        )
    return ColumnSource(field.name, field.type, AggregateColumn(aggregate.function, aggregate.input, result))


def _type_mismatch(
    operation: AppendOperation, field: pa.Field, source_type: pa.DataType | None, problem: str
) -> Invalid:
    types = {
        "source_type": None if source_type is None else format_value(source_type),
        "working_type": format_value(field.type),
    }
    return _operation_error(operation, "007", column=field.name, **types, problem=problem)


def _column_not_found(
    operation: Operation, number: str, message: str, column: str, context: str, source: pa.Schema
) -> Invalid:
    facts = {"column": column, "context": context, "source_columns": list(source.names)}
    return Invalid(f"{operation.type}_{number}", message, **facts, **_describe(operation))


def _operation_error(operation: Operation, number: str, **facts: Any) -> Invalid:
    reason = f"{operation.type}_{number}"
    return Invalid(reason, MESSAGES[reason], **facts, **_describe(operation))


def _not_found_error(operation: Operation, number: str, **facts: Any) -> NotFound:
    reason = f"{operation.type}_{number}"
    return NotFound(reason, MESSAGES[reason], **facts, **_describe(operation))


def _describe(operation: Operation) -> dict[str, Any]:
    return describe_operation(operation.order, operation.alias)
