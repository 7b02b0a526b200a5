"""Statements of SQL."""

from __future__ import annotations

from collections.abc import Callable

from derive.adapter.parser.copy_parser import parse_copy
from derive.adapter.parser.definition_parser import parse_alter, parse_create, parse_drop
from derive.adapter.parser.query_parser import QueryParser
from derive.adapter.parser.reader import TokenReader
from derive.adapter.parser.session_parser import SESSION_STATEMENTS
from derive.adapter.parser.statement import (
    AsOf,
    Close,
    Deallocate,
    Declare,
    Execute,
    Explain,
    Explanation,
    Fetch,
    Prepare,
    SelectStatement,
    Statement,
    Subscribe,
)
from derive.adapter.parser.subscribe_parser import parse_as_of, parse_subscribe
from derive.adapter.parser.token import TokenKind
from derive.adapter.parser.type_parser import parse_type
from derive.adapter.parser.write_parser import parse_delete, parse_insert, parse_update
from derive.errors import SqlError

_UNSUPPORTED = frozenset(
    """savepoint release grant revoke analyze vacuum lock truncate comment do call listen notify cluster
    reindex refresh merge import security load checkpoint""".split()  # noqa: SIM905 (a list would be a page)
)


class StatementParser:
    """Reads one statement."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self._queries = QueryParser(reader)
        self._statements: dict[str, Callable[[], Statement]] = {
            "subscribe": lambda: parse_subscribe(reader, self._queries),
            "tail": lambda: parse_subscribe(reader, self._queries),
            "create": lambda: parse_create(reader, self._queries),
            "drop": lambda: parse_drop(reader),
            "alter": lambda: parse_alter(reader),
            "insert": lambda: parse_insert(reader, self._queries),
            "update": lambda: parse_update(reader, self._queries),
            "delete": lambda: parse_delete(reader, self._queries),
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
        reader = self._reader
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
            raise SqlError("0A000", f"{word.upper()} is not supported", offset=reader.offset)
        raise reader.error()

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
                raise SqlError("0A000", "binary cursors are not supported", offset=offset)
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
            raise SqlError("55000", "cursors can only scan forward", offset=reader.offset)
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
        if not self._queries.begins_query() and not reader.is_word("insert", "update", "delete", "subscribe"):
            raise reader.error()
        statement = self.parse()
        return Prepare(name, types, statement, reader.text[begin : reader.end_before], offset)

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

    def _explain(self) -> Statement:
        reader = self._reader
        offset = reader.expect_word("explain").offset
        explanation = Explanation.PLAN
        if reader.accept_word("timestamp"):
            explanation = Explanation.TIMESTAMP
            reader.expect_word("for")
        elif reader.accept_word("plan"):
            reader.expect_word("for")
        elif reader.is_word("analyze", "verbose"):
            raise SqlError("0A000", f"EXPLAIN {reader.token.value.upper()} is not supported", offset=reader.offset)
        elif reader.is_symbol("(") and not self._queries.begins_query():
            raise SqlError("0A000", "options of EXPLAIN are not supported", offset=reader.offset)
        begin = reader.offset
        statement = self.parse()
        return Explain(statement, explanation, offset, reader.text[begin : reader.end_before])
