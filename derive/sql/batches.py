"""Rows that a thread works out while the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import cast

from derive.algebra.types import Row

_END = object()


async def in_thread(batches: Iterator[list[Row]], stop: Callable[[], None]) -> AsyncGenerator[Sequence[Row]]:
    """Batches of rows, each taken in a thread.

    Args:
        batches: a generator, closed in the end.
        stop: has the generator end soon, where nobody waits for it any more.
    """
    loop = asyncio.get_running_loop()
    with closing(_Closing(batches)) as held:
        while True:
            taking = loop.run_in_executor(None, next, held.batches, _END)
            try:
                batch = await asyncio.shield(taking)
            except asyncio.CancelledError:
                stop()
                await _ended(taking)
                raise
            if batch is _END:
                return
            yield cast(Sequence[Row], batch)


async def _ended(taking: asyncio.Future[object]) -> None:
    """Wait for the end of what cannot be interrupted, however often that is asked for."""
    task = asyncio.current_task()
    while not taking.done():
        try:
            await asyncio.wait([taking])
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()


class _Closing:
    def __init__(self, batches: Iterator[list[Row]]) -> None:
        self.batches = batches

    def close(self) -> None:
        if hasattr(self.batches, "close"):
            self.batches.close()


class ReadyRows(AsyncIterator[Sequence[Row]]):
    """Rows that are there: one batch, which may be taken without waiting."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def take(self) -> Sequence[Row]:
        """All that is left."""
        rows, self._rows = self._rows, ()
        return rows

    async def __anext__(self) -> Sequence[Row]:
        if rows := self.take():
            return rows
        raise StopAsyncIteration


def of_rows(rows: Sequence[Row]) -> ReadyRows:
    """Rows that are there."""
    return ReadyRows(rows)
