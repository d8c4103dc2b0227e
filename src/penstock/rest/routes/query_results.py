"""Routes that run registered queries and preview SQL. Results are pages of JSON, or streams of all rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from fastapi import APIRouter, Request, Response

from penstock.cancellation import CancelToken
from penstock.core import odata
from penstock.core.caller import Caller
from penstock.core.result_schema import FieldType, ResultField
from penstock.core.result_schema.field import is_list
from penstock.core.schema.type_names import to_fields
from penstock.errors import Invalid
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import query_results as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import Body, CallerDep, parse_json_object
from penstock.rest.requests.content_negotiation import negotiate_type
from penstock.rest.requests.execution_id import EXECUTION_HEADER, requested_execution_id
from penstock.rest.requests.page_limits import DEFAULT_ROWS, MAX_ROWS
from penstock.rest.requests.preferences import preference_headers, preferred_page_size
from penstock.rest.requests.version_pins import (
    VERSIONS_HEADER,
    VERSIONS_PARAMETER,
    format_version_pins,
    parse_version_pins,
)
from penstock.rest.responses import row_encoding
from penstock.rest.responses.revisions import deprecation_headers
from penstock.rest.route_execution import Lane
from penstock.rest.routes.queries import QueryKey, parameter_values
from penstock.service.queries.execution import DEFAULT_PAGE_BYTES, LoadedQuery, QueryRequest, QueryRows
from penstock.service.queries.executions import PREVIEW, QueryExecution

_NO_LIMIT = 2**31  # rows; larger than any result
_UTC_OFFSET = "(?:[Zz]|[+-][0-9]{2}:[0-9]{2})$"

router = APIRouter(prefix="/queries", tags=["queries"], route_class=ODataRoute)


@router.get("/{id}/results", **docs.RUN_QUERY)
async def results(request: Request, caller: CallerDep, id: QueryKey) -> Response:
    return await _execute(request, caller, id, partial(_run_query, request, caller, id))


@router.post("/preview", **docs.PREVIEW_SQL)
async def preview(request: Request, caller: CallerDep, body: Body) -> Response:
    return await _execute(request, caller, PREVIEW, partial(_preview, request, caller, body))


async def _execute(
    request: Request, caller: Caller, query: str, work: Callable[[QueryExecution], Response]
) -> Response:
    """Run a query in a thread, as an execution that a person may cancel while it runs or waits."""
    context = context_of(request)
    token: CancelToken = request.state.cancel_token
    executions = context.query_executor.executions
    with executions.register(caller, query, token, requested_execution_id(request)) as execution:
        response = await context.executor.run(request, caller, Lane.COMPUTE, partial(work, execution))
    response.headers[EXECUTION_HEADER] = str(execution.id)
    return response


def _run_query(request: Request, caller: Caller, id: str, execution: QueryExecution) -> Response:
    offers = [media_types.JSON, media_types.ARROW, media_types.PARQUET]
    media_type = negotiate_type(request, offers)
    executor = context_of(request).query_executor
    loaded = executor.load(caller, id)
    execution.query = loaded.query.draft.name
    query_request = _parse_request(request, loaded, paged=media_type == media_types.JSON)
    result = executor.run(caller, loaded, query_request)
    headers = {VERSIONS_HEADER: format_version_pins(result.versions), **deprecation_headers(loaded.query)}
    if media_type == media_types.JSON:
        headers |= preference_headers(preferred_page_size(request))
        return _page_response(request, caller, loaded, query_request.options, result, headers)
    _check_format(media_type, result.table)
    if size := row_encoding.stream_size(media_type, result.table):
        headers["content-length"] = str(size)
    return row_encoding.RowStream(media_type, result.table.to_reader(), headers, owner=result.table)


def _preview(request: Request, caller: Caller, body: bytes, _execution: QueryExecution) -> Response:
    sql, parameters = _parse_statement(parse_json_object(body))
    result = context_of(request).query_executor.preview(caller, sql, parameters, DEFAULT_PAGE_BYTES)
    columns = [{"name": field["name"], "type": field["type"]} for field in to_fields(result.table.schema)]
    head = {"columns": columns, "@penstock.versions": dict(result.versions), "more": result.has_more}
    headers = {VERSIONS_HEADER: format_version_pins(result.versions)}
    reservation = context_of(request).workspace.memory.reserve(caller)
    return row_encoding.rows_response(head, result.table.to_batches(), headers, reservation)


def _parse_request(request: Request, loaded: LoadedQuery, *, paged: bool) -> QueryRequest:
    """Parse the query string: OData options, pinned versions, and the query's own parameters."""
    pairs, parameters = list[tuple[str, str]](), dict[str, str]()
    for name, value in request.query_params.multi_items():
        if name.startswith("$"):
            pairs.append((name, value))
        elif name in parameters:
            raise Invalid("duplicate_parameter.query", {"name": name[:80]}, parameter=name[:80])
        else:
            parameters[name] = value
    names = {name for name, _ in pairs}
    if "$count" in names and not paged:
        raise Invalid("bad_option.count_in_stream", option="$count")
    pins = parse_version_pins(parameters.pop(VERSIONS_PARAMETER, None))
    default_top, max_top = (DEFAULT_ROWS, MAX_ROWS) if paged else (_NO_LIMIT, _NO_LIMIT)
    preferred = preferred_page_size(request) if paged else None
    options = odata.options(
        pairs, loaded.odata_fields, default_top=default_top, max_top=max_top, preferred_page=preferred
    )
    if options.after is not None:
        if not paged:
            raise odata.bad_token()
        options = replace(options, skip=odata.integer_key(options.after, odata.MAX_SKIP), after=None)
    all_rows = not paged and not names & {"$top", "$skip"}
    return QueryRequest(options, parameters, pins, all_rows, DEFAULT_PAGE_BYTES if paged else None)


def _parse_statement(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    match payload:
        case {"sql": str(sql), **more} if more.keys() <= {"parameters"}:
            return sql, parameter_values(more)
    raise Invalid("bad_payload.preview")


def _page_response(
    request: Request,
    caller: Caller,
    loaded: LoadedQuery,
    options: odata.QueryOptions,
    result: QueryRows,
    headers: dict[str, str],
) -> Response:
    path = f"queries/{loaded.query.id}/results"
    head: dict[str, Any] = {"@odata.context": odata.collection_context(path, options.select)}
    if result.count is not None:
        head["@odata.count"] = result.count
    head["@penstock.versions"] = dict(result.versions)
    if result.has_more:
        pairs = [pair for pair in request.query_params.multi_items() if pair[0] != VERSIONS_PARAMETER]
        pairs += [(VERSIONS_PARAMETER, format_version_pins(result.versions))] if result.versions else []
        count = result.table.num_rows
        key = (options.skip + count,)  # the versions are pinned, so that the rows before this position stay the same
        if key[0] <= odata.MAX_SKIP and (next_query := odata.next_page(pairs, options, key, count)):
            head["@odata.nextLink"] = f"/{path}?{next_query}"
    fields = _selected_fields(options, loaded.fields)
    batches = [_declared_columns(batch, fields) for batch in result.table.to_batches()]
    return row_encoding.rows_response(head, batches, headers, context_of(request).workspace.memory.reserve(caller))


def _check_format(media_type: str, table: pa.Table) -> None:
    if media_type == media_types.PARQUET and not table.schema.names and table.num_rows:
        raise Invalid("not_in_format.no_fields", format="parquet")


def _selected_fields(options: odata.QueryOptions, fields: Sequence[ResultField]) -> Sequence[ResultField]:
    if options.select is None:
        return fields
    by_name = {field.name: field for field in fields}
    return [by_name[name] for name in options.select]


def _declared_columns(batch: pa.RecordBatch, fields: Sequence[ResultField]) -> pa.RecordBatch:
    """Return the declared columns of a batch, with datetimes in UTC."""
    batch = batch.select([field.name for field in fields if field.name in batch.schema.names])
    datetimes = {field.name for field in fields if field.type is FieldType.DATETIME}
    for index, name in enumerate(batch.schema.names):
        if name in datetimes:
            batch = batch.set_column(index, name, _in_utc(batch.column(index)))
    return batch


def _in_utc(column: pa.Array) -> pa.Array:
    """Return datetimes with an offset: those without one are in UTC."""
    if is_list(column.type):
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
        starts = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(starts, _in_utc(column.flatten()), mask=column.is_null())
    if pt.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    if pt.is_null(column.type):
        return column
    has_offset = pc.match_substring_regex(column, _UTC_OFFSET)
    return pc.if_else(has_offset, column, pc.binary_join_element_wise(column, "Z", ""))
