"""What the demo plays with: the bookings of a year, and what was planned for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

GROUPS = ("energy", "material", "personnel", "software", "travel")
_ACCOUNTS = 40  # of each group
_MONTHS = [f"2026-{month:02}" for month in range(1, 13)]
_REPORT = {
    "scenario": "string",
    "account_group": "string",
    "account": "string",
    "month": "string",
    "budget_type": "string",
    "amount": "double",
    "bookings": "int64",
}


def write_actuals(file: Path, rows: int) -> None:
    """Bookings that come to about what was planned, more in some groups and less in others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    chance = np.random.default_rng(2026)
    group, account = chance.integers(len(GROUPS), size=rows), chance.integers(_ACCOUNTS, size=rows)
    month = np.arange(rows) * len(_MONTHS) // rows
    booked = pa.table(
        {
            "id": range(1, rows + 1),
            "scenario": ["actual"] * rows,
            "account_group": _chosen(GROUPS, group),
            "account": [f"{GROUPS[g]}-{a:02}" for g, a in zip(group, account, strict=True)],
            "month": _chosen(_MONTHS, month),
            "amount": (chance.uniform(1, 2_000, rows) * (0.9 + group * 0.05)).round(2),
        }
    )
    pacsv.write_csv(booked, file)


def others(rows: int) -> "dict[str, pa.Table]":
    planned = rows * 1_000.0 / (len(GROUPS) * _ACCOUNTS * len(_MONTHS))  # for an account in a month
    accounts = [(group, f"{group}-{number:02}") for group in GROUPS for number in range(_ACCOUNTS)]
    budgets = [
        ("budget", group, account, month, kind, round(planned * share, 2))
        for group, account in accounts
        for month in _MONTHS
        for kind, share in (("original", 1.0), ("draft", 1.3))
    ]
    late = [("budget", "travel", f"travel-{n:02}", month, "revised", 900.0) for n in (1, 99) for month in _MONTHS[6:]]
    accruals = [("actual", group, f"{group}-late", month, 500.0) for group in GROUPS for month in _MONTHS[:-1]]
    names = list(_REPORT)
    return {
        "budgets": _table(names[:-1], budgets),
        "revisions": _table(names[:-1], late),
        "accruals": _table([*names[:4], "amount"], accruals),
    }


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> "pa.Table":
    import pyarrow as pa

    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list(names))


def report_schema() -> "pa.Schema":
    import pyarrow as pa

    from penstock.core.schema.canonical import parse_type

    return pa.schema([(name, parse_type(kind)) for name, kind in _REPORT.items()])


def _chosen(words: Sequence[str], places: Any) -> "pa.Array":
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(words)).cast(pa.string())
