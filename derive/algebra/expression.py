"""Scalar expressions over the columns of a row, their parts, and the replacement of parts.

Overloads and implicit casts are resolved: a `Call` names one implementation, and its arguments have exactly the types
of that implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from derive.algebra.relation import Constant, Get, Project, Relation, Unnest
from derive.algebra.types import Datum, Type


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the current row.

    Attributes:
        index: index of the column, from 0.
        type: type of the column.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class OuterColumn:
    """A column of an enclosing query's row, inside a subquery.

    Attributes:
        depth: number of levels outward, from 1.
        index: index of the column, from 0.
        type: type of the column.
    """

    depth: int
    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    Attributes:
        value: its datum; None is NULL.
        type: its type.
        scale: number of digits after the decimal point as written; None if unknown.
    """

    value: Datum
    type: Type
    scale: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$1` and so on, which is replaced by a literal before evaluation.

    Attributes:
        index: index of the parameter, from 0.
        type: its type.
    """

    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A function, an operator or a cast.

    Attributes:
        function: name of an implementation in `derive.functions`.
        arguments: arguments of exactly the implementation's types.
        type: type of the result.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN … THEN … ELSE … END`: the result of the first true condition; later parts are not evaluated.

    Attributes:
        branches: pairs of a condition (boolean) and a result.
        otherwise: the result if no condition is true.
        type: type of all results.
    """

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression
    type: Type


class SubqueryKind(Enum):
    """The kinds of subqueries inside an expression."""

    SCALAR = "scalar"
    """The value of its single column; NULL without a row; an error with several rows."""
    EXISTS = "exists"
    """`EXISTS`: true if the query has a row."""
    IN = "in"
    """`IN`: true if a row of the query equals the operands, in three-valued logic."""


@dataclass(frozen=True, slots=True)
class Subquery:
    """A query inside an expression.

    Attributes:
        kind: kind of the subquery.
        relation: the query; it refers to enclosing rows by `OuterColumn`.
        operands: operands of `IN`, one for each column of the relation; otherwise empty.
        type: type of the result.
    """

    kind: SubqueryKind
    relation: Relation
    operands: tuple[Expression, ...]
    type: Type


Expression: TypeAlias = Column | OuterColumn | Literal | Parameter | Call | Case | Subquery
"""An expression with a value for each row, and a `type`."""


def conjuncts(predicate: Expression) -> list[Expression]:
    """Return the conjuncts of a predicate."""
    if isinstance(predicate, Call) and predicate.function == "and":
        return [part for argument in predicate.arguments for part in conjuncts(argument)]
    return [predicate]


def parts(expression: Expression) -> Sequence[Expression]:
    """Return the direct parts of an expression, without those inside subqueries."""
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
    """Yield an expression and all its parts, without those inside subqueries."""
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
    """Return whether a relation is the elements of arrays, or a projection of them."""
    return isinstance(relation, Unnest) or (isinstance(relation, Project) and is_unnest(relation.input))
