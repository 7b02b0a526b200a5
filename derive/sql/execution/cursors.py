"""Cursors: rows of a query or a subscription, fetched a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.results import ResultColumn


class Cursor:
    """A cursor: rows that are fetched in pieces.

    Args:
        columns: columns of the rows.
        rows: all rows, in batches.
        is_held: whether the cursor outlives its transaction.
        is_endless: whether the rows come from a subscription, so that a fetch returns the rows that are ready.

    Attributes:
        columns: columns of the rows.
        is_held: whether the cursor outlives its transaction.
    """

    def __init__(
        self,
        columns: tuple[ResultColumn, ...],
        rows: AsyncIterator[Sequence[Row]],
        *,
        is_held: bool = False,
        is_endless: bool = False,
    ) -> None:
        self.columns, self.is_held = columns, is_held
        self._rows, self._is_endless = rows, is_endless
        self._ready: list[Row] = []
        self._next: asyncio.Future[Sequence[Row] | None] | None = None
        self._is_done = False

    async def fetch(self, count: int | None, timeout: float | None) -> list[Row]:
        """Return the next rows.

        Args:
            count: greatest number of rows; None for all, or for all ready rows of a subscription.
            timeout: longest wait in seconds; None for no limit.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not self._is_done and (count is None or len(self._ready) < count):
            if self._is_endless and self._ready and deadline is None:
                break
            if not await self._gather(deadline):
                break
        taken = len(self._ready) if count is None else count
        rows, self._ready = self._ready[:taken], self._ready[taken:]
        return rows

    async def close(self) -> None:
        """Close the cursor."""
        self._is_done = True
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
            _has_failed(self._next)  # without this call, asyncio would log the error
        if hasattr(self._rows, "aclose"):
            await self._rows.aclose()

    async def _gather(self, deadline: float | None) -> bool:
        """Read one more batch; return False at the deadline."""
        if self._next is None:
            self._next = asyncio.ensure_future(_one(self._rows))
        left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait([self._next], timeout=left)
        if not done:
            return False
        if self._is_endless and self._ready and _has_failed(self._next):
            return False  # the rows before the error are returned first
        gathered, self._next = self._next, None
        batch = gathered.result()
        self._is_done = batch is None
        self._ready += batch or ()
        return True


def _has_failed(done: asyncio.Future[Sequence[Row] | None]) -> bool:
    """Return whether a future has failed for a reason other than cancellation."""
    error = None if done.cancelled() else done.exception()
    return isinstance(error, SqlError) and error.sqlstate != "57014"


async def _one(rows: AsyncIterator[Sequence[Row]]) -> Sequence[Row] | None:
    async for batch in rows:
        return batch
    return None
