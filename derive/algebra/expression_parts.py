"""What expressions are made of: their parts, the columns that they read, and others in place of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Parameter, Subquery
from derive.algebra.relation import Constant, Get, Project, Relation, Unnest


def conjuncts(predicate: Expression) -> list[Expression]:
    """Predicates that are all true just where this one is."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return [part for argument in predicate.arguments for part in conjuncts(argument)]
    return [predicate]


def parts(expression: Expression) -> Sequence[Expression]:
    """The expressions that this one is made of, without those inside of subqueries."""
    match expression:
        case Call(arguments=arguments):
            return arguments
        case Case(branches=branches, otherwise=otherwise):
            return [part for branch in branches for part in branch] + [otherwise]
        case Subquery(operands=operands):
            return operands
        case _:
            return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """An expression and all that it is made of, without what is inside of subqueries."""
    yield expression
    for part in parts(expression):
        yield from walk(part)


def has_subquery(expression: Expression) -> bool:
    """Whether there is a query inside of it."""
    return any(isinstance(part, Subquery) for part in walk(expression))


def columns_read(expression: Expression) -> set[int]:
    """Columns of the row that an expression without subqueries reads."""
    return {part.index for part in walk(expression) if isinstance(part, Column)}


def is_atomic(expression: Expression) -> bool:
    """Whether it costs nothing to evaluate it again."""
    return isinstance(expression, Column | OuterColumn | Literal | Parameter)


def rewritten(expression: Expression, rewrite: Callable[[Expression], Expression | None]) -> Expression:
    """An expression with others in place of parts of it; what is inside of subqueries stays.

    Args:
        expression: to change.
        rewrite: what comes in place of a part; None to look into it.
    """
    other = rewrite(expression)
    if other is not None:
        return other
    match expression:
        case Call(arguments=arguments):
            return replace(expression, arguments=tuple(rewritten(part, rewrite) for part in arguments))
        case Case(branches=branches, otherwise=otherwise):
            pairs = tuple((rewritten(condition, rewrite), rewritten(result, rewrite)) for condition, result in branches)
            return Case(pairs, rewritten(otherwise, rewrite), expression.type)
        case _:
            return expression


def replaced(expression: Expression, replacement: Callable[[Column], Expression]) -> Expression:
    """An expression without subqueries, with others in place of its columns."""
    return rewritten(expression, lambda part: replacement(part) if isinstance(part, Column) else None)


def mentions_outer_column(node: Any, depth: int = 0) -> bool:
    """Whether a relation or expression reads rows of queries that it is inside of.

    Args:
        node: of the algebra, or a tuple of such.
        depth: how many queries there are between the one that is asked about and this part of it.
    """
    if isinstance(node, OuterColumn):
        return node.depth > depth
    if isinstance(node, Subquery):
        return mentions_outer_column(node.operands, depth) or mentions_outer_column(node.relation, depth + 1)
    if isinstance(node, tuple):
        return any(mentions_outer_column(part, depth) for part in node)
    if is_dataclass(node) and not isinstance(node, Constant | Column | Literal | Parameter):
        return any(mentions_outer_column(getattr(node, field.name), depth) for field in fields(node))
    return False


def gets_of(node: Any) -> tuple[Get, ...]:
    """What a relation or expression reads, subqueries included, each once."""
    if isinstance(node, Get):
        return (node,)
    if isinstance(node, tuple):
        return tuple(dict.fromkeys(get for part in node for get in gets_of(part)))
    if is_dataclass(node) and not isinstance(node, Constant | Column | Literal | Parameter):
        return gets_of(tuple(getattr(node, field.name) for field in fields(node)))
    return ()


def is_unnest(relation: Relation) -> bool:
    """Whether a relation has the elements of arrays, or columns of these rows."""
    return isinstance(relation, Unnest) or (isinstance(relation, Project) and is_unnest(relation.input))
