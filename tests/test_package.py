"""The wheel: built from the tree, and at home in an environment with what it asks for and nothing else."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spark_sessions as spark
from conftest import not_tested

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (found,) = folder.glob("penstock-*.whl")
    return found


class Installed:
    """The wheel in an environment of its own, without extras: as after `pip install penstock`, but for the network."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.bin = folder / "bin"
        self.home = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
        (own,) = distributions(name="penstock", path=[str(self.home)])
        for needed in asked_for(own):
            _link(needed, self.home)

    def command(self, *words: str) -> list[str]:
        return [str(self.bin / "penstock"), *words]

    def __call__(self, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*words), env={**clean(), **env}, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}


def asked_for(one: Distribution) -> list[Distribution]:
    """The distributions that one requires, and those that they require, as they are installed here."""
    found = dict[str, Distribution]()
    seen, waiting = set[tuple[str, str]](), [(one, "")]
    while waiting:
        it, extra = waiting.pop()
        for wanted in map(Requirement, it.requires or ()):
            if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(wanted.name)
            found[name] = distribution(name)
            new = {(name, more) for more in ("", *wanted.extras)} - seen
            seen |= new
            waiting += [(found[name], more) for _, more in new]
    return list(found.values())


def _link(one: Distribution, home: Path) -> None:
    """File by file: several distributions may share a folder."""
    for file in one.files or ():
        if ".." not in file.parts:  # which is a command
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            (home / file).symlink_to(str(file.locate()))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing knows of the tree."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    wanted = {
        str(file.relative_to(SOURCE))
        for file in (SOURCE / "penstock").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    held = {name for name in ZipFile(wheel).namelist() if not name.startswith("penstock-")}
    assert held == wanted
    assert "penstock/py.typed" in held


def test_what_is_imported_is_declared_and_outside_the_pages_no_extra_is_needed() -> None:
    base, pages = _names(PROJECT["dependencies"]), _names(PROJECT["optional-dependencies"]["ui"])
    belongs = packages_distributions()
    undeclared = {
        (str(file.relative_to(SOURCE)), module)
        for file in (SOURCE / "penstock").rglob("*.py")
        for module in _imported(file)
        if not {canonicalize_name(name) for name in belongs.get(module, ())}
        & (base | pages if file.is_relative_to(SOURCE / "penstock" / "ui") else base)
    }
    assert undeclared == set()


def _names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def _imported(file: Path) -> Iterator[str]:
    """The modules of others that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Import(names):
                modules = [each.name for each in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        tops = {module.partition(".")[0] for module in modules}
        yield from tops - sys.stdlib_module_names - {"penstock"}


def test_the_extra_all_is_all_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert (everything.name, everything.extras) == ("penstock", extras.keys() - {"all"})


@pytest.mark.usefixtures("far")
def test_the_installed_command_comes_from_the_wheel_and_knows_its_version(installed: Installed, wheel: Path) -> None:
    code = "import penstock; print(penstock.__file__)"
    told = subprocess.run(
        [installed.bin / "python", "-c", code], env=clean(), check=True, capture_output=True, text=True
    )
    assert Path(told.stdout).is_relative_to(installed.home)
    assert re.search(r"-(.*?)-", wheel.name)[1] in installed("--version").stdout  # type: ignore[index]
    assert "demo" in installed("--help").stdout


def test_the_installed_demo_tells_its_story_to_the_end(installed: Installed, far: Path) -> None:
    if spark.java() is None:
        not_tested("the demo of the wheel did not run", "Java is not installed")
    story = installed("demo", "--keep", "kept").stdout
    assert "What to do next" in story
    assert (far / "kept" / "lake").is_dir()


@pytest.mark.usefixtures("far")
def test_without_the_pages_the_service_serves_the_rest_and_says_how_to_get_them(installed: Installed) -> None:
    serve = installed.command("serve", "--dev", "--http-port", "0", "--flight-port", "0", "--json")
    with subprocess.Popen(serve, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            told = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")
            with urllib.request.urlopen(f"{told['http']}/datasets") as answer:
                assert json.load(answer)["value"] == []
        finally:
            server.send_signal(signal.SIGTERM)
            said = server.communicate(timeout=60)[1]
    assert (server.returncode, told["ui"]) == (0, None)
    assert "pip install 'penstock[ui]'" in said


@pytest.mark.usefixtures("far")
def test_without_its_driver_postgresql_is_refused_with_the_command_that_brings_it(installed: Installed) -> None:
    refused = installed("init", "lake", "--json", code=1, PENSTOCK_DATABASE_URL="postgresql://ada@db.example/lake")
    error = json.loads(refused.stderr)["error"]
    assert (error["kind"], error["reason"]) == ("Invalid", "no_postgres_driver")
    assert "pip install 'penstock[postgres]'" in error["message"]
    installed("init", "lake")
    assert "pip install 'penstock[postgres]'" in installed("doctor", "-w", "lake").stdout
