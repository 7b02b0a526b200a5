"""Rows that a thread computes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

from derive.algebra.types import Row
from derive.errors import SqlError
from derive.sql.results import in_thread


async def test_error_of_a_cancelled_statement_is_not_printed() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    begun, stopped = threading.Event(), threading.Event()

    def batches() -> Iterator[list[Row]]:
        begun.set()
        stopped.wait()
        raise SqlError("57014", "canceling statement due to user request")
        yield []

    async def read() -> None:
        async for _ in in_thread(batches(), stopped.set):
            pass

    reading = asyncio.create_task(read())
    await asyncio.to_thread(begun.wait)
    reading.cancel()
    assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], asyncio.CancelledError)
    del reading
    await asyncio.sleep(0)  # the loop forgets the task
    gc.collect()
    assert reported == []
