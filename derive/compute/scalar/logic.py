"""Comparison and logic, natively: data compare in SQLite as their values do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from derive.compute.algebra.types import Datum, Type
from derive.compute.scalar.function import Function, Functions, SqlForm, word_of
from derive.compute.scalar.interval import SPAN_BYTES

FUNCTIONS = Functions()

COMPARABLE = tuple(kind for kind in Type if kind is not Type.UNKNOWN)
COMPARISONS = {"=": "equal", "<>": "differ", "<": "less", "<=": "at_most", ">": "greater", ">=": "at_least"}


def infix(symbol: str) -> SqlForm:
    """The form of an operator that SQLite has, between its operands."""
    return lambda arguments, _: "(" + f" {symbol} ".join(arguments) + ")"


def _spans(form: SqlForm) -> SqlForm:
    """The form for intervals, of which only spans are compared."""
    return lambda arguments, kinds: form([f"substr({argument}, 1, {SPAN_BYTES})" for argument in arguments], kinds)


def _add_comparisons() -> None:
    for kind in COMPARABLE:
        for symbol, word in COMPARISONS.items():
            form = infix(symbol)
            FUNCTIONS.native(
                symbol, (kind, kind), Type.BOOLEAN, _spans(form) if kind is Type.INTERVAL else form, word=word
            )
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


def _rank(datum: Any) -> tuple[int, Any]:
    """What data sort by in Python as SQLite sorts them."""
    return (0 if isinstance(datum, int | float) else 1 if isinstance(datum, str) else 2), datum


def _extreme(choose: Callable[..., Any]) -> Callable[..., Datum]:
    def extreme(*data: Datum) -> Datum:
        extreme_datum: Datum = choose((datum for datum in data if datum is not None), key=_rank, default=None)
        return extreme_datum

    return extreme


def _extreme_form(name: str, choose: str) -> SqlForm:
    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        if len(arguments) == 1:
            return arguments[0]
        if len(arguments) == 2 and all(len(argument) < 40 for argument in arguments):
            left, right = arguments
            return f"coalesce({choose}({left}, {right}), {left}, {right})"
        return f"flow_{name}({', '.join(arguments)})"

    return form


def _coalesce(arguments: Sequence[str], _: Sequence[Type]) -> str:
    return arguments[0] if len(arguments) == 1 else f"coalesce({', '.join(arguments)})"


def _add_of_any_type() -> None:
    """Functions whose arguments all have one type, which `resolve` finds, and which is that of the result."""
    FUNCTIONS.add(Function("coalesce", "coalesce", (None,), Type.UNKNOWN, None, _coalesce, False, False, True))
    for name, choose in (("greatest", "max"), ("least", "min")):
        python = _extreme(max if choose == "max" else min)
        form = _extreme_form(name, choose)
        FUNCTIONS.add(Function(name, name, (None,), Type.UNKNOWN, python, form, False, False, True))
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
    """The name of the function that tells whether two values of a type are equal."""
    return f"equal_{word_of(kind)}"


_add_comparisons()
_add_logic()
_add_of_any_type()
