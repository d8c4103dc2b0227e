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
        return _fastest(plan, stored, rows, tools)
    engine = named(name, tools)
    if why := _refusal(engine, plan, stored):
        raise Unsupported("type_not_for_engine", f"{why}; use engine 'pyarrow', which keeps every type", engine=name)
    return engine


def _fastest(plan: Plan, stored: pa.Schema, rows: Rows, tools: Tools) -> Engine:
    """Spark for what Spark holds. DuckDB encodes Parquet faster, so it rewrites files; PyArrow reads keys faster."""
    wanted = "spark" if rows.frame is not None else "duckdb" if plan.rewrites else "pyarrow"
    engine = named(wanted, tools)
    return named("pyarrow", tools) if _refusal(engine, plan, stored) else engine


def _refusal(engine: Engine, plan: Plan, stored: pa.Schema) -> str | None:
    return engine.refuses(stored) or engine.refuses(plan.schema)
