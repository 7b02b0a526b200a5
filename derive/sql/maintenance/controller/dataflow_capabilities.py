"""Read capabilities on the inputs of dataflows, so that each replica can begin with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Dataflow, Index, Materialized, Tail
from derive.errors import FrontierError
from derive.failpoint import reach
from derive.storage.capability.capabilities import Request, RetainedCapabilities
from derive.storage.store import Store


class InputCapabilities(Protocol):
    """Read capabilities on the inputs of dataflows."""

    def acquire(self, dataflows: Sequence[Dataflow]) -> None:
        """Acquire capabilities to read the inputs of dataflows from their `as_of` on, in place of earlier ones.

        The capabilities are durable on return, and last until `release`.

        Raises:
            FrontierError: an input is compacted at the time.
        """

    def release(self, identifier: GlobalId) -> None:
        """Release the capabilities of a dataflow."""


class DataflowCapabilities:
    """Read capabilities of dataflows: those of views and indexes last, and those of tails expire.

    A view's capabilities begin when the view is created, and end when it is dropped; here they only advance.

    Args:
        store: the data folder.
        names: returns the names of the collections that a dataflow derives from.
    """

    def __init__(self, store: Store, names: Callable[[Dataflow], Collection[str]]) -> None:
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
        for dataflow in dataflows:
            if dataflow.id in begun:
                continue  # its input reports an error if it lags too far
            names = self._names(dataflow)
            match dataflow.export:
                case Materialized():
                    views[dataflow.id] = names, dataflow.as_of
                case Index():
                    indexes[dataflow.id] = names, dataflow.as_of
            for name in names:
                needed[name] = min(dataflow.as_of, needed.get(name, dataflow.as_of))
        if views or indexes:
            self._indexes.update(indexes)
            self._store.task_capabilities.acquire_dataflow_inputs(views, indexes)  # one commit for all
            reach("dataflow.held")
        for name, as_of in needed.items():
            known = self._store.collection(name)
            if known is not None and known.since > as_of:
                raise FrontierError(
                    f"the history of '{name}' at {as_of} was compacted: it is exact from {known.since} on"
                )

    def release(self, identifier: GlobalId) -> None:
        """Release the capabilities of a dataflow."""
        self._tails.release(identifier)
        if identifier in self._indexes:
            self._indexes.discard(identifier)
            self._store.task_capabilities.release_index(identifier)

    def frontiers(self) -> dict[GlobalId, int]:
        """Return the time from which each index and view may read its inputs."""
        capabilities = self._store.task_capabilities
        return capabilities.dataflows("index") | capabilities.dataflows("view")

    def begin(self, indexes: Collection[GlobalId]) -> None:
        """Take over an earlier process's capabilities of indexes, and release those of dropped indexes."""
        present = self._store.task_capabilities.dataflows("index").keys()
        for identifier in present - set(indexes):
            self._store.task_capabilities.release_index(identifier)
        self._indexes = present & set(indexes)

    def release_dropped(self, indexes: Container[GlobalId]) -> None:
        """Release the capabilities of dropped indexes, including indexes dropped before their dataflow was created."""
        for identifier in [one for one in self._indexes if one not in indexes]:
            self.release(identifier)

    def renew(self) -> None:
        """Renew the capabilities that expire; from any thread, several times a minute."""
        self._tails.renew()

    def close(self) -> None:
        """Release the capabilities of tails."""
        self._tails.close()
