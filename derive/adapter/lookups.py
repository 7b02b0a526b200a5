"""Queries of what is maintained, asked again and again: planned once, and answered at once where that takes no time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from derive.adapter.batches import in_thread, of_rows
from derive.adapter.maintenance import Maintenance
from derive.adapter.objects import Objects
from derive.adapter.planner.planned import PlannedQuery
from derive.adapter.planner.reading import ids_of
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Datum, Row
from derive.compute.instance import PreparedPeek
from derive.errors import FlowError, SqlError

_MOST_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class Lookup:
    """A query of what is maintained.

    Attributes:
        query: with its parameters.
        version: of the catalog for which this holds.
        sources: what is stored, of which everything that is read is worked out.
        peek: what the instance is asked.
    """

    query: PlannedQuery
    version: int
    sources: frozenset[GlobalId]
    peek: PreparedPeek


class Lookups:
    """Queries of what is maintained, by the plans of which they were made.

    Args:
        maintenance: answers them.
    """

    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance
        self._lookups: dict[int, Lookup] = {}

    def find(self, query: PlannedQuery, objects: Objects) -> Lookup | None:
        """The look-up that a query is; None if it reads something that is not maintained."""
        lookup = self._lookups.get(id(query))
        if lookup is not None and lookup.query is query and lookup.version == objects.version:
            return lookup
        if query.limit is not None or query.offset is not None:
            return None
        prepared = self._maintenance.prepared(query.relation, query.finishing)
        if prepared is None:
            return None
        sources = self._maintenance.sources(ids_of(query.relation))
        if len(self._lookups) >= _MOST_LOOKUPS:
            self._lookups.clear()
        self._lookups[id(query)] = Lookup(query, objects.version, sources, prepared)
        return self._lookups[id(query)]

    def since(self, lookup: Lookup) -> int | None:
        """The time from which on it can be answered; None if it cannot be, or not yet."""
        since = 0
        try:
            for place in lookup.peek.reads:
                begin, upper = self._maintenance.instance.frontiers(place)
                if upper <= begin:
                    return None
                since = max(since, begin)
        except FlowError:
            return None
        return since

    def is_known(self, lookup: Lookup, time: int) -> bool:
        """Whether everything is known up to a time."""
        frontiers = self._maintenance.instance.frontiers
        return all(frontiers(place)[1] > time for place in lookup.peek.reads)

    def rows(
        self,
        lookup: Lookup,
        time: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
        stopping: tuple[Callable[[], bool], Callable[[], None]],
    ) -> AsyncIterator[Sequence[Row]]:
        """The rows at a time.

        What takes thousands of steps is left to a thread; the first ones are gone here, as a thread costs more.

        Args:
            lookup: the query.
            time: at which everything is known that it reads.
            arguments: a datum for each parameter.
            most_bytes: so much may be in the result; None for any amount.
            stopping: tells whether to end, and has it end.
        """
        is_here = True

        def is_over() -> bool:
            return is_here or stopping[0]()

        def batches() -> Iterator[list[Row]]:
            return self._maintenance.instance.peek(
                lookup.peek, as_of=time, arguments=arguments, most_bytes=most_bytes, cancelled=is_over
            )

        begun = batches()
        try:
            first = next(begun, [])
            if next(begun, None) is None:
                return of_rows(first)
        except SqlError as error:
            if error.sqlstate != "57014":
                raise
        finally:
            is_here = False
            if hasattr(begun, "close"):
                begun.close()
        return in_thread(batches(), stopping[1])
