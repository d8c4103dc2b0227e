"""Random programs of writes, against a model that fits on a screen."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SOAK
from penstock.lake import Dataset
from workspaces import Place

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


class Model:
    """Every version as a list of (row id, values), and what the next version would be called."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, list[tuple[int, Any]]]] = [(2, [])]  # (number of columns, rows)
        self.next_id = 1

    def run(self, operation: str, given: list[Any] | None) -> None:
        width, now = self.versions[-1]
        fresh = [(self.next_id + i, row) for i, row in enumerate(given or [])]
        self.next_id += len(fresh)
        match operation:
            case "append" | "replay" if fresh:
                self.versions.append((width, now + fresh))
            case "overwrite" if fresh or now:
                self.versions.append((width, fresh))
            case "alter":
                self.versions.append((width + 1, now))

    def compacted(self) -> None:
        self.versions.append(self.versions[-1])


def table(given: list[Any]) -> pa.Table:
    return pa.table(
        {
            "number": pa.array([n for n, _ in given], pa.int64()),
            "word": pa.array([w for _, w in given], pa.string()),
        }
    )


def run(ds: Dataset, model: Model, operation: str, given: list[Any] | None, key: int) -> None:
    match operation:
        case "append":
            ds.append(table(given or []))
        case "overwrite":
            ds.overwrite(table(given or []))
        case "replay":
            first = ds.append(table(given or []), idempotency_key=f"key {key}")
            assert ds.append(table(given or []), idempotency_key=f"key {key}") == first
        case "alter":
            ds.alter(add={f"c{key}": "int64"})
        case "compact":
            before = ds.version
            if ds.compact().version > before:
                model.compacted()
            return
    model.run(operation, given)


@settings(max_examples=300 if SOAK else 40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_every_version_of_a_random_history_reads_as_the_model_says(program: list[tuple[str, Any]]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder, Place.make(Path(folder) / "w", None).open() as lake:
        ds = lake.create("demo.random", schema=table([]).schema)
        for key, (operation, given_rows) in enumerate(program):
            run(ds, model, operation, given_rows, key)
        assert ds.version == len(model.versions)
        for number, (width, held) in enumerate(model.versions, 1):
            at = ds.at(number)
            assert len(at.schema) == width
            read = at.to_arrow(row_ids=True).to_pylist()
            assert sorted((row["rowid"], (row["number"], row["word"])) for row in read) == sorted(held)
            assert at.num_rows == len(held)
            for low in (-2, 3):
                kept = at.to_arrow(["word"], f"number > {low}")["word"].to_pylist()
                expected = [word for _, (n, word) in held if n is not None and n > low]
                assert sorted(map(repr, kept)) == sorted(map(repr, expected))
