"""`penstock validate`, `run` and `runs`: responses, progress and errors."""

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

import penstock
from penstock.cli.progress import ProgressLine, format_progress
from penstock.core.payload import documents as payload_documents
from penstock.core.pipeline import definition as pipeline_definition
from penstock.core.progress import Progress
from support import operation_cases
from support.cli_runner import CliResult, CliRunner
from support.operation_cases import UNKNOWN, OperationCase

EXAMPLES = Path(__file__).parents[2] / "examples"
ROW_ERRORS = ("MERGE_005", "MERGE_006")


@pytest.fixture(scope="module")
def pipeline_workspace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a workspace with the datasets of the cases, and their ids."""
    folder = tmp_path_factory.mktemp("pipelines") / "lake"
    with penstock.open(folder, create=True) as lake:
        return folder, {name: str(dataset.id) for name, dataset in operation_cases.create_datasets(lake).items()}


@pytest.fixture
def ids(cli: CliRunner, pipeline_workspace: tuple[Path, dict[str, str]]) -> dict[str, str]:
    """Copy the workspace for the test, and return the ids of its datasets."""
    shutil.rmtree("lake")
    shutil.copytree(pipeline_workspace[0], "lake")
    return pipeline_workspace[1]


def write_pipeline(name: str, working: str, *operations: dict[str, Any], **members: Any) -> Path:
    path = Path(name)
    value = {"name": "monthly", "working": {"dataset_id": working}, "operations": operations, **members}
    path.write_text(json.dumps(value, indent=1))  # JSON is YAML, too
    return path


def append_operation(source: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}


def parse_documents(out: bytes) -> list[Any]:
    """Parse several JSON documents, one after the other."""
    documents, text = [], out.decode()
    while text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        assert text[:end] == json.dumps(value, indent=2, ensure_ascii=False)
        documents.append(value)
        text = text[end:].lstrip()
    return documents


def read_rows(cli: CliRunner, name: str) -> list[dict[str, Any]]:
    return cli("dataset", "read", f"demo.{name}", "--json", "--limit", 100).rows


def single_error(document: dict[str, Any]) -> dict[str, Any]:
    """Return the error in the form of a single operation."""
    if document.get("error", {}).get("code") != "BAD_PIPELINE":
        return document
    (error,) = document["error"]["details"]["errors"]
    pointer = error.pop("pointer").removeprefix("/operations/0")
    return {"error": {**error, "details": {"pointer": pointer, **error["details"]}}}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("case", operation_cases.CASES, ids=lambda case: case.name)
def test_run_prints_the_contract_response(cli: CliRunner, ids: dict[str, str], case: OperationCase) -> None:
    file = write_pipeline("p.yaml", ids[case.working], operation_cases.build_operation(case, ids))
    before, failed = read_rows(cli, case.working), "error" in case.response
    valid = not failed or case.response["error"]["code"] in ROW_ERRORS
    checked = cli("validate", file, "--json", code=0 if valid else 1).json
    assert checked["valid"] == valid
    assert [error["code"] for error in checked["errors"]] == ([] if valid else [case.response["error"]["code"]])
    result = cli("run", file, code=1 if failed else 0)
    (document,) = parse_documents(result.out)
    assert operation_cases.normalize_response(single_error(document), ids) == case.response
    assert operation_cases.added_rows(before, read_rows(cli, case.working)) == sorted(case.rows or [], key=str)
    if failed:
        assert case.response["error"]["message"] in result.err
    else:
        version, total = (2 if case.rows else 1), document["result"]["working_dataset_rows_after"]
        assert re.search(
            rf"^demo.{case.working} is at version {version}, with {total} rows?$", result.err, re.MULTILINE
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
INVALID_SHAPE = """\
name: ''
operations:
  - type: append
    parameters:
      limit: 5
  - type: upend
"""


def test_validate_reports_every_error_with_its_line(cli: CliRunner, ids: dict[str, str]) -> None:
    submitted = WRONG.replace("NARROW", ids["narrow"]).replace("EXTRAS", ids["extras"]).replace("NOTES", ids["notes"])
    Path("wrong.yml").write_text(submitted.replace("UNKNOWN", UNKNOWN))
    document = cli("validate", "wrong.yml", "--json", code=1).json
    assert (document["valid"], [error.pop("details")["operation_order"] for error in document["errors"]]) == (
        False,
        [1, 2, 5],
    )
    assert document["errors"] == [
        {"pointer": "/operations/1", "code": "APPEND_001", "message": "Dataset not found", "line": 8},
        {"pointer": "/operations/2", "code": "MERGE_003", "message": "Key columns do not match", "line": 12},
        {
            "pointer": "/operations/0",
            "code": "APPEND_003",
            "message": "Appended rows contain columns not in working dataset",
            "line": 4,
        },
    ]
    message = cli("validate", "wrong.yml", code=1)
    assert message.out == b""
    assert message.err.splitlines() == [
        f"wrong.yml:8: /operations/1: APPEND_001 Dataset not found (dataset_id {UNKNOWN})",
        "wrong.yml:12: /operations/2: MERGE_003 Key columns do not match: The source does not have the key columns 'nr'. "
        "It has 'account_code', 'amount', 'description'",
        "wrong.yml:4: /operations/0: APPEND_003 Appended rows contain columns not in working dataset (extra_columns "
        "budget_type, fiscal_year; working_columns account_code, amount, description)",
    ]


def test_validate_and_run_report_the_same_shape_errors(cli: CliRunner) -> None:
    Path("wrong.yaml").write_text(INVALID_SHAPE)
    checked = cli("validate", "wrong.yaml", "--json", code=1).json
    assert [(error["pointer"], error["line"]) for error in checked["errors"]] == [
        ("/working", 1),
        ("/name", 1),
        ("/operations/0/parameters/source", 4),
        ("/operations/0/parameters/limit", 5),
        ("/operations/1/type", 6),
    ]
    with cli.assert_unchanged():
        result = cli("run", "wrong.yaml", code=1)
    (document,) = parse_documents(result.out)
    errors = [{name: member for name, member in error.items() if name != "line"} for error in checked["errors"]]
    assert (document["error"]["code"], document["error"]["details"]["errors"]) == ("BAD_PIPELINE", errors)
    first, *lines = result.err.splitlines()
    assert first == "penstock: The pipeline has 5 errors. The first is at /working"
    assert lines == cli("validate", "wrong.yaml", code=1).err.splitlines()
    assert json.loads(cli("run", "wrong.yaml", "--json", code=1).err)["error"]["errors"] == errors
    assert cli("runs", "--json").json == []


def test_run_dry_run_json_prints_the_contract_error(cli: CliRunner, ids: dict[str, str]) -> None:
    file = write_pipeline("p.json", ids["narrow"], append_operation(UNKNOWN))
    for options in (["--dry-run", "--json"], ["--dry-run"]):
        with cli.assert_unchanged():
            result = cli("run", file, *options, code=1)
        (response,) = parse_documents(result.out)
        assert single_error(response)["error"]["code"] == "APPEND_001"
        assert "Dataset not found" in result.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.yaml", b"name: x\nname: y", "p.yaml is not valid YAML: member 'name' is duplicated at line 2, column 1"),
        ("p.json", b"name: x", "p.json is not valid JSON: Expecting value at line 1, column 1"),
        ("p.txt", b"{name: x}", "p.txt is not valid JSON: Expecting property name"),
        ("p.txt", b"name: [x", "p.txt is not valid YAML"),
        ("p", b"\xff\xfe", "p is not valid UTF-8"),
    ],
)
def test_validate_and_run_report_malformed_documents(cli: CliRunner, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    assert message in cli("run", name, code=1).err
    assert message in cli("validate", name, code=1).err
    document = cli("validate", name, "--json", code=1).json
    assert (document["valid"], len(document["errors"]), document["errors"][0]["pointer"]) == (False, 1, "")
    assert document["errors"][0]["message"].startswith(message)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["run", "nowhere.yaml"], 1, "Cannot read nowhere.yaml: No such file"),
        (["validate", "."], 1, "Cannot read .: Is a directory"),
        (["validate", "/dev/zero"], 1, "/dev/zero exceeds the limit of 4,194,304 bytes"),
        (["run", "p.yaml", "--dry-run", "--key", "x"], 2, "--dry-run, which writes nothing"),
        (["runs", "--cancel"], 2, "requires the ID"),
        (["runs", "--state", "lost"], 2, "lost"),
        (["runs", "--limit", "0"], 2, "0"),
        (["runs", "one"], 2, "one"),
        (["runs", UNKNOWN], 1, "Run not found"),
        (["runs", UNKNOWN, "--cancel"], 1, "Run not found"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_pipeline_commands_with_invalid_arguments_print_a_message(
    cli: CliRunner, args: list[str], code: int, message: str
) -> None:
    result = cli(*args, code=code)
    assert (result.out, message in result.err) == (b"", True)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_validate_reads_standard_input(
    cli: CliRunner, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    yaml = (
        f"name: x\nworking: {{dataset_id: {ids['narrow']}}}\noperations: [{json.dumps(append_operation(ids['notes']))}]"
    )
    texts = {"yaml": yaml, "json": json.dumps(payload_documents.parse_yaml(yaml.encode(), "it").value)}[form]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(texts.encode())))
    assert cli("validate", "-", "--json").json == {"valid": True, "errors": []}


def test_validate_does_not_import_spark(cli: CliRunner, ids: dict[str, str]) -> None:
    file = write_pipeline("p.json", ids["narrow"], append_operation(ids["notes"], source_selector="amount > 7"))
    result = cli.run_subprocess(
        "validate", file, before="import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None"
    )
    assert result == CliResult(0, b"", "p.json is valid\n")


@pytest.mark.usefixtures("spark")
def test_run_dry_run_prints_the_results_and_writes_nothing(cli: CliRunner, ids: dict[str, str]) -> None:
    merge = {"type": "merge", "parameters": {**append_operation(ids["notes"])["parameters"]}}
    merge["parameters"] |= {"key_columns": ["account_code"], "strategy": "upsert"}
    file = write_pipeline("p.yaml", ids["narrow"], append_operation(ids["notes"], source_selector="amount < 8"), merge)
    with cli.assert_unchanged():
        dry_run = cli("run", file, "--dry-run")
        listed = cli("run", file, "--dry-run", "--json")
    assert dry_run.err.splitlines()[-1] == "Nothing was written (--dry-run)"
    assert listed.err == ""
    assert cli("runs", "--json").json == []
    responses = parse_documents(cli("run", file).out)
    assert [operation_cases.normalize_response(response, ids) for response in parse_documents(dry_run.out)] == [
        operation_cases.normalize_response(response, ids) for response in responses
    ]
    assert [operation_cases.normalize_response(response, ids) for response in listed.json] == [
        operation_cases.normalize_response(response, ids) for response in responses
    ]


@pytest.mark.usefixtures("spark")
def test_runs_lists_recorded_runs(cli: CliRunner, ids: dict[str, str]) -> None:
    file = write_pipeline(
        "p.json",
        ids["narrow"],
        append_operation(ids["notes"]),
        append_operation(ids["notes"], source_selector="amount < 8"),
    )
    message = cli("run", file, "--key", "monday")
    lines = [re.sub(r"\d+ s$", "… s", line) for line in message.err.splitlines()]
    assert lines == [
        "operation 1/2 append · 2 rows written · … s",
        "operation 2/2 append · 1 row written · … s",
        "demo.narrow is at version 2, with 4 rows",
    ]
    with cli.assert_unchanged():
        repeated = cli("run", file, "--key", "monday")
    assert repeated.err == "demo.narrow is at version 2, with 4 rows (already done)\n"
    assert repeated.out == message.out
    record = cli("run", file, "--key", "monday", "--json").json
    assert (record["state"], record["written"][0]["version"], record["error"]) == ("succeeded", 2, None)
    assert record["results"] == parse_documents(message.out)
    assert cli("runs", record["id"]).json == cli("runs", record["id"], "--json").json == record

    broken = write_pipeline(
        "q.json",
        ids["narrow"],
        append_operation(ids["notes"]),
        append_operation(ids["duplicate_keys"], source_selector="amount"),
    )
    with cli.assert_unchanged():
        failed = cli("run", broken, "--json", code=1)
    assert (failed.json["state"], failed.json["written"]) == ("failed", [])
    assert json.loads(failed.err)["error"]["reason"] == failed.json["error"]["error"]["code"].lower() == "append_004"

    listed = cli("runs", "--json").json
    assert [(run["id"], run["state"]) for run in listed] == [
        (failed.json["id"], "failed"),
        (record["id"], "succeeded"),
    ]
    assert cli("runs", "--limit", 1, "--json").json == listed[:1]
    assert cli("runs", "--state", "succeeded", "--state", "running", "--json").json == listed[1:]
    heads, _, first, second = cli("runs").out.decode().splitlines()
    assert heads.split() == ["id", "state", "pipeline", "started", "took", "rows", "by"]
    assert first.split()[:3] == [failed.json["id"], "failed", "monthly"]
    assert re.search(r"succeeded +monthly +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +[\d.]+ s +3 +\w", second)
    assert "No such runs" in cli("runs", "--state", "queued").err
    assert f"run {record['id']} has ended: succeeded" in cli("runs", record["id"], "--cancel").err


PROGRESS_LINES = [
    (Progress("write", 12_000, None, "rows", 1, 4, 7, "append", 2, 1, 8, 3), "operation 2/4 append · write · stages 1/2 · tasks 3/8 · 12,000 rows written · 3 s"),
    (Progress("match", 3, 5, "parts", 0, 1, 0, "merge", 1, 0, 1), "operation 1/1 merge · match · stages 0/1 · tasks 0/1 · 3 s"),
    (Progress(operations=1, order=0, type="merge"), "operation 1/1 merge · starting · 3 s"),
    (Progress("write", 9, 20, operations=1, order=0, type="merge"), "operation 1/1 merge · write · 9 rows in rewritten files · 3 s"),
    (Progress("write", 1, operations=1, order=0, type="append"), "operation 1/1 append · write · 1 row written · 3 s"),
]  # fmt: skip


@pytest.mark.parametrize(("progress", "line"), PROGRESS_LINES, ids=[line for _, line in PROGRESS_LINES])
def test_format_progress_of_run_returns_one_line(progress: Progress, line: str) -> None:
    assert format_progress(progress, 3.2) == line


def test_run_progress_line_is_erased_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line = ProgressLine(print_operations=True)
    for operation in (0, 1):
        line.on_progress(Progress("write", operation=operation, operations=2, order=operation, type="append"))
    line.finish()
    document = [re.sub(r"\d+ s$", "… s", line) for line in capsys.readouterr().err.split("\r\x1b[K")]
    assert document == ["", "operation 1/2 append · write · … s", "operation 2/2 append · write · … s", ""]


def test_run_without_java_prints_one_message(cli: CliRunner, ids: dict[str, str]) -> None:
    cli.env["JAVA_HOME"] = str(cli.folder / "nowhere")
    file = write_pipeline("p.yaml", ids["narrow"], append_operation(ids["notes"]))
    with cli.assert_unchanged():
        result = cli.run_subprocess("run", file)
        demo = cli.run_subprocess("demo", "--keep", "kept")
    assert (result.code, parse_documents(result.out)[0]["error"]["code"]) == (1, "MISSING_JAVA")
    for message in (result.err, demo.err):
        assert len(message.splitlines()) == 1
        assert "Spark needs Java 17 to 21 on the PATH or in JAVA_HOME" in message
    assert demo.code == 1


def needs_java() -> None:
    from conftest import skip_untested
    from support.spark_sessions import java

    if java() is None:
        skip_untested("a pipeline in a separate process", "Java is not installed")


def test_run_process_prints_only_results_and_progress(cli: CliRunner, ids: dict[str, str]) -> None:
    needs_java()
    file = write_pipeline("p.yaml", ids["narrow"], append_operation(ids["notes"]), append_operation(ids["narrow"]))
    cli.env["TMPDIR"] = str(cli.folder)
    before = sorted(cli.folder.iterdir())
    process = cli.process("run", file)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, [document["result"]["rows_appended"] for document in parse_documents(out)]) == (
        0,
        [2, 1],
    )
    first, second, last = err.decode().splitlines()
    assert first.startswith("operation 1/2 append · 2 rows written · ")
    assert second.startswith("operation 2/2 append · 1 row written · ")
    assert last == "demo.narrow is at version 2, with 4 rows"
    assert sorted(cli.folder.iterdir()) == before


CTRL_C = """import os, signal, threading
from penstock import failpoints as faults
from penstock.service.pipelines.run_worker import RunWorker
cancelled, cancel = threading.Event(), RunWorker.cancel
def cancelling(*args):
    found = cancel(*args)
    cancelled.set()
    return found
def press():
    del faults._armed["stage.synced"]
    os.killpg(os.getpid(), signal.SIGINT)
    assert cancelled.wait(60)
RunWorker.cancel, faults._armed["stage.synced"] = cancelling, press
pass"""


def read_terminal(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(terminal, 65536):
            yield chunk
    os.close(terminal)


def test_run_interrupted_by_ctrl_c_is_cancelled(cli: CliRunner, ids: dict[str, str]) -> None:
    needs_java()
    file = write_pipeline("p.yaml", ids["narrow"], append_operation(ids["notes"]), append_operation(ids["narrow"]))
    terminal, child_end = pty.openpty()
    with cli.assert_unchanged():
        process = cli.process(
            "run", file, before=CTRL_C, stderr=child_end, stdin=subprocess.DEVNULL, start_new_session=True
        )
        os.close(child_end)
        output = b"".join(read_terminal(terminal)).decode()
        out, _ = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, b"")
    assert "\r\x1b[Koperation 1/2 append · " in output  # on a terminal, one line that is updated
    *_, last = output.split("\r\x1b[K")
    assert last.split("\r\n") == ["penstock: cancelling", "penstock: The run was cancelled. Nothing was written", ""]
    (record,) = cli("runs", "--json").json
    assert (record["state"], record["error"]["error"]["code"]) == ("cancelled", "RUN_CANCELLED")


def test_example_pipelines_in_json_and_yaml_are_equal() -> None:
    json_, yaml = (
        payload_documents.parse_document((EXAMPLES / name).read_bytes(), None, name).value
        for name in ("budget.json", "budget.yaml")
    )
    assert json_ == yaml
    assert [operation.type for operation in pipeline_definition.parse_pipeline(yaml).operations] == [
        "append",
        "append",
        "append",
        "merge",
    ]


def test_run_without_java_reports_the_path_only_to_the_operator(cli: CliRunner, ids: dict[str, str]) -> None:
    cli.env["JAVA_HOME"] = "/no/java/here"
    operation = {"type": "append", "parameters": {"source": {"dataset_id": ids["budgets"]}}}
    definition = {"name": "x", "working": {"dataset_id": ids["transactions"]}, "operations": [operation]}
    Path("p.json").write_text(json.dumps(definition))
    response = cli.run_subprocess("run", "p.json")
    assert response.code == 1
    assert "openjdk" in response.err
    (run,) = cli.run_subprocess("runs", "--json").json
    error = run["error"]["error"]
    assert (error["code"], error["details"]) == ("MISSING_JAVA", {"operation_order": 0})
    assert error["message"] == "Spark cannot be started because Java is missing on the server. Inform its operator"
