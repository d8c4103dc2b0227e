"""How long a merge into a directory of Parquet files takes, and how much memory.

Penstock's engines stand beside fsspeckit, deltalake and a script for DuckDB, and over floors: the same files
read and written anew without any merging. Every merge has a process of its own, so that its peak memory is its
own, and a new copy of the target. All take turns. What the first merge of each leaves behind is checked.
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
from mergers import CODEC, CORES, GROUP_ROWS, KEY, Done, Merger, Task
from rows import SCHEMA, table

# Peers and DuckDB are imported where they are used: a process that merges without them is not to hold them.

STRATEGIES = ("upsert", "insert", "update", "full_merge", "deduplicate")
REWRITING = ("upsert", "update", "deduplicate")  # those that write the touched files anew
ADDING = ("insert", "full_merge")  # those that need no more of the target than its keys
FSSPECKIT = ("upsert", "insert", "update", "deduplicate")  # it has no full merge
FILES, MANY = 20, 200
TWO, ALL, OF_MANY = f"2 of {FILES} files", f"all {FILES} files", f"2 of {MANY} files"


@dataclass(frozen=True)
class Who:
    merge: Merger
    strategies: tuple[str, ...] = STRATEGIES
    shapes: tuple[str, ...] = (TWO, ALL)
    once: bool = False  # does one strategy stand for all of them?
    slow: tuple[str, ...] = ()  # strategies that are left out unless they are asked for


OURS = {
    "Penstock, pyarrow": Who(mergers.penstock_pyarrow),
    "Penstock, duckdb": Who(mergers.penstock_duckdb),
    "Penstock, auto": Who(mergers.penstock_auto),
}
PEERS = {
    "deltalake": Who(mergers.deltalake),
    "deltalake, source not streamed": Who(mergers.deltalake_at_once),
    "fsspeckit, pyarrow": Who(mergers.fsspeckit_pyarrow, FSSPECKIT, slow=("update", "deduplicate")),
    "fsspeckit, duckdb": Who(mergers.fsspeckit_duckdb, FSSPECKIT, slow=("insert", "update", "deduplicate")),
    "a script for DuckDB": Who(mergers.duckdb_script),
}
FLOORS = {
    "pyarrow: touched files": Who(mergers.pyarrow_rewrite, REWRITING, once=True),
    "DuckDB: touched files": Who(mergers.duckdb_rewrite, REWRITING, once=True),
    "DuckDB: touched files, by core": Who(mergers.duckdb_rewrite_by_core, REWRITING, once=True),
    "pyarrow: keys, new file": Who(mergers.pyarrow_keys, ADDING, once=True),
    "pyarrow: touched keys, new file": Who(mergers.pyarrow_touched_keys, ADDING, (TWO,), once=True),
    "DuckDB: keys, new file": Who(mergers.duckdb_keys, ADDING, once=True),
}
EVERYBODY = {**OURS, **PEERS, **FLOORS}

AT_MOST = 6.0  # seconds that are measured of one case; slow ones get fewer rounds
_ONLY = "measure what has these words in its name: --only Penstock,touched upsert 'all 20'"


@dataclass(frozen=True)
class Case:
    who: str
    strategy: str
    shape: str

    def __str__(self) -> str:
        return f"{self.who}: {self.strategy}, {self.shape}"


Look = Callable[[str, str, str], float | None]  # what was found of somebody, a strategy and a shape


@dataclass(frozen=True)
class Told:
    seconds: float
    cpu: float  # seconds, of all threads; they say more than the clock where others are at work
    peak: int  # bytes
    done: Done


def main() -> None:
    options = _options()
    report = Report("merge", "Merging", ["pyarrow", "duckdb", "deltalake", "fsspeckit"], quick=options.quick)
    wanted = _wanted(options.only, slow=options.slow)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        ground = Ground(Path(folder), options.rows // FILES, {case.shape for case in wanted})
        found = Found(ground)
        jobs = {case: partial(found.measure, case) for case in wanted}
        found.times = interleaved(jobs, options.repeat, at_most=AT_MOST)
        ground.check_untouched()
    for shape in (TWO, ALL):
        report.add(_seconds(found, shape))
        report.add(_peaks(found, shape))
    report.add(_ratios(found))
    if found.notes:
        report.add(_noted(found))
    print(f"\nalso in {report.save()}")


class Ground:
    """Targets to copy, and sources to merge into them."""

    def __init__(self, folder: Path, file_rows: int, shapes: Iterable[str]) -> None:
        self.file_rows = file_rows
        self.folder = folder
        self._made: dict[str, Made] = {"warm-up": self._make("warm-up", 2, 1000, [0, 1])}
        for shape in sorted(shapes):
            files = MANY if shape == OF_MANY else FILES
            touched = list(range(FILES)) if shape == ALL else [FILES // 4, FILES * 2 // 3]
            self._made[shape] = self._make(shape, files, file_rows, touched)
        self._stamps = self._stamped()

    def __getitem__(self, shape: str) -> "Made":
        return self._made[shape]

    def task(self, case: Case, place: Path) -> Task:
        """A new copy of the target, to merge into. Links will do: nobody may write into a file that is there."""
        made = self._made[case.shape]
        delta = case.who.startswith("deltalake")
        shutil.copytree(made.delta if delta else made.target, place, copy_function=os.link)
        return Task(str(place), str(made.source(case.strategy)), case.strategy, made.touched)

    def check_untouched(self) -> None:
        assert self._stamped() == self._stamps, "somebody has written into a file that was there before"

    def _make(self, shape: str, files: int, file_rows: int, touched: Sequence[int]) -> "Made":
        _say(f"making {files} files of {file_rows:,} rows ({shape})")
        made = Made(self.folder / shape, tuple(f"part-{n:05}.parquet" for n in touched), files * file_rows)
        made.target.mkdir(parents=True)

        def write(number: int) -> None:
            path = made.target / f"part-{number:05}.parquet"
            pq.write_table(table(file_rows, number * file_rows), path, compression=CODEC, row_group_size=GROUP_ROWS)

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(write, range(files)))
        half = FILES * file_rows // 200 if files > 2 else file_rows // 20
        there = np.concatenate([n * file_rows + _spread(half // len(touched), file_rows) for n in touched])
        _sources(made, np.concatenate([there, made.rows + np.arange(half)]))
        if shape != OF_MANY:
            _log(made)
        return made

    def _stamped(self) -> dict[Path, tuple[int, int]]:
        paths = sorted(path for made in self._made.values() for path in made.target.iterdir())
        return {path: ((stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths}


@dataclass(frozen=True)
class Made:
    folder: Path
    touched: tuple[str, ...]
    rows: int

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def delta(self) -> Path:
        """The same files with a Delta log beside them."""
        return self.folder / "delta"

    def source(self, strategy: str) -> Path:
        return self.folder / ("repeated.parquet" if strategy == "deduplicate" else "source.parquet")


def _spread(count: int, within: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * within // count


def _sources(made: Made, keys: np.ndarray) -> None:
    """The same keys once in any order, and once with a tenth of them repeated. All rows differ from the target's."""
    lot = np.random.default_rng(len(keys))
    for strategy, ids in (
        ("upsert", keys),
        ("deduplicate", np.concatenate([keys, lot.choice(keys, len(keys) // 10, replace=False)])),
    ):
        rows = table(len(ids), made.rows * 2).set_column(0, SCHEMA.field(KEY), pa.array(lot.permutation(ids)))
        pq.write_table(rows, made.source(strategy))


def _log(made: Made) -> None:
    from deltalake import convert_to_deltalake

    shutil.copytree(made.target, made.delta, copy_function=os.link)
    convert_to_deltalake(str(made.delta))


@dataclass(frozen=True)
class Digest:
    """Rows in any order."""

    rows: int
    total: int  # the sum of all rows' hashes
    types: str


@dataclass
class Found:
    """Every case as it was measured."""

    ground: Ground
    times: dict[Case, list[float]] = field(default_factory=dict)
    peaks: dict[Case, list[int]] = field(default_factory=dict)
    notes: dict[str, list[Case]] = field(default_factory=dict)
    wrong: set[Case] = field(default_factory=set)
    _expected: dict[tuple[str, str], tuple[Digest, dict[str, int]]] = field(default_factory=dict)

    def measure(self, case: Case) -> float:
        """Seconds; of what failed or is wrong, more than anybody waits for."""
        if case in self.wrong:
            return float("inf")
        with tempfile.TemporaryDirectory(dir=self.ground.folder) as folder:
            place = Path(folder)
            warm = self.ground.task(Case(case.who, case.strategy, "warm-up"), place / "warm-up")
            task = self.ground.task(case, place / "target")
            os.sync()  # what others left to be written is not to be written in this one's time
            try:
                told: Told = _fresh(run, EVERYBODY[case.who].merge, warm, task)
            except Exception as failure:
                return self._refused(case, f"failed with {type(failure).__name__}: {failure}"[:300])
            if case not in self.peaks and (complaint := self._check(case, Path(task.place), told.done)):
                return self._refused(case, complaint)
            self.peaks.setdefault(case, []).append(told.peak)
        by = f" by {told.done.engine}" if told.done.engine else ""
        _say(f"{case}{by}: {told.seconds:.3f} s, {told.cpu:.3f} s of work, {told.peak / 1e6:,.0f} MB")
        return told.seconds

    def best(self, who: str, strategy: str, shape: str) -> float | None:
        return self._of(self.times, min, who, strategy, shape)

    def usual(self, who: str, strategy: str, shape: str) -> float | None:
        return self._of(self.times, median, who, strategy, shape)

    def peak(self, who: str, strategy: str, shape: str) -> float | None:
        """The median: whether two threads are at their peaks at once is chance."""
        return self._of(self.peaks, median, who, strategy, shape)

    def _of(self, figures: Mapping[Case, Sequence[float]], pick: Callable[[Any], float], *key: str) -> float | None:
        case = _case(*key)
        sample = figures.get(case)
        return pick(sample) if sample and case not in self.wrong else None

    def _refused(self, case: Case, complaint: str) -> float:
        self.wrong.add(case)
        self._note(case, complaint)
        _say(f"{case}: {complaint}")
        return float("inf")

    def _note(self, case: Case, what: str) -> None:
        self.notes.setdefault(f"{case.who} {what}", []).append(case)

    def _check(self, case: Case, place: Path, done: Done) -> str | None:
        """Are rows, types and counts right? Others need not count."""
        if done.engine:
            self._note(case, f"took {done.engine}")
        if case.who in FLOORS or case.shape == OF_MANY:  # these do not merge, and that is what was checked for fewer
            return None
        paths = sorted(map(str, place.glob("*.parquet")))
        if case.who.startswith("deltalake"):
            paths = _live(place)
        there = digest(paths)
        asked = (case.shape, case.strategy)
        if asked not in self._expected:
            self._expected[asked] = expected(self.ground[case.shape], case.strategy)
        rows, counts = self._expected[asked]
        if there != rows:
            return f"was wrong: left {there} where {rows} belongs"
        said = {name: getattr(done, name) for name in counts}
        if differ := {name: (said[name], count) for name, count in counts.items() if said[name] not in (None, count)}:
            return f"counted wrong (said, right): {differ}"
        return None


def run(merge: Merger, warm: Task, task: Task) -> Told:
    """In a process of its own: once with few rows, so that all is loaded and started, and once in earnest."""
    merge(warm, pq.read_table(warm.source))
    source = pq.read_table(task.source)
    begun, worked = time.perf_counter(), time.process_time()
    done = merge(task, source)
    return Told(time.perf_counter() - begun, time.process_time() - worked, _peak(), done)


def digest(paths: Sequence[str]) -> Digest:
    hashes, types = _hashes(paths)
    return Digest(len(hashes), int(hashes.sum(dtype=np.uint64)), types)


def expected(made: Made, strategy: str) -> tuple[Digest, dict[str, int]]:
    """What a merge must leave behind, and its counts. Keys of the target are the numbers of its rows."""
    target, types = _hashes(sorted(map(str, made.target.iterdir())), KEY)
    rows = pq.read_table(made.source(strategy))
    if strategy == "deduplicate":
        rows = mergers.deduplicated(rows)
    plain = made.folder / "plain.parquet"
    pq.write_table(rows, plain)
    source, _ = _hashes([str(plain)], KEY)
    keys = np.sort(rows[KEY].to_numpy())
    meets = keys < len(target)
    met = np.zeros(len(target), bool)
    met[keys[meets]] = True
    kept = {"insert": np.ones_like(met), "full_merge": np.zeros_like(met)}.get(strategy, ~met)
    taken = {"insert": ~meets, "update": meets}.get(strategy, np.ones_like(meets))
    left = np.concatenate([target[kept], source[taken]])
    counts = {
        "inserted": 0 if strategy == "update" else int((~meets).sum()),
        "updated": 0 if strategy == "insert" else int(met.sum()),
        "deleted": int((~met).sum()) if strategy == "full_merge" else 0,
        "total": len(left),
    }
    return Digest(len(left), int(left.sum(dtype=np.uint64)), types), counts


def _hashes(paths: Sequence[str], order: str | None = None) -> tuple[np.ndarray, str]:
    """Of every row, and the columns with their types."""
    import duckdb

    with duckdb.connect() as db:
        found = db.read_parquet(list(paths))
        types = ", ".join(f"{name} {kind}" for name, kind in zip(found.columns, found.types, strict=True))
        rows = db.sql(f"SELECT hash(found) AS hash FROM found {f'ORDER BY {order}' * bool(order)}").fetchnumpy()
    return rows["hash"], types


def _live(place: Path) -> list[str]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(str(place)).file_uris())


def _case(who: str, strategy: str, shape: str) -> Case:
    """The measured case that stands for this one."""
    asked = EVERYBODY[who]
    return Case(who, asked.strategies[0] if asked.once and strategy in asked.strategies else strategy, shape)


def _wanted(only: Sequence[str], *, slow: bool) -> list[Case]:
    """What is compared is measured one after the other: shape by shape, strategy by strategy."""
    cases = [
        _case(name, strategy, shape)
        for shape in (TWO, ALL)
        for strategy in STRATEGIES
        for name, who in EVERYBODY.items()
        if shape in who.shapes and strategy in who.strategies and (slow or strategy not in who.slow)
    ]
    many = [Case(name, "upsert", OF_MANY) for name in OURS]
    return [case for case in dict.fromkeys(many + cases) if all(_meant(word, case) for word in only)]


def _meant(word: str, case: Case) -> bool:
    """Words of one kind are alternatives, written with commas."""
    return any(each in str(case) for each in word.split(","))


def _seconds(found: Found, shape: str) -> Grid:
    rounds = max((len(sample) for case, sample in found.times.items() if case.shape == shape), default=0)
    rows = found.ground.file_rows * FILES
    lines = [
        [name, *(_cell(found.best(name, s, shape), found.usual(name, s, shape)) for s in STRATEGIES)]
        for name in EVERYBODY
    ]
    caption = f"Seconds, best (median), of up to {rounds} rounds: {rows // 100:,} rows into {rows:,}; existing keys in {shape}"
    return Grid(caption, ["", *STRATEGIES], _said(lines))


def _peaks(found: Found, shape: str) -> Grid:
    lines = [[name, *(_mb(found.peak(name, s, shape)) for s in STRATEGIES)] for name in EVERYBODY]
    lines = _said(lines)
    lines.append(["nothing is merged: Python and pyarrow", *[_mb(_fresh(_peak))] * len(STRATEGIES)])
    return Grid(f"Peak memory of a process in MB, median; existing keys in {shape}", ["", *STRATEGIES], lines)


@dataclass(frozen=True)
class Ratio:
    """Somebody's figures as a part of the lowest of others'. Each shape is a line."""

    above: str
    beside: str  # what the others are called together
    below: Sequence[str]
    strategies: Sequence[str] = STRATEGIES
    shapes: Sequence[tuple[str, str]] = ((TWO, TWO), (ALL, ALL))  # of the one, and of the others
    at_least: float = 0
    at_most: float | None = None  # None: nothing was promised
    memory: bool = False

    def lines(self, found: Found) -> Iterator[list[str]]:
        for shape, other in self.shapes:
            looks = (found.peak,) if self.memory else (found.best, found.usual)
            rows = [[self._ratio(look, s, shape, other) for s in STRATEGIES] for look in looks]
            cells = [_cell(*figures) for figures in zip(*rows, strict=True)]
            judged = [ratio for s, ratio in zip(STRATEGIES, rows[0], strict=True) if s in self.strategies]
            what = "memory" if self.memory else "time"
            yield [f"{self.above} ÷ {self.beside}: {what}, {shape}", *cells, *self._verdict(judged)]

    def _ratio(self, look: Look, strategy: str, shape: str, other: str) -> float | None:
        above = look(self.above, strategy, shape)
        below = [figure for who in self.below if (figure := look(who, strategy, other)) is not None]
        return above / min(below) if strategy in self.strategies and above is not None and below else None

    def _verdict(self, ratios: list[float | None]) -> list[str]:
        if self.at_most is None:
            return ["", ""]
        wanted = f"{self.at_least:.2f} to {self.at_most:.2f}" if self.at_least else f"up to {self.at_most:.2f}"
        known = [ratio for ratio in ratios if ratio is not None]
        if any(not self.at_least <= ratio <= self.at_most for ratio in known):
            return [wanted, "no"]
        return [wanted, "yes" if len(known) == len(ratios) else "not known"]


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
    *(Ratio(who, f"in {TWO}", [who], ["upsert"], [(OF_MANY, TWO)], at_least=0.85, at_most=1.15) for who in OURS),
    Ratio("Penstock, pyarrow", "touched keys, new file", ["pyarrow: touched keys, new file"], ADDING, [(TWO, TWO)]),
    Ratio("Penstock, pyarrow", "fsspeckit", ["fsspeckit, pyarrow"]),
    Ratio("Penstock, duckdb", "fsspeckit", ["fsspeckit, duckdb"]),
    Ratio("Penstock, auto", *_SCRIPT),
    Ratio("Penstock, auto", *_SCRIPT, memory=True),
]


def _ratios(found: Found) -> Grid:
    lines = _said([line for ratio in RATIOS for line in ratio.lines(found)])
    caption = "Ratios: of the best times (of the medians), and of the peaks; what is wanted holds of the first"
    return Grid(caption, ["", *STRATEGIES, "wanted", "holds"], lines)


def _noted(found: Found) -> Grid:
    lines = [
        [what, "; ".join(f"{case.strategy}, {case.shape}" for case in cases)] for what, cases in found.notes.items()
    ]
    return Grid("What failed, was wrong, or was chosen", ["", "where"], lines)


def _said(lines: list[list[str]]) -> list[list[str]]:
    """Without those that have no figure."""
    return [line for line in lines if set(line[1 : len(STRATEGIES) + 1]) != {"–"}]


def _cell(figure: float | None, besides: float | None = None) -> str:
    if figure is None:
        return "–"
    return f"{figure:.2f}" if besides is None else f"{figure:.2f} ({besides:.2f})"


def _mb(size: float | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.0f}"


def _fresh(act: Callable[..., Any], *given: Any) -> Any:
    """Do it in a new process that has done nothing before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(act, *given).result()


def _peak() -> int:
    """The most memory that this process ever held."""
    try:
        # Not ru_maxrss: that also remembers the process that started this one.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used << 10


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help=f"rows of the target, in {FILES} files")
    parser.add_argument("--repeat", type=int, help="how often each is measured")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help=_ONLY)
    parser.add_argument("--slow", action="store_true", help="measure what takes a minute and says little, too")
    parser.add_argument("--quick", action="store_true", help="few rows, once, to see that it runs")
    parser.add_argument("--folder", help="where the directories are made for a while")
    options = parser.parse_args()
    options.rows = options.rows or (200_000 if options.quick else 5_000_000)
    options.repeat = options.repeat or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    main()
