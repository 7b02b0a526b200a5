"""An INSERT that returns parameters alone, as an INSERT and a SELECT.

For RETURNING, SQLite makes a temporary table and a journal of the statement each time it is run, which takes longer
than to insert a row. Where there is one row to insert, and only parameters to return, it is enough to know whether the
row was written, which `changes()` tells.
"""

from __future__ import annotations

import re
from dataclasses import replace

import apsw

from derive.sql.block import Statement
from derive.sql.token import outer_tokens, parameters_of

_RETURNS_PARAMETERS = re.compile(
    r"INSERT (?:OR \w+ )?INTO \S+ (?:\( \) )?VALUES \( \) (?:ON .*)?RETURNING (\$\S+(?: , \$\S+)*)(?: ;)?",
    re.IGNORECASE | re.DOTALL,
)
"""What is outside of brackets in an INSERT of one row that returns parameters, with `_` for what is quoted."""

_QUOTES = "'\"`["


def split_returning(db: apsw.Connection, statement: Statement) -> list[Statement]:
    """What to run for a statement, one after the other: it alone, or an INSERT and a SELECT of what it returns.

    Args:
        db: has the tables that it refers to.
        statement: one that prepares.
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
    """Whether it writes one table, and no view: rows that a trigger writes in the place of a view's do not count."""
    kinds = [db.execute("SELECT type FROM sqlite_schema WHERE name = ?", (name,)).get for name in statement.writes]
    return kinds == ["table"]
