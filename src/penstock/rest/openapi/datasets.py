"""OpenAPI descriptions of the routes of datasets and their profile."""

from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import (
    Operation,
    Responses,
    describe_responses,
    header_parameter,
    json_content,
    not_modified,
    query_parameter,
)
from penstock.rest.openapi.schemas.base import BYTES, COUNT, FLAG, LINK, array_of, object_of, ref
from penstock.rest.requests import media_types

_ID_COLUMN, _AMOUNT_COLUMN = examples.COLUMNS
_PROFILE = {
    "dataset": examples.DATASET_ID, "name": "shop.orders", "version": 1, "rows": 3,
    "columns": [
        {**_ID_COLUMN, "nulls": 0, "min": 1, "max": 3},
        {**_AMOUNT_COLUMN, "nulls": 1, "min": 8.00, "max": 12.50},
    ],
    "histogram": {
        "column": "amount", "rows": 3, "sampled": False, "nulls": 1, "not_finite": 0, "distinct": None, "top": None,
        "bins": [{"from": 8.00, "to": 10.00, "count": 1}, {"from": 10.00, "to": 15.00, "count": 1}],
    },
}  # fmt: skip


def _rows_responses() -> Responses:
    example = {
        "dataset": examples.DATASET_ID,
        "name": "shop.orders",
        "version": 1,
        "value": [{"id": 1, "amount": 12.50}],
        "@odata.nextLink": "/datasets/shop.orders/rows?version=1&$skiptoken=WyJhIixudWxsLDEsWzFdXQ",
    }
    responses = describe_responses(
        200, "The rows.", example, ref("DatasetRows"), headers=["etag"], errors=[400, 403, 404, 406]
    )
    responses[200]["content"] |= {media_types.ARROW: {"schema": BYTES}, media_types.PARQUET: {"schema": BYTES}}
    return responses


LIST_DATASETS: Operation = {
    "summary": "List datasets",
    "responses": describe_responses(
        200,
        "A page of datasets.",
        {
            "@odata.context": "/$metadata#datasets",
            "value": [examples.DATASET],
            "@odata.nextLink": "/datasets?$skiptoken=WyJhYmMiLG51bGwsNTAsWyJzaG9wLm9yZGVycyJdXQ",
        },
        ref("DatasetPage"),
        errors=[400, 403],
    ),
    "openapi_extra": {
        "parameters": [
            query_parameter("$filter", "Filter expression for datasets.", example="rows gt 100"),
            query_parameter("$orderby", "Sort order.", example="name desc"),
            query_parameter("$search", "Words to find in the name.", example="orders"),
            query_parameter("$select", "Members to return.", example="id,name"),
            query_parameter("$count", "Also return the number of matches.", schema=FLAG, example=True),
            parameters.TOP,
            parameters.SKIP,
            parameters.PREFER,
        ]
    },
}
CREATE_DATASET: Operation = {
    "summary": "Create a dataset",
    "description": "Send the schema as JSON, or the first rows as a file with `name` in the query string.",
    "responses": describe_responses(
        201,
        "The new dataset.",
        examples.DATASET,
        ref("Dataset"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    "openapi_extra": {
        "parameters": [
            query_parameter("name", "Name of the dataset, if rows are sent.", example="shop.orders"),
            query_parameter("row_ids", "Assign row ids. Default: true.", schema=FLAG, example=True),
            query_parameter("read_only", "Reject every later write. Default: false.", schema=FLAG, example=False),
            query_parameter(
                "cluster_by", "Columns that compaction sorts the rows by, separated by commas.", example="id"
            ),
            parameters.IDEMPOTENCY_KEY,
        ],
        "requestBody": {
            "required": True,
            "content": {
                **json_content(
                    "DatasetSent",
                    {"name": "shop.orders", "schema": examples.COLUMNS, "row_ids": True, "cluster_by": ["id"]},
                ),
                **examples.ROW_FILES,
            },
        },
    },
}
SHOW_DATASET: Operation = {
    "summary": "Show a dataset",
    "description": "By id or name. The ETag changes with every version.",
    "responses": {
        **describe_responses(
            200,
            "The newest version.",
            examples.DATASET,
            ref("Dataset"),
            headers=["etag"],
            errors=[400, 403, 404],
        ),
        **not_modified(),
    },
    "openapi_extra": {
        "parameters": [
            header_parameter(
                "if-none-match", "ETag of the version that the client has.", example=f'"{examples.DATASET_ID}.1"'
            )
        ],
    },
}
SHOW_COLUMNS: Operation = {
    "summary": "Show the columns of a dataset",
    "responses": describe_responses(
        200,
        "The columns of a version.",
        {
            "dataset": examples.DATASET_ID,
            "name": "shop.orders",
            "version": 1,
            "schema": examples.COLUMNS,
        },
        ref("DatasetColumns"),
        headers=["etag"],
        errors=[400, 403, 404],
    ),
    "openapi_extra": {"parameters": [parameters.VERSION]},
}
LIST_VERSIONS: Operation = {
    "summary": "List the versions of a dataset",
    "description": "Newest first.",
    "responses": describe_responses(
        200,
        "A page of versions.",
        {"value": [examples.DATASET_VERSION]},
        object_of(
            {"value": array_of(ref("DatasetVersion"))},
            {"@odata.nextLink": LINK},
        ),
        errors=[400, 403, 404],
    ),
    "openapi_extra": {
        "parameters": [
            parameters.TOP,
            parameters.SKIPTOKEN,
            parameters.PREFER,
            query_parameter("before", "Return only versions below this one.", schema=COUNT, example=101),
        ]
    },
}
READ_ROWS: Operation = {
    "summary": "Read rows",
    "description": (
        "JSON responses are pages: integers and decimals are exact numbers, dates and times ISO 8601, bytes base64, NaN null; "
        "`@odata.nextLink` is the next page of the same version. Arrow and Parquet responses contain all rows."
    ),
    "responses": _rows_responses(),
    "openapi_extra": {
        "parameters": [
            parameters.VERSION,
            query_parameter(
                "columns", "Columns to return, separated by commas; special names in `backquotes`.", example="id,amount"
            ),
            query_parameter("where", "Filter expression for rows.", example="amount > 100 AND region = 'EMEA'"),
            parameters.TOP,
            parameters.SKIP,
            parameters.SKIPTOKEN,
            parameters.PREFER,
        ]
    },
}
APPEND_ROWS: Operation = {
    "summary": "Append rows",
    "description": "Atomic. CSV and JSON lines are parsed with the types of the dataset.",
    "responses": describe_responses(
        200,
        "The receipt.",
        examples.RECEIPT,
        ref("Receipt"),
        errors=[400, 403, 404, 409, 413, 415],
    ),
    "openapi_extra": {
        "parameters": [parameters.IDEMPOTENCY_KEY],
        "requestBody": {"required": True, "content": examples.ROW_FILES},
    },
}
DROP_DATASET: Operation = {
    "summary": "Drop a dataset",
    "description": "The name can be reused at once; the files stay until a sweep deletes them.",
    "responses": describe_responses(204, "The dataset was dropped.", errors=[400, 403, 404, 409]),
    "openapi_extra": {
        "parameters": [
            query_parameter(
                "force",
                "Drop the dataset even if registered queries read it. Default: false.",
                schema=FLAG,
                example=False,
            )
        ]
    },
}
SHOW_PROFILE: Operation = {
    "summary": "Profile the columns of a dataset",
    "description": (
        "The number of NULL values, the minimum and the maximum of every column, from file statistics; null means "
        "unknown. NaN is ignored, and an infinity is null. With `column` also the distribution of its values: at most 20 "
        "`bins` for numbers, dates and times, the 20 most frequent values (`top`) for texts and booleans. This reads at "
        "most a million rows from all parts of the dataset; `sampled` tells whether rows were left out."
    ),
    "responses": describe_responses(
        200, "The profile.", _PROFILE, ref("DatasetProfile"), headers=["etag"], errors=[400, 403, 404]
    ),
    "openapi_extra": {
        "parameters": [
            parameters.VERSION,
            query_parameter("column", "Column whose distribution is returned.", example="amount"),
        ]
    },
}
