"""Fixtures for engine tests: one shared workspace, and merge functions by engine name."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

import penstock
from penstock.lake import Dataset, Lake
from support.workspaces import WorkspaceFixture

pytest.register_assert_rewrite("engines.parquet_directories")  # so that a failure shows the different rows

Merge = Callable[..., dict[str, int]]
_numbers = count()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Create one workspace for all cases; a workspace for each case would take longer than the case."""
    with WorkspaceFixture.make(tmp_path_factory.mktemp("shared") / "workspace", None).open() as lake:
        yield lake


@pytest.fixture
def create_dataset(shared: Lake) -> Callable[..., Dataset]:
    """Return a function that creates a dataset with an unused name."""
    return lambda *rows, **options: shared.create(f"cases.case_{next(_numbers)}", *rows, **options)


@pytest.fixture
def merge(engine: str, request: pytest.FixtureRequest) -> Merge:
    """Return the public merge function of the engine under test."""
    if engine == "spark":
        return partial(penstock.merge_parquet_dataset_spark, spark=request.getfixturevalue("spark"))
    return {"pyarrow": penstock.merge_parquet_dataset_pyarrow, "duckdb": penstock.merge_parquet_dataset_duckdb}[engine]


@pytest.fixture
def merge_into(engine: str, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that merges into a dataset: `merge_into(dataset, source, …)`."""
    options = {"spark": request.getfixturevalue("spark")} if engine == "spark" else {}
    return lambda dataset, source, **arguments: dataset.merge(source, engine=engine, **options, **arguments)
