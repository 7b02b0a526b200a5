"""The resident memory of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STEP = 4 << 20
"""Resolution of the reported bytes."""


_SECONDS = 0.5
"""Seconds for which the last value is cached: reading it costs more than most work in between."""


class Memory:
    """The memory of this process."""

    def __init__(self) -> None:
        self._bytes, self._due = 0, 0.0

    @property
    def resident_bytes(self) -> int:
        """Return the approximate resident bytes, at most half a second old; 0 if the system does not report them."""
        now = time.monotonic()
        if now >= self._due:
            self._bytes, self._due = _resident_bytes(), now + _SECONDS
        return self._bytes


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // _STEP * _STEP
    except (OSError, ValueError):
        return 0
