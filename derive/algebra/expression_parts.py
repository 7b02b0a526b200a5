"""Traversal of expressions: their parts, the columns that they read, and the replacement of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Parameter, Subquery
from derive.algebra.relation import Constant, Get, Project, Relation, Unnest


def conjuncts(predicate: Expression) -> list[Expression]:
    """Return the conjuncts of a predicate."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return [part for argument in predicate.arguments for part in conjuncts(argument)]
    return [predicate]


def parts(expression: Expression) -> Sequence[Expression]:
    """Return the direct parts of an expression, without parts inside subqueries."""
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
    """Yield an expression and all its parts, without parts inside subqueries."""
    yield expression
    for part in parts(expression):
        yield from walk(part)


def has_subquery(expression: Expression) -> bool:
    """Return whether an expression contains a subquery."""
    return any(isinstance(part, Subquery) for part in walk(expression))


def columns_read(expression: Expression) -> set[int]:
    """Return the columns of the row that an expression without subqueries reads."""
    return {part.index for part in walk(expression) if isinstance(part, Column)}


def is_atomic(expression: Expression) -> bool:
    """Return whether evaluating an expression again is free."""
    return isinstance(expression, Column | OuterColumn | Literal | Parameter)


def rewritten(expression: Expression, rewrite: Callable[[Expression], Expression | None]) -> Expression:
    """Return an expression with some parts replaced; subqueries stay unchanged.

    Args:
        expression: the expression.
        rewrite: returns the replacement of a part; None to descend into it.
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
    """Return an expression without subqueries, with its columns replaced."""
    return rewritten(expression, lambda part: replacement(part) if isinstance(part, Column) else None)


def mentions_outer_column(node: Any, depth: int = 0) -> bool:
    """Return whether a relation or expression reads rows of enclosing queries.

    Args:
        node: a node of the algebra, or a tuple of nodes.
        depth: number of queries between the root and this part.
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
    """Return the collections that a relation or expression reads, including subqueries, each once."""
    if isinstance(node, Get):
        return (node,)
    if isinstance(node, tuple):
        return tuple(dict.fromkeys(get for part in node for get in gets_of(part)))
    if is_dataclass(node) and not isinstance(node, Constant | Column | Literal | Parameter):
        return gets_of(tuple(getattr(node, field.name) for field in fields(node)))
    return ()


def is_unnest(relation: Relation) -> bool:
    """Return whether a relation is the elements of arrays, or a projection of the elements."""
    return isinstance(relation, Unnest) or (isinstance(relation, Project) and is_unnest(relation.input))
