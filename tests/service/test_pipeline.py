"""Pipelines through the Python front: the contract's cases, one commit for all operations, and other writers."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import operation_cases as cases
from operation_cases import Case
from penstock import failpoints as faults
from penstock.core.caller import Caller, Role
from penstock.core.odata import Options
from penstock.core.pipeline.operations import envelope
from penstock.core.pipeline.run import Progress, Run, State
from penstock.errors import (AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unsupported)
from penstock.lake import Dataset, Lake
from penstock.service.pipelines import run_worker as runs
from penstock.service.datasets.sweep import Keep, sweep
from workspaces import Place

pytestmark = pytest.mark.usefixtures("spark")


def append(source: Dataset, version: int | None = None, **parameters: Any) -> dict[str, Any]:
    ref = {"dataset_id": str(source.id)} | ({} if version is None else {"dataset_version": version})
    return {"type": "append", "parameters": {"source": ref, **parameters}}


def merge(source: Dataset, strategy: str = "upsert", **parameters: Any) -> dict[str, Any]:
    ref = {"dataset_id": str(source.id)}
    return {"type": "merge", "parameters": {"source": ref, "key_columns": "id", "strategy": strategy, **parameters}}


def pipeline(working: Dataset, *operations: dict[str, Any], version: int | None = None, **more: Any) -> dict[str, Any]:
    ref = {"dataset_id": str(working.id)} | ({} if version is None else {"dataset_version": version})
    return {"name": "test", "working": ref, "operations": list(operations), **more}


def words(ds: Dataset, version: int | None = None) -> list[tuple[int, str | None]]:
    read = (ds.now() if version is None else ds.at(version)).to_arrow()
    return sorted(zip(read["id"].to_pylist(), read["word"].to_pylist(), strict=True))


def stored(lake: Lake) -> tuple[set[str], set[str]]:
    """The data files on disk, and those that some version holds."""
    store = lake.workspace.store
    disk = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    held = {
        file.path
        for at in lake.datasets()
        for version in range(1, at.version + 1)
        for file in lake.dataset(at.id).at(version).files()
    }
    return disk, held


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, dict[str, Dataset]]]:
    import penstock

    with penstock.open(tmp_path_factory.mktemp("cases") / "lake", create=True) as lake:
        yield lake, cases.made(lake)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_an_operation_answers_as_the_contract_says(shared: tuple[Lake, dict[str, Dataset]], case: Case) -> None:
    lake, there = shared
    ids = {name: str(ds.id) for name, ds in there.items()}
    working = lake.create(f"case.c{cases.CASES.index(case)}", cases.DATASETS[case.working])
    ids[case.working] = str(working.id)
    before = working.to_arrow().to_pylist()
    try:
        run = lake.pipeline(pipeline(working, cases.asked(case, ids))).run()
        (answer,) = run.results
    except PenstockError as error:
        answer = envelope(error)
        if error.reason == "bad_pipeline":  # told with all others, by their places in the pipeline
            (found,) = error.context["errors"]
            inner = {"pointer": found.pop("pointer").removeprefix("/operations/0")}
            answer = {"error": {**found, "details": {**inner, **found["details"]}}}
    assert cases.told(dict(answer), ids) == case.answer
    assert cases.came(before, working.to_arrow().to_pylist()) == sorted(case.rows or [], key=str)
    assert working.version == (2 if case.rows else 1)


@pytest.fixture
def lake(embedded: Place) -> Iterator[Lake]:
    """On SQLite: what both databases promise is tried with less at stake than a job of Spark's."""
    with embedded.open() as opened:
        yield opened


@pytest.fixture
def base(lake: Lake) -> Dataset:
    return lake.create("demo.base", {"id": [1, 2], "word": ["one", "two"]})


@pytest.fixture
def more(lake: Lake) -> Dataset:
    return lake.create("demo.more", {"id": [2, 3], "word": ["zwei", "drei"]})


def test_every_operation_sees_those_before_it_and_all_are_one_version(lake: Lake, base: Dataset, more: Dataset) -> None:
    run = lake.pipeline(
        pipeline(base, append(more, source_selector="id = 3"), merge(more), append(base), merge(more, "update"))
    ).run()
    assert [each["operation"] for each in run.results] == ["append", "merge", "append", "merge"]
    befores = [each["result"]["working_dataset_rows_before"] for each in run.results]
    assert befores == [2, 3, 3, 5]
    assert [each["result"].get("updated") for each in run.results] == [None, 2, None, 3]
    assert words(base) == [(1, "one"), (1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    assert (run.state, run.version, base.version) == (State.SUCCEEDED, 2, 2)
    last = base.history()[0]
    assert (last.operation, last.rows) == ("append+merge", 5)
    assert len(set(base.to_arrow(row_ids=True)["rowid"].to_pylist())) == 5
    disk, held = stored(lake)
    assert disk == held


def test_operations_run_in_their_order_and_not_as_they_are_listed(lake: Lake, base: Dataset, more: Dataset) -> None:
    first, second = {**merge(more, "insert"), "order": 1}, {**append(more), "order": 0}
    run = lake.pipeline(pipeline(base, first, second)).run()
    assert [(each["order"], each["operation"]) for each in run.results] == [(0, "append"), (1, "merge")]
    assert run.results[1]["result"]["inserted"] == 0


def test_where_the_fifth_of_six_fails_every_dataset_is_as_it_was(lake: Lake, base: Dataset, more: Dataset) -> None:
    doubled = lake.create("demo.doubled", {"id": [7, 7], "word": ["x", "y"]})
    before = {at.name: at.version for at in lake.datasets()}, stored(lake)
    good = append(more)
    with pytest.raises(Invalid, match="duplicate keys") as refusal:
        lake.pipeline(pipeline(base, good, merge(more), good, good, merge(doubled), good)).run()
    assert refusal.value.reason == "merge_006"
    assert ({at.name: at.version for at in lake.datasets()}, stored(lake)) == before
    run = newest(lake)
    assert run.state is State.FAILED
    assert [("error" in each) for each in run.results] == [False, False, False, False, True]
    assert run.error == run.results[-1]
    assert run.error["error"]["details"]["operation_order"] == 4


def newest(lake: Lake) -> Run:
    (run,) = runs.search(lake.workspace, lake.caller, Options(None, (), 1, 0, None, False, ())).items
    return run


def test_every_problem_is_told_at_once_and_no_row_is_read(lake: Lake, base: Dataset, more: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "extra": [2]})
    bad = lake.pipeline(
        pipeline(base, append(other), append(more, source_selector="word ="), append(more, 9), merge(other))
    )
    found = [(each["pointer"], each["code"]) for each in bad.problems()]
    assert found == [
        ("/operations/0", "APPEND_003"),
        ("/operations/1", "APPEND_004"),
        ("/operations/2", "APPEND_002"),
        ("/operations/3", "MERGE_004"),
    ]
    assert lake.pipeline(pipeline(base, append(more))).problems() == []


def test_a_working_dataset_that_is_not_there_is_told_with_its_place(lake: Lake, base: Dataset, more: Dataset) -> None:
    meant = pipeline(base, append(more))
    meant["working"] = {"dataset_id": cases.UNKNOWN}
    assert [each["pointer"] for each in lake.pipeline(meant).problems()] == ["/working"]
    with pytest.raises(NotFound) as refusal:
        lake.pipeline(meant).run()
    assert refusal.value.context["dataset_id"] == cases.UNKNOWN


def test_a_result_goes_elsewhere_and_the_working_dataset_stays(lake: Lake, base: Dataset, more: Dataset) -> None:
    output = {"schema_name": "demo", "table_name": "result"}
    first = lake.pipeline(pipeline(base, append(more), merge(more), output=output)).run()
    result = lake.dataset("demo.result")
    assert words(result) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    assert (base.version, result.version, result.history()[0].operation) == (1, 1, "create")
    assert first.written[0]["name"] == "demo.result"
    base.append({"id": [9], "word": ["nine"]})
    lake.pipeline(pipeline(base, append(more), version=1, output=output)).run()
    assert words(result) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei")]
    assert (result.version, result.history()[0].operation) == (2, "overwrite")
    assert words(result, 1) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    ids = result.to_arrow(row_ids=True)["rowid"].to_pylist()
    assert len(set(ids)) == 4
    assert min(ids) > 4, "row ids of an earlier version are used again"
    disk, held = stored(lake)
    assert disk == held


def test_an_output_may_have_other_columns_than_before(lake: Lake, base: Dataset, more: Dataset) -> None:
    other = lake.create("demo.result", {"name": ["x"], "id": [1]})
    lake.pipeline(pipeline(base, append(more), output={"schema_name": "demo", "table_name": "result"})).run()
    assert other.schema.names == ["id", "word"]
    assert other.at(1).to_arrow().to_pylist() == [{"name": "x", "id": 1}]
    assert other.to_arrow(where="id = 3").num_rows == 1


def test_files_that_an_output_shares_outlive_either_dataset(lake: Lake, base: Dataset, more: Dataset) -> None:
    base.merge({"id": [1], "word": ["eins"]}, "id")  # now it has a file that carries row ids
    lake.pipeline(pipeline(base, append(more), output={"schema_name": "demo", "table_name": "result"})).run()
    result = lake.dataset("demo.result")
    assert sorted(result.to_arrow(row_ids=True)["rowid"].to_pylist()) == [1, 2, 3, 4]
    result.merge({"id": [1], "word": ["uno"]}, "id")
    assert words(base) == [(1, "eins"), (2, "two")]
    assert words(result) == [(1, "uno"), (2, "two"), (2, "zwei"), (3, "drei")]


def test_an_old_version_is_not_built_upon_unless_the_result_goes_elsewhere(
    lake: Lake, base: Dataset, more: Dataset
) -> None:
    base.append({"id": [5], "word": ["five"]})
    with pytest.raises(Invalid) as refusal:
        lake.pipeline(pipeline(base, append(more), version=1)).run()
    assert refusal.value.reason == "output_needed"
    back = {"schema_name": "demo", "table_name": "base"}
    lake.pipeline(pipeline(base, append(more), version=1, output=back)).run()
    assert words(base) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei")]


def test_a_read_only_dataset_is_refused_before_anything_runs(lake: Lake, more: Dataset) -> None:
    fixed = lake.create("demo.fixed", {"id": [1], "word": ["x"]}, read_only=True)
    with pytest.raises(Unsupported, match="read-only"):
        lake.pipeline(pipeline(fixed, append(more))).run()
    output = {"schema_name": "demo", "table_name": "fixed"}
    with pytest.raises(Unsupported, match="read-only"):
        lake.pipeline(pipeline(more, append(more), output=output)).run()


def test_a_merge_that_widens_widens_for_what_comes_after(lake: Lake) -> None:
    small = lake.create("demo.small", pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([1], pa.int32())}))
    large = lake.create("demo.large", pa.table({"id": pa.array([2**40]), "n": pa.array([2**40])}))
    none = lake.create("demo.none", schema=large.schema)
    lake.pipeline(pipeline(small, merge(none), append(large), merge(large))).run()
    assert [field.type for field in small.schema] == [pa.int64(), pa.int64()]
    assert small.to_arrow().to_pylist() == [{"id": 1, "n": 1}, {"id": 2**40, "n": 2**40}]
    assert small.at(1).to_arrow().schema.field("n").type == pa.int32()


def before_commit(act: Any) -> Any:
    """Do something right before the next commit, once."""
    pending = [act]
    return faults.armed("stage.synced", lambda: pending and pending.pop()())


def test_two_pipelines_that_append_to_one_dataset_both_land(lake: Lake, base: Dataset, more: Dataset) -> None:
    meant = lake.pipeline(pipeline(base, append(more)))
    errors: list[BaseException] = []

    def act() -> None:
        try:
            meant.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (base.version, base.num_rows) == (4, 8)


def test_a_run_tells_which_version_it_read_while_another_was_committed(
    lake: Lake, base: Dataset, more: Dataset
) -> None:
    def overtake() -> None:
        more.append({"id": [8], "word": ["late"]})
        base.append({"id": [9], "word": ["late"]})

    with before_commit(overtake):
        run = lake.pipeline(pipeline(base, append(more))).run()
    reads = {each["name"]: (each["version"], each["newest"]) for each in run.reads}
    assert reads == {"demo.base": (1, 2), "demo.more": (1, 2)}
    assert run.version == 3
    assert words(base) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei"), (9, "late")]


def test_a_merge_that_is_overtaken_is_carried_over_or_done_again(lake: Lake, base: Dataset, more: Dataset) -> None:
    with before_commit(lambda: base.append({"id": [50], "word": ["fifty"]})):
        lake.pipeline(pipeline(base, merge(more), append(more))).run()
    assert words(base) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei"), (3, "drei"), (50, "fifty")]
    again = lake.create("demo.again", {"id": [60], "word": ["mine"]})
    with before_commit(lambda: base.append({"id": [60], "word": ["theirs"]})):
        run = lake.pipeline(pipeline(base, merge(again))).run()
    assert run.results[0]["result"]["updated"] == 1
    assert [word for number, word in words(base) if number == 60] == ["mine"]


def test_an_output_that_somebody_makes_meanwhile_is_replaced(lake: Lake, base: Dataset, more: Dataset) -> None:
    output = {"schema_name": "demo", "table_name": "result"}
    with before_commit(lambda: lake.create("demo.result", {"other": [1]})):
        lake.pipeline(pipeline(base, append(more), output=output)).run()
    assert (lake.dataset("demo.result").version, lake.dataset("demo.result").num_rows) == (2, 4)


def test_a_key_makes_it_happen_once(lake: Lake, base: Dataset, more: Dataset) -> None:
    meant = lake.pipeline(pipeline(base, append(more)))
    first = meant.run(idempotency_key="today")
    again = meant.run(idempotency_key="today")
    assert (again.id, base.version) == (first.id, 2)
    with pytest.raises(AlreadyExists):
        lake.pipeline(pipeline(base, append(base))).run(idempotency_key="today")


def test_a_run_that_failed_may_be_repeated_with_its_key(lake: Lake, base: Dataset, more: Dataset) -> None:
    meant = lake.pipeline(pipeline(base, append(more)))

    def fail() -> None:
        raise Conflict("injected", "injected")

    with faults.armed("commit.recorded", fail), pytest.raises(Conflict, match="injected"):
        meant.run(idempotency_key="k")
    assert base.version == 1
    assert meant.run(idempotency_key="k").version == 2


@pytest.mark.parametrize("step", [step for step in faults.STEPS if step != "stage.opened"])  # Spark opens its own files
def test_a_failure_at_any_step_leaves_a_pipeline_whole_or_absent(
    lake: Lake, base: Dataset, more: Dataset, step: str
) -> None:
    def fail() -> None:
        raise OSError("injected")

    meant = lake.pipeline(pipeline(base, append(more), merge(more)))
    happened = step in ("commit.sent", "commit.done")
    with faults.armed(step, fail):
        if happened:  # the answer was lost, and the record tells
            assert meant.run().version == 2
        else:
            with pytest.raises(PenstockError):
                meant.run()
    assert base.version == (2 if happened else 1)
    run = newest(lake)
    assert run.state is (State.SUCCEEDED if happened else State.FAILED)
    if not happened:
        assert meant.run().version == 2
    assert words(base) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    # Whoever does not know what became of a commit leaves its files; a sweep does, when the writer is gone.
    lake.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
    sweep(lake.workspace, lake.caller, Keep(), really=True)
    disk, held = stored(lake)
    assert disk == held


def test_a_preview_counts_and_leaves_nothing(lake: Lake, base: Dataset, more: Dataset) -> None:
    before = stored(lake)
    meant = lake.pipeline(pipeline(base, append(more), merge(more), append(more, source_selector="id = 3")))
    told = meant.preview()
    assert (base.version, stored(lake)) == (1, before)
    run = meant.run()
    assert [_timeless(each) for each in told] == [_timeless(each) for each in run.results]


def _timeless(result: Any) -> Any:
    return {**result, "result": {**result["result"], "execution_time_ms": 0}}


def test_progress_is_heard_and_who_hears_it_can_stop_it(lake: Lake, base: Dataset, more: Dataset) -> None:
    heard: list[Progress] = []
    lake.pipeline(pipeline(base, append(more), append(more))).run(progress=heard.append)
    assert {(each.operation, each.operations, each.type) for each in heard} == {(0, 2, "append"), (1, 2, "append")}

    def stop(_: Progress) -> None:
        raise Conflict("enough", "enough")

    with pytest.raises(Conflict, match="enough"):
        lake.pipeline(pipeline(base, append(more))).run(progress=stop)
    assert base.version == 2


def test_a_viewer_may_look_and_not_run(lake: Lake, base: Dataset, more: Dataset) -> None:
    meant = lake.pipeline(pipeline(base, append(more)))
    run = meant.run()
    viewer = Caller(lake.caller.tenant, lake.caller.user, "viewer", Role.VIEWER)
    assert runs.show(lake.workspace, viewer, run.id).id == run.id
    for act in (
        lambda: lake.runner.submit(viewer, meant.definition),
        lambda: runs.cancel(lake.workspace, viewer, run.id),
    ):
        with pytest.raises(Forbidden):
            act()
    stranger = Caller(lake.caller.user, lake.caller.user, "stranger", Role.ADMIN)
    with pytest.raises(NotFound):
        runs.show(lake.workspace, stranger, run.id)
