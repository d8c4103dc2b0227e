"""Which engine does a merge, and what it is given."""

import sys
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.merge import Engine, Plan
from penstock.engines.arrow.merge import Arrow
from penstock.errors import Invalid, Unsupported
from penstock.service.datasets.row_source import Rows
from penstock.service.workspace import Cluster

ENGINES = ("auto", "pyarrow", "duckdb", "spark")


@dataclass(frozen=True, slots=True)
class Tools:
    """What engines are made with."""

    scratch: str  # a folder that exists, near the target: workers of a cluster see it as well
    cluster: Cluster = field(default_factory=Cluster)
    spark: Any = None  # a session of the caller's own
    watch: Any = None  # hears how far Spark is; may raise to stop it


def named(name: str, tools: Tools) -> Engine:
    match name:
        case "pyarrow":
            return Arrow()
        case "duckdb":
            from penstock.engines.duckdb.merge import DuckDB

            return DuckDB(temp_directory=f"{tools.scratch}/spilled")
        case "spark":
            from penstock.engines.spark.merge import Spark

            cluster = tools.cluster
            return Spark(tools.scratch, tools.spark, cluster.master, cluster.conf, tools.watch)
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


def stop_spark() -> None:
    """End the session of Spark that this process has started, if it has."""
    if "penstock.engines.spark.session" in sys.modules:
        from penstock.engines.spark.session import stop

        stop()


def _fastest(plan: Plan, stored: pa.Schema, rows: Rows, tools: Tools) -> Engine:
    """Spark for what Spark holds. DuckDB encodes Parquet faster, so it rewrites files; PyArrow reads keys faster."""
    wanted = "spark" if rows.frame is not None else "duckdb" if plan.rewrites else "pyarrow"
    engine = named(wanted, tools)
    return named("pyarrow", tools) if _refusal(engine, plan, stored) else engine


def _refusal(engine: Engine, plan: Plan, stored: pa.Schema) -> str | None:
    return engine.refuses(stored) or engine.refuses(plan.schema)
