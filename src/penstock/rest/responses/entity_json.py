"""JSON of registry entries, serialized once for each revision."""

from typing import Any, Protocol
from uuid import UUID

from penstock.core.bounded_cache import BoundedCache
from penstock.rest.problems import as_json_text

_MAX_BYTES = 8 << 20

_texts = BoundedCache[str](_MAX_BYTES)


class Revisioned(Protocol):
    """An entry that does not change without a new revision."""

    @property
    def id(self) -> UUID: ...

    @property
    def version(self) -> int: ...

    @property
    def updated_at(self) -> Any: ...

    def as_json(self) -> dict[str, Any]: ...


def entity_json(entity: Revisioned) -> str:
    """Return the JSON object of an entry.

    The time of the change is part of the key: a transaction that was rolled back may have had the same revision number.
    """
    key = (entity.id, entity.version, entity.updated_at)
    text = _texts.get(key)
    if text is None:
        text = as_json_text(entity.as_json())
        _texts.put(key, text, 2 * len(text))
    return text
