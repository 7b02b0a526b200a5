"""Parser of MERGE, whose WHEN clauses are an UPDATE, a DELETE or an INSERT of single rows."""

from __future__ import annotations

from derive.sql.parser.ast import Query, SyntaxNode, Values
from derive.sql.parser.data_statements import read_assignments, read_returning
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import Insert, Match, Merge, MergeWhen
from derive.sql.parser.tokens import TokenReader


def parse_merge(reader: TokenReader, queries: QueryParser) -> Merge:
    """Read a `MERGE` statement."""
    offset = reader.offset
    reader.expect_words("merge", "into")
    reader.accept_word("only")
    relation = reader.qualified_name()
    alias = queries.tables.alias()
    reader.expect_word("using")
    source = queries.tables.parse()
    reader.expect_word("on")
    condition = queries.expressions.parse()
    insert = Insert(relation, alias, (), None)
    clauses = [_clause(reader, queries, insert)]
    while reader.is_word("when"):
        clauses.append(_clause(reader, queries, insert))
    return Merge(relation, alias, source, condition, tuple(clauses), offset, read_returning(reader, queries))


def _clause(reader: TokenReader, queries: QueryParser, insert: Insert) -> MergeWhen:
    """Read a WHEN clause; `insert` is an INSERT into the table."""
    offset = reader.offset
    reader.expect_word("when")
    match = _match(reader)
    condition: SyntaxNode | None = queries.expressions.parse() if reader.accept_word("and") else None
    reader.expect_word("then")
    if reader.accept_words("do", "nothing"):
        return MergeWhen(match, condition, offset)
    if match is Match.SOURCE:
        reader.expect_word("insert")
        return MergeWhen(match, condition, offset, insert=_insert(reader, queries, insert))
    if reader.accept_word("delete"):
        return MergeWhen(match, condition, offset, is_delete=True)
    reader.expect_words("update", "set")
    return MergeWhen(match, condition, offset, assignments=read_assignments(reader, queries))


def _match(reader: TokenReader) -> Match:
    if reader.accept_word("matched"):
        return Match.BOTH
    reader.expect_words("not", "matched")
    if not reader.accept_word("by"):
        return Match.SOURCE
    return Match.TARGET if reader.expect_word("source", "target").value == "source" else Match.SOURCE


def _insert(reader: TokenReader, queries: QueryParser, insert: Insert) -> Insert:
    """Read the action INSERT, behind its first word."""
    columns = reader.in_parentheses(reader.located_name) if reader.is_symbol("(") else ()
    overriding = None
    if reader.accept_word("overriding"):
        overriding = reader.expect_word("system", "user").value
        reader.expect_word("value")
    query = None
    offset = reader.offset
    if not reader.accept_words("default", "values"):
        reader.expect_word("values")
        values = Values((reader.in_parentheses(queries.expressions.parse),), offset)
        query = Query(values, (), False, (), None, None, offset)
    return Insert(insert.relation, insert.alias, columns, query, overriding=overriding)
