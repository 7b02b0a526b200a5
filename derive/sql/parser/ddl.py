"""Parser of CREATE, DROP and ALTER."""

from __future__ import annotations

from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.parser.expressions import OTHER, parse_type
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import (
    AddColumn,
    AlterTable,
    CollectionSource,
    ColumnDefinition,
    CounterSource,
    CreateIndex,
    CreateReplica,
    CreateSchema,
    CreateSource,
    CreateTable,
    CreateView,
    Default,
    Drop,
    DropColumn,
    DropReplica,
    FileSource,
    ObjectKind,
    Rename,
    RenameColumn,
    SetDefault,
    SetNullable,
    TableAction,
)
from derive.sql.parser.tokens import TokenKind, TokenReader


def parse_origin(reader: TokenReader) -> CollectionSource | FileSource | CounterSource:
    """Read the origin of a source, from FROM in `CREATE SOURCE` on."""
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


_CLUSTER = "default"


def parse_create_replica(reader: TokenReader) -> CreateReplica:
    """Read the part of `CREATE REPLICA` after these words."""
    if_not_exists = reader.accept_words("if", "not", "exists")
    name, offset = _name(reader)
    address: str | None = None
    if reader.accept_symbol("("):
        reader.expect_word("address")
        reader.accept_symbol("=")
        address = reader.string()
        reader.expect_symbol(")")
    return CreateReplica(name, offset, address, if_not_exists)


def parse_drop_replica(reader: TokenReader) -> DropReplica:
    """Read the part of `DROP REPLICA` after these words."""
    if_exists = reader.accept_words("if", "exists")
    return DropReplica(*_name(reader), if_exists)


def _name(reader: TokenReader) -> tuple[str, int]:
    """Read the name of a replica, with an optional prefix: the name of the one cluster."""
    offset = reader.offset
    name = reader.any_name() if reader.is_word(_CLUSTER) else reader.name()
    if name != _CLUSTER and not reader.is_symbol("."):
        return name, offset
    reader.expect_symbol(".")
    if name != _CLUSTER:
        hint = f"There is one cluster, {_CLUSTER}."
        raise SqlError("42704", f'cluster "{name}" does not exist', offset=offset, hint=hint)
    return reader.located_name()


_NUMBERS = "Let the client give each row its number or UUID; a column may have a DEFAULT, and be NOT NULL."
_ROWS = "Omit the constraint: a table is a multiset, and its writers keep keys unique. CREATE INDEX makes lookups fast."
_CONDITIONS = "Omit the constraint: writers check the rows. A view can select the rows that violate the condition."
_CONSTRAINTS = {
    "primary": ("primary keys", _ROWS),
    "unique": ("unique keys", _ROWS),
    "check": ("checks", _CONDITIONS),
    "references": ("foreign keys", _CONDITIONS),
}
_TABLE_CONSTRAINTS = {
    **_CONSTRAINTS,
    "foreign": ("foreign keys", _CONDITIONS),
    "constraint": ("constraints", "Omit the precision. A column may be NOT NULL."),
    "exclude": ("exclusions", _CONDITIONS),
}
"""Names of unsupported constraints with hints, by first word."""
_ROLES = "roles", "A password file names the users who may connect; all users have all rights."
_KINDS = {
    "database": (
        "databases",
        ("A server has one database, for its data folder, and accepts every name of a database."),
    ),
    "role": _ROLES,
    "user": _ROLES,
    "type": ("types", "Use jsonb for composite values, and text for enumerations."),
    "function": ("functions", "Use a view for a query, or a derivation for code in SQL or TypeScript."),
    "sequence": ("sequences", _NUMBERS),
    "trigger": ("triggers", "A materialized view follows all writes, and SUBSCRIBE sends its changes."),
    "extension": ("extensions", "Omit the statement: all features are built in."),
}
"""Names of objects that CREATE does not support, with hints, by first word."""

Created: TypeAlias = CreateTable | CreateView | CreateIndex | CreateSource | CreateSchema | CreateReplica


def parse_create(reader: TokenReader, queries: QueryParser) -> Created:
    """Read a `CREATE` statement."""
    reader.expect_word("create")
    or_replace = reader.accept_words("or", "replace")
    if reader.is_word("temp", "temporary"):
        hint = "Create a table, and drop it afterwards; or name a query with WITH."
        raise SqlError("0A000", "temporary relations are not supported", offset=reader.offset, hint=hint)
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
        columns = reader.in_parentheses(lambda: parse_column(reader, queries)) if reader.is_symbol("(") else ()
        return CreateSource(name, parse_origin(reader), columns, if_not_exists)
    if reader.accept_word("schema"):
        if_not_exists = reader.accept_words("if", "not", "exists")
        return CreateSchema(*reader.located_name(), if_not_exists)
    if reader.accept_words("cluster", "replica") or reader.accept_word("replica"):
        return parse_create_replica(reader)
    if reader.is_word(*_KINDS):
        what, hint = _KINDS[reader.token.value]
        raise SqlError("0A000", f"{what} cannot be created", offset=reader.offset, hint=hint)
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
            columns = reader.in_parentheses(lambda: parse_column(reader, queries))
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


def parse_column(reader: TokenReader, queries: QueryParser) -> ColumnDefinition:
    """Read a column definition."""
    offset = reader.offset
    if reader.is_word(*_TABLE_CONSTRAINTS):
        raise _unsupported(reader.token.value, offset)
    name = reader.name()
    _refuse_serial(reader)
    kind = parse_type(reader)
    is_nullable: bool | None = None
    default: Default | None = None
    while True:
        where = reader.offset
        if reader.accept_words("not", "null"):
            said = False
        elif reader.accept_word("null"):
            said = True
        elif reader.is_word("default"):
            if default is not None:
                message = f'multiple default values specified for column "{name}"'
                raise SqlError("42601", message, offset=where)
            default = _default(reader, queries)
            continue
        elif reader.is_word(*_CONSTRAINTS, "generated"):
            raise _unsupported(reader.token.value, where)
        else:
            return ColumnDefinition(name, kind, is_nullable is not False, offset, default)
        if is_nullable is not None and is_nullable is not said:
            raise SqlError("42601", f'conflicting NULL/NOT NULL declarations for column "{name}"', offset=where)
        is_nullable = said


def _default(reader: TokenReader, queries: QueryParser) -> Default:
    reader.expect_word("default")
    begin = reader.offset
    expression = queries.expressions.parse(OTHER)  # stops before NOT NULL
    return Default(expression, reader.text[begin : reader.end_before])


def _refuse_serial(reader: TokenReader) -> None:
    if reader.token.value in {"serial", "serial4", "serial8", "bigserial", "smallserial", "serial2"}:
        message = f"columns of type {reader.token.value} are not supported"
        raise SqlError("0A000", message, offset=reader.offset, hint=_NUMBERS)


def _unsupported(word: str, offset: int) -> SqlError:
    what, hint = _TABLE_CONSTRAINTS[word] if word != "generated" else ("generated columns", _NUMBERS)
    return SqlError("0A000", f"{what} are not supported", offset=offset, hint=hint)


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
        raise _unsupported("unique", offset)
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
        hint = "Create a view with a column for the expression, and an index on the view."
        raise SqlError("0A000", "indexes on expressions are not supported", hint=hint, offset=reader.offset)
    name = reader.located_name()
    reader.accept_word("asc", "desc")
    if reader.accept_word("nulls"):
        reader.expect_word("first", "last")
    return name


def parse_drop(reader: TokenReader) -> Drop | DropReplica:
    """Read a `DROP` statement."""
    reader.expect_word("drop")
    if reader.accept_words("cluster", "replica") or reader.accept_word("replica"):
        return parse_drop_replica(reader)
    kind = _kind(reader, "dropped")
    if_exists = reader.accept_words("if", "exists")
    names = reader.list_of(reader.qualified_name)
    return Drop(kind, names, if_exists, reader.accept_word("cascade", "restrict") == "cascade")


def parse_alter(reader: TokenReader, queries: QueryParser) -> Rename | AlterTable:
    """Read an `ALTER … RENAME TO`, or an ALTER of a table's columns."""
    reader.expect_word("alter")
    kind = _kind(reader, "altered")
    if_exists = reader.accept_words("if", "exists")
    if kind is ObjectKind.TABLE:
        reader.accept_word("only")
    name = reader.qualified_name()
    if kind is ObjectKind.TABLE and reader.is_word("add", "drop", "alter"):
        return AlterTable(name, reader.list_of(lambda: _action(reader, queries)), if_exists)
    if kind is ObjectKind.TABLE and reader.is_word("rename") and not reader.is_words("rename", "to"):
        return AlterTable(name, (_renamed_column(reader),), if_exists)
    if not reader.is_words("rename", "to"):
        hint = "Supported are ALTER … RENAME TO name, and for tables ADD, DROP, RENAME and ALTER COLUMN."
        raise SqlError("0A000", f"this change of a {kind.value} is not supported", hint=hint, offset=reader.offset)
    reader.expect_words("rename", "to")
    new_name, offset = reader.located_name()
    return Rename(kind, name, new_name, offset, if_exists)


def _renamed_column(reader: TokenReader) -> RenameColumn:
    reader.expect_word("rename")
    if reader.is_word("constraint"):
        raise _unsupported("constraint", reader.offset)
    reader.accept_word("column")
    name, offset = reader.located_name()
    reader.expect_word("to")
    return RenameColumn(name, offset, *reader.located_name())


def _altered_column(reader: TokenReader, queries: QueryParser) -> SetDefault | SetNullable:
    reader.expect_word("alter")
    reader.accept_word("column")
    name, offset = reader.located_name()
    is_set = reader.is_word("set")
    if (is_set or reader.is_word("drop")) and reader.ahead().value in {"default", "not"}:
        reader.next()
        if reader.accept_words("not", "null"):
            return SetNullable(name, offset, not is_set)
        if is_set:
            return SetDefault(name, offset, _default(reader, queries))
        reader.expect_word("default")
        return SetDefault(name, offset, None)
    hint = "Add a column of that type, fill it by UPDATE, drop the old one, and rename the new one."
    raise SqlError("0A000", "this change of a column is not supported", hint=hint, offset=reader.offset)


def _action(reader: TokenReader, queries: QueryParser) -> TableAction:
    if reader.is_word("alter"):
        return _altered_column(reader, queries)
    is_added = reader.expect_word("add", "drop").value == "add"
    if reader.is_word(*_TABLE_CONSTRAINTS):
        raise _unsupported(reader.token.value, reader.offset)
    reader.accept_word("column")
    if is_added:
        if_not_exists = reader.accept_words("if", "not", "exists")
        return AddColumn(parse_column(reader, queries), if_not_exists)
    if_exists = reader.accept_words("if", "exists")
    name, offset = reader.located_name()
    reader.accept_word("cascade", "restrict")
    return DropColumn(name, offset, if_exists)


def _kind(reader: TokenReader, what: str) -> ObjectKind:
    if reader.accept_words("materialized", "view"):
        return ObjectKind.MATERIALIZED_VIEW
    for kind in (ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.INDEX, ObjectKind.SOURCE):
        if reader.accept_word(kind.value):
            return kind
    if reader.is_word("schema", "database", "role", "user", "type", "function", "sequence", "extension", "system"):
        raise SqlError("0A000", f"a {reader.token.value} cannot be {what}", offset=reader.offset)
    raise reader.error()
