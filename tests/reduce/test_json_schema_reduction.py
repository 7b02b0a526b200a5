"""The `jsonSchemaMerge` strategy: a schema that allows what any of several does."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import ReductionError
from derive.reduce.combiner import Combiner

MERGE = Combiner({"reduce": {"strategy": "jsonSchemaMerge"}})


@pytest.mark.parametrize(
    ("schemas", "expected"),
    [
        ([{"type": "integer"}, {"type": "string"}], {"type": ["integer", "string"]}),
        ([{"type": "integer"}, {"const": 1.5}], {"type": "number"}),
        ([{"type": "integer"}, {}], {}),
        ([{"type": "string", "const": 1}, {"type": "null"}], {"type": "null"}),  # the first allows nothing
        ([{"title": "T", "minLength": 1}], {"title": "T", "minLength": 1}),  # a single one is left as it is
        (
            [
                {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "integer"}}},
                {
                    "type": "object",
                    "required": ["a"],
                    "properties": {"a": {"type": "null"}},
                    "additionalProperties": False,
                },
            ],
            {"type": "object", "required": ["a"], "properties": {"a": {"type": ["integer", "null"]}, "b": True}},
        ),
        (
            [
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 2,
                    "prefixItems": [{"type": "string"}],
                    "items": {"type": "null"},
                },
                {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "string"}},
            ],
            {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "prefixItems": [{"type": "string"}],
                "items": {"type": ["null", "string"]},
            },
        ),
    ],
)
def test_schemas_merge_to_their_union(schemas: list[Any], expected: Any) -> None:
    assert MERGE.full(schemas) == expected


@pytest.mark.parametrize("value", [True, None, {"type": "text"}, {"properties": 1}])
def test_values_that_are_no_schemas_are_refused(value: Any) -> None:
    with pytest.raises(ReductionError, match="'jsonSchemaMerge' strategy expects objects that are JSON Schemas"):
        MERGE.full([{"type": "object"}, value])


def schemas_of(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from("ab"), below, max_size=2)
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": properties},
        optional={"required": st.just(["a"]), "additionalProperties": below},
    ) | st.fixed_dictionaries({"type": st.just("array"), "items": below}, optional={"minItems": st.integers(0, 2)})


SCHEMAS = st.recursive(
    st.sampled_from([{"type": "integer"}, {"type": ["null", "string"]}, {"const": 0.5}, {"enum": [1, "a"]}, {}]),
    schemas_of,
    max_leaves=4,
)
VALUES = st.recursive(
    st.sampled_from([None, 1, 0.5, "a"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from("abc"), below, max_size=2),
    max_leaves=4,
)


@given(st.lists(SCHEMAS, min_size=2, max_size=3), st.lists(VALUES, max_size=8))
def test_union_accepts_values_of_every_schema(schemas: list[Any], values: list[Any]) -> None:
    union = MERGE.full(schemas)

    for value in values:
        if any(jsonschema_rs.is_valid(each, value) for each in schemas):
            assert jsonschema_rs.is_valid(union, value)


@given(st.lists(SCHEMAS, min_size=3, max_size=3))
def test_l6_schema_merges_are_associative(schemas: list[Any]) -> None:
    first, second, third = schemas

    assert MERGE.full([first, *MERGE.partial([second, third])]) == MERGE.full(schemas)
