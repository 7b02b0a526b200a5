"""The parser's entry points: a statement, a text of several statements, an expression; and hints for syntax errors.

After a syntax error, the parser reads the statement a second time. A token reader then records the keywords that the
parser looks for at each token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial

from derive.errors import SqlError, distance
from derive.recently_used import MOST_CHARACTERS, cached_by_text
from derive.sql.parser.alter import parse_alter
from derive.sql.parser.ast import NO_WITH, QueryBody, Select, SetQuery, SyntaxNode, Values
from derive.sql.parser.data_statements import (
    parse_as_of,
    parse_copy,
    parse_delete,
    parse_insert,
    parse_lock,
    parse_subscribe,
    parse_truncate,
    parse_update,
)
from derive.sql.parser.ddl import (
    parse_comment,
    parse_create,
    parse_drop,
)
from derive.sql.parser.merge import parse_merge
from derive.sql.parser.queries import QueryParser, not_allowed_into
from derive.sql.parser.session_statements import SESSION_STATEMENTS
from derive.sql.parser.statement import (
    AsOf,
    Close,
    CommonWrite,
    CreateTable,
    Deallocate,
    Declare,
    Execute,
    Explain,
    Explanation,
    Fetch,
    Prepare,
    RowWrite,
    SelectStatement,
    Statement,
    Subscribe,
    WithWrites,
)
from derive.sql.parser.tokens import Token, TokenKind, TokenReader, tokens_of
from derive.sql.parser.type_names import parse_type
from derive.sql.parser.value_rows import is_insert_of_rows

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
        error: the error; only a syntax error without a hint gets a hint.
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
        return f'This word is reserved in SQL. Quote the name of a column or table: "{name}".'
    return None


def _meant(token: Token, sought: Set[str]) -> str | None:
    """Return the keyword closest to a word, if at most a third of the characters differ.

    Prefer a keyword of equal length.
    """
    name = token.value
    if token.kind is not TokenKind.WORD or name in sought or len(name) < _LEAST_LETTERS:
        return None
    limit = len(name) // 3
    near = [(far, abs(len(word) - len(name)), word) for word in sought if (far := distance(name, word, limit)) <= limit]
    return min(near)[2] if near else None


_UPKEEP = "Omit the statement: tables and indexes are maintained automatically."
_UNSUPPORTED = {
    "call": "Procedures are not supported: send their statements.",
    "checkpoint": "Omit the statement: committed data are on disk.",
    "cluster": _UPKEEP,
    "do": "Procedures are not supported: send their statements.",
    "import": None,
    "listen": "Use SUBSCRIBE, which sends the updates of a relation.",
    "load": None,
    "notify": "Use SUBSCRIBE, which sends the updates of a relation.",
    "reindex": _UPKEEP,
    "security": None,
}
"""Hints for unsupported statements, by first word."""


_WRITING: Mapping[str, Callable[[TokenReader, QueryParser], RowWrite]] = {
    "insert": parse_insert,
    "update": parse_update,
    "delete": parse_delete,
    "merge": parse_merge,
}


class StatementParser:
    """Parser of one statement."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self._queries = QueryParser(reader)
        self._statements: dict[str, Callable[[], Statement]] = {
            "subscribe": lambda: parse_subscribe(reader, self._queries),
            "tail": lambda: parse_subscribe(reader, self._queries),
            "create": lambda: parse_create(reader, self._queries),
            "drop": lambda: parse_drop(reader),
            "alter": lambda: parse_alter(reader, self._queries),
            **{word: partial(parse, reader, self._queries) for word, parse in _WRITING.items()},
            "comment": lambda: parse_comment(reader),
            "truncate": lambda: parse_truncate(reader),
            "lock": lambda: parse_lock(reader),
            "copy": lambda: parse_copy(reader, self._queries),
            "declare": self._declare,
            "fetch": self._fetch,
            "move": self._fetch,
            "close": self._close,
            "prepare": self._prepare,
            "execute": self._execute,
            "deallocate": self._deallocate,
            "explain": self._explain,
        }

    def parse(self) -> Statement:
        """Read a statement."""
        statement = self._statement()
        if self._queries.into is None:
            return statement
        (name, select), self._queries.into = self._queries.into, None
        if (
            not isinstance(statement, SelectStatement)
            or statement.as_of
            or _first_select(statement.query) is not select
        ):
            raise not_allowed_into(name.offset)
        return CreateTable(name, (), query=statement.query)

    def _statement(self) -> Statement:
        reader = self._reader
        if reader.is_word("with"):
            return self._behind_with()
        if self._queries.begins_query():
            return self._select()
        word = reader.token.value if reader.token.kind is TokenKind.WORD else ""
        parse = self._statements.get(word)
        if parse is not None:
            return parse()
        session_statement = SESSION_STATEMENTS.get(word)
        if session_statement is not None:
            return session_statement(reader)
        if word in _UNSUPPORTED:
            message = f"{word.upper()} is not supported"
            raise SqlError("0A000", message, offset=reader.offset, hint=_UNSUPPORTED[word])
        reader.expect_word(*self._statements, *SESSION_STATEMENTS)
        raise reader.error()

    def _behind_with(self) -> Statement:
        reader, queries, offset = self._reader, self._queries, self._reader.offset
        writes: list[CommonWrite] = []

        def read_write(name: str, columns: tuple[str, ...], where: int, position: int) -> None:
            statement = _WRITING[reader.token.value](reader, queries)
            writes.append(CommonWrite(name, columns, statement, position, where))

        common = queries.parse_with(read_write)
        parse = _WRITING.get(reader.token.value) if reader.token.kind is TokenKind.WORD else None
        if not writes and parse is not None:
            return replace(parse(reader, queries), common=common)
        if not writes:
            return SelectStatement(queries.parse_behind(common, offset), self._as_of())
        if common.is_recursive:
            hint = "Omit RECURSIVE, or write the statements one by one."
            raise SqlError(
                "0A000", "WITH RECURSIVE with statements that write is not supported", offset=offset, hint=hint
            )
        statement = parse(reader, queries) if parse else SelectStatement(queries.parse_behind(NO_WITH, offset))
        return WithWrites(common, tuple(writes), statement)

    def _select(self) -> SelectStatement:
        query = self._queries.parse()
        return SelectStatement(query, self._as_of())

    def _as_of(self) -> AsOf | None:
        return parse_as_of(self._reader, self._queries) if self._queries.begins_as_of() else None

    def _rows(self) -> SelectStatement | Subscribe:
        if self._reader.is_word("subscribe", "tail"):
            return parse_subscribe(self._reader, self._queries)
        return self._select()

    def _declare(self) -> Statement:
        reader = self._reader
        reader.expect_word("declare")
        name, offset = reader.located_name()
        while word := reader.accept_word("binary", "insensitive", "asensitive", "no", "scroll"):
            if word == "binary":
                raise SqlError("0A000", "binary cursors are not supported", offset=offset, hint="Omit BINARY.")
        reader.expect_word("cursor")
        is_held = reader.accept_words("with", "hold")
        if not is_held:
            reader.accept_words("without", "hold")
        reader.expect_word("for")
        return Declare(name, self._rows(), offset, is_held)

    def _fetch(self) -> Statement:
        reader = self._reader
        is_move = reader.next().value == "move"
        count: int | None = 1
        reader.accept_word("next", "forward")
        if reader.is_word("backward", "prior", "first", "last", "absolute", "relative") or reader.is_symbol("-"):
            raise SqlError(
                "55000",
                "cursors can only scan forward",
                offset=reader.offset,
                hint="CLOSE the cursor, and DECLARE it again to begin with the first row.",
            )
        if reader.token.kind is TokenKind.NUMBER:
            count = reader.integer()
        elif reader.accept_word("all"):
            count = None
        reader.accept_word("from", "in")
        name, offset = reader.located_name()
        timeout = None
        if reader.accept_word("with"):
            reader.expect_symbol("(")
            reader.expect_word("timeout")
            reader.accept_symbol("=")
            reader.accept_word("interval")
            timeout = reader.next().value
            reader.expect_symbol(")")
        return Fetch(name, count, offset, timeout, is_move)

    def _close(self) -> Statement:
        self._reader.expect_word("close")
        offset = self._reader.offset
        return Close(None if self._reader.accept_word("all") else self._reader.name(), offset)

    def _prepare(self) -> Statement:
        reader = self._reader
        reader.expect_word("prepare")
        name, offset = reader.located_name()
        types = reader.in_parentheses(lambda: parse_type(reader)) if reader.is_symbol("(") else ()
        reader.expect_word("as")
        begin = reader.offset
        if not self._queries.begins_query() and not reader.is_word(*_WRITING, "subscribe"):
            raise reader.error()
        statement = self.parse()
        return Prepare(name, types, statement, reader.text[begin : reader.end_before], offset, begin)

    def _execute(self) -> Statement:
        reader = self._reader
        reader.expect_word("execute")
        name, offset = reader.located_name()
        if reader.is_symbol("(") and reader.ahead().value != ")":
            return Execute(name, reader.in_parentheses(self._queries.expressions.parse), offset)
        if reader.accept_symbol("("):
            reader.expect_symbol(")")
        return Execute(name, (), offset)

    def _deallocate(self) -> Statement:
        reader = self._reader
        reader.expect_word("deallocate")
        reader.accept_word("prepare")
        offset = reader.offset
        return Deallocate(None if reader.accept_word("all") else reader.name(), offset)

    def _option_of_explain(self) -> None:
        """Read an option of EXPLAIN, and raise an error for an unsupported one."""
        reader = self._reader
        offset, name = reader.offset, reader.any_name().lower()
        value = "on" if reader.is_symbol(",", ")") else reader.next().value.lower()
        if name in {"analyze", "wal", "timing", "buffers"} and value in {"on", "true", "1"}:
            raise _not_measured(offset)
        if name == "format" and value != "text":
            raise SqlError(
                "0A000",
                f"EXPLAIN (FORMAT {value.upper()}) is not supported",
                offset=offset,
                hint="Omit FORMAT: EXPLAIN returns text.",
            )

    def _explain(self) -> Statement:
        reader = self._reader
        offset = reader.expect_word("explain").offset
        explanation = Explanation.PLAN
        if reader.accept_word("timestamp"):
            explanation = Explanation.TIMESTAMP
            reader.expect_word("for")
        elif reader.accept_word("plan"):
            reader.expect_word("for")
        elif reader.is_symbol("(") and not self._queries.begins_query():
            reader.in_parentheses(self._option_of_explain)
        else:
            if reader.is_word("analyze"):
                raise _not_measured(reader.offset)
            reader.accept_word("verbose")
        begin = reader.offset
        statement = self.parse()
        return Explain(statement, explanation, offset, reader.text[begin : reader.end_before])


def _first_select(body: QueryBody) -> QueryBody:
    while not isinstance(body, Select | Values):
        body = body.left if isinstance(body, SetQuery) else body.body
    return body


def _not_measured(offset: int) -> SqlError:
    hint = "EXPLAIN shows the operators of a query, and EXPLAIN TIMESTAMP FOR the time of its read."
    return SqlError("0A000", "EXPLAIN ANALYZE is not supported: no measurements are taken", offset=offset, hint=hint)


@cached_by_text
def split(text: str) -> tuple[tuple[int, str], ...]:
    """Return the statements of a text with their offsets, without semicolons and empty statements.

    Raises:
        SqlError: a token is invalid (42601).
    """
    if len(text) > MOST_CHARACTERS and is_insert_of_rows(text):
        head = len(text) - len(text.lstrip())
        return ((head, text[head:].rstrip().removesuffix(";").rstrip()),)
    statements = []
    begin: int | None = None
    end = 0
    for token in tokens_of(text):
        is_end = token.kind is TokenKind.END or (token.kind is TokenKind.SYMBOL and token.value == ";")
        if is_end and begin is not None:
            statements.append((begin, text[begin:end]))
            begin = None
        elif not is_end:
            begin = token.offset if begin is None else begin
            end = token.end
    return tuple(statements)


@cached_by_text
def parse(text: str) -> Statement | None:
    """Return the statement of a text; None if the text is empty.

    Args:
        text: text of one statement, with or without a semicolon.

    Raises:
        SqlError: the SQL is invalid (42601), or is not supported (0A000).
    """
    try:
        return _parse(TokenReader(text))
    except SqlError as error:
        raise with_suggestion(error, text, _parse) from None
    except RecursionError:
        raise too_complex() from None


def _parse(reader: TokenReader) -> Statement | None:
    while reader.accept_symbol(";"):
        pass
    if reader.is_end():
        return None
    statement = StatementParser(reader).parse()
    if reader.is_symbol(";"):
        reader.next()
        if not reader.is_end():
            raise SqlError("42601", "cannot insert multiple commands into a prepared statement", offset=reader.offset)
    reader.expect_end()
    return statement


def parse_expression(text: str) -> SyntaxNode:
    """Return the expression of a text."""
    reader = TokenReader(text)
    expression = QueryParser(reader).expressions.parse()
    reader.expect_end()
    return expression


def too_complex() -> SqlError:
    """Return the error of an expression that is nested too deeply."""
    hint = "Use fewer parentheses, or several statements."
    return SqlError("54001", "stack depth limit exceeded", hint=hint)
