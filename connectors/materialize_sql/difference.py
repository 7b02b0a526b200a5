"""The difference between the visible rows of a table and the rows of its refill.

Values are compared as the replacement of the rows compares them, so the numbers are those of the rows that the
replacement deletes and writes. Only the columns of the refill are compared, because the replacement writes no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from connectors.kit.requests import Difference
from connectors.materialize_sql.column import Column, Kind, Table, quote
from connectors.materialize_sql.dialect import Dialect
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON

_Query: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

_TEXTS = frozenset({Kind.TEXT, Kind.DATE, Kind.TIMESTAMP, Kind.DECIMAL})
"""Kinds whose values are strings in documents."""


def compare(index: int, table: Table, beside: Table, dialect: Dialect, query: _Query, most: int) -> Difference:
    """Return the difference between the rows of a table and of its refill.

    Args:
        index: index of the binding.
        table: table of the binding, with the columns of the refill.
        beside: table of the refill.
        dialect: dialect of the database.
        query: function that executes a statement with parameters.
        most: largest number of example rows.
    """
    stored, refilled = f"{dialect.table(table.path)} AS stored", f"{dialect.table(beside.path)} AS refilled"
    matches = " AND ".join(f"refilled.{quote(column.name)} = stored.{quote(column.name)}" for column in table.keys)
    is_ours = "true" if table.document is None else f"stored.{quote(table.document)} IS NOT NULL"
    is_same = " AND ".join(["true", *(dialect.is_same(column, "refilled", "stored") for column in table.values)])
    parts = {
        "stored": f"FROM {stored} WHERE {is_ours} AND NOT EXISTS (SELECT 1 FROM {refilled} WHERE {matches})",
        "refilled": f"FROM {refilled} WHERE NOT EXISTS (SELECT 1 FROM {stored} WHERE {matches})",
        "stored refilled": f"FROM {stored} JOIN {refilled} ON {matches} WHERE NOT ({is_same})",
    }
    counts, rows = [], list[str]()
    for aliases, part in parts.items():
        counts.append(int(query(f"SELECT count(*) {part}", [])[0][0]))
        chosen = ", ".join(_columns(table, alias, dialect) for alias in aliases.split())
        keys = ", ".join(f"{aliases.split()[0]}.{quote(column.name)}" for column in table.keys)
        for values in query(f"SELECT {chosen} {part} ORDER BY {keys} LIMIT {most - len(rows)}", []):
            before = values[: len(table.columns)] if "stored" in aliases else None
            after = values[-len(table.columns) :] if "refilled" in aliases else None
            rows.append(dump_exact(_example(table, before, after)).decode())
    deleted, inserted, updated = counts
    return Difference(index, deleted, inserted, updated, tuple(rows))


def _columns(table: Table, alias: str, dialect: Dialect) -> str:
    """Return the columns of a table as texts."""
    text = dialect.types[Kind.TEXT]
    return ", ".join(f"CAST({alias}.{quote(column.name)} AS {text})" for column in table.columns)


def _example(table: Table, before: Sequence[str | None] | None, after: Sequence[str | None] | None) -> dict[str, JSON]:
    """Return an example: the key, and the columns that differ of the visible row and of the refilled row."""
    known = before or after or ()
    keys = [_value(column, text) for column, text in zip(table.columns, known, strict=True) if column.is_key]
    rows: list[dict[str, JSON] | None] = []
    for own, other in ((before, after), (after, before)):
        others = other or [None] * len(table.columns)
        rows.append(
            None
            if own is None
            else {
                column.name: _value(column, text)
                for column, text, one in zip(table.columns, own, others, strict=True)
                if not column.is_key and (other is None or text != one)
            }
        )
    return {"key": keys, "before": rows[0], "after": rows[1]}


def _value(column: Column, text: str | None) -> JSON:
    """Return the JSON value that a column's text describes."""
    if text is None or column.kind in _TEXTS:
        return text
    try:
        return parse_exact(text.encode())
    except ValueError:
        return text
