"""Settings, read once and passed down as values; and the file that makes a folder a workspace."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from penstock.errors import Invalid, NotFound, Unsupported

HOME_FILE = "penstock.json"
_FORMAT = 1


def _setting(
    variable: str, default: Any, meaning: str, read: Callable[[str], Any] = str, *, secret: bool = False
) -> Any:
    facts = {"variable": variable, "meaning": meaning, "read": read, "secret": secret}
    return field(default=default, repr=not secret, metadata=facts)


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words[text.strip().lower()]


def _size(text: str) -> int:
    """A number of bytes: 134217728, 128MB, 1 GiB."""
    text = text.strip().lower().removesuffix("b").removesuffix("i").strip()
    for unit, factor in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)):
        if text.endswith(unit):
            return _positive(text.removesuffix(unit)) * factor
    return _positive(text)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _message(text: str) -> int:
    size = _size(text)
    if size >= 1 << 31:  # gRPC counts no further
        raise ValueError(text)
    return size


def _days(text: str) -> int:
    number = _positive(text)
    if number > 36_525:  # a century; the calendar ends somewhere
        raise ValueError(text)
    return number


def _seconds_of_a_day(text: str) -> int:
    number = _positive(text)
    if number > 86_400:
        raise ValueError(text)
    return number


def _pairs(text: str) -> dict[str, str]:
    """name=value; name=value"""
    pairs = [pair.partition("=") for pair in text.replace("\n", ";").split(";") if pair.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise ValueError(text)
    return {name.strip(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting is an environment variable; what a command's option says goes before it."""

    workspace: Path = _setting("PENSTOCK_WORKSPACE", Path("workspace"), "The folder that holds the files.", Path)
    database_url: str | None = _setting(
        "PENSTOCK_DATABASE_URL",
        None,
        "The catalog: postgresql://… for many machines. Unset: SQLite in the workspace.",
        secret=True,
    )
    admin_database_url: str | None = _setting(
        "PENSTOCK_ADMIN_DATABASE_URL",
        None,
        "The catalog as its owner, for `penstock migrate`. Unset: PENSTOCK_DATABASE_URL.",
        secret=True,
    )
    durable: bool = _setting(
        "PENSTOCK_DURABLE", True, "Flush files and catalog to disk before a write is acknowledged.", _flag
    )
    file_bytes: int = _setting(
        "PENSTOCK_FILE_BYTES", 128 << 20, "Data files are closed when they reach this size.", _size
    )
    group_rows: int = _setting("PENSTOCK_GROUP_ROWS", 128 << 10, "Rows in a Parquet row group.", _positive)
    write_bytes: int = _setting("PENSTOCK_MAX_WRITE_BYTES", 1 << 40, "Rows, unpacked, that one write may bring.", _size)
    batch_bytes: int = _setting(
        "PENSTOCK_MAX_BATCH_BYTES", 1 << 30, "Rows, unpacked, that one batch of a write may bring.", _size
    )
    jwt_secret: str | None = _setting(
        "PENSTOCK_JWT_SECRET", None, "Tokens are signed with this secret (HS256, 32 bytes or more).", secret=True
    )
    jwks_url: str | None = _setting(
        "PENSTOCK_JWKS_URL", None, "Tokens are signed with one of the keys found here (RS256 and kin, ES256 and kin)."
    )
    jwt_issuer: str | None = _setting("PENSTOCK_JWT_ISSUER", None, "Tokens must come from this issuer.")
    http_json_bytes: int = _setting("PENSTOCK_HTTP_JSON_BYTES", 4 << 20, "A JSON body may have so many bytes.", _size)
    http_upload_bytes: int = _setting(
        "PENSTOCK_HTTP_UPLOAD_BYTES", 16 << 30, "Rows that are uploaded may have so many bytes.", _size
    )
    http_answer_seconds: int = _setting(
        "PENSTOCK_HTTP_ANSWER_SECONDS", 60, "A request is given up when its answer does not begin in time.", _positive
    )
    http_drain_seconds: int = _setting(
        "PENSTOCK_HTTP_DRAIN_SECONDS", 10, "Requests under way have so long when the service stops.", _positive
    )
    flight_message_bytes: int = _setting(
        "PENSTOCK_FLIGHT_MESSAGE_BYTES", 256 << 20, "A message over Flight may have so many bytes, unpacked.", _message
    )
    flight_streams: int = _setting("PENSTOCK_FLIGHT_STREAMS", 256, "Calls over Flight at once.", _positive)
    flight_row_ids: int = _setting("PENSTOCK_FLIGHT_ROW_IDS", 2_000_000, "Row ids in one call over Flight.", _positive)
    tls_cert: Path | None = _setting(
        "PENSTOCK_TLS_CERT", None, "The certificate (PEM) that makes it HTTPS, and Flight over TLS.", Path
    )
    tls_key: Path | None = _setting("PENSTOCK_TLS_KEY", None, "The certificate's key (PEM).", Path)
    archive_after_days: int = _setting(
        "PENSTOCK_ARCHIVE_AFTER_DAYS", 90, "Schemas that were deprecated so long ago are archived.", _days
    )
    spark_master: str = _setting(
        "PENSTOCK_SPARK_MASTER", "local[*]", "Where pipelines run: local[*], spark://host:7077, yarn, k8s://…."
    )
    spark_conf: Mapping[str, str] | None = _setting(
        "PENSTOCK_SPARK_CONF", None, "More settings of Spark's: spark.executor.memory=4g; spark.cores.max=8", _pairs
    )
    runs_at_once: int = _setting(
        "PENSTOCK_RUNS_AT_ONCE", 2, "Runs of pipelines that one process carries out at once.", _positive
    )
    runs_waiting: int = _setting(
        "PENSTOCK_RUNS_WAITING",
        100,
        "Runs that may wait for their turn, in all; a tenant has a quarter of the places.",
        _positive,
    )
    query_seconds: int = _setting("PENSTOCK_QUERY_SECONDS", 30, "A query is ended when it takes longer.", _positive)
    query_cpu_seconds: int = _setting(
        "PENSTOCK_QUERY_CPU_SECONDS", 60, "A query is ended when it uses more CPU time than this.", _positive
    )
    query_memory: int = _setting("PENSTOCK_QUERY_MEMORY", 1 << 30, "Memory that a query may use.", _size)
    query_threads: int = _setting("PENSTOCK_QUERY_THREADS", 2, "Threads that a query may use.", _positive)
    query_rows: int = _setting("PENSTOCK_QUERY_ROWS", 10_000_000, "Rows that a query may answer with.", _positive)
    query_bytes: int = _setting("PENSTOCK_QUERY_BYTES", 1 << 30, "Bytes that a query may answer with.", _size)
    query_cache_bytes: int = _setting(
        "PENSTOCK_QUERY_CACHE_BYTES", 64 << 20, "Answers of queries that are kept for the next who asks.", _size
    )
    queries_at_once: int = _setting(
        "PENSTOCK_QUERIES_AT_ONCE", 8, "Queries that one process carries out at once.", _positive
    )
    transaction_ttl: int = _setting(
        "PENSTOCK_TRANSACTION_TTL",
        300,
        "A client's transaction expires after so many idle seconds, a day at most.",
        _seconds_of_a_day,
    )
    flight_auto_commit: bool = _setting(
        "PENSTOCK_FLIGHT_AUTO_COMMIT",
        False,
        "A client's transaction is committed by its first operation, unless it asks otherwise.",
        _flag,
    )
    jwt_audience: str | None = _setting("PENSTOCK_JWT_AUDIENCE", None, "Tokens must be meant for this audience.")


def settings(environ: Mapping[str, str] = os.environ, **given: Any) -> Settings:
    """Settings from the environment; a keyword that is not None goes before it."""
    values = {name: value for name, value in given.items() if value is not None}
    for each in fields(Settings):
        text = environ.get(each.metadata["variable"], "")
        if each.name in values or not text:
            continue
        try:
            values[each.name] = each.metadata["read"](text)
        except (ValueError, KeyError):
            shown = "…" if each.metadata["secret"] else repr(text[:80])
            raise Invalid(
                "bad_setting",
                f"{each.metadata['variable']} is {shown}, which cannot be read: {each.metadata['meaning']}",
                setting=each.metadata["variable"],
            ) from None
    return Settings(**values)


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings and are none: typing errors, most likely."""
    known = {each.metadata["variable"] for each in fields(Settings)}
    return sorted(name for name in environ if name.startswith("PENSTOCK_") and name not in known)


@dataclass(frozen=True, slots=True)
class Home:
    """A workspace folder: its files' root, and the tenant that its own command line works for."""

    folder: Path
    tenant: UUID

    @property
    def catalog(self) -> Path:
        """Where the catalog is that needs no server."""
        return self.folder / "catalog.db"


def home(folder: Path) -> Home:
    folder = folder.expanduser().absolute()
    try:
        stored = json.loads((folder / HOME_FILE).read_text("utf-8"))
        if stored["format"] > _FORMAT:
            raise Unsupported(
                "newer_workspace", f"{folder} was made by a newer Penstock (format {stored['format']}); update this one"
            )
        return Home(folder, UUID(stored["tenant"]))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            "no_workspace", f"there is no workspace in {folder}; make one with `penstock init {folder}`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise Invalid("broken_workspace", f"{folder / HOME_FILE} cannot be read: {cause}") from None


def make_home(folder: Path, tenant: UUID | None = None) -> Home:
    """Make the folder a workspace. One that is there already stays as it is."""
    folder = folder.expanduser().absolute()
    if (folder / HOME_FILE).exists():
        return home(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stored = {"format": _FORMAT, "tenant": str(tenant or uuid4()), "created_at": datetime.now(UTC).isoformat()}
        draft = folder / f".{HOME_FILE}.{uuid4().hex}"
        with draft.open("x", encoding="utf-8") as file:
            file.write(json.dumps(stored, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, folder / HOME_FILE)  # whoever links first decides the tenant
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        for place in (folder, folder.parent):
            handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle)
            os.close(handle)
    except OSError as cause:
        raise Invalid("no_workspace_here", f"{folder} cannot become a workspace: {cause.strerror}") from None
    return home(folder)
