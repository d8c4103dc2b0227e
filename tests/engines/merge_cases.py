"""Merge cases: target, source, and the expected target or the expected error.

A case names the scenario of the contract that it covers, if any. Targets are several small files, so that some are
rewritten and some must stay unchanged. Every case runs on every engine, in a plain directory and in a dataset;
exceptions are properties of the case, with their reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

Files = Mapping[str, pa.Table]  # name of a file → its rows
NAN = float("nan")

SCENARIOS = (
    "Backend-neutral validation usage", "Key normalization", "Key existence validation",
    "NULL key detection with filtered scanners", "UPSERT strategy behavior", "UPSERT strategy new keys",
    "INSERT strategy behavior", "INSERT strategy new keys", "UPDATE strategy behavior", "UPDATE strategy new keys",
    "FULL_MERGE strategy behavior", "FULL_MERGE empty source", "DEDUPLICATE strategy behavior",
    "Key-based filtered scanning", "Batch streaming processing", "Avoid full dataset materialization",
    "Batch row processing", "Batch size control", "Source row handling", "Schema unification", "Type promotion",
    "Schema incompatibility", "Statistics format", "Statistics calculation", "Empty source statistics",
    "Empty target + UPSERT/INSERT", "Empty target + UPDATE", "Filtered scanner NULL key detection",
    "Deduplication ordering",
)  # fmt: skip


@dataclass(frozen=True)
class ExpectedError:
    reason: str
    words: tuple[str, ...] = ()  # that the message must contain


@dataclass(frozen=True, eq=False)
class MergeCase:
    title: str
    target: Files | None  # None: the directory does not exist; no files: it is empty
    source: pa.Table
    expect: pa.Table | ExpectedError  # the rows afterwards, in any order
    counts: tuple[int, int, int] = (0, 0, 0)  # inserted, updated, deleted
    keys: str | Sequence[str] = "id"
    strategy: str = "upsert"
    scenario: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()  # columns in the names of folders
    stored_partitions: bool = False  # files store the partition columns, too
    removed: bool = False  # the directory does not exist afterwards
    plain_only: str = ""  # reason why the case does not apply to datasets
    # A Spark merge takes a second or more; these two select its cases in the normal test run:
    twin: bool = False  # Spark executes the same code as in another case, so this one is omitted
    ids: bool = False  # Spark executes other code for rows with ids, so this one also runs in a dataset
    unsupported: Mapping[str, str] = field(
        default_factory=dict
    )  # engine → column of an unsupported type in a plain directory; datasets convert the type

    def __str__(self) -> str:
        return f"{self.scenario}: {self.title}" if self.scenario else self.title

    @property
    def key_names(self) -> list[str]:
        names = [self.keys] if isinstance(self.keys, str) else self.keys
        return list(dict.fromkeys(name.strip() for name in names))

    @property
    def stats(self) -> dict[str, int]:
        assert isinstance(self.expect, pa.Table)
        return dict(zip(("inserted", "updated", "deleted", "total"), (*self.counts, self.expect.num_rows), strict=True))


def rows(columns: str | Mapping[str, pa.DataType], *values: tuple[Any, ...]) -> pa.Table:
    """Build a table row by row: `rows("id:int64 word:string", (1, "one"), (2, "two"))`."""
    if isinstance(columns, str):
        columns = {
            name: parse_type(type_name) for name, _, type_name in (column.partition(":") for column in columns.split())
        }
    arrays = [pa.array([row[index] for row in values], data_type) for index, data_type in enumerate(columns.values())]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def parse_type(type_name: str) -> pa.DataType:
    if type_name.startswith("decimal"):
        precision, _, scale = type_name.removeprefix("decimal").partition(".")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES[type_name] if type_name in _TYPES else pa.type_for_alias(type_name)


def files(*tables: pa.Table) -> Files:
    return {f"{name}.parquet": table for name, table in zip("abcdefgh", tables, strict=False)}


_TYPES = {
    "words": pa.dictionary(pa.int32(), pa.string()),
    "utc": pa.timestamp("us", "UTC"),
    "paris": pa.timestamp("us", "Europe/Paris"),
    "ints": pa.list_(pa.int32()),
    "longs": pa.list_(pa.int64()),
    "pairs": pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())])),
    "point": pa.struct([("x", pa.int32()), ("y", pa.int32())]),
    "long_point": pa.struct([("x", pa.int64()), ("y", pa.int32())]),
    "other_point": pa.struct([("x", pa.int32()), ("z", pa.int32())]),
    "bytes4": pa.binary(4),
}

WORDS = "id:int64 word:string"
NONE = rows(WORDS)
ONE, TWO, THREE, FOUR, FIVE, SIX = ((n, w) for n, w in enumerate(("one", "two", "three", "four", "five", "six"), 1))
TARGET = files(rows(WORDS, ONE, TWO), rows(WORDS, THREE, FOUR), rows(WORDS, FIVE, SIX))
SOURCE = rows(WORDS, (3, "drei"), (5, "fünf"), (7, "sieben"))

STRATEGIES = [
    MergeCase(
        "the row is replaced and other files are unchanged", TARGET, rows(WORDS, (3, "drei")),
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, FIVE, SIX), (0, 1, 0), scenario="UPSERT strategy behavior", twin=True,
    ),
    MergeCase(
        "an identical row counts as updated, too", TARGET, rows(WORDS, THREE),
        rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX), (0, 1, 0), scenario="UPSERT strategy behavior", twin=True,
    ),
    MergeCase(
        "a row with a new key is added", TARGET, rows(WORDS, (7, "sieben")),
        rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX, (7, "sieben")), (1, 0, 0), scenario="UPSERT strategy new keys", twin=True,
    ),
    MergeCase(
        "a new key between existing keys is inserted", files(rows(WORDS, (1, "a"), (9, "z"))), rows(WORDS, (5, "m")),
        rows(WORDS, (1, "a"), (9, "z"), (5, "m")), (1, 0, 0), scenario="UPSERT strategy new keys", twin=True,
    ),
    MergeCase(
        "existing and new keys in one source", TARGET, SOURCE,
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, (5, "fünf"), SIX, (7, "sieben")), (1, 2, 0),
        scenario="UPSERT strategy behavior", ids=True,
    ),
    MergeCase(
        "existing rows are unchanged", TARGET, rows(WORDS, (3, "drei")),
        rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX), (0, 0, 0), strategy="insert", scenario="INSERT strategy behavior",
    ),
    MergeCase(
        "only new keys are added", TARGET, SOURCE,
        rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX, (7, "sieben")), (1, 0, 0),
        strategy="insert", scenario="INSERT strategy new keys",
    ),
    MergeCase(
        "the row is replaced", TARGET, rows(WORDS, (3, "drei"), (6, "sechs")),
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, FIVE, (6, "sechs")), (0, 2, 0),
        strategy="update", scenario="UPDATE strategy behavior", twin=True,
    ),
    MergeCase(
        "a row with a new key is ignored", TARGET, SOURCE,
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, (5, "fünf"), SIX), (0, 2, 0),
        strategy="update", scenario="UPDATE strategy new keys", ids=True,
    ),
    MergeCase(
        "a source with only new keys changes nothing", TARGET, rows(WORDS, (0, "null"), (7, "sieben")),
        rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX), (0, 0, 0),
        strategy="update", scenario="UPDATE strategy new keys", ids=True,
    ),
    MergeCase(
        "the target becomes the source", TARGET, SOURCE,
        rows(WORDS, (3, "drei"), (5, "fünf"), (7, "sieben")), (1, 2, 4),
        strategy="full_merge", scenario="FULL_MERGE strategy behavior", ids=True,
    ),
    MergeCase(
        "a key that occurs twice in one file is updated twice",
        files(rows(WORDS, ONE, (1, "uno"), TWO, THREE, FOUR)), rows(WORDS, (1, "eins")),
        rows(WORDS, (1, "eins"), (1, "eins")), (0, 2, 3),
        strategy="full_merge", scenario="FULL_MERGE strategy behavior", twin=True,
    ),
    MergeCase(
        "a key that occurs in two files is updated in both",
        files(rows(WORDS, ONE, TWO, THREE), rows(WORDS, (1, "uno"), FOUR, FIVE)), rows(WORDS, (1, "eins"), (7, "sieben")),
        rows(WORDS, (1, "eins"), (1, "eins"), (7, "sieben")), (1, 2, 4),
        strategy="full_merge", scenario="FULL_MERGE strategy behavior", twin=True,
    ),
    MergeCase(
        "without common keys all rows are replaced", TARGET, rows(WORDS, (8, "acht")),
        rows(WORDS, (8, "acht")), (1, 0, 6), strategy="full_merge", scenario="FULL_MERGE strategy behavior", twin=True,
    ),
    MergeCase(
        "with all keys in common no row is deleted", files(rows(WORDS, ONE), rows(WORDS, TWO)),
        rows(WORDS, (2, "b"), (1, "a")), rows(WORDS, (1, "a"), (2, "b")), (0, 2, 0),
        strategy="full_merge", scenario="FULL_MERGE strategy behavior", twin=True,
    ),
    MergeCase(
        "all rows and the directory are deleted", TARGET, NONE, NONE, (0, 0, 6),
        strategy="full_merge", scenario="FULL_MERGE empty source", removed=True, ids=True,
    ),
    MergeCase(
        "the counts contain the deleted rows", files(rows(WORDS, ONE)), NONE, NONE, (0, 0, 1),
        strategy="full_merge", scenario="Empty source statistics", removed=True, twin=True,
    ),
    *(
        MergeCase(
            f"{strategy} changes nothing", TARGET, NONE, rows(WORDS, ONE, TWO, THREE, FOUR, FIVE, SIX),
            strategy=strategy, scenario="Empty source statistics", twin=strategy != "upsert",
        )
        for strategy in ("upsert", "insert", "update", "deduplicate")
    ),
    MergeCase(
        "the highest row of a key is upserted", TARGET,
        rows(WORDS, (3, "drei"), (3, "tres"), (3, "san"), (7, "sette"), (7, "sieben")),
        rows(WORDS, ONE, TWO, (3, "tres"), FOUR, FIVE, SIX, (7, "sieben")), (1, 1, 0),
        strategy="deduplicate", options={"dedup_order_by": "word"}, scenario="DEDUPLICATE strategy behavior", ids=True,
    ),
    MergeCase(
        "without an order the last row is kept", TARGET, rows(WORDS, (3, "x"), (9, "y"), (3, "a"), (9, "b")),
        rows(WORDS, ONE, TWO, (3, "a"), FOUR, FIVE, SIX, (9, "b")), (1, 1, 0),
        strategy="deduplicate", scenario="DEDUPLICATE strategy behavior",
    ),
    MergeCase(
        "a source without duplicates is upserted", TARGET, SOURCE,
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, (5, "fünf"), SIX, (7, "sieben")), (1, 2, 0),
        strategy="deduplicate", scenario="DEDUPLICATE strategy behavior", twin=True,
    ),
    MergeCase(
        "rows without a match are added after the last batch", TARGET,
        rows(WORDS, (0, "a"), (10, "b"), (4, "vier"), (-5, "c")),
        rows(WORDS, ONE, TWO, THREE, (4, "vier"), FIVE, SIX, (0, "a"), (10, "b"), (-5, "c")), (3, 1, 0),
        options={"batch_rows": 1}, scenario="Source row handling", twin=True,
    ),
    MergeCase(
        "every row of every batch is matched", files(rows(WORDS, ONE, TWO, THREE, FOUR, FIVE), rows(WORDS, SIX)),
        rows(WORDS, (5, "e"), (1, "a"), (6, "f"), (2, "b")),
        rows(WORDS, (1, "a"), (2, "b"), THREE, FOUR, (5, "e"), (6, "f")), (0, 4, 0),
        options={"batch_rows": 2}, scenario="Batch row processing", twin=True,
    ),
    MergeCase(
        "deletions are found in every batch", files(rows(WORDS, ONE, TWO, THREE, FOUR, FIVE), rows(WORDS, SIX)),
        rows(WORDS, (1, "a"), (4, "d")), rows(WORDS, (1, "a"), (4, "d")), (0, 2, 4),
        strategy="full_merge", options={"batch_rows": 3}, scenario="Statistics calculation", twin=True,
    ),
]  # fmt: skip

TARGETS = [
    *(
        MergeCase(
            f"{strategy} creates the dataset", None, SOURCE, SOURCE, (3, 0, 0),
            strategy=strategy, scenario="Empty target + UPSERT/INSERT", twin=strategy in {"insert", "deduplicate"},
        )
        for strategy in ("upsert", "insert", "deduplicate", "full_merge")
    ),
    MergeCase(
        "no directory is created", None, SOURCE, NONE, strategy="update", scenario="Empty target + UPDATE", removed=True
    ),
    MergeCase("an empty directory is filled", {}, SOURCE, SOURCE, (3, 0, 0), scenario="Empty target + UPSERT/INSERT", twin=True),
    MergeCase("an empty directory stays empty", {}, SOURCE, NONE, strategy="update", scenario="Empty target + UPDATE"),
    MergeCase(
        "files without rows are an empty target", files(NONE, NONE), SOURCE, SOURCE, (3, 0, 0),
        scenario="Empty target + UPSERT/INSERT",
    ),
    *(
        MergeCase(
            f"a source with {flaw} is rejected although no row can be updated", None, rows(WORDS, *values),
            ExpectedError(reason, ("source",)), strategy="update", removed=True, scenario="Empty target + UPDATE",
        )
        for flaw, reason, values in (
            ("a duplicate key", "duplicate_keys", [ONE, ONE]),
            ("NULL in a key", "null_keys", [ONE, (None, "x")]),
        )
    ),
    MergeCase("files without rows have nothing to update", files(NONE), SOURCE, NONE, strategy="update", twin=True),
    MergeCase("an empty source and a missing target create nothing", None, NONE, NONE, removed=True, twin=True),
    MergeCase("a full merge of an empty source and a missing target creates nothing", None, NONE, NONE, strategy="full_merge", removed=True, twin=True),
    MergeCase(
        "files of one row each are matched separately", files(*(rows(WORDS, row) for row in (ONE, TWO, THREE, FOUR))),
        rows(WORDS, (2, "b"), (4, "d"), (5, "e")), rows(WORDS, ONE, (2, "b"), THREE, (4, "d"), (5, "e")), (1, 2, 0), twin=True,
    ),
    MergeCase(
        "every row with the key is updated and counted",
        files(rows(WORDS, (1, "a"), (1, "b"), TWO), rows(WORDS, (1, "c"))), rows(WORDS, (1, "x")),
        rows(WORDS, (1, "x"), (1, "x"), TWO, (1, "x")), (0, 3, 0),
    ),
    MergeCase(
        "all rows with a duplicate key that is not in the source are deleted",
        files(rows(WORDS, (1, "a"), (1, "b"), TWO), rows(WORDS, (1, "c"))), rows(WORDS, (2, "x")),
        rows(WORDS, (2, "x")), (0, 1, 3), strategy="full_merge", twin=True,
    ),
    MergeCase(
        "insert ignores a key that the target has twice", files(rows(WORDS, (1, "a"), (1, "b"))),
        rows(WORDS, (1, "x"), (2, "y")), rows(WORDS, (1, "a"), (1, "b"), (2, "y")), (1, 0, 0), strategy="insert", twin=True,
    ),
]  # fmt: skip

DOUBLES = "id:float64 word:string"
PAIRS = "a:int64 b:string n:int64"
KEYS = [
    *(
        MergeCase(
            f"{keys!r} is one key", TARGET, rows(WORDS, (3, "drei")),
            rows(WORDS, ONE, TWO, (3, "drei"), FOUR, FIVE, SIX), (0, 1, 0), keys=keys, scenario="Key normalization", twin=keys != "id",
        )
        for keys in ("id", " id ", ["id"], ("id", "id", " id"))
    ),
    *(
        MergeCase(
            f"{keys!r} is rejected", TARGET, SOURCE, ExpectedError("bad_keys", ("key_columns",)),
            keys=keys, scenario="Key normalization",
        )
        for keys in ("", "  ", [], ["id", ""])
    ),
    MergeCase(
        "all parts of a composite key must match",
        files(rows(PAIRS, (1, "x", 10), (1, "y", 20)), rows(PAIRS, (2, "x", 30), (2, "y", 40))),
        rows(PAIRS, (1, "y", 21), (2, "x", 31), (2, "z", 51)),
        rows(PAIRS, (1, "x", 10), (1, "y", 21), (2, "x", 31), (2, "y", 40), (2, "z", 51)), (1, 2, 0), keys=["a", "b"], ids=True,
    ),
    MergeCase(
        "parts of a composite key are compared separately",
        files(rows("a:string b:string n:int64", ("x", "yz", 1), ("", "xyz", 2), ("x\0", "y", 3))),
        rows("a:string b:string n:int64", ("xy", "z", 4), ("", "xyz", 5), ("x", "\0y", 6)),
        rows(
            "a:string b:string n:int64",
            ("x", "yz", 1), ("", "xyz", 5), ("x\0", "y", 3), ("xy", "z", 4), ("x", "\0y", 6),
        ),
        (2, 1, 0), keys=["a", "b"],
    ),
    MergeCase(
        "the order of the columns of a composite key has no effect", files(rows(PAIRS, (1, "x", 10), (2, "y", 20))),
        rows("n:int64 b:string a:int64", (21, "y", 2)), rows(PAIRS, (1, "x", 10), (2, "y", 21)), (0, 1, 0),
        keys=["b", "a"], twin=True,
    ),
    MergeCase(
        "every column may be a key", files(rows(WORDS, ONE, TWO)), rows(WORDS, TWO, (2, "b")),
        rows(WORDS, ONE, TWO, (2, "b")), (1, 1, 0), keys=["id", "word"], twin=True,
    ),
    MergeCase(
        "a full merge on a composite key deletes by the whole key",
        files(rows(PAIRS, (1, "x", 10), (1, "y", 20)), rows(PAIRS, (2, "x", 30))), rows(PAIRS, (1, "y", 21)),
        rows(PAIRS, (1, "y", 21)), (0, 1, 2), keys=["a", "b"], strategy="full_merge", twin=True,
    ),
    MergeCase(
        "the source has no key column", TARGET, rows("word:string", ("x",)),
        ExpectedError("missing_key_column", ("source", "'id'", "'word'")), scenario="Key existence validation",
    ),
    MergeCase(
        "the target has no key column", TARGET, rows("id:int64 code:string", (1, "x")),
        ExpectedError("missing_key_column", ("target", "'code'", "'word'")), keys=["id", "code"], scenario="Key existence validation",
    ),
    MergeCase(
        "column names are case-sensitive", TARGET, SOURCE, ExpectedError("missing_key_column", ("'ID'",)),
        keys="ID", scenario="Key existence validation",
    ),
    MergeCase(
        "a list column cannot be a key", files(rows("id:ints n:int64", ([1], 1))), rows("id:ints n:int64", ([1], 2)),
        ExpectedError("bad_key_type", ("'id'",)), scenario="Key existence validation",
    ),
    *(
        MergeCase(
            f"{strategy} rejects NULL in the source's key", TARGET, rows(WORDS, (3, "x"), (None, "y"), (None, "z")),
            ExpectedError("null_keys", ("source", "2", "'id'")),
            strategy=strategy, scenario="NULL key detection with filtered scanners", twin=strategy not in {"upsert", "deduplicate"},
        )
        for strategy in ("upsert", "insert", "update", "full_merge", "deduplicate")
    ),
    MergeCase(
        "the source of a new dataset is checked, too", None, rows(WORDS, (None, "y")),
        ExpectedError("null_keys", ("source", "1", "'id'")), scenario="NULL key detection with filtered scanners", removed=True, twin=True,
    ),
    MergeCase(
        "each part of a composite key is checked", files(rows(PAIRS, (1, "x", 1))),
        rows(PAIRS, (1, None, 2), (2, "x", 3)), ExpectedError("null_keys", ("source", "1", "'b'")), keys=["a", "b"],
        scenario="NULL key detection with filtered scanners", twin=True,
    ),
    *(
        MergeCase(
            f"{strategy} rejects NULL in the target's key, in any file",
            files(rows(WORDS, ONE, TWO), rows(WORDS, (None, "x"), (8, "y"))), rows(WORDS, (1, "x")),
            ExpectedError("null_keys", ("target", "1", "'id'")),
            strategy=strategy, scenario="Filtered scanner NULL key detection",
            twin=strategy not in {"upsert", "full_merge"}, ids=strategy == "upsert",
        )
        for strategy in ("upsert", "insert", "update", "full_merge", "deduplicate")
    ),
    *(
        MergeCase(
            f"{strategy} rejects a source with a duplicate key", TARGET,
            rows(WORDS, (3, "x"), (4, "y"), (3, "z"), (3, "z")), ExpectedError("duplicate_keys", ("2", "'3'", "deduplicate")),
            strategy=strategy, twin=strategy != "upsert",
        )
        for strategy in ("upsert", "insert", "update", "full_merge")
    ),
    MergeCase(
        "a duplicate key is rejected for a new dataset, too", None, rows(WORDS, (3, "x"), (3, "x")),
        ExpectedError("duplicate_keys", ("1 row", "'3'")), removed=True, twin=True,
    ),
    MergeCase(
        "a duplicate composite key is rejected", files(rows(PAIRS, (1, "x", 1))),
        rows(PAIRS, (1, "x", 2), (1, "y", 3), (1, "x", 4)), ExpectedError("duplicate_keys", ("a='1'", "b='x'")),
        keys=["a", "b"], twin=True,
    ),
    MergeCase(
        "NaN is a key like other values", files(rows(DOUBLES, (1.5, "a"), (NAN, "b")), rows(DOUBLES, (2.5, "c"))),
        rows(DOUBLES, (NAN, "x"), (3.5, "y")), rows(DOUBLES, (1.5, "a"), (NAN, "x"), (2.5, "c"), (3.5, "y")), (1, 1, 0), ids=True,
    ),
    MergeCase(
        "NaN is inserted if the target has none", files(rows(DOUBLES, (1.5, "a"))), rows(DOUBLES, (NAN, "x")),
        rows(DOUBLES, (1.5, "a"), (NAN, "x")), (1, 0, 0), twin=True,
    ),
    MergeCase(
        "zero is one key with either sign", files(rows(DOUBLES, (0.0, "a")), rows(DOUBLES, (-0.0, "b"), (1.0, "c"))),
        rows(DOUBLES, (-0.0, "x")), rows(DOUBLES, (-0.0, "x"), (-0.0, "x"), (1.0, "c")), (0, 2, 0),
    ),
    MergeCase(
        "zero without a sign matches zero with a sign", files(rows(DOUBLES, (-0.0, "b"), (1.0, "c"))),
        rows(DOUBLES, (0.0, "x")), rows(DOUBLES, (0.0, "x"), (1.0, "c")), (0, 1, 0), twin=True,
    ),
    MergeCase("two NaN are a duplicate key", files(rows(DOUBLES, (1.0, "c"))), rows(DOUBLES, (NAN, "x"), (NAN, "y")),
         ExpectedError("duplicate_keys", ("nan",))),
    MergeCase("both zeros are a duplicate key", files(rows(DOUBLES, (1.0, "c"))), rows(DOUBLES, (0.0, "x"), (-0.0, "y")),
         ExpectedError("duplicate_keys", ("0.0",))),
    MergeCase(
        "infinities and small numbers are keys", files(rows(DOUBLES, (float("inf"), "a"), (float("-inf"), "b"), (5e-324, "c"))),
        rows(DOUBLES, (float("-inf"), "x"), (5e-324, "y"), (0.0, "z")),
        rows(DOUBLES, (float("inf"), "a"), (float("-inf"), "x"), (5e-324, "y"), (0.0, "z")), (1, 2, 0), twin=True,
    ),
    MergeCase(
        "NaN is one key in part of a composite key", files(rows("a:float64 b:int64 n:int64", (NAN, 1, 1), (NAN, 2, 2))),
        rows("a:float64 b:int64 n:int64", (NAN, 2, 22), (NAN, 3, 33)),
        rows("a:float64 b:int64 n:int64", (NAN, 1, 1), (NAN, 2, 22), (NAN, 3, 33)), (1, 1, 0), keys=["a", "b"], twin=True,
    ),
    MergeCase(
        "an empty text is a key and not NULL", files(rows("id:string n:int64", ("", 1), ("a", 2))),
        rows("id:string n:int64", ("", 11), (" ", 3)), rows("id:string n:int64", ("", 11), ("a", 2), (" ", 3)), (1, 1, 0), twin=True,
    ),
    MergeCase(
        "texts that look equal are different keys",
        files(rows("id:string n:int64", ("é", 1), ("E", 2), ("a", 3))),
        rows("id:string n:int64", ("e\u0301", 4), ("e", 5), ("A", 6), ("a ", 7)),
        rows(
            "id:string n:int64", ("é", 1), ("E", 2), ("a", 3), ("e\u0301", 4), ("e", 5), ("A", 6), ("a ", 7)
        ),
        (4, 0, 0),
    ),
]  # fmt: skip


def key_type_case(type_name: str, low: Any, middle: Any, high: Any, **properties: Any) -> MergeCase:
    """Return a case with keys of one type: `middle` is in the target and in the source, the others in one of them."""
    columns = {"id": parse_type(type_name), "n": pa.int64()}
    return MergeCase(
        f"keys of type {columns['id']} match",
        files(rows(columns, (low, 1)), rows(columns, (middle, 2))),
        rows(columns, (high, 33), (middle, 22)),
        rows(columns, (low, 1), (middle, 22), (high, 33)),
        (1, 1, 0),
        **properties,
    )


KEY_TYPES = [
    key_type_case("int8", -128, 0, 127, twin=True),
    key_type_case("int16", -(2**15), 0, 2**15 - 1, twin=True),
    key_type_case("int32", -(2**31), 0, 2**31 - 1, twin=True),
    key_type_case("int64", -(2**63), 2**53 + 1, 2**63 - 1),
    key_type_case("uint8", 0, 127, 255, plain_only="datasets keep signed numbers", twin=True, unsupported={"spark": "id"}),
    key_type_case("uint32", 0, 5, 2**32 - 1, plain_only="datasets keep signed numbers", unsupported={"spark": "id"}),
    key_type_case("uint64", 0, 2**63, 2**64 - 1, plain_only="datasets keep signed numbers", unsupported={"spark": "id"}),
    key_type_case("float32", -0.5, 0.25, 3e38),
    key_type_case("decimal9.2", Decimal("-1.50"), Decimal("0.00"), Decimal("9999999.99"), twin=True),
    key_type_case("decimal38.10", Decimal("-1e20"), Decimal("0.0000000001"), Decimal("9" * 28 + ".9999999999")),
    key_type_case("string", "", "ä", "🦆"),
    key_type_case("large_string", "a", "ä", "z" * 200, twin=True),
    key_type_case("words", "a", "b", "c"),
    key_type_case("binary", b"", b"\x00\xff", b"\xff\xff"),
    key_type_case("bytes4", b"\0\0\0\0", b"abcd", b"\xff\xff\xff\xff", unsupported={"duckdb": "id", "spark": "id"}),
    MergeCase(
        "keys of type bool match", files(rows("id:bool n:int64", (True, 1))),
        rows("id:bool n:int64", (False, 2), (True, 11)), rows("id:bool n:int64", (True, 11), (False, 2)), (1, 1, 0),
    ),
    key_type_case("date32", date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)),
    key_type_case("timestamp[us]", datetime(1900, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 11, 16)),
    key_type_case("timestamp[ms]", datetime(1900, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999000), datetime(2026, 11, 16), unsupported={"spark": "id"}),
    key_type_case("utc", datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    key_type_case("timestamp[ns]", -1, 1, 1_700_000_000_000_000_001, plain_only="datasets keep microseconds", unsupported={"spark": "id"}),
    key_type_case("paris", 0, 1, 2, plain_only="datasets keep naive and UTC timestamps", unsupported={"spark": "id"}),
    key_type_case("time64[us]", time(0), time(12, 30, 0, 1), time(23, 59, 59), plain_only="datasets keep no times of day", unsupported={"spark": "id"}),
]  # fmt: skip

WIDE = "id:int64 word:string n:int64"
COLUMNS = [
    MergeCase(
        "columns that are not in the source keep the target's value, and are NULL in new rows",
        files(rows(WIDE, (1, "one", 10), (2, "two", 20)), rows(WIDE, (3, "three", 30))),
        rows("id:int64 n:int64", (2, 22), (4, 44)),
        rows(WIDE, (1, "one", 10), (2, "two", 22), (3, "three", 30), (4, None, 44)), (1, 1, 0), ids=True,
    ),
    MergeCase(
        "a full merge keeps columns that are not in the source", files(rows(WIDE, (1, "one", 10), (2, "two", 20))),
        rows("id:int64 n:int64", (2, 22), (4, 44)), rows(WIDE, (2, "two", 22), (4, None, 44)), (1, 1, 1),
        strategy="full_merge", twin=True,
    ),
    MergeCase(
        "a source with only keys changes no value", files(rows(WORDS, ONE, TWO)), rows("id:int64", (2,), (3,)),
        rows(WORDS, ONE, TWO, (3, None)), (1, 1, 0),
    ),
    MergeCase(
        "a full merge with only keys deletes the other rows", TARGET, rows("id:int64", (2,), (5,)),
        rows(WORDS, TWO, FIVE), (0, 2, 4), strategy="full_merge", twin=True,
    ),
    MergeCase(
        "a NULL of the source replaces the value", TARGET, rows(WORDS, (2, None)),
        rows(WORDS, ONE, (2, None), THREE, FOUR, FIVE, SIX), (0, 1, 0), twin=True,
    ),
    MergeCase(
        "a column with only NULL fits every type", TARGET, rows("id:int64 word:null", (2, None), (7, None)),
        rows(WORDS, ONE, (2, None), THREE, FOUR, FIVE, SIX, (7, None)), (1, 1, 0), scenario="Type promotion",
    ),
    MergeCase(
        "an empty text is not NULL", files(rows(WORDS, (1, ""), (2, None))), rows(WORDS, (2, ""), (3, None), (4, "")),
        rows(WORDS, (1, ""), (2, ""), (3, None), (4, "")), (2, 1, 0), twin=True,
    ),
    MergeCase(
        "the order of columns is the target's", files(rows(WIDE, (1, "one", 10)), rows(WIDE, (2, "two", 20))),
        rows("n:int64 word:string id:int64", (22, "b", 2), (33, "c", 3)),
        rows(WIDE, (1, "one", 10), (2, "b", 22), (3, "c", 33)), (1, 1, 0),
    ),
    MergeCase(
        "columns that are not in the target are rejected by name", TARGET,
        rows("id:int64 word:string note:string size:int64", (1, "a", "b", 2)),
        ExpectedError("extra_columns", ("'note'", "'size'", "add_columns")), scenario="Schema incompatibility",
    ),
    MergeCase(
        "columns are added on request, and are NULL elsewhere", TARGET,
        rows("id:int64 word:string note:string", (3, "drei", "new"), (7, "sieben", None), (8, "acht", "too")),
        rows(
            "id:int64 word:string note:string", (1, "one", None), (2, "two", None), (3, "drei", "new"),
            (4, "four", None), (5, "five", None), (6, "six", None), (7, "sieben", None), (8, "acht", "too"),
        ),
        (2, 1, 0), options={"add_columns": True}, ids=True,
    ),
    MergeCase(
        "insert adds columns to unchanged rows", files(rows(WORDS, ONE), rows(WORDS, TWO)),
        rows("id:int64 note:string", (1, "a"), (3, "c")),
        rows("id:int64 word:string note:string", (1, "one", None), (2, "two", None), (3, None, "c")), (1, 0, 0),
        strategy="insert", options={"add_columns": True}, twin=True,
    ),
    MergeCase(
        "a full merge adds columns", files(rows(WORDS, ONE, TWO), rows(WORDS, THREE)),
        rows("id:int64 note:string", (2, "b"), (4, "d")),
        rows("id:int64 word:string note:string", (2, "two", "b"), (4, None, "d")), (1, 1, 2),
        strategy="full_merge", options={"add_columns": True}, twin=True,
    ),
    MergeCase(
        "add_columns without new columns has no effect", TARGET, rows(WORDS, (3, "drei")),
        rows(WORDS, ONE, TWO, (3, "drei"), FOUR, FIVE, SIX), (0, 1, 0), options={"add_columns": True}, twin=True,
    ),
    MergeCase(
        "unusual column names are valid",
        files(
            rows({"a.b": pa.int64(), 'say "hi"': pa.string(), "naïve 🦆": pa.int64(), "it's": pa.string()}, (1, "x", 10, "p")),
            rows({"a.b": pa.int64(), 'say "hi"': pa.string(), "naïve 🦆": pa.int64(), "it's": pa.string()}, (2, "y", 20, "q")),
        ),
        rows({"a.b": pa.int64(), 'say "hi"': pa.string(), "naïve 🦆": pa.int64()}, (2, "y", 22), (3, "z", 33)),
        rows(
            {"a.b": pa.int64(), 'say "hi"': pa.string(), "naïve 🦆": pa.int64(), "it's": pa.string()},
            (1, "x", 10, "p"), (2, "y", 22, "q"), (3, "z", 33, None),
        ),
        (1, 1, 0), keys=["a.b", 'say "hi"'],
    ),
    MergeCase(
        "words of SQL are valid column names",
        files(rows({"select": pa.int64(), "`from`": pa.string(), "x y": pa.int64(), "source": pa.int64()}, (1, "a", 1, 1))),
        rows({"select": pa.int64(), "`from`": pa.string(), "x y": pa.int64(), "source": pa.int64()}, (1, "a", 2, 3)),
        rows({"select": pa.int64(), "`from`": pa.string(), "x y": pa.int64(), "source": pa.int64()}, (1, "a", 2, 3)),
        (0, 1, 0), keys=["select", "`from`", ], twin=True,
    ),
    MergeCase(
        "rowid and _rowid are valid column names in a plain directory",
        files(rows("rowid:int64 _rowid:string", (1, "a"), (2, "b")), rows("rowid:int64 _rowid:string", (3, "c"))),
        rows("rowid:int64 _rowid:string", (2, "x"), (4, "y")),
        rows("rowid:int64 _rowid:string", (1, "a"), (2, "x"), (3, "c"), (4, "y")), (1, 1, 0), keys="rowid",
        plain_only="datasets keep these names for the ids of rows",
    ),
    MergeCase(
        "a name that differs only in case is rejected", TARGET, rows("id:int64 WORD:string", (1, "x")),
        ExpectedError("duplicate_column_name", ("'word'", "'WORD'")),
    ),
    MergeCase(
        "nested values are kept and replaced",
        files(
            rows("id:int64 p:pairs q:point", (1, [{"x": 1, "y": "a"}, None], {"x": 1, "y": None}), (2, [], None)),
            rows("id:int64 p:pairs q:point", (3, None, {"x": 3, "y": 3})),
        ),
        rows("id:int64 p:pairs q:point", (2, [{"x": None, "y": ""}], {"x": 2, "y": 2}), (4, None, None)),
        rows(
            "id:int64 p:pairs q:point",
            (1, [{"x": 1, "y": "a"}, None], {"x": 1, "y": None}), (2, [{"x": None, "y": ""}], {"x": 2, "y": 2}),
            (3, None, {"x": 3, "y": 3}), (4, None, None),
        ),
        (1, 1, 0), ids=True,
    ),
    MergeCase(
        "values of every type are kept",
        files(
            rows(
                "id:int64 b:bool f:float32 d:decimal38.10 y:binary t:date32 s:timestamp[us] u:utc",
                (1, True, 0.1, Decimal("1e-10"), b"\0\xff", date(1, 1, 1), datetime(1582, 10, 4), datetime(2026, 1, 1, tzinfo=UTC)),
                (2, None, None, None, None, None, None, None),
            )
        ),
        rows(
            "id:int64 b:bool f:float32 d:decimal38.10 y:binary t:date32 s:timestamp[us] u:utc",
            (2, False, NAN, Decimal("-1e27"), b"", date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999999),
             datetime(1700, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ),
        rows(
            "id:int64 b:bool f:float32 d:decimal38.10 y:binary t:date32 s:timestamp[us] u:utc",
            (1, True, 0.1, Decimal("1e-10"), b"\0\xff", date(1, 1, 1), datetime(1582, 10, 4), datetime(2026, 1, 1, tzinfo=UTC)),
            (2, False, NAN, Decimal("-1e27"), b"", date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999999),
             datetime(1700, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ),
        (0, 1, 0), ids=True,
    ),
    MergeCase(
        "NaN and the sign of zero are kept in values",
        files(rows("id:int64 f:float64", (1, NAN), (2, -0.0)), rows("id:int64 f:float64", (3, 1.0), (4, -0.0))),
        rows("id:int64 f:float64", (3, -0.0), (5, NAN)),
        rows("id:int64 f:float64", (1, NAN), (2, -0.0), (3, -0.0), (4, -0.0), (5, NAN)), (1, 1, 0),
    ),
]  # fmt: skip


def promotion_case(target: str, source: str, result: str, old: Any, new: Any, **properties: Any) -> MergeCase:
    """Return a case with a column `n` of two types with a common type."""
    columns = {"id": pa.int64(), "n": parse_type(target)}, {"id": pa.int64(), "n": parse_type(source)}
    return MergeCase(
        f"{source} into {target} is {result}",
        files(rows(columns[0], (1, old), (2, old)), rows(columns[0], (3, old))),
        rows(columns[1], (2, new), (4, new)),
        rows({"id": pa.int64(), "n": parse_type(result)}, (1, old), (2, new), (3, old), (4, new)),
        (1, 1, 0),
        scenario="Schema unification" if target == result else "Type promotion",
        **properties,
    )


def incompatible_case(target: str, source: str, old: Any, new: Any, **properties: Any) -> MergeCase:
    """Return a case with a column `n` of two types without a common type."""
    columns = {"id": pa.int64(), "n": parse_type(target)}, {"id": pa.int64(), "n": parse_type(source)}
    return MergeCase(
        f"{source} into {target} is rejected",
        files(rows(columns[0], (1, old))),
        rows(columns[1], (1, new)),
        ExpectedError(
            "type_mismatch",
            ("'n'", *(str(parse_type(type_name)).partition("<")[0] for type_name in (target, source)), "Cast"),
        ),
        scenario="Schema incompatibility",
        **properties,
    )


UNSIGNED = "datasets keep signed numbers"
NOON, ONE_MS = datetime(2026, 11, 16, 12), datetime(2026, 11, 16, 12, 0, 0, 1000)
TYPES = [
    promotion_case("int32", "int64", "int64", 1, 2**40),
    promotion_case("int64", "int32", "int64", 2**40, 1, twin=True),
    promotion_case("int8", "int16", "int16", -128, 32767, twin=True),
    promotion_case("uint8", "uint16", "uint16", 255, 65535, plain_only=UNSIGNED, twin=True, unsupported={"spark": "n"}),
    promotion_case("uint8", "int8", "int16", 255, -128, plain_only=UNSIGNED, twin=True),
    promotion_case("int64", "uint32", "int64", -1, 2**32 - 1, twin=True),
    promotion_case("uint32", "int32", "int64", 2**32 - 1, -1, plain_only=UNSIGNED, twin=True),
    promotion_case("float32", "float64", "float64", 0.5, 0.1, twin=True),
    promotion_case("float64", "float32", "float64", 0.1, 0.5, twin=True),
    promotion_case("decimal5.2", "decimal7.3", "decimal7.3", Decimal("1.50"), Decimal("-1234.567"), twin=True),
    promotion_case("decimal7.3", "decimal5.2", "decimal7.3", Decimal("1234.567"), Decimal("1.50"), twin=True),
    promotion_case("decimal5.4", "decimal5.0", "decimal9.4", Decimal("1.2345"), Decimal("99999")),
    promotion_case("decimal9.2", "int32", "decimal9.2", Decimal("0.50"), 9_999_999),
    promotion_case("timestamp[ms]", "timestamp[us]", "timestamp[us]", ONE_MS, datetime(2026, 11, 16, 0, 0, 0, 1)),
    promotion_case("timestamp[us]", "timestamp[s]", "timestamp[us]", ONE_MS, NOON, twin=True),
    promotion_case("timestamp[us]", "timestamp[ns]", "timestamp[ns]", NOON, 1_700_000_000_000_000_001,
             plain_only="datasets keep microseconds", unsupported={"spark": "n"}),
    promotion_case("string", "large_string", "string", "a", "b", twin=True),
    promotion_case("large_string", "string", "large_string", "a", "b", twin=True),
    promotion_case("words", "string", "words", "a", "b"),
    promotion_case("string", "words", "string", "a", None, twin=True),
    promotion_case("binary", "large_binary", "binary", b"a", b"", twin=True),
    promotion_case("ints", "longs", "longs", [1, None], [2**40]),
    promotion_case("longs", "ints", "longs", [2**40], [], twin=True),
    promotion_case("point", "long_point", "long_point", {"x": 1, "y": 2}, {"x": 2**40, "y": None}),
    incompatible_case("int64", "float64", 1, 1.0),
    incompatible_case("float64", "int64", 1.0, 1),
    incompatible_case("int64", "string", 1, "1"),
    incompatible_case("string", "int64", "1", 1),
    incompatible_case("timestamp[us]", "date32", NOON, date(2026, 11, 16)),
    incompatible_case("date32", "timestamp[us]", date(2026, 11, 16), NOON),
    incompatible_case("timestamp[us]", "utc", NOON, datetime(2026, 11, 16, tzinfo=UTC)),
    incompatible_case("utc", "timestamp[us]", datetime(2026, 11, 16, tzinfo=UTC), NOON),
    incompatible_case("utc", "paris", 0, 0, plain_only="datasets keep naive and UTC timestamps"),
    incompatible_case("bool", "int8", True, 1),
    incompatible_case("float64", "decimal9.2", 0.5, Decimal("0.50")),
    incompatible_case("decimal9.2", "float64", Decimal("0.50"), 0.5),
    incompatible_case("int64", "decimal9.2", 1, Decimal("1.00")),
    incompatible_case("decimal38.0", "decimal38.10", Decimal(1), Decimal(1)),
    incompatible_case("binary", "string", b"a", "a"),
    incompatible_case("uint64", "int64", 1, 1, plain_only=UNSIGNED),
    incompatible_case("point", "other_point", {"x": 1, "y": 1}, {"x": 1, "z": 1}),
    incompatible_case("ints", "int32", [1], 1),
    MergeCase(
        "keys of different width match", files(rows("id:int32 n:int64", (1, 1)), rows("id:int32 n:int64", (2, 2))),
        rows("id:int64 n:int64", (2, 22), (2**40, 33)), rows("id:int64 n:int64", (1, 1), (2, 22), (2**40, 33)), (1, 1, 0),
        scenario="Type promotion", ids=True,
    ),
    MergeCase(
        "narrow and wide keys match", files(rows("id:int64 n:int64", (2**40, 1)), rows("id:int64 n:int64", (2, 2))),
        rows("id:int16 n:int64", (2, 22), (3, 33)), rows("id:int64 n:int64", (2**40, 1), (2, 22), (3, 33)), (1, 1, 0),
        scenario="Type promotion", twin=True,
    ),
    MergeCase(
        "decimal keys of different scale match", files(rows("id:decimal5.2 n:int64", (Decimal("1.50"), 1))),
        rows("id:decimal7.3 n:int64", (Decimal("1.500"), 11), (Decimal("1.501"), 2)),
        rows("id:decimal7.3 n:int64", (Decimal("1.500"), 11), (Decimal("1.501"), 2)), (1, 1, 0), scenario="Type promotion",
    ),
    MergeCase(
        "keys of all text types match", files(rows("id:words n:int64", ("a", 1)), rows("id:words n:int64", ("b", 2))),
        rows("id:large_string n:int64", ("b", 22), ("c", 33)),
        rows("id:words n:int64", ("a", 1), ("b", 22), ("c", 33)), (1, 1, 0), scenario="Schema unification", twin=True,
    ),
    MergeCase(
        "keys of incompatible types", TARGET, rows("id:string word:string", ("3", "x")),
        ExpectedError("type_mismatch", ("'id'", "int64", "string", "Cast")), scenario="Schema incompatibility",
    ),
    MergeCase(
        "a wider type is kept although no row needs it", files(rows("id:int64 n:int32", (1, 1)), rows("id:int64 n:int32", (2, 2))),
        rows("id:int64 n:int64", (1, 5)), rows("id:int64 n:int64", (1, 1), (2, 2)), (0, 0, 0), strategy="insert",
        scenario="Type promotion",
    ),
    MergeCase(
        "a value with too many digits is rejected", files(rows("id:int64 n:decimal5.2", (1, Decimal("1.00")))),
        rows("id:int64 n:int64", (1, 1000)), ExpectedError("value_does_not_fit", ("'n'",)), scenario="Schema incompatibility",
    ),
    MergeCase(
        "a dictionary with NULL and a repeated word is text", files(rows("id:int64 w:words", (1, "a"), (2, None), (3, "a"))),
        rows("id:int64 w:words", (2, "b"), (4, None)),
        rows("id:int64 w:words", (1, "a"), (2, "b"), (3, "a"), (4, None)), (1, 1, 0), twin=True,
    ),
]  # fmt: skip

SCORES = "id:int64 a:float64 b:string n:int64"


def deduplication_case(
    title: str, order_by: str | list[str], source: Sequence[tuple[Any, ...]], *remaining: int, **properties: Any
) -> MergeCase:
    """Return a deduplication case in which the source rows at these indices remain."""
    table = rows(SCORES, *source)
    return MergeCase(
        title, files(rows(SCORES, (0, 0.0, "", 0))), table,
        rows(SCORES, (0, 0.0, "", 0), *(source[index] for index in remaining)), (len(remaining), 0, 0), strategy="deduplicate",
        scenario="Deduplication ordering", options={"dedup_order_by": order_by}, **properties,
    )  # fmt: skip


ORDERS = [
    deduplication_case("the highest value wins", "a", [(1, 1.0, "x", 1), (1, 3.0, "y", 2), (1, 2.0, "z", 3)], 1),
    deduplication_case("names are trimmed", [" a "], [(1, 3.0, "y", 1), (1, 2.0, "z", 2)], 0, twin=True),
    deduplication_case(
        "rows are ordered by one column after the other", ["a", "b"],
        [(1, 2.0, "a", 1), (1, 2.0, "c", 2), (1, 2.0, "b", 3), (1, 1.0, "z", 4)], 1,
    ),
    deduplication_case(
        "the order of the columns is significant", ["b", "a"],
        [(1, 9.0, "a", 1), (1, 1.0, "b", 2), (1, 2.0, "b", 3)], 2, twin=True,
    ),
    deduplication_case("NULL is lowest", "a", [(1, float("-inf"), "x", 1), (1, None, "y", 2)], 0, twin=True),
    deduplication_case("NULL is a tie with NULL", "a", [(1, None, "x", 1), (1, None, "y", 2)], 1, twin=True),
    deduplication_case("NaN is highest", "a", [(1, NAN, "x", 1), (1, float("inf"), "y", 2), (1, None, "z", 3)], 0),
    deduplication_case("NaN is a tie with NaN", ["a", "n"], [(1, NAN, "x", 2), (1, NAN, "y", 3), (1, NAN, "z", 1)], 1, twin=True),
    deduplication_case("zeros of either sign are a tie", "a", [(1, 0.0, "x", 1), (1, -0.0, "y", 2), (2, -0.0, "x", 3), (2, 0.0, "y", 4)], 1, 3),
    deduplication_case("of a tie the last row wins", "a", [(1, 2.0, "x", 1), (1, 2.0, "y", 2), (1, 1.0, "z", 3)], 1),
    deduplication_case(
        "the highest row of each key is kept", "n",
        [(1, 0.0, "x", 5), (2, 0.0, "x", 1), (1, 0.0, "y", 3), (2, 0.0, "y", 1), (3, 0.0, "x", 0)], 0, 3, 4, twin=True,
    ),
    deduplication_case("texts are ordered by code point", "b", [(1, 0.0, "Z", 1), (1, 0.0, "a", 2), (1, 0.0, "ä", 3), (1, 0.0, "é", 4),
            (1, 0.0, "", 5), (2, 0.0, "\uffff", 6), (2, 0.0, "🦆", 7)], 3, 6),
    MergeCase(
        "the counts are of the remaining rows", TARGET,
        rows(WORDS, (3, "a"), (3, "b"), (3, "c"), (9, "a"), (9, "b")),
        rows(WORDS, ONE, TWO, (3, "c"), FOUR, FIVE, SIX, (9, "b")), (1, 1, 0), strategy="deduplicate",
        options={"dedup_order_by": "word", "batch_rows": 1}, scenario="Deduplication ordering", twin=True,
    ),
    MergeCase(
        "NaN and both zeros are deduplicated as keys", files(rows(DOUBLES, (NAN, "a"), (0.0, "b"))),
        rows(DOUBLES, (NAN, "x"), (NAN, "y"), (-0.0, "z"), (0.0, "w")),
        rows(DOUBLES, (NAN, "y"), (0.0, "w")), (0, 2, 0), strategy="deduplicate", scenario="Deduplication ordering", twin=True,
    ),
    MergeCase(
        "the order column may be missing in the target with add_columns", files(rows(WORDS, ONE)),
        rows("id:int64 word:string at:int64", (1, "x", 2), (1, "y", 1)),
        rows("id:int64 word:string at:int64", (1, "x", 2)), (0, 1, 0), strategy="deduplicate",
        options={"dedup_order_by": "at", "add_columns": True}, scenario="Deduplication ordering",
    ),
    MergeCase(
        "an unknown column is rejected", TARGET, SOURCE, ExpectedError("column_not_found", ("'when'", "'word'")),
        strategy="deduplicate", options={"dedup_order_by": ["word", "when"]}, scenario="Deduplication ordering",
    ),
    MergeCase(
        "an order without deduplication is rejected", TARGET, SOURCE, ExpectedError("unexpected_order", ("'upsert'", "deduplicate")),
        options={"dedup_order_by": "word"}, scenario="Deduplication ordering",
    ),
]  # fmt: skip

DOTTED = {"a": pa.struct([("b", pa.int64()), ("c", pa.int64())]), "a.b": pa.int64(), "word": pa.string()}
HIGH = {"b": 100, "c": 100}  # a.b of the struct lies outside of the keys
DOTTED_NAMES = [
    MergeCase(
        "a key column 'a.b' is not the field b of a struct a", files(rows(DOTTED, (HIGH, 1, "one"), (HIGH, 2, "two"))),
        rows(DOTTED, (HIGH, 1, "eins"), (HIGH, 3, "drei")),
        rows(DOTTED, (HIGH, 1, "eins"), (HIGH, 2, "two"), (HIGH, 3, "drei")), (1, 1, 0), keys="a.b",
    ),
    MergeCase(
        "NULL in a key column 'a.b' is found next to a struct a with a field b",
        files(rows(DOTTED, (HIGH, 1, "one"), (HIGH, None, "two"))), rows(DOTTED, (HIGH, 1, "eins")),
        ExpectedError("null_keys", ("target", "1", "'a.b'")), keys="a.b", twin=True,
    ),
]  # fmt: skip

REQUESTS = [
    MergeCase("an unknown strategy is rejected; the error lists the valid ones", TARGET, SOURCE,
         ExpectedError("unknown_strategy", ("'replace'", "upsert", "insert", "update", "full_merge", "deduplicate")), strategy="replace"),
    *(
        MergeCase(f"batches of {number!r} rows are rejected", TARGET, SOURCE, ExpectedError("bad_batch_rows", ("batch_rows",)),
             options={"batch_rows": number}, scenario="Batch size control")
        for number in (0, -1, True, 1.5)
    ),
    MergeCase(
        "a required column that is not in the source cannot be inserted",
        files(pa.table({"id": [1], "n": [1]}, pa.schema([("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)]))),
        rows("id:int64", (2,)), ExpectedError("missing_column", ("'n'", "required")),
    ),
    MergeCase(
        "a column of unknown type is rejected", None, rows("id:int64 n:null", (1, None)),
        ExpectedError("unsupported_type", ("'n'",)), removed=True, plain_only="a dataset has types before it has rows",
    ),
]  # fmt: skip

PARTITIONED = "id:int64 word:string region:string"
HIVE = "datasets have no folders that mean something"


def partitioned(**folders: Sequence[tuple[Any, ...]]) -> Files:
    """Return files with rows in the folder of their region."""
    return {
        f"region={name}/{index}.parquet": rows(WORDS, row)
        for name, region_rows in folders.items()
        for index, row in enumerate(region_rows)
    }  # fmt: skip


REGIONS = partitioned(EU=[ONE, TWO], US=[THREE, FOUR], __HIVE_DEFAULT_PARTITION__=[FIVE])
PARTITIONS = [
    MergeCase(
        "a row is replaced in its folder; other folders are unchanged", REGIONS,
        rows(PARTITIONED, (3, "drei", "US"), (6, "sechs", "US")),
        rows(PARTITIONED, (1, "one", "EU"), (2, "two", "EU"), (3, "drei", "US"), (4, "four", "US"), (5, "five", None), (6, "sechs", "US")),
        (1, 1, 0), partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "a row moves when its partition value changes", REGIONS, rows(PARTITIONED, (1, "eins", "US"), (3, "drei", "US")),
        rows(PARTITIONED, (1, "eins", "US"), (2, "two", "EU"), (3, "drei", "US"), (4, "four", "US"), (5, "five", None)),
        (0, 2, 0), partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "rows move to a new folder, to the NULL partition and out of it", REGIONS,
        rows(PARTITIONED, (1, "a", "AP"), (4, "d", None), (5, "e", "EU")),
        rows(PARTITIONED, (1, "a", "AP"), (2, "two", "EU"), (3, "three", "US"), (4, "d", None), (5, "e", "EU")),
        (0, 3, 0), partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "new rows are written to their folders", REGIONS, rows(PARTITIONED, (6, "f", "EU"), (7, "g", "AP"), (8, "h", None)),
        rows(
            PARTITIONED, (1, "one", "EU"), (2, "two", "EU"), (3, "three", "US"), (4, "four", "US"), (5, "five", None),
            (6, "f", "EU"), (7, "g", "AP"), (8, "h", None),
        ),
        (3, 0, 0), strategy="insert", partitions=("region",), plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "the partition column may be a key", partitioned(EU=[ONE, TWO], US=[ONE, FOUR]),
        rows(PARTITIONED, (1, "uno", "US"), (2, "due", "US")),
        rows(PARTITIONED, (1, "one", "EU"), (2, "two", "EU"), (1, "uno", "US"), (4, "four", "US"), (2, "due", "US")),
        (1, 1, 0), keys=["region", "id"], partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "NULL in a partition key is rejected", REGIONS, rows(PARTITIONED, (1, "x", "EU")), ExpectedError("null_keys", ("target", "1", "'region'")),
        keys=["id", "region"], partitions=("region",), plain_only=HIVE, scenario="Filtered scanner NULL key detection",
    ),
    MergeCase(
        "rows stay in their folder if the source has no partition column", REGIONS, rows(WORDS, (2, "b"), (5, "e"), (7, "g")),
        rows(
            PARTITIONED, (1, "one", "EU"), (2, "b", "EU"), (3, "three", "US"), (4, "four", "US"), (5, "e", None), (7, "g", None)
        ),
        (1, 2, 0), partitions=("region",), plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "a full merge removes folders without rows", REGIONS, rows(PARTITIONED, (2, "b", "EU"), (6, "f", "AP")),
        rows(PARTITIONED, (2, "b", "EU"), (6, "f", "AP")), (1, 1, 4), strategy="full_merge", partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "a full merge of an empty source removes every folder", REGIONS, rows(PARTITIONED), rows(PARTITIONED), (0, 0, 5),
        strategy="full_merge", partitions=("region",), plain_only=HIVE, removed=True, twin=True,
    ),
    MergeCase(
        "folder names contain unusual values", partitioned(**{"a%20b%2Fc": [ONE], "EU": [TWO]}),
        rows(PARTITIONED, (1, "x", "a b/c"), (2, "y", "100% é=ü"), (3, "z", "a b/c")),
        rows(PARTITIONED, (1, "x", "a b/c"), (2, "y", "100% é=ü"), (3, "z", "a b/c")), (1, 2, 0),
        partitions=("region",), plain_only=HIVE,
    ),
    MergeCase(
        "two levels of folders are two partition columns",
        {
            "year=2025/region=EU/a.parquet": rows(WORDS, ONE), "year=2025/region=US/a.parquet": rows(WORDS, TWO),
            "year=2026/region=EU/a.parquet": rows(WORDS, THREE),
        },
        rows("id:int64 word:string year:int32 region:string", (1, "a", 2026, "EU"), (4, "d", 2027, "EU")),
        rows(
            "id:int64 word:string year:int32 region:string",
            (1, "a", 2026, "EU"), (2, "two", 2025, "US"), (3, "three", 2026, "EU"), (4, "d", 2027, "EU"),
        ),
        (1, 1, 0), partitions=("year", "region"), plain_only=HIVE,
    ),
    MergeCase(
        "every row with the key moves", partitioned(EU=[ONE], US=[(1, "uno"), TWO]), rows(PARTITIONED, (1, "x", "AP")),
        rows(PARTITIONED, (1, "x", "AP"), (1, "x", "AP"), (2, "two", "US")), (0, 2, 0), partitions=("region",), plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "deduplicated rows move", REGIONS, rows(PARTITIONED, (1, "a", "US"), (1, "b", "AP"), (9, "x", "EU"), (9, "w", "US")),
        rows(
            PARTITIONED, (1, "b", "AP"), (2, "two", "EU"), (3, "three", "US"), (4, "four", "US"), (5, "five", None), (9, "x", "EU")
        ),
        (1, 1, 0), strategy="deduplicate", options={"dedup_order_by": "word"}, partitions=("region",), plain_only=HIVE, twin=True,
    ),
]  # fmt: skip

STORED_PARTITIONED = "id:int64 region:string word:string"


def stored_partitioned(**folders: Sequence[tuple[Any, ...]]) -> Files:
    """Return files with rows in the folder of their region; the files store the region, too."""
    return {
        f"region={name}/a.parquet": rows(STORED_PARTITIONED, *((n, None if name.startswith("__") else name, type_name) for n, type_name in region_rows))
        for name, region_rows in folders.items()
    }  # fmt: skip


STORED_REGIONS = stored_partitioned(EU=[ONE, TWO], US=[THREE, FOUR], __HIVE_DEFAULT_PARTITION__=[FIVE])
STORED_PARTITIONS = [
    MergeCase(
        "a stored partition column stays stored, in rewritten and in new files", STORED_REGIONS,
        rows(STORED_PARTITIONED, (1, "EU", "eins"), (3, "AP", "drei"), (5, "EU", "fünf"), (6, "US", "sechs"), (7, None, "sieben")),
        rows(
            STORED_PARTITIONED, (1, "EU", "eins"), (2, "EU", "two"), (3, "AP", "drei"), (4, "US", "four"), (5, "EU", "fünf"),
            (6, "US", "sechs"), (7, None, "sieben"),
        ),
        (2, 3, 0), partitions=("region",), stored_partitions=True, plain_only=HIVE,
    ),
    MergeCase(
        "a stored partition column that is not in the source keeps its value", STORED_REGIONS, rows(WORDS, (2, "b"), (5, "e"), (7, "g")),
        rows(
            STORED_PARTITIONED, (1, "EU", "one"), (2, "EU", "b"), (3, "US", "three"), (4, "US", "four"), (5, None, "e"), (7, None, "g")
        ),
        (1, 2, 0), partitions=("region",), stored_partitions=True, plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "a full merge keeps a stored partition column", STORED_REGIONS, rows(STORED_PARTITIONED, (2, "EU", "b"), (3, "EU", "c"), (6, "AP", "f")),
        rows(STORED_PARTITIONED, (2, "EU", "b"), (3, "EU", "c"), (6, "AP", "f")), (1, 2, 3), strategy="full_merge",
        partitions=("region",), stored_partitions=True, plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "a file without the stored partition column gets it", {**STORED_REGIONS, "region=EU/b.parquet": rows(WORDS, SIX)},
        rows(STORED_PARTITIONED, (6, "EU", "sechs")),
        rows(
            STORED_PARTITIONED, (1, "EU", "one"), (2, "EU", "two"), (3, "US", "three"), (4, "US", "four"), (5, None, "five"),
            (6, "EU", "sechs"),
        ),
        (0, 1, 0), partitions=("region",), stored_partitions=True, plain_only=HIVE, twin=True,
    ),
    MergeCase(
        "a stored partition column widens with the source",
        {f"p={n}/a.parquet": rows("p:int32 id:int64", (n, n)) for n in (1, 2)}, rows("p:int64 id:int64", (2**40, 1), (1, 3)),
        rows("p:int64 id:int64", (2**40, 1), (2, 2), (1, 3)), (1, 1, 0), partitions=("p",), stored_partitions=True,
        plain_only=HIVE, twin=True,
    ),
]  # fmt: skip

CASES = [
    *STRATEGIES,
    *TARGETS,
    *KEYS,
    *KEY_TYPES,
    *COLUMNS,
    *TYPES,
    *ORDERS,
    *DOTTED_NAMES,
    *REQUESTS,
    *PARTITIONS,
    *STORED_PARTITIONS,
]
