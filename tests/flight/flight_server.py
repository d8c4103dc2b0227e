"""Run the Flight service in this process, or in a separate process that a test can measure and kill."""

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

from flight.raw_client import SECRET, TENANT, TIMEOUT_SECONDS, RawClient, token
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
_MEMORY = "memory"  # requests the memory figures; any other text is the name of a failpoint
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["penstock.flight.service", "penstock.lake", "sqlalchemy.dialects.sqlite"])


class CallRecorder:
    """Record the calls that have ended, so that a test can wait for a call without a fixed delay."""

    def __init__(self) -> None:
        self._calls: list[CallStats] = []
        self._changed = threading.Condition()

    def record(self, call: CallStats) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def wait(self, method: str, count: int) -> list[CallStats]:
        """Wait for a number of calls of a method and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._calls_of(method)) >= count, TIMEOUT_SECONDS), self._calls
            return self._calls_of(method)

    def has_no_call_within(self, method: str, seconds: float) -> bool:
        """Return whether no call of the method ends within the time."""
        with self._changed:
            return not self._changed.wait_for(lambda: bool(self._calls_of(method)), seconds)

    def clear(self) -> None:
        with self._changed:
            self._calls.clear()

    def _calls_of(self, method: str) -> list[CallStats]:
        return [call for call in self._calls if call.method == method]


@dataclass
class FlightServerFixture:
    """A workspace, its Flight service, and a connection of an admin."""

    lake: Lake
    service: FlightService
    calls: CallRecorder
    raw_client: RawClient
    limits: FlightLimits
    _names: Iterator[str] = field(default_factory=lambda: (f"t{uuid4().hex[:8]}" for _ in iter(int, 1)))

    @property
    def address(self) -> str:
        return self.service.address

    def create_table(self, rows: pa.Table = ROWS, **options: Any) -> "TableFixture":
        """Create a table with a new name; its row ids begin at 1."""
        name = next(self._names)
        return TableFixture(name, self.lake.create(f"analytics.{name}", rows, **options))

    def orphan_files(self, table: "TableFixture | None" = None) -> set[str]:
        """Return the files that no version contains."""
        if table is None:
            return stored_files(self.lake) - files_of_all_versions(self.lake)
        return {path for path in stored_files(self.lake) if str(table.dataset.id) in path} - files_of_dataset(
            table.dataset
        )

    def begin_transaction(self, **body: Any) -> str:
        """Begin a transaction and return its id."""
        return str(self.raw_client.do_action("create_transaction", body)["transaction_id"])

    def transaction_status(self, transaction: str) -> str:
        return str(
            self.raw_client.do_action("get_transaction_status", {"transaction_id": transaction})["transaction_status"]
        )


@dataclass(frozen=True)
class TableFixture:
    """A table: its name in commands, and the dataset behind it."""

    name: str
    dataset: Dataset

    @property
    def reference(self) -> dict[str, Any]:
        return {"schema_name": "analytics", "table_name": self.name}

    def insert(self, **members: Any) -> dict[str, Any]:
        return {"operation": "insert", **self.reference, **members}

    def update(self, row_ids: list[int], **members: Any) -> dict[str, Any]:
        return {"operation": "update", **self.reference, "row_ids": row_ids, **members}

    def delete(self, row_ids: list[int], **members: Any) -> dict[str, Any]:
        return {**self.reference, "row_ids": row_ids, **members}

    @property
    def version(self) -> int:
        return self.dataset.current().version

    def rows_by_id(self) -> dict[int, dict[str, Any]]:
        """Return the rows by their ids."""
        rows = self.dataset.to_arrow(row_ids=True).to_pylist()
        by_id = {row.pop("rowid"): row for row in rows}
        assert len(by_id) == len(rows), "a row id is duplicated"
        return by_id

    def words_by_id(self) -> dict[int, str | None]:
        return {id: row["word"] for id, row in self.rows_by_id().items()}


@contextmanager
def run_flight_server(
    workspace: WorkspaceFixture, limits: FlightLimits | None = None, **options: Any
) -> Iterator[FlightServerFixture]:
    with workspace.open() as local_lake:
        lake = lake_of_token_tenant(local_lake)
        calls, limits = CallRecorder(), limits or FlightLimits()
        service = FlightService(
            FlightContext(lake._workspace, TokenVerifier(SECRET), None, limits, on_call=calls.record),
            "127.0.0.1",
            0,
            **options,
        )
        service.start()
        try:
            with RawClient(service, token()) as raw_client:
                yield FlightServerFixture(lake, service, calls, raw_client, limits)
        finally:
            service.stop()


def lake_of_token_tenant(lake: Lake) -> Lake:
    """Open the workspace as the tenant of the tokens."""
    return Lake(lake._workspace, Caller(TENANT, user_id("", "ada"), "ada", Role.ADMIN), lake._folder)


def stored_files(lake: Lake) -> set[str]:
    store = lake._workspace.store
    return {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}


def files_of_all_versions(lake: Lake) -> set[str]:
    """Return the files of all versions."""
    return {path for dataset in lake.datasets() for path in files_of_dataset(lake.dataset(dataset.id))}


def files_of_dataset(dataset: Dataset) -> set[str]:
    versions = range(1, dataset.current().version + 1)
    return {file.path for version in versions for file in dataset.at(version).files()}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds: a server may continue after its response."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.005)


class ServerProcess:
    """The service in a separate process, optionally with the allocators of `penstock serve`."""

    def __init__(self, workspace: WorkspaceFixture, *, serve_allocators: bool = False, **limits: Any) -> None:
        self._connection, child_end = PROCESSES.Pipe()
        if serve_allocators:
            # A new interpreter: a forked one has the allocators of the fork server.
            process = get_context("spawn").Process(
                target=_serve_with_allocators, args=(workspace, child_end, limits), daemon=True
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
                process.start()
            self.process: BaseProcess = process
        else:
            self.process = PROCESSES.Process(target=_serve, args=(workspace, child_end, limits), daemon=True)
            self.process.start()
        child_end.close()
        assert self._connection.poll(TIMEOUT_SECONDS), "the server process does not start"
        self.address: str = self._connection.recv()

    def arm(self, step: str) -> None:
        """Arm a failpoint: from now on, the process is killed when it reaches this step."""
        self._connection.send(step)
        assert self._connection.recv() == step

    def memory(self) -> dict[str, int | str]:
        """Return the memory of the process in MiB as counted by the kernel, Arrow, malloc and the memory budget."""
        self._connection.send(_MEMORY)
        pools: dict[str, int | str] = self._connection.recv()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        names = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
        return {name: int(fields[name].split()[0]) >> 10 for name in names} | pools

    def kill(self) -> None:
        self.process.kill()
        self.assert_killed()

    def assert_killed(self) -> None:
        self.process.join(TIMEOUT_SECONDS)
        assert self.process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        self._connection.close()
        self.process.join(TIMEOUT_SECONDS)
        assert self.process.exitcode == 0

    @contextmanager
    def paused_repeatedly(self) -> Iterator[None]:
        """Pause the process repeatedly, so that clients see a slow server."""
        stopped = threading.Event()

        def pause() -> None:
            assert self.process.pid
            while not stopped.wait(0.1):
                os.kill(self.process.pid, signal.SIGSTOP)
                time.sleep(0.1)
                os.kill(self.process.pid, signal.SIGCONT)

        thread = threading.Thread(target=pause)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def peak(self, action: Callable[[], object]) -> "MemoryPeak":
        """Return the peak memory during an action."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        samples, stopped = [self.memory()], threading.Event()

        def sample() -> None:
            while not stopped.wait(0.2):
                samples.append(self.memory())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            action()
        finally:
            stopped.set()
            thread.join()
        samples.append(self.memory())
        highest = max(samples, key=lambda figures: int(figures["RssAnon"]))
        return MemoryPeak(int(samples[-1]["VmHWM"]) << 20, highest)


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    bytes: int  # the highest resident memory
    figures: dict[str, int | str]  # the sample with the highest anonymous memory, in MiB


@contextmanager
def server_process(
    workspace: WorkspaceFixture, *, serve_allocators: bool = False, **limits: Any
) -> Iterator[ServerProcess]:
    server = ServerProcess(workspace, serve_allocators=serve_allocators, **limits)
    try:
        yield server
    finally:
        if server.process.is_alive():
            server.process.kill()
        server.process.join()


def _serve_with_allocators(workspace: WorkspaceFixture, connection: Connection, limits: dict[str, Any]) -> None:
    limit_allocator_memory()
    _serve(workspace, connection, limits)


def _serve(workspace: WorkspaceFixture, connection: Connection, limits: dict[str, Any]) -> None:
    with workspace.open() as lake:
        flight_context = FlightContext(lake._workspace, TokenVerifier(SECRET), None, FlightLimits(**limits))
        service = FlightService(flight_context, "127.0.0.1", 0, time_to_live=timedelta(seconds=300))
        service.start()
        connection.send(service.address)
        with ExitStack() as armed, suppress(EOFError):  # until the parent closes the connection
            while step := connection.recv():
                if step == _MEMORY:
                    connection.send(_pools(lake))
                    continue
                armed.enter_context(failpoints.armed(step, lambda: os.kill(os.getpid(), signal.SIGKILL)))
                connection.send(step)
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
