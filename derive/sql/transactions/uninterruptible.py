"""Work that runs to completion even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def settled(work: Awaitable[T]) -> T:
    """Await work to completion even if the caller is cancelled, and return its result.

    Raises:
        asyncio.CancelledError: the caller was cancelled, and the work failed.
    """
    task, is_cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled and (failure := task.exception()):
        raise asyncio.CancelledError from failure
    return task.result()
