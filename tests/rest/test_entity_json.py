"""A response with spliced JSON equals a response that serializes whole entities."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from penstock.core.registry.schema_entry import SchemaDraft, SchemaEntry
from penstock.core.result_schema import FieldType, ResultField
from penstock.rest.requests import media_types
from penstock.rest.responses.entity_json import entity_json

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def entry(name: str = "sales", version: int = 1) -> SchemaEntry:
    draft = SchemaDraft(name, 'quotes " and \ud800', (ResultField("id", FieldType.NUMBER),), {"a": [1, None, "é"]})
    return SchemaEntry(uuid4(), uuid4(), draft, version, NOW, NOW, uuid4(), NOW, uuid4())


@pytest.mark.parametrize("head", [{}, {"@odata.context": "/$metadata#gts"}, {"a": 1, "@odata.count": 2}])
@pytest.mark.parametrize("tail", [{}, {"@odata.nextLink": "/gts?$skiptoken=x"}])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_spliced_page_equals_the_serialized_page(head: dict[str, object], tail: dict[str, object], count: int) -> None:
    items = [entry(f"s{number}") for number in range(count)]
    spliced = media_types.spliced_json_response(head, "value", map(entity_json, items), tail, {})
    serialized = media_types.json_response({**head, "value": [item.as_json() for item in items], **tail})
    assert spliced.body == serialized.body


@pytest.mark.parametrize("head", [{}, {"@odata.context": "/$metadata#gts/$entity"}])
def test_prefixed_entity_equals_the_serialized_entity(head: dict[str, object]) -> None:
    item = entry()
    prefixed = media_types.prefixed_json_response(head, entity_json(item), 200, {})
    assert prefixed.body == media_types.json_response({**head, **item.as_json()}).body


def test_entity_json_of_another_revision_is_serialized_again() -> None:
    first = entry()
    assert json.loads(entity_json(first))["name"] == "sales"
    renamed = replace(first, draft=replace(first.draft, name="orders"), version=2)
    assert json.loads(entity_json(renamed))["name"] == "orders"
    # A transaction that was rolled back may have used the same revision number.
    changed = replace(renamed, draft=replace(first.draft, name="other"), updated_at=NOW + timedelta(microseconds=1))
    assert json.loads(entity_json(changed))["name"] == "other"
