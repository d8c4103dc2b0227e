"""Parse GTS ids; errors name the position."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.registry import gts
from penstock.core.registry.gts import (
    BASE_TYPE,
    QUERY_RETURNS,
    GtsId,
    Segment,
    parse,
    parse_schema_id,
    parse_schema_type,
)
from penstock.errors import Invalid

KEY = "7a1d2f34-5678-49ab-8def-0123456789ab"
ORDER = "gts.acme.shop.orders.order.v1~"
GIFT = f"{ORDER}acme.shop._.gift.v1.2~"

WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
NAMES = WORDS.filter(lambda word: word != "_")
NUMBERS = st.integers(0, 10**6)
SEGMENTS = st.builds(Segment, NAMES, NAMES, WORDS, NAMES, NUMBERS, st.none() | NUMBERS)
CHAINS = st.lists(SEGMENTS, min_size=1, max_size=4).map(tuple)
IDS = st.one_of(
    st.builds(GtsId, CHAINS),
    st.builds(GtsId, CHAINS.filter(lambda chain: len(chain) > 1), st.just(False)),
    st.builds(GtsId, CHAINS, st.just(False), st.uuids()),
)


@given(IDS)
def test_gts_parse_round_trips_ids(gts_id: GtsId) -> None:
    assert parse(gts_id.text) == gts_id
    assert parse(gts_id.text).text == gts_id.text
    assert parse(f"gts://{gts_id.text}") == gts_id


def test_gts_parse_distinguishes_types_from_instances() -> None:
    gift = parse(GIFT)
    assert gift.segments == (
        Segment("acme", "shop", "orders", "order", 1),
        Segment("acme", "shop", "_", "gift", 1, 2),
    )
    assert gift.is_type
    type_id, instance_id = parse(GIFT.removesuffix("~")), parse(f"{GIFT}{KEY}")
    assert not type_id.is_type
    assert not instance_id.is_type
    assert instance_id.tail == UUID(KEY)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "'gts.'"),
        ("gts", 0, "'gts.'"),
        (" gts.a.b.c.d.v1~", 0, "'gts.'"),
        ("GTS.a.b.c.d.v1~", 0, "'gts.'"),
        ("gts.", 4, "a vendor"),
        ("gts.A.b.c.d.v1~", 4, "a vendor"),
        ("gts._.b.c.d.v1~", 4, "a vendor"),
        ("gts.a.1b.c.d.v1~", 6, "a package"),
        ("gts.a._.c.d.v1~", 6, "a package"),
        ("gts.a.b.c-c.d.v1~", 8, "a namespace"),
        ("gts.a.b.c._.v1~", 10, "a type"),
        ("gts.a.b.c~", 9, "'.' and a type"),
        ("gts.a.b.c.d~", 11, "'.' and a version"),
        ("gts.a.b.c.d.1~", 12, "a version"),
        ("gts.a.b.c.d.v01~", 12, "a version"),
        ("gts.a.b.c.d.v~", 12, "a version"),
        ("gts.a.b.c.d.v1.~", 15, "a minor version"),
        ("gts.a.b.c.d.v1.02~", 15, "a minor version"),
        ("gts.a.b.c.d.v1.2.3~", 16, "'~' or the end"),
        ("gts.a.b.c.d.v١~", 12, "a version"),
        ("gts.a.b.c.d.v1", 14, "'~'"),
        ("gts.a.b.c.d.v1\n~", 12, "a version"),
        ("gts.a.b.c.d.v1~\n", 15, "a vendor"),
        ("gts.a.b.c.d.v1~~", 15, "a vendor"),
        ("gts.a.b.c.d.v1~gts.a.b.c.d.v1~", 25, "a version"),
        (f"gts.a.b.c.d.v1~{KEY}~", 15, "a vendor"),
        (f"gts.a.b.c.d.v1~{KEY.upper()}", 15, "a vendor"),
        (f"gts.{KEY}", 4, "a vendor"),
        ("gts://gts.a.B.c.d.v1~", 12, "a package"),
        ("gts://gts://gts.a.b.c.d.v1~", 6, "'gts.'"),
        ("gts." + "a" * 1_021, 1_024, "at most 1,024 characters"),
    ],
)
def test_gts_parse_rejects_bad_ids_with_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(text)
    assert raised.value.reason == "bad_gts_id"
    assert (raised.value.context["position"], f"expected {expected}" in raised.value.message) == (position, True)


def test_gts_parse_accepts_at_most_1024_characters() -> None:
    longest = "gts." + "a" * (1_024 - len("gts..b.c.d.v1~")) + ".b.c.d.v1~"
    assert len(parse(longest).text) == 1_024
    with pytest.raises(Invalid):
        parse(longest.replace(".b.", ".bb."))


def test_gts_parse_error_is_printable_for_any_text() -> None:
    with pytest.raises(Invalid) as raised:
        parse("gts.\ud800\x00é~")
    assert raised.value.context["gts_id"].isascii()
    assert raised.value.context["gts_id"].isprintable()


def test_gts_id_uuid_is_stable() -> None:
    assert str(parse(BASE_TYPE).uuid) == "452257ca-5d68-5a60-b00a-16415675b967"
    assert parse(f"gts://{BASE_TYPE}").uuid == parse(BASE_TYPE).uuid
    assert parse(GIFT).uuid != parse(GIFT.removesuffix("~")).uuid


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (KEY, True),
        (KEY.upper(), True),
        (f"{QUERY_RETURNS}{KEY}", True),
        (f"gts://{QUERY_RETURNS}{KEY}", True),
        (f"{QUERY_RETURNS}{KEY.upper()}", True),
        (f"{QUERY_RETURNS}acme.shop._.orders.v1~{KEY}", True),
        (f"{BASE_TYPE}{KEY}", False),
        (f"{ORDER}{KEY}", False),
        (f"{QUERY_RETURNS}", False),
        (f"{QUERY_RETURNS}{KEY}~", False),
        (f"~{KEY}", False),
        (f"gts://{KEY}", False),
        (f"{{{KEY}}}", False),
        (f"urn:uuid:{KEY}", False),
        (KEY.replace("-", ""), False),
        (f" {KEY}", False),
        (f"{KEY}\n", False),
        ("", False),
        ("nonsense", False),
        (f"{'x' * 5_000}~{KEY}", False),
    ],
)
def test_parse_schema_id_accepts_uuid_alone_or_after_type(text: str, is_valid: bool) -> None:
    assert parse_schema_id(text) == (UUID(KEY) if is_valid else None)


def test_parse_schema_type_accepts_query_returns_and_derived_types() -> None:
    derived = f"{QUERY_RETURNS}acme.shop._.orders.v1.3~"
    assert parse_schema_type(QUERY_RETURNS) == QUERY_RETURNS
    assert parse_schema_type(f"gts://{QUERY_RETURNS}") == QUERY_RETURNS
    assert parse_schema_type(derived) == derived
    max_name_length = gts.MAX_STORED_LENGTH - len(f"{QUERY_RETURNS}.shop._.orders.v1~")
    assert len(parse_schema_type(f"{QUERY_RETURNS}{'a' * max_name_length}.shop._.orders.v1~")) == 255


@pytest.mark.parametrize(
    ("text", "reason", "reported"),
    [
        (BASE_TYPE, "abstract_schema_type", QUERY_RETURNS),
        (f"gts://{BASE_TYPE}", "abstract_schema_type", QUERY_RETURNS),
        (ORDER, "bad_schema_type", QUERY_RETURNS),
        (f"{BASE_TYPE}acme.shop._.other.v1~", "bad_schema_type", QUERY_RETURNS),
        (QUERY_RETURNS.replace("returns.v1", "returns.v1.2"), "bad_schema_type", QUERY_RETURNS),
        (QUERY_RETURNS.replace("returns.v1", "returns.v2"), "bad_schema_type", QUERY_RETURNS),
        (f"{QUERY_RETURNS}{KEY}", "bad_schema_type", "instance"),
        (f"{QUERY_RETURNS}{'a' * 200}.shop._.orders.v1~", "bad_schema_type", "at most 255"),
        (QUERY_RETURNS.upper(), "bad_gts_id", "position 0"),
        ("query_returns", "bad_gts_id", "position 0"),
        (1, "bad_gts_id", QUERY_RETURNS),
        ([QUERY_RETURNS], "bad_gts_id", QUERY_RETURNS),
    ],
)
def test_parse_schema_type_rejects_other_types_with_advice(text: Any, reason: str, reported: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_schema_type(text)
    assert (raised.value.reason, reported in raised.value.message) == (reason, True)
