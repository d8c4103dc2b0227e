"""Describe entity sets as an OData CSDL document, in XML (CSDL XML 4.01) or JSON (CSDL JSON 4.01)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from penstock.core.odata.entity_set import JSON_OBJECT, NAMESPACE, ROW, EntitySet
from penstock.core.odata.nodes import Collection, FieldKind, Fields

VERSION = "4.0"
_CONTAINER = "Container"
_KEY = "id"
_EDMX_NAMESPACE = "http://docs.oasis-open.org/odata/ns/edmx"
_EDM_NAMESPACE = "http://docs.oasis-open.org/odata/ns/edm"
_VOCABULARY = "Org.OData.Capabilities.V1"
_VOCABULARY_URL = f"https://oasis-tcs.github.io/odata-vocabularies/vocabularies/{_VOCABULARY}"
_ALIAS = "Capabilities"
_KEY_AS_SEGMENT = f"{_ALIAS}.KeyAsSegmentSupported"  # a key is a path segment: /gts/{id}, not /gts({id})
_INSTANT = "Edm.DateTimeOffset"
_INSTANT_PRECISION = 6  # digits of a second

EDM_TYPES: dict[FieldKind, str] = {
    FieldKind.TEXT: "Edm.String",
    FieldKind.INTEGER: "Edm.Int64",
    FieldKind.NUMBER: "Edm.Double",
    FieldKind.BOOLEAN: "Edm.Boolean",
    FieldKind.GUID: "Edm.Guid",
    FieldKind.INSTANT: _INSTANT,
    FieldKind.DATE: "Edm.Date",
}


def csdl_xml(entity_sets: Sequence[EntitySet]) -> bytes:
    """Return the CSDL document of entity sets in XML."""
    root = ElementTree.Element("edmx:Edmx", {"xmlns:edmx": _EDMX_NAMESPACE, "Version": VERSION})
    reference = ElementTree.SubElement(root, "edmx:Reference", {"Uri": f"{_VOCABULARY_URL}.xml"})
    ElementTree.SubElement(reference, "edmx:Include", {"Namespace": _VOCABULARY, "Alias": _ALIAS})
    services = ElementTree.SubElement(root, "edmx:DataServices")
    schema = ElementTree.SubElement(services, "Schema", {"xmlns": _EDM_NAMESPACE, "Namespace": NAMESPACE})
    for entity_set in entity_sets:
        _add_entity_type(schema, entity_set)
    for name, fields in _complex_types(entity_sets):
        complex_type = ElementTree.SubElement(schema, "ComplexType", {"Name": name, "OpenType": "true"})
        _add_properties(complex_type, _property_types("", fields))
    ElementTree.SubElement(schema, "EntityType", {"Name": ROW, "Abstract": "true", "OpenType": "true"})
    container = ElementTree.SubElement(schema, "EntityContainer", {"Name": _CONTAINER})
    for entity_set in entity_sets:
        attributes = {"Name": entity_set.name, "EntityType": f"{NAMESPACE}.{entity_set.entity_type}"}
        ElementTree.SubElement(container, "EntitySet", attributes)
    ElementTree.SubElement(container, "Annotation", {"Term": _KEY_AS_SEGMENT, "Bool": "true"})
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def csdl_json(entity_sets: Sequence[EntitySet]) -> dict[str, Any]:
    """Return the CSDL document of entity sets in JSON."""
    types = dict[str, Any]()
    for entity_set in entity_sets:
        types[entity_set.entity_type] = {
            "$Kind": "EntityType",
            "$Key": [_KEY],
            **_json_properties(_property_types(entity_set.entity_type, entity_set.fields, entity_set.selectable)),
            **{
                name: {
                    "$Kind": "NavigationProperty",
                    "$Collection": True,
                    "$Type": f"{NAMESPACE}.{ROW}",
                    "$ContainsTarget": True,
                }
                for name in entity_set.row_collections
            },
        }
    for name, fields in _complex_types(entity_sets):
        types[name] = {"$Kind": "ComplexType", "$OpenType": True, **_json_properties(_property_types("", fields))}
    types[ROW] = {"$Kind": "EntityType", "$Abstract": True, "$OpenType": True}
    types[_CONTAINER] = {
        "$Kind": "EntityContainer",
        **{
            entity_set.name: {"$Collection": True, "$Type": f"{NAMESPACE}.{entity_set.entity_type}"}
            for entity_set in entity_sets
        },
        f"@{_KEY_AS_SEGMENT}": True,
    }
    return {
        "$Version": VERSION,
        "$EntityContainer": f"{NAMESPACE}.{_CONTAINER}",
        "$Reference": {f"{_VOCABULARY_URL}.json": {"$Include": [{"$Namespace": _VOCABULARY, "$Alias": _ALIAS}]}},
        NAMESPACE: types,
    }


def _add_entity_type(schema: ElementTree.Element, entity_set: EntitySet) -> None:
    entity_type = ElementTree.SubElement(schema, "EntityType", {"Name": entity_set.entity_type})
    key = ElementTree.SubElement(entity_type, "Key")
    ElementTree.SubElement(key, "PropertyRef", {"Name": _KEY})
    _add_properties(entity_type, _property_types(entity_set.entity_type, entity_set.fields, entity_set.selectable))
    for name in entity_set.row_collections:
        attributes = {"Name": name, "Type": f"Collection({NAMESPACE}.{ROW})", "ContainsTarget": "true"}
        ElementTree.SubElement(entity_type, "NavigationProperty", attributes)


def _add_properties(parent: ElementTree.Element, types: Mapping[str, str]) -> None:
    for name, edm_type in types.items():
        attributes = {"Name": name, "Type": edm_type}
        if edm_type == _INSTANT:
            attributes["Precision"] = str(_INSTANT_PRECISION)
        if not _is_nullable(name, edm_type):
            attributes["Nullable"] = "false"
        ElementTree.SubElement(parent, "Property", attributes)


def _json_properties(types: Mapping[str, str]) -> dict[str, Any]:
    properties = dict[str, Any]()
    for name, edm_type in types.items():
        is_collection = edm_type.startswith("Collection(")
        item_type = edm_type.removeprefix("Collection(").removesuffix(")")
        properties[name] = {
            "$Type": item_type,
            **({"$Collection": True} if is_collection else {}),
            **({"$Precision": _INSTANT_PRECISION} if edm_type == _INSTANT else {}),
            **({"$Nullable": True} if _is_nullable(name, edm_type) else {}),
        }
    return properties


def _is_nullable(name: str, edm_type: str) -> bool:
    return name != _KEY and not edm_type.startswith("Collection(")


def _property_types(entity_type: str, fields: Fields, selectable: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the EDM type of each property."""
    types = dict[str, str]()
    for name, kind in fields.items():
        if isinstance(kind, Collection):
            types[name] = f"Collection({NAMESPACE}.{_item_type(entity_type, name)})"
        else:
            types[name] = EDM_TYPES[kind]
    return {**types, **(selectable or {})}


def _complex_types(entity_sets: Sequence[EntitySet]) -> Iterator[tuple[str, Fields]]:
    """Yield the name and the fields of every complex type."""
    yield JSON_OBJECT.removeprefix(f"{NAMESPACE}."), {}
    for entity_set in entity_sets:
        for name, kind in entity_set.fields.items():
            if isinstance(kind, Collection):
                yield _item_type(entity_set.entity_type, name), kind.fields


def _item_type(entity_type: str, name: str) -> str:
    return f"{entity_type}{name.capitalize()}Item"
