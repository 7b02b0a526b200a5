"""Parser of CREATE FUNCTION, DROP FUNCTION and CREATE DOMAIN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName, TypeName
from derive.sql.parser.expressions import OTHER
from derive.sql.parser.object_definitions import CreateDomain, CreateFunction, DropFunction
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.type_names import parse_type

_FUNCTION_OPTIONS: tuple[tuple[tuple[str, ...], Mapping[str, Any] | None], ...] = (
    (("immutable",), {"volatility": "i"}),
    (("stable",), {"volatility": "s"}),
    (("volatile",), {"volatility": "v"}),
    (("strict",), {"is_strict": True}),
    (("returns", "null", "on", "null", "input"), {"is_strict": True}),
    (("called", "on", "null", "input"), {"is_strict": False}),
    (("not", "leakproof"), {}),
    (("leakproof",), {}),
    (("cost",), {}),
    (("rows",), {}),
    (("window",), None),
    (("support",), None),
    (("set",), None),
    (("transform",), None),
    (("security", "invoker"), {}),
    (("security", "definer"), {}),
    (("external", "security", "invoker"), {}),
    (("external", "security", "definer"), {}),
    (("parallel", "safe"), {}),
    (("parallel", "unsafe"), {}),
    (("parallel", "restricted"), {}),
)
"""Words of an option of CREATE FUNCTION, with its meaning; None for an option that is not supported."""


def parse_create_function(reader: TokenReader, queries: QueryParser, or_replace: bool) -> CreateFunction:
    """Read the part of `CREATE FUNCTION` after these words."""
    name = reader.qualified_name()
    arguments: tuple[tuple[str | None, TypeName], ...] = ()
    if reader.is_symbol("(") and reader.ahead().value == ")":
        reader.next()
        reader.next()
    else:
        arguments = reader.in_parentheses(lambda: _function_argument(reader))
    named = [argument for argument, _ in arguments if argument is not None]
    if len(set(named)) < len(named):
        raise SqlError("42P13", "parameter name used more than once", offset=name.offset)
    reader.expect_word("returns")
    if reader.is_word("setof", "table", "trigger", "void"):
        what = f"functions that return {reader.token.value.upper()}"
        hint = "Use a view for a query with several rows or columns."
        raise SqlError("0A000", f"{what} are not supported", offset=reader.offset, hint=hint)
    created = CreateFunction(name, arguments, parse_type(reader), "", or_replace=or_replace)
    language: str | None = None
    while not reader.is_end() and not reader.is_symbol(";"):
        if reader.is_word("language"):
            language = _language(reader)
        elif (body := _body(reader, queries)) is not None:
            created = replace(created, body=body)
        else:
            created = _with_option(reader, created)
    if language is None and not created.body.startswith(_RETURN):
        raise SqlError("42P13", "no language specified", offset=name.offset, hint="Write LANGUAGE SQL.")
    if not created.body:
        raise SqlError("42P13", "no function body specified", offset=name.offset, hint="Write AS 'SELECT …'.")
    return created


_RETURN = "SELECT\n"
"""Begin of the body of a function with RETURN, which needs no LANGUAGE."""


def _language(reader: TokenReader) -> str:
    where = reader.expect_word("language").offset
    language = (reader.string() if reader.token.kind is TokenKind.STRING else reader.any_name()).lower()
    if language != "sql":
        hint = "Write the function in SQL, or use a derivation for code in another language."
        raise SqlError("0A000", f"functions in language {language} are not supported", offset=where, hint=hint)
    return language


def _body(reader: TokenReader, queries: QueryParser) -> str | None:
    """Read the body of a function; return None if another clause is next."""
    if reader.accept_word("as"):
        return reader.string()
    if reader.accept_word("return"):
        begin = reader.offset
        queries.expressions.parse()
        return _RETURN + reader.text[begin : reader.end_before]
    if reader.is_word("begin"):
        hint = "Write RETURN expression, or AS 'SELECT …'."
        raise SqlError("0A000", "BEGIN ATOMIC is not supported", offset=reader.offset, hint=hint)
    return None


_WITHIN_TYPES = frozenset({"precision", "varying", "with", "without", "array", "default"})
"""Words behind the first word of a type, and behind a type."""


def _function_argument(reader: TokenReader) -> tuple[str | None, TypeName]:
    offset = reader.offset
    if reader.is_word("out", "inout", "variadic"):
        hint = "Write arguments that are values, and RETURNS for the result."
        raise SqlError("0A000", f"{reader.token.value.upper()} arguments are not supported", offset=offset, hint=hint)
    if reader.is_word("in") and reader.ahead().value not in {",", ")"}:
        reader.next()
    name, following = None, reader.ahead()
    if following.kind in {TokenKind.WORD, TokenKind.NAME} and following.value not in _WITHIN_TYPES:
        name = reader.any_name()
    kind = parse_type(reader)
    if reader.is_symbol("=") or reader.is_word("default"):
        hint = "Create one function for each number of arguments."
        raise SqlError("0A000", "defaults of arguments are not supported", offset=reader.offset, hint=hint)
    return name, kind


def _with_option(reader: TokenReader, created: CreateFunction) -> CreateFunction:
    for words, changed in _FUNCTION_OPTIONS:
        if not reader.is_words(*words):
            continue
        if changed is None:
            message = f"{words[0].upper()} of a function is not supported"
            raise SqlError("0A000", message, offset=reader.offset, hint="Omit the option.")
        reader.expect_words(*words)
        if words[0] in {"cost", "rows"}:
            reader.next()
        return replace(created, **changed)
    raise reader.error()


def parse_drop_function(reader: TokenReader) -> DropFunction:
    """Read the part of `DROP FUNCTION` after these words."""
    if_exists = reader.accept_words("if", "exists")

    def name() -> tuple[QualifiedName, tuple[TypeName, ...] | None]:
        own = reader.qualified_name()
        if not reader.is_symbol("("):
            return own, None
        if reader.ahead().value == ")":
            reader.next()
            reader.next()
            return own, ()
        return own, tuple(kind for _, kind in reader.in_parentheses(lambda: _function_argument(reader)))

    names = reader.list_of(name)
    return DropFunction(names, if_exists, reader.accept_word("cascade", "restrict") == "cascade")


def parse_create_domain(reader: TokenReader, queries: QueryParser) -> CreateDomain:
    """Read the part of `CREATE DOMAIN` after these words."""
    name = reader.qualified_name()
    reader.accept_word("as")
    created = CreateDomain(name, parse_type(reader))
    given: bool | None = None
    while not reader.is_end() and not reader.is_symbol(";"):
        where = reader.offset
        constraint = reader.name() if reader.accept_word("constraint") else None
        is_nullable = None
        if reader.accept_words("not", "null"):
            is_nullable = False
        elif reader.accept_word("null"):
            is_nullable = True
        elif reader.accept_word("default"):
            begin = reader.offset
            queries.expressions.parse(OTHER)  # stops before NOT NULL
            created = replace(created, default=reader.text[begin : reader.end_before])
        elif reader.accept_word("check"):
            reader.expect_symbol("(")
            begin = reader.offset
            queries.expressions.parse()
            check = constraint, reader.text[begin : reader.end_before]
            reader.expect_symbol(")")
            created = replace(created, checks=(*created.checks, check))
        else:
            raise reader.error()
        if is_nullable is not None:
            if given not in {None, is_nullable}:
                raise SqlError("42601", "conflicting NULL/NOT NULL constraints", offset=where)
            given = is_nullable
            created = replace(created, is_nullable=is_nullable)
    return created
