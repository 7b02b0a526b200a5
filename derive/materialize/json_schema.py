"""The JSON Schema of a catalog with the configuration schemas of each installed connector, for editors.

The loader does not use it: a check of a catalog asks the connector, which checks more than its schema.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from derive.protocol.specs import JSON

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength", "enum", "const")
"""Keywords that a reference to a secret need not satisfy; only the secret's value has to."""


def with_connectors(catalog_schema: JSON, connectors: Mapping[str, tuple[JSON, JSON]]) -> JSON:
    """Return the schema of a catalog that includes the connectors' schemas for materializations.

    Args:
        catalog_schema: schema of a catalog.
        connectors: schemas of the configuration and of a resource, by the last part of an image's name.
    """
    schema = copy.deepcopy(catalog_schema)
    rules = [_rule(name, endpoint, resource) for name, (endpoint, resource) in sorted(connectors.items())]
    if rules:
        schema["$defs"]["materialization"]["allOf"] = rules
    return schema


def _rule(name: str, endpoint: JSON, resource: JSON) -> JSON:
    image = {"type": "string", "pattern": rf"^(.*/)?{name.replace('.', '[.]')}([:@].*)?$"}
    is_meant = _within("endpoint", _within("connector", _within("image", image)))
    config = {
        "endpoint": {"properties": {"connector": {"properties": {"config": _or_file(name, "endpoint", endpoint)}}}}
    }
    bindings = {"bindings": {"items": {"properties": {"resource": _or_file(name, "resource", resource)}}}}
    return {"if": is_meant, "then": {"properties": {**config, **bindings}}}


def _within(name: str, schema: JSON) -> JSON:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def _or_file(name: str, kind: str, schema: JSON) -> JSON:
    """Return a schema for an inline value; a string is the name of a file."""
    if not isinstance(schema, dict):
        return schema
    inline = {keyword: part for keyword, part in _lenient(schema).items() if keyword != "$schema"}
    if "$ref" in repr(schema):
        inline = {"$id": f"flow://connector/{name}/{kind}", **inline}  # its references refer to itself
    return {"if": {"type": "object"}, "then": inline}


def _lenient(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lenient(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_text = schema.get("type") == "string"
    return {
        keyword: _lenient(part)
        for keyword, part in schema.items()
        if not (is_text and keyword in _OF_TEXTS) and keyword not in ("default", "examples")
    } | {keyword: schema[keyword] for keyword in ("default", "examples") if keyword in schema}
