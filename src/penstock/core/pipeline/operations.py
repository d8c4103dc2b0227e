"""Operations of a pipeline as frozen data: append and merge."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from penstock.core.pipeline.aggregates import Aggregate


@dataclass(frozen=True, slots=True)
class DatasetRef:
    dataset: UUID
    version: int | None = None  # None: the newest

    def as_json(self) -> dict[str, Any]:
        return {"dataset_id": str(self.dataset)} | _present(dataset_version=self.version)


@dataclass(frozen=True, slots=True)
class AppendOperation:
    type: ClassVar[str] = "append"

    order: int
    alias: str | None
    source: DatasetRef
    selector: str | None = None
    group_by: tuple[str, ...] = ()  # empty: rows are appended unchanged
    aggregates: tuple[Aggregate, ...] = ()

    def as_json(self) -> dict[str, Any]:
        aggregation = {
            "group_by": list(self.group_by),
            "aggregations": [{"column": a.column, "expression": a.expression} for a in self.aggregates],
        }
        parameters = {"source": self.source.as_json()} | _present(
            source_selector=self.selector, aggregation=aggregation if self.group_by else None
        )
        return {"type": self.type, "order": self.order, **_present(alias=self.alias), "parameters": parameters}


@dataclass(frozen=True, slots=True)
class MergeOperation:
    type: ClassVar[str] = "merge"

    order: int
    alias: str | None
    source: DatasetRef
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


Operation: TypeAlias = AppendOperation | MergeOperation
TYPES = (AppendOperation.type, MergeOperation.type)


def describe_operation(order: int, alias: str | None) -> dict[str, Any]:
    """Return the facts that name an operation in the details of an error: its order and, if it has one, its alias."""
    return {"operation_order": order, **_present(alias=alias)}


def _present(**members: Any) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}
