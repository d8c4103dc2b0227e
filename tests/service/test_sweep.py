"""The most dangerous command removes what nothing needs, and nothing else."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from penstock.catalog import tables
from penstock.catalog.database import mine
from penstock.errors import Conflict, Forbidden, Invalid, NotFound
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import Keep, Swept, sweep
from workspaces import Place

DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(lake: Lake) -> Clock:
    lake.workspace.db.clock = Clock()
    return lake.workspace.db.clock


@pytest.fixture
def daily(lake: Lake, clock: Clock) -> Dataset:
    """Overwritten once a day: version n was made on day n − 1, and has a file of its own."""
    ds = lake.create("demo.daily", {"id": [1]})
    for day in range(1, 5):
        clock.now = START + day * DAY
        ds.overwrite({"id": [day + 1]})
    return ds


def run(lake: Lake, **keep: Any) -> Swept:
    return sweep(lake.workspace, lake.caller, Keep(**keep), really=True)


def readable(ds: Dataset) -> list[int]:
    found = []
    for version in range(1, ds.version + 1):
        try:
            assert ds.at(version).to_arrow()["id"].to_pylist() == [version]
            found.append(version)
        except NotFound:
            pass
    return found


def test_every_version_is_kept_unless_told(lake: Lake, daily: Dataset, clock: Clock) -> None:
    clock.now += 1000 * DAY
    swept = run(lake)
    assert (swept.files, swept.versions) == (0, 0)
    assert readable(daily) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("days_later", "keep", "left"),
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
        (0, {"versions": 1}, [4, 5]),  # version 4 was the newest a moment ago: somebody may be reading it
        (0, {"versions": 1, "grace": timedelta(0)}, [5]),
    ],
)
def test_what_is_retained(
    lake: Lake, daily: Dataset, clock: Clock, days_later: float, keep: dict[str, Any], left: list[int]
) -> None:
    clock.now += days_later * DAY
    trial = sweep(lake.workspace, lake.caller, Keep(**keep))
    assert readable(daily) == [1, 2, 3, 4, 5], "a dry run touches nothing"
    swept = run(lake, **keep)
    assert readable(daily) == left
    assert (trial.files, trial.versions, trial.bytes) == (swept.files, swept.versions, swept.bytes)
    assert swept.files == 5 - len(left)
    assert run(lake, **keep).files == 0, "a second sweep finds nothing"


def test_a_swept_version_is_history_that_cannot_be_read(lake: Lake, daily: Dataset, clock: Clock) -> None:
    clock.now += 10 * DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match="swept") as refusal:
        daily.at(2)
    assert refusal.value.context["actual_version"] == 5
    with pytest.raises(NotFound):
        daily.at(time=START + DAY)
    assert [v.swept for v in daily.history()] == [False, True, True, True, True]
    daily.append({"id": [6]})
    assert daily.to_arrow()["id"].to_pylist() == [5, 6]


def test_files_that_later_versions_share_stay(lake: Lake, clock: Clock) -> None:
    ds = lake.create("demo.shared", {"id": [1]})
    for i in (2, 3):
        clock.now += DAY
        ds.append({"id": [i]})
    clock.now += 10 * DAY
    swept = run(lake, versions=1)
    assert (swept.files, swept.versions) == (0, 2)
    assert ds.to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_dropped_datasets_go_when_their_days_are_over(lake: Lake, daily: Dataset, clock: Clock) -> None:
    daily.drop()
    clock.now += 5 * DAY
    assert run(lake, days=10).files == 0
    assert run(lake, versions=1).files == 4, "the last version of a dropped dataset waits for --keep-days"
    clock.now += 20 * DAY
    assert run(lake, days=10).files == 1
    assert run(lake, days=10).files == 0


def test_what_penstock_did_not_write_is_left_alone(embedded: Place) -> None:
    with embedded.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1]})
        folder = Path(embedded.folder) / ds.now().snapshot.location
        strangers = [folder / name for name in ("_SUCCESS", "notes.txt", "part-0.parquet", ".hidden", "x.parquet")]
        for stranger in strangers:
            stranger.write_bytes(b"mine")
        lake.workspace.db.clock = lambda: datetime.now(UTC) + 5 * DAY
        assert run(lake, days=0, versions=1).files == 0
        assert all(stranger.exists() for stranger in strangers)


def test_files_of_another_catalog_are_left_alone(tmp_path: Path) -> None:
    """The workspace moved to another database; a sweep that does not know of it must not clean up after it."""
    here = Place.make(tmp_path / "w", None)
    there = Place(here.folder, f"sqlite:///{tmp_path}/other.db")
    Place.make(tmp_path / "w", there.url)
    with there.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1]})
        with here.open() as mistaken:
            mistaken.workspace.db.clock = lambda: datetime.now(UTC) + 5 * DAY
            swept = run(mistaken, days=0, versions=1)
        assert (swept.files, swept.unknown) == (0, 1)
        assert ds.to_arrow().num_rows == 1


def test_a_version_that_was_swept_meanwhile_is_told_not_read_in_part(lake: Lake, daily: Dataset, clock: Clock) -> None:
    held = daily.at(1)
    clock.now += 10 * DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match="swept"):
        held.to_arrow()
    with pytest.raises(Conflict):
        daily.overwrite({"id": [1]}, expect=1)


def test_a_query_that_was_asked_before_is_told_that_its_version_was_swept(
    lake: Lake, daily: Dataset, clock: Clock
) -> None:
    query = lake.register("ids", "SELECT id FROM demo.daily WHERE id < $below", [{"name": "id", "type": "number"}],
                          [{"name": "below", "type": "number"}])  # fmt: skip
    pinned = query.at({"demo.daily": 2})
    assert pinned.run(below=10).to_arrow()["id"].to_pylist() == [2]
    clock.now += DAY
    run(lake, versions=1)
    with pytest.raises(NotFound, match=r"version 2 of demo\.daily was swept"):
        pinned.run(below=11)
    assert query.run(below=11).to_arrow()["id"].to_pylist() == [5]


def test_a_sweep_is_audited_and_counted_once(lake: Lake, clock: Clock) -> None:
    ds = lake.create("demo.shared", {"id": [1]})
    clock.now += DAY
    ds.append({"id": [2]})
    clock.now += DAY
    assert sweep(lake.workspace, lake.caller, Keep(versions=1)).versions == 1
    assert run(lake, versions=1).versions == 1
    assert sweep(lake.workspace, lake.caller, Keep(versions=1)).versions == 0
    with lake.workspace.db.read(lake.caller) as tx:
        actions = [row.action for row in tx.all(select(tables.audit.c.action).where(mine(tables.audit)))]
    assert actions.count("sweep") == 1


def test_only_admins_sweep_and_odd_retentions_are_refused(lake: Lake) -> None:
    from dataclasses import replace

    from penstock.core.caller import Role

    with pytest.raises(Forbidden):
        sweep(lake.workspace, replace(lake.caller, role=Role.DEVELOPER), Keep())
    for odd in ({"versions": 0}, {"days": -1}):
        with pytest.raises(Invalid):
            Keep(**odd)  # type: ignore[arg-type]
