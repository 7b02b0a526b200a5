"""Type modifiers of a relation's columns, as far as they follow from declarations and literals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from derive.algebra.expression import (
    Call,
    Case,
    Column,
    Expression,
    Literal,
    OuterColumn,
    Parameter,
    Subquery,
    SubqueryKind,
)
from derive.algebra.relation import (
    Aggregate,
    Constant,
    Distinct,
    Filter,
    Get,
    Join,
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
from derive.algebra.types import ModifiedType, Type, TypeModifier, number

Modifiers: TypeAlias = tuple[TypeModifier | None, ...]
"""The modifier of each column; None if unknown."""

FIT, CUT = "fit_", "cut_"
"""Prefixes of functions that fit a value to a modifier on storage, or in an explicit cast; see `scalar.fitting`."""

RECORD = "record"
"""Function of the texts of a row's columns, whose value is shown as a row."""
RECORDS = "records"
"""Function of the text of an array of rows, which is shown as such an array."""
_OF_ROWS = {RECORD: ModifiedType.RECORD, RECORDS: ModifiedType.RECORDS}

_VOID = ("pg_sleep", "pg_notify", "pg_advisory_lock", "pg_advisory_xact_lock", "pg_advisory_unlock_all")
"""Prefixes of functions without a value."""
_OF_ANY = {"min", "max", "any_value"}
_OF_FIRST = {"lag", "lead", "first_value", "last_value", "nth_value"}
_ALIKE = {"coalesce", "greatest", "least", "nullif"}


def modifiers_of(relation: Relation, outer: tuple[Modifiers, ...] = ()) -> Modifiers:  # noqa: PLR0911 - one for each kind
    """Return the modifiers of a relation's columns.

    Args:
        relation: a relation whose collections declare modifiers.
        outer: modifiers of the enclosing rows, the innermost first.
    """
    match relation:
        case Get():
            return relation.modifiers or (None,) * len(relation.types)
        case Project():
            own = modifiers_of(relation.input, outer)
            return tuple(modifier_of(expression, own, outer) for expression in relation.expressions)
        case Filter() | Distinct() | TopK():
            return modifiers_of(relation.input, outer)
        case Join():
            return tuple(modifier for part in relation.inputs for modifier in modifiers_of(part, outer))
        case OuterJoin():
            return modifiers_of(relation.left, outer) + modifiers_of(relation.right, outer)
        case UnionAll():
            return _of_union(relation, outer)
        case SetOperation():
            return _agreed([modifiers_of(relation.left, outer), modifiers_of(relation.right, outer)])
        case Unnest():
            own = modifiers_of(relation.input, outer)
            return (*own, _of_elements(relation.array, own, outer), None)
        case Reduce() | Window():
            return _of_functions(relation, outer)
        case Constant():
            return relation.modifiers or (None,) * len(relation.types)
        case Recursion():
            # The recursive step may change the scale of a number, but not the type of a column.
            first = modifiers_of(relation.base, outer)
            return tuple(modifier if modifier and modifier.is_type else None for modifier in first)
        case Recurring():
            return (None,) * len(relation.types)


def _of_functions(relation: Reduce | Window, outer: tuple[Modifiers, ...]) -> Modifiers:
    own = modifiers_of(relation.input, outer)
    if isinstance(relation, Reduce):
        keys = tuple(modifier_of(key, own, outer) for key in relation.keys)
        return keys + tuple(_of_function(aggregate, own, outer) for aggregate in relation.aggregates)
    return own + tuple(_of_function(function, own, outer) for function in relation.functions)


def _of_union(union: UnionAll, outer: tuple[Modifiers, ...]) -> Modifiers:
    """Return the modifiers that all inputs share, ignoring inputs that are NULL in the whole column."""
    sides = [(part, modifiers_of(part, outer)) for part in union.inputs]
    columns = (
        [
            modifier
            for part, modifiers in sides
            for modifier in modifiers[index : index + 1]
            if not is_null_column(part, index)
        ]
        for index in range(len(union.types))
    )
    return tuple(_one(modifiers) if modifiers else None for modifiers in columns)


def is_null_column(relation: Relation, index: int) -> bool:
    """Return whether the column of a relation is the literal NULL."""
    return isinstance(relation, Project) and is_null(relation.expressions[index])


def constant_modifiers(rows: Sequence[Sequence[Expression]]) -> Modifiers:
    """Return the modifiers of columns of literal rows."""
    columns = zip(*rows, strict=True)
    known = ([modifier_of(value, ()) for value in column if not is_null(value)] for column in columns)
    return tuple(_one(modifiers) if modifiers else None for modifiers in known)


def _agreed(sides: Sequence[Modifiers]) -> Modifiers:
    return tuple(_one([*modifiers]) for modifiers in zip(*sides, strict=True))


def _one(modifiers: Sequence[TypeModifier | None]) -> TypeModifier | None:
    """Return the common modifier; for numbers that differ only in size, a modifier with their common scale."""
    first = modifiers[0]
    if all(modifier == first for modifier in modifiers):
        return first
    scales = {modifier.scale for modifier in modifiers if modifier and modifier.name is ModifiedType.NUMERIC}
    return number(scales.pop()) if len(scales) == 1 and None not in modifiers else None


def stand_in(function: Aggregate | WindowFunction) -> Expression | None:
    """Return an expression with the modifier of an aggregate's or window function's result; None for no modifier."""
    if function.function == "sum_numeric":
        return Call("abs_numeric", function.arguments, Type.NUMERIC)
    return function.arguments[0] if function.function in _OF_ANY | _OF_FIRST and function.arguments else None


def _of_function(
    function: Aggregate | WindowFunction, own: Modifiers, outer: tuple[Modifiers, ...]
) -> TypeModifier | None:
    if not function.arguments:
        return None
    modifier = modifier_of(function.arguments[0], own, outer)
    if function.function in _OF_ANY | _OF_FIRST:
        return modifier
    if modifier is not None and modifier.name is ModifiedType.NAME and function.function == "array_agg_text":
        return modifier
    return number(modifier.scale) if modifier and function.function == "sum_numeric" else None


def modifier_of(expression: Expression, own: Modifiers, outer: tuple[Modifiers, ...] = ()) -> TypeModifier | None:  # noqa: PLR0911 - one for each kind
    """Return the modifier of an expression, given the modifiers of its columns."""
    match expression:
        case Column(index):
            return own[index] if 0 <= index < len(own) else None
        case OuterColumn(depth, index):
            enclosing = outer[depth - 1] if depth <= len(outer) else ()
            return enclosing[index] if index < len(enclosing) else None
        case Literal():
            return None if expression.scale is None else number(expression.scale)
        case Call(function) if function.startswith(_VOID) or function in _OF_ROWS:
            return TypeModifier(_OF_ROWS.get(function, ModifiedType.VOID), 0)
        case Call(function, arguments) if function in _OF_ARRAY:
            return _of_elements(arguments[0], own, outer)
        case Call():
            return _of_call(expression, own, outer)
        case Case(branches, otherwise):
            results = [*(result for _, result in branches), otherwise]
            modifiers = [modifier_of(result, own, outer) for result in results if not is_null(result)]
            return _one(modifiers) if modifiers else None
        case Subquery(SubqueryKind.SCALAR, relation):
            return modifiers_of(relation, (own, *outer))[0]
        case Parameter() | Subquery():
            return None


def is_null(expression: Expression) -> bool:
    """Return whether an expression is the literal NULL."""
    return isinstance(expression, Literal) and expression.value is None


def _of_call(call: Call, own: Modifiers, outer: tuple[Modifiers, ...]) -> TypeModifier | None:
    if call.function.startswith((FIT, CUT)):
        return _of_fitting(call)
    if call.function in _ALIKE:
        considered = call.arguments[:1] if call.function == "nullif" else call.arguments
        known = [modifier_of(argument, own, outer) for argument in considered if not is_null(argument)]
        return _one(known) if known else None
    if call.type is not Type.NUMERIC:
        return None
    if call.function.endswith("_to_numeric") and call.arguments[0].type in _INTEGERS:
        return number(0)
    if call.function in {"round_numeric_integer", "trunc_numeric_integer"}:
        digits = call.arguments[1]
        return number(max(digits.value, 0)) if isinstance(digits, Literal) and isinstance(digits.value, int) else None
    combine = _SCALES.get(call.function)
    modifiers = [modifier_of(argument, own, outer) for argument in call.arguments]
    scales = [modifier.scale for modifier in modifiers if modifier]
    return number(combine(scales)) if combine and len(scales) == len(modifiers) else None


_OF_ARRAY = frozenset(
    f"array_{part}{several}_numeric" for part in ("element", "slice") for several in ("", "_of_several")
)


def _of_elements(array: Expression, own: Modifiers, outer: tuple[Modifiers, ...]) -> TypeModifier | None:
    """Return the modifier of the elements of an array of numbers; None for another array."""
    modifier = modifier_of(array, own, outer) if array.type is Type.NUMERIC_ARRAY else None
    return number(modifier.scale) if modifier else None


_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT}
_SCALES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "add_numeric": max,
    "subtract_numeric": max,
    "multiply_numeric": sum,
    "negate_numeric": max,
    "abs_numeric": max,
    "round_numeric": lambda _: 0,
    "trunc_numeric": lambda _: 0,
    "ceil_numeric": lambda _: 0,
    "ceiling_numeric": lambda _: 0,
    "floor_numeric": lambda _: 0,
    "mod_numeric_numeric": max,
    "modulo_numeric": max,
}
"""Scale of the result of a function, as a function of the scales of its arguments."""


def _of_fitting(call: Call) -> TypeModifier | None:
    name = ModifiedType[call.function.removeprefix(FIT).removeprefix(CUT).partition("_")[0].upper()]
    sizes = [argument.value for argument in call.arguments[1:] if isinstance(argument, Literal)]
    integers = [size for size in sizes if isinstance(size, int)]
    return TypeModifier(name, *integers) if integers else None
