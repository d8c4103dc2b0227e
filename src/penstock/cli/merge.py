"""The command `merge`: merge rows by key into a dataset or a plain Parquet directory."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.context import CliContext, Command, standard_options
from penstock.cli.options import FilePath

if TYPE_CHECKING:
    from penstock.core.merge import MergeResult

_STRATEGIES = click.Choice(["upsert", "insert", "update", "full_merge", "deduplicate"])
_ENGINES = click.Choice(["auto", "pyarrow", "duckdb", "spark"])
_MAX_LISTED_FILES = 20


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE TARGET")
@click.option("-k", "--key", "keys", multiple=True, metavar="COLUMN", help="Key column; repeat it for several.")
@click.option(
    "-s", "--strategy", type=_STRATEGIES, default="upsert", show_default=True, help="Merge strategy, see above."
)
@click.option(
    "--engine", type=_ENGINES, default="auto", show_default=True, help="Compute engine; the result is the same."
)
@click.option(
    "--dedup-order-by",
    multiple=True,
    metavar="COLUMN",
    help="With deduplicate: of rows with one key, the highest value wins.",
)
@click.option("--add-columns", is_flag=True, help="Add columns that only the source has. Without it they are an error.")
@click.option("--compression", help="For a directory: codec of new files.  [default: that of the existing files]")
@click.option("--batch-rows", type=click.IntRange(1), help="Target rows in memory at once.  [default: 131072]")
@click.option("--yes", is_flag=True, help="Do not ask before a full_merge into files that Penstock did not create.")
@click.option("--dry-run", is_flag=True, help="Print the counts and the files that would change, without writing.")
@click.option("--recover", is_flag=True, help="Finish or undo an interrupted merge into the directory TARGET.")
@click.option("--idempotency-key", help="For a dataset: a repeated merge with the same key is committed once.")
@standard_options(
    """
    penstock merge changes.parquet finance.transactions --key id
    penstock merge changes.csv data/customers -k region -k customer_id --strategy update --dry-run
    penstock merge events.jsonl data/latest -k device -s deduplicate --dedup-order-by seen_at
    penstock merge --recover data/customers
    """
)
def merge(
    context: CliContext,
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
    """Merge the rows of SOURCE into TARGET by key.

    SOURCE is a file (Parquet, CSV, JSON lines, Arrow) or a directory of Parquet files. TARGET is a dataset
    (namespace.name), or a directory of Parquet files, with or without partitions; a missing directory is created.

    \b
    upsert       update rows whose key exists, insert the others
    insert       insert rows whose key does not exist
    update       update rows whose key exists
    full_merge   upsert, and delete target rows whose key is not in SOURCE
    deduplicate  of several source rows with one key take the highest, then upsert
    """
    from penstock.core.merge import BATCH_ROWS
    from penstock.service import directory_merge

    if recover:
        _recover(context, paths, keys)
        return
    if len(paths) != 2:
        raise click.UsageError("Pass a SOURCE and a TARGET.")
    if not keys:
        raise click.UsageError("Pass the key columns with --key.")
    source, target = FilePath().convert(paths[0], None, None), paths[1]
    rows, order = batch_rows or BATCH_ROWS, list(dedup_order_by) or None
    title = f"merging into {target}"
    if _is_directory(target):
        if idempotency_key:
            raise click.UsageError("--idempotency-key requires a dataset as TARGET. A directory stores no receipts.")
        if strategy == "full_merge" and not (yes or dry_run):
            _confirm_full_merge(target, directory_merge.foreign_files(target))
        with context.progress(title) as line:
            merged = directory_merge.merge(
                source, target, keys, strategy, order, compression, None, rows, line.on_progress,
                add_columns=add_columns, engine=engine, dry_run=dry_run,
            )  # fmt: skip
    else:
        if compression:
            raise click.UsageError("--compression requires a directory as TARGET. Files of a dataset use zstd.")
        with context.lake() as lake, context.progress(title) as line:
            merged = lake.dataset(target).merge(
                source, list(keys), strategy, dedup_order_by=order, add_columns=add_columns, engine=engine,
                batch_rows=rows, dry_run=dry_run, progress=line.on_progress, idempotency_key=idempotency_key,
            )  # fmt: skip
    _print_result(context, target, merged, dry_run=dry_run)


def _confirm_full_merge(target: str, foreign: list[str]) -> None:
    """Ask before rows are deleted from files that another program wrote."""
    from penstock.core.formatting import format_count

    if not foreign:
        return
    question = (
        f"full_merge deletes every row of {target} whose key is not in SOURCE. "
        f"{format_count(len(foreign), 'file')} in it, such as {foreign[0]}, were not created by Penstock. Continue?"
    )
    if sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
    else:
        raise click.UsageError(f"{question.removesuffix(' Continue?')} Try --dry-run first, then pass --yes.")


def _recover(context: CliContext, paths: tuple[str, ...], keys: tuple[str, ...]) -> None:
    from penstock.service import directory_merge

    if len(paths) != 1 or keys:
        raise click.UsageError("--recover takes only a TARGET.")
    outcome = directory_merge.recover(paths[0])
    message = {
        "finished": "the interrupted merge was finished; its rows are in the directory",
        "undone": "the interrupted merge was undone; the directory has its previous rows",
        None: "no interrupted merge",
    }[outcome]
    context.report({"target": paths[0], "recovered": outcome}, f"{paths[0]}: {message}")


def _is_directory(target: str) -> bool:
    """Return True for a path, and for a name that is not `namespace.name`."""
    return "/" in target or Path(target).exists() or target.count(".") != 1


def _print_result(context: CliContext, target: str, merged: "MergeResult", *, dry_run: bool) -> None:
    from penstock.core.formatting import format_count

    stats = merged.stats
    facts = {
        **stats,
        "target": target,
        "engine": merged.engine,
        "dry_run": dry_run,
        "files_rewritten": list(merged.rewritten),
        "files_marked": list(merged.marked),
        "files_removed": list(merged.dropped),
        "files_kept": merged.unchanged_files,
    }
    if merged.receipt:
        facts |= {"version": merged.receipt.version, "replayed": merged.receipt.replayed}
    would = "would be " if dry_run else ""
    lines = [
        f"{target}: {format_count(stats['inserted'], 'row')} {would}inserted, {stats['updated']:,} updated, "
        f"{stats['deleted']:,} deleted; {stats['total']:,} in total"
        + (f" (version {merged.receipt.version})" if merged.receipt else "")
    ]
    changed_files = [
        *((name, "rewritten") for name in merged.rewritten),
        *((name, "rows marked as deleted") for name in merged.marked),
        *((name, "removed") for name in merged.dropped),
    ]
    lines.append(
        f"  {format_count(len(merged.rewritten), 'file')} {would}rewritten, {len(merged.marked):,} with rows marked as "
        f"deleted, {len(merged.dropped):,} removed, {merged.unchanged_files:,} unchanged"
    )
    if dry_run:
        lines += [f"    {name} ({change})" for name, change in changed_files[:_MAX_LISTED_FILES]]
        if len(changed_files) > _MAX_LISTED_FILES:
            lines.append(f"    and {len(changed_files) - _MAX_LISTED_FILES:,} more (--json lists all)")
        lines.append("  Nothing was written (--dry-run)")
    context.report(facts, "\n".join(lines))
