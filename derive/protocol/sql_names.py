"""Names of SQL relations in Storage: catalogs may declare and read some of them, and only SQL writes them."""

from __future__ import annotations

SQL_PREFIX = "sql/public/"
"""Prefix of the names of tables, sources and materialized views; the SQL name follows."""

POSITION_PREFIX = "sql@position/public/"
"""Prefix of tables with the positions of sources; no name in a catalog or in SQL has an `@` there."""

MARK = "sql-catalog"
"""Table that records the last change of the SQL catalog."""


def is_of_sql(name: str) -> bool:
    """Return true if a name in Storage belongs to SQL."""
    return name.startswith((SQL_PREFIX, POSITION_PREFIX)) or name == MARK


def is_internal(name: str) -> bool:
    """Return true if a name in Storage belongs to a table that SQL hides, or that has a temporary name."""
    return name == MARK or name.startswith((POSITION_PREFIX, "@"))


def aside_name(name: str, identifier: int) -> str:
    """Return the temporary name of a table that has lost its name, or has not got it yet.

    >>> aside_name("sql/public/t", 7)
    '@7/sql/public/t'
    """
    return f"@{identifier}/{intended_name(name)}"


def intended_name(name: str) -> str:
    """Return the intended name of a table with a temporary name; other names unchanged.

    >>> intended_name("@7/sql/public/t")
    'sql/public/t'
    """
    return name.partition("/")[2] if name.startswith("@") else name
