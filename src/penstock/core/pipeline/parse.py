"""Parse pipeline operations from JSON. The structure is checked without reading any dataset."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.core import merge as core_merge
from penstock.core.names import MAX_COLUMNS, has_invalid_characters
from penstock.core.payload.object_reader import MAX_INTEGER, ObjectReader, Problem, ReaderRules
from penstock.core.pipeline.aggregates import parse_aggregate
from penstock.core.pipeline.operations import (
    TYPES,
    AppendOperation,
    DatasetRef,
    MergeOperation,
    Operation,
    describe_operation,
)
from penstock.core.pipeline.responses import MESSAGES
from penstock.errors import Invalid

MAX_ALIAS_LENGTH = 255
MAX_TEXT_LENGTH = 10_000  # of a column name or an aggregate; a selector has its own limit

_SENTENCES = {  # continue the JSON pointer of the value
    Problem.NOT_AN_OBJECT: "must be an object",
    Problem.MISSING_MEMBER: "is required",
    Problem.UNKNOWN_MEMBER: "is not a valid member. Valid members: {valid}",
    Problem.NOT_TEXT: "must be a string",
    Problem.TEXT_TOO_LONG: "has {length:,} characters; at most {max_length:,} are allowed",
    Problem.INVALID_CHARACTERS: "must not contain NUL or an unpaired surrogate",
    Problem.NOT_AN_INTEGER: f"must be an integer from {{minimum}} to {MAX_INTEGER}",
    Problem.NOT_A_UUID: "must be a UUID, such as 550e8400-e29b-41d4-a716-446655440000",
    Problem.NOT_A_LIST: "must be a list",
    Problem.EMPTY_LIST: "must not be empty",
    Problem.TOO_MANY_ITEMS: "has {count:,} items; at most {max_items:,} are allowed",
    Problem.BAD_VALUE: "must be {expected}",
}


def bad_member(sentence: str) -> Invalid:
    """Create the error of a member. The errors of an operation and of a pipeline contain its sentence."""
    return Invalid("bad_member", sentence)


def _to_error(problem: Problem, _path: str, values: Mapping[str, Any]) -> Invalid:
    return bad_member(_SENTENCES[problem].format_map({**values, "valid": ", ".join(values.get("valid", ()))}))


def _escape_pointer(name: str) -> str:
    """Return a member name as a token of a JSON pointer, truncated and printable."""
    escaped = name[:60].replace("~", "~0").replace("/", "~1")
    return escaped.encode("utf-8", "backslashreplace").decode()


PIPELINE_RULES = ReaderRules(_to_error, null_is_absent=False, escape=_escape_pointer)


def parse_operation(value: Any, index: int) -> Operation:
    """Parse an operation, and raise the first error.

    Args:
        value: JSON value
        index: position in the list of operations, which is the default order
    """
    operation, errors = validate_operation(value, index)
    if operation is None:
        raise errors[0]
    return operation


def validate_operation(value: Any, index: int) -> tuple[Operation | None, list[Invalid]]:
    """Parse an operation, and return it or all errors in its structure."""
    reader = ObjectReader(value, PIPELINE_RULES)
    reader.require("parameters")
    order = reader.integer("order", 0, index, accept_float=True)
    type = reader.get("type")
    if type not in TYPES:
        error = Invalid(
            "unknown_operation.pipeline",
            {"type": ascii(type[:60]) if isinstance(type, str) else "without a type"},
            pointer="/type" if reader.is_object else "",
            types=list(TYPES),
            **describe_operation(order, None),
        )
        return None, [error]
    alias = reader.text("alias", None, max_length=MAX_ALIAS_LENGTH)
    parse = _parse_append if type == AppendOperation.type else _parse_merge
    operation = parse(reader, order, alias)
    reason = f"{type}_000"
    errors = [
        Invalid(
            reason,
            MESSAGES[reason],
            pointer=member.pointer,
            problem=member.error.message,
            **describe_operation(order, alias or None),
        )
        for member in reader.errors
    ]
    errors += _selector_errors(operation)
    return None if errors else operation, errors


def read_dataset_ref(reader: ObjectReader, name: str) -> DatasetRef:
    """Read a reference to a dataset and, optionally, a version."""
    reference = reader.object(name, required=("dataset_id",), optional=("dataset_version",))
    version = reference.integer("dataset_version", 1, None, accept_float=True)
    return DatasetRef(reference.uuid("dataset_id", UUID(int=0)), version)


def _selector_errors(operation: Operation) -> list[Invalid]:
    """Return the error of a selector with a character that cannot be stored, which is never a part of an expression."""
    text = operation.selector or ""
    position = next((index for index, character in enumerate(text) if has_invalid_characters(character)), None)
    if position is None:
        return []
    reason = "append_004" if isinstance(operation, AppendOperation) else "merge_007"
    facts: dict[str, Any] = {
        "expression": text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00"),
        "parse_error": f"Unexpected character {text[position]!a} at position {position}",
    }
    pointer = "/parameters/source_selector"
    facts |= describe_operation(operation.order, operation.alias)
    return [Invalid(reason, MESSAGES[reason], pointer=pointer, **facts)]


def _parse_append(reader: ObjectReader, order: int, alias: str | None) -> AppendOperation:
    parameters = reader.object("parameters", required=("source",), optional=("source_selector", "aggregation"))
    source, selector = read_dataset_ref(parameters, "source"), _read_selector(parameters)
    aggregation = parameters.object("aggregation", required=("group_by", "aggregations"))
    columns: dict[str, Any] = {}  # path → column of the appended rows
    for index, column in enumerate(group_by := aggregation.texts("group_by", MAX_COLUMNS, max_length=MAX_TEXT_LENGTH)):
        columns[f"group_by/{index}"] = column
    aggregates = []
    for index, item in enumerate(aggregation.items("aggregations", MAX_COLUMNS)):
        path = f"aggregations/{index}"
        aggregate = aggregation.child(path, item)
        aggregate.check_members(required=("column", "expression"))
        column = aggregate.text("column", "", max_length=MAX_TEXT_LENGTH)
        expression = aggregate.text("expression", "", max_length=MAX_TEXT_LENGTH)
        aggregates.append(parse_aggregate(column, expression))
        columns[f"{path}/column"] = column
    if not reader.errors:
        _check_unique(aggregation, columns)
    return AppendOperation(order, alias, source, selector, tuple(group_by), tuple(aggregates))


def _check_unique(aggregation: ObjectReader, columns: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for path, column in columns.items():
        if first.setdefault(column, path) != path:
            aggregation.add_error(path, bad_member(f"column {column[:60]!a} is already used in {first[column]}"))


def _parse_merge(reader: ObjectReader, order: int, alias: str | None) -> MergeOperation:
    parameters = reader.object(
        "parameters", required=("source", "key_columns", "strategy"), optional=("source_selector", "dedup_order_by")
    )
    source, selector = read_dataset_ref(parameters, "source"), _read_selector(parameters)
    keys, order_by = _read_names(parameters, "key_columns"), _read_names(parameters, "dedup_order_by")
    value = parameters.get("strategy")
    strategy = value if isinstance(value, str) else ""
    if strategy in core_merge.STRATEGIES:
        if order_by and not core_merge.STRATEGIES[strategy].deduplicates:
            sentence = f"requires strategy 'deduplicate'; {strategy!r} does not use it"
            parameters.add_error("dedup_order_by", bad_member(sentence))
    elif "strategy" in parameters:
        parameters.report("strategy", Problem.BAD_VALUE, expected=f"one of {', '.join(core_merge.STRATEGIES)}")
    return MergeOperation(order, alias, source, selector, keys, strategy, order_by)


def _read_selector(parameters: ObjectReader) -> str | None:
    """Read the text of the selector; planning checks its characters, length and grammar."""
    value = parameters.get("source_selector")
    return value if isinstance(value, str) else parameters.text("source_selector", None)


def _read_names(parameters: ObjectReader, name: str) -> tuple[str, ...]:
    """Read a column name or a list of them: names trimmed, duplicates removed."""
    if isinstance(parameters.get(name), str):
        text = parameters.text(name, None, max_length=MAX_TEXT_LENGTH)
        texts = [] if text is None else [text]
    else:
        texts = parameters.texts(name, MAX_COLUMNS, max_length=MAX_TEXT_LENGTH)
    names = tuple(dict.fromkeys(text.strip() for text in texts))
    if "" in names:
        parameters.add_error(name, bad_member("contains a blank column name"))
    return names
