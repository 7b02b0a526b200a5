"""A compute instance: incrementally maintains views over collections, which can be read at every time.

The owner of an instance calls `step` repeatedly, from one thread. All other methods may be called from other threads,
and return before the requested work is done. Rows are read on separate connections.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw

from derive.algebra.expression import Expression
from derive.algebra.relation import Finishing, GlobalId, Relation
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Datum, Row
from derive.compute.dataflow import watch
from derive.compute.dataflow.database import open_database, open_reader, packed, unpacked
from derive.compute.dataflow.dataflows import DataflowRequest, Dataflows, integer
from derive.compute.dataflow.hydration import MOST_HERE, Progress
from derive.compute.dataflow.input import Input, Update
from derive.compute.dataflow.peek import ErrorUpdate, PointLookupReader, PreparedPeek, errors_between, history_of
from derive.compute.dataflow.staging import Stage, Staging
from derive.compute.dataflow.watch import Watch
from derive.compute.oneshot import fetched, interrupted, limited
from derive.compute.operators.operator import weighted
from derive.compute.plans.plan import explained
from derive.compute.plans.planning import plan_of
from derive.compute.plans.validity import reads_time
from derive.compute.sqlite import translated
from derive.errors import FlowError, FrontierError
from derive.time import END_OF_TIME

__all__ = ["Input", "Instance", "PreparedPeek", "Progress", "Updates"]


MOST_PREPARED = 200
"""Maximum number of cached queries, with their statements."""


@dataclass(frozen=True, slots=True)
class Updates:
    """The changes of a relation from one time to before another.

    Attributes:
        rows: times, rows and diffs, by time. Rows are meaningless at times with errors.
        errors: times, SQLSTATEs, messages and diffs, by time; the diff is 1 where an error replaces rows, and -1 where
            the error ends. An error that exists at the first time has the diff 1 there.
        since: first known time of the relation. Its rows at that time are not included; `peek` returns them.
    """

    rows: Sequence[Update]
    errors: Sequence[ErrorUpdate]
    since: int


def explanation_of(relation: Relation, names: Mapping[GlobalId, str]) -> str:
    """Return a description of how a relation would be maintained: each operator and its tier.

    Args:
        relation: the relation.
        names: names of its sources.
    """
    return explained(plan_of(relation), names)


def can_follow_time(relation: Relation) -> bool:
    """Return whether the maintained rows of a relation follow the time of the read.

    That is so if the relation reads the time only in temporal filters, or not at all.
    """
    return not (reads_time(relation) and reads_time(plan_of(relation)))


class Instance:
    """Dataflows over inputs, with their rows."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        most_here: int = MOST_HERE,
        stage: Stage = Staging,
        is_limited: bool = False,
    ) -> None:
        """Open an instance.

        Args:
            folder: folder of its database; None for a temporary one.
            most_here: number of rows above which a dataflow is hydrated in another process, one at a time.
            stage: starts the computation of such rows in another process.
            is_limited: whether dataflows that are slow are interrupted; `take_slow` returns them.
        """
        self._stack = ExitStack()
        self._folder = folder or Path(self._stack.enter_context(TemporaryDirectory(prefix="flow-compute-")))
        self._connection = open_database(self._folder)
        self._watch = Watch(self._connection, seconds=watch.MOST_SECONDS if is_limited else None)
        self._lock = threading.RLock()
        self._commands: deque[Callable[[], None]] = deque()
        self._announced: dict[GlobalId, int] = {}
        defined: Any = self._connection.execute("SELECT id, definition FROM definitions").fetchall()
        self._definitions: dict[GlobalId, Any] = {identifier: unpacked(blob) for identifier, blob in defined}
        self._prepared: dict[tuple[Relation, Finishing], PreparedPeek] = {}
        self._dataflows = Dataflows(self._connection, self._watch, most_here, stage)
        for identifier in self._definitions.keys() - self._dataflows.maintained.keys():
            # the dataflow had not started when the instance ended, and may no longer be requested
            self._define(identifier, None)
        self._readers: list[apsw.Connection] = []
        self._prompt_reader = PointLookupReader(self._folder)

    def close(self) -> None:
        """Interrupt a running step, and release all resources."""
        self.stop()
        with self._lock:
            self._watch.release()
            self._dataflows.close()
            self._prompt_reader.close()
            for reader in self._readers:
                reader.close()
            self._connection.close()
            self._stack.close()

    # -- Commands

    def maintain(
        self,
        identifier: GlobalId,
        relation: Relation,
        as_of: int,
        inputs: Mapping[GlobalId, Input],
        definition: object = None,
    ) -> None:
        """Maintain a relation from a time on.

        An existing dataflow continues if it has the same relation and is known at this time. The first time of a new
        dataflow may be later: the time of the dataflow group with the same collections.

        Args:
            identifier: new identifier of the relation.
            relation: relation over inputs, and over other maintained relations.
            as_of: the time.
            inputs: collections by identifier, from this time on; the instance closes them.
            definition: a value that `definitions` returns; a different value means a different relation.
        """
        reads = tuple(dict.fromkeys(get.id for get in gets_of(relation)))
        request = DataflowRequest(relation, plan_of(relation), as_of, dict(inputs), reads)
        self._announced[identifier] = as_of

        def begin() -> None:
            if self._definitions.get(identifier) != definition:
                self._dataflows.drop(identifier)
                self._define(identifier, definition)
            self._dataflows.request(identifier, request)

        self._commands.append(begin)

    def index(self, identifier: GlobalId, key: Sequence[Expression]) -> None:
        """Create an index of a relation by expressions over its rows."""
        self._commands.append(lambda: self._dataflows.index(identifier, key))

    def drop(self, identifier: GlobalId) -> None:
        """Drop a dataflow; its dependents stop advancing."""
        self._announced.pop(identifier, None)

        def end() -> None:
            self._dataflows.drop(identifier)
            self._define(identifier, None)

        self._commands.append(end)

    @property
    def folder(self) -> Path:
        """Return the folder of the database."""
        return self._folder

    def stop(self) -> None:
        """Interrupt the running step, and all later steps."""
        self._watch.stop()

    def cancel(self, identifier: GlobalId) -> None:
        """Interrupt the running step if it computes a dataflow that will be dropped."""
        self._watch.cancel(identifier)

    def take_slow(self) -> set[GlobalId]:
        """Return the dataflows that are too slow beside others, once; they must be dropped."""
        return self._dataflows.take_slow()

    def resume(self, identifier: GlobalId) -> None:
        """Resume a failed relation, because the cause, such as a full disk, may be gone."""
        self._commands.append(lambda: self._dataflows.resume(identifier))

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Allow compaction of times before `since`."""
        self._commands.append(lambda: self._dataflows.allow_compaction(identifier, since))

    def _define(self, identifier: GlobalId, definition: object) -> None:
        self._definitions.pop(identifier, None)
        self._connection.execute("DELETE FROM definitions WHERE id = ?", (identifier,))
        if definition is not None:
            self._connection.execute("INSERT INTO definitions VALUES (?, ?)", (identifier, packed(definition)))
            self._definitions[identifier] = definition

    # -- Work

    def step(self) -> bool:
        """Execute commands, poll inputs, and process complete times.

        Returns:
            Whether more work can be done now; if not, the next work follows a change of an input or a command.
        """
        with self._lock, translated(), self._prompt_reader.paused():
            while self._commands:
                with self._connection:
                    self._commands[0]()
                # only after success, so that a command is repeated that failed because of a full disk
                self._commands.popleft()
            return self._dataflows.step()

    # -- State

    def ids(self) -> tuple[GlobalId, ...]:
        """Return the identifiers of maintained or requested relations, also of an earlier instance in this folder."""
        return tuple(dict.fromkeys((*self._dataflows.maintained, *self._announced)))

    def definitions(self) -> dict[GlobalId, Any]:
        """Return the definitions of maintained relations, also of an earlier instance in this folder."""
        return {key: value for key, value in self._definitions.items() if key in self._dataflows.maintained}

    def is_known_from(self, identifier: GlobalId, time: int) -> bool:
        """Return whether a relation is maintained or requested, and known from a time on, now or later."""
        dataflow, request = self._dataflows.maintained.get(identifier), self._dataflows.requests.get(identifier)
        begun = dataflow.since if dataflow is not None else request.as_of if request is not None else END_OF_TIME
        return begun <= time and (self.failure(identifier) is None or self.can_resume(identifier))

    def has_begun(self, identifier: GlobalId) -> bool:
        """Return whether a relation is maintained; False if its dataflow has not started, or cannot start."""
        return identifier in self._dataflows.maintained

    def frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        """Return the times at which a relation can be read: from `since` on, and before `upper`.

        Raises:
            FlowError: the relation is not maintained, or has failed.
        """
        dataflows = self._dataflows
        if (dataflows.failures or dataflows.broken) and (failure := self.failure(identifier)) is not None:
            raise failure
        dataflow = dataflows.maintained.get(identifier)
        if dataflow is not None:
            return dataflow.since, dataflow.group.committed
        as_of = self._announced.get(identifier)
        if as_of is not None:
            return as_of, as_of
        raise FrontierError(f"no instance maintains relation {identifier}", hint="Run the statement again.")

    def failure(self, identifier: GlobalId) -> FlowError | None:
        """Return the error of a relation that can no longer be maintained; None if missing."""
        dataflow = self._dataflows.maintained.get(identifier)
        broken = self._dataflows.broken.get(dataflow.group.id) if dataflow is not None else None
        return self._dataflows.failures.get(identifier) or broken

    def can_resume(self, identifier: GlobalId) -> bool:
        """Return whether a failed relation may be able to resume; `resume` tries to resume it."""
        return self._dataflows.can_resume(identifier)

    def hydrations(self) -> tuple[Progress, ...]:
        """Return the progress of large relations that hydrate."""
        return tuple(self._dataflows.progress())

    @property
    def is_hydrating(self) -> bool:
        """Return whether another process computes first rows, which may end at any moment."""
        return self._dataflows.is_hydrating

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""
        return self._watch.running

    # -- Reading

    def prepare(self, relation: Relation, finishing: Finishing) -> PreparedPeek:
        """Prepare a query that `peek` can repeat with other arguments.

        Args:
            relation: relation over maintained relations, whose parameters are bound on execution.
            finishing: the final processing of its rows.
        """
        return PreparedPeek(relation, finishing)

    def peek(
        self,
        query: Relation | PreparedPeek,
        finishing: Finishing | None = None,
        as_of: int | None = None,
        *,
        arguments: Sequence[Datum] = (),
        most_bytes: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Generator[list[Row]]:
        """Yield the rows of a query of maintained relations.

        Args:
            query: a relation over maintained relations, or a prepared query.
            finishing: the final processing of its rows; None for all rows in any order, or for a prepared query.
            as_of: the time; None for the latest complete time of all relations.
            arguments: arguments of the query's parameters.
            most_bytes: maximum size of the result; None for no limit.
            cancelled: called from time to time; True ends the query.

        Yields:
            Rows in batches.

        Raises:
            FrontierError: the time is not complete yet, or compacted.
            SqlError: there is an error in place of rows; or the query was cancelled (57014), or is too large (54000).
        """
        if not isinstance(query, PreparedPeek):
            query = self._known(query, finishing or Finishing((), None, 0, tuple(range(len(query.types)))))
        for identifier in query.reads:
            self.frontiers(identifier)
        with self._reading() as reader, translated():
            if cancelled is not None:
                reader.set_progress_handler(cancelled, 20_000)
            cursor = query.rows(reader, self._dataflows.kept, as_of, arguments)
            yield from limited(interrupted(fetched(cursor), cancelled), most_bytes)

    def look_up(
        self, query: PreparedPeek, as_of: int, arguments: Sequence[Datum] = (), most_bytes: int | None = None
    ) -> list[Row] | None:
        """Return the rows of a query, as `peek` does, if it is fast; None if it is slow or fails."""
        if self._dataflows.failures or self._dataflows.broken:
            return None
        return self._prompt_reader.rows(query, self._dataflows.kept, as_of, arguments, most_bytes)

    def _known(self, relation: Relation, finishing: Finishing) -> PreparedPeek:
        """Return a prepared query: a cached one, or a new one."""
        key = (relation, finishing)
        prepared = self._prepared.get(key)
        if prepared is None:
            while len(self._prepared) >= MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared)), None)
            prepared = self._prepared[key] = PreparedPeek(relation, finishing)
        return prepared

    def updates(self, identifier: GlobalId, begin: int, end: int) -> Updates:
        """Return the changes of a relation.

        Args:
            identifier: identifier of the relation.
            begin: first time, not before its `since`.
            end: time before which changes are returned, at most its `upper`.

        Raises:
            FrontierError: a part of the changes is not known.
        """
        self.frontiers(identifier)
        with self._reading() as reader, translated():
            # The relation may be dropped and recreated meanwhile, so one snapshot reads all values.
            known: Any = reader.execute(
                "SELECT since, upper, operator FROM dataflows JOIN cohorts ON cohorts.id = cohort"
                " WHERE dataflows.id = ?",
                (identifier,),
            ).fetchone()
            kept, dataflow = self._dataflows.kept.get(identifier), self._dataflows.maintained.get(identifier)
            if known is None or kept is None or dataflow is None or kept.operator != known[2]:
                raise FrontierError(f"{identifier} is being rebuilt", hint="Run the statement again.")
            since, upper, _ = known
            if begin < since or end > upper:
                raise FrontierError(f"changes of {identifier} are known from {since} on and before {upper}")
            width = len(dataflow.relation.types)
            times = {"begin": max(begin, since + 1), "end": end}
            rows = reader.execute(history_of(kept.operator, width or 1), times).fetchall()
            return Updates(
                [(integer(row[0]), row[1 : 1 + width], diff) for row, diff in weighted(rows)],
                list(errors_between(reader, kept.operators, begin, end)),
                since,
            )

    def _reading(self) -> _Reading:
        """Return a connection in a read transaction."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = open_reader(self._folder)
        return _Reading(reader, self._readers)


class _Reading:
    """A read transaction of a pooled connection."""

    def __init__(self, reader: apsw.Connection, resting: list[apsw.Connection]) -> None:
        self._reader, self._resting = reader, resting

    def __enter__(self) -> apsw.Connection:
        self._reader.execute("BEGIN")
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._reader.set_progress_handler(None)
        self._reader.execute("ROLLBACK")
        self._resting.append(self._reader)
