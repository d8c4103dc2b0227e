"""Test the Python API, also together with pandas, Polars and DuckDB."""

import json
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
from penstock.core.progress import ProgressCallback
from penstock.core.registry import gts
from penstock.errors import Conflict, Invalid, NotFound, Unavailable, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.queries import definitions as query_definitions
from penstock.service.registry import schemas
from support.workspaces import WorkspaceFixture


def test_dataset_arrow_stream_is_read_by_pandas_polars_and_duckdb(three_rows: Dataset) -> None:
    ds = three_rows
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


def test_dataset_files_are_plain_parquet(three_rows: Dataset) -> None:
    paths = three_rows.current().paths()
    assert pads.dataset(paths).to_table().num_rows == 3
    assert polars.read_parquet(paths).height == 3
    with duckdb.connect() as db:
        assert db.read_parquet(paths).fetchall()[0] == (1, "one")


Write = Callable[[Dataset, ProgressCallback], object]
WRITES: dict[str, tuple[Write, list[penstock.Progress]]] = {
    "create": (
        lambda ds, progress: ds._lake.create("demo.created", FOUR, progress=progress),
        [penstock.Progress(done=1)],
    ),
    "append": (lambda ds, progress: ds.append(FOUR, progress=progress), [penstock.Progress(done=1)]),
    "overwrite": (lambda ds, progress: ds.overwrite(FOUR, progress=progress), [penstock.Progress(done=1)]),
    "compact": (
        lambda ds, progress: ds.compact(progress=progress),
        [penstock.Progress(done=0, total=4), penstock.Progress(done=4, total=4)],
    ),
    "merge": (
        lambda ds, progress: ds.merge(FOUR, "id", "insert", engine="pyarrow", progress=progress),
        [
            penstock.Progress("read", 0, 1, "parts"),
            penstock.Progress("read", 1, 1, "parts"),
            penstock.Progress("match", 0, 1, "parts"),
            penstock.Progress("match", 1, 1, "parts"),
        ],
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_write_reports_progress_events(name: str, three_rows: Dataset) -> None:
    write, expected = WRITES[name]
    three_rows.append(FOUR)
    events: list[penstock.Progress] = []
    write(three_rows, events.append)
    assert events == expected


@pytest.mark.parametrize("name", WRITES)
def test_write_progress_error_stops_the_write(name: str, three_rows: Dataset) -> None:
    class Enough(Exception):
        pass

    def stop(_: penstock.Progress) -> None:
        raise Enough

    three_rows.append(FOUR)
    with pytest.raises(Enough):
        WRITES[name][0](three_rows, stop)
    assert (three_rows.version, len(three_rows._lake.datasets())) == (2, 1)


FOUR = {"id": [4], "word": ["four"]}
ROW_SOURCES: dict[str, Callable[[], object]] = {
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


@pytest.mark.parametrize("source", ROW_SOURCES)
def test_append_accepts_every_row_source(sqlite_workspace: WorkspaceFixture, source: str) -> None:
    with sqlite_workspace.open() as lake:
        ds = lake.create("demo.numbers", {"id": [1], "word": ["one"]})
        ds.append(ROW_SOURCES[source]())
        assert ds.to_arrow().to_pydict() == {"id": [1, 4], "word": ["one", "four"]}


def test_append_accepts_a_duckdb_relation(three_rows: Dataset) -> None:
    with duckdb.connect() as db:
        three_rows.append(db.sql("SELECT 4::BIGINT AS id, 'four' AS word"))
    assert three_rows.to_arrow(where="id = 4")["word"].to_pylist() == ["four"]


def test_append_of_a_file_uses_the_dataset_types(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("code,amount\n007,5\n")
    ds = lake.create("demo.codes", schema=pa.schema([("code", pa.string()), ("amount", pa.decimal128(9, 2))]))
    ds.append(tmp_path / "rows.csv")
    ds.append(str(tmp_path / "rows.csv"))
    assert ds.to_arrow()["code"].to_pylist() == ["007", "007"]


def test_append_of_an_unknown_source_is_rejected(three_rows: Dataset) -> None:
    for unknown_source in (42, object(), [1, 2], {"id": 3}):
        with pytest.raises(Invalid) as raised:
            three_rows.append(unknown_source)
        assert raised.value.reason == "unsupported_source"


def test_dataset_repr_shows_version_rows_and_columns(three_rows: Dataset) -> None:
    lines = repr(three_rows).splitlines()
    assert lines[0].startswith("demo.numbers · version 1 · 3 rows · 1 file · ")
    assert lines[1:] == ["  id    int64", "  word  string"]
    assert "<caption>demo.numbers" in three_rows._repr_html_()


def test_dataset_html_escapes_names(lake: Lake) -> None:
    printed = lake.create("demo.odd", {"<script>": [1]})._repr_html_()
    assert "<script>" not in printed
    assert "&lt;script&gt;" in printed


def test_dataset_version_is_immutable(three_rows: Dataset) -> None:
    snapshot = three_rows.current()
    three_rows.append({"id": [4], "word": ["four"]})
    assert (snapshot.num_rows, snapshot.to_arrow().num_rows, three_rows.num_rows) == (3, 3, 4)


def test_to_arrow_selects_columns_and_rows(three_rows: Dataset) -> None:
    assert three_rows.to_arrow(["word"], "id >= 2").to_pydict() == {"word": ["two", "three"]}
    assert three_rows.to_arrow(["word", "id"], row_ids=True).column_names == ["word", "id", "rowid"]
    assert three_rows.to_arrow(["word"], "id = 3", row_ids=True).to_pydict() == {"word": ["three"], "rowid": [3]}
    with pytest.raises(Invalid, match="The list of columns is empty"):
        three_rows.to_arrow([])
    for bad in (lambda: three_rows.to_arrow(["nope"]), lambda: three_rows.to_arrow(where="nope = 1")):
        with pytest.raises(Invalid) as raised:
            bad()
        assert raised.value.context["column"] == "nope"


def test_alter_reads_old_files_with_the_new_schema(lake: Lake) -> None:
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


def test_alter_without_change_creates_no_version(three_rows: Dataset) -> None:
    assert three_rows.alter(widen={"id": "int64"}).version == 1


def test_append_writes_files_near_the_target_size(sqlite_workspace: WorkspaceFixture) -> None:
    settings = sqlite_workspace.settings()
    from dataclasses import replace

    with penstock.open(settings=replace(settings, file_bytes=60_000, group_rows=5_000)) as lake:
        ds = lake.create("demo.large", {"x": list(range(300_000))})
        files = ds.current().files()
        assert len(files) > 3
        assert all(45_000 < file.bytes < 120_000 for file in files[:-1])
        assert ds.to_arrow()["x"].to_pylist() == list(range(300_000))
        assert ds.to_arrow(row_ids=True)["rowid"].to_pylist() == list(range(1, 300_001))
        assert len(ds.current().files("x = 5")) == 1


def test_append_preserves_nested_columns_and_every_type(lake: Lake) -> None:
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


def test_dataset_without_row_ids_has_no_rowid_column(lake: Lake) -> None:
    ds = lake.create("demo.plain", {"id": [1]}, row_ids=False)
    ds.append({"id": [2]})
    ds.compact()
    assert ds.to_arrow()["id"].to_pylist() == [1, 2]
    with pytest.raises(Unsupported) as raised:
        ds.to_arrow(row_ids=True)
    assert raised.value.reason == "missing_row_ids"


def test_open_accepts_paths_with_special_characters(tmp_path: Path) -> None:
    location = WorkspaceFixture(str(tmp_path / "we?ird #x%20" / "ü 'q'"), None)
    with penstock.open(create=True, settings=location.settings()) as lake:
        lake.create("demo.x", {"id": [1]})
    assert (Path(location.folder) / "catalog.db").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["we?ird #x%20"]


def test_append_on_a_full_disk_reports_the_cause(tmp_path: Path) -> None:
    """Append in a process with a file size limit; the earlier rows stay unchanged."""
    location = WorkspaceFixture.make(tmp_path / "w", None)
    with location.open() as lake:
        lake.create("demo.x", {"id": [1]})
    code = (
        "import resource, signal, sys, penstock; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "lake = penstock.open(sys.argv[1]); ds = lake.dataset('demo.x'); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try: ds.append({'id': list(range(0, 9_000_000, 7))})\n"
        "except penstock.Unavailable as e: print(e.reason)"
    )
    completed = subprocess.run([sys.executable, "-c", code, location.folder], capture_output=True, text=True)
    assert completed.stdout == "storage_failed\n", completed.stderr
    with location.open() as lake:
        assert lake.dataset("demo.x").version == 1
        store = lake._workspace.store
        assert sum(1 for tenant in store.folders("data") for ds in store.folders(tenant) for _ in store.files(ds)) == 1


def test_open_missing_workspace_names_the_init_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="penstock init"):
        penstock.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "tenant": "x"}'])
def test_open_broken_workspace_file_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "penstock.json").write_text(content)
    with pytest.raises(Invalid) as raised:
        penstock.open(tmp_path)
    assert raised.value.reason == "broken_workspace"


# -- queries -----------------------------------------------------------------------------------------------------------

TEAMS = [{"team": "a", "points": 1}, {"team": "b", "points": 2}, {"team": "b", "points": None}]
RESULT_FIELDS = [{"name": "team", "type": "string"}, {"name": "points", "type": "number"}]


def register_query(lake: Lake, sql: str, **members: object) -> str:
    """Register a query over three rows, the last without points, and return its name."""
    lake.create("game.scores", pa.Table.from_pylist(TEAMS))
    payload = {"name": "scores", "type_id": gts.QUERY_RETURNS, "fields": RESULT_FIELDS}
    schema = schemas.create(lake._workspace, lake.caller, payload).id
    query = {"name": "scores", "sql": sql, "returns_schema_id": str(schema), **members}
    return query_definitions.create(
        lake._workspace, lake.caller, query, lake._query_executor.inspector(lake.caller)
    ).draft.name


OF_TEAM = "SELECT * FROM game.scores WHERE points >= 0 AND (team = $team OR $team IS NULL)"
A_TEAM = [{"name": "team", "type": "string", "required": False}]


def test_query_run_applies_parameters_and_options(lake: Lake) -> None:
    query = lake.query(register_query(lake, OF_TEAM, parameters=A_TEAM))
    assert query.run(team="b").rows == TEAMS[1:2]
    assert query.run({"$orderby": "points desc"}).rows == [TEAMS[1], TEAMS[0]]
    page = query.run({"$top": 1, "$count": True, "$select": "points"})
    assert (page.rows, page.num_rows, page.has_more, page.count) == ([{"points": 1}], 1, True, 2)
    assert query.run({"$skip": 1}).rows == TEAMS[1:2]
    assert lake.query(query.id).current().draft.sql == OF_TEAM
    for options, parameters, reason in (
        ({"$top": "some"}, {}, "bad_option"),
        ({"top": 1}, {}, "unknown_option"),
        ({}, {"teams": "b"}, "bad_parameters"),
    ):
        with pytest.raises(Invalid) as raised:
            query.run(options, **parameters)
        assert raised.value.reason == reason
    with pytest.raises(NotFound):
        lake.query("nothing")


def test_register_failure_leaves_no_result_schema(lake: Lake) -> None:
    lake.create("game.scores", {"team": ["a", "b"], "points": [3, 5]})
    sql = "SELECT team, sum(points) AS total FROM game.scores WHERE points > $min_points GROUP BY team"
    fields = [{"name": "team", "type": "string"}, {"name": "total", "type": "number"}]
    parameters = [{"name": "min_points", "type": "number", "default": 0}]
    with pytest.raises(Invalid) as raised:
        lake.register("sums", sql.replace("AS total", "AS sum"), fields, parameters)
    assert raised.value.reason == "query_does_not_fit"
    query = lake.register("sums", sql, fields, parameters)  # the rejected query has left no entry with that name
    assert query.run(min_points=3).rows == [{"team": "b", "total": 5}]
    repeated = lake.register("sums of some", sql, query.current().draft.returns_schema_id, parameters)
    assert repeated.run().num_rows == 2


@pytest.mark.parametrize("sql", ["SELECT * FROM game.scores", "SELECT points AS p, team FROM game.scores"])
def test_files_with_a_filter_skips_files_by_statistics(lake: Lake, sql: str) -> None:
    scores = lake.create("game.scores", {"team": ["a", "b"], "points": [1, 2]})
    scores.append({"team": ["c"], "points": [30]})
    name = "p" if " AS p" in sql else "points"
    query = lake.register("all", sql, [{"name": "team", "type": "string"}, {"name": name, "type": "number"}])
    (pruned_path,) = scores.current().paths(where="points < 10")
    Path(pruned_path).unlink()
    assert query.run({"$filter": f"{name} gt 9"}).rows[0]["team"] == "c"
    with pytest.raises(Unavailable):
        query.run({"$filter": f"{name} gt 1"})


def test_query_result_is_read_by_pandas_and_polars(lake: Lake) -> None:
    result = lake.query(register_query(lake, OF_TEAM, parameters=A_TEAM)).run({"$orderby": "team"})
    expected = {"team": ["a", "b"], "points": [1, 2]}
    assert result.to_arrow().to_pydict() == pa.table(result).to_pydict() == expected
    assert result.to_pandas().to_dict("list") == expected
    assert polars.DataFrame(result).to_dict(as_series=False) == expected
    assert repr(result) == "2 rows of game.scores version 1"


def test_query_at_earlier_versions_returns_the_same_rows(lake: Lake) -> None:
    query = lake.query(register_query(lake, "SELECT team, points FROM game.scores WHERE points IS NOT NULL"))
    before = query.run({"$orderby": "team"})
    lake.dataset("game.scores").append([{"team": "c", "points": 3}])
    assert (query.run().num_rows, query.run().versions) == (3, {"game.scores": 2})
    repeated = query.at(before.versions).run({"$orderby": "team"})
    assert (repeated.rows, repeated.versions) == (before.rows, {"game.scores": 1})
    with pytest.raises(NotFound):
        query.at({"game.scores": 7}).run()
    with pytest.raises(Invalid) as raised:
        query.at({"game.players": 1}).run()
    assert raised.value.reason == "unread_dataset"


def test_query_run_with_schema_violation_returns_no_rows(lake: Lake) -> None:
    query = lake.query(register_query(lake, "SELECT * FROM game.scores"))
    with pytest.raises(Unsupported) as raised:
        query.run({"$orderby": "team, points"})
    error = raised.value
    assert (error.reason, error.context["error_count"], error.context["errors"][0]["row"]) == ("schema_mismatch", 1, 1)
    assert query.run({"$filter": "points ne null"}).num_rows == 2


def test_sql_runs_an_unregistered_select(lake: Lake) -> None:
    register_query(lake, "SELECT * FROM game.scores")
    assert lake.sql("SELECT sum(points) AS p FROM game.scores WHERE team = $team", team="b").rows == [{"p": 2}]
    assert lake.sql("SELECT 1 AS one").versions == {}
    assert repr(lake.sql("SELECT 1 AS one")) == "1 row"


def test_query_run_above_the_row_limit_is_rejected(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path / "lake", durable=False, query_rows=2)
    with penstock.open(create=True, settings=settings) as lake:
        assert lake.sql("SELECT * FROM range(2)").num_rows == 2
        with pytest.raises(Invalid) as raised:
            lake.sql("SELECT * FROM range(3)")
    assert raised.value.reason == "query_too_large"


def test_query_run_after_close_is_rejected(sqlite_workspace: WorkspaceFixture) -> None:
    with sqlite_workspace.open() as lake:
        query = lake.query(register_query(lake, "SELECT * FROM game.scores WHERE team = 'a'"))
        assert query.run().rows == TEAMS[:1]
    with pytest.raises(Unavailable):
        lake._query_executor.preview(lake.caller, "SELECT 1", {})


HEAVY_MODULES = (
    "duckdb",
    "fastapi",
    "grpc",
    "nicegui",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
    "uvicorn",
)


@pytest.mark.parametrize(
    "statement", ["import penstock", "from penstock.cli import cli; cli(['--help'], standalone_mode=False)"]
)
def test_import_and_help_load_no_heavy_modules(statement: str) -> None:
    code = f"import sys; {statement}; print([module for module in {HEAVY_MODULES} if module in sys.modules])"
    response = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert response.splitlines()[-1] == "[]"


def test_errors_survive_pickling() -> None:
    import pickle

    error = Conflict("stale_version", "moved", dataset="a.b", base=3)
    repeated = pickle.loads(pickle.dumps(error))
    assert (type(repeated), repeated.as_dict()) == (Conflict, error.as_dict())


def test_update_and_delete_change_rows_by_id(three_rows: Dataset, lake: Lake) -> None:
    edited = three_rows.update([2, 1], [{"id": 20, "word": "TWO"}, {"id": 10, "word": "ONE"}], returning=True)
    assert edited.affected == 2
    assert edited.returned is not None
    assert edited.returned.to_pylist()[0] == {"id": 20, "word": "TWO", "rowid": 2}
    assert three_rows.delete(three_rows.to_arrow(where="id = 3", row_ids=True)["rowid"]).affected == 1
    with lake.transaction() as tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        tx.update(three_rows, [1], {"id": [11], "word": ["eleven"]})
        assert tx.delete(three_rows, pa.array([2, 99])).affected == 1
    rows = three_rows.to_arrow(row_ids=True).sort_by("rowid").to_pylist()
    assert rows == [{"id": 11, "word": "eleven", "rowid": 1}, {"id": 4, "word": "four", "rowid": 4}]
    for wrong in (["x"], [1.5], [None], [2**63]):
        with pytest.raises(penstock.Invalid) as raised:
            three_rows.delete(wrong)
        assert raised.value.reason == "bad_row_ids"
    with pytest.raises(penstock.NotFound):
        three_rows.update([99], {"id": [1], "word": ["one"]})


@pytest.mark.parametrize("as_path", [str, Path])
def test_pipeline_reads_yaml_and_json_files(
    three_rows: Dataset, tmp_path: Path, as_path: Callable[[Path], str | Path]
) -> None:
    lake, id = three_rows._lake, str(three_rows.id)
    yaml, other = tmp_path / "p.yaml", tmp_path / "p.json"
    yaml.write_text(f"""
name: twice
working: {{dataset_id: {id}}}
operations:
  - type: append
    parameters: {{source: {{dataset_id: {id}}}}}
""")
    pipeline = lake.pipeline(as_path(yaml))
    assert (pipeline.definition.name, pipeline.validate()) == ("twice", [])
    other.write_text(json.dumps(pipeline.definition.as_json()))
    assert lake.pipeline(as_path(other)).definition == pipeline.definition
    with pytest.raises(Invalid) as error:
        lake.pipeline(as_path(tmp_path / "missing.yaml"))
    assert error.value.reason == "unreadable_input"


def test_pipeline_validate_lists_errors_of_the_definition(three_rows: Dataset) -> None:
    pipeline = three_rows._lake.pipeline({"name": "", "working": {"dataset_id": "bad"}, "operations": []})
    pointers = [error["pointer"] for error in pipeline.validate()]
    assert pointers == ["/name", "/working/dataset_id", "/operations"]
    with pytest.raises(Invalid) as error:
        pipeline.run()
    assert error.value.reason == "bad_pipeline"


def test_paths_of_widened_dataset_are_readable_with_the_schema_of_the_version(lake: Lake) -> None:
    dataset = lake.create("demo.narrow", pa.table({"id": pa.array([1], pa.int32())}))
    dataset.alter(widen={"id": "int64"}, add={"word": "string"})
    dataset.append({"id": [2**40], "word": ["large"]})
    dataset.compact()
    dataset.append({"id": [3], "word": ["three"]})
    current = dataset.current()
    rows = pads.dataset(current.paths(), schema=current.schema, format="parquet").to_table()
    assert rows.sort_by("id").to_pylist() == current.to_arrow().sort_by("id").to_pylist()
