"""Commands for pipelines: validate, run, runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from penstock.cli.context import CliContext, CliSession, Command, standard_options
from penstock.cli.input_files import parse_input, read_input
from penstock.cli.options import FilePath, idempotency_key_option
from penstock.cli.output import print_error, print_json, printable
from penstock.cli.progress import ProgressLine
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.payload.documents import Document
    from penstock.core.pipeline.run import Run
    from penstock.lake import Lake

_STATES = click.Choice(["queued", "running", "succeeded", "failed", "cancelled"])
_MAX_PIPELINE_BYTES = 4 << 20
_MAX_LISTED_RUNS = 1_000


@click.command(cls=Command)
@click.argument("file", type=FilePath())
@standard_options(
    """
    penstock validate budget.yaml
    penstock validate - --json
    """
)
def validate(context: CliContext, file: Path) -> None:
    """List every error of the pipeline in FILE (JSON or YAML; - for standard input) with its line.

    Checks datasets, versions, columns and types. Reads no rows and does not start Spark.
    """
    from penstock.service.pipelines import planning

    data = read_input(file, _MAX_PIPELINE_BYTES)
    try:
        document = parse_input(file, data)
    except PenstockError as error:
        fact = {"pointer": "", "code": error.reason.upper(), "message": error.message}
        errors = [fact if (line := error.context.get("line")) is None else fact | {"line": line}]
    else:
        with context.session() as session:
            errors = planning.validate_pipeline(session.workspace, session.caller, document.value)
            errors = _add_lines(document, errors)
    message = _format_errors(file, errors) or f"{file} is valid"
    context.report({"valid": not errors, "errors": errors}, message)
    if errors:
        raise SystemExit(1)


@click.command(cls=Command)
@click.argument("file", type=FilePath())
@click.option("--dry-run", is_flag=True, help="Print the result of each operation without writing.")
@idempotency_key_option("A repeated command with the same key runs the pipeline once.", "--key")
@standard_options(
    """
    penstock run budget.yaml --dry-run
    penstock run budget.yaml --idempotency-key budget-2026-03
    """
)
def run(context: CliContext, file: Path, dry_run: bool, idempotency_key: str | None) -> None:
    """Run the pipeline in FILE (JSON or YAML; - for standard input) on Spark, and commit its result once.

    Prints the result of each operation as JSON. If an operation fails, prints its error and writes nothing. Ctrl-C
    cancels the run. PENSTOCK_SPARK_MASTER is the Spark master; by default Spark runs on this machine.
    """
    if dry_run and idempotency_key:
        raise click.UsageError("--idempotency-key cannot be combined with --dry-run, which writes nothing.")
    document = parse_input(file, read_input(file, _MAX_PIPELINE_BYTES))
    with (
        context.lake() as lake,
        _error_output(context, file, document),
        show_run_progress(context) as line,
    ):
        if dry_run:
            results = lake.pipeline(document.value).preview(progress=line.on_progress)
            line.finish()
            _print_results(context, results, "Nothing was written (--dry-run)")
        else:
            _run_pipeline(context, lake, document.value, idempotency_key, line)


@click.command(cls=Command)
@click.argument("id", type=click.UUID, required=False)
@click.option("--cancel", is_flag=True, help="Cancel the run ID.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only runs in this state; repeat it for several.")
@click.option(
    "--limit", type=click.IntRange(1, _MAX_LISTED_RUNS), default=20, show_default=True, help="Maximum number of runs."
)
@standard_options(
    """
    penstock runs --state running --state queued
    penstock runs 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d
    penstock runs 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d --cancel
    """
)
def runs(context: CliContext, id: UUID | None, cancel: bool, states: tuple[str, ...], limit: int) -> None:
    """List pipeline runs, the newest first; or print the run ID as JSON."""
    from penstock.service.pipelines import runs as service_runs

    if cancel and id is None:
        raise click.UsageError("--cancel requires the ID of a run. `penstock runs` lists the runs.")
    with context.session() as session:
        if id is None:
            _list_runs(context, session, states, limit)
        elif cancel:
            run = service_runs.cancel(session.workspace, session.caller, id)
            context.report(run.as_json(), f"run {id} {_describe_cancellation(run)}")
        else:
            print_json(service_runs.show(session.workspace, session.caller, id).as_json())


# -- validate ---------------------------------------------------------------------------------------------------------


def _add_lines(document: "Document", errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = [document.line(error["pointer"]) for error in errors]
    return [error if line is None else {**error, "line": line} for error, line in zip(errors, lines, strict=True)]


def _format_errors(file: Path, errors: list[dict[str, Any]]) -> str:
    """Return one line per error: file and line, pointer, code, message and facts."""
    return "\n".join(
        f"{file}{':' + str(error['line']) if 'line' in error else ''}: "
        + printable(
            f"{error['pointer'] or '/'}: {error['code']} {_add_facts(error['message'], error.get('details', {}))}"
        )
        for error in errors
    )


def _add_facts(message: str, details: Mapping[str, Any]) -> str:
    if "problem" in details:  # it describes the other facts
        return f"{message}: {details['problem']}"
    facts = [
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in details.items()
        if name not in ("operation_order", "pointer", "errors")
    ]
    return f"{message} ({'; '.join(facts)})" if facts else message


# -- run --------------------------------------------------------------------------------------------------------------


@contextmanager
def _error_output(context: CliContext, file: Path, document: "Document") -> Iterator[None]:
    """Print the error response of the contract to standard output, and the error to standard error."""
    from penstock.core.pipeline.responses import error_response

    try:
        yield
    except PenstockError as error:
        print_json(error_response(error))
        if context.json:
            raise
        order = error.context.get("operation_order")
        message = ("" if order is None else f"operation {order}: ") + _add_facts(error.message, error.context)
        print_error(type(error)(error.reason, message), as_json=False)
        if errors := error.context.get("errors"):
            click.echo(_format_errors(file, _add_lines(document, errors)), err=True)
        raise SystemExit(1) from None


def _run_pipeline(
    context: CliContext, lake: "Lake", value: Any, idempotency_key: str | None, line: ProgressLine
) -> None:
    from penstock.lake.pipeline import execute_and_wait

    outcome = execute_and_wait(lake, lake.pipeline(value).definition, line, idempotency_key)
    line.finish(succeeded=outcome.error is None)
    if context.json:
        print_json(outcome.run.as_json())
    if outcome.error and outcome.interrupt:
        click.echo("penstock: The run was cancelled. Nothing was written", err=True)
        raise SystemExit(130)
    if outcome.error and context.json:  # the record on standard output contains the error response
        print_error(outcome.error, as_json=True)
        raise SystemExit(1)
    if outcome.error:
        raise outcome.error
    if not context.json:
        replay = " (already done)" if outcome.is_replay else ""
        _print_results(context, outcome.run.results, _describe_commit(outcome.run) + replay)


def _print_results(context: CliContext, results: Any, message: str) -> None:
    if context.json:
        print_json(list(results))
        return
    for result in results:
        print_json(result)
    click.echo(message, err=True)


def _describe_commit(run: "Run") -> str:
    from penstock.core.formatting import format_count

    (commit,) = run.written
    return f"{commit['name']} is at version {commit['version']}, with {format_count(commit['rows'], 'row')}"


@contextmanager
def show_run_progress(context: CliContext) -> Iterator[ProgressLine]:
    """Show the progress of a run, and stop Spark when the process ends."""
    try:
        with context.progress() as line:
            yield line
    finally:
        _stop_spark_at_exit()


def _stop_spark_at_exit() -> None:
    """Stop Spark when the process ends, and not before: another caller in this process may use the session."""
    import atexit

    from penstock.service.engine_choice import stop_spark

    atexit.unregister(stop_spark)  # register it at most once
    atexit.register(stop_spark)


# -- runs -------------------------------------------------------------------------------------------------------------


def _list_runs(context: CliContext, session: CliSession, states: tuple[str, ...], limit: int) -> None:
    from penstock.core import odata
    from penstock.service.pipelines import runs

    pairs = [("$filter", " or ".join(f"state eq '{state}'" for state in states))] if states else []
    options = odata.options(pairs, runs.SEARCH_FIELDS, default_top=limit, max_top=_MAX_LISTED_RUNS)
    page = runs.search(session.workspace, session.caller, options).items
    columns = {name: name for name in ("id", "state", "pipeline", "started", "took", "rows", "by")}
    rows = [run.as_json() for run in page] if context.json else [_table_row(run) for run in page]
    context.table(rows, columns, "No such runs. Start one with `penstock run FILE`")


def _table_row(run: "Run") -> dict[str, Any]:
    duration = run.ended_at - run.started_at if run.started_at and run.ended_at else None
    changed_rows = sum(commit[count] for commit in run.written for count in ("inserted", "updated", "deleted"))
    return {
        "id": str(run.id),
        "state": "cancelling" if run.cancelling and run.ended_at is None else run.state.value,
        "pipeline": printable(run.name),
        "started": f"{run.started_at:%Y-%m-%d %H:%M:%S}" if run.started_at else None,
        "took": f"{duration.total_seconds():,.1f} s" if duration else None,
        "rows": changed_rows if run.written else None,
        "by": printable(run.author),
    }


def _describe_cancellation(run: "Run") -> str:
    from penstock.core.pipeline.run import ACTIVE_STATES

    return "is being cancelled" if run.state in ACTIVE_STATES else f"has ended: {run.state.value}"
