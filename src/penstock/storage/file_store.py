"""File storage of a workspace: the interface between Penstock and a file system.

A path is text relative to the root of the store. Files are created once and never changed. An object store can
implement the same protocol with another `pyarrow.fs` file system.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow.fs as fs

from penstock.errors import Invalid, Unavailable


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Size and checksum of a stored file."""

    bytes: int
    checksum: str


class FileHandle(Protocol):
    """A new file that is written sequentially."""

    @property
    def closed(self) -> bool: ...
    def write(self, data: bytes) -> int: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...
    def seal(self) -> StoredFile:
        """Make the content durable, and return its size and checksum."""
        ...

    def discard(self) -> None: ...


class FileStore(Protocol):
    """Protocol of a file store."""

    filesystem: fs.FileSystem  # reads the files at `locate(path)`

    def locate(self, path: str) -> str: ...
    def create(self, path: str) -> FileHandle: ...
    def reserve_path(self, path: str) -> str:
        """Return the location at which an engine may create the file; its folder exists."""
        ...

    def adopt(self, located: str, path: str) -> StoredFile:
        """Take over a file that an engine wrote: move it to its path, make it durable, and return its checksum."""
        ...

    def link(self, path: str, other: str) -> None:
        """Give a file a second path: a hard link if the file system supports it, else a copy."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names of the files in a folder durable."""
        ...

    def remove(self, path: str) -> None: ...
    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its content."""
        ...

    def folders(self, folder: str) -> Iterator[str]: ...
    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield path and size of each file in a folder."""
        ...


class LocalStore:
    """A file store in a local folder."""

    filesystem = fs.LocalFileSystem()

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root.resolve()
        self.durable = durable
        self._created_folders: set[str] = set()  # folders that exist and are durable

    def locate(self, path: str) -> str:
        if path.startswith("/") or not {"..", ""}.isdisjoint(path.split("/")) or "\0" in path:
            raise Invalid("bad_path")
        return f"{self.root}/{path}"

    def create(self, path: str) -> "LocalFileHandle":
        location = Path(self.locate(path))
        with _translate_errors(path):
            self._make_folder(location.parent)
            return LocalFileHandle(location, open(location, "xb", buffering=1 << 20), durable=self.durable)

    def reserve_path(self, path: str) -> str:
        located = self.locate(path)
        with _translate_errors(path):
            self._make_folder(Path(located).parent)
        return located

    def adopt(self, located: str, path: str) -> StoredFile:
        target = self.reserve_path(path)
        with _translate_errors(path):
            if located != target:
                os.replace(located, target)
            if self.durable:
                handle = os.open(target, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            size = os.path.getsize(target)
        content = checksum(self, path)
        if content is None:
            raise Unavailable("storage_failed.unreadable", path=path)
        return StoredFile(size, content)

    def link(self, path: str, other: str) -> None:
        located, target = self.locate(path), self.reserve_path(other)
        with _translate_errors(path):
            try:
                os.link(located, target)
            except FileNotFoundError:
                raise
            except OSError:  # no hard links, or too many of one file
                shutil.copyfile(located, target)
                self._sync(Path(target))

    def sync(self, folder: str) -> None:
        with _translate_errors(folder):
            self._sync(Path(self.locate(folder)))

    def remove(self, path: str) -> None:
        with _translate_errors(path):
            Path(self.locate(path)).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.locate(folder), ignore_errors=True)  # remaining files are swept later

    def folders(self, folder: str) -> Iterator[str]:
        yield from (f"{folder}/{name}" for name, entry in self._entries(folder) if entry.is_dir(follow_symlinks=False))

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        for name, entry in self._entries(folder):
            with suppress(FileNotFoundError):  # a concurrent removal by its writer
                if entry.is_file(follow_symlinks=False):
                    yield f"{folder}/{name}", entry.stat().st_size

    def _entries(self, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        location = self.locate(folder)
        if not os.path.isdir(location):
            return
        with _translate_errors(folder), os.scandir(location) as entries:
            yield from ((entry.name, entry) for entry in entries)

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
        with _translate_errors(self._path.name):
            written = self._file.write(data)
        self._hash.update(data)
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> StoredFile:
        with _translate_errors(self._path.name):
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
        return StoredFile(self._size, _format_checksum(self._hash))

    def discard(self) -> None:
        with suppress(OSError):  # a full disk fails again on flush; the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)


def checksum(store: FileStore, path: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
    """Compute the checksum of a stored file, or return None if it cannot be read.

    Args:
        on_read: called after each block with its number of bytes
    """
    digest = hashlib.sha256()
    try:
        with store.filesystem.open_input_stream(store.locate(path)) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
                on_read(len(block))
    except OSError:
        return None
    return _format_checksum(digest)


def _format_checksum(digest: "hashlib._Hash") -> str:
    return f"sha256:{digest.hexdigest()}"


class _translate_errors:  # noqa: N801  (used as a function)
    """Raise errors of the file system as Unavailable, with the path relative to the workspace only."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, Unavailable):
            raise Unavailable(
                "storage_failed.file_system", {"error": error.strerror or error}, path=self.path
            ) from error
