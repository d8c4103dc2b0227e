"""The main job, end to end: budgets set against actuals on Spark, edited over Flight, asked by a query that keeps its word."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from penstock.cli import demo_data as bookings
from penstock.cli import shell_hints as hints
from penstock.cli.context import Command, Frame, aligned, shared
from penstock.cli.pipeline import watched

if TYPE_CHECKING:
    from penstock.core.pipeline.run import Run
    from penstock.flight.client import FlightClient
    from penstock.lake import Answer, Dataset, Lake, Query

ROWS = 300_000
_KEY = ["scenario", "account", "month"]
_QUESTION = """SELECT account_group,
       sum(amount) FILTER (WHERE scenario = 'budget') AS budget,
       sum(amount) FILTER (WHERE scenario = 'actual') AS actual,
       round(100 * actual / budget, 1) AS used
FROM finance.report GROUP BY account_group"""
_PROMISE = [
    {"name": "account_group", "type": "string"},
    {"name": "budget", "type": "number"},
    {"name": "actual", "type": "number"},
    {"name": "used", "type": "number", "description": "percent"},
]
_LATE = {"scenario": "actual", "month": "2026-12", "amount": 950.0}
_LARGE = 1_250_000.0  # of a booking that is seen in the figures of a year


@click.command(cls=Command)
@click.option("--keep", type=click.Path(path_type=Path), help="Leave the workspace in this new folder.")
@click.option("--serve-with", hidden=True, help="What serves the kept workspace, where that is not `penstock serve`.")
@shared("penstock demo --keep demo-workspace")
def demo(frame: Frame, keep: Path | None, serve_with: str | None) -> None:
    """Tell the whole story: datasets, a pipeline on Spark, a transaction over Flight, a query that is caught, the past.

    It all happens in a workspace that is gone afterwards.
    """
    from penstock.engines.spark.session import session

    keep = keep or frame.workspace
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} is there already; name a new folder")
    say = partial(click.echo, err=frame.json)  # in JSON the story is no data
    _step(say, "Start Spark")
    say(f"Spark {session().version}, on this machine")  # without Java there is no story to tell
    with _folder(keep) as folder:
        told = _story(frame, folder / "lake", say)
    _step(say, "What to do next")
    if keep is not None:
        _lead_on(keep, serve_with, say)
    else:
        say(f"keep it and look around:  {hints.command('demo', '--keep', 'demo-workspace')}")
    if frame.json:
        frame.print_json({"workspace": str(keep / "lake") if keep else None, **told})


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards; or that has its name only when the story was told to its end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    making = keep.with_name(f".{keep.name}-{uuid4().hex[:8]}")
    making.mkdir(parents=True)
    try:
        yield making
        making.rename(keep)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _story(frame: Frame, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    import penstock
    from penstock import config
    from penstock.service.pipelines import definitions as pipelines

    # A database that the environment names is not for playing.
    with penstock.open(create=True, settings=config.settings({}, workspace=folder)) as lake:
        _step(say, "Import the bookings of a year from a CSV file; budgets, accruals and revisions come as they are")
        file = folder.with_name("actuals.csv")
        bookings.write_actuals(file, ROWS)
        actuals = lake.create("finance.actuals", file)
        sources = {name: lake.create(f"finance.{name}", rows) for name, rows in bookings.others(ROWS).items()}
        report = lake.create("finance.report", schema=bookings.report_schema())
        say(repr(actuals))

        _step(say, "Write to two datasets in one commit: both or neither")
        late = {name: [value] for name, value in _LATE.items()} | {"account_group": ["travel"]}
        with lake.transaction() as both:
            both.append(actuals, late | {"id": [ROWS + 1], "account": ["travel-01"]})
            both.append(sources["accruals"], late | {"account": ["travel-late"], "amount": [-950.0]})
        assert both.receipt is not None
        say(f"commit {both.receipt.commit_no}: " + ", ".join(f"{w.name} v{w.version}" for w in both.receipt.written))

        _step(say, "Run a pipeline: append, append what is original, append sums, merge what was revised; one commit")
        definition = _pipeline(report, actuals, sources)
        folder.with_name("pipeline.json").write_text(json.dumps(definition, indent=2) + "\n")
        pipelines.create(lake.workspace, lake.caller, definition)
        with watched(frame) as watch:
            run = lake.pipeline(definition).run(progress=watch.hear_and_draw)
            watch.finish()
        say(_done(run, [sources["accruals"], sources["budgets"], actuals, sources["revisions"]]))
        say(f"finance.report is at version {run.version}")

        _step(say, "Register a query, and promise what its rows look like: every answer is checked")
        query = lake.register("budget versus actual", _QUESTION, _PROMISE)
        say(_compared(query.run({"$orderby": "account_group"})))

        with _served(lake) as client:
            caught = _edited(client, query, say)

        _step(say, "A writer that read an old version is told who came first; nothing is lost")
        try:
            report.overwrite({"scenario": ["none"]}, expect=1)
        except penstock.Conflict as refusal:
            say(f"Conflict: {refusal}")

        _step(say, "The history of finance.report, and the same query at two of its versions")
        rows = [
            [
                str(v.number),
                v.operation,
                *(f"{n:,}" for n in (v.counts.inserted, v.counts.updated, v.counts.deleted, v.rows)),
                v.author,
            ]
            for v in report.history()
        ]
        say(aligned(rows, ["version", "operation", "inserted", "updated", "deleted", "rows", "by"]))
        assert run.version is not None
        past = [query.at({"finance.report": version}) for version in (run.version, report.version)]
        say("")
        say(_compared(*(then.run({"$filter": "account_group eq 'travel'"}) for then in past)))
        wanted, now = "id <= 3", actuals.now()
        say(f"\nfinance.actuals, {wanted}: {len(now.files(wanted))} of {len(now.files())} files are opened")
        datasets = [at.snapshot.facts() for at in lake.datasets()]
        return {"datasets": datasets, "results": list(run.results), "caught": caught}


def _done(run: "Run", sources: "Sequence[Dataset]") -> str:
    """What each operation answered, as a table."""
    counts = {"rows_appended": "appended", **{name: name for name in ("inserted", "updated", "deleted")}}
    lines = []
    for each, source in zip(run.results, sources, strict=True):
        result: Mapping[str, Any] = each["result"]
        how = [name for name in ("filtered", "aggregated") if result.get(name)]
        told = [f"{result[name]:,}" if name in result else "" for name in counts]
        after = f"{result['working_dataset_rows_after']:,}"
        lines.append([" ".join([each["operation"], *how]), source.name, *told, after])
    return aligned(lines, ["operation", "of", *counts.values(), "rows after it"])


def _edited(client: "FlightClient", query: "Query", say: Callable[[str], None]) -> dict[str, Any]:
    """A row that breaks the promise comes, is caught, and goes."""
    from penstock.errors import Unsupported

    table, before = "finance.report", query.run().versions
    empty: dict[str, Any] = dict.fromkeys(["budget_type", "bookings"])
    _step(say, "A client adds rows over Arrow Flight, in a transaction; one of them belongs to no group")
    amount = {"amount": _LARGE}
    rows = [_LATE | amount | empty | {"account_group": group, "account": f"{group}-99"} for group in ("travel", None)]
    with client.transaction() as tx:
        say(f"inserted {tx.insert(table, rows).affected_rows} rows; others see them when it is committed")
    _step(say, "The same query is caught breaking its promise; nobody gets a wrong row")
    try:
        query.run()
    except Unsupported as refusal:
        caught = refusal.facts()
        say(_broken(caught))
    say("but what it answered of the version before is still there to be asked for:")
    say(_compared(query.at(before).run({"$orderby": "account_group", "$top": 2})))
    _step(say, "The client takes the row away again, by its row id")
    with client.transaction() as tx:
        wrong = tx.read(table, where="account_group IS NULL", rowid=True).read_all()
        tx.delete(table, wrong["rowid"])
    say(f"deleted row {wrong['rowid'][0]}; the query keeps its promise again: {query.run()!r}")
    return caught


@contextmanager
def _served(lake: "Lake") -> Iterator["FlightClient"]:
    """A client of this workspace's own Flight service, which ends with it."""
    import penstock
    from penstock.flight.context import Edge
    from penstock.flight.service import FlightService

    service = FlightService(Edge(lake.workspace, None, lake.caller), "127.0.0.1", 0)
    service.start()
    try:
        with penstock.flight_client(service.address) as client:
            yield client
    finally:
        service.stop()


def _broken(caught: Mapping[str, Any]) -> str:
    """How an answer breaks its promise: where, and what was promised."""
    from penstock.lake import counted

    errors = caught["errors"]
    rows = counted(len({each["row"] for each in errors}), "row")
    lines = [[each["field"], each["expected"], each["actual"]] for each in errors]
    return (
        f"{caught['reason'].upper()}: {caught['error_count']} values in {rows} are not what was promised\n"
        + aligned(lines, ["field", "promised", "found"])
    )


def _lead_on(kept: Path, serve_with: str | None, say: Callable[[str], None]) -> None:
    """What can be done with what is left, in words that can be pasted."""
    from importlib.util import find_spec

    lake, pages = kept / "lake", find_spec("nicegui") is not None
    serve = serve_with or hints.command("serve", "--dev", "-w", lake)
    say(f"look around:   {serve}    and open http://127.0.0.1:8080/{'ui' if pages else 'docs'}")
    if not pages:
        say("with a page:   pip install 'penstock[ui]'")
    say(f"or here:       {hints.command('dataset', 'history', 'finance.report', '-w', lake)}")
    say(f"make it anew:  {hints.command('run', kept / 'pipeline.json', '-w', lake)}")
    docs = Path(__file__).parents[3] / "docs"
    read = [str(hints.near(docs / page)) for page in ("way.md", "pipelines.md", "flight.md") if (docs / page).exists()]
    say(f"read on:       {', '.join(read) or hints.command('--help')}")


def _step(say: Callable[[str], None], title: str) -> None:
    say(click.style(f"\n── {title}", bold=True))


def _pipeline(report: "Dataset", actuals: "Dataset", sources: "dict[str, Dataset]") -> dict[str, Any]:
    def operation(type: str, source: "Dataset", **parameters: Any) -> dict[str, Any]:
        return {"type": type, "parameters": {"source": {"dataset_id": str(source.id)}, **parameters}}

    sums = {
        "group_by": ["scenario", "account_group", "account", "month"],
        "aggregations": [
            {"column": "amount", "expression": "SUM(amount)"},
            {"column": "bookings", "expression": "COUNT(*)"},
        ],
    }
    operations = [
        operation("append", sources["accruals"]),
        operation("append", sources["budgets"], source_selector="budget_type = 'original'"),
        operation("append", actuals, aggregation=sums),
        operation("merge", sources["revisions"], key_columns=_KEY, strategy="upsert"),
    ]
    # It begins with the empty report each time, and replaces what is there: run again, it comes to the same.
    return {
        "name": "budget versus actuals",
        "working": {"dataset_id": str(report.id), "dataset_version": 1},
        "output": {"schema_name": "finance", "table_name": "report"},
        "operations": operations,
    }


def _compared(*answers: "Answer") -> str:
    lines: Sequence[Sequence[str]] = [
        [version, row["account_group"], f"{row['budget']:,.0f}", f"{row['actual']:,.0f}", f"{row['used']:,.1f}"]
        for answer in answers
        for version in map(str, answer.versions.values())
        for row in answer.rows
    ]
    return aligned(lines, ["version", "group", "budget", "actual", "% used"])
