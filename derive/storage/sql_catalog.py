"""The catalog of SQL in a data folder: items, replicas, and the fence between servers.

A capability allows one SQL server at a time, but it expires if its process is stopped. So each server has an epoch,
which every write transaction compares.

Items change in the commits of `Tables.append`, together with the tables and rows of the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from derive.errors import FencedError, StorageError
from derive.storage.capability.table import SERVING
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.definitions import StoredItem, read_items, read_version
from derive.storage.metadata.tasks import epoch_of, supersede
from derive.storage.metadata.transaction import Transaction

_CHECK_SECONDS = 0.25
"""Time for which a check of the epoch stands, because it takes a round trip that commits would wait for."""


def superseded() -> FencedError:
    """Return the error for a write of a fenced server."""
    return FencedError(
        "another flowctl has begun to serve SQL over this data folder; this process commits nothing more",
        hint="connect to that server",
    )


class Fence:
    """The fence of one data folder.

    Args:
        metadata: metadata database, whose write transactions fail once this process is fenced.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._epoch: int | None = None
        self._commits, self._due = 0, 0.0

    def begin(self) -> int:
        """Begin to write for clients of SQL, and fence every earlier server.

        Returns:
            The durable epoch, greater than all earlier ones.

        Raises:
            FencedError: this process began earlier, and was fenced.
        """
        with self._metadata.transaction() as db:
            epoch = supersede(db, SERVING)
        self.continue_with(epoch)
        return epoch

    def continue_with(self, epoch: int) -> None:
        """Let all write transactions of this process fail once another epoch has begun."""
        self._epoch, self._metadata.admit = epoch, self._admit

    def is_superseded(self) -> bool:
        """Return true if this process has begun, and another process has fenced it."""
        if self._epoch is None:
            return False
        with self._metadata.snapshot() as db:
            return epoch_of(db, SERVING) != self._epoch

    def check(self) -> None:
        """Raise an error if this process was fenced, or cannot commit.

        Raises:
            FencedError: another server has begun.
            StorageError: the outcome of a commit is unknown.
        """
        if self._metadata.lost is not None:
            raise StorageError(self._metadata.lost, hint="start it again: it finds the outcome")
        if self.is_superseded():
            raise superseded()

    def check_now_and_then(self) -> None:
        """Do the same as `check` if the last check was a moment ago; each commit checks the epoch, too."""
        commits, now = self._metadata.notifications, time.monotonic()
        if (commits == self._commits and now >= self._due) or self._metadata.lost is not None:
            self.check()
        if commits != self._commits or now >= self._due:
            self._commits, self._due = commits, now + _CHECK_SECONDS

    def _admit(self, db: Transaction) -> None:
        if not db.expect("SELECT 1 FROM task WHERE name = ? AND epoch = ?", (SERVING, self._epoch)):
            raise superseded()


class SqlCatalog:
    """The catalog of SQL of one data folder.

    Args:
        metadata: metadata database of the data folder.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def version(self) -> int:
        """Return the number of changes of the items so far."""
        with self._metadata.snapshot() as db:
            return read_version(db)

    def read(self) -> tuple[int, list[StoredItem]]:
        """Return the version and its items, the oldest first."""
        with self._metadata.snapshot() as db:
            return read_version(db), read_items(db)

    def replicas(self) -> list[tuple[str, str]]:
        """Return name and address of the created replicas, by name; see `ReplicaPlace`."""
        with self._metadata.snapshot() as db:
            rows: list[Any] = db.execute("SELECT name, address FROM replica ORDER BY name").fetchall()
        return rows

    def add_replica(self, name: str, address: str) -> None:
        """Record a replica, durably."""
        with self._metadata.transaction() as db:
            db.execute("INSERT INTO replica VALUES (?, ?)", (name, address))

    def drop_replica(self, name: str) -> None:
        """Remove a replica, if it exists, durably."""
        with self._metadata.transaction() as db:
            db.execute("DELETE FROM replica WHERE name = ?", (name,))

    def reserve_numbers(self, counter: int, count: int) -> int:
        """Reserve numbers of a counter, and return the first one; durable with the next synced commit."""
        with self._metadata.transaction(synced=False) as db:
            after: int = db.execute(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET next = counter.next + ?"
                " RETURNING next",
                (counter, 1 + count, count),
            ).get
        return after - count

    def next_number(self, counter: int) -> int | None:
        """Return the number with which a counter continues; None if it has not begun."""
        with self._metadata.snapshot() as db:
            number: int | None = db.execute("SELECT next FROM counter WHERE id = ?", (counter,)).get
        return number

    def restart_counter(self, counter: int, number: int) -> None:
        """Let a counter continue with a number, durably."""
        with self._metadata.transaction() as db:
            db.execute(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET next = excluded.next",
                (counter, number),
            )

    def forget_counters(self, kept: Collection[int]) -> None:
        """Delete the counters of dropped columns, while no transaction is open."""
        with self._metadata.transaction(synced=False) as db:
            known = {number for (number,) in db.execute("SELECT id FROM counter").fetchall()}
            db.executemany("DELETE FROM counter WHERE id = ?", [(number,) for number in known - set(kept)])
