"""Rows that a thread computes while the event loop continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import cast

from derive.algebra.types import Row

_END = object()


async def in_thread(batches: Iterator[list[Row]], stop: Callable[[], None]) -> AsyncGenerator[Sequence[Row]]:
    """Yield batches of rows, each computed in a thread.

    Args:
        batches: generator, which is closed at the end.
        stop: function that makes the generator end soon, after a cancellation.
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
    """Wait for the end of an uninterruptible step, despite cancellations."""
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
    """Rows that are ready: one batch, which can be taken without awaiting."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def take(self) -> Sequence[Row]:
        """Return all remaining rows."""
        rows, self._rows = self._rows, ()
        return rows

    async def __anext__(self) -> Sequence[Row]:
        if rows := self.take():
            return rows
        raise StopAsyncIteration


def of_rows(rows: Sequence[Row]) -> ReadyRows:
    """Return rows as an asynchronous iterator that is ready."""
    return ReadyRows(rows)
