"""Terms of a sum of joins: put together, restricted, projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.expression_parts import columns_read, conjuncts, is_atomic, replaced, walk
from derive.algebra.types import Type
from derive.compute.plans.plan import Term
from derive.functions.scalar.logic import equality

MOST_PARTS = 200
"""An expression of more parts is not put in place of a column, but worked out where it stands."""


def width_of(term: Term) -> int:
    """How many columns its leaves have."""
    return sum(len(leaf.types) for leaf in term.leaves)


def shifted(expression: Expression, by: int) -> Expression:
    """An expression about columns that stand further to the right."""
    return replaced(expression, lambda column: Column(column.index + by, column.type))


def about_leaves(expression: Expression, term: Term) -> Expression:
    """An expression about the columns of a term, as one about those of its leaves."""
    return replaced(expression, lambda column: term.outputs[column.index])


def grows_too_much(expressions: Sequence[Expression], term: Term) -> bool:
    """Whether too much would be worked out several times, if expressions were about the leaves of a term."""
    sizes = [0 if is_atomic(output) else sum(1 for _ in walk(output)) for output in term.outputs]
    grown = sum(
        sizes[part.index] for expression in expressions for part in walk(expression) if isinstance(part, Column)
    )
    return grown > MOST_PARTS


def projected(term: Term, expressions: Sequence[Expression]) -> Term:
    """A term whose rows are the values of expressions about its columns."""
    return replace(term, outputs=tuple(about_leaves(expression, term) for expression in expressions))


def restricted(term: Term, predicates: Sequence[Expression]) -> Term:
    """Those rows of a term for which predicates about its columns are true."""
    single = [part for predicate in predicates for part in conjuncts(about_leaves(predicate, term))]
    return replace(term, predicates=(*term.predicates, *single))


def product(left: Term, right: Term) -> Term:
    """All combinations of rows of two terms."""
    by = width_of(left)
    return Term(
        left.leaves + right.leaves,
        left.predicates + tuple(shifted(predicate, by) for predicate in right.predicates),
        left.outputs + tuple(shifted(output, by) for output in right.outputs),
        left.is_negative != right.is_negative,
    )


def equal(left: Expression, right: Expression) -> Call:
    """Whether two expressions of one type are equal."""
    return Call(equality(left.type), (left, right), Type.BOOLEAN)


def equated(predicate: Expression) -> tuple[Expression, Expression] | None:
    """The two sides of an equation whose sides have equal data where it is true; None for anything else."""
    if isinstance(predicate, Call) and len(predicate.arguments) == 2:
        left, right = predicate.arguments
        if left.type is right.type is not Type.INTERVAL and predicate.function == equality(left.type):
            return left, right
    return None


def sides(predicate: Expression, width: int) -> tuple[bool, bool]:
    """Whether an expression reads columns before a certain one, and whether it reads others."""
    read = columns_read(predicate)
    return any(index < width for index in read), any(index >= width for index in read)


def nulls(types: Sequence[Type]) -> tuple[Expression, ...]:
    """A NULL of each type."""
    return tuple(Literal(None, kind) for kind in types)
