"""Which engine does a merge, and what it is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.merge import Engine, Plan
from penstock.engines.arrow.merge import Arrow
from penstock.errors import Invalid, Unsupported
from penstock.service.source import Rows

ENGINES = ("auto", "pyarrow", "duckdb", "spark")


@dataclass(frozen=True, slots=True)
class Tools:
    """What engines are made with."""

    scratch: str  # a folder that exists, near the target: workers of a cluster see it as well
    spark: Any = None  # a session of the caller's own
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


def named(name: str, tools: Tools) -> Engine:
    match name:
        case "pyarrow":
            return Arrow()
        case "duckdb":
            from penstock.engines.duckdb.merge import DuckDB

            return DuckDB(temp_directory=f"{tools.scratch}/spilled")
        case "spark":
            from penstock.engines.spark.merge import Spark

            return Spark(tools.scratch, spark=tools.spark, master=tools.master, conf=tools.conf)
    raise Invalid("unknown_engine", f"{name!r} is no engine; there are {', '.join(ENGINES)}")


def check_name(name: str) -> None:
    if name not in ENGINES:
        named(name, Tools(""))


def chosen(name: str, plan: Plan, stored: pa.Schema, rows: Rows, tools: Tools) -> Engine:
    """The engine that was asked for, if it can keep every type; or the fastest that can."""
    if name == "auto":
        wanted = "spark" if rows.frame is not None else "pyarrow"
        return named(wanted, tools)
    engine = named(name, tools)
    for schema in (stored, plan.schema):
        if why := engine.refuses(schema):
            raise Unsupported(
                "type_not_for_engine", f"{why}; use engine 'pyarrow', which keeps every type", engine=name
            )
    return engine
