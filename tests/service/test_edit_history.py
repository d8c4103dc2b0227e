"""Random histories of appends, edits, merges and compactions against a model, with deletion vectors and without."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from conftest import QUICK, SOAK
from penstock import failpoints
from penstock.lake import Dataset, Lake
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from service.test_compact import once_per_step

_SEEDS = [*range(100), *[None] * 20] if SOAK else [1, None] if QUICK else [1, 2, 3, 4, 5, None]

_NO_GRACE = timedelta(0)

Rows = dict[int, tuple[int, str | None]]  # row id → key and word


@pytest.fixture(params=["mark", "auto", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class History:
    """A dataset, and every version of it as a dictionary of rows."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.rng, self.lake = random.Random(seed), lake
        self.next_key = self.next_id = 1
        self.dataset: Dataset = lake.create("demo.history", schema=self._table([]).schema)
        self.versions: list[Rows] = [{}]

    @property
    def current(self) -> Rows:
        return dict(self.versions[-1])

    def append(self) -> None:
        rows = [self._new_row() for _ in range(self.rng.randrange(1, 60))]
        self.dataset.append(self._table(rows))
        self._commit(self.current | self._with_ids(rows))

    def update(self) -> None:
        if ids := self._some_ids():
            rows = [(self.current[row_id][0], self._word()) for row_id in ids]
            result = self.dataset.update(ids, self._table(rows), returning=True)
            assert result.affected == len(ids)
            assert result.returned is not None
            assert result.returned["rowid"].to_pylist() == ids
            self._commit(self.current | dict(zip(ids, rows, strict=True)))

    def delete(self) -> None:
        ids = [*self._some_ids(), self.next_id + 5]
        self.rng.shuffle(ids)
        before = self.current
        result = self.dataset.delete(ids, returning=True)
        existing = [row_id for row_id in ids if row_id in before]
        assert result.affected == len(existing)
        assert result.returned is not None
        assert [(row["rowid"], row["id"], row["word"]) for row in result.returned.to_pylist()] == [
            (row_id, *before[row_id]) for row_id in existing
        ]
        if existing:
            self._commit({row_id: row for row_id, row in before.items() if row_id not in existing})

    def merge(self) -> None:
        strategy = self.rng.choice(["upsert", "update", "insert", "deduplicate", "full_merge"])
        ids, before = self._some_ids(), self.current
        rows = [(before[row_id][0], self._word()) for row_id in ids] + [
            self._new_row() for _ in range(self.rng.randrange(3))
        ]
        if not rows:
            return
        self.rng.shuffle(rows)
        engine = self.rng.choice(["pyarrow", "duckdb"])
        stats = self.dataset.merge(self._table(rows), "id", strategy, engine=engine).stats
        by_key = {key: row_id for row_id, (key, _) in before.items()}
        new = [row for row in rows if row[0] not in by_key] if strategy != "update" else []
        matched = {by_key[row[0]]: row for row in rows if row[0] in by_key}
        after = {row_id: row for row_id, row in before.items() if strategy != "full_merge" or row_id in matched}
        if strategy != "insert":
            after |= matched
        assert stats["inserted"] == len(new)
        assert stats["updated"] == (0 if strategy == "insert" else len(matched))
        assert stats["total"] == len(after) + len(new)
        if new or (matched and strategy != "insert") or len(after) < len(before):
            # Each engine writes new rows in its own order, so the test reads their ids.
            start, self.next_id = self.next_id, self.next_id + len(new)
            read = self._read(self.dataset.version)
            self._commit(after | {row_id: row for row_id, row in read.items() if row_id >= start})
            assert sorted(row for row_id, row in self.current.items() if row_id >= start) == sorted(new)

    def compact(self) -> None:
        for _ in range(self.dataset.compact().version - len(self.versions)):
            self._commit(self.current)
        assert self.dataset.current().snapshot.version.vector_files == 0

    def compact_during_edits(self) -> None:
        """Edit rows before the commit of each step of a compaction."""
        edits = [self.rng.choice([self.update, self.delete, self.append]) for _ in range(self.rng.randrange(1, 4))]

        def edit() -> None:
            if edits:
                self._add_compactions()
                edits.pop()()

        with failpoints.armed("stage.complete", once_per_step(edit)):
            self.dataset.compact()
        self._add_compactions()

    def _add_compactions(self) -> None:
        for _ in range(self.dataset.version - len(self.versions)):
            self._commit(self.current)

    def check(self, first: int = 1) -> None:
        assert self.dataset.version == len(self.versions)
        for number, rows in enumerate(self.versions, 1):
            if number < first:
                continue
            assert self._read(number) == rows
            snapshot = self.dataset.at(number)
            files, version = snapshot.files(), snapshot.snapshot.version
            assert version.rows == len(rows) == sum(file.live_rows for file in files)
            assert version.files == len(files)
            assert version.vector_files == sum(file.deleted is not None for file in files)
            assert version.deleted_rows == sum(len(file.deleted) for file in files if file.deleted)
            assert all(file.live_rows for file in files), "a file without rows is dropped"
            matches = snapshot.to_arrow(["id"], "word IS NULL OR word > 'm'")["id"].to_pylist()
            assert sorted(matches) == sorted(key for key, word in rows.values() if word is None or word > "m")

    def _read(self, version: int) -> Rows:
        table = self.dataset.at(version).to_arrow(row_ids=True)
        rows = {row["rowid"]: (row["id"], row["word"]) for row in table.to_pylist()}
        assert len(rows) == table.num_rows, "two rows have one row id"
        return rows

    def _commit(self, rows: Rows) -> None:
        self.versions.append(rows)

    def _some_ids(self) -> list[int]:
        ids = list(self.current)
        share = self.rng.choice([0.02, 0.1, 0.5, 1.0])
        return self.rng.sample(ids, min(len(ids), max(1, int(share * len(ids))))) if ids else []

    def _new_row(self) -> tuple[int, str | None]:
        self.next_key += 1
        return self.next_key, self._word()

    def _word(self) -> str | None:
        return self.rng.choice([None, "a", "k", "m", "n", "zz"])

    def _with_ids(self, rows: list[Any]) -> Rows:
        first, self.next_id = self.next_id, self.next_id + len(rows)
        return {first + i: row for i, row in enumerate(rows)}

    @staticmethod
    def _table(rows: list[Any]) -> pa.Table:
        return pa.table(
            {"id": pa.array([key for key, _ in rows], pa.int64()), "word": pa.array([w for _, w in rows], pa.string())}
        )


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_edits_match_model_in_every_version(lake: Lake, seed: int | None) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    history = History(lake, seed)
    operations: list[Callable[[], None]] = [
        history.append,
        history.update,
        history.update,
        history.delete,
        history.delete,
        history.merge,
        history.merge,
        history.compact,
        history.compact_during_edits,
    ]
    for operation in (history.append, *history.rng.choices(operations, k=20)):
        operation()
    history.check()
    history.dataset.append(history._table([history._new_row()]))
    history._commit(history._read(history.dataset.version))
    retained = max(1, len(history.versions) // 2)
    report = sweep(lake._workspace, lake.caller, RetentionPolicy(versions=retained, grace=_NO_GRACE), execute=True)
    assert report.versions == len(history.versions) - retained
    history.check(first=len(history.versions) - retained + 1)
