"""Calls mean what they mean to PostgreSQL: the same type of the result, or the same error, for all types of arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from random import Random

import psycopg
from postgres_oracle import call_sql, connection

from derive.algebra.types import CATALOG_TYPES, Type
from derive.errors import SqlError
from derive.functions.registry import resolve_aggregate, resolve_function, resolve_operator, resolve_window

COUNT = int(os.environ.get("FLOW_LAW_EXAMPLES", "15")) * 40
KINDS = [kind for kind in Type if kind not in {Type.MZ_TIMESTAMP, *CATALOG_TYPES}]
UNARY_OPERATORS = ["-", "+", "@", "~", "|/"]
OPERATORS = ["+", "-", "*", "/", "%", "^", "=", "<", "||", "~", "&", "<<", "->", "->>", "@>", "?", "is distinct from"]
UNARY = [
    "abs",
    "round",
    "ceil",
    "sign",
    "sqrt",
    "exp",
    "ln",
    "log",
    "length",
    "upper",
    "md5",
    "reverse",
    "isfinite",
    "btrim",
    "ascii",
    "chr",
    "to_hex",
    "octet_length",
    "justify_days",
    "sha256",
    "jsonb_typeof",
    "degrees",
    "factorial",
    "quote_ident",
    "quote_literal",
    "concat",
]
BINARY = [
    "mod",
    "power",
    "round",
    "trunc",
    "left",
    "repeat",
    "date_trunc",
    "date_part",
    "age",
    "to_date",
    "to_timestamp",
    "substr",
    "div",
    "gcd",
    "strpos",
    "coalesce",
    "greatest",
    "log",
    "atan2",
    "encode",
    "starts_with",
    "concat",
    "concat_ws",
    "split_part",
]
AGGREGATES = ["sum", "avg", "min", "max", "count", "bool_and", "stddev", "variance", "string_agg", "bit_and"]
WINDOW_FUNCTIONS = ["ntile", "nth_value", "row_number"]
OURS = {
    # `jsonb` is the only type here that has these.
    *((symbol, (Type.UNKNOWN, kind)) for symbol in ("->", "->>", "@>") for kind in KINDS),
    # Bits of addresses do not exist here.
    *(("&", types) for types in product((Type.UNKNOWN, Type.INET, Type.CIDR, Type.MACADDR), repeat=2)),
}


def theirs(sql: str) -> str | None:
    try:
        row = connection().execute(f"SELECT format_type(pg_typeof({sql}), NULL)").fetchone()
    except psycopg.Error as exc:
        return exc.sqlstate
    assert row is not None
    return str(row[0])


def ours(kind: str, symbol: str, types: Sequence[Type]) -> str:
    resolve = {
        "operator": resolve_operator,
        "function": resolve_function,
        "aggregate": resolve_aggregate,
        "window": resolve_window,
    }[kind]
    try:
        return resolve(symbol, types).result_type.value
    except SqlError as exc:
        return exc.sqlstate


def cases() -> list[tuple[str, str, tuple[Type, ...]]]:
    one, two = list(product(KINDS)), list(product(KINDS, KINDS))
    return [
        (kind, symbol, types)
        for kind, symbols, signatures in (
            ("operator", UNARY_OPERATORS, one),
            ("operator", OPERATORS, two),
            ("function", UNARY, one),
            ("function", BINARY, two),
            ("aggregate", AGGREGATES, one),
            ("window", WINDOW_FUNCTIONS, one),
        )
        for symbol in symbols
        for types in signatures
        if (symbol, types) not in OURS
    ]


def test_calls_resolve_as_in_postgresql() -> None:
    different = []
    for kind, symbol, types in Random(1).sample(cases(), min(COUNT, len(cases()))):
        nulls = ["NULL" if argument is Type.UNKNOWN else f"NULL::{argument.value}" for argument in types]
        sql = call_sql(symbol, nulls) + (" OVER ()" if kind == "window" else "")
        if ours(kind, symbol, types) != theirs(sql):
            different.append((sql, ours(kind, symbol, types), theirs(sql)))
    assert different == []


def test_nullif_keeps_the_size_of_integers() -> None:
    assert resolve_function("nullif", (Type.SMALLINT, Type.BIGINT)).result_type is Type.SMALLINT
