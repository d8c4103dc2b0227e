"""The command `demo`: import, transaction, pipeline on Spark, registered query, Flight, conflict and history, end to end."""

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

from penstock.cli import demo_data, shell_hints
from penstock.cli.context import CliContext, CliSession, Command, open_cli_session, standard_options
from penstock.cli.output import align_table, print_json
from penstock.cli.pipeline import show_run_progress

if TYPE_CHECKING:
    from penstock.core.pipeline.run import Run
    from penstock.flight.client import FlightClient
    from penstock.lake import Dataset, Query, QueryResult

ROWS = 300_000
_KEY_COLUMNS = ["scenario", "account", "month"]
_SQL = """SELECT account_group,
       sum(amount) FILTER (WHERE scenario = 'budget') AS budget,
       sum(amount) FILTER (WHERE scenario = 'actual') AS actual,
       round(100 * actual / budget, 1) AS used
FROM finance.report GROUP BY account_group"""
_RESULT_FIELDS = [
    {"name": "account_group", "type": "string"},
    {"name": "budget", "type": "number"},
    {"name": "actual", "type": "number"},
    {"name": "used", "type": "number", "description": "percent"},
]
_LATE_BOOKING = {"scenario": "actual", "month": "2026-12", "amount": 950.0}
_LARGE_AMOUNT = 1_250_000.0  # of a booking that changes the yearly totals visibly


@click.command(cls=Command)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the workspace in this new folder.")
@click.option("--serve-with", hidden=True, help="Command that serves the kept workspace.  [default: penstock serve]")
@standard_options(
    """
    penstock demo
    penstock demo --keep demo-workspace
    """
)
def demo(context: CliContext, keep: Path | None, serve_with: str | None) -> None:
    """Demonstrate datasets, a pipeline on Spark, a Flight transaction, a query that violates its schema, and history.

    Uses a temporary workspace, which is removed at the end unless --keep is set.
    """
    from penstock import bootstrap

    keep = keep or context.workspace
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} exists already. Pass a new folder.")
    print_line = partial(click.echo, err=context.json)  # with --json, standard output is only for the result
    _step(print_line, "Start Spark")
    print_line(f"Spark {bootstrap.start_spark()} on this machine")  # first, because it fails without Java
    with _folder(keep) as folder:
        facts = _run_demo(context, folder / "lake", print_line)
    _step(print_line, "Next steps")
    if keep is not None:
        _print_next_steps(keep, serve_with, print_line)
    else:
        print_line(f"keep the workspace:  {shell_hints.format_command('demo', '--keep', 'demo-workspace')}")
    if context.json:
        print_json({"workspace": str(keep / "lake") if keep else None, **facts})


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield a temporary folder, or one that is renamed to `keep` when the demo has succeeded."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    draft = keep.with_name(f".{keep.name}-{uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.rename(keep)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run_demo(context: CliContext, folder: Path, print_line: Callable[[str], None]) -> dict[str, Any]:
    import penstock
    from penstock import config
    from penstock.service.pipelines import definitions as pipeline_definitions

    # Never the database of the environment variables.
    with open_cli_session(config.load_settings({}, workspace=folder), create=True) as session:
        lake = session.lake
        _step(
            print_line,
            "Import the bookings of a year from a CSV file, and budgets, accruals and revisions from Arrow tables",
        )
        file = folder.with_name("actuals.csv")
        demo_data.write_actuals(file, ROWS)
        actuals = lake.create("finance.actuals", file)
        sources = {name: lake.create(f"finance.{name}", rows) for name, rows in demo_data.build_tables(ROWS).items()}
        report = lake.create("finance.report", schema=demo_data.build_report_schema())
        print_line(repr(actuals))

        _step(print_line, "Write to two datasets in one commit")
        late_booking = {name: [value] for name, value in _LATE_BOOKING.items()} | {"account_group": ["travel"]}
        with lake.transaction() as both:
            both.append(actuals, late_booking | {"id": [ROWS + 1], "account": ["travel-01"]})
            both.append(sources["accruals"], late_booking | {"account": ["travel-late"], "amount": [-950.0]})
        assert both.receipt is not None
        print_line(
            f"commit {both.receipt.commit_no}: " + ", ".join(f"{w.name} v{w.version}" for w in both.receipt.written)
        )

        _step(print_line, "Run a pipeline: append, append with a filter, append with an aggregation, merge; one commit")
        definition = _pipeline(report, actuals, sources)
        folder.with_name("pipeline.json").write_text(json.dumps(definition, indent=2) + "\n")
        pipeline_definitions.create(session.workspace, session.caller, definition)
        with show_run_progress(context) as line:
            run = lake.pipeline(definition).run(progress=line.on_progress)
            line.finish()
        print_line(_format_results(run, [sources["accruals"], sources["budgets"], actuals, sources["revisions"]]))
        print_line(f"finance.report is at version {run.version}")

        _step(print_line, "Register a query with a result schema: every row is validated")
        query = lake.register("budget versus actual", _SQL, _RESULT_FIELDS)
        print_line(_format_comparison(query.run({"$orderby": "account_group"})))

        with _serve_flight(session) as client:
            violation = _edit_over_flight(client, query, print_line)

        _step(print_line, "A writer that has read an old version gets a conflict; no row is lost")
        try:
            report.overwrite({"scenario": ["none"]}, expect=1)
        except penstock.Conflict as error:
            print_line(f"Conflict: {error}")

        _step(print_line, "The history of finance.report, and the same query at two of its versions")
        rows = [
            [
                str(v.number),
                v.operation,
                *(f"{n:,}" for n in (v.counts.inserted, v.counts.updated, v.counts.deleted, v.rows)),
                v.author,
            ]
            for v in report.history()
        ]
        print_line(align_table(rows, ["version", "operation", "inserted", "updated", "deleted", "rows", "by"]))
        assert run.version is not None
        earlier = [query.at({"finance.report": version}) for version in (run.version, report.version)]
        print_line("")
        print_line(
            _format_comparison(*(at_version.run({"$filter": "account_group eq 'travel'"}) for at_version in earlier))
        )
        condition, version = "id <= 3", actuals.current()
        print_line(
            f"\nfinance.actuals, {condition}: {len(version.files(condition))} of {len(version.files())} files are read"
        )
        datasets = [version.snapshot.as_dict() for version in lake.datasets()]
        return {"datasets": datasets, "results": list(run.results), "caught": violation}


def _format_results(run: "Run", sources: "Sequence[Dataset]") -> str:
    """Return the result of each operation as a table."""
    counts = {"rows_appended": "appended", **{name: name for name in ("inserted", "updated", "deleted")}}
    lines = []
    for response, source in zip(run.results, sources, strict=True):
        result: Mapping[str, Any] = response["result"]
        modes = [name for name in ("filtered", "aggregated") if result.get(name)]
        cells = [f"{result[name]:,}" if name in result else "" for name in counts]
        after = f"{result['working_dataset_rows_after']:,}"
        lines.append([" ".join([response["operation"], *modes]), source.name, *cells, after])
    return align_table(lines, ["operation", "of", *counts.values(), "rows after it"])


def _edit_over_flight(client: "FlightClient", query: "Query", print_line: Callable[[str], None]) -> dict[str, Any]:
    """Insert a row that violates the result schema, run the query, and delete the row."""
    from penstock.errors import Unsupported

    table, before = "finance.report", query.run().versions
    empty: dict[str, Any] = dict.fromkeys(["budget_type", "bookings"])
    _step(print_line, "A client inserts rows over Arrow Flight in a transaction; one of them has no account group")
    amount = {"amount": _LARGE_AMOUNT}
    rows = [
        _LATE_BOOKING | amount | empty | {"account_group": group, "account": f"{group}-99"}
        for group in ("travel", None)
    ]
    with client.transaction() as tx:
        print_line(f"inserted {tx.insert(table, rows).affected_rows} rows; other readers see them after the commit")
    _step(print_line, "The query now violates its result schema: it fails and returns no rows")
    try:
        query.run()
    except Unsupported as error:
        violation = error.as_dict()
        print_line(_format_violation(violation))
    print_line("The result of the version before is still available:")
    print_line(_format_comparison(query.at(before).run({"$orderby": "account_group", "$top": 2})))
    _step(print_line, "The client deletes the row by its row id")
    with client.transaction() as tx:
        rejected = tx.read(table, where="account_group IS NULL", rowid=True).read_all()
        tx.delete(table, rejected["rowid"])
    print_line(f"deleted row {rejected['rowid'][0]}; the query is valid again: {query.run()!r}")
    return violation


@contextmanager
def _serve_flight(session: CliSession) -> Iterator["FlightClient"]:
    """Serve the workspace over Flight on a free port, and yield a client."""
    import penstock
    from penstock.flight.context import FlightContext
    from penstock.flight.service import FlightService

    service = FlightService(FlightContext(session.workspace, None, session.caller), "127.0.0.1", 0)
    service.start()
    try:
        with penstock.flight_client(service.address) as client:
            yield client
    finally:
        service.stop()


def _format_violation(violation: Mapping[str, Any]) -> str:
    """Return the violations of a result schema as a table."""
    from penstock.core.formatting import format_count

    errors = violation["errors"]
    rows = format_count(len({error["row"] for error in errors}), "row")
    lines = [[error["field"], error["expected"], error["actual"]] for error in errors]
    return (
        f"{violation['reason'].upper()}: {violation['error_count']} values in {rows} violate the result schema\n"
        + align_table(lines, ["field", "expected", "actual"])
    )


def _print_next_steps(folder: Path, serve_with: str | None, print_line: Callable[[str], None]) -> None:
    """Print commands for the kept workspace that can be pasted."""
    from importlib.util import find_spec

    lake, has_ui = folder / "lake", find_spec("nicegui") is not None
    serve = serve_with or shell_hints.format_command("serve", "--dev", "-w", lake)
    print_line(f"serve it:      {serve}    and open http://127.0.0.1:8080/{'ui' if has_ui else 'docs'}")
    if not has_ui:
        print_line("web page:      pip install 'penstock[ui]'")
    print_line(f"history:       {shell_hints.format_command('dataset', 'history', 'finance.report', '-w', lake)}")
    print_line(f"run again:     {shell_hints.format_command('run', folder / 'pipeline.json', '-w', lake)}")
    docs = Path(__file__).parents[3] / "docs"
    pages = [
        str(shell_hints.relative_path(docs / page))
        for page in ("architecture.md", "pipelines.md", "flight.md")
        if (docs / page).exists()
    ]
    print_line(f"read more:     {', '.join(pages) or shell_hints.format_command('--help')}")


def _step(print_line: Callable[[str], None], title: str) -> None:
    print_line(click.style(f"\n── {title}", bold=True))


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
        operation("merge", sources["revisions"], key_columns=_KEY_COLUMNS, strategy="upsert"),
    ]
    # Each run starts from the empty version 1 and replaces the report, so that a second run gives the same result.
    return {
        "name": "budget versus actuals",
        "working": {"dataset_id": str(report.id), "dataset_version": 1},
        "output": {"schema_name": "finance", "table_name": "report"},
        "operations": operations,
    }


def _format_comparison(*results: "QueryResult") -> str:
    lines: Sequence[Sequence[str]] = [
        [version, row["account_group"], f"{row['budget']:,.0f}", f"{row['actual']:,.0f}", f"{row['used']:,.1f}"]
        for result in results
        for version in map(str, result.versions.values())
        for row in result.rows
    ]
    return align_table(lines, ["version", "group", "budget", "actual", "% used"])
