"""A replica in this process: what it is told and what it answers is handed over, and nothing is lost on the way."""

from __future__ import annotations

from derive.adapter.controller.controller import Controller
from derive.compute.protocol.messages import Command, Response
from derive.compute.worker import Worker


class LocalReplica:
    """The controller's end of an instance in this process, and the instance's end of its controller.

    Args:
        controller: of the instance.
        worker: the instance.
        name: of this replica.
    """

    is_local = True

    def __init__(self, controller: Controller, worker: Worker, name: str = "local") -> None:
        self._controller, self._worker = controller, worker
        self._session = _Session(self, controller)
        controller.attach(name, self)

    def send(self, command: Command) -> None:
        """Tell the instance something."""
        self._worker.reconciler.accept(self._session, command)

    def close(self) -> None:
        """Leave the instance alone."""
        self._worker.reconciler.lose(self._session)


class _Session:
    """The instance's end."""

    def __init__(self, link: LocalReplica, controller: Controller) -> None:
        self._link, self._controller = link, controller

    def send(self, response: Response) -> None:
        self._controller.receive(self._link, response)

    def close(self) -> None:
        """There is no other controller that could close this one out."""
