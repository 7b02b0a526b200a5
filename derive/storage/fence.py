"""The fence between processes that write for clients of SQL: once one has begun, those before it commit nothing more.

A lock sees to it that there is one such process at a time. But a file system may give away the lock of one that was
late, and the file may be removed. So each has an epoch, which is compared in every transaction that writes.
"""

from __future__ import annotations

import apsw

from derive.errors import FencedError
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.tasks import epoch_of, supersede

_TASK = "sql:"
"""Under this name the epoch is kept; no task of a catalog has a colon in its name."""


def superseded() -> FencedError:
    """The error for whatever somebody writes who was superseded."""
    return FencedError(
        "another flowctl has begun to serve SQL over this data folder; this one commits nothing more",
        hint="connect to that one",
    )


class Fence:
    """The fence of one data folder.

    Args:
        metadata: what is written there is refused once this process was superseded.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._epoch: int | None = None

    def begin(self, least: int) -> int:
        """Be the process that writes for clients of SQL: whoever has begun before is superseded.

        Args:
            least: the epoch is not below that.

        Returns:
            The epoch, which is greater than all before. It is durable.

        Raises:
            FencedError: this process has begun before, and was superseded.
        """
        with self._metadata.transaction() as db:
            epoch = supersede(db, _TASK, least)
        self._epoch, self._metadata.admit = epoch, self._admit
        return epoch

    def is_superseded(self) -> bool:
        """Whether this process has begun, and another one has since."""
        if self._epoch is None:
            return False
        with self._metadata.snapshot() as db:
            return epoch_of(db, _TASK) != self._epoch

    def check(self) -> None:
        """Require that this process was not superseded.

        Raises:
            FencedError: it was.
        """
        if self.is_superseded():
            raise superseded()

    def _admit(self, db: apsw.Connection) -> None:
        if epoch_of(db, _TASK) != self._epoch:
            raise superseded()
