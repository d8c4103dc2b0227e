"""Datasets over REST: list, make, look at, read, fill and drop them."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName, uuid
from penstock.core.schema.canonical import to_fields
from penstock.errors import Invalid, NotFound
from penstock.rest.requests import bodies
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import odata_page as pages
from penstock.rest.responses import row_encoding as rows
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.query_params import columns, flag, next_link, number, parameters
from penstock.rest.requests.bodies import Upload, Who
from penstock.rest.requests.preconditions import has
from penstock.rest.requests.dataset_payload import creation
from penstock.rest.openapi.document import answers, header, query, unchanged
from penstock.rest.openapi.document import sent as sent_as
from penstock.rest.context import edge_of
from penstock.service.datasets import alter
from penstock.service.datasets import read
from penstock.service.datasets import write
from penstock.storage.import_files import Incoming, incoming
from penstock.storage.scan import BATCH_ROWS

SHOWN = ("schema", "operation", "inserted", "updated", "deleted", "commit_no", "swept")  # and not asked for
ROWS, MOST_ROWS = 100, 10_000  # on a page, unless asked for, and at most
PAGE_BYTES = 16 << 20
PAGE_BATCH = 4 << 10  # rows read at once for a page: few are wanted
VERSIONS, MOST_VERSIONS = 100, 1_000

router = APIRouter(prefix="/datasets", tags=["datasets"])

Key = Annotated[str, Path(description="The dataset's id, or its name: schema.table.", examples=["shop.orders"])]


@router.get(
    "",
    summary="List datasets",
    responses=answers(
        200,
        "A page of datasets.",
        {"@odata.context": "$metadata#datasets", "value": [samples.DATASET], "@odata.nextLink": "/datasets?$skip=50"},
        shapes.of("DatasetPage"),
        errors=[400, 403],
    ),
    openapi_extra={
        "parameters": [
            query("$filter", "Only such datasets.", example="rows gt 100"),
            query("$orderby", "The order.", example="name desc"),
            query("$search", "Words that the name holds.", example="orders"),
            query("$select", "Only these members.", example="id,name"),
            query("$count", "Also say how many there are.", kind=shapes.FLAG, example=True),
            samples.TOP,
            samples.SKIP,
        ]
    },
)
def list_datasets(request: Request, who: Who) -> Response:
    here = (edge_of(request).workspace, who)
    return pages.found(request, read.FIELDS, SHOWN, lambda asked: read.search(*here, asked), Snapshot.facts)


@router.post(
    "",
    status_code=201,
    summary="Make a dataset",
    description="From its schema, as JSON; or from its first rows, with `name` in the query.",
    responses=answers(
        201,
        "It is there.",
        samples.DATASET,
        shapes.of("Dataset"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    openapi_extra={
        "parameters": [
            query("name", "Its name, where rows are sent.", example="shop.orders"),
            query("row_ids", "Do rows get ids? (true)", kind=shapes.FLAG, example=True),
            query("read_only", "Refuse every later write? (false)", kind=shapes.FLAG, example=False),
            samples.KEY,
        ],
        "requestBody": {
            "required": True,
            "content": {
                **sent_as("DatasetSent", {"name": "shop.orders", "schema": samples.COLUMNS, "row_ids": True}),
                **samples.SENT_ROWS,
            },
        },
    },
)
def create(
    request: Request, who: Who, sent: Annotated[Upload, Depends(bodies.upload(media.JSON, *media.FORMATS))]
) -> Response:
    ws = edge_of(request).workspace
    source: Incoming | None = None
    if sent.kind == media.JSON:
        parameters(request, ())  # all is in the body
        name, kept, flags = creation(bodies.parsed_object(sent.path.read_bytes()))
    else:
        asked = parameters(request)
        if "name" not in asked:
            raise Invalid("no_name", "say the dataset's name in the query: ?name=schema.table")
        name = DatasetName.parse(asked["name"])
        flags = {each: flag(asked, each) for each in ("row_ids", "read_only") if each in asked}
        source = incoming([sent.path], format=media.FORMATS[sent.kind])
        kept = source.schema
    receipt = write.create(
        ws,
        who,
        name,
        kept,
        source,
        row_ids=flags.get("row_ids", True),
        read_only=flags.get("read_only", False),
        key=request.headers.get("idempotency-key"),
    )
    made = receipt.written[0]
    snapshot = read.at(ws, who, made.dataset, version=made.version)
    return media.json(snapshot.facts(), 201, {"location": f"/datasets/{made.dataset}", "etag": etag(snapshot)})


@router.get(
    "/{dataset}",
    summary="Look at a dataset",
    description="By its id or its name. The answer's etag changes with every version.",
    responses={
        **answers(
            200, "The newest version.", samples.DATASET, shapes.of("Dataset"), headers=["etag"], errors=[400, 403, 404]
        ),
        **unchanged(),
    },
    openapi_extra={
        "parameters": [header("if-none-match", "The etag of what you have.", example=f'"{samples.DATASET["id"]}.1"')],
    },
)
def show(request: Request, who: Who, dataset: Key) -> Response:
    snapshot = found(request, who, dataset)
    tag = etag(snapshot)
    if has(request, tag):
        return Response(status_code=304, headers={"etag": tag})
    return media.json(snapshot.facts(), headers={"etag": tag})


@router.get(
    "/{dataset}/schema",
    summary="A dataset's columns",
    responses=answers(
        200,
        "The columns of a version.",
        {"dataset": samples.DATASET["id"], "name": "shop.orders", "version": 1, "schema": samples.COLUMNS},
        shapes.of("DatasetColumns"),
        headers=["etag"],
        errors=[400, 403, 404],
    ),
    openapi_extra={"parameters": [samples.VERSION]},
)
def schema(request: Request, who: Who, dataset: Key) -> Response:
    snapshot = found(request, who, dataset, number(parameters(request), "version"))
    facts = {
        "dataset": str(snapshot.dataset),
        "name": str(snapshot.name),
        "version": snapshot.version.number,
        "schema": to_fields(snapshot.schema),
    }
    return media.json(facts, headers={"etag": etag(snapshot)})


@router.get(
    "/{dataset}/history",
    summary="A dataset's versions",
    description="The newest first.",
    responses=answers(
        200,
        "A page of versions.",
        {"value": [samples.VERSION_FACTS]},
        shapes.members({"value": shapes.many(shapes.of("DatasetVersion"))}, {"@odata.nextLink": shapes.LINK}),
        errors=[400, 403, 404],
    ),
    openapi_extra={
        "parameters": [samples.TOP, query("before", "Only versions before this one.", kind=shapes.COUNT, example=101)]
    },
)
def history(request: Request, who: Who, dataset: Key) -> Response:
    asked = parameters(request)
    top = min(number(asked, "$top", VERSIONS), MOST_VERSIONS)
    snapshot = found(request, who, dataset)
    ws, before = edge_of(request).workspace, number(asked, "before")
    versions = read.versions(ws, who, snapshot.dataset, limit=top + 1, before=before)
    answer: dict[str, Any] = {"value": [version.facts() for version in versions[:top]]}
    if 0 < top < len(versions):
        answer["@odata.nextLink"] = next_link(request, {"before": versions[top - 1].number})
    return media.json(answer)


def _rows_answers() -> dict[int | str, dict[str, Any]]:
    example = {
        "dataset": samples.DATASET["id"],
        "name": "shop.orders",
        "version": 1,
        "value": [{"id": 1, "amount": 12.50}],
        "@odata.nextLink": "/datasets/shop.orders/rows?$top=1&version=1&$skip=1",
    }
    told = answers(200, "The rows.", example, shapes.of("DatasetRows"), headers=["etag"], errors=[400, 403, 404, 406])
    told[200]["content"] |= {media.ARROW: {"schema": shapes.BYTES}, media.PARQUET: {"schema": shapes.BYTES}}
    return told


@router.get(
    "/{dataset}/rows",
    summary="Read rows",
    description=(
        "As JSON, a page: integers and decimals are exact numbers, dates and times ISO 8601, bytes base64, NaN null; "
        "`@odata.nextLink` leads to the next page of the same version. Or, by `accept`, all rows as Arrow or Parquet."
    ),
    responses=_rows_answers(),
    openapi_extra={
        "parameters": [
            samples.VERSION,
            query(
                "columns", "Only these columns, separated by commas; odd names in `backquotes`.", example="id,amount"
            ),
            query("where", "Only such rows.", example="amount > 100 AND region = 'EMEA'"),
            samples.TOP,
            samples.SKIP,
        ]
    },
)
def read_rows(request: Request, who: Who, dataset: Key) -> Response:
    asked = parameters(request)
    kind = media.wanted(request.headers.get("accept"), [media.JSON, media.ARROW, media.PARQUET])
    top, skip = min(number(asked, "$top", ROWS), MOST_ROWS), number(asked, "$skip", 0)
    if kind != media.JSON and {"$top", "$skip"} & asked.keys():
        raise Invalid("no_pages", f"{kind} gives all rows; only JSON comes in pages ($top, $skip)")
    snapshot = found(request, who, dataset, number(asked, "version"))
    shown = columns(asked["columns"]) if "columns" in asked else None
    ws = edge_of(request).workspace
    size = PAGE_BATCH if kind == media.JSON else BATCH_ROWS
    reader = read.rows(ws, who, snapshot, columns=shown, where=asked.get("where"), batch_rows=size)
    if kind != media.JSON:
        return StreamingResponse(rows.stream(kind, reader), media_type=kind, headers={"etag": etag(snapshot)})
    taken, more = rows.page(reader, skip, top, PAGE_BYTES)
    head = {"dataset": str(snapshot.dataset), "name": str(snapshot.name), "version": snapshot.version.number}
    if more and top:
        end = skip + sum(batch.num_rows for batch in taken)
        head["@odata.nextLink"] = next_link(request, {"version": snapshot.version.number, "$skip": end})
    # The rows are JSON already, with digits that no float could keep.
    start = errors.as_json(head).decode()[:-1]
    body = f'{start}, "value": {rows.as_json(taken)}}}'.encode("utf-8", "backslashreplace")
    return Response(body, media_type=media.JSON, headers={"etag": etag(snapshot)})


@router.post(
    "/{dataset}/rows",
    summary="Append rows",
    description="All or none. What comes as CSV or JSON lines is read with the dataset's types.",
    responses=answers(
        200, "The receipt.", samples.RECEIPT, shapes.of("Receipt"), errors=[400, 403, 404, 409, 413, 415]
    ),
    openapi_extra={"parameters": [samples.KEY], "requestBody": {"required": True, "content": samples.SENT_ROWS}},
)
def append(
    request: Request, who: Who, dataset: Key, sent: Annotated[Upload, Depends(bodies.upload(*media.FORMATS))]
) -> Response:
    target = found(request, who, dataset)
    source = incoming([sent.path], format=media.FORMATS[sent.kind], like=target.schema)
    key = request.headers.get("idempotency-key")
    receipt = write.append(edge_of(request).workspace, who, target.dataset, source, key=key)
    return media.json(_told(receipt.facts()))


@router.delete(
    "/{dataset}",
    status_code=204,
    summary="Drop a dataset",
    description="Its name is free at once; its files stay until they are swept.",
    responses=answers(204, "It is gone.", errors=[400, 403, 404]),
)
def drop(request: Request, who: Who, dataset: Key) -> Response:
    alter.drop(edge_of(request).workspace, who, found(request, who, dataset).dataset)
    return Response(status_code=204)


def found(request: Request, who: Caller, dataset: str, version: int | None = None) -> Snapshot:
    ws = edge_of(request).workspace
    newest = read.find(ws, who, named(dataset))
    return newest if version is None else read.at(ws, who, newest.dataset, version=version)


def named(dataset: str) -> UUID | DatasetName:
    """An id, or a name. What can be neither is not there."""
    if id := uuid(dataset):
        return id
    try:
        return DatasetName.parse(dataset)
    except Invalid:
        shown = dataset[:200]
        raise NotFound("dataset_not_found", f"there is no dataset {shown!r}", dataset=shown) from None


def etag(snapshot: Snapshot) -> str:
    """A name can be given to another dataset, so the version alone would not do."""
    return f'"{snapshot.dataset}.{snapshot.version.number}"'


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    written = [{**each, "dataset": str(each["dataset"])} for each in facts["written"]]
    return {**facts, "written": written}
