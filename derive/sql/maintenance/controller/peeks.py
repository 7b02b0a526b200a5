"""Peeks that somebody waits for: which replicas are asked, and whose answer counts."""

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
    """What becomes of a peek. It is carried out while no lock is held, as a replica in this process answers at once.

    Attributes:
        pending: the peek.
        asked: replicas that are asked from now on.
        answer: what is handed on; None if it is nothing yet.
    """

    pending: PendingPeek
    asked: Collection[Replica] = ()
    answer: PeekResponse | None = None

    def carry_out(self) -> None:
        """Ask, and hand on."""
        for replica in self.asked:
            replica.link.send(self.pending.peek)
        if self.answer is not None:
            self.pending.receive(self.answer)


class Peeks:
    """Peeks that are not answered yet. Its methods are called with the controller's lock.

    Of replicas that have the rows one is asked, and the others once it is late, is lost or refuses; those that work the
    rows out are if there are no such, or these do not answer.

    Args:
        epoch: of the controller.
    """

    def __init__(self, epoch: int) -> None:
        self._uuids = count(epoch << 40)
        self._pending: dict[int, PendingPeek] = {}

    def uuids(self) -> Collection[int]:
        """What identifies those that are not answered yet."""
        return self._pending.keys()

    def add(self, made: Callable[[int], Peek], receive: PeekReceiver, replicas: Collection[Replica]) -> Turn:
        """Somebody waits for a peek.

        Args:
            made: the peek, of what identifies it.
            receive: takes the answer.
            replicas: all.
        """
        peek = made(next(self._uuids))
        pending = self._pending[peek.uuid] = PendingPeek(peek, receive)
        begun, reads = _begun(peek, replicas), peek.query.reads
        if len(begun) > 1:
            begun = [min(begun, key=lambda replica: replica.rank(reads, peek.time))]
        return Turn(pending, self._asked(pending, begun or replicas))

    def hasten(self, uuid: int, replicas: Collection[Replica]) -> Turn | None:
        """An answer is late: all that may give one are asked, and those that were asked are not before others for now.

        Args:
            uuid: of the peek.
            replicas: all.
        """
        pending = self._pending.get(uuid)
        if pending is None:
            return None
        for replica in pending.asked:
            replica.is_late = True
        return Turn(pending, self._asked(pending, _begun(pending.peek, replicas) or replicas))

    def cancel(self, uuid: int) -> None:
        """Nobody waits for an answer any more."""
        for replica in self._forget(uuid):
            replica.link.send(CancelPeeks((uuid,)))

    def join(self, replica: Replica) -> None:
        """A replica is being told all that is wanted, and answers once it has heard of that."""
        for pending in self._pending.values():
            Turn(pending, self._asked(pending, [replica])).carry_out()

    def begin(self, replica: Replica) -> list[Turn]:
        """A replica has begun with something: it may answer sooner than those that were asked."""
        able = [pending for pending in self._pending.values() if _begun(pending.peek, [replica])]
        return [Turn(pending, self._asked(pending, [replica])) for pending in able]

    def lose(self, replica: Replica, replicas: Collection[Replica]) -> list[Turn]:
        """A replica is gone.

        Args:
            replica: which.
            replicas: all others.
        """
        turns = []
        for pending in list(self._pending.values()):
            others = replicas if replica in pending.asked else ()
            pending.lose(replica)
            refused = pending.refused(_welcomed(replicas))
            if refused is not None:
                self.cancel(pending.peek.uuid)  # one that is not welcomed yet may wait to answer
            turns.append(Turn(pending, () if refused else self._asked(pending, others), refused))
        return turns

    def take(self, replica: Replica, response: PeekResponse, replicas: Collection[Replica]) -> Turn | None:
        """A response has come; when the answer is whole, nobody else is to go on with it.

        Args:
            replica: that has sent it.
            response: to any peek.
            replicas: all.
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
        """Times at which a dataflow is asked for."""
        return [pending.peek.time for pending in self._pending.values() if identifier in pending.peek.query.reads]

    def is_streamed(self) -> bool:
        """Whether a part of an answer was handed on of which the rest can come from one replica."""
        return any(pending.is_streamed for pending in self._pending.values())

    def _asked(self, pending: PendingPeek, replicas: Collection[Replica]) -> Collection[Replica]:
        """Those of some replicas that are to be asked, as they were not before."""
        others = [replica for replica in replicas if replica not in pending.asked]
        pending.asked.update(others)
        for replica in others:
            replica.peeks += 1
        return others

    def _forget(self, uuid: int) -> set[Replica]:
        """A peek is over; the replicas that were asked."""
        pending = self._pending.pop(uuid, None)
        asked = pending.asked if pending else set()
        for replica in asked:
            replica.peeks -= 1
        return asked


def _begun(peek: Peek, replicas: Collection[Replica]) -> list[Replica]:
    """Those of some replicas that have the rows of what a peek reads."""
    return [replica for replica in replicas if all(map(replica.has_begun, peek.query.reads))]


def _welcomed(replicas: Collection[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.welcome is not None]
