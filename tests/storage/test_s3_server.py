"""The S3 server of the tests: buckets, objects, signatures."""

import pytest

from support.s3_client import S3Client, S3Error
from support.s3_server import S3Server


def test_objects_lists_every_object_of_a_prefix(s3_server: S3Server, bucket: str) -> None:
    for key in ("a/1", "a/ü & <x>", "b/1"):
        s3_server.client.put(bucket, key, key.encode())
    assert s3_server.objects(bucket, "a/") == {"a/1": 3, "a/ü & <x>": 10}
    assert len(s3_server.objects(bucket)) == 3
    assert s3_server.client.get(bucket, "a/ü & <x>") == "a/ü & <x>".encode()


def test_objects_follows_pages(s3_server: S3Server, bucket: str) -> None:
    keys = {f"{n:04}" for n in range(1001)}
    for key in keys:
        s3_server.client.put(bucket, key, b"")
    assert set(s3_server.objects(bucket)) == keys


@pytest.mark.parametrize(("access_key", "secret_key"), [("penstock", "wrong"), ("unknown", "penstock-secret")])
def test_request_with_wrong_credentials_is_refused(
    s3_server: S3Server, bucket: str, access_key: str, secret_key: str
) -> None:
    with pytest.raises(S3Error) as error:
        S3Client(s3_server.endpoint, access_key, secret_key).objects(bucket)
    assert error.value.status == 403


def test_uploads_lists_incomplete_uploads(s3_server: S3Server, bucket: str) -> None:
    s3_server.client.request("POST", f"/{bucket}/large", {"uploads": ""})
    assert s3_server.client.uploads(bucket) == ["large"]
    assert s3_server.objects(bucket) == {}
