"""The behaviour of a file store, whether its files are in a folder or in a bucket."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import Invalid, Unavailable
from penstock.storage.file_store import FileStore
from penstock.storage.local_store import LocalStore
from penstock.storage.tenant_store import TenantStore
from storage.object_stores import TENANT, object_store, put, reference

FILE = f"{TENANT}/dataset/a.parquet"
OTHER = f"{TENANT}/dataset/b.parquet"


@pytest.fixture(params=["folder", "bucket", "tenant view"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileStore]:
    if request.param != "bucket":
        local = LocalStore(tmp_path)
        yield local if request.param == "folder" else TenantStore(local, UUID(TENANT.removeprefix("data/")))
        return
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("bucket")
    in_bucket = object_store(server, bucket, tmp_path / "cache")
    yield in_bucket
    in_bucket.close()


def test_create_stores_content_with_size_and_checksum(store: FileStore) -> None:
    content = b"12345" * 1_000
    file = put(store, FILE, content)
    assert (file.bytes, file.checksum) == (5_000, f"sha256:{hashlib.sha256(content).hexdigest()}")
    with store.open_local([file]):
        assert Path(store.locate(FILE)).read_bytes() == content
    assert store.checksum(FILE) == file.checksum


def test_create_discarded_stores_nothing(store: FileStore) -> None:
    handle = store.create(FILE)
    handle.write(b"12345")
    handle.discard()
    handle.discard()
    assert handle.closed
    assert list(store.files(TENANT)) == []


def test_draft_keeps_the_file_name_and_adopt_stores_it(store: FileStore) -> None:
    draft = store.draft(FILE)
    assert os.path.basename(draft) == "a.parquet"
    Path(draft).write_bytes(b"engine")
    file = reference(FILE, store.adopt(draft, FILE))
    with store.open_local([file]):
        assert Path(store.locate(FILE)).read_bytes() == b"engine"
    assert list(store.files(TENANT)) == [(FILE, 6)]


def test_adopt_of_a_file_in_scratch_moves_it(store: FileStore) -> None:
    scratch = store.make_scratch(f"scratch/{TENANT.removeprefix('data/')}/work")
    output = Path(scratch, "part-0")
    output.write_bytes(b"engine")
    file = reference(FILE, store.adopt(str(output), FILE))
    assert not output.exists()
    store.remove_scratch(f"scratch/{TENANT.removeprefix('data/')}/work")
    assert not Path(scratch).exists()
    with store.open_local([file]):
        assert Path(store.locate(FILE)).read_bytes() == b"engine"


def test_discard_draft_ignores_missing_file(store: FileStore) -> None:
    draft = store.draft(FILE)
    store.discard_draft(draft)
    Path(draft).write_bytes(b"engine")
    store.discard_draft(draft)
    assert not Path(draft).exists()


def test_copy_gives_file_a_second_path_that_outlives_the_first(store: FileStore) -> None:
    file = put(store, FILE, b"12345")
    store.copy(FILE, OTHER)
    store.remove([FILE])
    copied = reference(OTHER, file)  # type: ignore[arg-type]
    with store.open_local([copied]):
        assert Path(store.locate(OTHER)).read_bytes() == b"12345"
    assert list(store.files(TENANT)) == [(OTHER, 5)]


def test_copy_of_missing_file_raises_unavailable(store: FileStore) -> None:
    with pytest.raises(Unavailable):
        store.copy(FILE, OTHER)


def test_remove_ignores_missing_files(store: FileStore) -> None:
    put(store, FILE, b"12345")
    store.remove([OTHER, FILE, FILE])
    assert list(store.files(TENANT)) == []
    assert store.checksum(FILE) is None


def test_files_and_folders_list_below_a_folder(store: FileStore) -> None:
    paths = {f"{TENANT}/{dataset}/{name}.parquet" for dataset in ("d1", "d2") for name in "ab"}
    for path in paths:
        put(store, path, b"1")
    assert set(store.files(TENANT)) == {(path, 1) for path in paths}
    assert {path for path, _ in store.files(f"{TENANT}/d1")} == {path for path in paths if "/d1/" in path}
    assert set(store.folders(TENANT)) == {f"{TENANT}/d1", f"{TENANT}/d2"}
    assert list(store.files(f"{TENANT}/d")) == []


def test_stream_local_yields_files_in_order(store: FileStore) -> None:
    files = [put(store, f"{TENANT}/d/{number:02}.parquet", b"%02d" % number) for number in range(40)]
    contents = [Path(store.locate(file.path)).read_bytes() for file in store.stream_local(files)]
    assert contents == [b"%02d" % number for number in range(40)]


def test_open_tail_reads_footer_of_parquet(store: FileStore) -> None:
    draft = store.draft(FILE)
    pq.write_table(pa.table({f"column{number}": [number] for number in range(500)}), draft)
    file = reference(FILE, store.adopt(draft, FILE))
    with store.open_tail(file) as source, pq.ParquetFile(source) as parquet:
        assert parquet.metadata.num_columns == 500


def test_paths_outside_of_the_store_are_invalid(store: FileStore) -> None:
    for path in (f"{TENANT}/../x", f"{TENANT}//x", f"{TENANT}/a\0"):
        with pytest.raises(Invalid, match="path"):
            store.locate(path)


def test_probe_succeeds(store: FileStore) -> None:
    store.probe()


def test_tenant_store_refuses_paths_of_other_tenants(tmp_path: Path) -> None:
    store = TenantStore(LocalStore(tmp_path), UUID(int=1))
    own, other = f"data/{UUID(int=1)}/d/a.parquet", f"data/{UUID(int=2)}/d/a.parquet"
    file = put(LocalStore(tmp_path), other, b"secret")
    calls = [
        lambda: store.locate(other),
        lambda: store.uri(other),
        lambda: store.open_tail(file),
        lambda: list(store.stream_local([file])),
        lambda: store.create(other),
        lambda: store.draft(other),
        lambda: store.adopt("/tmp/x", other),
        lambda: store.copy(other, own),
        lambda: store.copy(own, other),
        lambda: store.sync(other),
        lambda: store.remove([own, other]),
        lambda: store.files(f"data/{UUID(int=2)}"),
        lambda: store.folders("data"),
        lambda: store.checksum(other),
        lambda: store.make_scratch(f"scratch/{UUID(int=2)}/x"),
        lambda: store.remove_scratch(f"scratch/{UUID(int=2)}/x"),
        lambda: store.scratch_folders(f"scratch/{UUID(int=2)}"),
        lambda: store.locate("penstock.json"),
        lambda: store.locate("catalog.db"),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="not a path of the tenant"):
            call()
    assert Path(tmp_path, other).exists()
