"""The documentation is true: what it shows runs, and what it lists is all there is."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    names: dict[str, Any] = {}
    with _served(tmp_path, _at_home(tmp_path)) as told:
        for block in blocks("README.md", "python"):
            exec(block.replace("grpc://127.0.0.1:8815", told["flight"]), names)
        names["client"].close()
    lake, ds = names["lake"], names["ds"]
    assert ds.version == 5
    assert ds.to_arrow(where="amount > 100").num_rows == 1
    assert lake.dataset("finance.log").to_arrow()["text"].to_pylist()[-1] == "removed 2"
    lake.close()


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
    env = _at_home(tmp_path)
    with _served(tmp_path, env) as told:
        session = "\n".join(block for block in blocks("docs/rest.md", "sh") if "$AT" in block)
        session = session.replace("http://127.0.0.1:8080", told["http"])
        run = subprocess.run(["sh", "-e", "-c", session], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Type mismatch for field total" in run.stdout
    assert '"state": "DEPRECATED"' in run.stdout
    assert pq.read_table(tmp_path / "sales.parquet").num_rows == 4
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "succeeded"


def test_the_python_of_the_page_on_flight_runs_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with _served(tmp_path, _at_home(tmp_path)) as told:
        for block in blocks("docs/flight.md", "python"):
            exec(block.replace("grpc://127.0.0.1:8815", told["flight"]), names)
        with names["client"] as client, names["flight"]:
            [orders] = [table for table in client.tables() if table.name == "shop.orders"]
            assert orders.rows == client.read("shop.orders").read_all().num_rows == 1
            assert client.read("shop.archive").read_all().to_pydict() == {"id": [1, 3], "total": [10.0, 3.25]}
    assert capsys.readouterr().out == "column_mismatch column mismatch: table has 2 columns, input has 1\n"
    assert names["totals"].to_pydict() == {"total": [1.0, 2.0]}
    assert json.loads(names["deleted"].body.to_pybytes()) == {"status": "success", "affected_rows": 2}


def test_the_page_on_pipelines_runs_as_written(tmp_path: Path) -> None:
    _needs_java()
    session = next(block for block in blocks("docs/pipelines.md", "sh") if "penstock init" in block)
    run = subprocess.run(
        ["sh", "-e", "-c", session],
        cwd=tmp_path,
        env=_at_home(tmp_path),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert '"rows_appended": 2' in run.stdout
    assert "finance.ledger is at version 2" in run.stderr
    assert "9,4100,90" in run.stdout


@contextmanager
def _served(folder: Path, env: dict[str, str]) -> Iterator[dict[str, str]]:
    """A service of its own, on ports that are free: what it tells of itself."""
    ports = ["--http-port", "0", "--flight-port", "0"]
    serve = ["penstock", "serve", "--dev", "--workspace", "lake", *ports, "--json"]
    with subprocess.Popen(serve, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout
        try:
            yield json.loads(b"".join(iter(server.stdout.readline, b"}\n")) + b"}")
        finally:
            server.terminate()


def _at_home(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}


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
