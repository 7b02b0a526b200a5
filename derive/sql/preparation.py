"""Preparation of statements: known settings, plans, parameters, result columns, and caches of plans.

PostgreSQL has many more settings than this module. Because client programs set them, settings of missing features
(planner costs, memory, locales of messages) are accepted, without effect. A name with a dot is a custom
setting of the client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from derive.algebra.relation import Finishing, GlobalId
from derive.algebra.types import ModifiedType, Row, Type, TypeModifier
from derive.compute.protocol import messages
from derive.errors import SqlError, suggest
from derive.functions.scalar.catalog import SERVER_VERSION
from derive.functions.types.datetime import session_zone
from derive.functions.types.encodings import NAMES, find_encoding
from derive.functions.types.pg_type import OID_OF, UNKNOWN_OID, VOID_OID, oid_of, type_of_oid
from derive.functions.types.type_info import ZONED
from derive.recently_used import MOST_CHARACTERS, RecentlyUsed
from derive.sql.catalog.snapshot import FIRST_OID, Objects, is_temporary
from derive.sql.maintenance.view_state import Maintained
from derive.sql.parser.ast import QualifiedName, Query
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import (
    TEMPORARY,
    Copy,
    Declare,
    Delete,
    Explain,
    Insert,
    Merge,
    SelectStatement,
    Show,
    Statement,
    Subscribe,
    Update,
    WithWrites,
)
from derive.sql.parser.value_rows import value_rows
from derive.sql.planner.calls import without_outputs
from derive.sql.planner.ddl import plan_relation, plan_subscribed
from derive.sql.planner.dependencies import ids_of, needs_context
from derive.sql.planner.plan import PlannedView, plan_query, plan_time, plan_view
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, PlannedWithWrites, PlannedWrite
from derive.sql.planner.with_writes import plan_with_writes
from derive.sql.planner.writes import plan_write
from derive.sql.results import Prepared, ResultColumn
from derive.sql.transactions.transaction import Isolation

_UNITS = {"": 1, "us": 0.001, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_BOOLEANS = {"on": "on", "true": "on", "yes": "on", "1": "on", "off": "off", "false": "off", "no": "off", "0": "off"}
_ISOLATIONS = {
    "strict serializable": Isolation.STRICT_SERIALIZABLE,
    "serializable": Isolation.SERIALIZABLE,
    "repeatable read": Isolation.SERIALIZABLE,
    "read committed": Isolation.SERIALIZABLE,
    "read uncommitted": Isolation.SERIALIZABLE,
}
"""Isolation levels by name; the level may be stricter than the name."""
_UTC = frozenset({"utc", "etc/utc", "uct", "etc/uct", "gmt", "etc/gmt", "universal", "zulu", "z", "greenwich"})
_NO_OFFSET = re.compile(r"[+-]?0{1,2}(:?00){0,2}|<[+-]?00>[+-]?0{1,2}")


def isolation_of(text: str) -> Isolation:
    """Return the isolation level of a name.

    Raises:
        SqlError: the level does not exist (22023).
    """
    isolation = _ISOLATIONS.get(text.strip().lower())
    if isolation is None:
        hint = f"Available values: {', '.join(_ISOLATIONS)}."
        raise SqlError("22023", f'invalid value for parameter "transaction_isolation": "{text}"', hint=hint)
    return isolation


def boolean_of(name: str, value: str) -> str:
    """Return `on` or `off`.

    Raises:
        SqlError: the value is neither (22023).
    """
    try:
        return _BOOLEANS[value.lower()]
    except KeyError:
        raise SqlError("22023", f'parameter "{name}" requires a Boolean value') from None


def _text(_: str, value: str) -> str:
    return value


def _isolation(_: str, value: str) -> str:
    return isolation_of(value).value


def _milliseconds(name: str, value: str) -> str:
    match = _DURATION.fullmatch(value.lower())
    if match is None or match[2] not in _UNITS:
        raise _invalid(name, value, "Valid units are us, ms, s, min, h and d.")
    milliseconds = round(float(match[1]) * _UNITS[match[2]])
    return f"{milliseconds}ms" if milliseconds else "0"


def _only(*allowed: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        for choice in allowed:
            if value.lower() == choice.lower():
                return choice
        raise _invalid(name, value, f"This server knows {', '.join(allowed)}.")

    return check


def _encoding(name: str, value: str) -> str:
    """Return the encoding of a name, in any spelling that drivers use."""
    encoding = find_encoding(value)
    if encoding is None:
        raise _invalid(name, value, f"This server knows {', '.join(NAMES)}.")
    return encoding.name


def _date_style(name: str, value: str) -> str:
    parts = {part.strip().lower() for part in value.split(",")}
    if not parts <= {"iso", "mdy", "us", "noneuropean"}:
        raise _invalid(name, value, "This server knows ISO, MDY.")
    return "ISO, MDY"


def _time_zone(name: str, value: str) -> str:
    if value.lower() in _UTC or _NO_OFFSET.fullmatch(value):
        return "UTC"
    try:
        return session_zone(value)
    except SqlError as error:
        raise _invalid(name, value, error.hint or "Name a zone as in Europe/Berlin, or hours as in 2 or -5.") from None


def _invalid(name: str, value: str, hint: str) -> SqlError:
    return SqlError("22023", f'invalid value for parameter "{name}": "{value}"', hint=hint)


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A setting.

    Attributes:
        default: default value.
        checked: returns the normalized value of a text, and raises `SqlError` for an invalid one. None if the setting
            is read-only.
        is_reported: whether changes are reported to clients.
        is_optional: whether an invalid startup value falls back to the default.
        is_own: whether only the default, which is the value of the session, can be set.
    """

    default: str
    checked: Callable[[str, str], str] | None = _text
    is_reported: bool = False
    is_optional: bool = False
    is_own: bool = False


@lru_cache(maxsize=64)
def path_of(text: str, user: str, temporary: str | None = None) -> tuple[str, ...]:
    """Return the schemas of a search path, in which `"$user"` is the schema with the name of the user.

    The schema of the session's temporary relations has the place of `pg_temp`; it is the first one if the path does
    not name it.

    An empty path stands for `public`: names in dumps and in definitions of views have any other schema.

    >>> path_of('"$user", public, "A b"', "ann")
    ('ann', 'public', 'A b')
    >>> path_of("public, pg_temp, pg_temp_8", "ann", "pg_temp_7")
    ('public', 'pg_temp_7')
    """
    names = [quoted.replace('""', '"') or plain.strip().lower() for quoted, plain in _PATH_NAME.findall(text)]
    schemas = {"$user": user, TEMPORARY: temporary}
    path = [schemas.get(name, name) for name in names if name not in {"", "pg_catalog"}] or ["public"]
    if temporary not in path:
        path.insert(0, temporary)
    return tuple(name for name in path if name is not None and (name == temporary or not is_temporary(name)))


_PATH_NAME = re.compile(r'"((?:[^"]|"")*)"|([^,"]+)')
_SUPPORTED = {
    "application_name": KnownSetting("", is_reported=True),
    "block_size": KnownSetting("8192", None),
    "bytea_output": KnownSetting("hex", _only("hex")),
    "client_encoding": KnownSetting("UTF8", _encoding, is_reported=True),
    "client_min_messages": KnownSetting("notice"),
    "DateStyle": KnownSetting("ISO, MDY", _date_style, is_reported=True),
    "default_transaction_read_only": KnownSetting("off", boolean_of),
    "extra_float_digits": KnownSetting("1"),
    "idle_in_transaction_session_timeout": KnownSetting("0", _milliseconds),
    "idle_session_timeout": KnownSetting("0", _milliseconds),
    "in_hot_standby": KnownSetting("off", None, is_reported=True),
    "integer_datetimes": KnownSetting("on", None, is_reported=True),
    "IntervalStyle": KnownSetting("postgres", _only("postgres"), is_reported=True),
    "is_superuser": KnownSetting("on", None, is_reported=True),
    "lc_collate": KnownSetting("C", None),
    "lc_ctype": KnownSetting("C", None),
    "lock_timeout": KnownSetting("0", _milliseconds),
    "max_connections": KnownSetting("400", None),
    "max_identifier_length": KnownSetting("63", None),
    "max_index_keys": KnownSetting("32", None),
    "search_path": KnownSetting("public"),
    "server_encoding": KnownSetting("UTF8", None, is_reported=True),
    "server_version": KnownSetting(SERVER_VERSION, None, is_reported=True),
    "server_version_num": KnownSetting("160000", None),
    "session_authorization": KnownSetting("flow", is_reported=True, is_own=True),
    "standard_conforming_strings": KnownSetting("on", _only("on"), is_reported=True),
    "statement_timeout": KnownSetting("0", _milliseconds),
    "TimeZone": KnownSetting("UTC", _time_zone, is_reported=True, is_optional=True),
    "transaction_isolation": KnownSetting(Isolation.STRICT_SERIALIZABLE.value, _isolation),
    "transaction_timeout": KnownSetting("0", _milliseconds),
}
_ELSEWHERE = {
    "backslash_quote": "safe_encoding",
    "check_function_bodies": "on",
    "client_connection_check_interval": "0",
    "constraint_exclusion": "partition",
    "cursor_tuple_fraction": "0.1",
    "default_statistics_target": "100",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "default_text_search_config": "pg_catalog.simple",
    "default_toast_compression": "pglz",
    "default_transaction_deferrable": "off",
    "effective_cache_size": "4GB",
    "effective_io_concurrency": "1",
    "escape_string_warning": "on",
    "from_collapse_limit": "8",
    "geqo": "on",
    "hash_mem_multiplier": "2",
    "jit": "off",
    "join_collapse_limit": "8",
    "lc_messages": "C",
    "maintenance_work_mem": "64MB",
    "max_parallel_maintenance_workers": "2",
    "max_parallel_workers": "8",
    "max_parallel_workers_per_gather": "2",
    "password_encryption": "scram-sha-256",
    "plan_cache_mode": "auto",
    "quote_all_identifiers": "off",
    "random_page_cost": "4",
    "restrict_nonsystem_relation_kind": "",
    "row_security": "on",
    "seq_page_cost": "1",
    "session_replication_role": "origin",
    "synchronize_seqscans": "on",
    "synchronous_commit": "on",
    "tcp_keepalives_count": "0",
    "tcp_keepalives_idle": "0",
    "tcp_keepalives_interval": "0",
    "tcp_user_timeout": "0",
    "temp_buffers": "8MB",
    "temp_tablespaces": "",
    "work_mem": "4MB",
    "xmlbinary": "base64",
    "xmloption": "content",
}
_PLANNING = """
    async_append bitmapscan gathermerge hashagg hashjoin incremental_sort indexonlyscan indexscan material memoize
    mergejoin nestloop parallel_append parallel_hash partition_pruning partitionwise_aggregate partitionwise_join
    seqscan sort tidscan
"""
KNOWN_SETTINGS: Mapping[str, KnownSetting] = (
    _SUPPORTED
    | {name: KnownSetting(default) for name, default in _ELSEWHERE.items()}
    | {f"enable_{what}": KnownSetting("on", boolean_of) for what in _PLANNING.split()}
)
"""Settings by name, in the usual case."""
_BY_LOWER = {name.lower(): name for name in KNOWN_SETTINGS} | {
    "default_transaction_isolation": "transaction_isolation",
    "time zone": "TimeZone",
    "names": "client_encoding",
}


def known_name(name: str) -> str | None:
    """Return the usual form of a setting's name; None for an unknown name. A custom setting becomes lower case."""
    return _BY_LOWER.get(name.lower()) or (name.lower() if "." in name else None)


def unknown(name: str, offset: int | None = None, others: Collection[str] = ()) -> SqlError:
    """Return the error for an unknown setting; `others` are names to suggest besides the known settings."""
    nearest = suggest(name.lower(), {*_BY_LOWER, *others})
    hint = f"Did you mean {nearest}?" if nearest else None
    return SqlError("42704", f'unrecognized configuration parameter "{name}"', offset=offset, hint=hint)


_MOST_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup: a query of maintained relations that the fast path can answer.

    Attributes:
        query: the query with its parameters.
        version: version of the catalog.
        sources: stored relations that the query derives from.
        at_present: whether writers other than SQL statements and source feeders write some of the sources, or the rows
            depend on the time of the read.
        asked: the query over dataflows.
    """

    query: PlannedQuery
    version: int
    sources: frozenset[GlobalId]
    at_present: bool
    asked: messages.Query


class Lookups:
    """Cache of lookups, by query plan.

    Args:
        maintained: state of maintained relations.
    """

    def __init__(self, maintained: Maintained) -> None:
        self._maintained = maintained
        self._lookups: RecentlyUsed[int, Lookup] = RecentlyUsed(_MOST_LOOKUPS)

    def find(self, query: PlannedQuery, objects: Objects) -> Lookup | None:
        """Return the lookup of a query; None if the query is no lookup.

        A lookup reads maintained relations. Two executions of a lookup differ only in the parameters, so a lookup has
        no limits, no `now()`, and no `current_user`.
        """
        lookup = self._lookups.get(id(query))
        if lookup is not None and lookup.query is query and lookup.version == objects.version:
            return lookup
        if query.limit is not None or query.offset is not None or query.is_of_session:
            return None
        asked = self._maintained.query(query.relation, query.finishing)
        if asked is None:
            return None
        sources = self._maintained.sources(ids_of(query.relation))
        if not sources:
            return None
        at_present = objects.is_written_by_others(sources) or objects.are_timed(ids_of(query.relation))
        lookup = Lookup(query, objects.version, sources, at_present, asked)
        return self._lookups.put(id(query), lookup)

    def frontiers(self, lookup: Lookup) -> tuple[int, int] | None:
        """Return the times at which a lookup is readable, as a half-open interval; None if there are none."""
        return self._maintained.frontiers_of(lookup.asked.reads)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a statement.

    Attributes:
        text: text of the statement.
        statement: syntax tree; None for an empty text.
        version: version of the catalog.
        given: parameter types from the client.
        query: plan of a query.
        write: plan of a write.
        writes: plan of a WITH clause with writes, and of the main statement.
        view: plan of a subscription.
        columns: result columns; None without a result.
        parameters: oids of the parameters.
        zone: time zone of the session; None for UTC.
        rows: rows of arguments of an INSERT of many rows; None for other statements.
    """

    text: str
    statement: Statement | None
    version: int
    given: tuple[int, ...] = ()
    query: PlannedQuery | None = None
    write: PlannedWrite | None = None
    writes: PlannedWithWrites | None = None
    view: PlannedView | None = None
    columns: tuple[ResultColumn, ...] | None = None
    parameters: tuple[int, ...] = ()
    zone: str | None = None
    rows: Sequence[Row] | None = None

    def prepared(self) -> Prepared:
        """Return the statement as a session returns it to its client."""
        return Prepared(self.text, self.parameters, self.columns, self, self.zone)


def result_columns(columns: Sequence[PlannedColumn], zone: str | None) -> tuple[ResultColumn, ...]:
    """Return result columns with the types that clients see.

    Args:
        columns: planned columns.
        zone: time zone in which times are shown; None for UTC.
    """
    return tuple(
        ResultColumn(
            column.name,
            column.type,
            oid_of(column.type, column.modifier),
            _in_zone(column, zone),
            FIRST_OID + column.origin.relation if column.origin else 0,
            column.origin.number if column.origin else 0,
        )
        for column in columns
    )


def _in_zone(column: PlannedColumn, zone: str | None) -> TypeModifier | None:
    if zone is None or column.type not in ZONED:
        return column.modifier
    return TypeModifier(ModifiedType.TIMESTAMPTZ, column.modifier.size if column.modifier else 0, zone=zone)


def text_column(name: str) -> ResultColumn:
    """Return a column of type text."""
    return ResultColumn(name, Type.TEXT, OID_OF[Type.TEXT])


def shown_columns(name: str) -> tuple[ResultColumn, ...]:
    """Return the columns of `SHOW name`."""
    if name == "all":
        return tuple(map(text_column, ("name", "setting", "description")))
    return (text_column(known_name(name) or name.removesuffix(" level").replace(" ", "_")),)


def plan(text: str, oids: Sequence[int], objects: Objects) -> Plan:
    """Plan a statement.

    Args:
        text: text of the statement.
        oids: parameter types from the client; 0 for an unspecified one.
        objects: the current names.

    Raises:
        SqlError: the statement is invalid.
    """
    return plan_statement(Plan(text, parse(text), objects.version, tuple(oids)), objects)


def plan_rows(text: str, objects: Objects) -> Plan | None:
    """Plan an INSERT of many rows of constants without a syntax tree of the rows.

    Returns:
        The plan; None for other statements, and for an invalid one, whose error `plan` raises with its place.
    """
    values = value_rows(text)
    if values is None:
        return None
    try:
        begun = plan(values.text, (), objects)
        write = begun.write and begun.write.over_rows()
        types = begun.write.query.parameters if begun.write else ()
        is_zoned = objects.zone is not None and not ZONED.isdisjoint(types)
        rows = None if write is None or is_zoned else values.rows(types)
    except SqlError:
        return None
    return None if rows is None else replace(begun, text=text, write=write, parameters=(), rows=rows)


def plan_statement(begun: Plan, objects: Objects) -> Plan:  # noqa: PLR0911 (one for each kind)
    """Plan a parsed statement."""
    # An argument of an unknown type is a text, and is cast like a text.
    given = tuple(0 if oid == UNKNOWN_OID else oid for oid in begun.given)
    begun = replace(begun, given=given, zone=objects.zone)
    types = [type_of_oid(oid) or Type.TEXT if oid else None for oid in begun.given]
    match begun.statement:
        case SelectStatement(query, as_of):
            if VOID_OID in given:
                query = without_outputs(query, [index for index, oid in enumerate(given) if oid == VOID_OID])
            return _with_query(begun, plan_query(query, objects, types, as_of.time if as_of else None))
        case Insert() | Update() | Delete() | Merge() as write:
            planned = plan_write(write, objects, types)
            columns = None if planned.returning is None else result_columns(planned.returning, objects.zone)
            parameters = _oids(planned.query.parameters, begun.given)
            return replace(begun, write=planned, columns=columns, parameters=parameters)
        case WithWrites() as statement:
            writes = plan_with_writes(statement, objects, types)
            main = writes.main
            shown = main.columns if isinstance(main, PlannedQuery) else main.returning
            columns = None if shown is None else result_columns(shown, objects.zone)
            return replace(begun, writes=writes, columns=columns, parameters=_oids(writes.parameters, begun.given))
        case Copy(source=QualifiedName() as name, columns=columns, is_from=False):
            return _with_query(begun, plan_relation(name, objects, columns))
        case Copy(source=SelectStatement(query, as_of)):
            return _with_query(begun, plan_query(query, objects, types, as_of.time if as_of else None))
        case Subscribe() | Copy(source=Subscribe()) as statement:
            subscribe = statement if isinstance(statement, Subscribe) else statement.source
            assert isinstance(subscribe, Subscribe)
            if subscribe.as_of is not None:
                plan_time(subscribe.as_of.time, objects)
            return _with_view(begun, subscribe, objects)
        case Declare(statement=inner):
            planned_inner = plan_statement(replace(begun, statement=inner), objects)
            return replace(planned_inner, statement=begun.statement, columns=None)
        case Explain():
            return replace(begun, columns=(text_column("Explanation"),))
        case Show(name=name):
            return replace(begun, columns=shown_columns(name))
        case _:
            return begun


def _with_query(begun: Plan, query: PlannedQuery) -> Plan:
    parameters = _oids(query.parameters, begun.given)
    return replace(begun, query=query, columns=result_columns(query.columns, begun.zone), parameters=parameters)


def _with_view(begun: Plan, subscribe: Subscribe, objects: Objects) -> Plan:
    target = subscribe.target
    view = plan_view(target, objects) if isinstance(target, Query) else plan_subscribed(target, objects)
    shown = [PlannedColumn("mz_timestamp", Type.MZ_TIMESTAMP)]
    if subscribe.has_progress:
        shown.append(PlannedColumn("mz_progressed", Type.BOOLEAN))
    shown.append(PlannedColumn("mz_diff", Type.BIGINT))
    return replace(begun, view=view, columns=result_columns((*shown, *view.columns), begun.zone))


def rows_of_view(view: PlannedView) -> PlannedQuery:
    """Return a query of all rows of a view."""
    width = len(view.columns)
    finishing = Finishing((), None, 0, tuple(range(width)))
    return PlannedQuery(view.relation, finishing, view.columns, needs_context=needs_context(view.relation))


def _oids(types: Sequence[Type], given: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        given[index] if index < len(given) and given[index] else OID_OF[kind] for index, kind in enumerate(types)
    )


_logger = logging.getLogger(__name__)

_MOST_PLANS = 1000


class Plans:
    """Cache of plans of short statements, by version of the catalog, text and parameter types.

    A transaction with definitions has its own version, so its plans do not replace the plans of other sessions.
    """

    def __init__(self) -> None:
        self._plans: RecentlyUsed[tuple[int, str, tuple[int, ...]], Plan] = RecentlyUsed(_MOST_PLANS)

    def plan(self, text: str, oids: Sequence[int], objects: Objects) -> Plan:
        """Return the plan of a statement, like `derive.sql.preparation.plan`; the plan is immutable."""
        if len(text) > MOST_CHARACTERS:
            return (None if oids else plan_rows(text, objects)) or plan(text, oids, objects)
        key = objects.version, text, tuple(oids)
        known = self._plans.get(key)
        if known is None:
            _logger.debug("plan of version %d: %s", objects.version, text)
            known = self._plans.put(key, plan(text, oids, objects))
        return known
