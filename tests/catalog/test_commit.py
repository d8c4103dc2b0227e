"""What a commit promises, on both databases, with many processes at once."""

import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest

from faults.failing import Countdown, failing_sql
from penstock import failpoints as faults
from penstock.catalog import snapshots as history
from penstock.catalog import writer_leases as leases
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.storage.data_files import Shape
from workspaces import Place


def ids(ds: Dataset, version: int | None = None) -> list[int]:
    at = ds.now() if version is None else ds.at(version)
    return sorted(at.to_arrow(["id"])["id"].to_pylist())


def test_of_eight_writers_from_one_base_exactly_one_wins(place: Place, numbers: Dataset) -> None:
    answers = place.race("overwrite_at", [(numbers.name, 1, who) for who in range(8)])
    assert sorted(answers) == ["stale_version"] * 7 + ["won"]
    assert numbers.version == 2
    assert ids(numbers) == [answers.index("won")]


def test_read_modify_writes_of_four_processes_lose_nothing(place: Place, lake: Lake, soak: bool) -> None:
    counter = lake.create("demo.counter", {"id": [0], "word": ["start"]})
    times = 400 if soak else 25
    conflicts = place.race("add_one", [(counter.name, times)] * 4)
    assert ids(counter) == [4 * times]
    assert counter.version == 1 + 4 * times
    assert sum(conflicts) > 0, "the processes did not meet, so nothing was shown"


def test_concurrent_appends_all_land_and_every_version_stays_readable(
    place: Place, numbers: Dataset, soak: bool
) -> None:
    times = 200 if soak else 25
    answers = place.race("append_rows", [(numbers.name, 1000 * (who + 1), times) for who in range(4)])
    acknowledged = sorted(version for versions in answers for version in versions)
    assert acknowledged == list(range(2, 2 + 4 * times))
    everything = [1, 2, 3] + [1000 * (who + 1) + i for who in range(4) for i in range(times)]
    assert ids(numbers) == sorted(everything)
    for version in [1, 2, 2 * times, 4 * times, 4 * times + 1]:
        assert len(ids(numbers, version)) == numbers.at(version).num_rows == 2 + version
    row_ids = numbers.to_arrow(row_ids=True)["rowid"].to_pylist()
    assert len(set(row_ids)) == len(row_ids) == 3 + 4 * times


def test_threads_share_a_lake(numbers: Dataset) -> None:
    def work(who: int) -> list[int]:
        return [numbers.append({"id": [100 * who + i], "word": ["t"]}).version for i in range(10)]

    with ThreadPoolExecutor(6) as pool:
        versions = [version for answers in pool.map(work, range(1, 7)) for version in answers]
    assert sorted(versions) == list(range(2, 62))
    assert ids(numbers) == sorted([1, 2, 3] + [100 * who + i for who in range(1, 7) for i in range(10)])


def test_a_commit_over_two_datasets_is_seen_whole_by_every_snapshot(place: Place, lake: Lake) -> None:
    one = lake.create("demo.one", {"id": [0], "word": [""]})
    other = lake.create("demo.other", {"id": [0], "word": [""]})
    assert place.race("move_money", [("demo.one", "demo.other", 15)] * 3) == [0, 0, 0]
    assert one.num_rows == other.num_rows == 46
    for commit_no in range(2, lake.snapshot().commit_no + 1):
        at = lake.snapshot(commit_no)
        money = [sum(at.dataset(name).to_arrow(["id"])["id"].to_pylist()) for name in ("demo.one", "demo.other")]
        assert sum(money) == 0, f"commit {commit_no} was seen in half"


def test_a_commit_with_one_stale_base_leaves_nothing(lake: Lake, numbers: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "word": ["a"]})
    other.append({"id": [2], "word": ["b"]})
    before = lake.snapshot().commit_no
    with pytest.raises(Conflict) as refusal, lake.transaction() as tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        tx.overwrite(other, {"id": [9], "word": ["stale"]}, expect=1)
    assert refusal.value.context["dataset"] == "demo.other"
    assert (refusal.value.context["base"], refusal.value.context["newest"]) == (1, 2)
    assert refusal.value.context["author"] in refusal.value.message
    assert (ids(numbers), ids(other), lake.snapshot().commit_no) == ([1, 2, 3], [1, 2], before)
    assert_no_orphans(lake)


def test_an_error_inside_a_transaction_drops_all_of_it(lake: Lake, numbers: Dataset) -> None:
    with pytest.raises(ZeroDivisionError), lake.transaction() as tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        _ = 1 / 0
    assert numbers.version == 1
    assert_no_orphans(lake)


def test_a_transaction_ends_once(lake: Lake, numbers: Dataset) -> None:
    tx = lake.transaction()
    with pytest.raises(ZeroDivisionError), tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        _ = 1 / 0
    for use in (tx.__enter__, lambda: tx.append(numbers, {"id": [4], "word": ["four"]})):
        with pytest.raises(Unsupported) as refusal:
            use()
        assert refusal.value.reason == "transaction_over"
    assert ids(numbers) == [1, 2, 3]


def test_an_overwrite_in_a_transaction_leaves_no_file_of_its_own_behind(lake: Lake, numbers: Dataset) -> None:
    with lake.transaction() as tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        tx.overwrite(numbers, {"id": [5], "word": ["five"]})
        tx.overwrite(numbers, {"id": [6], "word": ["six"]})
    assert ids(numbers) == [6]
    assert numbers.version == 2
    assert_no_orphans(lake)


def test_appends_of_one_transaction_around_an_alter_are_all_found(lake: Lake, numbers: Dataset) -> None:
    with lake.transaction() as tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        numbers.alter(add={"extra": "int64"})
        with pytest.raises(Invalid, match="extra"):  # a transaction goes on from the version that it met first
            tx.append(numbers, {"id": [5], "word": ["five"], "extra": [55]})
        tx.append(numbers, {"id": [5], "word": ["five"]})
    assert numbers.to_arrow(["id"], "extra IS NULL AND id > 3")["id"].to_pylist() == [4, 5]
    assert ids(numbers) == [1, 2, 3, 4, 5]


def test_a_refusal_names_who_really_came_first(lake: Lake, numbers: Dataset) -> None:
    numbers.append({"id": [4], "word": ["four"]})
    pending = [lambda: numbers.overwrite({"id": [9], "word": ["nine"]})]
    with (
        faults.armed("stage.begun", lambda: pending.pop()() if pending else None),
        pytest.raises(Conflict) as refusal,
    ):
        numbers.compact()
    assert refusal.value.context["newest"] == numbers.version == 3
    assert "(overwrite)" in refusal.value.message


def test_commits_follow_one_another_in_time_too(lake: Lake, numbers: Dataset) -> None:
    now = datetime.now(UTC)
    for hours in (5, -5, 3, 0):  # a clock that cannot make up its mind
        lake.workspace.db.clock = lambda hours=hours: now + timedelta(hours=hours)  # type: ignore[misc]
        numbers.append({"id": [4], "word": ["four"]})
    times = [version.at for version in numbers.history()]
    assert times == sorted(times, reverse=True)


def test_a_neighbours_lease_is_not_touched_by_a_refusal(lake: Lake, numbers: Dataset) -> None:
    writers, caller = lake.workspace.writers, lake.caller
    first = writers.lease(caller)
    with lake.workspace.db.write(caller) as tx:
        leases.end(tx, first)
    with pytest.raises(Conflict) as refusal:
        numbers.append({"id": [4], "word": ["four"]})
    second = writers.lease(caller)
    writers.forget(caller, first, refusal.value)
    assert writers.lease(caller) == second != first
    assert numbers.append({"id": [4], "word": ["four"]}).version == 2


def test_a_forked_child_writes_for_itself(lake: Lake, numbers: Dataset) -> None:
    """Even when it was born while another thread held the lock of its parent's leases."""
    numbers.append({"id": [4], "word": ["four"]})
    parent = lake.workspace.writers.lease(lake.caller)
    with lake.workspace.writers._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking a process with threads is what is tried here
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            own = lake.workspace.writers.lease(lake.caller)
            with lake.workspace.db.read(lake.caller) as tx:
                os._exit(0 if own != parent and history.commit_no(tx) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers.append({"id": [5], "word": ["five"]}).version == 3


def test_closing_without_the_database_does_not_hide_what_went_wrong(embedded: Place) -> None:
    with ExitStack() as away, pytest.raises(ZeroDivisionError), embedded.open() as lake:
        lake.create("demo.x", {"id": [1]})
        away.enter_context(failing_sql(lake.workspace.db, Countdown(1)))
        _ = 1 / 0


def test_a_repeated_key_is_answered_with_the_first_receipt(lake: Lake, numbers: Dataset) -> None:
    first = numbers.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    again = numbers.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    assert again == first
    assert again.replayed
    assert not first.replayed
    assert ids(numbers) == [1, 2, 3, 4]
    assert_no_orphans(lake)


def test_a_key_of_another_request_is_refused(lake: Lake, numbers: Dataset) -> None:
    numbers.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    with pytest.raises(AlreadyExists) as refusal:
        numbers.append({"id": [5], "word": ["five"]}, idempotency_key="order-17")
    assert refusal.value.reason == "key_reused"
    assert ids(numbers) == [1, 2, 3, 4]
    assert_no_orphans(lake)


@pytest.mark.parametrize("key", ["", "x" * 201, "line\nbreak"])
def test_odd_keys_are_refused(numbers: Dataset, key: str) -> None:
    with pytest.raises(Invalid) as refusal:
        numbers.append({"id": [4], "word": ["four"]}, idempotency_key=key)
    assert refusal.value.reason == "bad_idempotency_key"
    assert numbers.version == 1


def test_a_key_knows_its_request_whatever_happened_since(lake: Lake, numbers: Dataset) -> None:
    rows = pa.table({"id": [4, 5], "word": ["four", None]})
    first = numbers.append(rows, idempotency_key="k")
    numbers.alter(add={"extra": "int64"})
    lake.workspace.shape = Shape(group_rows=1)
    cut_otherwise = pa.Table.from_batches([batch.slice(i, 1) for batch in rows.to_batches() for i in (0, 1)])
    packed = cut_otherwise.set_column(1, "word", cut_otherwise["word"].dictionary_encode())
    for again in (rows, cut_otherwise, packed):
        assert numbers.append(again, idempotency_key="k") == first
    for other in ({"id": [4, 5], "word": ["four", ""]}, {"id": [4, 5]}, {"id": [5, 4], "word": [None, "four"]}):
        with pytest.raises(AlreadyExists):
            numbers.append(other, idempotency_key="k")
    assert ids(numbers) == [1, 2, 3, 4, 5]
    assert_no_orphans(lake)


def test_a_creation_is_known_again_by_all_that_was_asked(lake: Lake) -> None:
    first = lake.create("demo.made", {"id": [1]}, idempotency_key="k")
    assert lake.create("demo.made", {"id": [1]}, idempotency_key="k").id == first.id
    with pytest.raises(AlreadyExists) as refusal:
        lake.create("demo.made", {"id": [1]}, row_ids=False, idempotency_key="k")
    assert refusal.value.reason == "key_reused"
    assert_no_orphans(lake)


def test_an_alter_and_an_overwrite_are_answered_again_after_others_wrote(lake: Lake, numbers: Dataset) -> None:
    altered = numbers.alter(add={"extra": "int64"}, idempotency_key="a")
    written = numbers.overwrite({"id": [9]}, expect=2, idempotency_key="o")
    numbers.append({"id": [10]})
    assert numbers.alter(add={"extra": "int64"}, idempotency_key="a") == altered
    assert numbers.overwrite({"id": [9]}, expect=2, idempotency_key="o") == written
    with pytest.raises(AlreadyExists):
        numbers.overwrite({"id": [9]}, expect=4, idempotency_key="o")
    assert ids(numbers) == [9, 10]


def test_keys_of_tenants_do_not_meet(lake: Lake, stranger: Lake, numbers: Dataset) -> None:
    numbers.append({"id": [4], "word": ["four"]}, idempotency_key="shared")
    theirs = stranger.create("demo.numbers", {"id": [7], "word": ["seven"]}, idempotency_key="shared")
    assert ids(theirs) == [7]


def test_no_rows_make_no_version(lake: Lake, numbers: Dataset) -> None:
    commit_no = lake.snapshot().commit_no
    receipt = numbers.append({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    assert receipt.version == numbers.version == 1
    assert lake.snapshot().commit_no == commit_no
    assert receipt.written[0].rows == 3


def test_commit_numbers_grow_by_one_over_all_datasets(lake: Lake, numbers: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "word": ["a"]})
    taken = [ds.append({"id": [5], "word": ["x"]}).commit_no for ds in (numbers, other, numbers)]
    assert [b - a for a, b in pairwise(taken)] == [1, 1]
    with lake.transaction() as tx:
        tx.append(numbers, {"id": [6], "word": ["x"]})
        tx.append(other, {"id": [6], "word": ["x"]})
    assert tx.receipt is not None
    assert tx.receipt.commit_no == taken[-1] + 1
    assert {w.name for w in tx.receipt.written} == {"demo.numbers", "demo.other"}


def test_row_ids_are_never_used_again(numbers: Dataset) -> None:
    numbers.overwrite({"id": [1, 2], "word": ["a", "b"]})
    numbers.append({"id": [3], "word": ["c"]})
    numbers.compact()
    assert numbers.to_arrow(row_ids=True)["rowid"].to_pylist() == [4, 5, 6]
    assert numbers.at(1).to_arrow(row_ids=True)["rowid"].to_pylist() == [1, 2, 3]


def test_compaction_keeps_rows_ids_and_older_versions(lake: Lake, numbers: Dataset) -> None:
    for i in range(4, 10):
        numbers.append({"id": [i], "word": [str(i)]})
    before = numbers.to_arrow(row_ids=True)
    old = numbers.now()
    receipt = numbers.compact()
    assert receipt.version == 8
    assert (receipt.written[0].inserted, receipt.written[0].rows) == (0, 9)
    assert len(numbers.now().files()) == 1
    assert numbers.to_arrow(row_ids=True).equals(before)
    assert old.to_arrow(row_ids=True).equals(before)
    numbers.append({"id": [10], "word": ["ten"]})
    numbers.compact()
    assert numbers.to_arrow(row_ids=True)["rowid"].to_pylist() == list(range(1, 11))
    assert numbers.compact().version == numbers.version == 10, "one file is not worth compacting"


def test_a_read_only_dataset_takes_no_writes(lake: Lake) -> None:
    fixed = lake.create("demo.fixed", {"id": [1]}, read_only=True)
    for write in (
        lambda: fixed.append({"id": [2]}),
        lambda: fixed.overwrite({"id": [2]}),
        lambda: fixed.alter(add={"x": "int64"}),
        fixed.compact,
    ):
        with pytest.raises(Unsupported) as refusal:
            write()
        assert refusal.value.reason == "read_only"
    assert fixed.version == 1


def test_names_are_unique_ignoring_case_and_free_again_after_a_drop(lake: Lake, numbers: Dataset) -> None:
    with pytest.raises(AlreadyExists):
        lake.create("Demo.Numbers", {"id": [1]})
    assert lake.dataset("DEMO.numbers").id == numbers.id
    numbers.drop()
    for use in (lambda: lake.dataset("demo.numbers"), lambda: numbers.append({"id": [1]}), numbers.to_arrow):
        with pytest.raises(NotFound):
            use()
    fresh = lake.create("demo.numbers", {"id": [1]})
    assert fresh.id != numbers.id
    assert_no_orphans(lake, dropped=1)


def test_roles_are_asked_for(lake: Lake, numbers: Dataset) -> None:
    from dataclasses import replace

    from penstock.core.caller import Role

    viewer = Lake(lake.workspace, replace(lake.caller, role=Role.VIEWER), lake.home).dataset(numbers.id)
    developer = Lake(lake.workspace, replace(lake.caller, role=Role.DEVELOPER), lake.home).dataset(numbers.id)
    assert viewer.num_rows == 3
    for write in (lambda: viewer.append({"id": [4], "word": [""]}), viewer.compact, viewer.drop, developer.drop):
        with pytest.raises(Forbidden) as refusal:
            write()
        assert refusal.value.context["required_role"] in ("analytics.developer", "analytics.admin")
    assert developer.append({"id": [4], "word": ["four"]}).version == 2


def assert_no_orphans(lake: Lake, *, dropped: int = 0) -> None:
    """Every file in the workspace belongs to a version, and every version's files are there."""
    store = lake.workspace.store
    on_disk = {path for tenant in store.folders("data") for ds in store.folders(tenant) for path, _ in store.files(ds)}
    listed = {file.path for ds in lake.datasets() for v in range(1, ds.version + 1)
              for file in lake.dataset(ds.id).at(v).files()}  # fmt: skip
    assert len(on_disk - listed) == dropped
    assert not listed - on_disk
