"""The life of a schema or a query: which state may follow which, who may say so, and what may still change in each."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from penstock.core.caller import Role
from penstock.core.payload.object_reader import text
from penstock.errors import Invalid, Unsupported


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


def editable(members: Iterable[str], lasting: Iterable[str]) -> Mapping[State, frozenset[str]]:
    """What may still change in each state: all, then what was meant to last so long, then nothing."""
    every, few = frozenset(members), frozenset(lasting)
    return {State.DRAFT: every, State.ACTIVE: every, State.DEPRECATED: few, State.ARCHIVED: frozenset()}


MEMBERS = ("name", "description", "fields", "metadata")  # what a change of a schema may be about
EDITABLE = editable(MEMBERS, ("description", "metadata"))


def first_state(value: Any, what: str) -> State:
    if value not in (State.ACTIVE.value, State.DRAFT.value):
        raise Invalid("bad_state", f"a new {what} is ACTIVE or DRAFT; later states are reached by transitions")
    return State(value)


def asked_state(payload: Any) -> tuple[State, str | None]:
    """The state that a transition is to lead to, and why: `{"to", "version", "reason"?}`."""
    if not isinstance(payload, dict) or set(payload) - {"to", "version", "reason"}:
        raise Invalid("bad_payload", "a transition is an object with to, version and, if you like, reason")
    to = next((state for state in State if state.value == payload.get("to")), None)
    if to is None:
        raise Invalid(
            "bad_state",
            f"to must be one of {', '.join(State)}",
            errors=[{"pointer": "/to", "message": f"send one of {', '.join(State)}"}],
        )
    reason = payload.get("reason")
    return to, None if reason is None else text(reason, "reason", 10_000)


def transition(current: State, to: State, what: str = "schema") -> Transition:
    if found := TRANSITIONS.get((current, to)):
        return found
    possible = [end for start, end in TRANSITIONS if start is current]
    raise Unsupported(
        "illegal_transition",
        f"a {what} that is {current} cannot become {to}; it can become {' or '.join(possible)}",
        current=str(current),
        to=str(to),
        possible=[str(state) for state in possible],
    )


def least_role(to: State) -> Role:
    """Whoever has less than this gets nothing into that state, wherever it comes from."""
    return min((each.role for (_, end), each in TRANSITIONS.items() if end is to), default=Role.DEVELOPER)


def assert_editable(
    state: State, changed: Set[str], editable: Mapping[State, Set[str]] = EDITABLE, what: str = "schema"
) -> None:
    """Refuse a change of members that are settled in this state; what is archived takes no write at all."""
    free = editable[state]
    refused = sorted(changed - free)
    if refused or not free:
        left = f"only {' and '.join(sorted(free))} can change" if free else "nothing can change"
        raise Unsupported(
            "read_only_state", f"the {what} is {state}: {left} in this state", state=str(state), members=refused
        )


def may_be_referenced(state: State) -> bool:
    """By a new query; those that refer to it already keep working."""
    return state is State.ACTIVE


def archive_due(state_changed_at: datetime, now: datetime, days: int) -> bool:
    """Has a deprecated schema been one for long enough?"""
    return now - state_changed_at >= timedelta(days=days)
