"""The main job, end to end: a pipeline on Spark that sets budgets against actuals, and the versions around it."""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.frame import Command, Frame, aligned, shared
from penstock.cli.pipeline import watched

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.lake import Dataset

ROWS = 300_000
_GROUPS = ("energy", "material", "personnel", "software", "travel")
_ACCOUNTS = 40  # of each group
_MONTHS = [f"2026-{month:02}" for month in range(1, 13)]
_KEY = ["scenario", "account", "month"]
_REPORT = {
    "scenario": "string",
    "account_group": "string",
    "account": "string",
    "month": "string",
    "budget_type": "string",
    "amount": "double",
    "bookings": "int64",
}


@click.command(cls=Command)
@click.option("--keep", type=click.Path(path_type=Path), help="Leave the workspace in this new folder.")
@shared("penstock demo --keep demo-workspace")
def demo(frame: Frame, keep: Path | None) -> None:
    """Set budgets against actuals with a pipeline on Spark, and read the past: in a workspace that is gone afterwards."""
    from penstock.engines.spark.session import session

    keep = keep or frame.workspace
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} is there already; name a new folder")
    say = partial(click.echo, err=frame.json)  # in JSON the story is no data
    _step(say, "Start Spark")
    say(f"Spark {session().version}, on this machine")  # without Java there is no story to tell
    folder = keep or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        told = _story(frame, folder / "lake", say)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if keep is not None:
        say(f"\nlook around: PENSTOCK_WORKSPACE={folder / 'lake'} penstock runs")
        say(f"run it again: penstock run {folder / 'pipeline.json'} -w {folder / 'lake'}")
    if frame.json:
        frame.print_json({"workspace": str(folder / "lake") if keep else None, **told})


def _story(frame: Frame, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    import penstock
    from penstock import config

    # A database that the environment names is not for playing.
    with penstock.open(create=True, settings=config.settings({}, workspace=folder)) as lake:
        _step(say, "Import the bookings of a year from a CSV file; budgets, accruals and revisions come as they are")
        file = folder.with_name("actuals.csv")
        _write_actuals(file)
        actuals = lake.create("finance.actuals", file)
        sources = {name: lake.create(f"finance.{name}", rows) for name, rows in _others().items()}
        report = lake.create("finance.report", schema=_report_schema())
        say(repr(actuals))

        _step(say, "Write to two datasets in one commit: both or neither")
        late = {"scenario": ["actual"], "account_group": ["travel"], "month": ["2026-12"], "amount": [950.0]}
        with lake.transaction() as both:
            both.append(actuals, late | {"id": [ROWS + 1], "account": ["travel-01"]})
            both.append(sources["accruals"], late | {"account": ["travel-late"], "amount": [-950.0]})
        assert both.receipt is not None
        say(f"commit {both.receipt.commit_no}: " + ", ".join(f"{w.name} v{w.version}" for w in both.receipt.written))

        _step(say, "Run a pipeline: append, append what is original, append sums, merge what was revised; one commit")
        definition = _pipeline(report, actuals, sources)
        folder.with_name("pipeline.json").write_text(json.dumps(definition, indent=2) + "\n")
        with watched(frame) as watch:
            run = lake.pipeline(definition).run(progress=watch.hear_and_draw)
            watch.finish()
        for result in run.results:
            say(json.dumps(result))
        say(f"finance.report is at version {run.version}")

        _step(say, "Budget versus actual, by group of accounts")
        say(_compared(report))

        _step(say, "A writer that read an old version is told who came first; nothing is lost")
        try:
            report.overwrite({"scenario": ["none"]}, expect=1)
        except penstock.Conflict as refusal:
            say(f"Conflict: {refusal}")

        _step(say, "The history of finance.report, and its past")
        rows = [
            [str(v.number), v.operation, f"{v.counts.inserted:,}", f"{v.rows:,}", str(v.files), v.author]
            for v in report.history()
        ]
        say(aligned(rows, ["version", "operation", "inserted", "rows", "files", "by"]))
        wanted = "id <= 3"
        first, now = report.at(version=1), actuals.now()
        say(f"version 1 has {first.num_rows:,} rows, as it had before the pipeline")
        say(f"finance.actuals, {wanted}: {len(now.files(wanted))} of {len(now.files())} files are opened")
        return {"datasets": [at.snapshot.facts() for at in lake.datasets()], "results": list(run.results)}


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
    return {"name": "budget versus actuals", "working": {"dataset_id": str(report.id)}, "operations": operations}


def _compared(report: "Dataset") -> str:
    sums = report.to_arrow().group_by(["account_group", "scenario"]).aggregate([("amount", "sum")]).to_pylist()
    found = {(row["account_group"], row["scenario"]): row["amount_sum"] for row in sums}
    rows = [(group, found[group, "budget"], found[group, "actual"]) for group in _GROUPS]
    rows.append(("all", sum(budget for _, budget, _ in rows), sum(actual for _, _, actual in rows)))
    lines = [
        [group, f"{budget:,.0f}", f"{actual:,.0f}", f"{budget - actual:,.0f}", f"{100 * actual / budget:,.1f}"]
        for group, budget, actual in rows
    ]
    return aligned(lines, ["group", "budget", "actual", "left", "% used"])


def _write_actuals(file: Path) -> None:
    """Bookings that come to about what was planned, more in some groups and less in others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    chance = np.random.default_rng(2026)
    group, account = chance.integers(len(_GROUPS), size=ROWS), chance.integers(_ACCOUNTS, size=ROWS)
    month = np.arange(ROWS) * len(_MONTHS) // ROWS
    rows = pa.table(
        {
            "id": range(1, ROWS + 1),
            "scenario": ["actual"] * ROWS,
            "account_group": _chosen(_GROUPS, group),
            "account": [f"{_GROUPS[g]}-{a:02}" for g, a in zip(group, account, strict=True)],
            "month": _chosen(_MONTHS, month),
            "amount": (chance.uniform(1, 2_000, ROWS) * (0.9 + group * 0.05)).round(2),
        }
    )
    pacsv.write_csv(rows, file)


def _others() -> "dict[str, pa.Table]":
    planned = ROWS * 1_000.0 / (len(_GROUPS) * _ACCOUNTS * len(_MONTHS))  # for an account in a month
    accounts = [(group, f"{group}-{number:02}") for group in _GROUPS for number in range(_ACCOUNTS)]
    budgets = [
        ("budget", group, account, month, kind, round(planned * share, 2))
        for group, account in accounts
        for month in _MONTHS
        for kind, share in (("original", 1.0), ("draft", 1.3))
    ]
    late = [("budget", "travel", f"travel-{n:02}", month, "revised", 900.0) for n in (1, 99) for month in _MONTHS[6:]]
    accruals = [("actual", group, f"{group}-late", month, 500.0) for group in _GROUPS for month in _MONTHS[:-1]]
    names = list(_REPORT)
    return {
        "budgets": _table(names[:-1], budgets),
        "revisions": _table(names[:-1], late),
        "accruals": _table([*names[:4], "amount"], accruals),
    }


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> "pa.Table":
    import pyarrow as pa

    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list(names))


def _report_schema() -> "pa.Schema":
    import pyarrow as pa

    from penstock.core.schema import parse_type

    return pa.schema([(name, parse_type(kind)) for name, kind in _REPORT.items()])


def _chosen(words: Sequence[str], places: Any) -> "pa.Array":
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(words)).cast(pa.string())
