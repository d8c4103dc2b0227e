"""Benchmark `penstock serve` over HTTP: requests per second and CPU time per request, with one process and with two.

With `--beside FOLDER`, the source tree of another version of Penstock (its `src` folder), both versions are measured in
turns. The load generator shares the machine with the server, and its CPU time is reported.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import loads
from measure import Grid, Report, ms, p99

HERE = str(Path(__file__).parents[1] / "src")
TYPE_ID = "gts.hypernetix.hyperspot.ax.schema.v1~hypernetix.hyperspot.ax.query_returns.v1~"
HEALTH, READ, SEARCH, SELECT, PUT = CASES = ("GET /healthz", "GET by id", "search of 20", "search with $select", "PUT")
_RUN = "from penstock.cli import main; main()"
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Numbers:
    schemas: int
    connections: int
    rounds: int
    seconds: float  # of a round


FULL = Numbers(schemas=2_000, connections=32, rounds=5, seconds=3.0)
QUICK = Numbers(schemas=100, connections=4, rounds=1, seconds=0.5)


@dataclass(frozen=True)
class Variant:
    """A version of Penstock with a number of processes."""

    source: str
    processes: int

    def __str__(self) -> str:
        version = "this version" if self.source == HERE else "other version"
        return f"{version}, {self.processes} process{'es' if self.processes > 1 else ''}"


@dataclass(frozen=True)
class RunningServer:
    port: int
    pid: int
    schema_ids: list[str]
    versions: dict[str, int]  # by schema

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and its child processes."""
        return sum(_cpu_seconds(pid) for pid in (self.pid, *_children(self.pid)))


@contextmanager
def running(variant: Variant, numbers: Numbers) -> Iterator[RunningServer]:
    """Run a server with a new workspace."""
    environment = {**os.environ, "PYTHONPATH": variant.source}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        workspace = f"{folder}/workspace"
        subprocess.run(
            [sys.executable, "-c", _RUN, "init", workspace], env=environment, check=True, capture_output=True
        )
        options = ["--dev", "--workspace", workspace, "--http-port", "0", "--no-flight", "--no-ui", "--json"]
        if variant.processes > 1:
            options += ["--processes", str(variant.processes)]
        server = subprocess.Popen(
            [sys.executable, "-c", _RUN, "serve", *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            described = json.loads("".join(line for line in _until_object_ends(lines)))
            port = int(described["http"].rpartition(":")[2].strip("/"))
            ids = _create_schemas(port, numbers.schemas)
            yield RunningServer(port, server.pid, ids, dict.fromkeys(ids, 1))
        finally:
            server.terminate()
            server.wait(60)


def _until_object_ends(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line == "}\n":
            return


def _create_schemas(port: int, count: int) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ids = []
    for number in range(count):
        connection.request("POST", "/gts", json.dumps(_schema(number)), _JSON)
        response = connection.getresponse()
        body = json.loads(response.read())
        assert response.status == 201, body
        ids.append(str(body["id"]))
    connection.close()
    return ids


def _schema(number: int) -> dict[str, Any]:
    fields = [{"name": f"field_{index}", "type": "string"} for index in range(8)]
    return {"name": f"Report {number:06d}", "type_id": TYPE_ID, "fields": fields}


def _request(method: str, target: str, body: bytes = b"") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def _load(server: RunningServer, case: str, numbers: Numbers) -> loads.Load:
    """Return the requests of all connections; each connection changes schemas of its own."""
    shares = [server.schema_ids[index :: numbers.connections] for index in range(numbers.connections)]
    if case != PUT:
        targets = {
            HEALTH: lambda _id: "/healthz",
            READ: lambda id: f"/gts/{id}",
            SEARCH: lambda _id: "/gts?$top=20&$filter=startswith(name,%27Report%20000%27)",
            SELECT: lambda _id: "/gts?$top=20&$select=id,name",
        }
        return loads.Load(
            server.port, [[_request("GET", targets[case](id)) for id in ids] for ids in shares], numbers.seconds
        )
    numbers_by_id = {id: number for number, id in enumerate(server.schema_ids)}
    return loads.Load(
        server.port,
        [[_request("PUT", f"/gts/{id}", _changed(numbers_by_id[id])) for id in ids] for ids in shares],
        numbers.seconds,
        [[server.versions[id] for id in ids] for ids in shares],
    )


def _changed(number: int) -> bytes:
    """Return a body whose description changes with the version: an equal one would create no version."""
    body = json.dumps({**_schema(number), "description": f"at {loads.MARK.decode()}", "version": 0}).encode()
    return body.replace(b'"version": 0', b'"version": ' + loads.MARK)


def measure(report: Report, variants: list[Variant], numbers: Numbers) -> None:
    rates: dict[tuple[str, Variant], list[float]] = {}
    times: dict[tuple[str, Variant], list[float]] = {}
    costs: dict[tuple[str, Variant], list[float]] = {}
    client_costs: dict[str, list[float]] = {case: [] for case in CASES}
    with ExitStack() as stack:
        servers = {variant: stack.enter_context(running(variant, numbers)) for variant in variants}
        for _ in range(numbers.rounds):
            for case in CASES:
                for variant, server in servers.items():
                    before = server.cpu_seconds()
                    outcome = loads.run(_load(server, case, numbers))
                    requests = max(len(outcome.took), 1)
                    key = (case, variant)
                    rates.setdefault(key, []).append(outcome.rate)
                    times.setdefault(key, []).extend(outcome.took)
                    costs.setdefault(key, []).append((server.cpu_seconds() - before) / requests)
                    client_costs[case].append(outcome.busy / requests)
                    _store_versions(server, outcome, numbers)
    first = variants[0]
    header = ["", "requests/s", "ratio", "CPU ms per request", "p50 ms", "p99 ms"]
    rows = [
        [
            f"{case}: {variant}",
            f"{median(rates[case, variant]):,.0f}",
            f"{median(rates[case, variant]) / median(rates[case, first]):.2f}",
            f"{median(costs[case, variant]) * 1e3:.2f}",
            ms(median(times[case, variant])),
            ms(p99(times[case, variant])),
        ]
        for case in CASES
        for variant in variants
    ]
    caption = f"{numbers.connections} connections, medians of {numbers.rounds} rounds; ratio to {first}"
    report.add(Grid(caption, header, rows))
    clients = [[case, f"{median(client_costs[case]) * 1e3:.2f}"] for case in CASES]
    report.add(Grid("CPU time of the load generator", ["", "ms per request"], clients))


def _store_versions(server: RunningServer, outcome: loads.Outcome, numbers: Numbers) -> None:
    for index, versions in enumerate(outcome.versions):
        if versions:
            ids = server.schema_ids[index :: numbers.connections]
            server.versions.update(zip(ids, versions, strict=True))


def _children(pid: int) -> list[int]:
    process_ids = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [child for number in process_ids for child in (int(number), *_children(int(number)))]


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few schemas and short rounds, to check that it runs")
    parser.add_argument("--beside", help="source folder of another version of Penstock")
    options = parser.parse_args()
    others = [Variant(options.beside, 1)] if options.beside else []
    report = Report("serve", "penstock serve", ["fastapi", "uvicorn", "sqlalchemy"], options.quick)
    measure(report, [*others, Variant(HERE, 1), Variant(HERE, 2)], QUICK if options.quick else FULL)
    print(f"\n{report.save()}")


if __name__ == "__main__":
    main()
