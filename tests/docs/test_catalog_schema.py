"""The page docs/catalog-schema.md names every table and column, and its queries return what the Python API returns."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Lake
from penstock.catalog import tables
from penstock.core.dataset.deletion_vector import DeletionVector

PAGE = (Path(__file__).parents[2] / "docs" / "catalog-schema.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.S)


def test_catalog_schema_page_lists_exactly_the_tables() -> None:
    assert sorted(SECTIONS) == sorted(tables.metadata.tables)


@pytest.mark.parametrize("table", sorted(tables.metadata.tables))
def test_catalog_schema_page_lists_exactly_the_columns_and_the_key_of_a_table(table: str) -> None:
    rows = [line for line in SECTIONS[table].splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(documented) == sorted(column.name for column in tables.metadata.tables[table].columns)
    key = re.search(r"Key: (.*?)\.(?:\s|\Z)", SECTIONS[table], re.S)
    assert key is not None
    assert re.findall(r"`(\w+)`", key[1]) == [column.name for column in tables.metadata.tables[table].primary_key]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Create a SQLite workspace with two changed datasets and a dropped dataset."""
    lake = penstock.open(tmp_path_factory.mktemp("schema") / "workspace", create=True)
    sales = lake.create("shop.sales", {"id": [1, 2, 3], "amount": [10, 20, 30]})
    sales.append({"id": [4], "amount": [40]}, idempotency_key="fourth")
    dropped = lake.create("shop.dropped", {"id": [1]})
    sales.overwrite({"id": [9], "amount": [90]})
    dropped.drop()
    lake.create("shop.people", {"id": [1, 2]})
    yield lake
    lake.close()


def run(lake: Lake, query: int, **params: Any) -> list[dict[str, Any]]:
    """Run a query of the page with plain SQL on the SQLite catalog."""
    with sqlite3.connect(f"file:{lake._workspace.db.url.database}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(QUERIES[query], {"tenant": lake.caller.tenant.hex, **params}).fetchall()
    connection.close()
    return [dict(row) for row in rows]


def test_catalog_schema_page_has_six_queries() -> None:
    assert len(QUERIES) == 6


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_query_returns_the_files_of_a_version(lake: Lake, version: int) -> None:
    sales = lake.dataset("shop.sales")
    expected = [
        {"file_no": f.number, "path": f.path, "rows": f.rows, "bytes": f.bytes} for f in sales.at(version).files()
    ]
    assert expected
    assert run(lake, 0, dataset=sales.id.hex, version=version) == expected


def test_deletion_vectors_query_returns_the_deleted_rows_of_a_version(lake: Lake) -> None:
    people = lake.create("shop.vectors", {"id": list(range(100))})
    people.delete([1, 3])
    people.delete([2, 100])
    found = {}
    for version in (1, 2, 3):
        rows = run(lake, 1, dataset=people.id.hex, version=version)
        parts = [DeletionVector.from_bytes(row["bitmap"]) for row in rows]
        found[version] = sorted(position for part in parts for position in part.positions.tolist())
        assert sum(row["rows"] for row in rows) == people.at(version).snapshot.version.deleted_rows
        (file,) = run(lake, 0, dataset=people.id.hex, version=version)
        assert {row["file_no"] for row in rows} <= {file["file_no"]}
        assert file["rows"] - len(found[version]) == people.at(version).num_rows
    people.drop()
    assert found == {1: [], 2: [0, 2], 3: [0, 1, 2, 99]}


@pytest.mark.parametrize("commit_no", [1, 2, 3, 4, 5, 6])
def test_lake_snapshot_query_returns_the_datasets_of_a_commit(lake: Lake, commit_no: int) -> None:
    snapshot = lake.snapshot(commit_no)
    expected = []
    for name in ("shop.dropped", "shop.people", "shop.sales"):
        try:
            dataset = snapshot.dataset(name)
        except penstock.NotFound:
            continue
        expected.append((name, dataset.version, dataset.num_rows))
    rows = run(lake, 2, commit_no=commit_no)
    assert [(f"{row['schema_name']}.{row['table_name']}", row["version"], row["rows"]) for row in rows] == expected
    assert expected


def test_history_query_returns_the_versions_newest_first(lake: Lake) -> None:
    sales = lake.dataset("shop.sales")
    expected = [
        (v.number, v.commit_no, v.operation, v.counts.inserted, v.counts.deleted, v.rows, v.files, v.bytes, v.author)
        for v in sales.history()
    ]
    columns = ["version", "commit_no", "operation", "inserted", "deleted", "rows", "files", "bytes", "author"]
    rows = run(lake, 3, dataset=sales.id.hex)
    assert [tuple(row[column] for column in columns) for row in rows] == expected
    assert len(expected) == 3


def test_live_bytes_query_returns_the_size_of_the_current_versions(lake: Lake) -> None:
    expected = {
        name: sum(file.bytes for file in lake.dataset(name).current().files()) for name in ("shop.people", "shop.sales")
    }
    rows = run(lake, 4)
    assert {f"{row['schema_name']}.{row['table_name']}": row["live_bytes"] for row in rows} == expected


def test_receipt_query_returns_the_result_of_the_request(lake: Lake) -> None:
    sales = lake.dataset("shop.sales")
    receipt = sales.append({"id": [4], "amount": [40]}, idempotency_key="fourth")
    assert receipt.replayed
    [row] = run(lake, 5, key="fourth")
    [commit] = json.loads(row["dataset_commits"])
    assert (row["commit_no"], commit["dataset"], commit["version"]) == (receipt.commit_no, str(sales.id), 2)
    assert commit["inserted"] == 1
