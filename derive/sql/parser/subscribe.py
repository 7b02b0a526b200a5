"""Parser of `SUBSCRIBE` and `AS OF`."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName, Query
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import AsOf, Subscribe
from derive.sql.parser.token_reader import TokenReader

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parse_as_of(reader: TokenReader, queries: QueryParser) -> AsOf:
    """Read `AS OF [AT LEAST] time`."""
    offset = reader.offset
    reader.expect_words("as", "of")
    is_at_least = reader.accept_words("at", "least")
    return AsOf(queries.expressions.parse(), is_at_least, offset)


def parse_subscribe(reader: TokenReader, queries: QueryParser) -> Subscribe:
    """Read a `SUBSCRIBE` statement, or its synonym `TAIL`."""
    reader.expect_word("subscribe", "tail")
    reader.accept_word("to")
    target: QualifiedName | Query
    target = reader.in_parentheses(queries.parse)[0] if reader.is_symbol("(") else reader.qualified_name()
    options = _options(reader)
    as_of = parse_as_of(reader, queries) if reader.is_words("as", "of") else None
    options |= _options(reader)
    up_to = queries.expressions.parse() if reader.accept_words("up", "to") else None
    options |= _options(reader)
    return Subscribe(target, options.get("snapshot", True), options.get("progress", False), as_of, up_to)


def _options(reader: TokenReader) -> dict[str, bool]:
    if not reader.accept_word("with"):
        return {}
    return dict(reader.in_parentheses(lambda: _option(reader)))


def _option(reader: TokenReader) -> tuple[str, bool]:
    offset = reader.offset
    name = reader.any_name()
    if name not in {"snapshot", "progress"}:
        hint = "SUBSCRIBE has the options SNAPSHOT and PROGRESS."
        raise SqlError("42601", f'unrecognized SUBSCRIBE option "{name}"', offset=offset, hint=hint)
    if not reader.accept_symbol("=") and not reader.is_word(*_TRUE, *_FALSE):
        return name, True
    offset = reader.offset
    value = reader.next().value.lower()
    if value not in _TRUE | _FALSE:
        raise SqlError("22023", f"{name} requires a Boolean value", offset=offset)
    return name, value in _TRUE
