"""How much memory a process has."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STEP = 4 << 20
"""How many bytes more or less are worth telling."""


_SECONDS = 0.5
"""How long what was asked is told again: to ask costs more than most of what is done in between."""


class Memory:
    """The memory of this process."""

    def __init__(self) -> None:
        self._bytes, self._due = 0, 0.0

    @property
    def resident_bytes(self) -> int:
        """About how much it has, or had a moment ago; 0 where the system does not tell."""
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
