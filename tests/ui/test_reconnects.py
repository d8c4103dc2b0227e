"""Pages come and go, and sockets break: nothing of them stays in the service."""

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
GROWTH = 8 << 20  # bytes: what an allocator keeps depends on how many pages were open at once, which is never the same
AFTER = 90.0  # seconds until all who left are forgotten: they may come back for thirty, and nobody looks at once
PAGES = {  # and what is told last of each
    "/queries/new": "Save as a registered query",
    "/queries": "There is no query in these states",
    "/schemas": "States",
    "/datasets/a.b": "Rows of a.b",
    "/runs/{run}": "The pipeline as it was when it ran",
}
NOBODY = "00000000-0000-4000-8000-000000000000"

# The service as it is, with somebody inside who answers how much of the pages is there.
WATCHED = """
import gc, json, sys, threading
from nicegui import Client, ui
from penstock.cli import main

def tell():
    for _ in sys.stdin:
        gc.collect()
        elements = sum(isinstance(each, ui.element) for each in gc.get_objects())
        memory = int(open("/proc/self/statm").read().split()[1]) * 4096
        print(json.dumps({"clients": len(Client.instances), "elements": elements, "memory": memory}), flush=True)

threading.Thread(target=tell, daemon=True).start()
main()
"""


@dataclass(frozen=True)
class Inside:
    clients: int
    elements: int
    memory: int


@dataclass(frozen=True)
class Watched:
    address: str
    process: subprocess.Popen[str]

    def inside(self) -> Inside:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Inside(**json.loads(self.process.stdout.readline()))

    def when_all_have_left(self) -> Inside:
        end = time.monotonic() + AFTER
        while (found := self.inside()).elements and time.monotonic() < end:
            time.sleep(0.5)
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    for service in serve(tmp_path, "--dev", command=(sys.executable, "-c", WATCHED)):
        yield Watched(service.address, service.process)


def test_a_hundred_reconnects_leave_nothing_behind(watched: Watched) -> None:
    run = _made(watched.address)
    for number in range(RECONNECTS):  # a first time, for all that is loaded once
        _come_back(watched.address, number, run)
    before = watched.when_all_have_left()
    for number in range(RECONNECTS):
        _come_back(watched.address, number, run)
    assert watched.inside().elements > 100  # so that what is counted is what is meant
    after = watched.when_all_have_left()
    assert (after.clients, after.elements) == (0, 0)
    assert after.memory - before.memory < GROWTH, f"{before} → {after}"


def _made(address: str) -> str:
    """A dataset, and a run that fails before Spark is needed; its id."""
    with httpx.Client(base_url=address, timeout=60) as rest:
        made = rest.post("/datasets?name=a.b", content="id\n1\n2\n", headers={"content-type": "text/csv"})
        made.raise_for_status()
        operation = {"type": "append", "parameters": {"source": {"dataset_id": NOBODY}}}
        lost = {"name": "lost", "working": {"dataset_id": NOBODY}, "operations": [operation]}
        id = rest.post("/pipelines", json=lost).raise_for_status().json()["id"]
        run = str(rest.post(f"/pipelines/{id}/runs").raise_for_status().json()["id"])
        while rest.get(f"/runs/{run}").json()["state"] in ("queued", "running"):
            time.sleep(0.2)
        return run


def _come_back(address: str, number: int, run: str) -> None:
    """Open a page, lose its socket once it is filled, get it back, and leave."""
    path, last = list(PAGES.items())[number % len(PAGES)]
    page = httpx.get(f"{address}/ui{path.format(run=run)}").raise_for_status().text
    found = re.search(r"'client_id': '([0-9a-f-]+)'", page)
    assert found, page[-2000:]
    asked = {
        "client_id": found[1],
        "document_id": str(uuid4()),
        "tab_id": str(uuid4()),
        "next_message_id": 0,
        "implicit_handshake": "true",
        "EIO": 4,
        "transport": "websocket",
    }
    at = f"{address.replace('http', 'ws', 1)}/ui/_nicegui_ws/socket.io/?{urlencode(asked)}"
    for _ in range(2):
        with connect(at, proxy=None) as socket:
            socket.recv(timeout=20)
            socket.send("40")
            heard = ""
            while last not in heard:
                heard += str(socket.recv(timeout=20))
