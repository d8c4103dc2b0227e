"""Which version a change was made for: what somebody else has changed since is not overwritten."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import Conflict, Invalid


@dataclass(frozen=True, slots=True)
class Expected:
    """Which version a change was made for. One that came as a condition of the request is refused as such."""

    version: int | None  # None: any, as long as there is one
    condition: bool = False

    def check(self, version: int, was_changed: Conflict) -> None:
        """Refuse what was made for another version than this one, which `was_changed` tells about."""
        if self.version not in (None, version):
            told = was_changed
            raise Conflict("precondition_failed", told.message, **told.context) if self.condition else told


def meant_for(condition: Expected | None, payload: Mapping[str, Any]) -> list[Expected]:
    """The version that a change is made for, as a condition and as the payload has it. What is sent must be right."""
    number = payload.get("version")
    if number is None and condition is None:
        raise Invalid(
            "no_version",
            "say which version the change is made for: as `version` in the body, or in an If-Match header",
            errors=[{"pointer": "/version", "message": "version is required"}],
        )
    if number is not None and (type(number) is not int or number < 1):
        raise Invalid(
            "bad_version",
            "version must be a whole number from 1 on",
            errors=[{"pointer": "/version", "message": "send the version that you have read"}],
        )
    return [*([condition] if condition else []), *([Expected(number)] if number else [])]
