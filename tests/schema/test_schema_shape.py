"""Laws of shapes, and that a shape bounds every document its schema allows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from derive.document.pointer import JSON
from derive.schema.infer import infer, type_of
from derive.schema.shape import ALL, Shape, intersect, locate, union
from derive.schema.validator import compile_validator

NAMES = st.sampled_from(["a", "b", "c"])
DOCUMENTS: st.SearchStrategy[JSON] = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, "", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=4, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "enum": st.lists(DOCUMENTS, min_size=1, max_size=3, unique_by=repr),
            "title": st.sampled_from(["one", "two"]),
        },
    )


SCHEMAS = st.recursive(st.booleans() | _schemas(st.booleans()), _schemas, max_leaves=5)
SHAPES = SCHEMAS.map(infer)


def allows(shape: Shape, value: JSON) -> bool:
    """Whether a document matches a shape: the oracle, straight from what the attributes mean."""
    if type_of(value) not in shape.types:
        return False
    if isinstance(value, dict):
        known = {name: shape.properties.get(name, shape.additional) for name in value}
        fits = all(each is None or allows(each, value[name]) for name, each in known.items())
        return fits and shape.required <= set(value)
    if isinstance(value, list):
        most = shape.max_items if shape.max_items is not None else len(value)
        items = [shape.prefix[at] if at < len(shape.prefix) else shape.items for at in range(len(value))]
        fits = all(each is None or allows(each, item) for each, item in zip(items, value, strict=True))
        return fits and shape.min_items <= len(value) <= most
    return True


@given(SHAPES)
def test_union_and_intersect_are_idempotent(shape: Shape) -> None:
    assert intersect(shape, shape).types == shape.types
    assert union(shape, shape).types == shape.types


@given(SHAPES, SHAPES, DOCUMENTS)
def test_union_allows_what_either_allows(left: Shape, right: Shape, document: JSON) -> None:
    if allows(left, document) or allows(right, document):
        assert allows(union(left, right), document)


@given(SHAPES, SHAPES, DOCUMENTS)
def test_intersect_allows_what_both_allow(left: Shape, right: Shape, document: JSON) -> None:
    if allows(left, document) and allows(right, document):
        assert allows(intersect(left, right), document)


@given(SHAPES, SHAPES, DOCUMENTS)
def test_order_does_not_change_what_is_allowed(left: Shape, right: Shape, document: JSON) -> None:
    assert allows(union(left, right), document) == allows(union(right, left), document)
    assert allows(intersect(left, right), document) == allows(intersect(right, left), document)


@settings(max_examples=400)
@given(SCHEMAS, DOCUMENTS)
def test_a_valid_document_matches_the_shape(schema: JSON, document: JSON) -> None:
    if compile_validator(schema, name="x").is_valid(document):
        assert allows(infer(schema), document)


@given(SCHEMAS, DOCUMENTS, st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=2))
def test_locations_exist_as_promised(schema: JSON, document: JSON, path: list[str]) -> None:
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
    left = infer({"type": "string", "format": "integer", "title": "same", "default": "1"})
    right = infer({"type": "string", "format": "number", "title": "same", "default": "2"})

    found = union(left, right)

    assert (found.format, found.title, found.default) == ("number", "same", ())
    assert union(left, infer({"type": "string", "format": "uuid"})).format is None


def test_annotations_of_the_left_count_in_an_intersection() -> None:
    found = intersect(infer({"title": "left"}), infer({"title": "right", "description": "both"}))

    assert (found.title, found.description, found.types) == ("left", "both", ALL)
