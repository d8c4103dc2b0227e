"""Compare random sequences of writes with a small model."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from penstock.lake import Dataset
from support.workspaces import WorkspaceFixture

rows = st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.text(max_size=3) | st.none()), max_size=4)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("overwrite"), rows),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("alter"), st.none()),
        st.tuples(st.just("replay"), rows),
    ),
    max_size=10,
)


class VersionModel:
    """Every version as a list of (row id, values), and the next row id."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, list[tuple[int, Any]]]] = [(2, [])]  # (number of columns, rows)
        self.next_id = 1

    def run(self, operation: str, rows_to_write: list[Any] | None) -> None:
        width, current = self.versions[-1]
        fresh = [(self.next_id + i, row) for i, row in enumerate(rows_to_write or [])]
        self.next_id += len(fresh)
        match operation:
            case "append" | "replay" if fresh:
                self.versions.append((width, current + fresh))
            case "overwrite" if fresh or current:
                self.versions.append((width, fresh))
            case "alter":
                self.versions.append((width + 1, current))

    def compacted(self) -> None:
        self.versions.append(self.versions[-1])


def table(rows_to_write: list[Any]) -> pa.Table:
    return pa.table(
        {
            "number": pa.array([n for n, _ in rows_to_write], pa.int64()),
            "word": pa.array([w for _, w in rows_to_write], pa.string()),
        }
    )


def run(ds: Dataset, model: VersionModel, operation: str, rows_to_write: list[Any] | None, key: int) -> None:
    match operation:
        case "append":
            ds.append(table(rows_to_write or []))
        case "overwrite":
            ds.overwrite(table(rows_to_write or []))
        case "replay":
            first = ds.append(table(rows_to_write or []), idempotency_key=f"key {key}")
            assert ds.append(table(rows_to_write or []), idempotency_key=f"key {key}") == first
        case "alter":
            ds.alter(add={f"c{key}": "int64"})
        case "compact":
            before = ds.version
            if ds.compact().version > before:
                model.compacted()
            return
    model.run(operation, rows_to_write)


@settings(max_examples=examples(40, soak=300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_random_history_matches_model_in_every_version(program: list[tuple[str, Any]]) -> None:
    model = VersionModel()
    with tempfile.TemporaryDirectory() as folder, WorkspaceFixture.make(Path(folder) / "w", None).open() as lake:
        ds = lake.create("demo.random", schema=table([]).schema)
        for key, (operation, new_rows) in enumerate(program):
            run(ds, model, operation, new_rows, key)
        assert ds.version == len(model.versions)
        for number, (width, rows) in enumerate(model.versions, 1):
            snapshot = ds.at(number)
            assert len(snapshot.schema) == width
            read = snapshot.to_arrow(row_ids=True).to_pylist()
            assert sorted((row["rowid"], (row["number"], row["word"])) for row in read) == sorted(rows)
            assert snapshot.num_rows == len(rows)
            for low in (-2, 3):
                matching = snapshot.to_arrow(["word"], f"number > {low}")["word"].to_pylist()
                expected = [word for _, (n, word) in rows if n is not None and n > low]
                assert sorted(map(repr, matching)) == sorted(map(repr, expected))
