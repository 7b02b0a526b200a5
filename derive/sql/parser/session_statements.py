"""Parser of statements about transactions, settings, rights and upkeep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from derive.errors import SqlError
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.statement import (
    Discard,
    Grant,
    Refresh,
    Set,
    Show,
    ShowObjects,
    Statement,
    Vacuum,
    VacuumedTable,
)
from derive.sql.parser.tokens import TokenKind, TokenReader
from derive.sql.parser.transaction_statements import (
    Begin,
    Commit,
    ReleaseSavepoint,
    Rollback,
    RollbackTo,
    SetConstraints,
    SetSavepoint,
    SetTransaction,
    TransactionModes,
)

_WORDS = (
    "tables views sources indexes columns objects schemas databases connections clusters roles create hydrations"
    " maintenance replicas"
)
SHOWN_OBJECTS = frozenset(_WORDS.split())
"""Kinds of objects that SHOW lists, in addition to settings."""


def _begin(reader: TokenReader) -> Statement:
    if reader.accept_word("start"):
        reader.expect_word("transaction")
        return Begin(_modes(reader), "START TRANSACTION")
    reader.expect_word("begin")
    reader.accept_word("transaction", "work")
    return Begin(_modes(reader))


def _modes(reader: TokenReader) -> TransactionModes:
    isolation: str | None = None
    is_read_only: bool | None = None
    while not reader.is_end() and not reader.is_symbol(";"):
        if reader.accept_words("isolation", "level"):
            isolation = _isolation(reader)
        elif reader.accept_words("read", "only"):
            is_read_only = True
        elif reader.accept_words("read", "write"):
            is_read_only = False
        elif reader.accept_words("not", "deferrable") or reader.accept_word("deferrable"):
            pass
        else:
            raise reader.error()
        reader.accept_symbol(",")
    return TransactionModes(isolation, is_read_only)


def _isolation(reader: TokenReader) -> str:
    for words in (
        ("serializable",),
        ("strict", "serializable"),
        ("repeatable", "read"),
        ("read", "committed"),
        ("read", "uncommitted"),
    ):
        if reader.accept_words(*words):
            return " ".join(words)
    raise reader.error()


def _ends(ended: Statement) -> Callable[[TokenReader], Statement]:
    def parse(reader: TokenReader) -> Statement:
        offset = reader.offset
        reader.next()
        reader.accept_word("work", "transaction")
        if reader.is_word("prepared"):
            raise SqlError(
                "0A000",
                "prepared transactions are not supported",
                offset=reader.offset,
                hint="Write COMMIT or ROLLBACK alone.",
            )
        if isinstance(ended, Rollback) and reader.accept_word("to"):
            return RollbackTo(*_name_of_savepoint(reader))
        if reader.accept_words("and", "chain"):
            raise SqlError(
                "0A000", "AND CHAIN is not supported", offset=offset, hint="Write BEGIN as the next statement."
            )
        reader.accept_words("and", "no", "chain")
        return ended

    return parse


def _savepoint(reader: TokenReader) -> Statement:
    reader.expect_word("savepoint")
    return SetSavepoint(*reader.located_name())


def _release(reader: TokenReader) -> Statement:
    reader.expect_word("release")
    return ReleaseSavepoint(*_name_of_savepoint(reader))


def _name_of_savepoint(reader: TokenReader) -> tuple[str, int]:
    """Read the name of a savepoint, after the optional word SAVEPOINT; the name may be this word."""
    if reader.ahead().kind is not TokenKind.END:
        reader.accept_word("savepoint")
    return reader.located_name()


def _set_constraints(reader: TokenReader) -> SetConstraints:
    names = None if reader.accept_word("all") else reader.list_of(reader.qualified_name)
    return SetConstraints(names, reader.expect_word("deferred", "immediate").value == "deferred")


def _set(reader: TokenReader) -> Statement:
    reader.expect_word("set")
    if reader.accept_words("session", "characteristics", "as", "transaction"):
        return SetTransaction(_modes(reader), is_session=True)
    if reader.accept_word("constraints"):
        return _set_constraints(reader)
    if reader.accept_word("transaction"):
        return SetTransaction(_modes(reader))
    offset = reader.offset
    if _is_own_role(reader):
        return Set("session_authorization", None, offset)
    is_local = reader.accept_word("local", "session") == "local"
    offset = reader.offset
    name = _special_setting(reader)
    if name is None:
        name = _setting(reader)
        if not reader.accept_word("to"):
            reader.expect_symbol("=")
    if reader.accept_word("default") or (name == "timezone" and reader.accept_word("local")):
        return Set(name, None, offset, is_local)
    return Set(name, reader.list_of(lambda: _value(reader)), offset, is_local)


def _special_setting(reader: TokenReader) -> str | None:
    """Read a setting with a syntax of its own; return None if there is none here."""
    if reader.accept_words("time", "zone"):
        return "timezone"
    if reader.is_word("names") and reader.ahead().kind in {TokenKind.STRING, TokenKind.WORD}:
        reader.next()
        return "client_encoding"
    if reader.is_word("schema") and reader.ahead().kind is TokenKind.STRING:
        reader.next()
        return "search_path"
    return None


def _is_own_role(reader: TokenReader) -> bool:
    """Read a change of role; only the present role of the session is allowed.

    Returns:
        False if the statement is no change of role.

    Raises:
        SqlError: the role is not the present role (0A000).
    """
    offset = reader.offset
    if reader.accept_words("role", "none") or reader.accept_words("session", "authorization", "default"):
        return True
    if reader.is_word("role") or reader.is_words("session", "authorization"):
        raise SqlError(
            "0A000",
            "roles are not supported",
            offset=offset,
            hint="Omit the statement: all users have the same rights.",
        )
    return False


def _setting(reader: TokenReader) -> str:
    parts = [reader.any_name()]
    while reader.accept_symbol("."):
        parts.append(reader.any_name())
    return ".".join(parts).lower()


def _value(reader: TokenReader) -> str:
    token = reader.token
    sign = "-" if reader.accept_symbol("-") else ""
    if not sign:
        reader.accept_symbol("+")
    if reader.accept_word("interval"):
        offset = reader.string()
        reader.accept_words("hour", "to", "minute")
        return offset
    if reader.token.kind not in {TokenKind.STRING, TokenKind.NUMBER, TokenKind.WORD, TokenKind.NAME}:
        raise reader.error(token)
    return sign + reader.next().value


def _reset(reader: TokenReader) -> Statement:
    reader.expect_word("reset")
    offset = reader.offset
    if reader.accept_words("time", "zone"):
        return Set("timezone", None, offset)
    if reader.accept_word("role") or reader.accept_words("session", "authorization"):
        return Set("session_authorization", None, offset)
    return Set(_setting(reader), None, offset)


def _show(reader: TokenReader) -> Statement:
    reader.expect_word("show")
    offset = reader.offset
    if reader.accept_words("time", "zone"):
        return Show("timezone", offset)
    if reader.accept_words("transaction", "isolation", "level"):
        return Show("transaction isolation level", offset)
    if reader.accept_words("materialized", "views"):
        return _show_objects(reader, "materialized views", offset)
    if reader.is_word(*SHOWN_OBJECTS):
        return _show_objects(reader, reader.next().value, offset)
    return Show(_setting(reader), offset)


def _show_objects(reader: TokenReader, what: str, offset: int) -> Statement:
    if what == "create":
        kind = reader.expect_word("table", "view", "materialized", "source", "index").value
        if kind == "materialized":
            reader.expect_word("view")
        return ShowObjects("create", reader.qualified_name(), offset)
    relation = None
    if reader.accept_word("from", "in", "on"):
        relation = reader.qualified_name()
    elif what == "columns":
        raise reader.error()
    return ShowObjects(what, relation, offset)


def _discard(reader: TokenReader) -> Statement:
    reader.expect_word("discard")
    return Discard(reader.expect_word("all", "plans", "sequences", "temp", "temporary").value)


def _unlisten(reader: TokenReader) -> Statement:
    reader.expect_word("unlisten")
    if not reader.accept_symbol("*"):
        reader.name()
    return Discard("listeners")


def _refresh(reader: TokenReader) -> Statement:
    reader.expect_words("refresh", "materialized", "view")
    reader.accept_word("concurrently")
    refreshed = Refresh(reader.qualified_name())
    if reader.is_words("with", "no", "data"):
        hint = "Omit WITH NO DATA: a materialized view always has its rows."
        raise SqlError("0A000", "WITH NO DATA is not supported", offset=reader.offset, hint=hint)
    reader.accept_words("with", "data")
    return refreshed


_VACUUM_OPTIONS = frozenset(
    """analyze buffer_usage_limit disable_page_skipping freeze full index_cleanup only_database_stats parallel
    process_main process_toast skip_database_stats skip_locked truncate verbose""".split()  # noqa: SIM905 (a list would be a page)
)
_ANALYZE_OPTIONS = frozenset({"buffer_usage_limit", "skip_locked", "verbose"})


def _vacuum(reader: TokenReader) -> Statement:
    is_analyze = reader.expect_word("vacuum", "analyze", "analyse").value != "vacuum"
    if reader.is_symbol("("):
        reader.in_parentheses(lambda: _vacuum_option(reader, _ANALYZE_OPTIONS if is_analyze else _VACUUM_OPTIONS))
    else:
        words = ("verbose",) if is_analyze else ("full", "freeze", "verbose", "analyze", "analyse")
        for word in words:
            reader.accept_word(word)
    tables: tuple[VacuumedTable, ...] = ()
    if not reader.is_end() and not reader.is_symbol(";"):
        tables = reader.list_of(lambda: _vacuumed(reader))
    return Vacuum(tables, is_analyze)


def _vacuum_option(reader: TokenReader, options: frozenset[str]) -> None:
    offset, name = reader.offset, reader.any_name()
    if name not in options | {"analyse"}:
        raise SqlError("42601", f'unrecognized VACUUM or ANALYZE option "{name}"', offset=offset)
    if not reader.is_symbol(",", ")"):
        reader.next()


def _vacuumed(reader: TokenReader) -> VacuumedTable:
    reader.accept_word("only")
    name = reader.qualified_name()
    reader.accept_symbol("*")
    return name, reader.in_parentheses(reader.located_name) if reader.is_symbol("(") else ()


def _grant(reader: TokenReader) -> Statement:
    is_revoked = reader.expect_word("grant", "revoke").value == "revoke"
    if is_revoked:
        reader.accept_words("grant", "option", "for")
    reader.list_of(lambda: _privilege(reader))
    reader.expect_word("on")
    relations: tuple[QualifiedName, ...] = ()
    if reader.accept_word("all"):
        reader.expect_word("tables", "sequences", "functions", "procedures", "routines")
        reader.expect_words("in", "schema")
        reader.list_of(reader.name)
    elif reader.accept_word("schema", "database"):
        reader.list_of(reader.name)
    elif reader.accept_word("sequence"):
        reader.list_of(reader.qualified_name)
    else:
        reader.accept_word("table")
        relations = reader.list_of(reader.qualified_name)
    reader.expect_word("from" if is_revoked else "to")
    roles = reader.list_of(lambda: parse_role(reader))
    if not is_revoked:
        reader.accept_words("with", "grant", "option")
    if reader.accept_words("granted", "by"):
        parse_role(reader)
    if is_revoked:
        reader.accept_word("cascade", "restrict")
    return Grant(relations, roles, is_revoked)


_PRIVILEGES = (
    "select insert update delete truncate references trigger maintain usage create connect temporary temp execute"
)


def _privilege(reader: TokenReader) -> None:
    if reader.accept_word("all"):
        reader.accept_word("privileges")
    elif not reader.accept_word(*_PRIVILEGES.split()):
        hint = "All users have the same rights. The password file names the users."
        raise SqlError("0A000", "roles cannot be granted", offset=reader.offset, hint=hint)
    if reader.is_symbol("("):
        reader.in_parentheses(reader.name)


def parse_role(reader: TokenReader) -> tuple[str, int]:
    """Read the name of a role, with its offset."""
    reader.accept_word("group")
    offset = reader.offset
    if word := reader.accept_word("current_user", "session_user", "current_role"):
        return word, offset
    return reader.located_name()


SESSION_STATEMENTS: Mapping[str, Callable[[TokenReader], Statement]] = {
    "begin": _begin,
    "start": _begin,
    "commit": _ends(Commit()),
    "end": _ends(Commit()),
    "rollback": _ends(Rollback()),
    "abort": _ends(Rollback()),
    "savepoint": _savepoint,
    "release": _release,
    "set": _set,
    "reset": _reset,
    "show": _show,
    "discard": _discard,
    "refresh": _refresh,
    "vacuum": _vacuum,
    "analyze": _vacuum,
    "analyse": _vacuum,
    "grant": _grant,
    "revoke": _grant,
    "unlisten": _unlisten,
}
"""Parsers of statements, by first keyword."""
