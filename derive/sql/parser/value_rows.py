"""INSERT statements with many rows of constants, which are read without a syntax tree for each constant.

Programs load data by `INSERT … VALUES (…), (…), …`. The statement is planned like an INSERT of one row of parameters,
and the constants are the arguments of all rows. Statements whose rows have other values are parsed as usual.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from derive.algebra.types import Datum, Row, Type
from derive.functions.types.type_info import datum_of_text

_ = r"[ \t\n\r\f]*+"
_NAME = r'(?:[A-Za-z_]\w*|"[^"]+")'
_HEAD = (
    rf"{_}INSERT[ \t\n\r\f]+INTO[ \t\n\r\f]+{_NAME}(?:\.{_NAME})*"
    rf"(?:{_}\({_}{_NAME}(?:{_},{_}{_NAME})*{_}\){_}|[ \t\n\r\f]+)VALUES{_}"
)
_CONSTANT = r"(?:-?(?:[0-9]+\.)?[0-9]+(?![\w.])|'(?:[^']|'')*+'|(?:NULL|TRUE|FALSE)\b)"
_ROW = rf"\({_}{_CONSTANT}(?:{_},{_}{_CONSTANT})*+{_}\)"
_TAIL = r"(?:(?:ON|RETURNING)\b[^$';/\-]*+)?"
"""Clauses behind the rows, without constants in quotes, comments and parameters."""

_BEGIN = re.compile(_HEAD + r"(?=\()", re.I)
_FIRST = re.compile(_ROW, re.I)
_ONE = re.compile(_CONSTANT, re.I)
_REST = re.compile(rf"{_}({_TAIL});?{_}", re.I)
_WHOLE = re.compile(rf"{_HEAD}{_ROW}(?:{_},{_}{_ROW})*+{_}{_TAIL};?{_}", re.I)

_INTEGERS = {Type.SMALLINT: 1 << 15, Type.INTEGER: 1 << 31, Type.BIGINT: 1 << 63}


@dataclass(frozen=True, slots=True)
class ValueRows:
    """The rows of an INSERT.

    Attributes:
        text: the statement with parameters in place of the constants of one row.
        columns: constants of each column, as in the statement.
    """

    text: str
    columns: tuple[Sequence[str], ...]

    def rows(self, types: Sequence[Type]) -> list[Row] | None:
        """Return the rows, if the constants are of the types that the columns of the table have; otherwise None.

        Raises:
            SqlError: a constant is invalid for its type.
        """
        data: list[Sequence[Datum]] = []
        for kind, constants in zip(types, self.columns, strict=True):
            column = _data(kind, constants)
            if column is None:
                return None
            data.append(column)
        return list(zip(*data, strict=True))


def is_insert_of_rows(text: str) -> bool:
    """Return whether a text is one INSERT of rows of constants; the rows may have different numbers of columns."""
    return _WHOLE.fullmatch(text) is not None


def value_rows(text: str) -> ValueRows | None:
    """Return the rows of an INSERT of constants; None for other statements.

    >>> value_rows("INSERT INTO rides VALUES (7), (8) RETURNING id")
    ValueRows(text='INSERT INTO rides VALUES ($1) RETURNING id', columns=(('7', '8'),))
    """
    head = _BEGIN.match(text)
    first = None if head is None or "\0" in text else _FIRST.match(text, head.end())
    if head is None or first is None:
        return None
    width = len(_ONE.findall(first[0]))
    row = rf"\({_}({_CONSTANT})" + rf"{_},{_}({_CONSTANT})" * (width - 1) + rf"{_}\){_}(,?){_}"
    rows: list[Sequence[str]] = []
    end, comma = head.end(), ","
    for match in re.compile(row, re.I).finditer(text, end):
        if match.start() != end or not comma:
            break
        *constants, comma = match.groups()
        rows.append(constants)
        end = match.end()
    rest = _REST.fullmatch(text, end)
    if rest is None or comma:
        return None
    parameters = ", ".join(f"${number + 1}" for number in range(width))
    return ValueRows(f"{head[0]}({parameters}) {rest[1]}".strip(), tuple(zip(*rows, strict=True)))


def _data(kind: Type, constants: Sequence[str]) -> Sequence[Datum] | None:
    """Return the data of a column; None if numbers and texts are mixed, or a constant has a type of another kind."""
    firsts = {constant[0] for constant in constants}
    if firsts == {"'"}:
        texts = [constant[1:-1] for constant in constants]
        if any("''" in text for text in texts):
            texts = [text.replace("''", "'") for text in texts]
        return texts if kind is Type.TEXT else [datum_of_text(kind, text) for text in texts]
    if firsts & set("nN"):
        return _with_nulls(kind, constants)
    if firsts <= set("tTfF"):
        return [int(constant[0] in "tT") for constant in constants] if kind is Type.BOOLEAN else None
    return _numbers(kind, constants) if firsts <= set("-0123456789") else None


def _with_nulls(kind: Type, constants: Sequence[str]) -> Sequence[Datum] | None:
    present = [constant for constant in constants if constant[0] not in "nN"]
    data = _data(kind, present) if present else ()
    if data is None:
        return None
    values = iter(data)
    return [None if constant[0] in "nN" else next(values) for constant in constants]


def _numbers(kind: Type, constants: Sequence[str]) -> Sequence[Datum] | None:
    """Return numbers as data of a type to which a cast from their own types gives the same data; otherwise None."""
    if kind in _INTEGERS:
        if any("." in constant for constant in constants):
            return None
        numbers, bound = list(map(int, constants)), _INTEGERS[kind]
        return numbers if -bound <= min(numbers) and max(numbers) < bound else None
    if kind is Type.DOUBLE:
        doubles = [float(constant) + 0.0 for constant in constants]  # there is no negative zero
        return doubles if all(map(isfinite, doubles)) else None
    if kind is Type.NUMERIC:
        return [datum_of_text(kind, constant) for constant in constants]
    return None
