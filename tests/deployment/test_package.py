"""Test the wheel in environments with its dependencies only."""

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
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import skip_untested
from penstock.extras import EXTRAS
from support import spark_sessions

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (path,) = folder.glob("penstock-*.whl")
    return path


class Installed:
    """An environment as after `pip install penstock[extras]`, made without the network."""

    def __init__(self, wheel: Path, folder: Path, *extras: str) -> None:
        self.bin = folder / "bin"
        self.home = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
        (penstock_distribution,) = distributions(name="penstock", path=[str(self.home)])
        for dependency in dependencies(penstock_distribution, *extras):
            _link(dependency, self.home)

    def command(self, *words: str) -> list[str]:
        return [str(self.bin / "penstock"), *words]

    def __call__(self, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        return _run(self.command(*words), code, env)

    def python(self, source: str) -> str:
        """Run Python source in the environment and return its output."""
        return _run([str(self.bin / "python"), "-c", source], 0, {}).stdout


def _run(command: list[str], code: int, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(command, env={**clean(), **env}, capture_output=True, text=True)
    assert process.returncode == code, process.stderr
    return process


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}


def dependencies(penstock_distribution: Distribution, *extras: str) -> list[Distribution]:
    """Return the installed distributions that a distribution requires with the extras, directly or indirectly."""
    result = dict[str, Distribution]()
    queue = [(penstock_distribution, extra) for extra in ("", *extras)]
    visited = {(canonicalize_name(penstock_distribution.name), extra) for _, extra in queue}
    while queue:
        dependent, extra = queue.pop()
        for requirement in map(Requirement, dependent.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            if name == canonicalize_name(penstock_distribution.name):  # an extra that includes another extra
                required = penstock_distribution
            else:
                required = result[name] = distribution(name)
            new = {(name, extra_name) for extra_name in ("", *requirement.extras)} - visited
            visited |= new
            queue += [(required, extra_name) for _, extra_name in new]
    return list(result.values())


def _link(dependency: Distribution, home: Path) -> None:
    """Link file by file, because distributions can share a folder."""
    for file in dependency.files or ():
        if ".." not in file.parts:  # a command
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            (home / file).symlink_to(str(file.locate()))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def with_server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("with-server"), "server")


@pytest.fixture(scope="module")
def with_all(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("with-all"), "all")


@pytest.fixture
def outside_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory outside the source tree."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_wheel_contains_exactly_the_package(wheel: Path) -> None:
    required = {
        str(file.relative_to(SOURCE))
        for file in (SOURCE / "penstock").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    file_names = {name for name in ZipFile(wheel).namelist() if not name.startswith("penstock-")}
    assert file_names == required
    assert "penstock/py.typed" in file_names


# The folders and modules that may import the packages of extras. All other modules import the base dependencies only.
PATH_EXTRAS = {
    "engines/spark": {"spark"},
    "flight": {"server"},
    "rest": {"server"},
    "service/auth": {"server"},
    "storage/object_store.py": {"object-store"},
    "storage/store_url.py": {"object-store"},
    "ui": {"ui"},
}


def test_imports_are_declared_and_only_listed_paths_need_an_extra() -> None:
    distribution_names = packages_distributions()
    undeclared = {
        (str(file.relative_to(SOURCE)), module)
        for file in (SOURCE / "penstock").rglob("*.py")
        for module in _imported(file)
        if not {canonicalize_name(name) for name in distribution_names.get(module, ())} & _declared_for(file)
    }
    assert undeclared == set()


def _declared_for(file: Path) -> set[str]:
    """Return the distributions that a module may import."""
    names = _names(PROJECT["dependencies"])
    for path, extras in PATH_EXTRAS.items():
        if file.is_relative_to(SOURCE / "penstock" / path):
            names |= {name for extra in extras for name in _names(PROJECT["optional-dependencies"][extra])}
    return names


def test_extra_of_every_optional_package_installs_it() -> None:
    distribution_names = packages_distributions()
    for package, extra in EXTRAS.items():
        installed_by = _names(PROJECT["optional-dependencies"][extra])
        assert {canonicalize_name(name) for name in distribution_names[package]} & installed_by, package


def _names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def _imported(file: Path) -> Iterator[str]:
    """Yield the third-party packages that a file imports, at any level."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Import(names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        top_names = {module.partition(".")[0] for module in modules}
        yield from top_names - sys.stdlib_module_names - {"penstock"}


def test_extra_all_contains_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    (all_requirement,) = map(Requirement, extras["all"])
    assert (all_requirement.name, all_requirement.extras) == ("penstock", extras.keys() - {"all"})


@pytest.mark.usefixtures("outside_folder")
@pytest.mark.parametrize("environment", ["base", "with_all"])
def test_installed_command_prints_the_wheel_version(
    environment: str, wheel: Path, request: pytest.FixtureRequest
) -> None:
    installed: Installed = request.getfixturevalue(environment)
    path = installed.python("import penstock; print(penstock.__file__)")
    assert Path(path).is_relative_to(installed.home)
    assert re.search(r"-(.*?)-", wheel.name)[1] in installed("--version").stdout  # type: ignore[index]
    assert "demo" in installed("--help").stdout


def test_installed_demo_runs_to_the_end(with_all: Installed, outside_folder: Path) -> None:
    if spark_sessions.java() is None:
        skip_untested("the demo of the wheel", "Java is not installed")
    output = with_all("demo", "--keep", "kept").stdout
    assert "── Next steps" in output
    assert (outside_folder / "kept" / "lake").is_dir()


BASE_WORK = """
import penstock

with penstock.open("lake", create=True) as lake:
    orders = lake.create("shop.orders", {"id": [1, 2], "total": [5.0, 7.5]})
    for engine in ("pyarrow", "duckdb"):
        print(engine, orders.merge({"id": [2, 3], "total": [8.0, 1.0]}, "id", "upsert", engine=engine).stats["total"])
    print(lake.sql("SELECT count(*) AS orders, sum(total) AS total FROM shop.orders").rows)
"""


@pytest.mark.usefixtures("outside_folder")
def test_base_install_opens_a_lake_merges_and_queries(base: Installed) -> None:
    lines = base.python(BASE_WORK).splitlines()
    assert lines == ["pyarrow 3", "duckdb 3", "[{'orders': 3, 'total': 14.0}]"]
    assert "shop.orders" in base("dataset", "list", "-w", "lake").stdout


@pytest.mark.usefixtures("outside_folder")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        pytest.param(("serve", "--dev", "--http-port", "0", "--flight-port", "0"), "server", id="serve"),
        pytest.param(("token", "--user", "ada", "--role", "analytics.developer"), "server", id="token"),
    ],
)
def test_base_install_command_names_the_missing_extra(base: Installed, words: tuple[str, ...], extra: str) -> None:
    base("init", "lake")
    process = base(*words, "-w", "lake", "--json", code=1, PENSTOCK_JWT_SECRET="s" * 48)
    _check_missing_extra(json.loads(process.stderr)["error"], extra)


def _check_missing_extra(error: dict[str, str], extra: str) -> None:
    assert (error["kind"], error["reason"]) == ("Unsupported", "missing_extra")
    assert f"pip install 'penstock[{extra}]'" in error["message"]


@pytest.mark.usefixtures("outside_folder")
def test_base_install_pipeline_run_names_the_missing_extra(base: Installed) -> None:
    base("init", "lake")
    columns = ("-c", "id:int64", "-w", "lake", "--json")
    source, target = (base("dataset", "create", name, *columns).stdout for name in ("shop.orders", "shop.archive"))
    operation = {"type": "append", "parameters": {"source": {"dataset_id": json.loads(source)["id"]}}}
    pipeline = {"name": "archive", "working": {"dataset_id": json.loads(target)["id"]}, "operations": [operation]}
    Path("archive.json").write_text(json.dumps(pipeline))
    base("validate", "archive.json", "-w", "lake")
    message = base("run", "archive.json", "-w", "lake", code=1).stderr
    assert "The package pyspark is not installed. Install it with: pip install 'penstock[spark]'" in message


FLIGHT_CLIENT = """
import json, penstock
try:
    penstock.flight_client
except penstock.Unsupported as error:
    print(json.dumps({"kind": type(error).__name__, "reason": error.reason, "message": error.message}))
"""


@pytest.mark.usefixtures("outside_folder")
def test_base_install_flight_client_names_the_missing_extra(base: Installed) -> None:
    _check_missing_extra(json.loads(base.python(FLIGHT_CLIENT)), "server")


@pytest.mark.usefixtures("outside_folder")
def test_serve_without_the_ui_extra_logs_how_to_install_it(with_server: Installed) -> None:
    response, message = _serve(with_server)
    assert response["ui"] is None
    assert "pip install 'penstock[ui]'" in message


@pytest.mark.usefixtures("outside_folder")
def test_serve_with_all_extras_serves_the_ui(with_all: Installed) -> None:
    response, message = _serve(with_all)
    assert response["ui"]
    assert "pip install" not in message


def _serve(installed: Installed) -> tuple[dict[str, Any], str]:
    """Start a server, list its datasets, and stop it. Return its first output and its log."""
    serve = installed.command("serve", "--dev", "--http-port", "0", "--flight-port", "0", "--json")
    with subprocess.Popen(serve, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            response = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")
            with urllib.request.urlopen(f"{response['http']}/datasets") as http_response:
                assert json.load(http_response)["value"] == []
        finally:
            server.send_signal(signal.SIGTERM)
            message = server.communicate(timeout=60)[1]
    assert server.returncode == 0
    return response, message


@pytest.mark.usefixtures("outside_folder")
def test_postgresql_without_its_driver_names_the_install_command(base: Installed) -> None:
    rejected = base("init", "lake", "--json", code=1, PENSTOCK_DATABASE_URL="postgresql://ada@db.example/lake")
    error = json.loads(rejected.stderr)["error"]
    assert (error["kind"], error["reason"]) == ("Invalid", "missing_postgres_driver")
    assert "pip install 'penstock[postgres]'" in error["message"]
    base("init", "lake")
    assert "pip install 'penstock[postgres]'" in base("doctor", "-w", "lake").stdout
