"""One meaning, whichever engine and wherever the rows are: every case, in a plain directory and in a dataset."""

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from conftest import SOAK
from penstock.core import merge as meaning
from penstock.core.schema.canonical import canonical
from penstock.errors import Invalid, Unsupported
from penstock.lake import Dataset
from semantics import oracle
from semantics.cases import CASES, SCENARIOS, SOURCE, TARGET, WORDS, Case, Refusal, files, rows
from semantics.directories import content, lay, parts, read, rows_of, same
from semantics.oracle import Row

ENGINES = ("pyarrow", "duckdb", "spark")
Merge = Callable[..., dict[str, int]]
everywhere = pytest.mark.parametrize("engine", ENGINES)
here = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "spark"])  # no process of its own


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_oracle_agrees(case: Case) -> None:
    target = [row for name, table in (case.target or {}).items() for row in told(name, table, case)]
    source = case.source.to_pylist()
    columns = case.expect.column_names if isinstance(case.expect, pa.Table) else []
    order_by = case.options.get("dedup_order_by", [])
    order_by = [name.strip() for name in ([order_by] if isinstance(order_by, str) else order_by)]
    if isinstance(case.expect, pa.Table):
        after, counts = oracle.merge(target, source, columns, case.key_names, case.strategy, order_by)
        assert counts == case.stats
        assert same(pa.Table.from_pylist(after, case.expect.schema).to_pylist(), case.expect.to_pylist())
    elif case.expect.reason in {"null_keys", "duplicate_keys"}:
        with pytest.raises(oracle.Refused, match=case.expect.reason):
            oracle.merge(target, source, columns, case.key_names, case.strategy, order_by)


def chosen(cases: Iterable[Case], left_out: Callable[[Case], bool]) -> pytest.MarkDecorator:
    """Every case in every engine; Spark leaves some out, unless the numbers are to be full."""
    pairs = [(case, engine) for case in cases for engine in ENGINES if engine != "spark" or SOAK or not left_out(case)]
    return pytest.mark.parametrize(("case", "engine"), pairs, ids=str)


@chosen(CASES, lambda case: case.twin)
def test_in_a_plain_directory(case: Case, engine: str, merge: Merge, tmp_path: Path) -> None:
    place = tmp_path / "target"
    lay(place, case.target)
    before = content(tmp_path)
    if refused(case, lambda: merge(case.source, place, case.keys, case.strategy, **case.options), engine):
        assert content(tmp_path) == before, "a merge that fails changes nothing and leaves nothing"
        return

    stats = merge(case.source, place, case.keys, case.strategy, **case.options)
    assert isinstance(case.expect, pa.Table)
    assert stats == case.stats
    assert list(stats) == ["inserted", "updated", "deleted", "total"]
    assert all(type(number) is int for number in stats.values())

    after = read(place)
    assert same([row for name, table in after.items() for row in told(name, table, case)], case.expect.to_pylist())
    assert place.exists() != case.gone
    assert {name for name in content(tmp_path) if not name.endswith(".parquet")} == set(), "nothing but data remains"
    for name, table in after.items():
        assert_types(table.schema, stored_schema(case), engine, name)
    for name in untouched(case):
        assert content(place)[name] == before[f"target/{name}"], f"{name} has nothing to do with it"
    if engine != "spark":
        for name, table in (case.target or {}).items():
            if name in after:
                assert_in_place(told(name, table, case), told(name, after[name], case), case)


@chosen((case for case in CASES if not case.plain_only), lambda case: not case.ids)
def test_in_a_dataset(case: Case, engine: str, merge_into: Callable[..., Any], made: Callable[..., Dataset]) -> None:
    dataset = held(made, case)
    before, version = dataset.to_arrow(row_ids=True), dataset.version

    def run() -> Any:
        return merge_into(dataset, case.source, key_columns=case.keys, strategy=case.strategy, **case.options)

    if refused(case, run):
        assert dataset.version == version
        assert same(dataset.to_arrow(row_ids=True).to_pylist(), before.to_pylist())
        return

    types = dataset.schema
    merged = run()
    assert isinstance(case.expect, pa.Table)
    assert merged.stats == case.stats
    after = dataset.to_arrow(row_ids=True)
    assert same(without_ids(after), case.expect.to_pylist())
    assert dataset.num_rows == case.expect.num_rows
    assert dataset.schema.names == case.expect.column_names
    assert dataset.schema.types == canonical(case.expect.schema).types

    changed = any(case.counts) or dataset.schema != types
    assert dataset.version == merged.receipt.version == version + changed, "one change, one version"
    assert same(dataset.at(version).to_arrow(row_ids=True).to_pylist(), before.to_pylist()), "the version before stays"
    assert_row_ids(case, before.to_pylist(), after.to_pylist())


def test_every_scenario_of_the_contract_is_shown() -> None:
    shown = {case.scenario for case in CASES} | {name for test in ELSEWHERE for name in ELSEWHERE[test]}
    assert set(SCENARIOS) == shown - {""}


# What cases cannot say


@everywhere
def test_the_shared_core_is_asked(engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Counter[str]()

    def heard(name: str) -> Callable[..., Any]:
        real = getattr(meaning, name)

        def function(*args: Any, **options: Any) -> Any:
            asked[name] += 1
            return real(*args, **options)

        return function

    names = ("normalize_keys", "validate_keys_and_schema", "unify_schemas", "compute_merge_stats")
    for name in names:
        monkeypatch.setattr(meaning, name, heard(name))
    lay(tmp_path / "target", TARGET)
    assert merge(SOURCE, tmp_path / "target", "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert set(asked) == set(names)


@here
def test_files_out_of_reach_are_not_read(engine: str, merge: Merge, tmp_path: Path) -> None:
    lay(tmp_path, TARGET)
    spoil(tmp_path / "a.parquet", "id", "word")
    spoil(tmp_path / "c.parquet", "id", "word")
    source = rows(WORDS, (3, "drei"), (9, "neun"))
    assert merge(source, tmp_path, "id") == {"inserted": 1, "updated": 1, "deleted": 0, "total": 7}
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == [{"id": 3, "word": "drei"}, {"id": 4, "word": "four"}]


@here
def test_matching_reads_the_key_columns_alone(engine: str, merge: Merge, tmp_path: Path) -> None:
    lay(tmp_path, TARGET)
    for name in TARGET:
        spoil(tmp_path / name, "word")
    counts = merge(rows(WORDS, (3, "drei"), (9, "neun")), tmp_path, "id", "insert")
    assert counts == {"inserted": 1, "updated": 0, "deleted": 0, "total": 7}
    counts = merge(rows(WORDS, (9, "neun")), tmp_path, "id", "full_merge")
    assert counts == {"inserted": 0, "updated": 1, "deleted": 6, "total": 1}


@here
def test_memory_is_bounded_by_the_batches_and_not_by_the_target(engine: str, tmp_path: Path) -> None:
    width, group, groups = 8, 20_000, 60
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(width)])
    with pq.ParquetWriter(tmp_path / "large.parquet", schema) as writer:
        for at in range(groups):
            column = pa.array(range(at * group, (at + 1) * group))
            writer.write_table(pa.table([column] * width, schema=schema))
    script = (
        "import sys, pyarrow as pa, penstock\n"
        "source = pa.table({f'c{i}': [7] for i in range(8)})\n"
        "merge = getattr(penstock, f'merge_parquet_dataset_{sys.argv[1]}')\n"
        "print(merge(source, sys.argv[2], 'c0', batch_rows=5000)['updated'], pa.default_memory_pool().max_memory())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, engine, str(tmp_path)], capture_output=True, text=True, check=True
    )
    updated, peak = map(int, done.stdout.split())
    assert updated == 1
    assert peak < 8 * width * group * groups / 3, "that is a third of the target"


@everywhere
def test_batches_change_neither_rows_nor_order_nor_counts(engine: str, merge: Merge, tmp_path: Path) -> None:
    held = [rows(WORDS, *((n, f"old {n}") for n in range(start, 60, 3))) for start in range(3)]
    source = rows(WORDS, *((n, f"new {n}") for n in range(59, 100, 4)), *((n, f"new {n}") for n in range(0, 59, 4)))
    answers = []
    for batch_rows in (1, 2, 3, 1000) if engine != "spark" else (1, 1000):
        place = tmp_path / str(batch_rows)
        lay(place, files(*held), row_group_size=5)
        counts = merge(source, place, "id", "full_merge", batch_rows=batch_rows)
        after = read(place)
        order = [table.to_pylist() for name, table in sorted(after.items()) if name in files(*held)]
        answers.append((counts, sorted(row["word"] for table in after.values() for row in table.to_pylist()),
                        order if engine != "spark" else None))  # fmt: skip
    assert answers[0][0] == {"inserted": 10, "updated": 16, "deleted": 44, "total": 26}
    assert all(answer == answers[0] for answer in answers)


@everywhere
def test_an_emptied_directory_keeps_what_is_not_ours(engine: str, merge: Merge, tmp_path: Path) -> None:
    place = tmp_path / "target"
    lay(place, TARGET)
    lay(place / "deeper", files(rows(WORDS, (9, "nine"))))
    foreign = {"notes.txt": b"mine", "_SUCCESS": b"", ".hidden": b"x", "deeper/more.csv": b"1,2"}
    for name, held in foreign.items():
        (place / name).write_bytes(held)
    counts = merge(SOURCE.slice(0, 0), place, "id", "full_merge")
    assert counts == {"inserted": 0, "updated": 0, "deleted": 7, "total": 0}
    assert content(place) == foreign


@everywhere
def test_a_rewritten_file_keeps_its_codec_unless_another_is_asked_for(
    engine: str, merge: Merge, tmp_path: Path
) -> None:
    place = tmp_path / "target"
    for name, codec in (("a", "gzip"), ("b", "snappy"), ("c", "zstd")):
        lay(place, {f"{name}.parquet": TARGET[f"{name}.parquet"]}, compression=codec)
    merge(rows(WORDS, (1, "x"), (3, "y")), place, "id")
    assert codecs(place) == {1: "GZIP", 2: "GZIP", 3: "SNAPPY", 4: "SNAPPY", 5: "ZSTD", 6: "ZSTD"}
    merge(rows(WORDS, (1, "x"), (7, "z")), place, "id", compression="zstd")
    assert codecs(place) == {1: "ZSTD", 2: "ZSTD", 3: "SNAPPY", 4: "SNAPPY", 5: "ZSTD", 6: "ZSTD", 7: "ZSTD"}
    with pytest.raises(Invalid) as refusal:
        merge(SOURCE, place, "id", compression="wurst")
    assert refusal.value.reason == "unknown_codec"


class Stream:
    """What any library may hand over: the Arrow stream interface, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def _file(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "source.parquet")
    return folder / "source.parquet"


def _folder(table: pa.Table, folder: Path) -> Path:
    lay(folder / "several", files(table.slice(0, 2), table.slice(2)))
    return folder / "several"


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "table": lambda table, _: table,
    "batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "reader": lambda table, _: table.to_reader(max_chunksize=1),
    "Arrow dataset": lambda table, folder: pads.dataset(_folder(table, folder)),
    "dataset in memory": lambda table, _: pads.dataset(table),
    "stream": lambda table, _: Stream(table),
    "pandas": lambda table, _: table.to_pandas(),
    "pandas of strings": lambda table, _: pd.DataFrame(table.to_pydict()),
    "Polars": lambda table, _: pl.DataFrame(table.to_pydict()),
    "dict of columns": lambda table, _: table.to_pydict(),
    "list of dicts": lambda table, _: table.to_pylist(),
    "path of a file": _file,
    "path of a file as text": lambda table, folder: str(_file(table, folder)),
    "path of a folder": _folder,
    "Spark frame": lambda table, _: table,
}


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (kind, engine)
        for kind in SOURCES
        for engine in ENGINES
        # what is no frame of Spark's own reaches Spark as one thing, whatever it was
        if engine != "spark" or SOAK or kind in {"reader", "path of a folder", "Spark frame"}
    ],
)
def test_sources_of_every_kind_are_one_source(
    kind: str, engine: str, merge: Merge, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = source_of(kind, tmp_path, request)
    lay(tmp_path / "target", TARGET)
    assert merge(source, tmp_path / "target", "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert same([row for table in read(tmp_path / "target").values() for row in table.to_pylist()], UPSERTED)


@here
@pytest.mark.parametrize("kind", SOURCES)
def test_a_dataset_takes_them_all(
    kind: str, engine: str, merge_into: Callable[..., Any], made: Callable[..., Dataset], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    dataset = made(pa.concat_tables(TARGET.values()))
    merged = merge_into(dataset, source_of(kind, tmp_path, request), key_columns="id")
    assert merged.stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert same(dataset.to_arrow().to_pylist(), UPSERTED)


UPSERTED = [{"id": n, "word": w} for n, w in enumerate(("one", "two", "drei", "four", "fünf", "six", "sieben"), 1)]


def source_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    if kind == "Spark frame":
        spark = request.getfixturevalue("spark")
        return spark.createDataFrame(SOURCE.to_pylist(), "id bigint, word string")
    return SOURCES[kind](SOURCE, folder)


@everywhere
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_a_target_merged_into_itself_stays_what_it_is(strategy: str, engine: str, merge: Merge, tmp_path: Path) -> None:
    lay(tmp_path / "target", TARGET)
    counts = merge(tmp_path / "target", tmp_path / "target", "id", strategy)
    assert counts == {"inserted": 0, "updated": 6, "deleted": 0, "total": 6}
    after = read(tmp_path / "target")
    assert same(pa.concat_tables(after.values()).to_pylist(), pa.concat_tables(TARGET.values()).to_pylist())
    if engine != "spark":
        assert list(after) == list(TARGET), "each file in its place"


@here
def test_a_dataset_merged_into_itself_stays_what_it_is(
    engine: str, merge_into: Callable[..., Any], made: Callable[..., Dataset]
) -> None:
    dataset = made(pa.concat_tables(TARGET.values()))
    before = dataset.to_arrow(row_ids=True)
    assert merge_into(dataset, dataset, key_columns="id").stats["updated"] == 6
    assert same(dataset.to_arrow(row_ids=True).to_pylist(), before.to_pylist())


@everywhere
def test_progress_is_told_stage_by_stage(engine: str, merge: Merge, tmp_path: Path) -> None:
    lay(tmp_path, TARGET)
    heard: dict[str, list[tuple[int, int]]] = defaultdict(list)
    merge(SOURCE, tmp_path, "id", progress_callback=lambda stage, done, total: heard[stage].append((done, total)))
    assert {"read", "match", "write"} <= set(heard)
    for stage, steps in heard.items():
        assert all(type(done) is int and type(total) is int and 0 <= done <= total for done, total in steps), stage
        assert steps == sorted(steps), f"{stage} goes forward"
        assert steps[-1][0] == steps[-1][1], f"{stage} comes to its end"


@here
@pytest.mark.parametrize("stage", ["read", "match", "write"])
def test_a_callback_that_raises_stops_the_merge_and_nothing_is_changed(
    stage: str, engine: str, merge: Merge, tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    def stop(now: str, _done: int, _total: int) -> None:
        if now == stage:
            raise Enough

    lay(tmp_path / "target", TARGET)
    before = content(tmp_path)
    with pytest.raises(Enough):
        merge(SOURCE, tmp_path / "target", "id", progress_callback=stop)
    assert content(tmp_path) == before


@here
def test_a_source_that_breaks_off_changes_nothing(engine: str, merge: Merge, tmp_path: Path) -> None:
    def batches() -> Iterable[pa.RecordBatch]:
        yield SOURCE.to_batches()[0]
        raise OSError("the line went dead")

    lay(tmp_path / "target", TARGET)
    before = content(tmp_path)
    with pytest.raises(Invalid) as refusal:
        merge(pa.RecordBatchReader.from_batches(SOURCE.schema, batches()), tmp_path / "target", "id")
    assert refusal.value.reason == "broken_source"
    assert content(tmp_path) == before


@here
def test_other_file_systems_are_refused_and_local_ones_taken(engine: str, merge: Merge, tmp_path: Path) -> None:
    lay(tmp_path / "target", TARGET)
    merge(rows(WORDS, (1, "x")), str(tmp_path / "target"), "id", filesystem=fs.LocalFileSystem())
    merge(rows(WORDS, (2, "y")), "target", "id", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    assert pq.read_table(tmp_path / "target" / "a.parquet")["word"].to_pylist() == ["x", "y"]
    for place, system in (("bucket/key", fs._MockFileSystem()), ("s3://bucket/key", None)):
        with pytest.raises(Unsupported) as refusal:
            merge(SOURCE, place, "id", filesystem=system)
        assert refusal.value.reason == "not_a_local_file_system"


@here
@pytest.mark.parametrize("path", ["", " ", "\t\n", "file://", "/", "//", "file:///"])
def test_merge_blank_or_root_target_is_refused(
    engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """An empty path is the current directory to the operating system: an unset variable would empty it."""
    lay(tmp_path / "target", TARGET)
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid) as refusal:
        merge(SOURCE, path, "id", "full_merge")
    assert refusal.value.reason in ("empty_path", "root_directory")
    if path == "":
        with pytest.raises(Invalid):
            merge(
                SOURCE, path, "id", "full_merge", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
            )
    assert content(tmp_path) == before


@here
def test_the_same_key_merges_a_dataset_once(
    engine: str, merge_into: Callable[..., Any], made: Callable[..., Dataset]
) -> None:
    dataset = made(pa.concat_tables(TARGET.values()))
    first = merge_into(dataset, SOURCE, key_columns="id", idempotency_key=f"once {dataset.id}")
    again = merge_into(dataset, SOURCE, key_columns="id", idempotency_key=f"once {dataset.id}")
    assert again.stats == first.stats
    assert again.receipt.version == first.receipt.version == dataset.version
    assert again.receipt.replayed
    assert not first.receipt.replayed


ELSEWHERE: Mapping[Callable[..., None], tuple[str, ...]] = {
    test_the_shared_core_is_asked: ("Backend-neutral validation usage",),
    test_files_out_of_reach_are_not_read: ("Key-based filtered scanning",),
    test_memory_is_bounded_by_the_batches_and_not_by_the_target: (
        "Batch streaming processing",
        "Avoid full dataset materialization",
    ),
    test_in_a_plain_directory: ("Statistics format",),
}


# How places are filled, read and compared


def told(name: str, table: pa.Table, case: Case) -> list[Row]:
    assert tuple(parts(name)) == case.partitions
    return rows_of(name, table)


def held(made: Callable[..., Dataset], case: Case) -> Dataset:
    """A dataset with the case's target, a version and a file for each of its files."""
    tables = list((case.target or {}).values())
    empty = case.expect if isinstance(case.expect, pa.Table) else case.source
    dataset = made(schema=(tables or [empty])[0].schema)
    for table in tables:
        dataset.append(table)
    return dataset


def without_ids(table: pa.Table) -> list[Row]:
    return list(table.drop_columns(["rowid"]).to_pylist())


def refused(case: Case, run: Callable[[], Any], engine: str = "") -> bool:
    """Where the case says so, the merge is refused, in the right words."""
    if engine in case.unsupported:
        with pytest.raises(Unsupported) as inability:
            run()
        column = case.unsupported[engine]
        assert inability.value.reason == "type_not_for_engine"
        assert repr(column) in inability.value.message
        return True
    if not isinstance(case.expect, Refusal):
        return False
    with pytest.raises(ValueError) as refusal:
        run()
    assert isinstance(refusal.value, Invalid)
    assert refusal.value.reason == case.expect.reason, refusal.value.message
    for word in case.expect.words:
        assert word in refusal.value.message
    return True


def stored_schema(case: Case) -> pa.Schema:
    """What the files of a plain directory hold afterwards."""
    assert isinstance(case.expect, pa.Table)
    return pa.schema([field for field in case.expect.schema if field.name not in case.partitions])


def assert_types(actual: pa.Schema, expected: pa.Schema, engine: str, name: str) -> None:
    assert actual.names == expected.names, name
    # Parquet has one kind of text, and Spark leaves no note of the form that it has in Arrow.
    form = plain_text if engine == "spark" else (lambda kind: kind)
    assert [form(kind) for kind in actual.types] == [form(kind) for kind in expected.types], name


def plain_text(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_large_string(kind) else kind


def keys_of(some: Iterable[Row], case: Case) -> list[oracle.Key]:
    return [oracle.key(row, case.key_names) for row in some]


def untouched(case: Case) -> list[str]:
    """The files that a merge has no reason to write."""
    assert isinstance(case.expect, pa.Table)
    brought = set(keys_of(case.source.to_pylist(), case))
    quiet = []
    for name, table in (case.target or {}).items():
        if table.schema.types != stored_schema(case).types:
            continue  # the whole directory becomes wider
        keys = set(keys_of(told(name, table, case), case))
        touched = {"insert": set(), "full_merge": keys}.get(case.strategy, keys & brought)
        if not touched:
            quiet.append(name)
    return quiet


def assert_in_place(before: list[Row], after: list[Row], case: Case) -> None:
    """Rows stay where they stood; those that are deleted or move away leave no gap."""
    left = iter(keys_of(before, case))
    assert all(key in left for key in keys_of(after, case)), "in the order in which they stood"


def assert_row_ids(case: Case, before: list[Row], after: list[Row]) -> None:
    brought = set(keys_of(case.source.to_pylist(), case))
    stay = {
        row["rowid"]: key
        for row, key in zip(before, keys_of(before, case), strict=True)
        if case.strategy != "full_merge" or key in brought
    }
    now = {row["rowid"]: key for row, key in zip(after, keys_of(after, case), strict=True)}
    assert len(now) == len(after), "every row has an id of its own"
    assert {number: key for number, key in now.items() if number in stay} == stay, "rows keep their ids"
    known = max((row["rowid"] for row in before), default=0)
    assert all(number > known for number in now.keys() - stay.keys()), "new rows have new ids"


def spoil(path: Path, *columns: str) -> None:
    """Make columns unreadable; the footer still tells of them."""
    group = pq.read_metadata(path).row_group(0)
    data = bytearray(path.read_bytes())
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema in columns:
            start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    with pytest.raises(OSError):
        pq.read_table(path)


def codecs(place: Path) -> dict[int, str]:
    """Which row is stored in which codec."""
    return {
        number: pq.read_metadata(place / name).row_group(0).column(0).compression
        for name, table in read(place).items()
        for number in table["id"].to_pylist()
    }
