"""Preparation of statements: plans, parameters, result columns, and caches of plans and of point lookups."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from derive.algebra.relation import Finishing, GlobalId
from derive.algebra.types import Type
from derive.compute.protocol import messages
from derive.functions.types.pg_type import UNKNOWN_OID
from derive.recently_used import MOST_CHARACTERS, RecentlyUsed
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.view_state import Maintained
from derive.sql.outcome import Prepared, ResultColumn
from derive.sql.parser.ast import QualifiedName, Query
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import (
    Copy,
    Declare,
    Delete,
    Explain,
    Insert,
    SelectStatement,
    Show,
    Statement,
    Subscribe,
    Update,
)
from derive.sql.pg_types import OID_OF, oid_of, type_of_oid
from derive.sql.planner.ddl import plan_relation, plan_subscribed
from derive.sql.planner.dependencies import ids_of, needs_context
from derive.sql.planner.dml import plan_write
from derive.sql.planner.plan import PlannedView, plan_query, plan_view
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, PlannedWrite
from derive.sql.preparation.known_settings import known_name

_MOST_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class Lookup:
    """A query of maintained relations.

    Attributes:
        query: the query with its parameters.
        version: version of the catalog.
        sources: stored relations that the query derives from.
        at_present: whether writers other than SQL statements and source feeders write some of the sources.
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

        A lookup reads maintained relations that change. Executions differ only in the parameters: a lookup has no
        limits, no `now()`, and no `current_user`.
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
        lookup = Lookup(query, objects.version, sources, objects.is_written_by_others(sources), asked)
        return self._lookups.put(id(query), lookup)

    def frontiers(self, lookup: Lookup) -> tuple[int, int] | None:
        """Return the readable times of a lookup: from the first on, before the second; None without any."""
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
        view: plan of a subscription.
        columns: result columns; None without a result.
        parameters: oids of the parameters.
    """

    text: str
    statement: Statement | None
    version: int
    given: tuple[int, ...] = ()
    query: PlannedQuery | None = None
    write: PlannedWrite | None = None
    view: PlannedView | None = None
    columns: tuple[ResultColumn, ...] | None = None
    parameters: tuple[int, ...] = ()

    def prepared(self) -> Prepared:
        """Return the statement in the form of a session."""
        return Prepared(self.text, self.parameters, self.columns, self)


def result_columns(columns: Sequence[PlannedColumn]) -> tuple[ResultColumn, ...]:
    """Return result columns in the form for clients."""
    return tuple(
        ResultColumn(column.name, column.type, oid_of(column.type, column.modifier), column.modifier)
        for column in columns
    )


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


def plan_statement(begun: Plan, objects: Objects) -> Plan:  # noqa: PLR0911 (one for each kind)
    """Plan a parsed statement."""
    # An argument of an unknown type is a text, and is cast as one.
    begun = replace(begun, given=tuple(0 if oid == UNKNOWN_OID else oid for oid in begun.given))
    types = [type_of_oid(oid) or Type.TEXT if oid else None for oid in begun.given]
    match begun.statement:
        case SelectStatement(query, _):
            return _with_query(begun, plan_query(query, objects, types))
        case Insert() | Update() | Delete() as write:
            planned = plan_write(write, objects, types)
            columns = None if planned.returning is None else result_columns(planned.returning)
            parameters = _oids(planned.query.parameters, begun.given)
            return replace(begun, write=planned, columns=columns, parameters=parameters)
        case Copy(source=QualifiedName() as name, columns=columns, is_from=False):
            return _with_query(begun, plan_relation(name, objects, columns))
        case Copy(source=SelectStatement(query, _)):
            return _with_query(begun, plan_query(query, objects, types))
        case Subscribe() | Copy(source=Subscribe()) as statement:
            subscribe = statement if isinstance(statement, Subscribe) else statement.source
            assert isinstance(subscribe, Subscribe)
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
    return replace(begun, query=query, columns=result_columns(query.columns), parameters=parameters)


def _with_view(begun: Plan, subscribe: Subscribe, objects: Objects) -> Plan:
    target = subscribe.target
    view = plan_view(target, objects) if isinstance(target, Query) else plan_subscribed(target, objects)
    shown = [PlannedColumn("mz_timestamp", Type.MZ_TIMESTAMP)]
    if subscribe.has_progress:
        shown.append(PlannedColumn("mz_progressed", Type.BOOLEAN))
    shown.append(PlannedColumn("mz_diff", Type.BIGINT))
    return replace(begun, view=view, columns=result_columns((*shown, *view.columns)))


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

    A transaction with definitions has a version of its own, so its plans do not replace others.
    """

    def __init__(self) -> None:
        self._plans: RecentlyUsed[tuple[int, str, tuple[int, ...]], Plan] = RecentlyUsed(_MOST_PLANS)

    def plan(self, text: str, oids: Sequence[int], objects: Objects) -> Plan:
        """Return the plan of a statement, as `derive.sql.preparation.prepare.plan` does. The plan is immutable."""
        if len(text) > MOST_CHARACTERS:
            return plan(text, oids, objects)
        key = objects.version, text, tuple(oids)
        known = self._plans.get(key)
        if known is None:
            _logger.debug("plan of version %d: %s", objects.version, text)
            known = self._plans.put(key, plan(text, oids, objects))
        return known
