"""Standard output and standard error as pipes whose reader may close them, as `head` does."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO


def is_unread(stream: TextIO, milliseconds: int = 0) -> bool:
    """Return whether a stream is a pipe whose other end is closed now, or is closed within `milliseconds`.

    Args:
        stream: standard output or standard error.
        milliseconds: time to wait for the other end to be closed.
    """
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(milliseconds))


def discard_unread() -> bool:
    """Discard all output that waits in pipes without a reader; return whether there is such a pipe."""
    unread = [stream for stream in (sys.stdout, sys.stderr) if is_unread(stream)]
    for stream in unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(unread)
