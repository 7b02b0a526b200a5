"""The collector of garbage, in a process that works on documents."""

from __future__ import annotations

import gc


def spare_documents() -> None:
    """Have the collector look less often: documents are trees by the ten thousand, and hold no cycles for it."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
