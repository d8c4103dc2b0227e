"""Pages that are closed and connections that break leave no elements in the service."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

import httpx
import pytest
from websockets.sync.client import connect

from ui.conftest import serve

RECONNECTS = 100
GROWTH = 8 << 20  # bytes: the memory that an allocator keeps depends on the number of pages open at once, which varies
RELEASE_SECONDS = 90.0  # a closed page may reconnect for thirty seconds, and is removed some time later
PAGES = {  # paths, and the text that is sent last for each
    "/queries/new": "Save as a registered query",
    "/queries": "No queries in these states",
    "/schemas": "States",
    "/datasets/a.b": "Rows of a.b",
    "/runs/{run}": "Pipeline definition of this run",
}
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"

# The service with a thread that reports the number of clients and elements on request.
MONITORED_SERVICE = """
import gc, json, sys, threading
from nicegui import Client, ui
from penstock.cli import main

def report():
    for _ in sys.stdin:
        gc.collect()
        elements = sum(isinstance(object_, ui.element) for object_ in gc.get_objects())
        memory = int(open("/proc/self/statm").read().split()[1]) * 4096
        print(json.dumps({"clients": len(Client.instances), "elements": elements, "memory": memory}), flush=True)

threading.Thread(target=report, daemon=True).start()
main()
"""


@dataclass(frozen=True)
class Usage:
    clients: int
    elements: int
    memory: int


@dataclass(frozen=True)
class MonitoredService:
    address: str
    process: subprocess.Popen[str]

    def usage(self) -> Usage:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Usage(**json.loads(self.process.stdout.readline()))

    def usage_after_release(self) -> Usage:
        end = time.monotonic() + RELEASE_SECONDS
        while (usage := self.usage()).elements and time.monotonic() < end:
            time.sleep(0.5)
        return usage


@pytest.fixture
def monitored_service(tmp_path: Path) -> Iterator[MonitoredService]:
    for service in serve(tmp_path, "--dev", command=(sys.executable, "-c", MONITORED_SERVICE)):
        yield MonitoredService(service.address, service.process)


def test_hundred_reconnects_release_all_elements(monitored_service: MonitoredService) -> None:
    run = _create_failed_run(monitored_service.address)
    for number in range(RECONNECTS):  # warm-up: loads everything that is loaded once
        _reconnect(monitored_service.address, number, run)
    before = monitored_service.usage_after_release()
    for number in range(RECONNECTS):
        _reconnect(monitored_service.address, number, run)
    assert monitored_service.usage().elements > 100  # proves that elements are counted
    after = monitored_service.usage_after_release()
    assert (after.clients, after.elements) == (0, 0)
    assert after.memory - before.memory < GROWTH, f"{before} → {after}"


def _create_failed_run(address: str) -> str:
    """Create a dataset, and a run that fails before Spark is needed. Returns the id of the run."""
    with httpx.Client(base_url=address, timeout=60) as rest:
        response = rest.post("/datasets?name=a.b", content="id\n1\n2\n", headers={"content-type": "text/csv"})
        response.raise_for_status()
        operation = {"type": "append", "parameters": {"source": {"dataset_id": UNKNOWN_ID}}}
        lost = {"name": "lost", "working": {"dataset_id": UNKNOWN_ID}, "operations": [operation]}
        id = rest.post("/pipelines", json=lost).raise_for_status().json()["id"]
        run = str(rest.post(f"/pipelines/{id}/runs").raise_for_status().json()["id"])
        while rest.get(f"/runs/{run}").json()["state"] in ("queued", "running"):
            time.sleep(0.2)
        return run


def _reconnect(address: str, number: int, run: str) -> None:
    """Open a page, lose its connection after it is filled, reconnect, and close it."""
    path, last = list(PAGES.items())[number % len(PAGES)]
    page = httpx.get(f"{address}/ui{path.format(run=run)}").raise_for_status().text
    found = re.search(r"'client_id': '([0-9a-f-]+)'", page)
    assert found, page[-2000:]
    params = {
        "client_id": found[1],
        "document_id": str(uuid4()),
        "tab_id": str(uuid4()),
        "next_message_id": 0,
        "implicit_handshake": "true",
        "EIO": 4,
        "transport": "websocket",
    }
    url = f"{address.replace('http', 'ws', 1)}/ui/_nicegui_ws/socket.io/?{urlencode(params)}"
    for _ in range(2):
        with connect(url, proxy=None) as socket:
            socket.recv(timeout=20)
            socket.send("40")
            received = ""
            while last not in received:
                received += str(socket.recv(timeout=20))
