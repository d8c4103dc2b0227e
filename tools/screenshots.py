"""Take a picture of every page of the demo's workspace: light and dark, wide and narrow. The best go into the README."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from playwright.sync_api import FloatRect, Page, sync_playwright

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "screenshots"
IMAGES = ROOT / "docs" / "images"
KEPT = {"home": ("home.png", 800), "dataset": ("dataset.png", 900), "query-new": ("query.png", 1180)}  # and heights
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


@dataclass(frozen=True)
class Shot:
    name: str
    path: str
    act: Callable[[Page], None] | None = None  # before the picture


def shots(made: dict[str, str]) -> list[Shot]:
    """All pages, of things that are there."""
    return [
        Shot("home", "/"),
        Shot("schemas", "/schemas"),
        Shot("schema", f"/schemas/{made['schema']}"),
        Shot("schema-edit", f"/schemas/{made['schema']}/edit"),
        Shot("schema-new", "/schemas/new"),
        Shot("datasets", "/datasets"),
        Shot("dataset-rows", "/datasets/finance.report"),
        Shot(
            "dataset-columns", "/datasets/finance.report", lambda page: page.get_by_role("tab", name="Columns").click()
        ),
        Shot("dataset", "/datasets/finance.report", lambda page: page.get_by_role("tab", name="Versions").click()),
        Shot("pipelines", "/pipelines"),
        Shot("pipeline", f"/pipelines/{made['pipeline']}"),
        Shot("pipeline-new", "/pipelines/new"),
        Shot("runs", "/runs"),
        Shot("run", f"/runs/{made['run']}"),
        Shot("queries", "/queries"),
        Shot("query", f"/queries/{made['query']}", _run),
        Shot("query-edit", f"/queries/{made['query']}/edit"),
        Shot("query-new", "/queries/new", _try),
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
        with _served(demo / "lake") as address:
            made = _prepared(address, json.loads((demo / "pipeline.json").read_text("utf-8")))
            wrong = _take(address, shots(made))
    sys.stdout.write(f"{len(list(OUT.glob('*.png')))} pictures are in {OUT.relative_to(ROOT)}\n")
    if wrong:
        sys.exit("\n".join(wrong))


@contextmanager
def _served(lake: Path) -> Iterator[str]:
    asked = [PENSTOCK, "serve", "--dev", "--workspace", str(lake), "--http-port", "0", "--no-flight"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
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
        post("/gts", {**actuals, "state": "DRAFT"})
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
        end = time.monotonic() + PATIENCE
        while rest.get(f"/runs/{run['id']}").json()["state"] in ("queued", "running") and time.monotonic() < end:
            time.sleep(1)
        return {"schema": schema["id"], "query": query["id"], "pipeline": kept["id"], "run": run["id"]}


def _take(address: str, wanted: list[Shot]) -> list[str]:
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
                page.on("console", lambda said: wrong.append(said.text))
                for shot in wanted:
                    _picture(page, address, shot, f"{width}-{theme}")
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
    page.screenshot(path=OUT / f"{shot.name}-{how}.png", full_page=True)
    if how == "1280-light" and shot.name in KEPT:
        name, height = KEPT[shot.name]
        clip: FloatRect = {"x": 0, "y": 0, "width": 1280, "height": height}
        page.screenshot(path=IMAGES / name, full_page=True, clip=clip)


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
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("read finance.report").wait_for()
    page.get_by_role("tab", name="Chart").click()
    page.evaluate("window.penstockUnsaved = false")  # nobody asks before the next page


if __name__ == "__main__":
    main()
