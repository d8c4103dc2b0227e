"""Pipeline and run pages: edit, validate, run, follow, cancel, and resolve conflicts."""

import json
import re
from typing import Any

import httpx
from playwright.sync_api import Dialog, Locator, Page, expect

from penstock.core.caller import Role
from penstock.core.payload.documents import Document
from penstock.core.pipeline.run import RunState
from penstock.ui.pipelines import definition, run_list, run_steps
from penstock.ui.pipelines.definition import LocatedError
from penstock.ui.pipelines.run_steps import StepStatus
from ui.conftest import NARROW, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
SPARK_MILLISECONDS = 120_000  # Spark takes a while to start


# -- definitions -------------------------------------------------------------------------------------------------------


def dataset(name: str, *columns: str, read_only: bool = False, id: str = UNKNOWN_ID) -> dict[str, Any]:
    schema = [{"name": column, "type": "string", "nullable": True} for column in columns]
    return {"id": id, "name": name, "schema": schema, "rows": 1, "read_only": read_only}


def test_parse_text_of_invalid_json_reports_line_and_column() -> None:
    error = definition.parse_text('{\n  "name": "a",\n  oops\n}')
    assert isinstance(error, LocatedError)
    assert error.line == 3
    assert "line 3, column 3" in error.message


def test_locate_errors_uses_line_of_pointer_or_of_its_parent() -> None:
    document = definition.parse_text('{\n "name": "a",\n "operations": [\n  {"type": "append",\n   "order": 0}]}')
    assert isinstance(document, Document)
    errors: list[dict[str, Any]] = [
        {"pointer": "/operations/0/order", "message": "taken", "details": {"extra_columns": ["a", "b"], "other": None}},
        {"pointer": "/operations/0/parameters", "message": "missing"},
        {"pointer": "/working", "message": "missing"},
    ]
    located = definition.locate_errors(document, errors)
    assert [error.line for error in located] == [5, 4, 1]
    assert located[0].details == (("extra columns", "a, b"),)
    assert located[0].location == "Line 5 · /operations/0/order"


def test_example_pipeline_appends_to_dataset_with_matching_columns() -> None:
    narrow, wide, odd = dataset("a.narrow", "x", id="1"), dataset("a.wide", "x", "y", id="2"), dataset("a.odd", "z")
    example = definition.example_pipeline([odd, narrow, wide])
    assert (example["working"]["dataset_id"], example["operations"][0]["parameters"]["source"]["dataset_id"]) == (
        "2",
        "1",
    )


def test_example_pipeline_of_single_dataset_deduplicates_and_respects_read_only() -> None:
    example = definition.example_pipeline([dataset("a.only", "x", "id")])
    assert example["operations"][0]["parameters"]["key_columns"] == ["id"]
    assert "output" not in example
    read_only = definition.example_pipeline([dataset("a.only", "x", read_only=True)])
    assert read_only["output"] == {"schema_name": "a", "table_name": "only_unique"}


def test_add_operation_gets_last_order() -> None:
    new = definition.new_operation("append", dataset("a.b", "x"))
    assert definition.add_operation({"operations": [{"order": 7}, {"order": 2}]}, new) == {
        "operations": [{"order": 7}, {"order": 2}, {"type": "append", "order": 8, "parameters": new["parameters"]}]
    }
    assert definition.add_operation({"operations": [{}]}, new) == {"operations": [{}, new]}
    assert definition.add_operation([], new) is definition.add_operation({}, new) is None


def test_diff_lines_ignores_equivalent_notation() -> None:
    parameters = {"source": {"dataset_id": UNKNOWN_ID}, "key_columns": "id", "strategy": "upsert"}
    edited = {
        "operations": [{"type": "merge", "parameters": parameters}],
        "working": {"dataset_id": UNKNOWN_ID},
        "name": "a",
    }
    stored = json.loads(definition.format_as_stored(edited))
    assert stored["operations"][0]["parameters"]["key_columns"] == ["id"]
    assert (
        definition.diff_lines(definition.format_pipeline({**stored, "version": 2}), definition.format_as_stored(edited))
        == []
    )


def test_diff_lines_contain_lines_of_both_sides() -> None:
    text = "\n".join("abcdefghij")
    lines = definition.diff_lines(text, text.replace("a", "A").replace("j", "J"))
    assert [line for line in lines if line[0] in "-+"] == [("-", "a"), ("+", "A"), ("-", "j"), ("+", "J")]
    assert ("…", "") in lines
    assert definition.diff_lines(text, text) == []


# -- steps of a run ----------------------------------------------------------------------------------------------------


def run(state: RunState, **more: Any) -> dict[str, Any]:
    """Create a run of two operations."""
    operation = {"type": "append", "parameters": {"source": {"dataset_id": UNKNOWN_ID}}}
    return {
        "id": UNKNOWN_ID, "state": str(state), "cancelling": False, "progress": None, "results": [], "error": None,
        "written": [], "created_at": "2026-01-31T10:30:00Z", "started_at": "2026-01-31T10:30:00Z",
        "ended_at": "2026-01-31T10:30:02.5Z",
        "pipeline": {"operations": [{**operation, "order": 0}, {**operation, "order": 1, "alias": "the second"}]}, **more,
    }  # fmt: skip


DONE = {
    "success": True, "operation": "append", "order": 0,
    "result": {
        "rows_appended": 1, "working_dataset_rows_after": 1000, "execution_time_ms": 23, "aggregated": True,
        "filtered": True,
    },
}  # fmt: skip
PROGRESS = {
    "operation": 1, "operations": 2, "order": 1, "type": "append", "phase": "write", "stages": 3, "stages_done": 1,
    "tasks": 4, "tasks_done": 2, "rows": 5000,
}  # fmt: skip


def run_error(**details: Any) -> dict[str, Any]:
    return {"error": {"code": "APPEND_001", "message": "Dataset not found", "details": details}}


def test_list_steps_of_running_run_reports_status_and_progress() -> None:
    first, second = run_steps.list_steps(run(RunState.RUNNING, progress=PROGRESS, results=[DONE]))
    assert first.message == "1 row appended, filtered and aggregated; 1,000 rows in the working dataset; took 23 ms"
    assert (first.status, second.status) == (StepStatus.DONE, StepStatus.RUNNING)
    assert second.message == "write, task 2 of 4, stage 1 of 3, 5,000 rows written"
    assert second.title == "the second"
    assert run_steps.completed_share(run(RunState.RUNNING, progress=PROGRESS)) == 0.75
    assert [step.status for step in run_steps.list_steps(run(RunState.QUEUED))] == [StepStatus.WAITING] * 2


def test_run_error_belongs_to_the_operation_that_it_names() -> None:
    failed = run(RunState.FAILED, error=run_error(operation_order=1, dataset_id=UNKNOWN_ID), results=[DONE])
    assert [step.status for step in run_steps.list_steps(failed)] == [StepStatus.DONE, StepStatus.FAILED]
    assert run_steps.list_steps(failed)[1].details == (("dataset id", UNKNOWN_ID),)
    assert run_steps.find_run_error(failed) is None
    lost = run(RunState.FAILED, error=run_error(dataset_id=UNKNOWN_ID))
    assert [step.status for step in run_steps.list_steps(lost)] == [StepStatus.SKIPPED] * 2
    assert run_steps.find_run_error(lost) == ("Dataset not found", (("dataset id", UNKNOWN_ID),))


def test_every_run_state_has_description_and_style() -> None:
    sentences = {run_steps.describe_run(run(state)) for state in RunState}
    assert len(sentences) == len(RunState) == len({style.sign for style in run_list.STATE_STYLES.values()})
    assert "Cancellation requested" in run_steps.describe_run(run(RunState.RUNNING, cancelling=True))
    assert run_steps.describe_run(run(RunState.RUNNING, progress=PROGRESS)) == "Operation 2 of 2: append."


def test_describe_run_before_first_spark_stage_is_starting() -> None:
    starting = run(RunState.RUNNING, progress={**PROGRESS, **dict.fromkeys(("operation", "order", "stages", "tasks", "rows"), 0), "phase": None})  # fmt: skip
    assert run_steps.describe_run(starting) == "Starting Spark."
    assert [step.message for step in run_steps.list_steps(starting)] == ["starting Spark", ""]
    starting["progress"]["phase"] = "read"
    assert run_steps.describe_run(starting) == "Operation 1 of 2: append."


def test_run_seconds_is_none_until_run_has_ended() -> None:
    assert run_list.run_seconds(run(RunState.SUCCEEDED)) == 2.5
    assert run_list.run_seconds(run(RunState.RUNNING, ended_at=None)) is None


# -- the pages ---------------------------------------------------------------------------------------------------------


def create_dataset(rest: httpx.Client, name: str, rows: str = "id,region,amount\n1,EMEA,120\n2,APAC,80\n") -> str:
    """Create a dataset, and return its id."""
    answer = rest.post("/datasets", params={"name": name}, content=rows, headers={"content-type": "text/csv"})
    return str(answer.raise_for_status().json()["id"])


def pipeline(working: str, source: str, name: str = "month", **parameters: Any) -> dict[str, Any]:
    operation = {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}
    return {"name": name, "working": {"dataset_id": working}, "operations": [operation]}


def create_pipeline(rest: httpx.Client, definition: dict[str, Any]) -> str:
    return str(rest.post("/pipelines", json=definition).raise_for_status().json()["id"])


def load_pipeline(rest: httpx.Client, id: str) -> dict[str, Any]:
    stored: dict[str, Any] = rest.get(f"/pipelines/{id}").json()
    return stored


def editor(page: Page) -> Locator:
    return page.get_by_label("Pipeline as JSON")


def write(page: Page, value: Any) -> None:
    editor(page).fill(value if isinstance(value, str) else json.dumps(value, indent=2))


def expect_valid(page: Page) -> None:
    expect(page.get_by_text("The pipeline is valid.")).to_be_visible()


def test_pipeline_is_edited_saved_run_and_followed_to_written_version(visit: Visit, rest: httpx.Client) -> None:
    create_dataset(rest, "finance.ledger")
    create_dataset(rest, "finance.sales", "id,region,amount\n3,EMEA,10\n4,APAC,20\n5,APAC,500\n")
    page = visit("/pipelines", Role.DEVELOPER)
    page.get_by_role("button", name="Create a pipeline").click()
    expect(page.get_by_role("heading", name="New pipeline")).to_be_visible()
    expect_valid(page)  # the example uses the tenant's datasets
    expect(page.locator(".penstock-hint")).to_have_text(["finance.ledger", "finance.sales"])

    example = definition.example_pipeline(rest.get("/datasets", params={"$orderby": "name"}).json()["value"])
    parameters = example["operations"][0]["parameters"]
    write(
        page, {**example, "operations": [{"type": "append", "parameters": {**parameters, "source_selector": "no = 1"}}]}
    )
    expect(page.get_by_text("1 error found.")).to_be_visible()
    expect(page.get_by_text("Column referenced in expression not found in source dataset")).to_be_visible()
    expect(page.get_by_text("source columns: id, region, amount")).to_be_visible()

    good = {"type": "append", "parameters": {**parameters, "source_selector": "amount < 100"}}
    write(page, {**example, "name": "month", "operations": [good]})
    expect_valid(page)
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("heading", name="month", exact=True)).to_be_visible()
    expect(page.get_by_text("No runs yet.")).to_be_visible()

    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("heading", name="Run of month")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_be_visible()
    expect(page.get_by_text("finance.ledger is at version 2.")).to_be_visible(timeout=SPARK_MILLISECONDS)
    expect(page.get_by_text("done: 2 rows appended, filtered; 4 rows in the working dataset")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel run")).to_be_hidden()
    link = page.get_by_role("link", name="finance.ledger, version 2")
    expect(link).to_have_attribute("href", "/ui/datasets/finance.ledger?version=2")

    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("finance.ledger is at version 3.")).to_be_visible(timeout=SPARK_MILLISECONDS)
    page.get_by_role("link", name="‹ month").click()
    expect(page.get_by_role("img", name="Rows by run")).to_have_attribute(
        "aria-label", re.compile("inserted from 2 to 2; updated from 0 to 0")
    )
    expect(page.get_by_role("img", name="Seconds by run")).to_be_visible()
    expect(page.get_by_role("link", name="✓ succeeded")).to_have_count(2)
    expect(page.get_by_role("link", name="finance.ledger version 3")).to_be_visible()
    assert len({entry["idempotency_key"] for entry in rest.get("/runs").json()["value"]}) == 2


def test_cancel_queued_run(visit: Visit, rest: httpx.Client) -> None:
    month = create_pipeline(
        rest, pipeline(create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales"))
    )
    started = [rest.post(f"/pipelines/{month}/runs").raise_for_status().json()["id"] for _ in range(12)]
    page = visit(f"/runs/{started[-1]}", Role.DEVELOPER)
    expect(page.get_by_text("Waiting in the run queue.")).to_be_visible()
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.get_by_text("The run was cancelled. Nothing was written.")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_be_hidden()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    assert rest.get(f"/runs/{started[-1]}").json()["state"] == "cancelled"
    for id in started:
        rest.post(f"/runs/{id}/cancel")
    page.get_by_role("link", name="‹ month").click()
    page.get_by_role("link", name="‹ Pipelines").click()
    expect(page.get_by_role("link", name="◼ cancelled")).to_be_visible()


def test_cancel_running_run_after_progress(visit: Visit, rest: httpx.Client) -> None:
    long = pipeline(create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales"), name="long")
    started = rest.post(
        f"/pipelines/{create_pipeline(rest, {**long, 'operations': long['operations'] * 40})}/runs"
    ).json()["id"]
    page = visit(f"/runs/{started}", Role.DEVELOPER)
    status = page.get_by_role("status").filter(has_text="Operation")
    status.wait_for(timeout=SPARK_MILLISECONDS)
    first = status.inner_text()
    expect(status).not_to_have_text(first, timeout=SPARK_MILLISECONDS)
    expect(page.get_by_text("done: 2 rows appended").first).to_be_visible()
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    cancelled = page.get_by_role("status").filter(has_text="The run was cancelled. Nothing was written.")
    expect(cancelled).to_be_visible(timeout=SPARK_MILLISECONDS)
    expect(page.get_by_text("not run").last).to_be_visible()
    assert rest.get("/datasets/finance.ledger").json()["version"] == 1


def test_failed_run_shows_error_of_operation(visit: Visit, rest: httpx.Client) -> None:
    lost = create_pipeline(rest, pipeline(create_dataset(rest, "finance.ledger"), UNKNOWN_ID, name="lost"))
    page = visit(f"/pipelines/{lost}", Role.DEVELOPER, width=NARROW, dark=True)
    expect(page.get_by_text("1 error found.")).to_be_visible()
    colour = "getComputedStyle(document.querySelector('.cm-editor')).backgroundColor"
    page.wait_for_function(f"{colour} === 'rgb(30, 30, 30)'")
    page.get_by_label("Switch theme").click()
    page.wait_for_function(f"{colour} === 'rgb(255, 255, 255)'")
    page.get_by_role("button", name="Run", exact=True).dblclick()
    expect(page.get_by_text("The run failed. Nothing was written.")).to_be_visible(timeout=SPARK_MILLISECONDS)
    expect(page.get_by_text("failed: Dataset not found (APPEND_001)")).to_be_visible()
    expect(page.get_by_text(f"dataset id: {UNKNOWN_ID}")).to_be_visible()
    assert len(rest.get("/runs").json()["value"]) == 1, "a double click starts one run"
    page.goto(page.url.partition("/runs/")[0] + "/runs")
    expect(page.get_by_role("link", name="✗ failed")).to_be_visible()
    page.get_by_label("State").click()
    page.get_by_role("option", name="succeeded").click()
    expect(page.get_by_text("No runs in this state.")).to_be_visible()


def test_viewer_can_neither_change_nor_run_pipelines(visit: Visit, rest: httpx.Client) -> None:
    month = create_pipeline(
        rest, pipeline(create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales"))
    )
    page = visit("/pipelines", Role.VIEWER)
    expect(page.get_by_role("link", name="month")).to_be_visible()
    expect(page.get_by_role("button", name="New pipeline")).to_have_count(0)
    page.get_by_role("link", name="month").click()
    expect_valid(page)
    expect(editor(page)).to_have_attribute("contenteditable", "false")
    for name in ("Run", "Save", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_label("Find a dataset")).to_have_count(0)
    waiting = rest.post(f"/pipelines/{create_pipeline(rest, pipeline(UNKNOWN_ID, UNKNOWN_ID, name='x'))}/runs").json()[
        "id"
    ]
    page.goto(page.url.replace(f"/pipelines/{month}", f"/runs/{waiting}"))
    expect(page.get_by_role("heading", name="Run of x")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    page.goto(page.url.replace(f"/runs/{waiting}", "/pipelines/new"))
    expect(page.get_by_text("you need the role analytics.developer")).to_be_visible()
    expect(editor(page)).to_have_count(0)


def test_pipeline_conflict_shows_both_versions_and_loses_none(visit: Visit, rest: httpx.Client) -> None:
    first = pipeline(create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales"))
    month = create_pipeline(rest, first)
    page = visit(f"/pipelines/{month}", Role.DEVELOPER)
    expect_valid(page)

    def others_save(selector: str, version: int) -> None:
        rest.put(
            f"/pipelines/{month}",
            json={**pipeline(**_ids(first), source_selector=selector), "version": version},
        ).raise_for_status()

    others_save("id = 1", 1)
    write(page, pipeline(**_ids(first), source_selector="id = 2"))
    expect_valid(page)
    page.get_by_role("button", name="Save").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The saved version is now 2.")).to_be_visible()
    expect(dialog.get_by_text('"source_selector": "id = 1"')).to_be_visible()
    expect(dialog.get_by_text('"source_selector": "id = 2"')).to_be_visible()
    expect(dialog.get_by_text('"name": "month"')).to_have_count(0)  # too far from the difference
    dialog.get_by_role("button", name="Keep editing").click()
    expect(dialog).to_have_count(0)
    assert load_pipeline(rest, month)["version"] == 2
    assert page.evaluate("window.penstockUnsaved") is True

    page.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Overwrite with mine").click()
    expect(page.get_by_text("Saved as version 3.")).to_be_visible()
    assert load_pipeline(rest, month)["operations"][0]["parameters"]["source_selector"] == "id = 2"
    page.wait_for_function("window.penstockUnsaved === false")

    others_save("id = 4", 3)
    write(page, pipeline(**_ids(first), source_selector="id = 5"))
    page.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Load theirs").click()
    expect(editor(page)).to_contain_text("id = 4")
    expect(page.get_by_text("Version 4 · changed")).to_be_visible()
    assert load_pipeline(rest, month)["operations"][0]["parameters"]["source_selector"] == "id = 4"


def _ids(pipeline: dict[str, Any]) -> dict[str, str]:
    source = pipeline["operations"][0]["parameters"]["source"]["dataset_id"]
    return {"working": pipeline["working"]["dataset_id"], "source": source}


def test_pipeline_editor_locates_errors_and_inserts_datasets(visit: Visit, rest: httpx.Client) -> None:
    ledger, sales = create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales")
    page = visit("/pipelines/new", Role.DEVELOPER)
    expect_valid(page)
    write(page, '{\n  "name": "month",\n  oops\n}')
    expect(page.get_by_text("at line 3, column 3")).to_be_visible()
    page.get_by_role("button", name="Go to line 3").click()
    expect(page.locator(".cm-activeLine")).to_have_text("  oops")
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("alert").get_by_text("at line 3, column 3")).to_be_visible()
    page.get_by_role("alert").get_by_role("button", name="Close").click()

    write(page, {"working": {"dataset_id": "x"}, "operations": [{"type": "append", "order": "a", "parameters": {}}]})
    expect(page.get_by_text("errors found.")).to_be_visible()
    for line, pointer in (
        (3, "/working/dataset_id"),
        (8, "/operations/0/order"),
        (9, "/operations/0/parameters/source"),
    ):
        expect(page.get_by_role("button", name=f"Go to line {line}, {pointer}")).to_be_visible()

    write(page, {"name": "month", "working": {"dataset_id": ledger}, "operations": []})
    page.get_by_label("Find a dataset").fill("sale")
    expect(page.get_by_role("button", name="finance.ledger")).to_have_count(0)
    page.get_by_role("button", name="finance.sales").click()
    expect(page.get_by_text("region", exact=True)).to_be_visible()
    page.get_by_role("button", name="Add merge: finance.sales").click()
    expect_valid(page)
    page.get_by_role("button", name="Add append: finance.sales").click()
    expect(editor(page)).to_contain_text('"append"')
    expect_valid(page)
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("heading", name="month", exact=True)).to_be_visible()
    (stored,) = rest.get("/pipelines").json()["value"]
    assert [operation["type"] for operation in stored["operations"]] == ["merge", "append"]
    assert {operation["parameters"]["source"]["dataset_id"] for operation in stored["operations"]} == {sales}

    write(page, '""')
    editor(page).press("Control+Home")
    editor(page).press("ArrowRight")
    page.get_by_role("button", name="finance.ledger").click()
    page.get_by_role("button", name="Insert id: finance.ledger").click()
    expect(editor(page)).to_contain_text(f'"{ledger}"')


def test_pipeline_editor_guards_unsaved_changes(visit: Visit, rest: httpx.Client) -> None:
    first = pipeline(create_dataset(rest, "finance.ledger"), create_dataset(rest, "finance.sales"))
    month = create_pipeline(rest, first)
    page = visit(f"/pipelines/{month}", Role.DEVELOPER, expect=("beforeunload",))
    expect_valid(page)
    dialogs: list[str] = []

    def stay(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    write(page, {**first, "name": "quarter"})
    expect(page.get_by_text("Unsaved changes")).to_be_visible()
    with page.expect_event("dialog"):
        page.get_by_role("link", name="‹ Pipelines").click()
    assert dialogs == ["beforeunload"]
    expect(editor(page)).to_contain_text("quarter")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("Save your changes and run?")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert load_pipeline(rest, month)["name"] == "month"
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Save and run").click()
    expect(page.get_by_role("heading", name="Run of quarter")).to_be_visible()
    page.get_by_role("link", name="‹ quarter").click()

    write(page, {**first, "name": "year"})
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", name="year")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No pipelines yet.")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="Deleted the pipeline year.")).to_be_visible()
    assert rest.get(f"/pipelines/{month}").status_code == 404
    assert dialogs == ["beforeunload"]


def test_pipeline_list_searches_and_pages(visit: Visit, rest: httpx.Client) -> None:
    ledger = create_dataset(rest, "finance.ledger")
    for number in range(23):
        create_pipeline(rest, pipeline(ledger, ledger, name=f"pipeline {number:02}"))
    page = visit("/pipelines", width=NARROW)
    expect(page.get_by_text("1–20 of 23")).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text("21–23 of 23")).to_be_visible()
    expect(page.get_by_role("link", name="pipeline 22")).to_be_visible()
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()
    page.get_by_role("link", name="pipeline 22").click()
    page.get_by_role("heading", name="pipeline 22").wait_for()
    page.go_back()
    expect(page.get_by_text("21–23 of 23")).to_be_visible()
    page.get_by_label("Search by name").fill("E 07")
    expect(page.get_by_text("1–1 of 1")).to_be_visible()
    expect(page.get_by_role("link", name="pipeline 07")).to_be_visible()
    page.get_by_label("Search by name").fill("no such")
    expect(page.get_by_text("No pipelines match.")).to_be_visible()


def test_pipeline_pages_render_user_text_as_text(visit: Visit, rest: httpx.Client) -> None:
    odd = create_dataset(rest, "finance.odd", f'id,"{EVIL.replace(chr(34), chr(34) * 2)}"\n1,2\n')
    evil = pipeline(create_dataset(rest, "finance.ledger"), odd, name=EVIL)
    evil["operations"][0]["alias"] = EVIL
    id = create_pipeline(rest, evil)
    page = visit("/pipelines")
    page.get_by_role("link", name=EVIL).click()
    expect(page.get_by_role("heading", name=EVIL)).to_be_visible()
    expect(page.get_by_text(f"extra columns: {EVIL}")).to_be_visible()
    page.get_by_role("button", name="finance.odd").click()
    expect(page.get_by_text(EVIL, exact=True).last).to_be_visible()
    page.locator(".penstock-wrong").first.hover()
    rest.put(f"/pipelines/{id}", json={**evil, "name": f"{EVIL}?", "version": 1}).raise_for_status()
    write(page, {**evil, "name": f"{EVIL}!"})
    page.get_by_role("button", name="Save").click()
    for sign in "?!":
        expect(page.get_by_role("dialog").get_by_text(f'"name": {json.dumps(EVIL + sign)}')).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Overwrite with mine").click()
    expect(page.get_by_role("heading", name=f"{EVIL}!")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text(f"extra columns: {EVIL}")).to_be_visible(timeout=SPARK_MILLISECONDS)
    expect(page.get_by_text(f"1. {EVIL} · finance.odd")).to_be_visible()
    page.get_by_role("button", name="Pipeline definition of this run").click()
    expect(page.get_by_label("Definition as JSON")).to_contain_text(json.dumps(EVIL))
    assert page.evaluate("window.hacked") is None
