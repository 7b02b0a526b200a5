"""Configuration schemas of connectors, faults of configurations, and a JSON Schema of catalogs with all schemas.

Only editors use the JSON Schema with all schemas. A check of a catalog asks the connector, which checks more than its
schema expresses.

The messages of faults come from this runtime, because the message of a validator would contain the value, and a
configuration contains secrets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from derive.document.pointer import JSON, escape
from derive.errors import Issue, ProtocolError, suggest
from derive.position import Position
from derive.protocol.secrets import HIDDEN
from derive.protocol.stubs import materialize_pb2 as pb

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength", "enum", "const")
"""Keywords that a reference to a secret need not satisfy; only the secret's value must satisfy them."""


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
        # with an `$id`, the references of the schema refer to the schema itself
        inline = {"$id": f"flow://connector/{name}/{kind}", **inline}
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


_SECRET_MARKS = ("secret", "airbyte_secret", "writeOnly")
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class ConnectorSchemas:
    """The configuration schemas of a connector.

    Attributes:
        endpoint: JSON Schema of an endpoint's configuration.
        resource: JSON Schema of a binding's resource.
        documentation_url: address of the documentation.
        refills: whether a binding that starts over is refilled beside its rows.
        is_local: whether endpoints are on the machine of the connector, such as a file.
    """

    endpoint: JSON
    resource: JSON
    documentation_url: str = ""
    refills: bool = False
    is_local: bool = False


def parse_schemas(name: str, response: pb.SpecResponse) -> ConnectorSchemas:
    """Return the configuration schemas in a connector's answer.

    Raises:
        ProtocolError: a schema is not a JSON Schema.
    """
    texts = {"endpoint": response.endpoint_spec_schema_json, "resource": response.resource_spec_schema_json}
    schemas: dict[str, Any] = {}
    for kind, text in texts.items():
        try:
            schemas[kind] = orjson.loads(text or "{}")
            _validator(schemas[kind])
        except ValueError as exc:
            reason = str(exc).partition("\n")[0]
            raise ProtocolError(f"{name} returned an invalid JSON Schema for its {kind}: {reason}") from exc
    facts = response.documentation_url, response.refills, response.is_local
    return ConnectorSchemas(schemas["endpoint"], schemas["resource"], *facts)


def faults(
    value: JSON, schema: JSON, what: str, code: str, positions: Mapping[str, Position], position: Position
) -> Iterator[Issue]:
    """Yield the faults of a configuration.

    Args:
        value: the configuration, with references resolved.
        schema: schema of the connector.
        what: name of the configuration in messages, such as `the configuration`.
        code: code of the issues.
        positions: positions of its values, by JSON pointer.
        position: position of the whole configuration.
    """
    guesses: set[tuple[str, str | None]] = set()
    by_name = sorted(_validator(schema).iter_errors(value), key=lambda fault: fault.kind.name != "additionalProperties")
    for fault in by_name:
        pointer = "".join(f"/{escape(str(step))}" for step in fault.instance_path)
        at = positions.get(pointer, position)
        noun = f"'{pointer[1:]}' of {what}" if pointer else what
        kind = fault.kind
        if kind.name == "additionalProperties":
            known = sorted(_part(schema, fault.schema_path[:-1]).get("properties", {}))
            for name in kind.unexpected:
                guess = suggest(name, known)
                guesses.add((pointer, guess))
                hint = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known) or 'none'}"
                name_at = positions.get(f"{pointer}/{escape(name)}", at)
                yield Issue(code, f"{noun} has no property '{name}'", name_at, hint)
        elif kind.name == "required":
            if (pointer, kind.property) not in guesses:  # the property has a misspelt name, which is already reported
                yield Issue(code, f"{noun} needs a property '{kind.property}'", at)
        elif kind.name == "type":
            yield Issue(code, f"{noun} must be {' or '.join(map(_a, sorted(kind.types)))}", at)
        else:
            yield Issue(code, f"{noun} is refused by the connector's schema: {fault.message}", at)


def marked_secrets(value: JSON, schema: JSON) -> Iterator[str]:
    """Yield the texts of a configuration that the connector's schema marks as secret."""
    yield from _marked(value, schema, schema, 0)


def _marked(value: JSON, part: Any, schema: JSON, depth: int) -> Iterator[str]:
    if not isinstance(part, dict) or depth > _DEEPEST:
        return
    if part.get("format") == "password" or any(part.get(mark) is True for mark in _SECRET_MARKS):
        yield from _texts(value)
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        yield from _marked(value, _part(schema, reference[2:].split("/")), schema, depth + 1)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for other in part.get(keyword, ()):
            yield from _marked(value, other, schema, depth + 1)
    if isinstance(value, dict):
        named = part.get("properties", {})
        others = [part.get("additionalProperties"), *part.get("patternProperties", {}).values()]
        for name, member in value.items():
            for of_member in [named[name]] if name in named else others:
                yield from _marked(member, of_member, schema, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _marked(item, part.get("items"), schema, depth + 1)


def _texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)


def _validator(schema: JSON) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, mask=HIDDEN, retriever=_refuse)
    except ValueError:
        # The dialect may be unknown: most of a schema means the same in all dialects.
        if not isinstance(schema, dict) or "$schema" not in schema:
            raise
        plain = {name: part for name, part in schema.items() if name != "$schema"}
        return jsonschema_rs.validator_for(plain, mask=HIDDEN, retriever=_refuse)


def _refuse(uri: str) -> JSON:
    raise ValueError(f"{uri} is not fetched")


def _part(schema: JSON, path: list[Any]) -> Any:
    """Return the part of a schema at a path; an empty schema if the path leads into another document."""
    try:
        for step in path:
            schema = schema[int(step) if isinstance(schema, list) else step]
    except (KeyError, IndexError, ValueError, TypeError):
        return {}
    return schema


def _a(kind: str) -> str:
    return kind if kind == "null" else f"an {kind}" if kind[0] in "aio" else f"a {kind}"
