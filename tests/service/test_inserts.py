"""Each insert is whole, told truly and durable by itself, however many of them are committed together."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from faults.failing import Countdown, failing_sql
from faults.grouped import batch, begun, together
from penstock import failpoints as faults
from penstock.catalog import commit as commits
from penstock.core.caller import Role
from penstock.errors import (AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable, Undecided, Unsupported)
from penstock.lake import Dataset, Lake
from penstock.service.datasets.streaming_inserts import Inserted, Insertion, Inserts
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage
from penstock.storage.data_files import Shape
from workspaces import Place

LARGE = {"small_rows": 0}


@pytest.fixture
def inserts(ws: Workspace) -> Iterator[Inserts]:
    with closing(Inserts(ws)) as inserts:
        yield inserts


def by_row_id(ds: Dataset) -> dict[int, int]:
    read = ds.to_arrow(row_ids=True)
    return dict(zip(read["rowid"].to_pylist(), read["id"].to_pylist(), strict=True))


def stored(lake: Lake, ds: Dataset) -> int:
    return len(list(lake.workspace.store.files(ds.now().snapshot.location)))


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_an_insert_is_one_version_and_tells_the_ids_of_its_rows(
    ws: Workspace, numbers: Dataset, sizes: dict[str, int]
) -> None:
    with closing(Inserts(ws, **sizes)) as inserts:
        told = begun(inserts, numbers, batch(10, 11), batch(), batch(12)).commit().result()
    assert (told.rows, told.first_row_id) == (3, 4)
    assert told.receipt is not None
    assert (told.receipt.version, told.receipt.written[0].inserted, told.receipt.written[0].rows) == (2, 3, 6)
    assert [by_row_id(numbers)[told.first_row_id + i] for i in range(3)] == [10, 11, 12]


def test_an_insert_of_no_rows_makes_no_version(inserts: Inserts, numbers: Dataset) -> None:
    told = begun(inserts, numbers, batch(), batch()).commit().result()
    assert (told.rows, told.first_row_id, numbers.version) == (0, None, 1)


def test_a_dataset_without_row_ids_tells_none(inserts: Inserts, lake: Lake) -> None:
    ds = lake.create("demo.plain", pa.table({"id": [1], "word": ["one"]}), row_ids=False)
    assert begun(inserts, ds, batch(2, 3)).commit().result().first_row_id is None
    assert ds.num_rows == 3


def test_32_inserters_at_once_all_hear_the_truth(inserts: Inserts, numbers: Dataset, soak: bool) -> None:
    times = 200 if soak else 8

    def work(who: int) -> list[tuple[list[int], Inserted]]:
        answers = []
        for i in range(times):
            ids = [10_000 * (who + 1) + 3 * i + n for n in range(1 + (who + i) % 3)]
            told = begun(inserts, numbers, *(batch(each) for each in ids)).commit().result()
            assert told.receipt is not None
            assert inserts.target(numbers._lake.caller, numbers.id).version.number >= told.receipt.version
            answers.append((ids, told))
        return answers

    with ThreadPoolExecutor(32) as pool:
        answers = [each for answers in pool.map(work, range(32)) for each in answers]
    there = by_row_id(numbers)
    for ids, told in answers:
        assert told.rows == len(ids)
        assert told.first_row_id is not None
        assert [there.pop(told.first_row_id + i) for i in range(told.rows)] == ids
    assert sorted(there.values()) == [1, 2, 3], "a row was there twice"
    versions = numbers.history(limit=100_000)
    assert sum(each.counts.inserted for each in versions) == numbers.num_rows
    assert len(versions) - 1 < len(answers), "nothing was committed together"


def test_those_that_wait_share_a_file_and_a_version_and_have_a_receipt_each(
    inserts: Inserts, lake: Lake, numbers: Dataset
) -> None:
    rows = {"a": [10], "b": [20, 21], "c": [], "d": [30, 31, 32]}
    waiting = [begun(inserts, numbers, batch(*ids), key=key) for key, ids in rows.items()]
    told = [answer.result() for answer in together(begun(inserts, numbers), *waiting)]
    assert (numbers.version, stored(lake, numbers)) == (2, 2)
    newest = numbers.history()[0]
    assert (newest.counts.inserted, newest.rows) == (6, 9)
    assert [(each.rows, each.first_row_id) for each in told] == [(1, 4), (2, 5), (0, None), (3, 7)]
    assert [by_row_id(numbers)[n] for n in range(4, 10)] == [10, 20, 21, 30, 31, 32]
    assert [each.receipt and each.receipt.key for each in told] == list(rows)

    for first, (key, ids) in zip(told, rows.items(), strict=True):  # each can be sent again, by any door
        again = begun(inserts, numbers, batch(*ids), key=key).commit().result()
        assert again == first
        assert again.receipt is not None
        assert again.receipt.replayed
        assert numbers.append(pa.table(batch(*ids)), idempotency_key=key) == first.receipt
    assert (numbers.version, stored(lake, numbers)) == (2, 2)


def test_a_group_is_no_larger_than_it_may_be(ws: Workspace, numbers: Dataset) -> None:
    with closing(Inserts(ws, together=3)) as inserts:
        waiting = [begun(inserts, numbers, batch(n)) for n in range(10, 17)]
        versions = [each.result().receipt.version for each in together(begun(inserts, numbers), *waiting)]  # type: ignore[union-attr]
    assert versions == [2, 2, 2, 3, 3, 3, 4]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_a_key_that_was_used_concerns_its_own_insert_alone(
    ws: Workspace, lake: Lake, numbers: Dataset, sizes: dict[str, int]
) -> None:
    with closing(Inserts(ws, **sizes)) as inserts:
        first = begun(inserts, numbers, batch(10, 11), key="k").commit().result()
        files = stored(lake, numbers)
        new, replayed, reused, other = together(
            begun(inserts, numbers),
            begun(inserts, numbers, batch(20)),
            begun(inserts, numbers, batch(10), batch(11), key="k"),  # cut otherwise, and the same rows
            begun(inserts, numbers, batch(12), key="k"),
            begun(inserts, numbers, batch(30), key="other"),
        )
        again = replayed.result()
        assert again == first
        assert again.receipt is not None
        assert again.receipt.replayed
        with pytest.raises(AlreadyExists) as refusal:
            reused.result()
        assert refusal.value.reason == "key_reused"
        for told, ids in ((new.result(), [20]), (other.result(), [30])):
            assert told.first_row_id is not None
            assert [by_row_id(numbers)[told.first_row_id]] == ids
    assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 10, 11, 20, 30]
    assert stored(lake, numbers) == files + (2 if sizes else 1)


def test_one_request_sent_twice_at_once_happens_once_and_both_hear_of_it(inserts: Inserts, numbers: Dataset) -> None:
    waiting = [begun(inserts, numbers, batch(n), key=key) for n, key in ((10, "k"), (20, "other"), (10, "k"))]
    one, _, again = [each.result() for each in together(begun(inserts, numbers), *waiting)]
    assert one == again
    assert one.receipt is not None
    assert again.receipt is not None
    assert (one.receipt.replayed, again.receipt.replayed) == (False, True)
    assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 10, 20]


def test_an_insert_that_a_group_chokes_on_does_not_harm_the_others(inserts: Inserts, numbers: Dataset) -> None:
    waiting = [begun(inserts, numbers, batch(n)) for n in (10, 20, 30)]
    failing = [True, False, True, False]  # the group, then the second of its three

    def choke() -> None:
        if failing.pop(0):
            raise ZeroDivisionError("injected")

    with faults.armed("stage.opened", choke):
        answers = together(begun(inserts, numbers), *waiting)
        errors = [each.exception() for each in answers]
    assert [type(error) for error in errors] == [type(None), ZeroDivisionError, type(None)]
    assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 10, 30]


BAD: dict[str, tuple[pa.RecordBatch, str]] = {
    "a missing value": (batch(7, None), "null_in_required_column"),
    "a wild offset": (
        pa.RecordBatch.from_arrays(
            [
                pa.array([1, 2], pa.int64()),
                pa.StringArray.from_buffers(2, pa.array([0, 65_535, 1], pa.int32()).buffers()[1], pa.py_buffer(b"x")),
            ],
            ["id", "word"],
        ),
        "broken_batch",
    ),
}


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_batch_ends_its_insert_and_leaves_nothing(
    ws: Workspace, lake: Lake, bad: str, sizes: dict[str, int]
) -> None:
    ds = lake.create("demo.strict", schema=pa.schema([pa.field("id", pa.int64(), False), ("word", pa.string())]))
    ws.shape = Shape(group_rows=2)
    rows, reason = BAD[bad]
    with closing(Inserts(ws, **sizes)) as inserts:
        insertion = begun(inserts, ds, batch(1, 2, 3))
        with pytest.raises(Invalid) as refusal:
            insertion.add(rows)
        assert refusal.value.reason == reason
        with pytest.raises(AssertionError):
            insertion.commit()
    assert (ds.version, stored(lake, ds)) == (1, 0)


def test_what_cannot_be_written_is_refused_at_once(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    caller, schema = lake.caller, batch().schema
    with pytest.raises(Forbidden):
        inserts.begin(replace(caller, role=Role.VIEWER), numbers.id, schema)
    with pytest.raises(NotFound):
        inserts.begin(replace(caller, tenant=uuid4()), numbers.id, schema)
    with pytest.raises(Unsupported, match="read-only"):
        fixed = lake.create("demo.fixed", pa.table(batch(1)), read_only=True)
        inserts.begin(caller, fixed.id, schema)
    with pytest.raises(Invalid, match="word"):
        inserts.begin(caller, numbers.id, pa.schema([("id", pa.int64()), ("word", pa.date32())]))
    with pytest.raises(Invalid, match="idempotency key"):
        inserts.begin(caller, numbers.id, schema, key="")


def test_inserts_that_met_different_schemas_all_land(inserts: Inserts, numbers: Dataset) -> None:
    before = [begun(inserts, numbers, batch(n)) for n in (10, 20)]
    numbers.alter(add={"more": "int64"})
    after = begun(inserts, numbers, batch(30).append_column("more", pa.array([5])))
    told = [each.result() for each in together(begun(inserts, numbers), before[0], after, before[1])]
    assert [each.receipt and each.receipt.version for each in told] == [3, 4, 3]
    rows = numbers.to_arrow(["id", "more"], "id >= 10").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 10, "more": None},
        {"id": 20, "more": None},
        {"id": 30, "more": 5},
    ]


def test_inserts_into_what_was_dropped_are_refused_each(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    waiting = [begun(inserts, numbers, batch(n)) for n in (10, 20)]
    first = begun(inserts, numbers)
    location = numbers.now().snapshot.location
    numbers.drop()
    answers = [each.commit() for each in (first, *waiting)]
    errors = [each.exception() for each in answers]
    assert [type(each) for each in errors] == [NotFound] * 3
    assert len({id(error) for error in errors}) == 3, "one error must not be raised in several threads"
    assert len(list(lake.workspace.store.files(location))) == 1


def test_an_insert_waits_while_a_merge_holds_the_dataset(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    db, holder = lake.workspace.db, uuid4()
    assert commits.hold(db, lake.caller, numbers.id, holder, timedelta(minutes=1))
    answer = begun(inserts, numbers, batch(10)).commit()
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.3)
    commits.release(db, lake.caller, numbers.id, holder)
    assert answer.result().first_row_id == 4


def test_a_version_has_one_author(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    bob = replace(lake.caller, user=uuid4(), name="bob")
    his = inserts.begin(bob, numbers.id, batch().schema)
    his.add(batch(20))
    told = [each.result() for each in together(begun(inserts, numbers), begun(inserts, numbers, batch(10)), his)]
    authors = {each.number: each.author for each in numbers.history()}
    assert [authors[each.receipt.version] for each in told if each.receipt] == [lake.caller.name, "bob"]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("how", ["discard", "cancel"])
def test_what_is_taken_back_leaves_nothing(
    ws: Workspace, lake: Lake, numbers: Dataset, sizes: dict[str, int], how: str
) -> None:
    ws.shape = Shape(group_rows=2)
    with closing(Inserts(ws, **sizes)) as inserts:
        back = begun(inserts, numbers, batch(10, 11, 12))
        other = begun(inserts, numbers, batch(20))
        if how == "discard":
            back.discard()
            back.discard()
            assert other.commit().result().rows == 1
        else:  # the client is gone while its insert waits for its turn

            def later(_: object) -> None:
                answer = back.commit()
                assert answer.cancel() or sizes

            first = other.commit()
            first.add_done_callback(later)
            assert first.result().rows == 1
    if not (how == "cancel" and sizes):  # a large one waits for nobody, so that it may have begun
        assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 20]
    assert stored(lake, numbers) == numbers.version


def test_a_discard_after_the_commit_does_nothing(inserts: Inserts, numbers: Dataset) -> None:
    insertion = begun(inserts, numbers, batch(10))
    answer = insertion.commit()
    insertion.discard()
    assert answer.result().rows == 1
    insertion.discard()
    assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 10]


@pytest.mark.parametrize("rows_in_a_batch", [1, 7, 100])
def test_a_long_stream_keeps_its_order_over_many_files(
    ws: Workspace, lake: Lake, numbers: Dataset, rows_in_a_batch: int
) -> None:
    ws.shape = Shape(file_bytes=1, group_rows=600)
    total = 2_100
    with closing(Inserts(ws, small_rows=50)) as inserts:
        insertion = begun(inserts, numbers)
        for start in range(0, total, rows_in_a_batch):
            insertion.add(batch(*range(1000 + start, 1000 + start + rows_in_a_batch)))
        assert insertion.rows == total
        told = insertion.commit().result()
    there = by_row_id(numbers)
    assert told.first_row_id is not None
    assert [there[told.first_row_id + i] for i in range(total)] == list(range(1000, 1000 + total))
    assert stored(lake, numbers) == len(numbers.now().files()) > 3


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("row_ids", [True, False])
def test_inside_a_transaction_rows_have_their_ids_before_the_commit(
    ws: Workspace, lake: Lake, sizes: dict[str, int], row_ids: bool
) -> None:
    ds = lake.create("demo.either", pa.table(batch(1, 2, 3)), row_ids=row_ids)
    ws.shape = Shape(file_bytes=1, group_rows=2)
    with closing(Inserts(ws, **sizes)) as inserts, Stage(ws, lake.caller) as stage:
        working = Working(ws, lake.caller, ds.now().snapshot)
        told = []
        for ids in ([10, 11, 12], [20]):
            insertion = inserts.begin(lake.caller, ds.id, batch().schema, within=(stage, working))
            insertion.add(batch(*ids))
            change, inserted = insertion.change()
            working.apply(change)
            insertion.discard()
            told.append(inserted)
        dropped = inserts.begin(lake.caller, ds.id, batch().schema, within=(stage, working))
        dropped.add(batch(40, 41, 42))
        dropped.discard()
        outside = ds.append(pa.table(batch(30)))
        stage.commit([working.change()])
    assert [each.receipt for each in told] == [None, None]
    assert sorted(each for each in ds.to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11, 12, 20, 30]
    assert stored(lake, ds) == len(ds.now().files())
    if row_ids:
        firsts = (told[0].first_row_id, told[1].first_row_id, outside.written[0].first_row_id)
        assert [by_row_id(ds)[first] for first in firsts if first] == [10, 20, 30]
    else:
        assert [each.first_row_id for each in told] == [None, None]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_closing_waits_for_what_was_asked_and_takes_no_more(
    ws: Workspace, lake: Lake, numbers: Dataset, sizes: dict[str, int]
) -> None:
    inserts = Inserts(ws, **sizes)
    late = begun(inserts, numbers, batch(40))
    answers = [begun(inserts, numbers, batch(n)).commit() for n in (10, 20, 30)]
    inserts.close()
    assert all(answer.done() for answer in answers)
    assert sorted(by_row_id(numbers).values()) == [1, 2, 3, 10, 20, 30]
    with pytest.raises(Unavailable) as refusal:
        late.commit().result()
    assert refusal.value.reason == "shutting_down"
    assert stored(lake, numbers) == numbers.version


COMMITTED = ("commit.sent", "commit.done")


@pytest.mark.parametrize("step", faults.STEPS)
def test_a_failure_at_any_step_leaves_each_of_a_group_whole_or_absent(
    inserts: Inserts, lake: Lake, numbers: Dataset, step: str
) -> None:
    """It strikes the group and then each alone. What was refused can be sent again."""

    def send() -> list[Insertion]:
        return [begun(inserts, numbers, batch(n, n + 1), key=f"k{n}") for n in (10, 20, 30)]

    with ExitStack() as over:
        answers = together(
            begun(inserts, numbers), *send(), strike=lambda: over.enter_context(faults.armed(step, fail))
        )
        heard = [answer.exception() for answer in answers]
    there = set(by_row_id(numbers).values())
    assert there in ({1, 2, 3}, {1, 2, 3, 10, 11, 20, 21, 30, 31})
    assert (len(there) > 3) == (step in COMMITTED)
    if step == "commit.sent":  # the answer to COMMIT was lost, and the receipts tell
        assert heard == [None] * 3
    for answer, n in zip(together(begun(inserts, numbers), *send()), (10, 20, 30), strict=True):
        first = answer.result().first_row_id
        assert first is not None
        assert [by_row_id(numbers)[first + i] for i in (0, 1)] == [n, n + 1]
    assert numbers.num_rows == 9
    if step.startswith("stage."):  # after that nobody knows what an unknown error means, and files are left to a sweep
        assert stored(lake, numbers) == len(numbers.now().files())


def fail() -> None:
    raise OSError("injected")


def test_the_nth_sql_statement_of_a_group_may_fail(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    n = 0
    while numbers.num_rows == 3:
        n += 1
        countdown = Countdown(n)
        with ExitStack() as over:
            waiting = [begun(inserts, numbers, batch(ten), key=f"k{ten}") for ten in (10, 20)]
            sql = failing_sql(lake.workspace.db, countdown)
            answers = together(
                begun(inserts, numbers), *waiting, strike=lambda sql=sql, over=over: over.enter_context(sql)
            )  # type: ignore[misc]
            heard = [answer.exception() for answer in answers]
        assert heard == [None] * 2 or all(isinstance(e, Unavailable | Conflict | Undecided) for e in heard)
        assert (heard == [None] * 2) == (numbers.num_rows == 5)
    assert n > 8, "too few statements were seen"
    assert stored(lake, numbers) == 2


def test_an_unknown_outcome_is_told_to_each_with_its_own_key(inserts: Inserts, lake: Lake, numbers: Dataset) -> None:
    def lose_everything() -> None:
        lost.enter_context(failing_sql(lake.workspace.db, Countdown(1)))
        raise OSError("injected")

    with ExitStack() as lost, ExitStack() as over:
        waiting = [begun(inserts, numbers, batch(10), key="k"), begun(inserts, numbers, batch(20))]
        answers = together(
            begun(inserts, numbers),
            *waiting,
            strike=lambda: over.enter_context(faults.armed("commit.sent", lose_everything)),
        )
        errors = [answer.exception() for answer in answers]
    assert [type(error) for error in errors] == [Undecided] * 2
    keys = [error.context["idempotency_key"] for error in errors if isinstance(error, Undecided)]
    assert keys[0] == "k"
    for key, n in zip(keys, (10, 20), strict=True):
        again = begun(inserts, numbers, batch(n), key=key).commit().result()
        assert again.receipt is not None
        assert again.receipt.replayed
        assert by_row_id(numbers)[again.first_row_id or 0] == n
    assert numbers.num_rows == 5


_STREAM = """
import json, pathlib, sys
from contextlib import closing
import numpy as np, pyarrow as pa
from penstock.service.inserts import Inserts
from places import Place

place, rows = json.loads(sys.argv[1])
words = pa.array([f"word {n % 1000} and quite some text behind it" for n in range(16_000)])
with Place(**place).open() as lake, closing(Inserts(lake.workspace)) as inserts:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("amount", pa.float64())])
    ds = lake.create("demo.long", schema=schema)
    insertion = inserts.begin(lake.caller, ds.id, schema)
    for start in range(0, rows, 16_000):
        ids = np.arange(start, start + 16_000)
        insertion.add(pa.record_batch({"id": ids, "word": words, "amount": ids * 0.5}))
    told = insertion.commit().result()
    assert (told.rows, ds.num_rows, told.first_row_id) == (rows, rows, 1)
told = pathlib.Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in told if line.startswith("VmHWM")) * 1024)
"""


def test_memory_does_not_grow_with_a_stream(tmp_path: Path, soak: bool) -> None:
    """10 million rows with the full numbers."""
    peaks = []
    tests = str(Path(__file__).parents[1])
    for rows in (1_600_000, 10_000_000) if soak else (400_000, 2_000_000):
        place = Place.make(tmp_path / str(rows), None)
        done = subprocess.run(
            [sys.executable, "-c", _STREAM, json.dumps([asdict(place), rows])],
            env={**os.environ, "PYTHONPATH": tests},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + (100 << 20), f"{peaks[0]:,} bytes, then {peaks[1]:,}"
