"""A file store in a local folder."""

import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import pyarrow as pa

from penstock.core.workspace_layout import SCRATCH_FOLDER
from penstock.errors import PenstockError, Unavailable
from penstock.storage.file_store import (
    FileReference,
    Reference,
    StoredFile,
    check_path,
    format_checksum,
    translate_errors,
)

_BLOCK_BYTES = 1 << 20
_PROBE_CONTENT = b"penstock"
_NO_PINS: AbstractContextManager[None] = nullcontext()  # the files of a local store are always on this machine


class LocalStore:
    """A file store in a local folder."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root.resolve()
        self.durable = durable
        self._created_folders: set[str] = set()  # folders that exist and are durable

    @property
    def is_remote(self) -> bool:
        return False

    def locate(self, path: str) -> str:
        check_path(path)
        return f"{self.root}/{path}"

    def uri(self, path: str) -> str:
        return self.locate(path)

    def open_local(self, _files: Iterable[FileReference]) -> AbstractContextManager[None]:
        return _NO_PINS

    def stream_local(self, files: Iterable[Reference]) -> Generator[Reference]:
        yield from files

    def open_tail(self, file: FileReference) -> Any:
        return pa.OSFile(self.locate(file.path))

    def create(self, path: str) -> "LocalFileHandle":
        location = Path(self.locate(path))
        with translate_errors(path):
            self._make_folder(location.parent)
            return LocalFileHandle(location, open(location, "xb", buffering=1 << 20), durable=self.durable)

    def draft(self, path: str) -> str:
        return self._locate_new(path)

    def adopt(self, draft: str, path: str) -> StoredFile:
        target = self._locate_new(path)
        with translate_errors(path):
            if draft != target:
                os.replace(draft, target)
            if self.durable:
                handle = os.open(target, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            size = os.path.getsize(target)
        content = self.checksum(path)
        if content is None:
            raise Unavailable("storage_failed.unreadable", path=path)
        return StoredFile(size, content)

    def discard_draft(self, draft: str) -> None:
        with suppress(OSError):
            os.unlink(draft)

    def copy(self, path: str, other: str) -> None:
        located, target = self.locate(path), self._locate_new(other)
        with translate_errors(path):
            try:
                os.link(located, target)
            except FileNotFoundError:
                raise
            except OSError:  # no hard links, or too many of one file
                shutil.copyfile(located, target)
                self._sync(Path(target))

    def sync(self, folder: str) -> None:
        with translate_errors(folder):
            self._sync(Path(self.locate(folder)))

    def remove(self, paths: Iterable[str]) -> None:
        failure: PenstockError | None = None
        for path in paths:
            try:
                self._remove_file(path)
            except PenstockError as error:
                failure = failure or error
        if failure:
            raise failure

    def _remove_file(self, path: str) -> None:
        with translate_errors(path):
            Path(self.locate(path)).unlink(missing_ok=True)

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        for path, entry in self._entries(folder):
            with suppress(FileNotFoundError):  # a concurrent removal by its writer
                if entry.is_file(follow_symlinks=False):
                    yield path, entry.stat().st_size
                elif entry.is_dir(follow_symlinks=False):
                    yield from self.files(path)

    def folders(self, folder: str) -> Iterator[str]:
        yield from (path for path, entry in self._entries(folder) if entry.is_dir(follow_symlinks=False))

    def _entries(self, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        location = self.locate(folder)
        if not os.path.isdir(location):
            return
        with translate_errors(folder), os.scandir(location) as entries:
            yield from ((f"{folder}/{entry.name}", entry) for entry in entries)

    def checksum(self, path: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
        return checksum_file(self.locate(path), on_read)

    def probe(self) -> None:
        with translate_errors(SCRATCH_FOLDER):
            handle = self.create(f"{SCRATCH_FOLDER}/ready-{uuid4().hex}")
            try:
                handle.write(_PROBE_CONTENT)
                handle.flush()
            finally:
                handle.discard()

    def check_access(self) -> None:
        self.probe()

    def make_scratch(self, path: str) -> str:
        location = self._locate_new(path)
        with translate_errors(path):
            os.mkdir(location)
        return location

    def remove_scratch(self, path: str) -> None:
        shutil.rmtree(self.locate(path), ignore_errors=True)  # remaining files are swept later

    def scratch_folders(self, folder: str) -> Iterator[str]:
        return self.folders(folder)

    def close(self) -> None:
        """Do nothing: the store has no resources."""

    def _locate_new(self, path: str) -> str:
        """Return the location of a file that does not exist yet, in an existing folder."""
        location = self.locate(path)
        with translate_errors(path):
            self._make_folder(Path(location).parent)
        return location

    def _make_folder(self, folder: Path) -> None:
        if str(folder) in self._created_folders:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:  # also existing ones: their creator may not have synced them yet
            self._sync(parent)
            if parent == self.root:
                break
        self._created_folders.add(str(folder))

    def _sync(self, folder: Path) -> None:
        if not self.durable:
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class LocalFileHandle:
    """A new local file that counts and hashes its content."""

    def __init__(self, path: Path, file: BinaryIO, *, durable: bool) -> None:
        self._path, self._file, self._durable = path, file, durable
        self._hash, self._size = hashlib.sha256(), 0

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        with translate_errors(self._path.name):
            written = self._file.write(data)
        self._hash.update(data)
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> StoredFile:
        with translate_errors(self._path.name):
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
        return StoredFile(self._size, format_checksum(self._hash))

    def discard(self) -> None:
        with suppress(OSError):  # a full disk fails again on flush; the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)


def checksum_file(location: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
    """Compute the checksum of a local file, or return None if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(location, "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                on_read(len(block))
    except OSError:
        return None
    return format_checksum(digest)
