"""The command line: what goes where, how it ends, and that every command does what its help says."""

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

from penstock.cli import cli, progress
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


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def command(path: tuple[str, ...]) -> click.Command:
    found: Any = cli
    for name in path:
        found = found.commands[name]
    return found


ALL = pytest.mark.parametrize("path", list(commands()), ids=" ".join)


@ALL
def test_command_help_examples_parse(shell: CliRunner, path: tuple[str, ...]) -> None:
    help = shell(*path, "--help").out.decode()
    assert "--json" in help
    examples = help.partition("Examples:\n")[2].strip().splitlines()
    assert examples
    for example in examples:
        words = shlex.split(example)
        words = words[words.index("penstock") + 1 : words.index(">") if ">" in words else None]
        assert tuple(words[: len(path)]) == path
        command(path).make_context(" ".join(path), words[len(path) :])


@ALL
def test_command_with_unknown_option_is_wrong_usage(shell: CliRunner, path: tuple[str, ...]) -> None:
    answer = shell(*path, "--nonsense", code=2)
    assert answer.out == b""
    assert "--nonsense" in answer.err
    response = shell(*path, "--nonsense", "--json", code=2)
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
def test_command_without_workspace_names_the_init_command(shell: CliRunner, path: tuple[str, ...]) -> None:
    Path("x.csv").write_text("x\n1\n")
    words = [*path, *ARGUMENTS.get(" ".join(path), ARGUMENTS.get(path[-1], [])), "-w", "nowhere"]
    answer = shell(*words, code=1)
    assert answer.out == b""
    assert "penstock init" in answer.err
    response = shell(*words, "--json", code=1)
    assert (response.out, json.loads(response.err)["error"]["reason"]) == (b"", "workspace_not_found")
    assert not Path("nowhere").exists()


def test_dataset_commands_create_to_drop(shell: CliRunner) -> None:
    made = shell("dataset", "create", "shop.items", "-c", "id:int64!", "-c", "price:decimal(8,2)", "--json").json
    assert [f["name"] for f in made["schema"]] == ["id", "price"]
    Path("items.csv").write_text("id,price\n1,9.50\n2,19.99\n")
    done = shell("dataset", "import", "shop.items", "items.csv", "--type", "price=decimal(8,2)", "--json").json
    assert (done["written"][0]["version"], done["written"][0]["inserted"]) == (2, 2)
    shell("dataset", "import", "shop.items", "items.csv", "--type", "price=decimal(8,2)")
    (listed,) = shell("dataset", "list", "--json").json
    assert (listed["name"], listed["version"], listed["rows"], listed["files"]) == ("shop.items", 3, 4, 2)
    assert shell("dataset", "show", "shop.items", "--json").json["rows"] == 4
    (step,) = shell("dataset", "compact", "shop.items", "--dry-run", "--json").json
    assert (step["step"], step["files"], step["rows"], step["deleted_rows"]) == (1, 2, 4, 0)
    compacted = shell("dataset", "compact", "shop.items", "--json").json
    assert (compacted["version"], compacted["written"][0]["version"]) == (4, 4)
    counts = ("steps", "lost_steps", "files_before", "files_after", "rows", "deleted_rows")
    assert [compacted[name] for name in counts] == [1, 0, 2, 1, 4, 0]
    assert "nothing to compact" in shell("dataset", "compact", "shop.items").err
    assert "nothing to compact" in shell("dataset", "compact", "shop.items", "--dry-run").err
    shell("dataset", "alter", "shop.items", "--add", "note:string", "--widen", "price:decimal(12,2)", "--json")
    printed = shell("dataset", "show", "shop.items").out.decode()
    assert "note" in printed
    assert "decimal128(12, 2)" in printed
    history = shell("dataset", "history", "shop.items", "--json", "--limit", 3).json
    assert [(v["version"], v["operation"]) for v in history] == [(5, "alter"), (4, "compact"), (3, "append")]
    assert shell("sweep", "--keep-versions", 1, "--json").json["files"] == 0  # the last hour is kept whatever is said
    assert all(part["state"] != "failed" for part in shell("doctor", "--verify", "--json").json)
    assert shell("migrate", "--json").json["before"] == shell("migrate", "--json").json["after"]
    assert shell("dataset", "drop", "shop.items", "--yes", "--json").json["dropped"] == "shop.items"
    assert shell("dataset", "list", "--json").json == []
    assert shell("dataset", "list").out == b""


def test_cluster_key_is_declared_listed_changed_and_removed(shell: CliRunner, orders: str) -> None:
    made = shell(
        "dataset", "create", "shop.items", "-c", "id:int64", "-c", "a b:string", "--cluster-by", "`a b`, id", "--json"
    )
    assert made.json["cluster_by"] == ["a b", "id"]
    refused = shell("dataset", "create", "shop.more", "-c", "id:int64", "--cluster-by", "x", code=1)
    assert "Unknown column 'x' in the cluster key. Columns of the dataset: id" in refused.err
    shell("dataset", "alter", orders, "--cluster-by", "word,id")
    assert b"5 rows \xc2\xb7 2 files" in shell("dataset", "show", orders).out
    assert b"clustered by word, id" in shell("dataset", "show", orders).out
    printed = shell("dataset", "compact", orders).err
    assert "2 files compacted to 1 in 1 step, 5 rows, " in printed
    shell("dataset", "alter", orders, "--no-cluster-by")
    details = shell("dataset", "show", orders, "--json").json
    assert (details["cluster_by"], details["version"], details["deleted_rows"], details["vector_files"]) == (
        [],
        5,
        0,
        0,
    )
    for words in ([], ["--cluster-by", "id", "--no-cluster-by"], ["--cluster-by", ","]):
        assert "cluster-by" in shell("dataset", "alter", orders, *words, code=2).err


def test_profile_prints_nulls_minimum_maximum_and_histogram(shell: CliRunner, orders: str) -> None:
    response = shell("dataset", "profile", orders, "--column", "id", "--json").json
    assert (response["name"], response["version"], response["rows"]) == (orders, 2, 5)
    assert response["columns"] == [
        {"column": "id", "type": "int64", "nulls": 0, "min": 1, "max": 5},
        {"column": "word", "type": "string", "nulls": 1, "min": "five", "max": "two"},
    ]
    assert [part["count"] for part in response["histogram"]["bins"]] == [1, 1, 1, 1, 1]
    assert not response["histogram"]["sampled"]
    first = shell("dataset", "profile", orders, "--version", 1, "--column", "word", "--json").json
    assert (first["version"], first["rows"], first["columns"][1]["nulls"]) == (1, 3, 0)
    assert first["histogram"]["top"] == [{"value": word, "count": 1} for word in ("one", "three", "two")]
    printed = shell("dataset", "profile", orders, "--column", "word").out.decode()
    assert "five" in printed
    assert "━" * 40 in printed
    refused = shell("dataset", "profile", orders, "--column", "nope", code=1)
    assert (refused.out, "Column 'nope' not found" in refused.err) == (b"", True)


def test_profile_unknown_bounds_are_question_marks(shell: CliRunner) -> None:
    Path("long.csv").write_text(f"text\n{'a' * 50}\n")
    shell("dataset", "import", "a.b", "long.csv")
    assert shell("dataset", "profile", "a.b").out.decode().splitlines()[-1].split() == ["text", "string", "0", "?", "?"]
    shell("dataset", "create", "a.none", "-c", "x:double")
    none = shell("dataset", "profile", "a.none", "--column", "x").out.decode().splitlines()
    assert none[-1].split() == ["x", "double", "0", "?", "?"]


def test_messages_go_to_stderr_and_data_to_stdout(shell: CliRunner, orders: str) -> None:
    for words in (["import", orders, "three.csv"], ["export", orders, "out.csv"], ["compact", orders]):
        answer = shell("dataset", *words)
        assert answer.out == b""
        assert orders in answer.err
    for words in (["list"], ["show", orders], ["history", orders], ["read", orders]):
        answer = shell("dataset", *words)
        assert answer.out
        assert answer.err == ""


def test_init_keeps_an_existing_workspace(shell: CliRunner) -> None:
    tenant = uuid4()
    made = shell("init", "other", "--tenant", tenant, "--json").json
    assert made == {"workspace": str(shell.folder / "other"), "tenant": str(tenant)}
    assert shell("init", "other", "--json").json == made
    assert str(tenant) in shell("init", "other", "--tenant", uuid4(), code=1).err
    Path("file").touch()
    assert "Cannot create a workspace" in shell("init", "file", code=1).err


def test_token_prints_only_the_token(shell: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["token", "--user", "ada", "--role", "analytics.viewer"]
    monkeypatch.delenv("PENSTOCK_JWT_SECRET", raising=False)
    assert "PENSTOCK_JWT_SECRET" in shell(*words, code=1).err
    monkeypatch.setenv("PENSTOCK_JWT_SECRET", "s" * 32)
    assert shell(*words).out.count(b".") == 2
    assert shell(*words, "--json").json["token"].count(".") == 2
    assert "king" in shell("token", "--user", "ada", "--role", "king", code=1).err


@pytest.mark.parametrize(
    ("when", "rows"),
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
    shell: CliRunner, orders: str, when: list[object], rows: int
) -> None:
    assert shell("dataset", "read", orders, *when, "--json").rows == ROWS[:rows]


def test_read_at_the_time_of_a_version_returns_that_version(shell: CliRunner, orders: str) -> None:
    _, first = shell("dataset", "history", orders, "--json").json
    assert shell("dataset", "read", orders, "--time", first["at"], "--json").rows == ROWS[:3]


@pytest.mark.parametrize(
    ("words", "code", "message"),
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
    shell: CliRunner, orders: str, words: list[str], code: int, message: str
) -> None:
    for command in (["read", orders], ["export", orders, "out.csv"]):
        if command[0] == "export" and "--limit" in words:
            continue
        with shell.untouched():
            answer = shell("dataset", *command, *words, code=code)
        assert answer.out == b""
        assert message in answer.err
        assert len(answer.err.strip().splitlines()) == (1 if code == 1 else 4)


def test_read_applies_columns_where_and_limit(shell: CliRunner, orders: str) -> None:
    read = ("dataset", "read", orders)
    assert shell(*read).out == b'"id","word"\n1,"one"\n2,"two"\n3,"three"\n4,\n5,"five"\n'
    assert shell(*read, "--columns", "word, `id`", "--limit", 1).out == b'"word","id"\n"one",1\n'
    assert shell(*read, "--where", "word IS NULL", "--json").rows == ROWS[3:4]
    assert shell(*read, "--limit", 0).out == b'"id","word"\n'
    assert [row["rowid"] for row in shell(*read, "--row-ids", "--json").rows] == [1, 2, 3, 4, 5]


FORMATS = ["parquet", "csv", "jsonl", "arrow"]


@pytest.mark.parametrize("format", FORMATS)
def test_export_and_import_round_trip_every_format(shell: CliRunner, format: str) -> None:
    Path("types.jsonl").write_text(
        '{"i": 1, "f": 0.1, "s": "", "d": "2024-02-29", "t": "2024-01-01T10:00:00.5", "b": true, "n": "12.50", "x": "/wA="}\n'
        '{"i": null, "f": null, "s": null, "d": null, "t": null, "b": null, "n": null, "x": null}\n'
        '{"i": -9223372036854775808, "f": -1e300, "s": "x, \\"y\\"\\n\\u00e9 \\ud83d\\ude00 NA", "d": "0001-01-01",'
        ' "t": "1969-12-31T23:59:59.999999", "b": false, "n": "-0.01", "x": ""}\n'
        '{"i": 0, "f": 3.0, "s": "NULL", "d": "2024-01-01", "t": "2024-01-01T00:00:00", "b": true, "n": "0.00", "x": "AAAA"}\n'
    )
    shell(
        "dataset",
        "create",
        "a.first",
        *_columns("i:int64 f:double s:string d:date t:timestamp b:bool n:decimal(9,2) x:binary"),
    )
    types = [w for t in ("d=date", "t=timestamp", "n=decimal(9,2)", "s=string", "x=binary") for w in ("--type", t)]
    shell("dataset", "import", "a.first", "types.jsonl", *types)
    columns = ["--columns", "i,f,s,d,t,b,n" if format == "csv" else "i,f,s,d,t,b,n,x"]  # bytes are no text
    shell("dataset", "export", "a.first", f"out.{format}", *columns)
    again = {"csv": types[:-2], "jsonl": types}.get(format, [])
    shell("dataset", "import", "a.second", f"out.{format}", *again)
    first, second = (shell("dataset", "read", name, "--json", *columns) for name in ("a.first", "a.second"))
    assert first.rows == second.rows
    assert len(first.rows) == 4
    assert shell("dataset", "read", "a.first", "--format", format, *columns).out  # and through a pipe


def _columns(text: str) -> list[str]:
    return [word for column in text.split() for word in ("-c", column)]


def test_csv_round_trip_keeps_null_and_empty_text(shell: CliRunner) -> None:
    shell("dataset", "create", "a.b", "-c", "x:string")
    Path("x.csv").write_text('x\n\n""\ny\n')
    shell("dataset", "import", "a.b", "x.csv")
    shell("dataset", "export", "a.b", "y.csv")
    assert Path("y.csv").read_text() == '"x"\n\n""\n"y"\n'
    shell("dataset", "import", "a.b", "y.csv", "--replace")
    assert [row["x"] for row in shell("dataset", "read", "a.b", "--json").rows] == [None, "", "y"]


def test_import_reads_files_folders_and_every_suffix(shell: CliRunner) -> None:
    rows = pa.table({"id": [1, 2]})
    Path("spark.parquet/_temporary").mkdir(parents=True)
    Path("spark.parquet/_SUCCESS").touch()
    Path("spark.parquet/_temporary/half.parquet").write_text("half")
    pq.write_table(rows, "spark.parquet/part-0.snappy.parquet")
    pq.write_table(rows, "spark.parquet/part-1.PARQUET")
    pq.write_table(rows, "plain.pq")
    for name in ("a.csv", "a.TSV", "a.csv.gz", "a.csv.zst", "a.csv.bz2"):
        packing = name.rpartition(".")[2]
        with pa.output_stream(name, compression={"gz": "gzip", "zst": "zstd", "bz2": "bz2"}.get(packing)) as sink:
            sink.write(b"id\n1\n2\n")
    for name in ("a.jsonl", "a.ndjson", "a.json.gz"):
        with pa.output_stream(name) as sink:
            sink.write(b'{"id": 1}\n{"id": 2}\n')
    for name, kind in (("a.arrow", pa.ipc.new_file), ("a.feather", pa.ipc.new_file), ("a.arrows", pa.ipc.new_stream)):
        with kind(name, rows.schema) as writer:
            writer.write(rows)
    files = sorted(path for path in Path().iterdir() if path.name != "lake")
    done = shell("dataset", "import", "all.kinds", *files, "--json").json["written"][0]
    assert done["rows"] == 2 * (len(files) + 1)
    shell("dataset", "import", "all.kinds", "a.csv", "--replace")
    assert shell("dataset", "read", "all.kinds", "--json").rows == [{"id": 1}, {"id": 2}]
    Path("noname").write_bytes(Path("a.csv").read_bytes())
    assert "--format" in shell("dataset", "import", "all.kinds", "noname", code=1).err
    shell("dataset", "import", "all.kinds", "noname", "--format", "csv")


def test_import_of_several_files_is_atomic(shell: CliRunner, orders: str) -> None:
    Path("wrong.csv").write_text("id,word\nx,y\n")
    with shell.untouched():
        answer = shell("dataset", "import", orders, "three.csv", "wrong.csv", code=1)
    assert "'id'" in answer.err


def test_import_with_an_idempotency_key_is_committed_once(shell: CliRunner) -> None:
    first = shell("dataset", "import", "a.b", _three(), "--key", "monday", "--json").json
    with shell.untouched():
        again = shell("dataset", "import", "a.b", _three(), "--key", "monday", "--json").json
    assert again["replayed"]
    assert again["written"] == first["written"]
    assert "already imported" in shell("dataset", "import", "a.b", _three(), "--key", "monday").err


def _three() -> Path:
    Path("three.csv").write_text("id\n1\n2\n3\n")
    return Path("three.csv")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--type", "idd=int64"], "'idd'"),
        (["--type", "id=integre"], "Unknown type 'integre'"),
        (["--type", "id=date"], "--type"),
        (["--key", ""], "idempotency key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_import_with_invalid_option_changes_nothing(
    shell: CliRunner, orders: str, words: list[str], message: str
) -> None:
    with shell.untouched():
        assert message in shell("dataset", "import", orders, "three.csv", *words, code=1).err


def test_import_null_option_defines_null_in_csv(shell: CliRunner) -> None:
    Path("x.csv").write_text("country,amount\nNA,1.5\nNULL,-\n,-\n")
    shell("dataset", "import", "a.b", "x.csv", "--null", "-")
    rows = shell("dataset", "read", "a.b", "--json").rows
    assert rows == [
        {"country": "NA", "amount": 1.5},
        {"country": "NULL", "amount": None},
        {"country": None, "amount": None},
    ]


def test_column_options_accept_equals_signs_and_colons(shell: CliRunner) -> None:
    Path("x.csv").write_text("a=b,at\n1,2024-01-01T00:00:00Z\n")
    shell("dataset", "import", "a.b", "x.csv", "--type", "at=timestamp[us,tz=UTC]", "--type", "a=b=string")
    shell("dataset", "create", "a.c", "-c", "x:y:int64")
    types = {f["name"]: f["type"] for f in shell("dataset", "show", "a.b", "--json").json["schema"]}
    assert types == {"a=b": "string", "at": "timestamp[us, tz=UTC]"}
    assert shell("dataset", "show", "a.c", "--json").json["schema"][0]["name"] == "x:y"


@pytest.mark.parametrize(
    "words",
    [["create", "a.b"], ["create", "a.b", "-c", "x"], ["create", "a.b", "-c", ":int64"], ["alter", "shop.orders"],
     ["drop", "shop.orders"], ["import", "a.b"], ["import", "a.b", ""], ["export", "shop.orders", ""], ["create", "a.b", "-c", "x:int64", "--like", "three.csv"]],
    ids=" ".join,
)  # fmt: skip
def test_incomplete_command_is_wrong_usage(
    shell: CliRunner, orders: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shell.untouched():
        answer = shell("dataset", *words, code=2)
    assert answer.out == b""
    assert "Usage:" in answer.err


def test_create_like_file_takes_its_columns(shell: CliRunner) -> None:
    shell("dataset", "create", "a.b", "--like", _three(), "--read-only")
    assert "read-only" in shell("dataset", "import", "a.b", "three.csv", code=1).err


@pytest.mark.parametrize("format", FORMATS)
def test_export_replaces_a_file_only_with_force(shell: CliRunner, orders: str, format: str) -> None:
    file = Path(f"out.{format}")
    file.write_text("precious")
    with shell.untouched():
        assert "--force" in shell("dataset", "export", orders, file, code=1).err
    assert file.read_text() == "precious"
    shell("dataset", "export", orders, file, "--force")
    assert file.read_bytes() != b"precious"


@pytest.mark.parametrize(
    "target", ["folder", "/dev/null", "pipe", "missing/out.csv", "out.xyz", "three.csv/out.csv", "x" * 300]
)
def test_export_to_a_special_file_is_rejected(shell: CliRunner, orders: str, target: str) -> None:
    Path("folder").mkdir()
    os.mkfifo("pipe")
    device = os.stat("/dev/null")
    words = [] if target == "out.xyz" else ["--format", "csv"]
    with shell.untouched():
        assert shell("dataset", "export", orders, target, "--force", *words, code=1).out == b""
    assert os.stat("/dev/null") == device


def test_export_to_a_symlink_keeps_the_link(shell: CliRunner, orders: str) -> None:
    Path("there").mkdir()
    Path("link.csv").symlink_to("there/real.csv")
    shell("dataset", "export", orders, "link.csv")
    assert Path("link.csv").is_symlink()
    assert Path("there/real.csv").read_bytes().startswith(b'"id"')


def test_export_of_nested_column_to_csv_is_rejected(shell: CliRunner) -> None:
    Path("x.jsonl").write_text('{"a": [1, 2], "b": 1}\n')
    shell("dataset", "import", "a.b", "x.jsonl")
    with shell.untouched():
        assert "'a'" in shell("dataset", "export", "a.b", "x.csv", code=1).err
    shell("dataset", "export", "a.b", "x.csv", "--columns", "b")


# Processes of their own: the ends that only a real one has.


def test_process_exit_codes_and_streams(shell: CliRunner, orders: str) -> None:
    read = shell.apart("dataset", "read", orders)
    assert (read.code, read.err) == (0, "")
    assert read.out.startswith(b'"id","word"\n')
    failed = shell.apart("dataset", "read", "shop.nothing")
    assert (failed.code, failed.out) == (1, b"")
    assert failed.err.startswith("penstock: ")
    assert shell.apart("nonsense").code == 2
    assert shell.apart("--version").out.startswith(b"penstock")


@pytest.mark.parametrize(
    ("words", "start"), [([], "penstock: This is a bug"), (["--json"], '{"error": {"kind": "Bug"')]
)
def test_unexpected_exception_prints_no_traceback(shell: CliRunner, words: list[str], start: str) -> None:
    answer = shell.apart(
        "dataset", "list", *words, before="import penstock.bootstrap; penstock.bootstrap.open_session = None"
    )
    assert (answer.code, answer.out, answer.err.startswith(start)) == (1, b"", True)
    assert "Traceback" not in answer.err


@pytest.fixture
def many(shell: CliRunner) -> str:
    """More rows than a pipe, or a small disk, can hold."""
    noise = pa.array(int.from_bytes(os.urandom(7), "big") for _ in range(300_000))
    pq.write_table(pa.table({"n": noise}), "many.parquet")
    shell("dataset", "import", "big.many", "many.parquet")
    return "big.many"


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_read_into_a_closed_pipe_exits_with_zero(shell: CliRunner, many: str, format: str) -> None:
    process = shell.process("dataset", "read", many, "--format", format)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    with process.stderr as err:
        assert err.read() == b""


def _small_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_export_on_a_full_disk_leaves_no_file(shell: CliRunner, many: str, format: str) -> None:
    with shell.untouched():
        answer = shell.apart("dataset", "export", many, f"out.{format}", preexec_fn=_small_disk)
    assert answer.code == 1
    assert os.strerror(errno.EFBIG) in answer.err
    assert "Traceback" not in answer.err


def test_import_on_a_full_disk_changes_nothing(shell: CliRunner, many: str) -> None:
    with shell.untouched():
        answer = shell.apart("dataset", "import", many, "many.parquet", preexec_fn=_small_disk)
    assert answer.code == 1
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("step", ["stage.opened", "stage.synced"])
def test_import_interrupted_by_ctrl_c_changes_nothing(shell: CliRunner, orders: str, step: str) -> None:
    press = f"import os, signal; from penstock import failpoints as faults; faults._armed[{step!r}] = lambda: os.kill(os.getpid(), signal.SIGINT)"
    with shell.untouched():
        answer = shell.apart("dataset", "import", orders, "three.csv", before=press)
    assert (answer.code, answer.out) == (130, b"")
    assert answer.err.strip() == "penstock: Interrupted. Nothing was written that was not reported"


def test_export_interrupted_by_ctrl_c_leaves_no_file(shell: CliRunner, orders: str) -> None:
    press = f"import os; os.fsync = lambda _: os.kill(os.getpid(), {signal.SIGINT})"
    with shell.untouched():
        assert shell.apart("dataset", "export", orders, "out.parquet", before=press).code == 130


def test_file_names_that_are_not_utf8_are_printed(shell: CliRunner, orders: str) -> None:
    name = os.fsdecode(b"\xff\x1b[31m.csv")
    response = shell.apart("dataset", "export", orders, name, "--json")
    assert (response.code, response.json["file"]) == (0, name)
    again = shell.apart("dataset", "export", orders, name)
    assert again.code == 1
    assert "\x1b" not in again.err


def test_output_in_a_limited_encoding_succeeds(shell: CliRunner, orders: str) -> None:
    Path("x.csv").write_text("größe\n1\n")
    shell("dataset", "import", "a.b", "x.csv")
    shell.env["PYTHONIOENCODING"] = "latin-1"
    assert b"\\u2500" in shell.apart("dataset", "list").out
    assert shell.apart("dataset", "show", "a.b", "--json").json["schema"][0]["name"] == "größe"
    assert shell.apart("dataset", "read", "a.b").out == '"größe"\n1\n'.encode()


def on_a_terminal(shell: CliRunner, *args: object, before: str = "") -> tuple[int, str]:
    """Run a command on a pseudo-terminal and return its exit code and the output of both streams."""
    ours, theirs = pty.openpty()
    process = shell.process(*args, before=before, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(60), seen.decode().replace("\r\n", "\n")


def test_read_on_a_terminal_prints_a_preview(shell: CliRunner, many: str) -> None:
    code, seen = on_a_terminal(shell, "dataset", "read", many)
    lines = seen.splitlines()
    assert (code, lines[0].strip(), set(lines[1])) == (0, "n", {"─"})
    assert lines[-1] == "20 of 300,000 rows; use --limit for more"
    assert len(lines) == 2 + 20 + 1
    code, seen = on_a_terminal(shell, "dataset", "read", many, "--format", "parquet")
    assert code == 2
    assert "> FILE" in seen


def test_read_escapes_control_characters(shell: CliRunner) -> None:
    pq.write_table(pa.table({"x": ["\x1b[31m\a\r\nlook", "y" * 500]}), "x.parquet")
    shell("dataset", "import", "a.b", "x.parquet")
    code, seen = on_a_terminal(shell, "dataset", "read", "a.b")
    assert code == 0
    assert "·[31m···look" in seen
    assert "\x1b" not in seen
    assert max(map(len, seen.splitlines())) == 40


def test_drop_on_a_terminal_asks_for_confirmation(shell: CliRunner, orders: str) -> None:
    yes = "import click; click.termui.visible_prompt_func = lambda text: print(text) or 'y'"
    no = yes.replace("'y'", "'n'")
    with shell.untouched():
        code, seen = on_a_terminal(shell, "dataset", "drop", orders, before=no)
    assert code == 130
    assert "5 rows" in seen
    assert on_a_terminal(shell, "dataset", "drop", orders, before=yes)[0] == 0
    assert shell("dataset", "list", "--json").json == []


def test_progress_bar_is_drawn_on_a_terminal_only(shell: CliRunner, many: str) -> None:
    soon = "from penstock.cli import progress; progress._SHOW_AFTER_SECONDS = -1"
    code, seen = on_a_terminal(shell, "dataset", "export", many, "one.csv", before=soon)
    assert code == 0
    assert "exporting big.many" in seen
    assert "━" in seen
    assert seen.rpartition("\x1b[K")[2].startswith("one.csv contains 300,000 rows")
    assert "━" not in shell.apart("dataset", "export", many, "two.csv", before=soon).err


def test_progress_bar_appears_after_one_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with CliContext(None, json=False).progress("working") as line:
        for now in (100.5, 101.0):  # noqa: B007
            line.on_progress(Progress(done=1, total=10))
            assert capsys.readouterr().err == ""
        now = 101.1
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


def test_invalid_setting_in_the_environment_is_reported(shell: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_FILE_BYTES", "lots")
    answer = shell("dataset", "list", "--json", code=1)
    assert json.loads(answer.err)["error"]["setting"] == "PENSTOCK_FILE_BYTES"
    assert Settings().file_bytes == 128 << 20
