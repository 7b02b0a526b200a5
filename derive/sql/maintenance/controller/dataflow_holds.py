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
    """Rights to read what dataflows are made of, so that each replica can begin with them."""

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold the imports of dataflows from their `as_of` on, and no longer from earlier times.

        They are not forgotten from when it returns until they are released, and by no restart.

        Raises:
            FrontierError: they are forgotten already.
        """

    def release(self, identifier: GlobalId) -> None:
        """Give back what is held for a dataflow."""


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
        tails = [dataflow for dataflow in dataflows if isinstance(dataflow.export, Tail)]
        begun = self._lease(tails)
        for dataflow in dataflows:
            if dataflow.id in begun:
                continue  # what it follows tells it if it is too far behind
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
            self._store.rights.hold_for_dataflows(views, indexes)  # one commit, however many there are
            reach("dataflow.held")
        self._check(needed)

    def release(self, identifier: GlobalId) -> None:
        """Give back what is held for a dataflow."""
        with self._lock:
            is_leased = identifier in self._leased
            if is_leased:
                with suppress(FencedError):  # then they end with this process
                    self._retain({identifier: ((), 0)})
                del self._leased[identifier]
        if is_leased:
            return
        if identifier in self._indexes:
            self._indexes.discard(identifier)
            self._store.rights.forget_index(identifier)

    def held(self) -> dict[GlobalId, int]:
        """For each index and each view, the time from which on what it is made of is held."""
        return self._store.rights.indexes() | self._store.rights.views()

    def begin(self, indexes: Collection[GlobalId]) -> None:
        """Take over what an earlier process held for indexes, and give back what it held for others."""
        held = self._store.rights.indexes()
        for identifier in held.keys() - set(indexes):
            self._store.rights.forget_index(identifier)
        self._indexes = held.keys() & set(indexes)

    def forget_dropped(self, indexes: Container[GlobalId]) -> None:
        """Give back what is held for all but some indexes: one may be dropped before it was wanted again."""
        for identifier in [one for one in self._indexes if one not in indexes]:
            self.release(identifier)

    def renew(self) -> None:
        """Have leases live on; from any thread, several times a minute."""
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
        """Give leases back."""
        for identifier in list(self._leased):
            self.release(identifier)

    def _lease(self, tails: Sequence[Dataflow]) -> set[GlobalId]:
        """Hold what tails are made of; returns those for which it was held before."""
        with self._lock:
            begun = {tail.id for tail in tails if tail.id in self._leased}
            self._retain({tail.id: ([source.id for source in tail.imports], tail.as_of) for tail in tails})
        return begun

    def _retain(self, wanted: Mapping[GlobalId, tuple[Collection[GlobalId], int]]) -> None:
        """Hold what tails need, of which collections and from when on, in one commit, however many there are."""
        if wanted:
            wishes = [(self._leased.get(identifier, ()), *wish) for identifier, wish in wanted.items()]
            retained = self._store.capabilities.retain_all(wishes, purpose="SUBSCRIBE")
            self._leased.update(zip(wanted, retained, strict=True))

    def _check(self, needed: Mapping[str, int]) -> None:
        for name, as_of in needed.items():
            known = self._store.collection(name)
            if known is not None and known.since > as_of:
                raise FrontierError(f"what '{name}' held at {as_of} is forgotten: it is known from {known.since} on")
