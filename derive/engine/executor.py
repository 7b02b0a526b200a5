"""Executors: execute plans. The in-process executor is the oracle for Spark (law L1), and runs catalog tests.

The hybrid executor of a run starts in this process at once, and moves to Spark if that pays off. Work that takes this
process `w` seconds takes Spark `w / g`. The gain `g` is the number of cores with work, less the cost of moving
documents to workers. Spark first needs `c` seconds: for its start, or for the job of a transaction. While Spark starts,
this process works at a fraction `k` of its speed. So Spark is faster if `c + (w - k * c) / g < w`, that is if
`w > c * (g - k) / (g - 1)`.

Spark starts in the background. During the start, this process executes the backlog in short transactions, so that Spark
can soon execute the next transaction. The place of a transaction changes only its speed (law L1).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from derive.errors import FlowError, LostError, TaskError, UnseenFolderError, WorkerError
from derive.materialize.stages import AnyPlan, run_locally
from derive.plural import counted
from derive.shard.progress import Message, Progress, listening
from derive.shard.session import interrupt
from derive.time.extent import Limits, Load, size_of

if TYPE_CHECKING:
    from derive.spark.executor import SparkExecutor

_EVERY_SECONDS = 0.05


class Executor(Protocol):
    """Executes transactions up to, but not including, their commit."""

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Prepare the next transaction of a task.

        Args:
            load: the task's pending work.
            limits: limits for cutting the work.

        Returns:
            Limits of the place that will execute the work; none is above the given limit.
        """

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan; return the messages of its workers, including errors.

        Raises:
            LostError: workers were lost and could not be replaced.
        """

    def cancel(self) -> None:
        """Make transactions in other threads fail."""

    def close(self) -> None:
        """Release all resources."""


class InProcessExecutor:
    """Executes plans in this process, one shard after the other, with documents in memory."""

    _attempts = itertools.count()
    _is_cancelled = False
    _plans: tuple[AnyPlan, ...] = ()  # running plans
    _turn = threading.Lock()

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Return `limits` unchanged."""
        return limits

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            if self._is_cancelled:
                raise TaskError(f"the transaction of '{plan.spec.name}' was cancelled")
            done += more
            progress(done)

        with listening(plan, count):
            with self._turn:
                self._plans = (*self._plans, plan)
            try:
                return list(run_locally(plan, self._attempts))
            finally:
                with self._turn:
                    self._plans = tuple(other for other in self._plans if other is not plan)

    def cancel(self) -> None:
        """Make running SQL or document batches fail; the executor cannot be used afterwards."""
        self._is_cancelled = True
        threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupt running plans repeatedly, because an interrupt between two statements has no effect."""
        while plans := self._plans:
            for plan in plans:
                interrupt(plan)
            time.sleep(_EVERY_SECONDS)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


START_SECONDS = 10.5
"""Default seconds of Spark's start, with its workers: measured on two cores."""

JOB_SECONDS = 0.2
"""Fixed cost of a Spark job, in seconds."""

EFFICIENCY = 0.85
"""Work of a Spark core relative to this process."""

STARTING_TAKES = 0.8
"""Number of cores that Spark uses during its start, and that this process lacks."""


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
        """Return whether the pending work is large enough to start Spark."""
        if self.local_documents is not None:
            return any(work.documents > self.local_documents for work in waiting)
        kept = max(0.0, 1 - STARTING_TAKES / self.cores)
        return self._pays(sum(work.seconds for work in waiting), waiting, self.start_seconds, kept)

    def is_job(self, work: Work, waiting: Collection[Work]) -> bool:
        """Return whether a job on a running Spark is faster for a task; pending work of other tasks counts as parts."""
        if self.local_documents is not None:
            return work.documents > self.local_documents
        return self._pays(work.seconds, waiting, JOB_SECONDS, 0.0)

    def _pays(self, seconds: float, waiting: Collection[Work], cost: float, kept: float) -> bool:
        gain = EFFICIENCY * min(self.cores, sum(work.parts for work in waiting if work.documents))
        return gain > 1 and seconds > cost * (gain - kept) / (gain - 1)


_logger = logging.getLogger(__name__)

_POLL_SECONDS, _PATIENCE = 0.05, 5.0


class Startable(Executor, Protocol):
    """An executor that takes seconds to start, such as Spark."""

    def warm_up(self) -> None:
        """Start the executor and its workers."""


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """Limits of a transaction in this process.

    Attributes:
        seconds: approximate duration of a transaction while Spark starts. At other times the duration is unlimited:
            with much state, many short transactions take longer than one.
        first: number of documents in the first transaction of a task, whose rate is unknown.
        documents: maximum number of documents in a transaction of several shards, which is held in memory.
        bytes: maximum stored bytes in such a transaction.
        telling: number of documents that are enough to measure the rate of a task.
        rate: assumed documents per second of an unmeasured task; high, so that Spark does not start for small work.
    """

    seconds: float = 1.5
    first: int = 20_000
    documents: int = 250_000
    bytes: int = 32 << 20
    telling: int = 5_000
    rate: float = 200_000.0


@dataclass(slots=True)
class Measure:
    """The measurement of a transaction.

    Attributes:
        documents: number of processed documents.
    """

    documents: int = 0


class HybridExecutor:
    """Executes transactions in this process, or on Spark if that pays off.

    Args:
        spark: Spark.
        cost_model: cost model of Spark.
        report: prints that Spark starts, or the reason why Spark does not start.
        started: called with the seconds of Spark's start.
        limits: limits of transactions in this process.
    """

    def __init__(
        self,
        spark: Startable,
        cost_model: CostModel,
        report: Callable[[str], None],
        started: Callable[[float], None] = lambda _: None,
        limits: LocalLimits | None = None,
    ) -> None:
        self._spark = spark
        self._cost_model = cost_model
        self._report = report
        self._started = started
        self._limits = limits or LocalLimits()
        self._rates = Rates(self._limits)
        self._in_process = InProcessExecutor()
        self._turn = threading.Lock()
        self._loads: dict[str, Load] = {}
        self._elsewhere: set[str] = set()  # tasks whose next transaction runs on Spark
        self._lost: set[str] = set()  # tasks of which this process lost a transaction, perhaps for lack of memory
        self._local: set[str] = set()  # tasks that only this process can execute
        self._starter: threading.Thread | None = None
        self._failure: FlowError | None = None
        self._is_up = False
        self._is_over = False

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Choose the place of a task's next transaction, and start Spark if that pays off."""
        task = load.task
        with self._turn:
            self._loads[task] = load
            if load.is_bound:
                self._local.add(task)
            works = {name: self._rates.work(waiting) for name, waiting in self._loads.items()}
            movable = [work for name, work in works.items() if name not in self._local]
            if self._starter is None and self._cost_model.is_start(movable):
                waiting = sum(work.documents for work in movable)
                self._begin(f"{counted(waiting, 'waiting document')}: starting Spark")
            is_spark = task in self._lost or (self._is_up and self._cost_model.is_job(works[task], works.values()))
            is_spark &= task not in self._local
            (self._elsewhere.add if is_spark else self._elsewhere.discard)(task)
            work, place = works[task], "on Spark" if is_spark else "in this process"
            _logger.debug("%s: %d documents, about %.2f s of work; %s", task, work.documents, work.seconds, place)
        if isinstance(self._failure, WorkerError):
            raise self._failure
        if is_spark:
            self._require()
            return self._spark.prepare(load, limits)
        return self._local_limits(load, limits)

    def _local_limits(self, load: Load, limits: Limits) -> Limits:
        task, documents, size = load.task, limits.documents, limits.bytes
        if load.parts > 1:  # a single shard streams its documents
            documents, size = min(documents, self._limits.documents), min(size, self._limits.bytes)
        is_starting = self._starter is not None and not self._is_up and self._failure is None
        if is_starting or not self._rates.is_known(task):
            documents = min(documents, self._rates.documents(task))
        small = {"small_documents": 2 * documents, "small_bytes": 2 * size, "small_segments": 2 * limits.segments}
        return replace(limits, documents=documents, bytes=size, **small)  # one slice: nothing runs in parallel

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan."""
        task = plan.spec.name
        if task in self._local or (task not in self._elsewhere and self._fits(plan)):
            with self._rates.measured(task) as measure:
                messages = self._in_process.execute(plan, progress)
                measure.documents = sum(message.documents_in for message in messages)
            errors = [FlowError.from_json(message.error) for message in messages if message.error]
            if any(isinstance(error, LostError) for error in errors):
                self._lost.add(task)
        else:
            self._require()
            messages = self._on_spark(plan, progress)
        with self._turn:
            if load := self._loads.get(task):
                left = max(0, load.size.documents - sum(message.documents_in for message in messages))
                self._loads[task] = replace(load, size=replace(load.size, documents=left))
        return messages

    def _on_spark(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan on Spark.

        Raises:
            LostError: workers do not see the data folder, but need it for this plan only for its shards: this process
                executes the next transaction, which is cut for its memory.
        """
        try:
            return self._spark.execute(plan, progress)
        except UnseenFolderError as error:
            if isinstance(plan.location, Path):
                raise
            self._local.add(plan.spec.name)
            raise LostError(f"{error.message}; '{plan.spec.name}' continues in the process of the driver") from error

    def _fits(self, plan: AnyPlan) -> bool:
        """Return whether a transaction fits into memory; a transaction has at least one whole tick."""
        if plan.shape != "sharded":
            return True
        size = size_of(plan.reads)
        return size.documents <= 2 * self._limits.documents and size.bytes <= 2 * self._limits.bytes

    def _begin(self, why: str) -> None:
        """Start Spark in the background."""
        self._report(why)
        self._starter = threading.Thread(target=self._start, name="spark", daemon=True)
        self._starter.start()

    def _start(self) -> None:
        begun = time.monotonic()
        try:
            self._spark.warm_up()
        except Exception as exc:  # this process continues without Spark after any error
            self._failure = exc if isinstance(exc, FlowError) else TaskError(f"Spark does not start: {exc}")
            if not self._is_over and not isinstance(self._failure, WorkerError):
                self._report(f"{self._failure}; continuing without Spark")
            return
        self._started(time.monotonic() - begun)
        self._is_up = True

    def _require(self) -> None:
        """Wait until Spark is up.

        Raises:
            FlowError: Spark does not start.
        """
        with self._turn:
            if self._starter is None:
                self._begin("starting Spark: the transaction exceeds the memory limit of this process")
        assert self._starter is not None
        while self._starter.is_alive():
            self._starter.join(_POLL_SECONDS)
            if self._is_over:
                raise TaskError("the start of Spark was cancelled")
        if self._failure:
            raise self._failure

    def cancel(self) -> None:
        """Make running transactions in other threads fail."""
        self._is_over = True
        self._in_process.cancel()
        self._spark.cancel()

    def close(self) -> None:
        """Stop Spark, also while it starts."""
        self._is_over = True
        self._spark.close()
        if self._starter is not None:
            self._starter.join(_PATIENCE)
            self._spark.close()  # Spark may have started in the meantime


class Rates:
    """Rates at which this process executes tasks, in documents per second.

    Args:
        limits: limits of transactions in this process.
    """

    def __init__(self, limits: LocalLimits) -> None:
        self._limits = limits
        self._guessed: dict[str, float] = {}  # from the first transaction, which includes one-time costs
        self._known: dict[str, float] = {}  # from later transactions
        self._at_work = 0
        self._turn = threading.Lock()

    def work(self, load: Load) -> Work:
        """Return the pending work of a task, with the seconds that this process would need."""
        documents = load.size.documents
        return Work(documents, documents / self._known.get(load.task, self._limits.rate), load.parts)

    def is_known(self, task: str) -> bool:
        """Return whether a transaction after the first one has measured the task's rate."""
        return task in self._known

    def documents(self, task: str) -> int:
        """Return the number of a task's documents that fill the permitted duration of a transaction."""
        rate = self._known.get(task) or self._guessed.get(task)
        return self._limits.first if rate is None else max(self._limits.telling, int(rate * self._limits.seconds))

    @contextmanager
    def measured(self, task: str) -> Iterator[Measure]:
        """Measure a transaction; the block sets the number of documents, and small transactions are ignored."""
        with self._turn:
            self._at_work += 1
            abreast = self._at_work
        measure = Measure()
        begun, begun_busy = time.monotonic(), time.thread_time()
        try:
            yield measure
        finally:
            with self._turn:
                self._at_work -= 1
        # Concurrent transactions share the elapsed time equally, but each counts at least its own processor
        # time.
        seconds = max(time.thread_time() - begun_busy, (time.monotonic() - begun) / abreast)
        if measure.documents >= self._limits.telling:
            rates = self._known if task in self._guessed else self._guessed
            rates[task] = measure.documents / max(seconds, 1e-6)


_CLUSTER_CORES = 1024


def open_executor(
    master: str | None,
    log_file: Path,
    settings: Mapping[str, str],
    local_documents: int | None,
    report: Callable[[str], None],
) -> tuple[SparkExecutor, Executor]:
    """Return Spark, and the executor of transactions. Spark starts when it has work.

    Args:
        master: URL of the Spark master; None for this machine.
        log_file: the file of Spark's log.
        settings: settings of Spark, by name.
        local_documents: number of documents up to which this process does the work; 0 for Spark alone, None for a
            choice by cost.
        report: prints that Spark starts, or the reason why Spark does not start.
    """
    from derive.spark.executor import SparkExecutor
    from derive.spark.session import remember_start, start_seconds

    spark = SparkExecutor(master, log_file, dict(settings))
    if local_documents == 0:
        return spark, spark
    # The number of a cluster's cores is unknown: then only the number of shards limits the useful cores.
    cores = os.cpu_count() or 1 if master is None or master.startswith("local") else _CLUSTER_CORES
    cost_model = CostModel(cores, start_seconds(master), local_documents)
    return spark, HybridExecutor(spark, cost_model, report, partial(remember_start, master))
