"""Beyond one machine, on one: PostgreSQL, two servers behind an address, two workers, a cluster of Spark; and two die."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

import penstock
import spark
from edges.balancer import balanced
from penstock.core.caller import Role
from penstock.service.tokens import mint
from places import Place

SECRET = "a secret of enough bytes, for a small cluster"
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
WRITERS, RUNS = 3, 4
PATIENCE = 240.0  # seconds


@pytest.fixture
def place(tmp_path: Path, postgres_url: str) -> Place:
    return Place.make(tmp_path / "lake", postgres_url)


def test_a_server_and_a_worker_die_and_nothing_is_lost(place: Place, spark_cluster: spark.Cluster) -> None:
    tenant = uuid4()
    token = mint(
        SECRET, tenant=tenant, user="ada", roles=[Role.ADMIN.wire], ttl=timedelta(hours=1), now=datetime.now(UTC)
    )
    with ExitStack() as stack:
        servers = [stack.enter_context(started(place, "serve", "--no-runs", "--no-ui", *PORTS)) for _ in range(2)]
        told = [json.loads("".join(iter(server.stdout.readline, "}\n")) + "}") for server in servers]  # type: ignore[union-attr, arg-type]
        ports = [int(each["http"].rpartition(":")[2]) for each in told]
        workers = [
            stack.enter_context(started(place, "worker", "--at-once", "1", **on(spark_cluster))) for _ in range(2)
        ]
        address = stack.enter_context(balanced([("127.0.0.1", port) for port in ports]))
        client = stack.enter_context(Persistent(address, token))

        ledger = client("POST", "/datasets", params={"name": "shop.ledger"}, content=b"id,amount\n0,0\n").json()
        news = client("POST", "/datasets", params={"name": "shop.news"}, content=b"id,amount\n-1,5\n-2,7\n").json()
        append = {"type": "append", "parameters": {"source": {"dataset_id": news["id"]}}}
        definition = {"name": "news", "working": {"dataset_id": ledger["id"]}, "operations": [append]}
        pipeline = client("POST", "/pipelines", json=definition).json()["id"]
        runs = [client("POST", f"/pipelines/{pipeline}/runs", key=f"run {n}").json()["id"] for n in range(RUNS)]

        enough, written = threading.Event(), list[int]()
        writing = [
            threading.Thread(target=append_rows, args=(address, token, n, enough, written)) for n in range(WRITERS)
        ]
        flying = threading.Thread(target=insert_rows, args=(told[1]["flight"], token, enough, written))
        for thread in (*writing, flying):
            thread.start()

        until(lambda: len(written) > 20)
        servers[0].kill()
        holder = until(lambda: running_at(place, {worker.pid for worker in workers}))
        next(worker for worker in workers if worker.pid == holder).kill()
        after = len(written)
        until(lambda: len(written) > after + 20)
        ended = [until(lambda run=run: over(client("GET", f"/runs/{run}").json())) for run in runs]  # type: ignore[misc]
        enough.set()
        for thread in (*writing, flying):
            thread.join(60)

        assert [run["state"] for run in ended] == ["succeeded"] * RUNS, ended
        assert len({run["written"][0]["version"] for run in ended}) == RUNS
        with place.open() as lake:
            ada = replace(lake.caller, tenant=tenant)
            seen = penstock.Lake(lake.workspace, ada, lake.home).dataset("shop.ledger").to_arrow()
        ids = sorted(seen["id"].to_pylist())
        assert ids == sorted([0, *written, *[-1, -2] * RUNS])


PORTS = ("--http-port", "0", "--flight-port", "0", "--json")


@contextmanager
def started(place: Place, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    own = {
        "PENSTOCK_WORKSPACE": place.folder,
        "PENSTOCK_DATABASE_URL": place.url or "",
        "PENSTOCK_JWT_SECRET": SECRET,
        "PENSTOCK_DURABLE": "no",
    }
    with subprocess.Popen(
        [PENSTOCK, *words], env={**kept, **own, **env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def on(cluster: spark.Cluster) -> dict[str, str]:
    """A core for each worker's Spark."""
    conf = {**cluster.conf(), "spark.cores.max": "1"}
    return {
        "PENSTOCK_SPARK_MASTER": cluster.master,
        "PENSTOCK_SPARK_CONF": "; ".join(f"{name}={value}" for name, value in conf.items()),
    }


class Persistent:
    """A client that sends again what was not answered, under its key: what a client of a cluster has to do."""

    def __init__(self, address: str, token: str) -> None:
        self._client = httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30)

    def __call__(self, method: str, path: str, *, key: str | None = None, **options: Any) -> httpx.Response:
        kind = {"content-type": "text/csv"} if "content" in options else {}
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                headers = {**kind, "idempotency-key": key or str(uuid4())} if method == "POST" else kind
                answer = self._client.request(method, path, headers=headers, **options)
                if answer.status_code < 500:
                    assert answer.is_success, answer.text
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline

    def __enter__(self) -> "Persistent":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def append_rows(address: str, token: str, writer: int, enough: threading.Event, written: list[int]) -> None:
    with Persistent(address, token) as client:
        for number in range(writer * 1_000_000 + 1, (writer + 1) * 1_000_000):
            if enough.wait(0.05):
                return
            body = f"id,amount\n{number},1\n".encode()
            client("POST", "/datasets/shop.ledger/rows", key=f"row {number}", content=body)
            written.append(number)


def insert_rows(address: str, token: str, enough: threading.Event, written: list[int]) -> None:
    with penstock.flight_client(address, token) as client:
        number = 10_000_000
        while not enough.wait(0.05):
            number += 1
            client.insert("shop.ledger", {"id": [number], "amount": [1]}, key=f"row {number}")
            written.append(number)


def running_at(place: Place, processes: set[int]) -> int | None:
    """The process, one of these, that has a run."""
    with place.open() as lake, lake.workspace.db.raw() as connection:
        rows = connection.exec_driver_sql("SELECT holder FROM pipeline_runs WHERE state = 'running'").all()
    found = {int(row.holder.rpartition(" ")[2]) for row in rows} & processes
    return next(iter(found), None)


def over(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["ended_at"] else None


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found
