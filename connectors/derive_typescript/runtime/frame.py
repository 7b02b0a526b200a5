"""Frames: the parts of a batch that a process is sent, each as a line of JSON."""

from __future__ import annotations

from typing import Any

from connectors.derive_typescript.runtime.process import DenoProcess
from derive.document.exact import dump_exact
from derive.protocol.derive import ReadBatch

FRAME_DOCUMENTS = 250
"""Few enough for Deno to be done with them before its collector looks at them: 1,000 take half as long again each."""

_FIRST_FRAME = 100
_FRAME_BYTES = 4_000_000


def send_batch(process: DenoProcess, batch: ReadBatch, ends: list[int], as_columns: bool) -> None:
    """Send a batch in frames, bounded in documents and, as far as the last frame tells, in bytes.

    Args:
        process: takes them.
        batch: what to send.
        ends: takes, before each frame is sent, the index behind its last document.
        as_columns: ask for columns, where documents have the same properties.
    """
    begin = 0
    count = _FIRST_FRAME
    while begin < len(batch.documents):
        frame = frame_of(batch, slice(begin, begin + count), as_columns=as_columns)
        ends.append(min(begin + count, len(batch.documents)))
        try:
            process.send(frame)
        except (OSError, ValueError):
            return  # the process is gone or closed, which the reader of its answers reports
        begin += count
        count = max(1, min(FRAME_DOCUMENTS, count * _FRAME_BYTES // len(frame)))


def frame_of(batch: ReadBatch, part: slice, *, as_columns: bool) -> bytes:
    """What is sent for a part of a batch; no `published` if it is as `clocks`, without delays."""
    clocks, published = batch.clocks[part], batch.published[part]
    frame: dict[str, Any] = {"transforms": batch.transforms[part], "clocks": clocks}
    if as_columns:
        frame["columns"] = True
    if part.stop >= len(batch.documents):
        frame["last"] = True
    if published != clocks:
        frame["published"] = published
    documents = batch.written(part) if batch.written else dump_exact(batch.documents[part])
    return b'%b,"documents":%b}' % (dump_exact(frame)[:-1], documents)
