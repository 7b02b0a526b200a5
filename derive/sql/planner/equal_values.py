"""Equal values with different data: the intervals `24:00:00` and `1 day`, and texts of type `character(n)`.

Operators of the algebra compare data. In place of an interval, the planner gives the operators a sort key, which is
the same for equal intervals. A group of equal values shows its least datum, so that the shown datum depends only on the
rows.

A value of `character(n)` is stored without trailing spaces. A text that is compared with it loses these, too. Patterns
match the value with all its spaces.
"""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.modifier_inference import is_null
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
from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.registry import resolve_aggregate, resolve_function, resolve_operator
from derive.functions.scalar.casts import fitting_function
from derive.functions.scalar.logic import has_equal_data, key_function
from derive.sql.planner.building import TRIM, columns_of
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.scope import Frame

_PAD = resolve_function("rpad", (Type.TEXT, Type.INTEGER)).function


def compared(value: Expression) -> Expression:
    """Return an expression whose data are equal if and only if the values are equal."""
    return value if has_equal_data(value.type) else Call(key_function(value.type), (value,), Type.BYTEA)


def without_spaces(values: Sequence[Expression], expressions: Expressions) -> Sequence[Expression]:
    """Return compared values; beside `character(n)`, literals, parameters and `varchar(n)` lose trailing spaces."""
    if not any(value.type is Type.TEXT for value in values):
        return values
    modifiers = [expressions.frame.modifier_of(value) if value.type is Type.TEXT else None for value in values]
    if not any(map(is_padded, modifiers)):
        return values
    return [
        trimmed(value, expressions)
        if value.type is Type.UNKNOWN or (modifier is not None and modifier.name is ModifiedType.VARCHAR)
        else value
        for value, modifier in zip(values, modifiers, strict=True)
    ]


def of_one_type(values: Sequence[Expression], expressions: Expressions) -> Sequence[Expression]:
    """Return values of a common type; texts become `character` of any length if the first of them is `character(n)`.

    Args:
        values: values in the order in which PostgreSQL looks for their common type.
        expressions: planner of the values.
    """
    known = [value for value in values if value.type is not Type.UNKNOWN]
    if not known or isinstance(known[0], Literal) or any(value.type is not Type.TEXT for value in known):
        return values
    first = expressions.frame.modifier_of(known[0])
    if not is_padded(first) or all(is_null(one) or expressions.frame.modifier_of(one) == first for one in values):
        return values
    return [of_any_length(expressions.coercion.known(value, 0)) for value in values]


def of_any_length(value: Expression) -> Expression:
    """Return a text as `character` of any length: its trailing spaces have no meaning, and are not shown."""
    literals = (value, Literal(0, Type.INTEGER))
    return Call(fitting_function(_ANY_LENGTH, Type.TEXT, is_cast=True), literals, Type.TEXT)


_ANY_LENGTH = TypeModifier(ModifiedType.BPCHAR, 0)


def is_padded(modifier: TypeModifier | None) -> bool:
    """Return whether a type modifier is that of `character(n)`."""
    return modifier is not None and modifier.name is ModifiedType.BPCHAR


def trimmed(value: Expression, expressions: Expressions) -> Expression:
    """Return a text, or a value of an unknown type as a text, without trailing spaces."""
    value = expressions.coercion.known(value, 0)
    if isinstance(value, Literal) and isinstance(value.value, str):
        return Literal(value.value.rstrip(" "), value.type)
    return Call(TRIM, (value,), value.type)


def with_spaces(value: Expression, frame: Frame) -> Expression:
    """Return a value of `character(n)` as a text with all its spaces; another value unchanged."""
    modifier = frame.modifier_of(value) if value.type is Type.TEXT else None
    if modifier is None or not is_padded(modifier) or not modifier.size:
        return value
    return Call(_PAD, (value, Literal(modifier.size, Type.INTEGER)), Type.TEXT)


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
    elif any(argument.type.element is Type.INTERVAL for argument in aggregate.arguments):
        raise SqlError(
            "0A000", "DISTINCT of arrays of intervals is not supported", hint="Use a subquery with DISTINCT."
        )
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
