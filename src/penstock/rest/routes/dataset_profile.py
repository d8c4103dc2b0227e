"""Route of the column profile of a dataset."""

from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request, Response

from penstock.core.dataset.profile import ColumnProfile, DatasetProfile, Histogram
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.schema.type_names import to_fields
from penstock.rest import problems
from penstock.rest.context import context_of
from penstock.rest.openapi import datasets as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import CallerDep
from penstock.rest.requests.query_params import int_param, query_params
from penstock.rest.route_execution import Lane, in_lane
from penstock.rest.routes.datasets import DatasetKey, etag_of, find_dataset, identify
from penstock.service.datasets.profile import profile
from penstock.service.row_json import NULL, rows_to_json

router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=in_lane(Lane.DATA))


@router.get("/{dataset}/profile", **docs.SHOW_PROFILE)
def show(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    params = query_params(request)
    snapshot = find_dataset(request, caller, dataset, int_param(params, "version"))
    result = profile(context_of(request).workspace, caller, snapshot, params.get("column"))
    body = _profile_json(snapshot, result).encode("utf-8", "backslashreplace")
    return Response(body, media_type=media_types.JSON, headers={"etag": etag_of(snapshot)})


def _profile_json(snapshot: Snapshot, result: DatasetProfile) -> str:
    encoded = {"columns": f"[{', '.join(map(_column_json, result.columns))}]"}
    if result.histogram:
        encoded["histogram"] = _histogram_json(result.histogram)
    return _object_json({**identify(snapshot), "rows": snapshot.version.rows}, encoded)


def _column_json(column: ColumnProfile) -> str:
    (field,) = to_fields(pa.schema([column.field]))
    bounds = {"min": column.low, "max": column.high}
    row = pa.RecordBatch.from_pylist([bounds], pa.schema([(name, column.field.type) for name in bounds]))
    return f"{_json({**field, 'nulls': column.nulls})[:-1]}, {rows_to_json([row])[2:-1]}"


def _histogram_json(histogram: Histogram) -> str:
    counts = {
        name: getattr(histogram, name) for name in ("column", "rows", "sampled", "nulls", "not_finite", "distinct")
    }
    lists = {"bins": histogram.bins, "top": histogram.top}
    return _object_json(counts, {name: NULL if rows is None else rows_to_json([rows]) for name, rows in lists.items()})


def _object_json(members: dict[str, Any], encoded: dict[str, str]) -> str:
    """Return an object; `encoded` members are JSON text already, with digits that a float would lose."""
    return f"{_json(members)[:-1]}, {', '.join(f'{_json(name)}: {text}' for name, text in encoded.items())}}}"


def _json(value: Any) -> str:
    return problems.as_json(value).decode()
