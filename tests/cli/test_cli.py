"""Dataset commands: output streams, exit codes, formats and interrupts."""

import errno
import json
import os
import pty
import resource
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import cli as command_group
from penstock.cli import progress
from penstock.cli.context import CliContext
from penstock.config import Settings
from penstock.core.progress import Progress
from support.cli_runner import CliRunner

ROWS = [
    {"id": 1, "word": "one"},
    {"id": 2, "word": "two"},
    {"id": 3, "word": "three"},
    {"id": 4, "word": None},
    {"id": 5, "word": "five"},
]


def commands(group: click.Group = command_group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def command(path: tuple[str, ...]) -> click.Command:
    current: Any = command_group
    for name in path:
        current = current.commands[name]
    return current


ALL = pytest.mark.parametrize("path", list(commands()), ids=" ".join)


@ALL
def test_command_help_examples_parse(cli: CliRunner, path: tuple[str, ...]) -> None:
    help = cli(*path, "--help").out.decode()
    assert "--json" in help
    examples = help.partition("Examples:\n")[2].strip().splitlines()
    assert examples
    for example in examples:
        arguments = shlex.split(example)
        arguments = arguments[arguments.index("penstock") + 1 : arguments.index(">") if ">" in arguments else None]
        assert tuple(arguments[: len(path)]) == path
        command(path).make_context(" ".join(path), arguments[len(path) :])


@ALL
def test_command_with_unknown_option_is_wrong_usage(cli: CliRunner, path: tuple[str, ...]) -> None:
    result = cli(*path, "--nonsense", code=2)
    assert result.out == b""
    assert "--nonsense" in result.err
    response = cli(*path, "--nonsense", "--json", code=2)
    assert (response.out, json.loads(response.err)["error"]["kind"]) == (b"", "Usage")


ARGUMENTS = {
    "create": ["a.b", "-c", "x:int64"], "import": ["a.b", "x.csv"], "show": ["a.b"], "history": ["a.b"],
    "profile": ["a.b"],
    "read": ["a.b"], "export": ["a.b", "x.csv"], "alter": ["a.b", "--add", "x:int64"], "compact": ["a.b"],
    "drop": ["a.b", "--yes"], "merge": ["x.csv", "a.b", "--key", "x"], "infer": ["a.b"], "schema create": ["x.csv"],
    "schema validate": ["x", "x.csv"], "validate": ["x.csv"], "run": ["x.csv"],
    "query": ["x"], "queries create": ["x.csv"], "replace": ["x", "x.csv"], "delete": ["x", "--yes"],
    "undelete": ["x"],
}  # fmt: skip


@pytest.mark.parametrize(
    "path", [p for p in commands() if p[-1] not in ("init", "doctor", "demo", "token", "serve")], ids=" ".join
)
def test_command_without_workspace_names_the_init_command(cli: CliRunner, path: tuple[str, ...]) -> None:
    Path("x.csv").write_text("x\n1\n")
    arguments = [*path, *ARGUMENTS.get(" ".join(path), ARGUMENTS.get(path[-1], [])), "-w", "nowhere"]
    result = cli(*arguments, code=1)
    assert result.out == b""
    assert "penstock init" in result.err
    response = cli(*arguments, "--json", code=1)
    assert (response.out, json.loads(response.err)["error"]["reason"]) == (b"", "workspace_not_found")
    assert not Path("nowhere").exists()


def test_dataset_commands_create_to_drop(cli: CliRunner) -> None:
    created = cli("dataset", "create", "shop.items", "-c", "id:int64!", "-c", "price:decimal(8,2)", "--json").json
    assert [f["name"] for f in created["schema"]] == ["id", "price"]
    Path("items.csv").write_text("id,price\n1,9.50\n2,19.99\n")
    imported = cli("dataset", "import", "shop.items", "items.csv", "--type", "price=decimal(8,2)", "--json").json
    assert (imported["written"][0]["version"], imported["written"][0]["inserted"]) == (2, 2)
    cli("dataset", "import", "shop.items", "items.csv", "--type", "price=decimal(8,2)")
    (listed,) = cli("dataset", "list", "--json").json
    assert (listed["name"], listed["version"], listed["rows"], listed["files"]) == ("shop.items", 3, 4, 2)
    assert cli("dataset", "show", "shop.items", "--json").json["rows"] == 4
    (step,) = cli("dataset", "compact", "shop.items", "--dry-run", "--json").json
    assert (step["step"], step["files"], step["rows"], step["deleted_rows"]) == (1, 2, 4, 0)
    compacted = cli("dataset", "compact", "shop.items", "--json").json
    assert (compacted["version"], compacted["written"][0]["version"]) == (4, 4)
    counts = ("steps", "lost_steps", "files_before", "files_after", "rows", "deleted_rows")
    assert [compacted[name] for name in counts] == [1, 0, 2, 1, 4, 0]
    assert "nothing to compact" in cli("dataset", "compact", "shop.items").err
    assert "nothing to compact" in cli("dataset", "compact", "shop.items", "--dry-run").err
    cli("dataset", "alter", "shop.items", "--add", "note:string", "--widen", "price:decimal(12,2)", "--json")
    printed = cli("dataset", "show", "shop.items").out.decode()
    assert "note" in printed
    assert "decimal128(12, 2)" in printed
    history = cli("dataset", "history", "shop.items", "--json", "--limit", 3).json
    assert [(v["version"], v["operation"]) for v in history] == [(5, "alter"), (4, "compact"), (3, "append")]
    assert cli("sweep", "--keep-versions", 1, "--json").json["files"] == 0  # the files of the last hour are always kept
    assert all(check["state"] != "failed" for check in cli("doctor", "--verify", "--json").json)
    assert cli("migrate", "--json").json["before"] == cli("migrate", "--json").json["after"]
    assert cli("dataset", "drop", "shop.items", "--yes", "--json").json["dropped"] == "shop.items"
    assert cli("dataset", "list", "--json").json == []
    assert cli("dataset", "list").out == b""


def test_cluster_key_is_declared_listed_changed_and_removed(cli: CliRunner, orders_dataset: str) -> None:
    created = cli(
        "dataset", "create", "shop.items", "-c", "id:int64", "-c", "a b:string", "--cluster-by", "`a b`, id", "--json"
    )
    assert created.json["cluster_by"] == ["a b", "id"]
    rejected = cli("dataset", "create", "shop.more", "-c", "id:int64", "--cluster-by", "x", code=1)
    assert "Unknown column 'x' in the cluster key. Columns of the dataset: id" in rejected.err
    cli("dataset", "alter", orders_dataset, "--cluster-by", "word,id")
    assert b"5 rows \xc2\xb7 2 files" in cli("dataset", "show", orders_dataset).out
    assert b"clustered by word, id" in cli("dataset", "show", orders_dataset).out
    printed = cli("dataset", "compact", orders_dataset).err
    assert "2 files compacted to 1 in 1 step, 5 rows, " in printed
    cli("dataset", "alter", orders_dataset, "--no-cluster-by")
    details = cli("dataset", "show", orders_dataset, "--json").json
    assert (details["cluster_by"], details["version"], details["deleted_rows"], details["vector_files"]) == (
        [],
        5,
        0,
        0,
    )
    for arguments in ([], ["--cluster-by", "id", "--no-cluster-by"], ["--cluster-by", ","]):
        assert "cluster-by" in cli("dataset", "alter", orders_dataset, *arguments, code=2).err


def test_profile_prints_nulls_minimum_maximum_and_histogram(cli: CliRunner, orders_dataset: str) -> None:
    response = cli("dataset", "profile", orders_dataset, "--column", "id", "--json").json
    assert (response["name"], response["version"], response["rows"]) == (orders_dataset, 2, 5)
    assert response["columns"] == [
        {"column": "id", "type": "int64", "nulls": 0, "min": 1, "max": 5},
        {"column": "word", "type": "string", "nulls": 1, "min": "five", "max": "two"},
    ]
    assert [interval["count"] for interval in response["histogram"]["bins"]] == [1, 1, 1, 1, 1]
    assert not response["histogram"]["sampled"]
    first = cli("dataset", "profile", orders_dataset, "--version", 1, "--column", "word", "--json").json
    assert (first["version"], first["rows"], first["columns"][1]["nulls"]) == (1, 3, 0)
    assert first["histogram"]["top"] == [{"value": word, "count": 1} for word in ("one", "three", "two")]
    printed = cli("dataset", "profile", orders_dataset, "--column", "word").out.decode()
    assert "five" in printed
    assert "━" * 40 in printed
    rejected = cli("dataset", "profile", orders_dataset, "--column", "nope", code=1)
    assert (rejected.out, "Column 'nope' not found" in rejected.err) == (b"", True)


def test_profile_unknown_bounds_are_question_marks(cli: CliRunner) -> None:
    Path("long.csv").write_text(f"text\n{'a' * 50}\n")
    cli("dataset", "import", "a.b", "long.csv")
    assert cli("dataset", "profile", "a.b").out.decode().splitlines()[-1].split() == ["text", "string", "0", "?", "?"]
    cli("dataset", "create", "a.none", "-c", "x:double")
    none = cli("dataset", "profile", "a.none", "--column", "x").out.decode().splitlines()
    assert none[-1].split() == ["x", "double", "0", "?", "?"]


def test_messages_go_to_stderr_and_data_to_stdout(cli: CliRunner, orders_dataset: str) -> None:
    for arguments in (
        ["import", orders_dataset, "three.csv"],
        ["export", orders_dataset, "out.csv"],
        ["compact", orders_dataset],
    ):
        result = cli("dataset", *arguments)
        assert result.out == b""
        assert orders_dataset in result.err
    for arguments in (["list"], ["show", orders_dataset], ["history", orders_dataset], ["read", orders_dataset]):
        result = cli("dataset", *arguments)
        assert result.out
        assert result.err == ""


def test_init_keeps_an_existing_workspace(cli: CliRunner) -> None:
    tenant = uuid4()
    created = cli("init", "other", "--tenant", tenant, "--json").json
    assert created == {"workspace": str(cli.folder / "other"), "tenant": str(tenant)}
    assert cli("init", "other", "--json").json == created
    assert str(tenant) in cli("init", "other", "--tenant", uuid4(), code=1).err
    Path("file").touch()
    assert "Cannot create a workspace" in cli("init", "file", code=1).err


def test_token_prints_only_the_token(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["token", "--user", "ada", "--role", "analytics.viewer"]
    monkeypatch.delenv("PENSTOCK_JWT_SECRET", raising=False)
    assert "PENSTOCK_JWT_SECRET" in cli(*arguments, code=1).err
    monkeypatch.setenv("PENSTOCK_JWT_SECRET", "s" * 32)
    assert cli(*arguments).out.count(b".") == 2
    assert cli(*arguments, "--json").json["token"].count(".") == 2
    assert "king" in cli("token", "--user", "ada", "--role", "king", code=1).err


@pytest.mark.parametrize(
    ("time_option", "rows"),
    [
        (["--version", 1], 3),
        (["--commit", 1], 3),
        (["--time", "2999-12-31"], 5),
        (["--time", "2999-12-31T10:30"], 5),
        (["--time", "2999-12-31 10:30:00.5+02:00"], 5),
        (["--time", "2999-12-31T10:30Z"], 5),
        ([], 5),
    ],
)
def test_read_selects_a_version_by_number_commit_or_time(
    cli: CliRunner, orders_dataset: str, time_option: list[object], rows: int
) -> None:
    assert cli("dataset", "read", orders_dataset, *time_option, "--json").rows == ROWS[:rows]


def test_read_at_the_time_of_a_version_returns_that_version(cli: CliRunner, orders_dataset: str) -> None:
    _, first = cli("dataset", "history", orders_dataset, "--json").json
    assert cli("dataset", "read", orders_dataset, "--time", first["at"], "--json").rows == ROWS[:3]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--time", "2026"], 2, "Invalid time '2026'. Use 2026-01-31"),
        (["--time", "yesterday"], 2, "Invalid time 'yesterday'"),
        (["--time", "2001-01-01"], 1, ""),
        (["--version", "9"], 1, "9"),
        (["--version", "one"], 2, "one"),
        (["--version", "1", "--commit", "1"], 1, "one of"),
        (["--version", "99999999999999999999999"], 2, "range"),
        (["--commit", "-1"], 2, "range"),
        (["--columns", "id,nope"], 1, "nope"),
        (["--columns", ","], 2, "--columns"),
        (["--where", "id >"], 1, "position"),
        (["--where", "nope = 1"], 1, "nope"),
        (["--limit", "-1"], 2, "-1"),
        (["--format", "xml"], 2, "xml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_read_and_export_with_invalid_options_print_one_message(
    cli: CliRunner, orders_dataset: str, arguments: list[str], code: int, message: str
) -> None:
    for command in (["read", orders_dataset], ["export", orders_dataset, "out.csv"]):
        if command[0] == "export" and "--limit" in arguments:
            continue
        with cli.assert_unchanged():
            result = cli("dataset", *command, *arguments, code=code)
        assert result.out == b""
        assert message in result.err
        assert len(result.err.strip().splitlines()) == (1 if code == 1 else 4)


def test_read_applies_columns_where_and_limit(cli: CliRunner, orders_dataset: str) -> None:
    read = ("dataset", "read", orders_dataset)
    assert cli(*read).out == b'"id","word"\n1,"one"\n2,"two"\n3,"three"\n4,\n5,"five"\n'
    assert cli(*read, "--columns", "word, `id`", "--limit", 1).out == b'"word","id"\n"one",1\n'
    assert cli(*read, "--where", "word IS NULL", "--json").rows == ROWS[3:4]
    assert cli(*read, "--limit", 0).out == b'"id","word"\n'
    assert [row["rowid"] for row in cli(*read, "--row-ids", "--json").rows] == [1, 2, 3, 4, 5]


FORMATS = ["parquet", "csv", "jsonl", "arrow"]


@pytest.mark.parametrize("format", FORMATS)
def test_export_and_import_round_trip_every_format(cli: CliRunner, format: str) -> None:
    Path("types.jsonl").write_text(
        '{"i": 1, "f": 0.1, "s": "", "d": "2024-02-29", "t": "2024-01-01T10:00:00.5", "b": true, "n": "12.50", "x": "/wA="}\n'
        '{"i": null, "f": null, "s": null, "d": null, "t": null, "b": null, "n": null, "x": null}\n'
        '{"i": -9223372036854775808, "f": -1e300, "s": "x, \\"y\\"\\n\\u00e9 \\ud83d\\ude00 NA", "d": "0001-01-01",'
        ' "t": "1969-12-31T23:59:59.999999", "b": false, "n": "-0.01", "x": ""}\n'
        '{"i": 0, "f": 3.0, "s": "NULL", "d": "2024-01-01", "t": "2024-01-01T00:00:00", "b": true, "n": "0.00", "x": "AAAA"}\n'
    )
    cli(
        "dataset",
        "create",
        "a.first",
        *_columns("i:int64 f:double s:string d:date t:timestamp b:bool n:decimal(9,2) x:binary"),
    )
    types = [w for t in ("d=date", "t=timestamp", "n=decimal(9,2)", "s=string", "x=binary") for w in ("--type", t)]
    cli("dataset", "import", "a.first", "types.jsonl", *types)
    columns = ["--columns", "i,f,s,d,t,b,n" if format == "csv" else "i,f,s,d,t,b,n,x"]  # bytes are not text
    cli("dataset", "export", "a.first", f"out.{format}", *columns)
    type_options = {"csv": types[:-2], "jsonl": types}.get(format, [])
    cli("dataset", "import", "a.second", f"out.{format}", *type_options)
    first, second = (cli("dataset", "read", name, "--json", *columns) for name in ("a.first", "a.second"))
    assert first.rows == second.rows
    assert len(first.rows) == 4
    assert cli("dataset", "read", "a.first", "--format", format, *columns).out  # through a pipe


def _columns(text: str) -> list[str]:
    return [word for column in text.split() for word in ("-c", column)]


def test_csv_round_trip_keeps_null_and_empty_text(cli: CliRunner) -> None:
    cli("dataset", "create", "a.b", "-c", "x:string")
    Path("x.csv").write_text('x\n\n""\ny\n')
    cli("dataset", "import", "a.b", "x.csv")
    cli("dataset", "export", "a.b", "y.csv")
    assert Path("y.csv").read_text() == '"x"\n\n""\n"y"\n'
    cli("dataset", "import", "a.b", "y.csv", "--replace")
    assert [row["x"] for row in cli("dataset", "read", "a.b", "--json").rows] == [None, "", "y"]


def test_import_reads_files_folders_and_every_suffix(cli: CliRunner) -> None:
    rows = pa.table({"id": [1, 2]})
    Path("spark.parquet/_temporary").mkdir(parents=True)
    Path("spark.parquet/_SUCCESS").touch()
    Path("spark.parquet/_temporary/half.parquet").write_text("half")
    pq.write_table(rows, "spark.parquet/part-0.snappy.parquet")
    pq.write_table(rows, "spark.parquet/part-1.PARQUET")
    pq.write_table(rows, "plain.pq")
    for name in ("a.csv", "a.TSV", "a.csv.gz", "a.csv.zst", "a.csv.bz2"):
        compression = name.rpartition(".")[2]
        with pa.output_stream(name, compression={"gz": "gzip", "zst": "zstd", "bz2": "bz2"}.get(compression)) as sink:
            sink.write(b"id\n1\n2\n")
    for name in ("a.jsonl", "a.ndjson", "a.json.gz"):
        with pa.output_stream(name) as sink:
            sink.write(b'{"id": 1}\n{"id": 2}\n')
    for name, new_writer in (
        ("a.arrow", pa.ipc.new_file),
        ("a.feather", pa.ipc.new_file),
        ("a.arrows", pa.ipc.new_stream),
    ):
        with new_writer(name, rows.schema) as writer:
            writer.write(rows)
    files = sorted(path for path in Path().iterdir() if path.name != "lake")
    imported = cli("dataset", "import", "all.kinds", *files, "--json").json["written"][0]
    assert imported["rows"] == 2 * (len(files) + 1)
    cli("dataset", "import", "all.kinds", "a.csv", "--replace")
    assert cli("dataset", "read", "all.kinds", "--json").rows == [{"id": 1}, {"id": 2}]
    Path("noname").write_bytes(Path("a.csv").read_bytes())
    assert "--format" in cli("dataset", "import", "all.kinds", "noname", code=1).err
    cli("dataset", "import", "all.kinds", "noname", "--format", "csv")


def test_import_of_several_files_is_atomic(cli: CliRunner, orders_dataset: str) -> None:
    Path("wrong.csv").write_text("id,word\nx,y\n")
    with cli.assert_unchanged():
        result = cli("dataset", "import", orders_dataset, "three.csv", "wrong.csv", code=1)
    assert "'id'" in result.err


def test_import_with_an_idempotency_key_is_committed_once(cli: CliRunner) -> None:
    first = cli("dataset", "import", "a.b", _write_three_rows(), "--key", "monday", "--json").json
    with cli.assert_unchanged():
        repeated = cli("dataset", "import", "a.b", _write_three_rows(), "--key", "monday", "--json").json
    assert repeated["replayed"]
    assert repeated["written"] == first["written"]
    assert "already imported" in cli("dataset", "import", "a.b", _write_three_rows(), "--key", "monday").err


def _write_three_rows() -> Path:
    Path("three.csv").write_text("id\n1\n2\n3\n")
    return Path("three.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--type", "idd=int64"], "'idd'"),
        (["--type", "id=integre"], "Unknown type 'integre'"),
        (["--type", "id=date"], "--type"),
        (["--key", ""], "idempotency key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_import_with_invalid_option_changes_nothing(
    cli: CliRunner, orders_dataset: str, arguments: list[str], message: str
) -> None:
    with cli.assert_unchanged():
        assert message in cli("dataset", "import", orders_dataset, "three.csv", *arguments, code=1).err


def test_import_null_option_defines_null_in_csv(cli: CliRunner) -> None:
    Path("x.csv").write_text("country,amount\nNA,1.5\nNULL,-\n,-\n")
    cli("dataset", "import", "a.b", "x.csv", "--null", "-")
    rows = cli("dataset", "read", "a.b", "--json").rows
    assert rows == [
        {"country": "NA", "amount": 1.5},
        {"country": "NULL", "amount": None},
        {"country": None, "amount": None},
    ]


def test_column_options_accept_equals_signs_and_colons(cli: CliRunner) -> None:
    Path("x.csv").write_text("a=b,at\n1,2024-01-01T00:00:00Z\n")
    cli("dataset", "import", "a.b", "x.csv", "--type", "at=timestamp[us,tz=UTC]", "--type", "a=b=string")
    cli("dataset", "create", "a.c", "-c", "x:y:int64")
    types = {f["name"]: f["type"] for f in cli("dataset", "show", "a.b", "--json").json["schema"]}
    assert types == {"a=b": "string", "at": "timestamp[us, tz=UTC]"}
    assert cli("dataset", "show", "a.c", "--json").json["schema"][0]["name"] == "x:y"


@pytest.mark.parametrize(
    "arguments",
    [["create", "a.b"], ["create", "a.b", "-c", "x"], ["create", "a.b", "-c", ":int64"], ["alter", "shop.orders"],
     ["drop", "shop.orders"], ["import", "a.b"], ["import", "a.b", ""], ["export", "shop.orders", ""], ["create", "a.b", "-c", "x:int64", "--like", "three.csv"]],
    ids=" ".join,
)  # fmt: skip
def test_incomplete_command_is_wrong_usage(
    cli: CliRunner, orders_dataset: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cli.assert_unchanged():
        result = cli("dataset", *arguments, code=2)
    assert result.out == b""
    assert "Usage:" in result.err


def test_create_like_file_takes_its_columns(cli: CliRunner) -> None:
    cli("dataset", "create", "a.b", "--like", _write_three_rows(), "--read-only")
    assert "read-only" in cli("dataset", "import", "a.b", "three.csv", code=1).err


@pytest.mark.parametrize("format", FORMATS)
def test_export_replaces_a_file_only_with_force(cli: CliRunner, orders_dataset: str, format: str) -> None:
    file = Path(f"out.{format}")
    file.write_text("precious")
    with cli.assert_unchanged():
        assert "--force" in cli("dataset", "export", orders_dataset, file, code=1).err
    assert file.read_text() == "precious"
    cli("dataset", "export", orders_dataset, file, "--force")
    assert file.read_bytes() != b"precious"


@pytest.mark.parametrize(
    "target", ["folder", "/dev/null", "pipe", "missing/out.csv", "out.xyz", "three.csv/out.csv", "x" * 300]
)
def test_export_to_a_special_file_is_rejected(cli: CliRunner, orders_dataset: str, target: str) -> None:
    Path("folder").mkdir()
    os.mkfifo("pipe")
    device = os.stat("/dev/null")
    arguments = [] if target == "out.xyz" else ["--format", "csv"]
    with cli.assert_unchanged():
        assert cli("dataset", "export", orders_dataset, target, "--force", *arguments, code=1).out == b""
    assert os.stat("/dev/null") == device


def test_export_to_a_symlink_keeps_the_link(cli: CliRunner, orders_dataset: str) -> None:
    Path("there").mkdir()
    Path("link.csv").symlink_to("there/real.csv")
    cli("dataset", "export", orders_dataset, "link.csv")
    assert Path("link.csv").is_symlink()
    assert Path("there/real.csv").read_bytes().startswith(b'"id"')


def test_export_of_nested_column_to_csv_is_rejected(cli: CliRunner) -> None:
    Path("x.jsonl").write_text('{"a": [1, 2], "b": 1}\n')
    cli("dataset", "import", "a.b", "x.jsonl")
    with cli.assert_unchanged():
        assert "'a'" in cli("dataset", "export", "a.b", "x.csv", code=1).err
    cli("dataset", "export", "a.b", "x.csv", "--columns", "b")


# Separate processes


def test_process_exit_codes_and_streams(cli: CliRunner, orders_dataset: str) -> None:
    read = cli.run_subprocess("dataset", "read", orders_dataset)
    assert (read.code, read.err) == (0, "")
    assert read.out.startswith(b'"id","word"\n')
    failed = cli.run_subprocess("dataset", "read", "shop.nothing")
    assert (failed.code, failed.out) == (1, b"")
    assert failed.err.startswith("penstock: ")
    assert cli.run_subprocess("nonsense").code == 2
    assert cli.run_subprocess("--version").out.startswith(b"penstock")


@pytest.mark.parametrize(
    ("arguments", "start"), [([], "penstock: This is a bug"), (["--json"], '{"error": {"kind": "Bug"')]
)
def test_unexpected_exception_prints_no_traceback(cli: CliRunner, arguments: list[str], start: str) -> None:
    result = cli.run_subprocess(
        "dataset", "list", *arguments, before="import penstock.bootstrap; penstock.bootstrap.open_session = None"
    )
    assert (result.code, result.out, result.err.startswith(start)) == (1, b"", True)
    assert "Traceback" not in result.err


@pytest.fixture
def large_dataset(cli: CliRunner) -> str:
    """Create a dataset with more rows than a pipe or a small disk can hold."""
    random_values = pa.array(int.from_bytes(os.urandom(7), "big") for _ in range(300_000))
    pq.write_table(pa.table({"n": random_values}), "many.parquet")
    cli("dataset", "import", "big.many", "many.parquet")
    return "big.many"


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_read_into_a_closed_pipe_exits_with_zero(cli: CliRunner, large_dataset: str, format: str) -> None:
    process = cli.process("dataset", "read", large_dataset, "--format", format)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    with process.stderr as err:
        assert err.read() == b""


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_export_on_a_full_disk_leaves_no_file(cli: CliRunner, large_dataset: str, format: str) -> None:
    with cli.assert_unchanged():
        result = cli.run_subprocess("dataset", "export", large_dataset, f"out.{format}", preexec_fn=_limit_file_size)
    assert result.code == 1
    assert os.strerror(errno.EFBIG) in result.err
    assert "Traceback" not in result.err


def test_import_on_a_full_disk_changes_nothing(cli: CliRunner, large_dataset: str) -> None:
    with cli.assert_unchanged():
        result = cli.run_subprocess("dataset", "import", large_dataset, "many.parquet", preexec_fn=_limit_file_size)
    assert result.code == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize("step", ["stage.opened", "stage.synced"])
def test_import_interrupted_by_ctrl_c_changes_nothing(cli: CliRunner, orders_dataset: str, step: str) -> None:
    interrupt = f"import os, signal; from penstock import failpoints as faults; faults._armed[{step!r}] = lambda: os.kill(os.getpid(), signal.SIGINT)"
    with cli.assert_unchanged():
        result = cli.run_subprocess("dataset", "import", orders_dataset, "three.csv", before=interrupt)
    assert (result.code, result.out) == (130, b"")
    assert result.err.strip() == "penstock: Interrupted. Nothing was written that was not reported"


def test_export_interrupted_by_ctrl_c_leaves_no_file(cli: CliRunner, orders_dataset: str) -> None:
    interrupt = f"import os; os.fsync = lambda _: os.kill(os.getpid(), {signal.SIGINT})"
    with cli.assert_unchanged():
        assert cli.run_subprocess("dataset", "export", orders_dataset, "out.parquet", before=interrupt).code == 130


def test_file_names_that_are_not_utf8_are_printed(cli: CliRunner, orders_dataset: str) -> None:
    name = os.fsdecode(b"\xff\x1b[31m.csv")
    response = cli.run_subprocess("dataset", "export", orders_dataset, name, "--json")
    assert (response.code, response.json["file"]) == (0, name)
    repeated = cli.run_subprocess("dataset", "export", orders_dataset, name)
    assert repeated.code == 1
    assert "\x1b" not in repeated.err


def test_output_in_a_limited_encoding_succeeds(cli: CliRunner, orders_dataset: str) -> None:
    Path("x.csv").write_text("größe\n1\n")
    cli("dataset", "import", "a.b", "x.csv")
    cli.env["PYTHONIOENCODING"] = "latin-1"
    assert b"\\u2500" in cli.run_subprocess("dataset", "list").out
    assert cli.run_subprocess("dataset", "show", "a.b", "--json").json["schema"][0]["name"] == "größe"
    assert cli.run_subprocess("dataset", "read", "a.b").out == '"größe"\n1\n'.encode()


def run_on_terminal(cli: CliRunner, *args: object, before: str = "") -> tuple[int, str]:
    """Run a command on a pseudo-terminal and return its exit code and the output of both streams."""
    terminal, child_end = pty.openpty()
    process = cli.process(*args, before=before, stdin=child_end, stdout=child_end, stderr=child_end)
    os.close(child_end)
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    return process.wait(60), output.decode().replace("\r\n", "\n")


def test_read_on_a_terminal_prints_a_preview(cli: CliRunner, large_dataset: str) -> None:
    code, output = run_on_terminal(cli, "dataset", "read", large_dataset)
    lines = output.splitlines()
    assert (code, lines[0].strip(), set(lines[1])) == (0, "n", {"─"})
    assert lines[-1] == "20 of 300,000 rows; use --limit for more"
    assert len(lines) == 2 + 20 + 1
    code, output = run_on_terminal(cli, "dataset", "read", large_dataset, "--format", "parquet")
    assert code == 2
    assert "> FILE" in output


def test_read_escapes_control_characters(cli: CliRunner) -> None:
    pq.write_table(pa.table({"x": ["\x1b[31m\a\r\nlook", "y" * 500]}), "x.parquet")
    cli("dataset", "import", "a.b", "x.parquet")
    code, output = run_on_terminal(cli, "dataset", "read", "a.b")
    assert code == 0
    assert "·[31m···look" in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) == 40


def test_drop_on_a_terminal_asks_for_confirmation(cli: CliRunner, orders_dataset: str) -> None:
    confirm = "import click; click.termui.visible_prompt_func = lambda text: print(text) or 'y'"
    no = confirm.replace("'y'", "'n'")
    with cli.assert_unchanged():
        code, output = run_on_terminal(cli, "dataset", "drop", orders_dataset, before=no)
    assert code == 130
    assert "5 rows" in output
    assert run_on_terminal(cli, "dataset", "drop", orders_dataset, before=confirm)[0] == 0
    assert cli("dataset", "list", "--json").json == []


def test_progress_bar_is_drawn_on_a_terminal_only(cli: CliRunner, large_dataset: str) -> None:
    show_at_once = "from penstock.cli import progress; progress._SHOW_AFTER_SECONDS = -1"
    code, output = run_on_terminal(cli, "dataset", "export", large_dataset, "one.csv", before=show_at_once)
    assert code == 0
    assert "exporting big.many" in output
    assert "━" in output
    assert output.rpartition("\x1b[K")[2].startswith("one.csv contains 300,000 rows")
    assert "━" not in cli.run_subprocess("dataset", "export", large_dataset, "two.csv", before=show_at_once).err


def test_progress_bar_appears_after_one_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with CliContext(None, json=False).progress("working") as line:
        for seconds in (100.5, 101.0):  # noqa: B007
            line.on_progress(Progress(done=1, total=10))
            assert capsys.readouterr().err == ""
        seconds = 101.1
        line.on_progress(Progress(done=3, total=10))
        assert "working  ━━━━━━━" in capsys.readouterr().err
    assert capsys.readouterr().err == "\r\x1b[K"


BARS = [
    (Progress(done=1_500), "importing  1,500 rows · 750/s · 2 s"),
    (Progress(done=5, unit="files"), "importing  5 files · 2/s · 2 s"),
    (Progress(done=2, total=4), f"importing  {'━' * 12:<24}  50%  2 rows · 1/s · 2 s"),
    (Progress("match", 3, 3, "parts"), f"importing: match  {'━' * 24} 100%  3 parts · 2/s · 2 s"),
]


@pytest.mark.parametrize(("event", "line"), BARS, ids=[line for _, line in BARS])
def test_format_progress_outside_of_a_run_returns_a_bar(event: Progress, line: str) -> None:
    assert progress.format_progress(event, 2.0, "importing") == line


def test_invalid_setting_in_the_environment_is_reported(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_FILE_BYTES", "lots")
    result = cli("dataset", "list", "--json", code=1)
    assert json.loads(result.err)["error"]["setting"] == "PENSTOCK_FILE_BYTES"
    assert Settings().file_bytes == 128 << 20
