"""Parser of queries: WITH, SELECT, FROM, GROUP BY, set operations, ORDER BY and LIMIT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.parser.ast import (
    NO_WITH,
    Alias,
    CommonTable,
    DerivedTable,
    FromItem,
    FunctionCall,
    FunctionTable,
    Groups,
    JoinedTable,
    JoinKind,
    NullLiteral,
    NumberLiteral,
    QualifiedName,
    Query,
    QueryBody,
    RelationReference,
    RowsFrom,
    RowValue,
    SampledTable,
    Select,
    SelectItem,
    SetQuery,
    SortItem,
    Star,
    SyntaxNode,
    Values,
    WindowDefinition,
    With,
)
from derive.sql.parser.expressions import ExpressionParser
from derive.sql.parser.json_table import JSON_TABLE, JsonTableParser
from derive.sql.parser.statement import TEMPORARY
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.windows import parse_sort_items, parse_window

GroupingSet: TypeAlias = tuple[SyntaxNode, ...]
"""Expressions of one grouping set."""

MOST_SETS = 256
_MOST_CUBED = 8


def parse_groups(reader: TokenReader, expressions: ExpressionParser) -> Groups | None:
    """Read a GROUP BY clause; return None if there is none."""
    if not reader.accept_words("group", "by"):
        return None
    offset = reader.offset
    is_distinct = reader.accept_word("distinct", "all") == "distinct"
    items = reader.list_of(lambda: _sets(reader, expressions))
    if all(len(sets) == 1 for sets in items):
        return Groups(tuple(node for sets in items for node in sets[0]))
    count = 1
    for sets in items:
        count *= len(sets)
    if count > MOST_SETS:
        raise SqlError("54000", f"too many grouping sets present (maximum {MOST_SETS})", offset=offset)
    joined = [tuple(chain.from_iterable(choice)) for choice in product(*items)]
    return Groups(tuple(dict.fromkeys(node for nodes in joined for node in nodes)), tuple(joined), is_distinct)


def _sets(reader: TokenReader, expressions: ExpressionParser) -> Sequence[GroupingSet]:
    """Read an item of GROUP BY, and return its grouping sets."""
    behind = reader.ahead()
    is_call = behind.kind is TokenKind.SYMBOL and behind.value == "("
    if reader.accept_words("grouping", "sets"):
        listed = reader.in_parentheses(lambda: _sets(reader, expressions))
        return [nodes for sets in listed for nodes in sets]
    if is_call and reader.is_word("rollup", "cube"):
        offset, word = reader.offset, reader.next().value
        elements = reader.in_parentheses(lambda: _element(reader, expressions))
        if word == "rollup":
            return [_joined(elements[:count]) for count in range(len(elements), -1, -1)]
        if len(elements) > _MOST_CUBED:
            raise SqlError("54011", f"CUBE is limited to {_MOST_CUBED} elements", offset=offset)
        counts = range(len(elements), -1, -1)
        return [_joined(chosen) for count in counts for chosen in combinations(elements, count)]
    return [_element(reader, expressions)]


def _joined(elements: Sequence[GroupingSet]) -> GroupingSet:
    return tuple(chain.from_iterable(elements))


def _element(reader: TokenReader, expressions: ExpressionParser) -> GroupingSet:
    """Read an expression, a list in parentheses, or `()`."""
    if reader.is_symbol("(") and reader.ahead().value == ")":
        reader.next()
        reader.next()
        return ()
    node = expressions.parse()
    return node.items if isinstance(node, RowValue) else (node,)


class FromParser:
    """Parser of FROM items."""

    def __init__(self, reader: TokenReader, queries: QueryParser) -> None:
        self._reader = reader
        self._queries = queries
        self._joins: set[int] = set()
        """Positions of parentheses that contain a join, and look like a query: each is tried as a query once."""

    def parse(self) -> FromItem:
        """Read a relation with all its joins."""
        left = self._primary()
        while (joined := self._joined(left)) is not None:
            left = joined
        return left

    def _joined(self, left: FromItem) -> FromItem | None:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_words("cross", "join"):
            return JoinedTable(JoinKind.CROSS, left, self._primary(), None, None, False, None, offset)
        is_natural = reader.accept_word("natural") is not None
        kind = self._kind()
        if kind is None:
            if is_natural:
                raise reader.error()
            return None
        right = self._primary() if is_natural else self._right()
        if is_natural:
            return JoinedTable(kind, left, right, None, None, True, None, offset)
        if reader.accept_word("using"):
            using = reader.in_parentheses(reader.located_name)
            alias = None
            if reader.is_word("as") and not self._queries.begins_as_of():
                raise SqlError(
                    "0A000",
                    "aliases after USING are not supported",
                    offset=reader.offset,
                    hint="Give each joined table an alias.",
                )
            return JoinedTable(kind, left, right, None, using, False, alias, offset)
        reader.expect_word("on")
        condition: SyntaxNode = self._queries.expressions.parse()
        return JoinedTable(kind, left, right, condition, None, False, None, offset)

    def _right(self) -> FromItem:
        """Read the right side of a join, with the joins before its ON or USING."""
        right = self._primary()
        while not self._reader.is_word("on", "using"):
            joined = self._joined(right)
            if joined is None:
                return right
            right = joined
        return right

    def _kind(self) -> JoinKind | None:
        reader = self._reader
        if reader.accept_word("join") or reader.accept_words("inner", "join"):
            return JoinKind.INNER
        for kind in (JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL):
            word = kind.value.lower()
            if reader.accept_words(word, "join") or reader.accept_words(word, "outer", "join"):
                return kind
        return None

    def _primary(self) -> FromItem:
        reader, offset = self._reader, self._reader.offset
        is_lateral = reader.accept_word("lateral") is not None
        if reader.is_symbol("("):
            return self._parenthesised(is_lateral, offset)
        if reader.is_word(JSON_TABLE) and reader.ahead().value == "(":
            derived = JsonTableParser(reader, self._queries.expressions.json).parse()
            return replace(derived, alias=self.alias() or Alias(JSON_TABLE, (), offset))
        if reader.is_words("rows", "from") and reader.ahead(2).value == "(":
            return self._rows_from(offset)
        if is_lateral or self._begins_call():
            return self._function(offset)
        reader.accept_word("only")
        name = reader.qualified_name()
        reader.accept_symbol("*")
        table = RelationReference(name, self.alias(), offset)
        return self._sampled(table) if reader.is_word("tablesample") else table

    def _sampled(self, table: RelationReference) -> SampledTable:
        """Read `TABLESAMPLE method (percentage) [REPEATABLE (seed)]`."""
        reader, parse = self._reader, self._queries.expressions.parse
        reader.expect_word("tablesample")
        method, offset = reader.any_name(), reader.offset
        arguments = reader.in_parentheses(parse)
        seed = None
        if reader.accept_word("repeatable"):
            reader.expect_symbol("(")
            seed = parse()
            reader.expect_symbol(")")
        return SampledTable(table, method.lower(), arguments, seed, offset)

    def _parenthesised(self, is_lateral: bool, offset: int) -> FromItem:
        reader = self._reader
        mark = reader.mark()
        reader.expect_symbol("(")
        if mark not in self._joins and self._queries.begins_query():
            query = self._query(mark)
            if query is not None:
                return DerivedTable(query, is_lateral, self.alias(), offset)
        if is_lateral:
            raise reader.error()
        joined = self.parse()
        if not isinstance(joined, JoinedTable):
            raise reader.error()
        reader.expect_symbol(")")
        alias = self.alias()
        if alias is None:
            return joined
        return JoinedTable(
            joined.kind,
            joined.left,
            joined.right,
            joined.condition,
            joined.using,
            joined.is_natural,
            alias,
            joined.offset,
        )

    def _query(self, mark: int) -> Query | None:
        """Read a query in parentheses; return None if the parentheses contain a join."""
        reader = self._reader
        is_nested = reader.is_symbol("(")
        try:
            query = self._queries.parse()
            if reader.accept_symbol(")"):
                return query
        except SqlError as error:
            if not is_nested or error.sqlstate != "42601":
                raise
        if not is_nested:
            raise reader.error()
        self._joins.add(mark)
        reader.return_to(mark)
        reader.expect_symbol("(")
        return None

    def _begins_call(self) -> bool:
        """Return whether a function is next, with a schema or without."""
        reader = self._reader
        index = 3 if reader.ahead().value == "." and reader.ahead().kind is TokenKind.SYMBOL else 1
        behind = reader.ahead(index)
        return reader.is_name(of_function=True) and behind.kind is TokenKind.SYMBOL and behind.value == "("

    def _function(self, offset: int) -> FromItem:
        call = self._called()
        has_ordinality = self._reader.accept_words("with", "ordinality")
        return FunctionTable(call, has_ordinality, self.alias(), offset)

    def _rows_from(self, offset: int) -> FromItem:
        """Read `ROWS FROM (call, …) [WITH ORDINALITY]` with its alias."""
        reader = self._reader
        reader.expect_words("rows", "from")
        calls = reader.in_parentheses(self._one_of_several)
        has_ordinality = reader.accept_words("with", "ordinality")
        return RowsFrom(calls, has_ordinality, self.alias(), offset)

    def _called(self) -> FunctionCall:
        call = self._queries.expressions.parse_call()
        if not isinstance(call, FunctionCall):
            raise self._reader.error()
        return call

    def _one_of_several(self) -> FunctionCall:
        call = self._called()
        if self._reader.is_word("as"):
            hint = "Cast the values in SELECT."
            message = "a column definition list is only allowed for functions returning record"
            raise SqlError("42601", message, offset=self._reader.offset, hint=hint)
        return call

    def alias(self) -> Alias | None:
        """Read an alias of a relation and its columns; return None if there is none."""
        reader, offset = self._reader, self._reader.offset
        if self._queries.begins_as_of():
            return None
        has_as = reader.accept_word("as") is not None
        if not reader.is_name() and not has_as:
            return None
        name = reader.name()
        columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
        return Alias(name, columns, offset)


_DEEPEST = 500
"""Greatest number of nested parentheses."""


_LOCKS = (("update",), ("no", "key", "update"), ("share",), ("key", "share"))


WriteReader: TypeAlias = Callable[[str, tuple[str, ...], int, int], None]
"""A function that reads a statement that writes.

Its arguments are the name and the columns of the common table expression, the offset, and the number of queries before.
"""


def not_allowed_into(offset: int) -> SqlError:
    """Return the error of INTO in another query than the first one of a statement."""
    hint = "Write INTO in the first SELECT of a statement, or CREATE TABLE … AS."
    return SqlError("42601", "SELECT ... INTO is not allowed here", offset=offset, hint=hint)


class QueryParser:
    """Parser of queries."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self.expressions = ExpressionParser(reader, self)
        self.tables = FromParser(reader, self)
        self.into: tuple[QualifiedName, Select] | None = None
        """The new table of SELECT INTO, with the query that has INTO."""
        self._no_queries: set[int] = set()
        """Positions of expressions that look like a query: each is tried as a query once."""

    def begins_query(self) -> bool:
        """Return whether a query is next; after an opening parenthesis, an expression may be next, too."""
        reader = self._reader
        index = 0
        while reader.ahead(index).kind is TokenKind.SYMBOL and reader.ahead(index).value == "(":
            index += 1
            if index > _DEEPEST:
                raise SqlError(
                    "54001",
                    "stack depth limit exceeded",
                    hint="Use fewer parentheses, or several statements.",
                    offset=reader.offset,
                )
        token = reader.ahead(index)
        return token.kind is TokenKind.WORD and token.value in {"select", "values", "with", "table"}

    def parse_if_query(self) -> Query | None:
        """Read a query before a closing parenthesis; return None if the text is an expression."""
        mark = self._reader.mark()
        if not self._reader.is_symbol("("):
            return self.parse()
        if mark in self._no_queries:
            return None
        try:
            query = self.parse()
            if self._reader.is_symbol(")"):
                return query
        except SqlError as error:
            if error.sqlstate != "42601":
                raise
        self._no_queries.add(mark)
        self._reader.return_to(mark)
        return None

    def parse(self) -> Query:
        """Read a query."""
        offset = self._reader.offset
        return self.parse_behind(self.parse_with(), offset)

    def parse_behind(self, common: With, offset: int) -> Query:
        """Read a query after its WITH clause, which starts at `offset`."""
        reader, common_tables = self._reader, common.common_tables
        body = self._body()
        order: tuple[SortItem, ...] = ()
        if reader.is_words("order", "by"):
            order = parse_sort_items(reader, self.expressions.parse)
        limit, limit_offset, with_ties = self._limits()
        if self._locks() and limit is limit_offset is None:
            limit, limit_offset, with_ties = self._limits()
        if with_ties and not order:
            raise SqlError("42601", "WITH TIES cannot be specified without ORDER BY clause", offset=offset)
        if with_ties and isinstance(limit, NullLiteral):
            message = "row count cannot be null in FETCH FIRST ... WITH TIES clause"
            raise SqlError("2201W", message, offset=limit.offset)
        if not (common_tables or order or limit or limit_offset) and isinstance(body, Query):
            return body
        return Query(body, common_tables, common.is_recursive, order, limit, limit_offset, offset, with_ties)

    def parse_with(self, read_write: WriteReader | None = None) -> With:
        """Read a WITH clause, if there is one.

        Args:
            read_write: a function that reads a statement that writes; None if the clause may have no such statement.
        """
        if not self._reader.accept_word("with"):
            return NO_WITH
        is_recursive = self._reader.accept_word("recursive") is not None
        tables: list[CommonTable] = []

        def read() -> None:
            table = self._common_table(read_write, len(tables))
            if table is not None:
                tables.append(table)

        self._reader.list_of(read)
        return With(tuple(tables), is_recursive)

    def _common_table(self, read_write: WriteReader | None, number: int) -> CommonTable | None:
        """Read a common table expression; return None for a statement that writes, which `read_write` reads."""
        reader, offset = self._reader, self._reader.offset
        name = reader.name()
        columns = reader.in_parentheses(reader.name) if reader.is_symbol("(") else ()
        reader.expect_word("as")
        if not reader.accept_words("not", "materialized"):
            reader.accept_word("materialized")
        reader.expect_symbol("(")
        if reader.is_word("insert", "update", "delete", "merge"):
            if read_write is None:
                message = "WITH clause containing a data-modifying statement must be at the top level"
                hint = "Write WITH at the start of the statement."
                raise SqlError("0A000", message, offset=reader.offset, hint=hint)
            read_write(name, columns, offset, number)
            reader.expect_symbol(")")
            return None
        query = self.parse()
        reader.expect_symbol(")")
        if reader.is_word("search", "cycle"):
            hint = "Collect the visited rows in an array: SELECT …, path || id FROM … WHERE id <> ALL (path)."
            message = f"{reader.token.value.upper()} of a recursive query is not supported"
            raise SqlError("0A000", message, offset=reader.offset, hint=hint)
        return CommonTable(name, columns, query, offset)

    def _body(self) -> QueryBody:
        left = self._intersection()
        while self._reader.is_word("union", "except"):
            left = self._set_query(left, self._intersection)
        return left

    def _intersection(self) -> QueryBody:
        left = self._primary()
        while self._reader.is_word("intersect"):
            left = self._set_query(left, self._primary)
        return left

    def _set_query(self, left: QueryBody, right: Callable[[], QueryBody]) -> QueryBody:
        offset = self._reader.offset
        operator = self._reader.next().value.upper()
        is_all = self._reader.accept_word("all", "distinct") == "all"
        return SetQuery(operator, is_all, left, right(), offset)

    def _primary(self) -> QueryBody:
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("("):
            query = self.parse()
            reader.expect_symbol(")")
            return query
        if reader.accept_word("values"):
            return Values(reader.list_of(self._row), offset)
        if reader.accept_word("table"):
            star = SelectItem(Star((), offset), None, offset)
            relation = RelationReference(reader.qualified_name(), None, offset)
            return Select((star,), False, (), (relation,), None, None, None, (), offset)
        return self._select()

    def _row(self) -> tuple[SyntaxNode, ...]:
        return self._reader.in_parentheses(self.expressions.parse)

    def _select(self) -> Select:
        reader, offset = self._reader, self._reader.offset
        reader.expect_word("select")
        is_distinct, distinct_on = self._distinct()
        items: tuple[SelectItem, ...] = ()
        if not self._ends_items():
            items = reader.list_of(self.item)
        into = self._into() if reader.is_word("into") else None
        tables: tuple[FromItem, ...] = ()
        if reader.accept_word("from"):
            tables = reader.list_of(self.tables.parse)
        condition = self.expressions.parse() if reader.accept_word("where") else None
        groups = parse_groups(reader, self.expressions)
        having = self.expressions.parse() if reader.accept_word("having") else None
        windows = reader.list_of(self._window) if reader.accept_word("window") else ()
        select = Select(items, is_distinct, distinct_on, tables, condition, groups, having, windows, offset)
        if into is not None:
            self.into = (into, select)
        return select

    def _into(self) -> QualifiedName:
        """Read the name of a new table after INTO.

        Raises:
            SqlError: the statement has INTO already (42601), or the schema of a temporary table is another one (42P16).
        """
        reader = self._reader
        if self.into is not None:
            raise not_allowed_into(reader.offset)
        reader.expect_word("into")
        is_temporary = reader.accept_word("temp", "temporary")
        reader.accept_word("unlogged")
        reader.accept_word("table")
        name = reader.qualified_name()
        if is_temporary and name.schema not in {None, TEMPORARY}:
            raise SqlError("42P16", "cannot create temporary relation in non-temporary schema", offset=name.offset)
        return replace(name, schema=TEMPORARY) if is_temporary else name

    def _ends_items(self) -> bool:
        ends = (
            "into",
            "from",
            "where",
            "group",
            "having",
            "window",
            "order",
            "limit",
            "offset",
            "union",
            "except",
            "intersect",
        )
        return self._reader.is_end() or self._reader.is_symbol(")", ";") or self._reader.is_word(*ends)

    def _distinct(self) -> tuple[bool, tuple[SyntaxNode, ...]]:
        if self._reader.accept_word("distinct", "all") != "distinct":
            return False, ()
        if not self._reader.accept_word("on"):
            return True, ()
        return False, self._reader.in_parentheses(self.expressions.parse)

    def item(self) -> SelectItem:
        """Read a result column with its alias."""
        reader, offset = self._reader, self._reader.offset
        if reader.accept_symbol("*"):
            return SelectItem(Star((), offset), None, offset)
        expression = self.expressions.parse()
        name = None
        if reader.is_word("as") and not self.begins_as_of():
            reader.next()
            name = reader.any_name()
        elif reader.is_bare_alias():
            name = reader.next().value
        return SelectItem(expression, name, offset)

    def begins_as_of(self) -> bool:
        """Return whether `AS OF` and a time are next, and not an alias `of`."""
        reader = self._reader
        if not reader.is_words("as", "of"):
            return False
        behind = reader.ahead(2)
        if behind.kind is TokenKind.SYMBOL:
            return behind.value in {"(", "-", "+"}
        ends = {"from", "where", "group", "order", "join", "left", "right", "inner", "cross", "full", "natural", "on"}
        return behind.kind is not TokenKind.END and behind.value not in ends

    def _window(self) -> tuple[str, WindowDefinition]:
        name = self._reader.name()
        self._reader.expect_word("as")
        return name, parse_window(self._reader, self.expressions.parse)

    def _limits(self) -> tuple[SyntaxNode | None, SyntaxNode | None, bool]:
        """Read LIMIT or FETCH, and OFFSET; return both numbers, and whether WITH TIES is present."""
        reader = self._reader
        limit: SyntaxNode | None = None
        offset: SyntaxNode | None = None
        has_limit = has_offset = with_ties = False
        while True:
            if not has_limit and reader.accept_word("limit"):
                has_limit = True
                limit = None if reader.accept_word("all") else self.expressions.parse()
                if reader.is_symbol(","):
                    message = "LIMIT #,# syntax is not supported"
                    raise SqlError(
                        "42601", message, hint="Use separate LIMIT and OFFSET clauses.", offset=reader.offset
                    )
            elif not has_limit and reader.is_word("fetch") and reader.ahead().value in {"first", "next"}:
                has_limit = True
                limit, with_ties = self._fetch_first()
            elif not has_offset and reader.accept_word("offset"):
                has_offset = True
                offset = self.expressions.parse()
                reader.accept_word("row", "rows")
            else:
                return limit, offset, with_ties

    def _fetch_first(self) -> tuple[SyntaxNode, bool]:
        reader = self._reader
        reader.next()
        reader.next()
        limit: SyntaxNode = NumberLiteral("1", reader.offset)
        if not reader.is_word("row", "rows"):
            limit = self.expressions.parse()
        reader.expect_word("row", "rows")
        with_ties = reader.accept_words("with", "ties")
        if not with_ties:
            reader.expect_word("only")
        return limit, with_ties

    def _locks(self) -> bool:
        """Read clauses that lock rows, which have no effect: transactions are serializable. Return whether any came."""
        reader = self._reader
        has_locks = False
        while reader.is_word("for") and reader.ahead().value in {"update", "share", "no", "key"}:
            has_locks = True
            reader.next()
            if not any(reader.accept_words(*words) for words in _LOCKS):
                raise reader.error()
            if reader.accept_word("of"):
                reader.list_of(reader.qualified_name)
            if not reader.accept_word("nowait"):
                reader.accept_words("skip", "locked")
        return has_locks
