"""A lexer for queries of the catalogs, and the check for functions that such queries may not call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from derive.errors import SqlError

if TYPE_CHECKING:
    import duckdb

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<text>[eE]'(?:[^'\\]|''|\\.)*'|[nN]?'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<parameter>\$\d+)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<sign>::|!~~\*|!~~|~~\*|~~|!~\*|!~|~\*|[<>!=]=|<>|\|\||->>|->|\#>>|\#>|@>|<@|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Kind(Enum):
    """The kind of a token."""

    SPACE = "space"
    TEXT = "text"
    QUOTED = "quoted"
    PARAMETER = "parameter"
    NUMBER = "number"
    WORD = "word"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of SQL.

    Attributes:
        kind: kind of the token.
        text: text of the token.
    """

    kind: Kind
    text: str

    @property
    def word(self) -> str:
        """Return the name or symbol, with SQL's case folding; empty for strings and spaces."""
        if self.kind is Kind.QUOTED:
            return self.text[1:-1].replace('""', '"')
        return self.text.lower() if self.kind in (Kind.WORD, Kind.SIGN) else ""


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, including spaces and comments; an unterminated string or comment becomes symbols."""
    for match in _TOKEN.finditer(text):
        kind = "text" if match.lastgroup == "tag" else match.lastgroup
        yield Token(Kind(kind), match.group())


_ALLOWED = {"gen_random_uuid", "generate_series", "json_each", "random", "range", "repeat", "unnest"}
_REACHING = """
    SELECT DISTINCT lower(function_name) FROM duckdb_functions()
    WHERE function_type IN ('table', 'table_macro', 'pragma') OR stability = 'VOLATILE'
"""


def refused_functions(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Return the names of DuckDB's own functions that return rows, have effects, or are volatile."""
    return frozenset(name for (name,) in connection.execute(_REACHING).fetchall()) - _ALLOWED


def require_harmless(query: str, refused: frozenset[str]) -> None:
    """Check that a query calls no refused function.

    Raises:
        SqlError: 42883, the query calls a refused function.
    """
    tokens = [token for token in tokens_of(query) if token.kind is not Kind.SPACE]
    for token, behind in pairwise(tokens):
        if behind.text == "(" and token.word.lower() in refused:
            hint = "Queries about PostgreSQL's catalogs call PostgreSQL's functions."
            raise SqlError("42883", f"function {token.word} does not exist", hint=hint)
