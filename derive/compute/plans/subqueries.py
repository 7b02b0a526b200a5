"""Subqueries as joins: with the single row of a subquery, or with the distinct values of a lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from derive.algebra.expression import Call, Column, Expression, OuterColumn, Subquery, SubqueryKind
from derive.algebra.expression_parts import (
    columns_read,
    conjuncts,
    has_subquery,
    mentions_outer_column,
    rewritten,
    walk,
)
from derive.algebra.relation import Distinct, Filter, Join, Project, Reduce, Relation
from derive.compute.plans.plan import Plan, Term, all_of
from derive.compute.plans.terms import equal, equated, product, restricted

Planned: TypeAlias = Callable[[Relation], Plan]
"""A function that plans a relation."""


def with_scalars_joined(
    term: Term, expressions: Sequence[Expression], planned: Planned
) -> tuple[Term, list[Expression]] | None:
    """Replace subqueries in expressions by columns of joined terms.

    Args:
        term: the term that the expressions read.
        expressions: expressions with or without subqueries.
        planned: plans the subqueries.

    Returns:
        The joined term, which begins with the columns of `term`, and the expressions over it; None if a subquery
            depends on the row, or may not have exactly one row.
    """
    subqueries = {part: None for expression in expressions for part in walk(expression) if isinstance(part, Subquery)}
    columns: dict[Expression, Column] = {}
    for subquery in subqueries:
        is_alike = subquery.kind is SubqueryKind.SCALAR and _has_one_row(subquery.relation)
        if not is_alike or mentions_outer_column(subquery.relation):
            return None
        columns[subquery] = Column(len(term.outputs), subquery.type)
        term = product(term, all_of(planned(subquery.relation)))
    return term, [rewritten(expression, columns.get) for expression in expressions]


def _has_one_row(relation: Relation) -> bool:
    """Return whether a relation always has one row."""
    match relation:
        case Reduce(keys=()):
            return True
        case Project(input=source):
            return _has_one_row(source)
        case _:
            return False


def restricted_by_subquery(term: Term, predicate: Expression, planned: Planned) -> list[Term] | None:
    """Return terms of the rows for which a subquery has a row, or has none.

    Args:
        term: the term.
        predicate: a predicate over its columns.
        planned: plans the subqueries.

    Returns:
        Terms with these rows; None if the predicate has another form, or depends on the row by more than equations.
    """
    is_negated = isinstance(predicate, Call) and predicate.function == "not"
    subquery = predicate.arguments[0] if isinstance(predicate, Call) and is_negated else predicate
    if not isinstance(subquery, Subquery) or subquery.kind is SubqueryKind.SCALAR:
        return None
    if subquery.kind is SubqueryKind.IN and (is_negated or any(map(has_subquery, subquery.operands))):
        return None
    lookup = _lookup(subquery)
    if lookup is None:
        return None
    width = len(term.outputs)
    joined = product(term, all_of(planned(Distinct(lookup.relation))))
    equations = [equal(operand, Column(width + index, operand.type)) for index, operand in enumerate(lookup.operands)]
    joined = restricted(joined, equations)
    joined = replace(joined, outputs=joined.outputs[:width])
    if is_negated:
        return [term, replace(joined, is_negative=not joined.is_negative)]
    return [joined]


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A subquery as a lookup: it has a row if the operands are in a relation.

    Attributes:
        relation: relation that does not depend on the row.
        operands: expressions over the row, one for each column of the relation, except for a column without an operand.
    """

    relation: Relation
    operands: tuple[Expression, ...]


def _lookup(subquery: Subquery) -> _Lookup | None:
    relation = subquery.relation
    required: tuple[Expression, ...] = ()
    if subquery.kind is SubqueryKind.IN:
        if isinstance(relation, Distinct):
            relation = relation.input
        required = tuple(Column(index, kind) for index, kind in enumerate(relation.types))
        if isinstance(relation, Project):
            required, relation = relation.expressions, relation.input
    else:
        while isinstance(relation, Project | Distinct):
            relation = relation.input
    source, predicates = _peeled(relation)
    if mentions_outer_column(source) or mentions_outer_column(required):
        return None
    kept = [predicate for predicate in predicates if not mentions_outer_column(predicate)]
    pairs = [_correlation(predicate) for predicate in predicates if mentions_outer_column(predicate)]
    if any(pair is None for pair in pairs):
        return None
    inner = [*required, *(pair[0] for pair in pairs if pair)]
    outer = [*subquery.operands, *(pair[1] for pair in pairs if pair)]
    for predicate in kept:
        source = Filter(source, predicate)
    return _Lookup(Project(source, tuple(inner)), tuple(outer))


def _peeled(relation: Relation) -> tuple[Relation, list[Expression]]:
    """Return a relation without the predicates at its top, and these predicates."""
    if isinstance(relation, Filter):
        source, predicates = _peeled(relation.input)
        return source, predicates + conjuncts(relation.predicate)
    if isinstance(relation, Join):
        return Join(relation.inputs), [part for predicate in relation.predicates for part in conjuncts(predicate)]
    return relation, []


def _correlation(predicate: Expression) -> tuple[Expression, Expression] | None:
    """Return the sides of an equation between the inner and the outer row, each over its own row; None for others."""
    pair = equated(predicate)
    if pair is None or has_subquery(predicate):
        return None
    for inner, outer in (pair, pair[::-1]):
        references = [part for part in walk(outer) if isinstance(part, OuterColumn)]
        is_outer = not columns_read(outer) and all(reference.depth == 1 for reference in references)
        if is_outer and not mentions_outer_column(inner):
            return inner, rewritten(outer, _as_column)
    return None


def _as_column(expression: Expression) -> Expression | None:
    return Column(expression.index, expression.type) if isinstance(expression, OuterColumn) else None
