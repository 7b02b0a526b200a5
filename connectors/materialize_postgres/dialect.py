"""PostgreSQL's names, types and texts, and rows in COPY's text format.

Documents are `json`, not `jsonb`, because `jsonb` refuses the character NUL and writes 1e22 as an integer, which
changes the document. Numbers are `numeric`, which has all of JSON's numbers, unless a schema bounds them to 64 bits.
Every value is sent as text, because only text is exact: a double is cast to `numeric` with 15 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.kit.requests import Value
from connectors.materialize_sql.column import Column, Kind, Naming
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.values import Encoder, encoder, key_text, unfit

POSTGRES = Dialect(
    title="PostgreSQL",
    naming=Naming(most_bytes=63, taken=frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})),
    types={
        Kind.BOOLEAN: "boolean",
        Kind.BIGINT: "bigint",
        Kind.INTEGER: "numeric",
        Kind.NUMBER: "numeric",
        Kind.DECIMAL: "numeric",
        Kind.TEXT: "text",
        Kind.DATE: "date",
        Kind.TIMESTAMP: "timestamp with time zone",
        Kind.JSON: "json",
    },
    json_key="character varying",
    bytes_type="bytea",
    mark="$",
    widenings=frozenset({("bigint", "numeric")}),
    most_columns=1600,
    no_equality=frozenset({"json"}),
)

_NUMBERS = frozenset({Kind.BIGINT, Kind.INTEGER, Kind.NUMBER})
_BOOLEANS = {True: "t", False: "f", None: None}


def encoder_of(column: Column) -> Encoder:
    """Return the encoder of a column from packed values to their texts, and None."""
    if column.kind is Kind.JSON and column.is_key:
        return lambda values: _without_nul(list(map(key_text, values)))
    checked = encoder(column.kind)
    if column.kind is Kind.BOOLEAN:
        return lambda values: [_BOOLEANS[value] for value in checked(values)]
    if column.kind in _NUMBERS:
        return lambda values: [None if value is None else repr(value) for value in checked(values)]
    return lambda values: _without_nul(checked(values))


def _without_nul(texts: Sequence[Any]) -> Sequence[Value]:
    if "\0" in "".join(filter(None, texts)):
        raise unfit(texts, lambda text: "\0" not in text, "has the character NUL, which PostgreSQL's texts cannot have")
    return texts


_SPECIAL = ("\\", "\t", "\n", "\r")
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_text(columns: Sequence[Sequence[str | None]]) -> bytes:
    """Return rows in the text format of COPY.

    Args:
        columns: the texts of each column's values, and None.
    """
    lines = map("\t".join, zip(*map(_escaped, columns), strict=True))
    return ("\n".join(lines) + "\n").encode()


def _escaped(texts: Sequence[str | None]) -> Sequence[str]:
    try:
        joined = "".join(texts)  # type: ignore[arg-type]
    except TypeError:
        return ["\\N" if text is None else _escape(text) for text in texts]
    if any(special in joined for special in _SPECIAL):
        return [_escape(text) for text in texts if text is not None]
    return texts  # type: ignore[return-value]


def _escape(text: str) -> str:
    for special, escape in _ESCAPED:
        if special in text:
            text = text.replace(special, escape)
    return text


def array_text(texts: Sequence[str]) -> str:
    """Return the text of an array of texts.

    Args:
        texts: texts of the elements, without None.
    """
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') != 2 * max(len(texts) - 1, 0):
        joined = '","'.join([text.replace("\\", "\\\\").replace('"', '\\"') for text in texts])
    return f'{{"{joined}"}}' if texts else "{}"
