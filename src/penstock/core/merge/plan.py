"""Plan a merge: validate keys and schemas, and resolve every name and type before a row is read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.formatting import format_value
from penstock.core.merge.strategy import Matched, MergeRules, New, Rest, quote_names, rules_for
from penstock.core.names import check_column_names
from penstock.core.schema.type_widening import common_type
from penstock.errors import Invalid

BATCH_ROWS = 128 << 10  # target rows that are held in memory at once


@dataclass(frozen=True, slots=True)
class MergePlan:
    """A validated merge, with every name and type resolved."""

    rules: MergeRules
    keys: tuple[str, ...]
    schema: pa.Schema  # of the rows afterwards; dictionary columns appear with their value type
    source_columns: tuple[str, ...]  # columns of the source; the others keep the target's value, or become NULL
    order_by: tuple[str, ...] = ()  # for deduplication, most significant first
    partitions: tuple[str, ...] = ()  # columns whose values are in folder names
    row_ids: bool = False  # whether rows have ids, which rewritten files must store
    batch_rows: int = BATCH_ROWS

    @property
    def source_schema(self) -> pa.Schema:
        """Return the schema of the source that an engine receives: exactly these columns, in this order."""
        return pa.schema([self.schema.field(name) for name in self.source_columns])

    @property
    def rewrites(self) -> bool:
        """Return True if target rows are rewritten beside the source's."""
        return self.rules.matched is Matched.UPDATE and self.keeps_columns

    @property
    def keeps_columns(self) -> bool:
        """Return True if the result needs columns of target rows other than the key."""
        return self.rules.rest is Rest.KEEP or set(self.source_columns) != set(self.schema.names)


def plan_merge(
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
) -> MergePlan:
    """Validate a merge and return its plan.

    Args:
        source: schema of the source rows
        target: schema of the target; None if it does not exist yet
        key_columns: one or more column names
        strategy: a key of `STRATEGIES`
        dedup_order_by: columns that rank source rows with equal keys, for the strategy deduplicate
        add_columns: add source columns that the target lacks
        partitions: columns whose values are in folder names
        row_ids: whether the target's rows have ids
        batch_rows: target rows to hold in memory at once

    Raises:
        Invalid: the keys, the strategy or the schemas are not valid
    """
    keys = normalize_keys(key_columns)
    rules = rules_for(strategy)
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise Invalid("bad_batch_rows", {"batch_rows": batch_rows})
    check_column_names(source.names, reserved=row_ids)
    validate_keys_and_schema(source, target, keys)
    order_by = _parse_order_by(dedup_order_by, source, rules, strategy)
    schema = _decode_types(source if target is None else unify_schemas(source, target))
    if target is not None and not add_columns and (extra := [n for n in source.names if n not in target.names]):
        raise Invalid(
            "extra_columns.merge",
            {"extra": quote_names(extra), "names": quote_names(target.names)},
            extra_columns=extra,
            columns=target.names,
        )
    if untyped := [f.name for f in schema if pt.is_null(f.type) and f.name in source.names]:
        raise Invalid("unsupported_type.only_null", {"name": untyped[0]}, column=untyped[0])
    source_columns = tuple(name for name in schema.names if name in source.names)
    if rules.new is New.INSERT:
        for field in schema:
            if field.name not in source_columns and not field.nullable:
                raise Invalid("missing_column.merge", {"name": field.name}, column=field.name)
    return MergePlan(rules, tuple(keys), schema, source_columns, order_by, tuple(partitions), row_ids, batch_rows)


def normalize_keys(key_columns: str | Sequence[str]) -> list[str]:
    """Return the key columns as a list: names trimmed, duplicates removed, at least one."""
    names: list[Any] = [key_columns]
    if isinstance(key_columns, Iterable) and not isinstance(key_columns, str | bytes):
        names = list(key_columns)
    if not all(isinstance(name, str) for name in names):
        raise Invalid("bad_keys.not_names", {"key_columns": key_columns})
    keys = list(dict.fromkeys(name.strip() for name in names))
    if not keys or "" in keys:
        raise Invalid("bad_keys.empty")
    return keys


def validate_keys_and_schema(
    source_schema: pa.Schema, target_schema: pa.Schema | None, key_columns: Sequence[str]
) -> None:
    """Check that both schemas have the key columns with comparable types, and that all common columns are compatible."""
    keys = normalize_keys(key_columns)
    for side, schema in (("source", source_schema), ("target", target_schema)):
        if schema is None:
            continue
        if missing := [key for key in keys if key not in schema.names]:
            raise Invalid(
                "missing_key_column",
                {"keys": quote_names(missing), "names": quote_names(schema.names)},
                side=side,
                missing=missing,
                columns=schema.names,
            )
        for key in keys:
            data_type = schema.field(key).type
            is_unsupported = pt.is_nested(data_type) or isinstance(data_type, pa.BaseExtensionType)
            if is_unsupported or (pt.is_null(data_type) and side == "target"):
                if isinstance(data_type, pa.BaseExtensionType):
                    values = {
                        "data_type": format_value(data_type),
                        "storage_type": format_value(data_type.storage_type),
                    }
                    raise Invalid("bad_key_type.extension", values, side=side, column=key)
                raise Invalid("bad_key_type.unsupported", {"data_type": format_value(data_type)}, side=side, column=key)
    if target_schema is not None:
        unify_schemas(source_schema, target_schema)


def unify_schemas(source_schema: pa.Schema, target_schema: pa.Schema) -> pa.Schema:
    """Return the target's columns, widened where the source needs it, followed by the source's other columns."""
    fields = []
    for target_field in target_schema:
        if target_field.name not in source_schema.names:
            fields.append(target_field)
            continue
        source_field = source_schema.field(target_field.name)
        data_type = common_type(target_field.type, source_field.type)
        if data_type is None:
            raise Invalid(
                "type_mismatch.merge",
                {"name": target_field.name},
                column=target_field.name,
                expected=format_value(target_field.type),
                actual=format_value(source_field.type),
            )
        fields.append(target_field.with_type(data_type))
    added = [f.with_nullable(True).remove_metadata() for f in source_schema if f.name not in target_schema.names]
    check_column_names([field.name for field in (*fields, *added)], reserved=False)
    return pa.schema([*fields, *added], metadata=target_schema.metadata)


def null_keys(side: str, counts: Mapping[str, int]) -> Invalid:
    """Return the error for NULL in key columns. `counts`: NULLs per key column that has any."""
    columns = ", ".join(f"{count:,} in column {name!r}" for name, count in counts.items())
    return Invalid("null_keys", {"columns": columns}, side=side, nulls=dict(counts))


def duplicate_keys(keys: Sequence[str], rows: int, example: Sequence[Any]) -> Invalid:
    """Return the error for source rows with equal keys. `rows`: rows that repeat the key of an earlier one."""
    key = ", ".join(f"{name}={str(value)[:80]!r}" for name, value in zip(keys, example, strict=True))
    return Invalid("duplicate_keys", {"example": key}, rows=rows)


def _parse_order_by(
    order_by: str | Sequence[str] | None, source: pa.Schema, rules: MergeRules, strategy: str
) -> tuple[str, ...]:
    if order_by is None:
        return ()
    if not rules.deduplicates:
        raise Invalid("unexpected_order", {"strategy": strategy})
    names = [order_by] if isinstance(order_by, str) else list(order_by)
    names = list(dict.fromkeys(name.strip() for name in names))
    if unknown := [name for name in names if name not in source.names]:
        raise Invalid(
            "column_not_found.order_by",
            {"unknown": quote_names(unknown), "names": quote_names(source.names)},
            missing=unknown,
        )
    for name in names:
        if pt.is_nested(source.field(name).type):
            raise Invalid("bad_order", {"name": name, "data_type": format_value(source.field(name).type)})
    return tuple(names)


def _decode_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with value types for dictionaries, and plain text and bytes for views."""
    return pa.schema([pa.field(f.name, _decode_type(f.type), f.nullable) for f in schema])


def _decode_type(data_type: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(data_type):
        return _decode_type(data_type.value_type)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(data_type, data_type)
