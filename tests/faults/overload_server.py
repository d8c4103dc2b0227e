"""A `penstock serve` process for attacks: its settings, its addresses, its memory and its gauges."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock

SECRET = "a secret of enough bytes, for attacks only"
TIMEOUT_SECONDS = 180.0  # of a condition, on a busy machine
MIB = 1 << 20

REQUEST_MEMORY, FLIGHT_MESSAGE = 128 * MIB, 16 * MIB
SETTINGS: Mapping[str, str] = {  # small, so that an attack without a limit exceeds the bound with few requests
    "PENSTOCK_JWT_SECRET": SECRET,
    "PENSTOCK_DURABLE": "no",
    "PENSTOCK_REQUEST_MEMORY": str(REQUEST_MEMORY),
    "PENSTOCK_MAX_WRITE_BYTES": str(64 * MIB),
    "PENSTOCK_MAX_BATCH_BYTES": str(32 * MIB),
    "PENSTOCK_FLIGHT_MESSAGE_BYTES": str(FLIGHT_MESSAGE),
    "PENSTOCK_FLIGHT_STREAMS": "64",
    "PENSTOCK_QUERIES_AT_ONCE": "4",
    "PENSTOCK_QUERY_MEMORY": str(256 * MIB),
    "PENSTOCK_QUERY_SECONDS": "20",
    "PENSTOCK_QUERY_CACHE_BYTES": "1",  # every result is computed
    "PENSTOCK_RUNS_WAITING": "20",
}
_START = "from penstock.cli import main; main()"
_ADDRESSES = re.compile(r"Penstock listens on (\S+); see \S+, and for Flight on grpc://(\S+)\n")
_GAUGE = re.compile(r"^(penstock_(?:request_memory_bytes|requests_\w+|http_in_flight)\S*) (\S+)$", re.M)
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class OverloadServer:
    process: "subprocess.Popen[str]"
    http: str  # host:port
    flight: str  # host:port
    log: Path

    def memory_bytes(self) -> int:
        """Return the anonymous memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) << 10

    def open_files(self) -> int:
        """Return the number of open files and connections of the process."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def gauges(self) -> dict[str, float]:
        """Return the gauges of requests and their memory."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=TIMEOUT_SECONDS) as response:
            return {name: float(value) for name, value in _GAUGE.findall(response.read().decode())}

    def wait_until_idle(self) -> None:
        """Wait until no request is running or waiting, and all memory is released."""
        wait_for(lambda: self.busy_gauges() == {}, self.busy_gauges)

    def busy_gauges(self) -> dict[str, float]:
        """Return the gauges that an idle server does not have."""
        expected = {"penstock_http_in_flight": 1.0}  # this request
        return {name: value for name, value in self.gauges().items() if value != expected.get(name, 0.0)}

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class MemorySampler:
    """Sample the memory of a server in a thread, and remember the peak."""

    def __init__(self, server: OverloadServer) -> None:
        self._server, self._stopped = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, self._server.memory_bytes())


@contextmanager
def overload_server(folder: Path, *options: str, **settings: str) -> Iterator[OverloadServer]:
    """Start a server for REST and Flight in a separate process, without runs, which would start Spark.

    Args:
        folder: the folder of the workspace and of the log
        options: further options of `penstock serve`
        settings: further settings
    """
    penstock.open(folder / "lake", create=True).close()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    arguments = ("--workspace", "lake", "--http-port", "0", "--flight-port", "0", "--no-runs", *options)
    log = folder / "serve.log"  # a pipe would fill up
    with log.open("w") as error:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, "serve", *arguments],
            cwd=folder,
            env={**environment, **SETTINGS, **settings},
            stdout=subprocess.PIPE,
            stderr=error,
            text=True,
        )
    try:
        assert process.stdout is not None
        addresses = _ADDRESSES.fullmatch(process.stdout.readline())
        assert addresses, log.read_text()
        server = OverloadServer(process, addresses[1].removeprefix("http://"), addresses[2], log)
        yield server
    finally:
        process.kill()
        process.communicate()


def wait_for(is_true: Callable[[], bool], describe: Callable[[], object]) -> None:
    """Wait for a condition, and fail with a description after the timeout."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.1)
