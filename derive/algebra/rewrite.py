"""Replacement of parts in expressions and relations.

A replacement is a function called for every expression, from outside in, with the number of enclosing subqueries. It
returns the new expression, or None to keep the expression and to continue with its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TypeAlias, TypeVar

from derive.algebra.expression import Call, Case, Column, Expression, OuterColumn, Subquery
from derive.algebra.relation import (
    Aggregate,
    Constant,
    Filter,
    Get,
    Join,
    Order,
    OuterJoin,
    Project,
    Recurring,
    Recursion,
    Reduce,
    Relation,
    SetOperation,
    TopK,
    UnionAll,
    Unnest,
    Window,
    WindowFunction,
)

T = TypeVar("T")

Replacement: TypeAlias = Callable[[Expression, int], Expression | None]


def rewritten(expression: Expression, replacement: Replacement, depth: int = 0) -> Expression:
    """Return an expression with parts replaced."""
    other = replacement(expression, depth)
    if other is not None:
        return other
    match expression:
        case Call(function, arguments, kind):
            return Call(function, tuple(rewritten(part, replacement, depth) for part in arguments), kind)
        case Case(branches, otherwise, kind):
            parts = tuple(
                (rewritten(condition, replacement, depth), rewritten(result, replacement, depth))
                for condition, result in branches
            )
            return Case(parts, rewritten(otherwise, replacement, depth), kind)
        case Subquery(kind, relation, operands, result):
            operands = tuple(rewritten(operand, replacement, depth) for operand in operands)
            return Subquery(kind, rewritten_relation(relation, replacement, depth + 1), operands, result)
    return expression


def rewritten_order(order: Iterable[Order], replacement: Replacement, depth: int = 0) -> tuple[Order, ...]:
    """Return an order with parts of its expressions replaced."""
    return tuple(replace(item, expression=rewritten(item.expression, replacement, depth)) for item in order)


def rewritten_aggregate(aggregate: Aggregate, replacement: Replacement, depth: int = 0) -> Aggregate:
    """Return an aggregate with parts of its expressions replaced."""
    return replace(
        aggregate,
        arguments=tuple(rewritten(argument, replacement, depth) for argument in aggregate.arguments),
        condition=aggregate.condition and rewritten(aggregate.condition, replacement, depth),
        order=rewritten_order(aggregate.order, replacement, depth),
    )


def rewritten_window(function: WindowFunction, replacement: Replacement, depth: int = 0) -> WindowFunction:
    """Return a window function with parts of its expressions replaced."""
    return replace(
        function,
        arguments=tuple(rewritten(argument, replacement, depth) for argument in function.arguments),
        partition=tuple(rewritten(part, replacement, depth) for part in function.partition),
        order=rewritten_order(function.order, replacement, depth),
    )


def rewritten_relation(relation: Relation, replacement: Replacement, depth: int = 0) -> Relation:  # noqa: PLR0911 (one for each kind)
    """Return a relation with parts of all of its expressions replaced."""

    def all_of(expressions: Iterable[Expression]) -> tuple[Expression, ...]:
        return tuple(rewritten(expression, replacement, depth) for expression in expressions)

    inputs = tuple(rewritten_relation(child, replacement, depth) for child in inputs_of(relation))
    relation = with_inputs(relation, inputs)
    match relation:
        case Project():
            return replace(relation, expressions=all_of(relation.expressions))
        case Filter() | OuterJoin():
            return replace(relation, predicate=rewritten(relation.predicate, replacement, depth))
        case Join():
            return replace(relation, predicates=all_of(relation.predicates))
        case Unnest():
            return replace(relation, array=rewritten(relation.array, replacement, depth))
        case Reduce():
            aggregates = tuple(rewritten_aggregate(aggregate, replacement, depth) for aggregate in relation.aggregates)
            return replace(relation, keys=all_of(relation.keys), aggregates=aggregates)
        case Window():
            functions = tuple(rewritten_window(function, replacement, depth) for function in relation.functions)
            return replace(relation, functions=functions)
        case TopK():
            order = rewritten_order(relation.order, replacement, depth)
            return replace(relation, keys=all_of(relation.keys), order=order)
    return relation


def inputs_of(relation: Relation) -> tuple[Relation, ...]:
    """Return the direct inputs of a relation, without the inputs of subqueries in its expressions."""
    match relation:
        case Get() | Constant() | Recurring():
            return ()
        case Join() | UnionAll():
            return relation.inputs
        case Recursion():
            return relation.base, relation.step
        case OuterJoin() | SetOperation():
            return relation.left, relation.right
        case _:
            return (relation.input,)


def with_inputs(relation: Relation, inputs: tuple[Relation, ...]) -> Relation:
    """Return a relation with other inputs and the same expressions."""
    match relation:
        case Get() | Constant() | Recurring():
            return relation
        case Recursion():
            return replace(relation, base=inputs[0], step=inputs[1])
        case Join() | UnionAll():
            return replace(relation, inputs=inputs)
        case OuterJoin() | SetOperation():
            return replace(relation, left=inputs[0], right=inputs[1])
        case _:
            return replace(relation, input=inputs[0])


def with_columns(expression: Expression, column: Callable[[Column], Expression]) -> Expression:
    """Return an expression with each of its columns replaced, also where subqueries refer to the row."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            return column(part)
        if isinstance(part, OuterColumn) and part.depth == depth:
            return deepened(column(Column(part.index, part.type)), depth)
        return None

    return rewritten(expression, replacement)


def deepened(expression: Expression, by: int) -> Expression:
    """Return an expression for use in a subquery `by` levels deeper: its references to enclosing rows are adjusted."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            return OuterColumn(by, part.index, part.type)
        if isinstance(part, OuterColumn) and part.depth >= depth:
            return replace(part, depth=part.depth + by)
        return None

    return rewritten(expression, replacement) if by else expression


def shifted(expression: Expression, by: int) -> Expression:
    """Return an expression over rows with `by` more columns in front."""
    return with_columns(expression, lambda column: replace(column, index=column.index + by)) if by else expression


def deepened_relation(relation: Relation, by: int) -> Relation:
    """Return a relation for use `by` subqueries deeper: its references to enclosing rows are adjusted."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, OuterColumn) and part.depth > depth:
            return replace(part, depth=part.depth + by)
        return None

    return rewritten_relation(relation, replacement) if by else relation


def outer_columns_of(relation: Relation) -> set[int]:
    """Return the indexes of the enclosing query's columns that a relation refers to."""
    indexes: set[int] = set()

    def note(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, OuterColumn) and part.depth == depth + 1:
            indexes.add(part.index)
        return None

    rewritten_relation(relation, note)
    return indexes


def mentions(relation: Relation, is_sought: Callable[[Expression], bool]) -> bool:
    """Return whether a part of a relation's expressions satisfies a test, also in subqueries."""
    has = False

    def note(part: Expression, _: int) -> Expression | None:
        nonlocal has
        has = has or is_sought(part)
        return part if has else None

    rewritten_relation(relation, note)
    return has


def with_gets(node: T, replacement: Callable[[Get], Relation]) -> T:
    """Return a relation, or a structure of relations, with each `Get` replaced."""
    if isinstance(node, Get):
        return replacement(node)  # type: ignore[return-value]
    if isinstance(node, tuple):
        return tuple(with_gets(part, replacement) for part in node)  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {}
    for item in fields(node):
        part = getattr(node, item.name)
        other = with_gets(part, replacement)
        if other is not part:
            changed[item.name] = other
    return replace(node, **changed) if changed else node
