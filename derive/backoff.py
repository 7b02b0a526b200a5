"""Back-off: the pauses between attempts at an operation that fails, and the operations that are due again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_logger = logging.getLogger(__name__)

_MOST_DOUBLINGS = 64
"""A pause does not grow beyond `first * 2 ** 64`, which keeps the power small even if an operation fails for months."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: each pause is twice as long as the pause before, up to a limit.

    >>> [Backoff(0.5, 3.0).pause(failures) for failures in (1, 2, 3, 4)]
    [0.5, 1.0, 2.0, 3.0]

    Attributes:
        first: pause after the first failure, seconds.
        most: limit of a pause, seconds.
        jitter: greatest share of a pause that is left out at random, 0 to 1: clients that failed together then
            do not return together.
    """

    first: float
    most: float
    jitter: float = 0.0

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures in a row; 0.0 after none."""
        if failures < 1:
            return 0.0
        pause = min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.most)
        return pause * random.uniform(1.0 - self.jitter, 1.0) if self.jitter else pause


class Retries(Generic[K]):
    """Operations that have failed, by key, and when each of them is due again.

    Args:
        backoff: pauses between attempts.
        clock: returns seconds since any fixed time.
    """

    def __init__(self, backoff: Backoff, clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff = backoff
        self._clock = clock
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}

    def fail(self, key: K) -> None:
        """Record a failure of an operation, which becomes due after a pause."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = self._backoff.pause(failures)
        self._due[key] = self._clock() + pause
        _logger.debug("%s: retried in %.1f s after failure %d", key, pause, failures)

    def hasten(self, key: K) -> None:
        """Make a waiting operation due now: the cause of its failure may be gone."""
        if key in self._due:
            self._due[key] = self._clock()

    def is_waiting(self, key: K) -> bool:
        """Return whether an operation has failed and has not been taken by `take_due` since then."""
        return key in self._due

    def is_due(self, key: K) -> bool:
        """Return whether the pause of an operation that failed is over; false for one whose failure is not recorded."""
        due = self._due.get(key)
        return due is not None and self._clock() >= due

    def take_due(self) -> list[K]:
        """Return the keys of operations that are due, each once for each failure."""
        if not self._due:
            return []
        now = self._clock()
        due = [key for key, at in self._due.items() if at <= now]
        for key in due:
            del self._due[key]
        return due

    def succeed(self, key: K) -> None:
        """Forget the failures of an operation: the pause after its next failure is the shortest one again."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
