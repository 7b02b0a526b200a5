"""Reading files of segments: what is wrong with one is told with its name, its collection and what to do.

Pages carry checksums, so that what a disk has changed is found rather than taken for documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from derive.errors import SegmentError, SegmentMissingError
from derive.storage.blobs import blobs_of
from derive.storage.segments.rows import CLOCK, StoredRows
from derive.time.segment import Segment


@contextmanager
def open_segment(root: Path, segment: Segment) -> Iterator[pq.ParquetFile]:
    """Open the file of a segment for the block; reading from it is to be done inside `readable`.

    Raises:
        SegmentError: it is missing, damaged, unreadable, or another file than the one that was committed.
    """
    with ExitStack() as stack:
        with readable(segment):
            blob = stack.enter_context(blobs_of(root).open(segment.path))
            file = stack.enter_context(pq.ParquetFile(blob, page_checksum_verification=True))
        schema, count = file.schema_arrow, len(StoredRows.SCHEMA)  # there may be typed columns behind those of all
        is_ours = (schema.names[:count], schema.types[:count]) == (StoredRows.SCHEMA.names, StoredRows.SCHEMA.types)
        if not is_ours or file.metadata.num_rows != segment.documents:
            raise _damaged(segment, f"it does not hold the {segment.documents:,} documents that were written to it")
        yield file


@contextmanager
def readable(segment: Segment) -> Iterator[None]:
    """Turn the errors of reading a segment's file into ours."""
    try:
        yield
    except FileNotFoundError as exc:
        raise SegmentMissingError(
            f"a file of collection '{segment.collection}' is missing: {segment.path}", hint=_way_out(segment)
        ) from exc
    except OSError as exc:
        if exc.errno is None:  # what Arrow says of a file's content
            raise _damaged(segment, str(exc)) from exc
        raise SegmentError(
            f"a file of collection '{segment.collection}' cannot be read: {segment.path}: {os.strerror(exc.errno)}",
            hint="make it readable for this user, and run the command again",
        ) from exc
    except pa.ArrowException as exc:
        raise _damaged(segment, str(exc)) from exc


def check_segments(root: Path, segments: Iterable[Segment]) -> None:
    """Read segments whole, to find out which of them cannot be read.

    Raises:
        SegmentError: of the first of them.
    """
    for segment in segments:
        with open_segment(root, segment) as file, readable(segment):
            for group in range(file.metadata.num_row_groups):
                file.read_row_group(group)


@lru_cache(maxsize=32)
def read_clocks(root: Path, segment: Segment) -> np.ndarray:
    """The clocks of a segment, ascending, and nothing else of its documents.

    Raises:
        SegmentError: it cannot be read.
    """
    with open_segment(root, segment) as file, readable(segment):
        clocks: np.ndarray = file.read(columns=[CLOCK]).column(CLOCK).to_numpy()
    return clocks


def _damaged(segment: Segment, what: str) -> SegmentError:
    told = " ".join(what.split())
    return SegmentError(
        f"a file of collection '{segment.collection}' is damaged: {segment.path}: {told}", hint=_way_out(segment)
    )


def _way_out(segment: Segment) -> str:
    return (
        "restore it from a backup; what was derived can be derived again: flowctl reset --cascade --task"
        f" {segment.collection}"
    )
