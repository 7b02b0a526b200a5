"""Keywords: which hold schemas."""

from __future__ import annotations

from derive.schema.dialect import subschemas


def test_subschemas_are_found_by_keyword() -> None:
    schema = {
        "$defs": {"a/b": {"items": {"type": "null"}}},
        "not": False,
        "anyOf": [{"const": {"not": {}}}],
        "properties": 3,
    }

    assert [pointer for pointer, _ in subschemas(schema)] == ["", "/$defs/a~1b", "/$defs/a~1b/items", "/anyOf/0"]
