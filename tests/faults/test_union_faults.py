"""Failures and kills of a commit that unites its deletion vectors with those of another commit."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.failing_parts import Countdown, failing_sql
from faults.test_commit_faults import sweep_after_lease_end
from faults.union_writes import AFTER, AFTER_OTHER, NAME, prepare_united, run, run_overtaken, values
from penstock import failpoints
from penstock.errors import CommitStateUnknown, Conflict, Unavailable
from penstock.lake import Lake
from penstock.service import doctor
from support.workspaces import WorkspaceFixture

STEPS = [step for step in failpoints.STEPS if step.startswith("commit.")]
COMMITTED = ("commit.sent", "commit.done")  # the steps after which the edit is committed
by_kind = pytest.mark.parametrize("kind", AFTER)


@pytest.fixture
def edit_mode() -> str:
    return "mark"


def check_repeated(lake: Lake, kind: str, *, happened: bool) -> None:
    """Assert that the repeated edit is committed once, on top of the other one."""
    assert run(lake, kind).replayed == happened
    assert values(lake) == AFTER[kind]
    ds = lake.dataset(NAME)
    assert ds.version == 3
    assert sum(len(file.deleted) for file in ds.current().files() if file.deleted) == 3
    assert {result.state for result in doctor.check_files(lake._workspace, lake.caller)} == {doctor.CheckStatus.OK}
    sweep_after_lease_end(lake)


@by_kind
@pytest.mark.parametrize("step", STEPS)
def test_kill_while_uniting_leaves_the_edit_complete_or_absent(
    workspace: WorkspaceFixture, kind: str, step: str
) -> None:
    with workspace.open() as lake:
        prepare_united(lake)
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("kill_union", kind, step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the edit never came to {step}"
    with workspace.open() as lake:
        happened = step in COMMITTED
        assert values(lake) == (AFTER[kind] if happened else AFTER_OTHER)
        check_repeated(lake, kind, happened=happened)


@by_kind
@pytest.mark.parametrize("step", STEPS)
def test_failure_while_uniting_leaves_the_edit_complete_or_absent(
    workspace: WorkspaceFixture, kind: str, step: str
) -> None:
    def fail() -> None:
        raise OSError("injected")

    with workspace.open() as lake, ExitStack() as armed:
        prepare_united(lake)

        def arm() -> None:
            armed.enter_context(failpoints.armed(step, fail))

        if step == "commit.sent":  # the response to COMMIT is lost, and the receipt tells the outcome
            assert not run_overtaken(lake, kind, arm).replayed
        else:
            with pytest.raises(OSError, match="injected"):
                run_overtaken(lake, kind, arm)
        armed.close()
        happened = step in COMMITTED
        assert values(lake) == (AFTER[kind] if happened else AFTER_OTHER)
        check_repeated(lake, kind, happened=happened)


@by_kind
def test_lost_response_and_database_while_uniting_reports_an_unknown_outcome(
    workspace: WorkspaceFixture, kind: str
) -> None:
    with workspace.open() as lake, ExitStack() as lost:
        prepare_united(lake)

        def lose_everything() -> None:
            lost.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
            raise OSError("injected")

        with pytest.raises(CommitStateUnknown) as raised:
            run_overtaken(lake, kind, lambda: lost.enter_context(failpoints.armed("commit.sent", lose_everything)))
        assert raised.value.context["idempotency_key"] == "k"
    with workspace.open() as lake:
        check_repeated(lake, kind, happened=True)


@by_kind
def test_failure_of_the_nth_sql_statement_while_uniting_leaves_the_edit_complete_or_absent(
    workspace: WorkspaceFixture, kind: str
) -> None:
    with workspace.open() as lake:
        prepare_united(lake)
        with ExitStack() as armed, pytest.raises((Unavailable, Conflict, CommitStateUnknown)):
            run_overtaken(lake, kind, lambda: armed.enter_context(failing_sql(lake._workspace.db, Countdown(1))))
        assert values(lake) == AFTER_OTHER
        for n in range(2, 200):
            lake.dataset(NAME).drop()
            prepare_united(lake)
            countdown = Countdown(n)
            with ExitStack() as armed:

                def arm(armed: ExitStack = armed, countdown: Countdown = countdown) -> None:
                    armed.enter_context(failing_sql(lake._workspace.db, countdown))

                try:
                    run_overtaken(lake, kind, arm)
                except (Unavailable, Conflict, CommitStateUnknown):
                    assert countdown.fired
                else:
                    break
            assert values(lake) == AFTER_OTHER, f"statement {n}"
        assert n > 8, "too few statements were seen"
        assert values(lake) == AFTER[kind]
