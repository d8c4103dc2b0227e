"""Build object stores on the S3 server of the tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.storage.file_cache import FileCache
from penstock.storage.file_store import FileStore, StoredFile
from penstock.storage.object_store import ObjectStore
from penstock.storage.store_url import StoreSettings, StoreUrl
from support.s3_server import S3Server

TENANT = "data/7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d"


@dataclass(frozen=True)
class Reference:
    path: str
    bytes: int
    checksum: str


def settings(server: S3Server, bucket: str, prefix: str = "lake", **changes: Any) -> StoreSettings:
    options = {
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "endpoint": server.endpoint,
        "region": "us-east-1",
        **changes.pop("options", {}),
    }
    return StoreSettings(StoreUrl("s3", bucket, prefix), options, **{"retries": 1, "retry_seconds": 2, **changes})


def object_store(
    server: S3Server, bucket: str, cache: Path, *, cache_bytes: int = 1 << 20, **changes: Any
) -> ObjectStore:
    return ObjectStore(settings(server, bucket, **changes), FileCache(cache, cache_bytes))


def put(store: FileStore, path: str, content: bytes) -> Reference:
    handle = store.create(path)
    handle.write(content)
    return reference(path, handle.seal())


def reference(path: str, stored: StoredFile) -> Reference:
    return Reference(path, stored.bytes, stored.checksum)
