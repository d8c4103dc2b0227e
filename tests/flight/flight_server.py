"""The Flight service in this process, or in a process of its own that can be measured and killed."""

import ctypes
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from flight.raw_client import SECONDS, SECRET, TENANT, Raw, token
from penstock import failpoints
from penstock.core.caller import Caller, Role, user_id
from penstock.flight.context import CallStats, FlightContext, FlightLimits
from penstock.flight.service import FlightService
from penstock.lake import Dataset, Lake
from penstock.service.auth.tokens import TokenVerifier
from penstock.service.memory_release import limit_allocator_memory
from support.workspaces import WorkspaceFixture

ROWS = pa.table(
    {"id": [1, 2, 3, 4], "word": ["one", "two", None, "four"]},
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())]),
)
_MEMORY = "memory"  # a question to the process; any other text is the name of a failpoint
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["penstock.flight.service", "penstock.lake", "sqlalchemy.dialects.sqlite"])


class Calls:
    """Record the calls that have ended, so that a test can wait for a call without a fixed delay."""

    def __init__(self) -> None:
        self._ended: list[CallStats] = []
        self._news = threading.Condition()

    def record(self, ended: CallStats) -> None:
        with self._news:
            self._ended.append(ended)
            self._news.notify_all()

    def wait(self, method: str, count: int) -> list[CallStats]:
        """Wait for a number of calls of a method and return them."""
        with self._news:
            assert self._news.wait_for(lambda: len(self._of(method)) >= count, SECONDS), self._ended
            return self._of(method)

    def quiet(self, method: str, seconds: float) -> bool:
        """Return whether no call of the method ends within the time."""
        with self._news:
            return not self._news.wait_for(lambda: bool(self._of(method)), seconds)

    def forget(self) -> None:
        with self._news:
            self._ended.clear()

    def _of(self, method: str) -> list[CallStats]:
        return [item for item in self._ended if item.method == method]


@dataclass
class House:
    """A workspace and its service, and a connection of an admin's."""

    lake: Lake
    service: FlightService
    calls: Calls
    raw: Raw
    limits: FlightLimits
    _names: Iterator[str] = field(default_factory=lambda: (f"t{uuid4().hex[:8]}" for _ in iter(int, 1)))

    @property
    def address(self) -> str:
        return self.service.address

    def table(self, rows: pa.Table = ROWS, **options: Any) -> "TableFixture":
        """Create a table with a new name; its row ids begin at 1."""
        name = next(self._names)
        return TableFixture(name, self.lake.create(f"analytics.{name}", rows, **options))

    def strays(self, table: "TableFixture | None" = None) -> set[str]:
        """Files that no version holds: what a write has staged, or left behind."""
        if table is None:
            return on_disk(self.lake) - held(self.lake)
        return {path for path in on_disk(self.lake) if str(table.dataset.id) in path} - held_by(table.dataset)

    def begin(self, **body: Any) -> str:
        """Begin a transaction and return its id."""
        return str(self.raw.act("create_transaction", body)["transaction_id"])

    def status(self, transaction: str) -> str:
        return str(self.raw.act("get_transaction_status", {"transaction_id": transaction})["transaction_status"])


@dataclass(frozen=True)
class TableFixture:
    """A table as commands name it, and as the library reads it."""

    name: str
    dataset: Dataset

    @property
    def at(self) -> dict[str, Any]:
        return {"schema_name": "analytics", "table_name": self.name}

    def insert(self, **more: Any) -> dict[str, Any]:
        return {"operation": "insert", **self.at, **more}

    def update(self, row_ids: list[int], **more: Any) -> dict[str, Any]:
        return {"operation": "update", **self.at, "row_ids": row_ids, **more}

    def delete(self, row_ids: list[int], **more: Any) -> dict[str, Any]:
        return {**self.at, "row_ids": row_ids, **more}

    @property
    def version(self) -> int:
        return self.dataset.current().version

    def there(self) -> dict[int, dict[str, Any]]:
        """Return the rows by their ids."""
        rows = self.dataset.to_arrow(row_ids=True).to_pylist()
        there = {row.pop("rowid"): row for row in rows}
        assert len(there) == len(rows), "a row id is duplicate"
        return there

    def words(self) -> dict[int, str | None]:
        return {id: row["word"] for id, row in self.there().items()}


@contextmanager
def open_house(workspace: WorkspaceFixture, limits: FlightLimits | None = None, **options: Any) -> Iterator[House]:
    with workspace.open() as local:
        lake = seen_by_ada(local)
        calls, limits = Calls(), limits or FlightLimits()
        service = FlightService(
            FlightContext(lake._workspace, TokenVerifier(SECRET), None, limits, on_call=calls.record),
            "127.0.0.1",
            0,
            **options,
        )
        service.start()
        try:
            with Raw(service, token()) as raw:
                yield House(lake, service, calls, raw, limits)
        finally:
            service.stop()


def seen_by_ada(lake: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens."""
    return Lake(lake._workspace, Caller(TENANT, user_id("", "ada"), "ada", Role.ADMIN), lake._folder)


def on_disk(lake: Lake) -> set[str]:
    store = lake._workspace.store
    return {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}


def held(lake: Lake) -> set[str]:
    """Return the files of all versions."""
    return {path for at in lake.datasets() for path in held_by(lake.dataset(at.id))}


def held_by(dataset: Dataset) -> set[str]:
    versions = range(1, dataset.current().version + 1)
    return {file.path for version in versions for file in dataset.at(version).files()}


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds: a server may continue after its response."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.005)


class Child:
    """The service in a process of its own; `measured`: with the allocators of `penstock serve`."""

    def __init__(self, workspace: WorkspaceFixture, *, measured: bool = False, **limits: Any) -> None:
        self._talk, theirs = PROCESSES.Pipe()
        if measured:
            # A new interpreter: a forked one has the allocators of the fork server.
            process = get_context("spawn").Process(
                target=_serve_measured, args=(workspace, theirs, limits), daemon=True
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
                process.start()
            self.process: BaseProcess = process
        else:
            self.process = PROCESSES.Process(target=_serve, args=(workspace, theirs, limits), daemon=True)
            self.process.start()
        theirs.close()
        assert self._talk.poll(SECONDS), "it does not start"
        self.address: str = self._talk.recv()

    def arm(self, step: str) -> None:
        """Arm a failpoint: from now on, the process is killed when it reaches this step."""
        self._talk.send(step)
        assert self._talk.recv() == step

    def memory(self) -> dict[str, int | str]:
        """Return the memory of the process in MiB, by the view of the kernel, of Arrow, of malloc and of the budget."""
        self._talk.send(_MEMORY)
        pools: dict[str, int | str] = self._talk.recv()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        names = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
        return {name: int(fields[name].split()[0]) >> 10 for name in names} | pools

    def kill(self) -> None:
        self.process.kill()
        self.died()

    def died(self) -> None:
        self.process.join(SECONDS)
        assert self.process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        self._talk.close()
        self.process.join(SECONDS)
        assert self.process.exitcode == 0

    @contextmanager
    def hampered(self) -> Iterator[None]:
        """Pause the process again and again, so that clients see a slow server."""
        over = threading.Event()

        def hamper() -> None:
            assert self.process.pid
            while not over.wait(0.1):
                os.kill(self.process.pid, signal.SIGSTOP)
                time.sleep(0.1)
                os.kill(self.process.pid, signal.SIGCONT)

        hampering = threading.Thread(target=hamper)
        hampering.start()
        try:
            yield
        finally:
            over.set()
            hampering.join()

    def peak(self, do: Callable[[], object]) -> "MemoryPeak":
        """Return the peak memory during an action."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        samples, over = [self.memory()], threading.Event()

        def sample() -> None:
            while not over.wait(0.2):
                samples.append(self.memory())

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            do()
        finally:
            over.set()
            sampling.join()
        samples.append(self.memory())
        highest = max(samples, key=lambda figures: int(figures["RssAnon"]))
        return MemoryPeak(int(samples[-1]["VmHWM"]) << 20, highest)


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    bytes: int  # the highest resident memory
    figures: dict[str, int | str]  # the sample with the highest anonymous memory, in MiB


@contextmanager
def child(workspace: WorkspaceFixture, *, measured: bool = False, **limits: Any) -> Iterator[Child]:
    served = Child(workspace, measured=measured, **limits)
    try:
        yield served
    finally:
        if served.process.is_alive():
            served.process.kill()
        served.process.join()


def _serve_measured(workspace: WorkspaceFixture, talk: Connection, limits: dict[str, Any]) -> None:
    limit_allocator_memory()
    _serve(workspace, talk, limits)


def _serve(workspace: WorkspaceFixture, talk: Connection, limits: dict[str, Any]) -> None:
    with workspace.open() as lake:
        edge = FlightContext(lake._workspace, TokenVerifier(SECRET), None, FlightLimits(**limits))
        service = FlightService(edge, "127.0.0.1", 0, time_to_live=timedelta(seconds=300))
        service.start()
        talk.send(service.address)
        with ExitStack() as armed, suppress(EOFError):  # until the parent closes the connection
            while step := talk.recv():
                if step == _MEMORY:
                    talk.send(_pools(lake))
                    continue
                armed.enter_context(failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)))
                talk.send(step)
        service.stop()


def _pools(lake: Lake) -> dict[str, int | str]:
    pool = pa.default_memory_pool()
    return {
        "pool": pool.backend_name,
        "pool_bytes": pool.bytes_allocated() >> 20,
        "pool_peak": (pool.max_memory() or 0) >> 20,
        "arrow_total": pa.total_allocated_bytes() >> 20,
        "reserved": lake._workspace.memory.used_bytes >> 20,
        **_malloc_figures(),
        "garbage_counts": str(gc.get_count()),
    }


def _malloc_figures() -> dict[str, int | str]:
    """Return the number of arenas of glibc, and their size and free memory in MiB."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_info"):
        return {}
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    report = (text.value or b"").decode()
    libc.free(text)
    totals = report.rpartition("</heap>")[2]  # of all arenas
    figures = {
        "arenas_size": r'<system type="current" size="(\d+)"',
        "arenas_free": r'<total type="rest" count="\d+" size="(\d+)"',
        "malloc_mapped": r'<total type="mmap" count="\d+" size="(\d+)"',
    }
    matches = {name: re.search(pattern, totals) for name, pattern in figures.items()}
    sizes: dict[str, int | str] = {name: int(match[1]) >> 20 for name, match in matches.items() if match}
    return {"arenas": report.count("<heap nr"), **sizes}
