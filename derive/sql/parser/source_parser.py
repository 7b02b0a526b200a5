"""Where the rows of a source come from."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.definition import CollectionSource, CounterSource, FileSource
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind


def parse_origin(reader: TokenReader) -> CollectionSource | FileSource | CounterSource:
    """Read what is behind FROM in `CREATE SOURCE`."""
    reader.expect_word("from")
    offset = reader.offset
    if reader.accept_word("collection"):
        name = reader.string() if reader.token.kind is TokenKind.STRING else reader.any_name()
        return CollectionSource(name, offset)
    if reader.accept_word("file"):
        return _file(reader, offset)
    if reader.accept_words("load", "generator"):
        generator = reader.offset
        name = reader.any_name()
        if name != "counter":
            hint = "The one load generator is COUNTER."
            raise SqlError("42601", f'there is no load generator "{name}"', hint=hint, offset=generator)
        return _counter(reader, offset)
    raise reader.error()


def _file(reader: TokenReader, offset: int) -> FileSource:
    path = reader.string()
    file_format = "json"
    if reader.accept_word("format"):
        where = reader.offset
        file_format = reader.any_name().lower()
        if file_format not in {"json", "csv"}:
            hint = "A file is FORMAT JSON or FORMAT CSV."
            raise SqlError("22023", f'there is no format "{file_format}"', hint=hint, offset=where)
    options: tuple[tuple[str, str | None], ...] = ()
    if reader.accept_word("with"):
        options = reader.in_parentheses(lambda: _option(reader))
    return FileSource(path, file_format, offset, options)


def _option(reader: TokenReader) -> tuple[str, str | None]:
    name = reader.any_name()
    reader.accept_symbol("=")
    if reader.is_symbol(",", ")"):
        return name, None
    if reader.token.kind is TokenKind.SYMBOL or reader.is_end():
        raise reader.error()
    return name, reader.next().value


def _counter(reader: TokenReader, offset: int) -> CounterSource:
    tick_interval: str | None = None
    max_cardinality: int | None = None
    if not reader.accept_symbol("("):
        return CounterSource(offset)
    while not reader.is_symbol(")"):
        if reader.accept_words("tick", "interval"):
            reader.accept_symbol("=")
            reader.accept_word("interval")
            tick_interval = reader.string()
        elif reader.accept_words("max", "cardinality"):
            reader.accept_symbol("=")
            max_cardinality = reader.integer()
        else:
            raise reader.error()
        if not reader.accept_symbol(","):
            break
    reader.expect_symbol(")")
    return CounterSource(offset, tick_interval, max_cardinality)
