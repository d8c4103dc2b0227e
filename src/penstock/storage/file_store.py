"""Where files live: the one seam between Penstock and a file system.

A path is text below the store's root. Files are created once and never changed. An object store joins
by offering the same few methods over another `pyarrow.fs` file system.
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
class Sealed:
    bytes: int
    checksum: str


class Sink(Protocol):
    """A new file, written from start to end."""

    @property
    def closed(self) -> bool: ...
    def write(self, data: bytes) -> int: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...
    def seal(self) -> Sealed:
        """Make the content durable, and say what it is."""
        ...

    def discard(self) -> None: ...


class Store(Protocol):
    filesystem: fs.FileSystem  # with `locate`, for whoever reads

    def locate(self, path: str) -> str: ...
    def create(self, path: str) -> Sink: ...
    def prepare(self, path: str) -> str:
        """Where somebody else may create a file of that path: its folder is there."""
        ...

    def adopt(self, located: str, path: str) -> Sealed:
        """Take over a file that somebody else has written: durable, under its name, and known."""
        ...

    def link(self, path: str, other: str) -> None:
        """Give a file's content a second path: at no cost where the file system can, else as a copy."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names of the files in a folder durable."""
        ...

    def remove(self, path: str) -> None: ...
    def remove_folder(self, folder: str) -> None:
        """With all that is in it."""
        ...

    def folders(self, folder: str) -> Iterator[str]: ...
    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Paths and sizes of the files in a folder."""
        ...


class LocalStore:
    filesystem = fs.LocalFileSystem()

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root.resolve()
        self.durable = durable
        self._known: set[str] = set()  # folders that were made, and made durable

    def locate(self, path: str) -> str:
        if path.startswith("/") or not {"..", ""}.isdisjoint(path.split("/")) or "\0" in path:
            raise Invalid("bad_path", "a path leads out of the workspace")
        return f"{self.root}/{path}"

    def create(self, path: str) -> "LocalSink":
        place = Path(self.locate(path))
        with _translated(path):
            self._make(place.parent)
            return LocalSink(place, open(place, "xb", buffering=1 << 20), durable=self.durable)

    def prepare(self, path: str) -> str:
        located = self.locate(path)
        with _translated(path):
            self._make(Path(located).parent)
        return located

    def adopt(self, located: str, path: str) -> Sealed:
        goal = self.prepare(path)
        with _translated(path):
            if located != goal:
                os.replace(located, goal)
            if self.durable:
                handle = os.open(goal, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            size = os.path.getsize(goal)
        content = checksum(self, path)
        if content is None:
            raise Unavailable("storage_failed", f"a file that was just written cannot be read ({path})", path=path)
        return Sealed(size, content)

    def link(self, path: str, other: str) -> None:
        located, goal = self.locate(path), self.prepare(other)
        with _translated(path):
            try:
                os.link(located, goal)
            except FileNotFoundError:
                raise
            except OSError:  # not every file system has links, and a file has so many at most
                shutil.copyfile(located, goal)
                self._sync(Path(goal))

    def sync(self, folder: str) -> None:
        with _translated(folder):
            self._sync(Path(self.locate(folder)))

    def remove(self, path: str) -> None:
        with _translated(path):
            Path(self.locate(path)).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.locate(folder), ignore_errors=True)  # what stays is swept later

    def folders(self, folder: str) -> Iterator[str]:
        yield from (f"{folder}/{name}" for name, entry in self._entries(folder) if entry.is_dir(follow_symlinks=False))

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        for name, entry in self._entries(folder):
            with suppress(FileNotFoundError):  # its writer may remove it while we look
                if entry.is_file(follow_symlinks=False):
                    yield f"{folder}/{name}", entry.stat().st_size

    def _entries(self, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        place = self.locate(folder)
        if not os.path.isdir(place):
            return
        with _translated(folder), os.scandir(place) as entries:
            yield from ((entry.name, entry) for entry in entries)

    def _make(self, folder: Path) -> None:
        if str(folder) in self._known:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:  # also those that were there: who made them may not have come to this point
            self._sync(parent)
            if parent == self.root:
                break
        self._known.add(str(folder))

    def _sync(self, folder: Path) -> None:
        if not self.durable:
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class LocalSink:
    """A new local file that counts and hashes what goes through it."""

    def __init__(self, place: Path, file: BinaryIO, *, durable: bool) -> None:
        self._place, self._file, self._durable = place, file, durable
        self._hash, self._size = hashlib.sha256(), 0

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        with _translated(self._place.name):
            written = self._file.write(data)
        self._hash.update(data)
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> Sealed:
        with _translated(self._place.name):
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
        return Sealed(self._size, _told(self._hash))

    def discard(self) -> None:
        with suppress(OSError):  # a full disk fails again when the rest is flushed; the file goes all the same
            self._file.close()
        self._place.unlink(missing_ok=True)


def checksum(store: Store, path: str, heard: Callable[[int], None] = lambda _: None) -> str | None:
    """What `seal` said of a file, worked out again; None where it cannot be read."""
    found = hashlib.sha256()
    try:
        with store.filesystem.open_input_stream(store.locate(path)) as stream:
            while block := stream.read(1 << 20):
                found.update(block)
                heard(len(block))
    except OSError:
        return None
    return _told(found)


def _told(content: "hashlib._Hash") -> str:
    return f"sha256:{content.hexdigest()}"


class _translated:  # noqa: N801  (reads as a phrase: `with _translated(path)`)
    """The file system's errors as ours: the path below the workspace is told, never the machine's."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, Unavailable):
            raise Unavailable(
                "storage_failed", f"the file system said: {error.strerror or error} ({self.path})", path=self.path
            ) from error
