"""Bounded caches: of the most recently used entries, and of functions of a statement's text or of an object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """A least-recently-used cache for one thread.

    Args:
        most: largest number of entries.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}  # ordered by use, the latest last

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key and mark the key as used; None for an unknown key."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: K, value: V) -> V:
        """Store and return a value, and evict the least recently used entry if there are too many."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        return value

    def forget(self, key: K) -> None:
        """Remove a key, if it is known."""
        self._values.pop(key, None)


T = TypeVar("T")

MOST_CHARACTERS = 4096
"""Greatest length of a cached text, in characters; longer texts seldom repeat."""
_MOST_TEXTS = 1024


def cached_by_text(function: Callable[[str], T]) -> Callable[[str], T]:
    """Cache a function of a text. The function's results must be immutable."""
    remembered = lru_cache(maxsize=_MOST_TEXTS)(function)

    @wraps(function)
    def of_text(text: str) -> T:
        return remembered(text) if len(text) <= MOST_CHARACTERS else function(text)

    return of_text


_MOST_OBJECTS = 64


def cached_by_identity(function: Callable[[K], V]) -> Callable[[K], V]:
    """Cache a function of an immutable object, such as a derivation; equal objects are different.

    The cache keeps its objects, so no other object gets the identity of one of them. Results must be immutable, too.
    """
    known: dict[int, tuple[K, V]] = {}  # ordered by use, the latest last

    @wraps(function)
    def of_object(key: K) -> V:
        entry = known.pop(id(key), None) or (key, function(key))
        known[id(key)] = entry
        if len(known) > _MOST_OBJECTS:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread changes the cache
                del known[next(iter(known))]
        return entry[1]

    return of_object
