"""The JSON Schema of a catalog, with what each installed connector can be configured with: for editors.

The loader does not use it: a connector is asked when a catalog is checked, and says more than its schema.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from derive.protocol.specs import JSON

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength", "enum", "const")
"""What a reference to a secret need not fulfil, though what it stands for has to."""


def with_connectors(catalog_schema: JSON, connectors: Mapping[str, tuple[JSON, JSON]]) -> JSON:
    """The schema of a catalog in which materializations are described by their connector's schemas.

    Args:
        catalog_schema: that of a catalog.
        connectors: by the last part of an image's name, schemas of the configuration and of a resource.
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
    """What is said inline; a string names a file."""
    if not isinstance(schema, dict):
        return schema
    inline = {keyword: part for keyword, part in _lenient(schema).items() if keyword != "$schema"}
    if "$ref" in repr(schema):
        inline = {"$id": f"flow://connector/{name}/{kind}", **inline}  # its references are to itself
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
