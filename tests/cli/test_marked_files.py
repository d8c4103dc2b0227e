"""`penstock dataset show` and `export` of a dataset whose file has a deletion vector."""

from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import penstock
from support.cli_runner import CliRunner

NAME = "shop.marked"


@pytest.fixture
def marked(cli: CliRunner) -> str:
    """One file of 100 rows, three of which are deleted."""
    with penstock.open(cli.folder / "lake") as lake:
        lake.create(NAME, {"id": list(range(1, 101))}).delete([1, 50, 100])
    return NAME


def test_show_reports_deleted_rows_and_files_with_vectors(cli: CliRunner, marked: str) -> None:
    details = cli("dataset", "show", marked, "--json").json
    assert (details["rows"], details["deleted_rows"], details["vector_files"], details["files"]) == (97, 3, 1, 1)
    printed = cli("dataset", "show", marked).out.decode()
    assert "97 rows" in printed
    assert "3 deleted" in printed
    first = cli("dataset", "show", marked, "--version", 1, "--json").json
    assert (first["rows"], first["deleted_rows"], first["vector_files"]) == (100, 0, 0)


@pytest.mark.parametrize("file_type", ["parquet", "csv"])
def test_export_of_a_marked_file_omits_deleted_rows(cli: CliRunner, marked: str, file_type: str) -> None:
    read = pq.read_table if file_type == "parquet" else pc.read_csv
    live = [number for number in range(1, 101) if number not in (1, 50, 100)]
    cli("dataset", "export", marked, f"new.{file_type}")
    assert read(Path(f"new.{file_type}"))["id"].to_pylist() == live
    cli("dataset", "export", marked, f"old.{file_type}", "--version", 1)
    assert read(Path(f"old.{file_type}"))["id"].to_pylist() == list(range(1, 101))
