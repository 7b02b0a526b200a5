"""`INSERT`, `UPDATE` and `DELETE`."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import Alias, FromItem, RowValue, SelectItem, SyntaxNode
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import Assignment, Delete, Insert, Truncate, Update
from derive.sql.parser.token_reader import TokenReader


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
    if reader.is_word("overriding"):
        raise SqlError("0A000", "OVERRIDING is not supported", offset=reader.offset)
    query = None if reader.accept_words("default", "values") else queries.parse()
    if reader.is_words("on", "conflict"):
        hint = "Tables have no unique keys."
        raise SqlError("0A000", "ON CONFLICT is not supported", offset=reader.offset, hint=hint)
    return Insert(relation, alias, columns, query, _returning(reader, queries))


def parse_update(reader: TokenReader, queries: QueryParser) -> Update:
    """Read an `UPDATE` statement."""
    reader.expect_word("update")
    reader.accept_word("only")
    relation = reader.qualified_name()
    alias = None if reader.is_word("set") else queries.tables.alias()
    reader.expect_word("set")
    assignments = tuple(one for some in reader.list_of(lambda: _assignments(reader, queries)) for one in some)
    tables = reader.list_of(queries.tables.parse) if reader.accept_word("from") else ()
    condition = _condition(reader, queries)
    return Update(relation, alias, assignments, tables, condition, _returning(reader, queries))


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
    return Delete(relation, alias, tables, condition, _returning(reader, queries))


def parse_truncate(reader: TokenReader) -> Truncate:
    """Read a `TRUNCATE` statement."""
    reader.expect_word("truncate")
    reader.accept_word("table")
    reader.accept_word("only")
    relations = reader.list_of(reader.qualified_name)
    if not reader.accept_words("restart", "identity"):
        reader.accept_words("continue", "identity")
    reader.accept_word("cascade", "restrict")
    return Truncate(relations)


def _assignments(reader: TokenReader, queries: QueryParser) -> tuple[Assignment, ...]:
    if not reader.is_symbol("("):
        column, offset = reader.located_name()
        if reader.is_symbol("[", "."):
            raise SqlError("0A000", "assignments to a part of a column are not supported", offset=reader.offset)
        reader.expect_symbol("=")
        return (Assignment(column, queries.expressions.parse(), offset),)
    columns = reader.in_parentheses(reader.located_name)
    offset = reader.expect_symbol("=").end
    value = queries.expressions.parse()
    values: tuple[SyntaxNode, ...] = value.items if isinstance(value, RowValue) else (value,)
    if len(values) != len(columns):
        if len(values) == 1 and not isinstance(value, RowValue):
            raise SqlError("0A000", "assignments of a query's columns are not supported", offset=offset)
        raise SqlError("42601", "number of columns does not match number of values", offset=columns[0][1])
    return tuple(Assignment(name, value, where) for (name, where), value in zip(columns, values, strict=True))


def _condition(reader: TokenReader, queries: QueryParser) -> SyntaxNode | None:
    if not reader.accept_word("where"):
        return None
    if reader.is_words("current", "of"):
        raise SqlError("0A000", "WHERE CURRENT OF is not supported", offset=reader.offset)
    return queries.expressions.parse()


def _returning(reader: TokenReader, queries: QueryParser) -> tuple[SelectItem, ...]:
    return reader.list_of(queries.item) if reader.accept_word("returning") else ()
