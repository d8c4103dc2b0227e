"""A workspace whose data files are in a bucket: every use of it, from two machines."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

import penstock
from penstock import bootstrap, config
from penstock.core.caller import Caller
from penstock.core.dataset.edit_policy import EditMode
from penstock.errors import PenstockError, Unavailable
from penstock.lake import Lake
from penstock.service import doctor
from penstock.service.datasets.profile import profile
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from penstock.service.health import check_readiness
from penstock.storage.object_store import ObjectStore
from support.s3_server import S3Server

ROWS = {"id": list(range(100)), "name": [f"n{number}" for number in range(100)]}
OpenLake = Callable[..., Lake]


@pytest.fixture
def settings(s3_server: S3Server, bucket: str, tmp_path: Path) -> config.Settings:
    options = {
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
        "endpoint": s3_server.endpoint,
        "region": "us-east-1",
    }
    return config.load_settings(
        {},
        workspace=tmp_path / "lake",
        durable=False,
        store=f"s3://{bucket}/lake",
        store_options=options,
        store_retries=1,
        store_retry_seconds=2,
    )


@pytest.fixture
def open_lake(settings: config.Settings) -> Iterator[OpenLake]:
    opened = []

    def open_lake(**changes: object) -> Lake:
        lake = penstock.open(settings=replace(settings, **changes), create=True)
        opened.append(lake)
        return lake

    yield open_lake
    for lake in opened:
        lake.close()


@pytest.fixture
def lake(open_lake: OpenLake) -> Lake:
    return open_lake()


@pytest.fixture
def other(lake: Lake, open_lake: OpenLake, tmp_path: Path) -> Lake:
    """The workspace as another machine sees it, with an empty cache."""
    return open_lake(cache_dir=tmp_path / "other-cache")


def store_of(lake: Lake) -> ObjectStore:
    store = lake._workspace.store
    assert isinstance(store, ObjectStore)
    return store


def stored_paths(lake: Lake) -> set[str]:
    return {path for path, _ in store_of(lake).files("data")}


def test_files_are_in_the_bucket_only(lake: Lake, other: Lake, settings: config.Settings) -> None:
    people = lake.create("demo.people", ROWS)
    assert stored_paths(lake) == {file.path for file in people.current().files()}
    assert not (settings.workspace / "data").exists()
    assert other.dataset("demo.people").current().to_arrow().to_pydict() == ROWS
    assert (store_of(other).cache.misses, store_of(lake).cache.misses) == (1, 0)
    (path,) = people.current().paths()
    assert path.startswith("s3a://")


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@pytest.mark.parametrize("edit_mode", list(EditMode))
def test_writes_of_every_kind_read_files_of_the_other_machine(
    open_lake: OpenLake, tmp_path: Path, engine: str, edit_mode: EditMode
) -> None:
    lake = open_lake(edit_mode=edit_mode)
    other = open_lake(edit_mode=edit_mode, cache_dir=tmp_path / "other-cache")
    people, open_elsewhere = lake.create("demo.people", ROWS), other.dataset
    open_elsewhere("demo.people").append({"id": [100], "name": ["n100"]})
    people.merge({"id": [5, 200], "name": ["five", "two hundred"]}, "id", engine=engine)
    other_people = open_elsewhere("demo.people")
    ids = other_people.current().to_arrow(where="id = 7", row_ids=True)["rowid"]
    other_people.update(ids, {"id": [7], "name": ["seven"]})
    people.delete(people.current().to_arrow(where="id = 8", row_ids=True)["rowid"])
    with other.transaction() as tx:
        tx.append("demo.people", {"id": [300], "name": ["n300"]})
    expected = {number: f"n{number}" for number in range(101) if number != 8}
    expected |= {5: "five", 200: "two hundred", 7: "seven", 300: "n300"}
    for reader in (lake, other):
        rows = reader.dataset("demo.people").current().to_arrow()
        assert dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == expected
    other_people.compact()
    rows = people.current().to_arrow()
    assert dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == expected
    people.overwrite({"id": [1], "name": ["one"]})
    assert other_people.current().to_arrow().num_rows == 1


def test_query_fetches_only_files_that_can_match(lake: Lake, other: Lake) -> None:
    people = lake.create("demo.people", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for start in range(0, 100, 10):
        people.append({"id": list(range(start, start + 10)), "name": ["x"] * 10})
    assert other.sql("SELECT sum(id) AS s FROM demo.people WHERE id BETWEEN 42 AND 55").rows == [
        {"s": sum(range(42, 56))}
    ]
    assert store_of(other).cache.misses == 2
    joined = other.sql("SELECT count(*) AS n FROM demo.people AS a JOIN demo.people AS b USING (id)")
    assert joined.rows == [{"n": 100}]
    assert store_of(other).cache.misses == 10


def test_query_with_deletion_vectors_fetches_only_files_that_can_match(lake: Lake, other: Lake) -> None:
    people = lake.create("demo.people", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for start in range(0, 500, 100):
        people.append({"id": list(range(start, start + 100)), "name": ["x"] * 100})
    people.delete(people.current().to_arrow(where="id = 250", row_ids=True)["rowid"])
    assert other.sql("SELECT count(*) AS n FROM demo.people WHERE id BETWEEN 240 AND 260").rows == [{"n": 20}]
    assert store_of(other).cache.misses == 1


def test_query_of_more_than_the_cache_holds_names_the_setting(lake: Lake, open_lake: OpenLake, tmp_path: Path) -> None:
    people = lake.create("demo.people", ROWS)
    people.append(ROWS)
    size = max(file.bytes for file in people.current().files())
    other = open_lake(cache_dir=tmp_path / "small", cache_bytes=size + 10)
    with pytest.raises(Unavailable, match="PENSTOCK_CACHE_BYTES"):
        other.sql("SELECT sum(id) FROM demo.people")
    assert other.dataset("demo.people").current().to_arrow().num_rows == 200  # a scan needs one file at a time


def test_scan_with_a_filter_fetches_only_files_that_can_match(lake: Lake, other: Lake) -> None:
    people = lake.create("demo.people", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for start in range(0, 100, 10):
        people.append({"id": list(range(start, start + 10)), "name": ["x"] * 10})
    assert other.dataset("demo.people").current().to_arrow(where="id = 42").num_rows == 1
    assert store_of(other).cache.misses == 1


def test_merge_fetches_only_files_that_can_match(lake: Lake, other: Lake) -> None:
    people = lake.create(
        "demo.people", schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    )
    for start in range(0, 100, 10):
        people.append({"id": list(range(start, start + 10)), "name": ["x"] * 10})
    other.dataset("demo.people").merge({"id": [42], "name": ["y"]}, "id")
    assert store_of(other).cache.misses == 1


def test_profile_reads_files(lake: Lake, other: Lake) -> None:
    lake.create("demo.people", ROWS)
    snapshot = other.dataset("demo.people").current().snapshot
    profiled = profile(other._workspace, other.caller, snapshot, "id")
    assert profiled.histogram is not None


def test_sweep_removes_expired_files_from_bucket_and_cache(lake: Lake) -> None:
    people = lake.create("demo.people", ROWS)
    people.overwrite({"id": [1], "name": ["one"]})
    policy = RetentionPolicy(versions=1, grace=timedelta(0))
    report = sweep(lake._workspace, lake.caller, policy, execute=True)
    assert (report.files, stored_paths(lake)) == (1, {file.path for file in people.current().files()})


def test_failed_write_leaves_no_object(lake: Lake) -> None:
    people = lake.create("demo.people", ROWS)
    before = stored_paths(lake)
    with pytest.raises(ZeroDivisionError):
        people.append(pa.RecordBatchReader.from_batches(people.schema, _failing_batches(people.schema)))
    assert stored_paths(lake) == before


def _failing_batches(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict(ROWS, schema)
    raise ZeroDivisionError


def test_doctor_verifies_objects_and_reports_damage(lake: Lake, s3_server: S3Server, bucket: str) -> None:
    lake.create("demo.people", ROWS)
    workspace = lake._workspace
    assert [check.state for check in doctor.check_store(workspace.store)] == [doctor.CheckStatus.OK]
    assert [check.state for check in doctor.check_files(workspace, lake.caller)] == [doctor.CheckStatus.OK]
    (path,) = stored_paths(lake)
    store_of(lake).remove([path])
    assert [check.state for check in doctor.check_files(workspace, lake.caller)] == [doctor.CheckStatus.FAILED]


def test_readiness_touches_the_bucket(lake: Lake, settings: config.Settings) -> None:
    assert check_readiness(lake._workspace, lake._run_worker)["store"] == "ok"
    options = {**(settings.store_options or {}), "secret_access_key": "wrong"}
    with penstock.open(settings=replace(settings, store_options=options)) as refused:
        assert check_readiness(refused._workspace, refused._run_worker)["store"] == "store_refused"


def test_store_of_rejects_paths_of_other_tenants(lake: Lake) -> None:
    people = lake.create("demo.people", ROWS)
    (file,) = people.current().files()
    other_caller = replace(lake.caller, tenant=uuid4())
    assert isinstance(other_caller, Caller)
    with pytest.raises(AssertionError, match="not a path of the tenant"):
        lake._workspace.store_of(other_caller).locate(file.path)


# Workspace and bucket


def _reason(settings: config.Settings, tenant: UUID | None = None) -> str:
    with pytest.raises(PenstockError) as caught:
        bootstrap.open_workspace(settings, bootstrap.create_workspace(settings, tenant), create=True).close()
    assert settings.store_options is not None
    assert settings.store_options["secret_access_key"] not in str(caught.value)
    return caught.value.reason


def test_create_workspace_records_url_without_credentials(settings: config.Settings) -> None:
    created = bootstrap.create_workspace(settings)
    stored = (created.folder / "penstock.json").read_text()
    assert json.loads(stored)["store"] == settings.store
    assert settings.store_options is not None
    assert settings.store_options["secret_access_key"] not in stored
    assert bootstrap.create_workspace(replace(settings, store=None)) == created  # and repeated: unchanged


def test_second_folder_joins_with_the_same_database(
    settings: config.Settings, tmp_path: Path, postgres_url: str
) -> None:
    first = replace(settings, database_url=postgres_url)
    second = replace(first, workspace=tmp_path / "second")
    with penstock.open(settings=first, create=True) as lake:
        name = f"demo.t{uuid4().hex}"
        lake.create(name, ROWS)
        with penstock.open(settings=second, create=True) as joined:
            assert joined.caller.tenant == lake.caller.tenant
            assert joined.dataset(name).current().to_arrow().num_rows == 100


def test_second_folder_without_the_database_is_refused(settings: config.Settings, tmp_path: Path) -> None:
    bootstrap.create_workspace(settings)
    assert _reason(replace(settings, workspace=tmp_path / "second")) == "store_needs_shared_catalog"
    assert not (tmp_path / "second" / "penstock.json").exists()


def test_second_folder_with_another_database_is_refused(lake: Lake, settings: config.Settings, tmp_path: Path) -> None:
    lake.create("demo.people", ROWS)
    other_catalog = f"sqlite:///{tmp_path}/other.db"
    second = replace(settings, workspace=tmp_path / "second", database_url=other_catalog)
    assert _reason(second) == "store_of_other_catalog"


def test_bucket_of_another_workspace_is_refused(settings: config.Settings, tmp_path: Path) -> None:
    bootstrap.create_workspace(settings)
    second = replace(settings, workspace=tmp_path / "second")
    assert _reason(second, uuid4()) == "store_of_other_workspace"
    bootstrap.create_workspace(replace(second, store=None, store_options=None))
    assert _reason(second) == "store_of_other_workspace"


def test_folder_with_data_files_is_refused(settings: config.Settings) -> None:
    with penstock.open(settings=replace(settings, store=None, store_options=None), create=True) as local:
        local.create("demo.people", ROWS)
    assert _reason(settings) == "store_has_local_files"


def test_open_with_a_bucket_that_is_not_initialized_is_refused(settings: config.Settings) -> None:
    local = replace(settings, store=None, store_options=None)
    penstock.open(settings=local, create=True).close()
    with pytest.raises(PenstockError) as caught:
        penstock.open(settings=settings)
    assert caught.value.reason == "store_not_initialized"


def test_options_without_a_bucket_are_refused(settings: config.Settings, tmp_path: Path) -> None:
    assert _reason(replace(settings, store=None)) == "bad_store_options"
