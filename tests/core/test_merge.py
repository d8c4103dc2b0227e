"""Merge keys, types, plans, key ranges and statistics."""

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
from penstock.core.dataset.column_stats import stat_value
from penstock.core.merge import (
    STRATEGIES,
    FileLayout,
    MatchCounts,
    Matched,
    MergeRules,
    New,
    Rest,
    TargetFile,
    compute_merge_stats,
    duplicate_keys,
    normalize_keys,
    null_keys,
    plan_merge,
    plan_rewrite,
    rules_for,
    unify_schemas,
    validate_keys_and_schema,
)
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.schema.type_widening import common_type
from penstock.errors import Invalid

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.float64())])


# Keys


@pytest.mark.parametrize(
    ("input_keys", "keys"),
    [
        ("id", ["id"]), (" id\t", ["id"]), (["id"], ["id"]), (("a", "b"), ["a", "b"]), (["b", "a"], ["b", "a"]),
        (["a", "b", "a ", " b"], ["a", "b"]), pytest.param(iter(["a"]), ["a"], id="an iterator"), ("a b", ["a b"]), ("a,b", ["a,b"]), (["ID", "id"], ["ID", "id"]),
    ],
    ids=str,
)  # fmt: skip
def test_normalize_keys_trims_names_and_removes_duplicates(input_keys: Any, keys: list[str]) -> None:
    assert normalize_keys(input_keys) == keys


@pytest.mark.parametrize(
    "input_keys", ["", " ", [], [""], ["id", " "], None, 5, [5], ["id", None], b"id", [b"id"]], ids=repr
)
def test_normalize_keys_rejects_values_that_are_not_names(input_keys: Any) -> None:
    with pytest.raises(ValueError) as raised:
        normalize_keys(input_keys)
    assert isinstance(raised.value, Invalid)
    assert raised.value.reason == "bad_keys"
    assert "key_columns" in str(raised.value)


def test_validate_keys_names_missing_key_columns_of_both_sides() -> None:
    validate_keys_and_schema(PEOPLE, PEOPLE, ["id", "name"])
    validate_keys_and_schema(PEOPLE, None, ["id"])
    other = pa.schema([("id", pa.int64()), ("code", pa.string())])
    for source, target, side in ((other, PEOPLE, "source"), (PEOPLE, other, "target"), (other, None, "source")):
        with pytest.raises(ValueError, match="'name', 'size'") as raised:
            validate_keys_and_schema(source, target, ["id", "name", "size"])
        assert isinstance(raised.value, Invalid)
        assert raised.value.reason == "missing_key_column"
        assert raised.value.context == {"side": side, "missing": ["name", "size"], "columns": other.names}
        assert "'code'" in raised.value.message, "the error lists the columns"


@pytest.mark.parametrize(
    "nested", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())], ids=str
)
def test_validate_keys_rejects_nested_key_columns_on_either_side(nested: pa.DataType) -> None:
    flat, deep = pa.schema([("id", pa.int64())]), pa.schema([("id", nested)])
    for source, target, side in ((deep, deep, "source"), (deep, None, "source"), (flat, deep, "target")):
        with pytest.raises(Invalid) as raised:
            validate_keys_and_schema(source, target, ["id"])
        assert (raised.value.reason, raised.value.context["side"]) == ("bad_key_type", side)


def test_validate_keys_rejects_incompatible_key_types() -> None:
    with pytest.raises(Invalid) as raised:
        validate_keys_and_schema(PEOPLE, pa.schema([("id", pa.string())]), ["id"])
    assert raised.value.reason == "type_mismatch"
    assert raised.value.context == {"column": "id", "expected": "string", "actual": "int64"}


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

# type of the target, type of the source, common type
COMMON_TYPES = [
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

INCOMPATIBLE_TYPES = [
    (pa.int64(), pa.float64()), (pa.float64(), pa.int8()), (pa.int64(), pa.string()), (pa.string(), pa.int64()),
    (pa.date32(), pa.timestamp("us")), (pa.timestamp("us"), pa.date32()), (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")), (pa.uint64(), pa.int64()), (pa.int8(), pa.uint64()),
    (pa.bool_(), pa.int8()), (pa.float64(), pa.decimal128(5, 2)), (pa.decimal128(5, 2), pa.float32()),
    (pa.int64(), pa.decimal128(38, 0)), (pa.decimal128(38, 0), pa.decimal128(38, 20)), (pa.binary(), pa.string()),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])), (pa.list_(pa.int8()), pa.list_(pa.string())),
    (pa.list_(pa.int8()), pa.int8()), (pa.dictionary(pa.int8(), pa.string()), pa.int8()),
]  # fmt: skip


@pytest.mark.parametrize(("target", "source", "result"), COMMON_TYPES, ids=str)
def test_unify_schemas_returns_narrowest_common_type(
    target: pa.DataType, source: pa.DataType, result: pa.DataType
) -> None:
    assert common_type(target, source) == result


@pytest.mark.parametrize(("target", "source"), INCOMPATIBLE_TYPES, ids=str)
def test_unify_schemas_rejects_lossy_type_pairs(target: pa.DataType, source: pa.DataType) -> None:
    assert common_type(target, source) is None
    with pytest.raises(ValueError) as raised:
        unify_schemas(pa.schema([("id", pa.int8()), ("n", source)]), pa.schema([("id", pa.int8()), ("n", target)]))
    assert isinstance(raised.value, Invalid)
    assert raised.value.reason == "type_mismatch"
    assert raised.value.context == {"column": "n", "expected": str(target), "actual": str(source)}
    for word in ("'n'", str(target), str(source), "Cast"):
        assert word in raised.value.message


def test_unify_schemas_is_idempotent() -> None:
    for target, source in PAIRS:
        if (both := common_type(target, source)) is not None:
            assert common_type(both, target) == both == common_type(both, source), f"{target} and {source}"


def test_unify_schemas_is_symmetric_except_for_integers_and_decimals() -> None:
    one_sided = {
        (str(target), str(source))
        for target, source in PAIRS
        if (common_type(target, source) is None) != (common_type(source, target) is None)
    }
    decimals, integers = ([str(t) for t in TYPES if test(t)] for test in (pa.types.is_decimal, pa.types.is_integer))
    exact = set(product(decimals, integers)) | set(product(integers, decimals))
    # decimal256 stays the type of the target; it does not fit into a narrower target
    wide = {(a, b) for a, b in product(decimals, decimals) if "256" in a + b}
    packed = {(a, b) for a, b in one_sided if "dictionary" in a + b and "decimal" in a + b}
    assert one_sided - wide - packed == exact


def test_unify_schemas_common_type_preserves_all_values() -> None:
    for target, source in PAIRS:
        both = common_type(target, source)
        if both is None:
            continue
        for narrow in (_value_type(target), _value_type(source)):
            if pa.types.is_integer(narrow) and pa.types.is_decimal(both):
                continue  # digits are checked per value
            for value in EXTREMES.get(str(narrow), [None]):
                wide = pc.cast(pa.array([value], narrow), _value_type(both))
                assert wide.to_pylist() == [value], f"{value!r} of {narrow} in {both}"


def _value_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


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


def test_unify_schemas_appends_source_columns_to_target_columns() -> None:
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


def test_unify_schemas_rejects_names_that_differ_only_in_case() -> None:
    target, source = (
        pa.schema([("id", pa.int8()), ("name", pa.string())]),
        pa.schema([("id", pa.int8()), ("Name", pa.string())]),
    )
    with pytest.raises(Invalid) as raised:
        plan_merge(source, target, "id", add_columns=True)
    assert raised.value.reason == "duplicate_column_name"


# Plans


def test_strategies_have_expected_rules() -> None:
    assert {
        "upsert": MergeRules(Matched.UPDATE, New.INSERT, Rest.KEEP),
        "insert": MergeRules(Matched.KEEP, New.INSERT, Rest.KEEP),
        "update": MergeRules(Matched.UPDATE, New.SKIP, Rest.KEEP),
        "full_merge": MergeRules(Matched.UPDATE, New.INSERT, Rest.DELETE),
        "deduplicate": MergeRules(Matched.UPDATE, New.INSERT, Rest.KEEP, deduplicates=True),
    } == STRATEGIES


@pytest.mark.parametrize("strategy", ["UPSERT", "", "replace", None, ["upsert"]], ids=repr)
def test_rules_for_unknown_strategy_lists_valid_strategies(strategy: Any) -> None:
    with pytest.raises(Invalid) as raised:
        rules_for(strategy)
    assert raised.value.reason == "unknown_strategy"
    assert all(name in raised.value.message for name in STRATEGIES)


def test_plan_merge_resolves_columns_and_types() -> None:
    source = pa.schema([("size", pa.float32()), ("id", pa.int32())])
    plan = plan_merge(source, PEOPLE, [" id "], "upsert", batch_rows=7, row_ids=True, partitions=["name"])
    assert plan.keys == ("id",)
    assert plan.schema == PEOPLE
    assert plan.source_columns == ("id", "size")
    assert plan.source_schema == pa.schema([("id", pa.int64()), ("size", pa.float64())])
    assert (plan.batch_rows, plan.row_ids, plan.partitions) == (7, True, ("name",))
    assert plan.keeps_columns


def test_merge_plan_keeps_columns_unless_full_merge_replaces_them_all() -> None:
    assert not plan_merge(PEOPLE, PEOPLE, "id", "full_merge").keeps_columns
    assert plan_merge(PEOPLE.remove(1), PEOPLE, "id", "full_merge").keeps_columns
    assert plan_merge(PEOPLE, PEOPLE, "id", "insert").keeps_columns


def test_plan_merge_without_target_decodes_dictionaries_of_source_schema() -> None:
    source = pa.schema([("id", pa.int64()), ("name", pa.dictionary(pa.int8(), pa.string()))])
    assert plan_merge(source, None, "id").schema == pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key_columns": []}, "bad_keys"), ({"key_columns": "x"}, "missing_key_column"), ({"strategy": "x"}, "unknown_strategy"),
        ({"batch_rows": 0}, "bad_batch_rows"), ({"batch_rows": True}, "bad_batch_rows"), ({"batch_rows": "9"}, "bad_batch_rows"),
        ({"dedup_order_by": "name"}, "unexpected_order"), ({"dedup_order_by": [], "strategy": "insert"}, "unexpected_order"),
        ({"dedup_order_by": "x", "strategy": "deduplicate"}, "column_not_found"),
        ({"source": PEOPLE.append(pa.field("x", pa.int8()))}, "extra_columns"),
        ({"source": PEOPLE.append(pa.field("_rowid", pa.int8())), "row_ids": True}, "reserved_column_name"),
        ({"source": PEOPLE.append(pa.field("ID", pa.int8()))}, "duplicate_column_name"),
        ({"source": PEOPLE.append(pa.field("id", pa.int8()))}, "duplicate_column_name"),
        ({"target": None, "source": PEOPLE.append(pa.field("x", pa.null()))}, "unsupported_type"),
        ({"target": PEOPLE.append(pa.field("x", pa.int8(), nullable=False))}, "missing_column"),
        ({"target": PEOPLE.set(0, pa.field("id", pa.null()))}, "bad_key_type"),
    ],
)  # fmt: skip
def test_plan_merge_rejects_invalid_requests(changes: dict[str, Any], reason: str) -> None:
    arguments = {"source": PEOPLE, "target": PEOPLE, "key_columns": "id", **changes}
    with pytest.raises(ValueError) as raised:
        plan_merge(**arguments)
    assert isinstance(raised.value, Invalid)
    assert raised.value.reason == reason


def test_plan_merge_rejects_nested_order_columns() -> None:
    source = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(Invalid) as raised:
        plan_merge(source, None, "id", "deduplicate", dedup_order_by="tags")
    assert raised.value.reason == "bad_order"


def test_plan_merge_without_inserts_accepts_missing_required_column() -> None:
    target = PEOPLE.append(pa.field("x", pa.int8(), nullable=False))
    assert plan_merge(PEOPLE, target, "id", "update").source_columns == ("id", "name", "size")


def test_plan_merge_keeps_sequence_of_order_columns() -> None:
    assert plan_merge(PEOPLE, None, "id", "deduplicate", dedup_order_by=[" size", "name", "size"]).order_by == (
        "size",
        "name",
    )


# Decisions

LAYOUT = FileLayout(PEOPLE)
A, B, C = (TargetFile(name, rows, LAYOUT) for name, rows in (("a", 10), ("b", 20), ("c", 30)))
MATCH = MatchCounts({"a": 10, "b": 5}, new=7, rows=22)


@pytest.mark.parametrize(
    ("strategy", "rewrite", "drop", "insert", "counts"),
    [
        ("upsert", "ab", "", True, (7, 15, 0)), ("deduplicate", "ab", "", True, (7, 15, 0)), ("insert", "", "", True, (7, 0, 0)),
        ("update", "ab", "", False, (0, 15, 0)), ("full_merge", "ab", "c", True, (7, 15, 45)),
    ],
)  # fmt: skip
def test_plan_rewrite_rewrites_only_changed_files(
    strategy: str, rewrite: str, drop: str, insert: bool, counts: tuple[int, int, int]
) -> None:
    plan = plan_merge(PEOPLE, PEOPLE, "id", strategy)
    work = plan_rewrite(plan, [A, B, C], MATCH, before=60)
    assert [f.path for f in work.rewrite] == list(rewrite)
    assert [f.path for f in work.drop] == list(drop)
    assert (work.insert, work.counts, work.before) == (insert, Counts(*counts), 60)
    assert work.after == 60 + counts[0] - counts[2]
    assert not work.empty
    names = ("inserted", "updated", "deleted", "total")
    assert work.stats(strategy) == dict(zip(names, (*counts, work.after), strict=True))


@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "deduplicate"])
def test_plan_rewrite_without_matches_and_new_rows_is_empty(strategy: str) -> None:
    work = plan_rewrite(
        plan_merge(PEOPLE, PEOPLE, "id", strategy), [A, B, C], MatchCounts({}, new=0, rows=0), before=60
    )
    assert work.empty
    assert (work.counts, work.after) == (Counts(), 60)


def test_plan_rewrite_full_merge_with_empty_source_drops_every_file() -> None:
    work = plan_rewrite(
        plan_merge(PEOPLE, PEOPLE, "id", "full_merge"), [A, B, C], MatchCounts({}, new=0, rows=0), before=60
    )
    assert (work.drop, work.rewrite, work.insert, work.after) == ((A, B, C), (), False, 0)
    assert work.counts == Counts(0, 0, 60)


def test_plan_rewrite_full_merge_without_deletions_still_updates() -> None:
    work = plan_rewrite(
        plan_merge(PEOPLE, PEOPLE, "id", "full_merge"),
        [A, B],
        MatchCounts({"a": 10, "b": 20}, new=0, rows=30),
        before=30,
    )
    assert (work.rewrite, work.drop, work.counts) == ((A, B), (), Counts(0, 30, 0))


def test_plan_rewrite_whole_rewrites_every_remaining_file() -> None:
    for strategy, rewritten in (("upsert", (A, B, C)), ("insert", (A, B, C)), ("full_merge", (A, B))):
        work = plan_rewrite(plan_merge(PEOPLE, PEOPLE, "id", strategy), [A, B, C], MATCH, before=60, whole=True)
        assert work.rewrite == rewritten


def test_plan_rewrite_counts_rows_of_unread_files() -> None:
    assert (
        plan_rewrite(
            plan_merge(PEOPLE, PEOPLE, "id", "upsert"), [B], MatchCounts({"b": 5}, new=7, rows=12), before=60
        ).after
        == 67
    )


# Counts and errors


def test_compute_merge_stats_returns_consistent_counts() -> None:
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
def test_compute_merge_stats_rejects_invalid_counts(wrong: dict[str, Any]) -> None:
    valid_counts = {
        "strategy": "upsert",
        "target_before": 10,
        "target_after": 8,
        "inserted": 1,
        "updated": 4,
        "deleted": 3,
    }
    with pytest.raises(Invalid) as raised:
        compute_merge_stats(**{**valid_counts, **wrong})
    assert raised.value.reason == "bad_counts"


def test_compute_merge_stats_rejects_unknown_strategy() -> None:
    with pytest.raises(Invalid) as raised:
        compute_merge_stats(strategy="x", target_before=0, target_after=0, inserted=0, updated=0, deleted=0)
    assert raised.value.reason == "unknown_strategy"


def test_row_errors_report_side_count_and_advice() -> None:
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


# Key ranges

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


@pytest.mark.parametrize("type_name", KEYS)
@given(data=st.data())
def test_key_ranges_overlap_file_exactly_if_a_key_is_within_its_bounds(type_name: str, data: st.DataObject) -> None:
    type_, values = KEYS[type_name]
    keys = data.draw(st.lists(values, max_size=5))
    low, high = sorted(data.draw(st.lists(values, min_size=2, max_size=2)))
    reach = KeyRanges.of(pa.table({"id": pa.array(keys, type_)}))
    assert reach.overlaps({"id": (stat_value(low), stat_value(high))}) == any(low <= key <= high for key in keys)
    assert reach.bounds() == ({"id": (stat_value(min(keys)), stat_value(max(keys)))} if keys else {})


@given(st.lists(st.tuples(st.integers(0, 9), st.text("abc", max_size=2)), max_size=4), st.data())
def test_key_ranges_check_every_column_with_bounds_of_composite_keys(
    keys: list[tuple[int, str]], data: st.DataObject
) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in keys], pa.int64()), "b": pa.array([b for _, b in keys], pa.string())}
    )
    reach = KeyRanges.of(table)
    for a, b in keys:
        assert reach.overlaps({"a": (a, a), "b": (b, b)})
        assert reach.overlaps({"a": (None, None), "b": (b, None)})
        assert reach.overlaps({"a": (a, a), "other": (5, 6)})
        assert not reach.overlaps({"a": (10, 20), "b": (b, b)})
    assert reach.overlaps({}) == bool(keys)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1.0, float("nan")]), pa.array([1, None]), pa.array([1], pa.timestamp("ns")), pa.array([1], pa.time64("us")),
        pa.array(["a"]).dictionary_encode(), pa.array([b"abcd"], pa.binary(4)), pa.array(["a"], pa.string_view()),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
def test_key_ranges_of_types_without_statistics_overlap_every_file(keys: pa.Array) -> None:
    reach = KeyRanges.of(pa.table({"id": keys, "n": pa.array([5] * len(keys))}))
    assert reach.overlaps({"id": (stat_value(100), stat_value(200))})
    assert not reach.overlaps({"id": (1, 2), "n": (6, 7)}), "the other part of the key still counts"


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([2**60], pa.timestamp("us")),
        pa.array([-(2**60)], pa.timestamp("us", "UTC")),
        pa.array([2**30], pa.date32()),
    ],
    ids=lambda array: str(array.type),
)
def test_key_ranges_support_times_beyond_python_calendar(keys: pa.Array) -> None:
    reach = KeyRanges.of(pa.table({"id": keys}))
    assert reach.overlaps({"id": (None, None)})
    assert reach.overlaps(reach.bounds())


def test_key_ranges_combine_chunks() -> None:
    reach = KeyRanges.of(pa.table({"id": pa.chunked_array([[9, 1], [], [5, 9]], pa.int64())}))
    assert reach.bounds() == {"id": (1, 9)}
    assert [n for n in range(11) if reach.overlaps({"id": (n, n)})] == [1, 5, 9]
