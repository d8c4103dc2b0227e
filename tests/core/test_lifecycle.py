"""Lifecycle states: transitions and editable members."""

from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import (
    MEMBERS,
    LifecycleState,
    assert_editable,
    can_be_referenced,
    find_transition,
    is_archive_due,
)
from penstock.errors import Unsupported

PATHS = {
    "DRAFT > ACTIVE": ("publish", Role.DEVELOPER),
    "DRAFT > ARCHIVED": ("abandon", Role.DEVELOPER),
    "ACTIVE > DEPRECATED": ("deprecate", Role.ADMIN),
    "DEPRECATED > ACTIVE": ("reactivate", Role.ADMIN),
    "DEPRECATED > ARCHIVED": ("archive", Role.ADMIN),
    "ARCHIVED > DEPRECATED": ("restore", Role.ADMIN),
}
PAIRS = [f"{old} > {new}" for old in LifecycleState for new in LifecycleState]


def test_transitions_cover_all_sixteen_state_pairs() -> None:
    assert len(PAIRS) == 16
    assert PATHS.keys() < set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_find_transition_returns_transition_or_raises_unsupported(pair: str) -> None:
    current, to = map(LifecycleState, pair.split(" > "))
    if pair in PATHS:
        transition = find_transition(current, to)
        assert (transition.verb, transition.role) == PATHS[pair]
        return
    with pytest.raises(Unsupported) as members:
        find_transition(current, to)
    valid_states = [path.split(" > ")[1] for path in PATHS if path.startswith(f"{current} > ")]
    assert members.value.as_dict() == {
        "kind": "Unsupported",
        "reason": "illegal_transition",
        "message": f"A schema cannot change from {current} to {to}. Possible states: {', '.join(valid_states)}",
        "current": str(current),
        "to": str(to),
        "possible": valid_states,
    }


@pytest.mark.parametrize(
    ("state", "changed", "members"),
    [
        (LifecycleState.DRAFT, set(MEMBERS), None),
        (LifecycleState.ACTIVE, set(MEMBERS), None),
        (LifecycleState.ACTIVE, set(), None),
        (LifecycleState.DEPRECATED, set(), None),
        (LifecycleState.DEPRECATED, {"description", "metadata"}, None),
        (LifecycleState.DEPRECATED, {"description", "name"}, ["name"]),
        (LifecycleState.DEPRECATED, set(MEMBERS), ["fields", "name"]),
        (LifecycleState.ARCHIVED, {"description"}, ["description"]),
        (LifecycleState.ARCHIVED, set(MEMBERS), ["description", "fields", "metadata", "name"]),
        (LifecycleState.ARCHIVED, set(), []),  # a write without changes is rejected, too
    ],
)
def test_assert_editable_allows_members_by_schema_state(
    state: LifecycleState, changed: set[str], members: list[str] | None
) -> None:
    if members is None:
        assert_editable(state, changed)
        return
    with pytest.raises(Unsupported) as error:
        assert_editable(state, changed)
    assert (error.value.reason, error.value.context["members"]) == ("read_only_state", members)
    assert state in error.value.message


def test_can_be_referenced_accepts_active_schemas_only() -> None:
    assert [state for state in LifecycleState if can_be_referenced(state)] == [LifecycleState.ACTIVE]


@pytest.mark.parametrize(
    ("elapsed", "days", "due"),
    [
        (timedelta(days=90), 90, True),
        (timedelta(days=90) - timedelta(microseconds=1), 90, False),
        (timedelta(days=400), 90, True),
        (timedelta(), 0, True),
        (-timedelta(seconds=1), 0, False),
    ],
)
def test_is_archive_due_after_configured_days(elapsed: timedelta, days: int, due: bool) -> None:
    changed = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert is_archive_due(changed, changed + elapsed, days) is due
