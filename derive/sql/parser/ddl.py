"""Parser of CREATE, DROP and COMMENT."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName, TypeName
from derive.sql.parser.expressions import OTHER
from derive.sql.parser.indexes import parse_index
from derive.sql.parser.object_definitions import (
    CreateDomain,
    CreateFunction,
    CreateSchema,
    CreateSequence,
    DropFunction,
)
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.routines import parse_create_domain, parse_create_function, parse_drop_function
from derive.sql.parser.sequences import Identity, parse_identity, parse_numbering, parse_sequence
from derive.sql.parser.session_statements import parse_role
from derive.sql.parser.statement import (
    TEMPORARY,
    CollectionSource,
    ColumnDefinition,
    Comment,
    ConstraintDefinition,
    ConstraintKind,
    CounterSource,
    CreateIndex,
    CreateReplica,
    CreateSource,
    CreateTable,
    CreateView,
    Default,
    Drop,
    DropReplica,
    FileSource,
    ObjectKind,
)
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.type_names import parse_type


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


_CONDITIONS = "Omit the constraint: writers check the rows. A view can select the rows that violate the condition."
_REFUSED = {
    "exclude": ("exclusion constraints", _CONDITIONS),
}
"""Names of unsupported constraints with hints, by first word."""
_COLUMN_CONSTRAINTS = frozenset({"constraint", "primary", "unique", "check", "references"})
TABLE_CONSTRAINTS = _COLUMN_CONSTRAINTS | {"foreign", "exclude"}
"""Words that begin a constraint of a table."""
_SERIAL = {
    **dict.fromkeys(("serial", "serial4"), "int4"),
    **dict.fromkeys(("bigserial", "serial8"), "int8"),
    **dict.fromkeys(("smallserial", "serial2"), "int2"),
}
"""Types of the numbers in a serial column."""
_ROLES = "roles", "A password file names the users who may connect; all users have all rights."
_KINDS = {
    "database": (
        "databases",
        ("A server has one database, for its data folder, and accepts every name of a database."),
    ),
    "role": _ROLES,
    "user": _ROLES,
    "type": ("types", "Use jsonb for composite values, and text for enumerations."),
    "procedure": ("procedures", "Send their statements, or write a function in SQL."),
    "trigger": ("triggers", "A materialized view follows all writes, and SUBSCRIBE sends its changes."),
    "extension": ("extensions", "Omit the statement: all features are built in."),
}
"""Names of objects that CREATE does not support, with hints, by first word."""

Created: TypeAlias = (
    CreateTable
    | CreateView
    | CreateIndex
    | CreateSource
    | CreateSchema
    | CreateSequence
    | CreateFunction
    | CreateDomain
    | CreateReplica
)


def parse_create(reader: TokenReader, queries: QueryParser) -> Created:  # noqa: PLR0911 (one for each kind)
    """Read a `CREATE` statement."""
    reader.expect_word("create")
    or_replace = reader.accept_words("or", "replace")
    if reader.accept_word("temp", "temporary") or reader.accept_words("local", "temp"):
        return _temporary(reader, queries, or_replace)
    is_materialized = reader.accept_word("materialized") is not None
    if is_materialized or reader.is_word("view"):
        return _view(reader, queries, or_replace, is_materialized)
    if reader.accept_word("function"):
        return parse_create_function(reader, queries, or_replace)
    if or_replace:
        raise reader.error()
    if reader.accept_word("domain"):
        return parse_create_domain(reader, queries)
    if reader.accept_word("table"):
        return _table(reader, queries)
    if reader.is_word("index", "unique", "default"):
        return parse_index(reader, queries)
    if reader.accept_word("source"):
        if_not_exists = reader.accept_words("if", "not", "exists")
        name = reader.qualified_name()
        columns = reader.in_parentheses(lambda: parse_column(reader, queries)) if reader.is_symbol("(") else ()
        return CreateSource(name, parse_origin(reader), columns, if_not_exists)
    if reader.accept_word("sequence"):
        if_not_exists = reader.accept_words("if", "not", "exists")
        return parse_sequence(reader, if_not_exists)
    if reader.accept_word("schema"):
        return _create_schema(reader)
    if reader.accept_words("cluster", "replica") or reader.accept_word("replica"):
        return parse_create_replica(reader)
    if reader.is_word(*_KINDS):
        what, hint = _KINDS[reader.token.value]
        raise SqlError("0A000", f"{what} cannot be created", offset=reader.offset, hint=hint)
    raise reader.error()


def _temporary(reader: TokenReader, queries: QueryParser, or_replace: bool) -> CreateTable | CreateView:
    """Read the part of `CREATE TEMPORARY TABLE` or `VIEW` after TEMPORARY."""
    is_table = reader.accept_word("table")
    created = _table(reader, queries, is_temporary=True) if is_table else _view(reader, queries, or_replace, False)
    name = created.name
    if name.schema not in {None, TEMPORARY}:
        raise SqlError("42P16", "cannot create temporary relation in non-temporary schema", offset=name.offset)
    return replace(created, name=replace(name, schema=TEMPORARY))


def _create_schema(reader: TokenReader) -> CreateSchema:
    """Read the part of `CREATE SCHEMA` after these words."""
    if_not_exists = reader.accept_words("if", "not", "exists")
    if reader.is_word("authorization"):
        raise SqlError("0A000", "a schema has no owner", offset=reader.offset, hint="Write CREATE SCHEMA name.")
    created = CreateSchema(*_schema(reader), if_not_exists)
    if reader.accept_word("authorization"):
        parse_role(reader)
    return created


def _schema(reader: TokenReader) -> tuple[str, int]:
    """Read the name of a schema, with an optional prefix: the name of the database."""
    name = reader.qualified_name()
    return name.name, name.offset


def _on_commit(reader: TokenReader, *, is_temporary: bool) -> str:
    """Read the effect of COMMIT on a temporary table: `drop`, `delete`, or nothing."""
    where = reader.offset
    if not reader.accept_words("on", "commit"):
        return ""
    if not is_temporary:
        raise SqlError("42P16", "ON COMMIT can only be used on temporary tables", offset=where)
    if reader.accept_words("preserve", "rows"):
        return ""
    effect = reader.expect_word("drop", "delete").value
    if effect == "delete":
        reader.expect_word("rows")
    return effect


def _table(reader: TokenReader, queries: QueryParser, *, is_temporary: bool = False) -> CreateTable:
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = reader.qualified_name()
    columns: tuple[ColumnDefinition, ...] = ()
    constraints: tuple[ConstraintDefinition, ...] = ()
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
            parts = reader.in_parentheses(lambda: _part_of_table(reader, queries))
            columns = tuple(part for part in parts if isinstance(part, ColumnDefinition))
            constraints = tuple(part for part in parts if isinstance(part, ConstraintDefinition))
    on_commit = _on_commit(reader, is_temporary=is_temporary)
    if columns or constraints or not reader.accept_word("as"):
        if not (columns or constraints) and reader.is_end() and not reader.text[: reader.end_before].endswith(")"):
            raise reader.error()
        return CreateTable(name, columns, if_not_exists, constraints=constraints, on_commit=on_commit)
    query = queries.parse()
    has_rows = not reader.accept_words("with", "no", "data")
    reader.accept_words("with", "data")
    return CreateTable(name, (), if_not_exists, query, names, on_commit=on_commit, has_rows=has_rows)


def _is_list_of_names(reader: TokenReader) -> bool:
    behind = reader.ahead(2)
    return behind.kind is TokenKind.SYMBOL and behind.value in {",", ")"}


def _part_of_table(reader: TokenReader, queries: QueryParser) -> ColumnDefinition | ConstraintDefinition:
    if reader.is_word(*TABLE_CONSTRAINTS):
        return parse_constraint(reader, queries)
    if reader.is_word("like"):
        raise SqlError(
            "0A000",
            "LIKE in CREATE TABLE is not supported",
            offset=reader.offset,
            hint="Write the columns with their types.",
        )
    return parse_column(reader, queries)


def parse_constraint(reader: TokenReader, queries: QueryParser) -> ConstraintDefinition:
    """Read a constraint of a table."""
    offset = reader.offset
    name = reader.name() if reader.accept_word("constraint") else None
    constraint = _constraint(reader, queries, name, offset)
    if constraint.kind is not ConstraintKind.CHECK:
        if reader.is_word("using"):
            raise SqlError(
                "0A000",
                "keys over an existing index are not supported",
                offset=reader.offset,
                hint="Write the columns: PRIMARY KEY (column, …).",
            )
        constraint = replace(constraint, columns=reader.in_parentheses(reader.located_name))
    if constraint.kind is ConstraintKind.FOREIGN_KEY:
        constraint = _references(reader, constraint)
    return _with_times(reader, constraint)


def _constraint(reader: TokenReader, queries: QueryParser, name: str | None, offset: int) -> ConstraintDefinition:
    """Read a constraint up to the columns of a key."""
    if reader.is_word(*_REFUSED):
        what, hint = _REFUSED[reader.token.value]
        raise SqlError("0A000", f"{what} are not supported", offset=reader.offset, hint=hint)
    if reader.accept_words("foreign", "key"):
        return ConstraintDefinition(ConstraintKind.FOREIGN_KEY, name, offset)
    if reader.is_word("references"):
        return _references(reader, ConstraintDefinition(ConstraintKind.FOREIGN_KEY, name, offset))
    word = reader.expect_word("primary", "unique", "check").value
    if word == "check":
        constraint = ConstraintDefinition(ConstraintKind.CHECK, name, offset, check=_in_parentheses(reader, queries))
        if reader.accept_words("no", "inherit"):
            return constraint
        if reader.is_words("not", "valid"):
            raise SqlError(
                "0A000",
                "NOT VALID is not supported: all rows are checked",
                offset=reader.offset,
                hint="Correct the rows first, and omit NOT VALID.",
            )
        return constraint
    if word == "primary":
        reader.expect_word("key")
        return ConstraintDefinition(ConstraintKind.PRIMARY_KEY, name, offset)
    if reader.accept_word("nulls"):
        if reader.is_word("not"):
            raise SqlError(
                "0A000",
                "NULLS NOT DISTINCT is not supported",
                offset=reader.offset,
                hint="Add NOT NULL to the columns of the key.",
            )
        reader.expect_word("distinct")
    return ConstraintDefinition(ConstraintKind.UNIQUE, name, offset)


def _references(reader: TokenReader, constraint: ConstraintDefinition) -> ConstraintDefinition:
    """Read a foreign key from REFERENCES on."""
    reader.expect_word("references")
    constraint = replace(constraint, references=reader.qualified_name())
    if reader.is_symbol("("):
        constraint = replace(constraint, referenced=reader.in_parentheses(reader.located_name))
    while reader.is_word("match", "on"):
        where = reader.offset
        if reader.accept_word("match"):
            if not reader.accept_word("simple"):
                hint = "Omit MATCH, and add NOT NULL to the columns."
                raise SqlError("0A000", "MATCH FULL and PARTIAL are not supported", offset=where, hint=hint)
            continue
        reader.expect_word("on")
        event = reader.expect_word("delete", "update").value
        action = _action_of_key(reader)
        is_deletion = event == "delete"
        constraint = replace(constraint, on_delete=action) if is_deletion else replace(constraint, on_update=action)
    return constraint


_ACTIONS = (
    (("no", "action"), "a"),
    (("restrict",), "r"),
    (("cascade",), "c"),
    (("set", "null"), "n"),
    (("set", "default"), "d"),
)


def _action_of_key(reader: TokenReader) -> str:
    for words, action in _ACTIONS:
        if reader.accept_words(*words):
            return action
    raise reader.error()


def _in_parentheses(reader: TokenReader, queries: QueryParser) -> Default:
    reader.expect_symbol("(")
    begin = reader.offset
    expression = queries.expressions.parse()
    text = reader.text[begin : reader.end_before]
    reader.expect_symbol(")")
    return Default(expression, text)


def _with_times(reader: TokenReader, constraint: ConstraintDefinition) -> ConstraintDefinition:
    """Read when a constraint is checked: at the end of each statement, or for a deferred foreign key at COMMIT."""
    deferral, is_never = constraint.deferral, False
    while reader.is_word("deferrable", "initially") or reader.is_words("not", "deferrable"):
        where = reader.offset
        if reader.accept_words("not", "deferrable"):
            is_never = True
            continue
        if reader.accept_words("initially", "immediate"):
            continue
        if constraint.kind is not ConstraintKind.FOREIGN_KEY:
            hint = "Omit the word: a statement or transaction may pass through duplicates."
            raise SqlError("0A000", "deferrable constraints are not supported", offset=where, hint=hint)
        if reader.accept_word("deferrable"):
            deferral = deferral or "i"
        else:
            reader.expect_words("initially", "deferred")
            deferral = "d"
    if is_never and deferral:
        raise SqlError("42601", "constraint declared INITIALLY DEFERRED must be DEFERRABLE", offset=reader.offset)
    return replace(constraint, deferral=deferral)


class _ColumnParser:
    """Parser of a column's definition behind its type."""

    def __init__(self, reader: TokenReader, queries: QueryParser, column: ColumnDefinition) -> None:
        self._reader, self._queries, self._column = reader, queries, column
        self._is_nullable: bool | None = None

    def parse(self) -> ColumnDefinition:
        """Read the constraints of the column."""
        while self._clause():
            pass
        return replace(self._column, is_nullable=self._is_nullable is not False)

    def _clause(self) -> bool:
        """Read one clause; return False if none follows."""
        reader, column, where = self._reader, self._column, self._reader.offset
        name = reader.name() if reader.accept_word("constraint") else None
        if reader.accept_words("not", "null"):
            self._set_nullable(False, where)
        elif reader.accept_word("null"):
            self._set_nullable(True, where)
        elif reader.is_word("default"):
            if column.default is not None:
                message = f'multiple default values specified for column "{column.name}"'
                raise SqlError("42601", message, offset=where)
            self._column = replace(column, default=parse_default(reader, self._queries))
        elif reader.accept_word("generated"):
            self._generated(where)
        elif reader.is_word(*_COLUMN_CONSTRAINTS):
            constraint = _constraint(reader, self._queries, name, where)
            if constraint.kind is not ConstraintKind.CHECK:
                constraint = replace(constraint, columns=((column.name, column.offset),))
            if constraint.kind is ConstraintKind.PRIMARY_KEY:
                self._set_nullable(False, where)
            self._column = replace(column, constraints=(*column.constraints, constraint))
        elif name is not None:
            raise reader.error()
        else:
            return False
        constraints = self._column.constraints
        if constraints:
            timed = _with_times(reader, constraints[-1])
            self._column = replace(self._column, constraints=(*constraints[:-1], timed))
        return True

    def require_value(self) -> None:
        """Make the column NOT NULL."""
        self._is_nullable = False

    def _set_nullable(self, is_nullable: bool, offset: int) -> None:
        if self._is_nullable is not None and self._is_nullable is not is_nullable:
            message = f'conflicting NULL/NOT NULL declarations for column "{self._column.name}"'
            raise SqlError("42601", message, offset=offset)
        self._is_nullable = is_nullable

    def _generated(self, offset: int) -> None:
        reader = self._reader
        identity = parse_identity(reader)
        reader.expect_word("as")
        if reader.accept_word("identity"):
            self._column = replace(self._column, identity=identity, numbering=parse_numbering(reader))
            self._set_nullable(False, offset)
            return
        if identity is not Identity.ALWAYS:
            message = "for a generated column, GENERATED ALWAYS must be specified"
            raise SqlError("42601", message, offset=offset)
        self._column = replace(self._column, generated=_in_parentheses(reader, self._queries))
        if not reader.accept_word("stored"):
            hint = "Write STORED behind the expression."
            raise SqlError("0A000", "virtual generated columns are not supported", offset=reader.offset, hint=hint)


def parse_column(reader: TokenReader, queries: QueryParser) -> ColumnDefinition:
    """Read a column definition."""
    offset = reader.offset
    name = reader.name()
    serial = _SERIAL.get(reader.token.value)
    if serial is not None:
        kind = TypeName(serial, (), reader.offset, False)
        reader.next()
        column = ColumnDefinition(name, kind, True, offset, identity=Identity.SERIAL)
        parser = _ColumnParser(reader, queries, column)
        parser.require_value()
        return parser.parse()
    return _ColumnParser(reader, queries, ColumnDefinition(name, parse_type(reader), True, offset)).parse()


def parse_default(reader: TokenReader, queries: QueryParser) -> Default:
    """Read the expression of a DEFAULT."""
    reader.expect_word("default")
    begin = reader.offset
    expression = queries.expressions.parse(OTHER)  # stops before NOT NULL
    return Default(expression, reader.text[begin : reader.end_before])


def _view(reader: TokenReader, queries: QueryParser, or_replace: bool, is_materialized: bool) -> CreateView:
    reader.expect_word("view")
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = reader.qualified_name()
    columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
    reader.expect_word("as")
    begin = reader.offset
    query = queries.parse()
    definition = reader.text[begin : reader.end_before]
    if not reader.accept_words("with", "data") and is_materialized:
        reader.accept_words("with", "no", "data")  # each read sees the rows of the present
    return CreateView(name, columns, query, definition, is_materialized, or_replace, if_not_exists)


def parse_drop(reader: TokenReader) -> Drop | DropFunction | DropReplica:
    """Read a `DROP` statement."""
    reader.expect_word("drop")
    if reader.accept_word("function"):
        return parse_drop_function(reader)
    if reader.accept_words("cluster", "replica") or reader.accept_word("replica"):
        return parse_drop_replica(reader)
    others = {"schema": ObjectKind.SCHEMA, "domain": ObjectKind.DOMAIN}
    word = reader.accept_word(*others)
    kind = others[word] if word else parse_kind(reader, "dropped")
    if_exists = reader.accept_words("if", "exists")
    names = reader.list_of(reader.qualified_name)
    return Drop(kind, names, if_exists, reader.accept_word("cascade", "restrict") == "cascade")


def parse_comment(reader: TokenReader) -> Comment:
    """Read a `COMMENT ON` statement."""
    reader.expect_words("comment", "on")
    if reader.accept_word("column"):
        offset = reader.offset
        *qualifier, relation, column = _parts_of_column(reader, offset)
        name = QualifiedName(qualifier[-1] if qualifier else None, relation, offset)
        return Comment(None, name, _comment(reader), column)
    kind = parse_kind(reader, "described by a comment")
    return Comment(kind, reader.qualified_name(), _comment(reader))


def _parts_of_column(reader: TokenReader, offset: int) -> list[str]:
    parts = [reader.name()]
    while reader.accept_symbol("."):
        parts.append(reader.any_name())
    if len(parts) < 2:
        raise SqlError("42601", "column name must be qualified", offset=offset, hint="Write table.column.")
    if len(parts) > 4:
        message = f"improper qualified name (too many dotted names): {'.'.join(parts)}"
        raise SqlError("42601", message, offset=offset)
    return parts


def _comment(reader: TokenReader) -> str | None:
    reader.expect_word("is")
    return None if reader.accept_word("null") else reader.string()


def parse_kind(reader: TokenReader, what: str) -> ObjectKind:
    """Read the kind of an object; `what` ends the message about other kinds."""
    if reader.accept_words("materialized", "view"):
        return ObjectKind.MATERIALIZED_VIEW
    for kind in (ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.INDEX, ObjectKind.SOURCE, ObjectKind.SEQUENCE):
        if reader.accept_word(kind.value):
            return kind
    if reader.is_word("schema", "database", "role", "user", "type", "function", "extension", "system"):
        hint = "This is possible for tables, views, materialized views, indexes, sources and sequences."
        if reader.is_word("role", "user") and what == "altered":
            hint = "Users and their passwords are lines of the file that the server names with --password-file."
        raise SqlError("0A000", f"a {reader.token.value} cannot be {what}", offset=reader.offset, hint=hint)
    raise reader.error()
