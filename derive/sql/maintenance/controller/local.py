"""A replica in this process: what it is told and what it answers is handed over, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Datum, Row
from derive.compute.protocol.messages import Command, Query, Response
from derive.compute.replica.worker import Worker
from derive.sql.catalog.replica_place import LOCAL
from derive.sql.maintenance.controller.controller import Controller


class LocalReplica:
    """The controller's end of an instance in this process, and the instance's end of its controller.

    Args:
        controller: of the instance.
        worker: the instance.

    Attributes:
        is_local: nothing is lost between both ends, so that parts of answers can be handed on before the last is there.
            It is unset before there are other replicas, which may give the same answers.
    """

    def __init__(self, controller: Controller, worker: Worker) -> None:
        self._controller, self._worker, self.is_local = controller, worker, True
        self._session = _Session(self, controller)
        controller.attach(LOCAL, self)

    def send(self, command: Command) -> None:
        """Tell the instance something."""
        self._worker.reconciler.accept(self._session, command)

    def look_up(
        self, query: Query, time: int, arguments: Sequence[Datum], most_bytes: int | None
    ) -> Sequence[Row] | None:
        """The rows of a query, as of `Controller.peek`, if the instance has them at once; None if that takes a peek."""
        return self._worker.reconciler.peeks.look_up(self._session, query, time, arguments, most_bytes)

    def leave(self) -> None:
        """The controller has other replicas, and goes on without this one."""
        self._controller.detach(LOCAL, self)

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
