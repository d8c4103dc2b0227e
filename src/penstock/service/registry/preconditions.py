"""Optimistic concurrency control: apply a change only to the version that the client has read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.registry.revisions import RegistryEntry
from penstock.errors import Conflict, Invalid

_Entry = TypeVar("_Entry", bound=RegistryEntry)


@dataclass(frozen=True, slots=True)
class VersionPrecondition:
    """The versions that a change was made for: the current version must be one of them."""

    versions: tuple[int, ...] | None  # None: any version of an entity that exists (If-Match: *)
    from_header: bool = False  # sent in If-Match, so a mismatch is "precondition failed"

    def check(self, current: _Entry, conflict: Callable[[_Entry], Conflict]) -> None:
        """Raise an error if the change was made for another version than the current one.

        Args:
            current: the stored entry
            conflict: creates the error from the stored entry

        Raises:
            Conflict: the versions differ
        """
        if self.versions is None or current.version in self.versions:
            return
        error = conflict(current)
        raise Conflict("precondition_failed", error.message, **error.context) if self.from_header else error


def required_versions(condition: VersionPrecondition | None, payload: Mapping[str, Any]) -> list[VersionPrecondition]:
    """Return the preconditions of a change, from If-Match and from `version` in the payload.

    Raises:
        Invalid: neither is present, or `version` is not a positive integer
    """
    number = payload.get("version")
    if number is None and condition is None:
        raise Invalid("missing_version", errors=[{"pointer": "/version", "message": "version is required"}])
    if number is not None and (type(number) is not int or number < 1):
        raise Invalid(
            "bad_version.not_positive",
            errors=[{"pointer": "/version", "message": "version must be the version that was read, 1 or higher"}],
        )
    return [*([condition] if condition else []), *([VersionPrecondition((number,))] if number else [])]
