"""Parser of statements that change, copy or stream rows: INSERT, UPDATE, DELETE, COPY and SUBSCRIBE."""

from __future__ import annotations

from dataclasses import replace

from derive.errors import SqlError
from derive.sql.parser.ast import (
    Alias,
    FromItem,
    IndexPart,
    QualifiedName,
    Query,
    RowValue,
    ScalarQuery,
    SelectItem,
    SyntaxNode,
)
from derive.sql.parser.indexes import parse_index_condition, parse_index_part
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import (
    AsOf,
    Assignment,
    Copy,
    CopyFormat,
    Delete,
    Insert,
    LockTable,
    OnConflict,
    SelectStatement,
    Subscribe,
    Truncate,
    Update,
)
from derive.sql.parser.tokens import TokenKind, TokenReader


def parse_insert(reader: TokenReader, queries: QueryParser) -> Insert:
    """Read an `INSERT` statement."""
    reader.expect_words("insert", "into")
    relation = reader.qualified_name()
    alias = None
    if reader.accept_word("as"):
        name, offset = reader.located_name()
        alias = Alias(name, (), offset)
    columns: tuple[tuple[str, int], ...] = ()
    if reader.is_symbol("(") and not queries.begins_query():
        columns = reader.in_parentheses(reader.located_name)
    overriding = None
    if reader.accept_word("overriding"):
        overriding = reader.expect_word("system", "user").value
        reader.expect_word("value")
    query = None if reader.accept_words("default", "values") else queries.parse()
    conflict = _conflict(reader, queries) if reader.is_words("on", "conflict") else None
    returning = read_returning(reader, queries)
    return Insert(relation, alias, columns, query, returning, overriding=overriding, conflict=conflict)


def _conflict(reader: TokenReader, queries: QueryParser) -> OnConflict:
    offset = reader.offset
    reader.expect_words("on", "conflict")
    parts: tuple[IndexPart, ...] = ()
    constraint = where = None
    if reader.is_symbol("("):
        parts = reader.in_parentheses(lambda: parse_index_part(reader, queries))
        where = parse_index_condition(reader, queries)
    elif reader.accept_words("on", "constraint"):
        constraint = reader.located_name()
    reader.expect_word("do")
    if reader.accept_word("nothing"):
        return OnConflict(offset, parts, constraint, where=where)
    reader.expect_word("update")
    if not parts and constraint is None:
        message = "ON CONFLICT DO UPDATE requires inference specification or constraint name"
        hint = "For example, ON CONFLICT (column_name)."
        raise SqlError("42601", message, offset=offset, hint=hint)
    reader.expect_word("set")
    assignments = read_assignments(reader, queries)
    return OnConflict(offset, parts, constraint, assignments, _condition(reader, queries), where)


def parse_update(reader: TokenReader, queries: QueryParser) -> Update:
    """Read an `UPDATE` statement."""
    reader.expect_word("update")
    reader.accept_word("only")
    relation = reader.qualified_name()
    alias = None if reader.is_word("set") else queries.tables.alias()
    reader.expect_word("set")
    assignments = read_assignments(reader, queries)
    tables = reader.list_of(queries.tables.parse) if reader.accept_word("from") else ()
    condition = _condition(reader, queries)
    return Update(relation, alias, assignments, tables, condition, read_returning(reader, queries))


def parse_delete(reader: TokenReader, queries: QueryParser) -> Delete:
    """Read a `DELETE` statement."""
    reader.expect_words("delete", "from")
    reader.accept_word("only")
    relation = reader.qualified_name()
    alias = queries.tables.alias()
    tables: tuple[FromItem, ...] = ()
    if reader.accept_word("using"):
        tables = reader.list_of(queries.tables.parse)
    condition = _condition(reader, queries)
    return Delete(relation, alias, tables, condition, read_returning(reader, queries))


def parse_truncate(reader: TokenReader) -> Truncate:
    """Read a `TRUNCATE` statement."""
    reader.expect_word("truncate")
    reader.accept_word("table")
    reader.accept_word("only")
    relations = reader.list_of(reader.qualified_name)
    restarts = reader.accept_words("restart", "identity")
    if not restarts:
        reader.accept_words("continue", "identity")
    cascades = bool(reader.accept_word("cascade"))
    if not cascades:
        reader.accept_word("restrict")
    return Truncate(relations, restarts, cascades)


_LOCK_MODES = (
    ("access", "share"), ("row", "share"), ("row", "exclusive"), ("share", "update", "exclusive"),
    ("share", "row", "exclusive"), ("share",), ("exclusive",), ("access", "exclusive"),
)  # fmt: skip


def parse_lock(reader: TokenReader) -> LockTable:
    """Read a `LOCK TABLE` statement.

    Raises:
        SqlError: the mode is not ACCESS SHARE (0A000).
    """
    offset = reader.offset
    reader.expect_word("lock")
    reader.accept_word("table")
    relations = reader.list_of(lambda: _locked(reader))
    mode: tuple[str, ...] = ("access", "exclusive")
    if reader.accept_word("in"):
        offset = reader.offset
        mode = next((words for words in _LOCK_MODES if reader.accept_words(*words, "mode")), ())
        if not mode:
            raise reader.error()
    reader.accept_word("nowait")
    if mode != _LOCK_MODES[0]:
        message = f"LOCK TABLE in {' '.join(mode).upper()} mode is not supported"
        hint = (
            "Omit the statement: COMMIT fails with 40001 if another session wrote a relation that was read. Then run"
            " the transaction again."
        )
        raise SqlError("0A000", message, offset=offset, hint=hint)
    return LockTable(relations)


def _locked(reader: TokenReader) -> QualifiedName:
    reader.accept_word("only")
    name = reader.qualified_name()
    reader.accept_symbol("*")
    return name


def read_assignments(reader: TokenReader, queries: QueryParser) -> tuple[Assignment, ...]:
    """Read the assignments behind SET."""
    return tuple(one for some in reader.list_of(lambda: _assigned(reader, queries)) for one in some)


def _assigned(reader: TokenReader, queries: QueryParser) -> tuple[Assignment, ...]:
    if not reader.is_symbol("("):
        column, offset = reader.located_name()
        if reader.is_symbol("[", "."):
            raise SqlError(
                "0A000",
                "assignments to a part of a column are not supported",
                offset=reader.offset,
                hint="Assign a whole value, such as jsonb_set(column, '{name}', '1').",
            )
        reader.expect_symbol("=")
        return (Assignment(column, queries.expressions.parse(), offset),)
    columns = reader.in_parentheses(reader.located_name)
    offset = reader.expect_symbol("=").end
    value = queries.expressions.parse()
    values: tuple[SyntaxNode, ...] = value.items if isinstance(value, RowValue) else (value,)
    if isinstance(value, ScalarQuery):
        width = len(columns)
        values = tuple(replace(value, column=index, width=width) for index in range(width))
    if len(values) != len(columns):
        if not isinstance(value, RowValue):
            raise SqlError(
                "0A000",
                "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression",
                offset=offset,
                hint="Write (SELECT …) or ROW(…).",
            )
        raise SqlError("42601", "number of columns does not match number of values", offset=columns[0][1])
    return tuple(Assignment(name, value, where) for (name, where), value in zip(columns, values, strict=True))


def _condition(reader: TokenReader, queries: QueryParser) -> SyntaxNode | None:
    if not reader.accept_word("where"):
        return None
    if reader.is_words("current", "of"):
        raise SqlError(
            "0A000",
            "WHERE CURRENT OF is not supported",
            offset=reader.offset,
            hint="Write a condition that is true for the row alone.",
        )
    return queries.expressions.parse()


def read_returning(reader: TokenReader, queries: QueryParser) -> tuple[SelectItem, ...]:
    """Read a RETURNING clause; return no items if there is none."""
    return reader.list_of(queries.item) if reader.accept_word("returning") else ()


_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parse_as_of(reader: TokenReader, queries: QueryParser) -> AsOf:
    """Read `AS OF [AT LEAST] time`."""
    reader.expect_words("as", "of")
    is_at_least = reader.accept_words("at", "least")
    return AsOf(queries.expressions.parse(), is_at_least)


def parse_subscribe(reader: TokenReader, queries: QueryParser) -> Subscribe:
    """Read a `SUBSCRIBE` statement, or its synonym `TAIL`."""
    reader.expect_word("subscribe", "tail")
    reader.accept_word("to")
    target: QualifiedName | Query
    target = reader.in_parentheses(queries.parse)[0] if reader.is_symbol("(") else reader.qualified_name()
    options = _subscribe_options(reader)
    as_of = parse_as_of(reader, queries) if reader.is_words("as", "of") else None
    options |= _subscribe_options(reader)
    up_to = queries.expressions.parse() if reader.accept_words("up", "to") else None
    options |= _subscribe_options(reader)
    return Subscribe(target, options.get("snapshot", True), options.get("progress", False), as_of, up_to)


def _subscribe_options(reader: TokenReader) -> dict[str, bool]:
    if not reader.accept_word("with"):
        return {}
    return dict(reader.in_parentheses(lambda: _subscribe_option(reader)))


def _subscribe_option(reader: TokenReader) -> tuple[str, bool]:
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


_COPY_OPTIONS = frozenset({"format", "delimiter", "null", "header", "quote", "escape", "encoding"})
_HEADER_TRUE = frozenset({"true", "on", "1", "match"})

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
    options = _copy_options(reader)
    if reader.is_word("where"):
        raise SqlError(
            "0A000",
            "COPY FROM with WHERE is not supported",
            offset=reader.offset,
            hint="Copy all rows, and DELETE the rows that are not needed.",
        )
    return Copy(source, columns, is_from, _format(options))


def _rows(reader: TokenReader, queries: QueryParser) -> SelectStatement | Subscribe:
    if reader.is_word("subscribe", "tail"):
        return parse_subscribe(reader, queries)
    if not queries.begins_query():
        raise reader.error()
    query = queries.parse()
    return SelectStatement(query, parse_as_of(reader, queries) if queries.begins_as_of() else None)


def _copy_options(reader: TokenReader) -> dict[str, tuple[str, int]]:
    options: dict[str, tuple[str, int]] = {}

    def add() -> None:
        name, value, offset = _copy_option(reader)
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


def _copy_option(reader: TokenReader) -> tuple[str, str, int]:
    offset = reader.offset
    name = reader.any_name()
    if name in {"csv", "binary"}:
        return "format", name, offset
    if name not in _COPY_OPTIONS:
        raise SqlError("42601", f'option "{name}" not recognized', offset=offset)
    reader.accept_word("as")
    if name == "header" and reader.token.value not in _HEADER_TRUE | _FALSE:
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
            raise SqlError("0A000", message, offset=options[csv_only][1], hint="Add FORMAT csv.")
    quote = option("quote", '"')
    delimiter = option("delimiter", "," if is_csv else "\t")
    for what, value in (("delimiter", delimiter), ("quote", quote), ("escape", option("escape", quote))):
        if len(value.encode()) != 1:
            raise SqlError(
                "0A000",
                f"COPY {what} must be a single one-byte character",
                offset=options[what][1],
                hint="Write an ASCII character, such as ';'.",
            )
    null = option("null", "" if is_csv else "\\N")
    has_header = option("header", "false") in _HEADER_TRUE
    return CopyFormat(name, delimiter, null, has_header, quote, option("escape", quote))
