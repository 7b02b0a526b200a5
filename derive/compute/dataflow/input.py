"""Inputs of dataflows: relations that change over time, and their unprocessed changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from derive.algebra.types import Row, Type

Update: TypeAlias = tuple[int, Row, int]
"""Time, row and diff."""


class Input(Protocol):
    """A relation from a time on."""

    @property
    def types(self) -> tuple[Type, ...]:
        """Return the types of the input's columns."""

    @property
    def since(self) -> int:
        """Return the time after which updates are returned."""

    @property
    def has_more(self) -> bool:
        """Return whether more updates are available at once, because the last `poll` did not return all updates."""

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `as_of` (equal to `since`), each repeated by its count. Called before the first `poll`."""

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
    """A relation whose snapshot another process may read, while this process holds the capability to read it."""

    @property
    def keeps(self) -> bool:
        """Return whether the input stores a part of the snapshot; a missing stored part is read again."""

    def count(self, as_of: int) -> int:
        """Return an approximate number of updates up to a time.

        Raises:
            FrontierError: the input is not known at that time yet.
        """

    def opener(self, as_of: int, required: Collection[int] | None, place: Path) -> Opener:
        """Return a function that opens the same relation from a time on in another process.

        Args:
            as_of: the time, not before `since`.
            required: indexes of the needed columns; other columns may be NULL. None for all columns.
            place: a file for the stored part of the snapshot, if there is one.
        """

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from this time with the file that another process has stored, without reading a snapshot."""


@runtime_checkable
class StoredInput(Input, Protocol):
    """An input whose rows at `since` are in a table of the database of its readers."""

    def stored(self) -> tuple[str, int]:
        """Return a table with all needed columns (`c0`, `c1` and so on, by their index) and `w`; and its row count."""


@dataclass(slots=True)
class InputReader:
    """An input, whose updates wait until the updates of the other inputs are known.

    Attributes:
        input: the input.
        frontier: time before which all updates are known.
        updates: pending updates, by time.
        used: updates that were taken after the last `keep`.
    """

    input: Input
    frontier: int
    updates: deque[Update] = field(default_factory=deque)
    used: list[Update] = field(default_factory=list)

    def poll(self, upper: int) -> None:
        """Poll the input; discard updates below `upper`, which are applied already."""
        self.frontier, updates = self.input.poll()
        self.updates.extend(update for update in updates if update[0] >= upper)

    def take(self, time: int) -> dict[Row, int]:
        """Take the updates of the earliest time; return the change of the count of each row."""
        counts: dict[Row, int] = {}
        updates = self.updates
        while updates and updates[0][0] == time:
            update = updates.popleft()
            self.used.append(update)
            _, row, diff = update
            counts[row] = counts.get(row, 0) + diff
        return counts

    def keep(self) -> None:
        """Discard the taken updates after their commit."""
        self.used.clear()

    def go_back(self) -> None:
        """Restore the taken updates after a rollback."""
        self.updates.extendleft(reversed(self.used))
        self.used.clear()
