"""`CREATE`, `DROP` and `ALTER`."""

from __future__ import annotations

from derive.adapter.parser.definition import (
    ColumnDefinition,
    CreateIndex,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    ObjectKind,
    Rename,
)
from derive.adapter.parser.query_parser import QueryParser
from derive.adapter.parser.reader import TokenReader
from derive.adapter.parser.source_parser import parse_origin
from derive.adapter.parser.token import TokenKind
from derive.adapter.parser.type_parser import parse_type
from derive.errors import SqlError

_CONSTRAINTS = {"primary": "primary keys", "unique": "unique keys", "check": "checks", "references": "foreign keys"}
_TABLE_CONSTRAINTS = {**_CONSTRAINTS, "foreign": "foreign keys", "constraint": "constraints", "exclude": "exclusions"}


def parse_create(reader: TokenReader, queries: QueryParser) -> CreateTable | CreateView | CreateIndex | CreateSource:
    """Read a `CREATE`."""
    reader.expect_word("create")
    or_replace = reader.accept_words("or", "replace")
    if reader.is_word("temp", "temporary"):
        raise SqlError("0A000", "temporary relations are not supported", offset=reader.offset)
    is_materialized = reader.accept_word("materialized") is not None
    if is_materialized or reader.is_word("view"):
        return _view(reader, queries, or_replace, is_materialized)
    if or_replace:
        raise reader.error()
    if reader.accept_word("table"):
        return _table(reader, queries)
    if reader.is_word("index", "unique", "default"):
        return _index(reader)
    if reader.accept_word("source"):
        if_not_exists = reader.accept_words("if", "not", "exists")
        name = reader.qualified_name()
        columns = reader.in_parentheses(lambda: _column(reader)) if reader.is_symbol("(") else ()
        return CreateSource(name, parse_origin(reader), columns, if_not_exists)
    kinds = {"schema": "schemas", "database": "databases", "role": "roles", "user": "roles", "type": "types"}
    kinds |= {"function": "functions", "sequence": "sequences", "trigger": "triggers", "extension": "extensions"}
    if reader.is_word(*kinds):
        raise SqlError("0A000", f"{kinds[reader.token.value]} cannot be created", offset=reader.offset)
    raise reader.error()


def _table(reader: TokenReader, queries: QueryParser) -> CreateTable:
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = reader.qualified_name()
    columns: tuple[ColumnDefinition, ...] = ()
    names: tuple[str, ...] = ()
    if reader.is_symbol("("):
        if _is_list_of_names(reader):
            names = reader.in_parentheses(reader.name)
            if not reader.is_word("as"):
                raise reader.error()
        elif reader.ahead().value == ")" and reader.ahead().kind is TokenKind.SYMBOL:
            reader.next()
            reader.next()
        else:
            columns = reader.in_parentheses(lambda: _column(reader))
    if columns or not reader.accept_word("as"):
        if not columns and reader.is_end() and not reader.text[: reader.end_before].endswith(")"):
            raise reader.error()
        return CreateTable(name, columns, if_not_exists)
    query = queries.parse()
    if reader.is_words("with", "no", "data"):
        raise SqlError("0A000", "WITH NO DATA is not supported", offset=reader.offset)
    reader.accept_words("with", "data")
    return CreateTable(name, (), if_not_exists, query, names)


def _is_list_of_names(reader: TokenReader) -> bool:
    behind = reader.ahead(2)
    return behind.kind is TokenKind.SYMBOL and behind.value in {",", ")"}


def _column(reader: TokenReader) -> ColumnDefinition:
    offset = reader.offset
    if reader.is_word(*_TABLE_CONSTRAINTS):
        raise _unsupported(_TABLE_CONSTRAINTS[reader.token.value], offset)
    name = reader.name()
    kind = parse_type(reader)
    is_nullable: bool | None = None
    while True:
        where = reader.offset
        if reader.accept_words("not", "null"):
            said = False
        elif reader.accept_word("null"):
            said = True
        elif reader.is_word(*_CONSTRAINTS):
            raise _unsupported(_CONSTRAINTS[reader.token.value], where)
        elif reader.is_word("default", "generated"):
            raise _unsupported("defaults of columns", where)
        else:
            return ColumnDefinition(name, kind, is_nullable is not False, offset)
        if is_nullable is not None and is_nullable is not said:
            raise SqlError("42601", f'conflicting NULL/NOT NULL declarations for column "{name}"', offset=where)
        is_nullable = said


def _unsupported(what: str, offset: int) -> SqlError:
    return SqlError("0A000", f"{what} are not supported", offset=offset, hint="A column may be NOT NULL.")


def _view(reader: TokenReader, queries: QueryParser, or_replace: bool, is_materialized: bool) -> CreateView:
    reader.expect_word("view")
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = reader.qualified_name()
    columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
    reader.expect_word("as")
    begin = reader.offset
    query = queries.parse()
    definition = reader.text[begin : reader.end_before]
    reader.accept_words("with", "data")
    return CreateView(name, columns, query, definition, is_materialized, or_replace, if_not_exists)


def _index(reader: TokenReader) -> CreateIndex:
    offset = reader.offset
    if reader.is_word("unique"):
        raise _unsupported("unique keys", offset)
    is_default = reader.accept_word("default") is not None
    reader.expect_word("index")
    if reader.is_word("concurrently"):
        raise SqlError("0A000", "CONCURRENTLY is not supported", offset=reader.offset)
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = None if reader.is_word("on") else reader.qualified_name()
    reader.expect_word("on")
    relation = reader.qualified_name()
    if reader.accept_word("using"):
        method, where = reader.located_name()
        if method not in {"btree", "arrangement"}:
            raise SqlError("42704", f'access method "{method}" does not exist', offset=where)
    columns = () if is_default else reader.in_parentheses(lambda: _index_column(reader))
    if reader.is_word("where", "include"):
        raise SqlError("0A000", f"{reader.token.value.upper()} of an index is not supported", offset=reader.offset)
    return CreateIndex(name, relation, columns, if_not_exists)


def _index_column(reader: TokenReader) -> tuple[str, int]:
    if not reader.is_name() or (reader.ahead().value not in {",", ")"} and not reader.ahead().value.isalpha()):
        hint = "Make a view with a column for the expression, and an index on that."
        raise SqlError("0A000", "indexes on expressions are not supported", hint=hint, offset=reader.offset)
    name = reader.located_name()
    reader.accept_word("asc", "desc")
    if reader.accept_word("nulls"):
        reader.expect_word("first", "last")
    return name


def parse_drop(reader: TokenReader) -> Drop:
    """Read a `DROP`."""
    reader.expect_word("drop")
    kind = _kind(reader, "dropped")
    if_exists = reader.accept_words("if", "exists")
    names = reader.list_of(reader.qualified_name)
    return Drop(kind, names, if_exists, reader.accept_word("cascade", "restrict") == "cascade")


def parse_alter(reader: TokenReader) -> Rename:
    """Read an `ALTER … RENAME TO`."""
    reader.expect_word("alter")
    kind = _kind(reader, "altered")
    if_exists = reader.accept_words("if", "exists")
    name = reader.qualified_name()
    if not reader.is_words("rename", "to"):
        hint = "Relations can be renamed: ALTER … RENAME TO name."
        raise SqlError("0A000", f"this change of a {kind.value} is not supported", hint=hint, offset=reader.offset)
    reader.expect_words("rename", "to")
    new_name, offset = reader.located_name()
    return Rename(kind, name, new_name, offset, if_exists)


def _kind(reader: TokenReader, what: str) -> ObjectKind:
    if reader.accept_words("materialized", "view"):
        return ObjectKind.MATERIALIZED_VIEW
    for kind in (ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.INDEX, ObjectKind.SOURCE):
        if reader.accept_word(kind.value):
            return kind
    if reader.is_word("schema", "database", "role", "user", "type", "function", "sequence", "extension", "system"):
        raise SqlError("0A000", f"a {reader.token.value} cannot be {what}", offset=reader.offset)
    raise reader.error()
