"""What was probably meant where a keyword is misspelt: one that is close to it, of those that could stand there.

Which these are nobody lists: a parser that has failed reads the statement once more, and what it looks for is noted.
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
"""Longer statements are not read again: they are data, more than words."""
_LEAST_LETTERS = 3
"""Of a keyword that is misspelt: what is shorter is near to many."""
_FROM_TABLES = frozenset({"select", "values", "between", "like", "ilike", "similar"})
"""What parsers look for by tables, and not word by word."""

_NAMES = frozenset({"check", "column", "default", "desc", "end", "group", "limit", "offset", "order", "table", "user"})
"""Reserved words that columns and tables are called."""


class _NotingReader(TokenReader):
    """Notes for each token which keywords were looked for in its place."""

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
    """The error with which a statement was refused, with a hint if a keyword of it is misspelt.

    Args:
        error: is given the hint, if it is a syntax error that has none.
        text: the statement.
        parse: what has failed, and fails again.
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
    if word is None and before is not None:  # it may have been taken for an alias
        word = _meant(before, sought | reader.sought[before.offset])
    if word:
        return f"Did you mean {word.upper()}?"
    name = reader.token.value
    if reader.token.kind is TokenKind.WORD and name in _NAMES and reader.ahead(1).value != "by":
        return f'This word has a meaning in SQL. A column or table of this name takes quotes: "{name}".'
    return None


def _meant(token: Token, sought: Set[str]) -> str | None:
    """The keyword that is closest, at most a third of the letters away; of those, one of as many letters."""
    name = token.value
    if token.kind is not TokenKind.WORD or name in sought or len(name) < _LEAST_LETTERS:
        return None
    limit = len(name) // 3
    near = [(far, abs(len(word) - len(name)), word) for word in sought if (far := distance(name, word, limit)) <= limit]
    return min(near)[2] if near else None
