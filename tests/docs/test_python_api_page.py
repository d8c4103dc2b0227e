"""Run the examples of the Python API page in order, in a temporary folder, and check that every export is documented."""

import doctest
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.flight.context import FlightContext
from penstock.flight.service import FlightService
from support.doc_pages import Block, blocks, text
from tools import python_api

PAGE = "docs/python-api.md"
CLASSES = ["Lake", "LakeSnapshot", "Dataset", "DatasetVersion", "Transaction", "Pipeline", "Query", "QueryResult"]
ORDERS = pa.table({"id": list(range(1, 21)), "total": [10.0 * n for n in range(20)]})


@contextmanager
def flight_server() -> Iterator[str]:
    """Serve a new workspace over Flight, and yield the address."""
    with penstock.open("served", create=True) as lake:
        service = FlightService(FlightContext(lake._workspace, None, lake.caller), "127.0.0.1", 0)
        service.start()
        try:
            yield service.address
        finally:
            service.stop()


def run_doctest(block: Block, names: dict[str, Any]) -> None:
    """Run a block with expected output."""
    case = doctest.DocTestParser().get_doctest(block.text, names, str(block), PAGE, block.line)
    case.globs = names  # later blocks use the names of earlier ones
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(case, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)


def run_flight_example(block: Block, address: str) -> None:
    """Run a block without expected output, with a client and the tables that it uses."""
    source = re.sub(r"grpc://localhost:8815", address, block.text).replace(', token="…"', "")
    with penstock.flight_client(address) as client:
        for table in client.tables():
            client.drop(table.name)
        if ".create(" not in source:
            client.create("shop.orders", ORDERS.schema)
            client.create("shop.payments", pa.schema([("order_id", pa.int64())]))
            client.insert("shop.orders", ORDERS)
        exec(compile(source, str(block), "exec"), {"penstock": penstock, "pa": pa, "client": client})


@pytest.mark.usefixtures("spark")
def test_python_api_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [block for block in blocks(PAGE) if block.language in ("pycon", "py")]
    assert len(examples) > 30
    names: dict[str, Any] = {"pa": pa, **{name: getattr(penstock, name) for name in penstock.__all__}}
    del names["open"]  # the page uses the name penstock.open
    monkeypatch.chdir(tmp_path)
    try:
        with flight_server() as address:
            for number, block in enumerate(examples):
                if "merge_parquet_dataset_" in block.text:  # each example begins with an empty folder
                    (tmp_path / str(number)).mkdir()
                    monkeypatch.chdir(tmp_path / str(number))
                if block.language == "pycon":
                    run_doctest(block, names)
                else:
                    run_flight_example(block, address)
    finally:
        if "lake" in names:
            names["lake"].close()


def test_python_api_page_documents_every_export() -> None:
    headings = set(re.findall(r"^## `(\w+)`", text(PAGE), re.MULTILINE))
    error_classes = set(re.findall(r"^\| `(\w+)` \| \S", text(PAGE), re.MULTILINE))
    assert headings | error_classes == set(penstock.__all__) - {"__version__"}


@pytest.mark.parametrize("name", CLASSES)
def test_python_api_public_members_have_docstrings(name: str) -> None:
    members = vars(getattr(penstock, name)).items()
    public = [(member, value) for member, value in members if not member.startswith("_")]
    assert [member for member, value in public if not inspect.getdoc(value)] == []


def documented_methods() -> dict[str, Any]:
    """Return the exported functions, and the public methods of the exported classes."""
    exports = {name: getattr(penstock, name) for name in penstock.__all__ if name != "__version__"}
    functions = {name: value for name, value in exports.items() if inspect.isfunction(value)}
    for name, value in exports.items():
        if inspect.isclass(value) and not issubclass(value, penstock.PenstockError):
            functions |= {f"{name}.{method}": member for method, member in python_api.public_members(value)}
    return {name: value for name, value in functions.items() if not isinstance(value, property)}


METHODS = documented_methods()


@pytest.mark.parametrize("name", METHODS)
def test_python_api_docstring_has_every_argument_and_an_example(name: str) -> None:
    docstring = inspect.getdoc(METHODS[name]) or ""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", docstring, re.MULTILINE)
    documented = re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []
    assert documented == [parameter for parameter in inspect.signature(METHODS[name]).parameters if parameter != "self"]
    assert "\nExample:\n" in docstring
