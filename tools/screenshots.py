"""Take a screenshot of every page of the demo workspace: both themes, wide and narrow. Three go into the README."""

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
README_IMAGES = {
    "home": ("home.png", 800),
    "dataset": ("dataset.png", 900),
    "query-new": ("query.png", 1110),
}  # file names and heights
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
WIDTHS = {1280: 800, 390: 844}  # and heights
RUN_SECONDS = 180.0
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
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
DEV, TOKEN = "dev", "token"  # services: one in development mode, and one that needs a token


@dataclass(frozen=True)
class Shot:
    name: str
    path: str
    prepare: Callable[[Page], None] | None = None  # called before the screenshot
    clean_up: Callable[[Page], None] | None = None  # called after it
    service: str = DEV


def shots(ids: dict[str, str]) -> list[Shot]:
    """List the screenshots of all pages. `ids` are the ids of existing resources."""
    return [
        Shot("home", "/"),
        Shot("schemas", "/schemas"),
        Shot("schema", f"/schemas/{ids['schema']}"),
        Shot("schema-history", f"/schemas/{ids['draft']}", _tab("History", "From version")),
        Shot("schema-references", f"/schemas/{ids['schema']}", _tab("References", "rows of this schema")),
        Shot("schema-try", f"/schemas/{ids['schema']}", _check),
        Shot("schema-json", f"/schemas/{ids['schema']}", _tab("JSON", "JSON Schema of a row")),
        Shot("schema-edit", f"/schemas/{ids['schema']}/edit"),
        Shot("schema-conflict", f"/schemas/{ids['draft']}/edit", _conflict),
        Shot("schema-new", "/schemas/new"),
        Shot("schema-new-fields", "/schemas/new", _describe),
        Shot("datasets", "/datasets"),
        Shot("dataset-rows", "/datasets/finance.report"),
        Shot("dataset-columns", "/datasets/finance.report", _tab("Columns", "Value distribution")),
        Shot("dataset", "/datasets/finance.report", _tab("Versions", "Rows per version")),
        Shot("pipelines", "/pipelines"),
        Shot("pipeline", f"/pipelines/{ids['pipeline']}", _wait_for_validation),
        Shot("pipeline-new", "/pipelines/new", _wait_for_validation),
        Shot("runs", "/runs"),
        Shot("run", f"/runs/{ids['run']}"),
        Shot("run-failed", f"/runs/{ids['failed']}"),
        Shot("run-under-way", f"/pipelines/{ids['long']}", _start, _cancel),
        Shot("queries", "/queries"),
        Shot("query", f"/queries/{ids['query']}", _run),
        Shot("query-edit", f"/queries/{ids['query']}/edit"),
        Shot("query-new", "/queries/new", _try),
        Shot("sign-in", "/", service=TOKEN),
        Shot("empty-home", "/", lambda page: _sign_in(page, ids["token"]), service=TOKEN),
        Shot("empty-datasets", "/datasets", service=TOKEN),
        Shot("empty-runs", "/runs", service=TOKEN),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="folder of `penstock demo --keep`; default: a new demo")
    existing = parser.parse_args().demo
    with TemporaryDirectory() as folder:
        demo = Path(folder) / "demo"
        if existing:
            shutil.copytree(existing, demo)
        else:
            subprocess.run([PENSTOCK, "demo", "--keep", str(demo)], check=True, stdout=subprocess.DEVNULL)
        secret = secrets.token_hex(32)
        token = mint(secret, tenant=uuid4(), user="ada", roles=["analytics.developer"], ttl=HOUR)
        with _served(demo / "lake", "--dev") as address, _served(demo / "lake", secret=secret) as token_address:
            ids = _create_resources(address, json.loads((demo / "pipeline.json").read_text("utf-8")))
            errors = _take({DEV: address, TOKEN: token_address}, shots({**ids, "token": token}))
    sys.stdout.write(f"{len(list(OUT.glob('*.png')))} screenshots are in {OUT.relative_to(ROOT)}\n")
    if errors:
        sys.exit("\n".join(errors))


@contextmanager
def _served(lake: Path, *args: str, secret: str = "") -> Iterator[str]:
    command = [PENSTOCK, "serve", "--workspace", str(lake), "--http-port", "0", "--no-flight", *args]
    env = {**os.environ, **({"PENSTOCK_JWT_SECRET": secret} if secret else {})}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[3].rstrip(";")
        finally:
            process.terminate()


def _create_resources(address: str, pipeline: dict[str, Any]) -> dict[str, str]:
    """Create resources of every type through the API, and return their ids."""
    with httpx.Client(base_url=address, timeout=120) as rest:

        def post(path: str, body: Any = None) -> Any:
            return rest.post(path, json=body).raise_for_status().json()

        inferred = post("/gts/infer", {"sql": BUDGETS, "parameters": {"since": "2026-07"}, "name": "Totals by group"})
        schema = post("/gts", {**inferred, "description": "Budgets and actuals, one row per group of accounts"})
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
        pipelines = (
            rest.get("/pipelines", params={"$orderby": "created_at", "$top": 1}).raise_for_status().json()["value"]
        )
        stored = pipelines[0] if pipelines else post("/pipelines", pipeline)
        run = post(f"/pipelines/{stored['id']}/runs")
        working = {"dataset_id": pipeline["working"]["dataset_id"]}
        lost = {"type": "append", "alias": "corrections", "parameters": {"source": {"dataset_id": UNKNOWN_ID}}}
        failing = post("/pipelines", {"name": "Correct the report", "working": working, "operations": [lost]})
        failed = post(f"/pipelines/{failing['id']}/runs")
        steps = [
            {"type": operation["type"], "parameters": operation["parameters"]} for operation in pipeline["operations"]
        ]
        long = post("/pipelines", {**pipeline, "name": "Report of the year", "operations": steps * 3})
        end = time.monotonic() + RUN_SECONDS
        for started in (run, failed):
            while (
                rest.get(f"/runs/{started['id']}").json()["state"] in ("queued", "running") and time.monotonic() < end
            ):
                time.sleep(1)
        resources = {"schema": schema, "draft": draft, "query": query, "pipeline": stored, "long": long, "run": run, "failed": failed}  # fmt: skip
        return {name: resource["id"] for name, resource in resources.items()}


def _take(addresses: dict[str, str], selection: list[Shot]) -> list[str]:
    """Take all screenshots, and return the errors of the pages."""
    shutil.rmtree(OUT, ignore_errors=True)
    for folder in (OUT, IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    errors = list[str]()
    executable = shutil.which("chromium")
    if executable is None:
        sys.exit("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for width, height in WIDTHS.items():
            for theme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
                )
                page.on(
                    "console",
                    lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
                )
                for shot in selection:
                    _take_screenshot(page, addresses[shot.service], shot, f"{width}-{theme}")
                    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                        errors.append(f"{shot.path} is wider than {width}")
                page.close()
        browser.close()
    return errors


def _take_screenshot(page: Page, address: str, shot: Shot, variant: str) -> None:
    page.goto(f"{address}/ui{shot.path}")
    page.get_by_role("heading", level=1).first.wait_for()
    if shot.prepare:
        shot.prepare(page)
    page.mouse.move(0, 0)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(1500)  # until the animation of charts has ended
    has_dialog = page.get_by_role("dialog").count() > 0  # a dialog covers the visible part only
    page.screenshot(path=OUT / f"{shot.name}-{variant}.png", full_page=not has_dialog)
    if variant == "1280-light" and shot.name in README_IMAGES:
        name, height = README_IMAGES[shot.name]
        clip: FloatRect = {"x": 0, "y": 0, "width": 1280, "height": height}
        page.screenshot(path=IMAGES / name, full_page=True, clip=clip)
    if shot.clean_up:
        shot.clean_up(page)
    page.evaluate("window.penstockUnsaved = false")  # the next page opens without a confirmation


def _tab(name: str, last: str) -> Callable[[Page], None]:
    """Return a function that opens a tab and waits for the text that is shown last."""

    def open_tab(page: Page) -> None:
        page.get_by_role("tab", name=name).click()
        page.get_by_text(last).first.wait_for()

    return open_tab


def _check(page: Page) -> None:
    page.get_by_role("tab", name="Validate rows").click()
    rows = page.get_by_label("Rows: a JSON array of objects")
    rows.fill(json.dumps([{"account_group": "Sales", "budget": "a lot"}], indent=2))
    page.get_by_role("button", name="Validate", exact=True).click()
    page.get_by_text("found.").wait_for()


def _describe(page: Page) -> None:
    page.get_by_label("Schema type").click()
    page.get_by_role("option").first.click()
    page.get_by_label("Schema name").fill("Sales by region")
    page.get_by_label("Schema description").fill("One row per region and day")
    for number, name in enumerate(("region", "day", "total amount"), 1):
        page.get_by_role("button", name="Add Field").click()
        page.get_by_role("group", name=f"Field {number}", exact=True).get_by_label("Name").fill(name)
    page.get_by_role("button", name="Save Schema").click()
    page.get_by_text("Invalid field name format").wait_for()


def _conflict(page: Page) -> None:
    address, _, path = page.url.partition("/ui")
    url = f"{address}/gts/{path.split('/')[2]}"
    page.get_by_label("Schema description").fill("All bookings, line by line")
    stored = page.request.get(url).json()
    fields = [field for field in stored["fields"] if field["name"] != "reviewed_on"]
    changed = [*fields, {"name": "reviewed_on", "type": "date", "optional": len(fields) < len(stored["fields"])}]
    page.request.put(
        url, data={**stored, "fields": changed, "description": f"Bookings, as of version {stored['version']}"}
    )
    page.get_by_role("button", name="Save Schema").click()
    page.get_by_text("Their changes").wait_for()


def _wait_for_validation(page: Page) -> None:
    page.get_by_text("The pipeline is valid.").wait_for()


def _start(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Operation 3 of").wait_for(timeout=RUN_SECONDS * 1000)


def _cancel(page: Page) -> None:
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    page.get_by_text("The run was cancelled.").first.wait_for(timeout=RUN_SECONDS * 1000)


def _sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Home").wait_for()


def _run(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("All rows match").wait_for()


def _try(page: Page) -> None:
    page.get_by_label("SQL", exact=True).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(BUDGETS)
    page.get_by_label("Value of since").fill("2026-07")
    if (columns := page.get_by_label("Columns of finance.report")).is_visible():  # on wide screens
        columns.click()
    page.get_by_label("Result schema").fill("Totals")
    page.get_by_role("option", name="Totals by group").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("all match Totals by group").wait_for()
    page.get_by_role("tab", name="Chart").click()


if __name__ == "__main__":
    main()
