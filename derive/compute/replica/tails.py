"""Subscriptions: the rows of a relation at one time, then its updates, sent as they become final."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from derive.algebra.relation import Finishing, Get, GlobalId
from derive.algebra.types import Row
from derive.compute.dataflow.staging import as_failure
from derive.compute.instance import Input, Instance, Updates
from derive.compute.protocol.messages import Dataflow, Tail, TailResponse, Update
from derive.errors import FrontierError, SqlError
from derive.relations.tables.input import TableInput

_OWN: GlobalId = 0
"""Identifier of the subscribed relation in a private instance."""

_MOST_UPDATES = 1_000
"""Number of sent updates that a private instance retains: to forget them costs a transaction."""

Opener = Callable[[Dataflow, int], dict[GlobalId, Input]]
"""Function that opens the imports of a dataflow from Storage, from a time on."""


class RunningTail:
    """A running subscription. One thread at a time calls its methods.

    Args:
        dataflow: dataflow that exports a subscription.
        shared: the instance, which may maintain the same rows already.
        open_inputs: function that opens imports, if the instance does not maintain the rows.
        send: function that sends a response.

    Attributes:
        is_ended: whether the subscription has ended.
    """

    def __init__(
        self, dataflow: Dataflow, shared: Instance, open_inputs: Opener, send: Callable[[TailResponse], None]
    ) -> None:
        assert isinstance(dataflow.export, Tail)
        self._dataflow, self._tail, self._send = dataflow, dataflow.export, send
        self._shared, self._open_inputs = shared, open_inputs
        self._own: Instance | None = None
        self._inputs: Mapping[GlobalId, Input] = {}
        self._get: Get | None = None
        self._is_begun = self._is_alone = False
        self._frontier = dataflow.as_of
        self._remembered = 0
        self.is_ended = False

    def work(self) -> bool:
        """Send new updates, and return whether there may be more at once."""
        try:
            if self._get is None:
                self._get = self._found()
            if self._own is not None:
                while self._own.step():
                    pass
            self._advance(self._get)
        except Exception as error:  # any error: rows that were sent must not be sent again
            if isinstance(error, FrontierError) and self._get is not None and self._own is None:
                self._is_alone, self._get = True, None  # the followed dataflow no longer exists
                return True
            failure = as_failure(error)
            self._send(TailResponse(self._dataflow.id, self._frontier, self._frontier, (), failure))
            self.close()
        return False

    def close(self) -> None:
        """Stop sending."""
        self.is_ended = True
        if self._own is not None:
            self._own.close()
            self._own = None

    def _found(self) -> Get:
        """Return the source of the rows: a dataflow that has them at that time, or a private instance."""
        types = self._dataflow.plan.types
        as_of = self._frontier - 1 if self._is_begun else self._dataflow.as_of
        of = None if self._is_alone else self._tail.of
        if of is not None and self._shared.is_known_from(of, as_of):
            return Get(of, types)
        own = Instance()
        try:
            self._inputs = self._open_inputs(self._dataflow, as_of)
            own.maintain(_OWN, self._dataflow.plan, as_of, self._inputs)
        except BaseException:
            own.close()
            raise
        self._own = own
        return Get(_OWN, types)

    def _advance(self, get: Get) -> None:
        instance = self._own or self._shared
        _, upper = instance.frontiers(get.id)
        if self._tail.up_to is not None:
            upper = min(upper, self._tail.up_to)
        as_of = self._dataflow.as_of
        if not self._is_begun and upper > as_of:
            last: list[Update] = []
            for rows in self._snapshot(instance, get):
                if last:
                    self._respond(as_of, last)
                last = [(as_of, row, 1) for row in rows]
            self._is_begun = True
            self._respond(as_of + 1, last)
        if self._is_begun and upper > self._frontier:
            updates = instance.updates(get.id, self._frontier, upper)
            if updates.since >= self._frontier:
                raise FrontierError("what is followed was made anew, and changes before that are not known")
            self._send_updates(updates, upper)
            self._remembered += len(updates.rows)
            if self._own is not None and self._remembered >= _MOST_UPDATES:
                self._own.allow_compaction(get.id, self._frontier - 1)
                self._remembered = 0
        elif self._is_begun:
            self._check_inputs()
        if self._tail.up_to is not None and self._frontier >= self._tail.up_to:
            self.close()

    def _send_updates(self, updates: Updates, upper: int) -> None:
        """Send updates up to the first error in place of rows.

        Raises:
            SqlError: there is an error at the frontier; all updates before it are sent.
        """
        rows = updates.rows
        if updates.errors:
            upper, sqlstate, message, _ = updates.errors[0]
            if upper == self._frontier:
                raise SqlError(sqlstate, message)
            rows = [update for update in rows if update[0] < upper]
        self._respond(upper, rows)

    def _check_inputs(self) -> None:
        """Raise the error of a read materialized view if its time is not after the frontier."""
        for source in self._inputs.values():
            failure = source.failure if isinstance(source, TableInput) else None
            if failure is not None and failure[0] <= self._frontier:
                raise failure[1]

    def _snapshot(self, instance: Instance, get: Get) -> Iterator[list[Row]]:
        if self._tail.has_snapshot:
            everything = Finishing((), None, 0, tuple(range(len(get.types))))
            yield from instance.peek(get, everything, self._dataflow.as_of)

    def _respond(self, upper: int, updates: Sequence[Update]) -> None:
        lower, self._frontier = self._frontier, upper
        self._send(TailResponse(self._dataflow.id, lower, upper, tuple(updates)))
