"""Frames: the parts of a batch that are sent to a process, each as a line of JSON."""

from __future__ import annotations

from typing import Any

from connectors.derive_typescript.runtime.process import DenoProcess
from derive.document.exact import dump_exact
from derive.protocol.derive import ReadBatch

FRAME_DOCUMENTS = 250
"""Number of documents that Deno processes before its garbage collector runs; each takes 50 % longer with 1,000."""

_FIRST_FRAME = 100
_FRAME_BYTES = 4_000_000


def send_batch(process: DenoProcess, batch: ReadBatch, ends: list[int], as_columns: bool) -> None:
    """Send a batch in frames, bounded in documents and, by the size of the last frame, in bytes.

    Args:
        process: the receiving process.
        batch: the batch.
        ends: list that gets, before each frame is sent, the index behind its last document.
        as_columns: whether to ask for columns if documents have the same properties.
    """
    begin = 0
    count = _FIRST_FRAME
    while begin < len(batch.documents):
        frame = frame_of(batch, slice(begin, begin + count), as_columns=as_columns)
        ends.append(min(begin + count, len(batch.documents)))
        try:
            process.send(frame)
        except (OSError, ValueError):
            return  # the process is gone or closed; the reader of its answers reports it
        begin += count
        count = max(1, min(FRAME_DOCUMENTS, count * _FRAME_BYTES // len(frame)))


def frame_of(batch: ReadBatch, part: slice, *, as_columns: bool) -> bytes:
    """Return the frame of a part of a batch; `published` is omitted if it equals `clocks`."""
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
