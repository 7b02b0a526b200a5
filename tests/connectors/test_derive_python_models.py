"""Models of documents: they accept every document of their schema and give it back unchanged."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pydantic
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from python_derivation import derivation

from connectors.derive_python.models import field_of, generate_package, method_of, package_of
from derive.document.exact import dump_exact, parse_exact

NAMES = ["id", "user-name", "_meta", "class", "json", "model_config", "ünï", "1st", "", "copy", "a b"]


def scalars() -> st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]]:
    """Schemas of scalars, each with its values."""
    integers = st.integers(-(10**30), 10**30)
    floats = st.floats(allow_nan=False, allow_infinity=False)
    kinds: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
        ({"type": "string"}, st.text(max_size=5)),
        ({"type": "integer"}, integers | st.integers(-9, 9).map(float)),
        ({"type": "number"}, integers | floats),
        ({"type": "boolean"}, st.booleans()),
        ({"type": "null"}, st.none()),
        ({"type": ["string", "null"]}, st.none() | st.text(max_size=3)),
        ({"type": ["integer", "boolean", "string"]}, integers | st.booleans() | st.text(max_size=3)),
        ({"enum": ["a", "it's", True, None, 3]}, st.sampled_from(["a", "it's", True, None, 3, 3.0])),
        ({"const": "b"}, st.just("b")),
        ({"type": "string", "format": "date-time"}, st.just("2020-01-01T00:00:00Z")),
        ({}, st.sampled_from([1, "x", None, [1, {"a": 2}], {"q": [True]}])),
    ]
    return st.sampled_from(kinds)


def arrays(
    inner: st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]]:
    def array(item: tuple[dict[str, Any], st.SearchStrategy[Any]]) -> Any:
        return {"type": "array", "items": item[0]}, st.lists(item[1], max_size=3)

    def pair(items: list[tuple[dict[str, Any], st.SearchStrategy[Any]]]) -> Any:
        schema = {"type": "array", "prefixItems": [each[0] for each in items], "items": False, "minItems": len(items)}
        return {**schema, "maxItems": len(items)}, st.tuples(*(each[1] for each in items)).map(list)

    return inner.map(array) | st.lists(inner, min_size=1, max_size=3).map(pair)


@st.composite
def objects(
    draw: st.DrawFn, inner: st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]], *, has_others: bool = True
) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    parts = {name: draw(inner) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema: dict[str, Any] = {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}
    if draw(st.booleans()):
        schema["additionalProperties"] = {"type": "integer"}
    values = {name: part[1] for name, part in parts.items()}
    optional = {name: value for name, value in values.items() if name not in required}
    documents = st.fixed_dictionaries({name: values[name] for name in required}, optional=optional)
    others = st.dictionaries(st.sampled_from(["other", "x-y"]), st.integers(0, 9), max_size=2 if has_others else 0)
    merged = st.builds(lambda document, extra: {**extra, **document}, documents, others)
    return {**schema, "required": required}, merged


def schemas(*, has_others: bool) -> st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]]:
    """Schemas of documents, with properties that the schema does not name or without them."""

    def larger(inner: st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]]) -> Any:
        return arrays(inner) | objects(inner, has_others=has_others)

    return objects(st.recursive(scalars(), larger, max_leaves=6), has_others=has_others)


def models(schema: dict[str, Any], library: str = "pydantic") -> dict[str, Any]:
    """Run the generated package of a derivation with this schema, and return its names."""
    module = type(sys)("generated_models")
    sys.modules["generated_models"] = module
    module.__dict__["__name__"] = "generated_models"
    exec(compile(generate_package(derivation("", schema=schema), True, library), "models.py", "exec"), module.__dict__)
    return module.__dict__


def _without_fraction(value: Any) -> str:
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


@settings(max_examples=examples(40))
@given(schemas(has_others=True), st.data())
def test_models_return_valid_documents_unchanged(
    schema: tuple[dict[str, Any], st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    names = models(schema[0])
    document = data.draw(schema[1])
    text = dump_exact(document)
    for name in ("Document", "SourceFromIn"):
        model = names[name].model_validate(parse_exact(text))
        written = model.__pydantic_serializer__.to_json(model, by_alias=True, exclude_unset=True)
        assert parse_exact(written) == document
        # An integer of the schema that is written as 1.0 becomes 1.
        assert sorted(map(_without_fraction, _leaves(parse_exact(written)))) == sorted(
            map(_without_fraction, _leaves(document))
        )


@settings(max_examples=examples(40))
@given(schemas(has_others=False), st.data())
def test_structs_return_valid_documents_unchanged(
    schema: tuple[dict[str, Any], st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    names = models(schema[0], "msgspec")
    text = dump_exact(data.draw(schema[1]))
    for name in ("Document", "SourceFromIn"):
        struct = msgspec.convert(parse_exact(text), names[name])
        assert repr(sorted(map(repr, _leaves(parse_exact(msgspec.json.encode(struct)))))) == repr(
            sorted(map(repr, _leaves(parse_exact(text))))
        )
        assert parse_exact(msgspec.json.encode(struct)) == parse_exact(text)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for member in value.values() for leaf in _leaves(member)]
    if isinstance(value, list):
        return [leaf for member in value for leaf in _leaves(member)]
    return [value]


RECURSIVE = {
    "$defs": {
        "node": {
            "$anchor": "Node",
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#Node"}}},
        }
    },
    "type": "object",
    "required": ["root"],
    "properties": {"root": {"$ref": "#/$defs/node"}},
}
WRONG = [
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "1"}),
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 1.5}),
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": True}),
    ({"type": "object", "properties": {"s": {"type": "string"}}}, {"s": 1}),
    ({"type": "object", "properties": {"s": {"enum": ["a", "b"]}}}, {"s": "c"}),
    ({"type": "object", "required": ["s"], "properties": {"s": {"type": "string"}}}, {}),
    ({"type": "object", "properties": {"s": {"type": "array", "items": {"type": "string"}}}}, {"s": [1]}),
    (RECURSIVE, {"root": {"name": "a", "children": [{"name": 1}]}}),
]


@pytest.mark.parametrize(("schema", "document"), WRONG)
def test_models_refuse_documents_of_wrong_types(schema: dict[str, Any], document: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        models(schema)["Document"].model_validate(document)


def test_recursive_schemas_with_an_anchor_are_named_models() -> None:
    names = models(RECURSIVE)
    document = {"root": {"name": "a", "children": [{"name": "b", "children": []}]}}
    model = names["Document"].model_validate(document)
    assert type(model.root.children[0]) is names["DocumentNode"]
    assert model.model_dump(exclude_unset=True) == document


def test_optional_properties_set_to_none_are_omitted_unless_null_is_valid() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}}
    model = models(schema)["Document"](a=None, b=None)
    assert model.__pydantic_serializer__.to_json(model, by_alias=True, exclude_unset=True) == b'{"b":null}'


@pytest.mark.parametrize(
    ("transform", "method"),
    [
        ("fromOutcomes", "from_outcomes"),
        ("from_transfers", "from_transfers"),
        ("fromHTTPRequests", "from_http_requests"),
        ("from-Daily", "from_daily"),
        ("class", "class_"),
        ("2nd", "_2nd"),
    ],
)
def test_methods_are_named_in_snake_case(transform: str, method: str) -> None:
    assert method_of(transform) == method


@pytest.mark.parametrize(
    ("collection", "package"),
    [
        ("acmeBank/balances", "acmeBank.balances"),
        ("acme-bank/2024/x.y", "acme_bank._2024.x_y"),
        ("import/class", "import_.class_"),
    ],
)
def test_packages_are_named_like_collections(collection: str, package: str) -> None:
    assert package_of(collection) == package


def test_fields_are_identifiers_that_hide_no_member_of_models() -> None:
    assert [field_of(name) for name in NAMES] == [
        "id", "user_name", "m_meta", "class_", "json_", "model_config_", "ünï", "m_1st", "m_", "copy_", "a_b",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["str", "int", "list", "Any", "Field", "Literal", "TYPE_CHECKING", "DocumentAddress"])
def test_fields_hide_no_name_of_annotations(name: str) -> None:
    address = {"$anchor": "Address", "type": "object", "properties": {"city": {"type": "string"}}}
    kinds = {
        "a": {"type": "string"},
        "z": {"enum": ["x"]},
        "b": {"type": "array", "items": {"type": "integer"}},
        "c": {},
    }
    schema = {"type": "object", "properties": {name: {"type": "string"}, **kinds, "d": address}}
    document = {name: "s", "a": "t", "z": "x", "b": [1], "c": 5, "d": {"city": "u"}}
    model = models(schema)["Document"].__pydantic_validator__.validate_python(document)
    assert json.loads(model.__pydantic_serializer__.to_json(model, by_alias=True, exclude_unset=True)) == document
    assert field_of(name) == f"{name}_" or name == "DocumentAddress"


def test_integers_with_a_fraction_of_zero_are_integers() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
    }
    model = models(schema)["Document"].__pydantic_validator__.validate_python({"a": 1.0, "b": [2.0, 3]})
    assert repr((model.a, model.b)) == "(1, [2, 3])"
