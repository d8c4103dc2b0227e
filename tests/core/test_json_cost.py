"""The estimate of a JSON text is an upper bound of the memory of its values, and close to it."""

import json
import sys
import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.payload import json_cost
from penstock.core.payload.json_cost import check_json_cost, estimate_json, has_more_values
from penstock.errors import Invalid


def memory_of(value: Any) -> int:
    nested = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sys.getsizeof(value) + sum(memory_of(inner) for inner in nested)


def count_of(value: Any) -> int:
    nested = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(count_of(inner) for inner in nested)


TEXTS = {
    "empty objects": b'{"rows":[' + b",".join([b"{}"] * 10_000) + b"]}",
    "empty lists": b"[" + b",".join([b"[]"] * 10_000) + b"]",
    "small objects": b"[" + b",".join([b'{"a":1}'] * 10_000) + b"]",
    "numbers": b"[" + b",".join([b"123456"] * 10_000) + b"]",
    "long numbers": b"[" + b",".join([b"1.2345678901234567"] * 10_000) + b"]",
    "long texts": json.dumps(["x" * 1_000] * 100).encode(),
    "wide text": json.dumps(["\u20ac" * 1_000] * 100, ensure_ascii=False).encode(),
    "nested lists": b"[" * 90 + b"]" * 90,
    "members": json.dumps({f"member {n}": n for n in range(10_000)}).encode(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_estimate_json_is_an_upper_bound(name: str) -> None:
    value = json.loads(TEXTS[name])
    cost = estimate_json(TEXTS[name])
    assert count_of(value) <= cost.values + len(TEXTS[name]) // 1_000
    assert memory_of(value) <= cost.bytes


@pytest.mark.parametrize("seed", [1, 2, 3, None], ids=str)
def test_estimate_json_of_random_values_is_an_upper_bound(seed: int | None) -> None:
    seed = seed or Random().randrange(1 << 32)
    random = Random(seed)

    def value(depth: int) -> Any:
        match random.randrange(6 if depth else 4):
            case 0:
                return random.choice([None, True, False])
            case 1:
                return random.randrange(10**9)
            case 2:
                return random.random()
            case 3:
                return "x," * random.randrange(20)
            case 4:
                return [value(depth - 1) for _ in range(random.randrange(8))]
        return {f"name {n}": value(depth - 1) for n in range(random.randrange(8))}

    for _ in range(200):
        document = value(5)
        text = json.dumps(document).encode()
        assert memory_of(document) <= estimate_json(text).bytes + 600, (seed, text)


def test_check_json_cost_rejects_many_values_before_parsing() -> None:
    with pytest.raises(Invalid) as error:
        check_json_cost(TEXTS["empty objects"], 9_999)
    assert error.value.reason == "too_many_values"


def test_check_json_cost_does_not_count_characters_of_strings() -> None:
    text = json.dumps({"sql": 'SELECT "a", [1, {2}]: ' * 10_000}).encode()
    assert estimate_json(text).values > 10_000
    assert check_json_cost(text, 10).bytes >= len(text)


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('ab"\\{}[],: é'), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(JSON_VALUES, st.integers(1, 9), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_has_more_values_is_independent_of_the_block_size(
    value: Any, block_bytes: int, separators: tuple[str, str]
) -> None:
    text = json.dumps([value, 1, 2, 3], separators=separators).encode()
    counts = []
    for size in (block_bytes, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_cost, "_BLOCK_BYTES", size)
            counts.append(sum(estimate_json(part).values - 1 for part in json_cost._texts_without_strings(text)))
    assert counts[0] == counts[1]


def test_has_more_values_takes_little_memory_beside_the_text() -> None:
    text = b'{"rows": [' + b'{"a": "{,}"},' * 300_000 + b"{}]}"
    assert len(text) > 3_900_000
    tracemalloc.start()
    try:
        assert has_more_values(text, 800_000)
        assert not has_more_values(text, 1_300_000)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
