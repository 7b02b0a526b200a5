"""The controller of a compute instance: what is wanted of it, told to each replica, and one answer made of theirs.

What is wanted is a log of commands that is always compacted: dataflows that are not dropped, each as of the time from
which on somebody may ask for it. A replica that connects is given all of it, and makes itself equal to it. Everything
here may be called from any thread, and waits for no replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum
from derive.compute.protocol.messages import (
    AllowCompaction,
    Command,
    CreateInstance,
    Dataflow,
    FrontierUppers,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Query,
    Report,
    Response,
    Status,
    TailResponse,
    Upper,
    Welcome,
    reads_of,
)
from derive.errors import FlowError, FrontierError
from derive.sql.maintenance.controller.answers import PeekReceiver, PendingTail, TailReceiver
from derive.sql.maintenance.controller.dataflow_holds import Holds
from derive.sql.maintenance.controller.peeks import Peeks, Turn
from derive.sql.maintenance.controller.replica import Link, Replica
from derive.time.frontier import END_OF_TIME

FIRST_TRANSIENT_ID: GlobalId = 1 << 40
"""From here on, numbers identify dataflows that are in no catalog."""


class Controller:
    """What is wanted of an instance, and what is known of it.

    Args:
        epoch: greater than that of every controller before.
        holds: on what dataflows are made of.
        on_progress: called whenever something is known of dataflows that was not before, in any thread.
        on_welcome: told the name of a replica that is connected, and what it kept, rebuilt and dropped.
        folder: identifies the data folder, which must be that of each replica.

    Attributes:
        was_told: whether any replica has said by now how far it is with what it had from before.
    """

    def __init__(
        self,
        epoch: int,
        holds: Holds,
        on_progress: Callable[[], None] = lambda: None,
        on_welcome: Callable[[str, Welcome], None] = lambda name, welcome: None,
        folder: str = "",
    ) -> None:
        self.epoch, self._folder, self.was_told = epoch, folder, False
        self._holds, self._on_progress, self._on_welcome = holds, on_progress, on_welcome
        self._lock = threading.RLock()
        self._dataflows: dict[GlobalId, Dataflow] = {}
        self._uppers: dict[GlobalId, int] = {}
        self._reads: dict[GlobalId, frozenset[GlobalId]] = {}
        self._known: dict[GlobalId, tuple[int, int] | FlowError] = {}
        self._late: dict[GlobalId, int] = {}
        self._peeks = Peeks(epoch)
        self._tails: dict[GlobalId, PendingTail] = {}
        self._replicas: dict[str, Replica] = {}
        self._sessions, self._numbers = count(), count(1)
        self._ids = count(FIRST_TRANSIENT_ID)

    # -- What is wanted

    def new_id(self) -> GlobalId:
        """An identifier for a dataflow that is gone with this controller."""
        return next(self._ids)

    def create(self, dataflows: Sequence[Dataflow]) -> None:
        """Have dataflows maintained; those of the same collections begin at one time.

        Args:
            dataflows: none before those that it is over.

        Raises:
            FrontierError: what they are made of is forgotten.
        """
        self._holds.hold(dataflows)
        with self._lock:
            dataflows = [replace(dataflow, number=next(self._numbers)) for dataflow in dataflows]
            for dataflow in dataflows:
                self._dataflows[dataflow.id] = dataflow
                self._reads[dataflow.id] = reads_of(dataflow)
                self._uppers[dataflow.id] = dataflow.as_of
            for replica in self._replicas.values():
                replica.create(dataflows)
            self._learn([dataflow.id for dataflow in dataflows])

    def drop(self, identifier: GlobalId) -> None:
        """Have a dataflow maintained no more."""
        with self._lock:
            if self._dataflows.pop(identifier, None) is None:
                return
            del self._uppers[identifier], self._reads[identifier]
            self._tails.pop(identifier, None)
            for replica in self._replicas.values():
                replica.forget(identifier)
            self._learn([identifier])
            self._tell(AllowCompaction(((identifier, END_OF_TIME),)))
        self._holds.release(identifier)

    def allow_compaction(self, frontiers: Mapping[GlobalId, int]) -> None:
        """Nobody asks for earlier times of dataflows, but who does already.

        Args:
            frontiers: by identifier of a dataflow, the time from which on it is asked for.
        """
        allowed: dict[GlobalId, int] = {}
        with self._lock:
            for identifier, wished in frontiers.items():
                dataflow = self._dataflows.get(identifier)
                frontier = min([wished, *self._needed(identifier)])
                if dataflow is not None and frontier > dataflow.as_of:
                    self._dataflows[identifier] = replace(dataflow, as_of=frontier)
                    allowed[identifier] = frontier
            dataflows = [self._dataflows[identifier] for identifier in allowed]
        if not allowed:
            return
        self._holds.hold(dataflows)  # it is durable before a replica forgets anything
        with self._lock:
            gone = [identifier for identifier in allowed if identifier not in self._dataflows]
            self._tell(AllowCompaction(tuple(item for item in allowed.items() if item[0] not in gone)))
        for identifier in gone:
            self._holds.release(identifier)

    def late(self) -> Mapping[GlobalId, int]:
        """What has begun at a replica later than it was told to, and when, since this was asked last."""
        with self._lock:
            late, self._late = self._late, {}
        return late

    def _needed(self, identifier: GlobalId) -> list[int]:
        """Times at which a dataflow is still to be read, or to begin at a replica."""
        times = [replica.begun[identifier] for replica in self._replicas.values() if identifier in replica.begun]
        times += [self._dataflows[reader].as_of for reader, read in self._reads.items() if identifier in read]
        tails = [tail for key, tail in self._tails.items() if identifier == key or identifier in tail.reads]
        times += [tail.frontier - 1 for tail in tails]
        return times + self._peeks.times(identifier)

    # -- What is known

    def ids(self) -> frozenset[GlobalId]:
        """What is wanted."""
        with self._lock:
            return frozenset(self._dataflows)

    def dataflow(self, identifier: GlobalId) -> Dataflow | None:
        """What is wanted under an identifier."""
        with self._lock:
            return self._dataflows.get(identifier)

    def frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        """At which times a dataflow can be asked: from `since` on, and before `upper`, which never goes back.

        Raises:
            FlowError: no replica maintains it any more; or it is not wanted.
        """
        known = self._known.get(identifier)  # without the lock: it is asked with each query
        if isinstance(known, tuple):
            return known
        raise known or FrontierError(f"{identifier} is not maintained")

    def _learn(self, identifiers: Iterable[GlobalId]) -> None:
        """What is known of dataflows may be other than before."""
        for identifier in identifiers:
            dataflow = self._dataflows.get(identifier)
            if dataflow is None:
                self._known.pop(identifier, None)
                continue
            sinces = [known.since for replica in self._welcomed() if (known := replica.uppers.get(identifier))]
            since = min(sinces, default=dataflow.as_of)
            self._known[identifier] = self.failure(identifier) or (since, self._uppers[identifier])

    def failure(self, identifier: GlobalId) -> FlowError | None:
        """Why a dataflow does not go on; None if it does, or may, at one replica."""
        with self._lock:
            replicas = self._welcomed()
            failures = [replica.failures.get(identifier) for replica in replicas]
            return failures[0] if failures and all(failures) else None

    def failures(self) -> Mapping[GlobalId, FlowError]:
        """Why dataflows do not go on at any replica, by identifier."""
        with self._lock:
            return {identifier: known for identifier, known in self._known.items() if isinstance(known, FlowError)}

    def is_local(self) -> bool:
        """Whether its replica is in this process."""
        return any(replica.link.is_local for replica in list(self._replicas.values()))

    @property
    def is_streaming(self) -> bool:
        """Whether a part of an answer, or of a snapshot, was handed on of which the rest can come from one replica."""
        with self._lock:
            return self._peeks.is_streamed() or any(tail.is_streamed for tail in self._tails.values())

    def replicas(self) -> Mapping[str, Replica]:
        """Those that are connected, by name."""
        with self._lock:
            return dict(self._replicas)

    def _welcomed(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.welcome is not None]

    # -- Asking

    def peek(
        self,
        query: Query,
        time: int,
        receive: PeekReceiver,
        *,
        arguments: Sequence[Datum] = (),
        most_bytes: int | None = None,
    ) -> int:
        """Have a query answered, once, maybe in several parts, as soon as a replica is far enough.

        Args:
            query: over dataflows.
            time: at which.
            receive: takes the answer, in this thread or another one; `FrontierError` says that no replica can give one.
            arguments: one for each parameter of the query.
            most_bytes: so much may be in the result; None for any amount.

        Returns:
            What `cancel` takes.
        """
        with self._lock:
            turn = self._peeks.add(
                lambda uuid: Peek(uuid, query, time, tuple(arguments), most_bytes), receive, self._replicas.values()
            )
        turn.carry_out()
        return turn.pending.peek.uuid

    def hasten(self, uuid: int) -> None:
        """An answer is late: ask whoever may give it, too."""
        with self._lock:
            turn = self._peeks.hasten(uuid, self._replicas.values())
        if turn is not None:
            turn.carry_out()

    def cancel(self, uuid: int) -> None:
        """Nobody waits for an answer any more."""
        with self._lock:
            self._peeks.cancel(uuid)

    def subscribe(self, dataflow: Dataflow, receive: TailReceiver) -> None:
        """Have the rows of a tail sent as they change, each update once; `drop` ends it.

        Args:
            dataflow: exports a tail.
            receive: takes what is new, in any thread, one at a time.

        Raises:
            FrontierError: what it is made of is forgotten.
        """
        with self._lock:
            self._tails[dataflow.id] = PendingTail(dataflow, receive)
        try:
            self.create([dataflow])
        except FlowError:
            self._tails.pop(dataflow.id, None)
            raise

    # -- Replicas

    def attach(self, name: str, link: Link) -> None:
        """A replica is connected: tell it all that is wanted."""
        with self._lock:
            before = self._replicas.get(name)
            if before is not None:
                self.detach(name, before.link)
            replica = self._replicas[name] = Replica(name, link)
            link.send(Hello(self.epoch, next(self._sessions), folder=self._folder))
            link.send(CreateInstance())
            replica.create(
                [self._tails[key].dataflow if key in self._tails else self._dataflows[key] for key in self._dataflows]
            )
            link.send(InitializationComplete())
            self._learn(self._dataflows)
            self._peeks.join(replica)

    def detach(self, name: str, link: Link) -> None:
        """The connection to a replica is gone."""
        with self._lock:
            replica = self._replicas.get(name)
            if replica is None or replica.link is not link:
                return
            del self._replicas[name]
            link.close()
            self._learn(self._dataflows)
            for tail in self._tails.values():
                tail.lose(replica)
            tails, replicas = list(self._tails.values()), list(self._replicas.values())
            turns = self._peeks.lose(replica, replicas)
        self._on_progress()  # another one may know more of something, or go on with it
        for turn in turns:
            turn.carry_out()
        for tail in tails:
            tail.give_up(replicas)

    def _tell(self, command: Command) -> None:
        for replica in self._replicas.values():
            replica.link.send(command)

    # -- Responses

    def receive(self, link: Link, response: Response) -> None:
        """Take a response, in the order in which a replica has sent them."""
        if isinstance(response, PeekResponse):
            self._receive_answer(link, response)
            return
        turns: Sequence[Turn] = ()
        is_told = isinstance(response, Welcome | FrontierUppers | Status)
        with self._lock:
            replica = self._replica(link)
            if replica is None:
                return
            replica.is_late = False
            match response:
                case Welcome():
                    replica.welcome = response
                    self._learn(self._dataflows)
                case TailResponse():
                    replica.begun.pop(response.id, None)
                case Report():
                    replica.report = response
                    is_told, self.was_told = not self.was_told, True
                case FrontierUppers():
                    turns = self._advance(replica, response)
                case Status():
                    self._note_failure(replica, response)
            tail = self._tails.get(response.id) if isinstance(response, TailResponse) else None
        for turn in turns:
            turn.carry_out()
        if isinstance(response, Welcome):
            self._on_welcome(replica.name, response)
        if is_told:
            self._on_progress()
        # Whoever takes it may hold up a replica in this process, but not this controller.
        if isinstance(response, TailResponse) and tail and tail.take(replica, response, list(self._replicas.values())):
            with self._lock:
                replica.create([tail.dataflow] if response.id in self._tails else [])

    def _replica(self, link: Link) -> Replica | None:
        return next((replica for replica in self._replicas.values() if replica.link is link), None)

    def _receive_answer(self, link: Link, response: PeekResponse) -> None:
        with self._lock:
            replica, turn = self._replica(link), None
            if replica is not None:
                replica.is_late = False
                turn = self._peeks.take(replica, response, self._replicas.values())
        if turn is not None:
            turn.carry_out()

    def _advance(self, replica: Replica, response: FrontierUppers) -> Sequence[Turn]:
        has_begun = False
        for known in response.uppers:
            if self._is_wanted(known):
                before = replica.has_begun(known.id)
                replica.learn(known)
                has_begun |= replica.has_begun(known.id) and not before
                self._uppers[known.id] = max(self._uppers[known.id], known.upper)
                if known.since > self._dataflows[known.id].as_of:
                    self._late[known.id] = known.since
        self._learn(known.id for known in response.uppers)
        return self._peeks.begin(replica) if has_begun else ()

    def _is_wanted(self, response: Upper | Status) -> bool:
        """Whether something is about a dataflow that is wanted, and not about an earlier one of its identifier."""
        dataflow = self._dataflows.get(response.id)
        return dataflow is not None and dataflow.number == response.number

    def _note_failure(self, replica: Replica, response: Status) -> None:
        if not self._is_wanted(response):
            return
        replica.note(response)
        self._learn([response.id])
