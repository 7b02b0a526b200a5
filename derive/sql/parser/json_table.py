"""Parser of `JSON_TABLE`, which means a query of the items of a path.

Each level is a SELECT of the items of its path. Nested levels are joined to the item they are in; an item without
nested rows has one row, and several nested levels side by side are united.

```sql
JSON_TABLE(d, '$[*]' COLUMNS (a int, NESTED '$.b[*]' COLUMNS (c int PATH '$')))

SELECT JSON_VALUE(item, '$.a' RETURNING int) AS a, b.c
FROM items(d, '$[*]') item
LEFT JOIN LATERAL (SELECT JSON_VALUE(part, '$' RETURNING int) AS c FROM items(item, '$.b[*]') part) b ON true
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from derive.errors import SqlError
from derive.sql.parser.ast import (
    Alias,
    BooleanLiteral,
    ColumnReference,
    DerivedTable,
    FromItem,
    FunctionCall,
    FunctionTable,
    JoinedTable,
    JoinKind,
    JsonQuery,
    NullLiteral,
    QualifiedName,
    Query,
    QueryBody,
    Select,
    SelectItem,
    SetQuery,
    StringLiteral,
    SyntaxNode,
    TypeCast,
    TypeName,
)
from derive.sql.parser.json_syntax import JsonParser
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.type_names import parse_type

JSON_TABLE = "json_table"
ITEMS = "json_table[items]"
"""The function of the items of a path in a document; its arguments are those of the path, and whether it fails."""
_ITEM, _NUMBER = "json_table[item]", "json_table[number]"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its name, type, and value over the item of its level."""

    name: str
    type: TypeName
    value: SyntaxNode
    offset: int


@dataclass(frozen=True, slots=True)
class _Level:
    """The columns of a path: of its items, and of nested paths, in the order of the text."""

    path: str
    parts: tuple[_Column | _Level, ...]
    offset: int

    @property
    def columns(self) -> Iterator[_Column]:
        """Yield all columns, also of nested paths."""
        for part in self.parts:
            if isinstance(part, _Column):
                yield part
            else:
                yield from part.columns


class JsonTableParser:
    """Parser of one `JSON_TABLE`."""

    def __init__(self, reader: TokenReader, calls: JsonParser) -> None:
        self._reader = reader
        self._calls = calls
        self._passing: tuple[tuple[str, SyntaxNode], ...] = ()
        self._depth = 0
        self._raises = False

    def parse(self) -> DerivedTable:
        """Read a table without its alias."""
        reader, offset = self._reader, self._reader.offset
        reader.expect_word(JSON_TABLE)
        reader.expect_symbol("(")
        document, path = self._calls.document()
        if not isinstance(path, StringLiteral):
            message = "only string constants are supported in JSON_TABLE path specification"
            raise SqlError("0A000", message, offset=path.offset, hint="Write the path as a string.")
        self._path_name()
        self._passing = self._calls.passing()
        level = self._level(path.value, offset)
        behavior = self._calls.behavior("error")
        if behavior is not None and behavior.kind not in {"error", "empty array"}:
            message = "invalid ON ERROR behavior"
            hint = "JSON_TABLE allows ERROR and EMPTY ON ERROR."
            raise SqlError("42601", message, offset=behavior.offset, hint=hint)
        self._raises = behavior is not None and behavior.kind == "error"
        reader.expect_symbol(")")
        self._check_names(level)
        return DerivedTable(_query(self._select(level, document)), True, None, offset)

    def _path_name(self) -> None:
        if self._reader.accept_word("as"):
            self._reader.name()

    def _level(self, path: str, offset: int) -> _Level:
        reader = self._reader
        reader.expect_word("columns")
        self._depth += 1
        parts = reader.in_parentheses(self._part)
        self._depth -= 1
        return _Level(path, parts, offset)

    def _part(self) -> _Column | _Level:
        reader, offset = self._reader, self._reader.offset
        behind = reader.ahead()
        if reader.is_word("nested") and (behind.kind is TokenKind.STRING or reader.is_words("nested", "path")):
            reader.next()
            reader.accept_word("path")
            path = reader.string()
            self._path_name()
            return self._level(path, offset)
        name = reader.name()
        if reader.accept_words("for", "ordinality"):
            integer = TypeName("int4", (), offset)
            number = ColumnReference((_row(self._depth), _NUMBER), offset)
            return _Column(name, integer, TypeCast(number, integer, offset), offset)
        kind = parse_type(reader)
        return _Column(name, kind, self._value(name, kind, offset), offset)

    def _value(self, name: str, kind: TypeName, offset: int) -> SyntaxNode:
        """Read the clauses of a column behind its type."""
        reader = self._reader
        item = ColumnReference((_row(self._depth), _ITEM), offset)
        is_test = reader.accept_word("exists") is not None
        is_document = kind.is_array or kind.name in {"json", "jsonb"}
        is_document = (not is_test and self._calls.reads_format()) or is_document
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        path = StringLiteral(f'$."{quoted}"', offset)
        if reader.accept_word("path"):
            path = StringLiteral(reader.string(), reader.offset)
        function = "json_exists" if is_test else "json_query" if is_document else "json_value"
        query = JsonQuery(function, item, path, (), offset)
        if is_test:
            return TypeCast(self._calls.clauses(query), kind, offset)
        return self._calls.read_query(replace(query, returning=kind))

    @staticmethod
    def _check_names(level: _Level) -> None:
        names: set[str] = set()
        for column in level.columns:
            if column.name in names:
                message = f"duplicate JSON_TABLE column or path name: {column.name}"
                raise SqlError("42712", message, offset=column.offset)
            names.add(column.name)

    def _select(self, level: _Level, document: SyntaxNode, depth: int = 1) -> Select:
        """Return the query of a level."""
        offset = level.offset
        items = tuple(self._item(column, level, depth) for column in level.columns)
        arguments = (document, StringLiteral(level.path, offset), self._variables(offset))
        raising = BooleanLiteral(self._raises, offset)
        call = FunctionCall(QualifiedName(None, ITEMS, offset), (*arguments, raising), offset, is_special=True)
        table: FromItem = FunctionTable(call, True, Alias(_row(depth), (_ITEM, _NUMBER), offset), offset)
        nested = [part for part in level.parts if isinstance(part, _Level)]
        if nested:
            united = _query(self._united(nested, depth + 1))
            inner = DerivedTable(united, True, Alias(_nested(depth), (), offset), offset)
            yes = BooleanLiteral(True, offset)
            table = JoinedTable(JoinKind.LEFT, table, inner, yes, None, False, None, offset)
        return Select(items, False, (), (table,), None, None, None, (), offset)

    def _item(self, column: _Column, level: _Level, depth: int) -> SelectItem:
        if column not in level.parts:
            return SelectItem(ColumnReference((_nested(depth), column.name), column.offset), column.name, column.offset)
        value = column.value
        if isinstance(value, JsonQuery):
            value = replace(value, passing=self._passing)
        elif isinstance(value, TypeCast) and isinstance(value.operand, JsonQuery):
            value = replace(value, operand=replace(value.operand, passing=self._passing))
        return SelectItem(value, column.name, column.offset)

    def _united(self, levels: list[_Level], depth: int) -> QueryBody:
        """Return the rows of nested levels; a row has NULL in the columns of other levels."""
        columns = [column for level in levels for column in level.columns]
        queries: list[QueryBody] = []
        for level in levels:
            document = ColumnReference((_row(depth - 1), _ITEM), level.offset)
            select = self._select(level, document, depth)
            own = {item.name: item for item in select.items}
            items = tuple(own.get(column.name) or _missing(column) for column in columns)
            queries.append(replace(select, items=items))
        united = queries[0]
        for query in queries[1:]:
            united = SetQuery("UNION", True, united, query, query.offset)
        return united

    def _variables(self, offset: int) -> SyntaxNode:
        pairs = tuple(part for name, value in self._passing for part in (StringLiteral(name, offset), value))
        return FunctionCall(QualifiedName(None, "jsonb_build_object", offset), pairs, offset, is_special=True)


def _row(depth: int) -> str:
    """Return the name of the items of a level, which no other relation has."""
    return f"json_table[{depth}]"


def _nested(depth: int) -> str:
    return f"json_table[in {depth}]"


def _missing(column: _Column) -> SelectItem:
    null = TypeCast(NullLiteral(column.offset), column.type, column.offset)
    return SelectItem(null, column.name, column.offset)


def _query(body: QueryBody) -> Query:
    return Query(body, (), False, (), None, None, body.offset)
