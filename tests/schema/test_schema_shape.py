"""Laws of shapes, and that a shape bounds every document its schema allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from conftest import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shape_oracle import allows

from derive.document.pointer import JSON
from derive.schema.bundle import bundle
from derive.schema.shape import (
    ALL,
    ANYTHING,
    MULTIPLE,
    NOTHING,
    Inference,
    Shape,
    infer,
    intersect,
    locate,
    type_of,
    union,
)
from derive.schema.validator import compile_validator

NAMES = st.sampled_from(["a", "b", "c"])
PATTERNS = st.sampled_from(["^a", "b", "[ac]"])
DOCUMENTS: st.SearchStrategy[JSON] = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, 2, "", "x", "12", "long text", "2024-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=2)
    number = st.sampled_from([0, 1, 1.5, 2])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=4, unique=True),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "unevaluatedProperties": inner,
        "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        "prefixItems": some,
        "items": inner,
        "unevaluatedItems": inner,
        "contains": inner,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3),
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "if": inner,
        "then": inner,
        "else": inner,
        "not": inner,
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b", "#b", "#/%24defs/a", "#"]),
        "enum": st.lists(DOCUMENTS, min_size=1, max_size=3, unique_by=repr),
        "const": DOCUMENTS,
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 4),
        "minimum": number,
        "exclusiveMinimum": number,
        "maximum": number,
        "exclusiveMaximum": number,
        "format": st.sampled_from(["date", "integer", "number"]),
        "contentEncoding": st.sampled_from(["base64", "uuid"]),
        "title": st.sampled_from(["one", "two"]),
        "reduce": st.sampled_from([{"strategy": "sum"}, {"strategy": "merge"}]),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


def _rooted(schema: JSON, a: JSON, b: JSON) -> JSON:
    if not isinstance(schema, dict):
        return schema
    anchored = {"$anchor": "b", **b} if isinstance(b, dict) else {"$anchor": "b", "allOf": [b]}
    return {**schema, "$defs": {"a": a, "b": anchored}}


_PARTS = st.recursive(st.booleans() | _schemas(st.booleans()), _schemas, max_leaves=5)
SCHEMAS = st.builds(_rooted, _PARTS, _PARTS, _PARTS)
SHAPES = SCHEMAS.map(infer)


def bare(shape: Shape) -> Shape:
    """A shape without what an intersection takes from the left: annotations."""

    def each(inner: Shape | None) -> Shape | None:
        return None if inner is None else bare(inner)

    return replace(
        shape,
        properties={name: bare(inner) for name, inner in shape.properties.items()},
        patterns={name: bare(inner) for name, inner in shape.patterns.items()},
        rest=each(shape.rest),
        prefix=tuple(bare(inner) for inner in shape.prefix),
        items=each(shape.items),
        title=None,
        format=None,
        content_encoding=None,
        reduction=None,
    )


@given(SHAPES)
def test_union_and_intersect_are_idempotent(shape: Shape) -> None:
    assert intersect(shape, shape) == shape
    assert union(shape, shape) == shape


@given(SHAPES, SHAPES)
def test_union_and_intersect_are_commutative(left: Shape, right: Shape) -> None:
    assert union(left, right) == union(right, left)
    assert bare(intersect(left, right)) == bare(intersect(right, left))


@given(SHAPES)
def test_union_and_intersection_have_neutral_and_absorbing_shapes(shape: Shape) -> None:
    assert union(shape, ANYTHING) == union(ANYTHING, shape) == ANYTHING
    assert union(shape, NOTHING) == union(NOTHING, shape) == shape
    assert intersect(shape, NOTHING) == intersect(NOTHING, shape) == NOTHING
    assert intersect(shape, ANYTHING) == intersect(ANYTHING, shape) == shape


@given(SHAPES, SHAPES, SHAPES)
def test_union_and_intersect_are_associative_without_nesting(a: Shape, b: Shape, c: Shape) -> None:
    # Where one side knows a property by name and another by pattern, the bound depends on the order, and stays a bound.
    flat = [
        replace(each, properties={}, patterns={}, rest=None, required=frozenset(), prefix=(), items=None)
        for each in (a, b, c)
    ]
    a, b, c = flat

    assert intersect(a, intersect(b, c)) == intersect(intersect(a, b), c)
    assert replace(union(a, union(b, c)), title=None, reduction=None) == replace(
        union(union(a, b), c), title=None, reduction=None
    )


@given(SHAPES, SHAPES, DOCUMENTS)
def test_union_accepts_values_of_either_shape(left: Shape, right: Shape, document: JSON) -> None:
    if allows(left, document) or allows(right, document):
        assert allows(union(left, right), document)


@given(SHAPES, SHAPES, DOCUMENTS)
def test_intersection_accepts_values_of_both_shapes(left: Shape, right: Shape, document: JSON) -> None:
    if allows(left, document) and allows(right, document):
        assert allows(intersect(left, right), document)


@given(SHAPES, SHAPES, DOCUMENTS)
def test_an_intersection_of_shapes_without_patterns_allows_no_more(left: Shape, right: Shape, document: JSON) -> None:
    left, right = _without_patterns(left), _without_patterns(right)
    if allows(intersect(left, right), document):
        assert allows(left, document)
        assert allows(right, document)


def _without_patterns(shape: Shape) -> Shape:
    return replace(
        shape,
        properties={name: _without_patterns(each) for name, each in shape.properties.items()},
        patterns={},
        rest=None if shape.rest is None else _without_patterns(shape.rest),
        prefix=tuple(map(_without_patterns, shape.prefix)),
        items=None if shape.items is None else _without_patterns(shape.items),
    )


@settings(max_examples=examples(500))
@given(SCHEMAS, st.lists(DOCUMENTS, min_size=1, max_size=8))
def test_a_valid_document_matches_the_shape(schema: JSON, documents: list[JSON]) -> None:
    validator = compile_validator(schema, name="x")
    shape = infer(schema)
    for document in documents:
        if validator.is_valid(document):
            assert allows(shape, document)


@given(SCHEMAS, st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_valid_document_matches_a_separate_alternative(schema: JSON, documents: list[JSON]) -> None:
    shape = Inference(schema, {}).define(schema)
    validator = compile_validator(schema, name="x")

    for document in documents:
        if validator.is_valid(document):
            assert any(allows(each, document) for each in shape.alternatives or (shape,))
            assert allows(shape, document)


def test_object_alternatives_stay_separate_only_with_names() -> None:
    schema: JSON = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"type": "null"}]}
    found = Inference(schema, {}).define(schema)

    assert [each.required for each in found.alternatives] == [{"a"}, {"b"}]
    assert infer(schema) == replace(found, alternatives=())


def test_alternatives_above_the_limit_are_united() -> None:
    def either(names: str) -> JSON:
        return {"oneOf": [{"type": "object", "required": [name]} for name in names]}

    few: JSON = {"allOf": [either("abcdefgh"), either("ijklmnop")]}
    many: JSON = {"allOf": [either("abcdefgh"), either("ijklmnopq")]}

    assert len(Inference(few, {}).define(few).alternatives) == 64
    assert Inference(many, {}).define(many) == infer(many)


def test_empty_alternatives_allow_no_value() -> None:
    found = Shape(types=frozenset({"object"}), alternatives=(Shape(types=frozenset({"object"})),) * 2)

    assert intersect(found, Shape(types=frozenset({"string"}))) == NOTHING


@given(SCHEMAS, DOCUMENTS, st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=2))
def test_existence_of_locations_holds_for_documents(schema: JSON, document: JSON, path: list[str]) -> None:
    if not compile_validator(schema, name="x").is_valid(document):
        return
    shape, exists = locate(infer(schema), tuple(path))
    value, found = document, True
    for token in path:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            found = False
            break
    assert not (exists == "must" and not found)
    assert not (exists == "cannot" and found)
    if found:
        assert type_of(value) in shape.types


def test_annotations_survive_a_union_only_if_equal() -> None:
    left = infer({"type": "string", "format": "integer", "title": "same", "default": 1})
    right = infer({"type": "string", "format": "number", "title": "same", "default": True})

    found = union(left, right)

    assert (found.format, found.title, found.default) == ("number", "same", ())
    assert union(left, infer({"type": "string", "format": "uuid"})).format is None


def test_left_annotations_win_in_an_intersection() -> None:
    found = intersect(infer({"title": "left"}), infer({"title": "right", "description": "both"}))

    assert (found.title, found.description, found.types) == ("left", "both", ALL)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ({"strategy": "sum"}, {"strategy": "sum"}, {"strategy": "sum"}),
        ({"strategy": "sum"}, None, None),
        ({"strategy": "merge"}, {"strategy": "merge", "key": ["/a"]}, MULTIPLE),
    ],
)
def test_union_has_reductions_of_both_sides(left: JSON, right: JSON, found: JSON) -> None:
    assert union(Shape(reduction=left), Shape(reduction=right)).reduction == found


@pytest.mark.parametrize(
    "other", [{"type": "null"}, {"const": None}, {"type": ["integer", "null"]}, {"enum": [1, None]}]
)
@pytest.mark.parametrize("order", [1, -1])
def test_format_of_a_string_is_kept_beside_other_types(other: JSON, order: int) -> None:
    string = {
        "type": "string",
        "format": "date-time",
        "contentEncoding": "base64",
        "contentMediaType": "image/png",
        "maxLength": 9,
    }

    found = infer({"anyOf": [string, other][::order]})

    assert (found.format, found.content_encoding, found.content_type, found.max_length) == (
        "date-time",
        "base64",
        "image/png",
        9,
    )
    assert {"string", "null"} <= found.types


@pytest.mark.parametrize(
    ("left", "right", "values"),
    [
        ({"enum": ["b", "a"]}, {"const": "c"}, ("a", "b", "c")),  # in document order
        ({"enum": [1, True]}, {"enum": [1.0, False]}, (False, True, 1)),  # 1.0 is 1, and true is not
        ({"enum": ["a"]}, {"type": "null"}, (None, "a")),  # there is but one null
        ({"type": ["boolean", "null"]}, {"enum": ["a"]}, (None, False, True, "a")),
        ({"type": "null"}, {"type": "boolean"}, None),  # nobody listed any
        ({"enum": ["a"]}, {"type": "string"}, None),
    ],
)
def test_union_has_values_of_both_sides(left: JSON, right: JSON, values: tuple[JSON, ...] | None) -> None:
    assert infer({"anyOf": [left, right]}).values == values


@pytest.mark.parametrize(
    ("schema", "facets"),
    [
        ({"minLength": 1, "maxLength": 3}, {"min_length": 1, "max_length": 3}),
        (
            {"allOf": [{"minLength": 1, "maxLength": 3}, {"minLength": 2, "maxLength": 4}]},
            {"min_length": 2, "max_length": 3},
        ),
        (
            {"anyOf": [{"minLength": 1, "maxLength": 3}, {"minLength": 2, "maxLength": 4}]},
            {"min_length": 1, "max_length": 4},
        ),
        ({"anyOf": [{"maxLength": 3}, {"minLength": 2}]}, {"min_length": 0, "max_length": None}),
        ({"minimum": 1, "exclusiveMinimum": 2, "maximum": 9, "exclusiveMaximum": 8.5}, {"minimum": 2, "maximum": 8.5}),
        ({"anyOf": [{"minimum": 1, "maximum": 2}, {"minimum": 3, "maximum": 4}]}, {"minimum": 1, "maximum": 4}),
        ({"anyOf": [{"minimum": 1}, {"type": "string"}]}, {"minimum": 1}),  # of numbers, and strings are none
        (
            {"type": "string", "minimum": 1, "items": True, "required": ["a"]},
            {"minimum": None, "items": None, "required": frozenset()},
        ),
        ({"type": "null", "format": "date", "maxLength": 3}, {"format": None, "max_length": None}),
        ({"minItems": 2.0, "maxItems": 3.0}, {"min_items": 2, "max_items": 3}),  # integers by value
        (
            {"allOf": [{"reduce": {"strategy": "sum"}}], "reduce": {"strategy": "minimize"}},
            {"reduction": {"strategy": "minimize"}},
        ),
        ({"type": ["string"], "const": 1, "title": "none"}, {"title": None, "types": frozenset()}),  # impossible
    ],
)
def test_shapes_infer_facets(schema: JSON, facets: dict[str, Any]) -> None:
    found = infer(schema)

    assert {name: getattr(found, name) for name in facets} == facets


@given(SCHEMAS, st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_shape_agrees_with_another_validator(schema: JSON, documents: list[JSON]) -> None:
    assume("format" not in repr(schema))  # which that one only annotates
    ours, other = compile_validator(schema, name="x"), jsonschema.Draft202012Validator(schema)

    for document in documents:
        try:
            expected = other.is_valid(document)
        except RecursionError:  # it follows a reference to itself for ever
            return
        assert ours.is_valid(document) is expected


@given(SCHEMAS, st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_bundled_schema_has_the_same_shape(schema: JSON, documents: list[JSON]) -> None:
    others: dict[str, JSON] = {}
    bundled = bundle(schema, "/flow.yaml", others.__getitem__)

    assert infer(bundled) == infer(schema)
    for document in documents:
        assert compile_validator(bundled, name="x").is_valid(document) is compile_validator(schema, name="x").is_valid(
            document
        )
