"""Reads files of segments, and reports defects with the file's name, its collection and a remedy.

Pages have checksums, so damage by the disk is detected.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from derive.document.pointer import JSON
from derive.errors import SegmentError, SegmentMissingError
from derive.plural import counted
from derive.schema.validator import fingerprint
from derive.storage.location import Location, blobs_of
from derive.storage.segments.rows import CLOCK, DIFF, StoredRows
from derive.time.positions import Segment

VALIDATED = b"flow.validated"
"""Key of a file's metadata: fingerprint of the schema against which all its documents were validated."""

_AHEAD, _AHEAD_BYTES = 8, 8 << 20
"""Number and size of segments that are read ahead; `ObjectBlobs` keeps more bytes in memory, and so all of them."""


@contextmanager
def open_segment(
    location: Location, segment: Segment, metadata: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """Open the file of a segment for the block; the caller reads from it inside `readable`.

    Args:
        location: location of the segments.
        segment: the segment.
        metadata: metadata of the file, if the file was open before; reading it takes most of the time.

    Raises:
        SegmentError: the file is missing, damaged, unreadable, or not the committed file.
    """
    with ExitStack() as stack:
        with readable(segment):
            blob = stack.enter_context(blobs_of(location).open(segment.path, segment.bytes))
            is_far = isinstance(blob, pa.PythonFile)  # then neighbouring columns are read in one request
            file = stack.enter_context(
                pq.ParquetFile(blob, metadata=metadata, page_checksum_verification=True, pre_buffer=is_far)
            )
        schema, count = file.schema_arrow, len(StoredRows.SCHEMA)  # typed columns may follow the fixed columns
        is_ours = (schema.names[:count], schema.types[:count]) == (StoredRows.SCHEMA.names, StoredRows.SCHEMA.types)
        if not is_ours or file.metadata.num_rows != segment.documents:
            raise _damaged(segment, f"it does not hold what was written: {counted(segment.documents, 'document')}")
        yield file


@contextmanager
def readable(segment: Segment) -> Iterator[None]:
    """Translate read errors of a segment's file to `SegmentError`."""
    try:
        yield
    except FileNotFoundError as exc:
        raise SegmentMissingError(
            f"a file of collection '{segment.collection}' is missing: {segment.path}",
            path=segment.path,
            hint=_way_out(segment),
        ) from exc
    except OSError as exc:
        if exc.errno is None:  # Arrow reports a defect of the file's content
            raise _damaged(segment, str(exc)) from exc
        raise SegmentError(
            f"a file of collection '{segment.collection}' cannot be read: {segment.path}: {os.strerror(exc.errno)}",
            hint="make the file readable for this user, and run the command again",
        ) from exc
    except pa.ArrowException as exc:
        raise _damaged(segment, str(exc)) from exc


class ReadAhead:
    """Reads the next segments of an object store into memory, while the caller works on earlier segments.

    Args:
        location: location of the segments.
        segments: segments in the order in which the caller opens them.
    """

    def __init__(self, location: Location, segments: Iterable[Segment]) -> None:
        self._blobs = blobs_of(location)
        self._later = deque({segment.path: segment for segment in segments if segment.bytes <= _AHEAD_BYTES}.values())
        self._begun: dict[str, tuple[Future[None], int]] = {}
        self._threads = ThreadPoolExecutor(_AHEAD, "read-ahead")

    def wait_for(self, segment: Segment) -> None:
        """Wait until a segment was read, and begin to read the segments after it; its reader reports errors."""
        self._begin()
        begun, _ = self._begun.pop(segment.path, (None, 0))
        if begun is not None:
            begun.exception()
            self._begin()

    def _begin(self) -> None:
        size = sum(size for _, size in self._begun.values())
        while self._later and len(self._begun) < _AHEAD and size + self._later[0].bytes <= _AHEAD_BYTES:
            segment = self._later.popleft()
            self._begun[segment.path] = self._threads.submit(self._read, segment), segment.bytes
            size += segment.bytes

    def _read(self, segment: Segment) -> None:
        self._blobs.open(segment.path, segment.bytes).close()

    def close(self) -> None:
        """Begin no more reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def check_segments(location: Location, segments: Iterable[Segment]) -> None:
    """Read segments completely, to detect unreadable segments.

    Raises:
        SegmentError: the first unreadable segment.
    """
    for segment in segments:
        with open_segment(location, segment) as file, readable(segment):
            for group in range(file.metadata.num_row_groups):
                file.read_row_group(group)


def validated_against(file: pq.ParquetFile) -> str | None:
    """Return the fingerprint of the schema against which all documents of a file were validated; None for none."""
    recorded: bytes | None = (file.metadata.metadata or {}).get(VALIDATED)
    return None if recorded is None else recorded.decode()


def only_adds(location: Location, segment: Segment) -> bool:
    """Return true if statistics prove that a segment has no retractions.

    Raises:
        SegmentError: the file cannot be read.
    """
    index = StoredRows.SCHEMA.get_field_index(DIFF)
    with open_segment(location, segment) as file:
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        ranges = [group.column(index).statistics for group in groups]
    return all(known is not None and known.has_min_max and known.min > 0 for known in ranges)


def are_valid(location: Location, segments: Iterable[Segment], schema: JSON) -> bool:
    """Return true if all documents of segments were validated against this schema when they were written.

    Raises:
        SegmentError: a file cannot be read.
    """
    desired = fingerprint(schema)
    for segment in segments:
        with open_segment(location, segment) as file:
            if validated_against(file) != desired:
                return False
    return True


@lru_cache(maxsize=32)
def read_clocks(location: Location, segment: Segment) -> np.ndarray:
    """Return the timestamps of a segment, ascending, without reading other columns.

    Raises:
        SegmentError: the file cannot be read.
    """
    with open_segment(location, segment) as file, readable(segment):
        clocks: np.ndarray = file.read(columns=[CLOCK]).column(CLOCK).to_numpy()
    return clocks


def _damaged(segment: Segment, what: str) -> SegmentError:
    reason = " ".join(what.split())
    return SegmentError(
        f"a file of collection '{segment.collection}' is damaged: {segment.path}: {reason}", hint=_way_out(segment)
    )


def _way_out(segment: Segment) -> str:
    return (
        "restore it from a backup; what was derived can be derived again: flowctl reset --cascade --task"
        f" {segment.collection}"
    )
