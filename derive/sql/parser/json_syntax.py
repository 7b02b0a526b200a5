"""Parser of the constructors and query functions of SQL/JSON, whose clauses are words.

The constructors mean calls of other functions: `JSON_OBJECT('a': 1)` means `json_build_object('a', 1)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from derive.errors import SqlError
from derive.sql.parser.ast import (
    ArrayQuery,
    Construct,
    FunctionCall,
    JsonBehavior,
    JsonQuery,
    QualifiedName,
    Query,
    StringLiteral,
    SyntaxNode,
    TypeCast,
    TypeName,
)
from derive.sql.parser.tokens import TokenReader
from derive.sql.parser.type_names import parse_type
from derive.sql.parser.windows import parse_sort_items


class Expressions(Protocol):
    """The parser of expressions."""

    def parse(self) -> SyntaxNode:
        """Read an expression."""
        ...


class Queries(Protocol):
    """The parser of queries."""

    def begins_query(self) -> bool:
        """Return whether a query is next."""
        ...

    def parse_if_query(self) -> Query | None:
        """Read a query before a closing parenthesis; return None if the text is an expression."""
        ...


_QUERY_FUNCTIONS = frozenset({"json_exists", "json_value", "json_query"})
JSON_CALLS = _QUERY_FUNCTIONS | {
    *("json_object", "json_array", "json_objectagg", "json_arrayagg"),
    *("json", "json_scalar", "json_serialize"),
}
"""Names of the functions with a syntax of their own."""
_JSON_TYPES = frozenset({"json", "jsonb"})
_TEXTS = frozenset({"text", "varchar", "bpchar", "name"})
_BEHAVIORS = ("error", "null", "true", "false", "unknown", "empty", "default")

AggregateEnd = Callable[[FunctionCall], FunctionCall]
"""A function that reads FILTER and OVER behind an aggregate."""


class JsonParser:
    """Parser of the calls of SQL/JSON."""

    def __init__(self, reader: TokenReader, expressions: Expressions, queries: Queries, read_end: AggregateEnd) -> None:
        self._reader = reader
        self._expressions = expressions
        self._queries = queries
        self._read_end = read_end
        self._forms: dict[str, Callable[[int], SyntaxNode | None]] = {
            "json_object": self._object,
            "json_array": self._array,
            "json_objectagg": self._object_aggregate,
            "json_arrayagg": self._array_aggregate,
            "json": self._document,
            "json_scalar": self._scalar,
            "json_serialize": self._serialized,
            **{name: self._querying(name) for name in _QUERY_FUNCTIONS},
        }

    def parse(self, word: str, offset: int) -> SyntaxNode | None:
        """Read the call of a function with a syntax of its own, and its parentheses; return None for another call."""
        form = self._forms.get(word)
        if form is None:
            return None
        mark = self._reader.mark()
        self._reader.next()
        self._reader.expect_symbol("(")
        value = form(offset)
        if value is None:
            self._reader.return_to(mark)
        return value if value is None or isinstance(value, JsonQuery) else Construct(word, value, offset)

    # Constructors

    def _object(self, offset: int) -> SyntaxNode | None:
        """Read the pairs of `JSON_OBJECT`; return None for a call of the function of arrays of texts."""
        reader = self._reader
        members: list[SyntaxNode] = []
        if not reader.is_symbol(")") and not self._begins_clause():
            key = self._expressions.parse()
            if not members and not self._begins_value():
                return None
            members += (key, self._value_behind_key())
            while reader.accept_symbol(","):
                members += (self._expressions.parse(), self._value_behind_key())
        is_strict, is_unique = self._on_null(is_strict=False), self._unique()
        returning = self._returning()
        reader.expect_symbol(")")
        options = " ".join(["unique"] * is_unique + ["strict"] * is_strict)
        prefix = _prefix(returning)
        return _returned(_called(f"{prefix}_object[{options}]", tuple(members), offset), returning)

    def _array(self, offset: int) -> SyntaxNode:
        """Read the elements of `JSON_ARRAY`, or its query."""
        reader = self._reader
        if self._queries.begins_query() and (query := self._queries.parse_if_query()) is not None:
            self._format()
            returning = self._returning()
            reader.expect_symbol(")")
            return _returned(_called("json_array[of query]", (ArrayQuery(query, offset),), offset), returning)
        elements: tuple[SyntaxNode, ...] = ()
        if not reader.is_symbol(")") and not self._begins_clause():
            elements = reader.list_of(self._value)
        is_strict = self._on_null(is_strict=True)
        returning = self._returning()
        reader.expect_symbol(")")
        name = "json_array[strict]" if is_strict else "json_build_array"
        return _returned(_called(name, elements, offset), returning)

    def _object_aggregate(self, offset: int) -> SyntaxNode:
        key = self._expressions.parse()
        value = self._value_behind_key()
        is_strict, is_unique = self._on_null(is_strict=False), self._unique()
        returning = self._returning()
        self._reader.expect_symbol(")")
        name = f"{_prefix(returning)}_object_agg{'_unique' * is_unique}{'_strict' * is_strict}"
        call = FunctionCall(QualifiedName(None, name, offset), (key, value), offset)
        return _returned(self._read_end(call), returning)

    def _array_aggregate(self, offset: int) -> SyntaxNode:
        reader = self._reader
        value = self._value()
        order = parse_sort_items(reader, self._expressions.parse) if reader.is_words("order", "by") else ()
        is_strict = self._on_null(is_strict=True)
        returning = self._returning()
        reader.expect_symbol(")")
        name = f"{_prefix(returning)}_agg{'_strict' * is_strict}"
        call = FunctionCall(QualifiedName(None, name, offset), (value,), offset, order=order)
        return _returned(self._read_end(call), returning)

    def _document(self, offset: int) -> SyntaxNode:
        """Read `JSON(text [WITH UNIQUE])`."""
        value = self._expressions.parse()
        self._format()
        is_unique = self._unique()
        self._reader.expect_symbol(")")
        return _called("json[unique]", (value,), offset) if is_unique else _as_json(value, offset)

    def _scalar(self, offset: int) -> SyntaxNode:
        value = self._expressions.parse()
        self._reader.expect_symbol(")")
        return _called("to_json", (value,), offset)

    def _serialized(self, offset: int) -> SyntaxNode:
        value = self._value()
        returning = self._returning() or TypeName("text", (), offset)
        self._reader.expect_symbol(")")
        return _returned(_as_json(value, offset), returning)

    def _begins_value(self) -> bool:
        return self._reader.is_symbol(":") or self._reader.is_word("value")

    def _begins_clause(self) -> bool:
        reader = self._reader
        return any(reader.is_words(*words) for words in (("null", "on"), ("absent", "on"), ("returning",)))

    def _value_behind_key(self) -> SyntaxNode:
        reader = self._reader
        if not reader.accept_symbol(":"):
            reader.expect_word("value")
        return self._value()

    def _value(self) -> SyntaxNode:
        """Read a value, which `FORMAT JSON` makes a document."""
        offset = self._reader.offset
        value = self._expressions.parse()
        return _as_json(value, offset) if self._format() else value

    def _format(self) -> bool:
        """Read `FORMAT JSON [ENCODING UTF8]`, and return whether it is there."""
        reader = self._reader
        if not reader.accept_words("format", "json"):
            return False
        if reader.accept_word("encoding"):
            offset = reader.offset
            encoding = reader.any_name()
            if encoding.lower() not in {"utf8", "utf16", "utf32"}:
                raise SqlError("22023", f"unrecognized JSON encoding: {encoding}", offset=offset)
            if encoding.lower() != "utf8":
                message = f"JSON encoding {encoding.upper()} is not supported"
                raise SqlError("0A000", message, offset=offset, hint="Only UTF8 is supported.")
        return True

    def _on_null(self, *, is_strict: bool) -> bool:
        """Read `NULL ON NULL` or `ABSENT ON NULL`, and return whether NULL is left out."""
        reader = self._reader
        if reader.accept_words("absent", "on", "null"):
            return True
        return False if reader.accept_words("null", "on", "null") else is_strict

    def _unique(self) -> bool:
        reader = self._reader
        is_unique = reader.accept_words("with", "unique")
        if is_unique or reader.accept_words("without", "unique"):
            reader.accept_word("keys")
        return is_unique

    def _returning(self) -> TypeName | None:
        if not self._reader.accept_word("returning"):
            return None
        returning = parse_type(self._reader)
        self._format()
        return returning

    # Queries

    def _querying(self, name: str) -> Callable[[int], SyntaxNode]:
        def read(offset: int) -> SyntaxNode:
            query = JsonQuery(name, *self.document(), self.passing(), offset)
            if name != "json_exists":
                query = replace(query, returning=self._returning())
            query = self.clauses(query)
            self._reader.expect_symbol(")")
            return query

        return read

    def document(self) -> tuple[SyntaxNode, SyntaxNode]:
        """Read a document and a path."""
        offset = self._reader.offset
        document = self._value()
        self._reader.expect_symbol(",")
        return _as_json(document, offset), self._expressions.parse()

    def passing(self) -> tuple[tuple[str, SyntaxNode], ...]:
        """Read the variables of PASSING; return none without it."""
        if not self._reader.accept_word("passing"):
            return ()
        return self._reader.list_of(self._variable)

    def _variable(self) -> tuple[str, SyntaxNode]:
        value = self._value()
        self._reader.expect_word("as")
        return self._reader.any_name(), value

    def clauses(self, query: JsonQuery) -> JsonQuery:
        """Read the wrapper, the quotes, and the behaviors that follow a query."""
        if query.name == "json_query":
            query = replace(query, wrapper=self._wrapper())
            query = self._quotes(query)
        for clause in ("empty", "error"):
            behavior = self.behavior(clause)
            if behavior is not None:
                query = self._with_behavior(query, clause, behavior)
        return query

    def _with_behavior(self, query: JsonQuery, clause: str, behavior: JsonBehavior) -> JsonQuery:
        truths = {"true", "false", "unknown"}
        expected = {
            "json_exists": truths | {"error"},
            "json_value": {"error", "null", "default"},
            "json_query": {"error", "null", "default", "empty array", "empty object"},
        }[query.name]
        if behavior.kind not in expected or (query.name == "json_exists" and clause == "empty"):
            message = f"invalid ON {clause.upper()} behavior"
            listed = ", ".join(sorted(kind.upper() for kind in expected))
            hint = f"{query.name.upper()} allows {listed} ON ERROR."
            raise SqlError("42601", message, offset=behavior.offset, hint=hint)
        return replace(query, on_empty=behavior) if clause == "empty" else replace(query, on_error=behavior)

    def behavior(self, clause: str) -> JsonBehavior | None:
        """Read a behavior `ON EMPTY` or `ON ERROR`; return None if another clause is next."""
        reader, offset = self._reader, self._reader.offset
        if not reader.is_word(*_BEHAVIORS):
            return None
        mark = reader.mark()
        kind = reader.next().value
        value = None
        if kind == "empty":
            kind = f"empty {reader.accept_word('array', 'object') or 'array'}"
        elif kind == "default":
            value = self._expressions.parse()
        if not reader.accept_words("on", clause):
            if not reader.is_words("on", "error"):
                raise reader.error()
            reader.return_to(mark)
            return None
        return JsonBehavior(kind, value, offset)

    def _wrapper(self) -> str:
        reader = self._reader
        has_wrapper = reader.is_word("with")
        if not has_wrapper and not reader.is_word("without"):
            return ""
        reader.next()
        kind = reader.accept_word("conditional", "unconditional") if has_wrapper else None
        reader.accept_word("array")
        reader.expect_word("wrapper")
        return kind or "unconditional" if has_wrapper else ""

    def _quotes(self, query: JsonQuery) -> JsonQuery:
        reader, offset = self._reader, self._reader.offset
        word = reader.accept_word("keep", "omit")
        if word is None:
            return query
        reader.expect_word("quotes")
        if reader.accept_words("on", "scalar"):
            reader.expect_word("string")
        if word == "omit" and query.wrapper:
            message = "SQL/JSON QUOTES behavior must not be specified when WITH WRAPPER is used"
            raise SqlError("42601", message, offset=offset)
        return replace(query, omits_quotes=word == "omit")

    def read_query(self, query: JsonQuery) -> JsonQuery:
        """Read the clauses of a column of JSON_TABLE; a clause of JSON_QUERY makes the column one."""
        is_query = self._reader.is_word("with", "without", "keep", "omit")
        return self.clauses(replace(query, name="json_query") if is_query else query)

    def reads_format(self) -> bool:
        """Read `FORMAT JSON`, and return whether it is there."""
        return self._format()


def _called(name: str, arguments: tuple[SyntaxNode, ...], offset: int) -> FunctionCall:
    return FunctionCall(QualifiedName(None, name, offset), arguments, offset, is_special=True)


def _prefix(returning: TypeName | None) -> str:
    return "jsonb" if returning is not None and returning.name == "jsonb" else "json"


def _as_json(value: SyntaxNode, offset: int) -> SyntaxNode:
    return TypeCast(value, TypeName("json", (), offset), offset)


def _returned(value: SyntaxNode, returning: TypeName | None) -> SyntaxNode:
    """Return a document as a value of the type of RETURNING."""
    if returning is None or (returning.name in _JSON_TYPES and not returning.is_array):
        return value
    if returning.name == "bytea":
        text = TypeCast(value, TypeName("text", (), returning.offset), returning.offset)
        return _called("convert_to", (text, StringLiteral("UTF8", returning.offset)), returning.offset)
    if returning.is_array or returning.name not in _TEXTS:
        message = f"cannot cast type json to {returning.name}"
        raise SqlError("42846", message, offset=returning.offset, hint="Return json, jsonb, text or bytea.")
    return TypeCast(value, returning, returning.offset)
