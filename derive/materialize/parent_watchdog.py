"""The guard of a program that serves a connector: the program ends when the parent of the guard ends for any reason.

The guard is a separate program, `python parent_watchdog.py PROGRAM ARGUMENT…`, without imports of this package. The
standard input of the guard is a pipe that is closed when its parent ends. The standard input of the program is a pipe
that is closed when the guard ends. The guard exits with the exit code of the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

_GRACE_SECONDS = 5.0
_DIE_WITH_PARENT = 1
"""Linux: option of `prctl` by which the kernel sends a signal to a process whose parent has ended."""


def main() -> None:
    """Run the program of the command line until it or the parent ends."""
    try:
        program = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (there is one thread yet)
        )
    except (OSError, ValueError) as exc:
        print(f"cannot run {sys.argv[1]}: {getattr(exc, 'strerror', None) or exc}", file=sys.stderr)  # noqa: T201
        sys.exit(127)

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(program,), daemon=True).start()
    try:
        while os.read(0, 4096):
            pass
    finally:
        _end(program)


def _follow(program: subprocess.Popen[bytes]) -> None:
    """Wait for the program, and exit with its exit code."""
    code = program.wait()
    _signal(program, signal.SIGKILL)  # processes that the program has started
    os._exit(code if code >= 0 else 128 - code)


def _end(program: subprocess.Popen[bytes]) -> None:
    _signal(program, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        program.wait(_GRACE_SECONDS)
    _signal(program, signal.SIGKILL)


def _signal(program: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


def _die_with_parent() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    main()
