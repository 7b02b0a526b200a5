"""Annotations that depend on the value, and what must stay apart because of them."""

from __future__ import annotations

from typing import Any

import pytest

from derive.document.pointer import MISSING
from derive.errors import ReductionError, SchemaError
from derive.reduce.combiner import Combiner

SUM_THEN_RESET = {
    "type": "object",
    "required": ["action", "value"],
    "properties": {"action": {"enum": ["sum", "reset"]}, "value": {"type": "number"}},
    "oneOf": [
        {"properties": {"action": {"const": "reset"}}, "reduce": {"strategy": "lastWriteWins"}},
        {
            "properties": {
                "action": {"const": "sum", "reduce": {"strategy": "firstWriteWins"}},
                "value": {"reduce": {"strategy": "sum"}},
            },
            "reduce": {"strategy": "merge"},
        },
    ],
}
MERGE_PATCH = {
    "oneOf": [
        {"type": "object", "reduce": {"strategy": "merge"}, "additionalProperties": {"$ref": "#"}},
        {"type": "null", "reduce": {"strategy": "lastWriteWins", "delete": True}},
        {"type": ["array", "boolean", "number", "string"]},
    ]
}
CHANGES = {
    "if": {"required": ["op"], "properties": {"op": {"const": "d"}}},
    "then": {"reduce": {"strategy": "merge", "delete": True}},
    "else": {"reduce": {"strategy": "merge"}},
}


def summed(value: float) -> dict[str, Any]:
    return {"action": "sum", "value": value}


def reset(value: float) -> dict[str, Any]:
    return {"action": "reset", "value": value}


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([summed(1), summed(2)], summed(3)),
        ([summed(1), reset(5)], reset(5)),
        ([summed(1), reset(5), summed(2)], reset(7)),  # still a reset: what came before it does not count
        ([reset(5), summed(2), reset(0), summed(-1)], reset(-1)),
    ],
)
def test_conditional_schema_sums_and_resets(documents: list[Any], expected: Any) -> None:
    combiner = Combiner(SUM_THEN_RESET)

    assert combiner.full(documents) == expected
    assert combiner.partial(documents) == [expected]


@pytest.mark.parametrize(
    ("original", "patch", "expected"),
    [  # RFC 7396, Appendix A, all of it
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, MISSING),  # null in the RFC, which has no deleted documents
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"a": 1}),  # keeps the null in the RFC, where the first value is not a patch
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_conditional_schema_applies_merge_patches(original: Any, patch: Any, expected: Any) -> None:
    assert Combiner(MERGE_PATCH).full([original, patch]) == expected


def test_a_schema_may_have_a_name_of_its_own() -> None:
    for name in ("patch", "http://example.com/patch", "urn:example:patch"):
        assert Combiner({"$id": name, **MERGE_PATCH}).full([{"a": {"b": 1, "c": 2}}, {"a": {"b": None}}]) == {
            "a": {"c": 2}
        }


def test_patches_are_combined_without_a_base_document() -> None:
    combiner = Combiner(MERGE_PATCH)

    assert combiner.partial([{"a": 1, "b": {"c": 2}}, {"a": None}, {"b": {"c": None}}]) == [
        {"a": None, "b": {"c": None}}
    ]
    assert combiner.partial([{"a": None}, {"a": {"x": 1}}]) == [{"a": None}, {"a": {"x": 1}}]  # an object, of x alone


def test_changes_are_not_combined_across_a_deletion() -> None:
    combiner = Combiner(CHANGES)
    create, update, delete = {"op": "c", "a": 1}, {"op": "u", "b": 2}, {"op": "d"}

    assert combiner.partial([create, update, delete]) == [{"op": "d", "a": 1, "b": 2}]
    assert combiner.partial([delete, create, update]) == [delete, {"op": "u", "a": 1, "b": 2}]
    assert combiner.full([create, update, delete]) is MISSING
    assert combiner.full([create, delete, update]) == update


def test_partial_reductions_keep_documents_that_choose_strategies_separate() -> None:
    combiner = Combiner({"if": {"const": 1}, "then": {"reduce": {"strategy": "sum"}}})

    assert combiner.full([1, 1, 1]) == 3
    assert combiner.partial([1, 1, 1]) == [1, 1, 1]  # 2 would replace what came before it


def test_reset_is_not_combined_with_later_removals() -> None:
    schema = {
        "if": {"required": ["reset"]},
        "else": {"reduce": {"strategy": "merge"}, "properties": {"a": {"$ref": "#/x-gone"}}},
        "x-gone": {"reduce": {"strategy": "lastWriteWins", "delete": True}},
    }
    documents = [{"b": 1}, {"reset": 1}, {"a": 1}]

    assert Combiner(schema).full(documents) == {"reset": 1}
    assert Combiner(schema).partial(documents) == [{"reset": 1}, {"a": 1}]  # as one, a would be there in full


def test_deleted_documents_need_not_match_a_branch() -> None:
    schema = {
        "oneOf": [
            {"type": "integer", "reduce": {"strategy": "sum"}},
            {"type": "null", "reduce": {"strategy": "lastWriteWins", "delete": True}},
        ]
    }

    assert Combiner(schema).full([3, None, 2]) == 2
    assert Combiner(schema).partial([3, None, 2]) == [None, 2]


def test_unsuitable_values_fail_in_partial_reductions() -> None:
    combiner = Combiner({"if": True, "then": {"reduce": {"strategy": "sum"}}})

    with pytest.raises(ReductionError, match="while reducing '': 'sum' strategy expects numbers"):
        combiner.partial([1, "one"])


@pytest.mark.parametrize(
    ("schema", "documents", "expected"),
    [
        # each keyword below which an annotation may stand, met and not met
        ({"anyOf": [{"minimum": 5, "reduce": {"strategy": "maximize"}}, {"maximum": 4}]}, [7, 6], 7),
        ({"anyOf": [{"minimum": 5, "reduce": {"strategy": "maximize"}}, {"maximum": 4}]}, [7, 3], 3),
        ({"allOf": [{"reduce": {"strategy": "sum"}}]}, [1, 2], 3),
        ({"if": {"reduce": {"strategy": "sum"}, "minimum": 0}}, [5, 2], 7),
        ({"if": {"minimum": 0}, "else": {"reduce": {"strategy": "sum"}}}, [5, -2], 3),
        ({"if": False, "then": {"reduce": {"strategy": "sum"}}}, [5, 2], 2),
        ({"$ref": "#/$defs/s", "$defs": {"s": {"reduce": {"strategy": "sum"}}}}, [5, 2], 7),
        ({"$ref": "#s", "$defs": {"s": {"$anchor": "s", "reduce": {"strategy": "sum"}}}}, [5, 2], 7),
        ({"$ref": "s", "$defs": {"s": {"$id": "s", "reduce": {"strategy": "sum"}}}}, [5, 2], 7),
        ({"$ref": "#/x-own/a~1b", "x-own": {"a/b": {"reduce": {"strategy": "sum"}}}}, [5, 2], 7),
        ({"$ref": "#/x-own/1", "x-own": [{}, {"reduce": {"strategy": "sum"}}]}, [5, 2], 7),
        ({"allOf": [{"$ref": "#"}], "reduce": {"strategy": "sum"}}, [5, 2], 7),  # of itself, in place
        ({"dependentSchemas": {"m": {"reduce": {"strategy": "merge"}}}}, [{"a": 1}, {"m": 1}], {"a": 1, "m": 1}),
        ({"dependentSchemas": {"m": {"reduce": {"strategy": "merge"}}}}, [{"a": 1}, {"b": 1}], {"b": 1}),
        ({"dependentSchemas": {"m": {"reduce": {"strategy": "merge"}}}}, [{"a": 1}, ["m"]], ["m"]),
        # conditions on which no annotation depends, one of them recursive
        ({"reduce": {"strategy": "sum"}, "if": {"minimum": 0}, "then": {"maximum": 9}}, [5, 2], 7),
        ({"reduce": {"strategy": "sum"}, "dependentSchemas": {"a": {"minProperties": 2}}}, [5, 2], 7),
        (
            {
                "oneOf": [{"$ref": "#/$defs/s"}],
                "reduce": {"strategy": "sum"},
                "$defs": {"s": {"items": {"$ref": "#/$defs/s"}}},
            },
            [5, 2],
            7,
        ),
        (  # a condition of a condition
            {"if": {"minimum": 0}, "then": {"oneOf": [{"maximum": 9, "reduce": {"strategy": "sum"}}, {"minimum": 10}]}},
            [5, 2, 3, 10, 1],
            11,
        ),
        (  # the pattern comes before the other properties
            {
                "reduce": {"strategy": "merge"},
                "patternProperties": {"^n_": {"reduce": {"strategy": "sum"}}},
                "additionalProperties": {"reduce": {"strategy": "append"}},
            },
            [{"n_a": 1, "l": [1]}, {"n_a": 2, "l": [2]}],
            {"n_a": 3, "l": [1, 2]},
        ),
        (  # below items, by what each item is
            {
                "reduce": {"strategy": "merge"},
                "prefixItems": [{"reduce": {"strategy": "maximize"}}],
                "items": {"oneOf": [{"type": "integer", "reduce": {"strategy": "sum"}}, {"type": "string"}]},
            },
            [[3, 1, 1], [2, 1, "x"]],
            [3, 2, "x"],
        ),
    ],
)
def test_annotations_apply_by_conditions(schema: Any, documents: list[Any], expected: Any) -> None:
    assert Combiner(schema).full(documents) == expected


SHARED = {
    "extreme": {
        "prefixItems": [{}, {"reduce": {"strategy": "sum"}}],
        "reduce": {"strategy": "minimize", "key": ["/0"]},
    },
    "appended": {"$ref": "#/$defs/extreme", "reduce": {"strategy": "append"}},
    "count": {
        "oneOf": [
            {"type": "integer", "reduce": {"strategy": "sum"}},
            {"type": "null", "reduce": {"strategy": "lastWriteWins"}},
        ]
    },
}
MAXIMIZE: Any = {"reduce": {"strategy": "maximize"}}


@pytest.mark.parametrize(
    ("value", "values", "expected"),
    [
        # what is said of items stays
        ({"$ref": "#/$defs/extreme"}, [["a", 1], ["c", 2], ["b", 3], ["a", 4]], ["a", 5]),
        (
            {"$ref": "#/$defs/extreme", "reduce": {"strategy": "maximize", "key": ["/0"]}},
            [["a", 1], ["c", 2], ["b", 3], ["c", 4]],
            ["c", 6],
        ),
        # over several references; the first of them counts
        ({"$ref": "#/$defs/appended"}, [["b", 1], ["c", 2]], ["b", 1, "c", 2]),
        ({"$ref": "#/$defs/appended", **MAXIMIZE}, [["b", 1], ["c", 2], ["a", 1]], ["c", 2]),
        # annotations on a condition, too
        ({"$ref": "#/$defs/count"}, [3, 4, 1], 8),
        ({"$ref": "#/$defs/count", **MAXIMIZE}, [3, None, 5, 4], 5),
        ({"allOf": [{"$ref": "#/$defs/count", **MAXIMIZE}]}, [3, None, 5, 4], 5),
    ],
)
def test_annotation_beside_a_reference_replaces_annotations_of_the_target(
    value: Any, values: list[Any], expected: Any
) -> None:
    combiner = Combiner({"reduce": {"strategy": "merge"}, "properties": {"v": value}, "$defs": SHARED})
    documents = [{"v": each} for each in values]

    assert combiner.full(documents) == {"v": expected}


def test_overriding_annotation_reduces_a_part_of_a_history() -> None:
    combiner = Combiner({"$ref": "#/$defs/count", **MAXIMIZE, "$defs": SHARED})

    assert combiner.partial([3, None, 5, 4]) == [5]


def test_an_annotation_beside_all_of_a_reference_conflicts() -> None:
    with pytest.raises(SchemaError, match="'maximize' at '' and 'append' at '/\\$defs/appended'"):
        Combiner({"allOf": [{"$ref": "#/$defs/appended"}], **MAXIMIZE, "$defs": SHARED})


def test_conflicting_strategies_name_both_places() -> None:
    always = {
        "properties": {"v": {"reduce": {"strategy": "sum"}}},
        "allOf": [{"properties": {"v": {"reduce": {"strategy": "append"}}}}],
    }
    message = "'a/b' has conflicting reductions .* 'sum' at '/properties/v' and 'append' at '/allOf/0/properties/v'"

    with pytest.raises(SchemaError, match=message):
        Combiner(always, name="a/b")


def test_strategies_that_conflict_for_some_values_fail_with_those_values() -> None:
    schema = {
        "reduce": {"strategy": "merge"},
        "properties": {
            "v": {
                "anyOf": [
                    {"minimum": 5, "reduce": {"strategy": "sum"}},
                    {"maximum": 5, "reduce": {"strategy": "minimize"}},
                ]
            }
        },
    }
    combiner = Combiner(schema, name="a/b")

    assert combiner.full([{"v": 6}, {"v": 7}]) == {"v": 13}
    assert combiner.partial([{"v": 5}, {"v": 7}]) == [{"v": 5}, {"v": 7}]
    message = "while reducing '/v': the schema of 'a/b' has conflicting .* 'sum' at '/properties/v/anyOf/0' and 'minimize' at '/properties/v/anyOf/1'"
    with pytest.raises(ReductionError, match=message):
        combiner.full([{"v": 6}, {"v": 5}])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/no"}, "refers to '#/\\$defs/no', which it does not define"),
        ({"$ref": "other#/a"}, "refers to 'other#/a', which it does not define"),
        (
            {"contains": {"reduce": {"strategy": "sum"}}},
            "'/contains/reduce' of the schema of 'a/b' has no effect under 'contains'",
        ),
        (
            {"unevaluatedProperties": {"reduce": {"strategy": "sum"}}},
            "under 'unevaluatedProperties' at '', which is not supported \\(put them under 'additionalProperties'",
        ),
        ({"oneOf": [{"type": 1, "reduce": {"strategy": "sum"}}]}, "the schema of 'a/b' is not a JSON Schema: at "),
    ],
)
def test_annotations_without_effect_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Combiner(schema, name="a/b")


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({"strategy": "summ"}, "the annotation at '/reduce' of the schema of 'a/b' is .*\\(did you mean 'sum'\\?\\)"),
        ({"strategy": 1}, "not supported \\(strategies: append, firstWriteWins, jsonSchemaMerge, lastWriteWins"),
        ("sum", "is 'sum', which is not supported"),
        ({"strategy": "sum", "delete": True}, "the strategy 'sum' has no option 'delete' \\(it has none\\)"),
        ({"strategy": "merge", "keys": []}, "has no option 'keys' \\(its options: delete, key\\)"),
        ({"strategy": "merge", "key": ["a"]}, "'key' is \\['a'\\], and must be a list of JSON pointers"),
        ({"strategy": "merge", "key": "/a"}, "'key' is '/a', and must be a list of JSON pointers"),
        ({"strategy": "merge", "delete": 1}, "'delete' is 1, and must be true or false"),
    ],
)
def test_malformed_annotations_are_refused(annotation: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Combiner({"reduce": annotation}, name="a/b")
