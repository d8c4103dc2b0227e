"""What queries answer, over REST: rows that keep their promise, in pages of JSON or all of them as a stream."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.core import odata
from penstock.core.result_schema import Field, FieldType
from penstock.core.result_schema.field import is_list
from penstock.core.names import DatasetName
from penstock.core.schema.canonical import to_fields
from penstock.engines.duckdb.odata_sql import kinds, selected
from penstock.errors import Invalid
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import row_encoding as rows
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.bodies import Body, Who, parsed_object
from penstock.rest.openapi.document import answers, query, required
from penstock.rest.context import edge_of
from penstock.rest.routes.queries import ID, SQL, Id, deprecation, values
from penstock.service.queries.execution import PAGE_BYTES, PREVIEWED, Asked, Opened, Result

TOP, MOST = 100, 10_000  # rows on a page, unless asked for, and at most
ALL = 2**31  # rows; no answer has as many
VERSIONS = "versions"  # the parameter that chooses them
READ = "x-penstock-versions"  # the header that tells them

_OFFSET = "(?:[Zz]|[+-][0-9]{2}:[0-9]{2})$"
_ROW = {"region": "EMEA", "total": 120450.5}
_PAGE = {
    "@odata.context": f"$metadata#queries/{ID}/results",
    "@odata.count": 3,
    "@penstock.versions": {"shop.orders": 3},
    "@odata.nextLink": f"/queries/{ID}/results?since=2026-01-01&$count=true&$top=1&versions=shop.orders%3A3&$skip=1",
    "value": [_ROW],
}
_PREVIEW = {
    "columns": [{"name": "region", "type": "string"}, {"name": "total", "type": "double"}],
    "@penstock.versions": {"shop.orders": 3},
    "more": False,
    "value": [_ROW],
}
_OWN = {
    "name": "parameters",
    "in": "query",
    "description": "The query's own parameters, each by its name.",
    "schema": {"type": "object", "additionalProperties": shapes.TEXT},
    "style": "form",
    "explode": True,
    "example": {"since": "2026-01-01"},
}

router = APIRouter(prefix="/queries", tags=["queries"])


def _results_answers() -> dict[int | str, dict[str, Any]]:
    told = answers(200, "The rows.", _PAGE, shapes.of("QueryResults"), headers=[READ], errors=[400, 403, 404, 406, 409])
    told[200]["content"] |= {media.ARROW: {"schema": shapes.BYTES}, media.PARQUET: {"schema": shapes.BYTES}}
    return told


@router.get(
    "/{id}/results",
    summary="Run a query",
    description="Every row is checked against the query's schema before the first one is sent; rows that do not fit are "
    "answered with SCHEMA_MISMATCH, which names fields and rows and never a value. As JSON, a page, in the order of "
    "`$orderby` and then of all fields; `@odata.nextLink` leads to the next page of the same versions. Or, by `accept`, "
    "all rows as Arrow or Parquet; with `$top` or `$skip` those.",
    responses=_results_answers(),
    openapi_extra={
        "parameters": [
            query("$filter", "Only such rows, by the schema's fields.", example="total gt 100000"),
            query("$orderby", "The order.", example="total desc"),
            query(
                "$top", f"How many rows: {TOP} unless given, at most {MOST:,} as JSON.", kind=shapes.COUNT, example=10
            ),
            samples.SKIP,
            query("$select", "Only these fields; only they are checked.", example="region,total"),
            query("$count", "Also say how many rows there are (JSON only).", kind=shapes.FLAG, example=True),
            query(VERSIONS, "Versions of datasets; the newest unless given.", example="shop.orders:3"),
            _OWN,
        ]
    },
)
def results(request: Request, who: Who, id: Id) -> Response:
    kind = media.wanted(request.headers.get("accept"), [media.JSON, media.ARROW, media.PARQUET])
    found = edge_of(request).results
    opened = found.opened(who, id)
    asked = _asked(request, opened, paged=kind == media.JSON)
    result = found.run(who, opened, asked)
    headers = {READ: _pinning(result.versions), **deprecation(opened.query)}
    if kind != media.JSON:
        _assert_written_as(kind, result.table)
        if size := rows.size(kind, result.table):
            headers["content-length"] = str(size)
        return _Stream(kind, result.table, headers)
    return _page(request, opened, asked.options, result, headers)


@router.post(
    "/preview",
    summary="Try SQL",
    description=f"The first {PREVIEWED:,} rows of a SELECT that nobody has registered. They promise nothing; what JSON "
    "has no word for is text.",
    responses=answers(
        200, "The rows.", _PREVIEW, shapes.of("Preview"), headers=[READ], errors=[400, 403, 404, 413, 415]
    ),
    openapi_extra={"requestBody": required("PreviewSent", {"sql": SQL, "parameters": {"since": "2026-01-01"}})},
)
def preview(request: Request, who: Who, body: Body) -> Response:
    result = edge_of(request).results.preview(who, *_statement(parsed_object(body)), PAGE_BYTES)
    columns = [{"name": each["name"], "type": each["type"]} for each in to_fields(result.table.schema)]
    head = {"columns": columns, "@penstock.versions": dict(result.versions), "more": result.more}
    return _told(head, result.table.to_batches(), {READ: _pinning(result.versions)})


# -- what is asked


def _asked(request: Request, opened: Opened, *, paged: bool) -> Asked:
    options, given = list[tuple[str, str]](), dict[str, str]()
    for name, value in request.query_params.multi_items():
        if name.startswith("$"):
            options.append((name, value))
        elif name in given:
            raise Invalid("doubled_parameter", f"{name[:80]!r} is there twice", parameter=name[:80])
        else:
            given[name] = value
    asked = {name for name, _ in options}
    if "$count" in asked and not paged:
        raise Invalid("bad_option", "$count: only JSON has a place for it", option="$count")
    pinned = _pinned(given.pop(VERSIONS, None))
    top, most = (TOP, MOST) if paged else (ALL, ALL)
    wanted = odata.options(options, kinds(opened.fields), default_top=top, max_top=most)
    whole = not paged and not asked & {"$top", "$skip"}
    return Asked(wanted, given, pinned, whole, PAGE_BYTES if paged else None)


def _pinned(text: str | None) -> dict[str, int]:
    """The versions in `finance.tx:3,finance.budget:7`, by the datasets' names in lower case."""
    pinned = dict[str, int]()
    for part in [] if text is None else text.split(","):
        name, _, version = part.strip().rpartition(":")
        if not (version.isascii() and version.isdigit() and len(version) < 10):
            said = "versions are written schema.table:3, and with commas between them"
            raise Invalid("bad_parameter", said, parameter=VERSIONS)
        key = DatasetName.parse(name).key
        if key in pinned:
            raise Invalid("doubled_parameter", f"{VERSIONS} names {key} twice", parameter=VERSIONS)
        pinned[key] = int(version)
    return pinned


def _pinning(versions: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{version}" for name, version in versions.items())


def _statement(asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    match asked:
        case {"sql": str(sql), **more} if more.keys() <= {"parameters"}:
            return sql, values(more)
    raise Invalid("bad_payload", "send {sql}, and parameters if there are some")


# -- what is told


def _page(
    request: Request, opened: Opened, options: odata.Options, result: Result, headers: dict[str, str]
) -> Response:
    here = f"queries/{opened.query.id}/results"
    taken = result.table.to_batches()
    head: dict[str, Any] = {"@odata.context": f"$metadata#{here}"}
    if result.count is not None:
        head["@odata.count"] = result.count
    head["@penstock.versions"] = dict(result.versions)
    if result.more:
        pairs = [pair for pair in request.query_params.multi_items() if pair[0] != VERSIONS]
        pairs += [(VERSIONS, _pinning(result.versions))] if result.versions else []
        if rest := odata.next_page(pairs, replace(options, top=result.table.num_rows)):
            head["@odata.nextLink"] = f"/{here}?{rest}"
    fields = selected(options, opened.fields)
    return _told(head, [_promised(batch, fields) for batch in taken], headers)


class _Stream(StreamingResponse):
    """All rows. The table is kept while they are on their way, for its memory is counted until it is gone."""

    def __init__(self, kind: str, table: pa.Table, headers: dict[str, str]) -> None:
        self._sent = _sent(kind, table)
        super().__init__(self._sent, media_type=kind, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._sent.close()


def _sent(kind: str, table: pa.Table) -> Generator[bytes | memoryview]:
    yield from rows.stream(kind, table.to_reader())


def _assert_written_as(kind: str, table: pa.Table) -> None:
    if kind == media.PARQUET and not table.schema.names and table.num_rows:
        said = "the result has none of these fields, and rows without a field cannot be written as Parquet"
        raise Invalid("not_in_format", said, format="parquet")


def _told(head: dict[str, Any], taken: list[pa.RecordBatch], headers: dict[str, str]) -> Response:
    # The rows are JSON already, with digits that no float could keep.
    start = errors.as_json(head).decode()[:-1]
    body = f'{start}, "value": {rows.as_json(taken)}}}'.encode("utf-8", "backslashreplace")
    return Response(body, media_type=media.JSON, headers=headers)


def _promised(batch: pa.RecordBatch, fields: Sequence[Field]) -> pa.RecordBatch:
    """The promised columns, each as a field of its type is written."""
    batch = batch.select([field.name for field in fields if field.name in batch.schema.names])
    instants = {field.name for field in fields if field.type is FieldType.DATETIME}
    for place, name in enumerate(batch.schema.names):
        if name in instants:
            batch = batch.set_column(place, name, _in_utc(batch.column(place)))
    return batch


def _in_utc(column: pa.Array) -> pa.Array:
    """Instants that say where they are: those without an offset are in UTC."""
    if is_list(column.type):
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
        starts = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(starts, _in_utc(column.flatten()), mask=column.is_null())
    if pt.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    if pt.is_null(column.type):
        return column
    has_offset = pc.match_substring_regex(column, _OFFSET)
    return pc.if_else(has_offset, column, pc.binary_join_element_wise(column, "Z", ""))
