"""Test every merge case on every engine, in a plain directory and in a dataset."""

import inspect
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

import penstock
from conftest import QUICK, SOAK
from engines import merge_oracle
from engines.merge_cases import CASES, SCENARIOS, SOURCE, TARGET, WORDS, ExpectedError, MergeCase, files, rows
from engines.merge_oracle import Row
from engines.parquet_directories import (
    assert_same_rows,
    partition_values,
    read_bytes,
    read_tables,
    rows_of,
    write_directory,
)
from penstock.core import merge as core_merge
from penstock.core.merge import decision as merge_decision
from penstock.core.merge import plan as merge_plan
from penstock.core.schema.canonical import canonical_schema
from penstock.errors import Invalid, Unavailable, Unsupported
from penstock.lake import Dataset
from penstock.service import directory_merge

ENGINES = ("pyarrow", "duckdb", "spark")
Merge = Callable[..., dict[str, int]]
all_engines = pytest.mark.parametrize("engine", ENGINES)
# no separate process
in_process_engines = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "spark"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_merge_oracle_each_case_returns_expected_rows(case: MergeCase) -> None:
    target = [row for name, table in (case.target or {}).items() for row in file_rows(name, table, case)]
    source = case.source.to_pylist()
    columns = case.expect.column_names if isinstance(case.expect, pa.Table) else []
    order_by = case.options.get("dedup_order_by", [])
    order_by = [name.strip() for name in ([order_by] if isinstance(order_by, str) else order_by)]
    if isinstance(case.expect, pa.Table):
        after, counts = merge_oracle.merge(target, source, columns, case.key_names, case.strategy, order_by)
        assert counts == case.stats
        assert assert_same_rows(pa.Table.from_pylist(after, case.expect.schema).to_pylist(), case.expect.to_pylist())
    elif case.expect.reason in {"null_keys", "duplicate_keys"}:
        with pytest.raises(merge_oracle.InvalidMerge, match=case.expect.reason):
            merge_oracle.merge(target, source, columns, case.key_names, case.strategy, order_by)


def parametrize_cases(cases: Iterable[MergeCase], left_out: Callable[[MergeCase], bool]) -> pytest.MarkDecorator:
    """Parametrize every case with every engine; Spark omits some cases except in a soak run."""
    pairs = [(case, engine) for case in cases for engine in ENGINES if engine != "spark" or SOAK or not left_out(case)]
    return pytest.mark.parametrize(("case", "engine"), pairs, ids=str)


@parametrize_cases(CASES, lambda case: case.twin)
def test_merge_each_case_in_a_plain_directory(case: MergeCase, engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"
    write_directory(path, case.target)
    before = read_bytes(tmp_path)
    if raises_expected_error(case, lambda: merge(case.source, path, case.keys, case.strategy, **case.options), engine):
        assert read_bytes(tmp_path) == before, "a merge that fails changes nothing and leaves nothing"
        return

    stats = merge(case.source, path, case.keys, case.strategy, **case.options)
    assert isinstance(case.expect, pa.Table)
    assert stats == case.stats
    assert list(stats) == ["inserted", "updated", "deleted", "total"]
    assert all(type(number) is int for number in stats.values())

    after = read_tables(path)
    assert assert_same_rows(
        [row for name, table in after.items() for row in file_rows(name, table, case)], case.expect.to_pylist()
    )
    assert path.exists() != case.removed
    assert {name for name in read_bytes(tmp_path) if not name.endswith(".parquet")} == set(), "nothing but data remains"
    for name, table in after.items():
        assert_types(table.schema, stored_schema(case), engine, name)
    for name in untouched_files(case):
        assert read_bytes(path)[name] == before[f"target/{name}"], f"{name} has nothing to do with it"
    if engine != "spark":
        for name, table in (case.target or {}).items():
            if name in after:
                assert_row_order(file_rows(name, table, case), file_rows(name, after[name], case), case)


# In a quick run every case is merged in a plain directory, and only cases with row ids also in a dataset.
@parametrize_cases(
    (case for case in CASES if not case.plain_only and (case.ids or not QUICK)), lambda case: not case.ids
)
def test_merge_each_case_in_a_dataset(
    case: MergeCase, engine: str, merge_into: Callable[..., Any], create_dataset: Callable[..., Dataset]
) -> None:
    dataset = create_target(create_dataset, case)
    before, version = dataset.to_arrow(row_ids=True), dataset.version

    def run() -> Any:
        return merge_into(dataset, case.source, key_columns=case.keys, strategy=case.strategy, **case.options)

    if raises_expected_error(case, run):
        assert dataset.version == version
        assert assert_same_rows(dataset.to_arrow(row_ids=True).to_pylist(), before.to_pylist())
        return

    types = dataset.schema
    merged = run()
    assert isinstance(case.expect, pa.Table)
    assert merged.stats == case.stats
    after = dataset.to_arrow(row_ids=True)
    assert assert_same_rows(without_ids(after), case.expect.to_pylist())
    assert dataset.num_rows == case.expect.num_rows
    assert dataset.schema.names == case.expect.column_names
    assert dataset.schema.types == canonical_schema(case.expect.schema).types

    changed = any(case.counts) or dataset.schema != types
    assert dataset.version == merged.receipt.version == version + changed, "one change, one version"
    assert assert_same_rows(dataset.at(version).to_arrow(row_ids=True).to_pylist(), before.to_pylist()), (
        "the version before stays"
    )
    assert_row_ids(case, before.to_pylist(), after.to_pylist())


def test_cases_cover_every_scenario_of_the_contract() -> None:
    covered = {case.scenario for case in CASES} | {name for test in SCENARIO_TESTS for name in SCENARIO_TESTS[test]}
    assert set(SCENARIOS) == covered - {""}


# Behaviour beyond the cases


@all_engines
def test_merge_every_engine_calls_the_core_functions(
    engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def count_calls(name: str) -> Callable[..., Any]:
        real = getattr(core_merge, name)

        def function(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*args, **options)

        return function

    names = ("normalize_keys", "validate_keys_and_schema", "unify_schemas", "compute_merge_stats")
    for name in names:
        function = count_calls(name)
        for module in (core_merge, merge_plan, merge_decision):  # the package and the defining modules
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    write_directory(tmp_path / "target", TARGET)
    assert merge(SOURCE, tmp_path / "target", "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert set(calls) == set(names)


@in_process_engines
def test_merge_files_outside_the_key_range_are_not_read(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path, TARGET)
    corrupt_columns(tmp_path / "a.parquet", "id", "word")
    corrupt_columns(tmp_path / "c.parquet", "id", "word")
    source = rows(WORDS, (3, "drei"), (9, "neun"))
    assert merge(source, tmp_path, "id") == {"inserted": 1, "updated": 1, "deleted": 0, "total": 7}
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == [{"id": 3, "word": "drei"}, {"id": 4, "word": "four"}]


@in_process_engines
def test_match_reads_only_key_columns(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path, TARGET)
    for name in TARGET:
        corrupt_columns(tmp_path / name, "word")
    counts = merge(rows(WORDS, (3, "drei"), (9, "neun")), tmp_path, "id", "insert")
    assert counts == {"inserted": 1, "updated": 0, "deleted": 0, "total": 7}
    counts = merge(rows(WORDS, (9, "neun")), tmp_path, "id", "full_merge")
    assert counts == {"inserted": 0, "updated": 1, "deleted": 6, "total": 1}


@in_process_engines
def test_merge_memory_is_bounded_by_batches(engine: str, tmp_path: Path) -> None:
    width, group, groups = 8, 20_000, 60
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(width)])
    with pq.ParquetWriter(tmp_path / "large.parquet", schema) as writer:
        for number in range(groups):
            column = pa.array(range(number * group, (number + 1) * group))
            writer.write_table(pa.table([column] * width, schema=schema))
    script = (
        "import sys, pyarrow as pa, penstock\n"
        "source = pa.table({f'c{i}': [7] for i in range(8)})\n"
        "merge = getattr(penstock, f'merge_parquet_dataset_{sys.argv[1]}')\n"
        "print(merge(source, sys.argv[2], 'c0', batch_rows=5000)['updated'], pa.default_memory_pool().max_memory())\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, engine, str(tmp_path)], capture_output=True, text=True, check=True
    )
    updated, peak = map(int, completed.stdout.split())
    assert updated == 1
    assert peak < 8 * width * group * groups / 3, "that is a third of the target"


@all_engines
def test_merge_batch_rows_does_not_change_the_result(engine: str, merge: Merge, tmp_path: Path) -> None:
    tables = [rows(WORDS, *((n, f"old {n}") for n in range(start, 60, 3))) for start in range(3)]
    source = rows(WORDS, *((n, f"new {n}") for n in range(59, 100, 4)), *((n, f"new {n}") for n in range(0, 59, 4)))
    results = []
    for batch_rows in (1, 2, 3, 1000) if engine != "spark" else (1, 1000):
        path = tmp_path / str(batch_rows)
        write_directory(path, files(*tables), row_group_size=5)
        counts = merge(source, path, "id", "full_merge", batch_rows=batch_rows)
        after = read_tables(path)
        order = [table.to_pylist() for name, table in sorted(after.items()) if name in files(*tables)]
        results.append((counts, sorted(row["word"] for table in after.values() for row in table.to_pylist()),
                        order if engine != "spark" else None))  # fmt: skip
    assert results[0][0] == {"inserted": 10, "updated": 16, "deleted": 44, "total": 26}
    assert all(result == results[0] for result in results)


@all_engines
def test_merge_emptied_directory_keeps_foreign_files(engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"
    write_directory(path, TARGET)
    write_directory(path / "deeper", files(rows(WORDS, (9, "nine"))))
    foreign = {"notes.txt": b"mine", "_SUCCESS": b"", ".hidden": b"x", "deeper/more.csv": b"1,2"}
    for name, data in foreign.items():
        (path / name).write_bytes(data)
    counts = merge(SOURCE.slice(0, 0), path, "id", "full_merge")
    assert counts == {"inserted": 0, "updated": 0, "deleted": 7, "total": 0}
    assert read_bytes(path) == foreign


@all_engines
def test_merge_rewritten_file_keeps_codec_unless_compression_is_set(engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"
    for name, codec in (("a", "gzip"), ("b", "snappy"), ("c", "zstd")):
        write_directory(path, {f"{name}.parquet": TARGET[f"{name}.parquet"]}, compression=codec)
    merge(rows(WORDS, (1, "x"), (3, "y")), path, "id")
    assert codecs(path) == {1: "GZIP", 2: "GZIP", 3: "SNAPPY", 4: "SNAPPY", 5: "ZSTD", 6: "ZSTD"}
    merge(rows(WORDS, (1, "x"), (7, "z")), path, "id", compression="zstd")
    assert codecs(path) == {1: "ZSTD", 2: "ZSTD", 3: "SNAPPY", 4: "SNAPPY", 5: "ZSTD", 6: "ZSTD", 7: "ZSTD"}
    with pytest.raises(Invalid) as error:
        merge(SOURCE, path, "id", compression="wurst")
    assert error.value.reason == "unknown_codec"


class ArrowStream:
    """Object that implements only the Arrow stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def write_file(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "source.parquet")
    return folder / "source.parquet"


def write_folder(table: pa.Table, folder: Path) -> Path:
    write_directory(folder / "several", files(table.slice(0, 2), table.slice(2)))
    return folder / "several"


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "table": lambda table, _: table,
    "batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "reader": lambda table, _: table.to_reader(max_chunksize=1),
    "Arrow dataset": lambda table, folder: pads.dataset(write_folder(table, folder)),
    "dataset in memory": lambda table, _: pads.dataset(table),
    "stream": lambda table, _: ArrowStream(table),
    "pandas": lambda table, _: table.to_pandas(),
    "pandas of strings": lambda table, _: pd.DataFrame(table.to_pydict()),
    "Polars": lambda table, _: pl.DataFrame(table.to_pydict()),
    "dict of columns": lambda table, _: table.to_pydict(),
    "list of dicts": lambda table, _: table.to_pylist(),
    "list of tables": lambda table, _: [table.slice(0, 2), table.slice(2)],
    "list of batches": lambda table, _: [table.slice(0, 2).to_batches()[0], table.slice(2).to_batches()[0]],
    "path of a file": write_file,
    "path of a file as text": lambda table, folder: str(write_file(table, folder)),
    "path of a folder": write_folder,
    "Spark frame": lambda table, _: table,
}


@pytest.mark.parametrize(
    ("source_type", "engine"),
    [
        (source_type, engine)
        for source_type in SOURCES
        for engine in ENGINES
        # sources other than Spark frames are converted to one type
        if engine != "spark" or SOAK or source_type in {"reader", "path of a folder", "Spark frame"}
    ],
)
def test_merge_every_source_type_gives_the_same_result(
    source_type: str, engine: str, merge: Merge, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = make_source(source_type, tmp_path, request)
    write_directory(tmp_path / "target", TARGET)
    assert merge(source, tmp_path / "target", "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert assert_same_rows(
        [row for table in read_tables(tmp_path / "target").values() for row in table.to_pylist()], UPSERTED
    )


@in_process_engines
@pytest.mark.parametrize("source_type", SOURCES)
def test_dataset_merge_accepts_every_source_type(
    source_type: str, engine: str, merge_into: Callable[..., Any], create_dataset: Callable[..., Dataset], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    dataset = create_dataset(pa.concat_tables(TARGET.values()))
    merged = merge_into(dataset, make_source(source_type, tmp_path, request), key_columns="id")
    assert merged.stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert assert_same_rows(dataset.to_arrow().to_pylist(), UPSERTED)


UPSERTED = [{"id": n, "word": w} for n, w in enumerate(("one", "two", "drei", "four", "fünf", "six", "sieben"), 1)]


def make_source(source_type: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    if source_type == "Spark frame":
        spark = request.getfixturevalue("spark")
        return spark.createDataFrame(SOURCE.to_pylist(), "id bigint, word string")
    return SOURCES[source_type](SOURCE, folder)


@all_engines
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_merge_directory_into_itself_changes_nothing(strategy: str, engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path / "target", TARGET)
    counts = merge(tmp_path / "target", tmp_path / "target", "id", strategy)
    assert counts == {"inserted": 0, "updated": 6, "deleted": 0, "total": 6}
    after = read_tables(tmp_path / "target")
    assert assert_same_rows(pa.concat_tables(after.values()).to_pylist(), pa.concat_tables(TARGET.values()).to_pylist())
    if engine != "spark":
        assert list(after) == list(TARGET), "each file in its place"


@in_process_engines
def test_merge_dataset_into_itself_changes_nothing(
    engine: str, merge_into: Callable[..., Any], create_dataset: Callable[..., Dataset]
) -> None:
    dataset = create_dataset(pa.concat_tables(TARGET.values()))
    before = dataset.to_arrow(row_ids=True)
    assert merge_into(dataset, dataset, key_columns="id").stats["updated"] == 6
    assert assert_same_rows(dataset.to_arrow(row_ids=True).to_pylist(), before.to_pylist())


@all_engines
def test_merge_progress_is_reported_by_stage(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path, TARGET)
    reports: dict[str, list[tuple[int, int]]] = defaultdict(list)
    merge(SOURCE, tmp_path, "id", progress_callback=lambda stage, done, total: reports[stage].append((done, total)))
    assert {"read", "match", "write"} <= set(reports)
    for stage, steps in reports.items():
        assert all(type(done) is int and type(total) is int and 0 <= done <= total for done, total in steps), stage
        assert steps == sorted(steps), f"{stage} goes forward"
        assert steps[-1][0] == steps[-1][1], f"{stage} comes to its end"


@in_process_engines
@pytest.mark.parametrize(("phase", "min_done"), [("read", 0), ("match", 0), ("write", 0), ("write", 1)])
def test_merge_callback_error_stops_the_merge_without_changes(
    phase: str, min_done: int, engine: str, merge: Merge, tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    def stop(current_stage: str, done: int, _total: int) -> None:
        if current_stage == phase and done >= min_done:
            raise Enough

    write_directory(tmp_path / "target", TARGET)
    before = read_bytes(tmp_path)
    with pytest.raises(Enough):
        merge(SOURCE, tmp_path / "target", "id", progress_callback=stop)
    assert read_bytes(tmp_path) == before


@in_process_engines
def test_merge_source_error_changes_nothing(engine: str, merge: Merge, tmp_path: Path) -> None:
    def batches() -> Iterable[pa.RecordBatch]:
        yield SOURCE.to_batches()[0]
        raise OSError("the line went dead")

    write_directory(tmp_path / "target", TARGET)
    before = read_bytes(tmp_path)
    with pytest.raises(Invalid) as error:
        merge(pa.RecordBatchReader.from_batches(SOURCE.schema, batches()), tmp_path / "target", "id")
    assert error.value.reason == "broken_source"
    assert read_bytes(tmp_path) == before


@in_process_engines
def test_merge_filesystem_must_be_local(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path / "target", TARGET)
    merge(rows(WORDS, (1, "x")), str(tmp_path / "target"), "id", filesystem=fs.LocalFileSystem())
    merge(rows(WORDS, (2, "y")), "target", "id", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    assert pq.read_table(tmp_path / "target" / "a.parquet")["word"].to_pylist() == ["x", "y"]
    for path, system in (("bucket/key", fs._MockFileSystem()), ("s3://bucket/key", None)):
        with pytest.raises(Unsupported) as error:
            merge(SOURCE, path, "id", filesystem=system)
        assert error.value.reason == "not_a_local_file_system"


class LocalFsspec:
    """Stand-in for the local file system of fsspec."""

    protocol = ("file", "local")


class DirFileSystem:
    """Stand-in for fsspec's DirFileSystem."""

    protocol = "dir"

    def __init__(self, path: str, base: object) -> None:
        self.path, self.fs = path, base


class RemoteFsspec:
    protocol = ("s3", "s3a")


@in_process_engines
def test_merge_fsspec_dir_filesystem_must_be_local(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path / "target", TARGET)
    merge(rows(WORDS, (1, "x")), "target", "id", filesystem=DirFileSystem(str(tmp_path), LocalFsspec()))
    nested = DirFileSystem("target", DirFileSystem(str(tmp_path), LocalFsspec()))
    merge(rows(WORDS, (2, "y")), ".", "id", filesystem=nested)
    assert pq.read_table(tmp_path / "target" / "a.parquet")["word"].to_pylist() == ["x", "y"]
    with pytest.raises(Unsupported) as error:
        merge(SOURCE, "target", "id", filesystem=DirFileSystem(str(tmp_path), RemoteFsspec()))
    assert error.value.reason == "not_a_local_file_system"


@in_process_engines
def test_merge_accepts_file_urls_numpy_integers_and_uncompressed(engine: str, merge: Merge, tmp_path: Path) -> None:
    for number, url in enumerate((f"file:{tmp_path}/target", f"file://{tmp_path}/target"), 1):
        merge(rows(WORDS, (number, "x")), url, "id", compression="uncompressed", batch_rows=np.int64(10))
    assert codecs(tmp_path / "target") == {1: "UNCOMPRESSED", 2: "UNCOMPRESSED"}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    with pytest.raises(Invalid) as error:
        merge(SOURCE, tmp_path / "target", "id", batch_rows=np.bool_(True))
    assert error.value.reason == "bad_batch_rows"


TARGET_FORMS: dict[str, Callable[[Path], tuple[Any, Any]]] = {  # the target and its file system
    "text": lambda path: (str(path), None),
    "Path": lambda path: (path, None),
    "bytes": lambda path: (os.fsencode(path), None),
    "file:": lambda path: (f"file:{quote(str(path))}", None),
    "file://": lambda path: (path.as_uri(), None),
    "file://localhost": lambda path: (path.as_uri().replace("file://", "file://localhost"), None),
    "relative": lambda path: (path.name, None),
    "relative with dots": lambda path: (f"../{path.parent.name}/./{path.name}", None),
    "relative Path": lambda path: (Path(path.name), None),
    "trailing slash": lambda path: (f"{path}/", None),
    "link": lambda path: (path.parent / "link", None),
    "link with a trailing slash": lambda path: (f"{path.parent}/link/", None),
    "local file system": lambda path: (str(path), fs.LocalFileSystem()),
    "URL in a local file system": lambda path: (path.as_uri(), fs.LocalFileSystem()),
    "subtree": lambda path: (path.name, fs.SubTreeFileSystem(str(path.parent), fs.LocalFileSystem())),
    "absolute in a subtree": lambda path: (f"/{path.name}", fs.SubTreeFileSystem(str(path.parent), fs.LocalFileSystem())),
    "fsspec": lambda path: (str(path), LocalFsspec()),
    "fsspec folder": lambda path: (path.name, DirFileSystem(str(path.parent), LocalFsspec())),
}  # fmt: skip


@in_process_engines
@pytest.mark.parametrize("form", TARGET_FORMS)
def test_merge_every_form_of_a_target_names_the_same_directory(
    form: str, engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my target"
    write_directory(path, TARGET)
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    target, filesystem = TARGET_FORMS[form](path)
    assert merge(SOURCE, target, "id", filesystem=filesystem) == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    tables = read_tables(path)
    assert assert_same_rows([row for table in tables.values() for row in table.to_pylist()], UPSERTED)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "my target"]
    assert (tmp_path / "link").is_symlink()


@in_process_engines
@pytest.mark.parametrize("url", ["file:target", "file:./target", "file://target", "file://server/target"])
def test_merge_relative_and_remote_file_urls_are_rejected(
    url: str, engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match=r"Use file:///absolute/path, or a path without file:") as error:
        merge(SOURCE, url, "id")
    assert error.value.reason == "bad_file_url"
    assert not list(tmp_path.iterdir())


@in_process_engines
def test_merge_removes_summary_files_that_become_stale(engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"

    def write_summaries() -> None:
        for name in ("_metadata", "_common_metadata"):
            pq.write_metadata(SOURCE.schema, path / name)

    def summaries() -> list[str]:
        return sorted(entry.name for entry in path.glob("_*"))

    write_directory(path, TARGET)
    write_summaries()
    merge(rows(WORDS, (1, "one")), path, "id", "insert")
    assert summaries() == ["_common_metadata", "_metadata"], "nothing changed"
    merge(SOURCE, path, "id")
    assert summaries() == ["_common_metadata"], "the schema is still right"
    write_summaries()
    merge(rows(f"{WORDS} n:int64", (1, "eins", 1)), path, "id", add_columns=True)
    assert summaries() == []
    write_summaries()
    merge(rows(f"{WORDS} n:int64"), path, "id", "full_merge")
    assert not path.exists()


@all_engines
def test_merge_linked_files_are_replaced_and_spark_renames_files(engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"
    write_directory(path, {"deep/a.parquet": TARGET["a.parquet"]})
    write_directory(tmp_path, {"elsewhere.parquet": TARGET["b.parquet"]})
    (path / "link.parquet").symlink_to("../elsewhere.parquet")
    merge(rows(WORDS, (1, "eins"), (3, "drei")), path, "id")
    names = set(read_tables(path))
    if engine == "spark":
        assert all(re.fullmatch(r"part-[0-9a-f]{32}\.parquet", name) for name in names)
    else:
        assert names == {"deep/a.parquet", "link.parquet"}
    assert not [entry for entry in path.rglob("*") if entry.is_symlink()]
    assert pq.read_table(tmp_path / "elsewhere.parquet").equals(TARGET["b.parquet"]), "the linked file is unchanged"
    stored = [row for table in read_tables(path).values() for row in table.to_pylist()]
    assert sorted(row["word"] for row in stored) == ["drei", "eins", "four", "two"]


@in_process_engines
def test_merge_list_of_tables_is_read_in_the_common_types(engine: str, merge: Merge, tmp_path: Path) -> None:
    tables = [rows("id:int32 word:string", (1, "one")), rows("n:int64 id:int64", (7, 2**40))]
    assert merge(tables, tmp_path / "target", "id")["inserted"] == 2
    (table,) = read_tables(tmp_path / "target").values()
    assert table.schema.types == [pa.int64(), pa.string(), pa.int64()]
    assert table.to_pylist() == [{"id": 1, "word": "one", "n": None}, {"id": 2**40, "word": None, "n": 7}]
    for wrong, words in (
        ([*tables, {"id": 3}], "only dicts, or only Arrow tables"),
        ([1, 2], "only dicts, or only Arrow tables"),
        ([*tables, rows("id:string", ("x",))], "'id'"),
    ):
        with pytest.raises(Invalid, match=words):
            merge(wrong, tmp_path / "target", "id")


@pytest.mark.parametrize("engine", ENGINES)
def test_merge_help_documents_every_argument_and_error(engine: str) -> None:
    function = getattr(penstock, f"merge_parquet_dataset_{engine}")
    text = inspect.getdoc(function) or ""
    for name in inspect.signature(function).parameters:
        assert f"\n    {name}: " in text, name
    for error_class in ("Invalid", "Unsupported", "Conflict", "Unavailable"):
        assert f"\n    {error_class}: " in text


@in_process_engines
def test_merge_unreadable_targets_are_reported_with_the_file(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path, TARGET)
    (tmp_path / "z.parquet").symlink_to(tmp_path / "missing")
    with pytest.raises(Invalid, match=r"z\.parquet is a symbolic link to a file that does not exist") as error:
        merge(SOURCE, tmp_path, "id")
    assert error.value.reason == "broken_file"
    (tmp_path / "z.parquet").unlink()
    name = os.fsencode(tmp_path) + b"/\xff.parquet"
    Path(os.fsdecode(name)).write_bytes(b"")
    with pytest.raises(Invalid, match=r"\\xff\.parquet is not UTF-8") as error:
        merge(SOURCE, tmp_path, "id")
    assert error.value.reason == "bad_file_name"
    os.unlink(name)
    corrupt_columns(tmp_path / "b.parquet", "id")
    with pytest.raises(Unavailable, match=r"^b\.parquet is damaged: ") as failure:
        merge(SOURCE, tmp_path, "id")
    assert failure.value.reason == "file_damaged"
    write_directory(tmp_path, TARGET)
    corrupt_columns(tmp_path / "b.parquet", "word")
    with pytest.raises(Unavailable, match=r"^b\.parquet is damaged: "):
        merge(SOURCE, tmp_path, "id")


@in_process_engines
def test_merge_names_that_are_not_utf8_are_rejected(engine: str, merge: Merge, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xffolder"
    with pytest.raises(Invalid, match=r"\\xffolder is not UTF-8") as error:
        merge(SOURCE, folder, "id")
    assert error.value.reason == "bad_file_name"
    source = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")
    Path(source).write_bytes(b"")
    with pytest.raises(Invalid, match=r"\\xff\.parquet is not UTF-8"):
        merge(source, tmp_path / "target", "id")
    assert [path.name for path in tmp_path.iterdir()] == [Path(source).name]


@in_process_engines
def test_merge_dangling_links_are_rejected(engine: str, merge: Merge, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(Invalid, match=r"link is a symbolic link to .*nowhere, which does not exist") as error:
        merge(SOURCE, tmp_path / "link", "id")
    assert error.value.reason == "dangling_target"
    write_directory(tmp_path / "target", TARGET)
    (tmp_path / "target" / "000000_0").symlink_to("nowhere")
    with pytest.raises(Invalid, match="000000_0 is a symbolic link to a file that does not exist"):
        merge(SOURCE, tmp_path / "target", "id")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


@all_engines
def test_merge_file_without_columns_is_rejected(engine: str, merge: Merge, tmp_path: Path) -> None:
    write_directory(tmp_path / "target", {"a.parquet": pa.table({}), "b.parquet": TARGET["a.parquet"]})
    before = read_bytes(tmp_path)
    with pytest.raises(Invalid, match=r"a\.parquet is a Parquet file without columns") as error:
        merge(SOURCE, tmp_path / "target", "id")
    assert error.value.reason == "broken_file"
    assert read_bytes(tmp_path) == before


@in_process_engines
@pytest.mark.parametrize(
    "source",
    [rows(WORDS, (1, "x"), (1, "y")), rows(WORDS, (None, "x")), rows(WORDS)],
    ids=["duplicate", "NULL", "empty"],
)
def test_merge_that_writes_nothing_leaves_no_parent_folders(
    engine: str, merge: Merge, tmp_path: Path, source: pa.Table
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(Invalid) if source.num_rows else nullcontext():
        merge(source, tmp_path / "there" / "new" / "deeper" / "target", "id")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


_MERGE_AS_OTHER_USER = """
import os, sys
import pyarrow as pa, penstock
from penstock import merge_parquet_dataset_pyarrow, merge_parquet_dataset_duckdb
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    merge = getattr(penstock, f"merge_parquet_dataset_{sys.argv[1]}")
    merge(pa.table({"id": [5], "word": ["x"]}), sys.argv[2], "id")
except penstock.PenstockError as error:
    print(error.reason, error.message)
"""


@in_process_engines
@pytest.mark.parametrize("name", ["sub", "b.parquet", "000000_0"])
def test_merge_unreadable_files_and_folders_are_reported(engine: str, name: str) -> None:
    """An unreadable file may hold the key, so the merge must not take the key for absent."""
    with TemporaryDirectory() as parent:  # below a folder that every user can enter
        target = Path(parent) / "target"
        write_directory(target, {"a.parquet": TARGET["a.parquet"]})
        write_directory(target / "sub", TARGET) if name == "sub" else write_directory(
            target, {name: TARGET["c.parquet"]}
        )
        for path in (Path(parent), target):
            path.chmod(0o777)
        (target / name).chmod(0)
        completed = subprocess.run(
            [sys.executable, "-c", _MERGE_AS_OTHER_USER, engine, str(target)],
            capture_output=True,
            text=True,
            check=True,
        )
        (target / name).chmod(0o755)
        assert completed.stdout.startswith(f"directory_unreadable Cannot read {target / name}: Permission denied"), (
            completed.stdout
        )
        assert sorted(path.name for path in target.iterdir()) == sorted(["a.parquet", name])


@all_engines
def test_merge_files_without_suffix_are_recognised_by_content(engine: str, merge: Merge, tmp_path: Path) -> None:
    """Hive and Impala write `000000_0`."""
    path = tmp_path / "target"
    names = {"000000_0": "a", "000001_0_copy_1": "b", "data.0": "c"}
    write_directory(path, {name: TARGET[f"{letter}.parquet"] for name, letter in names.items()})
    foreign = {"LICENSE": b"text", "empty": b"", "notes.txt": b"PAR1 is not decisive beside a suffix"}
    for name, data in foreign.items():
        (path / name).write_bytes(data)
    os.mkfifo(path / "pipe")
    assert merge(SOURCE, path, "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 7}
    assert {name: data for name, data in read_bytes(path).items() if name in foreign} == foreign
    files = [file for file in path.iterdir() if file.is_file() and file.name not in foreign]
    assert assert_same_rows([row for file in files for row in pq.ParquetFile(file).read().to_pylist()], UPSERTED)
    if engine != "spark":
        assert {file.name for file in files} > set(names), "a rewritten file keeps its name"
    assert merge(path, tmp_path / "copy", "id")["inserted"] == 7, "a source folder is read alike"
    assert merge(files[0], tmp_path / "one", "id")["inserted"] == pq.read_metadata(files[0]).num_rows
    (path / "000009_0").write_bytes(b"PAR1, cut off")
    with pytest.raises(Invalid, match="000009_0 is not a readable Parquet file"):
        merge(SOURCE, path, "id")


def nested_rows(count: int) -> pa.Table:
    """Return rows with structs inside structs, lists and maps; a slice of them begins at an offset."""
    inner = pa.StructArray.from_arrays(
        [pa.array(np.arange(count)), pa.array([f"t{n}" for n in range(count)])], ["x", "y"]
    )
    offsets = pa.array(np.arange(count + 1), pa.int32())
    columns = {
        "id": pa.array(np.arange(count)),
        "pair": pa.StructArray.from_arrays([inner], ["inner"]),
        "items": pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([inner], ["inner"])),
        "words": pa.MapArray.from_arrays(offsets, pa.array([f"k{n}" for n in range(count)]), inner),
    }
    return pa.table(columns)


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb", "auto"])
def test_merge_nested_structs_in_sliced_batches_are_written_unchanged(engine: str, tmp_path: Path) -> None:
    """More rows than one batch of a source may have, so that Penstock slices them itself."""
    table = nested_rows(300_000)
    merged = directory_merge.merge(table, tmp_path / "target", "id", engine=engine)
    assert merged.stats == {"inserted": 300_000, "updated": 0, "deleted": 0, "total": 300_000}
    changes = table.slice(299_000)
    assert directory_merge.merge(changes, tmp_path / "target", "id", engine=engine).stats["updated"] == 1000
    assert pq.read_table(tmp_path / "target").sort_by("id").combine_chunks().equals(table.combine_chunks())
    directory_merge.merge(changes, tmp_path / "target", "id", "full_merge", engine=engine)
    assert pq.read_table(tmp_path / "target").sort_by("id").combine_chunks().equals(changes.combine_chunks())


def required(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


REQUIRED_SCHEMA = pa.schema([
    required("id", pa.int64()),
    pa.field("optional", pa.string()),
    *(required(f"c{number}", data_type) for number, data_type in enumerate((
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
        pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(5, 2), pa.decimal128(38, 38), pa.decimal128(10, 0),
        pa.list_(required("element", pa.int64())), pa.struct([required("it's", pa.string()), pa.field("b", pa.int64())]),
        pa.map_(pa.string(), required("value", pa.int64())),
    ))),
    pa.field("nested", pa.struct([required("items", pa.list_(pa.field("element", pa.struct([required("x", pa.int64())])))), pa.field("y", pa.int64())])),
])  # fmt: skip


def required_rows(*ids: int) -> pa.Table:
    columns = {
        "id": ids, "optional": [None] * len(ids), "c0": [n % 2 == 0 for n in ids], "c6": [f"word {n}" for n in ids],
        "c7": [b"x"] * len(ids), "c8": [date(2020, 1, 1)] * len(ids), "c9": [datetime(2020, 1, 1, 5)] * len(ids),
        "c10": [datetime(2020, 1, 1, 5, tzinfo=UTC)] * len(ids), "c11": [Decimal("1.25")] * len(ids),
        "c12": [Decimal("0.5")] * len(ids), "c13": [Decimal(n) for n in ids], "c14": [[n, n] for n in ids],
        "c15": [{"it's": "a", "b": None}] * len(ids), "c16": [[("k", n)] for n in ids],
        "nested": [{"items": [{"x": n}], "y": None} if n % 2 else None for n in ids],
    }  # fmt: skip
    arrays = [pa.array(columns.get(field.name, ids), field.type) for field in REQUIRED_SCHEMA]
    return pa.table(arrays, schema=REQUIRED_SCHEMA)


@all_engines
def test_merge_not_null_columns_stay_not_null(engine: str, merge: Merge, tmp_path: Path) -> None:
    path = tmp_path / "target"
    assert merge(required_rows(1, 2, 3), path, "id")["inserted"] == 3
    assert merge(required_rows(2, 3, 4), path, "id") == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    tables = read_tables(path)
    for name in tables:
        assert pq.read_schema(path / name).equals(REQUIRED_SCHEMA), name
    stored = pa.concat_tables(tables.values()).to_pylist()
    assert assert_same_rows(stored, required_rows(1, 2, 3, 4).to_pylist())
    fields = [field.with_nullable(True) if field.name == "c6" else field for field in REQUIRED_SCHEMA]
    with_null = required_rows(2).set_column(8, fields[8], pa.array([None], pa.string()))
    before = read_bytes(path)
    for other in ("pyarrow", "duckdb"):
        with pytest.raises(Invalid, match="'c6' is required") as error:
            directory_merge.merge(with_null, path, "id", engine=other)
        assert error.value.reason == "null_in_required_column"
    assert read_bytes(path) == before


@in_process_engines
def test_merge_uuid_key_error_names_the_type_to_cast_to(engine: str, merge: Merge, tmp_path: Path) -> None:
    source = pa.table({"id": pa.array([b"0123456789abcdef"], pa.uuid())})
    with pytest.raises(Invalid, match=r"Cast the column to fixed_size_binary\[16\] or to string") as error:
        merge(source, tmp_path / "target", "id")
    assert error.value.reason == "bad_key_type"


@in_process_engines
@pytest.mark.parametrize("path", ["", " ", "\t\n", "file://", b"", "/", "//", "file:///"])
def test_merge_blank_or_root_target_is_rejected(
    engine: str, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    """An empty path is the current directory to the operating system: an unset variable would empty it."""
    write_directory(tmp_path / "target", TARGET)
    before = read_bytes(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid) as error:
        merge(SOURCE, path, "id", "full_merge")
    assert error.value.reason in ("empty_path", "root_directory")
    assert read_bytes(tmp_path) == before
    subtree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    if path == "":
        with pytest.raises(Invalid):
            merge(SOURCE, path, "id", "full_merge", filesystem=subtree)
        assert read_bytes(tmp_path) == before


@in_process_engines
def test_merge_same_idempotency_key_commits_once(
    engine: str, merge_into: Callable[..., Any], create_dataset: Callable[..., Dataset]
) -> None:
    dataset = create_dataset(pa.concat_tables(TARGET.values()))
    first = merge_into(dataset, SOURCE, key_columns="id", idempotency_key=f"once {dataset.id}")
    repeated = merge_into(dataset, SOURCE, key_columns="id", idempotency_key=f"once {dataset.id}")
    assert repeated.stats == first.stats
    assert repeated.receipt.version == first.receipt.version == dataset.version
    assert repeated.receipt.replayed
    assert not first.receipt.replayed


SCENARIO_TESTS: Mapping[Callable[..., None], tuple[str, ...]] = {
    test_merge_every_engine_calls_the_core_functions: ("Backend-neutral validation usage",),
    test_merge_files_outside_the_key_range_are_not_read: ("Key-based filtered scanning",),
    test_merge_memory_is_bounded_by_batches: (
        "Batch streaming processing",
        "Avoid full dataset materialization",
    ),
    test_merge_each_case_in_a_plain_directory: ("Statistics format",),
}


# Helpers that write, read and compare targets


def file_rows(name: str, table: pa.Table, case: MergeCase) -> list[Row]:
    folder_values = partition_values(name)
    assert tuple(folder_values) == case.partitions
    for column in set(folder_values) & set(table.column_names):
        assert set(table[column].to_pylist()) <= {folder_values[column]}, "the stored values are those of the folder"
    return rows_of(name, table)


def create_target(create_dataset: Callable[..., Dataset], case: MergeCase) -> Dataset:
    """Create a dataset with the target of a case, one version per file."""
    tables = list((case.target or {}).values())
    empty = case.expect if isinstance(case.expect, pa.Table) else case.source
    dataset = create_dataset(schema=(tables or [empty])[0].schema)
    for table in tables:
        dataset.append(table)
    return dataset


def without_ids(table: pa.Table) -> list[Row]:
    return list(table.drop_columns(["rowid"]).to_pylist())


def raises_expected_error(case: MergeCase, run: Callable[[], Any], engine: str = "") -> bool:
    """Check the expected error of a case, if it has one; return True if it has."""
    if engine in case.unsupported:
        with pytest.raises(Unsupported) as unsupported_error:
            run()
        column = case.unsupported[engine]
        assert unsupported_error.value.reason == "type_not_for_engine"
        assert repr(column) in unsupported_error.value.message
        return True
    if not isinstance(case.expect, ExpectedError):
        return False
    with pytest.raises(ValueError) as error:
        run()
    assert isinstance(error.value, Invalid)
    assert error.value.reason == case.expect.reason, error.value.message
    for word in case.expect.words:
        assert word in error.value.message
    return True


def stored_schema(case: MergeCase) -> pa.Schema:
    """Return the expected schema of the files in a plain directory."""
    assert isinstance(case.expect, pa.Table)
    return pa.schema(
        [field for field in case.expect.schema if case.stored_partitions or field.name not in case.partitions]
    )


def assert_types(actual: pa.Schema, expected: pa.Schema, engine: str, name: str) -> None:
    assert actual.names == expected.names, name
    # Parquet has one text type, and Spark does not store the Arrow type.
    form = plain_text if engine == "spark" else (lambda data_type: data_type)
    assert [form(data_type) for data_type in actual.types] == [form(data_type) for data_type in expected.types], name


def plain_text(data_type: pa.DataType) -> pa.DataType:
    data_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    return pa.string() if pa.types.is_large_string(data_type) else data_type


def row_keys(rows: Iterable[Row], case: MergeCase) -> list[merge_oracle.Key]:
    return [merge_oracle.key(row, case.key_names) for row in rows]


def untouched_files(case: MergeCase) -> list[str]:
    """Return the files that the merge must not rewrite."""
    assert isinstance(case.expect, pa.Table)
    source_keys = set(row_keys(case.source.to_pylist(), case))
    names = []
    for name, table in (case.target or {}).items():
        if table.schema.types != stored_schema(case).types:
            continue  # the whole directory becomes wider
        keys = set(row_keys(file_rows(name, table, case), case))
        touched = {"insert": set(), "full_merge": keys}.get(case.strategy, keys & source_keys)
        if not touched:
            names.append(name)
    return names


def assert_row_order(before: list[Row], after: list[Row], case: MergeCase) -> None:
    """Assert that the remaining rows of a file keep their order."""
    remaining_keys = iter(row_keys(before, case))
    assert all(key in remaining_keys for key in row_keys(after, case)), "in the order in which they stood"


def assert_row_ids(case: MergeCase, before: list[Row], after: list[Row]) -> None:
    source_keys = set(row_keys(case.source.to_pylist(), case))
    expected_ids = {
        row["rowid"]: key
        for row, key in zip(before, row_keys(before, case), strict=True)
        if case.strategy != "full_merge" or key in source_keys
    }
    actual_ids = {row["rowid"]: key for row, key in zip(after, row_keys(after, case), strict=True)}
    assert len(actual_ids) == len(after), "every row has an id of its own"
    assert {number: key for number, key in actual_ids.items() if number in expected_ids} == expected_ids, (
        "rows keep their ids"
    )
    max_id = max((row["rowid"] for row in before), default=0)
    assert all(number > max_id for number in actual_ids.keys() - expected_ids.keys()), "new rows have new ids"


def corrupt_columns(path: Path, *columns: str) -> None:
    """Overwrite the pages of columns; the footer stays valid."""
    group = pq.read_metadata(path).row_group(0)
    data = bytearray(path.read_bytes())
    for column_no in range(group.num_columns):
        column = group.column(column_no)
        if column.path_in_schema in columns:
            start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    with pytest.raises(OSError):
        pq.read_table(path)


def codecs(path: Path) -> dict[int, str]:
    """Return the codec of the file of each row, by id."""
    return {
        number: pq.read_metadata(path / name).row_group(0).column(0).compression
        for name, table in read_tables(path).items()
        for number in table["id"].to_pylist()
    }
