"""Take a picture of every page of the demo's workspace: light and dark, wide and narrow. The best go into the README."""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import httpx
from playwright.sync_api import FloatRect, Page, sync_playwright

from penstock.service.auth.tokens import mint

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "screenshots"
IMAGES = ROOT / "docs" / "images"
KEPT = {"home": ("home.png", 800), "dataset": ("dataset.png", 900), "query-new": ("query.png", 1110)}  # and heights
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
WIDTHS = {1280: 800, 390: 844}  # and heights
PATIENCE = 180.0  # seconds for a run
BUDGETS = """SELECT account_group,
  round(sum(amount) FILTER (scenario = 'budget')) AS budget,
  round(sum(amount) FILTER (scenario = 'actual')) AS actual
FROM finance.report
WHERE month >= $since
GROUP BY ALL
ORDER BY ALL
"""
SINCE = {"name": "since", "type": "string", "default": "2026-07"}


HOUR = timedelta(hours=1)
NOBODY = "00000000-0000-4000-8000-000000000000"
OPEN, CLOSED = "open", "closed"  # services: one without a login, and one that asks for a token


@dataclass(frozen=True)
class Shot:
    name: str
    path: str
    act: Callable[[Page], None] | None = None  # before the picture
    after: Callable[[Page], None] | None = None  # it
    door: str = OPEN


def shots(made: dict[str, str]) -> list[Shot]:
    """All pages, of things that are there."""
    return [
        Shot("home", "/"),
        Shot("schemas", "/schemas"),
        Shot("schema", f"/schemas/{made['schema']}"),
        Shot("schema-history", f"/schemas/{made['draft']}", _tab("History", "What changed")),
        Shot("schema-references", f"/schemas/{made['schema']}", _tab("References", "rows of this schema")),
        Shot("schema-try", f"/schemas/{made['schema']}", _check),
        Shot("schema-json", f"/schemas/{made['schema']}", _tab("JSON", "JSON Schema of a row")),
        Shot("schema-edit", f"/schemas/{made['schema']}/edit"),
        Shot("schema-conflict", f"/schemas/{made['draft']}/edit", _conflict),
        Shot("schema-new", "/schemas/new"),
        Shot("schema-new-fields", "/schemas/new", _describe),
        Shot("datasets", "/datasets"),
        Shot("dataset-rows", "/datasets/finance.report"),
        Shot("dataset-columns", "/datasets/finance.report", _tab("Columns", "How values are spread")),
        Shot("dataset", "/datasets/finance.report", _tab("Versions", "Rows of each version")),
        Shot("pipelines", "/pipelines"),
        Shot("pipeline", f"/pipelines/{made['pipeline']}", _judged),
        Shot("pipeline-new", "/pipelines/new", _judged),
        Shot("runs", "/runs"),
        Shot("run", f"/runs/{made['run']}"),
        Shot("run-failed", f"/runs/{made['failed']}"),
        Shot("run-under-way", f"/pipelines/{made['long']}", _start, _cancel),
        Shot("queries", "/queries"),
        Shot("query", f"/queries/{made['query']}", _run),
        Shot("query-edit", f"/queries/{made['query']}/edit"),
        Shot("query-new", "/queries/new", _try),
        Shot("sign-in", "/", door=CLOSED),
        Shot("empty-home", "/", lambda page: _sign_in(page, made["token"]), door=CLOSED),
        Shot("empty-datasets", "/datasets", door=CLOSED),
        Shot("empty-runs", "/runs", door=CLOSED),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--demo", type=Path, help="a folder that `penstock demo --keep` has left; made anew unless given"
    )
    given = parser.parse_args().demo
    with TemporaryDirectory() as folder:
        demo = Path(folder) / "demo"
        if given:
            shutil.copytree(given, demo)
        else:
            subprocess.run([PENSTOCK, "demo", "--keep", str(demo)], check=True, stdout=subprocess.DEVNULL)
        secret = secrets.token_hex(32)
        token = mint(secret, tenant=uuid4(), user="ada", roles=["analytics.developer"], ttl=HOUR)
        with _served(demo / "lake", "--dev") as address, _served(demo / "lake", secret=secret) as closed:
            made = _prepared(address, json.loads((demo / "pipeline.json").read_text("utf-8")))
            wrong = _take({OPEN: address, CLOSED: closed}, shots({**made, "token": token}))
    sys.stdout.write(f"{len(list(OUT.glob('*.png')))} pictures are in {OUT.relative_to(ROOT)}\n")
    if wrong:
        sys.exit("\n".join(wrong))


@contextmanager
def _served(lake: Path, *args: str, secret: str = "") -> Iterator[str]:
    asked = [PENSTOCK, "serve", "--workspace", str(lake), "--http-port", "0", "--no-flight", *args]
    env = {**os.environ, **({"PENSTOCK_JWT_SECRET": secret} if secret else {})}
    with subprocess.Popen(asked, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[3].rstrip(";")
        finally:
            process.terminate()


def _prepared(address: str, pipeline: dict[str, Any]) -> dict[str, str]:
    """Something of everything, by REST as anybody would make it. The ids."""
    with httpx.Client(base_url=address, timeout=120) as rest:

        def post(path: str, body: Any = None) -> Any:
            return rest.post(path, json=body).raise_for_status().json()

        inferred = post("/gts/infer", {"sql": BUDGETS, "parameters": {"since": "2026-07"}, "name": "Totals by group"})
        schema = post("/gts", {**inferred, "description": "Budgets and actuals, one row a group of accounts"})
        actuals = post("/gts/infer", {"dataset": "finance.actuals", "name": "Bookings"})
        draft = post("/gts", {**actuals, "state": "DRAFT"})
        changed = [*draft["fields"][1:], {"name": "approved", "type": "boolean", "optional": True}]
        rest.put(f"/gts/{draft['id']}", json={**draft, "fields": changed}).raise_for_status()
        query = post(
            "/queries",
            {
                "name": "Totals by group",
                "description": "Since a month, by group of accounts",
                "sql": BUDGETS,
                "parameters": [SINCE],
                "returns_schema_id": schema["id"],
            },
        )
        there = rest.get("/pipelines", params={"$orderby": "created_at", "$top": 1}).raise_for_status().json()["value"]
        kept = there[0] if there else post("/pipelines", pipeline)
        run = post(f"/pipelines/{kept['id']}/runs")
        working = {"dataset_id": pipeline["working"]["dataset_id"]}
        lost = {"type": "append", "alias": "corrections", "parameters": {"source": {"dataset_id": NOBODY}}}
        failing = post("/pipelines", {"name": "Correct the report", "working": working, "operations": [lost]})
        failed = post(f"/pipelines/{failing['id']}/runs")
        steps = [{"type": each["type"], "parameters": each["parameters"]} for each in pipeline["operations"]]
        long = post("/pipelines", {**pipeline, "name": "Report of the year", "operations": steps * 3})
        end = time.monotonic() + PATIENCE
        for each in (run, failed):
            while rest.get(f"/runs/{each['id']}").json()["state"] in ("queued", "running") and time.monotonic() < end:
                time.sleep(1)
        ids = {"schema": schema, "draft": draft, "query": query, "pipeline": kept, "long": long, "run": run, "failed": failed}  # fmt: skip
        return {name: each["id"] for name, each in ids.items()}


def _take(addresses: dict[str, str], wanted: list[Shot]) -> list[str]:
    """What went wrong on the way."""
    shutil.rmtree(OUT, ignore_errors=True)
    for folder in (OUT, IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    wrong = list[str]()
    found = shutil.which("chromium")
    if found is None:
        sys.exit("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for width, height in WIDTHS.items():
            for theme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
                )
                page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
                for shot in wanted:
                    _picture(page, addresses[shot.door], shot, f"{width}-{theme}")
                    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                        wrong.append(f"{shot.path} is wider than {width}")
                page.close()
        browser.close()
    return wrong


def _picture(page: Page, address: str, shot: Shot, how: str) -> None:
    page.goto(f"{address}/ui{shot.path}")
    page.get_by_role("heading", level=1).first.wait_for()
    if shot.act:
        shot.act(page)
    page.mouse.move(0, 0)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(1500)  # charts move before they rest
    is_asked = page.get_by_role("dialog").count() > 0  # which stands before what is in sight
    page.screenshot(path=OUT / f"{shot.name}-{how}.png", full_page=not is_asked)
    if how == "1280-light" and shot.name in KEPT:
        name, height = KEPT[shot.name]
        clip: FloatRect = {"x": 0, "y": 0, "width": 1280, "height": height}
        page.screenshot(path=IMAGES / name, full_page=True, clip=clip)
    if shot.after:
        shot.after(page)
    page.evaluate("window.penstockUnsaved = false")  # nobody asks before the next page


def _tab(name: str, last: str) -> Callable[[Page], None]:
    """Open a tab and wait for what is told last."""

    def open_(page: Page) -> None:
        page.get_by_role("tab", name=name).click()
        page.get_by_text(last).first.wait_for()

    return open_


def _check(page: Page) -> None:
    page.get_by_role("tab", name="Try rows").click()
    rows = page.get_by_label("Rows: a JSON array of objects")
    rows.fill(json.dumps([{"account_group": "Sales", "budget": "a lot"}], indent=2))
    page.get_by_role("button", name="Check rows").click()
    page.get_by_text("not fit the schema").wait_for()


def _describe(page: Page) -> None:
    page.get_by_label("Schema type").click()
    page.get_by_role("option").first.click()
    page.get_by_label("Schema name").fill("Sales by region")
    page.get_by_label("Schema description").fill("One row a region and day")
    for number, name in enumerate(("region", "day", "total amount"), 1):
        page.get_by_role("button", name="Add Field").click()
        page.get_by_role("group", name=f"Field {number}", exact=True).get_by_label("Name").fill(name)
    page.get_by_role("button", name="Save Schema").click()
    page.get_by_text("Invalid field name format").wait_for()


def _conflict(page: Page) -> None:
    address, _, place = page.url.partition("/ui")
    at = f"{address}/gts/{place.split('/')[2]}"
    page.get_by_label("Schema description").fill("What was booked, line by line")
    theirs = page.request.get(at).json()
    kept = [each for each in theirs["fields"] if each["name"] != "reviewed_on"]
    changed = [*kept, {"name": "reviewed_on", "type": "date", "optional": len(kept) < len(theirs["fields"])}]
    page.request.put(
        at, data={**theirs, "fields": changed, "description": f"Bookings, as of version {theirs['version']}"}
    )
    page.get_by_role("button", name="Save Schema").click()
    page.get_by_text("What they changed").wait_for()


def _judged(page: Page) -> None:
    page.get_by_text("Nothing is wrong: it can run.").wait_for()


def _start(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Operation 3 of").wait_for(timeout=PATIENCE * 1000)


def _cancel(page: Page) -> None:
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    page.get_by_text("It was cancelled.").wait_for(timeout=PATIENCE * 1000)


def _sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Home").wait_for()


def _run(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Every row fits").wait_for()


def _try(page: Page) -> None:
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(BUDGETS)
    page.get_by_label("Value of since").fill("2026-07")
    if (columns := page.get_by_label("Columns of finance.report")).is_visible():  # there is room for them
        columns.click()
    page.get_by_label("Schema that the rows must fit").fill("Totals")
    page.get_by_role("option", name="Totals by group").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("all fit Totals by group").wait_for()
    page.get_by_role("tab", name="Chart").click()


if __name__ == "__main__":
    main()
