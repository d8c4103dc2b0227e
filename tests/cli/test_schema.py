"""`penstock schema`."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli_runner import CliRunner


@pytest.fixture
def workspace(cli: CliRunner) -> CliRunner:
    cli("init", "lake")
    Path("orders.csv").write_text("id,total,day\n1,2.5,2026-01-31\n2,,2026-02-01\n")
    return cli


def run_json(cli: CliRunner, *args: str, code: int = 0) -> Any:
    result = cli("schema", *args, "--json", code=code)
    return json.loads(result.out or result.err)


def test_schema_commands_infer_to_archive(workspace: CliRunner) -> None:
    inferred = run_json(workspace, "infer", "orders.csv", "--name", "Orders")
    assert [(field["name"], field["type"], field["optional"]) for field in inferred["fields"]] == [
        ("id", "number", False), ("total", "number", True), ("day", "date", False),
    ]  # fmt: skip
    Path("draft.json").write_text(json.dumps(inferred))
    created = run_json(workspace, "create", "draft.json")
    assert run_json(workspace, "show", created["id"]) == created
    assert run_json(workspace, "show", created["gts_id"], "--json-schema")["title"] == "Orders"
    assert [schema["name"] for schema in run_json(workspace, "list", "--filter", "contains(name, 'Ord')")] == ["Orders"]
    assert run_json(workspace, "list", "--filter", "state eq 'DRAFT'") == []
    assert run_json(workspace, "create", "draft.json", code=1)["error"]["reason"] == "schema_name_taken"
    Path("rows.json").write_text('[{"id": 1, "day": "2026-01-31"}]')
    assert run_json(workspace, "validate", created["id"], "rows.json")["valid"] is True
    assert run_json(workspace, "validate", created["id"], "orders.csv", code=1)["error"]["reason"] == "bad_json"
    Path("rows.json").write_text('[{"id": "x", "day": "2026-02-30"}]')
    assert run_json(workspace, "validate", created["id"], "rows.json", code=1)["error_count"] == 2
    assert run_json(workspace, "archive") == {"archived": [], "referenced": []}


def test_schema_infer_from_dataset_and_sql(workspace: CliRunner) -> None:
    workspace("dataset", "import", "shop.orders", "orders.csv")
    assert [field["name"] for field in run_json(workspace, "infer", "shop.orders")["fields"]] == ["id", "total", "day"]
    assert run_json(workspace, "infer", "shop.nothing", code=1)["error"]["reason"] == "dataset_not_found"
    inferred = run_json(workspace, "infer", "--sql", "SELECT day, sum(total) AS total FROM shop.orders GROUP BY day")
    assert [(field["name"], field["type"]) for field in inferred["fields"]] == [("day", "date"), ("total", "number")]
    assert (
        run_json(workspace, "infer", "--sql", "DROP TABLE shop.orders", code=1)["error"]["reason"] == "not_one_select"
    )
    for wrong in ([], ["shop.orders", "--sql", "SELECT 1 AS a"], ["--sql", "SELECT 1 AS a", "--version", "1"]):
        workspace("schema", "infer", *wrong, code=2)


def test_schema_commands_print_messages(workspace: CliRunner) -> None:
    Path("draft.json").write_text(json.dumps(run_json(workspace, "infer", "orders.csv")))
    created = workspace("schema", "create", "draft.json")
    assert "orders was created" in created.err
    assert b"orders" in workspace("schema", "list").out
    assert "0 archived" in workspace("schema", "archive").err
    Path("rows.json").write_text('[{"id": "x", "day": "2026-01-31"}, 5]')
    result = workspace("schema", "validate", created.err.split()[-1], "rows.json", code=1)
    assert "row 0: Type mismatch for field id" in result.err
    assert "row 1: Row must be object" in result.err
