"""A file store in a bucket: S3 and compatible servers, Google Cloud Storage, Azure.

A new file is written to a draft on this machine and sent as a whole when it is complete: up to 64 MiB with one request.
Files are read from verified copies in a bounded local cache. Names are unique, so that a repeated PUT is harmless.
"""

import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.core.workspace_layout import SCRATCH_FOLDER, WORKSPACE_FILE
from penstock.errors import PenstockError, Unavailable
from penstock.storage.file_cache import FileCache
from penstock.storage.file_store import (
    FileReference,
    Reference,
    StoredFile,
    check_path,
    format_checksum,
    translate_errors,
)
from penstock.storage.local_store import LocalFileHandle, checksum_file
from penstock.storage.store_url import StoreSettings

_FETCH_THREADS = 16
_AHEAD_FILES, _AHEAD_BYTES = 16, 64 << 20  # of a stream, fetched before they are requested
_SINGLE_PUT_BYTES = 64 << 20  # larger files are sent in parts
_PART_BYTES, _PARTS_AT_ONCE = 16 << 20, 4
_BLOCK_BYTES = 4 << 20
_TAIL_BYTES = 64 << 10  # contains most footers of Parquet
_PARQUET_END_BYTES = 8  # length of the footer, and the magic number
_DELETED_AT_ONCE = 1_000  # limit of S3
_PROBE_PATH, _PROBE_CONTENT = f"{SCRATCH_FOLDER}/ready", b"penstock"
_PROBE_CONNECT_SECONDS, _PROBE_READ_SECONDS = 3, 5  # a readiness check waits for the response

_used_in_process: int | None = None  # id of the process in which the threads of obstore run


class ObjectStore:
    """A file store in a bucket, with a local cache. It is thread-safe; it cannot be pickled or used after a fork."""

    def __init__(self, settings: StoreSettings, cache: FileCache) -> None:
        self._settings, self.cache = settings, cache
        self._client = settings.build_client()
        self._probe_client = replace(
            settings, connect_seconds=_PROBE_CONNECT_SECONDS, read_seconds=_PROBE_READ_SECONDS, retries=0
        ).build_client()
        self._executor = ThreadPoolExecutor(_FETCH_THREADS, "penstock fetch")  # starts its threads lazily

    def __repr__(self) -> str:
        return f"<ObjectStore {self._settings.url}>"

    def __reduce__(self) -> Any:
        raise TypeError("an ObjectStore contains credentials and is never pickled")

    @property
    def is_remote(self) -> bool:
        return True

    def locate(self, path: str) -> str:
        return self.cache.locate(path)

    def uri(self, path: str) -> str:
        check_path(path)
        return self._settings.spark_uri(path)

    @contextmanager
    def open_local(self, files: Iterable[FileReference]) -> Iterator[None]:
        distinct = {file.path: file for file in files}
        if not distinct:
            yield
            return
        self._check_size(distinct.values())
        opened = self._pin_all(list(distinct.values()))
        try:
            yield
        finally:
            for path in opened:
                self.cache.unpin(path)

    def stream_local(self, files: Iterable[Reference]) -> Generator[Reference]:
        remaining, ahead = iter(files), deque[tuple[Reference, Future[None]]]()
        try:
            while True:
                self._fetch_ahead(remaining, ahead)
                if not ahead:
                    return
                file, pinned = ahead.popleft()
                self._await_first(file, pinned, ahead)
                try:
                    yield file
                finally:
                    self.cache.unpin(file.path)
        finally:
            self._abandon(ahead)

    def open_tail(self, file: FileReference) -> Any:
        if self.cache.pin(file, None):
            try:
                return pa.OSFile(self.locate(file.path))
            finally:
                self.cache.unpin(file.path)  # an open file stays readable
        tail = self._read_end(file, _TAIL_BYTES)
        footer_bytes = int.from_bytes(tail[-_PARQUET_END_BYTES:-4], "little") + _PARQUET_END_BYTES
        if len(tail) < footer_bytes <= file.bytes:
            tail = self._read_end(file, footer_bytes)
        return pa.BufferReader(tail)

    def create(self, path: str) -> "ObjectHandle":
        draft = Path(self.draft(path))
        with translate_errors(path):
            return ObjectHandle(self, path, draft)

    def draft(self, path: str) -> str:
        check_path(path)
        _check_process()
        return self.cache.draft_location(path.rpartition("/")[2])

    def adopt(self, draft: str, path: str) -> StoredFile:
        with translate_errors(path):
            size = os.path.getsize(draft)
        content = checksum_file(draft)
        if content is None:
            raise Unavailable("storage_failed.unreadable", path=path)
        self.upload(draft, path, size)
        return StoredFile(size, content)

    def upload(self, draft: str, path: str, size: int) -> None:
        """Send a complete draft to the bucket, then move it into the cache."""
        import obstore

        check_path(path)
        in_parts = size > _SINGLE_PUT_BYTES
        with _requests(path):
            obstore.put(
                self._client,
                path,
                Path(draft),
                use_multipart=in_parts,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        self.cache.admit(draft, path)

    def discard_draft(self, draft: str) -> None:
        with suppress(OSError):
            os.unlink(draft)

    def copy(self, path: str, other: str) -> None:
        import obstore

        check_path(path)
        check_path(other)
        with _requests(path):
            obstore.copy(self._client, path, other)

    def sync(self, folder: str) -> None:
        """Do nothing: an object is durable when its request has succeeded."""

    def remove(self, paths: Iterable[str]) -> None:
        import obstore

        removed = list(paths)
        for path in removed:
            check_path(path)
        failure: PenstockError | None = None
        for start in range(0, len(removed), _DELETED_AT_ONCE):
            part = removed[start : start + _DELETED_AT_ONCE]
            try:
                with _requests(part[0]):
                    obstore.delete(self._client, part)
            except PenstockError as error:
                if error.reason != "file_missing":  # only S3 ignores missing files
                    failure = failure or error
        self.cache.remove(removed)
        if failure:
            raise failure

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        import obstore

        check_path(folder)
        with _requests(folder):
            pages = obstore.list(self._client, folder, chunk_size=_DELETED_AT_ONCE)
        while True:
            with _requests(folder):
                page = next(pages, None)
            if page is None:
                return
            yield from ((entry["path"], entry["size"]) for entry in page)

    def folders(self, folder: str) -> Iterator[str]:
        import obstore

        check_path(folder)
        with _requests(folder):
            listing = obstore.list_with_delimiter(self._client, folder)
        yield from (str(path) for path in listing["common_prefixes"])

    def checksum(self, path: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
        digest = hashlib.sha256()
        try:
            for block in self._download(path):
                digest.update(block)
                on_read(len(block))
        except Unavailable as error:
            if error.reason == "file_missing":
                return None
            raise
        return format_checksum(digest)

    def probe(self) -> None:
        import obstore

        with _requests(_PROBE_PATH):
            obstore.put(self._probe_client, _PROBE_PATH, _PROBE_CONTENT, use_multipart=False)

    def check_access(self) -> None:
        path = f"{SCRATCH_FOLDER}/check-{uuid4().hex}"
        handle = self.create(path)
        handle.write(_PROBE_CONTENT)
        sealed = handle.seal()
        try:
            is_listed = path in dict(self.files(SCRATCH_FOLDER))
            if not is_listed or self.checksum(path) != sealed.checksum:
                raise Unavailable("storage_failed.unreadable", path=path)
        finally:
            self.remove([path])

    def make_scratch(self, path: str) -> str:
        location = self.draft(path)
        with translate_errors(path):
            os.mkdir(location)
        return location

    def remove_scratch(self, path: str) -> None:
        shutil.rmtree(self.draft(path), ignore_errors=True)

    def scratch_folders(self, _folder: str) -> Iterator[str]:
        """Yield nothing: the cache removes the scratch folders of dead processes."""
        return iter(())

    def read_marker(self) -> bytes | None:
        """Return the object that names the workspace of this bucket and prefix, or None."""
        try:
            return b"".join(self._download(WORKSPACE_FILE))
        except Unavailable as error:
            if error.reason == "file_missing":
                return None
            raise

    def create_marker(self, content: bytes) -> bytes:
        """Store the object that names the workspace, unless it exists. Return its content."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with suppress(AlreadyExistsError), _requests(WORKSPACE_FILE):  # also if the first response was lost
            obstore.put(self._client, WORKSPACE_FILE, content, mode="create", use_multipart=False)
        return self.read_marker() or content

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.cache.close()

    def _check_size(self, files: Iterable[FileReference]) -> None:
        total = sum(file.bytes for file in files)
        if total > self.cache.max_bytes:
            raise Unavailable("cache_full.files", {"size": total, "max_bytes": self.cache.max_bytes})

    def _pin_all(self, files: Sequence[FileReference]) -> list[str]:
        """Pin files and return their paths. The missing ones are fetched in parallel."""
        _check_process()
        pinned = [file.path for file in files if self.cache.pin(file, None)]
        missing = [file for file in files if file.path not in set(pinned)] if len(pinned) < len(files) else []
        if len(missing) == 1:
            requests = [_completed(self._pin, missing[0])]
        else:
            requests = [self._executor.submit(self._pin, file) for file in missing]
        wait(requests)
        pinned += [file.path for file, request in zip(missing, requests, strict=True) if not request.exception()]
        failed = next((request for request in requests if request.exception()), None)
        if failed:
            for path in pinned:
                self.cache.unpin(path)
            failed.result()
        return pinned

    def _pin(self, file: FileReference) -> None:
        self.cache.pin(file, self._download)

    def _fetch_ahead(self, files: Iterator[Reference], ahead: "deque[tuple[Reference, Future[None]]]") -> None:
        """Begin to fetch the next files: at least one, and more if they are few and small."""
        while not ahead or (len(ahead) < _AHEAD_FILES and sum(file.bytes for file, _ in ahead) < _AHEAD_BYTES):
            file = next(files, None)
            if file is None:
                return
            _check_process()
            ahead.append((file, self._executor.submit(self._pin, file)))

    def _await_first(
        self, file: Reference, pinned: Future[None], ahead: "deque[tuple[Reference, Future[None]]]"
    ) -> None:
        """Wait for a file of a stream. If the cache is full, give up the files that were fetched ahead."""
        try:
            pinned.result()
        except Unavailable as error:
            if error.reason != "cache_full":
                raise
            later, requests = [fetched for fetched, _ in ahead], [request for _, request in ahead]
            self._abandon(ahead)
            wait(requests)
            self._pin(file)
            ahead.extend((fetched, self._executor.submit(self._pin, fetched)) for fetched in later)

    def _abandon(self, ahead: "deque[tuple[Reference, Future[None]]]") -> None:
        """Unpin files that were fetched ahead, now or as soon as they are complete."""
        while ahead:
            file, pinned = ahead.popleft()
            if not pinned.cancel():
                pinned.add_done_callback(partial(self._unpin_fetched, file.path))

    def _unpin_fetched(self, path: str, pinned: Future[None]) -> None:
        if not pinned.exception():
            self.cache.unpin(path)

    def _download(self, path: str) -> Iterator[bytes]:
        import obstore

        check_path(path)
        with _requests(path):
            blocks = obstore.get(self._client, path).stream(min_chunk_size=_BLOCK_BYTES)
        while True:
            with _requests(path):
                block = next(blocks, None)
            if block is None:
                return
            yield memoryview(block)  # type: ignore[misc]  # as good as bytes for hashing and writing

    def _read_end(self, file: FileReference, length: int) -> bytes:
        import obstore

        with _requests(file.path):
            return bytes(obstore.get_range(self._client, file.path, start=max(file.bytes - length, 0), end=file.bytes))


class ObjectHandle(LocalFileHandle):
    """A new file in a bucket: a draft on this machine that `seal` sends."""

    def __init__(self, store: ObjectStore, path: str, draft: Path) -> None:
        super().__init__(draft, draft.open("xb", buffering=1 << 20), durable=False)
        self._store, self._target = store, path

    def seal(self) -> StoredFile:
        sealed = super().seal()
        self._store.upload(str(self._path), self._target, sealed.bytes)
        return sealed


def _completed(function: Callable[[FileReference], None], file: FileReference) -> Future[None]:
    """Call a function in this thread, and return the outcome as a future."""
    done = Future[None]()
    try:
        function(file)
        done.set_result(None)
    except Exception as error:
        done.set_exception(error)
    return done


def _check_process() -> None:
    """Raise Unavailable in a process that was forked from one that uses obstore: its threads are missing here.

    A request would wait for them for ever.
    """
    global _used_in_process
    if _used_in_process is None:
        _used_in_process = os.getpid()
    elif _used_in_process != os.getpid():
        raise Unavailable("store_forked")


_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_REASONS_BY_CODE = {
    "NoSuchBucket": "store_bucket_missing",
    "NoSuchKey": "file_missing.data_file",
    "InvalidAccessKeyId": "store_refused.wrong_key",
    "SignatureDoesNotMatch": "store_refused.wrong_key",
    "RequestTimeTooSkewed": "store_refused.clock_skew",
    "ExpiredToken": "store_refused.expired",
    "InvalidToken": "store_refused.expired",
    "TokenRefreshRequired": "store_refused.expired",
    "AccessDenied": "store_refused.denied",
    "SlowDown": "store_busy",
    "TooManyRequests": "store_busy",
    "ServiceUnavailable": "store_busy",
}
_REASONS_BY_STATUS = {
    "401": "store_refused.denied",
    "403": "store_refused.denied",
    "404": "file_missing.data_file",
    "429": "store_busy",
    "503": "store_busy",
}
_CREDENTIAL_SERVICES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


class _requests:  # noqa: N801  (used as a function)
    """Raise errors of obstore as Unavailable.

    Their messages contain the endpoint, the bucket and sometimes the key id, so that they are neither repeated nor chained.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        _check_process()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

        if error is None or isinstance(error, AlreadyExistsError):
            return
        is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if isinstance(error, BaseError | FileNotFoundError | OSError):
            reason = _reason(str(error), is_refused=is_refused)
            raise Unavailable(reason, path=self._path) from None


def _reason(message: str, *, is_refused: bool) -> str:
    """Return the reason for an error of obstore, from the code and the status in its message."""
    code, status = _CODE.search(message), _STATUS.search(message)
    if code and code[1] in _REASONS_BY_CODE:
        return _REASONS_BY_CODE[code[1]]
    if any(service in message for service in _CREDENTIAL_SERVICES):
        return "store_refused.no_credentials"
    if is_refused:
        return "store_refused.denied"
    return _REASONS_BY_STATUS.get(status[1] if status else "", "store_unavailable")
