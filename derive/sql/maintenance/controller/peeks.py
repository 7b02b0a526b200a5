"""Pending peeks: the choice of replicas, and of the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import CancelPeeks, Peek, PeekResponse
from derive.sql.maintenance.controller.answers import PeekReceiver, PendingPeek
from derive.sql.maintenance.controller.replica import Replica


@dataclass(frozen=True, slots=True)
class Turn:
    """The next step of a peek, executed without a lock, since a local replica answers at once.

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
    """Peeks without a complete answer. The controller's lock protects all methods.

    Of replicas with the rows, one is asked; the others are asked when it is late, is lost or refuses. Replicas that
    still hydrate the rows are asked if there are no others, or if the others do not answer.

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
            made: returns the peek of a number.
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
        """Ask the other replicas, and prefer them to the late ones for now; return None if the peek has ended.

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
        """Send peeks to a replica that has begun with a dataflow, since it may answer sooner."""
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
        """Return whether a part of an answer was delivered whose rest must come from the same replica."""
        return any(pending.is_streamed for pending in self._pending.values())

    def _asked(self, pending: PendingPeek, replicas: Collection[Replica]) -> Collection[Replica]:
        """Return the replicas that were not asked yet, and note that they are."""
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
