"""Pipelines and runs: written with a judge at one's side, run, watched to the end, and nobody's work lost."""

import json
import re
from typing import Any

import httpx
from playwright.sync_api import Dialog, Locator, Page, expect

from penstock.core.caller import Role
from penstock.core.pipeline.run import State
from penstock.core.payload.documents import Document
from penstock.ui.pipelines import run_list as runs
from penstock.ui.pipelines import run_steps as steps
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.definition import Fault
from penstock.ui.pipelines.run_steps import Standing
from ui.conftest import NARROW, Visit

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}'
NOBODY = "00000000-0000-4000-8000-000000000000"
A_WHILE = 120_000  # milliseconds; Spark starts in its own time


# -- what is written ---------------------------------------------------------------------------------------------------


def dataset(name: str, *columns: str, read_only: bool = False, id: str = NOBODY) -> dict[str, Any]:
    schema = [{"name": column, "type": "string", "nullable": True} for column in columns]
    return {"id": id, "name": name, "schema": schema, "rows": 1, "read_only": read_only}


def test_text_that_is_no_json_is_told_with_its_line_and_column() -> None:
    fault = definition.read('{\n  "name": "a",\n  oops\n}')
    assert isinstance(fault, Fault)
    assert fault.line == 3
    assert "line 3, column 3" in fault.sentence


def test_what_the_service_says_gets_the_line_of_its_pointer_or_of_what_it_is_missing_in() -> None:
    read = definition.read('{\n "name": "a",\n "operations": [\n  {"type": "append",\n   "order": 0}]}')
    assert isinstance(read, Document)
    errors: list[dict[str, Any]] = [
        {"pointer": "/operations/0/order", "message": "taken", "details": {"extra_columns": ["a", "b"], "other": None}},
        {"pointer": "/operations/0/parameters", "message": "missing"},
        {"pointer": "/working", "message": "missing"},
    ]
    faults = definition.placed(read, errors)
    assert [fault.line for fault in faults] == [5, 4, 1]
    assert faults[0].facts == (("extra columns", "a, b"),)
    assert faults[0].place == "Line 5 · /operations/0/order"


def test_the_first_pipeline_appends_where_there_is_room() -> None:
    narrow, wide, odd = dataset("a.narrow", "x", id="1"), dataset("a.wide", "x", "y", id="2"), dataset("a.odd", "z")
    made = definition.example([odd, narrow, wide])
    assert (made["working"]["dataset_id"], made["operations"][0]["parameters"]["source"]["dataset_id"]) == ("2", "1")


def test_the_first_pipeline_of_a_single_dataset_is_one_of_its_own_and_spares_what_is_read_only() -> None:
    made = definition.example([dataset("a.only", "x", "id")])
    assert made["operations"][0]["parameters"]["key_columns"] == ["id"]
    assert "output" not in made
    kept = definition.example([dataset("a.only", "x", read_only=True)])
    assert kept["output"] == {"schema_name": "a", "table_name": "only_unique"}


def test_an_operation_that_is_added_is_done_last() -> None:
    new = definition.operation("append", dataset("a.b", "x"))
    assert definition.extended({"operations": [{"order": 7}, {"order": 2}]}, new) == {
        "operations": [{"order": 7}, {"order": 2}, {"type": "append", "order": 8, "parameters": new["parameters"]}]
    }
    assert definition.extended({"operations": [{}]}, new) == {"operations": [{}, new]}
    assert definition.extended([], new) is definition.extended({}, new) is None


def test_what_is_written_another_way_is_no_difference() -> None:
    parameters = {"source": {"dataset_id": NOBODY}, "key_columns": "id", "strategy": "upsert"}
    mine = {"operations": [{"type": "merge", "parameters": parameters}], "working": {"dataset_id": NOBODY}, "name": "a"}
    theirs = json.loads(definition.settled(mine))
    assert theirs["operations"][0]["parameters"]["key_columns"] == ["id"]
    assert definition.differences(definition.text({**theirs, "version": 2}), definition.settled(mine)) == []


def test_differences_have_the_lines_of_both_sides() -> None:
    theirs = "\n".join("abcdefghij")
    told = definition.differences(theirs, theirs.replace("a", "A").replace("j", "J"))
    assert [each for each in told if each[0] in "-+"] == [("-", "a"), ("+", "A"), ("-", "j"), ("+", "J")]
    assert ("…", "") in told
    assert definition.differences(theirs, theirs) == []


# -- what is told of a run ---------------------------------------------------------------------------------------------


def run(state: State, **more: Any) -> dict[str, Any]:
    """A run of two operations."""
    operation = {"type": "append", "parameters": {"source": {"dataset_id": NOBODY}}}
    return {
        "id": NOBODY, "state": str(state), "cancelling": False, "progress": None, "results": [], "error": None,
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


def refusal(**details: Any) -> dict[str, Any]:
    return {"error": {"code": "APPEND_001", "message": "Dataset not found", "details": details}}


def test_each_operation_of_a_run_under_way_says_where_it_stands() -> None:
    first, second = steps.steps(run(State.RUNNING, progress=PROGRESS, results=[DONE]))
    assert first.sentence == "1 row appended, filtered and aggregated; 1,000 rows after it, in 23 ms"
    assert (first.standing, second.standing) == (Standing.DONE, Standing.RUNNING)
    assert second.sentence == "write, task 2 of 4, stage 1 of 3, 5,000 rows written"
    assert second.title == "the second"
    assert steps.share(run(State.RUNNING, progress=PROGRESS)) == 0.75
    assert [each.standing for each in steps.steps(run(State.QUEUED))] == [Standing.WAITING] * 2


def test_an_error_is_told_by_the_operation_that_it_names_and_by_nobody_else() -> None:
    failed = run(State.FAILED, error=refusal(operation_order=1, dataset_id=NOBODY), results=[DONE])
    assert [each.standing for each in steps.steps(failed)] == [Standing.DONE, Standing.FAILED]
    assert steps.steps(failed)[1].facts == (("dataset id", NOBODY),)
    assert steps.own_error(failed) is None
    lost = run(State.FAILED, error=refusal(dataset_id=NOBODY))
    assert [each.standing for each in steps.steps(lost)] == [Standing.LEFT] * 2
    assert steps.own_error(lost) == ("Dataset not found", (("dataset id", NOBODY),))


def test_every_state_of_a_run_has_a_sentence_and_a_look() -> None:
    sentences = {steps.summary(run(state)) for state in State}
    assert len(sentences) == len(State) == len({look.sign for look in runs.LOOKS.values()})
    assert "asked to stop" in steps.summary(run(State.RUNNING, cancelling=True))
    assert steps.summary(run(State.RUNNING, progress=PROGRESS)) == "Operation 2 of 2: append."


def test_until_spark_has_something_to_tell_it_gets_ready() -> None:
    begun = run(State.RUNNING, progress={**PROGRESS, **dict.fromkeys(("operation", "order", "stages", "tasks", "rows"), 0), "phase": None})  # fmt: skip
    assert steps.summary(begun) == "It has begun; Spark gets ready."
    assert [each.sentence for each in steps.steps(begun)] == ["Spark gets ready", ""]
    begun["progress"]["phase"] = "read"
    assert steps.summary(begun) == "Operation 1 of 2: append."


def test_how_long_a_run_took_is_known_when_it_has_ended() -> None:
    assert runs.seconds(run(State.SUCCEEDED)) == 2.5
    assert runs.seconds(run(State.RUNNING, ended_at=None)) is None


# -- the pages ---------------------------------------------------------------------------------------------------------


def put(rest: httpx.Client, name: str, rows: str = "id,region,amount\n1,EMEA,120\n2,APAC,80\n") -> str:
    """A dataset; its id."""
    answer = rest.post("/datasets", params={"name": name}, content=rows, headers={"content-type": "text/csv"})
    return str(answer.raise_for_status().json()["id"])


def pipeline(working: str, source: str, name: str = "month", **parameters: Any) -> dict[str, Any]:
    operation = {"type": "append", "parameters": {"source": {"dataset_id": source}, **parameters}}
    return {"name": name, "working": {"dataset_id": working}, "operations": [operation]}


def keep(rest: httpx.Client, definition: dict[str, Any]) -> str:
    return str(rest.post("/pipelines", json=definition).raise_for_status().json()["id"])


def kept(rest: httpx.Client, id: str) -> dict[str, Any]:
    found: dict[str, Any] = rest.get(f"/pipelines/{id}").json()
    return found


def editor(page: Page) -> Locator:
    return page.get_by_label("Pipeline as JSON")


def write(page: Page, value: Any) -> None:
    editor(page).fill(value if isinstance(value, str) else json.dumps(value, indent=2))


def expect_fine(page: Page) -> None:
    expect(page.get_by_text("Nothing is wrong: it can run.")).to_be_visible()


def test_a_pipeline_is_written_saved_run_and_watched_to_the_version_that_it_writes(
    visit: Visit, rest: httpx.Client
) -> None:
    put(rest, "finance.ledger")
    put(rest, "finance.sales", "id,region,amount\n3,EMEA,10\n4,APAC,20\n5,APAC,500\n")
    page = visit("/pipelines", Role.DEVELOPER)
    page.get_by_role("button", name="Make the first one").click()
    expect(page.get_by_role("heading", name="New pipeline")).to_be_visible()
    expect_fine(page)  # the example uses the tenant's own datasets
    expect(page.locator(".penstock-hint")).to_have_text(["finance.ledger", "finance.sales"])

    example = definition.example(rest.get("/datasets", params={"$orderby": "name"}).json()["value"])
    parameters = example["operations"][0]["parameters"]
    write(
        page, {**example, "operations": [{"type": "append", "parameters": {**parameters, "source_selector": "no = 1"}}]}
    )
    expect(page.get_by_text("1 thing is wrong.")).to_be_visible()
    expect(page.get_by_text("Column referenced in expression not found in source dataset")).to_be_visible()
    expect(page.get_by_text("source columns: id, region, amount")).to_be_visible()

    good = {"type": "append", "parameters": {**parameters, "source_selector": "amount < 100"}}
    write(page, {**example, "name": "month", "operations": [good]})
    expect_fine(page)
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("heading", name="month", exact=True)).to_be_visible()
    expect(page.get_by_text("It has not run yet.")).to_be_visible()

    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("heading", name="Run of month")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_be_visible()
    expect(page.get_by_text("finance.ledger is at version 2.")).to_be_visible(timeout=A_WHILE)
    expect(page.get_by_text("done: 2 rows appended, filtered; 4 rows after it")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel run")).to_be_hidden()
    there = page.get_by_role("link", name="finance.ledger, version 2")
    expect(there).to_have_attribute("href", "/ui/datasets/finance.ledger?version=2")

    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("finance.ledger is at version 3.")).to_be_visible(timeout=A_WHILE)
    page.get_by_role("link", name="‹ month").click()
    expect(page.get_by_role("img", name="Rows by run")).to_have_attribute(
        "aria-label", re.compile("inserted from 2 to 2; updated from 0 to 0")
    )
    expect(page.get_by_role("img", name="Seconds by run")).to_be_visible()
    expect(page.get_by_role("link", name="✓ succeeded")).to_have_count(2)
    expect(page.get_by_role("link", name="finance.ledger version 3")).to_be_visible()
    assert len({each["idempotency_key"] for each in rest.get("/runs").json()["value"]}) == 2


def test_a_run_that_waits_can_be_cancelled(visit: Visit, rest: httpx.Client) -> None:
    month = keep(rest, pipeline(put(rest, "finance.ledger"), put(rest, "finance.sales")))
    started = [rest.post(f"/pipelines/{month}/runs").raise_for_status().json()["id"] for _ in range(12)]
    page = visit(f"/runs/{started[-1]}", Role.DEVELOPER)
    expect(page.get_by_text("It waits for its turn.")).to_be_visible()
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.get_by_text("It was cancelled. Nothing was written.")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_be_hidden()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    assert rest.get(f"/runs/{started[-1]}").json()["state"] == "cancelled"
    for each in started:
        rest.post(f"/runs/{each}/cancel")
    page.get_by_role("link", name="‹ month").click()
    page.get_by_role("link", name="‹ Pipelines").click()
    expect(page.get_by_role("link", name="◼ cancelled")).to_be_visible()


def test_a_run_tells_how_far_it_is_and_can_be_cancelled_on_its_way(visit: Visit, rest: httpx.Client) -> None:
    long = pipeline(put(rest, "finance.ledger"), put(rest, "finance.sales"), name="long")
    begun = rest.post(f"/pipelines/{keep(rest, {**long, 'operations': long['operations'] * 40})}/runs").json()["id"]
    page = visit(f"/runs/{begun}", Role.DEVELOPER)
    said = page.get_by_role("status").filter(has_text="Operation")
    said.wait_for(timeout=A_WHILE)
    first = said.inner_text()
    expect(said).not_to_have_text(first, timeout=A_WHILE)
    expect(page.get_by_text("done: 2 rows appended").first).to_be_visible()
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.get_by_text("It was cancelled. Nothing was written.")).to_be_visible(timeout=A_WHILE)
    expect(page.get_by_text("not done").last).to_be_visible()
    assert rest.get("/datasets/finance.ledger").json()["version"] == 1


def test_a_run_that_fails_says_so_in_the_words_of_its_operation(visit: Visit, rest: httpx.Client) -> None:
    lost = keep(rest, pipeline(put(rest, "finance.ledger"), NOBODY, name="lost"))
    page = visit(f"/pipelines/{lost}", Role.DEVELOPER, width=NARROW, dark=True)
    expect(page.get_by_text("1 thing is wrong.")).to_be_visible()
    colour = "getComputedStyle(document.querySelector('.cm-editor')).backgroundColor"
    page.wait_for_function(f"{colour} === 'rgb(30, 30, 30)'")
    page.get_by_label("Light or dark").click()
    page.wait_for_function(f"{colour} === 'rgb(255, 255, 255)'")
    page.get_by_role("button", name="Run", exact=True).dblclick()
    expect(page.get_by_text("It failed. Nothing was written.")).to_be_visible(timeout=A_WHILE)
    expect(page.get_by_text("failed: Dataset not found (APPEND_001)")).to_be_visible()
    expect(page.get_by_text(f"dataset id: {NOBODY}")).to_be_visible()
    assert len(rest.get("/runs").json()["value"]) == 1, "a double click is one click"
    page.goto(page.url.partition("/runs/")[0] + "/runs")
    expect(page.get_by_role("link", name="✗ failed")).to_be_visible()
    page.get_by_label("State").click()
    page.get_by_role("option", name="succeeded").click()
    expect(page.get_by_text("No run is in this state.")).to_be_visible()


def test_whoever_may_only_look_can_neither_change_nor_run(visit: Visit, rest: httpx.Client) -> None:
    month = keep(rest, pipeline(put(rest, "finance.ledger"), put(rest, "finance.sales")))
    page = visit("/pipelines", Role.VIEWER)
    expect(page.get_by_role("link", name="month")).to_be_visible()
    expect(page.get_by_role("button", name="New pipeline")).to_have_count(0)
    page.get_by_role("link", name="month").click()
    expect_fine(page)
    expect(editor(page)).to_have_attribute("contenteditable", "false")
    for name in ("Run", "Save", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_label("Find a dataset")).to_have_count(0)
    waits = rest.post(f"/pipelines/{keep(rest, pipeline(NOBODY, NOBODY, name='x'))}/runs").json()["id"]
    page.goto(page.url.replace(f"/pipelines/{month}", f"/runs/{waits}"))
    expect(page.get_by_role("heading", name="Run of x")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel run")).to_have_count(0)
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    page.goto(page.url.replace(f"/runs/{waits}", "/pipelines/new"))
    expect(page.get_by_text("Your role may look at pipelines")).to_be_visible()
    expect(editor(page)).to_have_count(0)


def test_what_somebody_else_saved_meanwhile_is_shown_beside_ones_own_and_not_lost(
    visit: Visit, rest: httpx.Client
) -> None:
    first = pipeline(put(rest, "finance.ledger"), put(rest, "finance.sales"))
    month = keep(rest, first)
    page = visit(f"/pipelines/{month}", Role.DEVELOPER)
    expect_fine(page)

    def others_save(selector: str, version: int) -> None:
        rest.put(
            f"/pipelines/{month}",
            json={**pipeline(**_ids(first), source_selector=selector), "version": version},
        ).raise_for_status()

    others_save("id = 1", 1)
    write(page, pipeline(**_ids(first), source_selector="id = 2"))
    expect_fine(page)
    page.get_by_role("button", name="Save").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("It is at version 2 by now.")).to_be_visible()
    expect(dialog.get_by_text('"source_selector": "id = 1"')).to_be_visible()
    expect(dialog.get_by_text('"source_selector": "id = 2"')).to_be_visible()
    expect(dialog.get_by_text('"name": "month"')).to_have_count(0)  # far from what differs
    dialog.get_by_role("button", name="Keep editing").click()
    expect(dialog).to_have_count(0)
    assert kept(rest, month)["version"] == 2
    assert page.evaluate("window.penstockUnsaved") is True

    page.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Overwrite with mine").click()
    expect(page.get_by_text("Saved as version 3.")).to_be_visible()
    assert kept(rest, month)["operations"][0]["parameters"]["source_selector"] == "id = 2"
    page.wait_for_function("window.penstockUnsaved === false")

    others_save("id = 4", 3)
    write(page, pipeline(**_ids(first), source_selector="id = 5"))
    page.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Take theirs").click()
    expect(editor(page)).to_contain_text("id = 4")
    expect(page.get_by_text("Version 4 · changed")).to_be_visible()
    assert kept(rest, month)["operations"][0]["parameters"]["source_selector"] == "id = 4"


def _ids(pipeline: dict[str, Any]) -> dict[str, str]:
    source = pipeline["operations"][0]["parameters"]["source"]["dataset_id"]
    return {"working": pipeline["working"]["dataset_id"], "source": source}


def test_every_fault_has_its_place_and_datasets_are_at_hand(visit: Visit, rest: httpx.Client) -> None:
    ledger, sales = put(rest, "finance.ledger"), put(rest, "finance.sales")
    page = visit("/pipelines/new", Role.DEVELOPER)
    expect_fine(page)
    write(page, '{\n  "name": "month",\n  oops\n}')
    expect(page.get_by_text("at line 3, column 3")).to_be_visible()
    page.get_by_role("button", name="Go to line 3").click()
    expect(page.locator(".cm-activeLine")).to_have_text("  oops")
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("alert").get_by_text("at line 3, column 3")).to_be_visible()
    page.get_by_role("alert").get_by_role("button", name="Close").click()

    write(page, {"working": {"dataset_id": "x"}, "operations": [{"type": "append", "order": "a", "parameters": {}}]})
    expect(page.get_by_text("things are wrong.")).to_be_visible()
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
    expect_fine(page)
    page.get_by_role("button", name="Add append: finance.sales").click()
    expect(editor(page)).to_contain_text('"append"')
    expect_fine(page)
    page.get_by_role("button", name="Save pipeline").click()
    expect(page.get_by_role("heading", name="month", exact=True)).to_be_visible()
    (made,) = rest.get("/pipelines").json()["value"]
    assert [each["type"] for each in made["operations"]] == ["merge", "append"]
    assert {each["parameters"]["source"]["dataset_id"] for each in made["operations"]} == {sales}

    write(page, '""')
    editor(page).press("Control+Home")
    editor(page).press("ArrowRight")
    page.get_by_role("button", name="finance.ledger").click()
    page.get_by_role("button", name="Insert id: finance.ledger").click()
    expect(editor(page)).to_contain_text(f'"{ledger}"')


def test_changes_that_are_not_saved_are_not_left_by_chance(visit: Visit, rest: httpx.Client) -> None:
    first = pipeline(put(rest, "finance.ledger"), put(rest, "finance.sales"))
    month = keep(rest, first)
    page = visit(f"/pipelines/{month}", Role.DEVELOPER, expect=("beforeunload",))
    expect_fine(page)
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    write(page, {**first, "name": "quarter"})
    expect(page.get_by_text("Changes are not saved")).to_be_visible()
    with page.expect_event("dialog"):
        page.get_by_role("link", name="‹ Pipelines").click()
    assert asked == ["beforeunload"]
    expect(editor(page)).to_contain_text("quarter")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("Save them and run?")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert kept(rest, month)["name"] == "month"
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Save and run").click()
    expect(page.get_by_role("heading", name="Run of quarter")).to_be_visible()
    page.get_by_role("link", name="‹ quarter").click()

    write(page, {**first, "name": "year"})
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", name="year")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There is none yet.")).to_be_visible()
    assert rest.get(f"/pipelines/{month}").status_code == 404
    assert asked == ["beforeunload"]


def test_pipelines_are_found_by_name_and_page_by_page(visit: Visit, rest: httpx.Client) -> None:
    ledger = put(rest, "finance.ledger")
    for number in range(23):
        keep(rest, pipeline(ledger, ledger, name=f"pipeline {number:02}"))
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
    expect(page.get_by_text("No pipeline has such a name.")).to_be_visible()


def test_text_of_others_is_text_wherever_it_is_shown(visit: Visit, rest: httpx.Client) -> None:
    odd = put(rest, "finance.odd", f'id,"{EVIL.replace(chr(34), chr(34) * 2)}"\n1,2\n')
    evil = pipeline(put(rest, "finance.ledger"), odd, name=EVIL)
    evil["operations"][0]["alias"] = EVIL
    id = keep(rest, evil)
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
    expect(page.get_by_text(f"extra columns: {EVIL}")).to_be_visible(timeout=A_WHILE)
    expect(page.get_by_text(f"1. {EVIL} · finance.odd")).to_be_visible()
    page.get_by_role("button", name="The pipeline as it was when it ran").click()
    expect(page.get_by_label("The pipeline as JSON")).to_contain_text(json.dumps(EVIL))
    assert page.evaluate("window.hacked") is None
