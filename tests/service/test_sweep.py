"""Sweeps delete the files that no retained version needs, and no other files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from penstock.catalog import tables
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import caller_from_claims
from penstock.errors import Conflict, Forbidden, Invalid, NotFound
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import RetentionPolicy, SweepReport, sweep, sweep_tenant
from support.workspaces import WorkspaceFixture

DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(lake: Lake) -> FakeClock:
    lake._workspace.db.clock = FakeClock()
    return lake._workspace.db.clock


@pytest.fixture
def daily(lake: Lake, clock: FakeClock) -> Dataset:
    """Create a dataset that is overwritten once a day: version n is from day n − 1, and has its own file."""
    ds = lake.create("demo.daily", {"id": [1]})
    for day in range(1, 5):
        clock.now = START + day * DAY
        ds.overwrite({"id": [day + 1]})
    return ds


def run(lake: Lake, **keep: Any) -> SweepReport:
    return sweep(lake._workspace, lake.caller, RetentionPolicy(**keep), execute=True)


def readable(ds: Dataset) -> list[int]:
    versions = []
    for version in range(1, ds.version + 1):
        try:
            assert ds.at(version).to_arrow()["id"].to_pylist() == [version]
            versions.append(version)
        except NotFound:
            pass
    return versions


def test_sweep_without_policy_retains_all_versions(lake: Lake, daily: Dataset, clock: FakeClock) -> None:
    clock.now += 1000 * DAY
    swept = run(lake)
    assert (swept.files, swept.versions) == (0, 0)
    assert readable(daily) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("days_later", "keep", "remaining"),
    [
        (10, {"versions": 1}, [5]),
        (10, {"versions": 3}, [3, 4, 5]),
        (10, {"versions": 99}, [1, 2, 3, 4, 5]),
        (0.5, {"days": 1}, [4, 5]),
        (0.5, {"days": 3}, [2, 3, 4, 5]),
        (100, {"days": 1}, [5]),
        (100, {"days": 0}, [5]),
        (100, {"days": 1, "versions": 3}, [3, 4, 5]),
        (0.5, {"days": 3, "versions": 1}, [2, 3, 4, 5]),
        (0, {"versions": 1}, [4, 5]),  # version 4 was the newest within the grace period
        (0, {"versions": 1, "grace": timedelta(0)}, [5]),
    ],
)
def test_sweep_retains_versions_of_policy(
    lake: Lake, daily: Dataset, clock: FakeClock, days_later: float, keep: dict[str, Any], remaining: list[int]
) -> None:
    clock.now += days_later * DAY
    dry_run = sweep(lake._workspace, lake.caller, RetentionPolicy(**keep))
    assert readable(daily) == [1, 2, 3, 4, 5], "a dry run deletes no file"
    swept = run(lake, **keep)
    assert readable(daily) == remaining
    assert (dry_run.files, dry_run.versions, dry_run.bytes) == (swept.files, swept.versions, swept.bytes)
    assert swept.files == 5 - len(remaining)
    assert run(lake, **keep).files == 0, "a second sweep deletes no file"


def test_swept_version_stays_in_history_but_is_unreadable(lake: Lake, daily: Dataset, clock: FakeClock) -> None:
    clock.now += 10 * DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match="swept") as raised:
        daily.at(2)
    assert raised.value.context["actual_version"] == 5
    with pytest.raises(NotFound):
        daily.at(time=START + DAY)
    assert [v.swept for v in daily.history()] == [False, True, True, True, True]
    daily.append({"id": [6]})
    assert daily.to_arrow()["id"].to_pylist() == [5, 6]


def test_sweep_keeps_files_shared_with_later_versions(lake: Lake, clock: FakeClock) -> None:
    ds = lake.create("demo.shared", {"id": [1]})
    for i in (2, 3):
        clock.now += DAY
        ds.append({"id": [i]})
    clock.now += 10 * DAY
    swept = run(lake, versions=1)
    assert (swept.files, swept.versions) == (0, 2)
    assert ds.to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_sweep_removes_dropped_datasets_after_retention(lake: Lake, daily: Dataset, clock: FakeClock) -> None:
    daily.drop()
    clock.now += 5 * DAY
    assert run(lake, days=10).files == 0
    assert run(lake, versions=1).files == 4, "the last version of a dropped dataset waits for --keep-days"
    clock.now += 20 * DAY
    assert run(lake, days=10).files == 1
    assert run(lake, days=10).files == 0


def test_sweep_ignores_files_of_other_programs(sqlite_workspace: WorkspaceFixture) -> None:
    with sqlite_workspace.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1]})
        folder = Path(sqlite_workspace.folder) / ds.current().snapshot.location
        foreign_files = [folder / name for name in ("_SUCCESS", "notes.txt", "part-0.parquet", ".hidden", "x.parquet")]
        for other_lake in foreign_files:
            other_lake.write_bytes(b"mine")
        lake._workspace.db.clock = lambda: datetime.now(UTC) + 5 * DAY
        assert run(lake, days=0, versions=1).files == 0
        assert all(other_lake.exists() for other_lake in foreign_files)


def test_sweep_ignores_files_of_other_catalogs(tmp_path: Path) -> None:
    """A workspace has moved to another database: a sweep by the old catalog must not delete its files."""
    here = WorkspaceFixture.make(tmp_path / "w", None)
    other_catalog = WorkspaceFixture(here.folder, f"sqlite:///{tmp_path}/other.db")
    WorkspaceFixture.make(tmp_path / "w", other_catalog.url)
    with other_catalog.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1]})
        with here.open() as old_lake:
            old_lake._workspace.db.clock = lambda: datetime.now(UTC) + 5 * DAY
            swept = run(old_lake, days=0, versions=1)
        assert (swept.files, swept.unknown) == (0, 1)
        assert ds.to_arrow().num_rows == 1


def test_read_of_swept_version_raises_not_found(lake: Lake, daily: Dataset, clock: FakeClock) -> None:
    snapshot = daily.at(1)
    clock.now += 10 * DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match="swept"):
        snapshot.to_arrow()
    with pytest.raises(Conflict):
        daily.overwrite({"id": [1]}, expect=1)


def test_cached_query_of_swept_version_raises_not_found(lake: Lake, daily: Dataset, clock: FakeClock) -> None:
    query = lake.register("ids", "SELECT id FROM demo.daily WHERE id < $below", [{"name": "id", "type": "number"}],
                          [{"name": "below", "type": "number"}])  # fmt: skip
    pinned = query.at({"demo.daily": 2})
    assert pinned.run(below=10).to_arrow()["id"].to_pylist() == [2]
    clock.now += DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match=r"Version 2 of demo\.daily was swept"):
        pinned.run(below=11)
    assert query.run(below=11).to_arrow()["id"].to_pylist() == [5]


def test_sweep_is_audited_once(lake: Lake, clock: FakeClock) -> None:
    ds = lake.create("demo.shared", {"id": [1]})
    clock.now += DAY
    ds.append({"id": [2]})
    clock.now += DAY
    assert sweep(lake._workspace, lake.caller, RetentionPolicy(versions=1)).versions == 1
    assert run(lake, versions=1).versions == 1
    assert sweep(lake._workspace, lake.caller, RetentionPolicy(versions=1)).versions == 0
    with lake._workspace.db.read(lake.caller) as tx:
        actions = [row.action for row in tx.all(select(tables.audit.c.action).where(tenant_filter(tables.audit)))]
    assert actions.count("sweep") == 1


def test_sweep_requires_admin_and_valid_policy(lake: Lake) -> None:
    from dataclasses import replace

    from penstock.core.caller import Role

    with pytest.raises(Forbidden):
        sweep(lake._workspace, replace(lake.caller, role=Role.DEVELOPER), RetentionPolicy())
    for invalid in ({"versions": 0}, {"days": -1}):
        with pytest.raises(Invalid):
            RetentionPolicy(**invalid)  # type: ignore[arg-type]


def test_sweep_tenant_by_local_caller_sweeps_other_tenant(lake: Lake, other_tenant: Lake, clock: FakeClock) -> None:
    other_tenant._workspace.db.clock = clock
    ds = other_tenant.create("demo.theirs", {"id": [1]})
    ds.overwrite({"id": [2]})
    clock.now += 10 * DAY
    tenant, policy = other_tenant.caller.tenant, RetentionPolicy(versions=1)
    assert sweep(lake._workspace, lake.caller, policy).files == 0
    assert sweep_tenant(lake._workspace, lake.caller, tenant, policy).files == 1
    assert sweep_tenant(lake._workspace, lake.caller, tenant, policy, execute=True).files == 1
    assert ds.to_arrow()["id"].to_pylist() == [2]
    with pytest.raises(NotFound, match="swept"):
        ds.at(1)


def test_sweep_tenant_by_token_caller_is_forbidden(lake: Lake, other_tenant: Lake) -> None:
    other_tenant.create("demo.theirs", {"id": [1]})
    admin = caller_from_claims(
        {
            "tenant_id": str(lake.caller.tenant),
            "sub": lake.caller.name,
            "iss": "local",
            "roles": ["analytics.admin"],
        }
    )
    with pytest.raises(Forbidden) as raised:
        sweep_tenant(lake._workspace, admin, other_tenant.caller.tenant, RetentionPolicy())
    assert raised.value.reason == "operator_required"
    assert sweep_tenant(lake._workspace, admin, lake.caller.tenant, RetentionPolicy()).files == 0


def test_sweep_tenant_of_unknown_tenant_is_not_found(lake: Lake) -> None:
    with pytest.raises(NotFound) as raised:
        sweep_tenant(lake._workspace, lake.caller, uuid4(), RetentionPolicy())
    assert raised.value.reason == "tenant_not_found"
