"""Queries that look few rows up by an index, and take less time than to have a thread work them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from derive.compute.algebra.expression import Call, Case, Column, Expression, Literal
from derive.compute.algebra.relation import Filter, Get, GlobalId, Project, Relation


def is_point_lookup(relation: Relation, indexed: Callable[[GlobalId], Sequence[tuple[int, ...]]]) -> bool:
    """Whether a relation is rows of one other, by values of all columns of an index.

    Args:
        relation: without parameters.
        indexed: columns of all indexes of a relation.
    """
    while isinstance(relation, Project) and all(map(_is_plain, relation.expressions)):
        relation = relation.input
    if not isinstance(relation, Filter) or not isinstance(relation.input, Get) or not _is_plain(relation.predicate):
        return False
    columns = {column for part in _conjuncts(relation.predicate) if (column := _column_looked_up(part)) is not None}
    return any(columns.issuperset(index) for index in indexed(relation.input.id))


def _conjuncts(predicate: Expression) -> list[Expression]:
    if isinstance(predicate, Call) and predicate.function == "and":
        return [conjunct for argument in predicate.arguments for conjunct in _conjuncts(argument)]
    return [predicate]


def _column_looked_up(predicate: Expression) -> int | None:
    """The column that must equal a constant."""
    if isinstance(predicate, Call) and predicate.function.startswith("equal_"):
        match predicate.arguments:
            case (Column(index), Literal()) | (Literal(), Column(index)):
                return index
    return None


def _is_plain(expression: Expression) -> bool:
    """Whether an expression has no subquery."""
    match expression:
        case Call():
            return all(map(_is_plain, expression.arguments))
        case Case():
            parts = [part for branch in expression.branches for part in branch]
            return all(map(_is_plain, [*parts, expression.otherwise]))
    return isinstance(expression, Column | Literal)
