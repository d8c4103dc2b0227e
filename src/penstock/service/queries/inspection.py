"""Compare the columns of a statement with a result schema without running the statement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from penstock.core import result_schema
from penstock.core.registry.query_parameters import QueryParameter, parse_parameter_values
from penstock.core.result_schema import FieldType, ResultField
from penstock.errors import Invalid
from penstock.service.queries.sandbox import ParsedStatement, QueryProcess

_SAMPLE_VALUES: Mapping[FieldType, Any] = {
    FieldType.STRING: "a",
    FieldType.NUMBER: 1,
    FieldType.BOOLEAN: True,
    FieldType.DATE: date(2026, 1, 31),
    FieldType.DATETIME: datetime(2026, 1, 31, 10, tzinfo=UTC),
}


def find_certain_mismatches(
    fields: Sequence[ResultField], parameters: Sequence[QueryParameter], process: QueryProcess
) -> list[dict[str, Any]]:
    """Return the mismatches between result and schema that do not depend on the values of parameters.

    The statement is described twice, with a sample value for each parameter and with NULL for each; a mismatch is
    certain if both descriptions have it.
    """
    samples = {parameter.name: _sample_value(parameter) for parameter in parameters}
    try:
        mismatches = find_mismatches(fields, process, samples)
    except Invalid as error:
        if error.reason != "query_failed":
            raise
        try:
            with_nulls = find_mismatches(fields, process)
        except Invalid:
            raise error from None
        # A column of type null may have any type in a run.
        return [mismatch for mismatch in with_nulls if mismatch["actual"] != "null"]
    if mismatches:
        try:
            fields_with_nulls = {mismatch["field"] for mismatch in find_mismatches(fields, process)}
        except Invalid:
            return mismatches
        mismatches = [mismatch for mismatch in mismatches if mismatch["field"] in fields_with_nulls]
    return mismatches


def find_mismatches(
    fields: Sequence[ResultField], process: QueryProcess, parameters: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the fields of a result schema that the columns of the statement do not match."""
    columns = process.describe(parameters)
    name_by_lower_case = {name.lower(): name for name in columns.names}
    mismatches = result_schema.schema_mismatches(fields, columns)
    for mismatch in mismatches:
        name = name_by_lower_case.get(mismatch["field"].lower())
        if name is not None and mismatch["field"] not in columns.names:
            mismatch["hint"] = f"the result has {name}; names are case-sensitive"
    return mismatches


def check_parameters(parsed: ParsedStatement, parameters: Mapping[str, Any]) -> None:
    """Raise Invalid for an unknown parameter, and for one that occurs twice: DuckDB ignores the case of names."""
    valid, seen = {name.lower() for name in parsed.parameters}, set[str]()
    for name in parameters:
        parameter = f"${ascii(name[:128])[1:-1]}"
        if name.lower() not in valid:
            names = [f"${name}" for name in parsed.parameters] or "none"
            raise Invalid("unknown_parameter.statement", {"parameter": parameter, "valid": names})
        if name.lower() in seen:
            raise Invalid("duplicate_parameter.statement", {"parameter": parameter})
        seen.add(name.lower())


def _sample_value(parameter: QueryParameter) -> Any:
    """Return the default of a parameter, or any value of its type."""
    value = parse_parameter_values([replace(parameter, required=False)], {})[parameter.name]
    return _SAMPLE_VALUES[parameter.type] if value is None else value
