"""A registered query: SQL with named parameters, and the schema that its result promises to fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Query:
    id: UUID
    name: str
    description: str | None
    sql: str
    parameters: tuple[Mapping[str, Any], ...]
    returns_schema_id: UUID
    version: int
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID
