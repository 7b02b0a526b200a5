"""Inputs of dataflows: relations that change over time."""

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
        """Return the types of the columns."""

    @property
    def since(self) -> int:
        """Return the time after which updates are returned."""

    @property
    def has_more(self) -> bool:
        """Return whether `poll` has more updates already, because the last one returned early."""

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `as_of`, which is `since`, each repeated by its count; called before the first `poll`."""

    def poll(self) -> tuple[int, list[Update]]:
        """Return the updates that are final and were not returned yet.

        Returns:
            A frontier, and all new updates after `since` and below the frontier: times, rows and diffs, ordered by
                time.
        """

    def close(self) -> None:
        """Release the input."""


Opener: TypeAlias = Callable[[], Input]
"""A picklable function that opens an input in any process."""


@runtime_checkable
class MovableInput(Input, Protocol):
    """A relation whose snapshot another process may read, while this one holds the capability to read it."""

    @property
    def keeps(self) -> bool:
        """Return whether it stores a part of the snapshot, which is read again if it is missing."""

    def count(self, as_of: int) -> int:
        """Return an approximate number of updates up to a time.

        Raises:
            FrontierError: the input is not known at that time yet.
        """

    def opener(self, as_of: int, wanted: Collection[int] | None, place: Path) -> Opener:
        """Return a function that opens the same relation from a time on in another process.

        Args:
            as_of: the time, not before `since`.
            wanted: indexes of the needed columns, others may be NULL; None for all.
            place: a file for the stored part of the snapshot, if there is one.
        """

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from this time with the stored file, instead of reading a snapshot here."""
