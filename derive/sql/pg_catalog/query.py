"""Queries of PostgreSQL's catalogs: their recognition, preparation and answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.types.values import datum_of_text, text_of
from derive.sql.outcome import ResultColumn
from derive.sql.pg_catalog.cancellable_query import CancellableQuery
from derive.sql.pg_catalog.contents import CatalogRow, CatalogValue, activity_of, roles_of, rows_of
from derive.sql.pg_catalog.effects import Effect
from derive.sql.pg_catalog.functions import TABLE_MACROS, macros
from derive.sql.pg_catalog.lexer import Kind, refused_functions, require_harmless, tokens_of
from derive.sql.pg_catalog.objects import SERVER_VERSION, CatalogObjects, SessionFacts
from derive.sql.pg_catalog.relations import creation, relations
from derive.sql.pg_catalog.results import column_of, data_of
from derive.sql.pg_catalog.translation import translated
from derive.sql.pg_types import OID_OF, PG_TYPES, PgType, elements_of

if TYPE_CHECKING:
    import duckdb

SETTINGS = {
    "server_version": SERVER_VERSION,
    "server_version_num": f"{int(SERVER_VERSION.split('.')[0])}0000",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "search_path": '"$user", public',
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "lc_collate": "C",
    "lc_ctype": "C",
}
"""Settings that clients query, if the session has no value."""

_BEGINNINGS = ("select", "with", "values", "table", "(")
_USER_WORDS = ("session_user", "current_role", "current_user", "user")
_SESSION_WORDS = ("current_schema", "current_catalog", *_USER_WORDS)
_CASTS = ("regclass", "regtype", "regnamespace", "regproc", "regrole")
_COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=")
_ABOUT_SETTINGS = ("current_setting", "pg_settings", "pg_show_all_settings")
_PARAMETER = re.compile(r"\$\d+")
_CHARS = "".join(map(chr, range(32, 127)))


@dataclass(frozen=True, slots=True)
class CatalogQuery:
    """A prepared query.

    Attributes:
        text: text of the query.
        parameters: oids of `$1` and so on.
        columns: result columns.
    """

    text: str
    parameters: tuple[int, ...]
    columns: tuple[ResultColumn, ...]


def is_catalog_query(text: str) -> bool:
    """Return whether a statement queries PostgreSQL's catalogs, or their functions without a relation."""
    tokens = [token for token in tokens_of(text) if token.kind is not Kind.SPACE]
    words = [token.word if token.kind in (Kind.WORD, Kind.QUOTED, Kind.SIGN) else "" for token in tokens]
    if not words or words[0] not in _BEGINNINGS:
        return False
    known = relations()
    if any(word in known or word in ("pg_catalog", "information_schema") for word in words):
        return True
    functions = _function_names()
    if not all(_is_call(words[at + 1 : at + 3], functions) for at, word in enumerate(words) if word == "from"):
        return False
    calls = {word for word, following in pairwise(words) if following == "("}
    bare = {word for word, token in zip(words, tokens, strict=True) if token.kind is Kind.WORD}
    casts = {word for before, word in pairwise(words) if before in ("::", "as")}
    return bool(calls & functions or bare & set(_SESSION_WORDS) or casts & set(_CASTS))


def _is_call(words: Sequence[str], functions: frozenset[str]) -> bool:
    return words[1:] == ["("] and (words[0] in functions or words[0] == "unnest")


def prepare(
    text: str, objects: CatalogObjects, oids: Sequence[int] = (), cancellable: CancellableQuery | None = None
) -> CatalogQuery:
    """Prepare a query.

    Args:
        text: a query for which `is_catalog_query` holds.
        objects: relations and indexes.
        oids: parameter types from the client, 0 for an unspecified one.
        cancellable: cancellation of the query; None without one.

    Raises:
        SqlError: the query is invalid, or not supported.
    """
    parameters = _parameters(text, oids)
    # An example value, since NULL does not have the parameter's type in all expressions.
    examples = ["[]" if _type_of(oid).element else "'0'" for oid in parameters]
    described, rows = _database(objects).ask(text, examples, SessionFacts(), cancellable or CancellableQuery())
    first = rows[0] if rows else [None] * len(described)
    columns = (column_of(text, *named, example) for named, example in zip(described, first, strict=True))
    return CatalogQuery(text, parameters, tuple(columns))


def answer(
    query: CatalogQuery,
    objects: CatalogObjects,
    arguments: Sequence[Datum] = (),
    facts: SessionFacts | None = None,
    cancellable: CancellableQuery | None = None,
) -> list[tuple[Datum | Effect, ...]]:
    """Answer a query; the value of a function with an effect is the effect.

    Args:
        query: the query.
        objects: relations and indexes.
        arguments: a datum for each parameter.
        facts: facts about the session.
        cancellable: cancellation of the query; None without one.

    Raises:
        SqlError: the query fails.
    """
    literals = [_literal(oid, datum) for oid, datum in zip(query.parameters, arguments, strict=True)]
    _, rows = _database(objects).ask(query.text, literals, facts or SessionFacts(), cancellable or CancellableQuery())
    return [data_of(row, query.columns) for row in rows]


class CatalogDatabase:
    """The catalogs of one snapshot of the objects, in an in-memory DuckDB database."""

    def __init__(self, objects: CatalogObjects) -> None:
        import duckdb  # imported here to speed up the server's start

        limits: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1,
            "memory_limit": "256MB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._connection = duckdb.connect(":memory:", config=limits)
        self._turn = threading.Lock()
        self._made: set[str] = set()
        self._settings: dict[str, str] = {}
        self._words = {word: f"session_word_{word}()" for word in _SESSION_WORDS}
        self._owner = self._user = objects.owner
        run = self._connection.execute
        run("SET enable_external_access = false")  # last, since it forbids setting the temporary folder
        run("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
        run(f"CREATE TYPE pg_char AS ENUM ('', {', '.join(_quoted(char) for char in _CHARS)})")
        run("CREATE TABLE definition(oid UINTEGER, text VARCHAR)")
        run("CREATE TABLE own_backend(process INTEGER)")
        run("INSERT INTO own_backend VALUES (0)")
        self._made.add("definition")
        self._fill(rows_of(objects))
        self._make({"pg_settings"})
        for word, name in (("current_catalog", objects.database), ("current_schema", "public")):
            run(f"CREATE MACRO session_word_{word}() AS {_quoted(name)}")
        for word in _USER_WORDS:
            run(f"CREATE MACRO session_word_{word}(name) AS name")
        self._refused = refused_functions(self._connection) - _function_names()
        for name, macro in (*macros().items(), *TABLE_MACROS.items()):
            run(f"CREATE MACRO {name}{macro}")
        run("SET lock_configuration = true")

    def ask(
        self, text: str, arguments: Sequence[str], facts: SessionFacts, cancellable: CancellableQuery
    ) -> tuple[list[tuple[str, str]], list[tuple[object, ...]]]:
        """Return names and types of a query's columns, and its rows."""
        import duckdb

        user_words = {word: f"session_word_{word}({_quoted(facts.user)})" for word in _USER_WORDS}
        query = translated(text, arguments, self._words | user_words)
        require_harmless(query, self._refused)
        words = {token.word for token in tokens_of(query)}
        with self._turn:
            self._set_user(facts.user)
            self._make(words & relations().keys() - self._made)
            if not words.isdisjoint(_ABOUT_SETTINGS):
                self._set({**SETTINGS, **facts.settings})
            if "pg_backend_pid" in words:
                self._connection.execute("UPDATE own_backend SET process = ?", [facts.process])
            if "pg_stat_activity" in words:
                self._connection.execute("DELETE FROM pg_stat_activity")
                self._fill({"pg_stat_activity": activity_of(facts.backends, self._owner)})
            try:
                statements = self._connection.extract_statements(query)
                if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                    raise SqlError("0A000", "of PostgreSQL's catalogs only one SELECT is answered at a time")
                with self._only_reading(), cancellable.at_work(self._connection):  # WITH may contain writes
                    cursor = self._connection.execute(statements[0])
                    described = [(str(column[0]), str(column[1])) for column in cursor.description or ()]
                    return described, cursor.fetchall()
            except (duckdb.Error, RuntimeError) as exc:  # an interrupted fetch raises RuntimeError
                if cancellable.reason is not None:
                    raise cancellable.reason from exc
                if not isinstance(exc, duckdb.Error):
                    raise
                raise _refusal(exc) from exc

    @contextmanager
    def _only_reading(self) -> Iterator[None]:
        self._connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _make(self, names: set[str]) -> None:
        for name in sorted(names):
            self._connection.execute(creation(name))
        self._made |= names

    def _fill(self, contents: Mapping[str, Sequence[CatalogRow]]) -> None:
        self._make(contents.keys() - self._made)
        for name, rows in contents.items():
            if rows:
                columns = list({column: None for row in rows for column in row})
                values = (f"({', '.join(_written(row.get(column)) for column in columns)})" for row in rows)
                self._connection.execute(f"INSERT INTO {name}({', '.join(columns)}) VALUES {', '.join(values)}")

    def _set_user(self, user: str) -> None:
        if user != self._user:
            self._connection.execute("DELETE FROM pg_roles")
            self._fill({"pg_roles": roles_of(self._owner, user)})
            self._user = user

    def _set(self, settings: dict[str, str]) -> None:
        if settings != self._settings:
            self._connection.execute("DELETE FROM pg_settings")
            self._fill(
                {
                    "pg_settings": [
                        {"name": name, "setting": value, "reset_val": value, "vartype": "string"}
                        for name, value in settings.items()
                    ]
                }
            )
            self._settings = settings


@lru_cache(maxsize=8)
def _database(objects: CatalogObjects) -> CatalogDatabase:
    return CatalogDatabase(objects)


@cache
def _function_names() -> frozenset[str]:
    return frozenset(macros()) | frozenset(TABLE_MACROS)


def _parameters(text: str, oids: Sequence[int]) -> tuple[int, ...]:
    """Return the types of parameters: from the client, else from the context, else text."""
    words = [token.word or token.text for token in tokens_of(text) if token.kind is not Kind.SPACE]
    words = [word for word in words if word != "pg_catalog"]
    types: dict[int, int] = {}
    for at, word in enumerate(words):
        if _PARAMETER.fullmatch(word):
            number = int(word[1:])
            types[number] = _type_around(words[max(0, at - 4) : at], words[at + 1 : at + 6]) or types.get(number, 0)
    named = dict(enumerate(oids, start=1))
    return tuple(
        next((oid for oid in (named.get(number, 0), types.get(number, 0)) if oid), OID_OF[Type.TEXT])
        for number in range(1, max(types, default=0) + 1)
    )


def _type_around(before: list[str], behind: list[str]) -> int:
    """Return the type of a parameter's cast, or of the column that it is compared with; 0 without one."""
    if behind[:1] == ["::"]:
        name, *brackets = [word for word in behind[1:] if word != "."]
        return _oid_of_name(f"_{name}" if brackets[:2] == ["[", "]"] else name)
    is_any = before[-2:] in (["any", "("], ["all", "("])
    before = before[:-2] if is_any else before
    if len(before) < 2 or before[-1] not in _COMPARISONS:
        return 0
    oid = _oid_of_name(_column_types().get(before[-2], ""))
    return PG_TYPES[oid].array if is_any and oid else oid


@cache
def _column_types() -> dict[str, str]:
    """Return the types of columns by name; in these catalogs, the name determines the type."""
    return {column: kind for columns in relations().values() for column, kind in columns}


def _oid_of_name(name: str) -> int:
    return next((pg_type.oid for pg_type in PG_TYPES.values() if pg_type.name == name), 0)


def _type_of(oid: int) -> PgType:
    """Return the type of a parameter; text if the type is unknown."""
    return PG_TYPES.get(oid) or PG_TYPES[OID_OF[Type.TEXT]]


def _literal(oid: int, datum: Datum) -> str:
    """Return an argument as a DuckDB literal."""
    if datum is None:
        return "NULL"
    pg_type = _type_of(oid)
    if element := pg_type.element:
        kind = PG_TYPES[element].type
        array = datum if isinstance(datum, str) else text_of(pg_type.type, datum)
        elements = (None if text is None else datum_of_text(kind, text) for text in elements_of(array))
        return f"[{', '.join(_literal(element, value) for value in elements)}]"
    if pg_type.type in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
        return str(int(str(datum)))
    return _quoted(text_of(pg_type.type, datum))


def _written(value: CatalogValue) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case list():
            return f"[{', '.join(map(str, value))}]"
    return _quoted(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("\0", "").replace("'", "''") + "'"


def _refusal(error: duckdb.Error) -> SqlError:
    import duckdb

    message = str(error).split("\n")[0]
    hint = "of PostgreSQL's catalogs there is what clients ask for; relations of your own cannot be joined with them"
    what = message.partition(": ")[2] or message
    match error:
        case duckdb.CatalogException():
            sqlstate = "42883" if "Function" in message else "42P01"
        case duckdb.BinderException():
            sqlstate = "42703" if "not found" in message else "42804"
        case duckdb.ParserException():
            sqlstate = "42601"
        case duckdb.PermissionException():
            sqlstate = "42501"
        case duckdb.TransactionException():
            sqlstate = "25006"
        case duckdb.OutOfMemoryException():
            sqlstate = "53200"
        case duckdb.ConversionException() | duckdb.InvalidInputException():
            sqlstate = "22P02"
        case _:
            sqlstate = "0A000"
    return SqlError(sqlstate, what, hint=hint)
