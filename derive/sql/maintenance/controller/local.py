"""The replica in the server's process: commands and responses are passed directly."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Datum, Row
from derive.compute.protocol.messages import Command, Query, Response
from derive.compute.replica.worker import Worker
from derive.sql.catalog.items import LOCAL
from derive.sql.maintenance.controller.controller import Controller


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
