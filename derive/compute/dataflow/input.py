"""What dataflows read: relations that change over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from derive.compute.algebra.types import Row, Type


class Input(Protocol):
    """A relation from a time on."""

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""

    @property
    def since(self) -> int:
        """The time from which on updates are told."""

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at a time, which is `since`, each as often as it is there; before the first `poll`."""

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """What is final by now and was not told yet.

        Returns:
            A frontier, and all updates after `since` and below it that were not told before: times, rows and diffs, in
            the order of times.
        """

    def close(self) -> None:
        """It is needed no more."""
