"""Scalar functions: a signature, and an implementation in Python, in SQLite's SQL, or in both.

If there are both, the SQL handles common cases, and falls back to the function in Python.

Arithmetic uses SQLite's own operators where their result equals PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from derive.algebra.expression import Call, Expression
from derive.algebra.types import ARRAYS, Datum, Type
from derive.functions.types.formats import BITS
from derive.functions.types.type_info import DECODERS, ENCODERS

WORDS = {
    Type.DOUBLE: "double",
    Type.TIMESTAMP: "timestamp",
    Type.TIMESTAMPTZ: "timestamptz",
    Type.TIME: "time",
    Type.TIMETZ: "timetz",
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


_REGISTERED = "flow_"


def registered_name(name: str) -> str:
    """Return the name of a function in SQLite, distinct from SQLite's own functions."""
    return f"{_REGISTERED}{name}"


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


LONGEST_REPEATED = 60
"""Maximum length of arguments' SQL that a form may contain several times."""

_LEAST_NORMAL, _MOST = "2.2250738585072014e-308", "1.7976931348623157e308"


def are_short(arguments: Sequence[str]) -> bool:
    """Return whether a form may repeat the SQL of arguments: they are short, and call no function of Python.

    Such a function may have effects, such as `nextval`.
    """
    return all(len(argument) <= LONGEST_REPEATED and _REGISTERED not in argument for argument in arguments)


def integer_form(kind: Type, symbol: str, name: str) -> SqlForm:
    """Return the form with SQLite's integer operator, whose result is a double on overflow, and NULL if undefined."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        call = f"{registered_name(name)}({', '.join(arguments)})"
        if not are_short(arguments):
            return call
        result = f"({f' {symbol} '.join(arguments)})"
        if kind is Type.BIGINT:
            return f"iif(typeof{result} = 'integer', {result}, {call})"
        return f"iif({result} {_between(kind)}, {result}, {call})"

    return form


def _between(kind: Type) -> str:
    bound = 1 << BITS[kind] - 1
    return f"BETWEEN {-bound} AND {bound - 1}"


def sign_form(kind: Type, operator: str, name: str) -> SqlForm:
    """Return the form of the negative or the absolute value of an integer; both fail for the least integer."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        argument = arguments[0]
        call = f"{registered_name(name)}({argument})"
        least = f"(-{(1 << BITS[kind] - 1) - 1})"
        return f"iif({argument} >= {least}, {operator}({argument}), {call})" if are_short(arguments) else call

    return form


def narrowing_form(kind: Type, name: str) -> SqlForm:
    """Return the form of a cast to a smaller integer type."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        argument = arguments[0]
        call = f"{registered_name(name)}({argument})"
        return f"iif({argument} {_between(kind)}, {argument}, {call})" if are_short(arguments) else call

    return form


def double_form(symbol: str, name: str) -> SqlForm:
    """Return the form with SQLite's double operator, if operands are numbers and the result is in range."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        call = f"{registered_name(name)}({', '.join(arguments)})"
        if not are_short(arguments):
            return call
        result = f"({f' {symbol} '.join(arguments)})"
        numbers = [f"typeof({argument}) = 'real'" for argument in dict.fromkeys(arguments) if not _is_number(argument)]
        limits = f"-{_MOST} AND {_MOST}" if symbol in "+-" else f"{_LEAST_NORMAL} AND {_MOST}"
        checked = result if symbol in "+-" else f"abs{result}"
        return f"iif({' AND '.join((*numbers, f'{checked} BETWEEN {limits}'))}, {result}, {call})"

    return form


def _is_number(form: str) -> bool:
    return form.lstrip("-")[:1].isdigit()


_CHAINED = {
    f"{word}_{kinds}": symbol
    for word, symbol in (("add", "+"), ("subtract", "-"), ("multiply", "*"))
    for kinds in ("bigint", "bigint_integer", "integer_bigint", "bigint_smallint", "smallint_bigint")
}
_DEEPEST_CHAIN = 4
"""Maximum depth of nested operations: so few operations on overflowed integers, as doubles, cannot reach infinity."""


def chained(expression: Call, form: Callable[[Expression], str]) -> str | None:
    """Return SQL of nested sums, differences and products of bigint, with one overflow check.

    Args:
        expression: a call.
        form: returns SQL of other expressions.

    Returns:
        None if the expression is another operation, or its operands are too long.
    """
    if not 2 <= _depth(expression) <= _DEEPEST_CHAIN:
        return None
    forms: list[str] = []

    def unchecked(part: Expression) -> str:
        symbol = _operator(part)
        if isinstance(part, Call) and symbol:
            return f"({f' {symbol} '.join(map(unchecked, part.arguments))})"
        forms.append(form(part))
        return forms[-1]

    def called(part: Expression) -> str:
        if isinstance(part, Call) and _operator(part):
            return f"{registered_name(part.function)}({', '.join(map(called, part.arguments))})"
        return form(part)

    result = unchecked(expression)
    return f"iif(typeof{result} = 'integer', {result}, {called(expression)})" if are_short(forms) else None


def _operator(expression: Expression) -> str | None:
    return _CHAINED.get(expression.function) if isinstance(expression, Call) else None


def _depth(expression: Expression) -> int:
    if not isinstance(expression, Call) or not _operator(expression):
        return 0
    return 1 + max(map(_depth, expression.arguments))
