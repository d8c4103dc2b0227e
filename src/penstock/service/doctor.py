"""Look at what Penstock needs, and say what is missing and what mends it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.catalog import snapshots as history
from penstock.catalog import migrate as upgrade
from penstock.catalog import retention
from penstock.catalog.database import Database
from penstock.core.caller import Caller
from penstock.engines.spark.java_versions import VERSIONS as JAVA
from penstock.errors import PenstockError
from penstock.service.workspace import Workspace
from penstock.storage.file_store import checksum

MIN_PYTHON = (3, 11)
EXTRAS = {"psycopg": "postgres", "nicegui": "ui"}  # what the database of teams and the web page need
MIN_FREE = 5 << 30  # bytes of disk below which a write may fail half-way


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a part does not work, or soon will not
    FAILED = "failed"  # Penstock does not work


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    state: State
    found: str
    mend: str | None = None  # a command, or what to do

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> Iterator[Finding]:
    """What does not depend on a workspace."""
    yield _python()
    yield _java()
    for package in ("pyarrow", "sqlalchemy", "alembic", "pyjwt"):
        yield Finding(package, State.OK, version(package))
    for package, extra in EXTRAS.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = f"not installed (pip install 'penstock[{extra}]')"
        yield Finding(package, State.OK, found)


def variables(unknown: list[str]) -> Iterator[Finding]:
    for name in unknown:
        yield Finding("settings", State.WARNING, f"{name} is no setting", f"unset {name}, or see `penstock --help`")


def folder(place: Path) -> Iterator[Finding]:
    """The workspace's folder: is it there, can it be written to, is there room?"""
    try:
        probe = place / f".doctor-{uuid4().hex}"
        probe.write_bytes(b"penstock")
        with probe.open("rb") as file:
            os.fsync(file.fileno())
        probe.unlink()
        yield Finding("workspace", State.OK, str(place))
    except OSError as cause:
        yield Finding("workspace", State.FAILED, f"{place}: {cause.strerror}", f"penstock init {place}")
        return
    free = shutil.disk_usage(place).free
    enough = State.OK if free >= MIN_FREE else State.WARNING
    yield Finding("disk", enough, f"{free / 1e9:,.1f} GB free", None if enough is State.OK else "penstock sweep")


def database(db: Database) -> Iterator[Finding]:
    """Can the catalog be reached, is it up to date, and does PostgreSQL keep tenants apart?"""
    try:
        with db.raw() as connection:
            dialect = connection.dialect
            server = ".".join(map(str, getattr(dialect, "server_version_info", None) or ()))
        yield Finding("database", State.OK, f"{dialect.name} {server}".strip())
        upgrade.assert_current(db)
        yield Finding("catalog", State.OK, f"revision {upgrade.HEAD}")
        if dialect.name == "postgresql":
            yield _row_security(db)
    except PenstockError as error:
        mend = (
            "penstock migrate"
            if error.kind == "Unsupported"
            else "check PENSTOCK_DATABASE_URL, and that the server runs"
        )
        yield Finding("database", State.FAILED, error.message, mend)


def files(ws: Workspace, caller: Caller, progress: Callable[[int], None] = lambda _: None) -> Iterator[Finding]:
    """Read every file of every retained version, and compare it with the checksum it was committed with."""
    with ws.db.read(caller) as tx:
        names = [(snapshot.name, snapshot.dataset) for snapshot in history.datasets_now(tx)]
    for name, dataset in names:
        with ws.db.read(caller) as tx:
            held = retention.faded(tx, dataset, None)
        bad = [file.path for file in held if checksum(ws.store, file.path, progress) != file.checksum]
        if bad:
            yield Finding(
                str(name), State.FAILED, f"{len(bad)} of {len(held)} files are damaged or gone: {bad[0]}",
                "restore the file from a backup, under the same name",
            )  # fmt: skip
        else:
            yield Finding(str(name), State.OK, f"{len(held)} files are as they were written")


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= MIN_PYTHON:
        return Finding("python", State.OK, found)
    return Finding("python", State.FAILED, found, "install Python 3.11 or newer")


def _java() -> Finding:
    mend = f"apt-get install openjdk-{JAVA[0]}-jre-headless (pipelines run on Spark, which needs Java {JAVA[0]} to {JAVA[1]})"
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        return Finding("java", State.WARNING, "not found", mend)
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return Finding("java", State.WARNING, f"{program} does not run", mend)
    number = re.search(r'version "(?:1\.)?(\d+)', told)
    if number and JAVA[0] <= int(number[1]) <= JAVA[1]:
        return Finding("java", State.OK, told.splitlines()[0])
    return Finding("java", State.WARNING, told.splitlines()[0] if told else "unknown version", mend)


def _row_security(db: Database) -> Finding:
    unprotected = upgrade.unprotected(db)
    if unprotected:
        return Finding("row security", State.FAILED, f"not in force on {', '.join(unprotected)}", "penstock migrate")
    return Finding("row security", State.OK, "forced on every table of tenants")
