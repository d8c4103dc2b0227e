"""Datasets over REST: what goes in comes out, exactly."""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edges.http.client import Client
from penstock.errors import Invalid, Unavailable
from penstock.rest.responses import row_encoding as rows
from penstock.rest.requests.media_types import ARROW, PARQUET, wanted

FIELDS = [{"name": "id", "type": "int64", "nullable": False}, {"name": "word", "type": "string", "nullable": True}]
CSV = {"content-type": "text/csv"}


@pytest.fixture
def orders(client: Client) -> str:
    """Two versions: three rows, then five."""
    client("POST", "/datasets?name=shop.orders", code=201, content=b"id,word\n1,one\n2,two\n3,three\n", headers=CSV)
    client("POST", "/datasets/shop.orders/rows", content=b"id,word\n4,\n5,five\n", headers=CSV)
    return "/datasets/shop.orders"


# --- making


def test_a_dataset_is_made_from_a_schema(client: Client) -> None:
    made = client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS, "row_ids": False})
    told = made.json()
    assert (told["name"], told["version"], told["rows"], told["row_ids"]) == ("shop.orders", 1, 0, False)
    assert told["schema"] == FIELDS
    assert client("GET", made.headers["location"]).json() == told
    assert client("GET", "/datasets/shop.orders").headers["etag"] == made.headers["etag"]


TYPES = [
    "int64", "bool", "double", "date", "timestamp", "timestamp[us, tz=UTC]", "decimal(12,2)", {"decimal": [38, 10]},
    "list<int64>", {"list": {"list": "string"}}, {"struct": [["a", "int8"], ["b", {"list": "binary"}]]},
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_schema_that_was_told_can_be_sent_back(client: Client, kind: Any) -> None:
    made = client("POST", "/datasets", code=201, json={"name": "a.b", "schema": [{"name": "x", "type": kind}]}).json()
    again = client("POST", "/datasets", code=201, json={"name": "a.c", "schema": made["schema"]}).json()
    assert again["schema"] == made["schema"]


BAD = [
    ({}, "no_name"),
    ({"name": 7, "schema": FIELDS}, "no_name"),
    ({"name": "orders", "schema": FIELDS}, "bad_dataset_name"),
    ({"name": "a.b"}, "no_schema"),
    ({"name": "a.b", "schema": []}, "no_columns"),
    ({"name": "a.b", "schema": {"id": "int64"}}, "no_schema"),
    ({"name": "a.b", "schema": ["id"]}, "no_schema"),
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


@pytest.mark.parametrize(("body", "reason"), BAD, ids=lambda value: str(value)[:60].encode("ascii", "replace").decode())
def test_a_bad_schema_is_refused(client: Client, body: Any, reason: str) -> None:
    told = client("POST", "/datasets", code=400, content=json.dumps(body), headers={"content-type": "application/json"})
    assert told.json()["code"] == reason.upper()
    assert client("GET", "/datasets").json()["value"] == []


def test_a_name_is_taken_once(client: Client, orders: str) -> None:
    told = client("POST", "/datasets", code=409, json={"name": "Shop.Orders", "schema": FIELDS})
    assert told.json()["code"] == "DATASET_EXISTS"


# --- filling

TABLE = pa.table({"id": pa.array([7, 8], pa.int64()), "word": ["seven", None]})


def _arrow(new: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def _saved(save: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    sink = io.BytesIO()
    save(TABLE, sink)
    return sink.getvalue()


SENT = {
    PARQUET: _saved(pq.write_table),
    "application/x-parquet": _saved(pq.write_table),
    "text/csv": _saved(pacsv.write_csv),
    "text/csv; charset=utf-8": _saved(pacsv.write_csv),
    ARROW: _arrow(pa.ipc.new_stream),
    "application/vnd.apache.arrow.file": _arrow(pa.ipc.new_file),
    "application/x-ndjson": b'{"id": 7, "word": "seven"}\n{"id": 8, "word": null}\n',
    "application/jsonl": b'{"id": 7, "word": "seven"}\n{"id": 8}\n',
}


@pytest.mark.parametrize("kind", SENT)
def test_rows_come_in_every_format(client: Client, orders: str, kind: str) -> None:
    receipt = client("POST", f"{orders}/rows", content=SENT[kind], headers={"content-type": kind}).json()
    (written,) = receipt["written"]
    assert (written["version"], written["inserted"], written["rows"]) == (3, 2, 7)
    assert client("GET", f"{orders}/rows", params={"where": "id > 6"}).json()["value"] == TABLE.to_pylist()
    made = client(
        "POST", "/datasets?name=a.b&read_only=true", code=201, content=SENT[kind], headers={"content-type": kind}
    )
    assert (made.json()["rows"], made.json()["read_only"]) == (2, True)
    refused = client("POST", "/datasets/a.b/rows", code=409, content=SENT[kind], headers={"content-type": kind})
    assert refused.json()["code"] == "READ_ONLY"


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}, {"content-type": "text/html"}, {**CSV, "content-encoding": "gzip"}])  # fmt: skip
def test_other_types_are_not_taken(client: Client, orders: str, headers: dict[str, str]) -> None:
    client("POST", f"{orders}/rows", code=415, content=b"id\n1\n", headers=headers)


BROKEN = [
    ("text/csv", b""),
    ("text/csv", b"id,word\n1\n"),
    ("text/csv", b"id,word\nx,y\n"),
    ("text/csv", b"id,cake\n1,y\n"),
    (PARQUET, b"PAR1"),
    (ARROW, b"\xff" * 100),
    ("application/x-ndjson", b"{"),
]


@pytest.mark.parametrize(("kind", "content"), BROKEN)
def test_a_broken_body_changes_nothing(client: Client, orders: str, kind: str, content: bytes) -> None:
    told = client("POST", f"{orders}/rows", code=400, content=content, headers={"content-type": kind})
    assert "/tmp" not in told.text
    assert client("GET", orders).json()["version"] == 2


def test_the_same_key_writes_once(client: Client, orders: str) -> None:
    def send(content: bytes, code: int = 200) -> Any:
        headers = {**CSV, "idempotency-key": "monday"}
        return client("POST", f"{orders}/rows", code=code, content=content, headers=headers).json()

    first, again = send(b"id,word\n9,nine\n"), send(b"id,word\n9,nine\n")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["written"] == again["written"]
    assert client("GET", orders).json()["rows"] == 6
    send(b"id,word\n10,ten\n", code=409)


def test_a_dataset_that_was_dropped_is_gone_and_its_name_is_free(client: Client, orders: str) -> None:
    client("DELETE", orders, code=204)
    for path in (orders, f"{orders}/rows", f"{orders}/history"):
        client("GET", path, code=404)
    client("DELETE", orders, code=404)
    client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS})


# --- looking


def test_a_dataset_is_found_by_id_and_by_name(client: Client, orders: str) -> None:
    told = client("GET", orders).json()
    assert client("GET", f"/datasets/{told['id']}").json() == told
    assert client("GET", "/datasets/SHOP.ORDERS").json() == told
    assert (told["version"], told["rows"]) == (2, 5)


@pytest.mark.parametrize("name", ["nothing", "no.where", "a.b.c", "%00", "..", "x" * 5_000, "%F0%9F%8D%B0.x"])
def test_what_is_not_there_is_not_found(client: Client, name: str) -> None:
    assert client("GET", f"/datasets/{name}/schema", code=404).json()["code"] in ("DATASET_NOT_FOUND", "NO_SUCH_ROUTE")


def test_what_a_client_has_is_not_sent_again(client: Client, orders: str) -> None:
    tag = client("GET", orders).headers["etag"]
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        told = client("GET", orders, code=304, headers={"if-none-match": header})
        assert (told.content, told.headers["etag"]) == (b"", tag)
    client("GET", orders, headers={"if-none-match": '"other"'})
    client("POST", f"{orders}/rows", content=b"id\n6\n", headers=CSV)
    assert client("GET", orders, headers={"if-none-match": tag}).headers["etag"] != tag


def test_a_new_dataset_of_an_old_name_has_another_tag(client: Client, orders: str) -> None:
    tags = []
    for _ in range(2):
        client("DELETE", orders, code=204)
        client("POST", "/datasets", code=201, json={"name": "shop.orders", "schema": FIELDS})
        tags.append(client("GET", orders).headers["etag"])
    assert tags[0] != tags[1]


def test_the_schema_of_every_version_is_told(client: Client, orders: str) -> None:
    told = client("GET", f"{orders}/schema", params={"version": 1}).json()
    assert (told["name"], told["version"]) == ("shop.orders", 1)
    assert [field["name"] for field in told["schema"]] == ["id", "word"]
    assert client("GET", f"{orders}/schema", params={"version": 9}, code=404).json()["code"] == "VERSION_NOT_FOUND"


def pages(client: Client, path: str) -> list[Any]:
    found = []
    while path:
        told = client("GET", path).json()
        found += told["value"]
        path = told.get("@odata.nextLink", "")
    return found


def test_the_history_is_paged_from_the_newest(client: Client, orders: str) -> None:
    for i in range(3):
        client("POST", f"{orders}/rows", content=b"id\n%d\n" % i, headers=CSV)
    for top in (1, 2, 5, 9):
        assert [v["version"] for v in pages(client, f"{orders}/history?$top={top}")] == [5, 4, 3, 2, 1]
    assert client("GET", f"{orders}/history").json()["value"][-1]["operation"] == "create"


def test_datasets_are_listed_in_pages(client: Client) -> None:
    for i in range(5):
        client("POST", "/datasets", code=201, json={"name": f"shop.d{i}", "schema": FIELDS})
    assert [each["name"] for each in pages(client, "/datasets?$top=2")] == [f"shop.d{i}" for i in range(5)]
    told = client("GET", "/datasets?$count=true&$top=1&$select=name,rows").json()
    assert (told["@odata.count"], told["value"]) == (5, [{"name": "shop.d0", "rows": 0}])
    assert client("GET", "/datasets?$top=0&$count=true").json()["value"] == []


@pytest.mark.parametrize("query", ["$orderBy=name", "$filter=cake eq 1", "name=x", "$top=-1", "$top=1&$top=2"])
def test_an_option_that_is_not_known_is_refused(client: Client, query: str) -> None:
    client("GET", f"/datasets?{query}", code=400)


# --- reading


def test_rows_come_in_pages_of_one_version(client: Client, orders: str) -> None:
    first = client("GET", f"{orders}/rows?$top=2").json()
    assert [row["id"] for row in first["value"]] == [1, 2]
    client("POST", f"{orders}/rows", content=b"id\n6\n", headers=CSV)
    assert [row["id"] for row in pages(client, first["@odata.nextLink"])] == [3, 4, 5]
    assert "@odata.nextLink" not in client("GET", f"{orders}/rows?$top=6").json()


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
def test_the_rows_that_are_asked_for_come(client: Client, orders: str, query: dict[str, str], ids: list[int]) -> None:
    assert [row["id"] for row in client("GET", f"{orders}/rows", params=query).json()["value"]] == ids


def test_only_the_columns_that_are_asked_for_come(client: Client, orders: str) -> None:
    assert client("GET", f"{orders}/rows", params={"columns": "word, `id`", "$top": "1"}).json()["value"] == [
        {"word": "one", "id": 1}
    ]


REFUSED = ["version=x", "version=-1", "$top=1.5", "$skip=99999999999999999999", "where=cake = 1", "where=(", "columns=",
           "columns=cake", "columns=`id", "top=1", "version=1&version=2"]  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_a_bad_question_is_refused(client: Client, orders: str, query: str) -> None:
    client("GET", f"{orders}/rows?{query}", code=400)


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_all_rows_come_as_a_stream(client: Client, orders: str, kind: str) -> None:
    told = client("GET", f"{orders}/rows", headers={"accept": kind}, params={"where": "id > 1"})
    assert told.headers["content-type"] == kind
    table = pa.ipc.open_stream(told.content).read_all() if kind == ARROW else pq.read_table(io.BytesIO(told.content))
    assert table.column("id").to_pylist() == [2, 3, 4, 5]
    none = client("GET", f"{orders}/rows", headers={"accept": kind}, params={"where": "id > 9"}).content
    empty = pa.ipc.open_stream(none).read_all() if kind == ARROW else pq.read_table(io.BytesIO(none))
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "word"])
    client("GET", f"{orders}/rows?$top=1", headers={"accept": kind}, code=400)


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_a_stream_is_never_held_as_a_whole(kind: str) -> None:
    read = list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            read.append(i)
            yield pa.record_batch({"x": pa.array(range(i * 1_000, i * 1_000 + 1_000), pa.int64())})

    stream = rows.stream(kind, pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches()))
    assert len(read) == 1
    for taken in range(1, 11):
        assert next(stream)
        assert len(read) <= taken + 1


def test_what_fails_at_the_start_of_a_stream_is_an_error_and_no_stream() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise Unavailable("file_missing", "a data file is gone")
        yield

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches())
    with pytest.raises(Unavailable):
        rows.stream(ARROW, reader)


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


@pytest.mark.parametrize(("accept", "kind"), ACCEPTED)
def test_the_most_wanted_offer_is_taken(accept: str | None, kind: str | None) -> None:
    if kind:
        assert wanted(accept, ["a/json", "b/arrow"]) == kind
    else:
        with pytest.raises(Invalid):
            wanted(accept, ["a/json", "b/arrow"])


def test_what_cannot_be_given_is_not_acceptable(client: Client, orders: str) -> None:
    assert client("GET", f"{orders}/rows", headers={"accept": "text/html"}, code=406).json()["offered"]


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
def test_values_keep_all_their_digits(column: pa.Array, text: str) -> None:
    for array in (column, pa.concat_arrays([column[:1], column])[1:]):  # the same, and with an offset
        told = rows.as_json([pa.record_batch({"x": array})])
        assert told == "[" + ",".join(f'{{"x":{each}}}' for each in _split(text)) + "]"


def _split(text: str) -> list[str]:
    """The elements of a JSON list, each as it is written."""
    decoder, at, found = json.JSONDecoder(), 1, []
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end])
        at = end + (text[end] == ",")
    return found


def test_a_page_is_exact_on_the_wire(client: Client) -> None:
    table = pa.table({"n": [2**63 - 1], "d": [Decimal("0.10")], "t": ["\u2028</script>"]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    client("POST", "/datasets?name=a.b", code=201, content=sink.getvalue(), headers={"content-type": PARQUET})
    told = client("GET", "/datasets/a.b/rows")
    assert '"value": [{"n":9223372036854775807,"d":0.10,"t":"\u2028</script>"}]' in told.text
    assert json.loads(told.content)["version"] == 1


@given(
    batches=st.lists(st.integers(0, 7), max_size=5), skip=st.integers(0, 20), top=st.integers(0, 12), most=st.integers(1, 200)
)  # fmt: skip
def test_pages_put_together_are_all_rows(batches: list[int], skip: int, top: int, most: int) -> None:
    ends = [sum(batches[: i + 1]) for i in range(len(batches))]
    parts = [
        pa.record_batch({"x": pa.array(range(end - n, end), pa.int64())}) for n, end in zip(batches, ends, strict=True)
    ]
    schema = pa.schema([("x", pa.int64())])
    taken, more = rows.page(pa.RecordBatchReader.from_batches(schema, parts), skip, top, most)
    got = [value for batch in taken for value in batch.column(0).to_pylist()]
    wanted_ = list(range(sum(batches)))[skip : skip + top]
    assert got == wanted_[: len(got)]
    assert more == (skip + len(got) < sum(batches))
    assert bool(got) == bool(wanted_)
    if most == 200 or len(got) * 8 + 8 <= most:
        assert got == wanted_ or len(got) * 8 + 8 > most


def test_datasets_are_found_by_what_is_known_of_them(client: Client) -> None:
    for name, count in (("shop.Orders", 3), ("shop.items", 1), ("hr.people", 1)):
        body, kind = b"id\n" + b"1\n" * count, {"content-type": "text/csv"}
        client("POST", f"/datasets?name={name}", content=body, headers=kind, code=201)

    def found(**asked: str) -> list[str]:
        answer = client("GET", "/datasets", params={f"${option}": text for option, text in asked.items()})
        return [each["name"] for each in answer.json()["value"]]

    assert found() == ["hr.people", "shop.items", "shop.Orders"]
    assert found(filter="rows gt 1") == ["shop.Orders"]
    assert found(filter="schema_name eq 'shop' and startswith(table_name, 'i')") == ["shop.items"]
    assert found(filter="tolower(name) eq 'shop.orders'") == ["shop.Orders"]
    assert found(search="ORDERS shop") == ["shop.Orders"]
    assert found(orderby="rows desc,name") == ["shop.Orders", "hr.people", "shop.items"]
    counted = client("GET", "/datasets", params={"$count": "true", "$top": "1", "$filter": "version eq 1"}).json()
    assert (counted["@odata.count"], len(counted["value"])) == (3, 1)
    assert names_of(client("GET", counted["@odata.nextLink"])) == ["shop.items"]
    picked = client("GET", "/datasets", params={"$select": "name,table_name,schema", "$top": "1"}).json()["value"]
    assert [set(each) for each in picked] == [{"name", "table_name", "schema"}]
    client("GET", "/datasets", params={"$filter": "colour eq 1"}, code=400)


def names_of(answer: httpx.Response) -> list[str]:
    return [each["name"] for each in answer.json()["value"]]


def test_a_key_that_looks_like_our_own_is_refused(client: Client, orders: str) -> None:
    kind = {"content-type": "text/csv", "idempotency-key": "auto:x"}
    client("POST", f"{orders}/rows", content=b"id\n1\n", headers=kind, code=400)


def test_a_column_is_asked_for_once(client: Client, orders: str) -> None:
    client("GET", f"{orders}/rows?columns=id,id", code=400)
