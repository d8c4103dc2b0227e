"""Numbers on the pages: one module formats counts, sizes, durations and shares."""

import ast
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import penstock.ui
from penstock.ui import formatting

PAGES = Path(penstock.ui.__file__).parent


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (None, "row", "", "–"),
        (0, "row", "", "0 rows"),
        (1, "row", "", "1 row"),
        (1204, "row", "", "1,204 rows"),
        (1204, "", "", "1,204"),
        (1, "query refers", "queries refer", "1 query refers"),
        (1000, "query refers", "queries refer", "1,000 queries refer"),
    ],
)
def test_format_count_returns_number_with_noun(number: int | None, noun: str, plural: str, text: str) -> None:
    assert formatting.format_count(number, noun, plural) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (99_940, "99.9 KB"),
        (99_960, "100 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (67_108_864, "67.1 MB"),
        (12_345 * 10**15, "12,345 PB"),
    ],
)
def test_format_size_returns_largest_fitting_unit(size: int | None, text: str) -> None:
    assert formatting.format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (3900, "1 h 5 min"),
        (3_600_000, "1,000 h 0 min"),
    ],
)
def test_format_seconds_returns_two_units_at_most(seconds: float, text: str) -> None:
    assert formatting.format_seconds(seconds) == text


def test_format_share_returns_percentage_of_whole() -> None:
    shares = [formatting.format_share(part, whole) for part, whole in ((0, 5), (1, 1000), (1, 2), (1, 0))]
    assert shares == ["", " (< 1 %)", " (50 %)", ""]


def test_format_axis_number_rounds_long_numbers() -> None:
    numbers = (20_000, 0.5, Decimal("1200.50"), 123_456_789.123456)
    assert [formatting.format_axis_number(number, 12) for number in numbers] == [
        "20,000",
        "0.5",
        "1,200.5",
        "1.23457e+08",
    ]


def test_pages_format_numbers_only_in_the_formatting_module() -> None:
    """A format such as `{count:,}` or `{seconds:.1f}` elsewhere would be a second rule."""
    modules = [path for path in PAGES.rglob("*.py") if path != PAGES / "formatting.py"]
    assert len(modules) > 40
    found = [f"{path.relative_to(PAGES)}:{line}" for path in modules for line in list_number_formats(path)]
    assert found == []


def list_number_formats(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = ast.unparse(node.format_spec)[2:-1]
            if "%" not in spec:  # a time
                yield node.lineno
