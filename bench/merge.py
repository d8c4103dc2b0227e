"""Benchmark merges into a directory of Parquet files: time and peak memory.

Penstock's engines are compared with fsspeckit, deltalake and a DuckDB script, and with lower bounds: the same files
read and written without a merge. Every merge runs in its own process on a new copy of the target, so that its peak
memory is its own. All run in turns. The result of the first merge of each case is checked.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mergers
from measure import Grid, Report, interleaved
from mergers import CODEC, CORES, GROUP_ROWS, KEY, MergeCounts, Merger, Task
from rows import SCHEMA, table

# Peers and DuckDB are imported where they are used, so that other processes do not hold them in memory.

STRATEGIES = ("upsert", "insert", "update", "full_merge", "deduplicate")
REWRITING = ("upsert", "update", "deduplicate")  # strategies that rewrite the touched files
ADDING = ("insert", "full_merge")  # strategies that only read the keys of the target
FSSPECKIT = ("upsert", "insert", "update", "deduplicate")  # fsspeckit has no full merge
FILES, MANY = 20, 200
TWO, ALL, OF_MANY = f"2 of {FILES} files", f"all {FILES} files", f"2 of {MANY} files"


@dataclass(frozen=True)
class Implementation:
    merge: Merger
    strategies: tuple[str, ...] = STRATEGIES
    shapes: tuple[str, ...] = (TWO, ALL)
    once: bool = False  # one measured strategy represents all
    slow: tuple[str, ...] = ()  # strategies that are measured with --slow only


OURS = {
    "Penstock, pyarrow": Implementation(mergers.penstock_pyarrow),
    "Penstock, duckdb": Implementation(mergers.penstock_duckdb),
    "Penstock, auto": Implementation(mergers.penstock_auto),
}
PEERS = {
    "deltalake": Implementation(mergers.deltalake),
    "deltalake, source not streamed": Implementation(mergers.deltalake_at_once),
    "fsspeckit, pyarrow": Implementation(mergers.fsspeckit_pyarrow, FSSPECKIT, slow=("update", "deduplicate")),
    "fsspeckit, duckdb": Implementation(mergers.fsspeckit_duckdb, FSSPECKIT, slow=("insert", "update", "deduplicate")),
    "a script for DuckDB": Implementation(mergers.duckdb_script),
}
FLOORS = {
    "pyarrow: touched files": Implementation(mergers.pyarrow_rewrite, REWRITING, once=True),
    "DuckDB: touched files": Implementation(mergers.duckdb_rewrite, REWRITING, once=True),
    "DuckDB: touched files, by core": Implementation(mergers.duckdb_rewrite_by_core, REWRITING, once=True),
    "pyarrow: keys, new file": Implementation(mergers.pyarrow_keys, ADDING, once=True),
    "pyarrow: touched keys, new file": Implementation(mergers.pyarrow_touched_keys, ADDING, (TWO,), once=True),
    "DuckDB: keys, new file": Implementation(mergers.duckdb_keys, ADDING, once=True),
}
EVERYBODY = {**OURS, **PEERS, **FLOORS}

AT_MOST = 6.0  # seconds per case; slow cases get fewer rounds
_ONLY = "measure only cases whose names contain these words: --only Penstock,touched upsert 'all 20'"


@dataclass(frozen=True)
class Case:
    system: str
    strategy: str
    shape: str

    def __str__(self) -> str:
        return f"{self.system}: {self.strategy}, {self.shape}"


Look = Callable[[str, str, str], float | None]  # figure of an implementation, a strategy and a shape


@dataclass(frozen=True)
class MergeResult:
    seconds: float
    cpu: float  # CPU seconds of all threads, which are more reliable on a busy machine
    peak: int  # bytes
    done: MergeCounts


def main() -> None:
    options = _options()
    report = Report("merge", "Merging", ["pyarrow", "duckdb", "deltalake", "fsspeckit"], quick=options.quick)
    cases_to_run = _list_cases(options.only, slow=options.slow)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        ground = Ground(Path(folder), options.rows // FILES, {case.shape for case in cases_to_run})
        measurements = Measurements(ground)
        jobs = {case: partial(measurements.measure, case) for case in cases_to_run}
        measurements.times = interleaved(jobs, options.repeat, at_most=AT_MOST)
        ground.check_untouched()
    for shape in (TWO, ALL):
        report.add(_seconds(measurements, shape))
        report.add(_peaks(measurements, shape))
    report.add(_ratios(measurements))
    if measurements.notes:
        report.add(_notes_grid(measurements))
    print(f"\nalso in {report.save()}")


class Ground:
    """Targets to copy, and sources to merge into them."""

    def __init__(self, folder: Path, file_rows: int, shapes: Iterable[str]) -> None:
        self.file_rows = file_rows
        self.folder = folder
        self._targets: dict[str, TargetFiles] = {"warm-up": self._make("warm-up", 2, 1000, [0, 1])}
        for shape in sorted(shapes):
            files = MANY if shape == OF_MANY else FILES
            touched = list(range(FILES)) if shape == ALL else [FILES // 4, FILES * 2 // 3]
            self._targets[shape] = self._make(shape, files, file_rows, touched)
        self._stamps = self._stamped()

    def __getitem__(self, shape: str) -> "TargetFiles":
        return self._targets[shape]

    def task(self, case: Case, target_copy: Path) -> Task:
        """Create a copy of the target with hard links, because no implementation may write into existing files."""
        target_files = self._targets[case.shape]
        delta = case.system.startswith("deltalake")
        shutil.copytree(target_files.delta if delta else target_files.target, target_copy, copy_function=os.link)
        return Task(str(target_copy), str(target_files.source(case.strategy)), case.strategy, target_files.touched)

    def check_untouched(self) -> None:
        assert self._stamped() == self._stamps, "an implementation has changed an existing file"

    def _make(self, shape: str, files: int, file_rows: int, touched: Sequence[int]) -> "TargetFiles":
        _say(f"making {files} files of {file_rows:,} rows ({shape})")
        target_files = TargetFiles(
            self.folder / shape, tuple(f"part-{n:05}.parquet" for n in touched), files * file_rows
        )
        target_files.target.mkdir(parents=True)

        def write(number: int) -> None:
            path = target_files.target / f"part-{number:05}.parquet"
            pq.write_table(table(file_rows, number * file_rows), path, compression=CODEC, row_group_size=GROUP_ROWS)

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(write, range(files)))
        half = FILES * file_rows // 200 if files > 2 else file_rows // 20
        existing_keys = np.concatenate([n * file_rows + _spread(half // len(touched), file_rows) for n in touched])
        _sources(target_files, np.concatenate([existing_keys, target_files.rows + np.arange(half)]))
        if shape != OF_MANY:
            _log(target_files)
        return target_files

    def _stamped(self) -> dict[Path, tuple[int, int]]:
        paths = sorted(path for target_files in self._targets.values() for path in target_files.target.iterdir())
        return {path: ((stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths}


@dataclass(frozen=True)
class TargetFiles:
    folder: Path
    touched: tuple[str, ...]
    rows: int

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def delta(self) -> Path:
        """The same files with a Delta log."""
        return self.folder / "delta"

    def source(self, strategy: str) -> Path:
        return self.folder / ("repeated.parquet" if strategy == "deduplicate" else "source.parquet")


def _spread(count: int, within: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * within // count


def _sources(target_files: TargetFiles, keys: np.ndarray) -> None:
    """Write the source with unique keys, and one with a tenth of the keys repeated. All rows differ from the target."""
    random = np.random.default_rng(len(keys))
    for strategy, ids in (
        ("upsert", keys),
        ("deduplicate", np.concatenate([keys, random.choice(keys, len(keys) // 10, replace=False)])),
    ):
        rows = table(len(ids), target_files.rows * 2).set_column(
            0, SCHEMA.field(KEY), pa.array(random.permutation(ids))
        )
        pq.write_table(rows, target_files.source(strategy))


def _log(target_files: TargetFiles) -> None:
    from deltalake import convert_to_deltalake

    shutil.copytree(target_files.target, target_files.delta, copy_function=os.link)
    convert_to_deltalake(str(target_files.delta))


@dataclass(frozen=True)
class Digest:
    """Order-independent digest of rows."""

    rows: int
    total: int  # the sum of all rows' hashes
    types: str


@dataclass
class Measurements:
    """Measurements of all cases."""

    ground: Ground
    times: dict[Case, list[float]] = field(default_factory=dict)
    peaks: dict[Case, list[int]] = field(default_factory=dict)
    notes: dict[str, list[Case]] = field(default_factory=dict)
    wrong: set[Case] = field(default_factory=set)
    _expected: dict[tuple[str, str], tuple[Digest, dict[str, int]]] = field(default_factory=dict)

    def measure(self, case: Case) -> float:
        """Run a case and return its seconds, or infinity if it failed or its result is wrong."""
        if case in self.wrong:
            return float("inf")
        with tempfile.TemporaryDirectory(dir=self.ground.folder) as folder:
            target_copy = Path(folder)
            warm = self.ground.task(Case(case.system, case.strategy, "warm-up"), target_copy / "warm-up")
            task = self.ground.task(case, target_copy / "target")
            os.sync()  # pending writes of other cases must not count
            try:
                merge_run: MergeResult = _fresh(run, EVERYBODY[case.system].merge, warm, task)
            except Exception as failure:
                return self._reject(case, f"failed with {type(failure).__name__}: {failure}"[:300])
            if case not in self.peaks and (complaint := self._check(case, Path(task.directory), merge_run.done)):
                return self._reject(case, complaint)
            self.peaks.setdefault(case, []).append(merge_run.peak)
        by = f" by {merge_run.done.engine}" if merge_run.done.engine else ""
        _say(f"{case}{by}: {merge_run.seconds:.3f} s, {merge_run.cpu:.3f} s of work, {merge_run.peak / 1e6:,.0f} MB")
        return merge_run.seconds

    def best(self, system: str, strategy: str, shape: str) -> float | None:
        return self._of(self.times, min, system, strategy, shape)

    def usual(self, system: str, strategy: str, shape: str) -> float | None:
        return self._of(self.times, median, system, strategy, shape)

    def peak(self, system: str, strategy: str, shape: str) -> float | None:
        """Return the median of the peak memory, because it is random whether two threads peak at once."""
        return self._of(self.peaks, median, system, strategy, shape)

    def _of(self, figures: Mapping[Case, Sequence[float]], pick: Callable[[Any], float], *key: str) -> float | None:
        case = _case(*key)
        sample = figures.get(case)
        return pick(sample) if sample and case not in self.wrong else None

    def _reject(self, case: Case, complaint: str) -> float:
        self.wrong.add(case)
        self._note(case, complaint)
        _say(f"{case}: {complaint}")
        return float("inf")

    def _note(self, case: Case, note: str) -> None:
        self.notes.setdefault(f"{case.system} {note}", []).append(case)

    def _check(self, case: Case, target_copy: Path, done: MergeCounts) -> str | None:
        """Check rows, types and counts of a result. Returns the error, if any. Counts are optional."""
        if done.engine:
            self._note(case, f"took {done.engine}")
        if (
            case.system in FLOORS or case.shape == OF_MANY
        ):  # lower bounds do not merge; the large target was checked with fewer files
            return None
        paths = sorted(map(str, target_copy.glob("*.parquet")))
        if case.system.startswith("deltalake"):
            paths = _live(target_copy)
        result_digest = digest(paths)
        requested = (case.shape, case.strategy)
        if requested not in self._expected:
            self._expected[requested] = expected(self.ground[case.shape], case.strategy)
        rows, counts = self._expected[requested]
        if result_digest != rows:
            return f"wrong result: {result_digest} instead of {rows}"
        reported_counts = {name: getattr(done, name) for name in counts}
        if differ := {
            name: (reported_counts[name], count)
            for name, count in counts.items()
            if reported_counts[name] not in (None, count)
        }:
            return f"wrong counts (reported, expected): {differ}"
        return None


def run(merge: Merger, warm: Task, task: Task) -> MergeResult:
    """Run a merge in this process: first with few rows as a warm-up, then the measured one."""
    merge(warm, pq.read_table(warm.source))
    source = pq.read_table(task.source)
    begun, worked = time.perf_counter(), time.process_time()
    done = merge(task, source)
    return MergeResult(time.perf_counter() - begun, time.process_time() - worked, _peak(), done)


def digest(paths: Sequence[str]) -> Digest:
    hashes, types = _hashes(paths)
    return Digest(len(hashes), int(hashes.sum(dtype=np.uint64)), types)


def expected(target_files: TargetFiles, strategy: str) -> tuple[Digest, dict[str, int]]:
    """Return the expected rows and counts of a merge. The keys of the target are its row numbers."""
    target, types = _hashes(sorted(map(str, target_files.target.iterdir())), KEY)
    rows = pq.read_table(target_files.source(strategy))
    if strategy == "deduplicate":
        rows = mergers.deduplicated(rows)
    plain = target_files.folder / "plain.parquet"
    pq.write_table(rows, plain)
    source, _ = _hashes([str(plain)], KEY)
    keys = np.sort(rows[KEY].to_numpy())
    meets = keys < len(target)
    matched = np.zeros(len(target), bool)
    matched[keys[meets]] = True
    target_mask = {"insert": np.ones_like(matched), "full_merge": np.zeros_like(matched)}.get(strategy, ~matched)
    taken = {"insert": ~meets, "update": meets}.get(strategy, np.ones_like(meets))
    left = np.concatenate([target[target_mask], source[taken]])
    counts = {
        "inserted": 0 if strategy == "update" else int((~meets).sum()),
        "updated": 0 if strategy == "insert" else int(matched.sum()),
        "deleted": int((~matched).sum()) if strategy == "full_merge" else 0,
        "total": len(left),
    }
    return Digest(len(left), int(left.sum(dtype=np.uint64)), types), counts


def _hashes(paths: Sequence[str], order: str | None = None) -> tuple[np.ndarray, str]:
    """Return the hash of every row, and the columns with their types."""
    import duckdb

    with duckdb.connect() as db:
        relation = db.read_parquet(list(paths))
        types = ", ".join(
            f"{name} {data_type}" for name, data_type in zip(relation.columns, relation.types, strict=True)
        )
        rows = db.sql(f"SELECT hash(relation) AS hash FROM relation {f'ORDER BY {order}' * bool(order)}").fetchnumpy()
    return rows["hash"], types


def _live(target_copy: Path) -> list[str]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(str(target_copy)).file_uris())


def _case(system: str, strategy: str, shape: str) -> Case:
    """Return the measured case that represents this one."""
    requested = EVERYBODY[system]
    return Case(
        system,
        requested.strategies[0] if requested.once and strategy in requested.strategies else strategy,
        shape,
    )


def _list_cases(only: Sequence[str], *, slow: bool) -> list[Case]:
    """List the cases so that compared cases run one after the other: by shape, then by strategy."""
    cases = [
        _case(name, strategy, shape)
        for shape in (TWO, ALL)
        for strategy in STRATEGIES
        for name, implementation in EVERYBODY.items()
        if shape in implementation.shapes
        and strategy in implementation.strategies
        and (slow or strategy not in implementation.slow)
    ]
    many = [Case(name, "upsert", OF_MANY) for name in OURS]
    return [case for case in dict.fromkeys(many + cases) if all(_is_selected(word, case) for word in only)]


def _is_selected(word: str, case: Case) -> bool:
    """Return whether a case matches one of the alternatives, which are separated by commas."""
    return any(name in str(case) for name in word.split(","))


def _seconds(measurements: Measurements, shape: str) -> Grid:
    rounds = max((len(sample) for case, sample in measurements.times.items() if case.shape == shape), default=0)
    rows = measurements.ground.file_rows * FILES
    lines = [
        [name, *(_cell(measurements.best(name, s, shape), measurements.usual(name, s, shape)) for s in STRATEGIES)]
        for name in EVERYBODY
    ]
    caption = f"Seconds, best (median), of up to {rounds} rounds: {rows // 100:,} rows into {rows:,}; existing keys in {shape}"
    return Grid(caption, ["", *STRATEGIES], _without_empty_lines(lines))


def _peaks(measurements: Measurements, shape: str) -> Grid:
    lines = [[name, *(_mb(measurements.peak(name, s, shape)) for s in STRATEGIES)] for name in EVERYBODY]
    lines = _without_empty_lines(lines)
    lines.append(["baseline: Python and pyarrow, no merge", *[_mb(_fresh(_peak))] * len(STRATEGIES)])
    return Grid(f"Peak memory of a process in MB, median; existing keys in {shape}", ["", *STRATEGIES], lines)


@dataclass(frozen=True)
class Ratio:
    """Figures of one implementation relative to the lowest figure of others. Each shape is a line."""

    above: str
    beside: str  # label of the others
    below: Sequence[str]
    strategies: Sequence[str] = STRATEGIES
    shapes: Sequence[tuple[str, str]] = ((TWO, TWO), (ALL, ALL))  # shapes of the one and of the others
    at_least: float = 0
    at_most: float | None = None  # None: no goal
    memory: bool = False

    def lines(self, measurements: Measurements) -> Iterator[list[str]]:
        for shape, other in self.shapes:
            looks = (measurements.peak,) if self.memory else (measurements.best, measurements.usual)
            rows = [[self._ratio(look, s, shape, other) for s in STRATEGIES] for look in looks]
            cells = [_cell(*figures) for figures in zip(*rows, strict=True)]
            judged = [ratio for s, ratio in zip(STRATEGIES, rows[0], strict=True) if s in self.strategies]
            quantity = "memory" if self.memory else "time"
            yield [f"{self.above} ÷ {self.beside}: {quantity}, {shape}", *cells, *self._verdict(judged)]

    def _ratio(self, look: Look, strategy: str, shape: str, other: str) -> float | None:
        above = look(self.above, strategy, shape)
        below = [figure for system in self.below if (figure := look(system, strategy, other)) is not None]
        return above / min(below) if strategy in self.strategies and above is not None and below else None

    def _verdict(self, ratios: list[float | None]) -> list[str]:
        if self.at_most is None:
            return ["", ""]
        cases_to_run = f"{self.at_least:.2f} to {self.at_most:.2f}" if self.at_least else f"up to {self.at_most:.2f}"
        figures_found = [ratio for ratio in ratios if ratio is not None]
        if any(not self.at_least <= ratio <= self.at_most for ratio in figures_found):
            return [cases_to_run, "no"]
        return [cases_to_run, "yes" if len(figures_found) == len(ratios) else "unknown"]


_DELTA = ("deltalake", ["deltalake", "deltalake, source not streamed"])
_SCRIPT = ("the script", ["a script for DuckDB"])

RATIOS = [
    Ratio("Penstock, pyarrow", "touched files", ["pyarrow: touched files"], REWRITING, at_most=1.3),
    Ratio("Penstock, pyarrow", "keys, new file", ["pyarrow: keys, new file"], ADDING, at_most=1.5),
    Ratio(
        "Penstock, duckdb",
        "touched files",
        ["DuckDB: touched files", "DuckDB: touched files, by core"],
        REWRITING,
        at_most=1.25,
    ),
    Ratio("Penstock, duckdb", "keys, new file", ["DuckDB: keys, new file"], ADDING, at_most=1.5),
    Ratio("Penstock, auto", "keys, new file", ["pyarrow: keys, new file"], ADDING, at_most=1.5),
    Ratio("Penstock, auto", *_DELTA, at_most=1),
    Ratio("Penstock, auto", *_DELTA, at_most=1, memory=True),
    *(
        Ratio(system, f"in {TWO}", [system], ["upsert"], [(OF_MANY, TWO)], at_least=0.85, at_most=1.15)
        for system in OURS
    ),
    Ratio("Penstock, pyarrow", "touched keys, new file", ["pyarrow: touched keys, new file"], ADDING, [(TWO, TWO)]),
    Ratio("Penstock, pyarrow", "fsspeckit", ["fsspeckit, pyarrow"]),
    Ratio("Penstock, duckdb", "fsspeckit", ["fsspeckit, duckdb"]),
    Ratio("Penstock, auto", *_SCRIPT),
    Ratio("Penstock, auto", *_SCRIPT, memory=True),
]


def _ratios(measurements: Measurements) -> Grid:
    lines = _without_empty_lines([line for ratio in RATIOS for line in ratio.lines(measurements)])
    caption = "Ratios of the best times (of the medians) and of the peaks. The goal applies to the first figure"
    return Grid(caption, ["", *STRATEGIES, "goal", "reached"], lines)


def _notes_grid(measurements: Measurements) -> Grid:
    lines = [
        [note, "; ".join(f"{case.strategy}, {case.shape}" for case in cases)]
        for note, cases in measurements.notes.items()
    ]
    return Grid("Failures, wrong results and chosen engines", ["", "cases"], lines)


def _without_empty_lines(lines: list[list[str]]) -> list[list[str]]:
    """Leave out lines without figures."""
    return [line for line in lines if set(line[1 : len(STRATEGIES) + 1]) != {"–"}]


def _cell(figure: float | None, besides: float | None = None) -> str:
    if figure is None:
        return "–"
    return f"{figure:.2f}" if besides is None else f"{figure:.2f} ({besides:.2f})"


def _mb(size: float | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.0f}"


def _fresh(act: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(act, *arguments).result()


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
    try:
        # Not ru_maxrss: it includes the process that started this one.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used << 10


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help=f"rows of the target, in {FILES} files")
    parser.add_argument("--repeat", type=int, help="number of rounds")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help=_ONLY)
    parser.add_argument("--slow", action="store_true", help="include slow cases")
    parser.add_argument("--quick", action="store_true", help="few rows and one round, to check that it runs")
    parser.add_argument("--folder", help="folder for temporary files")
    options = parser.parse_args()
    options.rows = options.rows or (200_000 if options.quick else 5_000_000)
    options.repeat = options.repeat or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    main()
