"""A reader of a statement's tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from derive.errors import SqlError
from derive.functions.cancellation import check_cancelled
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.tokens import COLUMNS_ONLY, FUNCTIONS_ONLY, NEEDS_AS, RESERVED, Token, TokenKind, tokens_of

_Item = TypeVar("_Item")
_UNTIL_ASKED = 256
"""Number of tokens between two checks for cancellation."""
_PATH = re.compile(r"[\w./-]*")


class TokenReader:
    """A reader of tokens; its methods raise 42601 with the position of the current token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = tokens_of(text)
        self._index = 0

    @property
    def token(self) -> Token:
        """Return the next token."""
        return self._tokens[self._index]

    @property
    def offset(self) -> int:
        """Return the start of the next token."""
        return self._tokens[self._index].offset

    @property
    def end_before(self) -> int:
        """Return the end of the previous token."""
        return self._tokens[self._index - 1].end if self._index else 0

    def ahead(self, count: int = 1) -> Token:
        """Return the token `count` positions after the next one."""
        return self._tokens[min(self._index + count, len(self._tokens) - 1)]

    def next(self) -> Token:
        """Read one token."""
        token = self._tokens[self._index]
        if token.kind is not TokenKind.END:
            self._index += 1
            if not self._index % _UNTIL_ASKED:
                check_cancelled()
        return token

    def mark(self) -> int:
        """Return the current position."""
        return self._index

    def return_to(self, mark: int) -> None:
        """Go back to a position."""
        self._index = mark

    def error(self, token: Token | None = None) -> SqlError:
        """Return the syntax error at a token, which is the next one by default."""
        token = token or self.token
        if token.kind is TokenKind.END:
            return SqlError("42601", "syntax error at end of input", offset=len(self.text))
        near = self.text[token.offset : token.end]
        return SqlError("42601", f'syntax error at or near "{near}"', offset=token.offset)

    def is_end(self) -> bool:
        """Return whether all tokens are read."""
        return self.token.kind is TokenKind.END

    def is_symbol(self, *symbols: str) -> bool:
        """Return whether one of these symbols is next."""
        return self.token.kind is TokenKind.SYMBOL and self.token.value in symbols

    def is_word(self, *words: str) -> bool:
        """Return whether one of these keywords is next."""
        return self.token.kind is TokenKind.WORD and self.token.value in words

    def is_words(self, *words: str) -> bool:
        """Return whether these keywords are next, in order."""
        return all(
            self.ahead(index).kind is TokenKind.WORD and self.ahead(index).value == word
            for index, word in enumerate(words)
        )

    def accept_symbol(self, *symbols: str) -> bool:
        """Read one of these symbols, if it is next; return whether it was."""
        if self.is_symbol(*symbols):
            self._index += 1
            return True
        return False

    def accept_word(self, *words: str) -> str | None:
        """Read one of these keywords, if it is next; return None otherwise."""
        if self.is_word(*words):
            return self.next().value
        return None

    def accept_words(self, *words: str) -> bool:
        """Read these keywords, if they are next, in order; return whether they were."""
        if self.is_words(*words):
            self._index += len(words)
            return True
        return False

    def expect_symbol(self, symbol: str) -> Token:
        """Read this symbol."""
        if not self.is_symbol(symbol):
            raise self.error()
        return self.next()

    def expect_word(self, *words: str) -> Token:
        """Read one of these keywords."""
        if not self.is_word(*words):
            raise self.error()
        return self.next()

    def expect_words(self, *words: str) -> None:
        """Read these keywords, in order."""
        for word in words:
            self.expect_word(word)

    def expect_end(self) -> None:
        """Raise an error if tokens remain."""
        if not self.is_end():
            raise self.error()

    def string(self) -> str:
        """Read a string."""
        if self.token.kind is not TokenKind.STRING:
            raise self.error()
        return self.next().value

    def integer(self) -> int:
        """Read an integer."""
        if self.token.kind is not TokenKind.NUMBER or not self.token.value.isdigit():
            raise self.error()
        return int(self.next().value)

    def is_name(self, *, of_function: bool = False) -> bool:
        """Return whether a name is next: of a column or relation, or of a function or type."""
        token = self.token
        if token.kind is TokenKind.NAME:
            return True
        other = COLUMNS_ONLY if of_function else FUNCTIONS_ONLY
        return token.kind is TokenKind.WORD and token.value not in RESERVED and token.value not in other

    def name(self) -> str:
        """Read the name of a column or a relation."""
        if not self.is_name():
            raise self.error()
        return self.next().value

    def any_name(self) -> str:
        """Read a name that may be a keyword, as after AS and after a dot."""
        if self.token.kind not in {TokenKind.NAME, TokenKind.WORD}:
            raise self.error()
        return self.next().value

    def is_bare_alias(self) -> bool:
        """Return whether an alias without AS is next."""
        token = self.token
        return token.kind is TokenKind.NAME or (token.kind is TokenKind.WORD and token.value not in NEEDS_AS)

    def qualified_name(self) -> QualifiedName:
        """Read the name of a relation, and drop the name of a database before the schema."""
        offset = self.offset
        parts = [self.name()]
        while self.accept_symbol("."):
            parts.append(self.any_name())
        if len(parts) > 3:
            message = f"improper qualified name (too many dotted names): {'.'.join(parts)}"
            raise SqlError("42601", message, offset=offset)
        if self.is_symbol("/"):
            error = self.error()
            path = _PATH.match(self.text, offset)
            error.hint = f'Names with a slash need quotes: "{path.group() if path else parts[0]}".'
            raise error
        return QualifiedName(parts[-2] if len(parts) > 1 else None, parts[-1], offset)

    def list_of(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Read items separated by commas."""
        items = [item()]
        while self.accept_symbol(","):
            items.append(item())
        return tuple(items)

    def in_parentheses(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Read items separated by commas, in parentheses."""
        self.expect_symbol("(")
        items = self.list_of(item)
        self.expect_symbol(")")
        return items

    def located_name(self) -> tuple[str, int]:
        """Read a name, and return it with its offset."""
        offset = self.offset
        return self.name(), offset
