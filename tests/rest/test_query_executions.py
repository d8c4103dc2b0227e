"""Query executions over REST: list, and cancel while running or waiting."""

import asyncio
import json
import os
import select
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from penstock.cancellation import CancelToken
from penstock.core.caller import Caller, Role
from penstock.errors import Unsupported
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import HttpLimits, RestContext
from penstock.rest.process_group import ProcessGroup
from penstock.rest.route_execution import Lane
from penstock.rest.sibling_executions import SiblingExecutions, execution_handlers
from penstock.service.admission import AsyncAdmissionControl
from penstock.service.queries.execution import QueryExecutor
from penstock.service.queries.executions import ExecutionRegistry
from penstock.service.queries.sandbox import QueryLimits, Sandbox
from rest.rest_client import OTHER_TENANT, TENANT, bearer, check_response, serve, token
from rest.test_query_results import field, register_query

TIMEOUT_SECONDS = 120
LONG_SQL = "SELECT sleep_ms(3600000) AS n"
ENDLESS_SQL = "SELECT count(*) AS n FROM range(100000000000) t(i) WHERE i % 3 = 4"  # the column has a type
LIMITS = QueryLimits(seconds=3_600, cpu_seconds=3_600)


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)
    return value


@dataclass
class QueryService:
    """A server with one query slot, and the processes that its queries have used."""

    address: str
    context: RestContext
    processes: list[int]
    pool: ThreadPoolExecutor

    def send(
        self, method: str, path: str, role: Role = Role.VIEWER, tenant: UUID = TENANT, user: str = "ada", **options: Any
    ) -> httpx.Response:
        headers = {**bearer(token(role, tenant, user)), **options.pop("headers", {})}
        response = httpx.request(method, self.address + path, headers=headers, timeout=TIMEOUT_SECONDS, **options)
        check_response(response)
        return response

    def start(self, id: str, sql: str = LONG_SQL, **caller: Any) -> "Future[httpx.Response]":
        """Preview a statement in the background, and wait until it is listed."""
        headers = {"x-execution-id": id}
        future = self.pool.submit(self.send, "POST", "/queries/preview", json={"sql": sql}, headers=headers, **caller)
        wait_for(lambda: future.done() or id in self.ids(**{**caller, "role": Role.ADMIN}))
        return future

    def ids(self, **caller: Any) -> list[str]:
        return [execution["id"] for execution in self.list(**caller)]

    def list(self, **caller: Any) -> list[dict[str, Any]]:
        response = self.send("GET", "/queries/executions", **caller)
        assert response.status_code == 200, response.text
        value: list[dict[str, Any]] = response.json()["value"]
        return value

    def cancel(self, id: str, **caller: Any) -> httpx.Response:
        return self.send("DELETE", f"/queries/executions/{id}", **caller)


@pytest.fixture(scope="module")
def one_slot_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start one sandbox for all tests of the module. A cancelled query ends its process, not the sandbox."""
    data = str(tmp_path_factory.mktemp("executions") / "data")
    sandbox = Sandbox(data, LIMITS, ready_processes=1, max_running=1, max_waiting=100)
    yield sandbox
    sandbox.close()


@pytest.fixture
def service(
    local_lake: Lake, rest_context: RestContext, one_slot_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[QueryService]:
    sandbox = one_slot_sandbox
    take_process, processes = sandbox._take_process, list[int]()

    def take_recorded_process() -> Any:
        process = take_process()
        processes.append(process[1])
        return process

    monkeypatch.setattr(sandbox, "_take_process", take_recorded_process)
    limits = HttpLimits(response_timeout_seconds=3_600)
    context = replace(rest_context, query_executor=QueryExecutor(local_lake._workspace, sandbox), limits=limits)
    with serve(create_app(context), limits) as address, ThreadPoolExecutor(8) as pool:
        service = QueryService(address, context, processes, pool)
        try:
            yield service
        finally:
            for id in service.ids(role=Role.ADMIN):
                service.cancel(id, role=Role.ADMIN)


def assert_cancelled(response: httpx.Response) -> None:
    assert response.status_code == 409, response.text
    assert response.json()["code"] == "QUERY_CANCELLED"
    assert "retry-after" not in response.headers


def assert_ended(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], TIMEOUT_SECONDS)[0], "the sandbox process runs"
    finally:
        os.close(descriptor)


def test_cancel_kills_the_running_query_and_frees_its_slot(service: QueryService) -> None:
    id, waiting_id = str(uuid4()), str(uuid4())
    running = service.start(id)
    (process,) = wait_for(lambda: service.processes)
    waiting = service.start(waiting_id)
    executions = service.list()
    assert [execution["id"] for execution in executions] == [id, waiting_id]
    assert [(execution["query"], execution["user"]) for execution in executions] == [("preview", "ada")] * 2
    assert executions[0]["seconds"] >= executions[1]["seconds"]
    assert service.cancel(waiting_id).status_code == 204
    assert_cancelled(waiting.result(TIMEOUT_SECONDS))
    assert service.processes == [process]  # the waiting query had no process
    assert service.ids() == [id]
    assert not running.done()
    assert service.cancel(id).status_code == 204
    assert_cancelled(running.result(TIMEOUT_SECONDS))
    assert_ended(process)
    assert service.list() == []
    response = service.send("POST", "/queries/preview", json={"sql": "SELECT 1 AS n"})
    assert response.json()["value"] == [{"n": 1}]
    assert str(UUID(response.headers["x-execution-id"])) == response.headers["x-execution-id"]
    assert service.context.executor.counts()["compute"] == (0, 0)


def test_cancel_registered_query_shows_its_name_and_is_audited(service: QueryService, local_lake: Lake) -> None:
    def client(method: str, path: str, *, code: int = 200, **options: Any) -> httpx.Response:
        response = service.send(method, path, Role.ADMIN, **options)
        assert response.status_code == code, response.text
        return response

    path = register_query(client, ENDLESS_SQL, [field("n")], name="long one")  # type: ignore[arg-type]
    id = str(uuid4())
    future = service.pool.submit(service.send, "GET", path, headers={"x-execution-id": id})
    wait_for(lambda: [execution["query"] for execution in service.list()] == ["long one"])
    assert service.cancel(id, role=Role.ADMIN, user="eve").status_code == 204
    assert_cancelled(future.result(TIMEOUT_SECONDS))
    with sqlite3.connect(str(local_lake._workspace.db.url.database)) as catalog:
        rows = catalog.execute("SELECT author, action, detail FROM audit WHERE action LIKE 'query.%'").fetchall()
    details = {action: (author, json.loads(detail)) for author, action, detail in rows}
    assert details["query.run"][0] == "ada"
    assert details["query.run"][1]["refusal"] == "query_cancelled"
    author, detail = details["query.cancel"]
    assert (author, detail["execution_id"], detail["query"], detail["user"]) == ("eve", id, "long one", "ada")


def test_cancel_of_an_execution_that_is_not_visible_equals_an_unknown_one(service: QueryService) -> None:
    id, unknown = str(uuid4()), str(uuid4())
    running = service.start(id)
    callers: dict[str, dict[str, Any]] = {
        "another user": {"user": "bob", "role": Role.DEVELOPER},
        "admin of another tenant": {"tenant": OTHER_TENANT, "role": Role.ADMIN},
    }
    for caller in callers.values():
        assert service.list(**caller) == []
        responses = [service.cancel(path, **caller) for path in (id, unknown, "malformed", "x" * 5_000, "%00")]
        bodies = [response.json() for response in responses]
        assert {response.status_code for response in responses} == {404}
        assert all(body.pop("instance") for body in bodies)
        assert all(body == bodies[0] for body in bodies)
    assert service.ids() == service.ids(user="eve", role=Role.ADMIN) == [id]
    assert service.cancel(id, user="eve", role=Role.ADMIN).status_code == 204
    assert_cancelled(running.result(TIMEOUT_SECONDS))
    assert service.cancel(id).json()["code"] == "EXECUTION_NOT_FOUND"


def test_execution_id_chosen_twice_conflicts_and_other_tenants_may_use_it(service: QueryService) -> None:
    id = str(uuid4())
    running = service.start(id)
    for user in ("ada", "bob"):
        response = service.start(id, user=user, sql="SELECT 1").result(TIMEOUT_SECONDS)
        assert (response.status_code, response.json()["code"]) == (409, "EXECUTION_EXISTS")
    other = service.start(id, tenant=OTHER_TENANT)
    assert service.cancel(id).status_code == 204
    assert_cancelled(running.result(TIMEOUT_SECONDS))
    assert service.ids(tenant=OTHER_TENANT) == [id]
    assert service.cancel(id, tenant=OTHER_TENANT).status_code == 204
    assert_cancelled(other.result(TIMEOUT_SECONDS))


@pytest.mark.parametrize("id", ["", "x", "0" * 32, f"{{{TENANT}}}", f"{TENANT}, {OTHER_TENANT}", "9" * 20_000])
def test_malformed_execution_id_is_rejected_before_the_query_runs(service: QueryService, id: str) -> None:
    response = service.start(id).result(TIMEOUT_SECONDS)
    assert (response.status_code, response.json()["code"]) == (400, "BAD_EXECUTION_ID")
    assert service.processes == []


def test_repeated_execution_id_header_is_rejected(service: QueryService) -> None:
    headers = [("x-execution-id", str(uuid4()))] * 2 + [*bearer(token()).items()]
    response = httpx.post(f"{service.address}/queries/preview", json={"sql": "SELECT 1"}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "BAD_EXECUTION_ID")


def test_disconnected_client_leaves_no_execution(service: QueryService) -> None:
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{service.address}/queries/preview", json={"sql": LONG_SQL}, headers=bearer(token()), timeout=1)
    wait_for(lambda: not service.list())
    for process in service.processes:
        assert_ended(process)


def test_request_that_waits_for_its_lane_can_be_cancelled(service: QueryService) -> None:
    control = AsyncAdmissionControl(1, 8)
    service.context.executor._admission[Lane.COMPUTE] = control
    ids = [str(uuid4()) for _ in range(3)]
    futures = [service.start(id) for id in ids]
    assert (control.running, control.waiting) == (1, 2)
    for id, future in [*zip(ids, futures, strict=True)][::-1]:
        assert service.cancel(id).status_code == 204
        assert_cancelled(future.result(TIMEOUT_SECONDS))
    wait_for(lambda: (control.running, control.waiting) == (0, 0))


def test_hundreds_of_executions_are_listed_and_cancelled(service: QueryService) -> None:
    """Send many requests: the server responds to each, above the limits with 429 or 503, and no execution remains."""
    ids = [str(uuid4()) for _ in range(300)]

    async def storm() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=service.address, timeout=TIMEOUT_SECONDS, limits=limits) as client:

            async def run(n: int, id: str) -> int:
                headers = {**bearer(token(user=f"user-{n % 40}")), "x-execution-id": id}
                response = await client.post("/queries/preview", json={"sql": LONG_SQL}, headers=headers)
                return response.status_code

            tasks = [asyncio.create_task(run(n, id)) for n, id in enumerate(ids)]
            admin = bearer(token(Role.ADMIN))
            while not all(task.done() for task in tasks):
                active = (await client.get("/queries/executions", headers=admin)).json()["value"]
                assert len(active) <= 200
                for execution in active:
                    response = await client.delete(f"/queries/executions/{execution['id']}", headers=admin)
                    assert response.status_code in (204, 404)
            return await asyncio.gather(*tasks)

    statuses = asyncio.run(storm())
    assert set(statuses) <= {409, 429, 503}
    assert 409 in statuses
    assert service.list() == []
    assert service.send("POST", "/queries/preview", json={"sql": "SELECT 1 AS n"}).status_code == 200


def test_query_named_executions_is_found_by_its_id(service: QueryService) -> None:
    def client(method: str, path: str, *, code: int = 200, **options: Any) -> httpx.Response:
        response = service.send(method, path, Role.ADMIN, **options)
        assert response.status_code == code, response.text
        return response

    path = register_query(client, "SELECT 1 AS n", [field("n")], name="executions")  # type: ignore[arg-type]
    assert service.list() == []
    assert client("GET", path.removesuffix("/results")).json()["name"] == "executions"
    assert client("GET", "/queries/executions/results").json()["value"] == [{"n": 1}]


def test_sibling_processes_list_and_cancel_the_executions_of_each_other(tmp_path: Path) -> None:
    ada = Caller(TENANT, uuid4(), "ada \udc00 é", Role.VIEWER)
    bob = Caller(TENANT, uuid4(), "bob", Role.DEVELOPER)
    other_admin = Caller(OTHER_TENANT, ada.user, "ada", Role.ADMIN)
    folder = Path(f"/tmp/penstock-{os.getpid()}")  # the path of a socket is short
    folder.mkdir()
    try:
        first, second = (ProcessGroup(str(folder), index, 2) for index in range(2))
        registry, siblings = ExecutionRegistry(), SiblingExecutions(second)
        first.listen(execution_handlers(registry))
        cancel_token = CancelToken()
        with pytest.raises(Unsupported, match="cancelled"), registry.register(ada, "totals", cancel_token) as execution:
            assert [record.id for record in siblings.list(ada)] == [execution.id]
            assert siblings.list(ada)[0].user == ada.name
            for caller in (bob, other_admin):
                assert siblings.list(caller) == []
                assert siblings.cancel(caller, execution.id) is None
            assert first.fetch_others("cancel_execution") == []  # the second process does not respond
            assert second.fetch_others("unknown") == [b""]
            assert not cancel_token.is_cancelled
            assert siblings.cancel(ada, uuid4()) is None
            cancelled = siblings.cancel(ada, execution.id)
            assert cancelled
            assert cancelled.query == "totals"
        assert siblings.list(ada) == []
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
