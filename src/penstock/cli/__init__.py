"""The command line `penstock`."""

import json
import sys
from collections.abc import Sequence

import click

from penstock import __version__
from penstock.cli.context import Group
from penstock.cli.dataset import dataset
from penstock.cli.demo import demo
from penstock.cli.merge import merge
from penstock.cli.pipeline import run, runs, validate
from penstock.cli.query import queries, query
from penstock.cli.schema import schema
from penstock.cli.serve import serve
from penstock.cli.worker import worker
from penstock.cli.workspace import doctor, init, migrate, sweep, token


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Versioned, multi-tenant datasets with atomic writes and readable history.

    \b
    Examples:
      penstock init lake
      export PENSTOCK_WORKSPACE=lake
      penstock dataset import finance.transactions transactions.csv
      penstock dataset history finance.transactions
      penstock dataset read finance.transactions --where "amount > 100" --version 1
    """


for command in (
    init, serve, worker, dataset, merge, validate, run, runs, schema, queries, query, sweep, migrate, doctor, token, demo,
):  # fmt: skip
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and exit. An exception that is not a PenstockError is reported as a bug."""
    args = sys.argv[1:] if args is None else args
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot print a character gets its escape
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli(args, prog_name="penstock", standalone_mode=False)
    except click.ClickException as error:
        if "--json" in args:
            _print_json_error("Usage", "usage", error.format_message())
        else:
            error.show()
        code = error.exit_code
    except click.Abort:  # Ctrl-C, or the answer No
        click.echo("penstock: Interrupted. Nothing was written that was not reported", err=True)
        code = 130
    except Exception as bug:
        import logging

        logging.getLogger("penstock").debug("bug", exc_info=bug)
        message = f"This is a bug in Penstock: {type(bug).__name__}: {bug}"
        if "--json" in args:
            _print_json_error("Bug", "bug", message)
        else:
            click.echo(f"penstock: {message}", err=True)
        code = 1
    raise SystemExit(code)


def _print_json_error(kind: str, reason: str, message: str) -> None:
    click.echo(json.dumps({"error": {"kind": kind, "reason": reason, "message": message}}), err=True)
