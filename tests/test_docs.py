"""The documentation is true: what it shows runs, and what it lists is all there is."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import spark
from conftest import not_tested
from penstock import errors
from tools import docs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run `make docs`"


def test_a_reason_belongs_to_one_kind_of_error() -> None:
    kinds = defaultdict(set)
    for entry in docs.raised():
        kinds[entry.reason].add(entry.kind)
    assert {reason: kind for reason, kind in kinds.items() if len(kind) > 1} == {}
    assert all(re.fullmatch(r"[a-z][a-z_]*", reason) for reason in kinds)
    assert {entry.kind for entry in docs.raised()} == {kind.__name__ for kind in errors.KINDS}


def test_the_tree_in_the_docstring_names_every_kind() -> None:
    assert set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) == {kind.__name__ for kind in errors.KINDS}


def test_the_first_session_of_the_readme_runs_as_written(tmp_path: Path) -> None:
    session = next(block for block in blocks("README.md", "sh") if "penstock init" in block)
    run = subprocess.run(
        ["sh", "-e", "-c", session],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert '1,"EMEA",120,1' in run.stdout
    assert (tmp_path / "sales.parquet").exists()


def test_the_python_of_the_readme_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("README.md", "python"):
        exec(block, names)
    lake, ds = names["lake"], names["ds"]
    assert ds.version == 4  # type: ignore[attr-defined]
    assert ds.to_arrow(where="amount > 100").num_rows == 1  # type: ignore[attr-defined]
    lake.close()  # type: ignore[attr-defined]


def test_the_python_of_the_page_on_merge_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("docs/merge.md", "python"):
        exec(block, names)
    assert names["merged"].stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}  # type: ignore[attr-defined]
    assert pq.read_table(tmp_path / "data" / "cities").num_rows == 3
    names["lake"].close()  # type: ignore[attr-defined]


def test_the_page_on_rest_runs_as_written(tmp_path: Path) -> None:
    if not shutil.which("curl"):
        not_tested("the commands of docs/rest.md did not run", "curl is not installed (apt-get install curl)")
    _needs_java()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    serve = ["penstock", "serve", "--dev", "--workspace", "lake", "--http-port", "0", "--json"]
    with subprocess.Popen(serve, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout
        try:
            told = b"".join(iter(server.stdout.readline, b"}\n")) + b"}"
            session = "\n".join(block for block in blocks("docs/rest.md", "sh") if "$AT" in block)
            session = session.replace("http://127.0.0.1:8080", json.loads(told)["http"])
            run = subprocess.run(["sh", "-e", "-c", session], cwd=tmp_path, env=env, capture_output=True, text=True)
        finally:
            server.terminate()
    assert run.returncode == 0, run.stderr
    assert "Type mismatch for field total" in run.stdout
    assert '"state": "DEPRECATED"' in run.stdout
    assert pq.read_table(tmp_path / "sales.parquet").num_rows == 4
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "succeeded"


def test_the_page_on_pipelines_runs_as_written(tmp_path: Path) -> None:
    _needs_java()
    session = next(block for block in blocks("docs/pipelines.md", "sh") if "penstock init" in block)
    run = subprocess.run(
        ["sh", "-e", "-c", session],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert '"rows_appended": 2' in run.stdout
    assert "finance.ledger is at version 2" in run.stderr
    assert "9,4100,90" in run.stdout


def _needs_java() -> None:
    if spark.java() is None:
        not_tested("commands of the documentation did not run", "Java is not installed")


def test_every_route_is_told_of() -> None:
    from penstock.http.app import ROUTERS

    page = (ROOT / "docs" / "rest.md").read_text()
    for router in ROUTERS:
        for route in router.routes:
            last = getattr(route, "path", "").replace("{id}", "$ID").rstrip("/").rpartition("/")[2]
            assert last in page or last.startswith(("{", "$ID")) or not getattr(route, "include_in_schema", True), last


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_readme_shows_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", (ROOT / "README.md").read_text()))
