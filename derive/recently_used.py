"""A cache that is bounded: the entry that was used least recently makes way for a new one."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Values by key, of which the most recently used ones are kept; in one thread.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}  # in the order of their use, the latest last

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key, which is used now; None if there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value, in place of the one that was used least recently if there are too many; return the value."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        return value
