"""Reductions: literal results per strategy, and law L6 against a naive fold."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.pointer import MISSING
from derive.errors import ReductionError
from derive.reduce.combiner import Combiner


def schema_of(**strategies: dict[str, Any]) -> dict[str, Any]:
    properties = {name: {"reduce": annotation} for name, annotation in strategies.items()}
    return {"type": "object", "reduce": {"strategy": "merge"}, "properties": properties}


@pytest.mark.parametrize(
    ("annotation", "values", "expected"),
    [
        ({"strategy": "sum"}, [1, 2, 0.5], 3.5),
        ({"strategy": "sum"}, [2**64, 1, -(2**70)], 2**64 + 1 - 2**70),  # exact beyond 64 bits
        ({"strategy": "minimize"}, [3, 1, 2], 1),
        ({"strategy": "maximize"}, [3, "a", 2], "a"),  # strings come after numbers
        (
            {"strategy": "maximize", "key": ["/k"]},
            [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 1}],
            {"k": 2, "v": "b"},
        ),
        ({"strategy": "firstWriteWins"}, [None, 1], None),
        ({"strategy": "lastWriteWins"}, [1, None], None),
        ({"strategy": "append"}, [[1], [], [2, 3]], [1, 2, 3]),
        ({"strategy": "append"}, [None, [1]], None),  # what begins as null stays null
        ({"strategy": "merge"}, [{"a": 1}, {"b": 2}, {"a": 3}], {"a": 3, "b": 2}),
        ({"strategy": "merge"}, [[1, 2, 3], [4]], [4, 2, 3]),  # by index; the longer tail stays
        ({"strategy": "merge", "key": ["/k"]}, [[{"k": 1}, {"k": 3}], [{"k": 2}]], [{"k": 1}, {"k": 2}, {"k": 3}]),
    ],
)
def test_strategies_reduce_values(annotation: dict[str, Any], values: list[Any], expected: Any) -> None:
    combiner = Combiner(schema_of(v=annotation))

    assert combiner.full([{"v": value} for value in values]) == {"v": expected}


def test_last_document_replaces_others_without_annotations() -> None:
    assert Combiner({"type": "object"}).full([{"a": 1}, {"b": 2}]) == {"b": 2}


def test_delete_is_a_tombstone_until_a_full_reduction() -> None:
    combiner = Combiner(schema_of(v={"strategy": "lastWriteWins", "delete": True}))

    assert combiner.full([{"k": 1, "v": 1}]) == {"k": 1}
    assert combiner.partial([{"v": 1}, {"v": 2}]) == [{"v": 2}]
    assert Combiner({"reduce": {"strategy": "lastWriteWins", "delete": True}}).full([{"a": 1}]) is MISSING


def test_merging_onto_another_kind_takes_the_later_value() -> None:
    combiner = Combiner({"reduce": {"strategy": "merge"}})

    assert combiner.full([{"a": 1}, [1], [2, 3], {"b": 1}]) == {"b": 1}
    assert combiner.partial([{"a": 1}, [1], [2, 3], {"b": 1}]) == [{"a": 1}, [2, 3], {"b": 1}]


def test_partial_reductions_keep_non_associative_documents_separate() -> None:
    combiner = Combiner({"reduce": {"strategy": "lastWriteWins", "associative": False}})

    assert combiner.partial([{"a": 1}, {"a": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]
    assert combiner.full([{"a": 1}, {"a": 2}]) == {"a": 2}


@pytest.mark.parametrize(
    ("annotation", "values", "message"),
    [
        ({"strategy": "sum"}, [1, "x"], "while reducing '/v': 'sum' strategy expects numbers"),
        ({"strategy": "append"}, [[1], 2], "while reducing '/v': 'append' strategy expects arrays"),
        ({"strategy": "merge"}, [{}, 1], "while reducing '/v': 'merge' strategy expects objects or arrays"),
    ],
)
def test_unsuitable_values_are_refused(annotation: dict[str, Any], values: list[Any], message: str) -> None:
    with pytest.raises(ReductionError, match=message):
        Combiner(schema_of(v=annotation)).full([{"v": value} for value in values])


DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "total": st.integers(-(10**30), 10**30),
            "least": st.integers() | st.text(),
            "first": st.integers() | st.none(),
            "all": st.lists(st.integers(), max_size=3),
            "last": st.integers(),
        },
    ),
    min_size=1,
    max_size=8,
)
COMBINER = Combiner(
    schema_of(
        total={"strategy": "sum"},
        least={"strategy": "minimize"},
        first={"strategy": "firstWriteWins"},
        all={"strategy": "append"},
    )
)


def naive(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What the annotations of `COMBINER` mean, written down without a plan."""
    result: dict[str, Any] = {}
    for document in documents:
        for name, value in document.items():
            if name not in result or name == "last":
                result[name] = value
            elif name in ("total", "all"):
                result[name] = result[name] + value
            elif name == "least":
                before, now = result[name], value
                strings = isinstance(before, str), isinstance(now, str)
                result[name] = min(before, now) if strings[0] == strings[1] else now if strings[0] else before
    return result


@given(DOCUMENTS, st.data())
def test_l6_partial_reductions_in_order_equal_one_fold(documents: list[dict[str, Any]], data: st.DataObject) -> None:
    cut = sorted(data.draw(st.sets(st.integers(1, len(documents)))) | {0, len(documents)})
    parts = [documents[begin:end] for begin, end in pairwise(cut)]
    partial = [each for part in parts for each in COMBINER.partial(part)]

    assert COMBINER.full(documents) == naive(documents)
    assert COMBINER.full(partial) == naive(documents)
