"""Lifecycle of result schemas and queries: states, transitions, roles and editable members."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import Field, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from penstock.core.caller import Role
from penstock.core.payload.object_reader import check_text
from penstock.core.registry.revisions import RegistryEntry, RevisionContent
from penstock.errors import Invalid, Unsupported


class LifecycleState(StrEnum):
    DRAFT = "DRAFT"
    ACTIVE = "ACTIVE"
    DEPRECATED = "DEPRECATED"
    ARCHIVED = "ARCHIVED"


class LifecycleDraft(RevisionContent, Protocol):
    """Content of an entry that its author controls, and its state."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def state(self) -> LifecycleState: ...


class LifecycleEntry(RegistryEntry, Protocol):
    """A stored result schema or query."""

    @property
    def draft(self) -> LifecycleDraft: ...
    @property
    def state_changed_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Transition:
    verb: str
    role: Role  # lowest role that may perform it


TRANSITIONS = {
    (LifecycleState.DRAFT, LifecycleState.ACTIVE): Transition("publish", Role.DEVELOPER),
    (LifecycleState.DRAFT, LifecycleState.ARCHIVED): Transition("abandon", Role.DEVELOPER),
    (LifecycleState.ACTIVE, LifecycleState.DEPRECATED): Transition("deprecate", Role.ADMIN),
    (LifecycleState.DEPRECATED, LifecycleState.ACTIVE): Transition("reactivate", Role.ADMIN),
    (LifecycleState.DEPRECATED, LifecycleState.ARCHIVED): Transition("archive", Role.ADMIN),
    (LifecycleState.ARCHIVED, LifecycleState.DEPRECATED): Transition("restore", Role.ADMIN),
}


def editable_members(members: Iterable[str], lasting: Iterable[str]) -> Mapping[LifecycleState, frozenset[str]]:
    """Return the editable members per state: all for DRAFT and ACTIVE, `lasting` for DEPRECATED, none for ARCHIVED."""
    all_members, lasting_members = frozenset(members), frozenset(lasting)
    return {
        LifecycleState.DRAFT: all_members,
        LifecycleState.ACTIVE: all_members,
        LifecycleState.DEPRECATED: lasting_members,
        LifecycleState.ARCHIVED: frozenset(),
    }


MEMBERS = ("name", "description", "fields", "metadata")  # editable members of a result schema
EDITABLE = editable_members(MEMBERS, ("description", "metadata"))


def parse_initial_state(value: Any, subject: str) -> LifecycleState:
    if value not in (LifecycleState.ACTIVE.value, LifecycleState.DRAFT.value):
        raise Invalid("bad_state.initial", {"subject": subject})
    return LifecycleState(value)


def parse_transition(payload: Any) -> tuple[LifecycleState, str | None]:
    """Parse a transition `{"to", "version", "reason"?}`, and return its state and reason."""
    if not isinstance(payload, dict) or set(payload) - {"to", "version", "reason"}:
        raise Invalid("bad_payload.transition")
    to = next((state for state in LifecycleState if state.value == payload.get("to")), None)
    if to is None:
        raise Invalid(
            "bad_state.transition",
            {"valid": list(LifecycleState)},
            errors=[{"pointer": "/to", "message": f"Send one of {', '.join(LifecycleState)}"}],
        )
    reason = payload.get("reason")
    return to, None if reason is None else check_text(reason, "reason", 10_000)


def find_transition(current: LifecycleState, to: LifecycleState, subject: str = "schema") -> Transition:
    if transition := TRANSITIONS.get((current, to)):
        return transition
    possible = [end for start, end in TRANSITIONS if start is current]
    raise Unsupported(
        "illegal_transition",
        {"subject": subject},
        current=str(current),
        to=str(to),
        possible=[str(state) for state in possible],
    )


def min_role(to: LifecycleState) -> Role:
    """Return the lowest role that may move an entry into the state, from any other state."""
    return min((transition.role for (_, end), transition in TRANSITIONS.items() if end is to), default=Role.DEVELOPER)


def assert_editable(
    state: LifecycleState,
    changed: Set[str],
    editable: Mapping[LifecycleState, Set[str]] = EDITABLE,
    subject: str = "schema",
) -> None:
    """Check that the changed members may change in this state. An archived entry is read-only."""
    free = editable[state]
    rejected = sorted(changed - free)
    if rejected or not free:
        key = "read_only_state.some" if free else "read_only_state.all"
        raise Unsupported(key, {"subject": subject, "editable": sorted(free)}, state=str(state), members=rejected)


def can_be_referenced(state: LifecycleState) -> bool:
    """Check whether a new query may use a result schema in this state. Existing references stay valid."""
    return state is LifecycleState.ACTIVE


def is_archive_due(state_changed_at: datetime, now: datetime, days: int) -> bool:
    """Check whether a deprecated entry has reached the age for archiving."""
    return now - state_changed_at >= timedelta(days=days)
