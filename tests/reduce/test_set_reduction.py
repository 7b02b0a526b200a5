"""The `set` strategy: literal results, in full and in part."""

from __future__ import annotations

from typing import Any

import pytest

from derive.errors import ReductionError
from derive.reduce.combiner import Combiner

SCALARS = Combiner({"reduce": {"strategy": "set", "key": [""]}})
COUNTS = Combiner(
    {
        "reduce": {"strategy": "set", "key": ["/0"]},
        "properties": {
            "add": {"items": {"reduce": {"strategy": "merge"}, "prefixItems": [{}, {"reduce": {"strategy": "sum"}}]}}
        },
    }
)
NAMES = Combiner(
    {"reduce": {"strategy": "set"}, "additionalProperties": {"additionalProperties": {"reduce": {"strategy": "sum"}}}}
)


@pytest.mark.parametrize(
    ("documents", "full", "partial"),
    [
        # add and remove
        ([{"add": ["a", "c"]}, {"add": ["b"]}], {"add": ["a", "b", "c"]}, {"add": ["a", "b", "c"]}),
        ([{"add": ["a", "c"]}, {"remove": ["a", "b"]}], {"add": ["c"]}, {"add": ["c"], "remove": ["a", "b"]}),
        ([{"remove": ["a"]}, {"remove": ["b"]}], {}, {"remove": ["a", "b"]}),
        ([{"remove": ["a"]}, {"add": ["a"]}], {"add": ["a"]}, {"add": ["a"], "remove": ["a"]}),
        # intersect
        ([{"add": ["a", "b"]}, {"intersect": ["b", "c"]}], {"add": ["b"]}, {"add": ["b"], "intersect": ["b", "c"]}),
        ([{"add": ["a"]}, {"intersect": [], "add": ["b"]}], {"add": ["b"]}, {"add": ["b"], "intersect": []}),
        ([{"intersect": ["a", "b"]}, {"intersect": ["b", "c"]}], {}, {"intersect": ["b"]}),
        ([{"intersect": ["a", "b"]}, {"remove": ["b", "c"]}], {}, {"intersect": ["a"]}),
        ([{"remove": ["a"]}, {"intersect": ["a", "b"]}], {}, {"intersect": ["b"]}),
        ([{"intersect": ["a"]}, {"add": ["b"]}], {"add": ["b"]}, {"add": ["b"], "intersect": ["a"]}),
        # nothing at all is a value too
        ([{}, {}], {}, {}),
        ([{"add": ["a"], "remove": ["b"]}, {}], {"add": ["a"]}, {"add": ["a"], "remove": ["b"]}),
    ],
)
def test_set_terms_are_reduced(documents: list[Any], full: Any, partial: Any) -> None:
    assert SCALARS.full(documents) == full
    assert SCALARS.partial(documents) == [partial]


def test_members_on_both_sides_are_reduced() -> None:
    documents = [{"add": [["a", 1], ["b", 1]]}, {"add": [["b", 2], ["c", 1]], "remove": [["a", 9]]}]

    assert COUNTS.full(documents) == {"add": [["b", 3], ["c", 1]]}
    assert COUNTS.partial(documents) == [{"add": [["b", 3], ["c", 1]], "remove": [["a", 9]]}]


def test_members_are_properties_where_terms_are_objects() -> None:
    documents = [{"add": {"a": 1, "b": 1}, "remove": {"x": 0}}, {"add": {"b": 2}, "remove": {"a": 0}}]

    assert NAMES.full(documents) == {"add": {"b": 3}}
    assert NAMES.partial(documents) == [{"add": {"b": 3}, "remove": {"x": 0, "a": 0}}]
    assert NAMES.full([{"add": {"a": 1, "b": 1}}, {"intersect": {"b": None}}]) == {"add": {"b": 1}}


@pytest.mark.parametrize(
    "documents",
    [
        [1],  # not an object
        [{"add": []}, None],
        [{"added": []}],  # another term
        [{"intersect": [], "remove": []}],  # both
        [{"add": 1}],  # neither arrays nor objects
        [{"add": []}, {"add": {}}],  # not both
        [{"add": ["b", "a"]}],  # not sorted
        [{"add": ["a", "a"]}],  # not unique
    ],
)
def test_values_that_are_no_sets_are_refused(documents: list[Any]) -> None:
    with pytest.raises(ReductionError, match="while reducing '': 'set' strategy expects objects having only 'add'"):
        SCALARS.full(documents)


def test_a_member_that_does_not_fit_is_named() -> None:
    with pytest.raises(ReductionError, match="while reducing '/add/0/1': 'sum' strategy expects numbers"):
        COUNTS.full([{"add": [["a", 1]]}, {"add": [["a", None]]}])
    with pytest.raises(ReductionError, match="while reducing '/add/a': 'sum' strategy expects numbers"):
        NAMES.full([{"add": {"a": True}}])
