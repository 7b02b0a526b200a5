"""The cost model of Spark: whether Spark pays off, from the pending work, this process's rates, and Spark's start time.

Work that takes this process `w` seconds takes Spark `w / g`, where the gain `g` is the number of cores with work, less
the cost of moving documents to workers. Before that come `c` seconds: Spark's start, or a job for one more transaction.
While Spark starts, this process works at a fraction `k` of its speed. So Spark is faster if `c + (w - k * c) / g < w`,
that is if `w > c * (g - k) / (g - 1)`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

START_SECONDS = 10.5
"""Default seconds of Spark's start, with its workers: measured on two cores."""

JOB_SECONDS = 0.2
"""Fixed cost of a Spark job, in seconds."""

EFFICIENCY = 0.85
"""Work of a Spark core relative to this process."""

STARTING_TAKES = 0.8
"""Number of cores that Spark's start takes from this process."""


@dataclass(frozen=True, slots=True)
class Work:
    """Pending work of one task.

    Attributes:
        documents: approximate number of documents.
        seconds: approximate seconds in this process.
        parts: number of parts that can run in parallel.
    """

    documents: int
    seconds: float
    parts: int


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost model of Spark.

    Attributes:
        cores: number of Spark's cores.
        start_seconds: seconds of Spark's start.
        local_documents: maximum number of documents to process in this process; None to use the model.
    """

    cores: int
    start_seconds: float = START_SECONDS
    local_documents: int | None = None

    def is_start(self, waiting: Collection[Work]) -> bool:
        """Return whether all pending work is worth Spark's start."""
        if self.local_documents is not None:
            return any(work.documents > self.local_documents for work in waiting)
        kept = max(0.0, 1 - STARTING_TAKES / self.cores)
        return self._pays(sum(work.seconds for work in waiting), waiting, self.start_seconds, kept)

    def is_job(self, work: Work, waiting: Collection[Work]) -> bool:
        """Return whether a job on running Spark pays off for a task; other pending work counts as parallel parts."""
        if self.local_documents is not None:
            return work.documents > self.local_documents
        return self._pays(work.seconds, waiting, JOB_SECONDS, 0.0)

    def _pays(self, seconds: float, waiting: Collection[Work], cost: float, kept: float) -> bool:
        gain = EFFICIENCY * min(self.cores, sum(work.parts for work in waiting if work.documents))
        return gain > 1 and seconds > cost * (gain - kept) / (gain - 1)
