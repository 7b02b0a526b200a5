"""Parser of ALTER TABLE, ALTER VIEW, ALTER SEQUENCE, and renames."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ddl import (
    TABLE_CONSTRAINTS,
    parse_column,
    parse_constraint,
    parse_default,
    parse_kind,
)
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.sequences import (
    AddIdentity,
    AlterSequence,
    DropIdentity,
    SetIdentity,
    begins_identity_change,
    parse_altered_sequence,
    parse_identity_change,
)
from derive.sql.parser.statement import (
    AddColumn,
    AddConstraint,
    AlterTable,
    DropColumn,
    DropConstraint,
    ObjectKind,
    Rename,
    RenameColumn,
    RenameConstraint,
    SetDefault,
    SetNullable,
    SetType,
    TableAction,
)
from derive.sql.parser.tokens import TokenReader
from derive.sql.parser.type_names import parse_type


def parse_alter(reader: TokenReader, queries: QueryParser) -> Rename | AlterTable | AlterSequence:
    """Read an `ALTER … RENAME TO`, or an ALTER of a table's columns."""
    reader.expect_word("alter")
    kind = parse_kind(reader, "altered")
    if_exists = reader.accept_words("if", "exists")
    if kind is ObjectKind.TABLE:
        reader.accept_word("only")
    name = reader.qualified_name()
    if kind is ObjectKind.SEQUENCE and reader.is_word("restart", "owned", "as"):
        return parse_altered_sequence(reader, name, if_exists)
    if kind is ObjectKind.TABLE and reader.is_word("add", "drop", "alter"):
        return AlterTable(name, reader.list_of(lambda: _action(reader, queries)), if_exists)
    is_relation = kind in {ObjectKind.TABLE, ObjectKind.VIEW}
    if is_relation and reader.is_word("rename") and not reader.is_words("rename", "to"):
        begin = reader.ahead()
        part = _renamed_part(reader)
        if kind is ObjectKind.VIEW and not isinstance(part, RenameColumn):
            raise SqlError("42601", 'syntax error at or near "CONSTRAINT"', offset=begin.offset)
        return AlterTable(name, (part,), if_exists, kind)
    if not reader.is_words("rename", "to"):
        hint = "Supported are ALTER … RENAME TO name, for tables ADD, DROP and ALTER, and RENAME COLUMN also for views."
        raise SqlError(
            "0A000", f"ALTER {kind.value.upper()} does not support this change", hint=hint, offset=reader.offset
        )
    reader.expect_words("rename", "to")
    new_name, offset = reader.located_name()
    return Rename(kind, name, new_name, offset, if_exists)


def _renamed_part(reader: TokenReader) -> RenameColumn | RenameConstraint:
    reader.expect_word("rename")
    if reader.accept_word("constraint"):
        old_name, where = reader.located_name()
        reader.expect_word("to")
        return RenameConstraint(old_name, where, *reader.located_name())
    reader.accept_word("column")
    name, offset = reader.located_name()
    reader.expect_word("to")
    return RenameColumn(name, offset, *reader.located_name())


def _altered_column(
    reader: TokenReader, queries: QueryParser
) -> SetDefault | SetNullable | SetType | AddIdentity | SetIdentity | DropIdentity:
    reader.expect_word("alter")
    reader.accept_word("column")
    name, offset = reader.located_name()
    if begins_identity_change(reader):
        return parse_identity_change(reader, name, offset)
    is_set = reader.is_word("set")
    if (is_set or reader.is_word("drop")) and reader.ahead().value in {"default", "not"}:
        reader.next()
        if reader.accept_words("not", "null"):
            return SetNullable(name, offset, not is_set)
        if is_set:
            return SetDefault(name, offset, parse_default(reader, queries))
        reader.expect_word("default")
        return SetDefault(name, offset, None)
    if reader.accept_word("type") or reader.accept_words("set", "data", "type"):
        kind = parse_type(reader)
        return SetType(name, offset, kind, queries.expressions.parse() if reader.accept_word("using") else None)
    hint = "Supported are TYPE, SET and DROP of DEFAULT and NOT NULL, and ADD, SET and DROP of an identity."
    raise SqlError("0A000", "ALTER COLUMN does not support this change", hint=hint, offset=reader.offset)


def _action(reader: TokenReader, queries: QueryParser) -> TableAction:
    if reader.is_word("alter"):
        return _altered_column(reader, queries)
    is_added = reader.expect_word("add", "drop").value == "add"
    if is_added and reader.is_word(*TABLE_CONSTRAINTS):
        return AddConstraint(parse_constraint(reader, queries))
    if reader.accept_word("constraint"):
        is_welcome = reader.accept_words("if", "exists")
        name, offset = reader.located_name()
        return DropConstraint(name, offset, is_welcome, is_cascading=_is_cascading(reader))
    reader.accept_word("column")
    if is_added:
        if_not_exists = reader.accept_words("if", "not", "exists")
        return AddColumn(parse_column(reader, queries), if_not_exists)
    if_exists = reader.accept_words("if", "exists")
    name, offset = reader.located_name()
    return DropColumn(name, offset, if_exists, _is_cascading(reader))


def _is_cascading(reader: TokenReader) -> bool:
    return reader.accept_word("cascade", "restrict") == "cascade"
