"""When dataflows that could not begin are tried again: after a pause, which is longer each time."""

from __future__ import annotations

from collections.abc import Callable

from derive.compute.algebra.relation import GlobalId

_FIRST_SECONDS, _MOST_SECONDS = 0.5, 30.0
"""How long a dataflow is left alone after it has failed, at first and at most."""


class Retries:
    """Dataflows that are to be tried again.

    Args:
        clock: counts seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pauses: dict[GlobalId, float] = {}
        self._times: dict[GlobalId, float] = {}

    def note(self, identifier: GlobalId) -> None:
        """A dataflow has failed; nothing new if that is known."""
        if identifier not in self._times:
            pause = self._pauses.get(identifier, _FIRST_SECONDS)
            self._pauses[identifier] = min(2 * pause, _MOST_SECONDS)
            self._times[identifier] = self._clock() + pause

    def hasten(self, identifier: GlobalId) -> None:
        """What a dataflow has failed for may be gone."""
        if identifier in self._times:
            self._times[identifier] = self._clock()

    def due(self) -> list[GlobalId]:
        """What is to be tried now; each is told once."""
        if not self._times:
            return []
        now = self._clock()
        due = [identifier for identifier, time in self._times.items() if time <= now]
        for identifier in due:
            del self._times[identifier]
        return due

    def forget(self, identifier: GlobalId) -> None:
        """A dataflow is gone; one of the same identifier begins anew."""
        self._times.pop(identifier, None)
        self._pauses.pop(identifier, None)
