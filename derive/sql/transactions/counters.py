"""Counters of identity columns: each number is given once, also by processes that are killed.

Numbers are reserved in the metadata database in blocks, before the commit of the rows that have them. A reservation
needs no sync, because commits reach the disk in order. Numbers of a block that no row has got are lost at the end of
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
        restart: lets a counter begin with 1 again.
    """

    def __init__(self, reserve: Callable[[int, int], int], restart: Callable[[int], None]) -> None:
        self._reserve, self._restart = reserve, restart
        self._blocks: dict[int, tuple[int, int]] = {}  # the next number and the end of the block
        self._lock = asyncio.Lock()

    async def take(self, counter: int, count: int) -> int:
        """Return the first of some consecutive numbers."""
        async with self._lock:
            begin, end = self._blocks.get(counter, (0, 0))
            if end - begin < count:
                size = max(count, _BLOCK)
                first = await asyncio.to_thread(self._reserve, counter, size)
                if first != end:
                    begin = first
                end = first + size
            self._blocks[counter] = begin + count, end
            return begin

    async def restart(self, counter: int) -> None:
        """Let a counter begin with 1 again."""
        async with self._lock:
            self._blocks.pop(counter, None)
            await asyncio.to_thread(self._restart, counter)
