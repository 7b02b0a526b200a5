"""Parser of CREATE INDEX, and of the parts of an index: columns and expressions, which ON CONFLICT names, too."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, FunctionCall, IndexPart, TypeCast
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import CreateIndex, Default
from derive.sql.parser.tokens import TokenReader
from derive.sql.parser.type_names import OPERATOR_CLASSES


def parse_index(reader: TokenReader, queries: QueryParser) -> CreateIndex:
    """Read `CREATE [UNIQUE | DEFAULT] INDEX`, after CREATE."""
    is_unique = reader.accept_word("unique") is not None
    is_default = not is_unique and reader.accept_word("default") is not None
    reader.expect_word("index")
    if reader.is_word("concurrently"):
        raise SqlError("0A000", "CONCURRENTLY is not supported", offset=reader.offset, hint="Omit CONCURRENTLY.")
    if_not_exists = reader.accept_words("if", "not", "exists")
    name = None if reader.is_word("on") else reader.qualified_name()
    reader.expect_word("on")
    relation = reader.qualified_name()
    if reader.accept_word("using"):
        method, where = reader.located_name()
        if method not in {"btree", "arrangement"}:
            raise SqlError("42704", f'access method "{method}" does not exist', offset=where)
    parts = () if is_default else reader.in_parentheses(lambda: _ordered_part(reader, queries))
    included = reader.in_parentheses(reader.located_name) if reader.accept_word("include") else ()
    condition = parse_index_condition(reader, queries)
    return CreateIndex(name, relation, parts, if_not_exists, is_unique, included, condition)


def parse_index_condition(reader: TokenReader, queries: QueryParser) -> Default | None:
    """Read the WHERE clause of an index, if there is one."""
    if not reader.accept_word("where"):
        return None
    begin = reader.offset
    expression = queries.expressions.parse()
    return Default(expression, reader.text[begin : reader.end_before])


def _ordered_part(reader: TokenReader, queries: QueryParser) -> IndexPart:
    part = parse_index_part(reader, queries)
    reader.accept_word("asc", "desc")
    if reader.accept_word("nulls"):
        reader.expect_word("first", "last")
    return part


def parse_index_part(reader: TokenReader, queries: QueryParser) -> IndexPart:
    """Read a column, a call of a function, or an expression in parentheses, with its operator class."""
    offset = reader.offset
    if reader.is_symbol("("):
        part = _in_parentheses(reader, queries, offset)
    elif reader.is_name() and reader.ahead().value != "(":
        name, offset = reader.located_name()
        part = IndexPart(ColumnReference((name,), offset), name, offset)
    else:
        part = _call(reader, queries, offset)
    if reader.is_name() and not reader.is_word("nulls"):
        operators, where = reader.located_name()
        if operators not in OPERATOR_CLASSES:
            message = f'operator class "{operators}" does not exist for access method "btree"'
            raise SqlError("42704", message, offset=where)
    return part


def _in_parentheses(reader: TokenReader, queries: QueryParser, offset: int) -> IndexPart:
    reader.expect_symbol("(")
    begin = reader.offset
    expression = queries.expressions.parse()
    text = reader.text[begin : reader.end_before]
    reader.expect_symbol(")")
    return IndexPart(expression, text, offset)


def _call(reader: TokenReader, queries: QueryParser, offset: int) -> IndexPart:
    """Read a call of a function; other expressions need parentheses, as in PostgreSQL."""
    error = reader.error()
    expression = queries.expressions.parse()
    if not isinstance(expression, FunctionCall | TypeCast) or expression.offset != offset:
        raise error
    return IndexPart(expression, reader.text[offset : reader.end_before], offset)
