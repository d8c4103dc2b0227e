"""Run benchmarks in turns, and report the results on the screen and as Markdown in bench/out."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

OUT = Path(__file__).with_name("out")

Name = TypeVar("Name", bound=Hashable)


def seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def interleaved(
    jobs: Mapping[Name, Callable[[], float]], times: int, *, at_most: float = float("inf")
) -> dict[Name, list[float]]:
    """Run all jobs in turn, several times, so that noise affects all of them alike.

    A job that has run for `at_most` seconds is skipped while the others continue.
    """
    measurements: dict[Name, list[float]] = {name: [] for name in jobs}
    for _ in range(times):
        for name, job in jobs.items():
            if sum(measurements[name]) < at_most:
                measurements[name].append(job())
    return measurements


def p99(sample: Sequence[float]) -> float:
    return sorted(sample)[max(0, -(-len(sample) * 99 // 100) - 1)]


def median_and_p99(sample: Sequence[float]) -> list[str]:
    return [ms(statistics.median(sample)), ms(p99(sample))]


def ms(duration: float) -> str:
    return f"{duration * 1e3:,.1f}"


@dataclass
class Report:
    name: str
    title: str
    packages: Sequence[str]
    quick: bool = False
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    tables: list["Grid"] = field(default_factory=list)

    def add(self, grid: "Grid") -> None:
        """Print a table, and keep it for `save`."""
        if not self.tables:
            print(f"{self.title}\n{self.facts}")
        self.tables.append(grid)
        print(f"\n{grid.text()}", flush=True)

    def save(self) -> Path:
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{self.name}.md"
        parts = [f"# {self.title}", self.facts, *(grid.markdown() for grid in self.tables)]
        path.write_text("\n\n".join(parts) + "\n", "utf-8")
        return path

    @cached_property
    def facts(self) -> str:
        packages = ", ".join(f"{name} {version(name)}" for name in self.packages)
        load = f"load {self.load:.1f} before and {os.getloadavg()[0]:.1f} after"
        machine = f"{os.cpu_count()} cores ({_processor()}, {platform.system()} {platform.release()}), {load}"
        how = " · quick run: too few samples to quote" if self.quick else ""
        return f"{self.begun:%Y-%m-%d %H:%M} UTC · {machine} · Python {platform.python_version()}, {packages}{how}"


@dataclass(frozen=True)
class Grid:
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        ruler = ["─" * width for width in widths]
        lines = ["  ".join(map(_aligned, row, widths, range(len(widths)))) for row in (self.header, ruler, *self.rows)]
        return "\n".join([self.caption, *(line.rstrip() for line in lines)])

    def markdown(self) -> str:
        rule = [":--", *["--:"] * (len(self.header) - 1)]
        table = "\n".join(f"| {' | '.join(row)} |" for row in (self.header, rule, *self.rows))
        return f"**{self.caption}**\n\n{table}"


def _aligned(cell: str, width: int, path: int) -> str:
    return cell.rjust(width) if path else cell.ljust(width)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
