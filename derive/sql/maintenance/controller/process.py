"""Replicas that this process starts: each is a process of its own, and is started again when it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from derive.backoff import Backoff
from derive.compute.protocol.transport import Security
from derive.compute.replica.folder_lock import holder_of
from derive.errors import FlowError
from derive.materialize.process import ConnectorProcess
from derive.storage.metadata.process import is_dead, kill, show_process

if TYPE_CHECKING:
    import asyncio

    from derive.sql.maintenance.controller.controller import Controller
    from derive.sql.maintenance.controller.remote import RemoteReplica

_BACKOFF = Backoff(0.2, 20.0)
"""Pauses, in seconds, before a process that ended is started again."""

_STEADY_SECONDS = 30.0
"""Whatever has lived for so long is started again as if it had never ended."""

_LOOK_SECONDS, _KILLED_SECONDS = 0.2, 0.01
"""How often a process is looked at, and one that was killed, which is gone in a moment."""

_STOPPED_SECONDS = 5.0
"""A process that a signal has stopped for so long is killed: others may wait for its transaction."""


class ReplicaProcess:
    """A thread that keeps a process alive that is a replica, and a controller connected to it once there is one.

    The process ends with this one, however this one ends, as its standard input is then closed. One that was stopped
    meanwhile does not notice: it is killed, as it has the folder of the next one.

    Args:
        name: of this replica.
        command: runs it, and has it print its address.
        environment: of the process.
        folder: where it runs, and keeps what it has; it is for such processes alone.
        security: how it knows this process.
        tell: is told what the process writes to standard error, line by line.
        report: is told when it has ended, and why, and when another one was killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        security: Security,
        *,
        tell: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self.name, self._command = name, command
        self._environment, self._folder, self._security = environment, folder, security
        self._tell, self._report = tell, report
        self._trouble = "is being started"
        self._lock = threading.Lock()
        self._controller: Controller | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._address = ""
        self._replica: RemoteReplica | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name=f"flowctl-process-{name}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`host:port`; empty while there is none."""
        replica = self._replica
        return replica.address if replica is not None else ""

    @property
    def trouble(self) -> str:
        """Why there is no connection; empty if there is one."""
        replica = self._replica
        return replica.trouble if replica is not None else self._trouble

    def connect(self, controller: Controller, loop: asyncio.AbstractEventLoop) -> None:
        """Have a controller connected to the process once that has printed its address, and to each that follows it.

        Args:
            controller: that it is a replica of.
            loop: in which the connection is; it runs.
        """
        with self._lock:
            self._controller, self._loop = controller, loop
            self._link()

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        self._thread.join()

    def _keep_alive(self) -> None:
        failures = 0
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                self._trouble = self._live()
            except FlowError as error:
                self._trouble = error.message
            if self._closed.is_set():
                return
            self._report(self._trouble)
            if time.monotonic() - begun > _STEADY_SECONDS:
                failures = 0
            failures += 1
            self._closed.wait(_BACKOFF.pause(failures))

    def _live(self) -> str:
        """Start the process, and be connected to it until it ends; why it did.

        Raises:
            TaskError: it could not be started.
        """
        self._end_orphan()
        process = ConnectorProcess(
            f"replica {self.name}",
            self._command,
            str(self._folder),
            self._environment,
            tell=self._tell,
            is_wanted=lambda: not self._closed.is_set(),
        )
        try:
            with self._lock:
                self._address = process.address
                self._link()
            stopped = 0.0
            while not self._closed.wait(_LOOK_SECONDS):
                if (death := process.death()) is not None:
                    return death
                stopped = stopped + _LOOK_SECONDS if process.is_stopped else 0.0
                if stopped > _STOPPED_SECONDS:
                    return f"replica {self.name} was stopped by a signal for {_STOPPED_SECONDS:g} s, and is killed"
            return ""
        finally:
            with self._lock:
                replica, self._replica, self._address = self._replica, None, ""
            if replica is not None:
                replica.close()
            process.close()

    def _link(self) -> None:
        if self._controller is not None and self._loop is not None and self._address:
            # Not before there is a controller: gRPC is imported for as long as the process takes to start.
            from derive.sql.maintenance.controller.remote import RemoteReplica

            self._replica = RemoteReplica(self._controller, self.name, self._address, self._security, self._loop)

    def _end_orphan(self) -> None:
        """Kill whoever has the folder: an earlier server has started it, which is there no more."""
        orphan = holder_of(self._folder)
        if orphan is None or not kill(orphan):
            return
        self._report(
            f"replica {self.name} of an earlier server ({show_process(orphan)}) was still there, and was killed"
        )
        while not is_dead(orphan) and not self._closed.wait(_KILLED_SECONDS):
            pass
