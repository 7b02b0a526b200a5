"""Blocks of SQL: splits them into statements and tokens, and inspects the statements before the first document.

A stored expression is part of an index, a CHECK or a generated column. SQLite evaluates it when a row is written, and
uses the result when the row is read or deleted. If the value depended on the present time, it would differ between the
documents that write and delete the row, so deleted rows would be found. SQLite refuses its own time functions in stored
expressions, but cannot see that the overriding functions follow the document.

SQLite itself finds the end of a statement: each statement is prepared, and the remaining text is the rest of the block.
So a semicolon in a string, in a trigger's body or in an explicit parameter ends no statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import apsw

from derive.errors import Issue, LambdaError
from derive.lambda_sql.determinism import TIMES
from derive.lambda_sql.guard import Guard
from derive.position import Position, Script

_TOKEN = re.compile(
    r"""
    (?P<nothing> [\s\ufeff]+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] )
    | (?P<parameter> [$@:#](?:[\w$]|::)*(?:\([^\s)]*\))? )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = frozenset("(),;=<>+|")
"""Tokens that need no space beside them."""

_BEFORE_ROLLBACK = frozenset({("INSERT", "OR"), ("UPDATE", "OR"), ("ON", "CONFLICT"), ("RAISE", "(")})


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement.

    Attributes:
        begin: start in the statement.
        word: text in upper case; empty if the token is quoted.
        name: text in lower case, without quotes.
        is_quoted: whether the token is quoted: a text or a name.
    """

    begin: int
    word: str
    name: str
    is_quoted: bool


@lru_cache(maxsize=64)
def tokens_of(sql: str) -> tuple[Token, ...]:
    """Return the tokens of a statement, without space and comments."""
    tokens = []
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "nothing":
            continue
        is_quoted, text = token.lastgroup == "quoted", token[0]
        name = text[1:-1] if is_quoted else text
        tokens.append(Token(token.start(), "" if is_quoted else text.upper(), name.lower(), is_quoted))
    return tuple(tokens)


def written_tokens(sql: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each token of a statement, without space and comments."""
    return ((token.start(), token[0]) for token in _TOKEN.finditer(sql) if token.lastgroup != "nothing")


def find_rollback(sql: str) -> int | None:
    """Return the offset of a clause that lets a conflict roll back the whole transaction; None if missing.

    The clauses are `INSERT OR ROLLBACK`, `UPDATE OR ROLLBACK`, `ON CONFLICT ROLLBACK` of a constraint, and
    `RAISE(ROLLBACK, …)` of a trigger. In other places, the word may be a name.

    Args:
        sql: one statement that prepares.
    """
    before = ("", "")
    for token in _TOKEN.finditer(sql):
        if token.lastgroup == "nothing":
            continue
        text = token[0].upper() if token.lastgroup in ("word", "other") else ""
        if text == "ROLLBACK" and before in _BEFORE_ROLLBACK:
            return token.start()
        before = (before[1], text)
    return None


def outer_tokens(sql: str) -> list[tuple[int, str]]:
    """Return the offset and the text of each token outside brackets, and of the outer brackets themselves.

    Args:
        sql: one statement that prepares.
    """
    tokens: list[tuple[int, str]] = []
    depth = 0
    for token in _TOKEN.finditer(sql):
        depth -= token[0] == ")"
        if not depth and token.lastgroup != "nothing":
            tokens.append((token.start(), token[0]))
        depth += token[0] == "("
    return tokens


def parameters_of(sql: str) -> tuple[str, ...]:
    """Return the parameters of a statement in binding order, as written.

    Args:
        sql: one statement that prepares.
    """
    return tuple(dict.fromkeys(token[0] for token in _TOKEN.finditer(sql) if token.lastgroup == "parameter"))


def shorten(sql: str, parameters: Sequence[str]) -> str:
    """Return a statement without comments and needless space, with numbered parameters.

    SQLite finds a cached statement by its text, so each character costs a nanosecond per document. The name of a column
    without an alias is the text of the column, so the shortened statement may have other column names.

    Args:
        sql: one statement that prepares.
        parameters: names of its parameters in binding order, without `$`.

    Returns:
        The shortened statement; the statement unchanged if it has other parameters.
    """
    numbers = {name: f"?{number}" for number, name in enumerate(parameters, start=1)}
    written: list[str] = []
    is_apart = False
    for token in _TOKEN.finditer(sql):
        kind, text = token.lastgroup, token[0]
        if kind == "nothing":
            is_apart = bool(written)
            continue
        if kind == "parameter":
            if text[1:] not in numbers:
                return sql
            text = numbers[text[1:]]
        if is_apart and written[-1] not in _ENDS and text not in _ENDS:
            written.append(" ")
        is_apart = False
        written.append(text)
    return "".join(written)


_PRESENT, _ZONES = frozenset({"now", "subsec", "subsecond"}), frozenset({"localtime", "utc"})
_CURRENT = frozenset({"current_date", "current_time", "current_timestamp"})


def find_present(sql: str) -> tuple[int, str] | None:
    """Return the position and the name of a call in a stored expression that asks for the present or the time zone.

    Return None without such a call.

    >>> find_present("CREATE INDEX live ON t (k) WHERE until > unixepoch('now')")
    (41, 'unixepoch')

    Args:
        sql: one statement that prepares.
    """
    tokens = tokens_of(sql)
    for begin, end in _kept(tokens):
        for place in range(begin, end):
            name = tokens[place].name
            if name in _CURRENT or (_calls(tokens, place) and _asks(name, _arguments(tokens, place + 1))):
                return tokens[place].begin, name
    return None


def _kept(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield the range of tokens of each expression that the schema stores."""
    words = [token.word for token in tokens]
    if words[:2] == ["CREATE", "INDEX"] or words[:3] == ["CREATE", "UNIQUE", "INDEX"]:
        yield 0, len(tokens)
    if words[:1] == ["ALTER"] or (words[:2] == ["CREATE", "TABLE"] and not _is_selected(words)):
        for place in range(1, len(words)):
            if words[place] == "(" and words[place - 1] in ("CHECK", "AS"):
                yield place, _end_of(words, place)


def _is_selected(words: Sequence[str]) -> bool:
    """Return whether a CREATE TABLE has a SELECT; such a table stores rows, and no expressions."""
    return "AS" in words and ("(" not in words or words.index("AS") < words.index("("))


def _end_of(words: Sequence[str], place: int) -> int:
    """Return the place after the bracket that closes the bracket at `place`."""
    depth = 0
    for end in range(place, len(words)):
        depth += (words[end] == "(") - (words[end] == ")")
        if not depth:
            return end + 1
    return len(words)


def _calls(tokens: Sequence[Token], place: int) -> bool:
    return place + 1 < len(tokens) and tokens[place + 1].word == "("


def _arguments(tokens: Sequence[Token], place: int) -> list[list[Token]]:
    """Return the arguments of a call whose opening bracket is at `place`."""
    end = _end_of([token.word for token in tokens], place)
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[place + 1 : end - 1]:
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and not depth:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return arguments if arguments[0] else []


def _asks(function: str, arguments: Sequence[Sequence[Token]]) -> bool:
    """Return whether a call of a time function with these arguments depends on the present time or the time zone."""
    if function == "timediff":
        return any(_says(argument, _PRESENT) for argument in arguments)
    index = TIMES.get(function)
    if index is None:
        return False
    if len(arguments) <= index:
        return True
    return _says(arguments[index], _PRESENT) or any(_says(argument, _ZONES) for argument in arguments[index + 1 :])


def _says(argument: Sequence[Token], words: frozenset[str]) -> bool:
    return any(token.is_quoted and token.name in words for token in argument)


_NOTHING = re.compile(r"(?:[\s;\ufeff]|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_TRAILING_COMMENT = re.compile(r"\s*(?:--[^\n]*|/\*.*?\*/)\s*\Z", re.DOTALL)
_WORD = re.compile(r"[\w$]+|.", re.DOTALL)
_FORBIDDEN = re.compile(r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|PRAGMA|VACUUM)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a block.

    Attributes:
        text: SQL text, with its semicolon unless the block ends without one.
        offset: start in the block's text, including comments before the statement.
        begin: start of the first word in the block's text.
        parameters: names of its parameters in binding order, without `$`.
        columns: names of its result columns; empty if it returns no rows.
        reads: tables that the statement or its triggers read.
        writes: tables that the statement or its triggers write or alter.
        read_columns: tables and columns that the statement or its triggers read.
        calls: functions that the statement or its triggers call, in lower case.
        origins: for each result column, its source table and column; None for a computed column.
    """

    text: str
    offset: int
    begin: int
    parameters: tuple[str, ...]
    columns: tuple[str, ...]
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    read_columns: frozenset[tuple[str, str]] = frozenset()
    calls: frozenset[str] = frozenset()
    origins: tuple[tuple[str, str] | None, ...] = ()


def read_block(guard: Guard, script: Script, what: str) -> Iterator[Statement | Issue]:
    """Yield the statements of a block, each prepared when it is pulled, without running it.

    For a statement that cannot be prepared or is forbidden, an `Issue` is yielded, and the next statement follows.
    Comments alone are no statement.

    Args:
        guard: active guard; its database has the tables that the block refers to.
        script: the block.
        what: name of the block in issues.
    """
    text = script.text
    if "\0" in text:
        yield Issue("E524", f"{what} contains a NUL character", script.locate(text.index("\0")))
        return
    offset = 0
    while (begin := _skip_nothing(text, offset)) < len(text):
        statement = _prepare_first(guard, script, offset, begin, what)
        yield statement
        offset = offset + len(statement.text) if isinstance(statement, Statement) else _end_of_statement(text, begin)


def split_block(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each statement of a block, without preparing it."""
    offset = 0
    while (begin := _skip_nothing(text, offset)) < len(text):
        offset = _end_of_statement(text, begin)
        yield begin, text[begin:offset]


def first_issue(issue: Issue) -> LambdaError:
    """Return the error that stops a task because of its first issue."""
    return LambdaError(issue.message, position=issue.position, hint=issue.hint)


def _skip_nothing(text: str, offset: int) -> int:
    match = _NOTHING.match(text, offset)
    return match.end() if match else offset


def _end_of_statement(text: str, begin: int) -> int:
    for match in re.compile(";").finditer(text, begin):
        if apsw.complete(text[begin : match.end()]):
            return match.end()
    return len(text)


def _prepare_first(guard: Guard, script: Script, offset: int, begin: int, what: str) -> Statement | Issue:
    forbidden = _FORBIDDEN.match(script.text, begin)
    if forbidden:
        message = f"{what} may not use {forbidden[1].upper()}: the runtime owns the transaction and the database"
        return Issue("E525", message, script.locate(begin, len(forbidden[1])))
    rest = script.text[offset:]
    guard.forget()
    try:
        inspected = _inspect(guard.db, rest)
    except apsw.BindingsError:
        mark = max(begin, script.text.find("?", begin))
        return Issue("E523", f"{what} has a parameter without a name", script.locate(mark, 1), "write $field")
    except apsw.Error as exc:
        if guard.refusal:
            return Issue("E525", f"{what} {guard.refusal}", _refused_position(guard, script, begin))
        size: int = getattr(exc, "error_offset", -1)
        fault = _unknown_table(script.text, begin, str(exc)) if size < 0 else offset + _characters(rest, size)
        word = _WORD.match(script.text, fault)
        return Issue("E522", f"{what} is refused by SQLite: {exc}", script.locate(fault, len(word[0]) if word else 1))
    return _refusal(inspected, script, offset, begin, what) or Statement(
        text=inspected.text,
        offset=offset,
        begin=begin,
        parameters=inspected.parameters,
        # The name of a column extends to the next comma, including comments before the comma.
        columns=tuple(_without_comments(column) for column in inspected.columns),
        reads=frozenset(guard.reads),
        writes=frozenset(guard.writes),
        read_columns=frozenset(guard.columns),
        calls=frozenset(guard.calls),
        origins=inspected.origins,
    )


def _unknown_table(text: str, begin: int, fault: str) -> int:
    """Return the offset of the table that a statement names and a database lacks; `begin` for other faults."""
    _, is_missing, table = fault.partition("no such table: ")
    name = table.rpartition(".")[2].lower()
    named = (token.begin for token in tokens_of(text[begin:]) if token.name == name) if is_missing else iter(())
    return begin + next(named, 0)


def _refusal(inspected: _Inspected, script: Script, offset: int, begin: int, what: str) -> Issue | None:
    """Return the issue of a forbidden statement that SQLite's authorizer does not see; None if it is allowed."""
    rollback, present = find_rollback(inspected.text), find_present(inspected.text)
    if rollback is not None:
        message = f"{what} may not use ROLLBACK to resolve a conflict: the runtime owns the transaction"
        position = script.locate(offset + rollback, len("ROLLBACK"))
        return Issue("E525", message, position, "use ABORT, the default: it fails, too")
    if present is not None:
        message = (
            f"{what} may not use the present time in an index, a CHECK or a generated column:"
            " the result would become outdated"
        )
        position = script.locate(offset + present[0], len(present[1]))
        return Issue("E525", message, position, "call the function in the lambda, or store its result in a column")
    if inspected.is_explain:
        message = f"{what} may not use EXPLAIN: plans differ between machines"
        return Issue("E525", message, script.locate(begin, len("EXPLAIN")))
    return None


@dataclass(frozen=True, slots=True)
class _Inspected:
    """SQLite's description of a statement: its text, names of parameters and columns, and origins of columns."""

    text: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]
    origins: tuple[tuple[str, str] | None, ...]
    is_explain: bool


class _Nulls(dict[str, None]):
    """A mapping from every parameter name to null."""

    def __missing__(self, name: str) -> None:
        """Return null for any name."""


def _inspect(db: apsw.Connection, text: str) -> _Inspected:
    """Inspect the first of several statements, without running it.

    `apsw.ext` has the same function, but its import takes longer than the check of most lambdas.

    Raises:
        BindingsError: the statement has a parameter without a name.
    """
    inspected: list[_Inspected] = []

    def look(cursor: apsw.Cursor, statement: str, _: apsw.Bindings | None) -> bool:
        described = cursor.description_full
        columns = tuple(column[0] for column in described)
        origins = tuple((column[3], column[4]) if column[3] and column[4] else None for column in described)
        parameters = tuple(map(str, cursor.bindings_names))
        inspected.append(_Inspected(statement, parameters, columns, origins, bool(cursor.is_explain)))
        return False

    cursor = db.cursor()
    cursor.exec_trace = look
    with suppress(apsw.ExecTraceAbort):
        cursor.execute(text, _Nulls(), can_cache=False)
    return inspected[0]


def _refused_position(guard: Guard, script: Script, begin: int) -> Position:
    """Return the position of the refused table or function, or of the statement if the name is not found."""
    text, word = script.text, None
    if guard.refused:
        name = re.compile(re.escape(guard.refused), re.IGNORECASE)
        word = name.search(text, begin, _end_of_statement(text, begin))
    word = word or _WORD.match(text, begin)
    return script.locate(word.start(), len(word[0])) if word else script.locate(begin)


def _characters(text: str, size: int) -> int:
    """Return the number of characters in the first `size` bytes of UTF-8, the unit of SQLite's offsets."""
    return len(text.encode()[:size].decode(errors="ignore"))


def _without_comments(column: str) -> str:
    shorter = _TRAILING_COMMENT.sub("", column)
    return column if shorter == column else _without_comments(shorter)
