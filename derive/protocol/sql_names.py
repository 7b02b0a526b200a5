"""Names of relations of SQL in Storage: catalogs may declare and read some of them, and nothing else writes them."""

from __future__ import annotations

SQL_PREFIX = "sql/public/"
"""Begins the names of tables, sources and materialized views; what follows is the name in SQL."""

POSITION_PREFIX = "sql@position/public/"
"""Begins the names of tables that hold how far a source is; no name of a catalog or of SQL has an `@` there."""

MARK = "sql-catalog"
"""The table that marks which change of the catalog of SQL has happened."""


def is_of_sql(name: str) -> bool:
    """Whether a name in Storage is one that only relations of SQL have."""
    return name.startswith((SQL_PREFIX, POSITION_PREFIX)) or name == MARK


def is_internal(name: str) -> bool:
    """Whether a name in Storage is that of a table that SQL does not show, or has yet to be given another one."""
    return name == MARK or name.startswith((POSITION_PREFIX, "@"))


def aside_name(name: str, identifier: int) -> str:
    """Return the name of a table that has lost its name to another one, or does not have it yet.

    >>> aside_name("sql/public/t", 7)
    '@7/sql/public/t'
    """
    return f"@{identifier}/{intended_name(name)}"


def intended_name(name: str) -> str:
    """Return the name that a table has lost, or is to have; its name if there is no such thing.

    >>> intended_name("@7/sql/public/t")
    'sql/public/t'
    """
    return name.partition("/")[2] if name.startswith("@") else name
