"""Settings: environment variables, read once and passed on as a value."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.core.dataset.edit_policy import EditMode
from penstock.errors import Invalid

_MAX_MESSAGE_BYTES = (1 << 31) - 1  # limit of gRPC
_MAX_DAYS = 36_525  # a century; dates must stay within the calendar of Python
_MAX_SECONDS = 86_400  # a day


def _setting(
    variable: str, default: Any, meaning: str, parse: Callable[[str], Any] = str, *, secret: bool = False
) -> Any:
    facts = {"variable": variable, "meaning": meaning, "parse": parse, "secret": secret}
    return field(default=default, repr=not secret, metadata=facts)


def _parse_flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words[text.strip().lower()]


def _parse_bytes(text: str) -> int:
    """Parse a number of bytes: 134217728, 128MB, 1 GiB."""
    text = text.strip().lower().removesuffix("b").removesuffix("i").strip()
    for unit, factor in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)):
        if text.endswith(unit):
            return _parse_positive(text.removesuffix(unit)) * factor
    return _parse_positive(text)


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _parse_message_bytes(text: str) -> int:
    return _at_most(_MAX_MESSAGE_BYTES, _parse_bytes(text))


def _parse_days(text: str) -> int:
    return _at_most(_MAX_DAYS, _parse_positive(text))


def _parse_hours(text: str) -> int:
    return _at_most(24 * _MAX_DAYS, _parse_positive(text))


def _parse_seconds(text: str) -> int:
    return _at_most(_MAX_SECONDS, _parse_positive(text))


def _parse_percent(text: str) -> int:
    return _at_most(100, _parse_positive(text))


def _at_most(limit: int, number: int) -> int:
    if number > limit:
        raise ValueError(number)
    return number


def _parse_pairs(text: str) -> dict[str, str]:
    """Parse `name=value; name=value`."""
    pairs = [pair.partition("=") for pair in text.replace("\n", ";").split(";") if pair.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise ValueError(text)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _parse_options(text: str) -> dict[str, str]:
    """Parse `name=value; name=value`, or `@path` of a file with one pair on each line."""
    if not text.startswith("@"):
        return _parse_pairs(text)
    try:
        return _parse_pairs(Path(text[1:]).read_text("utf-8"))
    except OSError:
        raise ValueError(text) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting is an environment variable. An option of a command takes precedence."""

    workspace: Path = _setting("PENSTOCK_WORKSPACE", Path("workspace"), "Folder of the workspace's files.", Path)
    database_url: str | None = _setting(
        "PENSTOCK_DATABASE_URL",
        None,
        "URL of the catalog database: postgresql://… for several machines. Unset: SQLite in the workspace.",
        secret=True,
    )
    admin_database_url: str | None = _setting(
        "PENSTOCK_ADMIN_DATABASE_URL",
        None,
        "URL of the catalog database for `penstock migrate`, as the owner of its tables. Unset: PENSTOCK_DATABASE_URL.",
        secret=True,
    )
    store: str | None = _setting(
        "PENSTOCK_STORE",
        None,
        "Bucket of the data files: s3://bucket/prefix, gs://… or az://…. Unset: that of `penstock init --store`, else the "
        "workspace folder.",
    )
    store_options: Mapping[str, str] | None = _setting(
        "PENSTOCK_STORE_OPTIONS",
        None,
        "Options and credentials of the bucket, with the names of object_store: access_key_id=…; secret_access_key=…; "
        "endpoint=…; region=…, or @ and the path of a file with them. Unset: the environment or the identity of the machine.",
        _parse_options,
        secret=True,
    )
    store_connect_seconds: int = _setting(
        "PENSTOCK_STORE_CONNECT_SECONDS", 5, "Seconds to connect to the bucket.", _parse_seconds
    )
    store_read_seconds: int = _setting(
        "PENSTOCK_STORE_READ_SECONDS",
        30,
        "Seconds without a byte from the bucket after which a request has failed.",
        _parse_seconds,
    )
    store_retries: int = _setting(
        "PENSTOCK_STORE_RETRIES",
        5,
        "Maximum number of times that a request to the bucket is repeated, with growing delays.",
        _parse_positive,
    )
    store_retry_seconds: int = _setting(
        "PENSTOCK_STORE_RETRY_SECONDS",
        60,
        "Seconds after which a request to the bucket is not repeated again.",
        _parse_seconds,
    )
    cache_dir: Path | None = _setting(
        "PENSTOCK_CACHE_DIR",
        None,
        "Local folder for copies of the bucket's files, shared by all processes of the machine. Unset: `cache` in the "
        "workspace folder.",
        Path,
    )
    cache_bytes: int = _setting(
        "PENSTOCK_CACHE_BYTES",
        10 << 30,
        "Size of the local copies of the bucket's files in bytes. The files that one operation reads at once must fit.",
        _parse_bytes,
    )
    durable: bool = _setting(
        "PENSTOCK_DURABLE", True, "Flush files and catalog to disk before a write is acknowledged.", _parse_flag
    )
    file_bytes: int = _setting("PENSTOCK_FILE_BYTES", 128 << 20, "Target size of a data file in bytes.", _parse_bytes)
    group_rows: int = _setting("PENSTOCK_GROUP_ROWS", 128 << 10, "Rows in a Parquet row group.", _parse_positive)
    edit_mode: EditMode = _setting(
        "PENSTOCK_EDIT_MODE",
        EditMode.AUTO,
        "How updates, deletes and merges of few rows change a data file: `auto` marks rows as deleted within the limits "
        "of its deletion vector, `mark` without limits, `rewrite` never.",
        EditMode,
    )
    deletion_vector_bytes: int = _setting(
        "PENSTOCK_DELETION_VECTOR_BYTES",
        256 << 10,
        "Maximum size of the deletion vector of a data file in bytes. An edit beyond it rewrites the file.",
        _parse_bytes,
    )
    deletion_vector_percent: int = _setting(
        "PENSTOCK_DELETION_VECTOR_PERCENT",
        20,
        "Maximum percentage of a data file's rows that its deletion vector deletes. An edit beyond it rewrites the file.",
        _parse_percent,
    )
    write_bytes: int = _setting(
        "PENSTOCK_MAX_WRITE_BYTES",
        1 << 40,
        "Maximum size of the rows of one write in bytes, uncompressed.",
        _parse_bytes,
    )
    batch_bytes: int = _setting(
        "PENSTOCK_MAX_BATCH_BYTES",
        1 << 30,
        "Maximum size of one record batch of a write in bytes, uncompressed.",
        _parse_bytes,
    )
    catalog_seconds: int = _setting(
        "PENSTOCK_CATALOG_SECONDS",
        30,
        "Maximum duration of one reading statement of the catalog in seconds.",
        _parse_seconds,
    )
    request_memory: int = _setting(
        "PENSTOCK_REQUEST_MEMORY",
        1 << 30,
        "Memory in bytes for bodies, messages and results of all requests of a process. Requests beyond it are refused.",
        _parse_bytes,
    )
    jwt_secret: str | None = _setting(
        "PENSTOCK_JWT_SECRET", None, "Secret that signs the tokens (HS256, 32 bytes or more).", secret=True
    )
    jwks_url: str | None = _setting(
        "PENSTOCK_JWKS_URL",
        None,
        "URL of the JWKS with the public keys that verify the tokens (RSA or EC).",
    )
    jwt_issuer: str | None = _setting("PENSTOCK_JWT_ISSUER", None, "Required issuer (`iss`) of the tokens.")
    http_json_bytes: int = _setting(
        "PENSTOCK_HTTP_JSON_BYTES", 4 << 20, "Maximum size of a JSON request body in bytes.", _parse_bytes
    )
    http_upload_bytes: int = _setting(
        "PENSTOCK_HTTP_UPLOAD_BYTES", 16 << 30, "Maximum size of an upload of rows in bytes.", _parse_bytes
    )
    http_answer_seconds: int = _setting(
        "PENSTOCK_HTTP_ANSWER_SECONDS",
        60,
        "Seconds until a request fails whose response has not begun.",
        _parse_positive,
    )
    http_drain_seconds: int = _setting(
        "PENSTOCK_HTTP_DRAIN_SECONDS",
        10,
        "Seconds that active requests and runs have to finish when the service stops.",
        _parse_positive,
    )
    flight_message_bytes: int = _setting(
        "PENSTOCK_FLIGHT_MESSAGE_BYTES",
        64 << 20,
        "Maximum size of a Flight message in bytes, uncompressed.",
        _parse_message_bytes,
    )
    flight_streams: int = _setting(
        "PENSTOCK_FLIGHT_STREAMS", 256, "Maximum number of concurrent Flight calls.", _parse_positive
    )
    flight_puts: int = _setting(
        "PENSTOCK_FLIGHT_PUTS",
        32,
        "Maximum number of concurrent DoPut calls that are read; others wait. Each may hold one message in memory.",
        _parse_positive,
    )
    flight_idle_seconds: int = _setting(
        "PENSTOCK_FLIGHT_IDLE_SECONDS",
        60,
        "Seconds without a message after which a DoPut call ends; at most 86400 (a day).",
        _parse_seconds,
    )
    flight_row_ids: int = _setting(
        "PENSTOCK_FLIGHT_ROW_IDS", 2_000_000, "Maximum number of row ids in one Flight call.", _parse_positive
    )
    tls_cert: Path | None = _setting(
        "PENSTOCK_TLS_CERT", None, "Certificate file (PEM). Enables TLS for HTTP and Flight.", Path
    )
    tls_key: Path | None = _setting("PENSTOCK_TLS_KEY", None, "Key file (PEM) of the certificate.", Path)
    archive_after_days: int = _setting(
        "PENSTOCK_ARCHIVE_AFTER_DAYS", 90, "Days after which a deprecated result schema is archived.", _parse_days
    )
    spark_master: str = _setting(
        "PENSTOCK_SPARK_MASTER",
        "local[*]",
        "Spark master that runs pipelines: local[*], spark://host:7077, yarn, k8s://….",
    )
    spark_conf: Mapping[str, str] | None = _setting(
        "PENSTOCK_SPARK_CONF",
        None,
        "Additional Spark configuration: spark.executor.memory=4g; spark.cores.max=8",
        _parse_pairs,
    )
    runs_at_once: int = _setting(
        "PENSTOCK_RUNS_AT_ONCE",
        2,
        "Maximum number of pipeline runs that one process executes at once.",
        _parse_positive,
    )
    runs_waiting: int = _setting(
        "PENSTOCK_RUNS_WAITING",
        100,
        "Maximum number of queued runs of all tenants. One tenant may queue a quarter of them.",
        _parse_positive,
    )
    maintain_small_files: int = _setting(
        "PENSTOCK_MAINTAIN_SMALL_FILES",
        16,
        "Number of small files from which `penstock worker --maintain` compacts a dataset.",
        _parse_positive,
    )
    maintain_deleted_percent: int = _setting(
        "PENSTOCK_MAINTAIN_DELETED_PERCENT",
        10,
        "Percentage of deleted rows above which `penstock worker --maintain` rewrites a file.",
        _parse_percent,
    )
    maintain_idle_hours: int = _setting(
        "PENSTOCK_MAINTAIN_IDLE_HOURS",
        24,
        "Hours without a change after which `penstock worker --maintain` compacts a dataset completely.",
        _parse_hours,
    )
    maintain_seconds: int = _setting(
        "PENSTOCK_MAINTAIN_SECONDS",
        60,
        "Seconds between two passes of `penstock worker --maintain`; at most 86400 (a day).",
        _parse_seconds,
    )
    query_seconds: int = _setting(
        "PENSTOCK_QUERY_SECONDS", 30, "Maximum duration of a query in seconds.", _parse_positive
    )
    query_cpu_seconds: int = _setting(
        "PENSTOCK_QUERY_CPU_SECONDS", 60, "Maximum CPU time of a query in seconds.", _parse_positive
    )
    query_memory: int = _setting("PENSTOCK_QUERY_MEMORY", 1 << 30, "Maximum memory of a query in bytes.", _parse_bytes)
    query_threads: int = _setting("PENSTOCK_QUERY_THREADS", 2, "Maximum number of threads of a query.", _parse_positive)
    query_rows: int = _setting(
        "PENSTOCK_QUERY_ROWS", 10_000_000, "Maximum number of rows of a query result.", _parse_positive
    )
    query_bytes: int = _setting(
        "PENSTOCK_QUERY_BYTES", 1 << 30, "Maximum size of a query result in bytes.", _parse_bytes
    )
    query_cache_bytes: int = _setting(
        "PENSTOCK_QUERY_CACHE_BYTES", 64 << 20, "Size of the query result cache in bytes.", _parse_bytes
    )
    queries_at_once: int = _setting(
        "PENSTOCK_QUERIES_AT_ONCE", 8, "Maximum number of queries that one process executes at once.", _parse_positive
    )
    transaction_ttl: int = _setting(
        "PENSTOCK_TRANSACTION_TTL",
        300,
        "Idle seconds after which a Flight transaction expires; at most 86400 (a day).",
        _parse_seconds,
    )
    flight_auto_commit: bool = _setting(
        "PENSTOCK_FLIGHT_AUTO_COMMIT",
        False,
        "Default of a Flight transaction's auto_commit: the first operation commits the transaction.",
        _parse_flag,
    )
    jwt_audience: str | None = _setting("PENSTOCK_JWT_AUDIENCE", None, "Required audience (`aud`) of the tokens.")


def load_settings(environ: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
    """Read the settings from environment variables.

    Args:
        environ: the environment variables
        overrides: settings by their field name that take precedence, unless None

    Raises:
        Invalid: a variable has a value that cannot be parsed
    """
    values = {name: value for name, value in overrides.items() if value is not None}
    for setting in fields(Settings):
        variable = setting.metadata["variable"]
        text = environ.get(variable, "")
        if setting.name in values or not text:
            continue
        try:
            values[setting.name] = setting.metadata["parse"](text)
        except (ValueError, KeyError):
            display = "…" if setting.metadata["secret"] else repr(text[:80])
            raise Invalid(
                "bad_setting",
                {"value": display, "meaning": setting.metadata["meaning"]},
                setting=variable,
            ) from None
    return Settings(**values)


def find_unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """List variables that begin with PENSTOCK_ but are not settings: most likely typing errors."""
    variables = {setting.metadata["variable"] for setting in fields(Settings)}
    return sorted(name for name in environ if name.startswith("PENSTOCK_") and name not in variables)
