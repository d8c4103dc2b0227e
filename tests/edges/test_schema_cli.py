"""The registry from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_runner import Shell


@pytest.fixture
def place(shell: Shell) -> Shell:
    shell("init", "lake")
    Path("orders.csv").write_text("id,total,day\n1,2.5,2026-01-31\n2,,2026-02-01\n")
    return shell


def told(shell: Shell, *args: str, code: int = 0) -> Any:
    answer = shell("schema", *args, "--json", code=code)
    return json.loads(answer.out or answer.err)


def test_from_a_sample_to_the_archive(place: Shell) -> None:
    proposal = told(place, "infer", "orders.csv", "--name", "Orders")
    assert [(field["name"], field["type"], field["optional"]) for field in proposal["fields"]] == [
        ("id", "number", False), ("total", "number", True), ("day", "date", False),
    ]  # fmt: skip
    Path("draft.json").write_text(json.dumps(proposal))
    made = told(place, "create", "draft.json")
    assert told(place, "show", made["id"]) == made
    assert told(place, "show", made["gts_id"], "--json-schema")["title"] == "Orders"
    assert [each["name"] for each in told(place, "list", "--filter", "contains(name, 'Ord')")] == ["Orders"]
    assert told(place, "list", "--filter", "state eq 'DRAFT'") == []
    assert told(place, "create", "draft.json", code=1)["error"]["reason"] == "schema_name_taken"
    Path("rows.json").write_text('[{"id": 1, "day": "2026-01-31"}]')
    assert told(place, "validate", made["id"], "rows.json")["valid"] is True
    assert told(place, "validate", made["id"], "orders.csv", code=1)["error"]["reason"] == "bad_json"
    Path("rows.json").write_text('[{"id": "x", "day": "2026-02-30"}]')
    assert told(place, "validate", made["id"], "rows.json", code=1)["error_count"] == 2
    assert told(place, "archive") == {"archived": [], "referenced": []}


def test_a_schema_is_inferred_from_a_dataset(place: Shell) -> None:
    place("dataset", "import", "shop.orders", "orders.csv")
    assert [field["name"] for field in told(place, "infer", "shop.orders")["fields"]] == ["id", "total", "day"]
    assert told(place, "infer", "shop.nothing", code=1)["error"]["reason"] == "dataset_not_found"
    summed = told(place, "infer", "--sql", "SELECT day, sum(total) AS total FROM shop.orders GROUP BY day")
    assert [(field["name"], field["type"]) for field in summed["fields"]] == [("day", "date"), ("total", "number")]
    assert told(place, "infer", "--sql", "DROP TABLE shop.orders", code=1)["error"]["reason"] == "not_one_select"
    for wrong in ([], ["shop.orders", "--sql", "SELECT 1 AS a"], ["--sql", "SELECT 1 AS a", "--version", "1"]):
        place("schema", "infer", *wrong, code=2)


def test_people_are_told_in_sentences(place: Shell) -> None:
    Path("draft.json").write_text(json.dumps(told(place, "infer", "orders.csv")))
    made = place("schema", "create", "draft.json")
    assert "orders is there" in made.err
    assert b"orders" in place("schema", "list").out
    assert "0 archived" in place("schema", "archive").err
    Path("rows.json").write_text('[{"id": "x", "day": "2026-01-31"}, 5]')
    answer = place("schema", "validate", made.err.split()[-1], "rows.json", code=1)
    assert "row 0: Type mismatch for field id" in answer.err
    assert "row 1: Row must be object" in answer.err
