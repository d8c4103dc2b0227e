"""Run every code block of the pages, in page order, in one shell."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from conftest import skip_untested
from penstock import config
from support import postgres_server, spark_sessions
from support.doc_pages import PAGES, ROOT, Block, PageRunner, blocks, run_page
from tools import docs

Env = dict[str, str]
BIN = Path(sys.executable).parent


@contextmanager
def empty_folder(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    """Use an empty folder, with `penstock` on the path."""
    env["PATH"] = f"{BIN}:{env['PATH']}"
    yield {}


@contextmanager
def demo_clone(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    """Link the files of the project as after `make demo`, without `penstock` on the path. Nothing is downloaded."""
    env["PATH"] = "/usr/bin:/bin"
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            (folder / file.name).symlink_to(file)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(BIN)
    (folder / ".venv" / ".ready").touch()
    yield {}


@contextmanager
def examples_folder(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    shutil.copytree(ROOT / "examples", folder / "examples")
    # Use the caches of the Go installation; fetch no other Go version, and need no C compiler.
    for name in ("GOMODCACHE", "GOCACHE"):
        env[name] = subprocess.run(
            ["go", "env", name], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
    env |= {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    with empty_folder(folder, env) as replacements:
        yield replacements


@contextmanager
def database_folder(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    with postgres_server.server() as url, empty_folder(folder, env):
        env["PATH"] = f"{postgres_server.binaries()}:{env['PATH']}"
        yield {
            "db.example:5432": re.sub(r".*@(.*)/.*", r"\1", url),
            "//postgres@": "//owner@",
            "8080": str(_free_port()),
            "8815": str(_free_port()),
        }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as location:
        port: int = location.getsockname()[1]
        return port


# -- requirements ------------------------------------------------------------------------------------------------------


def program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not installed"


def java() -> str | None:
    return None if spark_sessions.java() else "Java is not installed"


def database() -> str | None:
    return None if postgres_server.binaries() else "PostgreSQL is not installed"


def go_modules() -> str | None:
    if (missing := program("go")()) is not None:
        return missing
    try:
        fetch = ["go", "mod", "download"]
        subprocess.run(fetch, cwd=ROOT / "examples" / "flight" / "go", check=True, capture_output=True, timeout=120)
    except subprocess.SubprocessError:
        return "Go's modules cannot be fetched"
    return None


# -- checks after a page -----------------------------------------------------------------------------------------------


def check_readme(runner: PageRunner) -> None:
    names = runner.names
    lake, ds = names["lake"], names["ds"]
    assert '1,"EMEA",120,1' in runner.out
    assert (runner.folder / "sales.parquet").exists()
    assert ds.version == 5
    assert ds.to_arrow(where="amount > 100").num_rows == 1
    assert names["result"].versions
    assert '"rows_appended": 2' in runner.out
    assert lake.dataset("finance.ledger").to_arrow()["amount"].to_pylist() == [120, 80, 120, 120]
    assert lake.dataset("finance.log").to_arrow()["text"].to_pylist()[-1] == "removed 2"
    names["client"].close()
    lake.close()


def check_merge(runner: PageRunner) -> None:
    names = runner.names
    assert names["merged"].stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
    names["lake"].close()
    cities = pq.read_table(runner.folder / "data" / "cities").sort_by("id")
    assert cities.to_pydict() == {"id": [1, 2, 3], "city": ["Oslo", "Kyiv", "Quito"]}


def check_rest(runner: PageRunner) -> None:
    assert "Type mismatch for field total" in runner.out
    assert '"state": "DEPRECATED"' in runner.out
    assert pq.read_table(runner.folder / "sales.parquet").num_rows == 4
    assert json.loads((runner.folder / "run.json").read_text())["state"] == "succeeded"
    assert '"EMEA",240' in runner.out


def check_rest_problem(runner: PageRunner, block: Block) -> None:
    """Assert that the problem on the page equals the response to its schema, except for the id."""
    printed, schema_id = json.loads(block.text), runner.env["ID"]
    change = {"description": "One row an order, and a day", "version": 2}
    response = httpx.patch(f"{runner.env['AT']}/gts/{schema_id}", json=change, timeout=60).json()
    assert json.loads(block.text.replace(printed["schema_id"], schema_id)) == response


def check_flight(runner: PageRunner) -> None:
    names = runner.names
    assert runner.python_output == "column_mismatch column mismatch: table has 2 columns, input has 1\n"
    assert names["totals"].to_pydict() == {"total": [1.0, 2.0]}
    assert json.loads(names["deleted"].body.to_pybytes()) == {"status": "success", "affected_rows": 2}
    names["client"].close()
    names["flight"].close()
    with penstock.open(runner.folder / "lake") as lake:
        assert lake.dataset("shop.orders").to_arrow().num_rows == 1
        archive = lake.dataset("shop.archive").to_arrow()  # rows have no order: an update moves them
        assert archive.sort_by("id").to_pydict() == {"id": [1, 3], "total": [10.0, 3.25]}


def check_pipelines(runner: PageRunner) -> None:
    assert "finance.ledger is at version 2" in runner.err
    assert "9,4100,90" in runner.out
    settings = config.load_settings(runner.env)
    assert settings.spark_master == "spark://head:7077"
    assert settings.spark_conf == {"spark.executor.memory": "4g", "spark.cores.max": "16"}


def check_pipelines_response(runner: PageRunner, block: Block) -> None:
    """Assert that the response on the page equals that of its pipeline, except for the id and the time."""
    candidates = [json.loads(message) for message in re.findall(r"^\{\n.*?^\}$", runner.out, re.DOTALL | re.MULTILINE)]
    response = next(candidate for candidate in reversed(candidates) if candidate["operation"] == "append")
    printed = json.loads(block.text)
    variable_members = ("source_dataset_id", "execution_time_ms")
    assert {
        **printed,
        "result": {**printed["result"], **{name: response["result"][name] for name in variable_members}},
    } == response


def check_pipelines_selectors(runner: PageRunner, block: Block) -> None:
    """Assert that each line is a condition on the same columns that selects some rows."""
    moved = {"status": "active", "fiscal_year": 2026, "amount": 500.0, "account": "4000", "note": "x", "name": "Ada"}
    with penstock.open(runner.folder / "selected", create=True) as lake:
        rows = pa.Table.from_pylist([moved, dict.fromkeys(moved)])
        rows = rows.append_column("posted", pa.array(["2026-02-01", None]).cast(pa.date32()))
        ds = lake.create("demo.selected", rows)
        assert [ds.to_arrow(where=line).num_rows for line in block.text.splitlines()] == [1, 1, 1, 1]


def check_operations(runner: PageRunner) -> None:
    message = runner.out.replace(" ", "")
    assert '"status":"ready"' in message
    assert '"role":"analytics.viewer"' in message
    assert "1 files have the checksum of their commit" in runner.out + runner.err
    assert '2,"APAC",80' in runner.out
    assert '"files": 0' in runner.out


def check_examples(runner: PageRunner) -> None:
    assert runner.out.count('"rows_appended"') == 6  # three of a dry run, three of the run
    assert runner.out.count("moved 2 rows") == 2
    with penstock.open(runner.folder / "lake") as lake:
        ledger = lake.dataset("finance.ledger").to_arrow(where="account_code = 'A-20'")
        assert ledger["amount"].to_pylist() == [81.0]
        assert lake.dataset("analytics.archive").to_arrow().num_rows == 4


# -- page runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageRun:
    """Settings of a page run. Only blocks of the languages with a runner are run."""

    after: Callable[[PageRunner], None]  # checks the results
    folder_of: Callable[[Path, Env], AbstractContextManager[Mapping[str, str]]] = empty_folder
    needs: tuple[Callable[[], str | None], ...] = ()
    # besides sh and python
    other_languages: Mapping[str, Callable[[PageRunner, Block], None]] = field(default_factory=dict)
    has_spark: bool = (
        False  # `penstock run` uses the Spark session of this process: a new session takes as long as the other blocks
    )

    def runners(self) -> dict[str, Callable[[PageRunner, Block], None]]:
        return {"sh": PageRunner.sh, "python": PageRunner.python, **self.other_languages}


PAGE_RUNS = {
    "README.md": PageRun(check_readme, demo_clone, (program("make"),), has_spark=True),
    "docs/merge.md": PageRun(check_merge),
    "docs/rest.md": PageRun(check_rest, needs=(program("curl"), java), other_languages={"json": check_rest_problem}),
    "docs/flight.md": PageRun(check_flight, needs=(program("openssl"),)),
    "docs/pipelines.md": PageRun(
        check_pipelines,
        needs=(java,),
        other_languages={"json": check_pipelines_response, "text": check_pipelines_selectors},
    ),
    "docs/operations.md": PageRun(check_operations, database_folder, (database, program("curl"))),
    "examples/README.md": PageRun(check_examples, examples_folder, (go_modules,), has_spark=True),
}

# Blocks that are not run, by their first lines, and the reason.
SKIPPED_BLOCKS = {
    ("README.md", "make demo"): "installs the environment that runs this test; the demo has its own tests",
    ("CONTRIBUTING.md", "make setup"): "runs all tests and checks, this test among them",
    ("docs/architecture.md", "cli commands"): "a drawing of the layers",
    (
        "docs/operations.md",
        "podman build -t penstock .",
    ): "tests/deployment/test_container.py runs it, as far as it can be run here",
    (
        "docs/operations.md",
        "pip install 'penstock[object-store,postgres]'",
    ): "needs a bucket and PostgreSQL; tests/service/test_bucket_workspace.py creates such workspaces",
    ("docs/catalog-schema.md", "SELECT file_no, path, rows, bytes"): "tests/docs/test_catalog_schema.py runs it",
    ("docs/catalog-schema.md", "SELECT file_no, rows, bitmap"): "tests/docs/test_catalog_schema.py runs it",
    (
        "docs/catalog-schema.md",
        "SELECT d.dataset_id, d.schema_name, d.table_name, v.version, v.rows",
    ): "tests/docs/test_catalog_schema.py runs it",
    (
        "docs/catalog-schema.md",
        "SELECT version, commit_no, operation, inserted, updated, deleted, rows, deleted_rows, files, bytes, created_at, author",
    ): "tests/docs/test_catalog_schema.py runs it",
    (
        "docs/catalog-schema.md",
        "SELECT d.schema_name, d.table_name, coalesce(sum(f.bytes), 0) AS live_bytes",
    ): "tests/docs/test_catalog_schema.py runs it",
    (
        "docs/catalog-schema.md",
        "SELECT commit_no, dataset_commits, created_at",
    ): "tests/docs/test_catalog_schema.py runs it",
    ("docs/performance.md", "make bench"): "takes an hour",
    ("docs/scale.md", "python bench/scale.py --postgres URL"): "takes an hour, and a database to throw away",
}
GENERATED = {f"docs/{name}" for name in docs.PAGES}  # test_docs_accurate.py compares them with their sources


@pytest.mark.parametrize("page", PAGES)
def test_every_code_block_runs_or_has_a_reason_to_be_skipped(page: str) -> None:
    runners = PAGE_RUNS[page].runners() if page in PAGE_RUNS else {}
    response = [block for block in blocks(page) if block.key in SKIPPED_BLOCKS or page in GENERATED]
    assert [str(block) for block in blocks(page) if block not in response and block.language not in runners] == []


def test_skipped_code_blocks_exist() -> None:
    assert {block.key for page in PAGES for block in blocks(page)} >= set(SKIPPED_BLOCKS)


@pytest.mark.parametrize(
    ("page", "spark_fixture"), [(page, "spark" if page_run.has_spark else "") for page, page_run in PAGE_RUNS.items()]
)
def test_page_code_blocks_run_in_order(
    page: str, spark_fixture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page_run = PAGE_RUNS[page]
    for missing in filter(None, (requirement() for requirement in page_run.needs)):
        skip_untested(f"the commands of {page}", missing)
    if spark_fixture:
        request.getfixturevalue(spark_fixture)
    folder, notes = tmp_path / "here", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    monkeypatch.chdir(folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env["HOME"] = str(folder)
    runners = page_run.runners()
    with (
        page_run.folder_of(folder, env) as replacements,
        run_page(folder, notes, env, has_spark=bool(spark_fixture)) as runner,
    ):
        for text in replacements:
            assert any(text in block.text for block in blocks(page))
        runner.replacements |= {**replacements, "--host 0.0.0.0": "--host 127.0.0.1"}
        for block in blocks(page):
            if block.key not in SKIPPED_BLOCKS:
                runners[block.language](runner, block)
        page_run.after(runner)
