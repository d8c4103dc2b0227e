"""The command `penstock merge`: into a dataset, or into any directory of Parquet files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.dataset import File
from penstock.cli.context import Command, Frame, shared

if TYPE_CHECKING:
    from penstock.core.merge import Merged

_STRATEGIES = click.Choice(["upsert", "insert", "update", "full_merge", "deduplicate"])
_ENGINES = click.Choice(["auto", "pyarrow", "duckdb", "spark"])
_FILES_SHOWN = 20


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE TARGET")
@click.option("-k", "--key", "keys", multiple=True, metavar="COLUMN", help="A column of the key; several: repeat it.")
@click.option("-s", "--strategy", type=_STRATEGIES, default="upsert", show_default=True, help="What becomes of rows.")
@click.option("--engine", type=_ENGINES, default="auto", show_default=True, help="Who does the work.")
@click.option(
    "--dedup-order-by", multiple=True, metavar="COLUMN", help="With deduplicate: the row with the highest value counts."
)
@click.option("--add-columns", is_flag=True, help="Add columns that the target lacks; without it they are refused.")
@click.option("--compression", help="For a directory: the codec of new files.  [that of the files that are there]")
@click.option("--batch-rows", type=click.IntRange(1), help="Rows of the target to hold at once.  [131072]")
@click.option("--yes", is_flag=True, help="Do not ask before a full_merge into files that Penstock did not create.")
@click.option("--dry-run", is_flag=True, help="Only tell the counts and the files that would be touched.")
@click.option("--recover", is_flag=True, help="Finish or undo an interrupted merge into the directory TARGET.")
@click.option("--idempotency-key", help="For a dataset: the same merge, sent again, happens only once.")
@shared(
    """
    penstock merge changes.parquet finance.transactions --key id
    penstock merge changes.csv data/customers -k region -k customer_id --strategy update --dry-run
    penstock merge events.jsonl data/latest -k device -s deduplicate --dedup-order-by seen_at
    penstock merge --recover data/customers
    """
)
def merge(
    frame: Frame,
    paths: tuple[str, ...],
    keys: tuple[str, ...],
    strategy: str,
    engine: str,
    dedup_order_by: tuple[str, ...],
    add_columns: bool,
    compression: str | None,
    batch_rows: int | None,
    yes: bool,
    dry_run: bool,
    recover: bool,
    idempotency_key: str | None,
) -> None:
    """Let the rows of SOURCE meet those of TARGET on a key.

    SOURCE is a file (Parquet, CSV, JSON lines, Arrow) or a directory of Parquet files. TARGET is a dataset
    (schema.table), or a directory of Parquet files, with or without partitions; it is made if it is not there.

    \b
    upsert       update rows whose key is there, insert the others
    insert       insert rows whose key is not there
    update       update rows whose key is there
    full_merge   upsert, and delete the target's rows whose key the source has not
    deduplicate  of several source rows with one key take the highest, then upsert
    """
    from penstock.core.merge import BATCH_ROWS

    if recover:
        _recover(frame, paths, keys)
        return
    if len(paths) != 2:
        raise click.UsageError("name a SOURCE and a TARGET")
    if not keys:
        raise click.UsageError("say with --key which columns tell rows apart")
    source, target = File().convert(paths[0], None, None), paths[1]
    rows, order = batch_rows or BATCH_ROWS, list(dedup_order_by) or None
    title = f"merging into {target}"
    if _is_directory(target):
        from penstock.service import directory_merge as directories

        if idempotency_key:
            raise click.UsageError("--idempotency-key goes with a dataset; a directory keeps no record of requests")
        if strategy == "full_merge" and not (yes or dry_run):
            _confirm_full_merge(target, directories.foreign_files(target))
        with frame.stages(title) as heard:
            merged = directories.merge(
                source, target, keys, strategy, order, compression, None, rows, heard,
                add_columns=add_columns, engine=engine, dry_run=dry_run,
            )  # fmt: skip
    else:
        if compression:
            raise click.UsageError("--compression goes with a directory; a dataset's files are zstd")
        with frame.lake() as lake, frame.stages(title) as heard:
            merged = lake.dataset(target).merge(
                source, list(keys), strategy, dedup_order_by=order, add_columns=add_columns, engine=engine,
                batch_rows=rows, dry_run=dry_run, progress=heard, idempotency_key=idempotency_key,
            )  # fmt: skip
    _tell(frame, target, merged, dry_run=dry_run)


def _confirm_full_merge(target: str, foreign: list[str]) -> None:
    """Ask before rows are deleted from files that another program wrote."""
    if not foreign:
        return
    question = (
        f"full_merge deletes every row of {target} whose key is not in SOURCE. "
        f"{len(foreign)} of its files, such as {foreign[0]}, were not created by Penstock. Continue?"
    )
    if sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
    else:
        raise click.UsageError(f"{question.removesuffix(' Continue?')} Try --dry-run first, then pass --yes.")


def _recover(frame: Frame, paths: tuple[str, ...], keys: tuple[str, ...]) -> None:
    from penstock.service import directory_merge as directories

    if len(paths) != 1 or keys:
        raise click.UsageError("--recover takes the TARGET alone")
    what = directories.recover(paths[0])
    sentence = {
        "finished": "an interrupted merge was finished: its rows are there",
        "undone": "an interrupted merge was undone: the rows are those from before it",
        None: "no merge was interrupted there",
    }[what]
    frame.tell({"target": paths[0], "recovered": what}, f"{paths[0]}: {sentence}")


def _is_directory(target: str) -> bool:
    """A path, or a name that cannot be a dataset's."""
    return "/" in target or Path(target).exists() or target.count(".") != 1


def _tell(frame: Frame, target: str, merged: "Merged", *, dry_run: bool) -> None:
    from penstock.lake import counted

    stats = merged.stats
    facts = {
        **stats,
        "target": target,
        "engine": merged.engine,
        "dry_run": dry_run,
        "files_rewritten": list(merged.rewritten),
        "files_removed": list(merged.dropped),
        "files_kept": merged.kept,
    }
    if merged.receipt:
        facts |= {"version": merged.receipt.version, "replayed": merged.receipt.replayed}
    would = "would be " if dry_run else ""
    lines = [
        f"{target}: {counted(stats['inserted'], 'row')} {would}inserted, {stats['updated']:,} updated, "
        f"{stats['deleted']:,} deleted; {stats['total']:,} in all"
        + (f" (version {merged.receipt.version})" if merged.receipt else "")
    ]
    touched = [*((name, "rewritten") for name in merged.rewritten), *((name, "removed") for name in merged.dropped)]
    lines.append(
        f"  {counted(len(merged.rewritten), 'file')} {would}rewritten, {len(merged.dropped):,} removed, "
        f"{merged.kept:,} left as they are"
    )
    if dry_run:
        lines += [f"    {name} ({what})" for name, what in touched[:_FILES_SHOWN]]
        if len(touched) > _FILES_SHOWN:
            lines.append(f"    and {len(touched) - _FILES_SHOWN:,} more (--json names all)")
        lines.append("  nothing was written (--dry-run)")
    frame.tell(facts, "\n".join(lines))
