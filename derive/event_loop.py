"""The event loop of servers and of their clients: that of libuv where there is one, whose rounds cost a third."""

from __future__ import annotations

import asyncio
import sys


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop, the fastest that is installed."""
    if sys.platform != "win32":  # uvloop is not made for it
        try:
            import uvloop
        except ImportError:  # nor for every implementation of Python
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
