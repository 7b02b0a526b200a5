"""Measurement of lambdas: documents, publications and time of each transform.

The clock is read for each batch, never for each document. A batch may have documents of several transforms, because
documents are processed in the order of time; then its time is divided among them by their numbers of documents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from derive.shard.published import Published
from derive.storage.metadata.descriptions import Work

_FEW = 32
"""Number of documents up to which a loop counts faster than NumPy."""


class Meter:
    """Measures the lambdas of one part of a transaction.

    Args:
        transforms: number of transforms.
    """

    def __init__(self, transforms: int) -> None:
        self._documents = [0] * transforms
        self._published = [0] * transforms
        self._nanos = [0] * transforms

    def measured(self, transforms: Sequence[int] | np.ndarray, parts: Iterator[Published]) -> Iterator[Published]:
        """Yield the publications of a batch, and measure the work between them.

        Args:
            transforms: index of the transform of each document; ends of ticks, which have a higher index, do not count.
            parts: publications of the batch.
        """
        counts = _counted(transforms, len(self._documents))
        only = counts.index(len(transforms)) if len(transforms) in counts else None
        nanos, begun = 0, time.perf_counter_ns()
        for part in parts:
            nanos += time.perf_counter_ns() - begun
            if only is not None:
                self._published[only] += len(part.causes)
            else:
                causing = np.take(transforms, part.causes)
                for index, count in enumerate(_counted(causing, len(counts))):
                    self._published[index] += count
            yield part
            begun = time.perf_counter_ns()
        nanos += time.perf_counter_ns() - begun
        total = sum(counts)
        for index, count in enumerate(counts):
            if count:
                self._documents[index] += count
                self._nanos[index] += nanos * count // total

    def work(self) -> tuple[Work, ...]:
        """Return the work of each transform so far."""
        columns = zip(self._documents, self._published, self._nanos, strict=True)
        return tuple(Work(documents, published, nanos // 1000) for documents, published, nanos in columns)


def _counted(transforms: Sequence[int] | np.ndarray, most: int) -> list[int]:
    """Return how often each index below `most` occurs."""
    if isinstance(transforms, np.ndarray) or len(transforms) > _FEW:
        counts: list[int] = np.bincount(transforms, minlength=most)[:most].tolist()
        return counts
    counts = [0] * most
    for transform in transforms:
        if transform < most:
            counts[transform] += 1
    return counts
