"""Comparison and logic, natively: SQLite compares data as their values compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from derive.algebra.types import Datum, Type
from derive.functions.function import Function, Functions, SqlForm, over_data, registered_name, word_of
from derive.functions.types.datetime import TOTAL_BYTES
from derive.functions.types.jsonb import jsonb_key

FUNCTIONS = Functions()

_JSONB_KEY = "jsonb_sort_key"
COMPARABLE = tuple(kind for kind in Type if kind is not Type.UNKNOWN)
COMPARISONS = {"=": "equal", "<>": "differ", "<": "less", "<=": "at_most", ">": "greater", ">=": "at_least"}


def infix(symbol: str) -> SqlForm:
    """Return the form of a native infix operator."""
    return lambda arguments, _: "(" + f" {symbol} ".join(arguments) + ")"


def _spans(form: SqlForm) -> SqlForm:
    """Return the form of a comparison of intervals, which compares only their durations."""
    return lambda arguments, kinds: form([f"substr({argument}, 1, {TOTAL_BYTES})" for argument in arguments], kinds)


def _keys(form: SqlForm) -> SqlForm:
    """Return the form of a comparison of jsonb, whose data do not sort as the values do."""
    return lambda arguments, kinds: form([sort_key(argument, Type.JSONB) for argument in arguments], kinds)


def sort_key(argument: str, kind: Type) -> str:
    """Return SQL of a value's sort key."""
    return f"{registered_name(_JSONB_KEY)}({argument})" if kind is Type.JSONB else argument


def _comparison(symbol: str, kind: Type) -> SqlForm:
    form = infix(symbol)
    if kind is Type.INTERVAL:
        return _spans(form)
    return _keys(form) if kind is Type.JSONB and symbol not in {"=", "<>"} else form


def _add_comparisons() -> None:
    key = over_data(jsonb_key, (None,), Type.BYTEA)
    FUNCTIONS.add(Function(_JSONB_KEY, f"{_JSONB_KEY}()", (Type.JSONB,), Type.BYTEA, key, can_fail=False))
    for kind in COMPARABLE:
        for symbol, word in COMPARISONS.items():
            FUNCTIONS.native(symbol, (kind, kind), Type.BOOLEAN, _comparison(symbol, kind), word=word)
        for symbol, word, sql in (
            ("is distinct from", "is_distinct", "IS NOT"),
            ("is not distinct from", "is_not_distinct", "IS"),
        ):
            form = infix(sql)
            FUNCTIONS.native(
                symbol, (kind, kind), Type.BOOLEAN, _spans(form) if kind is Type.INTERVAL else form, word=word
            )


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


def rank(datum: Any) -> tuple[int, Any]:
    """Return a sort key with which Python sorts data in SQLite's order."""
    return (0 if isinstance(datum, int | float) else 1 if isinstance(datum, str) else 2), datum


def _extreme(choose: Callable[..., Any]) -> Callable[..., Datum]:
    def extreme(*data: Datum) -> Datum:
        extreme_datum: Datum = choose((datum for datum in data if datum is not None), key=rank, default=None)
        return extreme_datum

    return extreme


def _extreme_json(choose: Callable[..., Any]) -> Callable[..., Datum]:
    def extreme(*data: Datum) -> Datum:
        chosen: Datum = choose((datum for datum in data if datum is not None), key=jsonb_key, default=None)
        return chosen

    return extreme


def _extreme_form(name: str, choose: str) -> SqlForm:
    def form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
        if len(arguments) == 1:
            return arguments[0]
        if kinds[0] is Type.JSONB:
            return f"{registered_name(f'{name}_jsonb')}({', '.join(arguments)})"
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
        python = _extreme(max if choose == "max" else min)
        form = _extreme_form(name, choose)
        FUNCTIONS.add(Function(name, name, (None,), Type.UNKNOWN, python, form, False, False, True))
        of_json, word = _extreme_json(max if choose == "max" else min), f"{name}_jsonb"
        FUNCTIONS.add(Function(word, f"{word}()", (Type.JSONB,), Type.JSONB, of_json, None, False, False, True))
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
_add_of_any_type()
