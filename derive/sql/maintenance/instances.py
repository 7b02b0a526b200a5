"""The controller of this process, its compute instances, and their replica in this process."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.compute.instance import Progress
from derive.compute.protocol.messages import Command, Dataflow, Query, Response, Welcome, reads_of
from derive.compute.protocol.transport import place_named
from derive.compute.replica.worker import Worker, locked
from derive.errors import BusyError
from derive.sql.catalog.items import LOCAL, ReplicaPlace
from derive.sql.maintenance.controller.controller import (
    FIRST_TRANSIENT_ID,
    Controller,
    DataflowCapabilities,
    lag_of,
    replica_states,
)
from derive.sql.maintenance.controller.remote import PROCESSES, Instances, RemoteReplica, ReplicaProcess
from derive.sql.maintenance.controller.replica import ReplicaState
from derive.sql.maintenance.recording import LOG
from derive.storage.folder_id import folder_id
from derive.storage.store import Store
from derive.storage.task_log import TaskLog


class LocalReplica:
    """The controller's end of a local instance, and the instance's end.

    Args:
        controller: controller of the instance.
        worker: the instance.

    Attributes:
        is_local: whether parts of answers can be delivered at once, because this connection cannot be lost. False
            before other replicas, which may give the same answers, are added.
    """

    def __init__(self, controller: Controller, worker: Worker) -> None:
        self._controller, self._worker, self.is_local = controller, worker, True
        self._session = _Session(self, controller)
        controller.attach(LOCAL, self)

    def send(self, command: Command) -> None:
        """Send a command to the instance."""
        self._worker.reconciler.accept(self._session, command)

    def look_up(
        self, query: Query, time: int, arguments: Sequence[Datum], most_bytes: int | None
    ) -> Sequence[Row] | None:
        """Return the rows of a query like `Controller.peek`, on the fast path; None if the query needs a peek."""
        return self._worker.reconciler.peeks.look_up(self._session, query, time, arguments, most_bytes)

    def leave(self) -> None:
        """Leave the controller, which has other replicas."""
        self._controller.detach(LOCAL, self)

    def close(self) -> None:
        """Close the session with the instance."""
        self._worker.reconciler.lose(self._session)


class _Session:
    """The instance's end of the connection."""

    def __init__(self, link: LocalReplica, controller: Controller) -> None:
        self._link, self._controller = link, controller

    def send(self, response: Response) -> None:
        self._controller.receive(self._link, response)

    def close(self) -> None:
        """Do nothing: no other controller can fence this session."""


FOLDER = "sql-views"
"""Folder of the local instance, in the data folder."""

_NEAR = 1_000_000
"""Greatest lag at which a replica replaces the local instance, in microseconds."""

_FIRST_SECONDS = 10.0
"""Longest wait of a query for the first instance, in seconds; the instance saves the evaluation of the query."""


class ComputeInstances:
    """The controller of this process, and its instances; without other instances there is a local one.

    Args:
        store: store of the data folder.
        root: the data folder.
        instances: instances of the server's options.
        on_progress: function called after each change of the known state, in any thread.
        name_of: returns the name of a dataflow; None if the catalog no longer has it.
        report: function that takes the failure of a local instance, and None after recovery.

    Attributes:
        capabilities: read capabilities on the inputs of dataflows.
        controller: controller of the instances.
        places: places of the other instances, by name.
        security: credentials for external replicas.
        local: connection of the local instance; None if missing.
        is_owner: whether this process maintains the views of the data folder.
        awaited_until: deadline of the first instance's report, on the monotonic clock.
    """

    def __init__(
        self,
        store: Store,
        root: Path,
        instances: Instances,
        on_progress: Callable[[], None],
        name_of: Callable[[GlobalId], str | None],
        report: Callable[[Exception | None], None],
    ) -> None:
        self._store, self._root, self._instances = store, root, instances
        self._on_progress, self._name_of, self._report = on_progress, name_of, report
        self._loop = asyncio.get_running_loop()
        self.capabilities = DataflowCapabilities(store, self._names)
        self._folder_id = folder_id(root)
        self.controller = self._controller(0)
        self._worker: Worker | None = None
        self._lock_of_folder = ExitStack()
        self.local: LocalReplica | None = None
        self._earlier: Worker | None = None
        self._remote: dict[str, RemoteReplica | ReplicaProcess] = {}
        self._lock = threading.Lock()
        self.places: dict[str, ReplicaPlace] = {}
        self.add(*map(ReplicaPlace, instances.names))
        self.add(*(ReplicaPlace(address, address) for address in instances.addresses))
        self.security = instances.security
        self.is_owner, self.awaited_until = False, 0.0

    def begin(self, epoch: int) -> None:
        """Begin to maintain the views of the data folder.

        Args:
            epoch: epoch, greater than all earlier epochs.
        """
        self._earlier, self._worker, self.local = self._worker, None, None  # its subscriptions continue
        self.controller = self._controller(epoch)
        self.is_owner, self.awaited_until = True, time.monotonic() + _FIRST_SECONDS

    @property
    def is_awaited(self) -> bool:
        """Return whether the first report of an instance is still expected."""
        return self.is_owner and not self.controller.has_reported and time.monotonic() < self.awaited_until

    def attach(self) -> None:
        """Connect the instances to the controller; an instance drops earlier state that is not desired."""
        with self._lock:
            if not self.places:
                if self._worker is None:
                    self._begin_local(self._root / FOLDER)
                elif self.local is not None:  # the other replicas were removed before they had caught up
                    self.local.is_local = True
                return
            if self.local is not None:
                self.local.is_local = False
                if self.controller.is_streaming:
                    return
            for name, place in self.places.items():
                if name not in self._remote:
                    self._remote[name] = self._start(place)
            if self.local is not None and self._is_caught_up():
                self.local.leave()
                self._end_local()

    def add(self, *places: ReplicaPlace) -> None:
        """Add replicas, from the next `attach` on; a known address gets a new name.

        The call does nothing if replica processes cannot be started.
        """
        if not self.can_start:
            return
        with self._lock:
            for place in places:
                same = self.at(place.address)
                if same is not None:
                    del self.places[same.name]
                self.places.setdefault(place.name, place)

    def at(self, address: str) -> ReplicaPlace | None:
        """Return the replica at an address; None if there is none, or if the address is empty."""
        named = [(place, place_named(place.address)) for place in list(self.places.values()) if place.address]
        return next((place for place, known in named if address and known == place_named(address)), None)

    def remove(self, name: str) -> None:
        """Remove a replica, and wait for its process to end; its state is deleted."""
        with self._lock:  # the lock is held to the end, so that no local instance begins before
            place, replica = self.places.pop(name), self._remote.pop(name, None)
            if replica is not None:
                replica.close()
            if not place.address:
                shutil.rmtree(self._root / PROCESSES / name, ignore_errors=True)

    def is_of_options(self, place: ReplicaPlace) -> bool:
        """Return whether the server's options name a replica."""
        instances = self._instances
        addresses = map(place_named, instances.addresses)
        return place.name in instances.names or bool(place.address and place_named(place.address) in addresses)

    @property
    def can_start(self) -> bool:
        """Return whether replica processes can be started."""
        return self._instances.command is not None

    def _is_caught_up(self) -> bool:
        """Return whether a replica in another process has caught up with the local instance."""
        replicas = dict(self.controller.replicas())
        here = replicas.pop(LOCAL, None)
        return here is not None and any(
            replica.welcome is not None
            and here.uppers.keys() <= replica.uppers.keys() | replica.failures.keys()
            and lag_of(self.controller, replica) < _NEAR
            for replica in replicas.values()
        )

    def begin_for_subscriptions(self) -> None:
        """Start a local instance for the subscriptions of this process, if there is none yet."""
        if not self.is_owner and self._worker is None:
            self._begin_local(None)

    def close(self) -> None:
        """Release all resources."""
        self._end()
        self.capabilities.close()

    def _names(self, dataflow: Dataflow, new: Mapping[GlobalId, Dataflow]) -> list[str]:
        """Return the names of the collections from which a dataflow derives, directly or through other dataflows."""
        names = []
        for source in dataflow.imports:
            names.append(self._store.tables.name_of(source.id) or source.name)
        for read in reads_of(dataflow):
            below = new.get(read) or self.controller.dataflow(read)
            names += self._names(below, new) if below else []
        return list(dict.fromkeys(names))

    def hydrations(self) -> tuple[Progress, ...]:
        """Return the progress of hydrations, each at the instance with the most rows."""
        furthest: dict[GlobalId, Progress] = {}
        for replica in self.controller.replicas().values():
            for progress in replica.report.hydrations if replica.report else ():
                known = furthest.setdefault(progress.identifier, progress)
                furthest[progress.identifier] = max(known, progress, key=lambda one: one.rows)
        return tuple(furthest.values())

    def replicas(self) -> list[ReplicaState]:
        """Return the status of each instance."""
        places = [(remote.name, remote.address, remote.trouble) for remote in list(self._remote.values())]
        return replica_states(self.controller, [*([(LOCAL, "", "")] if self._worker else []), *places])

    def _controller(self, epoch: int) -> Controller:
        return Controller(epoch, self.capabilities, self._on_progress, self._note_welcome, self._folder_id)

    def _note_welcome(self, name: str, welcome: Welcome) -> None:
        log = TaskLog(self._root, LOG)
        kept, rebuilt, dropped = (
            sum(identifier < FIRST_TRANSIENT_ID for identifier in identifiers)  # subscriptions are always rebuilt
            for identifiers in (welcome.kept, welcome.rebuilt, welcome.dropped)
        )
        counts = {"kept": kept, "rebuilt": rebuilt, "dropped": dropped}
        message = f"replica {name} is connected: it {welcome.describe(self._name_of)}"
        log.write("info", message, replica=name, process=welcome.process, **counts)

    def _start(self, place: ReplicaPlace) -> RemoteReplica | ReplicaProcess:
        """Connect to an external replica, or to a process that is started if necessary."""
        name = place.name
        if place.address or not self.can_start:
            return RemoteReplica(self.controller, name, place.address, self.security, self._loop)
        process = self._instances.process(self._root, name)
        process.connect(self.controller, self._loop)
        return process

    def _begin_local(self, folder: Path | None) -> None:
        try:
            if folder is not None:
                self._lock_of_folder.enter_context(locked(folder))
        except BusyError as error:  # a fenced server uses the folder for a short time
            folder, consequence = None, "views are recomputed in a temporary folder, which ends with this server"
            TaskLog(self._root, LOG).write("warn", f"{error.message}: {consequence}")
        self._worker = Worker(self._store, folder, "local", self._report)
        self.local = LocalReplica(self.controller, self._worker)

    def _end_local(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._lock_of_folder.close()
        self._worker = self.local = None

    def _end(self) -> None:
        for replica in self._remote.values():
            replica.close()
        self._remote = {}
        self._end_local()
        if self._earlier is not None:
            self._earlier.close()
        self._earlier = None
