"""Rewriting an INSERT that returns only parameters as an INSERT and a SELECT.

For RETURNING, SQLite creates a temporary table and a statement journal on each run, which takes longer than inserting a
row. If one row is inserted and only parameters are returned, `changes()` is enough to know whether the row was written.
"""

from __future__ import annotations

import re
from dataclasses import replace

import apsw

from derive.lambda_sql.block import Statement
from derive.lambda_sql.token import outer_tokens, parameters_of

_RETURNS_PARAMETERS = re.compile(
    r"INSERT (?:OR \w+ )?INTO \S+ (?:\( \) )?VALUES \( \) (?:ON .*)?RETURNING (\$\S+(?: , \$\S+)*)(?: ;)?",
    re.IGNORECASE | re.DOTALL,
)
"""Tokens outside brackets of an INSERT of one row that returns parameters, with `_` for quoted tokens."""

_QUOTES = "'\"`["


def split_returning(db: apsw.Connection, statement: Statement) -> list[Statement]:
    """Return the statements to run for a statement: the statement itself, or an INSERT and a SELECT.

    Args:
        db: database with the tables that the statement refers to.
        statement: a statement that prepares.
    """
    outer = outer_tokens(statement.text)
    match = _RETURNS_PARAMETERS.fullmatch(" ".join("_" if text[0] in _QUOTES else text for _, text in outer))
    if match is None or not _writes_one_table(db, statement):
        return [statement]
    place = max(place for place, text in outer if text.upper() == "RETURNING")
    returned = match[1].split(" , ")
    texts = f"{statement.text[:place]};", f"SELECT {','.join(returned)} WHERE changes();"
    named = [parameters_of(text) for text in texts]
    if not all(named) or {name[1:] for names in named for name in names} != set(statement.parameters):
        return [statement]
    return [
        replace(statement, text=text, parameters=tuple(name[1:] for name in names))
        for text, names in zip(texts, named, strict=True)
    ]


def _writes_one_table(db: apsw.Connection, statement: Statement) -> bool:
    """Return whether a statement writes one table, and no view.

    `changes()` does not count rows of a view's INSTEAD OF triggers.
    """
    kinds = [db.execute("SELECT type FROM sqlite_schema WHERE name = ?", (name,)).get for name in statement.writes]
    return kinds == ["table"]
