"""The size of the deletion vectors and of the file lists that a query sends to its process is limited."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.errors import Invalid
from penstock.service.queries.sandbox import Relation, RelationFile, Sandbox, client
from penstock.service.queries.sandbox.limits import QueryLimits
from service.test_sandbox import close_after, run_query

ROWS = pa.table({"n": [1, 2, 3]})
# Every second position of 2,097,152, so that the bitmap is as large as that of a file can be; the file has three of them.
LARGE_VECTOR = DeletionVector.from_positions(range(0, 2 << 20, 2))
COUNT = "SELECT count(*) AS rows FROM s.t"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from close_after(Sandbox(str(tmp_path_factory.getbasetemp())))


@pytest.fixture
def path(tmp_path: Path) -> str:
    pq.write_table(ROWS, tmp_path / "0.parquet")
    return str(tmp_path / "0.parquet")


def relation(path: str, files: int, stats_json: str = "{}") -> Relation:
    """Return a dataset of several files with large vectors: links to one file."""
    paths = [path, *(str(Path(path).with_name(f"{number}.parquet")) for number in range(1, files))]
    for link in paths[1:]:
        Path(link).hardlink_to(path)
    return Relation(ROWS.schema, [RelationFile(link, ROWS.num_rows, stats_json, LARGE_VECTOR) for link in paths])


def test_query_of_vectors_up_to_the_limit_returns_the_live_rows(sandbox: Sandbox, path: str) -> None:
    files = sandbox.limits.vector_bytes // len(LARGE_VECTOR.to_bytes())
    assert files > 200
    assert run_query(sandbox, COUNT, {"s.t": relation(path, files)}).to_pylist() == [{"rows": files}]


def test_query_of_vectors_beyond_the_limit_is_rejected(sandbox: Sandbox, path: str) -> None:
    files = sandbox.limits.vector_bytes // len(LARGE_VECTOR.to_bytes()) + 1
    with pytest.raises(Invalid) as raised:
        run_query(sandbox, COUNT, {"s.t": relation(path, files)})
    assert raised.value.reason == "query_too_large"
    size = files * len(LARGE_VECTOR.to_bytes())
    assert str(raised.value) == (
        f"The deletion vectors of the datasets that the query reads have {size:,} bytes; the limit is 67,108,864 bytes. "
        "Compact the datasets (penstock dataset compact), or read fewer of them in one query"
    )


def test_query_of_two_datasets_adds_up_their_vectors(tmp_path: Path, path: str) -> None:
    limits = QueryLimits(vector_bytes=len(LARGE_VECTOR.to_bytes()))
    one = relation(path, 1)
    for sandbox in close_after(Sandbox(str(tmp_path), limits)):
        assert run_query(sandbox, COUNT, {"s.t": one}).num_rows == 1
        with pytest.raises(Invalid) as raised:
            run_query(sandbox, "SELECT count(*) AS rows FROM s.t, s.u", {"s.t": one, "s.u": one})
    assert raised.value.reason == "query_too_large"


def test_query_of_a_long_file_list_is_rejected(sandbox: Sandbox, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_REQUEST_BYTES", 2_000)
    with pytest.raises(Invalid) as raised:
        run_query(sandbox, COUNT, {"s.t": relation(path, 1, stats_json="{" + " " * 1_000 + "}")})
    assert raised.value.reason == "query_too_large"
    assert "file" in str(raised.value)
