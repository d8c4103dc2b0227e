"""A schema moves only along the paths that were drawn for it, and settles as it goes."""

from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import MEMBERS, State, archive_due, assert_editable, may_be_referenced, transition
from penstock.errors import Unsupported

PATHS = {
    "DRAFT > ACTIVE": ("publish", Role.DEVELOPER),
    "DRAFT > ARCHIVED": ("abandon", Role.DEVELOPER),
    "ACTIVE > DEPRECATED": ("deprecate", Role.ADMIN),
    "DEPRECATED > ACTIVE": ("reactivate", Role.ADMIN),
    "DEPRECATED > ARCHIVED": ("archive", Role.ADMIN),
    "ARCHIVED > DEPRECATED": ("restore", Role.ADMIN),
}
PAIRS = [f"{one} > {other}" for one in State for other in State]


def test_all_sixteen_pairs_are_judged() -> None:
    assert len(PAIRS) == 16
    assert PATHS.keys() < set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_of_states_is_a_path_or_it_is_refused(pair: str) -> None:
    current, to = map(State, pair.split(" > "))
    if pair in PATHS:
        found = transition(current, to)
        assert (found.verb, found.role) == PATHS[pair]
        return
    with pytest.raises(Unsupported) as refused:
        transition(current, to)
    possible = [path.split(" > ")[1] for path in PATHS if path.startswith(f"{current} > ")]
    assert refused.value.facts() == {
        "kind": "Unsupported",
        "reason": "illegal_transition",
        "message": f"a schema that is {current} cannot become {to}; it can become {' or '.join(possible)}",
        "current": str(current),
        "to": str(to),
        "possible": possible,
    }


@pytest.mark.parametrize(
    ("state", "changed", "refused"),
    [
        (State.DRAFT, set(MEMBERS), None),
        (State.ACTIVE, set(MEMBERS), None),
        (State.ACTIVE, set(), None),
        (State.DEPRECATED, set(), None),
        (State.DEPRECATED, {"description", "metadata"}, None),
        (State.DEPRECATED, {"description", "name"}, ["name"]),
        (State.DEPRECATED, set(MEMBERS), ["fields", "name"]),
        (State.ARCHIVED, {"description"}, ["description"]),
        (State.ARCHIVED, set(MEMBERS), ["description", "fields", "metadata", "name"]),
        (State.ARCHIVED, set(), []),  # a write that changes nothing is a write
    ],
)
def test_each_state_says_what_may_still_change(state: State, changed: set[str], refused: list[str] | None) -> None:
    if refused is None:
        assert_editable(state, changed)
        return
    with pytest.raises(Unsupported) as error:
        assert_editable(state, changed)
    assert (error.value.reason, error.value.context["members"]) == ("read_only_state", refused)
    assert state in error.value.message


def test_new_queries_may_refer_to_active_schemas_only() -> None:
    assert [state for state in State if may_be_referenced(state)] == [State.ACTIVE]


@pytest.mark.parametrize(
    ("passed", "days", "due"),
    [
        (timedelta(days=90), 90, True),
        (timedelta(days=90) - timedelta(microseconds=1), 90, False),
        (timedelta(days=400), 90, True),
        (timedelta(), 0, True),
        (-timedelta(seconds=1), 0, False),
    ],
)
def test_a_deprecated_schema_is_archived_after_its_days(passed: timedelta, days: int, due: bool) -> None:
    changed = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert archive_due(changed, changed + passed, days) is due
