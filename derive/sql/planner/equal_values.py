"""Rows and keys whose equal values may have several data, such as the intervals `24:00:00` and `1 day`.

Operators of the algebra compare data. The planner gives them a sort key in place of such a value, which equal values
share. A group of equal values shows its least datum, so that the shown datum depends only on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Project,
    Reduce,
    Relation,
    SetOperation,
    SetOperator,
    Window,
    WindowFunction,
)
from derive.algebra.types import Type
from derive.functions.registry import resolve_aggregate, resolve_function, resolve_operator
from derive.functions.scalar.logic import has_equal_data, key_function
from derive.sql.planner.building import columns_of


def compared(value: Expression) -> Expression:
    """Return an expression whose data are equal if and only if the values are equal."""
    return value if has_equal_data(value.type) else Call(key_function(value.type), (value,), Type.BYTEA)


def distinct_rows(relation: Relation) -> Relation:
    """Return the distinct rows of a relation."""
    if all(map(has_equal_data, relation.types)):
        return Distinct(relation)
    return grouped(relation, columns_of(relation), ())


def grouped(relation: Relation, keys: Sequence[Expression], aggregates: Sequence[Aggregate]) -> Relation:
    """Return the groups of equal keys: the keys, then the aggregates.

    Args:
        relation: the rows.
        keys: keys of a group.
        aggregates: aggregates of a group.
    """
    aggregates = tuple(map(_over_values, aggregates))
    several = [index for index, key in enumerate(keys) if not has_equal_data(key.type)]
    if not several:
        return Reduce(relation, tuple(keys), aggregates)
    least = tuple(_least(keys[index]) for index in several)
    reduced = Reduce(relation, tuple(map(compared, keys)), (*aggregates, *least))
    columns = columns_of(reduced)
    shown: list[Expression] = list(columns[: len(keys) + len(aggregates)])
    for index, column in zip(several, columns[len(shown) :], strict=True):
        shown[index] = column
    return Project(reduced, tuple(shown))


def _least(value: Expression) -> Aggregate:
    return Aggregate(resolve_aggregate("min", (value.type,)).function, (value,), value.type)


def _over_values(aggregate: Aggregate) -> Aggregate:
    """Return an aggregate whose DISTINCT compares values."""
    if not aggregate.is_distinct or all(has_equal_data(argument.type) for argument in aggregate.arguments):
        return aggregate
    if aggregate.function == resolve_aggregate("count", (aggregate.arguments[0].type,)).function:
        arguments = tuple(map(compared, aggregate.arguments))
        function = resolve_aggregate("count", tuple(argument.type for argument in arguments)).function
    else:  # a justified interval is the only one of its value
        justify = resolve_function("justify_interval", (Type.INTERVAL,)).function
        arguments = tuple(
            argument if has_equal_data(argument.type) else Call(justify, (argument,), argument.type)
            for argument in aggregate.arguments
        )
        function = aggregate.function
    return Aggregate(function, arguments, aggregate.type, True, aggregate.condition, aggregate.order)


def set_operation(operator: SetOperator, left: Relation, right: Relation, *, is_all: bool) -> Relation:
    """Return `EXCEPT` or `INTERSECT` of two relations of equal types.

    The rows of equal values are numbered on each side. The operation of the numbered keys gives the remaining rows of
    the left side.
    """
    if all(map(has_equal_data, left.types)):
        return SetOperation(operator, is_all, left, right)
    numbered = [_numbered(side, is_all=is_all) for side in (left, right)]
    width = len(left.types)
    keys, others = (Project(side, columns_of(side)[width:]) for side in numbered)
    remaining = SetOperation(operator, False, keys, others)
    sides = Join((numbered[0], remaining))
    columns = columns_of(sides)
    count = len(remaining.types)
    same = tuple(_same(columns[width + index], columns[width + count + index]) for index in range(count))
    return Project(Join(sides.inputs, same), columns[:width])


def _numbered(relation: Relation, *, is_all: bool) -> Relation:
    """Return the rows of a relation with keys and numbers among equal rows; without `is_all`, each first row."""
    keys = tuple(map(compared, columns_of(relation)))
    window = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, keys, ()),))
    number = Column(len(keys), Type.BIGINT)
    numbered: Relation = window
    if not is_all:
        equal = resolve_operator("=", (Type.BIGINT, Type.BIGINT)).function
        numbered = Filter(window, Call(equal, (number, Literal(1, Type.BIGINT)), Type.BOOLEAN))
    return Project(numbered, (*columns_of(relation), *keys, number))


def _same(left: Expression, right: Expression) -> Expression:
    function = resolve_operator("is not distinct from", (left.type, right.type)).function
    return Call(function, (left, right), Type.BOOLEAN)
