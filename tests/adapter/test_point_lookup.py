"""Queries that look few rows up by an index."""

from __future__ import annotations

import pytest

from derive.adapter.point_lookup import is_point_lookup
from derive.compute.algebra.expression import Call, Column, Expression, Literal, Subquery, SubqueryKind
from derive.compute.algebra.relation import Filter, Get, Project
from derive.compute.algebra.types import Type

ROWS = Get(7, (Type.BIGINT, Type.TEXT))
ID, NAME = Column(0, Type.BIGINT), Column(1, Type.TEXT)
ONE = Literal(1, Type.BIGINT)


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, Type.BOOLEAN)


IS_ONE = call("equal_bigint", ID, ONE)
IS_ANN = call("equal_text", Literal("Ann", Type.TEXT), NAME)
IS_SELECTED = Subquery(SubqueryKind.EXISTS, ROWS, (), Type.BOOLEAN)


@pytest.mark.parametrize(
    ("predicate", "index", "is_point"),
    [
        (IS_ONE, (0,), True),
        (IS_ANN, (1,), True),
        (call("and", IS_ONE, call("like_text", NAME, Literal("A%", Type.TEXT))), (0,), True),
        (call("and", IS_ONE, IS_ANN), (1, 0), True),
        (IS_ONE, (1, 0), False),
        (IS_ONE, (1,), False),
        (call("or", IS_ONE, IS_ANN), (0,), False),
        (call("less_bigint", ID, ONE), (0,), False),
        (call("equal_bigint", ID, ID), (0,), False),
        (call("and", IS_ONE, IS_SELECTED), (0,), False),
    ],
)
def test_all_columns_of_an_index_are_equal_to_constants(
    predicate: Expression, index: tuple[int, ...], is_point: bool
) -> None:
    def indexed(identifier: int) -> list[tuple[int, ...]]:
        return [index] if identifier == 7 else []

    filtered = Filter(ROWS, predicate)
    assert is_point_lookup(filtered, indexed) is is_point
    assert is_point_lookup(Project(filtered, (NAME,)), indexed) is is_point
    assert not is_point_lookup(Project(filtered, (IS_SELECTED,)), indexed)
    assert not is_point_lookup(Filter(filtered, IS_ANN), indexed)
    assert not is_point_lookup(ROWS, indexed)
