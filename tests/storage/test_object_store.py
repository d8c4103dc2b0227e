"""A store in a bucket: streams, limits of the cache, errors without credentials, forks and pickles."""

import copy
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Unavailable
from penstock.storage import object_store as object_store_module
from penstock.storage.object_store import ObjectStore
from storage.object_stores import TENANT, Reference, object_store, put, settings
from support.s3_server import S3Server

FILE = f"{TENANT}/d/a.parquet"


@pytest.fixture
def store(s3_server: S3Server, bucket: str, tmp_path: Path) -> Iterator[ObjectStore]:
    store = object_store(s3_server, bucket, tmp_path / "cache")
    yield store
    store.close()


@pytest.fixture
def other(s3_server: S3Server, bucket: str, tmp_path: Path) -> Iterator[ObjectStore]:
    """The store as another machine sees it, with an empty cache of 10 files of 1,000 bytes."""
    store = object_store(s3_server, bucket, tmp_path / "other", cache_bytes=10_000)
    yield store
    store.close()


def files(store: ObjectStore, count: int, size: int = 1_000) -> list[Reference]:
    return [
        put(store, f"{TENANT}/d/{number:03}.parquet", b"%03d" % number + b"." * (size - 3)) for number in range(count)
    ]


def test_open_local_fetches_files_of_another_machine(store: ObjectStore, other: ObjectStore) -> None:
    written = files(store, 5)
    with other.open_local(written):
        assert [Path(other.locate(file.path)).stat().st_size for file in written] == [1_000] * 5
    assert (other.cache.misses, store.cache.misses) == (5, 0)
    with other.open_local(written):
        pass
    assert other.cache.misses == 5


def test_open_local_of_more_than_the_cache_holds_names_setting(store: ObjectStore, other: ObjectStore) -> None:
    with pytest.raises(Unavailable, match="PENSTOCK_CACHE_BYTES") as caught, other.open_local(files(store, 11)):
        pass
    assert caught.value.reason == "cache_full"
    assert other.cache.misses == 0


def test_open_local_failure_unpins_all_files(store: ObjectStore, other: ObjectStore) -> None:
    written = files(store, 8)
    missing = Reference(f"{TENANT}/d/missing.parquet", 5, "sha256:0")
    with pytest.raises(Unavailable) as caught, other.open_local([*written, missing]):
        pass
    assert caught.value.reason == "file_missing"
    more = [put(store, f"{TENANT}/e/{number}.parquet", b"." * 1_000) for number in range(10)]
    with other.open_local(more):  # needs the whole cache
        pass


def test_stream_local_of_more_than_the_cache_holds_yields_all_files(store: ObjectStore, other: ObjectStore) -> None:
    written = files(store, 40)
    seen = [Path(other.locate(file.path)).read_bytes()[:3] for file in other.stream_local(written)]
    assert seen == [b"%03d" % number for number in range(40)]


def test_stream_local_closed_early_unpins_files(store: ObjectStore, other: ObjectStore) -> None:
    stream = other.stream_local(files(store, 40))
    next(stream)
    stream.close()
    other._executor.shutdown(wait=True)
    for number in range(10):
        other.cache.pin(put(store, f"{TENANT}/e/{number}.parquet", b"." * 1_000), other._download)


def test_large_file_is_sent_in_parts(store: ObjectStore, other: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store_module, "_SINGLE_PUT_BYTES", 1_000)
    monkeypatch.setattr(object_store_module, "_PART_BYTES", 5 << 20)
    file = put(store, FILE, os.urandom(12 << 20))
    assert not Path(store.locate(FILE)).exists()  # larger than the cache
    assert other.checksum(FILE) == file.checksum


def test_checksum_reads_the_object_not_the_cache(store: ObjectStore) -> None:
    file = put(store, FILE, b"12345")
    Path(store.locate(FILE)).write_bytes(b"other")
    assert store.checksum(FILE) == file.checksum


def test_remove_of_many_files_removes_copies_too(store: ObjectStore) -> None:
    written = files(store, 3)
    store.remove([*(file.path for file in written), *(f"{TENANT}/d/{number}" for number in range(2_000))])
    assert list(store.files(TENANT)) == []
    assert not any(Path(store.locate(file.path)).exists() for file in written)


def test_create_marker_returns_the_first_one(store: ObjectStore, other: ObjectStore) -> None:
    assert store.read_marker() is None
    assert store.create_marker(b"first") == b"first"
    assert other.create_marker(b"second") == b"first"


# Errors


def operations(store: ObjectStore) -> dict[str, PenstockError | None]:
    """Return the error of each operation."""
    calls = {
        "put": lambda: put(store, FILE, b"1"),
        "get": lambda: store.open_local([Reference(FILE, 1, "sha256:0")]).__enter__(),
        "list": lambda: list(store.files(TENANT)),
        "folders": lambda: list(store.folders(TENANT)),
        "copy": lambda: store.copy(FILE, FILE + "x"),
        "probe": store.probe,
        "marker": lambda: store.create_marker(b""),
        "checksum": lambda: store.checksum(FILE),
    }
    errors: dict[str, PenstockError | None] = {}
    for name, call in calls.items():
        try:
            call()
            errors[name] = None
        except PenstockError as error:
            errors[name] = error
    return errors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"options": {"secret_access_key": "wrong-secret"}}, "store_refused"),
        ({"options": {"access_key_id": "wrong-key"}}, "store_refused"),
        ({"options": {"endpoint": "http://127.0.0.1:9"}}, "store_unavailable"),
        ({"bucket": "no-such-bucket"}, "store_bucket_missing"),
    ],
    ids=["secret", "key", "endpoint", "bucket"],
)
def test_errors_name_the_cause_and_no_credentials(
    s3_server: S3Server, bucket: str, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    store = object_store(s3_server, **{"bucket": bucket, "cache": tmp_path, **changes})  # type: ignore[arg-type]
    errors = operations(store)
    assert {name: error and error.reason for name, error in errors.items()} == dict.fromkeys(errors, reason)
    private = [
        "wrong-secret",
        "wrong-key",
        s3_server.secret_key,
        s3_server.endpoint,
        "127.0.0.1",
        bucket,
        "no-such-bucket",
    ]
    for error in errors.values():
        assert error is not None
        assert error.__suppress_context__
        assert not [text for text in private if text in f"{error} {error.as_dict()}"]
    store.close()


def test_repr_shows_no_credentials(s3_server: S3Server, store: ObjectStore, bucket: str) -> None:
    text = f"{store!r} {settings(s3_server, bucket)!r}"
    assert f"s3://{bucket}/lake" in text
    assert s3_server.secret_key not in text
    assert s3_server.endpoint not in text


def test_store_is_never_pickled_or_copied(store: ObjectStore) -> None:
    for value in (store, store._settings):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(value)
        with pytest.raises(TypeError, match="never pickled"):
            copy.deepcopy(value)


# Forks


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_use_after_fork_raises_instead_of_hanging(store: ObjectStore) -> None:
    file = put(store, FILE, b"12345")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            errors = operations(store)
            store.open_local([file])
            os.write(
                writer, ",".join(sorted({error.reason if error else "none" for error in errors.values()})).encode()
            )
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        assert result.read() == "store_forked"
    os.waitpid(child, 0)
    assert store.checksum(FILE) == file.checksum  # the parent continues
