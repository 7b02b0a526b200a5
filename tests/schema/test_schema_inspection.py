"""What compiles, and is wrong all the same."""

from __future__ import annotations

import pytest

from derive.document.pointer import JSON
from derive.schema.infer import infer
from derive.schema.inspection import Fault, inspect


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"required": ["a"], "properties": {"a": False}}, ["/a"]),
        ({"properties": {"a": False}}, []),  # it need not exist
        ({"required": ["a/b"], "properties": {"a/b": {"type": "string", "const": 1}}}, ["/a~1b"]),
        ({"required": ["a"], "additionalProperties": False}, ["/a"]),
        ({"properties": {"x": {"allOf": [{"required": ["y"]}, {"properties": {"y": False}}]}}}, ["/x/y"]),
        ({"prefixItems": [True, False], "minItems": 2}, ["/1"]),
        ({"prefixItems": [True, False], "minItems": 1}, []),
        ({"prefixItems": [True], "items": False, "minItems": 2}, ["/1"]),
        ({"prefixItems": [True], "items": False, "minItems": 1}, []),
    ],
)
def test_locations_that_must_exist_and_cannot(schema: JSON, pointers: list[str]) -> None:
    found = inspect(schema, infer(schema), name="a/b")

    assert [(each.kind, each.pointer) for each in found] == [("impossible", pointer) for pointer in pointers]


def test_defaults_that_are_not_valid() -> None:
    schema = {
        "properties": {
            "good": {"type": "integer", "default": 2**70},
            "bad": {"$ref": "#/$defs/small", "default": 2**70},
            "default": {"type": "string"},
        },
        "$defs": {"small": {"type": "integer", "maximum": 9, "default": "none"}},
        "not": {"default": 3},
    }

    assert inspect(schema, infer(schema), name="a/b") == [
        Fault("default", "/properties/bad/default", f"the default {2**70} is not valid under its own schema"),
        Fault("default", "/$defs/small/default", 'the default "none" is not valid under its own schema'),
    ]


def test_what_is_impossible_is_told_with_its_place() -> None:
    (fault,) = inspect(
        {"required": ["a"], "properties": {"a": False}},
        infer({"required": ["a"], "properties": {"a": False}}),
        name="x",
    )

    assert fault.message == "'/a' must exist, but no value of it is valid"
