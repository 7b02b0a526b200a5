"""Conjuncts of predicates: comparisons that all alternatives have in common look up the rows of a join."""

from __future__ import annotations

import pytest

from derive.algebra.expression import Call, Column, Expression
from derive.algebra.types import Type
from derive.sql.planner.building import conjuncts_of

_A, _B, _C, _D = (
    Call("equal_bigint", (Column(index, Type.BIGINT), Column(9, Type.BIGINT)), Type.BOOLEAN) for index in range(4)
)
_COMPUTED = Call("is_null", (Call("random", (), Type.DOUBLE),), Type.BOOLEAN)


def _and(*arguments: Expression) -> Call:
    return Call("and", arguments, Type.BOOLEAN)


def _or(*arguments: Expression) -> Call:
    return Call("or", arguments, Type.BOOLEAN)


@pytest.mark.parametrize(
    ("predicate", "conjuncts"),
    [
        (_A, [_A]),
        (_and(_A, _and(_B, _C)), [_A, _B, _C]),
        (_or(_A, _B), [_or(_A, _B)]),
        (_or(_and(_A, _B), _and(_C, _A)), [_A, _or(_B, _C)]),
        (_or(_and(_A, _B, _C), _and(_A, _D)), [_A, _or(_and(_B, _C), _D)]),
        (_or(_or(_and(_A, _B), _and(_A, _C)), _and(_A, _D)), [_A, _or(_or(_B, _C), _D)]),
        (_or(_A, _and(_A, _B)), [_A]),
        (_or(_and(_A, _B), _and(_B, _A)), [_A, _B]),
        (_and(_D, _or(_and(_A, _B), _and(_A, _C))), [_D, _A, _or(_B, _C)]),
        # each call of a computed part may have another value
        (_or(_and(_COMPUTED, _B), _and(_COMPUTED, _C)), [_or(_and(_COMPUTED, _B), _and(_COMPUTED, _C))]),
    ],
)
def test_conjuncts_include_common_comparisons_of_alternatives(
    predicate: Expression, conjuncts: list[Expression]
) -> None:
    assert list(conjuncts_of(predicate)) == conjuncts
