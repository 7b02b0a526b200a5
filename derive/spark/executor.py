"""The Spark executor: shuffles, sorts, scales out and retries.

Only descriptions and messages pass through the driver. A transaction runs in stages, and Spark shuffles packets of
documents from one stage to the owners in the next. A shuffle does not preserve order, so its result is always sorted
again (law L4).

A collection is read reduced on Spark, too: rows are shuffled by key, and folded as in one process.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import pyarrow as pa

from derive.contents.reduced import PER_KEY, contents_per_key
from derive.errors import (
    DiskFullError,
    EngineLostError,
    FlowError,
    InternalError,
    LostError,
    OutdatedError,
    TaskError,
)
from derive.materialize.stages import AnyPlan, stages_of
from derive.protocol.derive import ShipsLibraries
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import CollectionSpec, DerivationSpec
from derive.shard.owners import DELIVERED, OWNER, PACKETS, RANK
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress, progress_folder
from derive.shard.worker import MESSAGE, MESSAGES, Stage, Stages, carry_out
from derive.spark.detached import detached, relay, relaying
from derive.spark.release import packed, release
from derive.spark.session import end_start, start_session
from derive.spark.worker_checks import at_location, find_unfit, in_folder, with_libraries
from derive.storage.folder_id import folder_id
from derive.storage.location import Location, ObjectFolder
from derive.storage.metadata.chain import PackedChains
from derive.storage.segments.rows import KEY, ContentRows, StoredRows
from derive.storage.segments.segment_file import check_segments, open_segment, readable
from derive.time.extent import Limits, Load, size_of
from derive.time.packed_segments import packed_reads
from derive.time.positions import Segment, SourceRead

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {pa.int8(): "byte", pa.int32(): "int", pa.int64(): "long", pa.binary(): "binary", pa.string(): "string"}


def spark_columns(schema: pa.Schema, names: Sequence[str] | None = None) -> str:
    """Return the columns of an Arrow schema, all or those with these names, in Spark's schema language."""
    fields = schema if names is None else map(schema.field, names)
    return ", ".join(f"{field.name} {_TYPES[field.type]}" for field in fields)


_NUMBER = "id"
_PACKETS = spark_columns(PACKETS)
_MESSAGES = spark_columns(MESSAGES)
_POLL_SECONDS = 0.2
_RAISED = "Traceback (most recent call last)"
"""Text in Spark's messages if a worker raised an error; without the text, the worker was lost."""

_Run: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
"""Function that Spark runs on a partition."""


class SparkExecutor:
    """Runs transactions as Spark jobs.

    Attributes:
        master: Spark master URL; None for this machine's cores.
        log_file: file for Spark's log.
        conf: settings of Spark that override ours.
    """

    def __init__(self, master: str | None, log_file: Path, conf: Mapping[str, str] | None = None) -> None:
        self.master = master
        self.log_file = log_file
        self.conf = dict(conf or {})
        self._session: SparkSession | None = None
        self._is_cancelled = False
        self._was_started = False
        self._starting = threading.Lock()
        self._sending = threading.Lock()
        self._sent: set[Path] = set()
        self._starter: int | None = None  # system id of the thread that is starting Spark

    @property
    def has_other_machines(self) -> bool:
        """Return true if workers may run on other machines than this one."""
        return self.master is not None and not self.master.startswith("local")

    @property
    def was_started(self) -> bool:
        """Return true if Spark has started."""
        return self._was_started

    @property
    def session(self) -> SparkSession:
        """Return the Spark session, which the first access starts."""
        with self._starting:
            if self._session is None:
                self._starter = threading.get_native_id()
                try:
                    self._session = start_session(self.master, self.log_file, self.conf)
                finally:
                    self._starter = None
                self._was_started = True
            return self._session

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Start Spark if necessary, and return `limits` unchanged."""
        assert self.session
        return limits

    def warm_up(self) -> None:
        """Start Spark and its Python workers in advance."""
        ticks = self.session.range(0, 64, 1, 2)
        with self.explained("that warms workers up"):
            sorted_ticks = ticks.repartition(2, "id").sortWithinPartitions("id")
            sorted_ticks.mapInArrow(lambda batches: batches, "id long").collect()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Translate errors of the connection to the virtual machine into a clear message."""
        from py4j.protocol import Py4JNetworkError

        try:
            yield
        except (Py4JNetworkError, ConnectionError) as exc:
            raise EngineLostError(
                "Spark's Java virtual machine has ended: it was killed, or it ran out of memory",
                hint=f"nothing was committed; run the command again, and see {self.log_file}",
            ) from exc

    @contextmanager
    def explained(self, job: str) -> Iterator[None]:
        """Translate errors of a Spark job into errors for people.

        Args:
            job: name of the job, for messages.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        with self._alive():
            try:
                yield
            except (PySparkException, Py4JJavaError) as exc:
                text = str(exc)
                if "No space left on device" in text:
                    raise DiskFullError(
                        "no space left on the device while Spark shuffled documents",
                        hint="nothing was committed; free some space and run the command again",
                    ) from exc
                if self._is_cancelled:
                    raise TaskError(
                        f"the Spark job {job} was cancelled, because the run ends; nothing was committed"
                    ) from exc
                if unfit := find_unfit(text):
                    raise unfit from exc
                is_defect = _RAISED in text and OutdatedError.__name__ not in text
                kind = InternalError if is_defect else LostError
                raise kind(f"the Spark job {job} failed: {_cause(text)}", hint=f"see {self.log_file}") from exc

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Run a plan as one Spark job; jobs of several threads share the cores fairly."""
        session = self.session
        with self.explained(f"of '{plan.spec.name}'"), _Watch(plan, progress):
            session.sparkContext.setLocalProperty("spark.scheduler.pool", plan.spec.name)
            own = release() if self.has_other_machines else None
            prepared = self._with_libraries(session, plan.spec) if isinstance(plan.spec, DerivationSpec) else None
            is_detached = self.has_other_machines and not plan.needs_folder

            def run(work: Stages) -> list[Message]:
                stages = tuple(map(prepared, work.stages)) if prepared else work.stages
                checked = tuple(_checked(plan, stages, is_detached=is_detached))
                messages = self._run(session, replace(work, stages=checked), own)
                return relay(plan.root, messages) if is_detached else messages

            # each stage is sent by itself, and each worker opens the segments and chains of its part
            sent: AnyPlan = replace(plan, reads=packed_reads(plan.reads))
            if isinstance(sent, Plan):
                sent = replace(detached(sent) if is_detached else sent, chains=PackedChains(sent.chains))
            context = session.sparkContext
            cores = cores_of(dict(context.getConf().getAll()), context.defaultParallelism)
            return carry_out(plan.location, stages_of(sent, cores), run)

    def _with_libraries(self, session: SparkSession, spec: DerivationSpec) -> Callable[[Stage], Stage] | None:
        """Return a function that lets a stage use a derivation's libraries on other machines; None if they need none.

        The archive of the libraries is sent to the workers.
        """
        runtime = find_runtime(spec.connector)
        if not self.has_other_machines or not isinstance(runtime, ShipsLibraries):
            return None
        archive = runtime.pack_libraries(spec)
        if archive is None:
            return None
        with self._sending:
            if archive not in self._sent:
                session.sparkContext.addFile(str(archive))
                self._sent.add(archive)
        return lambda stage: partial(with_libraries, stage, spec, archive.name)

    @staticmethod
    def _run(session: SparkSession, work: Stages, own: tuple[str, str] | None = None) -> list[Message]:
        # A task's number is its partition's number; only packets are shuffled.
        if len(work.stages) == 1:  # avoid query planning, which takes longer than an empty job
            numbers = session.sparkContext.parallelize(range(work.tasks), max(work.tasks, 1))
            return list(map(Message.from_json, numbers.mapPartitions(_alone(work.stages[0], own)).collect()))
        runs = [_first(work.stages[0], own), *(_later(stage, own) for stage in work.stages[1:])]
        rows = _numbers(session, work.tasks)
        for run in runs[:-1]:
            rows = _delivered(rows.mapInArrow(run, _PACKETS), work.owners)
        return [Message.from_json(row[MESSAGE]) for row in rows.mapInArrow(runs[-1], _MESSAGES).collect()]

    def cancel(self) -> None:
        """Cancel all jobs, and a start in another thread; the executor runs no further jobs."""
        self._is_cancelled = True
        end_start(lambda: self._starter)
        if self._session is not None:
            with _unless_java_is_gone():
                self._session.sparkContext.cancelAllJobs()

    def close(self) -> None:
        """Stop Spark, or end its start in another thread."""
        end_start(lambda: self._starter)
        if self._session is not None:
            with _unless_java_is_gone():
                self._session.stop()
            self._session = None
            self._sent.clear()


@contextmanager
def _unless_java_is_gone() -> Iterator[None]:
    """Ignore errors whose cause is that the virtual machine has ended."""
    from py4j.protocol import Py4JNetworkError

    with suppress(Py4JNetworkError, ConnectionError):
        yield


def cores_of(conf: Mapping[str, str], registered: int) -> int | None:
    """Return the number of cores that a job can use; None if Spark starts executors when tasks wait for them.

    >>> cores_of({"spark.executor.instances": "8", "spark.executor.cores": "4"}, 2)
    32

    Args:
        conf: settings of Spark.
        registered: number of cores of the executors that have registered so far.
    """
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return None
    requested = int(conf.get("spark.executor.instances", "0")) * int(conf.get("spark.executor.cores", "1"))
    return max(registered, requested)


def _checked(plan: AnyPlan, stages: Sequence[Stage], *, is_detached: bool) -> Iterator[Stage]:
    """Yield the stages of a plan with checks of the workers.

    Args:
        plan: the plan.
        stages: its stages.
        is_detached: whether workers need no data folder.
    """
    identifier = folder_id(plan.root)
    for number, stage in enumerate(stages, start=1):
        checked: Stage = stage
        if is_detached:
            checked = partial(relaying, stage, is_last=number == len(stages))
        else:
            checked = partial(in_folder, stage, plan.root, identifier)
        if isinstance(plan.location, ObjectFolder):
            checked = partial(at_location, checked, plan.location, identifier)
        yield checked


def _cause(text: str) -> str:
    """Return the line of a Spark error with the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (telling[-1] if telling else lines[0] if lines else "no message")[:500]


def _numbers(session: SparkSession, count: int) -> DataFrame:
    """Return the numbers below `count`, one per partition."""
    return session.range(0, count, 1, max(count, 1))


def _delivered(packets: DataFrame, tasks: int) -> DataFrame:
    """Return packets at the tasks of their owners, in order of owner and rank."""
    owned = packets.repartitionById(tasks, packets[OWNER] % tasks)
    return owned.select(*DELIVERED).sortWithinPartitions(OWNER, RANK)


def _alone(stage: Stage, own: tuple[str, str] | None) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the function that runs a single stage: it maps the task numbers of a partition to messages."""
    opened = packed(stage, own)

    def run(numbers: Iterable[int]) -> Iterator[str]:
        stage = opened()
        for number in numbers:
            for batch in stage(number, iter(()), _attempt()):
                yield from batch.column(MESSAGE).to_pylist()

    return run


def _first(stage: Stage, own: tuple[str, str] | None) -> _Run:
    """Return the function that runs the first stage; its partitions contain task numbers."""
    opened = packed(stage, own)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = opened()
        for batch in batches:
            for number in batch.column(_NUMBER).to_pylist():
                yield from stage(number, iter(()), _attempt())

    return run


def _later(stage: Stage, own: tuple[str, str] | None) -> _Run:
    """Return the function that runs a later stage; its partitions contain packets for its tasks."""
    opened = packed(stage, own)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return opened()(_context().partitionId(), batches, _attempt())

    return run


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def _attempt() -> int:
    """Return the number of this attempt, greater than the numbers of all earlier attempts of any stage."""
    return int(_context().taskAttemptId())


class _Watch:
    """Sums the progress that a job's workers report while it runs."""

    def __init__(self, plan: AnyPlan, progress: Progress) -> None:
        self._folder = progress_folder(plan.root, plan.spec.name) / plan.token
        self._progress = progress
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)  # a newer run may have removed it

    def _poll(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            total = 0
            for file in self._folder.glob("*"):
                with suppress(FileNotFoundError):
                    total += int.from_bytes(file.read_bytes()[:8], "little")
            self._progress(total)


_ROWS, _ERROR = "rows", "error"
_REDUCED = pa.schema([(_ROWS, pa.binary()), (_ERROR, pa.string())])
"""Schema of the driver's rows: rows (`ContentRows`) as an Arrow stream, or an error."""

_CHECKED = "parquet.page.verify-checksum.enabled"

_DOCUMENTS, _BYTES = 250_000, 32 << 20
"""Approximate size of a partition, in documents and in stored bytes."""


def reduced_on_spark(
    executor: SparkExecutor, location: Location, spec: CollectionSpec, read: SourceRead
) -> Iterator[ContentRows]:
    """Evaluate a read on Spark.

    Args:
        executor: executor with a Spark session.
        location: location of the segments.
        spec: the collection.
        read: segments and timestamps of the read.
    """
    try:
        with executor.explained(f"that reads '{spec.name}'"):
            for row in _rows(executor, location, spec, read):
                if row.error is not None:
                    raise FlowError.from_json(orjson.loads(row.error))
                with pa.ipc.open_stream(row.rows) as stream:
                    yield from map(ContentRows, stream)
    except (LostError, InternalError):
        check_segments(location, read.segments)  # Spark's message about a damaged file is useless
        raise


def partitions_of(read: SourceRead, cores: int) -> int:
    """Return the number of partitions of a read: enough for all cores, and small enough for memory."""
    size = size_of([read])
    return max(cores, -(-size.documents // _DOCUMENTS), -(-size.bytes // _BYTES))


def _rows(executor: SparkExecutor, location: Location, spec: CollectionSpec, read: SourceRead) -> Iterator[Any]:
    session = executor.session
    columns = spark_columns(StoredRows.SCHEMA)
    if isinstance(location, Path):
        files = [str(location / segment.path) for segment in read.segments]
        stored = session.read.schema(columns).option(_CHECKED, True).parquet(*files)
    else:  # Spark has no client of object stores of its own
        numbers = session.range(0, len(read.segments), 1, max(1, len(read.segments)))
        stored = numbers.mapInArrow(_stored(location, read.segments), columns)
    within = stored.where((stored.clock >= read.clock_begin) & (stored.clock < read.clock_end))
    partitions = partitions_of(read, session.sparkContext.defaultParallelism)
    grouped = within.repartitionByRange(partitions, KEY).sortWithinPartitions(*PER_KEY)
    return iter(grouped.mapInArrow(_fold(spec), spark_columns(_REDUCED)).toLocalIterator(prefetchPartitions=True))


def _stored(
    location: Location, segments: Sequence[Segment]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from batches with numbers of segments to the fixed columns of these segments."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            with open_segment(location, segments[number]) as file, readable(segments[number]):
                for group in range(file.metadata.num_row_groups):
                    yield from file.read_row_group(group, StoredRows.SCHEMA.names).cast(StoredRows.SCHEMA).to_batches()

    return run


def _fold(spec: CollectionSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for rows in contents_per_key(spec, map(StoredRows, batches)):
                if len(rows):
                    yield _reduced(_streamed(rows), None)
        except FlowError as error:  # a retry by Spark would fail the same way
            yield _reduced(b"", orjson.dumps(error.to_json()).decode())

    return run


def _streamed(rows: ContentRows) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ContentRows.SCHEMA) as writer:
        writer.write_batch(rows.batch)
    streamed: bytes = sink.getvalue().to_pybytes()
    return streamed


def _reduced(rows: bytes, error: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{_ROWS: rows, _ERROR: error}], schema=_REDUCED)
