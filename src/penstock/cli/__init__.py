"""The command `penstock`."""

import sys

import click

from penstock import __version__
from penstock.cli.dataset import dataset
from penstock.cli.demo import demo
from penstock.cli.frame import Group
from penstock.cli.workspace import doctor, init, migrate, sweep, token


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Versioned, multi-tenant datasets: every write atomic, every version readable.

    \b
    A first session:
      penstock init lake
      export PENSTOCK_WORKSPACE=lake
      penstock dataset import finance.transactions transactions.csv
      penstock dataset history finance.transactions
      penstock dataset read finance.transactions --where "amount > 100" --version 1
    """


for command in (init, dataset, sweep, migrate, doctor, token, demo):
    cli.add_command(command)


def main() -> None:
    """Run the command; whatever is not Penstock's own error is a bug, and told as one."""
    try:
        cli(prog_name="penstock")
    except BrokenPipeError:  # the reader of a pipe had enough
        sys.stderr.close()
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        click.echo("penstock: interrupted; what was not acknowledged was not written", err=True)
        raise SystemExit(130) from None
    except Exception as bug:
        import logging

        logging.getLogger("penstock").debug("bug", exc_info=bug)
        click.echo(f"penstock: this is a bug in Penstock: {type(bug).__name__}: {bug}", err=True)
        raise SystemExit(1) from None
