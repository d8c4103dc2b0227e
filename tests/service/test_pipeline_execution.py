"""Pipelines through the Python API: the contract's cases, one commit for all operations, and other writers."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.core.caller import Caller, Role
from penstock.core.odata import QueryOptions
from penstock.core.pipeline.responses import error_response
from penstock.core.pipeline.run import Run, RunState
from penstock.core.progress import Progress
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from penstock.service.pipelines import runs
from support import operation_cases
from support.operation_cases import OperationCase
from support.workspaces import WorkspaceFixture

pytestmark = pytest.mark.usefixtures("spark")


def append(source: Dataset, version: int | None = None, **parameters: Any) -> dict[str, Any]:
    ref = {"dataset_id": str(source.id)} | ({} if version is None else {"dataset_version": version})
    return {"type": "append", "parameters": {"source": ref, **parameters}}


def merge(source: Dataset, strategy: str = "upsert", **parameters: Any) -> dict[str, Any]:
    ref = {"dataset_id": str(source.id)}
    return {"type": "merge", "parameters": {"source": ref, "key_columns": "id", "strategy": strategy, **parameters}}


def pipeline(
    working: Dataset, *operations: dict[str, Any], version: int | None = None, **members: Any
) -> dict[str, Any]:
    ref = {"dataset_id": str(working.id)} | ({} if version is None else {"dataset_version": version})
    return {"name": "test", "working": ref, "operations": list(operations), **members}


def words(ds: Dataset, version: int | None = None) -> list[tuple[int, str | None]]:
    read = (ds.current() if version is None else ds.at(version)).to_arrow()
    return sorted(zip(read["id"].to_pylist(), read["word"].to_pylist(), strict=True))


def stored(lake: Lake) -> tuple[set[str], set[str]]:
    """Return the data files on disk, and the data files of all versions."""
    store = lake._workspace.store
    stored_files = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    version_files = {
        file.path
        for dataset in lake.datasets()
        for version in range(1, dataset.version + 1)
        for file in lake.dataset(dataset.id).at(version).files()
    }
    return stored_files, version_files


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, dict[str, Dataset]]]:
    import penstock

    with penstock.open(tmp_path_factory.mktemp("cases") / "lake", create=True) as lake:
        yield lake, operation_cases.create_datasets(lake)


@pytest.mark.parametrize("case", operation_cases.CASES, ids=lambda case: case.name)
def test_operation_response_matches_contract(shared: tuple[Lake, dict[str, Dataset]], case: OperationCase) -> None:
    lake, datasets = shared
    ids = {name: str(ds.id) for name, ds in datasets.items()}
    working = lake.create(f"case.c{operation_cases.CASES.index(case)}", operation_cases.DATASETS[case.working])
    ids[case.working] = str(working.id)
    before = working.to_arrow().to_pylist()
    try:
        run = lake.pipeline(pipeline(working, operation_cases.build_operation(case, ids))).run()
        (response,) = run.results
    except PenstockError as error:
        response = error_response(error)
        if error.reason == "bad_pipeline":  # reported with all other errors, by JSON pointer
            (listed_error,) = error.context["errors"]
            inner = {"pointer": listed_error.pop("pointer").removeprefix("/operations/0")}
            response = {"error": {**listed_error, "details": {**inner, **listed_error["details"]}}}
    assert operation_cases.normalize_response(dict(response), ids) == case.response
    assert operation_cases.added_rows(before, working.to_arrow().to_pylist()) == sorted(case.rows or [], key=str)
    assert working.version == (2 if case.rows else 1)


@pytest.fixture
def lake(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    """Open a workspace on SQLite: Spark jobs do not depend on the database."""
    with sqlite_workspace.open() as opened:
        yield opened


@pytest.fixture
def base(lake: Lake) -> Dataset:
    return lake.create("demo.base", {"id": [1, 2], "word": ["one", "two"]})


@pytest.fixture
def new_rows(lake: Lake) -> Dataset:
    return lake.create("demo.more", {"id": [2, 3], "word": ["zwei", "drei"]})


def test_operations_see_earlier_ones_and_commit_one_version(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    run = lake.pipeline(
        pipeline(
            base, append(new_rows, source_selector="id = 3"), merge(new_rows), append(base), merge(new_rows, "update")
        )
    ).run()
    assert [response["operation"] for response in run.results] == ["append", "merge", "append", "merge"]
    counts = [response["result"]["working_dataset_rows_before"] for response in run.results]
    assert counts == [2, 3, 3, 5]
    assert [response["result"].get("updated") for response in run.results] == [None, 2, None, 3]
    assert words(base) == [(1, "one"), (1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    assert (run.state, run.version, base.version) == (RunState.SUCCEEDED, 2, 2)
    last = base.history()[0]
    assert (last.operation, last.rows) == ("append+merge", 5)
    assert len(set(base.to_arrow(row_ids=True)["rowid"].to_pylist())) == 5
    stored_files, version_files = stored(lake)
    assert stored_files == version_files


def test_operations_run_by_order_member(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    first, second = {**merge(new_rows, "insert"), "order": 1}, {**append(new_rows), "order": 0}
    run = lake.pipeline(pipeline(base, first, second)).run()
    assert [(response["order"], response["operation"]) for response in run.results] == [(0, "append"), (1, "merge")]
    assert run.results[1]["result"]["inserted"] == 0


def test_failed_operation_leaves_all_datasets_unchanged(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    doubled = lake.create("demo.doubled", {"id": [7, 7], "word": ["x", "y"]})
    before = {dataset.name: dataset.version for dataset in lake.datasets()}, stored(lake)
    good = append(new_rows)
    with pytest.raises(Invalid, match="duplicate keys") as raised:
        lake.pipeline(pipeline(base, good, merge(new_rows), good, good, merge(doubled), good)).run()
    assert raised.value.reason == "merge_006"
    assert ({dataset.name: dataset.version for dataset in lake.datasets()}, stored(lake)) == before
    run = newest(lake)
    assert run.state is RunState.FAILED
    assert [("error" in response) for response in run.results] == [False, False, False, False, True]
    assert run.error == run.results[-1]
    assert run.error["error"]["details"]["operation_order"] == 4


def newest(lake: Lake) -> Run:
    (run,) = runs.search(lake._workspace, lake.caller, QueryOptions(None, (), 1, 0, None, False, ())).items
    return run


def test_validate_reports_all_errors_without_reading_rows(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "extra": [2]})
    bad = lake.pipeline(
        pipeline(base, append(other), append(new_rows, source_selector="word ="), append(new_rows, 9), merge(other))
    )
    errors = [(response["pointer"], response["code"]) for response in bad.validate()]
    assert errors == [
        ("/operations/0", "APPEND_003"),
        ("/operations/1", "APPEND_004"),
        ("/operations/2", "APPEND_002"),
        ("/operations/3", "MERGE_004"),
    ]
    assert lake.pipeline(pipeline(base, append(new_rows))).validate() == []


def test_unknown_working_dataset_is_reported_with_pointer(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    definition = pipeline(base, append(new_rows))
    definition["working"] = {"dataset_id": operation_cases.UNKNOWN}
    assert [response["pointer"] for response in lake.pipeline(definition).validate()] == ["/working"]
    with pytest.raises(NotFound) as raised:
        lake.pipeline(definition).run()
    assert raised.value.context["dataset_id"] == operation_cases.UNKNOWN


def test_output_dataset_is_written_and_working_dataset_unchanged(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    output = {"schema_name": "demo", "table_name": "result"}
    first = lake.pipeline(pipeline(base, append(new_rows), merge(new_rows), output=output)).run()
    result = lake.dataset("demo.result")
    assert words(result) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    assert (base.version, result.version, result.history()[0].operation) == (1, 1, "create")
    assert first.written[0]["name"] == "demo.result"
    base.append({"id": [9], "word": ["nine"]})
    lake.pipeline(pipeline(base, append(new_rows), version=1, output=output)).run()
    assert words(result) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei")]
    assert (result.version, result.history()[0].operation) == (2, "overwrite")
    assert words(result, 1) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    ids = result.to_arrow(row_ids=True)["rowid"].to_pylist()
    assert len(set(ids)) == 4
    assert min(ids) > 4, "row ids of an earlier version are used again"
    stored_files, version_files = stored(lake)
    assert stored_files == version_files


def test_output_dataset_may_change_columns(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    other = lake.create("demo.result", {"name": ["x"], "id": [1]})
    lake.pipeline(pipeline(base, append(new_rows), output={"schema_name": "demo", "table_name": "result"})).run()
    assert other.schema.names == ["id", "word"]
    assert other.at(1).to_arrow().to_pylist() == [{"name": "x", "id": 1}]
    assert other.to_arrow(where="id = 3").num_rows == 1


def test_linked_files_of_output_are_independent(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    base.merge({"id": [1], "word": ["eins"]}, "id")  # creates a file with stored row ids
    lake.pipeline(pipeline(base, append(new_rows), output={"schema_name": "demo", "table_name": "result"})).run()
    result = lake.dataset("demo.result")
    assert sorted(result.to_arrow(row_ids=True)["rowid"].to_pylist()) == [1, 2, 3, 4]
    result.merge({"id": [1], "word": ["uno"]}, "id")
    assert words(base) == [(1, "eins"), (2, "two")]
    assert words(result) == [(1, "uno"), (2, "two"), (2, "zwei"), (3, "drei")]


def test_old_working_version_requires_output(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    base.append({"id": [5], "word": ["five"]})
    with pytest.raises(Invalid) as raised:
        lake.pipeline(pipeline(base, append(new_rows), version=1)).run()
    assert raised.value.reason == "output_needed"
    output = {"schema_name": "demo", "table_name": "base"}
    lake.pipeline(pipeline(base, append(new_rows), version=1, output=output)).run()
    assert words(base) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei")]


def test_read_only_dataset_is_rejected_before_execution(lake: Lake, new_rows: Dataset) -> None:
    fixed = lake.create("demo.fixed", {"id": [1], "word": ["x"]}, read_only=True)
    with pytest.raises(Unsupported, match="read-only"):
        lake.pipeline(pipeline(fixed, append(new_rows))).run()
    output = {"schema_name": "demo", "table_name": "fixed"}
    with pytest.raises(Unsupported, match="read-only"):
        lake.pipeline(pipeline(new_rows, append(new_rows), output=output)).run()


def test_merge_widens_schema_for_later_operations(lake: Lake) -> None:
    small = lake.create("demo.small", pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([1], pa.int32())}))
    large = lake.create("demo.large", pa.table({"id": pa.array([2**40]), "n": pa.array([2**40])}))
    none = lake.create("demo.none", schema=large.schema)
    lake.pipeline(pipeline(small, merge(none), append(large), merge(large))).run()
    assert [field.type for field in small.schema] == [pa.int64(), pa.int64()]
    assert small.to_arrow().to_pylist() == [{"id": 1, "n": 1}, {"id": 2**40, "n": 2**40}]
    assert small.at(1).to_arrow().schema.field("n").type == pa.int32()


def before_commit(action: Any) -> Any:
    """Call a function once, right before the next commit."""
    pending = [action]
    return failpoints.armed("stage.synced", lambda: pending and pending.pop()())


def test_concurrent_append_pipelines_all_commit(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    definition = lake.pipeline(pipeline(base, append(new_rows)))
    errors: list[BaseException] = []

    def action() -> None:
        try:
            definition.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=action) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (base.version, base.num_rows) == (4, 8)


def test_run_reports_read_and_newest_versions(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    def overtake() -> None:
        new_rows.append({"id": [8], "word": ["late"]})
        base.append({"id": [9], "word": ["late"]})

    with before_commit(overtake):
        run = lake.pipeline(pipeline(base, append(new_rows))).run()
    versions_read = {version["name"]: (version["version"], version["newest"]) for version in run.reads}
    assert versions_read == {"demo.base": (1, 2), "demo.more": (1, 2)}
    assert run.version == 3
    assert words(base) == [(1, "one"), (2, "two"), (2, "zwei"), (3, "drei"), (9, "late")]
    result = run.results[0]["result"]  # describes the version that the run has created
    assert (result["working_dataset_rows_before"], result["working_dataset_rows_after"]) == (3, 5)


def test_source_dropped_during_run_is_reported_with_its_operation(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    def drop(_progress: Any) -> None:
        if "demo.more" in [dataset.name for dataset in lake.datasets()]:
            new_rows.drop()

    with pytest.raises(NotFound) as error:
        lake.pipeline(pipeline(base, {**append(new_rows), "alias": "late"})).run(progress=drop)
    expected = {"dataset_id": str(new_rows.id), "operation_order": 0, "alias": "late"}
    assert (error.value.reason, error.value.context) == ("append_001", expected)
    assert base.version == 1


def test_execution_time_excludes_the_start_of_spark(
    lake: Lake, base: Dataset, new_rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.engines.spark import session
    from penstock.service.pipelines import execution

    clock, start = [0.0], session.get_or_start_session

    def start_slowly(*args: Any) -> Any:
        clock[0] += 10_000  # seconds
        return start(*args)

    monkeypatch.setattr(session, "get_or_start_session", start_slowly)
    monkeypatch.setattr(execution, "time", SimpleNamespace(monotonic=lambda: clock[0] + time.monotonic()))
    run = lake.pipeline(pipeline(base, append(new_rows))).run()
    assert run.results[0]["result"]["execution_time_ms"] < 10_000_000


def test_overtaken_merge_is_rebased_or_repeated(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    with before_commit(lambda: base.append({"id": [50], "word": ["fifty"]})):
        run = lake.pipeline(pipeline(base, merge(new_rows), append(new_rows))).run()
    assert [response["result"]["working_dataset_rows_after"] for response in run.results] == [4, 6]
    assert run.results[0]["result"]["total"] == 4
    assert words(base) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei"), (3, "drei"), (50, "fifty")]
    repeated = lake.create("demo.again", {"id": [60], "word": ["mine"]})
    with before_commit(lambda: base.append({"id": [60], "word": ["theirs"]})):
        run = lake.pipeline(pipeline(base, merge(repeated))).run()
    assert run.results[0]["result"]["updated"] == 1
    assert [word for number, word in words(base) if number == 60] == ["mine"]


def test_output_created_during_run_is_replaced(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    output = {"schema_name": "demo", "table_name": "result"}
    with before_commit(lambda: lake.create("demo.result", {"other": [1]})):
        lake.pipeline(pipeline(base, append(new_rows), output=output)).run()
    assert (lake.dataset("demo.result").version, lake.dataset("demo.result").num_rows) == (2, 4)


def test_run_with_idempotency_key_executes_once(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    definition = lake.pipeline(pipeline(base, append(new_rows)))
    first = definition.run(idempotency_key="today")
    repeated = definition.run(idempotency_key="today")
    assert (repeated.id, base.version) == (first.id, 2)
    with pytest.raises(AlreadyExists):
        lake.pipeline(pipeline(base, append(base))).run(idempotency_key="today")


def test_failed_run_can_be_repeated_with_same_key(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    definition = lake.pipeline(pipeline(base, append(new_rows)))

    def fail() -> None:
        raise Conflict("injected", "injected")

    with failpoints.armed("commit.recorded", fail), pytest.raises(Conflict, match="injected"):
        definition.run(idempotency_key="k")
    assert base.version == 1
    assert definition.run(idempotency_key="k").version == 2


@pytest.mark.parametrize(
    "step", [step for step in failpoints.STEPS if step != "stage.opened"]
)  # Spark opens its own files
def test_failure_at_any_step_of_run_is_atomic(lake: Lake, base: Dataset, new_rows: Dataset, step: str) -> None:
    def fail() -> None:
        raise OSError("injected")

    definition = lake.pipeline(pipeline(base, append(new_rows), merge(new_rows)))
    is_committed = step in ("commit.sent", "commit.done")
    with failpoints.armed(step, fail):
        if is_committed:  # the response of the commit was lost; the record has the outcome
            assert definition.run().version == 2
        else:
            with pytest.raises(PenstockError):
                definition.run()
    assert base.version == (2 if is_committed else 1)
    run = newest(lake)
    assert run.state is (RunState.SUCCEEDED if is_committed else RunState.FAILED)
    if not is_committed:
        assert definition.run().version == 2
    assert words(base) == [(1, "one"), (2, "zwei"), (2, "zwei"), (3, "drei")]
    # After an unknown outcome the files stay; a sweep removes them once the lease of the writer has ended.
    lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
    sweep(lake._workspace, lake.caller, RetentionPolicy(), execute=True)
    stored_files, version_files = stored(lake)
    assert stored_files == version_files


def test_preview_counts_rows_and_leaves_no_files(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    before = stored(lake)
    definition = lake.pipeline(
        pipeline(base, append(new_rows), merge(new_rows), append(new_rows, source_selector="id = 3"))
    )
    preview = definition.preview()
    assert (base.version, stored(lake)) == (1, before)
    run = definition.run()
    assert [_timeless(response) for response in preview] == [_timeless(response) for response in run.results]


def _timeless(result: Any) -> Any:
    return {**result, "result": {**result["result"], "execution_time_ms": 0}}


def test_progress_callback_receives_progress_and_can_stop_run(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    events: list[Progress] = []
    lake.pipeline(pipeline(base, append(new_rows), append(new_rows))).run(progress=events.append)
    assert {(response.operation, response.operations, response.type) for response in events} == {
        (0, 2, "append"),
        (1, 2, "append"),
    }

    def stop(_: Progress) -> None:
        raise Conflict("enough", "enough")

    with pytest.raises(Conflict, match="enough"):
        lake.pipeline(pipeline(base, append(new_rows))).run(progress=stop)
    assert base.version == 2


def test_viewer_can_show_but_not_start_or_cancel_runs(lake: Lake, base: Dataset, new_rows: Dataset) -> None:
    definition = lake.pipeline(pipeline(base, append(new_rows)))
    run = definition.run()
    viewer = Caller(lake.caller.tenant, lake.caller.user, "viewer", Role.VIEWER)
    assert runs.show(lake._workspace, viewer, run.id).id == run.id
    for action in (
        lambda: lake._run_worker.submit(viewer, definition.definition),
        lambda: runs.cancel(lake._workspace, viewer, run.id),
    ):
        with pytest.raises(Forbidden):
            action()
    other_caller = Caller(lake.caller.user, lake.caller.user, "stranger", Role.ADMIN)
    with pytest.raises(NotFound):
        runs.show(lake._workspace, other_caller, run.id)
