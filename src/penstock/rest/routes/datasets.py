"""Routes of datasets: list, create, show, read, append and drop."""

from typing import Annotated, Any
from uuid import UUID

import pyarrow as pa
from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core import odata
from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName, parse_dataset_ref
from penstock.core.odata.entity_set import JSON_OBJECTS, EntitySet
from penstock.core.schema.type_names import to_fields
from penstock.errors import Invalid, NotFound
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import datasets as docs
from penstock.rest.requests import bodies, media_types
from penstock.rest.requests.bodies import CallerDep, UploadedFile
from penstock.rest.requests.content_negotiation import negotiate_type
from penstock.rest.requests.dataset_payload import parse_new_dataset
from penstock.rest.requests.page_limits import (
    DEFAULT_DATASET_VERSIONS,
    DEFAULT_ROWS,
    MAX_DATASET_VERSIONS,
    MAX_PAGE_BYTES,
    MAX_ROWS,
)
from penstock.rest.requests.paging import POSITION_OPTIONS, next_page_link, page_options
from penstock.rest.requests.preconditions import is_not_modified
from penstock.rest.requests.preferences import preference_headers, preferred_page_size
from penstock.rest.requests.query_params import bool_param, int_param, parse_columns, query_params
from penstock.rest.responses import odata_page, row_encoding
from penstock.rest.route_execution import Lane, in_lane
from penstock.service.datasets import alter, read, write
from penstock.service.datasets.files import FileRows, read_files

ENTITY_SET = EntitySet(
    "datasets",
    "Dataset",
    read.SEARCH_FIELDS,
    {
        "schema": JSON_OBJECTS,
        "cluster_by": "Collection(Edm.String)",
        "deleted_rows": "Edm.Int64",
        "vector_files": "Edm.Int64",
        "inserted": "Edm.Int64",
        "updated": "Edm.Int64",
        "deleted": "Edm.Int64",
        "commit_no": "Edm.Int64",
        "swept": "Edm.Boolean",
    },
)
PAGE_BATCH_ROWS = 4 << 10  # read at once for a page, which needs few rows
STREAM_BATCH_ROWS = 16 << 10  # of a stream: many slow clients may each hold a batch
_UPLOADS = 8  # at once at most; each may hold such a part of the request memory beyond the budget

router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=in_lane(Lane.DATA, ODataRoute))

DatasetKey = Annotated[str, Path(description="The dataset's id, or its name: schema.table.", examples=["shop.orders"])]


@router.get("", **docs.LIST_DATASETS)
def list_datasets(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.search_response(
        request, ENTITY_SET, lambda options: read.search(ws, caller, options), Snapshot.as_dict
    )


@router.post("", status_code=201, **docs.CREATE_DATASET)
def create(
    request: Request,
    caller: CallerDep,
    upload: Annotated[UploadedFile, Depends(bodies.receive_upload(media_types.JSON, *media_types.FILE_FORMATS))],
) -> Response:
    ws = context_of(request).workspace
    source: FileRows | None = None
    if upload.media_type == media_types.JSON:
        query_params(request, ())  # the body contains everything
        payload = parse_new_dataset(bodies.parse_json_object(upload.json))
        name, schema, flags, cluster_by = payload.name, payload.schema, payload.flags, payload.cluster_by
    else:
        params = query_params(request)
        if "name" not in params:
            raise Invalid("missing_name.query")
        name = DatasetName.parse(params["name"])
        flags = {flag: bool_param(params, flag) for flag in ("row_ids", "read_only") if flag in params}
        cluster_by = parse_columns(params.get("cluster_by", ""), "cluster_by")
        source = open_upload(request, upload)
        schema = source.schema
    receipt = write.create(
        ws,
        caller,
        name,
        schema,
        source,
        row_ids=flags.get("row_ids", True),
        read_only=flags.get("read_only", False),
        cluster_by=cluster_by,
        key=request.headers.get("idempotency-key"),
    )
    created = receipt.written[0]
    snapshot = read.find_version(ws, caller, created.dataset, version=created.version)
    headers = {"location": f"/datasets/{created.dataset}", "etag": etag_of(snapshot)}
    return media_types.json_response(snapshot.as_dict(), 201, headers)


@router.get("/{dataset}", **docs.SHOW_DATASET)
def show(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    snapshot = find_dataset(request, caller, dataset)
    etag = etag_of(snapshot)
    if is_not_modified(request, etag):
        return Response(status_code=304, headers={"etag": etag})
    return media_types.json_response(snapshot.as_dict(), headers={"etag": etag})


@router.get("/{dataset}/schema", **docs.SHOW_COLUMNS)
def schema(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    snapshot = find_dataset(request, caller, dataset, int_param(query_params(request), "version"))
    body = {**identify(snapshot), "schema": to_fields(snapshot.schema)}
    return media_types.json_response(body, headers={"etag": etag_of(snapshot)})


@router.get("/{dataset}/history", **docs.LIST_VERSIONS)
def history(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    options = page_options(request, default_items=DEFAULT_DATASET_VERSIONS, max_items=MAX_DATASET_VERSIONS)
    before = int_param(query_params(request), "before")
    if options.after is not None:
        before = odata.integer_key(options.after)
    snapshot = find_dataset(request, caller, dataset)
    ws = context_of(request).workspace
    versions = read.versions(ws, caller, snapshot.dataset, limit=options.top + 1, before=before)
    page = versions[: options.top]
    body: dict[str, Any] = {"value": [version.as_dict() for version in page]}
    if page and len(page) < len(versions):
        body |= next_page_link(request, options, page[-1].number, len(page))
    return media_types.json_response(body, headers=preference_headers(preferred_page_size(request)))


@router.get("/{dataset}/rows", **docs.READ_ROWS)
def read_rows(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    params = query_params(request)
    offers = [media_types.JSON, media_types.ARROW, media_types.PARQUET]
    media_type = negotiate_type(request, offers)
    options = page_options(request, default_items=DEFAULT_ROWS, max_items=MAX_ROWS)
    skip = options.skip if options.after is None else odata.integer_key(options.after)
    if media_type != media_types.JSON and POSITION_OPTIONS & params.keys():
        raise Invalid("paging_not_supported", {"media_type": media_type})
    snapshot = find_dataset(request, caller, dataset, int_param(params, "version"))
    columns = parse_columns(params["columns"]) if "columns" in params else None
    is_page = media_type == media_types.JSON
    batch_rows = PAGE_BATCH_ROWS if is_page else STREAM_BATCH_ROWS
    ws, where = context_of(request).workspace, params.get("where")
    # Without read-ahead: a page needs few rows, and slow clients may keep streams open.
    reader = read.scan_rows(ws, caller, snapshot, columns=columns, where=where, batch_rows=batch_rows, read_ahead=False)
    headers = {"etag": etag_of(snapshot)}
    reservation = ws.memory.reserve(caller)
    if not is_page:
        buffer_bytes = min(read.SCAN_BUFFER_BYTES, snapshot.version.bytes)
        return row_encoding.RowStream(media_type, reader, headers, reservation=reservation, buffer_bytes=buffer_bytes)
    batches, has_more = row_encoding.take_page(reader, skip, options.top, MAX_PAGE_BYTES)
    head = identify(snapshot)
    if has_more:
        count = sum(batch.num_rows for batch in batches)
        head |= next_page_link(request, options, skip + count, count, {"version": snapshot.version.number})
    headers |= preference_headers(preferred_page_size(request))
    return row_encoding.rows_response(head, batches, headers, reservation)


@router.post("/{dataset}/rows", **docs.APPEND_ROWS)
def append(
    request: Request,
    caller: CallerDep,
    dataset: DatasetKey,
    upload: Annotated[UploadedFile, Depends(bodies.receive_upload(*media_types.FILE_FORMATS))],
) -> Response:
    target = find_dataset(request, caller, dataset)
    source = open_upload(request, upload, target.schema)
    key = request.headers.get("idempotency-key")
    receipt = write.append(context_of(request).workspace, caller, target.dataset, source, key=key).as_dict()
    written = [{**commit, "dataset": str(commit["dataset"])} for commit in receipt["written"]]
    return media_types.json_response({**receipt, "written": written})


@router.delete("/{dataset}", status_code=204, **docs.DROP_DATASET)
def drop(request: Request, caller: CallerDep, dataset: DatasetKey) -> Response:
    force = bool_param({"force": "false", **query_params(request)}, "force")
    alter.drop(context_of(request).workspace, caller, find_dataset(request, caller, dataset).dataset, force=force)
    return Response(status_code=204)


def open_upload(request: Request, upload: UploadedFile, like: pa.Schema | None = None) -> FileRows:
    """Open the rows of an upload, with the types of a schema where the file has none."""
    ws = context_of(request).workspace
    max_bytes = min(ws.limits.batch_bytes, ws.memory.max_bytes // _UPLOADS)
    file_format = media_types.FILE_FORMATS[upload.media_type]
    return read_files([upload.path], format=file_format, like=like, max_message_bytes=max_bytes)


def find_dataset(request: Request, caller: Caller, dataset: str, version: int | None = None) -> Snapshot:
    """Return a dataset by the key in the URL, at a version or as it is now."""
    ws = context_of(request).workspace
    newest = read.find(ws, caller, parse_dataset_key(dataset))
    return newest if version is None else read.find_version(ws, caller, newest.dataset, version=version)


def parse_dataset_key(dataset: str) -> UUID | DatasetName:
    """Parse a dataset id or name.

    Raises:
        NotFound: the text is neither, so no dataset can have this key
    """
    try:
        return parse_dataset_ref(dataset)
    except Invalid:
        raise NotFound("dataset_not_found.bad_name", dataset=dataset[:200]) from None


def identify(snapshot: Snapshot) -> dict[str, Any]:
    """Return the members that identify a dataset and its version."""
    return {"dataset": str(snapshot.dataset), "name": str(snapshot.name), "version": snapshot.version.number}


def etag_of(snapshot: Snapshot) -> str:
    """Return the ETag of a dataset. It contains the id: another dataset may get the name and reach the version."""
    return f'"{snapshot.dataset}.{snapshot.version.number}"'
