"""`penstock query` and `queries`: results, formats and errors."""

import io
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.core.odata.options import MAX_SKIP
from penstock.core.registry import gts
from penstock.service.queries import definitions as query_definitions
from penstock.service.registry import schemas
from support.cli_runner import CliRunner

TIMEOUT_SECONDS = 120
TX = [
    {"region": "EMEA", "amount": 10},
    {"region": "APAC", "amount": 20},
    {"region": "EMEA", "amount": 30},
    {"region": "AMER", "amount": 40},
]
FIELDS = [{"name": "region", "type": "string"}, {"name": "total", "type": "number"}]
SQL = "SELECT region, sum(amount) AS total FROM finance.tx WHERE amount >= $min_amount GROUP BY region"
PARAMETERS = [{"name": "min_amount", "type": "number", "default": 0}]
TOTALS = [{"region": "AMER", "total": 40}, {"region": "APAC", "total": 20}, {"region": "EMEA", "total": 40}]


@pytest.fixture(scope="module")
def query_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a dataset of two versions, the first without the last row, and a query with its totals."""
    folder = tmp_path_factory.mktemp("queries") / "lake"
    with penstock.open(folder, create=True) as lake:
        lake.create("finance.tx", pa.Table.from_pylist(TX[:-1])).append(TX[-1:])
        payload = {"name": "totals", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
        schema = schemas.create(lake._workspace, lake.caller, payload)
        query = {"name": "totals", "sql": SQL, "returns_schema_id": str(schema.id), "parameters": PARAMETERS}
        query_definitions.create(lake._workspace, lake.caller, query, lake._query_executor.inspector(lake.caller))
    return folder


@pytest.fixture
def workspace(cli: CliRunner, query_workspace: Path) -> CliRunner:
    shutil.rmtree("lake")
    shutil.copytree(query_workspace, "lake")
    return cli


def register(cli: CliRunner, name: str, sql: str, fields: list[dict[str, Any]], code: int = 0, **members: Any) -> Any:
    Path("schema.json").write_text(json.dumps({"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}))
    schema = cli("schema", "create", "schema.json", "--json").json["id"]
    Path("query.json").write_text(json.dumps({"name": name, "sql": sql, "returns_schema_id": schema, **members}))
    result = cli("queries", "create", "query.json", "--json", code=code)
    return json.loads(result.out or result.err)


def test_dataset_drop_that_a_query_reads_requires_force(workspace: CliRunner) -> None:
    problem = json.loads(workspace("dataset", "drop", "finance.tx", "--yes", "--json", code=1).err)
    assert (problem["error"]["reason"], problem["error"]["queries"][0]["name"]) == ("dataset_in_use", "totals")
    assert workspace("dataset", "drop", "finance.tx", "--yes", "--force", "--json").json["dropped"] == "finance.tx"


def rows(cli: CliRunner, *arguments: object) -> list[dict[str, Any]]:
    """Run a query and return its rows sorted by region, because the query has no ORDER BY."""
    return sorted(cli("query", *arguments, "--json").json, key=lambda row: str(row["region"]))


# -- results -----------------------------------------------------------------------------------------------------------


def test_query_runs_by_name_or_id_with_parameters(workspace: CliRunner) -> None:
    assert rows(workspace, "totals") == TOTALS
    query = workspace("queries", "show", "totals").json
    assert rows(workspace, query["id"], "--param", "min_amount=25") == [TOTALS[0], {"region": "EMEA", "total": 30}]
    assert rows(workspace, "totals", "-p", "min_amount=1e3") == []


OPTIONS: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    "filter": (["--filter", "total eq 40 and region ne 'EMEA'"], TOTALS[:1]),
    "orderby": (["--orderby", "total desc, region desc"], [TOTALS[2], TOTALS[0], TOTALS[1]]),
    "top": (["--top", "2"], TOTALS[:2]),
    "top 0": (["--top", "0"], []),
    "skip": (["--skip", "2"], TOTALS[2:]),
    "top and skip": (["--top", "1", "--skip", "1"], TOTALS[1:2]),
    "select": (["--select", "total", "--orderby", "region"], [{"total": row["total"]} for row in TOTALS]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_query_options_select_rows_and_fields(workspace: CliRunner, name: str) -> None:
    arguments, expected = OPTIONS[name]
    assert workspace("query", "totals", *arguments, "--json").json == expected


def test_query_version_option_reads_an_earlier_version(workspace: CliRunner) -> None:
    first = workspace("query", "totals", "--version", "FINANCE.tx=1", "--orderby", "region", "--json")
    assert first.json == TOTALS[1:]
    assert json.loads(first.err) == {"versions": {"finance.tx": 1}, "more": False, "count": None}
    newest = workspace("query", "totals", "--top", "1", "--count")
    assert newest.err.strip() == "1 row of finance.tx version 2; 3 in total; more rows exist"
    assert newest.out == b'"region","total"\n"AMER",40\n'


def test_query_prints_every_format(workspace: CliRunner) -> None:
    def submitted(format: str) -> bytes:
        out: bytes = workspace("query", "totals", "--orderby", "region", "--format", format).out
        return out

    assert submitted("csv") == b'"region","total"\n"AMER",40\n"APAC",20\n"EMEA",40\n'
    assert (
        submitted("json")
        == b'[{"region":"AMER","total":40},{"region":"APAC","total":20},{"region":"EMEA","total":40}]\n'
    )
    assert pa.ipc.open_stream(submitted("arrow")).read_all()["region"].to_pylist() == ["AMER", "APAC", "EMEA"]
    assert pq.read_table(io.BytesIO(submitted("parquet")))["region"].to_pylist() == ["AMER", "APAC", "EMEA"]
    assert submitted("table").decode().splitlines()[2:] == ["AMER       40", "APAC       20", "EMEA       40"]


def test_query_table_has_twenty_rows_by_default(workspace: CliRunner) -> None:
    register(workspace, "many", "SELECT 'r' || range AS region, range AS total FROM range(25)", FIELDS)
    few = workspace("query", "many", "--format", "table")
    assert (len(few.out.splitlines()), few.err.strip()) == (22, "20 rows; more rows exist")
    assert len(workspace("query", "many", "--format", "table", "--top", "23").out.splitlines()) == 25
    assert len(workspace("query", "many", "--format", "csv").out.splitlines()) == 26


def test_query_output_file_is_replaced_only_with_force(workspace: CliRunner) -> None:
    response = workspace("query", "totals", "-o", "totals.parquet", "--json").json
    assert response == {
        "file": "totals.parquet",
        "rows": 3,
        "versions": {"finance.tx": 2},
        "more": False,
        "count": None,
    }
    assert pq.read_table("totals.parquet").num_rows == 3
    assert "--force" in workspace("query", "totals", "-o", "totals.parquet", code=1).err
    written = workspace("query", "totals", "--top", "1", "-o", "totals.parquet", "--force")
    assert (written.out, written.err.strip()) == (
        b"",
        "totals.parquet contains 1 row of finance.tx version 2; more rows exist",
    )
    assert pq.read_table("totals.parquet").to_pylist() == TOTALS[:1]


def test_query_sql_option_runs_an_unregistered_select(workspace: CliRunner) -> None:
    dry_run = workspace("query", "--sql", "SELECT count(*) AS n FROM finance.tx WHERE region = $r", "-p", "r=EMEA")
    assert (dry_run.out, dry_run.err.strip()) == (b'"n"\n2\n', "1 row of finance.tx version 2")
    first = workspace("query", "--sql", "SELECT count(*) AS n FROM finance.tx AT (VERSION => 1)", "--json")
    assert first.json == [{"n": 3}]
    many = workspace("query", "--sql", "SELECT * FROM range(5000)", "--json")
    assert (len(many.json), json.loads(many.err)["more"]) == (1_000, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Pass either the NAME of a query"),
        (["totals", "--sql", "SELECT 1"], 2, "Pass either the NAME of a query"),
        (["--sql", "SELECT 1", "--top", "3"], 2, "--sql can be combined with --param only"),
        (["--sql", "SELECT 1", "--version", "finance.tx=1"], 2, "--sql can be combined with --param only"),
        (["--sql", "DELETE FROM finance.tx"], 1, "SELECT"),
        (["--sql", "SELECT * FROM finance.nothing"], 1, "finance.nothing"),
        (["nothing"], 1, "Query not found"),
        (["totals", "--param", "min_amount"], 2, "NAME=VALUE"),
        (["totals", "--param", "=5"], 2, "NAME=VALUE"),
        (["totals", "--param", "min_amount=1", "-p", "min_amount=2"], 2, "Duplicate --param 'min_amount'"),
        (["totals", "--param", "min_amount=many"], 1, "a number"),
        (["totals", "--param", "versions=1"], 1, "Unknown parameter 'versions'"),
        (["totals", "--version", "finance.tx=new"], 2, "Write it as DATASET=N"),
        (["totals", "--version", "finance.tx=9"], 1, "9"),
        (
            ["totals", "--version", "finance.other=1"],
            1,
            "does not read finance.other, so its version cannot be chosen. Datasets of the query: finance.tx",
        ),
        (["totals", "--version", "tx=1"], 1, "namespace.table"),
        (["totals", "--filter", "sum gt 1"], 1, "sum"),
        (["totals", "--orderby", "total down"], 1, "asc or desc"),
        (["totals", "--select", "id"], 1, "id"),
        (["totals", "--top", "-1"], 2, "-1"),
        (["totals", "--format", "xml"], 2, "xml"),
        (["totals", "--format", "table", "-o", "x.csv"], 2, "A file has one of the formats csv, arrow, parquet"),
        (["totals", "-o", "x.json"], 2, "Use > x.json for JSON"),
        (["totals", "-o", "x.what"], 1, "x.what"),
        (["--sql", "SELECT INTERVAL 1 DAY", "-o", "x.parquet"], 1, "Cannot write the rows as parquet"),
        (["--sql", "SELECT 'infinity'::DATE", "--format", "table"], 1, "Cannot write the rows as table"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_query_with_invalid_arguments_prints_a_message(
    workspace: CliRunner, arguments: list[str], code: int, message: str
) -> None:
    with workspace.assert_unchanged():
        result = workspace("query", *arguments, code=code)
    assert result.out == b""
    assert message in result.err


# -- result schemas ----------------------------------------------------------------------------------------------------


def test_query_with_schema_violation_prints_no_rows(workspace: CliRunner) -> None:
    sql = "SELECT region, CASE WHEN amount < 25 THEN amount END AS total FROM finance.tx"
    register(workspace, "broken", sql, FIELDS)
    result = workspace("query", "broken", "--orderby", "region", code=1)
    assert result.out == b""
    sentence, *lines = result.err.strip().splitlines()
    assert "The result of 'broken' does not match its schema: 2 errors" in sentence
    assert lines == [f"  row {row}: Type mismatch for field total: expected number, got null" for row in (0, 3)]
    response = workspace("query", "broken", "--json", code=1)
    error = json.loads(response.err)["error"]
    assert (response.out, error["reason"], error["error_count"]) == (b"", "schema_mismatch", 2)
    with workspace.assert_unchanged():
        workspace("query", "broken", "-o", "rows.csv", code=1)
    assert len(workspace("query", "broken", "--filter", "total ne null", "--json").json) == 2


def test_query_prints_the_first_hundred_violations(workspace: CliRunner) -> None:
    Path("many.csv").write_text("\n".join(["region,amount", *("," for _ in range(150))]))
    workspace("dataset", "import", "finance.tx", "many.csv")
    register(workspace, "bare", "SELECT region, amount AS total FROM finance.tx", FIELDS)
    sentence, *lines = workspace("query", "bare", code=1).err.strip().splitlines()
    assert "300 errors" in sentence
    assert len(lines) == 101
    assert lines[-1] == "  and 200 more"


def test_query_output_suffix_must_match_the_format(workspace: CliRunner) -> None:
    with workspace.assert_unchanged():
        assert "means parquet" in workspace("query", "totals", "-o", "x.parquet", "--format", "csv", code=2).err
    workspace("query", "totals", "-o", "x.data", "--format", "csv")
    workspace("query", "totals", "-o", "x.parquet", "--format", "parquet")


def test_query_top_and_skip_have_the_odata_range(workspace: CliRunner) -> None:
    for option in ("--top", "--skip"):
        assert "2147483648" in workspace("query", "totals", option, str(MAX_SKIP + 1), code=2).err
        workspace("query", "totals", option, str(MAX_SKIP))


# -- processes and definitions -----------------------------------------------------------------------------------------


def test_query_interrupted_by_ctrl_c_exits_with_130_and_leaves_no_process(workspace: CliRunner) -> None:
    workspace.env["PENSTOCK_QUERY_SECONDS"] = "3600"
    process = workspace.process("query", "--sql", "SELECT sleep_ms(3600000)", start_new_session=True)
    try:
        fork_server = wait_for(lambda: next(iter(children_of(process.pid)), None))
        # A process that has a query has connected to DuckDB, which starts threads.
        wait_for(lambda: any(thread_count(pid) > 1 for pid in children_of(fork_server)))
        process_ends = [os.pidfd_open(pid) for pid in (fork_server, *children_of(fork_server))]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, b"")
    assert err.decode().strip() == "penstock: Interrupted. Nothing was written that was not reported"
    for end in process_ends:
        assert select.select([end], [], [], TIMEOUT_SECONDS)[0], "a process outlived the command"
        os.close(end)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def thread_count(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)
    return value


def test_queries_commands_create_to_undelete(workspace: CliRunner) -> None:
    query = workspace("queries", "show", "totals").json
    Path("totals.yaml").write_text(
        f"name: Large totals\nreturns_schema_id: {query['returns_schema_id']}\nsql: |\n  SELECT region, sum(amount) AS total\n"
        "  FROM finance.tx GROUP BY region\n"
    )
    assert "Large totals was registered" in workspace("queries", "create", "totals.yaml").err
    assert "Large totals" in workspace("queries", "create", "totals.yaml", code=1).err
    assert [query_["name"] for query_ in workspace("queries", "list", "--json").json] == ["Large totals", "totals"]
    assert [query_["name"] for query_ in workspace("queries", "list", "--top", "1", "--skip", "1", "--json").json] == [
        "totals"
    ]
    assert workspace("queries", "list", "--filter", "state eq 'DRAFT'").out == b""
    listed = workspace("queries", "list", "--filter", "startswith(name, 'tot')").out.decode().splitlines()
    assert listed[2].split() == ["totals", "ACTIVE", "1", "min_amount", query["id"]]

    Path("totals.json").write_text(json.dumps({**query, "sql": SQL.replace(">=", ">")}))
    assert workspace("queries", "replace", "totals", "totals.json").err.strip() == "totals is at version 2"
    assert rows(workspace, "totals", "-p", "min_amount=20") == [TOTALS[0], {"region": "EMEA", "total": 30}]
    assert "version" in workspace("queries", "replace", "totals", "totals.json", code=1).err

    assert "--yes" in workspace("queries", "delete", "totals", code=2).err
    assert workspace("queries", "delete", "totals", "--yes", "--json").json == {"deleted": "totals", "id": query["id"]}
    assert "Query not found" in workspace("query", "totals", code=1).err

    assert workspace("queries", "undelete", "Totals").err.strip() == "totals is at version 3"
    assert rows(workspace, "totals", "-p", "min_amount=20") == [TOTALS[0], {"region": "EMEA", "total": 30}]
    assert "is not deleted" in workspace("queries", "undelete", query["id"], code=1).err
    assert "Query not found" in workspace("queries", "undelete", "unknown", code=1).err


def test_queries_create_rejects_mismatching_columns(workspace: CliRunner) -> None:
    wrong = [{"name": "region", "type": "number"}, {"name": "sum", "type": "number"}]
    error = register(workspace, "wrong", "SELECT region FROM finance.tx", wrong, code=1)["error"]
    assert (error["reason"], len(error["errors"])) == ("query_does_not_fit", 2)
    sentence, *lines = workspace("queries", "create", "query.json", code=1).err.strip().splitlines()
    assert "The result does not match the schema in 2 fields" in sentence
    assert lines == [
        "  /sql: Type mismatch for field region: expected number, got string",
        "  /sql: Missing required field: sum: expected number",
    ]
    assert [query_["name"] for query_ in workspace("queries", "list", "--json").json] == ["totals"]
