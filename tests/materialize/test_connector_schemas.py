"""Schemas of connectors: what they mark as secret, and schemas that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from derive.errors import ProtocolError
from derive.materialize.schemas import ConnectorSchemas, faults, marked_secrets, parse_schemas
from derive.position import Position
from derive.protocol.stubs import materialize_pb2 as pb

AT = Position("flow.yaml", 1, 1)
SECRET = {"type": "string", "secret": True}


@pytest.mark.parametrize(
    ("schema", "value", "secrets"),
    [
        ({"properties": {"a": SECRET, "b": {}}}, {"a": "x", "b": "y", "c": "z"}, {"x"}),
        ({"properties": {"a": {"format": "password"}}}, {"a": "x"}, {"x"}),
        ({"properties": {"a": {"writeOnly": True}, "b": {"airbyte_secret": True}}}, {"a": {"k": ["x"]}, "b": "y"}, {"x", "y"}),
        ({"properties": {"a": {"secret": False}}}, {"a": "x"}, set()),
        ({"properties": {"a": {"additionalProperties": SECRET, "properties": {"b": {}}}}}, {"a": {"b": "x", "c": "y"}}, {"y"}),
        ({"patternProperties": {"^a": SECRET}}, {"a1": "x"}, {"x"}),
        ({"properties": {"a": {"items": SECRET}}}, {"a": ["x", "y"]}, {"x", "y"}),
        ({"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": SECRET}}, {"a": "x"}, {"x"}),
        ({"oneOf": [{"properties": {"a": SECRET}}, {"properties": {"b": SECRET}}]}, {"b": "x"}, {"x"}),
        ({"$ref": "#", "properties": {"a": SECRET}}, {"a": "x"}, {"x"}),
        ({"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}}, {"a": "x"}, set()),
        (True, {"a": "x"}, set()),
    ],
)  # fmt: skip
def test_marked_secrets_are_found(schema: Any, value: Any, secrets: set[str]) -> None:
    assert set(marked_secrets(value, schema)) == secrets


def test_unknown_schema_dialect_is_refused() -> None:
    schema = {"$schema": "http://json-schema.example/draft/2099-01/schema", "required": ["path"]}

    schemas = parse_schemas("it", pb.SpecResponse(endpoint_spec_schema_json=json.dumps(schema)))

    assert schemas == ConnectorSchemas(schema, {})
    assert [issue.message for issue in faults({}, schema, "the configuration", "E708", {}, AT)] == [
        "the configuration needs a property 'path'"
    ]


@pytest.mark.parametrize(
    "text", ["{", '{"type": 5}', '{"$ref": "https://nowhere.example/x.json"}', '{"$ref": "#/none"}']
)
def test_invalid_schema_is_reported(text: str) -> None:
    with pytest.raises(ProtocolError, match="it returned an invalid JSON Schema for its resource: "):
        parse_schemas("it", pb.SpecResponse(resource_spec_schema_json=text))


def test_faults_have_positions() -> None:
    schema = {
        "properties": {
            "a/b": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"path": {"type": ["integer", "null"]}},
            }
        }
    }
    positions = {f"/a~1b{name}": Position("flow.yaml", line, 1) for name, line in (("", 2), ("/path", 3), ("/pth", 4))}

    issues = faults({"a/b": {"path": "s3cret", "pth": 1}}, schema, "the configuration", "E708", positions, AT)

    assert [(issue.message, issue.position.line) for issue in issues] == [
        ("'a~1b' of the configuration has no property 'pth'", 4),
        ("'a~1b/path' of the configuration must be an integer or null", 3),
    ]
