"""The Python front, as somebody with pandas, Polars or DuckDB at hand meets it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import penstock
from penstock.config import Settings
from penstock.core.registry import gts
from penstock.errors import Conflict, Invalid, NotFound, Unavailable, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.queries import definitions as queries
from penstock.service.registry import schemas
from workspaces import Place


def test_a_dataset_is_read_by_pandas_polars_and_duckdb(numbers: Dataset) -> None:
    ds = numbers
    expected = {"id": [1, 2, 3], "word": ["one", "two", "three"]}
    assert pa.table(ds).to_pydict() == expected
    assert polars.DataFrame(ds).to_dict(as_series=False) == expected
    assert ds.to_pandas().to_dict("list") == expected
    assert pandas.DataFrame.from_arrow(ds).to_dict("list") == expected
    first = ds.at(1)
    with duckdb.connect() as db:
        assert db.sql("SELECT sum(id) FROM ds").fetchall() == [(6,)]
        assert db.sql("SELECT count(*) FROM first").fetchall() == [(3,)]
    assert pa.RecordBatchReader.from_stream(first).schema == first.schema


def test_the_files_are_plain_parquet(numbers: Dataset) -> None:
    paths = numbers.now().paths()
    assert pads.dataset(paths).to_table().num_rows == 3
    assert polars.read_parquet(paths).height == 3
    with duckdb.connect() as db:
        assert db.read_parquet(paths).fetchall()[0] == (1, "one")


FOUR = {"id": [4], "word": ["four"]}
HOLDERS: dict[str, Callable[[], object]] = {
    "table": lambda: pa.table(FOUR),
    "batch": lambda: pa.record_batch(FOUR),
    "reader": lambda: pa.table(FOUR).to_reader(),
    "dataset": lambda: pads.dataset(pa.table(FOUR)),
    "pandas": lambda: pandas.DataFrame(FOUR),
    "polars": lambda: polars.DataFrame(FOUR),
    "polars categories": lambda: polars.DataFrame(FOUR, schema_overrides={"word": polars.Categorical}),
    "dict": lambda: FOUR,
    "list of dicts": lambda: [{"id": 4, "word": "four"}],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_holds_rows_can_be_appended(embedded: Place, holder: str) -> None:
    with embedded.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1], "word": ["one"]})
        ds.append(HOLDERS[holder]())
        assert ds.to_arrow().to_pydict() == {"id": [1, 4], "word": ["one", "four"]}


def test_a_duckdb_relation_can_be_appended(numbers: Dataset) -> None:
    with duckdb.connect() as db:
        numbers.append(db.sql("SELECT 4::BIGINT AS id, 'four' AS word"))
    assert numbers.to_arrow(where="id = 4")["word"].to_pylist() == ["four"]


def test_a_file_is_read_as_the_dataset_that_it_goes_to(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("code,amount\n007,5\n")
    ds = lake.create("demo.codes", schema=pa.schema([("code", pa.string()), ("amount", pa.decimal128(9, 2))]))
    ds.append(tmp_path / "rows.csv")
    ds.append(str(tmp_path / "rows.csv"))
    assert ds.to_arrow()["code"].to_pylist() == ["007", "007"]


def test_what_holds_no_rows_is_refused(numbers: Dataset) -> None:
    for nonsense in (42, object(), [1, 2], {"id": 3}):
        with pytest.raises(Invalid) as refusal:
            numbers.append(nonsense)
        assert refusal.value.reason == "no_rows"


def test_a_dataset_prints_well(numbers: Dataset) -> None:
    lines = repr(numbers).splitlines()
    assert lines[0].startswith("demo.numbers · version 1 · 3 rows · 1 file · ")
    assert lines[1:] == ["  id    int64", "  word  string"]
    assert "<caption>demo.numbers" in numbers._repr_html_()


def test_a_notebook_shows_no_markup_of_strangers(lake: Lake) -> None:
    shown = lake.create("demo.odd", {"<script>": [1]})._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_version_held_fast_does_not_move(numbers: Dataset) -> None:
    held = numbers.now()
    numbers.append({"id": [4], "word": ["four"]})
    assert (held.num_rows, held.to_arrow().num_rows, numbers.num_rows) == (3, 3, 4)


def test_columns_and_rows_can_be_chosen(numbers: Dataset) -> None:
    assert numbers.to_arrow(["word"], "id >= 2").to_pydict() == {"word": ["two", "three"]}
    assert numbers.to_arrow(["word", "id"], row_ids=True).column_names == ["word", "id", "rowid"]
    assert numbers.to_arrow(["word"], "id = 3", row_ids=True).to_pydict() == {"word": ["three"], "rowid": [3]}
    with pytest.raises(Invalid, match="no column"):
        numbers.to_arrow([])
    for bad in (lambda: numbers.to_arrow(["nope"]), lambda: numbers.to_arrow(where="nope = 1")):
        with pytest.raises(Invalid) as refusal:
            bad()
        assert refusal.value.context["column"] == "nope"


def test_a_widened_and_grown_dataset_reads_old_files_as_the_new_schema(lake: Lake) -> None:
    old = pa.table(
        {
            "i": pa.array([1, None], pa.int8()),
            "f": pa.array([1.5, None], pa.float32()),
            "l": pa.array([[1], None], pa.list_(pa.int16())),
        }
    )
    ds = lake.create("demo.wide", old)
    ds.alter(add={"note": "string"}, widen={"i": "int64", "f": "double", "l": "list<int64>"})
    ds.append({"i": [2**40], "f": [2.5], "l": [[2**40]], "note": ["new"]})
    expected = {"i": [1, None, 2**40], "f": [1.5, None, 2.5], "l": [[1], None, [2**40]], "note": [None, None, "new"]}
    assert ds.to_arrow().to_pydict() == expected
    assert ds.to_arrow(row_ids=True).drop_columns(["rowid"]).to_pydict() == expected
    assert ds.to_arrow(where="i > 1")["note"].to_pylist() == ["new"]
    assert ds.at(1).schema.equals(old.schema)
    ds.compact()
    assert ds.to_arrow().to_pydict() == expected
    with pytest.raises(Invalid):
        ds.alter(widen={"i": "int8"})


def test_an_alter_that_changes_nothing_makes_no_version(numbers: Dataset) -> None:
    assert numbers.alter(widen={"id": "int64"}).version == 1


def test_large_writes_become_files_near_the_target_size(embedded: Place) -> None:
    settings = embedded.settings()
    from dataclasses import replace

    with penstock.open(settings=replace(settings, file_bytes=60_000, group_rows=5_000)) as lake:
        ds = lake.create("demo.large", {"x": list(range(300_000))})
        files = ds.now().files()
        assert len(files) > 3
        assert all(45_000 < file.bytes < 120_000 for file in files[:-1])
        assert ds.to_arrow()["x"].to_pylist() == list(range(300_000))
        assert ds.to_arrow(row_ids=True)["rowid"].to_pylist() == list(range(1, 300_001))
        assert len(ds.now().files("x = 5")) == 1


def test_nested_columns_and_every_type_come_back_as_they_went(lake: Lake) -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal

    rows = {
        "b": [True, None], "i": [-(2**63), 2**63 - 1], "f": [float("inf"), -0.0], "s": ["", "ünïcode 🦆"],
        "y": [b"", b"\x00\xff"], "d": [date(1, 1, 1), date(9999, 12, 31)], "t": [datetime(1, 1, 1), datetime(9999, 12, 31)],
        "u": [datetime(2026, 1, 1, tzinfo=UTC), None], "m": [Decimal("-123.45"), None], "l": [[1, None], []],
        "o": [{"a": {"b": [1]}}, None],
    }  # fmt: skip
    ds = lake.create("demo.types", rows)
    assert ds.to_arrow().to_pylist() == pa.table(rows).to_pylist()
    assert ds.to_arrow(row_ids=True).num_rows == 2


def test_a_dataset_without_row_ids_has_none(lake: Lake) -> None:
    ds = lake.create("demo.plain", {"id": [1]}, row_ids=False)
    ds.append({"id": [2]})
    ds.compact()
    assert ds.to_arrow()["id"].to_pylist() == [1, 2]
    with pytest.raises(Unsupported) as refusal:
        ds.to_arrow(row_ids=True)
    assert refusal.value.reason == "no_row_ids"


def test_a_workspace_may_have_an_odd_path(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "we?ird #x%20" / "ü 'q'"), None)
    with penstock.open(create=True, settings=place.settings()) as lake:
        lake.create("demo.x", {"id": [1]})
    assert (Path(place.folder) / "catalog.db").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["we?ird #x%20"]


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    """In a process that may write no file beyond a size; what it had before is as it was."""
    place = Place.make(tmp_path / "w", None)
    with place.open() as lake:
        lake.create("demo.x", {"id": [1]})
    code = (
        "import resource, signal, sys, penstock; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "lake = penstock.open(sys.argv[1]); ds = lake.dataset('demo.x'); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try: ds.append({'id': list(range(0, 9_000_000, 7))})\n"
        "except penstock.Unavailable as e: print(e.reason)"
    )
    done = subprocess.run([sys.executable, "-c", code, place.folder], capture_output=True, text=True)
    assert done.stdout == "storage_failed\n", done.stderr
    with place.open() as lake:
        assert lake.dataset("demo.x").version == 1
        store = lake.workspace.store
        assert sum(1 for tenant in store.folders("data") for ds in store.folders(tenant) for _ in store.files(ds)) == 1


def test_a_missing_workspace_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="penstock init"):
        penstock.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "tenant": "x"}'])
def test_a_broken_workspace_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "penstock.json").write_text(content)
    with pytest.raises(Invalid) as refusal:
        penstock.open(tmp_path)
    assert refusal.value.reason == "broken_workspace"


# -- queries -----------------------------------------------------------------------------------------------------------

TEAMS = [{"team": "a", "points": 1}, {"team": "b", "points": 2}, {"team": "b", "points": None}]
PROMISE = [{"name": "team", "type": "string"}, {"name": "points", "type": "number"}]


def registered(lake: Lake, sql: str, **members: object) -> str:
    """The name of a query over three rows, of which the last has no points."""
    lake.create("game.scores", pa.Table.from_pylist(TEAMS))
    payload = {"name": "scores", "type_id": gts.QUERY_RETURNS, "fields": PROMISE}
    schema = schemas.create(lake.workspace, lake.caller, payload).id
    query = {"name": "scores", "sql": sql, "returns_schema_id": str(schema), **members}
    return queries.create(lake.workspace, lake.caller, query, lake.results.inspected(lake.caller)).draft.name


OF_TEAM = "SELECT * FROM game.scores WHERE points >= 0 AND (team = $team OR $team IS NULL)"
A_TEAM = [{"name": "team", "type": "string", "required": False}]


def test_a_query_is_run_with_parameters_and_options(lake: Lake) -> None:
    query = lake.query(registered(lake, OF_TEAM, parameters=A_TEAM))
    assert query.run(team="b").rows == TEAMS[1:2]
    assert query.run({"$orderby": "points desc"}).rows == [TEAMS[1], TEAMS[0]]
    page = query.run({"$top": 1, "$count": True, "$select": "points"})
    assert (page.rows, page.num_rows, page.more, page.count) == ([{"points": 1}], 1, True, 2)
    assert query.run({"$skip": 1}).rows == TEAMS[1:2]
    assert lake.query(query.id).now().draft.sql == OF_TEAM
    for options, parameters, reason in (
        ({"$top": "some"}, {}, "bad_option"),
        ({"top": 1}, {}, "unknown_option"),
        ({}, {"teams": "b"}, "bad_parameters"),
    ):
        with pytest.raises(Invalid) as refusal:
            query.run(options, **parameters)
        assert refusal.value.reason == reason
    with pytest.raises(NotFound):
        lake.query("nothing")


def test_a_query_is_registered_with_its_promise_or_not_at_all(lake: Lake) -> None:
    lake.create("game.scores", {"team": ["a", "b"], "points": [3, 5]})
    sums = "SELECT team, sum(points) AS total FROM game.scores WHERE points > $least GROUP BY team"
    fields = [{"name": "team", "type": "string"}, {"name": "total", "type": "number"}]
    least = [{"name": "least", "type": "number", "default": 0}]
    with pytest.raises(Invalid) as refusal:
        lake.register("sums", sums.replace("AS total", "AS sum"), fields, least)
    assert refusal.value.reason == "query_does_not_fit"
    query = lake.register("sums", sums, fields, least)  # the refusal has left nothing of that name
    assert query.run(least=3).rows == [{"team": "b", "total": 5}]
    again = lake.register("sums of some", sums, query.now().draft.returns_schema_id, least)
    assert again.run().num_rows == 2


@pytest.mark.parametrize("sql", ["SELECT * FROM game.scores", "SELECT points AS p, team FROM game.scores"])
def test_a_filter_spares_the_files_that_cannot_match(lake: Lake, sql: str) -> None:
    scores = lake.create("game.scores", {"team": ["a", "b"], "points": [1, 2]})
    scores.append({"team": ["c"], "points": [30]})
    name = "p" if " AS p" in sql else "points"
    query = lake.register("all", sql, [{"name": "team", "type": "string"}, {"name": name, "type": "number"}])
    (gone,) = scores.now().paths(where="points < 10")
    Path(gone).unlink()
    assert query.run({"$filter": f"{name} gt 9"}).rows[0]["team"] == "c"
    with pytest.raises(Unavailable):
        query.run({"$filter": f"{name} gt 1"})


def test_an_answer_is_read_by_pandas_and_polars(lake: Lake) -> None:
    answer = lake.query(registered(lake, OF_TEAM, parameters=A_TEAM)).run({"$orderby": "team"})
    expected = {"team": ["a", "b"], "points": [1, 2]}
    assert answer.to_arrow().to_pydict() == pa.table(answer).to_pydict() == expected
    assert answer.to_pandas().to_dict("list") == expected
    assert polars.DataFrame(answer).to_dict(as_series=False) == expected
    assert repr(answer) == "2 rows of game.scores version 1"


def test_an_answer_can_be_had_again_when_the_dataset_has_moved_on(lake: Lake) -> None:
    query = lake.query(registered(lake, "SELECT team, points FROM game.scores WHERE points IS NOT NULL"))
    before = query.run({"$orderby": "team"})
    lake.dataset("game.scores").append([{"team": "c", "points": 3}])
    assert (query.run().num_rows, query.run().versions) == (3, {"game.scores": 2})
    again = query.at(before.versions).run({"$orderby": "team"})
    assert (again.rows, again.versions) == (before.rows, {"game.scores": 1})
    with pytest.raises(NotFound):
        query.at({"game.scores": 7}).run()
    with pytest.raises(Invalid) as refusal:
        query.at({"game.players": 1}).run()
    assert refusal.value.reason == "unread_dataset"


def test_rows_that_break_the_promise_are_not_given(lake: Lake) -> None:
    query = lake.query(registered(lake, "SELECT * FROM game.scores"))
    with pytest.raises(Unsupported) as refusal:
        query.run({"$orderby": "team, points"})
    error = refusal.value
    assert (error.reason, error.context["error_count"], error.context["errors"][0]["row"]) == ("schema_mismatch", 1, 1)
    assert query.run({"$filter": "points ne null"}).num_rows == 2


def test_sql_is_tried_without_registering_it(lake: Lake) -> None:
    registered(lake, "SELECT * FROM game.scores")
    assert lake.sql("SELECT sum(points) AS p FROM game.scores WHERE team = $team", team="b").rows == [{"p": 2}]
    assert lake.sql("SELECT 1 AS one").versions == {}
    assert repr(lake.sql("SELECT 1 AS one")) == "1 row"


def test_the_settings_limit_what_a_query_may_answer(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path / "lake", durable=False, query_rows=2)
    with penstock.open(create=True, settings=settings) as lake:
        assert lake.sql("SELECT * FROM range(2)").num_rows == 2
        with pytest.raises(Invalid) as refusal:
            lake.sql("SELECT * FROM range(3)")
    assert refusal.value.reason == "query_too_large"


def test_a_closed_lake_runs_no_query(embedded: Place) -> None:
    with embedded.open() as lake:
        query = lake.query(registered(lake, "SELECT * FROM game.scores WHERE team = 'a'"))
        assert query.run().rows == TEAMS[:1]
    with pytest.raises(Unavailable):
        lake.results.preview(lake.caller, "SELECT 1", {})


HEAVY = ("duckdb", "fastapi", "grpc", "nicegui", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy", "uvicorn")


@pytest.mark.parametrize(
    "way", ["import penstock", "from penstock.cli import cli; cli(['--help'], standalone_mode=False)"]
)
def test_importing_penstock_and_asking_for_help_load_nothing_heavy(way: str) -> None:
    code = f"import sys; {way}; print([module for module in {HEAVY} if module in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "[]"


def test_errors_travel_between_processes() -> None:
    import pickle

    error = Conflict("stale_version", "moved", dataset="a.b", base=3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts()) == (Conflict, error.facts())


def test_rows_are_updated_and_deleted_by_their_ids(numbers: Dataset, lake: Lake) -> None:
    edited = numbers.update([2, 1], [{"id": 20, "word": "TWO"}, {"id": 10, "word": "ONE"}], returning=True)
    assert edited.affected == 2
    assert edited.returned is not None
    assert edited.returned.to_pylist()[0] == {"id": 20, "word": "TWO", "rowid": 2}
    assert numbers.delete(numbers.to_arrow(where="id = 3", row_ids=True)["rowid"]).affected == 1
    with lake.transaction() as tx:
        tx.append(numbers, {"id": [4], "word": ["four"]})
        tx.update(numbers, [1], {"id": [11], "word": ["eleven"]})
        assert tx.delete(numbers, pa.array([2, 99])).affected == 1
    rows = numbers.to_arrow(row_ids=True).sort_by("rowid").to_pylist()
    assert rows == [{"id": 11, "word": "eleven", "rowid": 1}, {"id": 4, "word": "four", "rowid": 4}]
    for wrong in (["x"], [1.5], [None], [2**63]):
        with pytest.raises(penstock.Invalid) as refusal:
            numbers.delete(wrong)
        assert refusal.value.reason == "bad_row_ids"
    with pytest.raises(penstock.NotFound):
        numbers.update([99], {"id": [1], "word": ["one"]})
