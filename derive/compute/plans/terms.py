"""Terms of a sum of joins: construction, restriction, projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.expression_parts import columns_read, conjuncts, is_atomic, replaced, walk
from derive.algebra.types import Type
from derive.compute.plans.plan import Term
from derive.functions.scalar.logic import equality

MOST_PARTS = 200
"""Maximum number of parts of an expression that is substituted for a column; larger ones are computed in place."""


def width_of(term: Term) -> int:
    """Return the number of columns of a term's leaves."""
    return sum(len(leaf.types) for leaf in term.leaves)


def shifted(expression: Expression, by: int) -> Expression:
    """Return an expression whose columns are shifted to the right."""
    return replaced(expression, lambda column: Column(column.index + by, column.type))


def about_leaves(expression: Expression, term: Term) -> Expression:
    """Translate an expression over the columns of a term to one over the columns of its leaves."""
    return replaced(expression, lambda column: term.outputs[column.index])


def grows_too_much(expressions: Sequence[Expression], term: Term) -> bool:
    """Return whether translating expressions to a term's leaves would repeat too many computations."""
    sizes = [0 if is_atomic(output) else sum(1 for _ in walk(output)) for output in term.outputs]
    grown = sum(
        sizes[part.index] for expression in expressions for part in walk(expression) if isinstance(part, Column)
    )
    return grown > MOST_PARTS


def projected(term: Term, expressions: Sequence[Expression]) -> Term:
    """Return a term whose rows are the values of expressions over its columns."""
    return replace(term, outputs=tuple(about_leaves(expression, term) for expression in expressions))


def restricted(term: Term, predicates: Sequence[Expression]) -> Term:
    """Return a term of the rows for which predicates over its columns are true."""
    single = [part for predicate in predicates for part in conjuncts(about_leaves(predicate, term))]
    return replace(term, predicates=(*term.predicates, *single))


def product(left: Term, right: Term) -> Term:
    """Return all combinations of rows of two terms."""
    by = width_of(left)
    return Term(
        left.leaves + right.leaves,
        left.predicates + tuple(shifted(predicate, by) for predicate in right.predicates),
        left.outputs + tuple(shifted(output, by) for output in right.outputs),
        left.is_negative != right.is_negative,
    )


def equal(left: Expression, right: Expression) -> Call:
    """Return the equation of two expressions of one type."""
    return Call(equality(left.type), (left, right), Type.BOOLEAN)


def equated(predicate: Expression) -> tuple[Expression, Expression] | None:
    """Return the two sides of an equation that implies equal data; None for anything else."""
    if isinstance(predicate, Call) and len(predicate.arguments) == 2:
        left, right = predicate.arguments
        if left.type is right.type is not Type.INTERVAL and predicate.function == equality(left.type):
            return left, right
    return None


def sides(predicate: Expression, width: int) -> tuple[bool, bool]:
    """Return whether an expression reads columns before `width`, and whether it reads others."""
    read = columns_read(predicate)
    return any(index < width for index in read), any(index >= width for index in read)


def nulls(types: Sequence[Type]) -> tuple[Expression, ...]:
    """Return a NULL of each type."""
    return tuple(Literal(None, kind) for kind in types)
