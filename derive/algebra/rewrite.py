"""Parts of expressions and relations: their traversal, the columns that they read, and their replacement.

A replacement is a function called for every expression, from outside in, with the number of enclosing subqueries. It
returns the new expression, or None to keep the expression and to continue with its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Parameter, Subquery
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


def rewritten_parts(expression: Expression, rewrite: Callable[[Expression], Expression | None]) -> Expression:
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
            return replace(expression, arguments=tuple(rewritten_parts(part, rewrite) for part in arguments))
        case Case(branches=branches, otherwise=otherwise):
            pairs = tuple(
                (rewritten_parts(condition, rewrite), rewritten_parts(result, rewrite))
                for condition, result in branches
            )
            return Case(pairs, rewritten_parts(otherwise, rewrite), expression.type)
        case _:
            return expression


def replaced(expression: Expression, replacement: Callable[[Column], Expression]) -> Expression:
    """Return an expression without subqueries, with its columns replaced."""
    return rewritten_parts(expression, lambda part: replacement(part) if isinstance(part, Column) else None)


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
