"""`COPY`."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import Copy, CopyFormat, SelectStatement, Subscribe
from derive.sql.parser.subscribe import parse_as_of, parse_subscribe
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind

_OPTIONS = frozenset({"format", "delimiter", "null", "header", "quote", "escape", "encoding"})
_TRUE = frozenset({"true", "on", "1", "match"})
_FALSE = frozenset({"false", "off", "0"})
_FORMATS = frozenset({"text", "csv", "binary"})


def parse_copy(reader: TokenReader, queries: QueryParser) -> Copy:
    """Read a `COPY` statement."""
    reader.expect_word("copy")
    source: QualifiedName | SelectStatement | Subscribe
    columns: tuple[tuple[str, int], ...] = ()
    if reader.accept_symbol("("):
        source = _rows(reader, queries)
        reader.expect_symbol(")")
        reader.expect_word("to")
        is_from = False
    else:
        source = reader.qualified_name()
        if reader.is_symbol("("):
            columns = reader.in_parentheses(reader.located_name)
        is_from = reader.expect_word("from", "to").value == "from"
    offset = reader.offset
    if not reader.accept_word("stdin" if is_from else "stdout"):
        if reader.token.kind is TokenKind.STRING or reader.is_word("program"):
            hint = "Use COPY … FROM STDIN or TO STDOUT; psql's \\copy reads and writes files."
            raise SqlError("0A000", "COPY with a file of the server is not supported", hint=hint, offset=offset)
        raise reader.error()
    options = _options(reader)
    if reader.is_word("where"):
        raise SqlError("0A000", "COPY FROM with WHERE is not supported", offset=reader.offset)
    return Copy(source, columns, is_from, _format(options))


def _rows(reader: TokenReader, queries: QueryParser) -> SelectStatement | Subscribe:
    if reader.is_word("subscribe", "tail"):
        return parse_subscribe(reader, queries)
    if not queries.begins_query():
        raise reader.error()
    query = queries.parse()
    return SelectStatement(query, parse_as_of(reader, queries) if queries.begins_as_of() else None)


def _options(reader: TokenReader) -> dict[str, tuple[str, int]]:
    options: dict[str, tuple[str, int]] = {}

    def add() -> None:
        name, value, offset = _option(reader)
        if name in options:
            raise SqlError("42601", "conflicting or redundant options", offset=offset)
        options[name] = (value, offset)

    reader.accept_word("with")
    if reader.is_symbol("("):
        reader.in_parentheses(add)
        return options
    while not reader.is_end() and not reader.is_symbol(";") and not reader.is_word("where"):
        add()
    return options


def _option(reader: TokenReader) -> tuple[str, str, int]:
    offset = reader.offset
    name = reader.any_name()
    if name in {"csv", "binary"}:
        return "format", name, offset
    if name not in _OPTIONS:
        raise SqlError("42601", f'option "{name}" not recognized', offset=offset)
    reader.accept_word("as")
    if name == "header" and reader.token.value not in _TRUE | _FALSE:
        return name, "true", offset
    if reader.token.kind not in {TokenKind.STRING, TokenKind.WORD, TokenKind.NAME, TokenKind.NUMBER}:
        raise reader.error()
    return name, reader.next().value, offset


def _format(options: dict[str, tuple[str, int]]) -> CopyFormat:
    def option(name: str, default: str) -> str:
        return options[name][0] if name in options else default

    name, offset = options.get("format", ("text", 0))
    if name not in _FORMATS:
        raise SqlError("22023", f'COPY format "{name}" not recognized', offset=offset)
    for text_only in ("delimiter", "null", "header") if name == "binary" else ():
        if text_only in options:
            message = f"cannot specify {text_only.upper()} in BINARY mode"
            raise SqlError("42601", message, offset=options[text_only][1])
    is_csv = name == "csv"
    for csv_only in ("quote", "escape"):
        if csv_only in options and not is_csv:
            message = f"COPY {csv_only} available only in CSV mode"
            raise SqlError("0A000", message, offset=options[csv_only][1])
    quote = option("quote", '"')
    delimiter = option("delimiter", "," if is_csv else "\t")
    for what, value in (("delimiter", delimiter), ("quote", quote), ("escape", option("escape", quote))):
        if len(value.encode()) != 1:
            raise SqlError("0A000", f"COPY {what} must be a single one-byte character", offset=options[what][1])
    null = option("null", "" if is_csv else "\\N")
    has_header = option("header", "false") in _TRUE
    return CopyFormat(name, delimiter, null, has_header, quote, option("escape", quote))
