"""References to datasets: a UUID in one spelling, or a name."""

from uuid import UUID

import pytest

from penstock.core.names import DatasetName, parse_dataset_ref
from penstock.errors import Invalid

ID = UUID("550e8400-e29b-41d4-a716-446655440000")


@pytest.mark.parametrize("text", [str(ID), str(ID).upper()])
def test_parse_dataset_ref_canonical_uuid_returns_id(text: str) -> None:
    assert parse_dataset_ref(text) == ID


def test_parse_dataset_ref_name_returns_name() -> None:
    assert parse_dataset_ref("shop.orders") == DatasetName("shop", "orders")


@pytest.mark.parametrize(
    "text", [ID.hex, f"{{{ID}}}", f"urn:uuid:{ID}", f" {ID}", f"{ID}\n", "550e8400-e29b41d4a716-446655440000", "orders", ""]
)  # fmt: skip
def test_parse_dataset_ref_other_text_is_a_bad_name(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_dataset_ref(text)
    assert raised.value.reason == "bad_dataset_name"
