"""How much memory a process has."""

from __future__ import annotations

import os
from pathlib import Path

_STEP = 4 << 20
"""How many bytes more or less are worth telling."""


def resident_bytes() -> int:
    """About how much memory this process has; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // _STEP * _STEP
    except (OSError, ValueError):
        return 0
