"""Pending peeks: the choice of replicas, and one answer from several responses; tails without gaps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.compute.protocol.messages import CancelPeeks, Dataflow, Peek, PeekResponse, Tail, TailResponse, Update
from derive.errors import FlowError, SqlError
from derive.sql.maintenance.controller.replica import Replica

PeekReceiver = Callable[[PeekResponse], None]
TailReceiver = Callable[[TailResponse], None]


class PendingPeek:
    """A peek without a complete answer.

    The first complete answer is delivered. Parts are buffered until the last part has arrived, because the replica may
    be lost before. A part of a local replica is delivered at once, unless earlier parts are buffered.

    Args:
        peek: the peek.
        receive: function that takes the answer, in one or several parts.

    Attributes:
        asked: replicas to which the peek was sent.
        is_streamed: whether a part was delivered, so that the rest must come from the same replica.
    """

    def __init__(self, peek: Peek, receive: PeekReceiver) -> None:
        self.peek, self.receive = peek, receive
        self.asked: set[Replica] = set()
        self.is_streamed = False
        self._parts: dict[Replica, list[Row]] = {}
        self._refusals: dict[Replica, FlowError] = {}

    def take(self, replica: Replica, response: PeekResponse, replicas: Collection[Replica]) -> PeekResponse | None:
        """Take a response of a replica; return the response to deliver, or None."""
        if isinstance(response.result, FlowError) and not isinstance(response.result, SqlError):
            self._refusals[replica] = response.result
            return self.refused(replicas)
        if isinstance(response.result, SqlError):
            return response
        if replica.link.is_local and replica not in self._parts:
            self.is_streamed = True
            return response
        if not response.is_last:
            self._parts.setdefault(replica, []).extend(response.result)
            return None
        parts = self._parts.pop(replica, None)
        if parts is None:
            return response
        return PeekResponse(response.uuid, [*parts, *response.result])

    def lose(self, replica: Replica) -> None:
        """Discard the state of a lost replica."""
        self.asked.discard(replica)
        self._parts.pop(replica, None)
        self._refusals.pop(replica, None)

    @property
    def is_refused(self) -> bool:
        """Return whether a replica has refused the peek."""
        return bool(self._refusals)

    def refused(self, replicas: Collection[Replica]) -> PeekResponse | None:
        """Return an error if there are replicas and all have refused; None otherwise."""
        if replicas and all(replica in self._refusals for replica in replicas):
            return PeekResponse(self.peek.uuid, next(iter(self._refusals.values())))
        return None


class PendingTail:
    """A tail with a subscriber.

    Args:
        dataflow: the dataflow that exports the tail.
        receive: function that takes the updates.

    Attributes:
        frontier: time below which all updates were delivered.
        reads: the dataflow that the tail may follow.
        is_streamed: whether a part of the snapshot was delivered, so that the rest must come from the same replica.
    """

    def __init__(self, dataflow: Dataflow, receive: TailReceiver) -> None:
        assert isinstance(dataflow.export, Tail)
        self._dataflow, self._export, self.receive = dataflow, dataflow.export, receive
        self.frontier = dataflow.as_of
        of = dataflow.export.of
        self.reads: frozenset[GlobalId] = frozenset() if of is None else frozenset({of})
        self._parts: dict[Replica, list[Update]] = {}
        self._failures: dict[Replica, FlowError] = {}
        self._begun: set[Replica] = set()
        self.is_streamed = False
        self._lock = threading.Lock()

    @property
    def dataflow(self) -> Dataflow:
        """Return the dataflow that a new replica runs for the rest of the tail."""
        if self.frontier == self._dataflow.as_of:
            return self._dataflow
        rest = Tail(has_snapshot=False, of=self._export.of, up_to=self._export.up_to)
        before = self._dataflow
        return Dataflow(before.id, before.plan, before.imports, rest, self.frontier - 1, name=before.name)

    def take(self, replica: Replica, response: TailResponse, replicas: Collection[Replica]) -> bool:
        """Deliver the new updates in a response of a replica.

        Args:
            replica: the replica.
            response: its response.
            replicas: all replicas; another replica may continue if this replica cannot.

        Returns:
            True if the replica must begin again, because it has failed while another replica is ahead.
        """
        if isinstance(response.failure, FlowError) and not isinstance(response.failure, SqlError):
            if replica in self._begun and response.upper < self.frontier:
                self._begun.discard(replica)
                return True
            self._failures[replica] = response.failure
            self.give_up(replicas)
            return False
        self._begun.add(replica)
        with self._lock:
            spliced = self._spliced(replica, response)
            if spliced is not None:
                self.receive(spliced)
        return False

    def give_up(self, replicas: Collection[Replica]) -> None:
        """If there are replicas and all of them have failed, deliver the failure of the tail."""
        failures = dict(self._failures)
        if replicas and all(replica in failures for replica in replicas):
            with self._lock:
                failure = next(iter(failures.values()))
                self.receive(TailResponse(self._dataflow.id, self.frontier, self.frontier, (), failure))

    def _spliced(self, replica: Replica, response: TailResponse) -> TailResponse | None:
        if response.failure is not None:
            return response if response.upper >= self.frontier else None
        if response.upper == response.lower:  # a part of the snapshot
            if response.upper < self.frontier:
                return None
            if replica.link.is_local and replica not in self._parts:
                self.is_streamed = True
                return response
            self._parts.setdefault(replica, []).extend(response.updates)
            return None
        parts = self._parts.pop(replica, [])
        if response.upper <= self.frontier:
            return None
        assert response.lower <= self.frontier, "a replica left out updates of a subscription"
        updates = [*parts, *response.updates]
        if response.lower < self.frontier:
            updates = [update for update in updates if update[0] >= self.frontier]
        lower, self.frontier = self.frontier, response.upper
        if self.frontier > self._dataflow.as_of:
            self._parts.clear()
            self.is_streamed = False
        return TailResponse(response.id, lower, response.upper, tuple(updates))

    def lose(self, replica: Replica) -> None:
        """Discard the state of a lost replica."""
        self._parts.pop(replica, None)
        self._failures.pop(replica, None)
        self._begun.discard(replica)


@dataclass(frozen=True, slots=True)
class Turn:
    """The next step of a peek, which is executed without a lock, because a local replica answers at once.

    Attributes:
        pending: the peek.
        asked: replicas to send the peek to.
        answer: response to deliver; None for none yet.
    """

    pending: PendingPeek
    asked: Collection[Replica] = ()
    answer: PeekResponse | None = None

    def carry_out(self) -> None:
        """Send the peek, and deliver the answer."""
        for replica in self.asked:
            replica.link.send(self.pending.peek)
        if self.answer is not None:
            self.pending.receive(self.answer)


class Peeks:
    """Peeks without a complete answer, and the replicas that were asked. The controller's lock protects all methods.

    A peek is sent to one replica that has the rows. If this replica is late, is lost or refuses, the peek is sent to
    the other replicas with the rows. Replicas that still hydrate the rows get the peek last.

    Args:
        epoch: epoch of the controller.
    """

    def __init__(self, epoch: int) -> None:
        self._uuids = count(epoch << 40)
        self._pending: dict[int, PendingPeek] = {}

    def uuids(self) -> Collection[int]:
        """Return the numbers of pending peeks."""
        return self._pending.keys()

    def add(self, made: Callable[[int], Peek], receive: PeekReceiver, replicas: Collection[Replica]) -> Turn:
        """Add a peek.

        Args:
            made: returns the peek with a number.
            receive: function that takes the answer.
            replicas: all replicas.
        """
        peek = made(next(self._uuids))
        pending = self._pending[peek.uuid] = PendingPeek(peek, receive)
        begun, reads = _begun(peek, replicas), peek.query.reads
        if len(begun) > 1:
            begun = [min(begun, key=lambda replica: replica.rank(reads, peek.time))]
        return Turn(pending, self._asked(pending, begun or replicas))

    def hasten(self, uuid: int, replicas: Collection[Replica]) -> Turn | None:
        """Send a peek to the other replicas, and prefer them to the late replicas for now.

        Return None after the peek's end.

        Args:
            uuid: number of the peek.
            replicas: all replicas.
        """
        pending = self._pending.get(uuid)
        if pending is None:
            return None
        for replica in pending.asked:
            replica.is_late = True
        return Turn(pending, self._asked(pending, _begun(pending.peek, replicas) or replicas))

    def cancel(self, uuid: int) -> None:
        """Cancel a peek."""
        for replica in self._forget(uuid):
            replica.link.send(CancelPeeks((uuid,)))

    def join(self, replica: Replica) -> None:
        """Send all pending peeks to a new replica, which answers after its initialization."""
        for pending in self._pending.values():
            Turn(pending, self._asked(pending, [replica])).carry_out()

    def begin(self, replica: Replica) -> list[Turn]:
        """Send pending peeks to a replica that has begun a dataflow, and may answer sooner than other replicas."""
        able = [pending for pending in self._pending.values() if _begun(pending.peek, [replica])]
        return [Turn(pending, self._asked(pending, [replica])) for pending in able]

    def lose(self, replica: Replica, replicas: Collection[Replica]) -> list[Turn]:
        """Remove a lost replica.

        Args:
            replica: the lost replica.
            replicas: the other replicas.
        """
        turns = []
        for pending in list(self._pending.values()):
            others = replicas if replica in pending.asked else ()
            pending.lose(replica)
            refused = pending.refused(_welcomed(replicas))
            if refused is not None:
                self.cancel(pending.peek.uuid)  # cancel also at replicas that are not yet initialized
            turns.append(Turn(pending, () if refused else self._asked(pending, others), refused))
        return turns

    def take(self, replica: Replica, response: PeekResponse, replicas: Collection[Replica]) -> Turn | None:
        """Take a response; a complete answer cancels the peek at the other replicas.

        Args:
            replica: the sender.
            response: response to any peek.
            replicas: all replicas.
        """
        pending = self._pending.get(response.uuid)
        if pending is None:
            return None
        answer = pending.take(replica, response, _welcomed(replicas))
        if answer is None:
            return Turn(pending, self._asked(pending, replicas if pending.is_refused else ()))
        if answer.is_last:
            for other in self._forget(response.uuid) - {replica}:
                other.link.send(CancelPeeks((response.uuid,)))
        return Turn(pending, (), answer)

    def times(self, identifier: GlobalId) -> list[int]:
        """Return the times of the pending peeks of a dataflow."""
        return [pending.peek.time for pending in self._pending.values() if identifier in pending.peek.query.reads]

    def is_streamed(self) -> bool:
        """Return whether a part of an answer was delivered, so that the rest must come from the same replica."""
        return any(pending.is_streamed for pending in self._pending.values())

    def _asked(self, pending: PendingPeek, replicas: Collection[Replica]) -> Collection[Replica]:
        """Return the replicas to which a peek was not sent before, and record that it is sent now."""
        others = [replica for replica in replicas if replica not in pending.asked]
        pending.asked.update(others)
        for replica in others:
            replica.peeks += 1
        return others

    def _forget(self, uuid: int) -> set[Replica]:
        """Remove a peek; return the replicas that were asked."""
        pending = self._pending.pop(uuid, None)
        asked = pending.asked if pending else set()
        for replica in asked:
            replica.peeks -= 1
        return asked


def _begun(peek: Peek, replicas: Collection[Replica]) -> list[Replica]:
    """Return the replicas that have the rows of all dataflows that a peek reads."""
    return [replica for replica in replicas if all(map(replica.has_begun, peek.query.reads))]


def _welcomed(replicas: Collection[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.welcome is not None]
