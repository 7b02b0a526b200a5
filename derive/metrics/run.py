"""Metrics of a run: what its observer counts, and what its tasks show when a monitoring system asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from derive.engine.run import Observer, Run
from derive.engine.transactor import Committed
from derive.errors import FlowError
from derive.instruments import Histogram, Sample
from derive.metrics import definitions as metrics
from derive.metrics.monitor import Readiness
from derive.plural import counted
from derive.storage.roles import Readable
from derive.time import BEGINNING

_SECOND = 1_000_000


class HasStarted(Protocol):
    """An executor that starts when it has work, such as Spark."""

    @property
    def was_started(self) -> bool:
        """Return whether it has started."""


@dataclass(slots=True)
class TaskTotals:
    """The totals of one task since the start of the run; only the thread of its cycle changes them.

    Attributes:
        documents_in: number of processed source documents.
        documents_out: number of published or stored documents.
        bytes_in: approximate number of bytes read.
        bytes_out: bytes of the written segments.
        seconds: durations of the transactions with documents.
        phases: seconds of each phase, by its name.
        errors: number of errors that are retried, and of other errors.
    """

    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    phases: dict[str, float] = field(default_factory=lambda: {"plan": 0.0, "execute": 0.0, "commit": 0.0})
    errors: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def count(self, done: Committed) -> None:
        """Count a committed transaction."""
        for name, seconds in done.phases._asdict().items():
            self.phases[name] += seconds
        if done.documents_in:
            self.documents_in += done.documents_in
            self.documents_out += done.documents_out
            self.bytes_in += done.bytes_in
            self.bytes_out += done.bytes_out
            self.seconds.observe(done.seconds)

    def samples(self, task: str) -> Iterator[Sample]:
        """Yield the samples of a task."""
        seconds = self.seconds.distribution()
        for metric, value in (
            (metrics.TASK_TRANSACTIONS, seconds.cumulative[float("inf")]),
            (metrics.TASK_DOCUMENTS_IN, self.documents_in),
            (metrics.TASK_DOCUMENTS_OUT, self.documents_out),
            (metrics.TASK_BYTES_IN, self.bytes_in),
            (metrics.TASK_BYTES_OUT, self.bytes_out),
        ):
            yield Sample(metric, value, (task,))
        for name, spent in self.phases.items():
            yield Sample(metrics.TASK_PHASE, spent, (task, name))
        yield Sample(metrics.TASK_TRANSACTION, seconds, (task,))
        for is_retried, count in self.errors.items():
            yield Sample(metrics.TASK_ERRORS, count, (task, str(is_retried).lower()))


class CountingObserver:
    """An observer that counts the events of a run, and passes them on.

    Args:
        observer: receives the events.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._totals: dict[str, TaskTotals] = {}

    def working(self, task: str, documents: int) -> None:
        """Pass the event on."""
        self._observer.working(task, documents)

    def committed(self, task: str, done: Committed) -> None:
        """Count a committed transaction."""
        self.of(task).count(done)
        self._observer.committed(task, done)

    def failed(self, task: str, error: FlowError) -> None:
        """Count an error."""
        self.of(task).errors[error.heals] += 1
        self._observer.failed(task, error)

    def of(self, task: str) -> TaskTotals:
        """Return the totals of a task."""
        return self._totals.setdefault(task, TaskTotals())


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The samples and the readiness of a run.

    Attributes:
        run: the run.
        store: its data folder.
        counted: the totals of its tasks.
        spark: Spark.
    """

    run: Run
    store: Readable
    counted: CountingObserver
    spark: HasStarted

    def samples(self) -> Iterator[Sample]:
        """Yield all samples, metric by metric for each task and collection."""
        now = self.store.timeline.present()
        for name in self.run.tasks:
            yield from self._task(name, now)
            yield from self.counted.of(name).samples(name)
        for name in self.run.task_graph.catalog.collections:
            known = self.store.collection(name)
            if known is not None:
                yield Sample(metrics.COLLECTION_DOCUMENTS, known.documents, (name,))
                yield Sample(metrics.COLLECTION_SEGMENTS, known.segments, (name,))
                yield Sample(metrics.COLLECTION_BYTES, known.bytes, (name,))
        yield Sample(metrics.SPARK_UP, int(self.spark.was_started))

    def _task(self, name: str, now: int) -> Iterator[Sample]:
        task = self.run.tasks.get(name)
        if task is None:  # an edit has removed it meanwhile
            return
        yield Sample(metrics.TASK_STOPPED, int(task.error is not None), (name,))
        yield Sample(metrics.TASK_SHARDS, task.shards, (name,))
        if task.upper > BEGINNING:
            yield Sample(metrics.TASK_LAG, max(0, now - task.upper) / _SECOND, (name,))
            yield Sample(metrics.TASK_UPPER, task.upper / _SECOND, (name,))
        try:
            waiting = task.estimate_waiting(now)
        except FlowError:  # the source was replaced, which stops the task
            return
        for reason, count in waiting._asdict().items():
            yield Sample(metrics.TASK_WAITING, count, (name, reason))

    def readiness(self) -> Readiness:
        """Return whether the run can work: it has no tasks, or a task that no error has stopped."""
        tasks = self.run.tasks
        stopped = sorted(name for name, task in tasks.items() if task.error is not None)
        if not stopped:
            return Readiness(True, f"ready: {len(tasks)} task{'' if len(tasks) == 1 else 's'}")
        return Readiness(
            len(stopped) < len(tasks),
            f"{len(stopped)} of {counted(len(tasks), 'task')} stopped: {', '.join(stopped)}",
        )
