"""The wheel: built from the tree, and at home in an environment that has never seen the tree."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (found,) = folder.glob("penstock-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The commands of an environment with the wheel in it. What it depends on is borrowed from here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    home = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    (home / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(file.relative_to(source))
        for file in (source / "penstock").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    held = {name for name in ZipFile(wheel).namelist() if not name.startswith("penstock-")}
    assert held == wanted
    assert "penstock/py.typed" in held


def test_the_installed_command_works_far_from_the_tree(installed: Path, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}

    def penstock(*words: str) -> str:
        command = [str(installed / "penstock"), *words]
        return subprocess.run(command, cwd=tmp_path, env=clean, check=True, capture_output=True, text=True).stdout

    home = subprocess.run(
        [str(installed / "python"), "-c", "import penstock; print(penstock.__file__)"],
        cwd=tmp_path, env=clean, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert Path(home).is_relative_to(installed.parent)
    assert "demo" in penstock("--help")
    (tmp_path / "people.csv").write_text("id,name\n1,Ada\n")
    penstock("init", "lake")  # with the migrations that the wheel has
    penstock("dataset", "import", "demo.people", "people.csv", "-w", "lake")
    assert "Ada" in penstock("dataset", "read", "demo.people", "-w", "lake")
