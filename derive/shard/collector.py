"""Settings of the garbage collector in a process that handles documents."""

from __future__ import annotations

import gc


def spare_documents() -> None:
    """Make the collector run less often: documents are large trees without cycles."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
