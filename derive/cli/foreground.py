"""The foreground of a terminal: the processes that Ctrl-C reaches, and that own the lines of the terminal.

A background job of a shell shares the terminal with the shell and with its other jobs. Text that a background job draws
over its own earlier lines would overwrite theirs.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TextIO


def is_in_foreground(stream: TextIO) -> bool:
    """Return whether a stream is a terminal, and this process is in its foreground now.

    `fg` and `bg` of a shell move a process, so the result changes. A background job of a script belongs to the process
    group of the script, and ignores SIGINT.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return False
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal, or the terminal of another session
        return False


def stopping() -> str:
    """Return how to stop this process: with Ctrl-C in the foreground of a terminal, and by its number elsewhere."""
    if any(map(is_in_foreground, (sys.stdin, sys.stdout, sys.stderr))):
        return "stop with Ctrl-C"
    return f"stop with: kill {os.getpid()}"
