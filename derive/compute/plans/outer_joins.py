"""Outer joins as sums: matches, plus rows padded with NULLs, minus those that match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from derive.algebra.expression import Column, Expression
from derive.algebra.expression_parts import conjuncts, gets_of, has_subquery
from derive.algebra.relation import Get, OuterJoin, Relation, Side
from derive.compute.plans.plan import Grouped, Keyed, Linear, Plan, Recomputed, Source, Term, all_of
from derive.compute.plans.terms import equal, equated, nulls, product, projected, restricted, shifted, sides
from derive.functions.registry import can_fail


def outer_join_terms(join: OuterJoin, planned: Callable[[Relation], Plan]) -> Sequence[Term]:
    """Return terms whose sum is an outer join.

    Args:
        join: the outer join.
        planned: plans its inputs.
    """
    width = len(join.left.types)
    predicates = conjuncts(join.predicate)
    pairs = [pair for predicate in predicates if (pair := _equated_sides(predicate, width))]
    others = [predicate for predicate in predicates if not _equated_sides(predicate, width)]
    left, right = planned(join.left), planned(join.right)
    around = replace(join, left=Get(-1, join.left.types), right=Get(-2, join.right.types))
    if any(map(has_subquery, predicates)):
        sources = [Source(get.id, get.types) for get in gets_of(join.predicate)]
        return [all_of(Recomputed((left, right, *sources), around, "a subquery is asked for each pair of rows"))]
    is_mixed = any(all(sides(predicate, width)) for predicate in others)
    if pairs and not is_mixed and not any(map(can_fail, predicates)):
        return _sum(join, left, right, pairs, others)
    if pairs:
        keys = tuple(tuple(pair[side] for pair in pairs) for side in (0, 1))
        return [all_of(Keyed((left, right), keys, around))]
    return [all_of(Recomputed((left, right), around, "an outer join without an equation compares all pairs of rows"))]


def _equated_sides(predicate: Expression, width: int) -> tuple[Expression, Expression] | None:
    """Return the sides of an infallible equation, each over its own row (left, right); None if there is none."""
    pair = equated(predicate)
    if pair is None or can_fail(predicate) or has_subquery(predicate):
        return None
    for left, right in (pair, pair[::-1]):
        if sides(left, width) == (True, False) and sides(right, width) == (False, True):
            return left, shifted(right, -width)
    return None


def _sum(
    join: OuterJoin,
    left: Plan,
    right: Plan,
    pairs: Sequence[tuple[Expression, Expression]],
    others: Sequence[Expression],
) -> Sequence[Term]:
    """Return the terms of an outer join whose predicates, except for equations, concern one side each."""
    width = len(left.types)
    terms = [restricted(product(all_of(left), all_of(right)), conjuncts(join.predicate))]
    of_left = [predicate for predicate in others if not sides(predicate, width)[1]]
    of_right = [shifted(predicate, -width) for predicate in others if sides(predicate, width)[1]]
    if join.side is not Side.RIGHT:
        matches = _matches(right, [pair[1] for pair in pairs], of_right)
        terms += [
            replace(term, outputs=(*term.outputs, *nulls(right.types)))
            for term in _alone(left, [pair[0] for pair in pairs], of_left, matches)
        ]
    if join.side is not Side.LEFT:
        matches = _matches(left, [pair[0] for pair in pairs], of_left)
        terms += [
            replace(term, outputs=(*nulls(left.types), *term.outputs))
            for term in _alone(right, [pair[1] for pair in pairs], of_right, matches)
        ]
    return terms


def _matches(plan: Plan, keys: Sequence[Expression], predicates: Sequence[Expression]) -> Plan:
    """Return the distinct keys of rows for which predicates are true."""
    return Grouped(Linear((projected(restricted(all_of(plan), predicates), keys),)), len(keys), ())


def _alone(plan: Plan, keys: Sequence[Expression], predicates: Sequence[Expression], matches: Plan) -> list[Term]:
    """Return the rows for which a predicate is not true, or whose key is not on the other side."""
    width = len(plan.types)
    joined = product(all_of(plan), all_of(matches))
    equations = [equal(key, Column(width + index, key.type)) for index, key in enumerate(keys)]
    matched = restricted(joined, [*predicates, *equations])
    return [all_of(plan), replace(matched, outputs=matched.outputs[:width], is_negative=True)]
