"""Keys: of arrays that are merged, and of what is least or greatest."""

from __future__ import annotations

from typing import Any

import pytest

from derive.errors import ReductionError
from derive.reduce.combiner import Combiner

BY_TWO = Combiner({"reduce": {"strategy": "merge", "key": ["/k", "/l"]}, "items": {"reduce": {"strategy": "merge"}}})
GREATEST = Combiner(
    {
        "reduce": {"strategy": "maximize", "key": ["/k"]},
        "properties": {
            "n": {"reduce": {"strategy": "sum"}},
            "gone": {"reduce": {"strategy": "lastWriteWins", "delete": True}},
        },
    }
)


def test_arrays_are_joined_by_several_keys() -> None:
    left = [{"k": 1, "l": 1, "a": 1}, {"k": 1, "l": 2}, {"k": 3, "l": 0}]
    right = [{"k": 0, "l": 9}, {"k": 1, "l": 1, "b": 2}, {"k": 1, "l": 3}]

    assert BY_TWO.full([left, right]) == [
        {"k": 0, "l": 9},
        {"k": 1, "l": 1, "a": 1, "b": 2},
        {"k": 1, "l": 2},
        {"k": 1, "l": 3},
        {"k": 3, "l": 0},
    ]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 3], [2], [1, 2, 3]),
        ([], [2], [2]),
        ([1], [], [1]),
        ([1, 2], [1, 2], [1, 2]),
        ([None, False, 0, "", []], [True, "a", {}], [None, False, True, 0, "", "a", [], {}]),  # document order
    ],
)
def test_arrays_are_joined_by_natural_order(left: list[Any], right: list[Any], expected: list[Any]) -> None:
    assert Combiner({"reduce": {"strategy": "merge", "key": [""]}}).full([left, right]) == expected


def test_full_reduction_removes_tombstones_of_keyed_arrays() -> None:
    item = {
        "if": {"required": ["gone"]},
        "then": {"reduce": {"strategy": "merge", "delete": True}},
        "else": {"reduce": {"strategy": "merge"}},
    }
    combiner = Combiner({"reduce": {"strategy": "merge", "key": ["/k"]}, "items": item})

    assert combiner.full([[{"k": 1}, {"k": 2}], [{"k": 1, "gone": 1}, {"k": 3}]]) == [{"k": 2}, {"k": 3}]
    assert combiner.partial([[{"k": 1}], [{"k": 1, "gone": 1}]]) == [[{"k": 1, "gone": 1}]]


def test_missing_key_sorts_before_null() -> None:
    combiner = Combiner({"reduce": {"strategy": "merge", "key": ["/k"]}})

    assert combiner.full([[{"k": None}], [{"a": 1}]]) == [{"a": 1}, {"k": None}]


@pytest.mark.parametrize("items", [[{"k": 2, "l": 1}, {"k": 1, "l": 1}], [{"k": 1, "l": 1}, {"k": 1, "l": 1}]])
def test_unsorted_arrays_are_refused(items: list[Any]) -> None:
    with pytest.raises(
        ReductionError,
        match="while reducing '': 'merge' strategy with a key expects arrays that are sorted .* LHS: nothing",
    ):
        BY_TWO.full([items])


def test_an_item_that_does_not_fit_is_named() -> None:
    combiner = Combiner({"reduce": {"strategy": "merge", "key": [""]}, "items": {"reduce": {"strategy": "append"}}})

    with pytest.raises(ReductionError, match="while reducing '/1': 'append' strategy expects arrays"):
        combiner.full([[0, 1], [-1, 1]])


def test_strategies_by_index_keep_keyed_arrays_separate() -> None:
    first = {"reduce": {"strategy": "merge"}, "properties": {"n": {"reduce": {"strategy": "sum"}}}}
    combiner = Combiner({"reduce": {"strategy": "merge", "key": ["/k"]}, "prefixItems": [first]})

    assert combiner.partial([[{"k": 2, "n": 1}], [{"k": 1}]]) == [[{"k": 2, "n": 1}], [{"k": 1}]]
    assert combiner.partial([[], [{"k": 1}]]) == [[{"k": 1}]]


def test_tombstones_in_arrays_by_index_keep_them_separate() -> None:
    combiner = Combiner(
        {
            "reduce": {"strategy": "merge"},
            "items": {"if": {"const": 0}, "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}}},
        }
    )

    assert combiner.full([[1, 2], [0], [7]]) == [7]
    assert combiner.partial([[0], [7]]) == [[0], [7]]
    assert combiner.partial([[7], [8, 0]]) == [[8, 0]]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([{"k": 1, "n": 1}, {"k": 2, "n": 5}, {"k": 1, "n": 9}], {"k": 2, "n": 5}),
        ([{"k": 1, "n": 1}, {"k": 1, "n": 2, "a": 0}], {"k": 1, "n": 3, "a": 0}),  # merged
        ([{"n": 1}, {"k": None, "n": 2}], {"k": None, "n": 2}),  # a missing key is less than null
        ([{"k": 1, "gone": 0}], {"k": 1}),
        ([{"n": 1}, 5], 5),  # neither has the key, and there is nothing to merge
        ([5, {"n": 1}], {"n": 1}),
    ],
)
def test_maximize_selects_the_greatest_key(documents: list[Any], expected: Any) -> None:
    assert GREATEST.full(documents) == expected


def test_minimize_selects_the_least_key() -> None:
    combiner = Combiner({"reduce": {"strategy": "minimize", "key": ["/k", "/l"]}})

    assert combiner.full([{"k": 1, "l": 2}, {"k": 1, "l": 1, "a": 0}, {"k": 2, "l": 0}]) == {"k": 1, "l": 1, "a": 0}


def test_tombstones_of_maximize_stay_in_partial_reductions() -> None:
    assert GREATEST.partial([{"k": 1, "gone": 0}, {"k": 1, "n": 2}]) == [{"k": 1, "gone": 0, "n": 2}]


def test_reduced_key_keeps_values_separate() -> None:
    schema = {"reduce": {"strategy": "maximize", "key": ["/k"]}, "properties": {"k": {"reduce": {"strategy": "sum"}}}}

    assert Combiner(schema).partial([{"k": 1}, {"k": 1}]) == [{"k": 1}, {"k": 1}]


@pytest.mark.parametrize(
    ("strategy", "values", "expected"),
    [
        ("maximize", [1, 1.0], 1.0),  # the later of equal ones
        ("minimize", [1.0, 1], 1),
        ("maximize", [[1], [1, 0], [0, 5]], [1, 0]),
        ("minimize", [{"a": 2}, {"a": 1, "b": 0}, {"a": 1}], {"a": 1}),
    ],
)
def test_minimize_and_maximize_without_a_key_compare_whole_values(
    strategy: str, values: list[Any], expected: Any
) -> None:
    found = Combiner({"reduce": {"strategy": strategy}}).full(values)

    assert found == expected
    assert type(found) is type(expected)


def test_a_recursive_schema_reduces_at_every_depth() -> None:
    tree = {
        "reduce": {"strategy": "merge"},
        "properties": {"n": {"reduce": {"strategy": "sum"}}, "child": {"$ref": "#"}},
    }
    one = {"n": 1, "child": {"n": 1, "child": {"n": 1}}}

    assert Combiner(tree).full([one, one]) == {"n": 2, "child": {"n": 2, "child": {"n": 2}}}
    with pytest.raises(ReductionError, match="while reducing '/child/child/n': 'sum'"):
        Combiner(tree).full([{"child": {"child": {"n": "x"}}}])
