"""Comparison and logic, natively: SQLite compares data as their values compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, SqlForm, over_data, registered_name, word_of
from derive.functions.types.type_info import INFO_OF

FUNCTIONS = Functions()

COMPARABLE = tuple(kind for kind in Type if kind is not Type.UNKNOWN)
COMPARISONS = {"=": "equal", "<>": "differ", "<": "less", "<=": "at_most", ">": "greater", ">=": "at_least"}


def infix(symbol: str) -> SqlForm:
    """Return the form of a native infix operator."""
    return lambda arguments, _: "(" + f" {symbol} ".join(arguments) + ")"


def sort_key(argument: str, kind: Type) -> str:
    """Return SQL of a value's sort key."""
    if INFO_OF[kind].sort_key:
        return f"{registered_name(key_function(kind))}({argument})"
    most = INFO_OF[kind].compared_bytes
    return argument if most is None else f"substr({argument}, 1, {most})"


def key_function(kind: Type) -> str:
    """Return the name of the function of a type's sort keys."""
    return f"{word_of(kind)}_sort_key"


def has_equal_data(kind: Type) -> bool:
    """Return whether equal values of a type have equal data."""
    return INFO_OF[kind].has_equal_data


def _comparison(symbol: str, kind: Type, *, is_equation: bool = False) -> SqlForm:
    form = infix(symbol)
    if is_equation and has_equal_data(kind):
        return form
    return lambda arguments, kinds: form([sort_key(argument, kind) for argument in arguments], kinds)


def _sort_key_form(kind: Type) -> SqlForm:
    return lambda arguments, _: sort_key(arguments[0], kind)


def _add_comparisons() -> None:
    for kind in COMPARABLE:
        info = INFO_OF[kind]
        if info.sort_key:
            name, key = key_function(kind), over_data(info.sort_key, (None,), Type.BYTEA)
            FUNCTIONS.add(Function(name, f"{name}()", (kind,), Type.BYTEA, key, can_fail=False))
        elif not has_equal_data(kind):
            name, form = key_function(kind), _sort_key_form(kind)
            FUNCTIONS.add(Function(name, f"{name}()", (kind,), Type.BYTEA, None, form, can_fail=False))
        for symbol, word in COMPARISONS.items():
            comparison = _comparison(symbol, kind, is_equation=symbol in {"=", "<>"})
            FUNCTIONS.native(symbol, (kind, kind), Type.BOOLEAN, comparison, word=word)
        for symbol, word, sql in (
            ("is distinct from", "is_distinct", "IS NOT"),
            ("is not distinct from", "is_not_distinct", "IS"),
        ):
            FUNCTIONS.native(symbol, (kind, kind), Type.BOOLEAN, _comparison(sql, kind, is_equation=True), word=word)


def _postfix(words: str) -> SqlForm:
    return lambda arguments, _: f"({arguments[0]} {words})"


def _add_logic() -> None:
    both = (Type.BOOLEAN, Type.BOOLEAN)
    for symbol, is_variadic in (("and", True), ("or", True)):
        FUNCTIONS.add(
            Function(symbol, symbol, both, Type.BOOLEAN, None, infix(symbol.upper()), False, False, is_variadic)
        )
    FUNCTIONS.add(
        Function("not", "not", both[:1], Type.BOOLEAN, None, lambda arguments, _: f"(NOT {arguments[0]})", False)
    )
    for symbol, words in (("is null", "IS NULL"), ("is not null", "IS NOT NULL")):
        name = symbol.replace(" ", "_")
        FUNCTIONS.add(Function(name, symbol, (None,), Type.BOOLEAN, None, _postfix(words), False))
    for symbol, words in (
        ("is true", "IS TRUE"),
        ("is not true", "IS NOT TRUE"),
        ("is false", "IS FALSE"),
        ("is not false", "IS NOT FALSE"),
        ("is unknown", "IS NULL"),
        ("is not unknown", "IS NOT NULL"),
    ):
        name = symbol.replace(" ", "_")
        FUNCTIONS.add(Function(name, symbol, both[:1], Type.BOOLEAN, None, _postfix(words), False))


DOMAIN_CONDITION = "domain_condition"
"""Name of the function that checks a condition of a domain: its arguments are the condition and the error."""


def _domain_condition(is_true: Datum, sqlstate: Datum, message: Datum) -> Datum:
    if is_true is not None and not is_true:
        raise SqlError(str(sqlstate), str(message))
    return 1


def _add_domain_condition() -> None:
    arguments = (Type.BOOLEAN, Type.TEXT, Type.TEXT)
    symbol = f"{DOMAIN_CONDITION}()"
    FUNCTIONS.add(Function(DOMAIN_CONDITION, symbol, arguments, Type.BOOLEAN, _domain_condition))


def _add_null_counts() -> None:
    """Add `num_nulls` and `num_nonnulls`."""
    for symbol, is_null in (("num_nulls", True), ("num_nonnulls", False)):
        count = partial(_counted, is_null)
        FUNCTIONS.add(Function(symbol, symbol, (None,), Type.INTEGER, count, can_fail=False, is_variadic=True))


def _counted(is_null: bool, *data: Datum) -> int:
    return sum((datum is None) is is_null for datum in data)


def rank(datum: Any) -> tuple[int, Any]:
    """Return a sort key with which Python sorts data in SQLite's order."""
    return (0 if isinstance(datum, int | float) else 1 if isinstance(datum, str) else 2), datum


def _extreme(choose: Callable[..., Any], key: Callable[[Any], Any]) -> Callable[..., Datum]:
    def extreme(*data: Datum) -> Datum:
        chosen: Datum = choose((datum for datum in data if datum is not None), key=key, default=None)
        return chosen

    return extreme


def _extreme_form(name: str, choose: str) -> SqlForm:
    def form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
        if len(arguments) == 1:
            return arguments[0]
        if INFO_OF[kinds[0]].sort_key:
            return f"{registered_name(f'{name}_{word_of(kinds[0])}')}({', '.join(arguments)})"
        if len(arguments) == 2 and all(len(argument) < 40 for argument in arguments):
            left, right = arguments
            return f"coalesce({choose}({left}, {right}), {left}, {right})"
        return f"flow_{name}({', '.join(arguments)})"

    return form


def _coalesce(arguments: Sequence[str], _: Sequence[Type]) -> str:
    return arguments[0] if len(arguments) == 1 else f"coalesce({', '.join(arguments)})"


def _add_of_any_type() -> None:
    """Add functions whose arguments have one common type, found by `resolve`; the result has the same type."""
    FUNCTIONS.add(Function("coalesce", "coalesce", (None,), Type.UNKNOWN, None, _coalesce, False, False, True))
    for name, choose in (("greatest", "max"), ("least", "min")):
        function: Callable[..., Any] = max if choose == "max" else min
        python = _extreme(function, rank)
        form = _extreme_form(name, choose)
        FUNCTIONS.add(Function(name, name, (None,), Type.UNKNOWN, python, form, False, False, True))
        for kind in COMPARABLE:
            if key := INFO_OF[kind].sort_key:
                word = f"{name}_{word_of(kind)}"
                by_key = _extreme(function, key)
                FUNCTIONS.add(Function(word, f"{word}()", (kind,), kind, by_key, None, False, False, True))
    FUNCTIONS.add(
        Function(
            "nullif",
            "nullif",
            (None, None),
            Type.UNKNOWN,
            None,
            lambda arguments, _: f"nullif({arguments[0]}, {arguments[1]})",
            False,
        )
    )
    FUNCTIONS.add(
        Function(
            "in",
            "in",
            (None, None),
            Type.BOOLEAN,
            None,
            lambda arguments, _: f"({arguments[0]} IN ({', '.join(arguments[1:])}))",
            can_fail=False,
            is_variadic=True,
        )
    )


def equality(kind: Type) -> str:
    """Return the name of the equality function of a type."""
    return f"equal_{word_of(kind)}"


_add_comparisons()
_add_logic()
_add_domain_condition()
_add_null_counts()
_add_of_any_type()
