"""`penstock serve --processes N`: several processes on one port, shared metrics, restarts, and shutdown."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import httpx
import pyarrow.flight as flight
import pytest

from penstock.rest.process_group import merge_metrics

TIMEOUT_SECONDS = 120
LONG_QUERIES = {"PENSTOCK_QUERY_SECONDS": "3600", "PENSTOCK_HTTP_ANSWER_SECONDS": "3600"}


def wait_for(condition: Callable[[], bool], description: str) -> None:
    deadline = monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert monotonic() < deadline, f"timeout: {description}"
        sleep(0.05)


class Group:
    def __init__(self, folder: Path, *options: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        command = ["serve", "--dev", "--workspace", "lake", "--http-port", "0", "--flight-port", "0", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from penstock.cli import main; main()", *command, *options],
            cwd=folder,
            env={**environment, "PENSTOCK_DURABLE": "no", **LONG_QUERIES},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            text += line
        self.addresses: dict[str, Any] = json.loads(text)

    @property
    def http(self) -> str:
        return str(self.addresses["http"])

    def children(self) -> list[int]:
        """Return the ids of the server processes that run."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [pid for pid in map(int, task.read_text().split()) if is_running(pid) and is_server(pid)]


def is_server(pid: int) -> bool:
    return b"--child" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def group(folder: Path, *options: str) -> Iterator[Group]:
    opened = Group(folder, "--processes", "2", *options)
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
        opened.process.communicate()


def served_requests(address: str) -> float:
    text = httpx.get(f"{address}/metrics").text
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("penstock_http_requests_total{")
    )


def test_processes_share_ports_metrics_and_workspace(tmp_path: Path) -> None:
    with group(tmp_path, "--no-ui", "--no-runs") as server:
        assert len(server.children()) == 2
        created = httpx.post(
            f"{server.http}/datasets", json={"name": "a.b", "schema": [{"name": "id", "type": "int64"}]}
        )
        assert created.status_code == 201

        def fetch(_n: int) -> list[str]:
            return [dataset["name"] for dataset in httpx.get(f"{server.http}/datasets").json()["value"]]

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(fetch, range(100))) == [["a.b"]] * 100
        assert served_requests(server.http) >= 101  # of both processes
        for _ in range(4):
            with flight.connect(server.addresses["flight"]) as client:
                assert [info.descriptor.path for info in client.list_flights()] == [[b"a", b"b"]]
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=TIMEOUT_SECONDS)
        assert server.process.returncode == 0, err
        assert "Traceback" not in err


def test_query_is_listed_and_cancelled_through_any_process(tmp_path: Path) -> None:
    with group(tmp_path, "--no-ui", "--no-runs", "--no-flight") as server, ThreadPoolExecutor(4) as pool:
        url = f"{server.http}/queries/executions"

        def preview(id: str) -> httpx.Response:
            return httpx.post(
                f"{server.http}/queries/preview",
                json={"sql": "SELECT sleep_ms(3600000)"},
                headers={"x-execution-id": id},
                timeout=TIMEOUT_SECONDS,
            )

        def ids() -> set[str]:
            return {execution["id"] for execution in httpx.get(url, timeout=TIMEOUT_SECONDS).json()["value"]}

        started = {str(uuid4()) for _ in range(4)}
        futures = [pool.submit(preview, id) for id in started]
        wait_for(lambda: ids() == started, "all executions in the list of any process")
        for id in started:
            responses = [httpx.delete(f"{url}/{id}", timeout=TIMEOUT_SECONDS) for _ in range(2)]
            assert responses[0].status_code == 204
            assert responses[1].status_code in (204, 404)  # the query may end later
        assert {future.result(TIMEOUT_SECONDS).json()["code"] for future in futures} == {"QUERY_CANCELLED"}
        assert ids() == set()
        assert served_requests(server.http) > 0


def test_dead_process_is_restarted_and_other_processes_continue(tmp_path: Path) -> None:
    with group(tmp_path, "--no-ui", "--no-runs", "--no-flight") as server:
        first, second = server.children()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: first not in server.children(), "the end of the process")
        assert httpx.get(f"{server.http}/readyz", timeout=TIMEOUT_SECONDS).status_code == 200
        wait_for(lambda: len(server.children()) == 2, "a new process")
        assert second in server.children()


def test_processes_stop_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with group(tmp_path, "--no-ui", "--no-runs", "--no-flight") as server:
        children = server.children()
        server.process.kill()
        wait_for(lambda: not any(is_running(pid) for pid in children), "the end of the processes")


def test_page_is_served_by_one_process_on_its_own_port(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    with group(tmp_path, "--no-runs", "--no-flight", "--page-port", "0") as server:
        for _ in range(4):
            response = httpx.get(f"{server.http}/ui", timeout=TIMEOUT_SECONDS)
            assert response.status_code == 307
            page = httpx.get(response.headers["location"], timeout=TIMEOUT_SECONDS, follow_redirects=True)
            assert page.status_code == 200
            assert "Penstock" in page.text


def test_processes_with_a_bad_workspace_report_one_error(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from penstock.cli import main; main()",
            "serve",
            "--dev",
            "-w",
            "lake",
            "--processes",
            "2",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_merge_metrics_adds_samples_and_keeps_equal_gauges() -> None:
    first = b'# TYPE a counter\na_total{x="1"} 2.0\na_created{x="1"} 5.0\npenstock_runs_queued 3.0\n'
    two = b'# TYPE a counter\na_total{x="1"} 1.0\na_total{x="2"} 4.0\na_created{x="1"} 6.0\npenstock_runs_queued 3.0\n'
    merged = merge_metrics([first, two]).decode().splitlines()
    assert merged == [
        "# TYPE a counter",
        'a_total{x="1"} 3.0',
        'a_created{x="1"} 6.0',
        "penstock_runs_queued 3.0",
        'a_total{x="2"} 4.0',
    ]
