"""The page on what writes and conditions mean: the cases that every engine is judged by, written so that people can read them."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from semantics import append_cases, cases, selector_cases

MOST = 8  # rows of a table that are worth reading
LONGEST = 40  # characters of a value
INTRODUCTION = """\
What a write or a condition means is written down once, as values: what is there, what comes, and what is there
afterwards. Each case below is a test. The merges run on PyArrow, DuckDB and Spark, in plain directories and in datasets; the
appends on Spark; the conditions on all three. The contract's own scenarios are named where a case shows one.

A row of a table below is a case. Columns are named where they are others than in the cell before it; a case that
names none has `id:int64 word:string`. `!`: never NULL. `‖` stands between the files of a target. `+2 ~1 −3`: two rows were
inserted, one updated, three deleted. The order of rows is no part of the meaning.
"""
MERGES = (
    ("Strategies", "What becomes of rows that meet, and of those that do not.", cases.STRATEGIES),
    ("Targets that are not there, or empty", "", cases.TARGETS),
    ("Keys", "NULL is no key, NaN is one, and zero has no sign.", cases.KEYS),
    ("Types of keys", "", cases.KEY_TYPES),
    ("Columns that one side lacks", "", cases.COLUMNS),
    ("Types that differ", "Values are widened where nothing can be lost; otherwise somebody has to say what is meant.",
     cases.TYPES),
    ("The order that decides between duplicates", "NULL is lowest, NaN highest, and of equals the last one wins.",
     cases.ORDERS),
    ("What cannot be asked", "", cases.REQUESTS),
    ("Partitions", "Columns that the names of folders tell.", cases.PARTITIONS),
)  # fmt: skip


def page(note: str) -> str:
    parts = ["# Semantics\n", note + INTRODUCTION, "## Merge\n"]
    for title, words, some in MERGES:
        parts += _section(title, words, ["", "asked", "target", "source", "afterwards"], map(_merge, some))
    parts.append("## Append\n")
    head = ["", "source", "asked", "working columns", "rows that come"]
    parts += _section("Rows that come", "", head, map(_append, append_cases.CASES))
    words = "The whole operation fails, and names the column."
    parts += _section("Values that have no place", words, head, map(_refused, append_cases.REFUSED))
    parts.append("## Conditions\n")
    words = "A row is kept if its condition is TRUE; FALSE and unknown are alike then, but not under NOT."
    truths = (
        [_code(text), "unknown" if truth is None else str(truth).upper()]
        for text, truth in selector_cases.CONSTANT.items()
    )
    parts += _section("What is so without any row", words, ["condition", "is"], truths)
    wrong = ([_code(text), said] for text, (said, _) in selector_cases.BAD.items())
    parts += _section("What is refused", "Positions count from 0.", ["condition", "what is said"], wrong)
    return "\n".join(parts)


def _section(title: str, words: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]
    told = [words + "\n"] if words else []
    return [f"### {title}\n", *told, f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows, ""]


def _merge(case: cases.Case) -> list[str]:
    options = "".join(f", {name}={value!r}" for name, value in case.options.items())
    asked = _code(f"{case.strategy} on {', '.join(case.key_names) or 'nothing'}{options}")
    known = cases.NONE.schema

    def told(table: pa.Table) -> str:
        nonlocal known
        columns = "" if table.schema.equals(known) else _columns(table.schema) + " "
        known = table.schema
        return columns + _rows(table)

    there = None if case.target is None else " ‖ ".join(map(told, case.target.values())) or "no files"
    source = told(case.source)
    if isinstance(case.expect, cases.Refusal):
        after = f"refused: {case.expect.reason}" + (f" ({', '.join(case.expect.words)})" if case.expect.words else "")
    else:
        inserted, updated, deleted = case.counts
        rows = "no directory" if case.gone else told(case.expect)
        after = f"{rows}; +{inserted} ~{updated} −{deleted}"
    return [str(case), asked, there or "no directory", source, after]


def _append(case: append_cases.Case) -> list[str]:
    rows = " ".join(map(_row, case.expect)) or "none"
    return [case.name, *_asked(case.asked), rows]


def _refused(case: append_cases.Refused) -> list[str]:
    return [case.name, *_asked(case.asked), f"refused: {case.reason} ({case.column})"]


def _asked(asked: append_cases.Asked) -> list[str]:
    what = [asked.selector or "", f"group by {', '.join(asked.group_by)}" if asked.group_by else ""]
    what += [f"{name} = {expression}" for name, expression in asked.aggregates.items()]
    told = "; ".join(filter(None, what))
    source = f"{_columns(asked.table.schema)} {_rows(asked.table)}"
    return [source, _code(told) if told else "all rows", _columns(append_cases.schema(asked.working))]


def _rows(table: pa.Table) -> str:
    shown = [_row(row.values()) for row in table.slice(0, MOST).to_pylist()]
    more = [f"… {table.num_rows:,} rows"] if table.num_rows > MOST else []
    return " ".join([*(shown or ["no rows"]), *more])


def _columns(schema: pa.Schema) -> str:
    return _code(" ".join(f"{each.name}:{each.type}{'' if each.nullable else '!'}" for each in schema))


def _row(values: Iterable[Any]) -> str:
    return f"({', '.join(map(_value, values))})"


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    text = repr(value) if isinstance(value, str | bytes | list | dict) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text or not text.strip() else ""
    return fence + space + text.replace("\n", "␊") + space + fence


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
