"""A file store and a database that fail at the N-th operation."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from penstock.catalog.database import Database
from penstock.errors import Unavailable
from penstock.storage.file_store import StoredFile
from penstock.storage.local_store import LocalFileHandle, LocalStore


class Countdown:
    """Fail once, at the N-th step of all threads."""

    def __init__(self, n: int) -> None:
        self._steps, self._failing_step = count(1), n
        self.fired = False

    def step(self) -> bool:
        if fires := next(self._steps) == self._failing_step:
            self.fired = True
        return fires


class FailingStore(LocalStore):
    """A file store that is full at the N-th file operation: create, write, seal, draft, make_scratch, adopt, sync, remove."""

    def __init__(self, root: Path, countdown: Countdown) -> None:
        super().__init__(root, durable=False)
        self._countdown = countdown

    def create(self, path: str) -> "FailingSink":
        self._use("create")
        sink = super().create(path)
        return FailingSink(sink._path, sink._file, self._countdown)

    def draft(self, path: str) -> str:
        self._use("draft")
        return super().draft(path)

    def make_scratch(self, path: str) -> str:
        self._use("make_scratch")
        return super().make_scratch(path)

    def adopt(self, draft: str, path: str) -> StoredFile:
        self._use("adopt")
        return super().adopt(draft, path)

    def sync(self, folder: str) -> None:
        self._use("sync")
        super().sync(folder)

    def _remove_file(self, path: str) -> None:
        self._use("remove")
        super()._remove_file(path)

    def _use(self, operation: str) -> None:
        if self._countdown.step():
            raise Unavailable("storage_failed", f"injected: {operation}")


class FailingSink(LocalFileHandle):
    def __init__(self, location: Path, file: Any, countdown: Countdown) -> None:
        super().__init__(location, file, durable=False)
        self._countdown = countdown

    def write(self, data: bytes) -> int:
        if self._countdown.step():
            raise Unavailable("storage_failed", "injected: write")
        return super().write(data)

    def seal(self) -> StoredFile:
        if self._countdown.step():
            raise Unavailable("storage_failed", "injected: seal")
        return super().seal()


@contextmanager
def failing_sql(db: Database, countdown: Countdown) -> Iterator[None]:
    """Make a database fail at the N-th statement or COMMIT."""

    def fail(*_: Any, **__: Any) -> None:
        if countdown.step():
            raise OperationalError("injected", {}, Exception("the connection was lost"))

    names = ("before_cursor_execute", "commit")
    for name in names:
        event.listen(db.engine, name, fail)
    try:
        yield
    finally:
        for name in names:
            event.remove(db.engine, name, fail)
