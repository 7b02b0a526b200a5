"""What dataflows read: relations that change over time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from derive.algebra.types import Row, Type

Update: TypeAlias = tuple[int, Row, int]
"""Time, row and diff."""


class Input(Protocol):
    """A relation from a time on."""

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""

    @property
    def since(self) -> int:
        """The time from which on updates are told."""

    @property
    def has_more(self) -> bool:
        """Whether the next `poll` tells of more even if nothing happens until then, as the last one ended early."""

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at a time, which is `since`, each as often as it is there; before the first `poll`."""

    def poll(self) -> tuple[int, list[Update]]:
        """What is final by now and was not told yet.

        Returns:
            A frontier, and all updates after `since` and below it that were not told before: times, rows and diffs, in
            the order of times.
        """

    def close(self) -> None:
        """It is needed no more."""


Opener: TypeAlias = Callable[[], Input]
"""Opens an input, in whatever process; it can be pickled."""


@runtime_checkable
class MovableInput(Input, Protocol):
    """A relation whose snapshot may be read by another process, while this one holds the right to read it."""

    @property
    def keeps(self) -> bool:
        """Whether it keeps something of the snapshot, which is read anew if that is not there."""

    def count(self, as_of: int) -> int:
        """About how many updates there are up to a time.

        Raises:
            FrontierError: it is not known at that time yet.
        """

    def opener(self, as_of: int, wanted: Collection[int] | None, place: Path) -> Opener:
        """What opens the same relation from a time on in another process.

        Args:
            as_of: the time, not before `since`.
            wanted: indexes of the columns that are needed, all others may be NULL; None for all.
            place: a file for what is kept as the snapshot is read, if there is something.
        """

    def adopt(self, as_of: int, place: Path) -> None:
        """Go on from that time with what was kept in that file, instead of reading a snapshot here."""
