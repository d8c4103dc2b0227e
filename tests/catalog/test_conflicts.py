"""Every cell of the published table of conflicts."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.errors import PenstockError
from penstock.lake import Dataset

PAGE = Path(__file__).parents[2] / "docs" / "conflicts.md"

_fresh = count()

WRITES: dict[str, Callable[[Dataset], object]] = {
    "append": lambda ds: ds.append({"id": [7], "word": ["seven"]}),
    "overwrite": lambda ds: ds.overwrite({"id": [8], "word": ["eight"]}),
    "merge": lambda ds: ds.merge({"id": [1, 7], "word": ["uno", "sette"]}, "id"),
    "update": lambda ds: ds.update([1], ds.to_arrow(where="id = 1")),
    "delete": lambda ds: ds.delete([2]),
    "alter": lambda ds: ds.alter(add={f"c{next(_fresh)}": "int64"}),
    "compact": lambda ds: ds.compact(),
    "drop": lambda ds: ds.drop(),
}


def published() -> list[tuple[str, str, str]]:
    table = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    header, _, *rows = table
    return [(row[0], second, expected) for row in rows for second, expected in zip(header[1:], row[1:], strict=True)]


def test_conflicts_table_lists_every_write_operation() -> None:
    assert {(first, second) for first, second, _ in published()} == {(a, b) for a in WRITES for b in WRITES}


@pytest.mark.parametrize(("first", "second", "expected"), published())
def test_overtaken_write_has_the_outcome_in_the_conflicts_table(
    three_rows: Dataset, first: str, second: str, expected: str
) -> None:
    three_rows.append({"id": [4], "word": ["four"]})
    if second == "drop":
        WRITES[first](three_rows)
        outcomes = outcome(lambda: WRITES[second](three_rows))
    else:
        # The second has read its base; now the first commits; then the second goes on.
        pending = [lambda: WRITES[first](three_rows)]
        with failpoints.armed("stage.begun", lambda: pending.pop()() if pending else None):
            outcomes = outcome(lambda: WRITES[second](three_rows))
        assert not pending
    assert outcomes == expected
    if "drop" not in (first, second):
        ids, versions = [1, 2, 3, 4], 2
        for position, write in enumerate((first, second) if expected == "done" else (first,)):
            versions += not (
                (write == "delete" and 2 not in ids)  # to delete nothing makes no version
                or (position and write == "compact" and first in ("overwrite", "compact"))  # one file is left
            )
            ids = _ids_after(write, ids)
        assert sorted(three_rows.to_arrow()["id"].to_pylist()) == ids
        assert three_rows.num_rows == len(ids)
        assert three_rows.version == versions


def _ids_after(write: str, ids: list[int]) -> list[int]:
    match write:
        case "append":
            return sorted([*ids, 7])
        case "overwrite":
            return [8]
        case "merge":
            return sorted([*ids, *({1, 7} - set(ids))])
        case "delete":
            return [id for id in ids if id != 2]
    return ids


def outcome(write: Callable[[], object]) -> str:
    try:
        write()
    except PenstockError as error:
        return error.kind
    return "done"
