"""Rows, dataset facts and query results over REST, for a dataset whose file has a deletion vector."""

from typing import Any
from uuid import uuid4

import pytest

from penstock.core.caller import Caller, Role
from penstock.lake import Lake
from rest.rest_client import TENANT, RestClient
from rest.test_query_results import field, register_query

DELETED = [1, 40, 41, 42, 100]
LIVE = [n for n in range(1, 101) if n not in DELETED]


@pytest.fixture
def marked(local_lake: Lake) -> Lake:
    """One file: the row with the id n has the number n; five rows are deleted."""
    lake = Lake(local_lake._workspace, Caller(TENANT, uuid4(), "ada", Role.ADMIN), local_lake._folder)
    lake.create("demo.marked", {"n": list(range(1, 101)), "part": [n % 4 for n in range(1, 101)]}).delete(DELETED)
    return lake


@pytest.mark.usefixtures("marked")
def test_dataset_and_history_report_deleted_rows(client: RestClient) -> None:
    for body in (client("GET", "/datasets/demo.marked").json(), client("GET", "/datasets").json()["value"][0]):
        assert (body["rows"], body["deleted_rows"], body["vector_files"], body["files"]) == (95, 5, 1, 1)
    deleted, created = client("GET", "/datasets/demo.marked/history").json()["value"]
    assert (deleted["rows"], deleted["deleted"], deleted["version"]) == (95, 5, 2)
    assert (created["rows"], created["version"]) == (100, 1)


@pytest.mark.usefixtures("marked")
def test_rows_of_a_marked_file_omit_deleted_rows(client: RestClient) -> None:
    def read(**params: Any) -> list[int]:
        return [row["n"] for row in client("GET", "/datasets/demo.marked/rows", params=params).json()["value"]]

    assert read(where="n >= 38 AND n < 45") == [38, 39, 43, 44]
    assert read(where="n = 1 OR n = 2 OR n = 100") == [2]
    assert read(where="n <= 2", version=1) == [1, 2]
    found: list[int] = []
    path = "/datasets/demo.marked/rows"
    while path:
        page = client("GET", path, headers={"prefer": "odata.maxpagesize=7"}).json()
        found += [row["n"] for row in page["value"]]
        path = page.get("@odata.nextLink")
    assert found == LIVE


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("$filter=n ge 38 and n lt 45&$orderby=n", [38, 39, 43, 44]),
        ("$filter=n eq 40", []),
        ("$filter=n eq 1 or n eq 100 or n eq 99", [99]),
        ("$filter=part eq 0&$orderby=n desc&$top=2", [96, 92]),
        ("$orderby=n&$top=2", [2, 3]),
        ("$orderby=n desc&$top=1", [99]),
        ("$orderby=n&$skip=38&$top=2", [43, 44]),
    ],
)
@pytest.mark.usefixtures("marked")
def test_query_results_of_a_marked_file_omit_deleted_rows(
    client: RestClient, options: str, expected: list[int]
) -> None:
    path = register_query(client, "SELECT n, part FROM demo.marked", [field("n"), field("part")])
    assert [row["n"] for row in client("GET", f"{path}?{options}").json()["value"]] == expected
    count = client("GET", f"{path}?$filter=n le 50&$count=true&$top=1").json()["@odata.count"]
    assert count == sum(n <= 50 for n in LIVE)
