"""Entity sets: the collections of the service, their members, and the context URLs of responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.odata.nodes import Fields

NAMESPACE = "Penstock"
JSON_OBJECT = f"{NAMESPACE}.JsonObject"  # a JSON object with any members
JSON_OBJECTS = f"Collection({JSON_OBJECT})"
ROW = "Row"  # a row of a query result
METADATA_PATH = "/$metadata"


@dataclass(frozen=True, slots=True)
class EntitySet:
    """A collection of entities with the key `id`."""

    name: str  # the path below the service root
    entity_type: str
    fields: Fields  # members for `$filter`, `$orderby` and `$select`
    selectable: Mapping[str, str] = field(default_factory=dict)  # EDM types of further members for `$select`
    row_collections: Sequence[str] = ()  # collections of rows below each entity


def collection_context(path: str, select: Sequence[str] | None) -> str:
    """Return the context URL of a collection.

    Args:
        path: path of the collection below the service root
        select: the selected members; None: all
    """
    return f"{METADATA_PATH}#{path}" + (f"({','.join(select)})" if select else "")


def entity_context(entity_set: EntitySet) -> str:
    """Return the context URL of a single entity."""
    return f"{METADATA_PATH}#{entity_set.name}/$entity"
