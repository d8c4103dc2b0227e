"""`penstock validate`, `run` and `runs` as people use them: the contract's answers, what is seen meanwhile, and what goes wrong."""

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import operation_cases as cases
import penstock
from operation_cases import UNKNOWN, Case
from penstock.cli.pipeline import Watch, shown
from penstock.core.pipeline import definition as pipeline
from penstock.core.payload import documents as text
from penstock.core.pipeline.run import Progress
from cli_runner import Answer, Shell

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUND_IN_ROWS = ("MERGE_005", "MERGE_006")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A workspace with the datasets of the cases, and their ids."""
    folder = tmp_path_factory.mktemp("made") / "lake"
    with penstock.open(folder, create=True) as lake:
        return folder, {name: str(dataset.id) for name, dataset in cases.made(lake).items()}


@pytest.fixture
def ids(shell: Shell, made: tuple[Path, dict[str, str]]) -> dict[str, str]:
    """The ids, in a workspace of the test's own."""
    shutil.rmtree("lake")
    shutil.copytree(made[0], "lake")
    return made[1]


def written(name: str, working: str, *operations: dict[str, Any], **more: Any) -> Path:
    path = Path(name)
    value = {"name": "monthly", "working": {"dataset_id": working}, "operations": operations, **more}
    path.write_text(json.dumps(value, indent=1))  # which is YAML as well
    return path


def append(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


def documents(out: bytes) -> list[Any]:
    """Several JSON documents, one after the other."""
    found, rest = [], out.decode()
    while rest.strip():
        value, end = json.JSONDecoder().raw_decode(rest)
        assert rest[:end] == json.dumps(value, indent=2, ensure_ascii=False)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def rows(shell: Shell, name: str) -> list[dict[str, Any]]:
    return shell("dataset", "read", f"demo.{name}", "--json", "--limit", 100).rows


def one_error(told: dict[str, Any]) -> dict[str, Any]:
    """An error in the shape of an operation, as the operation alone would be told."""
    if told.get("error", {}).get("code") != "BAD_PIPELINE":
        return told
    (error,) = told["error"]["details"]["errors"]
    pointer = error.pop("pointer").removeprefix("/operations/0")
    return {"error": {**error, "details": {"pointer": pointer, **error["details"]}}}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_run_prints_what_the_contract_says(shell: Shell, ids: dict[str, str], case: Case) -> None:
    file = written("p.yaml", ids[case.working], cases.asked(case, ids))
    before, failed = rows(shell, case.working), "error" in case.answer
    valid = not failed or case.answer["error"]["code"] in FOUND_IN_ROWS
    checked = shell("validate", file, "--json", code=0 if valid else 1).json
    assert checked["valid"] == valid
    assert [error["code"] for error in checked["errors"]] == ([] if valid else [case.answer["error"]["code"]])
    answer = shell("run", file, code=1 if failed else 0)
    (told,) = documents(answer.out)
    assert cases.told(one_error(told), ids) == case.answer
    assert cases.came(before, rows(shell, case.working)) == sorted(case.rows or [], key=str)
    if failed:
        assert case.answer["error"]["message"] in answer.err
    else:
        version, total = (2 if case.rows else 1), told["result"]["working_dataset_rows_after"]
        assert re.search(
            rf"^demo.{case.working} is at version {version}, with {total} rows?$", answer.err, re.MULTILINE
        )


WRONG = """\
name: monthly
working: {dataset_id: NARROW}
operations:
  - type: append
    order: 5
    parameters:
      source: {dataset_id: EXTRAS}
  - type: append
    parameters:
      source:
        dataset_id: UNKNOWN
  - type: merge
    parameters: {source: {dataset_id: NOTES}, key_columns: nr, strategy: upsert}
"""
MISSHAPEN = """\
name: ''
operations:
  - type: append
    parameters:
      limit: 5
  - type: upend
"""


def test_everything_that_is_wrong_is_told_at_once_with_its_line(shell: Shell, ids: dict[str, str]) -> None:
    asked = WRONG.replace("NARROW", ids["narrow"]).replace("EXTRAS", ids["extras"]).replace("NOTES", ids["notes"])
    Path("wrong.yml").write_text(asked.replace("UNKNOWN", UNKNOWN))
    told = shell("validate", "wrong.yml", "--json", code=1).json
    assert (told["valid"], [error.pop("details")["operation_order"] for error in told["errors"]]) == (False, [1, 2, 5])
    assert told["errors"] == [
        {"pointer": "/operations/1", "code": "APPEND_001", "message": "Dataset not found", "line": 8},
        {"pointer": "/operations/2", "code": "MERGE_003", "message": "Key columns do not match", "line": 12},
        {
            "pointer": "/operations/0",
            "code": "APPEND_003",
            "message": "Appended rows contain columns not in working dataset",
            "line": 4,
        },
    ]
    said = shell("validate", "wrong.yml", code=1)
    assert said.out == b""
    assert said.err.splitlines() == [
        f"wrong.yml:8: /operations/1: APPEND_001 Dataset not found (dataset_id {UNKNOWN})",
        "wrong.yml:12: /operations/2: MERGE_003 Key columns do not match: key columns are missing in the source: 'nr'; "
        "it has 'account_code', 'amount', 'description'",
        "wrong.yml:4: /operations/0: APPEND_003 Appended rows contain columns not in working dataset (extra_columns "
        "budget_type, fiscal_year; working_columns account_code, amount, description)",
    ]


def test_a_wrong_shape_is_told_by_validate_and_run_alike(shell: Shell) -> None:
    Path("wrong.yaml").write_text(MISSHAPEN)
    checked = shell("validate", "wrong.yaml", "--json", code=1).json
    assert [(error["pointer"], error["line"]) for error in checked["errors"]] == [
        ("/working", 1),
        ("/name", 1),
        ("/operations/0/parameters/source", 4),
        ("/operations/0/parameters/limit", 5),
        ("/operations/1/type", 6),
    ]
    with shell.untouched():
        answer = shell("run", "wrong.yaml", code=1)
    (told,) = documents(answer.out)
    bare = [{name: fact for name, fact in error.items() if name != "line"} for error in checked["errors"]]
    assert (told["error"]["code"], told["error"]["details"]["errors"]) == ("BAD_PIPELINE", bare)
    first, *lines = answer.err.splitlines()
    assert first == "penstock: the pipeline has 5 errors; the first is at /working"
    assert lines == shell("validate", "wrong.yaml", code=1).err.splitlines()
    assert json.loads(shell("run", "wrong.yaml", "--json", code=1).err)["error"]["errors"] == bare
    assert shell("runs", "--json").json == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.yaml", b"name: x\nname: y", "p.yaml is not YAML: member 'name' is there twice at line 2, column 1"),
        ("p.json", b"name: x", "p.json is not JSON: Expecting value at line 1, column 1"),
        ("p.txt", b"{name: x}", "p.txt is not JSON: Expecting property name"),
        ("p.txt", b"name: [x", "p.txt is not YAML"),
        ("p", b"\xff\xfe", "p is not UTF-8"),
    ],
)
def test_text_that_cannot_be_read_is_told(shell: Shell, name: str, content: bytes, said: str) -> None:
    Path(name).write_bytes(content)
    assert said in shell("run", name, code=1).err
    assert said in shell("validate", name, code=1).err
    told = shell("validate", name, "--json", code=1).json
    assert (told["valid"], len(told["errors"]), told["errors"][0]["pointer"]) == (False, 1, "")
    assert told["errors"][0]["message"].startswith(said)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "nowhere.yaml"], 1, "nowhere.yaml cannot be read: No such file"),
        (["validate", "."], 1, "cannot be read: Is a directory"),
        (["validate", "/dev/zero"], 1, "/dev/zero has more than 4,194,304 bytes"),
        (["run", "p.yaml", "--dry-run", "--key", "x"], 2, "--dry-run writes nothing"),
        (["runs", "--cancel"], 2, "needs the ID"),
        (["runs", "--state", "lost"], 2, "lost"),
        (["runs", "--limit", "0"], 2, "0"),
        (["runs", "one"], 2, "one"),
        (["runs", UNKNOWN], 1, "there is no such run"),
        (["runs", UNKNOWN, "--cancel"], 1, "there is no such run"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_told(shell: Shell, args: list[str], code: int, said: str) -> None:
    answer = shell(*args, code=code)
    assert (answer.out, said in answer.err) == (b"", True)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_pipeline_comes_on_standard_input(
    shell: Shell, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    yaml = f"name: x\nworking: {{dataset_id: {ids['narrow']}}}\noperations: [{json.dumps(append(ids['notes']))}]"
    sent = {"yaml": yaml, "json": json.dumps(text.from_yaml(yaml.encode(), "it").value)}[form]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sent.encode())))
    assert shell("validate", "-", "--json").json == {"valid": True, "errors": []}


def test_validating_needs_no_spark(shell: Shell, ids: dict[str, str]) -> None:
    file = written("p.json", ids["narrow"], append(ids["notes"], source_selector="amount > 7"))
    answer = shell.apart("validate", file, before="import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None")
    assert answer == Answer(0, b"", "p.json can run\n")


@pytest.mark.usefixtures("spark")
def test_a_dry_run_answers_as_the_run_would_and_writes_nothing(shell: Shell, ids: dict[str, str]) -> None:
    merge = {"type": "merge", "parameters": {**append(ids["notes"])["parameters"]}}
    merge["parameters"] |= {"key_columns": ["account_code"], "strategy": "upsert"}
    file = written("p.yaml", ids["narrow"], append(ids["notes"], source_selector="amount < 8"), merge)
    with shell.untouched():
        tried = shell("run", file, "--dry-run")
        listed = shell("run", file, "--dry-run", "--json")
    assert tried.err.splitlines()[-1] == "nothing was written (--dry-run)"
    assert listed.err == ""
    assert shell("runs", "--json").json == []
    done = documents(shell("run", file).out)
    assert [cases.told(each, ids) for each in documents(tried.out)] == [cases.told(each, ids) for each in done]
    assert [cases.told(each, ids) for each in listed.json] == [cases.told(each, ids) for each in done]


@pytest.mark.usefixtures("spark")
def test_a_run_is_remembered(shell: Shell, ids: dict[str, str]) -> None:
    file = written("p.json", ids["narrow"], append(ids["notes"]), append(ids["notes"], source_selector="amount < 8"))
    said = shell("run", file, "--key", "monday")
    lines = [re.sub(r"\d+ s$", "… s", line) for line in said.err.splitlines()]
    assert lines == [
        "operation 1/2 append · 2 rows written · … s",
        "operation 2/2 append · 1 row written · … s",
        "demo.narrow is at version 2, with 4 rows",
    ]
    with shell.untouched():
        again = shell("run", file, "--key", "monday")
    assert again.err == "demo.narrow is at version 2, with 4 rows (done before)\n"
    assert again.out == said.out
    record = shell("run", file, "--key", "monday", "--json").json
    assert (record["state"], record["written"][0]["version"], record["error"]) == ("succeeded", 2, None)
    assert record["results"] == documents(said.out)
    assert shell("runs", record["id"]).json == shell("runs", record["id"], "--json").json == record

    broken = written("q.json", ids["narrow"], append(ids["notes"]), append(ids["doubled"], source_selector="amount"))
    with shell.untouched():
        failed = shell("run", broken, "--json", code=1)
    assert (failed.json["state"], failed.json["written"]) == ("failed", [])
    assert json.loads(failed.err)["error"]["reason"] == failed.json["error"]["error"]["code"].lower() == "append_004"

    listed = shell("runs", "--json").json
    assert [(run["id"], run["state"]) for run in listed] == [
        (failed.json["id"], "failed"),
        (record["id"], "succeeded"),
    ]
    assert shell("runs", "--limit", 1, "--json").json == listed[:1]
    assert shell("runs", "--state", "succeeded", "--state", "running", "--json").json == listed[1:]
    heads, _, first, second = shell("runs").out.decode().splitlines()
    assert heads.split() == ["id", "state", "pipeline", "started", "took", "rows", "by"]
    assert first.split()[:3] == [failed.json["id"], "failed", "monthly"]
    assert re.search(r"succeeded +monthly +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +[\d.]+ s +3 +\w", second)
    assert "there are no such runs" in shell("runs", "--state", "queued").err
    assert f"run {record['id']} is over: succeeded" in shell("runs", record["id"], "--cancel").err


SHOWN = [
    (Progress(1, 4, 7, "append", "write", 2, 1, 8, 3, 12_000), "operation 2/4 append · write · stages 1/2 · tasks 3/8 · 12,000 rows written · 3 s"),
    (Progress(0, 1, 0, "merge", "match", 1, 0, 1), "operation 1/1 merge · match · stages 0/1 · tasks 0/1 · 3 s"),
    (Progress(0, 1, 0, "merge"), "operation 1/1 merge · starting · 3 s"),
    (Progress(0, 1, 0, "merge", "write", rows=9), "operation 1/1 merge · write · 9 rows in files written anew · 3 s"),
    (Progress(0, 1, 0, "append", "write", rows=1), "operation 1/1 append · write · 1 row written · 3 s"),
]  # fmt: skip


@pytest.mark.parametrize(("progress", "line"), SHOWN, ids=[line for _, line in SHOWN])
def test_progress_is_one_line(progress: Progress, line: str) -> None:
    assert shown(progress, 3.2) == line


def test_a_terminal_shows_one_line_that_is_gone_when_the_answer_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    watch = Watch(live=True, lines=True)
    for operation in (0, 1):
        watch.hear_and_draw(Progress(operation, 2, operation, "append", "write"))
    watch.finish()
    told = [re.sub(r"\d+ s$", "… s", line) for line in capsys.readouterr().err.split("\r\x1b[K")]
    assert told == ["", "operation 1/2 append · write · … s", "operation 2/2 append · write · … s", ""]


def test_without_java_one_sentence_is_said_and_nothing_is_left(shell: Shell, ids: dict[str, str]) -> None:
    shell.env["JAVA_HOME"] = str(shell.folder / "nowhere")
    file = written("p.yaml", ids["narrow"], append(ids["notes"]))
    with shell.untouched():
        answer = shell.apart("run", file)
        story = shell.apart("demo", "--keep", "kept")
    assert (answer.code, documents(answer.out)[0]["error"]["code"]) == (1, "NO_JAVA")
    for said in (answer.err, story.err):
        assert len(said.splitlines()) == 1
        assert "Spark needs a full Java 17 or 21" in said
    assert story.code == 1


def needs_java() -> None:
    from conftest import not_tested
    from spark_sessions import java

    if java() is None:
        not_tested("no pipeline ran in a process of its own", "Java is not installed")


def test_a_run_in_a_process_of_its_own_says_only_what_it_should(shell: Shell, ids: dict[str, str]) -> None:
    needs_java()
    file = written("p.yaml", ids["narrow"], append(ids["notes"]), append(ids["narrow"]))
    shell.env["TMPDIR"] = str(shell.folder)
    before = sorted(shell.folder.iterdir())
    process = shell.process("run", file)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, [each["result"]["rows_appended"] for each in documents(out)]) == (0, [2, 1])
    first, second, last = err.decode().splitlines()
    assert first.startswith("operation 1/2 append · 2 rows written · ")
    assert second.startswith("operation 2/2 append · 1 row written · ")
    assert last == "demo.narrow is at version 2, with 4 rows"
    assert sorted(shell.folder.iterdir()) == before


CTRL_C = """import os, signal, threading
from penstock import failpoints as faults
from penstock.service.runs import Runner
cancelled, cancel = threading.Event(), Runner.cancel
def cancelling(*args):
    found = cancel(*args)
    cancelled.set()
    return found
def press():
    del faults._armed["stage.synced"]
    os.killpg(os.getpid(), signal.SIGINT)
    assert cancelled.wait(60)
Runner.cancel, faults._armed["stage.synced"] = cancelling, press
pass"""


def shown_on(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 65536):
            yield part
    os.close(terminal)


def test_ctrl_c_cancels_the_run_and_leaves_nothing(shell: Shell, ids: dict[str, str]) -> None:
    needs_java()
    file = written("p.yaml", ids["narrow"], append(ids["notes"]), append(ids["narrow"]))
    ours, theirs = pty.openpty()
    with shell.untouched():
        process = shell.process(
            "run", file, before=CTRL_C, stderr=theirs, stdin=subprocess.DEVNULL, start_new_session=True
        )
        os.close(theirs)
        seen = b"".join(shown_on(ours)).decode()
        out, _ = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, b"")
    assert "\r\x1b[Koperation 1/2 append · " in seen  # on a terminal, one line that lives
    *_, last = seen.split("\r\x1b[K")
    assert last.split("\r\n") == ["penstock: cancelling", "penstock: the run was cancelled; nothing was written", ""]
    (record,) = shell("runs", "--json").json
    assert (record["state"], record["error"]["error"]["code"]) == ("cancelled", "RUN_CANCELLED")


def test_the_examples_are_one_pipeline_written_twice() -> None:
    json_, yaml = (
        text.document((EXAMPLES / name).read_bytes(), None, name).value for name in ("budget.json", "budget.yaml")
    )
    assert json_ == yaml
    assert [operation.type for operation in pipeline.read(yaml).operations] == ["append", "append", "append", "merge"]
