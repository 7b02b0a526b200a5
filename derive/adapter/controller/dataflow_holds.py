"""What dataflows are made of is not forgotten, so that each replica can begin with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from derive.compute.algebra.relation import GlobalId
from derive.compute.protocol.messages import Dataflow, Index, Materialized, Tail
from derive.errors import FrontierError
from derive.failpoint import reach
from derive.storage.metadata.held import Capability
from derive.storage.rights import MadeOf
from derive.storage.store import Store


class DataflowHolds:
    """Rights to read: those of views and indexes last, also while no process is at work; those of tails are leases.

    A view's right begins as it is created, and ends as it is dropped; it only moves here.

    Args:
        store: of the data folder.
        names: tells what of Storage a dataflow is worked out of.
    """

    def __init__(self, store: Store, names: Callable[[Dataflow], Collection[str]]) -> None:
        self._store, self._names = store, names
        self._leased: dict[GlobalId, Sequence[Capability]] = {}
        self._indexes: set[GlobalId] = set()
        self._lock = threading.Lock()

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold what dataflows are made of from their `as_of` on, and no longer from earlier times.

        Raises:
            FrontierError: it is forgotten already.
        """
        views: dict[GlobalId, MadeOf] = {}
        indexes: dict[GlobalId, MadeOf] = {}
        needed: dict[str, int] = {}
        for dataflow in dataflows:
            names = self._names(dataflow)
            match dataflow.export:
                case Tail():
                    self._lease(dataflow)
                case Materialized():
                    views[dataflow.id] = names, dataflow.as_of
                case Index():
                    indexes[dataflow.id] = names, dataflow.as_of
            for name in names:
                needed[name] = min(dataflow.as_of, needed.get(name, dataflow.as_of))
        if views or indexes:
            self._indexes.update(indexes)
            self._store.rights.hold_for_dataflows(views, indexes)  # one commit, however many there are
            reach("dataflow.held")
        self._check(needed)

    def release(self, identifier: GlobalId) -> None:
        """Give back what is held for a dataflow."""
        with self._lock:
            leased = self._leased.pop(identifier, None)
        if leased is not None:
            self._retain(leased, (), 0)
        elif identifier in self._indexes:
            self._indexes.discard(identifier)
            self._store.rights.forget_index(identifier)

    def begin(self, indexes: Collection[GlobalId]) -> dict[GlobalId, int]:
        """Take over what an earlier process held for indexes, and give back what it held for others.

        Returns:
            For each index, the time from which on what it is made of is held.
        """
        held = self._store.rights.indexes()
        for identifier in held.keys() - set(indexes):
            self._store.rights.forget_index(identifier)
        self._indexes = held.keys() & set(indexes)
        return held

    def renew(self) -> None:
        """Have leases live on; from any thread, several times a minute."""
        with self._lock:
            for identifier, leased in self._leased.items():
                collections = [lease.collection for lease in leased]
                frontier = min((lease.frontier for lease in leased), default=0)
                self._leased[identifier] = self._retain(leased, collections, frontier)

    def close(self) -> None:
        """Give leases back."""
        for identifier in list(self._leased):
            self.release(identifier)

    def _lease(self, dataflow: Dataflow) -> None:
        with self._lock:
            leased = self._leased.get(dataflow.id, ())
            imported = [source.id for source in dataflow.imports]
            self._leased[dataflow.id] = self._retain(leased, imported, dataflow.as_of)

    def _retain(self, leased: Sequence[Capability], ids: Collection[GlobalId], frontier: int) -> Sequence[Capability]:
        return self._store.capabilities.retain(leased, ids, frontier, purpose="SUBSCRIBE")

    def _check(self, needed: Mapping[str, int]) -> None:
        for name, as_of in needed.items():
            known = self._store.collection(name)
            if known is not None and known.since > as_of:
                raise FrontierError(f"what '{name}' held at {as_of} is forgotten: it is known from {known.since} on")
