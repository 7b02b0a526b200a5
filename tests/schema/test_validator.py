"""Validation: what is asserted, and what the errors say."""

from __future__ import annotations

import pytest

from derive.errors import SchemaError
from derive.schema.validator import compile_part, compile_validator

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "reduce": {"strategy": "lastWriteWins"}},
        "a/b": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        "amount": {"type": ["number", "string"], "format": "number"},
        "count": {"type": ["integer", "string"], "format": "integer"},
    },
    "required": ["id"],
    "x-unknown": {"is": "an annotation"},
}


@pytest.mark.parametrize(
    ("document", "valid"),
    [
        ({"id": 1}, True),
        ({"id": 2**70}, True),
        ({"id": 1.0}, True),  # JSON Schema: a number without a fraction is an integer
        ({"id": True}, False),  # but a boolean is no number
        ({}, False),
        ({"id": 1, "a/b": ["2024-01-01T00:00:00Z"]}, True),
        ({"id": 1, "a/b": ["2024-01-01"]}, False),  # formats are asserted
        ({"id": 1, "amount": "12.50"}, True),
        ({"id": 1, "amount": "1e9"}, True),
        ({"id": 1, "amount": "NaN"}, True),
        ({"id": 1, "amount": "twelve"}, False),
        ({"id": 1, "amount": "١٢"}, False),  # digits are ASCII
        ({"id": 1, "count": "-12"}, True),
        ({"id": 1, "count": "1.5"}, False),
        ({"id": 1, "count": 3}, True),
    ],
)
def test_what_is_valid(document: object, valid: bool) -> None:
    assert compile_validator(SCHEMA, name="a/b").is_valid(document) is valid


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"id": "x"},
            "document [1] of 'a/b' fails its schema at '/id': \"x\" is not of type \"integer\" (keyword /properties/id/type)",
        ),
        (
            {"a/b": [1]},
            "document [1] of 'a/b' fails its schema at '': \"id\" is a required property (keyword /required)",
        ),
        (
            {"id": 1, "a/b": [1]},
            "document [1] of 'a/b' fails its schema at '/a~1b/0': 1 is not of type \"string\" (keyword /properties/a/b/items/type)",
        ),
    ],
)
def test_a_violation_names_all_there_is_to_know(document: object, message: str) -> None:
    assert str(compile_validator(SCHEMA, name="a/b").violation(document, key="[1]")) == message


def test_a_long_violation_is_cut() -> None:
    violation = compile_validator(SCHEMA, name="a/b").violation({"id": "x" * 10_000})

    assert len(str(violation)) < 400


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"a": {"type": "objekt"}}},
            "the schema of 'a/b' is not a JSON Schema: at '/properties/a/type', ",
        ),
        ({"pattern": "("}, "the schema of 'a/b' is not a JSON Schema: at '/pattern', "),
        ({"$ref": "#/$defs/x"}, "the schema of 'a/b' is not a JSON Schema: .*'/\\$defs/x' does not exist"),
        (3, "the schema of 'a/b' is not a JSON Schema: at '', 3 is not of types"),
    ],
)
def test_what_is_no_schema(schema: object, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        compile_validator(schema, name="a/b")

    assert "\n" not in str(caught.value)


def test_a_schema_is_compiled_once() -> None:
    assert compile_validator({"type": "object"}, name="a/b") is compile_validator({"type": "object"}, name="a/b")


@pytest.mark.parametrize("pointer", ["/$defs/b c~1d/oneOf/0", "/$defs/b c~1d/oneOf/1"])  # by anchor, by pointer
def test_a_part_of_a_schema_refers_to_the_whole(pointer: str) -> None:
    whole = {
        "$id": "test://a/root",
        "$defs": {
            "text": {"$anchor": "text", "type": "string"},
            "b c/d": {"oneOf": [{"$ref": "#text"}, {"$ref": "#/$defs/text"}]},
        },
    }

    is_valid = compile_part(whole, pointer, name="a/b")

    assert (is_valid("x"), is_valid(1)) == (True, False)
