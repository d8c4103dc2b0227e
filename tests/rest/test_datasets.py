"""Datasets over REST: create, append, list, read, exact values."""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.registry import gts
from penstock.errors import Invalid, Unavailable
from penstock.lake import Lake
from penstock.rest.requests.media_types import ARROW, PARQUET, negotiate
from penstock.rest.responses import row_encoding
from rest.rest_client import RestClient, in_process_client, token

FIELDS = [{"name": "id", "type": "int64", "nullable": False}, {"name": "word", "type": "string", "nullable": True}]
CSV = {"content-type": "text/csv"}


@pytest.fixture
def orders_path(client: RestClient) -> str:
    """Create a dataset of two versions: three rows, then five."""
    client("POST", "/datasets?name=shop.orders", code=201, content=b"id,word\n1,one\n2,two\n3,three\n", headers=CSV)
    client("POST", "/datasets/shop.orders/rows", content=b"id,word\n4,\n5,five\n", headers=CSV)
    return "/datasets/shop.orders"


# --- create


def test_create_dataset_from_schema(client: RestClient) -> None:
    created = client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS, "row_ids": False})
    body = created.json()
    assert (body["name"], body["version"], body["rows"], body["row_ids"]) == ("shop.orders", 1, 0, False)
    assert body["schema"] == FIELDS
    assert client("GET", created.headers["location"]).json() == body
    assert client("GET", "/datasets/shop.orders").headers["etag"] == created.headers["etag"]


def test_create_dataset_with_cluster_key(client: RestClient) -> None:
    body = {"name": "shop.orders", "schema": FIELDS, "cluster_by": [FIELDS[1]["name"], FIELDS[0]["name"]]}
    assert client("POST", "/datasets", code=201, json=body).json()["cluster_by"] == body["cluster_by"]
    assert client("GET", "/datasets").json()["value"][0]["cluster_by"] == body["cluster_by"]
    csv = {"content": b"id,word\n1,one\n", "headers": {"content-type": "text/csv"}}
    created = client("POST", "/datasets?name=a.b&cluster_by=word,id", code=201, **csv).json()
    assert (created["cluster_by"], created["deleted_rows"], created["vector_files"]) == (["word", "id"], 0, 0)
    assert client("POST", "/datasets?name=a.c", code=201, **csv).json()["cluster_by"] == []
    rejected = client("POST", "/datasets?name=a.d&cluster_by=id,id", code=400, **csv)
    assert rejected.json()["code"] == "DUPLICATE_PARAMETER"


TYPES = [
    "int64", "bool", "double", "date", "timestamp", "timestamp[us, tz=UTC]", "decimal(12,2)", {"decimal": [38, 10]},
    "list<int64>", {"list": {"list": "string"}}, {"struct": [["a", "int8"], ["b", {"list": "binary"}]]},
]  # fmt: skip


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_create_dataset_accepts_returned_schema(client: RestClient, data_type: Any) -> None:
    first = client(
        "POST", "/datasets", code=201, json={"name": "a.b", "schema": [{"name": "x", "type": data_type}]}
    ).json()
    second = client("POST", "/datasets", code=201, json={"name": "a.c", "schema": first["schema"]}).json()
    assert second["schema"] == first["schema"]


INVALID_BODIES = [
    ({}, "missing_name"),
    ({"name": 7, "schema": FIELDS}, "missing_name"),
    ({"name": "orders", "schema": FIELDS}, "bad_dataset_name"),
    ({"name": "a.b"}, "missing_schema"),
    ({"name": "a.b", "schema": FIELDS, "cluster_by": "id"}, "bad_member"),
    ({"name": "a.b", "schema": FIELDS, "cluster_by": [1]}, "bad_member"),
    ({"name": "a.b", "schema": FIELDS, "cluster_by": ["nope"]}, "bad_cluster_key"),
    ({"name": "a.b", "schema": []}, "missing_columns"),
    ({"name": "a.b", "schema": {"id": "int64"}}, "missing_schema"),
    ({"name": "a.b", "schema": ["id"]}, "missing_schema"),
    ({"name": "a.b", "schema": [{"name": "id"}]}, "bad_column"),
    ({"name": "a.b", "schema": [{"name": "id", "type": "int64", "nullable": "no"}]}, "bad_column"),
    ({"name": "a.b", "schema": [{"name": "id", "type": "int64", "default": 1}]}, "bad_column"),
    ({"name": "a.b", "schema": [{"name": "rowid", "type": "int64"}]}, "reserved_column_name"),
    ({"name": "a.b", "schema": [{"name": "id", "type": "money"}]}, "unknown_type"),
    ({"name": "a.b", "schema": [{"name": "id", "type": "list<" * 9_000}]}, "unknown_type"),
    ({"name": "a.b", "schema": [{"name": "id", "type": {"decimal": [39, 0]}}]}, "unknown_type"),
    ({"name": "a.b", "schema": [{"name": "id", "type": {"struct": [["a"]]}}]}, "unknown_type"),
    ({"name": "a.b", "schema": [{"name": "id", "type": None}]}, "unknown_type"),
    ({"name": "a.b", "schema": [{"name": "\ud800", "type": "int64"}]}, "bad_column_name"),
    ({"name": "a.b", "schema": FIELDS, "row_ids": 1}, "bad_member"),
    ({"name": "a.b", "schema": FIELDS, "rows": []}, "unknown_member"),
    ([], "bad_json"),
]


@pytest.mark.parametrize(
    ("body", "reason"), INVALID_BODIES, ids=lambda value: str(value)[:60].encode("ascii", "replace").decode()
)
def test_create_dataset_with_bad_schema_is_rejected(client: RestClient, body: Any, reason: str) -> None:
    response = client(
        "POST", "/datasets", code=400, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert response.json()["code"] == reason.upper()
    assert client("GET", "/datasets").json()["value"] == []


def test_create_dataset_with_taken_name_is_rejected(client: RestClient, orders_path: str) -> None:
    response = client("POST", "/datasets", code=409, json={"name": "Shop.Orders", "schema": FIELDS})
    assert response.json()["code"] == "DATASET_EXISTS"


# --- append

TABLE = pa.table({"id": pa.array([7, 8], pa.int64()), "word": ["seven", None]})


def _arrow_file(open_writer: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with open_writer(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def _saved_file(save: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    sink = io.BytesIO()
    save(TABLE, sink)
    return sink.getvalue()


FILES = {
    PARQUET: _saved_file(pq.write_table),
    "application/x-parquet": _saved_file(pq.write_table),
    "text/csv": _saved_file(pacsv.write_csv),
    "text/csv; charset=utf-8": _saved_file(pacsv.write_csv),
    ARROW: _arrow_file(pa.ipc.new_stream),
    "application/vnd.apache.arrow.file": _arrow_file(pa.ipc.new_file),
    "application/x-ndjson": b'{"id": 7, "word": "seven"}\n{"id": 8, "word": null}\n',
    "application/jsonl": b'{"id": 7, "word": "seven"}\n{"id": 8}\n',
}


@pytest.mark.parametrize("media_type", FILES)
def test_create_and_append_accept_every_file_format(client: RestClient, orders_path: str, media_type: str) -> None:
    receipt = client(
        "POST", f"{orders_path}/rows", content=FILES[media_type], headers={"content-type": media_type}
    ).json()
    (written,) = receipt["written"]
    assert (written["version"], written["inserted"], written["rows"]) == (3, 2, 7)
    assert client("GET", f"{orders_path}/rows", params={"where": "id > 6"}).json()["value"] == TABLE.to_pylist()
    created = client(
        "POST",
        "/datasets?name=a.b&read_only=true",
        code=201,
        content=FILES[media_type],
        headers={"content-type": media_type},
    )
    assert (created.json()["rows"], created.json()["read_only"]) == (2, True)
    rejected = client(
        "POST", "/datasets/a.b/rows", code=409, content=FILES[media_type], headers={"content-type": media_type}
    )
    assert rejected.json()["code"] == "READ_ONLY"


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}, {"content-type": "text/html"}, {**CSV, "content-encoding": "gzip"}])  # fmt: skip
def test_append_with_unsupported_content_type_is_rejected(
    client: RestClient, orders_path: str, headers: dict[str, str]
) -> None:
    client("POST", f"{orders_path}/rows", code=415, content=b"id\n1\n", headers=headers)


CORRUPT_BODIES = [
    ("text/csv", b""),
    ("text/csv", b"id,word\n1\n"),
    ("text/csv", b"id,word\nx,y\n"),
    ("text/csv", b"id,cake\n1,y\n"),
    (PARQUET, b"PAR1"),
    (ARROW, b"\xff" * 100),
    ("application/x-ndjson", b"{"),
]


@pytest.mark.parametrize(("media_type", "content"), CORRUPT_BODIES)
def test_append_with_corrupt_body_changes_nothing(
    client: RestClient, orders_path: str, media_type: str, content: bytes
) -> None:
    response = client("POST", f"{orders_path}/rows", code=400, content=content, headers={"content-type": media_type})
    assert "/tmp" not in response.text
    assert client("GET", orders_path).json()["version"] == 2


def test_append_with_same_idempotency_key_writes_once(client: RestClient, orders_path: str) -> None:
    def send(content: bytes, code: int = 200) -> Any:
        headers = {**CSV, "idempotency-key": "monday"}
        return client("POST", f"{orders_path}/rows", code=code, content=content, headers=headers).json()

    first, repeated = send(b"id,word\n9,nine\n"), send(b"id,word\n9,nine\n")
    assert (first["replayed"], repeated["replayed"]) == (False, True)
    assert first["written"] == repeated["written"]
    assert client("GET", orders_path).json()["rows"] == 6
    send(b"id,word\n10,ten\n", code=409)


def test_drop_dataset_read_by_a_query_requires_force(client: RestClient, orders_path: str) -> None:
    schema = {"name": "ids", "type_id": gts.QUERY_RETURNS, "fields": [{"name": "id", "type": "number"}]}
    returns = client("POST", "/gts", json=schema, code=201).json()["id"]
    name = client("GET", orders_path).json()["name"]
    query = {"name": "all ids", "sql": f"SELECT id FROM {name}", "returns_schema_id": returns}
    client("POST", "/queries", json=query, code=201)
    problem = client("DELETE", orders_path, code=409).json()
    assert (problem["code"], problem["query_count"], problem["queries"][0]["name"]) == ("DATASET_IN_USE", 1, "all ids")
    client("DELETE", f"{orders_path}?force=yes", code=400)
    client("DELETE", f"{orders_path}?force=false", code=409)
    client("DELETE", f"{orders_path}?force=true", code=204)
    client("GET", "/queries/all ids/results", code=404)


def test_drop_dataset_frees_its_name(client: RestClient, orders_path: str) -> None:
    client("DELETE", orders_path, code=204)
    for path in (orders_path, f"{orders_path}/rows", f"{orders_path}/history"):
        client("GET", path, code=404)
    client("DELETE", orders_path, code=404)
    client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS})


# --- show and list


def test_show_dataset_by_id_and_by_name(client: RestClient, orders_path: str) -> None:
    body = client("GET", orders_path).json()
    assert client("GET", f"/datasets/{body['id']}").json() == body
    assert client("GET", "/datasets/SHOP.ORDERS").json() == body
    assert (body["version"], body["rows"]) == (2, 5)


@pytest.mark.parametrize("name", ["nothing", "no.where", "a.b.c", "%00", "..", "x" * 5_000, "%F0%9F%8D%B0.x"])
def test_unknown_dataset_returns_404(client: RestClient, name: str) -> None:
    assert client("GET", f"/datasets/{name}/schema", code=404).json()["code"] in (
        "DATASET_NOT_FOUND",
        "ROUTE_NOT_FOUND",
    )


REFERENCES = {  # function that writes a reference from the dataset id; whether the reference is valid
    "id": (str, True),
    "upper-case id": (lambda id: str(id).upper(), True),
    "name": (lambda _: "shop.orders", True),
    "name in another case": (lambda _: "SHOP.Orders", True),
    "braces": (lambda id: f"{{{id}}}", False),
    "urn": (lambda id: f"urn:uuid:{id}", False),
    "no dashes": (lambda id: id.hex, False),
    "other dashes": (lambda id: f"{id.hex[:12]}-{id.hex[12:]}", False),
}


@pytest.mark.parametrize(("write_reference", "is_valid"), REFERENCES.values(), ids=REFERENCES)
def test_dataset_reference_means_the_same_in_python_rest_and_inference(
    local_lake: Lake, app: FastAPI, write_reference: Callable[[UUID], str], is_valid: bool
) -> None:
    dataset = local_lake.create("shop.orders", {"id": [1]})
    client = in_process_client(app, token(tenant=local_lake.caller.tenant))
    reference = write_reference(dataset.id)
    path = f"/datasets/{quote(reference, safe='')}"
    if is_valid:
        assert local_lake.dataset(reference).id == dataset.id
        assert client("GET", path).json()["id"] == str(dataset.id)
        assert client("POST", "/gts/infer", json={"dataset": reference}).json()["fields"][0]["name"] == "id"
    else:
        with pytest.raises(Invalid, match="Invalid dataset name"):
            local_lake.dataset(reference)
        assert client("GET", path, code=404).json()["code"] == "DATASET_NOT_FOUND"
        response = client("POST", "/gts/infer", json={"dataset": reference}, code=400)
        assert response.json()["code"] == "BAD_DATASET_NAME"


def test_show_dataset_with_current_etag_returns_304(client: RestClient, orders_path: str) -> None:
    tag = client("GET", orders_path).headers["etag"]
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        response = client("GET", orders_path, code=304, headers={"if-none-match": header})
        assert (response.content, response.headers["etag"]) == (b"", tag)
    client("GET", orders_path, headers={"if-none-match": '"other"'})
    client("POST", f"{orders_path}/rows", content=b"id\n6\n", headers=CSV)
    assert client("GET", orders_path, headers={"if-none-match": tag}).headers["etag"] != tag


def test_recreated_dataset_has_new_etag(client: RestClient, orders_path: str) -> None:
    tags = []
    for _ in range(2):
        client("DELETE", orders_path, code=204)
        client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS})
        tags.append(client("GET", orders_path).headers["etag"])
    assert tags[0] != tags[1]


def test_schema_route_returns_schema_of_each_version(client: RestClient, orders_path: str) -> None:
    body = client("GET", f"{orders_path}/schema", params={"version": 1}).json()
    assert (body["name"], body["version"]) == ("shop.orders", 1)
    assert [field["name"] for field in body["schema"]] == ["id", "word"]
    assert client("GET", f"{orders_path}/schema", params={"version": 9}, code=404).json()["code"] == "VERSION_NOT_FOUND"


def pages(client: RestClient, path: str, page_size: int = 1_000) -> list[Any]:
    items = []
    while path:
        body = client("GET", path, headers={"prefer": f"odata.maxpagesize={page_size}"}).json()
        assert len(body["value"]) <= page_size
        items += body["value"]
        path = body.get("@odata.nextLink", "")
    return items


def test_history_is_paged_newest_first(client: RestClient, orders_path: str) -> None:
    for i in range(3):
        client("POST", f"{orders_path}/rows", content=b"id\n%d\n" % i, headers=CSV)
    for size in (1, 2, 5, 9):
        assert [v["version"] for v in pages(client, f"{orders_path}/history", size)] == [5, 4, 3, 2, 1]
        assert [v["version"] for v in pages(client, f"{orders_path}/history?before=4", size)] == [3, 2, 1]
    assert client("GET", f"{orders_path}/history").json()["value"][-1]["operation"] == "create"


@pytest.mark.parametrize("page_size", [1, 2, 3, 10])
@pytest.mark.parametrize("top", [0, 1, 3, 5, 9])
@pytest.mark.parametrize("path", ["rows", "history"])
def test_top_of_rows_and_history_limits_all_pages_together(
    client: RestClient, orders_path: str, path: str, top: int, page_size: int
) -> None:
    for i in range(3):
        client("POST", f"{orders_path}/rows", content=b"id\n%d\n" % (6 + i), headers=CSV)
    key, expected = ("id", [1, 2, 3, 4, 5, 6, 7, 8]) if path == "rows" else ("version", [5, 4, 3, 2, 1])
    assert [item[key] for item in pages(client, f"{orders_path}/{path}?$top={top}", page_size)] == expected[:top]
    first = client("GET", f"{orders_path}/{path}?$top={top}").json()
    assert ([item[key] for item in first["value"]], "@odata.nextLink" in first) == (expected[:top], False)


@pytest.mark.parametrize("path", ["rows", "history"])
def test_rows_and_history_apply_the_preferred_page_size_and_validate_the_position(
    client: RestClient, orders_path: str, path: str
) -> None:
    prefer = {"prefer": "odata.maxpagesize=1"}
    first = client("GET", f"{orders_path}/{path}", headers=prefer)
    assert first.headers["preference-applied"] == prefer["prefer"]
    assert len(first.json()["value"]) == 1
    link = first.json()["@odata.nextLink"]
    assert len(client("GET", link).json()["value"]) == 1  # the token keeps the page size
    client("GET", f"{link}&$top=1", code=400)
    for text in ("", "x", "A" * 9_000):
        problem = client("GET", f"{orders_path}/{path}?$skiptoken={text}", code=400).json()
        assert problem["code"] == "BAD_SKIPTOKEN"
    accept = {"accept": "application/vnd.apache.parquet"}
    if path == "rows":
        assert client("GET", link, headers=accept, code=400).json()["code"] == "PAGING_NOT_SUPPORTED"


def test_list_datasets_is_paged(client: RestClient) -> None:
    for i in range(5):
        client("POST", "/datasets", code=201, json={"name": f"shop.d{i}", "schema": FIELDS})
    names = [f"shop.d{i}" for i in range(5)]
    first = client("GET", "/datasets", headers={"prefer": "odata.maxpagesize=2"}).json()
    assert [dataset["name"] for dataset in first["value"]] == names[:2]
    assert [dataset["name"] for dataset in pages(client, first["@odata.nextLink"])] == names[2:]
    assert [dataset["name"] for dataset in pages(client, "/datasets?$top=2")] == names[:2]
    page = client("GET", "/datasets?$count=true&$top=1&$select=name,rows").json()
    assert (page["@odata.count"], page["value"]) == (5, [{"name": "shop.d0", "rows": 0}])
    assert client("GET", "/datasets?$top=0&$count=true").json()["value"] == []


@pytest.mark.parametrize("query", ["$orderBy=name", "$filter=cake eq 1", "name=x", "$top=-1", "$top=1&$top=2"])
def test_list_datasets_with_unknown_option_is_rejected(client: RestClient, query: str) -> None:
    client("GET", f"/datasets?{query}", code=400)


# --- read rows


def test_read_rows_pages_stay_at_one_version(client: RestClient, orders_path: str) -> None:
    first = client("GET", f"{orders_path}/rows", headers={"prefer": "odata.maxpagesize=2"}).json()
    assert [row["id"] for row in first["value"]] == [1, 2]
    client("POST", f"{orders_path}/rows", content=b"id\n6\n", headers=CSV)
    assert [row["id"] for row in pages(client, first["@odata.nextLink"])] == [3, 4, 5]
    assert "@odata.nextLink" not in client("GET", f"{orders_path}/rows?$top=6").json()


READS = [
    ({"version": "1"}, [1, 2, 3]),
    ({"where": "id >= 4"}, [4, 5]),
    ({"where": "word IS NULL"}, [4]),
    ({"$skip": "3"}, [4, 5]),
    ({"$skip": "99"}, []),
    ({"$top": "0"}, []),
    ({"$top": "2", "$skip": "1", "where": "id > 1"}, [3, 4]),
]


@pytest.mark.parametrize(("query", "ids"), READS)
def test_read_rows_with_where_returns_matching_rows(
    client: RestClient, orders_path: str, query: dict[str, str], ids: list[int]
) -> None:
    assert [row["id"] for row in client("GET", f"{orders_path}/rows", params=query).json()["value"]] == ids


def test_read_rows_with_columns_returns_those_columns(client: RestClient, orders_path: str) -> None:
    assert client("GET", f"{orders_path}/rows", params={"columns": "word, `id`", "$top": "1"}).json()["value"] == [
        {"word": "one", "id": 1}
    ]


BAD_PARAMETERS = ["version=x", "version=-1", "$top=1.5", "$skip=99999999999999999999", "where=cake = 1", "where=(", "columns=",
           "columns=cake", "columns=`id", "top=1", "version=1&version=2"]  # fmt: skip


@pytest.mark.parametrize("query", BAD_PARAMETERS)
def test_read_rows_with_bad_parameters_is_rejected(client: RestClient, orders_path: str, query: str) -> None:
    client("GET", f"{orders_path}/rows?{query}", code=400)


@pytest.mark.parametrize("media_type", [ARROW, PARQUET])
def test_read_rows_as_stream_returns_all_rows(client: RestClient, orders_path: str, media_type: str) -> None:
    response = client("GET", f"{orders_path}/rows", headers={"accept": media_type}, params={"where": "id > 1"})
    assert response.headers["content-type"] == media_type
    table = (
        pa.ipc.open_stream(response.content).read_all()
        if media_type == ARROW
        else pq.read_table(io.BytesIO(response.content))
    )
    assert table.column("id").to_pylist() == [2, 3, 4, 5]
    empty_content = client(
        "GET", f"{orders_path}/rows", headers={"accept": media_type}, params={"where": "id > 9"}
    ).content
    empty = (
        pa.ipc.open_stream(empty_content).read_all()
        if media_type == ARROW
        else pq.read_table(io.BytesIO(empty_content))
    )
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "word"])
    client("GET", f"{orders_path}/rows?$top=1", headers={"accept": media_type}, code=400)


@pytest.mark.parametrize("media_type", [ARROW, PARQUET])
def test_stream_rows_does_not_buffer_all_rows(media_type: str) -> None:
    read = list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            read.append(i)
            yield pa.record_batch({"x": pa.array(range(i * 1_000, i * 1_000 + 1_000), pa.int64())})

    stream = row_encoding.stream_rows(
        media_type, pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches())
    )
    assert len(read) == 1
    for chunk_no in range(1, 11):
        assert next(stream)
        assert len(read) <= chunk_no + 1


def test_stream_rows_error_in_first_batch_is_raised() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise Unavailable("file_missing", "a data file is missing")
        yield

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches())
    with pytest.raises(Unavailable):
        row_encoding.stream_rows(ARROW, reader)


ACCEPTED = [
    (None, "a/json"),
    ("*/*", "a/json"),
    ("a/*", "a/json"),
    ("b/arrow", "b/arrow"),
    ("a/json;q=0.1, b/arrow", "b/arrow"),
    ("a/json;q=0, */*", "b/arrow"),
    ("B/ARROW ; q=0.5, text/html", "b/arrow"),
    ("text/html", None),
    ("a/json;q=0", None),
    ("a/json;q=x", None),
    ("a/json;q=nan", None),
    (",", None),
]


@pytest.mark.parametrize(("accept", "media_type"), ACCEPTED)
def test_negotiate_returns_offer_with_highest_quality(accept: str | None, media_type: str | None) -> None:
    if media_type:
        assert negotiate(accept, ["a/json", "b/arrow"]) == media_type
    else:
        with pytest.raises(Invalid):
            negotiate(accept, ["a/json", "b/arrow"])


def test_negotiate_without_matching_offer_returns_406(client: RestClient, orders_path: str) -> None:
    assert client("GET", f"{orders_path}/rows", headers={"accept": "text/html"}, code=406).json()["offered"]


# --- values

DEEP = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.int8())])))])
VALUES: list[tuple[pa.Array, str]] = [
    (pa.array([2**63 - 1, -(2**63), None]), "[9223372036854775807,-9223372036854775808,null]"),
    (pa.array([Decimal("12345678901234567890.10"), Decimal("-0.01")]), "[12345678901234567890.10,-0.01]"),
    (pa.array([Decimal(0)], pa.decimal128(38, 30)), "[0.000000000000000000000000000000]"),
    (pa.array([0.1, float("nan"), float("inf"), -float("inf"), 1e300, None]), "[0.1,null,null,null,1e+300,null]"),
    (pa.array([True, False, None]), "[true,false,null]"),
    (pa.array(['a"b', "\n", "🍰", ""]), '["a\\"b","\\n","🍰",""]'),
    (pa.array([b"\x00\xff", None]), '["AP8=",null]'),
    (pa.array([date(2026, 1, 31), None]), '["2026-01-31",null]'),
    (pa.array([10_000_000], pa.int32()).cast(pa.date32()), '["29349-01-26"]'),
    (pa.array([datetime(2026, 1, 31, 10, 30)], pa.timestamp("us")), '["2026-01-31T10:30:00"]'),
    (pa.array([datetime(2026, 1, 31, 10, 30, 0, 5, UTC), None], pa.timestamp("us", "UTC")), '["2026-01-31T10:30:00.000005Z",null]'),
    (pa.array([[1, None], [], None, [3]]), "[[1,null],[],null,[3]]"),
    (pa.array([{"a": 1, "b": [{"c": None}]}, None], DEEP), '[{"a":1,"b":[{"c":null}]},null]'),
]  # fmt: skip


@pytest.mark.parametrize(("column", "text"), VALUES, ids=lambda value: str(getattr(value, "type", ""))[:30])
def test_rows_to_json_keeps_all_digits(column: pa.Array, text: str) -> None:
    for array in (column, pa.concat_arrays([column[:1], column])[1:]):  # the same, and with an offset
        encoded = row_encoding.rows_to_json([pa.record_batch({"x": array})])
        assert encoded == "[" + ",".join(f'{{"x":{value}}}' for value in _split(text)) + "]"


def _split(text: str) -> list[str]:
    """Return the elements of a JSON list as source text."""
    decoder, position, elements = json.JSONDecoder(), 1, []
    while text[position] != "]":
        _, end = decoder.raw_decode(text, position)
        elements.append(text[position:end])
        position = end + (text[end] == ",")
    return elements


def test_read_rows_page_keeps_all_digits(client: RestClient) -> None:
    table = pa.table({"n": [2**63 - 1], "d": [Decimal("0.10")], "t": ["\u2028</script>"]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    client("POST", "/datasets?name=a.b", code=201, content=sink.getvalue(), headers={"content-type": PARQUET})
    response = client("GET", "/datasets/a.b/rows")
    assert '"value": [{"n":9223372036854775807,"d":0.10,"t":"\u2028</script>"}]' in response.text
    assert json.loads(response.content)["version"] == 1


@given(
    batches=st.lists(st.integers(0, 7), max_size=5), skip=st.integers(0, 20), top=st.integers(0, 12), max_bytes=st.integers(1, 200)
)  # fmt: skip
def test_take_page_pages_cover_all_rows_once(batches: list[int], skip: int, top: int, max_bytes: int) -> None:
    ends = [sum(batches[: i + 1]) for i in range(len(batches))]
    parts = [
        pa.record_batch({"x": pa.array(range(end - n, end), pa.int64())}) for n, end in zip(batches, ends, strict=True)
    ]
    schema = pa.schema([("x", pa.int64())])
    page, has_more = row_encoding.take_page(pa.RecordBatchReader.from_batches(schema, parts), skip, top, max_bytes)
    values = [value for batch in page for value in batch.column(0).to_pylist()]
    expected = list(range(sum(batches)))[skip : skip + top]
    assert values == expected[: len(values)]
    assert has_more == (skip + len(values) < sum(batches))
    assert bool(values) == bool(expected)
    if max_bytes == 200 or len(values) * 8 + 8 <= max_bytes:
        assert values == expected or len(values) * 8 + 8 > max_bytes


def test_list_datasets_filters_by_members(client: RestClient) -> None:
    for name, count in (("shop.Orders", 3), ("shop.items", 1), ("hr.people", 1)):
        body, headers = b"id\n" + b"1\n" * count, {"content-type": "text/csv"}
        client("POST", f"/datasets?name={name}", content=body, headers=headers, code=201)

    def find_names(**params: str) -> list[str]:
        response = client("GET", "/datasets", params={f"${option}": text for option, text in params.items()})
        return [dataset["name"] for dataset in response.json()["value"]]

    assert find_names() == ["hr.people", "shop.items", "shop.Orders"]
    assert find_names(filter="rows gt 1") == ["shop.Orders"]
    assert find_names(filter="schema_name eq 'shop' and startswith(table_name, 'i')") == ["shop.items"]
    assert find_names(filter="tolower(name) eq 'shop.orders'") == ["shop.Orders"]
    assert find_names(search="ORDERS shop") == ["shop.Orders"]
    assert find_names(orderby="rows desc,name") == ["shop.Orders", "hr.people", "shop.items"]
    params = {"$count": "true", "$filter": "version eq 1"}
    first_page = client("GET", "/datasets", params=params, headers={"prefer": "odata.maxpagesize=1"}).json()
    assert (first_page["@odata.count"], len(first_page["value"])) == (3, 1)
    assert names_of(client("GET", first_page["@odata.nextLink"])) == ["shop.items"]
    selected = client("GET", "/datasets", params={"$select": "name,table_name,schema", "$top": "1"}).json()["value"]
    assert [set(dataset) for dataset in selected] == [{"name", "table_name", "schema"}]
    client("GET", "/datasets", params={"$filter": "colour eq 1"}, code=400)


def names_of(response: httpx.Response) -> list[str]:
    return [item["name"] for item in response.json()["value"]]


def test_append_with_reserved_idempotency_key_is_rejected(client: RestClient, orders_path: str) -> None:
    headers = {"content-type": "text/csv", "idempotency-key": "auto:x"}
    client("POST", f"{orders_path}/rows", content=b"id\n1\n", headers=headers, code=400)


def test_read_rows_with_duplicate_column_is_rejected(client: RestClient, orders_path: str) -> None:
    client("GET", f"{orders_path}/rows?columns=id,id", code=400)
