"""The life of a schema: which state may follow which, who may say so, and what may still change in each."""

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from penstock.core.caller import Role
from penstock.errors import Unsupported


class State(StrEnum):
    DRAFT = "DRAFT"
    ACTIVE = "ACTIVE"
    DEPRECATED = "DEPRECATED"
    ARCHIVED = "ARCHIVED"


@dataclass(frozen=True, slots=True)
class Transition:
    verb: str
    role: Role  # the least that may do it


TRANSITIONS = {
    (State.DRAFT, State.ACTIVE): Transition("publish", Role.DEVELOPER),
    (State.DRAFT, State.ARCHIVED): Transition("abandon", Role.DEVELOPER),
    (State.ACTIVE, State.DEPRECATED): Transition("deprecate", Role.ADMIN),
    (State.DEPRECATED, State.ACTIVE): Transition("reactivate", Role.ADMIN),
    (State.DEPRECATED, State.ARCHIVED): Transition("archive", Role.ADMIN),
    (State.ARCHIVED, State.DEPRECATED): Transition("restore", Role.ADMIN),
}

MEMBERS = ("name", "description", "fields", "metadata")  # what a change may be about
EDITABLE = {
    State.DRAFT: frozenset(MEMBERS),
    State.ACTIVE: frozenset(MEMBERS),
    State.DEPRECATED: frozenset({"description", "metadata"}),
    State.ARCHIVED: frozenset[str](),
}


def transition(current: State, to: State) -> Transition:
    if found := TRANSITIONS.get((current, to)):
        return found
    possible = [end for start, end in TRANSITIONS if start is current]
    raise Unsupported(
        "illegal_transition",
        f"a schema that is {current} cannot become {to}; it can become {' or '.join(possible)}",
        current=str(current),
        to=str(to),
        possible=[str(state) for state in possible],
    )


def least_role(to: State) -> Role:
    """Whoever has less than this gets nothing into that state, wherever it comes from."""
    return min((each.role for (_, end), each in TRANSITIONS.items() if end is to), default=Role.DEVELOPER)


def assert_editable(state: State, changed: Set[str]) -> None:
    """Refuse a change of members that are settled in this state; an archived schema takes no write at all."""
    editable = EDITABLE[state]
    refused = sorted(changed - editable)
    if refused or not editable:
        left = f"only {' and '.join(sorted(editable))} can change" if editable else "nothing can change"
        raise Unsupported(
            "read_only_state", f"the schema is {state}: {left} in this state", state=str(state), members=refused
        )


def may_be_referenced(state: State) -> bool:
    """By a new query; those that refer to it already keep working."""
    return state is State.ACTIVE


def archive_due(state_changed_at: datetime, now: datetime, days: int) -> bool:
    """Has a deprecated schema been one for long enough?"""
    return now - state_changed_at >= timedelta(days=days)
