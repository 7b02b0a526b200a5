"""The controller of a compute instance, and its read capabilities on the inputs of dataflows.

The desired state is a compacted log of commands: the existing dataflows, each as of the earliest time that may be read.
A replica that connects receives the whole log, and reconciles itself with it. All methods may be called from any
thread, and none waits for a replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum
from derive.compute.protocol.messages import (
    AllowCompaction,
    Command,
    CreateInstance,
    Dataflow,
    FrontierUppers,
    Hello,
    Index,
    InitializationComplete,
    Materialized,
    Peek,
    PeekResponse,
    Query,
    Report,
    Response,
    Status,
    Tail,
    TailResponse,
    Upper,
    Welcome,
    reads_of,
)
from derive.errors import FlowError, FrontierError
from derive.failpoint import reach
from derive.sql.maintenance.controller.reads import PeekReceiver, Peeks, PendingTail, TailReceiver, Turn
from derive.sql.maintenance.controller.replica import Link, Replica, ReplicaState
from derive.storage.capability.capabilities import Request, RetainedCapabilities
from derive.storage.store import Store
from derive.time import END_OF_TIME


class InputCapabilities(Protocol):
    """Read capabilities on the inputs of dataflows."""

    def acquire(self, dataflows: Sequence[Dataflow]) -> None:
        """Acquire capabilities to read the inputs of dataflows from their `as_of` on, in place of earlier capabilities.

        The capabilities are durable on return, and last until `release`.

        Raises:
            FrontierError: an input is compacted at the time.
        """

    def release(self, identifier: GlobalId) -> None:
        """Release the capabilities of a dataflow."""


class DataflowCapabilities:
    """Read capabilities of dataflows. For views and indexes they last until a DROP, and for tails they expire.

    CREATE acquires the capabilities of a view, and DROP releases them; this class only advances them.

    Args:
        store: the data folder.
        names: returns the names of the collections from which a dataflow derives, directly or through other dataflows;
            it is given the dataflows that are about to be created, by identifier.
    """

    def __init__(self, store: Store, names: Callable[[Dataflow, Mapping[GlobalId, Dataflow]], Collection[str]]) -> None:
        self._store, self._names = store, names
        self._tails = RetainedCapabilities(store.capabilities, "SUBSCRIBE")
        self._indexes: set[GlobalId] = set()

    def acquire(self, dataflows: Sequence[Dataflow]) -> None:
        """Acquire capabilities to read the inputs of dataflows from their `as_of` on, in place of earlier ones.

        Raises:
            FrontierError: an input is compacted at the time.
        """
        views: dict[GlobalId, tuple[Collection[str], int]] = {}
        indexes: dict[GlobalId, tuple[Collection[str], int]] = {}
        needed: dict[str, int] = {}
        tails: dict[int, Request] = {
            dataflow.id: ([source.id for source in dataflow.imports], dataflow.as_of)
            for dataflow in dataflows
            if isinstance(dataflow.export, Tail)
        }
        begun = self._tails.request(tails)
        new = {dataflow.id: dataflow for dataflow in dataflows}
        for dataflow in dataflows:
            if dataflow.id in begun:
                continue  # the input of the dataflow reports an error if it lags too far
            names = self._names(dataflow, new)
            match dataflow.export:
                case Materialized():
                    views[dataflow.id] = names, dataflow.as_of
                case Index():
                    indexes[dataflow.id] = names, dataflow.as_of
            for name in names:
                needed[name] = min(dataflow.as_of, needed.get(name, dataflow.as_of))
        if views or indexes:
            self._indexes.update(indexes)
            self._store.task_capabilities.acquire_dataflow_inputs(views, indexes)  # one commit for all dataflows
            reach("dataflow.held")
        for name, as_of in needed.items():
            known = self._store.collection(name)
            if known is not None and known.since > as_of:
                raise FrontierError(
                    f"the history of '{name}' at {as_of} was compacted: the history is exact from {known.since} on"
                )

    def release(self, identifier: GlobalId) -> None:
        """Release the capabilities of a dataflow."""
        self._tails.release(identifier)
        if identifier in self._indexes:
            self._store.task_capabilities.release_index(identifier)
            self._indexes.discard(identifier)  # after a failure, the next call releases them

    def frontiers(self) -> dict[GlobalId, int]:
        """Return the time from which each index and view may read its inputs."""
        capabilities = self._store.task_capabilities
        return capabilities.dataflows("index") | capabilities.dataflows("view")

    def begin(self, indexes: Collection[GlobalId]) -> None:
        """Continue with an earlier process's capabilities of indexes, and release capabilities of dropped indexes."""
        present = self._store.task_capabilities.dataflows("index").keys()
        for identifier in present - set(indexes):
            self._store.task_capabilities.release_index(identifier)
        self._indexes = present & set(indexes)

    def release_dropped(self, indexes: Container[GlobalId]) -> None:
        """Release the capabilities of dropped indexes, including indexes dropped before their dataflow was created."""
        for identifier in [one for one in self._indexes if one not in indexes]:
            self.release(identifier)

    def renew(self) -> None:
        """Renew the capabilities that expire. Any thread may call it; it is called several times a minute."""
        self._tails.renew()

    def close(self) -> None:
        """Release the capabilities of tails."""
        self._tails.close()


FIRST_TRANSIENT_ID: GlobalId = 1 << 40
"""Least identifier of dataflows outside the catalog."""


class Controller:
    """The desired and the known state of an instance.

    Args:
        epoch: epoch, greater than the epochs of all earlier controllers.
        capabilities: read capabilities on the inputs of dataflows.
        on_progress: function called after each change of the known state, in any thread.
        on_welcome: function called with the name of a replica that has connected, and its reconciliation.
        folder: identifier of the data folder, which each replica must use.

    Attributes:
        has_reported: whether a replica has reported the frontiers of its earlier dataflows.
    """

    def __init__(
        self,
        epoch: int,
        capabilities: InputCapabilities,
        on_progress: Callable[[], None] = lambda: None,
        on_welcome: Callable[[str, Welcome], None] = lambda name, welcome: None,
        folder: str = "",
    ) -> None:
        self.epoch, self._folder, self.has_reported = epoch, folder, False
        self._capabilities, self._on_progress, self._on_welcome = capabilities, on_progress, on_welcome
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

    # -- Desired state

    def new_id(self) -> GlobalId:
        """Return a new identifier for a transient dataflow of this controller."""
        return next(self._ids)

    def create(self, dataflows: Sequence[Dataflow]) -> None:
        """Create dataflows; dataflows of the same collections begin at one time.

        Args:
            dataflows: the dataflows, inputs first.

        Raises:
            FrontierError: an input is compacted at the time.
        """
        self._capabilities.acquire(dataflows)
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
        """Drop a dataflow."""
        with self._lock:
            if self._dataflows.pop(identifier, None) is None:
                return
            del self._uppers[identifier], self._reads[identifier]
            self._tails.pop(identifier, None)
            for replica in self._replicas.values():
                replica.forget(identifier)
            self._learn([identifier])
            self._broadcast(AllowCompaction(((identifier, END_OF_TIME),)))
        self._capabilities.release(identifier)

    def allow_compaction(self, frontiers: Mapping[GlobalId, int]) -> None:
        """Allow compaction of dataflows, except for pending reads.

        Args:
            frontiers: for each dataflow, the earliest time that will be read.
        """
        allowed: dict[GlobalId, int] = {}
        with self._lock:
            for identifier, requested in frontiers.items():
                dataflow = self._dataflows.get(identifier)
                frontier = min([requested, *self._needed(identifier)])
                if dataflow is not None and frontier > dataflow.as_of:
                    self._dataflows[identifier] = replace(dataflow, as_of=frontier)
                    allowed[identifier] = frontier
            dataflows = [self._dataflows[identifier] for identifier in allowed]
        if not allowed:
            return
        self._capabilities.acquire(dataflows)  # durable before a replica compacts
        with self._lock:
            gone = [identifier for identifier in allowed if identifier not in self._dataflows]
            self._broadcast(AllowCompaction(tuple(item for item in allowed.items() if item[0] not in gone)))
        for identifier in gone:
            self._capabilities.release(identifier)

    def late(self) -> Mapping[GlobalId, int]:
        """Return the times of dataflows that have begun later than requested at a replica, after the last call."""
        with self._lock:
            late, self._late = self._late, {}
        return late

    def _needed(self, identifier: GlobalId) -> list[int]:
        """Return the times at which a dataflow is still read, or must begin at a replica."""
        times = [replica.begun[identifier] for replica in self._replicas.values() if identifier in replica.begun]
        times += [self._dataflows[reader].as_of for reader, read in self._reads.items() if identifier in read]
        tails = [tail for key, tail in self._tails.items() if identifier == key or identifier in tail.reads]
        times += [tail.frontier - 1 for tail in tails]
        return times + self._peeks.times(identifier)

    # -- Known state

    def ids(self) -> frozenset[GlobalId]:
        """Return the identifiers of the desired dataflows."""
        with self._lock:
            return frozenset(self._dataflows)

    def dataflow(self, identifier: GlobalId) -> Dataflow | None:
        """Return a desired dataflow; None if there is none."""
        with self._lock:
            return self._dataflows.get(identifier)

    def frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        """Return the readable times of a dataflow: from `since` on, and before `upper`, which never decreases.

        Raises:
            FlowError: the dataflow has failed at all replicas, or does not exist.
        """
        known = self._known.get(identifier)  # without the lock, because each query calls this function
        if isinstance(known, tuple):
            return known
        raise known or FrontierError(f"no instance maintains relation {identifier}", hint="Run the statement again.")

    def _learn(self, identifiers: Iterable[GlobalId]) -> None:
        """Recompute the cached frontiers of dataflows."""
        for identifier in identifiers:
            dataflow = self._dataflows.get(identifier)
            if dataflow is None:
                self._known.pop(identifier, None)
                continue
            sinces = [known.since for replica in self._welcomed() if (known := replica.uppers.get(identifier))]
            since = min(sinces, default=dataflow.as_of)
            self._known[identifier] = self.failure(identifier) or (since, self._uppers[identifier])

    def failure(self, identifier: GlobalId) -> FlowError | None:
        """Return the failure of a dataflow that has failed at all replicas; None otherwise."""
        with self._lock:
            replicas = self._welcomed()
            failures = [replica.failures.get(identifier) for replica in replicas]
            return failures[0] if failures and all(failures) else None

    def failures(self) -> Mapping[GlobalId, FlowError]:
        """Return the failures of dataflows that have failed at all replicas, by identifier."""
        with self._lock:
            return {identifier: known for identifier, known in self._known.items() if isinstance(known, FlowError)}

    def is_local(self) -> bool:
        """Return whether a replica is in this process."""
        return any(replica.link.is_local for replica in list(self._replicas.values()))

    @property
    def is_streaming(self) -> bool:
        """Return whether a part of an answer or snapshot was delivered, so that the same replica must send the rest."""
        with self._lock:
            return self._peeks.is_streamed() or any(tail.is_streamed for tail in self._tails.values())

    def replicas(self) -> Mapping[str, Replica]:
        """Return the connected replicas, by name."""
        with self._lock:
            return dict(self._replicas)

    def _welcomed(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.welcome is not None]

    # -- Peeks and subscriptions

    def peek(
        self,
        query: Query,
        time: int,
        receive: PeekReceiver,
        *,
        arguments: Sequence[Datum] = (),
        most_bytes: int | None = None,
    ) -> int:
        """Send a query to a replica. The answer is delivered once, perhaps in several parts.

        Args:
            query: query over dataflows.
            time: time of the read.
            receive: function that takes the answer, in any thread; a `FrontierError` says that no replica can answer.
            arguments: an argument for each parameter of the query.
            most_bytes: greatest size of the result in bytes; None for no limit.

        Returns:
            The number for `cancel`.
        """
        with self._lock:
            turn = self._peeks.add(
                lambda uuid: Peek(uuid, query, time, tuple(arguments), most_bytes), receive, self._replicas.values()
            )
        turn.carry_out()
        return turn.pending.peek.uuid

    def hasten(self, uuid: int) -> None:
        """Hedge: send the peek to the other replicas."""
        with self._lock:
            turn = self._peeks.hasten(uuid, self._replicas.values())
        if turn is not None:
            turn.carry_out()

    def cancel(self, uuid: int) -> None:
        """Cancel a peek."""
        with self._lock:
            self._peeks.cancel(uuid)

    def subscribe(self, dataflow: Dataflow, receive: TailReceiver) -> None:
        """Subscribe to a tail: each update is delivered once; `drop` ends the subscription.

        Args:
            dataflow: a dataflow that exports a tail.
            receive: function that takes the updates, in any thread, one call at a time.

        Raises:
            FrontierError: an input is compacted at the time.
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
        """Add a connected replica, and send it the desired state."""
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
        """Remove a replica whose connection is lost."""
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
        self._on_progress()  # another replica may know more, or continue
        for turn in turns:
            turn.carry_out()
        for tail in tails:
            tail.give_up(replicas)

    def _broadcast(self, command: Command) -> None:
        for replica in self._replicas.values():
            replica.link.send(command)

    # -- Responses

    def receive(self, link: Link, response: Response) -> None:
        """Process a response, in the order in which a replica has sent them."""
        if isinstance(response, PeekResponse):
            self._receive_answer(link, response)
            return
        turns: Sequence[Turn] = ()
        is_reported = isinstance(response, Welcome | FrontierUppers | Status)
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
                    is_reported, self.has_reported = not self.has_reported, True
                case FrontierUppers():
                    turns = self._advance(replica, response)
                case Status():
                    self._note_failure(replica, response)
            tail = self._tails.get(response.id) if isinstance(response, TailResponse) else None
        for turn in turns:
            turn.carry_out()
        if isinstance(response, Welcome):
            self._on_welcome(replica.name, response)
        if is_reported:
            self._on_progress()
        # Called without the lock: the receiver may delay a local replica, but not this controller.
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
            if self._is_requested(known):
                before = replica.has_begun(known.id)
                replica.learn(known)
                has_begun |= replica.has_begun(known.id) and not before
                self._uppers[known.id] = max(self._uppers[known.id], known.upper)
                if known.since > self._dataflows[known.id].as_of:
                    self._late[known.id] = known.since
        self._learn(known.id for known in response.uppers)
        return self._peeks.begin(replica) if has_begun else ()

    def _is_requested(self, response: Upper | Status) -> bool:
        """Return whether a response belongs to a desired dataflow; an earlier dataflow may have the same identifier."""
        dataflow = self._dataflows.get(response.id)
        return dataflow is not None and dataflow.number == response.number

    def _note_failure(self, replica: Replica, response: Status) -> None:
        if not self._is_requested(response):
            return
        replica.note(response)
        self._learn([response.id])


def replica_states(controller: Controller, places: Iterable[tuple[str, str, str]]) -> list[ReplicaState]:
    """Return the status of replicas.

    Args:
        controller: the controller.
        places: name, address, and reason of the missing connection of each replica.
    """
    connected = controller.replicas()
    states = []
    for name, address, trouble in places:
        replica = connected.get(name)
        if replica is None or replica.welcome is None:
            states.append(ReplicaState(name, address, trouble))
        else:
            lag, known = lag_of(controller, replica), (replica.uppers.copy(), replica.failures.copy())
            states.append(ReplicaState(name, address, "", replica.welcome, replica.report, *known, lag))
    return states


def lag_of(controller: Controller, replica: Replica) -> int:
    """Return the lag of a replica's slowest dataflow behind the other replicas, in microseconds."""
    lag = 0
    for identifier, known in list(replica.uppers.items()):
        with suppress(FlowError):
            lag = max(lag, controller.frontiers(identifier)[1] - known.upper)
    return lag
