"""Profiles over REST: exact numbers; unknown datasets and datasets of other tenants return the same response."""

import json
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from penstock.core.caller import Role
from penstock.rest.requests.media_types import ARROW
from rest.rest_client import OTHER_TENANT, RestClient
from rest.test_datasets import CSV

TABLE = pa.table(
    {
        "id": pa.array([1, 2, 2**62 + 1], pa.int64()),
        "price": pa.array([Decimal("0.10"), None, Decimal("12345678901234567890.25")], pa.decimal128(38, 2)),
        "day": pa.array([0, 1, 2_932_897], pa.int32()).cast(pa.date32()),
        "at": pa.array([0, 1, 2], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "ok": [True, None, True],
        "ratio": [0.5, float("inf"), float("nan")],
        "odd, `name`": ["<b>", '"', None],
        "list": [[1], None, []],
    }
)


@pytest.fixture
def profile_path(client: RestClient) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    body, headers = sink.getvalue().to_pybytes(), {"content-type": ARROW}
    client("POST", "/datasets?name=shop.orders", code=201, content=body, headers=headers)
    return "/datasets/shop.orders/profile"


def profile(client: RestClient, path: str, column: str | None = None) -> dict[str, Any]:
    response = client("GET", path if column is None else f"{path}?column={quote(column)}")
    body: dict[str, Any] = json.loads(response.text, parse_float=Decimal)
    return body


def test_profile_values_are_encoded_like_rows(client: RestClient, profile_path: str) -> None:
    body = profile(client, profile_path)
    assert (body["name"], body["version"], body["rows"], "histogram" in body) == ("shop.orders", 1, 3, False)
    assert [(column["name"], column["nulls"], column["min"], column["max"]) for column in body["columns"]] == [
        ("id", 0, 1, 2**62 + 1),
        ("price", 1, Decimal("0.10"), Decimal("12345678901234567890.25")),
        ("day", 0, "1970-01-01", "10000-01-01"),
        ("at", 0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000002Z"),
        ("ok", 1, True, True),
        ("ratio", 0, Decimal("0.5"), None),
        ("odd, `name`", 1, '"', "<b>"),
        ("list", None, None, None),
    ]
    schema = client("GET", "/datasets/shop.orders/schema").json()["schema"]
    assert [{name: column[name] for name in ("name", "type", "nullable")} for column in body["columns"]] == schema


def test_profile_with_column_returns_histogram(client: RestClient, profile_path: str) -> None:
    price = profile(client, profile_path, "price")["histogram"]
    counts = {name: price[name] for name in ("column", "rows", "sampled", "nulls", "not_finite", "distinct", "top")}
    assert counts == {"column": "price", "rows": 3, "sampled": False, "nulls": 1, "not_finite": 0, "distinct": None,
                      "top": None}  # fmt: skip
    assert [bin["count"] for bin in price["bins"]] == [1, *[0] * (len(price["bins"]) - 2), 1]
    assert price["bins"][0] == {"from": 0, "to": 10**18, "count": 1}
    text = profile(client, profile_path, "odd, `name`")["histogram"]
    assert (text["distinct"], text["bins"]) == (2, None)
    assert text["top"] == [{"value": '"', "count": 1, "cut": False}, {"value": "<b>", "count": 1, "cut": False}]
    assert profile(client, profile_path, "ok")["histogram"]["top"] == [{"value": True, "count": 2, "cut": False}]
    ratio = profile(client, profile_path, "ratio")
    assert (ratio["histogram"]["not_finite"], len(ratio["histogram"]["bins"])) == (2, 1)


def test_profile_with_version_returns_that_version(client: RestClient) -> None:
    client("POST", "/datasets?name=a.b", code=201, content=b"id\n1\n2\n", headers=CSV)
    client("POST", "/datasets/a.b/rows", content=b"id\n9\n", headers=CSV)
    first, newest = (client("GET", f"/datasets/a.b/profile{parameters}") for parameters in ("?version=1", ""))
    assert (first.json()["rows"], first.json()["columns"][0]["max"]) == (2, 2)
    assert (newest.json()["rows"], newest.json()["columns"][0]["max"]) == (3, 9)
    assert newest.headers["etag"] == client("GET", "/datasets/a.b").headers["etag"] != first.headers["etag"]
    assert client("GET", "/datasets/a.b/profile?version=7", code=404).json()["code"] == "VERSION_NOT_FOUND"


BAD_PARAMETERS = [("column=nope", "COLUMN_NOT_FOUND"), ("column=list", "HISTOGRAM_NOT_SUPPORTED"), ("columns=id", "UNKNOWN_PARAMETER"),
       ("version=x", "BAD_PARAMETER"), ("column=id&column=ok", "DUPLICATE_PARAMETER")]  # fmt: skip


@pytest.mark.parametrize(("parameters", "code"), BAD_PARAMETERS)
def test_profile_with_bad_parameters_is_rejected(
    client: RestClient, profile_path: str, parameters: str, code: str
) -> None:
    assert client("GET", f"{profile_path}?{parameters}", code=400).json()["code"] == code


def test_profile_is_readable_by_viewers_of_the_tenant_only(client: RestClient, profile_path: str) -> None:
    client.as_caller(Role.VIEWER)("GET", f"{profile_path}?column=id")
    other_tenant = client.as_caller(tenant=OTHER_TENANT)
    existing_text = other_tenant("GET", profile_path, code=404).text
    assert existing_text == other_tenant("GET", "/datasets/shop.nothing/profile", code=404).text.replace(
        "nothing", "orders"
    )
    client.without_token()("GET", profile_path, code=401)
