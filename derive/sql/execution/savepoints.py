"""Savepoints: how far a transaction is, to go back to.

Nothing that a transaction has written or defined is anywhere but in its session before COMMIT, so going back is to
forget the rest. What it has read since stays read: it has to hold at COMMIT as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.errors import SqlError
from derive.sql.catalog.draft import Draft
from derive.sql.execution.settings import SetValues


@dataclass(frozen=True, slots=True)
class Savepoint:
    """How far a transaction is.

    Attributes:
        name: as it was given; a later one may have it, too.
        writes: how many there are.
        draft: what it has defined.
        cursors: names of those that are open.
        settings: that were set.
    """

    name: str
    writes: int
    draft: Draft | None
    cursors: frozenset[str]
    settings: SetValues


def latest(savepoints: Sequence[Savepoint], name: str, offset: int) -> int:
    """The index of the latest savepoint of a name.

    Raises:
        SqlError: 3B001, there is none.
    """
    for index in reversed(range(len(savepoints))):
        if savepoints[index].name == name:
            return index
    raise SqlError("3B001", f'savepoint "{name}" does not exist', offset=offset)
