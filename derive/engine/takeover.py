"""The executor of a run: begins in this process at once, and lets Spark take over where a backlog is worth its start.

Spark starts in the background. Until it is up the backlog is worked off here, in transactions that are short, so that
it takes over soon. Where a transaction is carried out changes nothing but its speed (law L1).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from derive.engine.executor import Executor, InProcessExecutor
from derive.engine.worth import Work, Worth
from derive.errors import FlowError, LostError, TaskError
from derive.materialize.stages import AnyPlan
from derive.shard.message import Message
from derive.shard.progress import Progress
from derive.time.extent import size_of
from derive.time.limits import Limits, Load

_POLL_SECONDS, _PATIENCE = 0.05, 5.0


class Startable(Executor, Protocol):
    """An executor that takes seconds to start, as Spark does."""

    def warm_up(self) -> None:
        """Start it, with its workers."""


@dataclass(frozen=True, slots=True)
class Here:
    """How much this process takes on at once.

    Attributes:
        seconds: about how long a transaction takes while Spark starts. Otherwise it takes as long as it needs: where
            much state is kept, many short ones take longer than one.
        first: how many documents the first transaction of a task covers, whose rate nobody knows.
        documents: how many a transaction of several shards covers at most, which is held in memory, …
        bytes: … and how many bytes, as stored.
        telling: so many documents tell the rate of their task.
        rate: documents per second of a task whose rate is not known: fast, so that Spark does not start for nothing.
    """

    seconds: float = 1.5
    first: int = 20_000
    documents: int = 250_000
    bytes: int = 32 << 20
    telling: int = 5_000
    rate: float = 200_000.0


@dataclass(slots=True)
class Measure:
    """What is measured of a transaction.

    Attributes:
        documents: how many it has processed.
    """

    documents: int = 0


class TakeoverExecutor:
    """Carries out transactions in this process, or on Spark where that is worth it.

    Args:
        spark: Spark.
        worth: when it is worth what it costs.
        tell: tells people that Spark starts, or why it does not.
        started: told how many seconds the start has taken.
        here: how much this process takes on at once.
    """

    def __init__(
        self,
        spark: Startable,
        worth: Worth,
        tell: Callable[[str], None],
        started: Callable[[float], None] = lambda _: None,
        here: Here | None = None,
    ) -> None:
        self._spark = spark
        self._worth = worth
        self._tell = tell
        self._started = started
        self._here = here or Here()
        self._rates = Rates(self._here)
        self._in_process = InProcessExecutor()
        self._turn = threading.Lock()
        self._loads: dict[str, Load] = {}
        self._elsewhere: set[str] = set()  # tasks whose next transaction is Spark's
        self._lost: set[str] = set()  # tasks that have lost a transaction here, for want of memory perhaps
        self._starter: threading.Thread | None = None
        self._failure: FlowError | None = None
        self._is_up = False
        self._is_over = False

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Choose where the next transaction of a task is carried out, and let Spark start if that is worth it."""
        task = load.task
        with self._turn:
            self._loads[task] = load
            works = {name: self._rates.work(waiting) for name, waiting in self._loads.items()}
            if self._starter is None and self._worth.is_start(works.values()):
                self._begin(f"{sum(work.documents for work in works.values()):,} documents wait: starting Spark")
            is_spark = task in self._lost or (self._is_up and self._worth.is_job(works[task], works.values()))
            (self._elsewhere.add if is_spark else self._elsewhere.discard)(task)
        if is_spark:
            self._require()
            return self._spark.prepare(load, limits)
        return self._limits_here(load, limits)

    def _limits_here(self, load: Load, limits: Limits) -> Limits:
        task, documents, size = load.task, limits.documents, limits.bytes
        if load.parts > 1:  # what one shard reads streams through memory
            documents, size = min(documents, self._here.documents), min(size, self._here.bytes)
        is_starting = self._starter is not None and not self._is_up and self._failure is None
        if is_starting or not self._rates.is_known(task):
            documents = min(documents, self._rates.documents(task))
        # In one slice, as nothing runs beside it.
        return replace(limits, documents=documents, bytes=size, small_documents=2 * documents, small_bytes=2 * size)

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Carry out a plan."""
        task = plan.spec.name
        if task not in self._elsewhere and self._fits(plan):
            with self._rates.measured(task) as measure:
                messages = self._in_process.execute(plan, progress)
                measure.documents = sum(message.documents_in for message in messages)
            errors = [FlowError.from_json(message.error) for message in messages if message.error]
            if any(isinstance(error, LostError) for error in errors):
                self._lost.add(task)
        else:
            self._require()
            messages = self._spark.execute(plan, progress)
        with self._turn:
            if load := self._loads.get(task):
                left = max(0, load.size.documents - sum(message.documents_in for message in messages))
                self._loads[task] = replace(load, size=replace(load.size, documents=left))
        return messages

    def _fits(self, plan: AnyPlan) -> bool:
        """Whether memory holds what of a transaction it must: a tick is never cut, and may have any number."""
        if plan.shape != "sharded":
            return True
        size = size_of(plan.reads)
        return size.documents <= 2 * self._here.documents and size.bytes <= 2 * self._here.bytes

    def _begin(self, why: str) -> None:
        """Start Spark in the background."""
        self._tell(why)
        self._starter = threading.Thread(target=self._start, name="spark", daemon=True)
        self._starter.start()

    def _start(self) -> None:
        begun = time.monotonic()
        try:
            self._spark.warm_up()
        except Exception as exc:  # whatever it is, this process goes on without
            self._failure = exc if isinstance(exc, FlowError) else TaskError(f"Spark does not start: {exc}")
            if not self._is_over:
                self._tell(f"{self._failure}; going on without Spark")
            return
        self._started(time.monotonic() - begun)
        self._is_up = True

    def _require(self) -> None:
        """Wait until Spark is up.

        Raises:
            FlowError: it does not start.
        """
        with self._turn:
            if self._starter is None:
                self._begin("starting Spark for more than this process holds in memory")
        assert self._starter is not None
        while self._starter.is_alive():
            self._starter.join(_POLL_SECONDS)
            if self._is_over:
                raise TaskError("the start of Spark was cancelled")
        if self._failure:
            raise self._failure

    def cancel(self) -> None:
        """Make the transactions fail that are at work in other threads."""
        self._is_over = True
        self._in_process.cancel()
        self._spark.cancel()

    def close(self) -> None:
        """Stop Spark, also while it starts."""
        self._is_over = True
        self._spark.close()
        if self._starter is not None:
            self._starter.join(_PATIENCE)
            self._spark.close()  # it may have come up all the same


class Rates:
    """How fast this process is, task by task.

    Args:
        here: how much it takes on at once.
    """

    def __init__(self, here: Here) -> None:
        self._here = here
        self._guessed: dict[str, float] = {}  # by the first transaction, which pays for what is done once
        self._known: dict[str, float] = {}  # by later ones
        self._at_work = 0
        self._turn = threading.Lock()

    def work(self, load: Load) -> Work:
        """What waits for a task, as work of this process."""
        documents = load.size.documents
        return Work(documents, documents / self._known.get(load.task, self._here.rate), load.parts)

    def is_known(self, task: str) -> bool:
        """Whether more than the first transaction of a task has told its rate."""
        return task in self._known

    def documents(self, task: str) -> int:
        """How many documents of a task take about as long as a transaction may."""
        rate = self._known.get(task) or self._guessed.get(task)
        return self._here.first if rate is None else max(self._here.telling, int(rate * self._here.seconds))

    @contextmanager
    def measured(self, task: str) -> Iterator[Measure]:
        """Measure a transaction, which says how many documents it had; few say nothing."""
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
        # Of the time that passes while several are at work, each has a share, and none less than it was busy.
        seconds = max(time.thread_time() - begun_busy, (time.monotonic() - begun) / abreast)
        if measure.documents >= self._here.telling:
            rates = self._known if task in self._guessed else self._guessed
            rates[task] = measure.documents / max(seconds, 1e-6)
