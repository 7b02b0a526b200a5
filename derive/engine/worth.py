"""Worth: when Spark is worth what it costs, from what waits, how fast this process is, and how long Spark takes.

Work that this process would do in `w` seconds takes Spark `w / g`, where `g` is its gain: how many cores it finds work
for, less what it costs to move documents to its workers. Before that come `c` seconds: its start, or for one more
transaction a job. While it starts this process works on at a part `k` of its speed. So Spark is done earlier if
`c + (w - k * c) / g < w`, which is to say `w > c * (g - k) / (g - 1)`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

START_SECONDS = 10.5
"""How long Spark takes to start, with its workers, where nobody has seen it start: measured on two cores."""

JOB_SECONDS = 0.2
"""What a job costs, whatever is in it."""

EFFICIENCY = 0.85
"""What a core of Spark's does for each that this process does."""

STARTING_TAKES = 0.8
"""How many cores the start of Spark takes from this process."""


@dataclass(frozen=True, slots=True)
class Work:
    """What waits for one task.

    Attributes:
        documents: about how many.
        seconds: about how long this process would take over them.
        parts: into how many parts that can be worked on side by side it is cut.
    """

    documents: int
    seconds: float
    parts: int


@dataclass(frozen=True, slots=True)
class Worth:
    """When Spark is worth what it costs.

    Attributes:
        cores: that Spark has.
        start_seconds: how long it takes to start.
        local_documents: so many documents are worked on in this process, and more on Spark; None for what measures say.
    """

    cores: int
    start_seconds: float = START_SECONDS
    local_documents: int | None = None

    def is_start(self, waiting: Collection[Work]) -> bool:
        """Whether Spark is worth its start, by all that waits."""
        if self.local_documents is not None:
            return any(work.documents > self.local_documents for work in waiting)
        kept = max(0.0, 1 - STARTING_TAKES / self.cores)
        return self._pays(sum(work.seconds for work in waiting), waiting, self.start_seconds, kept)

    def is_job(self, work: Work, waiting: Collection[Work]) -> bool:
        """Whether Spark, which is there, is worth a job for a task; what waits for others may keep it busy as well."""
        if self.local_documents is not None:
            return work.documents > self.local_documents
        return self._pays(work.seconds, waiting, JOB_SECONDS, 0.0)

    def _pays(self, seconds: float, waiting: Collection[Work], cost: float, kept: float) -> bool:
        gain = EFFICIENCY * min(self.cores, sum(work.parts for work in waiting if work.documents))
        return gain > 1 and seconds > cost * (gain - kept) / (gain - 1)
