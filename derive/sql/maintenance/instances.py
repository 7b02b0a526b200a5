"""What keeps views up to date for this process: a controller, and the instances that it has."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from derive.algebra.relation import GlobalId
from derive.compute.instance import Progress
from derive.compute.protocol.messages import Dataflow, Welcome, reads_of
from derive.compute.protocol.transport import place_named
from derive.compute.replica.folder_lock import locked
from derive.compute.replica.worker import Worker
from derive.errors import BusyError
from derive.sql.catalog.replica_place import LOCAL, ReplicaPlace
from derive.sql.maintenance.controller.controller import FIRST_TRANSIENT_ID, Controller
from derive.sql.maintenance.controller.dataflow_holds import DataflowHolds
from derive.sql.maintenance.controller.local import LocalReplica
from derive.sql.maintenance.controller.process import ReplicaProcess
from derive.sql.maintenance.controller.remote import RemoteReplica
from derive.sql.maintenance.controller.replica_status import ReplicaState, lag_of, replica_states
from derive.sql.maintenance.instance_options import PROCESSES, Instances
from derive.sql.maintenance.recording import LOG
from derive.storage.folder_id import folder_id
from derive.storage.store import Store
from derive.storage.task_log import TaskLog

FOLDER = "sql-views"
"""In the data folder, of an instance in this process."""

_NEAR = 1_000_000
"""How many microseconds a replica may be behind that takes over from the one in this process."""

_FIRST_SECONDS = 10.0
"""For so long queries wait for the first instance: what it has need not be worked out by each of them."""


class Computing:
    """The controller of this process, and its instances; while there are no others, there is one in this process.

    Args:
        store: of the data folder.
        root: the data folder.
        instances: which.
        on_progress: called whenever something new is known of dataflows, in any thread.
        name_of: what a dataflow is called; None if it is not in the catalog any more.
        report: is told why instances in this process do not go on, and with None when they do again.

    Attributes:
        holds: on what dataflows are made of.
        controller: of the instances.
        places: of those that are in other processes, by name.
        security: how those that others have started know this process.
        local: the instance in this process, as one that the controller has; None if it has none.
        is_owner: whether this process keeps the views of the data folder up to date.
        awaited_until: before this time of the monotonic clock an instance is expected to say what it has.
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
        self.holds = DataflowHolds(store, self._names)
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
        """This process keeps the views of the data folder up to date.

        Args:
            epoch: greater than any before.
        """
        self._earlier, self._worker, self.local = self._worker, None, None  # its subscriptions go on
        self.controller = self._controller(epoch)
        self.is_owner, self.awaited_until = True, time.monotonic() + _FIRST_SECONDS

    @property
    def is_awaited(self) -> bool:
        """Whether no instance has said yet what it has from before, but one may do so any moment."""
        return self.is_owner and not self.controller.was_told and time.monotonic() < self.awaited_until

    def attach(self) -> None:
        """Have instances do what the controller wants by now; they drop what else they have from before."""
        with self._lock:
            if not self.places:
                if self._worker is None:
                    self._begin_here(self._root / FOLDER)
                elif self.local is not None:  # the others went before they had caught up
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
                self._end_here()

    def add(self, *places: ReplicaPlace) -> None:
        """Have replicas in other processes, from the next `attach` on; an address that is known gets another name.

        Where there can be no such processes nothing happens.
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
        """The replica that is at an address; None if there is none, or the address is empty."""
        named = [(place, place_named(place.address)) for place in list(self.places.values()) if place.address]
        return next((place for place, known in named if address and known == place_named(address)), None)

    def remove(self, name: str) -> None:
        """Be without a replica; its process ends, and what it had is gone. It waits for that."""
        with self._lock:  # until it is gone, as none in this process may begin before
            place, replica = self.places.pop(name), self._remote.pop(name, None)
            if replica is not None:
                replica.close()
            if not place.address:
                shutil.rmtree(self._root / PROCESSES / name, ignore_errors=True)

    def is_of_options(self, place: ReplicaPlace) -> bool:
        """Whether a replica is there again once the server is started with its options again."""
        instances = self._instances
        addresses = map(place_named, instances.addresses)
        return place.name in instances.names or bool(place.address and place_named(place.address) in addresses)

    @property
    def can_start(self) -> bool:
        """Whether there can be instances in other processes."""
        return self._instances.command is not None

    def _is_caught_up(self) -> bool:
        """Whether a replica in another process knows as much as the one in this process."""
        replicas = dict(self.controller.replicas())
        here = replicas.pop(LOCAL, None)
        return here is not None and any(
            replica.welcome is not None
            and here.uppers.keys() <= replica.uppers.keys() | replica.failures.keys()
            and lag_of(self.controller, replica) < _NEAR
            for replica in replicas.values()
        )

    def begin_for_subscriptions(self) -> None:
        """Have an instance in this process, if there is none, for what is asked of it by this process alone."""
        if not self.is_owner and self._worker is None:
            self._begin_here(None)

    def close(self) -> None:
        """Give everything back."""
        self._end()
        self.holds.close()

    def _names(self, dataflow: Dataflow) -> list[str]:
        """What of Storage a dataflow is worked out of, through others."""
        names = []
        for source in dataflow.imports:
            names.append(self._store.tables.name_of(source.id) or source.name)
        for read in reads_of(dataflow):
            below = self.controller.dataflow(read)
            names += self._names(below) if below else []
        return list(dict.fromkeys(names))

    def hydrations(self) -> tuple[Progress, ...]:
        """How far dataflows of many rows are that have yet to begin, each at the instance that is the furthest."""
        furthest: dict[GlobalId, Progress] = {}
        for replica in self.controller.replicas().values():
            for progress in replica.report.hydrations if replica.report else ():
                known = furthest.setdefault(progress.identifier, progress)
                furthest[progress.identifier] = max(known, progress, key=lambda one: one.rows)
        return tuple(furthest.values())

    def replicas(self) -> list[ReplicaState]:
        """How each instance is."""
        places = [(remote.name, remote.address, remote.trouble) for remote in list(self._remote.values())]
        return replica_states(self.controller, [*([(LOCAL, "", "")] if self._worker else []), *places])

    def _controller(self, epoch: int) -> Controller:
        return Controller(epoch, self.holds, self._on_progress, self._note_welcome, self._folder_id)

    def _note_welcome(self, name: str, welcome: Welcome) -> None:
        log = TaskLog(self._root, LOG)
        kept, rebuilt, dropped = (
            sum(identifier < FIRST_TRANSIENT_ID for identifier in identifiers)  # subscriptions always begin anew
            for identifiers in (welcome.kept, welcome.rebuilt, welcome.dropped)
        )
        counts = {"kept": kept, "rebuilt": rebuilt, "dropped": dropped}
        message = f"replica {name} is connected: it {welcome.told(self._name_of)}"
        log.write("info", message, replica=name, process=welcome.process, **counts)

    def _start(self, place: ReplicaPlace) -> RemoteReplica | ReplicaProcess:
        """Connect to a replica, or to a process that is one, which is started if it was not yet."""
        name = place.name
        if place.address or not self.can_start:
            return RemoteReplica(self.controller, name, place.address, self.security, self._loop)
        process = self._instances.process(self._root, name)
        process.connect(self.controller, self._loop)
        return process

    def _begin_here(self, folder: Path | None) -> None:
        try:
            if folder is not None:
                self._lock_of_folder.enter_context(locked(folder))
        except BusyError as error:  # a server that was superseded has it, and may not go on for long
            folder, told = None, "views are worked out anew in another one, which is gone with this server"
            TaskLog(self._root, LOG).write("warn", f"{error.message}: {told}")
        self._worker = Worker(self._store, folder, "local", self._report)
        self.local = LocalReplica(self.controller, self._worker)

    def _end_here(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._lock_of_folder.close()
        self._worker = self.local = None

    def _end(self) -> None:
        for replica in self._remote.values():
            replica.close()
        self._remote = {}
        self._end_here()
        if self._earlier is not None:
            self._earlier.close()
        self._earlier = None
