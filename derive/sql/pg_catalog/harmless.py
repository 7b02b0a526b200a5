"""Functions that clients cannot call in queries about PostgreSQL's catalogs.

These queries run in DuckDB, whose functions reach further than PostgreSQL's: they read files, fetch and load
extensions, run the text of another query, sleep while others wait, and change what the database does for everyone.
DuckDB has no access to files in any case; this module refuses by name the functions that no catalog query needs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from derive.errors import SqlError
from derive.sql.pg_catalog.lexer import Kind, tokens_of

if TYPE_CHECKING:
    import duckdb

_ALLOWED = {"gen_random_uuid", "generate_series", "json_each", "random", "range", "repeat", "unnest"}
_REACHING = """
    SELECT DISTINCT lower(function_name) FROM duckdb_functions()
    WHERE function_type IN ('table', 'table_macro', 'pragma') OR stability = 'VOLATILE'
"""


def refused_functions(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Return the names of DuckDB's own functions that give rows, change something, or give another value each time."""
    return frozenset(name for (name,) in connection.execute(_REACHING).fetchall()) - _ALLOWED


def require_harmless(query: str, refused: frozenset[str]) -> None:
    """Check that a query calls no function that is refused.

    Raises:
        SqlError: 42883, it does.
    """
    tokens = [token for token in tokens_of(query) if token.kind is not Kind.SPACE]
    for token, behind in pairwise(tokens):
        if behind.text == "(" and token.word.lower() in refused:
            hint = "Queries about PostgreSQL's catalogs call PostgreSQL's functions."
            raise SqlError("42883", f"function {token.word} does not exist", hint=hint)
