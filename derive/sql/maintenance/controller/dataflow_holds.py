"""Read holds on the inputs of dataflows, so that each replica can begin with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Dataflow, Index, Materialized, Tail
from derive.errors import FencedError, FrontierError
from derive.failpoint import reach
from derive.storage.metadata.held import Capability
from derive.storage.rights import MadeOf
from derive.storage.store import Store


class Holds(Protocol):
    """Read holds on the inputs of dataflows, so that each replica can begin with them."""

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold the inputs of dataflows from their `as_of` on, and no longer from earlier times.

        The holds are durable on return, and last until `release`.

        Raises:
            FrontierError: an input is compacted at the time.
        """

    def release(self, identifier: GlobalId) -> None:
        """Release the holds of a dataflow."""


class DataflowHolds:
    """Read holds: those of views and indexes are permanent, and those of tails expire.

    A view's hold begins when the view is created, and ends when it is dropped; here the hold only advances.

    Args:
        store: the data folder.
        names: returns the names of the collections that a dataflow derives from.
    """

    def __init__(self, store: Store, names: Callable[[Dataflow], Collection[str]]) -> None:
        self._store, self._names = store, names
        self._leased: dict[GlobalId, Sequence[Capability]] = {}
        self._indexes: set[GlobalId] = set()
        self._lock = threading.Lock()

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold the inputs of dataflows from their `as_of` on, and no longer from earlier times.

        Raises:
            FrontierError: an input is compacted at the time.
        """
        views: dict[GlobalId, MadeOf] = {}
        indexes: dict[GlobalId, MadeOf] = {}
        needed: dict[str, int] = {}
        tails = [dataflow for dataflow in dataflows if isinstance(dataflow.export, Tail)]
        begun = self._lease(tails)
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
            self._store.rights.hold_for_dataflows(views, indexes)  # one commit for all
            reach("dataflow.held")
        self._check(needed)

    def release(self, identifier: GlobalId) -> None:
        """Release the holds of a dataflow."""
        with self._lock:
            is_leased = identifier in self._leased
            if is_leased:
                with suppress(FencedError):  # the capabilities end with this process
                    self._retain({identifier: ((), 0)})
                del self._leased[identifier]
        if is_leased:
            return
        if identifier in self._indexes:
            self._indexes.discard(identifier)
            self._store.rights.forget_index(identifier)

    def held(self) -> dict[GlobalId, int]:
        """Return the time of the hold of each index and view."""
        return self._store.rights.indexes() | self._store.rights.views()

    def begin(self, indexes: Collection[GlobalId]) -> None:
        """Take over an earlier process's holds of indexes, and release those of dropped indexes."""
        held = self._store.rights.indexes()
        for identifier in held.keys() - set(indexes):
            self._store.rights.forget_index(identifier)
        self._indexes = held.keys() & set(indexes)

    def forget_dropped(self, indexes: Container[GlobalId]) -> None:
        """Release the holds of dropped indexes, including indexes dropped before their dataflow was created."""
        for identifier in [one for one in self._indexes if one not in indexes]:
            self.release(identifier)

    def renew(self) -> None:
        """Renew expiring holds; from any thread, several times a minute."""
        with self._lock:
            self._retain(
                {
                    identifier: (
                        [lease.collection for lease in leased],
                        min((lease.frontier for lease in leased), default=0),
                    )
                    for identifier, leased in self._leased.items()
                }
            )

    def close(self) -> None:
        """Release the holds of tails."""
        for identifier in list(self._leased):
            self.release(identifier)

    def _lease(self, tails: Sequence[Dataflow]) -> set[GlobalId]:
        """Hold the inputs of tails; return the tails that had holds before."""
        with self._lock:
            begun = {tail.id for tail in tails if tail.id in self._leased}
            self._retain({tail.id: ([source.id for source in tail.imports], tail.as_of) for tail in tails})
        return begun

    def _retain(self, desired: Mapping[GlobalId, tuple[Collection[GlobalId], int]]) -> None:
        """Hold the collections of tails from a time on, in one commit."""
        if desired:
            requests = [(self._leased.get(identifier, ()), *request) for identifier, request in desired.items()]
            retained = self._store.capabilities.retain_all(requests, purpose="SUBSCRIBE")
            self._leased.update(zip(desired, retained, strict=True))

    def _check(self, needed: Mapping[str, int]) -> None:
        for name, as_of in needed.items():
            known = self._store.collection(name)
            if known is not None and known.since > as_of:
                raise FrontierError(f"what '{name}' held at {as_of} is forgotten: it is known from {known.since} on")
