"""Test pipelines whose sources, working datasets and outputs have files with deletion vectors."""

import random
from collections.abc import Iterator
from secrets import randbits
from typing import Any

import pytest

from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.lake import Dataset, Lake
from service.test_pipeline_execution import append, merge, pipeline, words
from support.workspaces import WorkspaceFixture

pytestmark = pytest.mark.usefixtures("spark")
OUTPUT = {"schema_name": "demo", "table_name": "result"}


@pytest.fixture
def lake(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    """Open a workspace on SQLite: Spark jobs do not depend on the database."""
    with sqlite_workspace.open() as opened:
        set_edit_mode(opened, EditMode.MARK)
        yield opened


@pytest.fixture
def working(lake: Lake) -> Dataset:
    """Create a dataset with the ids 1, 3, 5 to 9 in a file with a vector, and 20 in a file without a vector."""
    dataset = create_numbers(lake, "demo.working", range(10))
    delete_ids(dataset, 0, 2, 4)
    dataset.append({"id": [20], "word": ["w20"]})
    assert [len(file.deleted or ()) for file in dataset.current().files()] == [3, 0]
    return dataset


@pytest.fixture
def source(lake: Lake) -> Dataset:
    """Create a dataset with the ids 1, 3, 7, 21, 22 in a file with a vector, and 30 in a file without a vector."""
    dataset = create_numbers(lake, "demo.source", [1, 2, 3, 4, 7, 8, 21, 22], prefix="s")
    delete_ids(dataset, 2, 4, 8)
    dataset.append({"id": [30], "word": ["s30"]})
    return dataset


def set_edit_mode(lake: Lake, mode: EditMode) -> None:
    lake._workspace.edit_policy = EditPolicy(mode=mode)


def create_numbers(lake: Lake, name: str, ids: Any, prefix: str = "w") -> Dataset:
    return lake.create(name, {"id": list(ids), "word": [f"{prefix}{n}" for n in ids]})


def delete_ids(dataset: Dataset, *ids: int) -> None:
    """Delete the rows whose column `id` has one of the values."""
    content = dataset.to_arrow(row_ids=True).to_pylist()
    dataset.delete([row["rowid"] for row in content if row["id"] in ids])


def row_ids(dataset: Dataset) -> dict[int, int]:
    """Return the row id of each row by its column `id`."""
    content = dataset.to_arrow(row_ids=True).to_pylist()
    by_id = {row["id"]: row["rowid"] for row in content}
    assert len(set(by_id.values())) == len(content) == dataset.num_rows
    return by_id


def numbered(prefix: str, *ids: int) -> list[tuple[int, str | None]]:
    return [(n, f"{prefix}{n}") for n in ids]


def test_append_does_not_read_deleted_rows_of_its_source(lake: Lake, source: Dataset) -> None:
    target = lake.create("demo.target", schema=source.schema)
    steps = lake.pipeline(
        pipeline(target, append(source), append(source, source_selector="id < 10"), append(source, 1))
    )
    counts = [3 * 2, 3, 8]
    for responses in (steps.preview(), steps.run().results):
        assert [response["result"]["rows_appended"] for response in responses] == counts
    every = numbered("s", 1, 3, 7, 21, 22, 30)
    assert words(target) == sorted([*every, *every[:3], *numbered("s", 1, 2, 3, 4, 7, 8, 21, 22)])


def test_aggregates_do_not_read_deleted_rows_of_their_source(lake: Lake, source: Dataset) -> None:
    target = lake.create("demo.target", {"word": ["x"], "total": [0], "number": [0]})
    aggregation = {
        "group_by": ["word"],
        "aggregations": [
            {"column": "total", "expression": "SUM(id)"},
            {"column": "number", "expression": "COUNT(*)"},
        ],
    }
    lake.pipeline(pipeline(target, append(source, aggregation=aggregation))).run()
    content = {row["word"]: (row["total"], row["number"]) for row in target.to_arrow().to_pylist()}
    assert content == {"x": (0, 0)} | {f"s{n}": (n, 1) for n in (1, 3, 7, 21, 22, 30)}


@pytest.mark.parametrize("mode", [EditMode.MARK, EditMode.REWRITE])
def test_merges_into_a_working_dataset_with_vectors_keep_row_ids(
    lake: Lake, working: Dataset, source: Dataset, mode: EditMode
) -> None:
    """The second merge also changes rows that the first one has written."""
    set_edit_mode(lake, mode)
    late = create_numbers(lake, "demo.late", [3, 5, 21, 40], prefix="z")
    before, ids, version = words(working), row_ids(working), working.version
    steps = lake.pipeline(
        pipeline(working, append(late, source_selector="id = 40"), merge(source), merge(late, "update"))
    )
    for responses in (steps.preview(), steps.run().results):
        results = [response["result"] for response in responses]
        assert [result["working_dataset_rows_before"] for result in results] == [8, 9, 12]
        assert [(result["inserted"], result["updated"]) for result in results[1:]] == [(3, 3), (0, 4)]
    expected = dict(before) | dict(numbered("s", 1, 3, 7, 21, 22, 30)) | dict(numbered("z", 3, 5, 21, 40))
    assert words(working) == sorted(expected.items())
    after = row_ids(working)
    assert {n: after[n] for n in ids} == ids
    assert min(row_id for n, row_id in after.items() if n not in ids) > max(ids.values())
    assert words(working, version) == before
    assert working.version == version + 1


def test_full_merge_into_a_working_dataset_with_vectors(lake: Lake, working: Dataset, source: Dataset) -> None:
    ids = row_ids(working)
    (response,) = lake.pipeline(pipeline(working, merge(source, "full_merge"))).run().results
    counts = {name: response["result"][name] for name in ("inserted", "updated", "deleted")}
    assert counts == {"inserted": 3, "updated": 3, "deleted": 5}
    assert words(working) == numbered("s", 1, 3, 7, 21, 22, 30)
    after = row_ids(working)
    assert all(after[n] == ids[n] for n in (1, 3, 7))


def test_output_of_a_working_dataset_with_vectors_skips_deleted_rows(
    lake: Lake, working: Dataset, source: Dataset
) -> None:
    before, ids, version = words(working), row_ids(working), working.version
    lake.pipeline(pipeline(working, append(source, source_selector="id = 30"), output=OUTPUT)).run()
    result = lake.dataset("demo.result")
    assert words(result) == sorted([*before, (30, "s30")])
    new_ids = row_ids(result)
    assert {n: new_ids[n] - new_ids[1] for n in (1, 3, 5, 6, 7, 8, 9)} == {n: n - 1 for n in (1, 3, 5, 6, 7, 8, 9)}
    assert (words(working), row_ids(working), working.version) == (before, ids, version)


@pytest.mark.parametrize("mode", [EditMode.MARK, EditMode.REWRITE])
def test_output_of_merges_leaves_the_working_dataset_unchanged(
    lake: Lake, working: Dataset, source: Dataset, mode: EditMode
) -> None:
    set_edit_mode(lake, mode)
    before, ids, version = words(working), row_ids(working), working.version
    expected = sorted((dict(before) | dict(numbered("s", 1, 3, 7, 21, 22, 30))).items())
    late = create_numbers(lake, "demo.late", [3, 5, 21], prefix="z")
    for _ in range(2):  # the second run replaces the rows of the first one
        lake.pipeline(pipeline(working, merge(source), output=OUTPUT)).run()
        assert words(lake.dataset("demo.result")) == expected
    assert (words(working), row_ids(working), working.version) == (before, ids, version)
    result = lake.dataset("demo.result")
    new_ids = row_ids(result)
    lake.pipeline(pipeline(result, merge(late, "update"))).run()  # rows of linked files with vectors
    assert words(result) == sorted((dict(expected) | dict(numbered("z", 3, 5, 21))).items())
    assert row_ids(result) == new_ids


@pytest.mark.parametrize("seed", [1, 2, "fresh"])
def test_random_operations_on_datasets_with_vectors_match_dictionaries(lake: Lake, seed: int | str) -> None:
    seed = seed if isinstance(seed, int) else randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    target, other = (
        create_numbers(lake, "demo.target", range(20)),
        create_numbers(lake, "demo.other", range(10, 40), "o"),
    )
    for number in range(3):
        set_edit_mode(lake, EditMode.MARK)
        for dataset in (target, other):
            delete_ids(dataset, *draw.sample(sorted(row_ids(dataset)), 4))
        set_edit_mode(lake, draw.choice(list(EditMode)))
        expected, ids, rows = dict(words(target)), row_ids(target), dict(words(other))
        operations = []
        for strategy in draw.sample(["upsert", "insert", "update", "upsert"], 2):
            limit = draw.randrange(10, 41)
            operations.append(merge(other, strategy, source_selector=f"id < {limit}"))
            selected = {n: word for n, word in rows.items() if n < limit}
            merged = {n: word for n, word in selected.items() if strategy != "update" or n in expected}
            expected = merged | expected if strategy == "insert" else expected | merged
        output = {"output": {"schema_name": "demo", "table_name": f"result{number}"}} if draw.random() < 0.4 else {}
        lake.pipeline(pipeline(target, *operations, **output)).run()
        result = lake.dataset(f"demo.result{number}") if output else target
        assert words(result) == sorted(expected.items()), f"seed {seed}"
        after = row_ids(result)
        assert output or {n: after[n] for n in ids} == ids, f"seed {seed}"
