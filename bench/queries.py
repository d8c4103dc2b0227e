"""Benchmark registered queries, compared with DuckDB alone running the same SQL on the same files.

Penstock is a real `penstock serve --dev`, used over one persistent HTTP connection; a query runs in a sandbox process,
every row is validated, and the caller is audited. DuckDB is an open connection in this process and does none of that.
Both run in turns, with a pause before each, in which the sandbox prepares new processes (`without a pause` has none).
No query is repeated, so that no result comes from a cache. Before the measurements, the results are compared.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import penstock
from measure import Grid, Report, interleaved, median_and_p99, ms, seconds
from penstock.config import Settings
from penstock.core import result_schema
from penstock.core.odata import options
from penstock.core.registry import gts
from penstock.core.result_schema import FieldType, ResultField
from penstock.core.result_schema.odata_fields import odata_fields
from penstock.engines.duckdb import odata_sql
from penstock.lake import DatasetVersion, Lake
from penstock.service.queries import definitions as query_definitions
from penstock.service.queries.sandbox import Relation, RelationFile, Sandbox, TableRef
from penstock.service.registry import schemas
from rows import wide

SMALL, LARGE = "bench.small", "bench.large"
FIELDS = (
    ResultField("id", FieldType.NUMBER),
    ResultField("device", FieldType.NUMBER),
    ResultField("reading", FieldType.NUMBER),
    ResultField("amount", FieldType.NUMBER),
    ResultField("city", FieldType.STRING),
    ResultField("label", FieldType.STRING),
    ResultField("taken", FieldType.DATETIME),
    ResultField("valid", FieldType.BOOLEAN),
    ResultField("day", FieldType.DATE),
    ResultField("note", FieldType.STRING, optional=True),
)
SELECTS = {  # with one parameter; the relation is filled in
    SMALL: "SELECT * FROM {} WHERE device = $threshold",
    LARGE: "SELECT * FROM {} WHERE id >= $threshold",
}
FIRST = options([], odata_fields(FIELDS), default_top=1_000, max_top=1_000)  # the requested page
PART = 64 << 10  # rows per validated batch, as in the service
REST = 0.2  # seconds
LATENCY, RATIO, CHECKING = 0.025, 1.3, 1.0  # goals: maximum additional seconds, maximum ratios
OURS, PYTHON, BARE = "Penstock", "Penstock from Python", "DuckDB alone"


@dataclass(frozen=True)
class Numbers:
    small: int  # rows
    large: int
    small_queries: int  # small queries
    rounds: int  # large queries


FULL = Numbers(small=5_000, large=1_000_000, small_queries=100, rounds=15)
QUICK = Numbers(small=5_000, large=200_000, small_queries=40, rounds=3)


# Workspace and server.


def prepare(settings: Settings, numbers: Numbers) -> None:
    with penstock.open(create=True, settings=settings) as lake:
        promise = [field.as_json() for field in FIELDS]
        payload = {"name": "rows", "type_id": gts.QUERY_RETURNS, "fields": promise}
        schema = schemas.create(lake._workspace, lake.caller, payload).id
        for name, rows in ((SMALL, numbers.small), (LARGE, numbers.large)):
            lake.create(name, wide(rows))
            query = {
                "name": name,
                "sql": SELECTS[name].format(name),
                "returns_schema_id": str(schema),
                "parameters": [{"name": "threshold", "type": "number"}],
            }
            query_definitions.create(lake._workspace, lake.caller, query, lake._query_executor.inspector(lake.caller))


@contextmanager
def serving(settings: Settings, log: Path) -> Iterator[http.client.HTTPConnection]:
    words = ["serve", "--dev", "--http-port", "0", "--no-flight", "--json", "--workspace", str(settings.workspace)]
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *words]
    with log.open("w") as log_file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log_file) as process:
        try:
            assert process.stdout
            lines = iter(process.stdout.readline, b"}\n")
            address = json.loads(b"".join(lines) + b"}")["http"]
            connection = http.client.HTTPConnection(address.partition("://")[2], timeout=60)
            connection.connect()
            yield connection
            connection.close()
        finally:
            process.terminate()


# Clients. Each returns rows as a table.


@dataclass
class Penstock:
    """Client over HTTP."""

    connection: http.client.HTTPConnection
    ids: Mapping[str, str]

    def json(self, name: str, threshold: int) -> bytes:
        return self._get_results(name, f"threshold={threshold}&$top={FIRST.top}", "application/json")

    def arrow(self, name: str, threshold: int) -> pa.Table:
        data = self._get_results(name, f"threshold={threshold}", "application/vnd.apache.arrow.stream")
        return pa.ipc.open_stream(data).read_all()

    def _get_results(self, name: str, query: str, accept: str) -> bytes:
        self.connection.request("GET", f"/queries/{self.ids[name]}/results?{query}", headers={"accept": accept})
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body


@dataclass
class DuckDB:
    db: duckdb.DuckDBPyConnection
    sql: Mapping[str, str]

    @classmethod
    def over(cls, paths: Mapping[str, list[str]]) -> "DuckDB":
        return cls(duckdb.connect(), {name: SELECTS[name].format(f"read_parquet({paths[name]})") for name in SELECTS})

    def arrow(self, name: str, threshold: int) -> pa.Table:
        return self.db.sql(self.sql[name], params={"threshold": threshold}).to_arrow_table()


def assert_alike(ours: Penstock, bare: DuckDB, numbers: Numbers) -> None:
    for device in (1, 2):
        page, rows = json.loads(ours.json(SMALL, device))["value"], bare.arrow(SMALL, device)
        assert sorted(row["id"] for row in page) == sorted(rows["id"].to_pylist()) != []
        assert [*page[0]] == [field.name for field in FIELDS]
    one, other = ours.arrow(LARGE, -1), bare.arrow(LARGE, -1)
    assert one.num_rows == other.num_rows == numbers.large
    for column in ("id", "amount", "label"):
        assert one[column].sort().equals(other[column].sort()), column


# Measurements.


def rested(act: Callable[[], object]) -> float:
    time.sleep(REST)
    return seconds(act)


def small(lake: Lake, ours: Penstock, bare: DuckDB, numbers: Numbers) -> dict[str, list[float]]:
    device = count(3)
    here = lake.query(SMALL)
    here.run({"$top": FIRST.top}, threshold=1)  # starts the fork server
    measurements = interleaved(
        {
            BARE: lambda: rested(lambda: bare.arrow(SMALL, next(device))),
            OURS: lambda: rested(lambda: ours.json(SMALL, next(device))),
            PYTHON: lambda: rested(lambda: here.run({"$top": FIRST.top}, threshold=next(device)).to_arrow()),
            "Penstock, cached result": lambda: rested(lambda: ours.json(SMALL, 1)),
        },
        numbers.small_queries,
    )
    measurements["Penstock, without a pause"] = [
        seconds(lambda: ours.json(SMALL, next(device))) for _ in range(numbers.small_queries)
    ]
    return measurements


def stages(lake: Lake, numbers: Numbers) -> dict[str, list[float]]:
    """Measure the steps of a small query one after the other, as the service runs them."""
    took: dict[str, list[float]] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        took.setdefault(part, []).append(time.perf_counter() - begun)

    ref, sandbox = TableRef("bench", "small"), Sandbox(lake._workspace.data)
    with sandbox.process():
        pass  # starts the fork server
    for device in range(numbers.small_queries):
        time.sleep(REST)
        threshold = {"threshold": device}
        with timed("find the query and its schema"):
            query = lake._query_executor.load(lake.caller, SMALL).query
        with timed("find the version and its files"):
            relation = _relation(lake.dataset(SMALL).current())
        with ExitStack() as stack:
            with timed("take a prepared process"):
                child = stack.enter_context(sandbox.process())
            with timed("parse the statement"):
                child.parse(query.draft.sql)
            with timed("bind the files"):
                child.bind({ref: relation})
            with timed("describe the columns"):
                have = child.describe(threshold)
            with timed("build the page query"):
                page = odata_sql.page_query(FIRST, FIELDS, have)
            with timed("run the query"):
                rows = child.run(page.before, page.after, {**threshold, **page.parameters}).table()
            with timed("validate the rows"):
                result_schema.check_batches(FIELDS, rows.schema, rows.to_batches())
            with timed("end the process"):
                stack.close()
        with timed("write the audit entry"), lake._workspace.db.write(lake.caller) as tx:
            tx.audit("query.run", threshold)
    sandbox.close()
    return took


def large(lake: Lake, ours: Penstock, bare: DuckDB, numbers: Numbers) -> dict[str, list[float]]:
    below = count(2)
    here, sandbox = lake.query(LARGE), Sandbox(lake._workspace.data)
    at = lake.dataset(LARGE).current()
    through_arrow = duckdb.connect().register("rows", pads.dataset(at.paths()))
    relation = {TableRef("bench", "large"): _relation(at)}

    def unchecked() -> None:
        with sandbox.process() as cell:
            cell.parse(SELECTS[LARGE].format(LARGE))
            cell.bind(relation)
            cell.run(parameters={"threshold": -next(below)}).table()

    def over_arrow() -> None:
        through_arrow.sql(SELECTS[LARGE].format("rows"), params={"threshold": -next(below)}).to_arrow_table()

    unchecked()
    ours.connection.close()  # it was idle for long; the next request opens another
    size = sum(batch.serialize().size for batch in ours.arrow(LARGE, -1).to_batches())
    with wired(size) as wire:
        measurements = interleaved(
            {
                BARE: lambda: rested(lambda: bare.arrow(LARGE, -next(below))),
                OURS: lambda: rested(lambda: ours.arrow(LARGE, -next(below))),
                PYTHON: lambda: rested(lambda: here.run(threshold=-next(below)).to_arrow()),
                "Penstock sandbox, not validated": lambda: rested(unchecked),
                "DuckDB, files read by Arrow": lambda: rested(over_arrow),
                "transport: the same bytes over HTTP": lambda: rested(wire),
            },
            numbers.rounds,
        )
    sandbox.close()
    return measurements


@contextmanager
def wired(size: int) -> Iterator[Callable[[], object]]:
    """Serve a number of bytes from memory over HTTP: the lower bound of a buffered response."""
    with subprocess.Popen([sys.executable, "-c", SENDER, str(size)], stdout=subprocess.PIPE) as sender:
        assert sender.stdout
        connection = http.client.HTTPConnection("127.0.0.1", int(sender.stdout.readline()), timeout=60)
        yield lambda: (connection.request("GET", "/"), connection.getresponse().read())
        connection.close()
        sender.terminate()


SENDER = """
import socket, sys
place = socket.create_server(("127.0.0.1", 0))
print(place.getsockname()[1], flush=True)
body = bytes(int(sys.argv[1]))
taken, _ = place.accept()
while taken.recv(1 << 16):
    taken.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body))
    taken.sendall(body)
"""


def _relation(at: DatasetVersion) -> Relation:
    return Relation(
        at.schema, [RelationFile(path, file.rows) for path, file in zip(at.paths(), at.files(), strict=True)]
    )


def checking(paths: list[str], numbers: Numbers) -> dict[str, list[float]]:
    rows = pq.read_table(paths)
    batches = rows.to_batches(max_chunksize=PART)

    def checked() -> None:
        assert result_schema.check_batches(FIELDS, rows.schema, batches).valid

    return interleaved(
        {
            "check": lambda: seconds(checked),
            "read": lambda: seconds(lambda: pq.read_table(paths)),
        },
        numbers.rounds,
    )


# Tables.


def _small_table(took: dict[str, list[float]], numbers: Numbers) -> Grid:
    floor = took[BARE]
    lines = []
    for system, times in took.items():
        more = [ms(median(times) - median(floor)), ms(min(times) - min(floor))] if system != BARE else ["", ""]
        judged = (
            [f"up to {ms(LATENCY)}", _yes(median(times) - median(floor) <= LATENCY)] if system == OURS else ["", ""]
        )
        lines.append([system, ms(min(times)), *median_and_p99(times), *more, *judged])
    return Grid(
        f"Milliseconds for a small query: 5 of {numbers.small:,} rows, 10 fields, as JSON; {numbers.small_queries} small_queries",
        ["", "best", "p50", "p99", "difference by p50", "by best", "goal", "reached"],
        lines,
    )


def _stages_table(took: dict[str, list[float]]) -> Grid:
    lines = [[part, ms(min(times)), *median_and_p99(times)] for part, times in took.items()]
    return Grid("Steps of a small query, in milliseconds", ["", "best", "p50", "p99"], lines)


def _large_table(took: dict[str, list[float]], numbers: Numbers, size: int) -> Grid:
    floor = took[BARE]
    lines = []
    for system, times in took.items():
        ratio = median(times) / median(floor)
        judged = [f"up to {RATIO}", _yes(ratio <= RATIO)] if system == OURS else ["", ""]
        best = min(times) / min(floor)
        lines.append([system, f"{min(times):.3f}", f"{median(times):.3f}", f"{best:.2f}", f"{ratio:.2f}", *judged])
    return Grid(
        f"Seconds for {numbers.large:,} rows of 10 fields as Arrow, {size / 1e6:,.0f} MB; {numbers.rounds} rounds",
        ["", "best", "median", "ratio by best", "by median", "goal", "reached"],
        lines,
    )


def _checking_table(took: dict[str, list[float]], numbers: Numbers) -> Grid:
    check, read = took["check"], took["read"]
    ratios = (min(check) / min(read), median(check) / median(read))
    lines = [
        ["validate every value", ms(min(check)), ms(median(check)), *(f"{r:.2f}" for r in ratios),
         f"below {CHECKING:.0f}", _yes(ratios[1] < CHECKING)],
        ["read the rows from Parquet with pyarrow", ms(min(read)), ms(median(read)), "", "", "", ""],
    ]  # fmt: skip
    return Grid(
        f"Milliseconds to validate {numbers.large:,} rows of 10 fields against a schema; {numbers.rounds} rounds",
        ["", "best", "median", "ratio by best", "by median", "goal", "reached"],
        lines,
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def measure(report: Report, numbers: Numbers, folder: Path) -> None:
    settings = Settings(workspace=folder / "lake")
    prepare(settings, numbers)
    with penstock.open(settings=settings) as lake, serving(settings, folder / "log") as connection:
        paths = {name: lake.dataset(name).current().paths() for name in SELECTS}
        ours = Penstock(connection, {name: str(lake.query(name).id) for name in SELECTS})
        bare = DuckDB.over(paths)
        assert_alike(ours, bare, numbers)
        report.add(_small_table(small(lake, ours, bare, numbers), numbers))
        report.add(_stages_table(stages(lake, numbers)))
        size = bare.arrow(LARGE, -1).nbytes
        report.add(_large_table(large(lake, ours, bare, numbers), numbers, size))
        report.add(_checking_table(checking(paths[LARGE], numbers), numbers))


def main() -> None:
    arguments = _options()
    packages = ["duckdb", "pyarrow", "fastapi", "uvicorn", "sqlalchemy"]
    report = Report("queries", "Registered queries", packages, quick=arguments.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        measure(report, QUICK if arguments.quick else FULL, Path(folder))
    print(f"\nalso in {report.save()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few queries and fewer rows, to check that it runs")
    parser.add_argument("--folder", help="folder of the temporary workspace (on a disk, not in memory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
