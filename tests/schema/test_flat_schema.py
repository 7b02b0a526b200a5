"""Flat schemas: what is proven of columns is what the validator says of each document."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from derive.document.columns import Columns
from derive.schema.flat import FlatSchema
from derive.schema.validator import compile_validator

NAMES = ("a", "b", "c")
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [0, 1, -1, 7, 2**53, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30],
    "fractional": [0.5, -0.0, 1.0, 1e300, 5e-324, float(2**53), float("nan"), float("inf"), float("-inf")],
    "null": [None],
    "string": ["", "a", "ab", "1", "ä\U0001f600", "2024-01-01", "\0"],
    "array": [[], [1], ["a", None]],
    "object": [{}, {"a": 1}],
}
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string", "fractional"]
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
    "minimum": st.sampled_from([0, 1, 1.0, 0.5, -1, 2**53, 2**60, 1e300]),
    "exclusiveMinimum": st.sampled_from([0, 1, -0.5, 2**53 - 1]),
    "maximum": st.sampled_from([0, 1, 7.0, 2**53, -1e300]),
    "exclusiveMaximum": st.sampled_from([1, 7, 2**53 - 1, 1e300]),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "pattern": st.sampled_from(["^a", ".*"]),
    "format": st.sampled_from(["integer", "date"]),
    "enum": st.lists(st.sampled_from([None, "a", "ab", 1, 1.0, True, [], {}]), min_size=1, max_size=3),
    "const": st.sampled_from([None, "a", 1, False]),
    "minItems": st.integers(0, 2),
    "items": st.just({"type": "string"}),
    "required": st.sampled_from([["a"], ["z"]]),
    "x-str-minimum": st.just("1"),
    "description": st.just("It says something."),
    "default": st.sampled_from([None, 1]),
    "reduce": st.just({"strategy": "lastWriteWins"}),
    "x-anything": st.just({"type": "null"}),
    "not": st.just({"type": "null"}),
    "anyOf": st.just([{"type": "null"}, {"type": "string"}]),
}
LEAVES = st.booleans() | st.lists(st.sampled_from(sorted(KEYWORDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: KEYWORDS[name] for name in names})
)
PROPERTIES = (
    LEAVES
    | st.fixed_dictionaries({"$ref": st.sampled_from(["#/$defs/leaf", "#/$defs/none", "#"])})
    | (st.fixed_dictionaries({"allOf": st.lists(LEAVES, min_size=1, max_size=2), "type": KEYWORDS["type"]}))
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", ["object", "null"], "array"]),
        "properties": st.dictionaries(st.sampled_from(NAMES), PROPERTIES),
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "additionalProperties": PROPERTIES,
        "title": st.just("A title."),
        "reduce": st.just({"strategy": "merge"}),
        "maximum": st.just(3),
        "$defs": st.fixed_dictionaries({"leaf": LEAVES}),
        "allOf": st.lists(
            st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from(NAMES), LEAVES)}), min_size=1
        ),
        "maxProperties": st.just(1),
        "patternProperties": st.just({"^a": {"type": "string"}}),
    },
)
COLUMNS = st.integers(1, 4).flatmap(
    lambda count: st.dictionaries(
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(TYPES[:4] + TYPES[5:]), min_size=1, max_size=2).flatmap(
            lambda kinds: st.lists(
                st.sampled_from([value for kind in kinds for value in VALUES[kind]]), min_size=count, max_size=count
            )
        ),
        min_size=1,
    )
)


def columns_of(values: dict[str, list[Any]]) -> Columns:
    return Columns.of(tuple(values), list(values.values()))


@given(OBJECTS, COLUMNS)
def test_proven_columns_are_valid(schema: Any, values: dict[str, list[Any]]) -> None:
    schema = {**schema, "$defs": {"leaf": True, "none": False, **schema.get("$defs", {})}}
    columns = columns_of(values)
    is_proven = FlatSchema(schema).proves(columns)
    event(f"proven: {is_proven}")
    if is_proven:
        assert all(map(compile_validator(schema, name="it").is_valid, columns.documents()))


SCALARS = st.sampled_from(["boolean", "integer", "null", "number", "string"])
FLAT = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(
            st.sampled_from(NAMES),
            st.fixed_dictionaries({"type": SCALARS | st.lists(SCALARS, min_size=1, max_size=2, unique=True)}),
        ),
    },
    optional={
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "additionalProperties": st.booleans(),
    },
)


@given(FLAT, COLUMNS)
def test_valid_columns_of_flat_schemas_are_proven(schema: Any, values: dict[str, list[Any]]) -> None:
    columns = columns_of(values)
    floats = [value for column in columns.values for value in column if type(value) is float]
    is_valid = all(map(compile_validator(schema, name="it").is_valid, columns.documents()))
    is_proven = FlatSchema(schema).proves(columns)
    event(f"proven: {is_proven}")
    assert is_proven <= is_valid
    if all(isfinite(value) and not value.is_integer() for value in floats):
        assert is_proven == is_valid


TRANSFER = {
    "type": "object",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "integer", "description": "A number."},
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "state": {"type": ["string", "null"], "enum": ["paid", "due", None]},
        "at": {"type": "string", "format": "date-time"},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("values", "is_proven"),
    [
        ({"id": [1, 2], "amount": [0.5, 7]}, True),
        ({"id": [1, 2], "amount": [0.5, 0]}, False),  # one is out of bounds
        ({"id": [1, 2.0], "amount": [1, 1]}, False),  # 2.0 is an integer, which the validator says
        ({"id": [1, True], "amount": [1, 1]}, False),  # a boolean is no number
        ({"id": [1], "amount": [float("inf")]}, False),
        ({"id": [1]}, False),  # the amount is missing
        ({"id": [1], "amount": [1], "other": [1]}, False),
        ({"id": [1, 1], "amount": [1, 1], "state": ["due", None]}, True),
        ({"id": [1, 1], "amount": [1, 1], "state": ["due", "late"]}, False),
        ({"id": [1], "amount": [1], "at": ["2024-01-01T00:00:00Z"]}, False),  # formats are the validator's
    ],
)
def test_columns_of_transfers_are_proven(values: dict[str, list[Any]], is_proven: bool) -> None:
    assert FlatSchema(TRANSFER).proves(columns_of(values)) is is_proven
    assert FlatSchema({"$ref": "#/$defs/it", "$defs": {"it": TRANSFER}}).proves(columns_of(values)) is is_proven


@pytest.mark.parametrize(
    "schema", [False, {"type": "array"}, {"$ref": "#"}, {"$anchor": "here"}, {"const": {}}, {"$ref": "#/a"}]
)
def test_unprovable_schemas_are_left_to_the_validator(schema: Any) -> None:
    assert not FlatSchema(schema).proves(columns_of({"a": [1]}))


def test_every_column_is_valid_without_a_schema() -> None:
    assert FlatSchema(True).proves(columns_of({"a": [1, "x", None]}))
