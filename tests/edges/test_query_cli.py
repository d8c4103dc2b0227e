"""Queries from the command line: registered, asked, and refused in sentences."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.core.registry import gts
from penstock.core.odata.options import MAX_SKIP
from penstock.service.queries import definitions as queries
from penstock.service.registry import schemas
from cli_runner import Shell

TX = [
    {"region": "EMEA", "amount": 10},
    {"region": "APAC", "amount": 20},
    {"region": "EMEA", "amount": 30},
    {"region": "AMER", "amount": 40},
]
FIELDS = [{"name": "region", "type": "string"}, {"name": "total", "type": "number"}]
SQL = "SELECT region, sum(amount) AS total FROM finance.tx WHERE amount >= $least GROUP BY region"
PARAMETERS = [{"name": "least", "type": "number", "default": 0}]
TOTALS = [{"region": "AMER", "total": 40}, {"region": "APAC", "total": 20}, {"region": "EMEA", "total": 40}]


@pytest.fixture(scope="module")
def asked_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a dataset of two versions, the first without its last row, and a query that sums it up."""
    folder = tmp_path_factory.mktemp("asked") / "lake"
    with penstock.open(folder, create=True) as lake:
        lake.create("finance.tx", pa.Table.from_pylist(TX[:-1])).append(TX[-1:])
        payload = {"name": "totals", "type_id": gts.QUERY_RETURNS, "fields": FIELDS}
        schema = schemas.create(lake.workspace, lake.caller, payload)
        query = {"name": "totals", "sql": SQL, "returns_schema_id": str(schema.id), "parameters": PARAMETERS}
        queries.create(lake.workspace, lake.caller, query, lake.results.inspected(lake.caller))
    return folder


@pytest.fixture
def place(shell: Shell, asked_of: Path) -> Shell:
    shutil.rmtree("lake")
    shutil.copytree(asked_of, "lake")
    return shell


def register(shell: Shell, name: str, sql: str, fields: list[dict[str, Any]], code: int = 0, **members: Any) -> Any:
    Path("schema.json").write_text(json.dumps({"name": name, "type_id": gts.QUERY_RETURNS, "fields": fields}))
    schema = shell("schema", "create", "schema.json", "--json").json["id"]
    Path("query.json").write_text(json.dumps({"name": name, "sql": sql, "returns_schema_id": schema, **members}))
    answer = shell("queries", "create", "query.json", "--json", code=code)
    return json.loads(answer.out or answer.err)


def rows(shell: Shell, *words: object) -> list[dict[str, Any]]:
    """The rows in an order of their own: nobody asked for one."""
    return sorted(shell("query", *words, "--json").json, key=lambda row: str(row["region"]))


# -- asking ------------------------------------------------------------------------------------------------------------


def test_a_query_is_asked_by_name_or_id_with_parameters(place: Shell) -> None:
    assert rows(place, "totals") == TOTALS
    made = place("queries", "show", "totals").json
    assert rows(place, made["id"], "--param", "least=25") == [TOTALS[0], {"region": "EMEA", "total": 30}]
    assert rows(place, "totals", "-p", "least=1e3") == []


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
def test_options_choose_rows_and_fields(place: Shell, name: str) -> None:
    words, expected = OPTIONS[name]
    assert place("query", "totals", *words, "--json").json == expected


def test_an_earlier_version_is_asked(place: Shell) -> None:
    first = place("query", "totals", "--version", "FINANCE.tx=1", "--orderby", "region", "--json")
    assert first.json == TOTALS[1:]
    assert json.loads(first.err) == {"versions": {"finance.tx": 1}, "more": False, "count": None}
    newest = place("query", "totals", "--top", "1", "--count")
    assert newest.err.strip() == "1 row of finance.tx version 2; 3 in all; there are more"
    assert newest.out == b'"region","total"\n"AMER",40\n'


def test_rows_come_in_every_format(place: Shell) -> None:
    def asked(format: str) -> bytes:
        out: bytes = place("query", "totals", "--orderby", "region", "--format", format).out
        return out

    assert asked("csv") == b'"region","total"\n"AMER",40\n"APAC",20\n"EMEA",40\n'
    assert (
        asked("json") == b'[{"region":"AMER","total":40},{"region":"APAC","total":20},{"region":"EMEA","total":40}]\n'
    )
    assert pa.ipc.open_stream(asked("arrow")).read_all()["region"].to_pylist() == ["AMER", "APAC", "EMEA"]
    assert pq.read_table(io.BytesIO(asked("parquet")))["region"].to_pylist() == ["AMER", "APAC", "EMEA"]
    assert asked("table").decode().splitlines()[2:] == ["AMER       40", "APAC       20", "EMEA       40"]


def test_a_table_shows_twenty_rows_unless_more_are_asked_for(place: Shell) -> None:
    register(place, "many", "SELECT 'r' || range AS region, range AS total FROM range(25)", FIELDS)
    few = place("query", "many", "--format", "table")
    assert (len(few.out.splitlines()), few.err.strip()) == (22, "20 rows; there are more")
    assert len(place("query", "many", "--format", "table", "--top", "23").out.splitlines()) == 25
    assert len(place("query", "many", "--format", "csv").out.splitlines()) == 26


def test_a_file_appears_whole_and_is_replaced_only_on_request(place: Shell) -> None:
    told = place("query", "totals", "-o", "totals.parquet", "--json").json
    assert told == {"file": "totals.parquet", "rows": 3, "versions": {"finance.tx": 2}, "more": False, "count": None}
    assert pq.read_table("totals.parquet").num_rows == 3
    assert "--force" in place("query", "totals", "-o", "totals.parquet", code=1).err
    done = place("query", "totals", "--top", "1", "-o", "totals.parquet", "--force")
    assert (done.out, done.err.strip()) == (
        b"",
        "totals.parquet holds 1 row of finance.tx version 2; there are more",
    )
    assert pq.read_table("totals.parquet").to_pylist() == TOTALS[:1]


def test_sql_can_be_tried_without_registering_it(place: Shell) -> None:
    tried = place("query", "--sql", "SELECT count(*) AS n FROM finance.tx WHERE region = $r", "-p", "r=EMEA")
    assert (tried.out, tried.err.strip()) == (b'"n"\n2\n', "1 row of finance.tx version 2")
    first = place("query", "--sql", "SELECT count(*) AS n FROM finance.tx AT (VERSION => 1)", "--json")
    assert first.json == [{"n": 3}]
    many = place("query", "--sql", "SELECT * FROM range(5000)", "--json")
    assert (len(many.json), json.loads(many.err)["more"]) == (1_000, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name a query"),
        (["totals", "--sql", "SELECT 1"], 2, "name a query"),
        (["--sql", "SELECT 1", "--top", "3"], 2, "--sql goes with --param only"),
        (["--sql", "SELECT 1", "--version", "finance.tx=1"], 2, "--sql goes with --param only"),
        (["--sql", "DELETE FROM finance.tx"], 1, "SELECT"),
        (["--sql", "SELECT * FROM finance.nothing"], 1, "finance.nothing"),
        (["nothing"], 1, "no such query"),
        (["totals", "--param", "least"], 2, "NAME=VALUE"),
        (["totals", "--param", "=5"], 2, "NAME=VALUE"),
        (["totals", "--param", "least=1", "-p", "least=2"], 2, "given twice"),
        (["totals", "--param", "least=many"], 1, "a number"),
        (["totals", "--param", "versions=1"], 1, "there is no parameter 'versions'"),
        (["totals", "--version", "finance.tx=new"], 2, "write a number"),
        (["totals", "--version", "finance.tx=9"], 1, "9"),
        (["totals", "--version", "finance.other=1"], 1, "does not read finance.other; it reads finance.tx"),
        (["totals", "--version", "tx=1"], 1, "schema.table"),
        (["totals", "--filter", "sum gt 1"], 1, "sum"),
        (["totals", "--orderby", "total down"], 1, "asc or desc"),
        (["totals", "--select", "id"], 1, "id"),
        (["totals", "--top", "-1"], 2, "-1"),
        (["totals", "--format", "xml"], 2, "xml"),
        (["totals", "--format", "table", "-o", "x.csv"], 2, "a file can be one of csv, arrow, parquet"),
        (["totals", "-o", "x.json"], 2, "use > x.json for JSON"),
        (["totals", "-o", "x.what"], 1, "x.what"),
        (["--sql", "SELECT INTERVAL 1 DAY", "-o", "x.parquet"], 1, "cannot be written as parquet"),
        (["--sql", "SELECT 'infinity'::DATE", "--format", "table"], 1, "cannot be written as table"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_question_is_answered_with_a_sentence(place: Shell, words: list[str], code: int, said: str) -> None:
    with place.untouched():
        answer = place("query", *words, code=code)
    assert answer.out == b""
    assert said in answer.err


# -- promises ----------------------------------------------------------------------------------------------------------


def test_rows_that_break_the_promise_are_not_printed(place: Shell) -> None:
    sql = "SELECT region, CASE WHEN amount < 25 THEN amount END AS total FROM finance.tx"
    register(place, "broken", sql, FIELDS)
    answer = place("query", "broken", "--orderby", "region", code=1)
    assert answer.out == b""
    sentence, *lines = answer.err.strip().splitlines()
    assert "'broken' does not fit its schema: 2 errors" in sentence
    assert lines == [f"  row {row}: Type mismatch for field total: expected number, got null" for row in (0, 3)]
    told = place("query", "broken", "--json", code=1)
    error = json.loads(told.err)["error"]
    assert (told.out, error["reason"], error["error_count"]) == (b"", "schema_mismatch", 2)
    with place.untouched():
        place("query", "broken", "-o", "rows.csv", code=1)
    assert len(place("query", "broken", "--filter", "total ne null", "--json").json) == 2


def test_errors_are_counted_in_full_and_told_in_part(place: Shell) -> None:
    Path("many.csv").write_text("\n".join(["region,amount", *("," for _ in range(150))]))
    place("dataset", "import", "finance.tx", "many.csv")
    register(place, "bare", "SELECT region, amount AS total FROM finance.tx", FIELDS)
    sentence, *lines = place("query", "bare", code=1).err.strip().splitlines()
    assert "300 errors" in sentence
    assert len(lines) == 101
    assert lines[-1] == "  and 200 more"


def test_a_name_and_a_format_that_disagree_are_refused(place: Shell) -> None:
    with place.untouched():
        assert "says parquet" in place("query", "totals", "-o", "x.parquet", "--format", "csv", code=2).err
    place("query", "totals", "-o", "x.data", "--format", "csv")
    place("query", "totals", "-o", "x.parquet", "--format", "parquet")


def test_places_of_rows_are_those_that_options_can_say(place: Shell) -> None:
    for option in ("--top", "--skip"):
        assert "2147483648" in place("query", "totals", option, str(MAX_SKIP + 1), code=2).err
        place("query", "totals", option, str(MAX_SKIP))


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_a_query_from_its_making_to_its_end(place: Shell) -> None:
    made = place("queries", "show", "totals").json
    Path("totals.yaml").write_text(
        f"name: Large totals\nreturns_schema_id: {made['returns_schema_id']}\nsql: |\n  SELECT region, sum(amount) AS total\n"
        "  FROM finance.tx GROUP BY region\n"
    )
    assert "Large totals is there" in place("queries", "create", "totals.yaml").err
    assert "Large totals" in place("queries", "create", "totals.yaml", code=1).err
    assert [each["name"] for each in place("queries", "list", "--json").json] == ["Large totals", "totals"]
    assert [each["name"] for each in place("queries", "list", "--top", "1", "--skip", "1", "--json").json] == ["totals"]
    assert place("queries", "list", "--filter", "state eq 'DRAFT'").out == b""
    listed = place("queries", "list", "--filter", "startswith(name, 'tot')").out.decode().splitlines()
    assert listed[2].split() == ["totals", "ACTIVE", "1", "least", made["id"]]

    Path("totals.json").write_text(json.dumps({**made, "sql": SQL.replace(">=", ">")}))
    assert place("queries", "replace", "totals", "totals.json").err.strip() == "totals is at version 2"
    assert rows(place, "totals", "-p", "least=20") == [TOTALS[0], {"region": "EMEA", "total": 30}]
    assert "version" in place("queries", "replace", "totals", "totals.json", code=1).err

    assert "--yes" in place("queries", "delete", "totals", code=2).err
    assert place("queries", "delete", "totals", "--yes", "--json").json == {"deleted": "totals", "id": made["id"]}
    assert "no such query" in place("query", "totals", code=1).err


def test_what_can_never_fit_is_not_registered(place: Shell) -> None:
    wrong = [{"name": "region", "type": "number"}, {"name": "sum", "type": "number"}]
    error = register(place, "wrong", "SELECT region FROM finance.tx", wrong, code=1)["error"]
    assert (error["reason"], len(error["errors"])) == ("query_does_not_fit", 2)
    sentence, *lines = place("queries", "create", "query.json", code=1).err.strip().splitlines()
    assert "can never fit the schema" in sentence
    assert lines == [
        "  /sql: Type mismatch for field region: expected number, got string",
        "  /sql: Missing required field: sum: expected number",
    ]
    assert [each["name"] for each in place("queries", "list", "--json").json] == ["totals"]
