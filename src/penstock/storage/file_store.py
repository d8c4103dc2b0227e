"""File storage of a workspace: the interface between Penstock and a local folder or a bucket.

A path is text relative to the root of the store. Files are created once and never changed. Code that reads a file opens
`locate(path)` inside a block of `open_local` or `stream_local`, which provide the file on this machine.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.errors import Invalid, Unavailable


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Size and checksum of a stored file."""

    bytes: int
    checksum: str


class FileReference(Protocol):
    """Path, size and checksum of a stored file, as in the catalog."""

    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def checksum(self) -> str: ...


Reference = TypeVar("Reference", bound=FileReference)


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
    """Protocol of a file store. Every method except `locate` and `uri` may raise Unavailable."""

    @property
    def is_remote(self) -> bool:
        """Return whether the files have to be fetched before they are read."""
        ...

    def locate(self, path: str) -> str:
        """Return the absolute path on this machine at which `open_local` provides a file. Does no I/O."""
        ...

    def uri(self, path: str) -> str:
        """Return the location of a file for the workers of a cluster. Does no I/O."""
        ...

    def open_local(self, files: Iterable[FileReference]) -> AbstractContextManager[None]:
        """Provide files on this machine, at `locate(path)`, for the duration of the block."""
        ...

    def stream_local(self, files: Iterable[Reference]) -> Generator[Reference]:
        """Yield files one by one, each on this machine until the next one is requested. Fetches the next ones ahead."""
        ...

    def open_tail(self, file: FileReference) -> Any:
        """Open a file as an Arrow input of which only the last bytes are readable, such as the footer of Parquet."""
        ...

    def create(self, path: str) -> FileHandle: ...
    def draft(self, path: str) -> str:
        """Return the location on this machine at which an engine may create the file; its folder exists.

        The last part of the location is that of the path.
        """
        ...

    def adopt(self, draft: str, path: str) -> StoredFile:
        """Store a file that an engine wrote: move it to its path, make it durable, and return its checksum."""
        ...

    def discard_draft(self, draft: str) -> None:
        """Remove a draft that is not adopted. A draft that does not exist is ignored."""
        ...

    def copy(self, path: str, other: str) -> None:
        """Give a file a second path, without moving its bytes through this machine: a hard link, or a copy."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names of the files in a folder durable."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Missing files are ignored. Raises the first error after it has tried all."""
        ...

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield path and size of each file in a folder and in its subfolders."""
        ...

    def folders(self, folder: str) -> Iterator[str]:
        """Yield the paths of the folders in a folder."""
        ...

    def checksum(self, path: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
        """Compute the checksum of the stored bytes of a file, or return None if it cannot be read.

        Args:
            path: the file
            on_read: called after each block with its number of bytes
        """
        ...

    def probe(self) -> None:
        """Check that files can be written, in a few seconds."""
        ...

    def check_access(self) -> None:
        """Check that files can be written, listed, read and removed."""
        ...

    def make_scratch(self, path: str) -> str:
        """Create a folder for temporary files of an engine, and return its location on this machine."""
        ...

    def remove_scratch(self, path: str) -> None:
        """Remove a folder of `make_scratch` with its content."""
        ...

    def scratch_folders(self, folder: str) -> Iterator[str]:
        """Yield the paths of folders of `make_scratch` in a folder, whose writers may be dead."""
        ...

    def close(self) -> None:
        """Remove the temporary files of this process, and release threads and connections."""
        ...


def check_path(path: str) -> None:
    """Raise Invalid for a path that may be outside of the store."""
    if path.startswith("/") or not {"..", ""}.isdisjoint(path.split("/")) or "\0" in path:
        raise Invalid("bad_path")


def format_checksum(digest: "hashlib._Hash") -> str:
    """Return a SHA-256 digest in the format of the catalog."""
    return f"sha256:{digest.hexdigest()}"


class translate_errors:  # noqa: N801  (used as a function)
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
