"""Scalar functions: a signature, and an implementation in Python, in SQLite's SQL, or in both.

If there are both, the SQL handles common cases, and falls back to the function in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from derive.algebra.types import ARRAYS, Datum, Type
from derive.functions.types.type_info import DECODERS, ENCODERS

WORDS = {
    Type.DOUBLE: "double",
    Type.TIMESTAMP: "timestamp",
    Type.TIMESTAMPTZ: "timestamptz",
    Type.TIME: "time",
}
WORDS |= {kind: f"{WORDS.get(kind.element, kind.element.value)}_array" for kind in ARRAYS if kind.element}
"""Types in names of functions, if they differ from their SQL name."""

SqlForm: TypeAlias = Callable[[Sequence[str], Sequence[Type]], str]
"""A function that returns SQL of a call, given SQL of its arguments and their types."""


def word_of(kind: Type | None) -> str:
    """Return a type as a part of a function's name; None stands for any type."""
    return WORDS.get(kind, kind.value) if kind else "any"


@dataclass(frozen=True, slots=True)
class Function:
    """One implementation, for arguments of certain types.

    Attributes:
        name: unique name, used by `Call`.
        symbol: name in SQL: `lower`, `+`, ….
        arguments: types of the arguments; None for any type.
        result: type of the result.
        python: function from data to a datum; None if the SQL needs none.
        sql: native form; None if the function in Python is called.
        can_fail: whether it may raise errors.
        is_volatile: whether it may return different values for equal arguments.
        is_variadic: whether the last argument may be repeated.
        needs_context: whether it needs the context of the running statement (`statement_context`).
    """

    name: str
    symbol: str
    arguments: tuple[Type | None, ...]
    result: Type
    python: Callable[..., Datum] | None = None
    sql: SqlForm | None = None
    can_fail: bool = True
    is_volatile: bool = False
    is_variadic: bool = False
    needs_context: bool = False

    def takes(self, count: int) -> tuple[Type | None, ...] | None:
        """Return the types of `count` arguments; None if the function does not take this number."""
        if self.is_variadic and count >= len(self.arguments):
            return self.arguments + self.arguments[-1:] * (count - len(self.arguments))
        return self.arguments if len(self.arguments) == count else None

    def call(self, arguments: Sequence[str]) -> str:
        """Return SQL that calls the function in Python."""
        return f"{registered_name(self.name)}({', '.join(arguments)})"


def registered_name(name: str) -> str:
    """Return the name of a function in SQLite, distinct from SQLite's own functions."""
    return f"flow_{name}"


class Functions:
    """Functions of one kind, in the order of their definition."""

    def __init__(self) -> None:
        self._functions: list[Function] = []

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions)

    def add(self, function: Function) -> None:
        """Add a function."""
        self._functions.append(function)

    def define(
        self,
        symbol: str,
        arguments: Sequence[Type | None],
        result: Type,
        *,
        word: str | None = None,
        sql: SqlForm | None = None,
        can_fail: bool = True,
        is_variadic: bool = False,
        takes_null: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a function of values as the implementation of a SQL function.

        The function gets decoded values (`values.DECODERS`), and its result is encoded. Without `takes_null`, the
        result is NULL if an argument is, and the function is not called.
        """

        def take(python: Callable[..., Any]) -> Callable[..., Any]:
            name = name_of(symbol, word or symbol, arguments)
            of_data = over_data(python, arguments, result, takes_null=takes_null, is_variadic=is_variadic)
            function = Function(
                name, symbol, tuple(arguments), result, of_data, sql, can_fail=can_fail, is_variadic=is_variadic
            )
            self._functions.append(function)
            return python

        return take

    def native(
        self,
        symbol: str,
        arguments: Sequence[Type | None],
        result: Type,
        sql: SqlForm,
        *,
        word: str | None = None,
    ) -> None:
        """Add a native function of SQLite, which never fails."""
        name = name_of(symbol, word or symbol, arguments)
        self._functions.append(Function(name, symbol, tuple(arguments), result, None, sql, can_fail=False))


def name_of(symbol: str, word: str, arguments: Sequence[Type | None]) -> str:
    """Return a function's unique name; two operands of one type are named once."""
    words = [word_of(kind) for kind in arguments]
    if len(words) == 2 and words[0] == words[1] and not symbol.isidentifier():
        words = words[:1]
    return "_".join((word, *words))


def over_data(
    python: Callable[..., Any],
    arguments: Sequence[Type | None],
    result: Type,
    *,
    takes_null: bool = False,
    is_variadic: bool = False,
) -> Callable[..., Datum]:
    """Return a function of data from a function of values."""
    decoders = tuple(DECODERS.get(kind) if kind else None for kind in arguments)
    encode = ENCODERS.get(result) or (lambda value: value)
    if not takes_null and not is_variadic and len(decoders) == 1:
        return _unary(python, decoders[0], encode)
    if not takes_null and not is_variadic and len(decoders) == 2:
        return _binary(python, decoders[0], decoders[1], encode)

    def call(*data: Any) -> Datum:
        if not takes_null and None in data:
            return None
        all_decoders = decoders + decoders[-1:] * (len(data) - len(decoders))
        values = [
            decode(datum) if decode and datum is not None else datum
            for decode, datum in zip(all_decoders, data, strict=True)
        ]
        value = python(*values)
        return None if value is None else encode(value)

    return call


_Decoder: TypeAlias = Callable[[Any], Any] | None


def _unary(python: Callable[..., Any], decode: _Decoder, encode: Callable[[Any], Datum]) -> Callable[..., Datum]:
    def call(datum: Any) -> Datum:
        if datum is None:
            return None
        value = python(decode(datum) if decode else datum)
        return None if value is None else encode(value)

    return call


def _binary(
    python: Callable[..., Any], decode: _Decoder, decode_second: _Decoder, encode: Callable[[Any], Datum]
) -> Callable[..., Datum]:
    def call(datum: Any, second: Any) -> Datum:
        if datum is None or second is None:
            return None
        value = python(decode(datum) if decode else datum, decode_second(second) if decode_second else second)
        return None if value is None else encode(value)

    return call
