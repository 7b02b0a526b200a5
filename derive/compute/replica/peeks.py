"""Peeks at an instance: each waits until its dataflows are known at its time, and is answered once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.compute.dataflow.staging import as_failure
from derive.compute.instance import Instance, PreparedPeek
from derive.compute.protocol.messages import Peek, PeekResponse, Query
from derive.compute.replica.session import Session
from derive.errors import FlowError, FrontierError


class Peeks:
    """Peeks that are not answered yet.

    Args:
        instance: the instance.
        lock: lock held while the result of `answerable` changes.
        answerable: returns the session that gets answers now; None if peeks must wait.
        failure: returns why a dataflow is not maintained; None if it is.
        run: schedules a function, in another thread or in this one.
    """

    def __init__(
        self,
        instance: Instance,
        lock: threading.RLock,
        answerable: Callable[[], Session | None],
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
        try:
            known = [self._is_known(identifier, peek.time) for identifier in prepared.reads]
            is_known, failure = all(known), None
        except FlowError as error:
            is_known, failure = True, error
        with self._lock:
            session = self._answerable()
            if not is_known or session is None or self._waiting.pop(peek.uuid, None) is None:
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
        if self._answerable() is not session or any(map(self._failure, query.reads)):
            return None
        return self._instance.look_up(self._prepared.get(query) or self._prepare(query), time, arguments, most_bytes)

    def _prepare(self, query: Query) -> PreparedPeek:
        prepared = self._prepared.get(query)
        if prepared is None:
            prepared = self._prepared[query] = self._instance.prepare(query.relation, query.finishing)
        return prepared

    def _is_known(self, identifier: GlobalId, time: int) -> bool:
        """Return whether a dataflow is known at a time already.

        Raises:
            FlowError: it never will be.
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
