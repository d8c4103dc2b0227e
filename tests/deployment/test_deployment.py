"""Two servers, two workers, PostgreSQL and a Spark cluster; one server and one worker are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

import penstock
from deployment.balancer import balanced
from penstock.core.caller import Role
from penstock.errors import CommitStateUnknown, PenstockError, Unavailable
from penstock.lake import Lake
from penstock.service.auth.tokens import mint
from support import spark_sessions
from support.workspaces import WorkspaceFixture

SECRET = "a secret of enough bytes, for a small cluster"
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
PORTS = ("--http-port", "0", "--flight-port", "0", "--json")
TIMEOUT_SECONDS = 240.0
RETRY_SECONDS = 0.1  # pause before a request is repeated
MOVED_AMOUNT = 77  # the amount of ledger rows that also have a journal row
STOCK_ITEMS = 5  # rows that are merged repeatedly
BALANCE = f"""SELECT (SELECT count(*) FROM shop.ledger WHERE amount = {MOVED_AMOUNT}) - (SELECT count(*) FROM shop.journal) AS difference"""


@pytest.fixture
def workspace(tmp_path: Path, postgres_url: str) -> WorkspaceFixture:
    return WorkspaceFixture.make(tmp_path / "lake", postgres_url)


def test_killed_server_and_worker_lose_no_data(
    workspace: WorkspaceFixture, spark_cluster: spark_sessions.Cluster
) -> None:
    tenant = uuid4()
    token = mint(
        SECRET, tenant=tenant, user="ada", roles=[Role.ADMIN.claim], ttl=timedelta(hours=1), now=datetime.now(UTC)
    )
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start_process(workspace, "serve", "--no-runs", "--no-ui", *PORTS)) for _ in range(2)
        ]
        addresses = [json.loads("".join(iter(server.stdout.readline, "}\n")) + "}") for server in servers]  # type: ignore[union-attr, arg-type]
        http, flight = (
            stack.enter_context(balanced([_port(address[protocol]) for address in addresses]))
            for protocol in ("http", "flight")
        )
        workers = [
            stack.enter_context(start_process(workspace, "worker", "--at-once", "1", **spark_settings(spark_cluster)))
            for _ in range(2)
        ]
        client = stack.enter_context(RetryingClient(http, token))
        operator_lake = stack.enter_context(workspace.open())
        lake = Lake(
            operator_lake._workspace,
            replace(operator_lake.caller, tenant=tenant),
            operator_lake._folder,
            operator_lake._query_executor,
        )

        datasets = {
            name: client("POST", "/datasets", params={"name": f"shop.{name}"}, content=f"id,amount\n{rows}".encode()).json()
            for name, rows in {
                "ledger": "0,0\n", "journal": "0,0\n", "news": "-1,5\n-2,7\n", "stock": "0,0\n", "fixes": "-1,50\n-2,70\n",
            }.items()
        }  # fmt: skip
        lake.dataset("shop.journal").overwrite({"id": [], "amount": []})
        lake.register("balance", BALANCE, [{"name": "difference", "type": "number"}])
        append_news = operation("append", datasets["ledger"], datasets["news"])
        merge_fixes = operation("merge", datasets["stock"], datasets["fixes"], key_columns="id", strategy="upsert")
        runs = [
            client("POST", f"/pipelines/{pipeline}/runs", key=f"run {n} of {pipeline}").json()["id"]
            for pipeline in [
                client("POST", "/pipelines", json=address).json()["id"] for address in (append_news, merge_fixes)
            ]
            for n in range(2)
        ]

        # The first connection goes to the first server; gRPC uses it until the server is killed.
        load = Load(http, flight.replace("http://", "grpc://"), token, lake)
        threads = load.start_threads()
        wait_until(lambda: load.has_done(3))
        servers[0].kill()
        worker, lost_run_id = wait_until(lambda: suspend_running_worker(workspace, workers))
        worker.kill()
        before = Counter(load.done)
        wait_until(lambda: load.has_done(5, since=before))
        ended = [wait_until(lambda run=run: ended_run(client("GET", f"/runs/{run}").json())) for run in runs]  # type: ignore[misc]
        load.stopped.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)

        assert [run["state"] for run in ended] == ["succeeded"] * len(runs), ended
        assert len({run["written"][0]["version"] for run in ended if run["name"] == "append"}) == 2
        assert tries(workspace)[lost_run_id] >= 2
        ledger, journal, stock = (lake.dataset(f"shop.{name}").to_arrow() for name in ("ledger", "journal", "stock"))
        moved = set(journal["id"].to_pylist())
        assert set(load.moved) <= moved <= {*load.moved, *load.perhaps_moved}
        assert sorted(ledger["id"].to_pylist()) == sorted([0, *load.written, *moved, *[-1, -2] * 2])
        assert sorted(stock.to_pylist(), key=lambda row: row["id"]) == [
            {"id": id, "amount": amount} for id, amount in sorted({-2: 70, -1: 50, 0: 0, **load.stock}.items())
        ]


@dataclass
class Load:
    """Concurrent clients that repeat their requests, and the acknowledged results."""

    http: str
    flight: str
    token: str
    lake: Lake
    stopped: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    written: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    perhaps_moved: list[int] = field(default_factory=list)  # their outcome is unknown
    stock: dict[int, int] = field(default_factory=dict)

    def start_threads(self) -> list[threading.Thread]:
        requests = (self.append, self.append, self.insert, self.move, self.merge, self.ask)
        threads = [
            threading.Thread(target=self._repeat, args=(request, n * 1_000_000), daemon=True)
            for n, request in enumerate(requests, 1)
        ]
        for thread in threads:
            thread.start()
        return threads

    def has_done(self, times: int, since: Counter[str] | None = None) -> bool:
        return all(
            self.done[request] - (since or Counter())[request] >= times
            for request in ("append", "insert", "move", "merge", "ask")
        )

    def _repeat(self, request: Callable[["RetryingClient", Any, int], None], number: int) -> None:
        with RetryingClient(self.http, self.token) as client, penstock.flight_client(self.flight, self.token) as tables:
            while not self.stopped.wait(RETRY_SECONDS):
                number += 1
                request(client, tables, number)

    def append(self, client: "RetryingClient", _tables: Any, number: int) -> None:
        client("POST", "/datasets/shop.ledger/rows", key=f"row {number}", content=f"id,amount\n{number},1\n".encode())
        self.written.append(number)
        self.done["append"] += 1

    def insert(self, _client: "RetryingClient", tables: Any, number: int) -> None:
        """Insert over Flight, and repeat the request with its key until the server responds."""

        def try_insert() -> Any:
            try:
                return tables.insert("shop.ledger", {"id": [number], "amount": [1]}, idempotency_key=f"row {number}")
            except (Unavailable, CommitStateUnknown):
                return None

        wait_until(try_insert)
        self.written.append(number)
        self.done["insert"] += 1

    def move(self, _client: "RetryingClient", tables: Any, number: int) -> None:
        """Insert into two tables in one transaction. A transaction without response is not repeated; its outcome is unknown."""
        try:
            with tables.transaction() as tx:
                tx.insert("shop.ledger", {"id": [number], "amount": [MOVED_AMOUNT]})
                tx.insert("shop.journal", {"id": [number], "amount": [MOVED_AMOUNT]})
        except PenstockError:  # the server was killed; the next server rejects transactions of the killed server
            self.perhaps_moved.append(number)
        else:
            self.moved.append(number)
            self.done["move"] += 1

    def merge(self, _client: "RetryingClient", _tables: Any, number: int) -> None:
        """Merge from a program that shares the catalog and the folder while others merge on Spark."""
        id = 1 + number % STOCK_ITEMS
        self.lake.dataset("shop.stock").merge({"id": [id], "amount": [number]}, "id", "upsert")
        self.stock[id] = number
        self.done["merge"] += 1

    def ask(self, client: "RetryingClient", _tables: Any, _number: int) -> None:
        """Query two tables of one transaction and assert that their states match."""
        assert client("GET", "/queries/balance/results").json()["value"] == [{"difference": 0}]
        self.done["ask"] += 1


@contextmanager
def start_process(location: WorkspaceFixture, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTEST_"))}
    settings = {
        "PENSTOCK_WORKSPACE": location.folder,
        "PENSTOCK_DATABASE_URL": location.url or "",
        "PENSTOCK_JWT_SECRET": SECRET,
        "PENSTOCK_DURABLE": "no",
    }
    with subprocess.Popen(
        [PENSTOCK, *words],
        env={**environment, **settings, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def spark_settings(cluster: spark_sessions.Cluster) -> dict[str, str]:
    """Return settings with one Spark core for each run worker."""
    conf = {**cluster.conf(), "spark.cores.max": "1"}
    return {
        "PENSTOCK_SPARK_MASTER": cluster.master,
        "PENSTOCK_SPARK_CONF": "; ".join(f"{name}={value}" for name, value in conf.items()),
    }


class RetryingClient:
    """A client that repeats unanswered requests with their idempotency key."""

    def __init__(self, address: str, token: str) -> None:
        self._client = httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30)

    def __call__(self, method: str, path: str, *, key: str | None = None, **options: Any) -> httpx.Response:
        content_headers = {"content-type": "text/csv"} if "content" in options else {}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                headers = (
                    {**content_headers, "idempotency-key": key or str(uuid4())} if method == "POST" else content_headers
                )
                response = self._client.request(method, path, headers=headers, **options)
                if response.status_code < 500:
                    assert response.is_success, response.text
                    return response
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline
            time.sleep(RETRY_SECONDS)

    def __enter__(self) -> "RetryingClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def operation(operation_type: str, working: Any, source: Any, **parameters: Any) -> dict[str, Any]:
    """Return a pipeline of one operation."""
    step = {"type": operation_type, "parameters": {"source": {"dataset_id": source["id"]}, **parameters}}
    return {"name": operation_type, "working": {"dataset_id": working["id"]}, "operations": [step]}


def suspend_running_worker(
    location: WorkspaceFixture, workers: list[subprocess.Popen[str]]
) -> tuple[subprocess.Popen[str], str] | None:
    """Suspend a worker during an operation; return the worker and the id of its run."""
    for row in rows_of(
        location, "SELECT id, worker FROM pipeline_runs WHERE state = 'running' AND progress IS NOT NULL"
    ):
        worker = next((candidate for candidate in workers if candidate.pid == int(row.worker.rpartition(" ")[2])), None)
        if worker is None:
            continue
        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # statements that it has sent are executed
        running = rows_of(location, "SELECT id, worker FROM pipeline_runs WHERE state = 'running'")
        if (row.id, row.worker) in {(candidate.id, candidate.worker) for candidate in running}:
            return worker, str(row.id)
        worker.send_signal(signal.SIGCONT)  # that run had just ended
    return None


def tries(location: WorkspaceFixture) -> dict[str, int]:
    return {str(row.id): row.attempts for row in rows_of(location, "SELECT id, attempts FROM pipeline_runs")}


def rows_of(location: WorkspaceFixture, statement: str) -> Any:
    with location.open() as lake, lake._workspace.db.connect_without_tenant() as connection:
        return connection.exec_driver_sql(statement).all()


def _port(address: str) -> tuple[str, int]:
    return "127.0.0.1", int(address.rpartition(":")[2])


def ended_run(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["ended_at"] else None


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return result
