"""Versioned, multi-tenant datasets: every write atomic, every version readable."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Loaded when first used, so that `import penstock` and `penstock --help` start at once.
_HOMES = {
    "open": "penstock.lake",
    "Lake": "penstock.lake",
    "Dataset": "penstock.lake",
    "DatasetAt": "penstock.lake",
    "Pipeline": "penstock.lake",
    "Query": "penstock.lake",
    "Answer": "penstock.lake",
    "flight_client": "penstock.flight.client",
    "FlightClient": "penstock.flight.client",
    "Receipt": "penstock.core.dataset.changes",
    "merge_parquet_dataset_pyarrow": "penstock.service.directory_merge",
    "merge_parquet_dataset_duckdb": "penstock.service.directory_merge",
    "merge_parquet_dataset_spark": "penstock.service.directory_merge",
    "PenstockError": "penstock.errors",
    "Invalid": "penstock.errors",
    "Unauthenticated": "penstock.errors",
    "Forbidden": "penstock.errors",
    "NotFound": "penstock.errors",
    "AlreadyExists": "penstock.errors",
    "Conflict": "penstock.errors",
    "Unsupported": "penstock.errors",
    "Undecided": "penstock.errors",
    "Unavailable": "penstock.errors",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from penstock.core.dataset.changes import Receipt as Receipt
    from penstock.errors import AlreadyExists as AlreadyExists
    from penstock.errors import Conflict as Conflict
    from penstock.errors import Forbidden as Forbidden
    from penstock.errors import Invalid as Invalid
    from penstock.errors import NotFound as NotFound
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import Unauthenticated as Unauthenticated
    from penstock.errors import Unavailable as Unavailable
    from penstock.errors import Undecided as Undecided
    from penstock.errors import Unsupported as Unsupported
    from penstock.flight.client import FlightClient as FlightClient
    from penstock.flight.client import flight_client as flight_client
    from penstock.lake import Answer as Answer
    from penstock.lake import Dataset as Dataset
    from penstock.lake import DatasetAt as DatasetAt
    from penstock.lake import Lake as Lake
    from penstock.lake import Pipeline as Pipeline
    from penstock.lake import Query as Query
    from penstock.lake import open as open
    from penstock.service.directory_merge import merge_parquet_dataset_duckdb as merge_parquet_dataset_duckdb
    from penstock.service.directory_merge import merge_parquet_dataset_pyarrow as merge_parquet_dataset_pyarrow
    from penstock.service.directory_merge import merge_parquet_dataset_spark as merge_parquet_dataset_spark


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
