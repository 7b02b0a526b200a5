"""Validation: what is asserted, and what the errors say."""

from __future__ import annotations

import pytest

from derive.errors import SchemaError
from derive.position import Position
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
def test_validator_accepts_valid_documents_only(document: object, valid: bool) -> None:
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
            "document [1] of 'a/b' fails its schema: \"id\" is a required property (keyword /required)",
        ),
        (
            {"id": 1, "a/b": [1]},
            "document [1] of 'a/b' fails its schema at '/a~1b/0': 1 is not of type \"string\" (keyword /properties/a~1b/items/type)",
        ),
    ],
)
def test_violation_names_document_location_and_keyword(document: object, message: str) -> None:
    assert str(compile_validator(SCHEMA, name="a/b").violation(document, key="[1]")) == message


def test_violation_of_a_deep_document_has_a_message() -> None:
    """The library copies the value of an error, and refuses to copy a deep one."""
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    message = str(compile_validator(SCHEMA, name="a/b").violation(deep))
    assert message == "document of 'a/b' is not valid, and it is nested more than 250 levels deep"


def test_violation_has_the_position_of_the_failed_schema() -> None:
    schema = {
        "properties": {"a/b": {"$ref": "#/$defs/text"}, "c": {"type": "null"}},
        "$defs": {"text": {"type": "string"}},
    }
    positions = {
        "": Position("a.yaml", 1, 1),
        "/$defs/text": Position("a.yaml", 9, 3),
        "/properties/c/type": Position("a.yaml", 5, 7),
    }
    violation = compile_validator(schema, name="a/b").violation

    assert str(violation({"a/b": 1}, positions=positions)) == (
        "a.yaml:9:3: document of 'a/b' fails its schema at '/a~1b': 1 is not of type \"string\" (keyword /$defs/text/type)"
    )
    assert violation({"c": 1}, positions=positions).position == Position("a.yaml", 5, 7)
    assert violation({"c": 1}, positions={"/properties": Position("b.yaml")}).position == Position("b.yaml")
    assert violation({"c": 1}, positions={"/$defs": Position("b.yaml")}).position is None
    assert violation({"c": 1}).position is None


NULLABLE = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
KINDS = {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}


@pytest.mark.parametrize(
    ("schema", "document", "where"),
    [
        (NULLABLE, "soon", 'fails its schema: "soon" is not a "date", such as 2024-05-01 (keyword /anyOf/0/format)'),
        (
            {"format": "date-time"},
            "2024-05-01 09:00",
            '"2024-05-01 09:00" is not a "date-time", such as 2024-05-01T09:00:00Z (keyword /format)',
        ),
        (
            NULLABLE,
            1,
            "fails its schema: 1 is not valid under any of the schemas listed in the 'anyOf' keyword (keyword /anyOf)",
        ),
        (
            KINDS,
            {},
            "fails its schema: {} is not valid under any of the schemas listed in the 'oneOf' keyword (keyword /oneOf)",
        ),
        (KINDS, {"a": 1, "b": 2}, "listed in the 'oneOf' keyword (keyword /oneOf)"),  # of both
        (
            {"oneOf": [{"type": "array", "items": NULLABLE}, {"type": "null"}]},  # one inside the other
            [None, "soon"],
            'at \'/1\': "soon" is not a "date", such as 2024-05-01 (keyword /oneOf/0/items/anyOf/0/format)',
        ),
    ],
)
def test_violation_of_alternatives_is_reported_for_the_matching_type(
    schema: object, document: object, where: str
) -> None:
    assert str(compile_validator(schema, name="a/b").violation(document)).endswith(where)


def test_a_valid_document_has_no_violation_to_report() -> None:
    assert str(compile_validator(True, name="a/b").violation({}, key="[1]")) == "document [1] of 'a/b' is not valid"


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
        (
            {"$ref": "https://example.com/x"},
            "the reference to https://example.com/x cannot be resolved, because validation loads no URL",
        ),
        ({"properties": {"a": {"x-str-maximum": "ten"}}}, "at '/properties/a/x-str-maximum', .*'ten' is not a number"),
        ({"properties": {"a": {"x-str-minimum": True}}}, "at '/properties/a/x-str-minimum', .*True is not a number"),
        # YAML's null, where the name of the type is meant
        ({"type": None}, "at '/type', .*in YAML, the name of the type must be quoted: \"null\""),
        ({"properties": {"a": {"type": ["string", None]}}}, "at '/properties/a/type', .*must be quoted"),
    ],
)
def test_invalid_schemas_are_refused(schema: object, message: str) -> None:
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


def test_part_of_an_invalid_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="the schema of 'a/b' is not a JSON Schema"):
        compile_part({"$defs": {"a": {"type": "objekt"}}}, "/$defs/a", name="a/b")
    with pytest.raises(SchemaError, match="the schema of 'a/b' is not a JSON Schema: at '', .*/gone' does not exist"):
        compile_part({"$defs": {"a": True}}, "/$defs/gone", name="a/b")
    with pytest.raises(SchemaError, match="the schema of 'a/b' is not a JSON Schema"):
        compile_part(3, "", name="a/b")
    with pytest.raises(SchemaError, match="the schema of 'a/b' is not a JSON Schema: Unknown meta-schema: 'urn:x'"):
        compile_part({"$schema": "urn:x"}, "", name="a/b")


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"maximum": 2**64}, 2**64, True),  # integers are exact, however wide
        ({"maximum": 2**64}, 2**64 + 1, False),
        ({"const": 2**70}, 2**70, True),
        ({"const": 2**70}, 2**70 + 1, False),
        ({"multipleOf": 3}, 3 * 2**70, True),
        ({"multipleOf": 3}, 3 * 2**70 + 1, False),
        ({"type": "fractional"}, 1.5, True),
        ({"type": "fractional"}, 1, False),
        ({"type": "fractional"}, 1.0, False),  # an integer by value
        ({"type": "fractional"}, "1.5", False),
        ({"type": ["fractional", "string"]}, "x", True),
        ({"type": ["fractional", "string"]}, 2, False),
        ({"type": ["fractional", "integer"]}, 2, True),
        ({"type": ["number", "fractional"]}, 2, True),
        ({"items": {"type": "fractional"}}, [1.5, 2], False),
        ({"properties": {"type": {"type": "fractional"}}}, {"type": 1}, False),
        ({"const": {"type": "fractional"}}, {"type": "fractional"}, True),  # a value, not a schema
        ({"x-str-minimum": "-10"}, "-10.0", True),
        ({"x-str-minimum": "-10"}, "-10.01", False),
        ({"x-str-minimum": 2}, "10", True),  # by value, not letter by letter
        ({"x-str-maximum": "99999999999999999999"}, "99999999999999999999", True),
        ({"x-str-maximum": "99999999999999999999"}, "100000000000000000000", False),
        ({"x-str-maximum": "1"}, "Infinity", False),
        ({"x-str-maximum": "1"}, "NaN", True),
        ({"x-str-maximum": "1"}, "two", True),
        ({"x-str-maximum": "1"}, 2, True),  # of text alone
    ],
)
def test_validator_asserts_keywords_beyond_the_draft(schema: object, value: object, valid: bool) -> None:
    assert compile_validator(schema, name="a/b").is_valid(value) is valid


def test_a_violation_names_the_keyword_that_was_written() -> None:
    schema = {"properties": {"x": {"type": "fractional"}, "y": {"x-str-minimum": "2"}}}
    violation = compile_validator(schema, name="a/b").violation

    assert str(violation({"x": 1})) == (
        "document of 'a/b' fails its schema at '/x': 1 is not of type \"fractional\" (keyword /properties/x/type)"
    )
    assert str(violation({"y": "1"})) == (
        "document of 'a/b' fails its schema at '/y': \"1\" is less than the minimum of 2 (keyword"
        " /properties/y/x-str-minimum)"
    )
    assert schema["properties"]["x"] == {"type": "fractional"}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date-time", "2024-01-01T00:00:00.5+01:00", "2024-01-01 00:00:00"),
        ("time", "12:00:00Z", "25:00:00Z"),
        ("duration", "P1DT2H", "1 day"),
        ("email", "a@example.com", "example.com"),
        ("hostname", "example.com", "-example.com"),
        ("ipv4", "127.0.0.1", "127.0.0.256"),
        ("ipv6", "::1", "12345::"),
        ("uuid", "6c2d1e9e-1234-11ee-8080-010203040506", "6c2d1e9e"),
        ("uri", "https://example.com/a", "/a"),
        ("uri-reference", "/a", "\\\\a"),
        ("json-pointer", "/a~1b", "a"),
        ("regex", "^a+$", "("),
        ("integer", "1.0", "1.5"),
        ("number", "-1.0e-3", "1."),
        ("sha256", "sha256:" + "0f" * 32, "0f"),
        ("color", "anything", None),  # not one the project knows: an annotation
    ],
)
def test_formats_accept_and_refuse_values(name: str, good: str, bad: str | None) -> None:
    is_valid = compile_validator({"format": name}, name="a/b").is_valid

    assert is_valid(good)
    assert is_valid(1)  # a format is of strings
    assert bad is None or not is_valid(bad)
