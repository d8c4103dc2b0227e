"""Where the edges are tried: an empty workspace, and a working folder around it."""

import shutil
from pathlib import Path

import pytest

import penstock
from cli_runner import Shell


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blank") / "lake"
    penstock.open(folder, create=True).close()
    return folder


@pytest.fixture
def shell(
    blank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Shell:
    shutil.copytree(blank, tmp_path / "lake")
    shell = Shell(tmp_path, capsysbinary)
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_WORKSPACE", "PENSTOCK_DURABLE"):
        monkeypatch.setenv(name, shell.env[name])
    return shell


@pytest.fixture
def orders(shell: Shell) -> str:
    """A dataset of two versions: three rows, then five."""
    Path("three.csv").write_text("id,word\n1,one\n2,two\n3,three\n")
    Path("two.csv").write_text("id,word\n4,\n5,five\n")
    shell("dataset", "import", "shop.orders", "three.csv")
    shell("dataset", "import", "shop.orders", "two.csv")
    return "shop.orders"
