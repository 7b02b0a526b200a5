"""Nested arithmetic of numerics as one call of Python, which decodes no intermediate result; also by columns.

A program is a text in prefix notation, with the words of `_OPERATORS`, numbers of arguments, and data of literals in
hexadecimal after `#`: `* 0 - #03800000… 1` is the product of argument 0, and a literal less argument 1.

Common numbers are added and multiplied without checks, because no result of a short program can overflow or be rounded.
Programs over NULL, infinities, NaN and very large or long numbers are executed step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.types import Datum
from derive.functions.function import registered_name, word_of
from derive.functions.scalar import math
from derive.functions.types.numbers import EXACT, decoded, numeric_of

NAME = registered_name("numeric_program")
"""Name of the function in SQLite; its arguments are a program, and the program's arguments."""

_OPERATORS = {
    "add_numeric": ("+", EXACT.add),
    "subtract_numeric": ("-", EXACT.subtract),
    "multiply_numeric": ("*", EXACT.multiply),
    "negate_numeric": ("~", Decimal.copy_negate),
}
"""Word in programs, and function of finite numbers, for each function of data."""
_WORDS = {word: (name, operate) for name, (word, operate) in _OPERATORS.items()}
_CASTS = {f"{word_of(kind)}_to_numeric" for kind in math.INTEGERS}
"""Casts that a program's argument needs not: it may be an integer."""
_MOST_ARGUMENTS = 20
_MOST_BYTES, _MOST_EXPONENT = 40, 300
"""Greatest length of the datum, and greatest absolute exponent, of a common number."""


def program_sql(call: Call, form: Callable[[Expression], str]) -> str | None:
    """Return SQL of nested sums, differences, products and negations of numerics; None for another expression.

    Args:
        call: a call.
        form: returns SQL of other expressions.
    """
    if call.function not in _OPERATORS or not any(map(_is_operation, call.arguments)):
        return None
    forms: list[str] = []
    words = list(_words(call, forms, form))
    if len(words) > 2 * _MOST_ARGUMENTS:
        return None
    return f"{NAME}('{' '.join(words)}', {', '.join(forms)})" if forms else None


@dataclass(frozen=True, slots=True)
class ColumnProgram:
    """An operation that is executed for all rows of its arguments' columns.

    Attributes:
        arguments: expressions of numerics or integers.
        operate: function of common numbers, in the order of the arguments.
    """

    arguments: tuple[Expression, ...]
    operate: Callable[..., Decimal]

    def numbers(self, columns: Sequence[Sequence[Decimal | None]]) -> Sequence[Decimal | None]:
        """Return the results for columns of common numbers; None for rows with None."""
        if not any(None in column for column in columns):
            return list(map(self.operate, *columns))
        rows = zip(*columns, strict=True)
        return [None if None in numbers else self.operate(*numbers) for numbers in rows]


def column_program(expression: Expression) -> ColumnProgram | None:
    """Return sums, differences, products and negations of numerics as a program over columns; None without any."""
    if not _is_operation(expression):
        return None
    parts: dict[str, Expression] = {}

    def form(part: Expression) -> str:
        text = str(len(parts))
        parts[text] = part
        return text

    words = list(_words(expression, [], form))
    if not parts or len(words) > 2 * _MOST_ARGUMENTS:
        return None
    return ColumnProgram(tuple(parts.values()), _compiled(" ".join(words))[0])


def common_numbers(column: Sequence[Any]) -> Sequence[Decimal | None] | None:
    """Return the common numbers of a column of data; None if there are others."""
    try:
        known = {datum: None if datum is None else _common_number(datum) for datum in set(column)}
    except _Uncommon:
        return None
    return list(map(known.__getitem__, column))


def _is_operation(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function in _OPERATORS


def _words(expression: Expression, forms: list[str], form: Callable[[Expression], str]) -> Iterator[str]:
    """Yield the words of an expression's program, and append SQL of its arguments to `forms`."""
    if isinstance(expression, Call) and expression.function in _OPERATORS:
        yield _OPERATORS[expression.function][0]
        for part in expression.arguments:
            yield from _words(part, forms, form)
        return
    if isinstance(expression, Literal) and isinstance(expression.value, bytes) and _is_common(expression.value):
        yield f"#{expression.value.hex()}"
        return
    if isinstance(expression, Call) and expression.function in _CASTS:
        expression = expression.arguments[0]
    text = form(expression)
    if isinstance(expression, Column) and text in forms:
        yield str(forms.index(text))
        return
    forms.append(text)
    yield str(len(forms) - 1)


class _Uncommon(Exception):
    """A number for which a program is executed step by step."""


def _common_number(datum: bytes | int | None) -> Decimal:
    """Return a common number.

    Raises:
        _Uncommon: the datum is another number.
    """
    if isinstance(datum, int):
        return Decimal(datum)
    if datum is None or len(datum) > _MOST_BYTES:
        raise _Uncommon
    number = decoded(datum)
    if not number.is_finite() or abs(number.adjusted()) > _MOST_EXPONENT:
        raise _Uncommon
    return number


_common = lru_cache(maxsize=8192)(_common_number)


def _is_common(datum: bytes) -> bool:
    try:
        _common(datum)
    except _Uncommon:
        return False
    return True


def execute(*program_and_data: Any) -> Datum:
    """Return the result of a program for its arguments; NULL if an argument is NULL.

    Raises:
        SqlError: a result is too large (22003).
    """
    program, *data = program_and_data
    quick, step_by_step = _compiled(program)
    try:
        return numeric_of(quick(*map(_common, data)))
    except _Uncommon:
        return step_by_step(data)


@lru_cache(maxsize=1024)
def _compiled(program: str) -> tuple[Callable[..., Decimal], Callable[[Sequence[Any]], Datum]]:
    """Return a function of common numbers, and a function of any data."""
    words = program.split(" ")
    constants: dict[str, Any] = {}
    text = _python_text(iter(words), constants)
    count = 1 + max(int(word) for word in words if word.isdigit())
    parameters = ", ".join(f"a{index}" for index in range(count))
    quick = eval(f"lambda {parameters}: {text}", constants)

    def step_by_step(data: Sequence[Any]) -> Datum:
        return _result(iter(words), data)

    return quick, step_by_step


def _python_text(words: Iterator[str], constants: dict[str, Any]) -> str:
    """Return Python of the next operation or operand, and add its constants."""
    word = next(words)
    if word not in _WORDS:
        if word.isdigit():
            return f"a{word}"
        name = f"k{len(constants)}"
        constants[name] = _common(bytes.fromhex(word[1:]))
        return name
    name, operate = _WORDS[word]
    constants[name] = operate
    operands = [_python_text(words, constants) for _ in range(1 if word == "~" else 2)]
    return f"{name}({', '.join(operands)})"


def _result(words: Iterator[str], data: Sequence[Any]) -> Datum:
    """Return the datum of the next operation or operand."""
    word = next(words)
    if word not in _WORDS:
        datum = data[int(word)] if word.isdigit() else bytes.fromhex(word[1:])
        return numeric_of(Decimal(datum)) if isinstance(datum, int) else datum
    operands = [_result(words, data) for _ in range(1 if word == "~" else 2)]
    return _FUNCTIONS[_WORDS[word][0]](*operands)


_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    function.name: function.python
    for function in math.FUNCTIONS
    if function.name in _OPERATORS and function.python is not None
}
