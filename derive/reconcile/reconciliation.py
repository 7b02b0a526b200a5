"""Bring what is there in line with a log of what is wanted.

Whoever wants something says so by a log, which begins with a punctuation (`begin`), names each thing (`name`), and says
when all was named that there was before (`complete`). A thing that is there and the same goes on as it is, another one
is made anew, and one that was not named is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
D = TypeVar("D")


@dataclass(slots=True)
class Outcome(Generic[K]):
    """What became of things between `begin` and `complete`.

    Attributes:
        kept: those that went on as they were.
        rebuilt: those that were made, and why.
        dropped: those that were there, and were not named.
    """

    kept: list[K] = field(default_factory=list)
    rebuilt: dict[K, str] = field(default_factory=dict)
    dropped: list[K] = field(default_factory=list)


class Reconciliation(Generic[K, D]):
    """Things by key, and how each is defined.

    Args:
        difference: why what is there under a key by one definition will not do for another one; None if it will.
        build: makes a thing; whatever was there before under its key is dropped by then. What it fails to make is not
            there.
        drop: drops a thing.

    Attributes:
        present: what is there.
    """

    def __init__(
        self, difference: Callable[[K, D, D], str | None], build: Callable[[K, D], None], drop: Callable[[K, D], None]
    ) -> None:
        self._difference, self._build, self._drop = difference, build, drop
        self.present: dict[K, D] = {}
        self._named: set[K] = set()
        self._outcome: Outcome[K] | None = None

    def begin(self) -> None:
        """The log begins anew: what is not named until `complete` is not wanted."""
        self._named.clear()
        self._outcome = Outcome()

    def name(self, key: K, definition: D) -> bool:
        """A thing is wanted; whether it was made for that."""
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
        """A thing is not wanted any more."""
        self._named.discard(key)
        definition = self.present.pop(key, None)
        if definition is not None:
            self._drop(key, definition)

    def complete(self) -> Outcome[K]:
        """All was named that is wanted: drop the rest.

        Returns:
            What became of things since `begin`.
        """
        outcome = self._outcome or Outcome()
        for key in [key for key in self.present if key not in self._named]:
            outcome.dropped.append(key)
            self.remove(key)
        outcome.kept = [key for key in outcome.kept if key in self.present]
        outcome.rebuilt = {key: why for key, why in outcome.rebuilt.items() if key in self.present}
        self._outcome = None
        return outcome
