"""Check the requirements of Penstock, and report problems with instructions to fix them."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.catalog import migrate, retention, snapshots
from penstock.catalog.database import CatalogTransaction, Database
from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.progress import Progress, ProgressCallback, ProgressTracker
from penstock.engines.spark.requirements import SUPPORTED_JAVA_VERSIONS as JAVA
from penstock.engines.spark.requirements import find_java
from penstock.errors import PenstockError
from penstock.service.workspace import Workspace
from penstock.storage.file_store import FileStore

MIN_PYTHON = (3, 11)
# One package of each extra, and the extra that installs it.
EXTRAS = {
    "pyspark": "spark",
    "pyjwt": "server",
    "grpcio": "server",
    "psycopg": "postgres",
    "nicegui": "ui",
    "obstore": "object-store",
}
MIN_FREE_BYTES = 5 << 30  # of the disk; with less, a write may fail


class CheckStatus(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # a part of Penstock does not work, or will fail soon
    FAILED = "failed"  # Penstock does not work


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report. The field names are members of `penstock doctor --json`."""

    part: str
    state: CheckStatus
    found: str
    fix: str | None = None  # a command or an instruction that fixes the problem

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return asdict(self)


def check_machine() -> Iterator[CheckResult]:
    """Check Python, Java and the installed packages."""
    yield _python()
    yield _java()
    for package in ("pyarrow", "duckdb", "sqlalchemy", "alembic"):
        yield CheckResult(package, CheckStatus.OK, version(package))
    for package, extra in EXTRAS.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = f"not installed (pip install 'penstock[{extra}]')"
        yield CheckResult(package, CheckStatus.OK, found)


def check_variables(unknown: list[str]) -> Iterator[CheckResult]:
    """Report environment variables that look like settings and are none."""
    for name in unknown:
        yield CheckResult(
            "settings", CheckStatus.WARNING, f"{name} is not a setting", f"unset {name}, or see `penstock --help`"
        )


def check_folder(path: Path) -> Iterator[CheckResult]:
    """Check that the workspace folder exists and is writable, and that the disk has free space."""
    try:
        probe = path / f".doctor-{uuid4().hex}"
        probe.write_bytes(b"penstock")
        with probe.open("rb") as file:
            os.fsync(file.fileno())
        probe.unlink()
        yield CheckResult("workspace", CheckStatus.OK, str(path))
    except OSError as cause:
        yield CheckResult("workspace", CheckStatus.FAILED, f"{path}: {cause.strerror}", f"penstock init {path}")
        return
    free = shutil.disk_usage(path).free
    enough = CheckStatus.OK if free >= MIN_FREE_BYTES else CheckStatus.WARNING
    yield CheckResult(
        "disk", enough, f"{free / 1e9:,.1f} GB free", None if enough is CheckStatus.OK else "penstock sweep"
    )


def check_store(store: FileStore) -> Iterator[CheckResult]:
    """Check that objects can be written to, listed in and removed from the bucket of the workspace, if it has one."""
    if not store.is_remote:
        return
    try:
        store.check_access()
        yield CheckResult("store", CheckStatus.OK, repr(store))
    except PenstockError as error:
        yield CheckResult("store", CheckStatus.FAILED, error.message, "check PENSTOCK_STORE and PENSTOCK_STORE_OPTIONS")


def check_database(db: Database) -> Iterator[CheckResult]:
    """Check the database connection, the revision of the catalog, and PostgreSQL's row-level security."""
    try:
        with db.connect_without_tenant() as connection:
            dialect = connection.dialect
            server = ".".join(map(str, getattr(dialect, "server_version_info", None) or ()))
        yield CheckResult("database", CheckStatus.OK, f"{dialect.name} {server}".strip())
        migrate.assert_current(db)
        yield CheckResult("catalog", CheckStatus.OK, f"revision {migrate.CURRENT_MIGRATION}")
        if dialect.name == "postgresql":
            yield _row_security(db)
    except PenstockError as error:
        fix = (
            "penstock migrate"
            if error.kind == "Unsupported"
            else "check PENSTOCK_DATABASE_URL and that the server is running"
        )
        yield CheckResult("database", CheckStatus.FAILED, error.message, fix)


def check_files(ws: Workspace, caller: Caller, progress: ProgressCallback | None = None) -> Iterator[CheckResult]:
    """Read every file of every retained version, and compare it with the checksum it was committed with.

    Args:
        ws: the workspace
        caller: an admin of the tenant
        progress: receives the number of bytes read; may raise to stop
    """
    tracker, store = ProgressTracker(progress, Progress(unit="bytes")), ws.store_of(caller)
    with ws.db.read(caller) as tx:
        names = [(snapshot.name, snapshot.dataset) for snapshot in snapshots.list_newest(tx)]
    for name, dataset in names:
        with ws.db.read(caller) as tx:
            files = retention.expired_files(tx, dataset, None)
            totals = _wrong_totals(snapshots.newest(tx, dataset), tx)
        if totals:
            yield CheckResult(str(name), CheckStatus.FAILED, totals, "restore the catalog from a backup")
            continue
        bad = [file.path for file in files if store.checksum(file.path, tracker.add) != file.checksum]
        if bad:
            yield CheckResult(
                str(name), CheckStatus.FAILED, f"{len(bad)} of {len(files)} files are damaged or missing: {bad[0]}",
                "restore the file from a backup, under the same name",
            )  # fmt: skip
        else:
            yield CheckResult(str(name), CheckStatus.OK, f"{len(files)} files have the checksum of their commit")


def _wrong_totals(snapshot: Snapshot, tx: CatalogTransaction) -> str:
    """Compare the totals of a version with its files and deletion vectors; return the difference, or an empty text."""
    version, files = snapshot.version, snapshots.files(tx, snapshot)
    deleted = [len(file.deleted) for file in files if file.deleted]
    stored = (version.files, version.rows, version.deleted_rows, version.vector_files)
    counted = (len(files), sum(file.live_rows for file in files), sum(deleted), len(deleted))
    names = ("files", "rows", "deleted rows", "files with deletion vectors")
    differences = [
        f"{b:,} {name} instead of {a:,}" for name, a, b in zip(names, stored, counted, strict=True) if a != b
    ]
    return f"version {version.number} has {', '.join(differences)}" if differences else ""


def _python() -> CheckResult:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= MIN_PYTHON:
        return CheckResult("python", CheckStatus.OK, found)
    return CheckResult("python", CheckStatus.FAILED, found, "install Python 3.11 or newer")


def _java() -> CheckResult:
    fix = f"apt-get install openjdk-{JAVA[0]}-jre-headless (pipelines run on Spark, which needs Java {JAVA[0]} to {JAVA[1]})"
    java = find_java()
    if java is None:
        return CheckResult("java", CheckStatus.WARNING, "not found", fix)
    if java.description is None:
        return CheckResult("java", CheckStatus.WARNING, f"{java.program} does not run", fix)
    if java.is_supported:
        return CheckResult("java", CheckStatus.OK, java.description)
    return CheckResult("java", CheckStatus.WARNING, java.description, fix)


def _row_security(db: Database) -> CheckResult:
    unprotected = migrate.tables_without_row_security(db)
    if unprotected:
        return CheckResult(
            "row security", CheckStatus.FAILED, f"not in force on {', '.join(unprotected)}", "penstock migrate"
        )
    return CheckResult("row security", CheckStatus.OK, "forced on every table of tenants")
