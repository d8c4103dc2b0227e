"""URL and options of a store, as settings of obstore and of Spark."""

import pytest

from penstock.errors import Invalid, PenstockError
from penstock.storage.store_url import StoreSettings, StoreUrl


@pytest.mark.parametrize(
    ("text", "url", "uri"),
    [
        ("s3://bucket", "s3://bucket", "s3a://bucket/data/x"),
        ("s3://bucket/", "s3://bucket", "s3a://bucket/data/x"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b", "s3a://bucket/a/b/data/x"),
        ("gs://bucket/a", "gs://bucket/a", "gs://bucket/a/data/x"),
    ],
)
def test_parse_accepts_urls(text: str, url: str, uri: str) -> None:
    parsed = StoreUrl.parse(text)
    assert str(parsed) == url
    assert StoreUrl.parse(url) == parsed
    assert StoreSettings(parsed).spark_uri("data/x") == uri


@pytest.mark.parametrize(
    "text",
    [
        "", "bucket", "/folder", "s3://", "s3:///prefix", "http://bucket/x", "s3://bucket//x", "s3://bucket/../x",
        "s3://bucket/a?secret=1", "s3://bucket/a#x", "s3://key:secret@bucket/x", "s3://bucket/a b", "s3://bucket/%2e%2e",
    ],
)  # fmt: skip
def test_parse_refuses_other_texts_without_repeating_them(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        StoreUrl.parse(text)
    assert caught.value.reason == "bad_store_url"
    assert "secret" not in str(caught.value)


def test_parse_refuses_hdfs_with_advice() -> None:
    with pytest.raises(PenstockError, match="Mount") as caught:
        StoreUrl.parse("hdfs://namenode/x")
    assert caught.value.reason == "unsupported_store"


def test_build_client_refuses_unknown_option_by_name() -> None:
    with pytest.raises(Invalid, match="'acess_key'"):
        StoreSettings(StoreUrl.parse("s3://b"), {"acess_key": "secret"}).build_client()


def test_build_client_refuses_bad_value_without_repeating_it() -> None:
    with pytest.raises(Invalid) as caught:
        StoreSettings(StoreUrl.parse("s3://b"), {"virtual_hosted_style_request": "secret"}).build_client()
    assert caught.value.reason == "bad_store_options"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "az://container/x"])
def test_build_client_sends_no_request(url: str) -> None:
    options = {"az": {"account_name": "account"}}.get(url[:2], {})
    assert "x" in repr(StoreSettings(StoreUrl.parse(url), options).build_client())


def test_spark_settings_are_limited_to_the_bucket() -> None:
    options = {
        "aws_access_key_id": "key",
        "secret_access_key": "secret",
        "AWS_SESSION_TOKEN": "token",
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "allow_http": "true",
    }
    assert StoreSettings(StoreUrl.parse("s3://b"), options).spark_settings() == {
        "fs.s3a.bucket.b.access.key": "key",
        "fs.s3a.bucket.b.secret.key": "secret",
        "fs.s3a.bucket.b.session.token": "token",
        "fs.s3a.bucket.b.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "fs.s3a.bucket.b.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.bucket.b.endpoint.region": "eu-west-1",
        "fs.s3a.bucket.b.path.style.access": "true",
        "fs.s3a.bucket.b.connection.ssl.enabled": "false",
    }
    assert StoreSettings(StoreUrl.parse("s3://b")).spark_settings() == {}
