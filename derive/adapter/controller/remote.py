"""Replicas in other processes: each is connected to, again and again, until it is there no more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from random import uniform

import grpc

from derive.adapter.controller.controller import Controller
from derive.compute.protocol.messages import Command
from derive.compute.protocol.security import Security
from derive.compute.protocol.transport import open_channel, open_session
from derive.compute.protocol.wire import command_message, response_of
from derive.errors import ProtocolError
from derive.protocol.stubs import compute_pb2 as pb

_FIRST_SECONDS, _MOST_SECONDS = 0.05, 2.0
"""How long nothing is tried after a connection was lost, at first and at most."""


class RemoteReplica:
    """A thread that keeps a controller connected to an instance.

    Args:
        controller: of the instance.
        name: of this replica.
        address: `host:port`.
        security: how the instance knows this process.

    Attributes:
        trouble: why there is no connection; empty if there is one.
    """

    def __init__(self, controller: Controller, name: str, address: str, security: Security) -> None:
        self._controller, self.name, self.address, self._security = controller, name, address, security
        self.trouble = "is not connected to yet"
        self._closed = threading.Event()
        self._link: _GrpcLink | None = None
        self._thread = threading.Thread(target=self._keep_connected, name=f"flowctl-replica-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the instance alone."""
        self._closed.set()
        if self._link is not None:
            self._link.close()
        self._thread.join()

    def _keep_connected(self) -> None:
        pause = _FIRST_SECONDS
        while not self._closed.is_set():
            if self._connect():
                pause = _FIRST_SECONDS
            self._closed.wait(uniform(pause / 2, pause))
            pause = min(2 * pause, _MOST_SECONDS)

    def _connect(self) -> bool:
        """Be connected for as long as it lasts; whether it began at all."""
        was_there = False
        with open_channel(self.address, self._security) as channel:
            link = self._link = _GrpcLink(channel, self._security)
            if self._closed.is_set():  # `close` has not seen this link, perhaps
                link.close()
            self._controller.attach(self.name, link)
            try:
                for message in link.responses():
                    was_there, self.trouble = True, ""
                    self._controller.receive(link, response_of(message))
                self.trouble = "ended the session"
            except grpc.RpcError as error:
                self.trouble = str(error.details() if isinstance(error, grpc.Call) else error)
            except ProtocolError as error:
                self.trouble = str(error)
            finally:
                self._controller.detach(self.name, link)
        return was_there


class _GrpcLink:
    """A connection to an instance."""

    is_local = False

    def __init__(self, channel: grpc.Channel, security: Security) -> None:
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._call = open_session(channel, self._messages(), security)

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def close(self) -> None:
        self._commands.put(None)
        self._call.cancel()

    def responses(self) -> Iterator[pb.ComputeResponse]:
        """Responses as they come."""
        return iter(self._call)

    def _messages(self) -> Iterator[pb.ComputeCommand]:
        while (command := self._commands.get()) is not None:
            yield command_message(command)
