"""Failures and kills at every step of a group of edits: each edit is complete or absent, and can be repeated."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.group_edit_writes import AFTER_FIRST, AFTER_GROUP, GROUP, NAME, edit_together, prepare_edited, values
from faults.test_commit_faults import sweep_after_lease_end
from penstock import failpoints
from penstock.lake import Lake
from penstock.service import doctor
from support.workspaces import WorkspaceFixture

COMMITTED = ("commit.sent", "commit.done")  # the steps after which the group is committed
FILE_STEPS = ("stage.opened", "stage.written", "stage.synced")


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_repeated(lake: Lake, happened: list[bool]) -> None:
    """Assert that repeated edits are committed once, and that totals and files agree."""
    version = lake.dataset(NAME).version
    results = [future.result() for future in edit_together(lake)]
    assert [result.affected for result in results] == [len(ids) for ids, _ in GROUP.values()]
    assert [result.receipt and result.receipt.replayed for result in results] == happened
    assert values(lake) == AFTER_GROUP
    assert lake.dataset(NAME).version == version + (not all(happened))
    assert {result.state for result in doctor.check_files(lake._workspace, lake.caller)} == {doctor.CheckStatus.OK}
    sweep_after_lease_end(lake)


@pytest.mark.parametrize("step", failpoints.STEPS)
def test_kill_at_any_failpoint_leaves_a_group_of_edits_complete_or_absent(
    workspace: WorkspaceFixture, step: str, edit_mode: str
) -> None:
    with workspace.open() as lake:
        prepare_edited(lake)
        assert bool(lake.dataset(NAME).current().snapshot.version.vector_files) is (edit_mode == "mark")
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("kill_group_edit", step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the group never came to {step}"
    with workspace.open() as lake:
        happened = step in COMMITTED
        assert values(lake) == (AFTER_GROUP if happened else AFTER_FIRST)
        check_repeated(lake, [happened] * len(GROUP))


@pytest.mark.parametrize("step", failpoints.STEPS)
@pytest.mark.parametrize("failures", [1, 1_000], ids=["once", "always"])
def test_failure_at_any_failpoint_leaves_each_edit_of_a_group_complete_or_absent(
    workspace: WorkspaceFixture, step: str, failures: int, edit_mode: str
) -> None:
    """After one failure, each edit is committed alone."""
    remaining = [failures]

    def fail() -> None:
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise OSError("injected")

    with workspace.open() as lake:
        prepare_edited(lake)
        with ExitStack() as armed:
            futures = edit_together(lake, lambda: armed.enter_context(failpoints.armed(step, fail)))
            errors = [future.exception() for future in futures]
        assert remaining[0] < failures, f"the group never came to {step}"
        assert all(error is None or isinstance(error, OSError) for error in errors), errors
        happened = [error is None for error in errors]
        if failures == 1 or step in COMMITTED:
            assert all(happened)
        elif not (edit_mode == "mark" and step in FILE_STEPS):  # a delete that marks rows writes no file
            assert not any(happened)
        assert values(lake) == apply_edits(happened)
        check_repeated(lake, happened)


def apply_edits(happened: list[bool]) -> dict[int, int]:
    """Return the values after the edits of the group that were committed."""
    changed = [row_id for (ids, _), done in zip(GROUP.values(), happened, strict=True) if done for row_id in ids]
    after = AFTER_FIRST | {row_id: AFTER_GROUP[row_id] for row_id in changed if row_id in AFTER_GROUP}
    return {row_id: value for row_id, value in after.items() if row_id not in changed or row_id in AFTER_GROUP}
