"""Over REST, what the columns of a dataset are like."""

from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request, Response

from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.profile import Column, Histogram, Profile
from penstock.core.schema.canonical import to_fields
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import row_encoding as rows
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.query_params import number, parameters
from penstock.rest.requests.bodies import Who
from penstock.rest.routes.datasets import Key, etag, found
from penstock.rest.openapi.document import answers, query
from penstock.rest.context import edge_of
from penstock.service.datasets.profile import profile

_ID, _AMOUNT = samples.COLUMNS
EXAMPLE = {
    "dataset": samples.DATASET["id"], "name": "shop.orders", "version": 1, "rows": 3,
    "columns": [{**_ID, "nulls": 0, "min": 1, "max": 3}, {**_AMOUNT, "nulls": 1, "min": 8.00, "max": 12.50}],
    "histogram": {
        "column": "amount", "rows": 3, "sampled": False, "nulls": 1, "not_finite": 0, "distinct": None, "top": None,
        "bins": [{"from": 8.00, "to": 10.00, "count": 1}, {"from": 10.00, "to": 15.00, "count": 1}],
    },
}  # fmt: skip

router = APIRouter(prefix="/datasets", tags=["datasets"])


@router.get(
    "/{dataset}/profile",
    summary="What its columns are like",
    description=(
        "Of every column how many values are NULL, the lowest and the highest, as far as that is known without reading "
        "them: null is not known. NaN does not count, and an infinity is null. With `column` also how its values are "
        "spread: numbers, dates and times over at most 20 `bins`, texts and booleans as the 20 most frequent (`top`). "
        "That reads at most a million rows, taken from everywhere, and says whether it left out any (`sampled`)."
    ),
    responses=answers(
        200, "The profile.", EXAMPLE, shapes.of("DatasetProfile"), headers=["etag"], errors=[400, 403, 404]
    ),
    openapi_extra={
        "parameters": [samples.VERSION, query("column", "Show how its values are spread.", example="amount")]
    },
)
def show(request: Request, who: Who, dataset: Key) -> Response:
    asked = parameters(request)
    snapshot = found(request, who, dataset, number(asked, "version"))
    answer = profile(edge_of(request).workspace, who, snapshot, asked.get("column"))
    return Response(_body(snapshot, answer), media_type=media.JSON, headers={"etag": etag(snapshot)})


def _body(snapshot: Snapshot, answer: Profile) -> bytes:
    head = {
        "dataset": str(snapshot.dataset),
        "name": str(snapshot.name),
        "version": snapshot.version.number,
        "rows": snapshot.version.rows,
    }
    told = {"columns": f"[{', '.join(map(_column, answer.columns))}]"}
    if answer.histogram:
        told["histogram"] = _histogram(answer.histogram)
    return _with(head, told).encode("utf-8", "backslashreplace")


def _column(column: Column) -> str:
    (told,) = to_fields(pa.schema([column.field]))
    ends = {"min": column.low, "max": column.high}
    row = pa.RecordBatch.from_pylist([ends], pa.schema([(name, column.field.type) for name in ends]))
    return f"{_text({**told, 'nulls': column.nulls})[:-1]}, {rows.as_json([row])[2:-1]}"


def _histogram(histogram: Histogram) -> str:
    counts = {
        name: getattr(histogram, name) for name in ("column", "rows", "sampled", "nulls", "not_finite", "distinct")
    }
    lists = {"bins": histogram.bins, "top": histogram.top}
    return _with(counts, {name: rows.NULL if each is None else rows.as_json([each]) for name, each in lists.items()})


def _with(facts: dict[str, Any], written: dict[str, str]) -> str:
    """An object; some members are JSON already, with digits that no float could keep."""
    return f"{_text(facts)[:-1]}, {', '.join(f'{_text(name)}: {text}' for name, text in written.items())}}}"


def _text(facts: Any) -> str:
    return errors.as_json(facts).decode()
