"""Views that are kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from derive.adapter.objects import Objects
from derive.compute.algebra.relation import GlobalId, Relation
from derive.storage.store import Store


class Maintenance:
    """Views that are kept up to date by this process, if it is the one that writes."""

    def __init__(self, store: Store, root: Path, objects: Callable[[], Objects]) -> None:
        self._store, self._root, self._objects = store, root, objects
        self.views: frozenset[GlobalId] = frozenset()

    def sources(self, ids: Collection[GlobalId]) -> frozenset[GlobalId]:
        """What is stored, of what views that are kept up to date here are worked out."""
        return frozenset(ids)

    def expanded(self, relation: Relation) -> Relation:
        """A relation over what is stored."""
        return relation

    async def first_time(self, ids: Collection[GlobalId]) -> int:
        """The first time of a view."""
        raise NotImplementedError

    def forget(self, ids: Collection[GlobalId]) -> None:
        """Keep views up to date no more."""

    def begin(self) -> None:
        """This process is the one that writes."""

    def work(self) -> bool:
        """Bring views up to date; whether there is more to do."""
        return False

    def close(self) -> None:
        """Give everything back."""
