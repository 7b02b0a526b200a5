"""From a text to its statements."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import SyntaxNode, TypeName
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.statement import Statement
from derive.sql.parser.statements import StatementParser
from derive.sql.parser.suggestions import with_suggestion
from derive.sql.parser.text_cache import remembering
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind, tokens_of
from derive.sql.parser.type_names import parse_type


@remembering
def split(text: str) -> tuple[tuple[int, str], ...]:
    """The statements of a text, each behind where it begins, without the empty ones and without semicolons.

    Raises:
        SqlError: 42601, for a text that cannot be cut into tokens.
    """
    statements = []
    begin: int | None = None
    end = 0
    for token in tokens_of(text):
        is_end = token.kind is TokenKind.END or (token.kind is TokenKind.SYMBOL and token.value == ";")
        if is_end and begin is not None:
            statements.append((begin, text[begin:end]))
            begin = None
        elif not is_end:
            begin = token.offset if begin is None else begin
            end = token.end
    return tuple(statements)


@remembering
def parse(text: str) -> Statement | None:
    """The statement of a text; None if there is none.

    Args:
        text: of one statement, with or without a semicolon behind it.

    Raises:
        SqlError: 42601 for what is no SQL, 0A000 for SQL that is not supported, and others.
    """
    try:
        return _parse(TokenReader(text))
    except SqlError as error:
        raise with_suggestion(error, text, _parse) from None
    except RecursionError:
        raise too_complex() from None


def _parse(reader: TokenReader) -> Statement | None:
    while reader.accept_symbol(";"):
        pass
    if reader.is_end():
        return None
    statement = StatementParser(reader).parse()
    if reader.is_symbol(";"):
        reader.next()
        if not reader.is_end():
            raise SqlError("42601", "cannot insert multiple commands into a prepared statement", offset=reader.offset)
    reader.expect_end()
    return statement


def parse_expression(text: str) -> SyntaxNode:
    """The expression of a text, and nothing else."""
    reader = TokenReader(text)
    expression = QueryParser(reader).expressions.parse()
    reader.expect_end()
    return expression


def parse_type_name(text: str) -> TypeName:
    """The type that a text names."""
    reader = TokenReader(text)
    name = parse_type(reader)
    reader.expect_end()
    return name


def too_complex() -> SqlError:
    """An expression is nested so deeply that it cannot be worked out."""
    hint = "Write it with fewer parentheses, or in several steps."
    return SqlError("54001", "stack depth limit exceeded", hint=hint)
