"""Reconcile the present items with a log of desired items.

The log begins with a punctuation (`begin`), names each desired item (`name`), and ends with a punctuation (`complete`).
An unchanged item is kept, a changed item is rebuilt, and an unnamed item is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
D = TypeVar("D")


@dataclass(slots=True)
class Outcome(Generic[K]):
    """Items kept, rebuilt and dropped by a reconciliation.

    Attributes:
        kept: keys of the unchanged items.
        rebuilt: reason for each item that was built, by key.
        dropped: keys of the dropped items.
    """

    kept: list[K] = field(default_factory=list)
    rebuilt: dict[K, str] = field(default_factory=dict)
    dropped: list[K] = field(default_factory=list)


class Reconciliation(Generic[K, D]):
    """Items and their definitions, by key.

    Args:
        difference: returns the reason why an item with the first definition cannot serve the second; None if it can.
        build: builds an item, after the previous item of the same key was dropped. An item whose build fails is absent.
        drop: drops an item.

    Attributes:
        present: definitions of the present items, by key.
    """

    def __init__(
        self, difference: Callable[[K, D, D], str | None], build: Callable[[K, D], None], drop: Callable[[K, D], None]
    ) -> None:
        self._difference, self._build, self._drop = difference, build, drop
        self.present: dict[K, D] = {}
        self._named: set[K] = set()
        self._outcome: Outcome[K] | None = None

    def begin(self) -> None:
        """Restart the log: items that are unnamed until `complete` are not desired."""
        self._named.clear()
        self._outcome = Outcome()

    def name(self, key: K, definition: D) -> bool:
        """Add a desired item to this reconciliation, and build it if needed; return true if it was built."""
        self._named.add(key)
        present = self.present.get(key)
        why = "was not there" if present is None else self._difference(key, present, definition)
        if why is not None:
            if present is not None:
                self._drop(key, present)
            self.present[key] = definition
            try:
                self._build(key, definition)
            except BaseException:
                del self.present[key]
                raise
        if self._outcome is not None:
            if why is None:
                self._outcome.kept.append(key)
            else:
                self._outcome.rebuilt[key] = why
        return why is not None

    def remove(self, key: K) -> None:
        """Drop an item that is no longer desired."""
        self._named.discard(key)
        definition = self.present.pop(key, None)
        if definition is not None:
            self._drop(key, definition)

    def complete(self) -> Outcome[K]:
        """Complete the log: drop every unnamed item.

        Returns:
            The outcome since `begin`.
        """
        outcome = self._outcome or Outcome()
        for key in [key for key in self.present if key not in self._named]:
            outcome.dropped.append(key)
            self.remove(key)
        outcome.kept = [key for key in outcome.kept if key in self.present]
        outcome.rebuilt = {key: why for key, why in outcome.rebuilt.items() if key in self.present}
        self._outcome = None
        return outcome
