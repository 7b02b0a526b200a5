"""Read capabilities of SQL, which keep history readable for transactions and for AS OF.

One capability per relation stays behind the present, and does not pass the time of any open transaction: beginning a
transaction costs nothing. All capabilities advance in one commit. Transactions at earlier times, and all transactions
of a process that keeps no history, have capabilities of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

from derive.algebra.relation import GlobalId
from derive.event_loop import settled
from derive.storage.capability.capabilities import RetainedCapabilities
from derive.storage.store import Store

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
        """Acquire capabilities to read all relations at a time, unless compacted; return the number of the holder."""
        self._count += 1
        number, ids = self._count, set(self._readable())
        with self._lock:
            self._times[number] = time
            is_shared = self._frontier <= time and ids <= self._retained.collections(_SHARED)
        if not is_shared:
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
