"""Redaction: no schema that annotates a value lets it through, in whatever way it is said."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.exact import dump_exact
from derive.document.pointer import JSON
from derive.schema.redaction import Redaction, RedactionError, Redactor, redacted_schema
from derive.schema.shape import infer
from derive.schema.validator import compile_validator

BLOCK: JSON = {"redact": {"strategy": "block"}}
HASH: JSON = {"redact": {"strategy": "sha256"}}
SALT = b"salt"


def hashed(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(SALT + data).hexdigest()}"


def redact(schema: JSON, document: JSON) -> JSON:
    return Redactor(Redaction(schema), SALT).redact(document)


@pytest.mark.parametrize(
    ("schema", "document", "redacted"),
    [
        ({"properties": {"a": BLOCK}}, {"a": 1, "b": 2}, {"b": 2}),
        ({"properties": {"a": HASH}}, {"a": "x"}, {"a": hashed(b"x")}),
        ({"properties": {"a": HASH}}, {"a": None}, {"a": None}),
        ({"properties": {"a": HASH}}, {"a": 12}, {"a": hashed(b"12")}),
        ({"properties": {"a": HASH}}, {"a": {"c": 1, "b": [True]}}, {"a": hashed(b'{"b":[true],"c":1}')}),
        ({"properties": {"a": HASH}}, {"a": hashed(b"x")}, {"a": hashed(b"x")}),
        ({"properties": {"a": {"properties": {"b": BLOCK}}}}, {"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}),
        ({"properties": {"a": {"items": HASH}}}, {"a": ["x", None]}, {"a": [hashed(b"x"), None]}),
        ({"properties": {"a": {"items": BLOCK}}}, {"a": ["x", "y"]}, {"a": []}),
        ({"properties": {"a": {"prefixItems": [{}, BLOCK]}}}, {"a": [1, 2, 3]}, {"a": [1, None, 3]}),
        ({"additionalProperties": BLOCK, "properties": {"a": {}}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"patternProperties": {"^s_": BLOCK}}, {"s_a": 1, "b": 2}, {"b": 2}),
        # In whatever place it is said
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": BLOCK}}]}, {"a": 1}, {}),
        ({"oneOf": [{"required": ["b"]}, {"properties": {"a": BLOCK}}]}, {"a": 1}, {}),
        ({"anyOf": [{"properties": {"a": BLOCK}}, {}]}, {"a": 1}, {}),
        ({"if": {"required": ["b"]}, "then": {"properties": {"a": BLOCK}}}, {"a": 1}, {}),
        ({"dependentSchemas": {"b": {"properties": {"a": BLOCK}}}}, {"a": 1}, {}),
        ({"properties": {"a": {"$ref": "#/$defs/d"}}, "$defs": {"d": BLOCK}}, {"a": 1}, {}),
        ({"$ref": "#/$defs/d", "$defs": {"d": {"properties": {"a": BLOCK}}}}, {"a": 1}, {}),
        ({"properties": {"a": {"$ref": "#n"}}, "$defs": {"d": {"$anchor": "n", **BLOCK}}}, {"a": 1}, {}),
        (
            {"properties": {"a": BLOCK, "next": {"$ref": "#"}}},
            {"a": 1, "next": {"a": 2, "next": {"a": 3, "b": 4}}},
            {"next": {"next": {"b": 4}}},
        ),
    ],
    ids=str,
)
def test_documents_are_redacted_by_annotations(schema: JSON, document: JSON, redacted: JSON) -> None:
    before = dump_exact(document)

    assert redact(schema, document) == redacted
    assert dump_exact(document) == before
    assert redact(schema, redacted) == redacted
    assert compile_validator(redacted_schema(schema), name="x").is_valid(redacted)


def test_redacted_schema_has_hash_types_and_requires_no_removed_property() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b", "c"],
        "properties": {
            "a": {"type": "integer", "minimum": 3, "title": "A", **HASH},
            "b": {"type": ["string", "null"], "format": "email", **HASH},
            "c": {"type": "string", **BLOCK},
            "d": {"type": "array", "items": {"type": "object", "required": ["e"], "properties": {"e": BLOCK}}},
        },
    }
    shape = infer(redacted_schema(schema))

    assert shape.required == {"a", "b"}
    assert shape.properties["a"].types == {"string"}
    assert shape.properties["a"].title == "A"
    assert shape.properties["b"].types == {"string", "null"}
    assert shape.properties["c"].types == frozenset()
    stored = redact(schema, {"a": 1, "b": "x", "c": "y", "d": [{"e": 1}]})
    assert compile_validator(redacted_schema(schema), name="x").is_valid(stored)


@pytest.mark.parametrize(
    ("schema", "pointer", "message"),
    [
        (BLOCK, "/redact", "'redact' is at the root of the schema"),
        ({"properties": {"a": {"redact": "block"}}}, "/properties/a/redact", "needs a strategy"),
        ({"properties": {"a": {"redact": {"strategy": "md5"}}}}, "/properties/a/redact", "needs a strategy"),
        ({"properties": {"a": {"redact": {"strategy": "block", "x": 1}}}}, "/properties/a/redact", "needs a strategy"),
        ({"properties": {"a": {"not": BLOCK}}}, "/properties/a/not/redact", "describes no location"),
        ({"$defs": {"d": BLOCK}}, "/$defs/d/redact", "describes no location"),
        ({"properties": {"a": {"allOf": [BLOCK, HASH]}}}, "/properties/a/allOf/0/redact", "by 'block' and by 'sha256'"),
    ],
)
def test_invalid_redact_annotation_is_an_error(schema: JSON, pointer: str, message: str) -> None:
    with pytest.raises(RedactionError, match=message) as caught:
        redacted_schema(schema)

    assert caught.value.pointer == pointer


CARD, PASSPORT = {"required": ["card"]}, {"required": ["passport"]}


@pytest.mark.parametrize("annotation", [BLOCK, HASH])
@pytest.mark.parametrize(
    ("more", "document"),
    [
        ({"oneOf": [CARD, PASSPORT]}, {"card": "1"}),
        ({"allOf": [{"anyOf": [True]}], "anyOf": [True], "oneOf": [CARD, PASSPORT]}, {"passport": "1"}),
        ({"oneOf": [{"properties": {"card": {"type": kind}}} for kind in ("string", "integer")]}, {"card": "1"}),
        ({"oneOf": [{"oneOf": [CARD, PASSPORT]}, {"required": ["x"]}]}, {"card": "1"}),
        ({"oneOf": [{"$ref": "#/$defs/d"}, {"required": ["x"]}], "$defs": {"d": CARD}}, {"card": "1", "passport": "2"}),
        ({"if": {"properties": {"card": {"const": "x"}}}, "then": {"required": ["y"]}}, {"card": "z"}),
        ({"if": CARD, "then": PASSPORT, "else": {"required": ["x"]}}, {"x": 1}),
        ({"dependentRequired": {"x": ["card"]}}, {"x": 1, "card": "1"}),
        ({"dependencies": {"x": ["card"], "y": True}}, {"x": 1, "card": "1"}),
        ({"minProperties": 2}, {"card": "1", "passport": "2"}),
        ({"const": {"card": "1"}}, {"card": "1"}),
        ({"enum": [{"card": "1"}]}, {"card": "1"}),
    ],
    ids=str,
)
def test_valid_document_is_valid_when_redacted(annotation: JSON, more: JSON, document: JSON) -> None:
    """Validation refuses no document for a value that redaction removes."""
    schema = {"type": "object", "properties": {"card": annotation, "passport": annotation}, **more}

    assert compile_validator(schema, name="x").is_valid(document)
    assert compile_validator(redacted_schema(schema), name="x").is_valid(redact(schema, document))


@pytest.mark.parametrize(
    ("annotation", "more", "items"),
    [
        (BLOCK, {"minItems": 2}, [1, 2]),
        (HASH, {"contains": {"const": 1}, "minContains": 1}, [1]),
        (BLOCK, {"uniqueItems": True, "prefixItems": [BLOCK, BLOCK]}, [1, 2, 3]),
    ],
)
def test_valid_array_is_valid_when_redacted(annotation: JSON, more: JSON, items: JSON) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": annotation, **more}}}

    assert compile_validator(schema, name="x").is_valid({"a": items})
    assert compile_validator(redacted_schema(schema), name="x").is_valid(redact(schema, {"a": items}))


SECRET = "personal"


@st.composite
def annotated(draw: st.DrawFn, depth: int = 3) -> tuple[JSON, JSON]:
    """Generate a schema and a value of it, with `SECRET` in all that is redacted and nowhere else."""
    kind = draw(st.sampled_from(["plain", "block", "sha256", *(["object", "array"] if depth else [])]))
    if kind == "plain":
        return {}, draw(st.sampled_from([1, "x", None, True]))
    if kind in ("block", "sha256"):
        secret = draw(st.sampled_from([SECRET, [SECRET], {SECRET: SECRET}, {"x": [{"y": f"a {SECRET}"}]}]))
        return {"redact": {"strategy": kind}}, secret
    children = draw(st.lists(annotated(depth - 1), min_size=1, max_size=3))
    if kind == "array":
        schema: JSON = {"type": "array", "prefixItems": [child for child, _ in children]}
        return schema, [value for _, value in children]
    names = [f"p{index}" for index in range(len(children))]
    properties = {name: child for name, (child, _) in zip(names, children, strict=True)}
    value = {name: item for name, (_, item) in zip(names, children, strict=True)}
    way = draw(st.sampled_from(["plain", "allOf", "$ref", "apart"]))
    schema = {"type": "object", "required": names, "properties": properties}
    if way == "allOf":
        schema = {"type": "object", "allOf": [{"properties": {name: child}} for name, child in properties.items()]}
    if way == "apart":
        schema = {"allOf": [schema, {"properties": {names[0]: {"description": "too"}}}]}
    if way == "$ref":
        schema = {"type": "object", "properties": {name: {"oneOf": [child]} for name, child in properties.items()}}
    return schema, value


@given(annotated().filter(lambda drawn: drawn[0].get("type") == "object"))
def test_redaction_leaves_no_redacted_value(drawn: tuple[Any, Any]) -> None:
    """A redacted document has no byte of a redacted value, is valid as stored, and stays as it is."""
    schema, document = drawn
    stored = redact(schema, document)
    validator = compile_validator(redacted_schema(schema), name="x")

    assert SECRET not in dump_exact(stored).decode()
    assert validator.is_valid(stored), validator.violation(stored).message
    assert redact(schema, stored) == stored
    columns = {name: Redactor(Redaction(schema), SALT).redact_column(name, [value]) for name, value in document.items()}
    assert {name: column[0] for name, column in columns.items() if column is not None} == stored


def test_errors_of_a_schema_that_redacts_show_no_value() -> None:
    schema = redacted_schema({"type": "object", "properties": {"p": {"type": "object", "properties": {"a": HASH}}}})
    validator = compile_validator(schema, name="x")

    message = validator.violation({"p": [{"a": SECRET}]}).message

    assert (
        message
        == "document of 'x' fails its schema at '/p': the value is not of type \"object\" (keyword /properties/p/type)"
    )
