"""Map optional packages to the extra that installs them, for errors that say what to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import Unsupported

# The top-level package that an import names, and the extra of Penstock that installs it.
EXTRAS = {
    "pyspark": "spark",
    "py4j": "spark",
    "jwt": "server",
    "fastapi": "server",
    "starlette": "server",
    "anyio": "server",
    "uvicorn": "server",
    "h11": "server",
    "prometheus_client": "server",
    "fastapi_offline": "server",
    "grpc": "server",
    "grpc_health": "server",
    "google": "server",
    "msgpack": "server",
    "nicegui": "ui",
    "httpx": "ui",
    "psycopg": "postgres",
    "obstore": "object-store",
}


def missing_extra(error: ImportError) -> Unsupported | None:
    """Return the error that names the extra to install, or None if the import failed for another reason."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package) if isinstance(error, ModuleNotFoundError) else None
    return Unsupported("missing_extra", extra=extra, package=package) if extra else None


@contextmanager
def translate_missing_extra() -> Iterator[None]:
    """Raise `Unsupported` with the extra to install where an optional package is missing."""
    try:
        yield
    except ImportError as error:
        if translated := missing_extra(error):
            raise translated from None
        raise
