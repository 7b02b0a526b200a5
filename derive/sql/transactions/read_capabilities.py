"""Read capabilities of SQL, which keep history readable for transactions and AS OF; and their maintenance thread.

One shared capability per relation stays behind the present, and does not pass the time of an open transaction. So most
transactions begin without a commit. All shared capabilities advance in one commit. Transactions at earlier times, and
all transactions of a process that keeps no history, have their own capabilities.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from derive.algebra.relation import GlobalId
from derive.errors import FlowError
from derive.event_loop import settled
from derive.storage.capability.capabilities import RetainedCapabilities
from derive.storage.store import Store
from derive.storage.table_compaction import TableCompaction

_SHARED = 0
"""Holder of the capabilities that follow the present; transactions have the numbers from 1 on."""


class ReadCapabilities:
    """Read capabilities of the transactions in one data folder.

    Args:
        store: the data folder.
        readable: returns the identifiers of all readable relations.
        retention: returns the retention of history in microseconds; None if another process keeps history.
    """

    def __init__(
        self, store: Store, readable: Callable[[], Collection[GlobalId]], retention: Callable[[], int | None]
    ) -> None:
        self._store, self._readable, self._retention = store, readable, retention
        self._retained = RetainedCapabilities(store.capabilities, "SQL")
        self._frontier = 0  # present or next frontier of the shared capabilities
        self._times: dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    async def acquire(self, time: int) -> int:
        """Acquire capabilities to read all relations at a time, except compacted relations.

        Return the holder's number.
        """
        self._count += 1
        number, ids = self._count, set(self._readable())
        with self._lock:
            self._times[number] = time
            is_shared = self._frontier <= time and ids <= self._retained.collections(_SHARED)
        # A process that cannot write relies on the grace period of replaced files.
        if not is_shared and self._store.metadata.can_write:
            try:
                await settled(asyncio.to_thread(self._retained.request, {number: (ids, time)}))
            except BaseException:
                with self._lock:
                    del self._times[number]  # no caller can release the capabilities
                raise
        return number

    async def release(self, number: int) -> None:
        """Release the capabilities of a holder."""
        with self._lock:
            self._times.pop(number, None)
        if number in self._retained:
            await asyncio.to_thread(self._retained.release, number)

    def follow(self) -> int | None:
        """Advance and renew the capabilities; callable from any thread, several times a minute.

        Returns:
            The time before which no history is needed; None if another process keeps history.
        """
        retention = self._retention()
        if retention is None:
            self._retained.release(_SHARED)
            self._retained.renew()
            return None
        with self._lock:
            frontier = min([self._store.timeline.time() - retention, *self._times.values()])
            self._frontier = max(self._frontier, frontier)
        self._retained.renew({_SHARED: (self._readable(), frontier)})
        return frontier

    def close(self) -> None:
        """Release all capabilities."""
        self._retained.close()


SECONDS = 10.0
"""Interval of the jobs, in seconds; each job renews the capabilities, which expire after a minute."""


class MaintenanceThread:
    """Maintenance of one data folder: advances read capabilities, and compacts tables.

    Args:
        store: the data folder.
        capabilities: read capabilities of all readable relations.
    """

    def __init__(self, store: Store, capabilities: ReadCapabilities) -> None:
        self._capabilities = capabilities
        self._tables = TableCompaction(store)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flowctl-sql-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and release the read capabilities."""
        self._is_over.set()
        self._thread.join()
        self._capabilities.close()

    def follow(self) -> None:
        """Acquire the read capabilities of new relations, and advance other capabilities to the oldest time to keep.

        Raises:
            FlowError: the disk is full or broken.
        """
        with self._lock:
            self._capabilities.follow()

    def compact(self) -> None:
        """Run the jobs that are due now.

        Raises:
            FlowError: the disk is full or broken; no data are lost.
        """
        with self._lock:
            needed_from = self._capabilities.follow()
            if needed_from is not None:
                self._tables.compact(needed_from)

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS):
            with suppress(FlowError):  # the next interval retries
                self.compact()
