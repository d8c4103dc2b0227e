"""A view of a file store that accepts only the paths of one tenant."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from penstock.core.workspace_layout import DATA_FOLDER, SCRATCH_FOLDER
from penstock.storage.file_store import FileHandle, FileReference, FileStore, Reference, StoredFile


class TenantStore:
    """A file store that raises AssertionError for a path of another tenant.

    The paths come from the catalog, whose statements are limited to the tenant. This is the second, independent check.
    """

    def __init__(self, store: FileStore, tenant: UUID) -> None:
        self._store = store
        self._data, self._scratch = f"{DATA_FOLDER}/{tenant}", f"{SCRATCH_FOLDER}/{tenant}"
        self._data_prefix, self._scratch_prefix = f"{self._data}/", f"{self._scratch}/"

    @property
    def is_remote(self) -> bool:
        return self._store.is_remote

    def locate(self, path: str) -> str:
        return self._store.locate(self._checked(path))

    def uri(self, path: str) -> str:
        return self._store.uri(self._checked(path))

    def open_local(self, files: Iterable[FileReference]) -> AbstractContextManager[None]:
        return self._store.open_local(self._checked_files(files))

    def stream_local(self, files: Iterable[Reference]) -> Generator[Reference]:
        return self._store.stream_local(self._checked_files(files))

    def open_tail(self, file: FileReference) -> Any:
        self._checked(file.path)
        return self._store.open_tail(file)

    def create(self, path: str) -> FileHandle:
        return self._store.create(self._checked(path))

    def draft(self, path: str) -> str:
        return self._store.draft(self._checked(path))

    def adopt(self, draft: str, path: str) -> StoredFile:
        return self._store.adopt(draft, self._checked(path))

    def discard_draft(self, draft: str) -> None:
        self._store.discard_draft(draft)

    def copy(self, path: str, other: str) -> None:
        self._store.copy(self._checked(path), self._checked(other))

    def sync(self, folder: str) -> None:
        self._store.sync(self._checked(folder))

    def remove(self, paths: Iterable[str]) -> None:
        self._store.remove([self._checked(path) for path in paths])

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        return self._store.files(self._checked_folder(folder))

    def folders(self, folder: str) -> Iterator[str]:
        return self._store.folders(self._checked_folder(folder))

    def checksum(self, path: str, on_read: Callable[[int], None] = lambda _: None) -> str | None:
        return self._store.checksum(self._checked(path), on_read)

    def probe(self) -> None:
        self._store.probe()

    def check_access(self) -> None:
        self._store.check_access()

    def make_scratch(self, path: str) -> str:
        return self._store.make_scratch(self._checked_scratch(path))

    def remove_scratch(self, path: str) -> None:
        self._store.remove_scratch(self._checked_scratch(path))

    def scratch_folders(self, folder: str) -> Iterator[str]:
        if folder != self._scratch:
            self._checked_scratch(folder)
        return self._store.scratch_folders(folder)

    def close(self) -> None:
        """Do nothing: the workspace closes the store."""

    def _checked(self, path: str) -> str:
        if not path.startswith(self._data_prefix):
            raise _wrong_tenant(path, self._data)
        return path

    def _checked_folder(self, folder: str) -> str:
        return folder if folder == self._data else self._checked(folder)

    def _checked_scratch(self, path: str) -> str:
        if not path.startswith(self._scratch_prefix):
            raise _wrong_tenant(path, self._scratch)
        return path

    def _checked_files(self, files: Iterable[Reference]) -> Iterator[Reference]:
        for file in files:
            self._checked(file.path)
            yield file


def _wrong_tenant(path: str, folder: str) -> AssertionError:
    return AssertionError(f"{path!r} is not a path of the tenant with the folder {folder!r}")
