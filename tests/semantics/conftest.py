"""Where merges are tried: one workspace for all cases, and every engine by its name."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

import penstock
from penstock.lake import Dataset, Lake
from workspaces import Place

pytest.register_assert_rewrite("semantics.directories")  # so that a failure says which rows differ

Merge = Callable[..., dict[str, int]]
_numbers = count()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A workspace for many datasets; making one for each case would take longer than the case."""
    with Place.make(tmp_path_factory.mktemp("shared") / "workspace", None).open() as lake:
        yield lake


@pytest.fixture
def made(shared: Lake) -> Callable[..., Dataset]:
    """Makes a dataset under a name that nobody has."""
    return lambda *rows, **options: shared.create(f"cases.case_{next(_numbers)}", *rows, **options)


@pytest.fixture
def merge(engine: str, request: pytest.FixtureRequest) -> Merge:
    """The public function of the engine that the test is run with."""
    if engine == "spark":
        return partial(penstock.merge_parquet_dataset_spark, spark=request.getfixturevalue("spark"))
    return {"pyarrow": penstock.merge_parquet_dataset_pyarrow, "duckdb": penstock.merge_parquet_dataset_duckdb}[engine]


@pytest.fixture
def merge_into(engine: str, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The same for a dataset: `merge_into(dataset, source, …)`."""
    options = {"spark": request.getfixturevalue("spark")} if engine == "spark" else {}
    return lambda dataset, source, **more: dataset.merge(source, engine=engine, **options, **more)
