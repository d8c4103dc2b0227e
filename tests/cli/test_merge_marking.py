"""`penstock merge` reports the files of which it marks rows as deleted."""

from pathlib import Path

import pytest

from support.cli_runner import CliRunner


@pytest.fixture
def hundred(cli: CliRunner) -> str:
    """A dataset with one file of 100 rows, and changes to one of them."""
    Path("rows.csv").write_text("id,word\n" + "".join(f"{number},old\n" for number in range(100)))
    Path("changes.csv").write_text("id,word\n7,new\n")
    cli("dataset", "import", "shop.hundred", "rows.csv")
    return "shop.hundred"


@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["merge", "dry_run"])
def test_merge_of_one_row_reports_the_marked_file(cli: CliRunner, hundred: str, flags: list[str]) -> None:
    response = cli("merge", "changes.csv", hundred, "-k", "id", "--json", *flags).json
    files = {name: response[name] for name in ("files_rewritten", "files_marked", "files_removed", "files_kept")}
    (marked,) = files.pop("files_marked")
    assert marked.endswith(".parquet")
    assert files == {"files_rewritten": [], "files_removed": [], "files_kept": 0}


def test_merge_of_one_row_prints_the_number_of_marked_files(cli: CliRunner, hundred: str) -> None:
    message = cli("merge", "changes.csv", hundred, "-k", "id", "--dry-run").err
    assert "0 files would be rewritten, 1 with rows marked as deleted, 0 removed, 0 unchanged" in message
    assert ".parquet (rows marked as deleted)" in message
    message = cli("merge", "changes.csv", hundred, "-k", "id").err
    assert "0 files rewritten, 1 with rows marked as deleted, 0 removed, 0 unchanged" in message
