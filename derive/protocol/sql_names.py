"""Names of SQL relations in Storage: catalogs may declare and read some of them, and only SQL writes them."""

from __future__ import annotations

SQL_PREFIX = "sql/public/"
"""Prefix of the names of tables, sources and materialized views; the SQL name follows."""

POSITION_PREFIX = "sql@position/public/"
"""Prefix of tables with the positions of sources; no name in a catalog or in SQL has an `@` there."""


def is_of_sql(name: str) -> bool:
    """Return true if a name in Storage belongs to SQL."""
    return name.startswith((SQL_PREFIX, POSITION_PREFIX))


def is_internal(name: str) -> bool:
    """Return true if a name in Storage belongs to a table that SQL hides, or to a table that has lost its name."""
    return name.startswith((POSITION_PREFIX, "@"))


def aside_name(name: str, identifier: int) -> str:
    """Return the name in Storage of a dropped table that has lost its name, or of a new table before its commit.

    >>> aside_name("sql/public/t", 7)
    '@7/sql/public/t'
    """
    return f"@{identifier}/{intended_name(name)}"


def intended_name(name: str) -> str:
    """Return the former name of a table that has lost its name; return other names unchanged.

    >>> intended_name("@7/sql/public/t")
    'sql/public/t'
    """
    return name.partition("/")[2] if name.startswith("@") else name
