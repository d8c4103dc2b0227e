"""What is decided before a row is touched: keys, types, plans, reach, and what is done about which file."""

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.changes import Counts
from penstock.core.merge import (STRATEGIES, Layout, Match, Matched, New, Rest, TargetFile, Write, compute_merge_stats, decide, duplicate_keys, normalize_keys, null_keys, plan, strategy_named, unify_schemas, validate_keys_and_schema)
from penstock.core.merge.key_ranges import Reach
from penstock.core.dataset.column_stats import plain
from penstock.core.schema.type_widening import unified
from penstock.errors import Invalid

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.float64())])


# Keys


@pytest.mark.parametrize(
    ("given_keys", "keys"),
    [
        ("id", ["id"]), (" id\t", ["id"]), (["id"], ["id"]), (("a", "b"), ["a", "b"]), (["b", "a"], ["b", "a"]),
        (["a", "b", "a ", " b"], ["a", "b"]), pytest.param(iter(["a"]), ["a"], id="an iterator"), ("a b", ["a b"]), ("a,b", ["a,b"]), (["ID", "id"], ["ID", "id"]),
    ],
    ids=str,
)  # fmt: skip
def test_keys_become_a_list_of_trimmed_names_without_duplicates(given_keys: Any, keys: list[str]) -> None:
    assert normalize_keys(given_keys) == keys


@pytest.mark.parametrize(
    "given_keys", ["", " ", [], [""], ["id", " "], None, 5, [5], ["id", None], b"id", [b"id"]], ids=repr
)
def test_what_names_no_column_is_no_key(given_keys: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        normalize_keys(given_keys)
    assert isinstance(refusal.value, Invalid)
    assert refusal.value.reason == "bad_keys"
    assert "key_columns" in str(refusal.value)


def test_keys_must_be_in_both_schemas_and_the_missing_ones_are_named() -> None:
    validate_keys_and_schema(PEOPLE, PEOPLE, ["id", "name"])
    validate_keys_and_schema(PEOPLE, None, ["id"])
    other = pa.schema([("id", pa.int64()), ("code", pa.string())])
    for source, target, side in ((other, PEOPLE, "source"), (PEOPLE, other, "target"), (other, None, "source")):
        with pytest.raises(ValueError, match="'name', 'size'") as refusal:
            validate_keys_and_schema(source, target, ["id", "name", "size"])
        assert isinstance(refusal.value, Invalid)
        assert refusal.value.reason == "no_key_column"
        assert refusal.value.context == {"side": side, "missing": ["name", "size"], "columns": other.names}
        assert "'code'" in refusal.value.message, "it says what there is"


@pytest.mark.parametrize(
    "nested", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())], ids=str
)
def test_a_nested_column_is_no_key_on_either_side(nested: pa.DataType) -> None:
    flat, deep = pa.schema([("id", pa.int64())]), pa.schema([("id", nested)])
    for source, target, side in ((deep, deep, "source"), (deep, None, "source"), (flat, deep, "target")):
        with pytest.raises(Invalid) as refusal:
            validate_keys_and_schema(source, target, ["id"])
        assert (refusal.value.reason, refusal.value.context["side"]) == ("bad_key_type", side)


def test_keys_whose_types_do_not_fit_together_are_refused_with_the_schema() -> None:
    with pytest.raises(Invalid) as refusal:
        validate_keys_and_schema(PEOPLE, pa.schema([("id", pa.string())]), ["id"])
    assert refusal.value.reason == "type_mismatch"
    assert refusal.value.context == {"column": "id", "expected": "string", "actual": "int64"}


# Types

TYPES = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(7, 3), pa.decimal128(38, 0),
    pa.decimal128(38, 20), pa.decimal256(50, 3), pa.string(), pa.large_string(), pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), pa.dictionary(pa.int8(), pa.int32()),
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.date32(), pa.date64(), pa.time64("us"),
    pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Tokyo"),
    pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.string()),
    pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int8())]),
    pa.map_(pa.string(), pa.int8()),
]  # fmt: skip
PAIRS = list(product(TYPES, TYPES))

# What is in the target, what comes, and what becomes of both.
BECOME = [
    (pa.int32(), pa.int64(), pa.int64()), (pa.int64(), pa.int8(), pa.int64()), (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.uint8(), pa.int8(), pa.int16()), (pa.int16(), pa.uint8(), pa.int16()), (pa.int8(), pa.uint32(), pa.int64()),
    (pa.int64(), pa.uint32(), pa.int64()), (pa.float32(), pa.float64(), pa.float64()), (pa.float16(), pa.float32(), pa.float32()),
    (pa.decimal128(5, 2), pa.decimal128(7, 3), pa.decimal128(7, 3)), (pa.decimal128(5, 4), pa.decimal128(5, 0), pa.decimal128(9, 4)),
    (pa.decimal128(38, 20), pa.decimal128(38, 20), pa.decimal128(38, 20)), (pa.decimal128(9, 2), pa.int64(), pa.decimal128(9, 2)),
    (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")), (pa.timestamp("ns"), pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
    (pa.null(), pa.date32(), pa.date32()), (pa.date32(), pa.null(), pa.date32()), (pa.null(), pa.null(), pa.null()),
    (pa.string(), pa.large_string(), pa.string()), (pa.large_string(), pa.string(), pa.large_string()),
    (pa.string_view(), pa.string(), pa.string_view()), (pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.dictionary(pa.int8(), pa.string())),
    (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), pa.int64()), (pa.binary(), pa.large_binary(), pa.binary()),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())), (pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
]  # fmt: skip

REFUSED = [
    (pa.int64(), pa.float64()), (pa.float64(), pa.int8()), (pa.int64(), pa.string()), (pa.string(), pa.int64()),
    (pa.date32(), pa.timestamp("us")), (pa.timestamp("us"), pa.date32()), (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")), (pa.uint64(), pa.int64()), (pa.int8(), pa.uint64()),
    (pa.bool_(), pa.int8()), (pa.float64(), pa.decimal128(5, 2)), (pa.decimal128(5, 2), pa.float32()),
    (pa.int64(), pa.decimal128(38, 0)), (pa.decimal128(38, 0), pa.decimal128(38, 20)), (pa.binary(), pa.string()),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])), (pa.list_(pa.int8()), pa.list_(pa.string())),
    (pa.list_(pa.int8()), pa.int8()), (pa.dictionary(pa.int8(), pa.string()), pa.int8()),
]  # fmt: skip


@pytest.mark.parametrize(("target", "source", "result"), BECOME, ids=str)
def test_two_types_become_the_narrowest_that_holds_both(
    target: pa.DataType, source: pa.DataType, result: pa.DataType
) -> None:
    assert unified(target, source) == result


@pytest.mark.parametrize(("target", "source"), REFUSED, ids=str)
def test_what_would_lose_something_has_no_common_type(target: pa.DataType, source: pa.DataType) -> None:
    assert unified(target, source) is None
    with pytest.raises(ValueError) as refusal:
        unify_schemas(pa.schema([("id", pa.int8()), ("n", source)]), pa.schema([("id", pa.int8()), ("n", target)]))
    assert isinstance(refusal.value, Invalid)
    assert refusal.value.reason == "type_mismatch"
    assert refusal.value.context == {"column": "n", "expected": str(target), "actual": str(source)}
    for word in ("'n'", str(target), str(source), "cast"):
        assert word in refusal.value.message


def test_a_type_that_was_reached_stays() -> None:
    for target, source in PAIRS:
        if (both := unified(target, source)) is not None:
            assert unified(both, target) == both == unified(both, source), f"{target} and {source}"


def test_only_whole_numbers_into_decimals_depend_on_the_side() -> None:
    one_sided = {
        (str(target), str(source))
        for target, source in PAIRS
        if (unified(target, source) is None) != (unified(source, target) is None)
    }
    decimals, integers = ([str(t) for t in TYPES if test(t)] for test in (pa.types.is_decimal, pa.types.is_integer))
    exact = set(product(decimals, integers)) | set(product(integers, decimals))
    # decimal256 stays what it is where it is the target's, and is not brought into a narrower target
    wide = {(a, b) for a, b in product(decimals, decimals) if "256" in a + b}
    packed = {(a, b) for a, b in one_sided if "dictionary" in a + b and "decimal" in a + b}
    assert one_sided - wide - packed == exact


def test_every_value_of_both_types_survives_in_the_common_one() -> None:
    for target, source in PAIRS:
        both = unified(target, source)
        if both is None:
            continue
        for narrow in (_unpacked(target), _unpacked(source)):
            if pa.types.is_integer(narrow) and pa.types.is_decimal(both):
                continue  # whether the digits suffice is asked of each value
            for value in EXTREMES.get(str(narrow), [None]):
                wide = pc.cast(pa.array([value], narrow), _unpacked(both))
                assert wide.to_pylist() == [value], f"{value!r} of {narrow} in {both}"


def _unpacked(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


EXTREMES: dict[str, list[Any]] = {
    **{f"int{bits}": [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": [0, 2**bits - 1] for bits in (8, 16, 32, 64)},
    "float": [3.4028234663852886e38], "double": [0.1, 1.7976931348623157e308],
    "decimal128(5, 2)": [Decimal("-999.99")], "decimal128(7, 3)": [Decimal("9999.999")], "decimal128(38, 0)": [Decimal("9" * 38)],
    "decimal128(38, 20)": [Decimal("9" * 18 + "." + "9" * 20)], "string": ["", "ä"], "large_string": ["", "ä"], "string_view": ["", "ä"],
    "binary": [b"", b"\xff"], "large_binary": [b"\0"], "binary_view": [b"\0"], "date32[day]": [date(9999, 12, 31)],
    "timestamp[s]": [datetime(2200, 1, 1)], "timestamp[ms, tz=UTC]": [datetime(9999, 12, 31, tzinfo=UTC)],
    "list<item: int32>": [[1, None], []], "large_list<item: int8>": [[127]], "struct<a: int8>": [{"a": -128}],
}  # fmt: skip


def test_the_unified_schema_is_the_targets_with_the_sources_columns_after_it() -> None:
    target = pa.schema(
        [pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("kept", pa.bool_())], {b"a": b"b"}
    )
    source = pa.schema(
        [
            pa.field("new", pa.int8(), nullable=False, metadata={b"x": b"y"}),
            ("name", pa.large_string()),
            ("id", pa.int64()),
        ]
    )
    both = unify_schemas(source, target)
    assert both.names == ["id", "name", "kept", "new"]
    assert both.types == [pa.int64(), pa.string(), pa.bool_(), pa.int8()]
    assert not both.field("id").nullable
    assert both.field("new").nullable, "rows that are there have no value for it"
    assert both.field("new").metadata is None
    assert both.metadata == {b"a": b"b"}


def test_names_that_differ_only_in_case_cannot_become_one_schema() -> None:
    target, source = (
        pa.schema([("id", pa.int8()), ("name", pa.string())]),
        pa.schema([("id", pa.int8()), ("Name", pa.string())]),
    )
    with pytest.raises(Invalid) as refusal:
        plan(source, target, "id", add_columns=True)
    assert refusal.value.reason == "doubled_column_name"


# Plans


def test_the_strategies_are_these_writes() -> None:
    assert {
        "upsert": Write(Matched.UPDATE, New.INSERT, Rest.KEEP),
        "insert": Write(Matched.KEEP, New.INSERT, Rest.KEEP),
        "update": Write(Matched.UPDATE, New.SKIP, Rest.KEEP),
        "full_merge": Write(Matched.UPDATE, New.INSERT, Rest.DELETE),
        "deduplicate": Write(Matched.UPDATE, New.INSERT, Rest.KEEP, deduplicates=True),
    } == STRATEGIES


@pytest.mark.parametrize("strategy", ["UPSERT", "", "replace", None, ["upsert"]], ids=repr)
def test_an_unknown_strategy_is_refused_with_those_that_exist(strategy: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        strategy_named(strategy)
    assert refusal.value.reason == "unknown_strategy"
    assert all(name in refusal.value.message for name in STRATEGIES)


def test_a_plan_settles_what_an_engine_gets() -> None:
    source = pa.schema([("size", pa.float32()), ("id", pa.int32())])
    settled = plan(source, PEOPLE, [" id "], "upsert", batch_rows=7, row_ids=True, partitions=["name"])
    assert settled.keys == ("id",)
    assert settled.schema == PEOPLE
    assert settled.given == ("id", "size")
    assert settled.source_schema == pa.schema([("id", pa.int64()), ("size", pa.float64())])
    assert (settled.batch_rows, settled.row_ids, settled.partitions) == (7, True, ("name",))
    assert settled.keeps_columns


def test_target_columns_are_needed_unless_a_full_merge_brings_them_all() -> None:
    assert not plan(PEOPLE, PEOPLE, "id", "full_merge").keeps_columns
    assert plan(PEOPLE.remove(1), PEOPLE, "id", "full_merge").keeps_columns
    assert plan(PEOPLE, PEOPLE, "id", "insert").keeps_columns


def test_a_plan_without_a_target_takes_the_sources_schema_with_dictionaries_unpacked() -> None:
    source = pa.schema([("id", pa.int64()), ("name", pa.dictionary(pa.int8(), pa.string()))])
    assert plan(source, None, "id").schema == pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key_columns": []}, "bad_keys"), ({"key_columns": "x"}, "no_key_column"), ({"strategy": "x"}, "unknown_strategy"),
        ({"batch_rows": 0}, "bad_batch_rows"), ({"batch_rows": True}, "bad_batch_rows"), ({"batch_rows": "9"}, "bad_batch_rows"),
        ({"dedup_order_by": "name"}, "order_not_wanted"), ({"dedup_order_by": [], "strategy": "insert"}, "order_not_wanted"),
        ({"dedup_order_by": "x", "strategy": "deduplicate"}, "no_such_column"),
        ({"source": PEOPLE.append(pa.field("x", pa.int8()))}, "extra_columns"),
        ({"source": PEOPLE.append(pa.field("_rowid", pa.int8())), "row_ids": True}, "reserved_column_name"),
        ({"source": PEOPLE.append(pa.field("ID", pa.int8()))}, "doubled_column_name"),
        ({"source": PEOPLE.append(pa.field("id", pa.int8()))}, "doubled_column_name"),
        ({"target": None, "source": PEOPLE.append(pa.field("x", pa.null()))}, "type_not_kept"),
        ({"target": PEOPLE.append(pa.field("x", pa.int8(), nullable=False))}, "missing_column"),
        ({"target": PEOPLE.set(0, pa.field("id", pa.null()))}, "bad_key_type"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, Any], reason: str) -> None:
    arguments = {"source": PEOPLE, "target": PEOPLE, "key_columns": "id", **changes}
    with pytest.raises(ValueError) as refusal:
        plan(**arguments)
    assert isinstance(refusal.value, Invalid)
    assert refusal.value.reason == reason


def test_an_order_of_nested_values_is_refused() -> None:
    source = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(Invalid) as refusal:
        plan(source, None, "id", "deduplicate", dedup_order_by="tags")
    assert refusal.value.reason == "bad_order"


def test_a_required_column_may_be_missing_where_nothing_is_inserted() -> None:
    target = PEOPLE.append(pa.field("x", pa.int8(), nullable=False))
    assert plan(PEOPLE, target, "id", "update").given == ("id", "name", "size")


def test_several_columns_order_one_after_the_other() -> None:
    assert plan(PEOPLE, None, "id", "deduplicate", dedup_order_by=[" size", "name", "size"]).order_by == (
        "size",
        "name",
    )


# Decisions

LAYOUT = Layout(PEOPLE)
A, B, C = (TargetFile(name, rows, LAYOUT) for name, rows in (("a", 10), ("b", 20), ("c", 30)))
MATCH = Match({"a": 10, "b": 5}, new=7, rows=22)


@pytest.mark.parametrize(
    ("strategy", "rewrite", "drop", "insert", "counts"),
    [
        ("upsert", "ab", "", True, (7, 15, 0)), ("deduplicate", "ab", "", True, (7, 15, 0)), ("insert", "", "", True, (7, 0, 0)),
        ("update", "ab", "", False, (0, 15, 0)), ("full_merge", "ab", "c", True, (7, 15, 45)),
    ],
)  # fmt: skip
def test_only_files_that_change_are_written(
    strategy: str, rewrite: str, drop: str, insert: bool, counts: tuple[int, int, int]
) -> None:
    settled = plan(PEOPLE, PEOPLE, "id", strategy)
    work = decide(settled, [A, B, C], MATCH, before=60)
    assert [f.path for f in work.rewrite] == list(rewrite)
    assert [f.path for f in work.drop] == list(drop)
    assert (work.insert, work.counts, work.before) == (insert, Counts(*counts), 60)
    assert work.after == 60 + counts[0] - counts[2]
    assert not work.empty
    names = ("inserted", "updated", "deleted", "total")
    assert work.stats(strategy) == dict(zip(names, (*counts, work.after), strict=True))


@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "deduplicate"])
def test_nothing_met_and_nothing_new_is_no_work(strategy: str) -> None:
    work = decide(plan(PEOPLE, PEOPLE, "id", strategy), [A, B, C], Match({}, new=0, rows=0), before=60)
    assert work.empty
    assert (work.counts, work.after) == (Counts(), 60)


def test_a_full_merge_with_nothing_drops_every_file() -> None:
    work = decide(plan(PEOPLE, PEOPLE, "id", "full_merge"), [A, B, C], Match({}, new=0, rows=0), before=60)
    assert (work.drop, work.rewrite, work.insert, work.after) == ((A, B, C), (), False, 0)
    assert work.counts == Counts(0, 0, 60)


def test_a_full_merge_that_leaves_every_row_still_updates_them() -> None:
    work = decide(
        plan(PEOPLE, PEOPLE, "id", "full_merge"), [A, B], Match({"a": 10, "b": 20}, new=0, rows=30), before=30
    )
    assert (work.rewrite, work.drop, work.counts) == ((A, B), (), Counts(0, 30, 0))


def test_when_types_widen_every_file_that_stays_is_written_anew() -> None:
    for strategy, rewritten in (("upsert", (A, B, C)), ("insert", (A, B, C)), ("full_merge", (A, B))):
        work = decide(plan(PEOPLE, PEOPLE, "id", strategy), [A, B, C], MATCH, before=60, whole=True)
        assert work.rewrite == rewritten


def test_rows_of_files_out_of_reach_are_counted() -> None:
    assert decide(plan(PEOPLE, PEOPLE, "id", "upsert"), [B], Match({"b": 5}, new=7, rows=12), before=60).after == 67


# Counts and refusals


def test_counts_are_the_four_and_must_add_up() -> None:
    stats = compute_merge_stats(
        strategy="full_merge", target_before=10, target_after=8, inserted=1, updated=4, deleted=3
    )
    assert stats == {"inserted": 1, "updated": 4, "deleted": 3, "total": 8}
    assert list(stats) == ["inserted", "updated", "deleted", "total"]


@pytest.mark.parametrize(
    "wrong",
    [{"target_after": 9}, {"inserted": -1, "target_after": 6}, {"updated": -4}, {"deleted": 2}, {"inserted": 1.0}, {"updated": True},
     {"target_before": -10, "target_after": -12}],
    ids=str,
)  # fmt: skip
def test_counts_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    right = {"strategy": "upsert", "target_before": 10, "target_after": 8, "inserted": 1, "updated": 4, "deleted": 3}
    with pytest.raises(Invalid) as refusal:
        compute_merge_stats(**{**right, **wrong})
    assert refusal.value.reason == "bad_counts"


def test_counts_of_an_unknown_strategy_are_refused() -> None:
    with pytest.raises(Invalid) as refusal:
        compute_merge_stats(strategy="x", target_before=0, target_after=0, inserted=0, updated=0, deleted=0)
    assert refusal.value.reason == "unknown_strategy"


def test_refusals_of_rows_say_where_how_many_and_what_to_do() -> None:
    nulls = null_keys("target", {"id": 1200, "day": 3})
    assert isinstance(nulls, ValueError)
    assert nulls.context == {"side": "target", "nulls": {"id": 1200, "day": 3}}
    for word in ("target", "1,200", "'id'", "3", "'day'"):
        assert word in nulls.message
    twice = duplicate_keys(["id", "name"], 1, [7, "x" * 500])
    assert isinstance(twice, ValueError)
    assert "1 row " in twice.message
    assert "id='7'" in twice.message
    assert "'deduplicate'" in twice.message
    assert len(twice.message) < 400, "a long key is cut"


# Reach

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1)),
    "unsigned": (pa.uint64(), st.integers(0, 9) | st.integers(0, 2**64 - 1)),
    "floats": (pa.float64(), st.sampled_from([-1.5, -0.0, 0.0, 1.5]) | st.floats(allow_nan=False)),
    "decimals": (pa.decimal128(9, 2), st.decimals(-9, 9, places=2)),
    "text": (pa.string(), st.text(max_size=3)),
    "large text": (pa.large_string(), st.text(max_size=3)),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "booleans": (pa.bool_(), st.booleans()),
    "dates": (pa.date32(), st.dates()),
    "times": (pa.timestamp("us"), st.datetimes()),
    "times of UTC": (
        pa.timestamp("ms", "UTC"),
        st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=0)),
    ),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_a_file_is_in_reach_exactly_if_a_key_lies_between_its_lowest_and_highest(
    kind: str, data: st.DataObject
) -> None:
    type_, values = KEYS[kind]
    keys = data.draw(st.lists(values, max_size=5))
    low, high = sorted(data.draw(st.lists(values, min_size=2, max_size=2)))
    reach = Reach.of(pa.table({"id": pa.array(keys, type_)}))
    assert reach.meets({"id": (plain(low), plain(high))}) == any(low <= key <= high for key in keys)
    assert reach.bounds() == ({"id": (plain(min(keys)), plain(max(keys)))} if keys else {})


@given(st.lists(st.tuples(st.integers(0, 9), st.text("abc", max_size=2)), max_size=4), st.data())
def test_every_part_of_a_composite_key_counts_and_what_is_not_known_does_not(
    keys: list[tuple[int, str]], data: st.DataObject
) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in keys], pa.int64()), "b": pa.array([b for _, b in keys], pa.string())}
    )
    reach = Reach.of(table)
    for a, b in keys:
        assert reach.meets({"a": (a, a), "b": (b, b)})
        assert reach.meets({"a": (None, None), "b": (b, None)})
        assert reach.meets({"a": (a, a), "other": (5, 6)})
        assert not reach.meets({"a": (10, 20), "b": (b, b)})
    assert reach.meets({}) == bool(keys)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1.0, float("nan")]), pa.array([1, None]), pa.array([1], pa.timestamp("ns")), pa.array([1], pa.time64("us")),
        pa.array(["a"]).dictionary_encode(), pa.array([b"abcd"], pa.binary(4)), pa.array(["a"], pa.string_view()),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
def test_keys_that_statistics_cannot_judge_keep_every_file_in_reach(keys: pa.Array) -> None:
    reach = Reach.of(pa.table({"id": keys, "n": pa.array([5] * len(keys))}))
    assert reach.meets({"id": (plain(100), plain(200))})
    assert not reach.meets({"id": (1, 2), "n": (6, 7)}), "the other part of the key still counts"


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([2**60], pa.timestamp("us")),
        pa.array([-(2**60)], pa.timestamp("us", "UTC")),
        pa.array([2**30], pa.date32()),
    ],
    ids=lambda array: str(array.type),
)
def test_times_beyond_pythons_calendar_are_keys_too(keys: pa.Array) -> None:
    reach = Reach.of(pa.table({"id": keys}))
    assert reach.meets({"id": (None, None)})
    assert reach.meets(reach.bounds())


def test_keys_in_several_pieces_are_one_reach() -> None:
    reach = Reach.of(pa.table({"id": pa.chunked_array([[9, 1], [], [5, 9]], pa.int64())}))
    assert reach.bounds() == {"id": (1, 9)}
    assert [n for n in range(11) if reach.meets({"id": (n, n)})] == [1, 5, 9]
