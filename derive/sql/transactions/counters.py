"""Counters of identity columns and sequences: each number is given once, also by processes that are killed.

Numbers are reserved in the metadata database in blocks, before the commit of the rows that have them. A reservation
needs no sync, because commits reach the disk in order. The numbers of a block that no row has are lost at the end of
the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_BLOCK = 32
"""Least number of reserved numbers, as PostgreSQL reserves them."""


class Counters:
    """The counters of one data folder, for the process that writes its tables.

    Args:
        reserve: reserves numbers of a counter durably; returns the first one.
        read: returns the first number that is not reserved; None if no number was.
        restart: lets a counter continue with a number.
    """

    def __init__(
        self,
        reserve: Callable[[int, int], int],
        read: Callable[[int], int | None],
        restart: Callable[[int, int], None],
    ) -> None:
        self._reserve, self._read, self._restart = reserve, read, restart
        self._blocks: dict[int, tuple[int, int]] = {}  # the next number and the end of the block
        self._lock = asyncio.Lock()

    async def take(self, counter: int, count: int, unit: int = 1) -> int:
        """Return the first of some consecutive numbers; `unit` divides the counts of all calls."""
        async with self._lock:
            begin, end = self._blocks.get(counter, (0, 0))
            if end - begin < count:
                size = max(count, _BLOCK * unit)
                first = await asyncio.to_thread(self._reserve, counter, size)
                if first != end:
                    begin = first
                end = first + size
            self._blocks[counter] = begin + count, end
            return begin

    async def next(self, counter: int) -> int | None:
        """Return the next number; None for a counter that has not begun."""
        async with self._lock:
            if counter in self._blocks:
                return self._blocks[counter][0]
            return await asyncio.to_thread(self._read, counter)

    async def restart(self, counter: int, number: int = 1) -> None:
        """Let a counter continue with a number."""
        async with self._lock:
            self._blocks.pop(counter, None)
            await asyncio.to_thread(self._restart, counter, number)
