"""Read holds: capabilities that keep history readable for transactions and for AS OF.

One capability per relation stays behind the present, and does not pass the time of any open transaction: beginning a
transaction costs nothing. All capabilities advance in one commit. Transactions at earlier times, and all transactions
of a process that keeps no history, have capabilities of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from derive.algebra.relation import GlobalId
from derive.errors import FencedError
from derive.sql.transactions.uninterruptible import settled
from derive.storage.metadata.held import Capability
from derive.storage.store import Store


class StorageHolds:
    """Read holds in one data folder.

    Args:
        store: the data folder.
        readable: returns the identifiers of all readable relations.
        retention: returns the retention of history in microseconds; None if another process keeps history.
    """

    def __init__(
        self, store: Store, readable: Callable[[], Collection[GlobalId]], retention: Callable[[], int | None]
    ) -> None:
        self._store, self._readable, self._retention = store, readable, retention
        self._held: Sequence[Capability] = ()
        self._frontier = 0  # frontier of `_held`, or its next frontier
        self._times: dict[int, int] = {}
        self._own: dict[int, Sequence[Capability]] = {}
        self._count = 0
        self._lock = threading.Lock()

    async def hold(self, time: int) -> int:
        """Hold all readable relations at a time, unless compacted; return the number of the hold."""
        self._count += 1
        number, ids = self._count, set(self._readable())
        with self._lock:
            self._times[number] = time
            is_held = self._frontier <= time and ids.issubset(lease.collection for lease in self._held)
        if not is_held:
            try:
                self._own[number] = await settled(asyncio.to_thread(self._leased, (), ids, time))
            except BaseException:
                with self._lock:
                    del self._times[number]  # no caller can release the hold
                raise
        return number

    async def release(self, hold: int) -> None:
        """Release a hold."""
        with self._lock:
            self._times.pop(hold, None)
            own = self._own.pop(hold, ())
        if own:
            with suppress(FencedError):  # the capabilities end with this process
                await asyncio.to_thread(self._leased, own, (), 0)

    def follow(self) -> int | None:
        """Advance and renew the holds; callable from any thread, several times a minute.

        Returns:
            The time before which no history is needed; None if another process keeps history.
        """
        retention = self._retention()
        frontier = None
        if retention is not None:
            with self._lock:
                frontier = min([self._store.timeline.time() - retention, *self._times.values()])
                self._frontier = max(self._frontier, frontier)
            self._held = self._leased(self._held, self._readable(), frontier)
        for hold, own in list(self._own.items()):
            renewed = self._leased(own, [lease.collection for lease in own], self._times.get(hold, 0))
            with self._lock:
                is_over = hold not in self._own
                if not is_over:
                    self._own[hold] = renewed
            if is_over:
                self._leased(renewed, (), 0)
        return frontier

    def close(self) -> None:
        """Release all holds."""
        leases = [*self._held, *(lease for own in self._own.values() for lease in own)]
        if leases:
            with suppress(FencedError):  # the capabilities end with this process
                self._leased(leases, (), 0)

    def _leased(self, held: Sequence[Capability], ids: Collection[GlobalId], time: int) -> list[Capability]:
        return self._store.capabilities.retain(held, ids, time, purpose="SQL")
