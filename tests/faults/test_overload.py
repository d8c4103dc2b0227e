"""One tenant attacks a server: the server still serves another tenant, and its memory stays bounded."""

import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.attacks import ABANDONED, ARROW, ATTACKS, HELD, Attacker
from faults.bystander import Bystander
from faults.overload_server import (
    MIB,
    REQUEST_MEMORY,
    TIMEOUT_SECONDS,
    MemorySampler,
    OverloadServer,
    overload_server,
    wait_for,
)

_REJECTIONS = {"400", "401", "403", "404", "408", "409", "413", "414", "415", "429", "431", "503"}
_SUCCESSES = {"200", "201", "202", "OK", HELD, ABANDONED}
_CODES = {
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED",
    "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "UNIMPLEMENTED",
}  # fmt: skip

# Beyond the budget: stacks and buffers of up to 64 + 32 threads, buffers of sockets and of gRPC, freed memory that the
# allocator has not returned to the system.
_OVERHEAD_BYTES = 160 * MIB


@pytest.fixture(scope="module")
def attacked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverloadServer]:
    with overload_server(tmp_path_factory.mktemp("overload"), "--no-ui") as server:
        yield server


@pytest.fixture(scope="module")
def bystander(attacked_server: OverloadServer) -> Iterator[Bystander]:
    bystander = Bystander(attacked_server)
    bystander.prepare()
    for request in bystander.work().values():
        request()
    yield bystander
    bystander.close()


@pytest.fixture(scope="module")
def prepared(attacked_server: OverloadServer, soak: bool) -> Attacker:
    attacker = Attacker(attacked_server, scale=5 if soak else 1)
    attacker.prepare()
    assert set(attacker.outcomes) == {"201"}, attacker.outcomes
    return attacker


@pytest.fixture(scope="module")
def idle_bytes(attacked_server: OverloadServer, bystander: Bystander, prepared: Attacker) -> int:
    """Return the memory of the server before the first attack."""
    return attacked_server.memory_bytes()


@pytest.mark.usefixtures("idle_bytes")  # measured before the first attack
@pytest.mark.parametrize("name", ATTACKS)
def test_overload_by_one_tenant_leaves_another_tenant_served(
    attacked_server: OverloadServer, bystander: Bystander, prepared: Attacker, name: str
) -> None:
    attack, attacker = ATTACKS[name], prepared.renew()
    start_bytes = attacked_server.memory_bytes()
    thread = threading.Thread(target=attack.run, args=(attacker,), daemon=True)
    with MemorySampler(attacked_server) as sampler:
        thread.start()
        while not attacker.engaged.wait(0.1):
            assert thread.is_alive(), "the attack ended before it began"
        try:
            for request in bystander.work().values():
                request()
        finally:
            attacker.released.set()
            thread.join()
        attacked_server.wait_until_idle()
    assert attacker.outcomes, "no request was sent"
    unexpected = {
        outcome for outcome in attacker.outcomes if outcome.split()[0] not in _SUCCESSES | _REJECTIONS | _CODES
    }
    assert unexpected == set(), attacker.outcomes
    bound = start_bytes + REQUEST_MEMORY + attack.working_bytes + _OVERHEAD_BYTES
    assert sampler.peak_bytes <= bound, (sampler.peak_bytes // MIB, bound // MIB, attacker.outcomes)
    for request in bystander.work().values():
        request()
    assert attacked_server.process.poll() is None


def test_overload_leaves_no_memory_behind(attacked_server: OverloadServer, idle_bytes: int) -> None:
    bound = idle_bytes * 11 // 10 + 16 * MIB  # the server does not look for less than 16 MiB
    wait_for(
        lambda: attacked_server.memory_bytes() <= bound,
        lambda: f"{attacked_server.memory_bytes() // MIB} MiB, and {idle_bytes // MIB} MiB before the attacks",
    )


def test_overload_logs_no_unexpected_exception(attacked_server: OverloadServer) -> None:
    assert [line for line in attacked_server.log_lines() if line["level"] in ("error", "critical")] == []


def test_readers_that_stall_until_the_server_aborts_leave_no_memory_and_no_connection(tmp_path: Path) -> None:
    """The clients do not close the connections: the server must release the responses that they do not receive."""
    settings = {"PENSTOCK_HTTP_ANSWER_SECONDS": "5"}
    with overload_server(tmp_path, "--no-ui", **settings) as server, MemorySampler(server) as sampler:
        attacker = Attacker(server)
        attacker.prepare()
        server.wait_until_idle()
        start_bytes, start_files = server.memory_bytes(), server.open_files()
        request = attacker.head("GET", f"/datasets/{attacker.resources['dataset']}/rows", accept=ARROW)
        page = attacker.head("GET", "/docs/swagger-ui-bundle.js")
        with ExitStack() as stack:
            for _ in range(3):
                for _ in range(50):
                    stack.enter_context(attacker.connect(request, receive_bytes=4_096))
                    stack.enter_context(attacker.connect(page * 4, receive_bytes=4_096))
                # The catalog opens connections, and threads open files, at the same time.
                wait_for(lambda: server.open_files() <= start_files + 40, server.open_files)
        server.wait_until_idle()
        assert sampler.peak_bytes <= start_bytes + REQUEST_MEMORY + _OVERHEAD_BYTES, sampler.peak_bytes // MIB
        assert [line for line in server.log_lines() if line["level"] in ("error", "critical")] == []


def test_pages_that_never_connect_are_rejected_and_other_requests_served(tmp_path: Path) -> None:
    with overload_server(tmp_path) as server, MemorySampler(server) as sampler:
        outcomes = Counter[int]()

        def open_page(_n: int) -> None:
            try:
                with urllib.request.urlopen(f"http://{server.http}/ui/", timeout=TIMEOUT_SECONDS) as response:
                    outcomes[response.status] += 1
            except urllib.error.HTTPError as error:
                outcomes[error.code] += 1

        open_page(0)
        start_bytes = server.memory_bytes()
        with ThreadPoolExecutor(8) as pool:
            pages = [pool.submit(open_page, n) for n in range(400)]
            for path in ("/healthz", "/readyz"):
                with urllib.request.urlopen(f"http://{server.http}{path}", timeout=TIMEOUT_SECONDS) as response:
                    assert response.status == 200
            for page in pages:
                page.result()
        assert outcomes.keys() == {200, 503}, outcomes
        assert outcomes[200] < 100, outcomes
        assert sampler.peak_bytes <= start_bytes + 64 * MIB, sampler.peak_bytes // MIB
