"""The main job, end to end, on one screen."""

import random
import shutil
import tempfile
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.frame import Command, Frame, aligned, shared

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 200_000


@click.command(cls=Command)
@click.option("--keep", type=click.Path(path_type=Path), help="Leave the workspace in this new folder.")
@shared("penstock demo --keep demo-workspace")
def demo(frame: Frame, keep: Path | None) -> None:
    """Make datasets, a few versions of them, and read the past: in a workspace that is gone afterwards."""
    keep = keep or frame.workspace
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} is there already; name a new folder")
    folder = keep or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    say = partial(click.echo, err=frame.json)  # in JSON the story is no data
    try:
        made = _story(folder / "lake", say)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if keep is not None:
        say(f"\nlook around: PENSTOCK_WORKSPACE={folder / 'lake'} penstock dataset list")
    if frame.json:
        frame.print_json({"workspace": str(folder / "lake") if keep else None, "datasets": made})


def _story(folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    import penstock
    from penstock import config

    # A database that the environment names is not for playing.
    lake = penstock.open(create=True, settings=config.settings({}, workspace=folder))
    actuals, file = _actuals(), folder.with_name("actuals.csv")
    pacsv.write_csv(actuals, file)

    _step(say, "Import a CSV file, append the late bookings, correct the schema")
    tx = lake.create("finance.transactions", file)
    tx.append(actuals.slice(0, 1_000))
    tx.alter(add={"note": "string"})
    budget = lake.create("finance.budget", _budget())
    say(repr(tx))

    _step(say, "Write to two datasets in one commit: both or neither")
    with lake.transaction() as both:
        both.append(tx, {"id": [ROWS + 1], "account": ["A-4711"], "amount": [950.0], "note": ["moved from the budget"]})
        both.append(budget, {"account": ["A-4711"], "amount": [-950.0]})
    assert both.receipt is not None
    say(f"commit {both.receipt.commit_no}: " + ", ".join(f"{w.name} v{w.version}" for w in both.receipt.written))

    _step(say, "Merge corrections on the key: rows that are there are updated, the others inserted")
    merged = tx.merge(
        {"id": [7, ROWS - 1, ROWS + 2], "account": ["A-4001", "A-4002", "A-4003"], "amount": [1.0, 2.0, 3.0]}, "id"
    )
    say(", ".join(f"{count:,} {what}" for what, count in merged.stats.items()) + f"; by {merged.engine}")

    _step(say, "A writer that read an old version is told who came first; nothing is lost")
    try:
        tx.overwrite(pa.table({"id": [0], "account": ["A-0000"], "amount": [0.0]}), expect=2)
    except penstock.Conflict as refusal:
        say(f"Conflict: {refusal}")

    _step(say, "The history of finance.transactions")
    rows = [
        [str(v.number), v.operation, f"{v.counts.inserted:,}", f"{v.rows:,}", str(v.files), v.author]
        for v in tx.history()
    ]
    say(aligned(rows, ["version", "operation", "inserted", "rows", "files", "by"]))

    _step(say, "Read the past, and only the files that matter")
    wanted = f"id > {ROWS - 3}"
    first, now = tx.at(version=1), tx.now()
    say(f"version 1 has {first.num_rows:,} rows, version {now.version} has {now.num_rows:,}")
    say(f"{wanted}: {len(now.files(wanted))} of {len(now.files())} files are opened")
    found = now.to_arrow(["id", "account", "amount", "note"], wanted).to_pylist()
    say(aligned([["" if v is None else str(v) for v in row.values()] for row in found], list(found[0])))
    made = [at.snapshot.facts() for at in lake.datasets()]
    lake.close()
    return made


def _step(say: Callable[[str], None], title: str) -> None:
    say(click.style(f"\n── {title}", bold=True))


def _actuals() -> "pa.Table":
    import pyarrow as pa

    chance = random.Random(2026)
    return pa.table(
        {
            "id": range(1, ROWS + 1),
            "account": [f"A-{chance.randrange(4000, 5000)}" for _ in range(ROWS)],
            "amount": [round(chance.uniform(1, 2_000), 2) for _ in range(ROWS)],
            "posted": [date(2026, 1, 1) + timedelta(days=i * 300 // ROWS) for i in range(ROWS)],
        }
    )


def _budget() -> "pa.Table":
    import pyarrow as pa

    return pa.table({"account": [f"A-{4000 + i}" for i in range(1_000)], "amount": [150_000.0] * 1_000})
