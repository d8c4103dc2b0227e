"""Share compiled SQL statements between the catalogs of a process.

SQLAlchemy compiles a statement once for each engine. A test opens a new catalog, so without this module half of the time of a short
test goes into compiling the same statements again.
"""

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from penstock.catalog import database

_engines: dict[str, Engine] = {}  # by dialect: the engine whose statements the others use
_create_engine = database._create_engine


def share() -> None:
    """Let every catalog that this process opens use the compiled statements of the first one."""
    database._create_engine = _create_sharing_engine


def _create_sharing_engine(url: URL, *, durable: bool) -> Engine:
    engine = _create_engine(url, durable=durable)
    first = _engines.setdefault(engine.dialect.name, engine)
    if first.dialect.server_version_info is None:  # it never connected: its dialect has no server version
        _engines[engine.dialect.name] = engine
    elif first is not engine:
        engine.dialect = engine.pool._dialect = first.dialect  # part of the key of a compiled statement
        engine._compiled_cache = first._compiled_cache
    return engine
