"""Merges into a dataset beside other writers: no key twice, nothing lost, nobody starved."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock import failpoints as faults
from penstock.catalog import commit as commits
from penstock.core.caller import Role
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets import commit_retry as landing
from workspaces import Place


def words(ds: Dataset) -> dict[int, str]:
    """The rows, by key. No key stands twice, and no row id either."""
    read = ds.to_arrow(row_ids=True)
    assert len(set(read["rowid"].to_pylist())) == read.num_rows == ds.num_rows
    ids = read["id"].to_pylist()
    assert [n for n, count in Counter(ids).items() if count > 1] == []
    return dict(zip(ids, read["word"].to_pylist(), strict=True))


@pytest.mark.parametrize("engines", [["pyarrow"] * 6, ["pyarrow", "duckdb"] * 3], ids=["pyarrow", "mixed"])
def test_writers_that_bring_the_same_new_keys_make_one_row_of_each(place: Place, engines: list[str]) -> None:
    keys = list(range(100, 150))
    with place.open() as lake:
        lake.create("demo.numbers", {"id": [1, 2], "word": ["one", "two"]})
    said = place.race("merge_keys", [["demo.numbers", keys, who, engine] for who, engine in enumerate(engines)])
    assert "merged" in said
    assert set(said) <= {"merged", "stale_version", "dataset_held"}
    with place.open() as lake:
        found = words(lake.dataset("demo.numbers"))
        assert set(found) == {1, 2, *keys}
        last = lake.dataset("demo.numbers").history()[0]
        winners = {found[key] for key in keys}
        assert len(winners) == 1, "the rows of one key set are those of one writer"
        assert last.operation == "merge"


def before_commit(act: Callable[[], object]) -> AbstractContextManager[None]:
    """Do something right before the next commit, once."""
    pending = [act]
    return faults.armed("stage.synced", lambda: pending and pending.pop()())


def test_a_merge_is_rebased_over_rows_of_other_keys(numbers: Dataset) -> None:
    with before_commit(lambda: numbers.append({"id": [50], "word": ["fifty"]})):
        merged = numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert merged.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 5}
    assert words(numbers) == {1: "one", 2: "zwei", 3: "three", 9: "neun", 50: "fifty"}
    assert [v.operation for v in numbers.history()] == ["merge", "append", "create"]


def test_a_merge_is_redone_over_rows_of_its_own_keys(numbers: Dataset) -> None:
    with before_commit(lambda: numbers.append({"id": [9], "word": ["first"]})):
        merged = numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert merged.stats == {"inserted": 0, "updated": 2, "deleted": 0, "total": 4}
    assert words(numbers) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_an_insert_is_redone_when_the_row_it_relied_on_is_gone(numbers: Dataset) -> None:
    others = {"id": [1, 3], "word": ["one", "three"]}
    with before_commit(lambda: numbers.merge(others, "id", "full_merge")):
        merged = numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", "insert")
    assert merged.stats == {"inserted": 2, "updated": 0, "deleted": 0, "total": 4}
    assert words(numbers) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_a_full_merge_deletes_what_came_in_between(numbers: Dataset) -> None:
    with before_commit(lambda: numbers.append({"id": [50], "word": ["fifty"]})):
        merged = numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", "full_merge")
    assert merged.stats == {"inserted": 1, "updated": 1, "deleted": 3, "total": 2}
    assert words(numbers) == {2: "zwei", 9: "neun"}


def test_a_merge_meets_a_schema_that_has_grown_meanwhile(numbers: Dataset) -> None:
    with before_commit(lambda: numbers.alter(add={"more": "int64"})):
        numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert numbers.schema.names == ["id", "word", "more"]
    assert words(numbers) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_steady_writers_cannot_starve_a_merge(numbers: Dataset) -> None:
    """Whoever comes before each of its commits with one of its own keys is kept waiting by the last try."""
    late: list[threading.Thread] = []
    tries = 0

    def overtake() -> None:
        nonlocal tries
        if threading.current_thread() is not threading.main_thread():
            return  # that is the other writer's own file
        tries += 1
        other = threading.Thread(target=numbers.append, args=({"id": [1000 + tries], "word": ["steady"]},))
        other.start()
        if tries < landing.TRIES:
            other.join()
        else:
            late.append(other)  # it cannot commit while the dataset is held

    source = {"id": [2, *range(1000, 1010)], "word": ["zwei"] + ["merged"] * 10}
    with faults.armed("stage.synced", overtake):
        merged = numbers.merge(source, "id")
        (last,) = late
        last.join()
    assert tries == landing.TRIES
    assert merged.stats["updated"] == 1 + landing.TRIES - 1
    assert [v.operation for v in numbers.history()][:2] == ["append", "merge"]


def test_a_hold_ends_by_itself_when_its_holder_is_gone(numbers: Dataset) -> None:
    lake = numbers._lake
    held = lake.workspace.db, lake.caller, numbers.id
    assert commits.hold(*held, uuid4(), timedelta(milliseconds=300))
    assert not commits.hold(*held, uuid4(), timedelta(seconds=1)), "one holder at a time"
    numbers.append({"id": [4], "word": ["four"]})  # waits for it
    assert numbers.num_rows == 4


def test_the_same_merge_sent_again_happens_once(numbers: Dataset) -> None:
    rows = {"id": [3, 4], "word": ["drei", "vier"]}
    first = numbers.merge(rows, "id", idempotency_key="k")
    again = numbers.merge(rows, "id", idempotency_key="k")
    assert first.receipt is not None
    assert again.receipt is not None
    assert again.receipt.replayed
    assert again.stats == first.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    assert numbers.version == 2
    with pytest.raises(AlreadyExists, match="another request"):
        numbers.merge(rows, "id", "insert", idempotency_key="k")
    with pytest.raises(AlreadyExists, match="another request"):
        numbers.merge({"id": [3, 4], "word": ["drei", "x"]}, "id", idempotency_key="k")


def test_a_merge_that_changes_nothing_makes_no_version(numbers: Dataset) -> None:
    for strategy, rows in (("insert", {"id": [1], "word": ["x"]}), ("update", {"id": [77], "word": ["x"]})):
        assert numbers.merge(rows, "id", strategy).stats["total"] == 3
    assert numbers.version == 1


def test_a_dry_run_tells_what_would_happen_and_writes_nothing(numbers: Dataset, lake: Lake) -> None:
    numbers.append({"id": [100], "word": ["far"]})
    listed = sorted(lake.workspace.store.files(numbers.now().snapshot.location))
    told = numbers.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", dry_run=True)
    assert told.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 5}
    assert (len(told.rewritten), told.dropped, told.kept, told.receipt) == (1, (), 1, None)
    assert told.rewritten[0] == numbers.now().files()[0].path
    assert sorted(lake.workspace.store.files(numbers.now().snapshot.location)) == listed
    assert numbers.version == 2


def test_files_without_a_match_stay_and_are_not_even_opened(numbers: Dataset, lake: Lake) -> None:
    numbers.append({"id": [100], "word": ["far"]})
    far = numbers.now().files()[1]
    place = Path(lake.workspace.store.locate(far.path))
    content = place.read_bytes()
    place.write_bytes(b"nobody reads this")
    numbers.merge({"id": [2], "word": ["zwei"]}, "id", engine="pyarrow")
    numbers.merge({"id": [3], "word": ["drei"]}, "id", engine="duckdb")
    place.write_bytes(content)
    assert words(numbers) == {1: "one", 2: "zwei", 3: "drei", 100: "far"}
    assert far.path in [file.path for file in numbers.now().files()]


def test_only_those_who_may_write_may_merge(numbers: Dataset, lake: Lake, stranger: Lake) -> None:
    rows = {"id": [1], "word": ["x"]}
    with pytest.raises(NotFound):
        Dataset(stranger, numbers.id).merge(rows, "id")
    viewer = Lake(lake.workspace, replace(lake.caller, role=Role.VIEWER), lake.home)
    with pytest.raises(Forbidden):
        Dataset(viewer, numbers.id).merge(rows, "id")
    with pytest.raises(Forbidden):
        Dataset(viewer, numbers.id).merge(rows, "id", dry_run=True)
    sealed = lake.create("demo.sealed", rows, read_only=True)
    with pytest.raises(Unsupported, match="read-only"):
        sealed.merge(rows, "id")


def test_a_dataset_keeps_its_types_and_says_what_it_cannot(numbers: Dataset) -> None:
    with pytest.raises(Invalid, match="cast"):
        numbers.merge(pa.table({"id": [1], "word": pa.array([1], pa.time32("s"))}), "id")
    with pytest.raises(Invalid, match="'nonsense' is no engine"):
        numbers.merge({"id": [1], "word": ["x"]}, "id", engine="nonsense")


def test_a_refused_merge_leaves_nothing_behind(numbers: Dataset, lake: Lake) -> None:
    with pytest.raises(Invalid):
        numbers.merge({"id": [1, 1], "word": ["x", "y"]}, "id")

    def stop() -> None:
        raise Conflict("stopped", "injected")

    with faults.armed("stage.synced", stop), pytest.raises(Conflict):
        numbers.merge({"id": [1, 9], "word": ["x", "y"]}, "id")
    held = {file.path for file in numbers.now().files()}
    assert {path for path, _ in lake.workspace.store.files(numbers.now().snapshot.location)} == held
    assert not list(lake.workspace.store.folders(f"scratch/{lake.caller.tenant}"))


def test_a_merge_in_a_transaction_is_visible_with_the_rest_or_not_at_all(numbers: Dataset, lake: Lake) -> None:
    log = lake.create("demo.log", {"text": ["begun"]})
    with lake.transaction() as tx:
        told = tx.merge(numbers, {"id": [3, 4], "word": ["drei", "vier"]}, "id")
        tx.append(log, {"text": ["merged"]})
        assert numbers.version == 1
    assert told.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    assert words(numbers) == {1: "one", 2: "two", 3: "drei", 4: "vier"}
    assert (numbers.version, log.version) == (2, 2)
    with pytest.raises(Conflict), lake.transaction() as tx:
        tx.merge(numbers, {"id": [7], "word": ["seven"]}, "id")
        tx.append(log, {"text": ["lost"]})
        numbers.append({"id": [8], "word": ["eight"]})
    assert (numbers.version, log.version) == (3, 2)


def test_two_full_merges_that_empty_a_dataset_both_end(numbers: Dataset) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    with before_commit(lambda: numbers.overwrite(empty)):
        merged = numbers.merge({"id": [9], "word": ["nine"]}, "id", "full_merge")
    assert merged.stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 1}


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
def test_a_key_column_may_be_required(lake: Lake, engine: str, strategy: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    ds = lake.create("demo.required", pa.table({"id": [1, 2], "word": ["one", "two"]}, schema=schema))
    merged = ds.merge({"id": [2, 3], "word": ["zwei", "drei"]}, "id", strategy, engine=engine)
    assert merged.stats["total"] == ds.num_rows == len(words(ds))
    assert not ds.schema.field("id").nullable


def test_a_request_is_known_again_however_it_is_worded(numbers: Dataset) -> None:
    rows = {"id": [3, 4], "word": ["drei", "vier"]}
    numbers.merge(rows, "id", idempotency_key="k", engine="pyarrow")
    again = numbers.merge(rows, [" id"], idempotency_key="k", engine="duckdb", batch_rows=7)
    assert again.receipt is not None
    assert again.receipt.replayed
