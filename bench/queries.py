"""What a promise costs: registered queries beside DuckDB alone, with the same SQL on the same files.

Penstock is a real `penstock serve --dev`, asked over HTTP on one connection that stays open; a query runs in a child
process, every row is checked, and who asked is written down. DuckDB is a connection that stays open, in this process,
and does none of that. Both take turns, with a short rest before each, in which children become ready in place of those
that were used up; `without a rest` is what it says. No question is asked twice, so that no answer comes from a cache.
That both answer the same is checked before anything is measured.
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
from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.result_schema import Field, FieldType
from penstock.core.odata import options
from penstock.engines.duckdb import odata_sql as odata
from penstock.lake import DatasetAt, Lake
from penstock.service.queries import definitions as queries
from penstock.service.registry import schemas
from penstock.service.queries.sandbox import File, Ref, Relation, Sandbox
from rows import wide

SMALL, LARGE = "bench.small", "bench.large"
FIELDS = (
    Field("id", FieldType.NUMBER),
    Field("device", FieldType.NUMBER),
    Field("reading", FieldType.NUMBER),
    Field("amount", FieldType.NUMBER),
    Field("city", FieldType.STRING),
    Field("label", FieldType.STRING),
    Field("taken", FieldType.DATETIME),
    Field("valid", FieldType.BOOLEAN),
    Field("day", FieldType.DATE),
    Field("note", FieldType.STRING, optional=True),
)
SELECTS = {  # with one parameter; FROM what, is filled in
    SMALL: "SELECT * FROM {} WHERE device = $given",
    LARGE: "SELECT * FROM {} WHERE id >= $given",
}
FIRST = options([], odata.kinds(FIELDS), default_top=1_000, max_top=1_000)  # the page that is asked for
PART = 64 << 10  # rows that are checked at a time, as the service does
REST = 0.2  # seconds
LATENCY, RATIO, CHECKING = 0.025, 1.3, 1.0  # what is wanted: seconds more at most, times as long at most
OURS, PYTHON, BARE = "Penstock", "Penstock from Python", "DuckDB alone"


@dataclass(frozen=True)
class Numbers:
    small: int  # rows
    large: int
    questions: int  # of the small kind
    rounds: int  # of the large kind


FULL = Numbers(small=5_000, large=1_000_000, questions=100, rounds=15)
QUICK = Numbers(small=5_000, large=200_000, questions=40, rounds=3)


# The place.


def prepare(settings: Settings, numbers: Numbers) -> None:
    with penstock.open(create=True, settings=settings) as lake:
        promise = [field.as_json() for field in FIELDS]
        payload = {"name": "rows", "type_id": gts.QUERY_RETURNS, "fields": promise}
        schema = schemas.create(lake.workspace, lake.caller, payload).id
        for name, rows in ((SMALL, numbers.small), (LARGE, numbers.large)):
            lake.create(name, wide(rows))
            query = {
                "name": name,
                "sql": SELECTS[name].format(name),
                "returns_schema_id": str(schema),
                "parameters": [{"name": "given", "type": "number"}],
            }
            queries.create(lake.workspace, lake.caller, query, lake.results.inspected(lake.caller))


@contextmanager
def serving(settings: Settings, log: Path) -> Iterator[http.client.HTTPConnection]:
    words = ["serve", "--dev", "--http-port", "0", "--no-flight", "--json", "--workspace", str(settings.workspace)]
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *words]
    with log.open("w") as told, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told) as process:
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


# Who is asked. Each knows the rows of an answer as a table, and never has the same question twice.


@dataclass
class Penstock:
    """Over HTTP."""

    connection: http.client.HTTPConnection
    ids: Mapping[str, str]

    def json(self, name: str, given: int) -> bytes:
        return self._asked(name, f"given={given}&$top={FIRST.top}", "application/json")

    def arrow(self, name: str, given: int) -> pa.Table:
        data = self._asked(name, f"given={given}", "application/vnd.apache.arrow.stream")
        return pa.ipc.open_stream(data).read_all()

    def _asked(self, name: str, query: str, accept: str) -> bytes:
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

    def arrow(self, name: str, given: int) -> pa.Table:
        return self.db.sql(self.sql[name], params={"given": given}).to_arrow_table()


def assert_alike(ours: Penstock, bare: DuckDB, numbers: Numbers) -> None:
    for device in (1, 2):
        page, rows = json.loads(ours.json(SMALL, device))["value"], bare.arrow(SMALL, device)
        assert sorted(row["id"] for row in page) == sorted(rows["id"].to_pylist()) != []
        assert [*page[0]] == [field.name for field in FIELDS]
    one, other = ours.arrow(LARGE, -1), bare.arrow(LARGE, -1)
    assert one.num_rows == other.num_rows == numbers.large
    for column in ("id", "amount", "label"):
        assert one[column].sort().equals(other[column].sort()), column


# What is measured.


def rested(act: Callable[[], object]) -> float:
    time.sleep(REST)
    return seconds(act)


def small(lake: Lake, ours: Penstock, bare: DuckDB, numbers: Numbers) -> dict[str, list[float]]:
    device = count(3)
    here = lake.query(SMALL)
    here.run({"$top": FIRST.top}, given=1)  # starts the process that children come from
    found = interleaved(
        {
            BARE: lambda: rested(lambda: bare.arrow(SMALL, next(device))),
            OURS: lambda: rested(lambda: ours.json(SMALL, next(device))),
            PYTHON: lambda: rested(lambda: here.run({"$top": FIRST.top}, given=next(device)).to_arrow()),
            "Penstock, asked before": lambda: rested(lambda: ours.json(SMALL, 1)),
        },
        numbers.questions,
    )
    found["Penstock, without a rest"] = [
        seconds(lambda: ours.json(SMALL, next(device))) for _ in range(numbers.questions)
    ]
    return found


def stages(lake: Lake, numbers: Numbers) -> dict[str, list[float]]:
    """The parts of a small query, one after the other, as the service goes through them."""
    took: dict[str, list[float]] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        took.setdefault(part, []).append(time.perf_counter() - begun)

    ref, sandbox = Ref("bench", "small"), Sandbox(lake.workspace.data)
    with sandbox.cell():
        pass  # starts the process that children come from
    for device in range(numbers.questions):
        time.sleep(REST)
        given = {"given": device}
        with timed("find the query and its schema"):
            query = lake.results.opened(lake.caller, SMALL).query
        with timed("find the version and its files"):
            relation = _relation(lake.dataset(SMALL).now())
        with ExitStack() as stack:
            with timed("take a child that waits"):
                child = stack.enter_context(sandbox.cell())
            with timed("read the statement"):
                child.parse(query.draft.sql)
            with timed("give it the files"):
                child.bind({ref: relation})
            with timed("ask for its columns"):
                have = child.describe(given)
            with timed("put the page around it"):
                page = odata.page(FIRST, FIELDS, have)
            with timed("run it"):
                rows = child.run(page.before, page.after, {**given, **page.parameters}).table()
            with timed("check the rows"):
                contract.check_batches(FIELDS, rows.schema, rows.to_batches())
            with timed("end the child"):
                stack.close()
        with timed("write down who asked"), lake.workspace.db.write(lake.caller) as tx:
            tx.audit("query.run", given)
    sandbox.close()
    return took


def large(lake: Lake, ours: Penstock, bare: DuckDB, numbers: Numbers) -> dict[str, list[float]]:
    below = count(2)
    here, sandbox = lake.query(LARGE), Sandbox(lake.workspace.data)
    at = lake.dataset(LARGE).now()
    through_arrow = duckdb.connect().register("rows", pads.dataset(at.paths()))
    relation = {Ref("bench", "large"): _relation(at)}

    def unchecked() -> None:
        with sandbox.cell() as cell:
            cell.parse(SELECTS[LARGE].format(LARGE))
            cell.bind(relation)
            cell.run(parameters={"given": -next(below)}).table()

    def over_arrow() -> None:
        through_arrow.sql(SELECTS[LARGE].format("rows"), params={"given": -next(below)}).to_arrow_table()

    unchecked()
    ours.connection.close()  # it has rested for long; the next question opens another
    size = sum(batch.serialize().size for batch in ours.arrow(LARGE, -1).to_batches())
    with wired(size) as wire:
        found = interleaved(
            {
                BARE: lambda: rested(lambda: bare.arrow(LARGE, -next(below))),
                OURS: lambda: rested(lambda: ours.arrow(LARGE, -next(below))),
                PYTHON: lambda: rested(lambda: here.run(given=-next(below)).to_arrow()),
                "its sandbox, unchecked": lambda: rested(unchecked),
                "DuckDB, files read by Arrow": lambda: rested(over_arrow),
                "the wire: as many bytes over HTTP": lambda: rested(wire),
            },
            numbers.rounds,
        )
    sandbox.close()
    return found


@contextmanager
def wired(size: int) -> Iterator[Callable[[], object]]:
    """Somebody who sends so many bytes from memory to whoever asks: less is not possible with an answer that is held back."""
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


def _relation(at: DatasetAt) -> Relation:
    return Relation(at.schema, [File(path, file.rows) for path, file in zip(at.paths(), at.files(), strict=True)])


def checking(paths: list[str], numbers: Numbers) -> dict[str, list[float]]:
    rows = pq.read_table(paths)
    batches = rows.to_batches(max_chunksize=PART)

    def checked() -> None:
        assert contract.check_batches(FIELDS, rows.schema, batches).valid

    return interleaved(
        {
            "check": lambda: seconds(checked),
            "read": lambda: seconds(lambda: pq.read_table(paths)),
        },
        numbers.rounds,
    )


# What is told.


def _told_small(took: dict[str, list[float]], numbers: Numbers) -> Grid:
    floor = took[BARE]
    lines = []
    for who, times in took.items():
        more = [ms(median(times) - median(floor)), ms(min(times) - min(floor))] if who != BARE else ["", ""]
        judged = [f"up to {ms(LATENCY)}", _yes(median(times) - median(floor) <= LATENCY)] if who == OURS else ["", ""]
        lines.append([who, ms(min(times)), *median_and_p99(times), *more, *judged])
    return Grid(
        f"Milliseconds for a small query: 5 of {numbers.small:,} rows, 10 fields, as JSON; {numbers.questions} questions",
        ["", "best", "p50", "p99", "more by p50", "by best", "wanted", "holds"],
        lines,
    )


def _told_stages(took: dict[str, list[float]]) -> Grid:
    lines = [[part, ms(min(times)), *median_and_p99(times)] for part, times in took.items()]
    return Grid("Where the time of a small query goes, in milliseconds", ["", "best", "p50", "p99"], lines)


def _told_large(took: dict[str, list[float]], numbers: Numbers, size: int) -> Grid:
    floor = took[BARE]
    lines = []
    for who, times in took.items():
        ratio = median(times) / median(floor)
        judged = [f"up to {RATIO}", _yes(ratio <= RATIO)] if who == OURS else ["", ""]
        best = min(times) / min(floor)
        lines.append([who, f"{min(times):.3f}", f"{median(times):.3f}", f"{best:.2f}", f"{ratio:.2f}", *judged])
    return Grid(
        f"Seconds for {numbers.large:,} rows of 10 fields as Arrow, {size / 1e6:,.0f} MB; {numbers.rounds} rounds",
        ["", "best", "median", "ratio by best", "by median", "wanted", "holds"],
        lines,
    )


def _told_checking(took: dict[str, list[float]], numbers: Numbers) -> Grid:
    check, read = took["check"], took["read"]
    ratios = (min(check) / min(read), median(check) / median(read))
    lines = [
        ["check every value", ms(min(check)), ms(median(check)), *(f"{r:.2f}" for r in ratios),
         f"below {CHECKING:.0f}", _yes(ratios[1] < CHECKING)],
        ["read them from Parquet with pyarrow", ms(min(read)), ms(median(read)), "", "", "", ""],
    ]  # fmt: skip
    return Grid(
        f"Milliseconds to check {numbers.large:,} rows of 10 fields against a schema; {numbers.rounds} rounds",
        ["", "best", "median", "ratio by best", "by median", "wanted", "holds"],
        lines,
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def measure(report: Report, numbers: Numbers, folder: Path) -> None:
    settings = Settings(workspace=folder / "lake")
    prepare(settings, numbers)
    with penstock.open(settings=settings) as lake, serving(settings, folder / "log") as connection:
        paths = {name: lake.dataset(name).now().paths() for name in SELECTS}
        ours = Penstock(connection, {name: str(lake.query(name).id) for name in SELECTS})
        bare = DuckDB.over(paths)
        assert_alike(ours, bare, numbers)
        report.add(_told_small(small(lake, ours, bare, numbers), numbers))
        report.add(_told_stages(stages(lake, numbers)))
        size = bare.arrow(LARGE, -1).nbytes
        report.add(_told_large(large(lake, ours, bare, numbers), numbers, size))
        report.add(_told_checking(checking(paths[LARGE], numbers), numbers))


def main() -> None:
    asked = _options()
    packages = ["duckdb", "pyarrow", "fastapi", "uvicorn", "sqlalchemy"]
    report = Report("queries", "Queries that keep a promise", packages, quick=asked.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=asked.folder) as folder:
        measure(report, QUICK if asked.quick else FULL, Path(folder))
    print(f"\nalso in {report.save()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few questions and fewer rows, to see that it runs")
    parser.add_argument("--folder", help="where the workspace is made for a while (a disk, not a memory file system)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
