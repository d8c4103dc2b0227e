"""Choose and create the engine of a merge."""

import sys
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.merge import MergeEngine, MergePlan
from penstock.core.progress import ProgressCallback
from penstock.engines.arrow.merge import ArrowEngine
from penstock.errors import Invalid, Unsupported
from penstock.extras import translate_missing_extra
from penstock.service.datasets.row_source import RowSource
from penstock.service.workspace import SparkConfig

ENGINES = ("auto", "pyarrow", "duckdb", "spark")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Resources for engines."""

    scratch: str  # existing folder near the target, which all workers of a cluster can access
    cluster: SparkConfig = field(default_factory=SparkConfig)
    spark: Any = None  # the caller's Spark session
    on_job: ProgressCallback | None = None  # receives the stages and tasks of Spark jobs; may raise to cancel them


def create_engine(name: str, options: EngineOptions) -> MergeEngine:
    """Create the engine with the given name.

    Raises:
        Invalid: the name is unknown, or "auto"
    """
    match name:
        case "pyarrow":
            return ArrowEngine()
        case "duckdb":
            from penstock.engines.duckdb.merge import DuckDBEngine

            return DuckDBEngine(temp_directory=f"{options.scratch}/spilled")
        case "spark":
            with translate_missing_extra():
                from penstock.engines.spark.merge import SparkEngine

            cluster = options.cluster
            return SparkEngine(options.scratch, options.spark, cluster.master, cluster.conf, options.on_job)
    raise Invalid("unknown_engine", {"name": name, "engines": ", ".join(ENGINES)})


def check_name(name: str) -> None:
    """Raise `Invalid` if there is no engine with this name."""
    if name not in ENGINES:
        create_engine(name, EngineOptions(""))


def choose_engine(
    name: str, plan: MergePlan, stored: pa.Schema, rows: RowSource, options: EngineOptions
) -> MergeEngine:
    """Create the requested engine, or for "auto" the fastest one that supports every column type.

    Args:
        stored: schema of the target files

    Raises:
        Unsupported: the requested engine would change a column type
    """
    if name == "auto":
        return _fastest_engine(plan, stored, rows, options)
    engine = create_engine(name, options)
    if problem := _describe_unsupported_column(engine, plan, stored):
        raise Unsupported("type_not_for_engine", {"problem": problem}, engine=name)
    return engine


def stop_spark() -> None:
    """Stop the Spark session that this process has started, if any."""
    if "penstock.engines.spark.session" in sys.modules:
        from penstock.engines.spark.session import stop_session

        stop_session()


def _fastest_engine(plan: MergePlan, stored: pa.Schema, rows: RowSource, options: EngineOptions) -> MergeEngine:
    """Choose Spark for DataFrames, DuckDB to rewrite files (it encodes Parquet faster), PyArrow to read keys only."""
    name = "spark" if rows.frame is not None else "duckdb" if plan.rewrites else "pyarrow"
    engine = create_engine(name, options)
    return create_engine("pyarrow", options) if _describe_unsupported_column(engine, plan, stored) else engine


def _describe_unsupported_column(engine: MergeEngine, plan: MergePlan, stored: pa.Schema) -> str | None:
    return engine.explain_unsupported(stored) or engine.explain_unsupported(plan.schema)
