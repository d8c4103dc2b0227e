"""Write the page of semantics: the merge, append and filter cases that every engine is tested with, as tables."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from engines import append_cases, merge_cases, selector_cases

MAX_ROWS = 8  # of a table in one cell
MAX_VALUE_LENGTH = 40  # characters
INTRODUCTION = """\
The semantics of merges, appends and filter expressions are defined by test cases: the rows before, the request, and the rows after. The merge
cases run on PyArrow, DuckDB and Spark, in plain Parquet directories and in datasets; the append cases on Spark; the filter expressions on all
three engines. A case that shows a scenario of the contract names it.

Each row of a table is a case. A cell names its columns where they differ from those of the cell before it; a case without column names has
`id:int64 word:string`. `!` marks a column that is NOT NULL. `‖` separates the files of a target. `+2 ~1 −3` means two rows inserted, one
updated, three deleted. The order of rows is not significant.
"""
MERGES = (
    ("Strategies", "Rows with a key in both, and rows with a key in one of them.", merge_cases.STRATEGIES),
    ("Missing and empty targets", "", merge_cases.TARGETS),
    ("Keys", "NULL is not a key, NaN is a key, and zero has no sign.", merge_cases.KEYS),
    ("Types of keys", "", merge_cases.KEY_TYPES),
    ("Columns that only the source or only the target has", "", merge_cases.COLUMNS),
    ("Different types", "Values are widened where this loses nothing; otherwise the merge is rejected.", merge_cases.TYPES),
    ("Order of duplicates", "NULL is lowest, NaN highest, and of equal rows the last one wins.", merge_cases.ORDERS),
    ("Invalid requests", "", merge_cases.REQUESTS),
    ("Partitions", "Columns whose values are in the names of folders.", merge_cases.PARTITIONS),
)  # fmt: skip


def build_page(note: str) -> str:
    parts = ["# Semantics\n", note + INTRODUCTION, "## Merge\n"]
    for title, introduction, cases in MERGES:
        parts += _section(
            title, introduction, ["case", "request", "target", "source", "result"], map(_merge_cells, cases)
        )
    parts.append("## Append\n")
    head = ["case", "source", "request", "working columns", "appended rows"]
    parts += _section("Appended rows", "", head, map(_append_cells, append_cases.CASES))
    introduction = "The whole operation fails with an error that names the column."
    parts += _section("Values that do not fit", introduction, head, map(_rejected_append_cells, append_cases.REJECTED))
    parts.append("## Filter expressions\n")
    introduction = (
        "A row matches if the expression is TRUE. FALSE and unknown both exclude a row, but differ under NOT."
    )
    truths = (
        [_code(text), "unknown" if truth is None else str(truth).upper()]
        for text, truth in selector_cases.CONSTANT.items()
    )
    parts += _section("Constant expressions", introduction, ["expression", "value"], truths)
    invalid = ([_code(text), message] for text, (message, _) in selector_cases.BAD.items())
    parts += _section("Invalid expressions", "Positions count from 0.", ["expression", "message"], invalid)
    return "\n".join(parts)


def _section(title: str, introduction: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]
    paragraph = [introduction + "\n"] if introduction else []
    return [f"### {title}\n", *paragraph, f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows, ""]


def _merge_cells(case: merge_cases.MergeCase) -> list[str]:
    options = "".join(f", {name}={value!r}" for name, value in case.options.items())
    request = _code(f"{case.strategy} on {', '.join(case.key_names) or 'nothing'}{options}")
    previous_schema = merge_cases.NONE.schema

    def describe(table: pa.Table) -> str:
        nonlocal previous_schema
        columns = "" if table.schema.equals(previous_schema) else _columns(table.schema) + " "
        previous_schema = table.schema
        return columns + _rows(table)

    target = None if case.target is None else " ‖ ".join(map(describe, case.target.values())) or "no files"
    source = describe(case.source)
    if isinstance(case.expect, merge_cases.ExpectedError):
        after = f"rejected: {case.expect.reason}" + (f" ({', '.join(case.expect.words)})" if case.expect.words else "")
    else:
        inserted, updated, deleted = case.counts
        rows = "no directory" if case.removed else describe(case.expect)
        after = f"{rows}; +{inserted} ~{updated} −{deleted}"
    return [str(case), request, target or "no directory", source, after]


def _append_cells(case: append_cases.AppendCase) -> list[str]:
    rows = " ".join(map(_row, case.expect)) or "none"
    return [case.name, *_describe_request(case.append), rows]


def _rejected_append_cells(case: append_cases.RejectedAppend) -> list[str]:
    return [case.name, *_describe_request(case.append), f"rejected: {case.reason} ({case.column})"]


def _describe_request(request: append_cases.AppendInput) -> list[str]:
    clauses = [request.selector or "", f"group by {', '.join(request.group_by)}" if request.group_by else ""]
    clauses += [f"{name} = {expression}" for name, expression in request.aggregates.items()]
    description = "; ".join(filter(None, clauses))
    source = f"{_columns(request.table.schema)} {_rows(request.table)}"
    return [source, _code(description) if description else "all rows", _columns(append_cases.schema(request.working))]


def _rows(table: pa.Table) -> str:
    rows = [_row(row.values()) for row in table.slice(0, MAX_ROWS).to_pylist()]
    more = [f"… {table.num_rows:,} rows"] if table.num_rows > MAX_ROWS else []
    return " ".join([*(rows or ["no rows"]), *more])


def _columns(schema: pa.Schema) -> str:
    return _code(" ".join(f"{each.name}:{each.type}{'' if each.nullable else '!'}" for each in schema))


def _row(values: Iterable[Any]) -> str:
    return f"({', '.join(map(_value, values))})"


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    text = repr(value) if isinstance(value, str | bytes | list | dict) else str(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 1] + "…"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text or not text.strip() else ""
    return fence + space + text.replace("\n", "␊") + space + fence


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
