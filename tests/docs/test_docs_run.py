"""Run every code block of the pages, in page order, as a reader who pastes it would."""

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
from conftest import not_tested
from penstock import config
from support import postgres_server, spark_sessions
from support.doc_pages import PAGES, ROOT, Block, Reader, blocks, reading
from tools import docs

Env = dict[str, str]
BIN = Path(sys.executable).parent


@contextmanager
def anywhere(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    """An empty folder, and `penstock` on the path."""
    env["PATH"] = f"{BIN}:{env['PATH']}"
    yield {}


@contextmanager
def a_clone(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    """Yield the tree as it is after `make demo`, without `penstock` on the path. Nothing is downloaded."""
    env["PATH"] = "/usr/bin:/bin"
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            (folder / file.name).symlink_to(file)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(BIN)
    (folder / ".venv" / ".ready").touch()
    yield {}


@contextmanager
def beside_the_examples(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    shutil.copytree(ROOT / "examples", folder / "examples")
    # Go keeps what it has fetched and made where it is at home; no other Go is fetched, no C compiler is needed.
    for name in ("GOMODCACHE", "GOCACHE"):
        env[name] = subprocess.run(
            ["go", "env", name], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
    env |= {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    with anywhere(folder, env) as instead:
        yield instead


@contextmanager
def beside_a_database(folder: Path, env: Env) -> Iterator[Mapping[str, str]]:
    with postgres_server.server() as url, anywhere(folder, env):
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


# -- what must be there ------------------------------------------------------------------------------------------------


def program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not installed"


def java() -> str | None:
    return None if spark_sessions.java() else "Java is not installed"


def database() -> str | None:
    return None if postgres_server.binaries() else "PostgreSQL is not installed"


def modules_of_go() -> str | None:
    if (missing := program("go")()) is not None:
        return missing
    try:
        fetch = ["go", "mod", "download"]
        subprocess.run(fetch, cwd=ROOT / "examples" / "flight" / "go", check=True, capture_output=True, timeout=120)
    except subprocess.SubprocessError:
        return "Go's modules cannot be fetched"
    return None


# -- checks after a page -----------------------------------------------------------------------------------------------


def readme(reader: Reader) -> None:
    names = reader.names
    lake, ds = names["lake"], names["ds"]
    assert '1,"EMEA",120,1' in reader.out
    assert (reader.folder / "sales.parquet").exists()
    assert ds.version == 5
    assert ds.to_arrow(where="amount > 100").num_rows == 1
    assert names["result"].versions
    assert '"rows_appended": 2' in reader.out
    assert lake.dataset("finance.ledger").to_arrow()["amount"].to_pylist() == [120, 80, 120, 120]
    assert lake.dataset("finance.log").to_arrow()["text"].to_pylist()[-1] == "removed 2"
    names["client"].close()
    lake.close()


def merge(reader: Reader) -> None:
    names = reader.names
    assert names["merged"].stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
    names["lake"].close()
    cities = pq.read_table(reader.folder / "data" / "cities").sort_by("id")
    assert cities.to_pydict() == {"id": [1, 2, 3], "city": ["Oslo", "Kyiv", "Quito"]}


def rest(reader: Reader) -> None:
    assert "Type mismatch for field total" in reader.out
    assert '"state": "DEPRECATED"' in reader.out
    assert pq.read_table(reader.folder / "sales.parquet").num_rows == 4
    assert json.loads((reader.folder / "run.json").read_text())["state"] == "succeeded"
    assert '"EMEA",240' in reader.out


def rest_problem(reader: Reader, block: Block) -> None:
    """Assert that the problem on the page equals the response to its schema, except for the id."""
    printed, own = json.loads(block.text), reader.env["ID"]
    change = {"description": "One row an order, and a day", "version": 2}
    received = httpx.patch(f"{reader.env['AT']}/gts/{own}", json=change, timeout=60).json()
    assert json.loads(block.text.replace(printed["schema_id"], own)) == received


def flight(reader: Reader) -> None:
    names = reader.names
    assert reader.python_output == "column_mismatch column mismatch: table has 2 columns, input has 1\n"
    assert names["totals"].to_pydict() == {"total": [1.0, 2.0]}
    assert json.loads(names["deleted"].body.to_pybytes()) == {"status": "success", "affected_rows": 2}
    names["client"].close()
    names["flight"].close()
    with penstock.open(reader.folder / "lake") as lake:
        assert lake.dataset("shop.orders").to_arrow().num_rows == 1
        assert lake.dataset("shop.archive").to_arrow().to_pydict() == {"id": [1, 3], "total": [10.0, 3.25]}


def pipelines(reader: Reader) -> None:
    assert "finance.ledger is at version 2" in reader.err
    assert "9,4100,90" in reader.out
    settings = config.load_settings(reader.env)
    assert settings.spark_master == "spark://head:7077"
    assert settings.spark_conf == {"spark.executor.memory": "4g", "spark.cores.max": "16"}


def pipelines_answer(reader: Reader, block: Block) -> None:
    """Assert that the response on the page equals that of its pipeline, except for the id and the time."""
    answers = [json.loads(message) for message in re.findall(r"^\{\n.*?^\}$", reader.out, re.DOTALL | re.MULTILINE)]
    received = next(answer for answer in reversed(answers) if answer["operation"] == "append")
    printed = json.loads(block.text)
    own = ("source_dataset_id", "execution_time_ms")
    assert {**printed, "result": {**printed["result"], **{name: received["result"][name] for name in own}}} == received


def pipelines_selectors(reader: Reader, block: Block) -> None:
    """Assert that each line is a condition on the same columns that selects some rows."""
    moved = {"status": "active", "fiscal_year": 2026, "amount": 500.0, "account": "4000", "note": "x", "name": "Ada"}
    with penstock.open(reader.folder / "selected", create=True) as lake:
        rows = pa.Table.from_pylist([moved, dict.fromkeys(moved)])
        rows = rows.append_column("posted", pa.array(["2026-02-01", None]).cast(pa.date32()))
        ds = lake.create("demo.selected", rows)
        assert [ds.to_arrow(where=line).num_rows for line in block.text.splitlines()] == [1, 1, 1, 1]


def operations(reader: Reader) -> None:
    message = reader.out.replace(" ", "")
    assert '"status":"ready"' in message
    assert '"role":"analytics.viewer"' in message
    assert "1 files have the checksum of their commit" in reader.out + reader.err
    assert '2,"APAC",80' in reader.out
    assert '"files": 0' in reader.out


def examples(reader: Reader) -> None:
    assert reader.out.count('"rows_appended"') == 6  # of a dry run, and of the run
    assert reader.out.count("moved 2 rows") == 2
    with penstock.open(reader.folder / "lake") as lake:
        ledger = lake.dataset("finance.ledger").to_arrow(where="account_code = 'A-20'")
        assert ledger["amount"].to_pylist() == [81.0]
        assert lake.dataset("analytics.archive").to_arrow().num_rows == 4


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Settings of a page run. Blocks of the languages that are named here are run, and no others."""

    after: Callable[[Reader], None]  # what must be so then
    location: Callable[[Path, Env], AbstractContextManager[Mapping[str, str]]] = anywhere
    needs: tuple[Callable[[], str | None], ...] = ()
    besides: Mapping[str, Callable[[Reader, Block], None]] = field(default_factory=dict)  # sh and python: who reads it
    spark_here: bool = False  # `penstock run` uses this process's Spark: each of its own takes as long as all the rest

    def pasted(self) -> dict[str, Callable[[Reader, Block], None]]:
        return {"sh": Reader.sh, "python": Reader.python, **self.besides}


READINGS = {
    "README.md": Reading(readme, a_clone, (program("make"),), spark_here=True),
    "docs/merge.md": Reading(merge),
    "docs/rest.md": Reading(rest, needs=(program("curl"), java), besides={"json": rest_problem}),
    "docs/flight.md": Reading(flight, needs=(program("openssl"),)),
    "docs/pipelines.md": Reading(
        pipelines, needs=(java,), besides={"json": pipelines_answer, "text": pipelines_selectors}
    ),
    "docs/operations.md": Reading(operations, beside_a_database, (database, program("curl"))),
    "examples/README.md": Reading(examples, beside_the_examples, (modules_of_go,), spark_here=True),
}

# Blocks that no reader pastes, by their first lines, and why.
NOT_PASTED = {
    ("README.md", "make demo"): "the front door itself: who runs this came in by it, and the demo has tests of its own",
    ("CONTRIBUTING.md", "make setup"): "runs all tests and checks, this test among them",
    ("docs/architecture.md", "cli commands"): "a drawing of the layers",
    (
        "docs/operations.md",
        "podman build -t penstock .",
    ): "tests/deployment/test_container.py runs it, as far as it can be run here",
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
GENERATED = {f"docs/{name}" for name in docs.PAGES}  # test_docs.py compares them with what they are made of


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run_or_have_a_reason_not_to(page: str) -> None:
    pasted = READINGS[page].pasted() if page in READINGS else {}
    response = [block for block in blocks(page) if block.begins in NOT_PASTED or page in GENERATED]
    assert [str(block) for block in blocks(page) if block not in response and block.language not in pasted] == []


def test_skipped_code_blocks_exist() -> None:
    assert {block.begins for page in PAGES for block in blocks(page)} >= set(NOT_PASTED)


@pytest.mark.parametrize(
    ("page", "where"), [(page, "spark" if one.spark_here else "") for page, one in READINGS.items()]
)
def test_page_code_blocks_run_in_order(
    page: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    one = READINGS[page]
    for missing in filter(None, (look() for look in one.needs)):
        not_tested(f"the commands of {page} did not run", missing)
    if where:
        request.getfixturevalue(where)
    folder, notes = tmp_path / "here", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    monkeypatch.chdir(folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env["HOME"] = str(folder)
    pasted = one.pasted()
    with one.location(folder, env) as instead, reading(folder, notes, env, spark_here=bool(where)) as reader:
        for printed in instead:
            assert any(printed in block.text for block in blocks(page))
        reader.instead |= {**instead, "--host 0.0.0.0": "--host 127.0.0.1"}
        for block in blocks(page):
            if block.begins not in NOT_PASTED:
                pasted[block.language](reader, block)
        one.after(reader)
