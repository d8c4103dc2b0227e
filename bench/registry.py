"""Benchmark the registry under load: throughput and latency with many schemas.

Each case is compared with a plain FastAPI route that sends the same SQL in the same transactions, without tokens,
OData, validation or logs. Both run under uvicorn in their own processes; a third process sends requests. Servers,
cases and databases are measured in turns. Before that, the benchmark checks that SQL and results are the same.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID, uuid5

import httpx
import uvicorn
from fastapi import Body, FastAPI, Response
from sqlalchemy import bindparam, delete, event, select, update

import loads
import penstock
from measure import Grid, Report, interleaved, ms, p99
from penstock import config, json_logs
from penstock.catalog import search_statements
from penstock.catalog.database import APP_ROLE, TENANT_SETTING, CatalogTransaction, Database
from penstock.catalog.tables import gts_schema_fields, gts_schema_versions, gts_schemas
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.config import Settings
from penstock.core.caller import Caller, Role
from penstock.core.registry import gts
from penstock.core.registry.schema_entry import name_key
from penstock.core.result_schema import FieldType, ResultField
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.rest.server import Server
from penstock.service.auth.tokens import TokenVerifier, mint

GOAL = 0.60  # share of the plain route's requests per second
CONNECTIONS = 8
OURS, BARE = "Penstock", "bare"
GET, BY_NAME, BY_FIELD, PUT = CASES = ("GET by id", "search by name", "search by field", "PUT")
INDEXES = {BY_NAME: "ix_gts_schemas_name", BY_FIELD: "ix_gts_schema_fields_name"}  # that a search must use
WALK = "ix_gts_schemas_created"  # the index of all schemas in the order of the result
SECRET = "a secret of enough bytes, for measuring only"
TENANT, OTHER = UUID("11111111-2222-3333-4444-555555555555"), UUID("99999999-8888-7777-6666-555555555555")
CALLER, OTHER_CALLER = (Caller(tenant, UUID(int=7), "bench", Role.ADMIN) for tenant in (TENANT, OTHER))


@dataclass(frozen=True)
class Numbers:
    schemas: int
    others: int  # schemas of another tenant
    rounds: int
    seconds: float  # of a round


FULL = Numbers(schemas=100_000, others=10_000, rounds=5, seconds=2.0)
QUICK = Numbers(schemas=2_000, others=200, rounds=2, seconds=0.5)

# Deterministic test schemas.

COMMON = tuple(
    f"{thing}_{part}" for thing in ("order", "item", "client", "store") for part in ["id", "day", "name", "sum", "kind"]
)
HOLDERS = 10  # schemas with the same rare field
CITIES = ("Accra", "Bergen", "Cusco", "Dakar", "Erfurt", "Fukuoka", "Ghent", "Hanoi", "Izmir", "Jaipur")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_CHUNK = 2_000  # schemas per transaction


def schema_id(number: int, tenant: UUID = TENANT) -> UUID:
    return uuid5(tenant, str(number))


def name(number: int) -> str:
    return f"Orders of {CITIES[number % 10]}, report {number:06d}"


def rare(number: int, of: int) -> str:
    """Return the name of a field that few schemas have."""
    return f"mark_{number % (of // 10 // HOLDERS)}"


def fields(number: int, of: int) -> list[dict[str, Any]]:
    """Return five to ten fields; a tenth of the schemas has a rare one."""
    names = [COMMON[(number * 7 + i) % len(COMMON)] for i in range(5 + number % 6)]
    if number % 10 == 0:
        names[-1] = rare(number // 10, of)
    data_types = list(FieldType)
    return [
        ResultField(name, data_types[i % len(data_types)], i > 2, False, f"The {name}").as_json()
        for i, name in enumerate(names)
    ]


def fill(db: Database, caller: Caller, count: int) -> None:
    for start in range(0, count, _CHUNK):
        rows = [_schema(number, caller, fields(number, count)) for number in range(start, min(start + _CHUNK, count))]
        with db.write(caller) as tx:
            tx.insert_many(insert_for_tenant(gts_schemas), rows)
            tx.insert_many(
                insert_for_tenant(gts_schema_fields),
                [field_row for row in rows for field_row in _fields(row["id"], row["fields"])],
            )
            tx.insert_many(insert_for_tenant(gts_schema_versions), [_version(row, caller) for row in rows])


def prepare(settings: Settings, numbers: Numbers) -> None:
    """Create a catalog with two tenants, with up-to-date statistics."""
    with penstock.open(create=True, settings=settings) as lake:
        db = lake._workspace.db
        fill(db, CALLER, numbers.schemas)
        fill(db, OTHER_CALLER, numbers.others)
        settle(db)


def settle(db: Database) -> None:
    """Update the statistics of PostgreSQL, which would otherwise happen during the rounds. SQLite never does so."""
    if db.engine.dialect.name == "postgresql":
        with db.connect_without_tenant() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")


def _schema(number: int, caller: Caller, schema_fields: list[dict[str, Any]]) -> dict[str, Any]:
    at = BEGAN + timedelta(minutes=number)
    description = f"What the orders of report {number} come to"
    return {
        "id": schema_id(number, caller.tenant), "type_id": gts.QUERY_RETURNS, "state": "ACTIVE", "version": 1,
        **_texts(name(number), description), "fields": schema_fields, "metadata": {"team": number % 100},
        "state_changed_at": at, "created_at": at, "created_by": caller.user, "updated_at": at, "updated_by": caller.user,
    }  # fmt: skip


def _texts(name: str, description: str) -> dict[str, str]:
    return {
        "name": name, "name_lower": name.lower(), "name_upper": name.upper(), "name_key": name_key(name),
        "description": description, "description_lower": description.lower(), "description_upper": description.upper(),
    }  # fmt: skip


def _fields(schema: UUID, schema_fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"schema_id": schema, "position": i, "name": schema_field["name"], "type": schema_field["type"],
         "array": schema_field.get("array", False), "optional": schema_field["optional"]}
        for i, schema_field in enumerate(schema_fields)
    ]  # fmt: skip


def _version(row: dict[str, Any], caller: Caller) -> dict[str, Any]:
    version_members = {
        member: row[member] for member in ("version", "name", "description", "fields", "metadata", "state")
    }
    return version_members | {
        "schema_id": row["id"], "change": "create", "reason": None, "changed_at": row["created_at"],
        "changed_by": caller.user, "author": caller.name,
    }  # fmt: skip


# Plain routes.

_s, _f = gts_schemas.c, gts_schema_fields.c
_there = (tenant_filter(gts_schemas), _s.deleted_at.is_(None))
_this = (*_there, _s.id == bindparam("schema"))
FIND = select(gts_schemas).where(*_this)
HOLD = FIND.with_for_update()
_newest = (
    select(gts_schemas, _s.created_at.label("sort_key_0"), _s.id.label("sort_key_1"))  # for the next link
    .order_by(*(key.order() for key in search_statements.newest_first(_s.created_at, _s.id, few=True)))
    .limit(51)
    .offset(0)
)
NAMED = _newest.where(*_there, _s.name == bindparam("name"))
HOLDING = _newest.where(
    *_there, _s.id.in_(select(_f.schema_id).where(_f.name == bindparam("field"), tenant_filter(gts_schema_fields)))
)
TAKEN = select(_s.id).where(
    *_there, _s.name_key == bindparam("key"), _s.id != bindparam("schema"), _s.state != "ARCHIVED"
)
CHANGE = (
    update(gts_schemas)
    .where(*_this, _s.version == bindparam("before"))
    .values({member: bindparam(f"new_{member}") for member in (
        "name", "name_lower", "name_upper", "name_key", "description", "description_lower", "description_upper",
        "fields", "metadata", "state", "state_changed_at", "updated_at", "updated_by", "version",
    )})
)  # fmt: skip
DROP_FIELDS = delete(gts_schema_fields).where(tenant_filter(gts_schema_fields), _f.schema_id == bindparam("schema"))
ADD_FIELD, ADD_VERSION = insert_for_tenant(gts_schema_fields), insert_for_tenant(gts_schema_versions)


def bare(db: Database) -> FastAPI:
    app = FastAPI()

    @app.get("/gts/{id}")
    def show(id: UUID) -> Response:
        with db.read(CALLER) as tx:
            row = tx.first(FIND, schema=id)
        assert row
        return _json(dict(row._mapping))

    @app.get("/named")
    def named(name: str) -> Response:
        with db.read(CALLER) as tx:
            return _json({"value": [dict(row._mapping) for row in tx.all(NAMED, name=name)]})

    @app.get("/holding")
    def holding(field: str) -> Response:
        with db.read(CALLER) as tx:
            return _json({"value": [dict(row._mapping) for row in tx.all(HOLDING, field=field)]})

    @app.put("/gts/{id}")
    def replace(id: UUID, sent: Annotated[dict[str, Any], Body()]) -> Response:
        with db.write(CALLER) as tx:
            row = tx.first(HOLD, schema=id)
            assert row
            assert row.version == sent["version"]
            return _json(_replaced(tx, dict(row._mapping), sent))

    return app


def _replaced(tx: CatalogTransaction, row: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    assert tx.first(TAKEN, key=name_key(sent["name"]), schema=row["id"]) is None
    now = {
        **_texts(sent["name"], sent["description"]), "fields": sent["fields"], "metadata": sent["metadata"],
        "state": row["state"], "state_changed_at": row["state_changed_at"], "updated_at": tx.now,
        "updated_by": tx.caller.user, "version": row["version"] + 1,
    }  # fmt: skip
    values = {f"new_{member}": value for member, value in now.items()}
    assert tx.execute(CHANGE, schema=row["id"], before=row["version"], **values) == 1
    if sent["fields"] != row["fields"]:
        tx.execute(DROP_FIELDS, schema=row["id"])
        tx.insert_many(ADD_FIELD, _fields(row["id"], sent["fields"]))
    version_members = {
        member: now[member] for member in ("version", "name", "description", "fields", "metadata", "state")
    }
    tx.execute(
        ADD_VERSION, schema_id=row["id"], change="update", reason=None, changed_at=tx.now, changed_by=tx.caller.user,
        author=tx.caller.name, **version_members,
    )  # fmt: skip
    tx.audit("schema.update", {"schema_id": row["id"], "version": now["version"], "reason": None})
    return row | now


def _json(value: Any) -> Response:
    return Response(json.dumps(value, default=str), media_type="application/json")


# Requests.


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: str = ""

    def wire(self, token: str) -> bytes:
        sent = self.body.encode()
        kind = f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n" if sent else ""
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{kind}\r\n"
        return head.encode() + sent


def request(system: str, case: str, number: int, of: int) -> Request:
    match case, system:
        case "GET by id", _:
            return Request("GET", f"/gts/{schema_id(number)}")
        case "search by name", "bare":
            return Request("GET", f"/named?name={quote(name(number))}")
        case "search by name", _:
            return Request("GET", "/gts?$filter=" + quote(f"name eq '{name(number)}'"))
        case "search by field", "bare":
            return Request("GET", f"/holding?field={rare(number, of)}")
        case "search by field", _:
            return Request("GET", "/gts?$filter=" + quote(f"fields/any(f: f/name eq '{rare(number, of)}')"))
    mark = loads.MARK.decode()
    sent = {"name": name(number), "description": f"As of {mark}", "fields": fields(number, of), "metadata": {"team": 1}}
    return Request("PUT", f"/gts/{schema_id(number)}", json.dumps(sent)[:-1] + f', "version": {mark}}}')


# Servers.


@dataclass(frozen=True)
class Target:
    """A filled database with a server of each kind."""

    name: str
    db: Database
    settings: Settings
    ports: dict[str, int] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    def busy(self, system: str) -> dict[int, float]:
        """Return the CPU seconds of the server process and of its database processes."""
        pids = [self.pids[system]]
        if self.db.engine.dialect.name == "postgresql":
            with self.db.connect_without_tenant() as connection:
                pids += [row.pid for row in connection.exec_driver_sql("SELECT pid FROM pg_stat_activity")]
        return {pid: _busy(pid) for pid in pids}


@contextmanager
def serving(bench_target: Target, folder: Path) -> Iterator[None]:
    context, processes = get_context("spawn"), []
    try:
        for system, serve in ((OURS, _serve_ours), (BARE, _serve_bare)):
            own_pipe, port_pipe = context.Pipe(duplex=False)
            process = context.Process(
                target=serve, args=(bench_target.settings, port_pipe, folder / f"{bench_target.name}.log")
            )
            process.start()
            processes.append(process)
            assert own_pipe.poll(60), f"{system} did not start"
            assert process.pid
            bench_target.ports[system], bench_target.pids[system] = own_pipe.recv(), process.pid
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join(30)


def _serve_ours(settings: Settings, port_pipe: Pipe, log: Path) -> None:
    with penstock.open(settings=settings) as lake, log.open("w") as stream:
        json_logs.log_to(stream)
        edge = RestContext.create(lake._workspace, TokenVerifier(SECRET))
        Server(create_app(edge), "127.0.0.1", 0).run(lambda address: port_pipe.send(int(address.rpartition(":")[2])))


def _serve_bare(settings: Settings, port_pipe: Pipe, _log: Path) -> None:
    with penstock.open(settings=settings) as lake, socket.create_server(("127.0.0.1", 0)) as bench_target:
        bench_target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port_pipe.send(bench_target.getsockname()[1])
        app = bare(lake._workspace.db)
        settled = uvicorn.Config(
            app, http="h11", ws="none", log_config=None, access_log=False, proxy_headers=False, server_header=False
        )
        uvicorn.Server(settled).run(sockets=[bench_target])


def _busy(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:  # the process has ended
        return 0.0
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


# Comparison of both servers.


@dataclass(frozen=True)
class Sent:
    statement: str
    values: Any

    @cached_property
    def shape(self) -> str:
        """The statement without names of parameters and parentheses."""
        return re.sub(r"[()]", "", re.sub(r"%\(\w+\)s", "?", self.statement))


def assert_alike(bench_target: Target, of: int) -> dict[str, Sent]:
    """Check that both servers send the same SQL and find the same schemas. Returns the statement of each search."""
    with penstock.open(settings=bench_target.settings) as lake:
        db = lake._workspace.db
        apps = {OURS: create_app(RestContext.create(lake._workspace, TokenVerifier(SECRET))), BARE: bare(db)}
        measurements: dict[tuple[str, str], tuple[list[Sent], Any]] = {}
        for version, (system, case) in enumerate(product(apps, CASES)):
            number = of - 1 - version if case == PUT else of - 10  # each changes a schema that is not requested later
            measurements[system, case] = _answered(apps[system], db, request(system, case, number, of))
    for case in CASES:
        (ours, our_rows), (bares, rows) = measurements[OURS, case], measurements[BARE, case]
        assert [sent.shape for sent in ours] == [sent.shape for sent in bares], (case, ours, bares)
        if case != PUT:
            assert _ids(our_rows) == _ids(rows) != [], case
    return {case: measurements[OURS, case][0][-1] for case in INDEXES}


def _answered(app: FastAPI, db: Database, http_request: Request) -> tuple[list[Sent], Any]:
    sent: list[Sent] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_rest: Any) -> None:
        sent.append(Sent(statement, values))

    event.listen(db.engine, "before_cursor_execute", note)
    try:
        answer = asyncio.run(_through(app, http_request))
    finally:
        event.remove(db.engine, "before_cursor_execute", note)
    assert answer.status_code == 200, answer.text
    return sent, answer.json()


async def _through(app: FastAPI, http_request: Request) -> httpx.Response:
    headers = {"authorization": f"Bearer {_token()}", "content-type": "application/json"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        body = http_request.body.replace(loads.MARK.decode(), f"{1:8}")
        return await client.request(http_request.method, http_request.path, content=body, headers=headers)


def _ids(answer: Any) -> list[str]:
    return [schema["id"] for schema in answer.get("value", [answer])]


def _token() -> str:
    return mint(SECRET, tenant=TENANT, user="bench", roles=[Role.DEVELOPER.claim], ttl=timedelta(hours=2))


def plan(bench_target: Target, case: str, search: Sent) -> Grid:
    """Return the query plan of a search for the role that serves requests."""
    with bench_target.db.connect_without_tenant() as connection:
        if bench_target.db.engine.dialect.name == "postgresql":
            entered = f"SELECT set_config('role', %(role)s, true), set_config('{TENANT_SETTING}', %(tenant)s, true)"
            connection.exec_driver_sql(entered, {"role": APP_ROLE, "tenant": str(TENANT)})
            lines = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {search.statement}", search.values)]
        else:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {search.statement}", search.values)
            lines = [row.detail for row in rows]
    steps = [line.replace("  ", "\N{NO-BREAK SPACE}" * 2) for line in lines]
    return Grid(
        f"The plan of a {case}, {bench_target.name}: {_describe_plan(case, lines)}",
        ["step"],
        [[line] for line in steps],
    )


def _describe_plan(case: str, lines: Sequence[str]) -> str:
    """Describe whether a plan uses the expected index. Using it once per schema does not count."""
    if any(WALK in line for line in lines) or not any(INDEXES[case] in line for line in lines):
        return f"NOT by the index {INDEXES[case]}; it reads every schema of the tenant"
    return f"by the index {INDEXES[case]}"


# The rounds.


@dataclass
class Job:
    """One case on one server."""

    bench_target: Target
    system: str
    case: str
    numbers: Numbers
    asker: ProcessPoolExecutor
    took: list[float] = field(default_factory=list)
    seconds: float = 0.0
    asking: float = 0.0  # CPU seconds, as are the next two
    serving: float = 0.0
    keeping: float = 0.0

    def __post_init__(self) -> None:
        token, of = _token(), self.numbers.schemas
        self._lines = [
            [request(self.system, self.case, n, of).wire(token) for n in self._schema_numbers(i)]
            for i in range(CONNECTIONS)
        ]
        self._versions = [[1] * len(line) for line in self._lines] if self.case == PUT else []
        self._ask(self.numbers.seconds / 4)  # warm-up: opens connections and fills caches

    def __call__(self) -> float:
        before = self.bench_target.busy(self.system)
        outcome = self._ask(self.numbers.seconds)
        used = {pid: busy - before.get(pid, 0.0) for pid, busy in self.bench_target.busy(self.system).items()}
        self.took += outcome.took
        self.seconds += outcome.seconds
        self.asking += outcome.busy
        self.serving += used.pop(self.bench_target.pids[self.system])
        self.keeping += sum(used.values())
        return outcome.rate

    def _ask(self, seconds: float) -> loads.Outcome:
        load = loads.Load(self.bench_target.ports[self.system], self._lines, seconds, self._versions)
        outcome = self.asker.submit(loads.run, load).result()
        if self._versions:
            self._versions = outcome.versions
        return outcome

    def _schema_numbers(self, connection: int) -> list[int]:
        """Return the schemas that a connection requests. Each changed schema belongs to one connection."""
        if self.case == PUT:
            start = 2 * connection + (self.system == BARE)
            return list(range(start, self.numbers.schemas // 2, 2 * CONNECTIONS))[:50]
        return random.Random(connection).choices(range(self.numbers.schemas), k=300)


def measure(report: Report, numbers: Numbers, folder: Path) -> None:
    with ExitStack() as stack:
        urls = {"SQLite": None, "PostgreSQL": stack.enter_context(_postgresql())}
        chosen = {
            title: config.load_settings({}, workspace=folder / title, database_url=url) for title, url in urls.items()
        }
        with ProcessPoolExecutor(len(chosen), mp_context=get_context("spawn")) as hands:
            list(hands.map(prepare, chosen.values(), [numbers] * len(chosen)))
        asker = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        targets: list[Target] = []
        plans: list[Grid] = []
        for title, settings in chosen.items():
            bench_target = Target(title, stack.enter_context(penstock.open(settings=settings))._workspace.db, settings)
            plans += [
                plan(bench_target, case, sent) for case, sent in assert_alike(bench_target, numbers.schemas).items()
            ]
            stack.enter_context(serving(bench_target, folder))
            targets.append(bench_target)
        jobs = {
            (bench_target.name, case, system): Job(bench_target, system, case, numbers, asker)
            for bench_target, case, system in product(targets, CASES, (OURS, BARE))
        }
        rates = interleaved(jobs, numbers.rounds)
    report.add(_speeds(jobs, rates, numbers))
    report.add(_cores(jobs))
    for grid in plans:
        report.add(grid)


Case = tuple[str, str, str]


def _speeds(jobs: dict[Case, Job], rates: dict[Case, list[float]], numbers: Numbers) -> Grid:
    lines = []
    for where, case, system in jobs:
        if system != OURS:
            continue
        ours, bares = (where, case, OURS), (where, case, BARE)
        best, middle = (part(rates[ours]) / part(rates[bares]) for part in (max, median))
        lines.append([
            f"{where}, {case}",
            *(f"{median(rates[key]):,.0f}" for key in (ours, bares)),
            f"{best:.2f}", f"{middle:.2f}",
            *(ms(part(jobs[key].took)) for key in (ours, bares) for part in (median, p99)),
            f"{GOAL:.2f}", "yes" if middle >= GOAL else "no",
        ])  # fmt: skip
    header = ["", f"{OURS}, req/s", f"{BARE}, req/s", "speed by best", "by median", f"{OURS}, p50", "p99",
              f"{BARE}, p50", "p99", "goal", "reached"]  # fmt: skip
    return Grid(
        f"{numbers.schemas:,} schemas and {numbers.others:,} of another tenant; {CONNECTIONS} connections, "
        f"{numbers.rounds} rounds of {numbers.seconds:g} s. Requests per second are medians of the rounds, times are in ms. "
        "SQLite flushes to disk, PostgreSQL does not",
        header,
        lines,
    )


def _cores(jobs: dict[Case, Job]) -> Grid:
    lines = []
    for (where, case, system), job in jobs.items():
        shares = (job.serving, job.keeping, job.asking)
        spent = job.serving / len(job.took)
        lines.append([f"{where}, {case}: {system}", *(f"{share / job.seconds:.0%}" for share in shares), ms(spent)])
    header = ["", "server", "PostgreSQL", "load generator", "server, ms per request"]
    return Grid("CPU use of the processes, in shares of one core", header, lines)


def _postgresql() -> AbstractContextManager[str]:
    """Return the URL of a server like the one of the tests."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support import postgres_server

    return postgres_server.server()


def main() -> None:
    options = _options()
    report = Report(
        "registry", "The registry under load", ["fastapi", "uvicorn", "sqlalchemy", "psycopg"], quick=options.quick
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        measure(report, QUICK if options.quick else FULL, Path(folder))
    print(f"\nalso in {report.save()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few schemas and short rounds, to check that it runs")
    parser.add_argument("--folder", help="folder for temporary catalogs (on a disk, not in memory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
