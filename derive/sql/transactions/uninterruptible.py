"""What is begun and cannot be interrupted: whoever is cancelled meanwhile waits for the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def settled(work: Awaitable[T]) -> T:
    """What comes of something, waited for however often somebody is cancelled meanwhile.

    Raises:
        asyncio.CancelledError: somebody was, and it has failed.
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
