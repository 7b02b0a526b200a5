"""Replicas in other processes: connections that reconnect, and processes that the server starts and restarts.

All work of a connection happens in the event loop that serves clients, so a peek and its answer need no threads except
gRPC's threads.

This module imports only modules that the start of a replica process needs, because replicas start while the server
starts.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from derive.backoff import Backoff
from derive.compute.protocol.messages import Command
from derive.compute.protocol.transport import (
    OPEN,
    Security,
    SessionCall,
    command_message,
    open_channel,
    open_session,
    response_of,
)
from derive.compute.replica.worker import holder_of
from derive.durable import make_folders
from derive.errors import FlowError, ProtocolError
from derive.event_loop import Handover
from derive.materialize.process import ConnectorProcess, installed_env
from derive.protocol.stubs import compute_pb2 as pb
from derive.sql.maintenance.controller.controller import Controller
from derive.storage.metadata.process import is_dead, kill, show_process

_RECONNECT_BACKOFF = Backoff(0.05, 2.0, jitter=0.5)
"""Pauses, in seconds, before a lost connection is opened again."""


class RemoteReplica:
    """A persistent connection of a controller to an instance. The constructor may run in any thread.

    Args:
        controller: controller of the instance.
        name: name of the replica.
        address: `host:port`.
        security: credentials of this process.
        loop: running event loop of the connection.

    Attributes:
        trouble: reason why there is no connection; empty with a connection.
    """

    def __init__(
        self, controller: Controller, name: str, address: str, security: Security, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._controller, self.name, self.address, self._security = controller, name, address, security
        self.trouble = "is not connected yet"
        self._lock = threading.Lock()
        self._is_closed = False
        self._link: _GrpcLink | None = None
        self._connected = asyncio.run_coroutine_threadsafe(self._keep_connected(), loop)

    def close(self) -> None:
        """Close the connection without a wait for the event loop, because the event loop may wait for this thread."""
        with self._lock:
            self._is_closed = True
            link = self._link
        self._connected.cancel()
        if link is not None:
            self._controller.detach(self.name, link)

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                if await self._connect():
                    failures = 0
            except Exception as error:
                self.trouble = f"{type(error).__name__}: {error}"
                message = f"replica {self.name} is connected again, after an internal error"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            failures += 1
            await asyncio.sleep(_RECONNECT_BACKOFF.pause(failures))

    async def _connect(self) -> bool:
        """Connect, and stay connected while the session lasts; return whether a session began."""
        was_there = False
        async with open_channel(self.address, self._security) as channel:
            link = _GrpcLink(channel, self._security)
            with self._lock:
                if self._is_closed:
                    return False
                self._link = link
                self._controller.attach(self.name, link)
            try:
                async for message in link.call:
                    was_there, self.trouble = True, ""
                    self._controller.receive(link, response_of(message))
                self.trouble = "ended the session"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                if link.defect is not None:
                    raise link.defect from None
                self.trouble = "the connection was closed at this end"
            except grpc.aio.AioRpcError as error:
                self.trouble = _trouble(str(error.details()))
            except ProtocolError as error:
                self.trouble = str(error)
            finally:
                self._controller.detach(self.name, link)
        return was_there


def _trouble(details: str) -> str:
    """Return the reason why a connection failed, for people."""
    return "no instance listens at its address" if details.endswith("Connection refused") else details


class _GrpcLink:
    """A connection to an instance, created in the event loop.

    Attributes:
        call: the session.
        defect: the error of a command that could not be sent, which cancels the call; None if missing.
    """

    is_local = False

    def __init__(self, channel: grpc.aio.Channel, security: Security) -> None:
        self._loop = asyncio.get_running_loop()
        self.defect: Exception | None = None
        self._commands: Handover[Command | None] = Handover(is_patient=lambda: False)
        self.call: SessionCall = open_session(channel, self._messages(), security)

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def close(self) -> None:
        self._commands.put(None)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.call.cancel)

    async def _messages(self) -> AsyncIterator[pb.ComputeCommand]:
        try:
            while (command := await self._commands.get()) is not None:
                yield command_message(command)
        except Exception as error:
            self.defect = error
            raise


_RESTART_BACKOFF = Backoff(0.2, 20.0)
"""Pauses, in seconds, before a process is restarted."""

_STEADY_SECONDS = 30.0
"""Lifetime of a process after which the pauses begin with the shortest again, in seconds."""

_LOOK_SECONDS, _KILLED_SECONDS = 0.2, 0.01
"""Intervals at which a running and a killed process is checked, in seconds."""

_STOPPED_SECONDS = 5.0
"""Seconds after which a stopped process is killed, because other processes may wait for its transaction."""


class ReplicaProcess:
    """A thread that keeps a replica process alive, and a controller connected to it.

    The end of this process closes the standard input of the replica process, which then ends. A stopped replica process
    cannot end, so the next server kills the process that occupies the replica's folder.

    Args:
        name: name of the replica.
        command: command that starts the process, which prints its address.
        environment: environment of the process.
        folder: working folder of the process, for its state; no other process uses it.
        security: credentials of this process.
        log: function that takes the lines that the process writes to standard error.
        report: function that takes the reason of each end of the process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        security: Security,
        *,
        log: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self.name, self._command = name, command
        self._environment, self._folder, self._security = environment, folder, security
        self._log, self._report = log, report
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
        """Return `host:port`; empty without a connection."""
        replica = self._replica
        return replica.address if replica is not None else ""

    @property
    def trouble(self) -> str:
        """Return the reason why there is no connection; empty with a connection."""
        replica = self._replica
        return replica.trouble if replica is not None else self._trouble

    def connect(self, controller: Controller, loop: asyncio.AbstractEventLoop) -> None:
        """Connect a controller to the process as soon as the address is printed, and later to its successors.

        Args:
            controller: controller of the replica.
            loop: running event loop of the connection.
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
            self._closed.wait(_RESTART_BACKOFF.pause(failures))

    def _live(self) -> str:
        """Start the process, stay connected until it ends, and return the reason of its end.

        Raises:
            TaskError: the process could not be started.
        """
        self._end_orphan()
        process = ConnectorProcess(
            f"replica {self.name}",
            self._command,
            str(self._folder),
            self._environment,
            report=self._log,
            should_wait=lambda: not self._closed.is_set(),
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
            # Imported only with a controller: the import of gRPC takes as long as the start of the process.
            self._replica = RemoteReplica(self._controller, self.name, self._address, self._security, self._loop)

    def _end_orphan(self) -> None:
        """Kill a replica process that occupies the folder after its server has ended."""
        orphan = holder_of(self._folder)
        if orphan is None or not kill(orphan):
            return
        self._report(
            f"replica {self.name} of an earlier server ({show_process(orphan)}) was still running, and was killed"
        )
        while not is_dead(orphan) and not self._closed.wait(_KILLED_SECONDS):
            pass


PROCESSES = "compute"
"""Folder of replica processes, in the data folder."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of a controller; by default, one instance in this process.

    Attributes:
        replicas: number of replica processes that this process starts.
        command: returns the command of a replica process for its folder and a file with its token; None if replica
            processes cannot be started.
        log: function that takes the lines that these processes write to standard error.
        addresses: `host:port` of external replicas.
        security: credentials for the external replicas.
        started: started processes without a controller, by name.
    """

    replicas: int = 0
    command: Callable[[Path, Path], Sequence[str]] | None = None
    log: Callable[[str], None] = lambda line: None
    addresses: tuple[str, ...] = ()
    security: Security = OPEN
    started: dict[str, ReplicaProcess] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of the replica processes of the options."""
        return [f"r{number}" for number in range(1, self.replicas + 1)]

    def start(self, root: Path) -> None:
        """Start the first replica process before a controller exists.

        One process is enough for answers; more processes would compete for processors while clients wait.

        Args:
            root: the data folder, which this process owns.
        """
        for name in self.names[:1]:
            self.started[name] = self._start(root, name)

    def process(self, root: Path, name: str) -> ReplicaProcess:
        """Return a replica process, started if necessary; the caller closes it."""
        return self.started.pop(name, None) or self._start(root, name)

    def close(self) -> None:
        """End the started processes without a controller."""
        while self.started:
            self.started.popitem()[1].close()

    def _start(self, root: Path, name: str) -> ReplicaProcess:
        """Start a replica process, with a token that only this process knows."""
        assert self.command is not None
        folder = root / PROCESSES / name
        make_folders(folder)
        token, token_file = secrets.token_urlsafe(), folder / "token"
        token_file.unlink(missing_ok=True)
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        return ReplicaProcess(
            name,
            self.command(folder, token_file),
            installed_env(),
            folder,
            Security(token),
            log=self.log,
            report=lambda death: _log(root, f"{death}; the replica is restarted"),
        )


HERE = Instances()
"""One instance, in this process."""


def _log(root: Path, error: str) -> None:
    from derive.sql.maintenance.recording import LOG
    from derive.storage.task_log import TaskLog

    TaskLog(root, LOG).write("error", error)
