"""Data of the demo: the bookings of a year, and budgets, accruals and revisions."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

GROUPS = ("energy", "material", "personnel", "software", "travel")
_ACCOUNTS_PER_GROUP = 40
_MONTHS = [f"2026-{month:02}" for month in range(1, 13)]
_REPORT_COLUMNS = {
    "scenario": "string",
    "account_group": "string",
    "account": "string",
    "month": "string",
    "budget_type": "string",
    "amount": "double",
    "bookings": "int64",
}


def write_actuals(file: Path, rows: int) -> None:
    """Write a CSV file of random bookings whose totals are near the budget, above it in some groups and below in others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    random = np.random.default_rng(2026)
    group, account = random.integers(len(GROUPS), size=rows), random.integers(_ACCOUNTS_PER_GROUP, size=rows)
    month = np.arange(rows) * len(_MONTHS) // rows
    bookings = pa.table(
        {
            "id": range(1, rows + 1),
            "scenario": ["actual"] * rows,
            "account_group": _take_words(GROUPS, group),
            "account": [f"{GROUPS[g]}-{a:02}" for g, a in zip(group, account, strict=True)],
            "month": _take_words(_MONTHS, month),
            "amount": (random.uniform(1, 2_000, rows) * (0.9 + group * 0.05)).round(2),
        }
    )
    pacsv.write_csv(bookings, file)


def build_tables(rows: int) -> "dict[str, pa.Table]":
    """Return the tables budgets, revisions and accruals for that many bookings."""
    monthly_budget = rows * 1_000.0 / (len(GROUPS) * _ACCOUNTS_PER_GROUP * len(_MONTHS))  # of an account
    accounts = [(group, f"{group}-{number:02}") for group in GROUPS for number in range(_ACCOUNTS_PER_GROUP)]
    budgets = [
        ("budget", group, account, month, budget_type, round(monthly_budget * share, 2))
        for group, account in accounts
        for month in _MONTHS
        for budget_type, share in (("original", 1.0), ("draft", 1.3))
    ]
    revisions = [
        ("budget", "travel", f"travel-{n:02}", month, "revised", 900.0) for n in (1, 99) for month in _MONTHS[6:]
    ]
    accruals = [("actual", group, f"{group}-late", month, 500.0) for group in GROUPS for month in _MONTHS[:-1]]
    names = list(_REPORT_COLUMNS)
    return {
        "budgets": _table(names[:-1], budgets),
        "revisions": _table(names[:-1], revisions),
        "accruals": _table([*names[:4], "amount"], accruals),
    }


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> "pa.Table":
    import pyarrow as pa

    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list(names))


def build_report_schema() -> "pa.Schema":
    """Return the columns of the report."""
    import pyarrow as pa

    from penstock.core.schema.type_names import parse_type

    return pa.schema([(name, parse_type(type_name)) for name, type_name in _REPORT_COLUMNS.items()])


def _take_words(words: Sequence[str], indices: Any) -> "pa.Array":
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(words)).cast(pa.string())
