"""A controller's connection to an instance, with its pending peeks and its subscriptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from derive.algebra.relation import Finishing, Get, GlobalId
from derive.algebra.types import Datum, Row
from derive.compute.dataflow.staging import as_failure
from derive.compute.instance import Input, Instance, PreparedPeek, Updates
from derive.compute.protocol.messages import (
    PROTOCOL,
    Dataflow,
    Hello,
    Peek,
    PeekResponse,
    Query,
    Response,
    Tail,
    TailResponse,
    Update,
)
from derive.compute.replica.isolation import Instances
from derive.contents.inputs import TableInput
from derive.errors import FlowError, FrontierError, ProtocolError, SqlError


class Session(Protocol):
    """A connection of a controller."""

    def send(self, response: Response) -> None:
        """Send a response; do nothing after the connection is lost."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an instance.

    Attributes:
        process: identifier of the process.
        folder: identifier of the data folder.
    """

    process: str
    folder: str = ""


def check_hello(hello: Hello, folder: str) -> None:
    """Refuse an unsuitable controller before it can drop dataflows.

    Args:
        hello: first message of the controller.
        folder: identifier of the instance's data folder.

    Raises:
        ProtocolError: the controller speaks another protocol, or belongs to another data folder.
    """
    if hello.protocol != PROTOCOL:
        raise ProtocolError(
            (f"the instance has protocol {PROTOCOL}, and the controller {hello.protocol}"),
            hint="use the same release at both ends",
        )
    if hello.folder != folder:
        raise ProtocolError(
            "the instance serves another data folder", hint="start the instance with --data of this folder"
        )


class Peeks:
    """Peeks that wait for their answers.

    Args:
        instance: the instance.
        lock: lock that is held while the result of `answerable` changes.
        answerable: returns the session that gets answers about some dataflows now; None if their peeks must wait.
        failure: returns the reason why a dataflow is not maintained; None for a maintained dataflow.
        run: schedules a function, in another thread or in this one.
    """

    def __init__(
        self,
        instance: Instances,
        lock: threading.RLock,
        answerable: Callable[[Collection[GlobalId]], Session | None],
        failure: Callable[[GlobalId], FlowError | None],
        run: Callable[[Callable[[], object]], object],
    ) -> None:
        self._instance, self._lock, self._answerable = instance, lock, answerable
        self._failure, self._run = failure, run
        self._waiting: dict[int, Peek] = {}
        self._answering: set[int] = set()
        self._prepared: WeakKeyDictionary[Query, PreparedPeek] = WeakKeyDictionary()

    def add(self, peek: Peek) -> None:
        """Add a peek."""
        with self._lock:
            self._waiting[peek.uuid] = peek

    def cancel(self, uuids: Sequence[int]) -> None:
        """Remove cancelled peeks."""
        with self._lock:
            for uuid in uuids:
                self._waiting.pop(uuid, None)
                self._answering.discard(uuid)

    def clear(self) -> None:
        """Remove all peeks."""
        with self._lock:
            self._waiting.clear()
            self._answering.clear()

    def look(self) -> None:
        """Answer all peeks that are ready."""
        for peek in list(self._waiting.values()):
            self.look_at(peek)

    def look_at(self, peek: Peek) -> None:
        """Answer a peek, if it is ready."""
        prepared = self._prepare(peek.query)
        session = self._answerable(prepared.reads)
        if session is None:  # asked first, because a command that is executed meanwhile may create a dataflow
            return
        try:
            known = [self._is_known(identifier, peek.time) for identifier in prepared.reads]
            is_known, failure = all(known), None
        except FlowError as error:
            is_known, failure = True, error
        with self._lock:
            is_answerable = self._answerable(prepared.reads) is session
            if not is_known or not is_answerable or self._waiting.pop(peek.uuid, None) is None:
                return
            self._answering.add(peek.uuid)
        if failure is not None:
            self._finish(session, PeekResponse(peek.uuid, failure))
            return
        rows = self._instance.look_up(prepared, peek.time, peek.arguments, peek.most_bytes)
        if rows is not None:
            self._finish(session, PeekResponse(peek.uuid, rows))
        else:
            self._run(lambda: self._answer(session, peek, prepared))

    def look_up(
        self, session: Session, query: Query, time: int, arguments: Sequence[Datum], most_bytes: int | None
    ) -> Sequence[Row] | None:
        """Return the rows of a query, as for `Peek`, if a point lookup succeeds; otherwise None."""
        if self._answerable(query.reads) is not session or any(map(self._failure, query.reads)):
            return None
        return self._instance.look_up(self._prepared.get(query) or self._prepare(query), time, arguments, most_bytes)

    def _prepare(self, query: Query) -> PreparedPeek:
        prepared = self._prepared.get(query)
        if prepared is None:
            prepared = self._prepared[query] = self._instance.prepare(query.relation, query.finishing)
        return prepared

    def _is_known(self, identifier: GlobalId, time: int) -> bool:
        """Return whether a dataflow is complete at a time.

        Raises:
            FlowError: the dataflow will never be complete at this time.
        """
        if (failure := self._failure(identifier)) is not None:
            raise failure
        since, upper = self._instance.frontiers(identifier)
        if since > time:
            raise FrontierError(f"{identifier} is known from {since} on, and not at {time}")
        return upper > time

    def _answer(self, session: Session, peek: Peek, prepared: PreparedPeek) -> None:
        rows = self._instance.peek(
            prepared,
            as_of=peek.time,
            arguments=peek.arguments,
            most_bytes=peek.most_bytes,
            cancelled=lambda: peek.uuid not in self._answering,
        )
        try:
            for batch in rows:
                session.send(PeekResponse(peek.uuid, batch, is_last=False))
        except Exception as error:  # otherwise the waiting client would get no answer
            self._finish(session, PeekResponse(peek.uuid, as_failure(error)))
        else:
            self._finish(session, PeekResponse(peek.uuid, ()))

    def _finish(self, session: Session, response: PeekResponse) -> None:
        with self._lock:
            if response.uuid not in self._answering:
                return
            self._answering.discard(response.uuid)
        session.send(response)


_OWN: GlobalId = 0
"""Identifier of the subscribed relation in a private instance."""

_MOST_UPDATES = 1_000
"""Number of sent updates that a private instance retains, because each deletion costs a transaction."""

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
        self, dataflow: Dataflow, shared: Instances, open_inputs: Opener, send: Callable[[TailResponse], None]
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
        """Send new updates, and return whether more updates may be known already."""
        try:
            if self._get is None:
                self._get = self._found()
            if self._own is not None:
                while self._own.step():
                    pass
            self._advance(self._get)
        except Exception as error:  # any error: rows that were sent must not be sent again
            if self.is_ended:
                return False
            if isinstance(error, FrontierError) and self._get is not None and self._own is None:
                self._is_alone, self._get = True, None  # the followed dataflow no longer exists
                return True
            failure = as_failure(error)
            self._send(TailResponse(self._dataflow.id, self._frontier, self._frontier, (), failure))
            self.close()
        return False

    def stop(self) -> None:
        """End the subscription, and interrupt its work; called by any thread."""
        self.is_ended = True
        own = self._own
        if own is not None:
            own.stop()

    def close(self) -> None:
        """Stop sending."""
        self.is_ended = True
        if self._own is not None:
            self._own.close()
            self._own = None

    def _found(self) -> Get:
        """Return the source of the rows: a dataflow that is known at that time, or a private instance."""
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
        instance: Instance | Instances = self._own or self._shared
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
                raise FrontierError(
                    "the subscribed relation was rebuilt, and its changes before the rebuild are not known"
                )
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
        """Raise the error of a materialized view that is read, if the time of the error is not after the frontier."""
        for source in self._inputs.values():
            failure = source.failure if isinstance(source, TableInput) else None
            if failure is not None and failure[0] <= self._frontier:
                raise failure[1]

    def _snapshot(self, instance: Instance | Instances, get: Get) -> Iterator[list[Row]]:
        if self._tail.has_snapshot:
            everything = Finishing((), None, 0, tuple(range(len(get.types))))
            yield from instance.peek(get, everything, self._dataflow.as_of)

    def _respond(self, upper: int, updates: Sequence[Update]) -> None:
        lower, self._frontier = self._frontier, upper
        self._send(TailResponse(self._dataflow.id, lower, upper, tuple(updates)))
