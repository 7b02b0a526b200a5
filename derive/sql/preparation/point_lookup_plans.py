"""Queries of what is maintained, asked again and again: planned once."""

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
    """A query of what is maintained.

    Attributes:
        query: with its parameters.
        version: of the catalog for which this holds.
        sources: what is stored, of which everything that is read is worked out.
        at_present: whether others than the adapter write some of that.
        asked: what instances are asked.
    """

    query: PlannedQuery
    version: int
    sources: frozenset[GlobalId]
    at_present: bool
    asked: Query


class Lookups:
    """Queries of what is maintained, by the plans of which they were made.

    Args:
        maintained: tells what is maintained.
    """

    def __init__(self, maintained: Maintained) -> None:
        self._maintained = maintained
        self._lookups: RecentlyUsed[int, Lookup] = RecentlyUsed(_MOST_LOOKUPS)

    def find(self, query: PlannedQuery, objects: Objects) -> Lookup | None:
        """The look-up that a query is; None if it is none.

        The relation is maintained, and changes. Only parameters are settled anew each time: no limits, no `now()`, no
        `current_user`.
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
        """From which time on, and before which, it can be answered; None if it cannot be, or not yet."""
        return self._maintained.frontiers_of(lookup.asked.reads)
