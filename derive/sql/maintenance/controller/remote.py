"""Remote replicas: connections to other processes that reconnect until they are closed.

All work happens in the event loop that serves clients: so sending a peek and taking its answer needs no thread but
gRPC's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import grpc.aio

from derive.backoff import Backoff
from derive.compute.protocol.messages import Command
from derive.compute.protocol.transport import Security, SessionCall, open_channel, open_session
from derive.compute.protocol.wire import command_message, response_of
from derive.errors import ProtocolError
from derive.handover import Handover
from derive.protocol.stubs import compute_pb2 as pb
from derive.sql.maintenance.controller.controller import Controller

_BACKOFF = Backoff(0.05, 2.0, jitter=0.5)
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
        self.trouble = "is not connected to yet"
        self._lock = threading.Lock()
        self._is_closed = False
        self._link: _GrpcLink | None = None
        self._connected = asyncio.run_coroutine_threadsafe(self._keep_connected(), loop)

    def close(self) -> None:
        """Close the connection, without waiting for the event loop, which may wait for this thread."""
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
                message = f"replica {self.name} is connected to again, after a defect"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            failures += 1
            await asyncio.sleep(_BACKOFF.pause(failures))

    async def _connect(self) -> bool:
        """Stay connected while the session lasts; return whether it began."""
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
                self.trouble = str(error.details())
            except ProtocolError as error:
                self.trouble = str(error)
            finally:
                self._controller.detach(self.name, link)
        return was_there


class _GrpcLink:
    """A connection to an instance, created in the event loop.

    Attributes:
        call: the session.
        defect: the error of a command that could not be sent, which cancels the call; else None.
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
