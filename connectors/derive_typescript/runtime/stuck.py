"""Which document a process is stuck at: the frame that is not answered is given to another, document by document."""

from __future__ import annotations

import time
from typing import Any

from connectors.derive_typescript.runtime.process import DenoProcess, Late
from derive.protocol.derive import ReadBatch

_SECONDS = 5.0
"""How long a document may take that the first process may have passed in no time."""


def find_stuck(
    process: DenoProcess, question: dict[str, Any], batch: ReadBatch, places: range, most_seconds: float
) -> int | None:
    """The first document that is not answered; None if all are, or if it cannot be found in reasonable time.

    A document that only hangs because of what the transaction did before it is not found.

    Args:
        process: a new one, which is ended.
        question: what opens its session.
        batch: holds the documents.
        places: where in the batch to look.
        most_seconds: what one document may take.
    """
    deadline = time.monotonic() + 4 * _SECONDS
    seconds = min(_SECONDS, most_seconds)
    try:
        process.ask(question, seconds)
        for place in places:
            if time.monotonic() > deadline:
                return None
            try:
                if not process.ask(frame_of(batch, slice(place, place + 1)), seconds).startswith(b"["):
                    return None
            except Late:
                return place
    except Late:
        return None
    finally:
        process.end()
    return None


def frame_of(batch: ReadBatch, part: slice) -> dict[str, Any]:
    """What is sent for a part of a batch; no `published` if it is as `clocks`, without delays."""
    clocks, published = batch.clocks[part], batch.published[part]
    frame: dict[str, Any] = {"transforms": batch.transforms[part], "clocks": clocks, "documents": batch.documents[part]}
    if part.stop >= len(batch.documents):
        frame["last"] = True
    return frame if published == clocks else {**frame, "published": published}
