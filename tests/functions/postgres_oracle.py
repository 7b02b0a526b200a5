"""What a real PostgreSQL makes of an expression: its type and value, or its error."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import psycopg
from postgres_server import server

from derive.algebra.expression import Call, Expression, Literal
from derive.algebra.types import ARRAYS, Datum, Row, Type
from derive.errors import SqlError
from derive.functions.function import Function
from derive.functions.registry import evaluate
from derive.functions.scalar.array import builder_of
from derive.functions.types.type_info import datum_of_text

TOO_LONG = "57014"
"""The SQLSTATE of an expression that takes PostgreSQL longer than 10 s."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of evaluating an expression: a type's name and a datum, or an SQLSTATE."""

    type: str | None
    datum: Datum = None
    sqlstate: str | None = None
    message: str = ""

    def __str__(self) -> str:
        return f"{self.sqlstate} {self.message}" if self.sqlstate else f"{self.datum!r} of {self.type}"


@cache
def connection() -> psycopg.Connection[Any]:
    with server().connect() as first:
        first.execute(
            "CREATE DATABASE unicode TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
        )
    connected = server().connect(dbname="unicode")
    atexit.register(connected.close)
    connected.execute("SET TimeZone = 'UTC'; SET extra_float_digits = 1; SET IntervalStyle = 'postgres'")
    connected.execute("SET statement_timeout = '10s'")
    return connected


def of_postgres(sql: str) -> Outcome:
    """The outcome of an expression that is written in SQL."""
    try:
        row = (
            connection()
            .execute(f"SELECT format_type(pg_typeof(v), NULL), v::text FROM (SELECT ({sql}) AS v) AS r")
            .fetchone()
        )
    except psycopg.Error as exc:
        return Outcome(None, sqlstate=exc.sqlstate, message=str(exc))
    assert row is not None
    kind, text = row
    if kind == "interval" and text in {"infinity", "-infinity"}:
        return Outcome(None, sqlstate="22008", message="infinite intervals, which only newer versions have")
    try:
        return Outcome(kind, None if text is None else datum_of_text(Type(kind), text))
    except SqlError as exc:
        return Outcome(None, sqlstate=exc.sqlstate, message="beyond what we have")


def of_ours(expression: Expression, row: Row = ()) -> Outcome:
    """The outcome of an expression of the algebra, of a row's columns."""
    try:
        return Outcome(expression.type.value, evaluate(expression, row))
    except SqlError as exc:
        return Outcome(None, sqlstate=exc.sqlstate, message=str(exc))


def literal_sql(text: str | None, kind: Type) -> str:
    """A literal of a type, by its text."""
    quoted = "NULL" if text is None else "'" + text.replace("'", "''") + "'"
    return f"CAST({quoted} AS {kind.value})"


def literal(text: str | None, kind: Type) -> Literal:
    return Literal(None if text is None else datum_of_text(kind, text), kind)


def call_sql(symbol: str, arguments: Sequence[str]) -> str:
    """A call of a function, or an operation."""
    if symbol in KEYWORDS:
        return KEYWORDS[symbol](arguments)
    if symbol[0].isalpha():
        return f"{symbol}({', '.join(arguments)})"
    return f"({symbol} {arguments[0]})" if len(arguments) == 1 else f"({arguments[0]} {symbol} {arguments[1]})"


def _quantified(symbol: str, word: str, arguments: Sequence[str]) -> str:
    return f"({arguments[0]} {symbol} {word} ({arguments[1]}))"


KEYWORDS: dict[str, Callable[[Sequence[str]], str]] = {
    **{
        symbol: (lambda arguments, symbol=symbol: "(" + f" {symbol} ".join(arguments) + ")")  # type: ignore[misc]
        for symbol in ("and", "or", "is distinct from", "is not distinct from", "similar to")
    },
    **{
        symbol: (lambda arguments, symbol=symbol: f"({arguments[0]} {symbol})")  # type: ignore[misc]
        for symbol in (
            "is null",
            "is not null",
            "is true",
            "is not true",
            "is false",
            "is not false",
            "is unknown",
            "is not unknown",
        )
    },
    "position": lambda arguments: f"position({arguments[1]} in {arguments[0]})",
    "extract": lambda arguments: f"pg_catalog.extract({arguments[0]}, {arguments[1]})",
    **{
        f"{symbol} {word}": partial(_quantified, symbol, word)
        for symbol in ("=", "<>", "<", "<=", ">", ">=")
        for word in ("any", "all")
    },
    **{builder_of(kind.element): lambda arguments: f"ARRAY[{', '.join(arguments)}]" for kind in ARRAYS if kind.element},
    "[]": lambda arguments: f"({arguments[0]})[{arguments[1]}]",
    "[:]": lambda arguments: f"({arguments[0]})[{arguments[1]}:{arguments[2]}]",
    "not": lambda arguments: f"(NOT {arguments[0]})",
    "in": lambda arguments: f"({arguments[0]} IN ({', '.join(arguments[1:])}))",
}


def cast_target(function: Function) -> Type | None:
    """Of a cast's function, the type that it casts to."""
    source, to, _ = function.symbol.partition("_to_")
    is_cast = to and source and function.name == function.symbol and len(function.arguments) == 1
    return function.result if is_cast else None


def call(function: Function, arguments: Sequence[Expression]) -> Expression:
    kind = function.result if function.result is not Type.UNKNOWN else arguments[0].type
    return Call(function.name, tuple(arguments), kind)
