"""Versioned, multi-tenant datasets: every write atomic, every version readable."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Each name is imported on first use, so that `import penstock` and `penstock --help` start fast.
_MODULES = {
    "open": "penstock.lake",
    "Lake": "penstock.lake",
    "DatasetVersion": "penstock.lake",
    "Dataset": "penstock.lake",
    "LakeSnapshot": "penstock.lake",
    "Transaction": "penstock.lake",
    "Pipeline": "penstock.lake",
    "Query": "penstock.lake",
    "QueryResult": "penstock.lake",
    "Receipt": "penstock.core.dataset.changes",
    "Progress": "penstock.core.progress",
    "flight_client": "penstock.flight.client",
    "FlightClient": "penstock.flight.client",
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
    "CommitStateUnknown": "penstock.errors",
    "Unavailable": "penstock.errors",
}

__all__ = ["__version__", *_MODULES]

if TYPE_CHECKING:
    from penstock.core.dataset.changes import Receipt as Receipt
    from penstock.core.progress import Progress as Progress
    from penstock.errors import AlreadyExists as AlreadyExists
    from penstock.errors import CommitStateUnknown as CommitStateUnknown
    from penstock.errors import Conflict as Conflict
    from penstock.errors import Forbidden as Forbidden
    from penstock.errors import Invalid as Invalid
    from penstock.errors import NotFound as NotFound
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import Unauthenticated as Unauthenticated
    from penstock.errors import Unavailable as Unavailable
    from penstock.errors import Unsupported as Unsupported
    from penstock.flight.client import FlightClient as FlightClient
    from penstock.flight.client import flight_client as flight_client
    from penstock.lake import Dataset as Dataset
    from penstock.lake import DatasetVersion as DatasetVersion
    from penstock.lake import Lake as Lake
    from penstock.lake import LakeSnapshot as LakeSnapshot
    from penstock.lake import Pipeline as Pipeline
    from penstock.lake import Query as Query
    from penstock.lake import QueryResult as QueryResult
    from penstock.lake import Transaction as Transaction
    from penstock.lake import open as open
    from penstock.service.directory_merge import merge_parquet_dataset_duckdb as merge_parquet_dataset_duckdb
    from penstock.service.directory_merge import merge_parquet_dataset_pyarrow as merge_parquet_dataset_pyarrow
    from penstock.service.directory_merge import merge_parquet_dataset_spark as merge_parquet_dataset_spark


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    from penstock.extras import translate_missing_extra

    with translate_missing_extra():
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
