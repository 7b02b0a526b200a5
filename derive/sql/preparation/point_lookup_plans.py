"""Cached plans of point lookups: queries of maintained relations."""

from __future__ import annotations

from dataclasses import dataclass

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Query
from derive.recently_used import RecentlyUsed
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.view_state import Maintained
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.planned import PlannedQuery

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
    asked: Query


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
