"""Standard streams that are closed from the start, that a reader such as `head` closes, or whose disk is full."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO


def open_missing() -> None:
    """Open standard streams that the parent process has closed, as some schedulers do.

    Without this, the next opened file would get the number of the stream, and text for the stream would be written into
    the file. A read from the opened input, or a write to the opened output, fails; text for standard error is
    discarded.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)  # the new stream gets the lowest free number
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


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
        discard(stream)
    return bool(unread)


def discard_unwritable() -> OSError | None:
    """Return the error with which standard output refuses text, and discard the text; None if it takes the text."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        discard(sys.stdout)
        return exc
    return None


def discard(stream: TextIO) -> None:
    """Discard the text that waits in a stream, and all later text."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
