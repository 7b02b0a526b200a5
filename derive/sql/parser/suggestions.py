"""Suggestions for a misspelt keyword: the closest keyword that the parser accepts at this position.

After a syntax error, the parser reads the statement again, and a token reader records the keywords that the parser
looks for at each token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Set
from contextlib import suppress

from derive.errors import SqlError
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import Token, TokenKind
from derive.suggest import distance

_MOST_CHARACTERS = 100_000
"""Greatest length of a statement that is parsed again, in characters; longer statements are mostly data."""
_LEAST_LETTERS = 3
"""Least length of a misspelt keyword: shorter words are close to many keywords."""
_FROM_TABLES = frozenset({"select", "values", "between", "like", "ilike", "similar"})
"""Keywords that parsers look up in tables, so that the token reader cannot record them."""

_NAMES = frozenset({"check", "column", "default", "desc", "end", "group", "limit", "offset", "order", "table", "user"})
"""Reserved words that are common names of columns and tables."""


class _NotingReader(TokenReader):
    """A token reader that records the keywords looked for at each token."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.sought: dict[int, set[str]] = defaultdict(set)

    def is_word(self, *words: str) -> bool:
        self.sought[self.offset].update(words)
        return super().is_word(*words)

    def is_words(self, *words: str) -> bool:
        for index, word in enumerate(words):
            token = self.ahead(index)
            self.sought[token.offset].add(word)
            if token.kind is not TokenKind.WORD or token.value != word:
                return False
        return True


def with_suggestion(error: SqlError, text: str, parse: Callable[[TokenReader], object]) -> SqlError:
    """Return a syntax error, with a hint if a keyword is misspelt.

    Args:
        error: the error; only a syntax error without a hint gets one.
        text: text of the statement.
        parse: the parser that raised the error.
    """
    if error.sqlstate != "42601" or error.hint or error.offset is None or len(text) > _MOST_CHARACTERS:
        return error
    reader = _NotingReader(text)
    with suppress(SqlError, RecursionError):
        parse(reader)
    error.hint = _hint(reader, error.offset)
    return error


def _hint(reader: _NotingReader, offset: int) -> str | None:
    before: Token | None = None
    reader.return_to(0)
    while reader.offset < offset:
        before = reader.next()
    sought = reader.sought[reader.offset] | _FROM_TABLES
    word = _meant(reader.token, sought)
    if word is None and before is not None:  # the misspelt keyword may have become an alias
        word = _meant(before, sought | reader.sought[before.offset])
    if word:
        return f"Did you mean {word.upper()}?"
    name = reader.token.value
    if reader.token.kind is TokenKind.WORD and name in _NAMES and reader.ahead(1).value != "by":
        return f'This word has a meaning in SQL. A column or table of this name takes quotes: "{name}".'
    return None


def _meant(token: Token, sought: Set[str]) -> str | None:
    """Return the closest keyword, at most a third of the characters away; prefer one of equal length."""
    name = token.value
    if token.kind is not TokenKind.WORD or name in sought or len(name) < _LEAST_LETTERS:
        return None
    limit = len(name) // 3
    near = [(far, abs(len(word) - len(name)), word) for word in sought if (far := distance(name, word, limit)) <= limit]
    return min(near)[2] if near else None
