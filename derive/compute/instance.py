"""A compute instance: views that are kept up to date with collections, and can be asked at every time.

Whoever owns an instance calls `step` again and again, from one thread; everything else may be called from others, and
does not wait for the work that it asks for. Rows are read on connections of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import apsw

from derive.algebra.relation import Finishing, GlobalId, Relation
from derive.algebra.types import Datum, Row
from derive.compute.dataflow.database import open_database, open_reader, packed, unpacked
from derive.compute.dataflow.dataflow_request import Wish
from derive.compute.dataflow.dataflows import Dataflows, integer
from derive.compute.dataflow.hydration import Progress
from derive.compute.dataflow.hydrations import MOST_HERE
from derive.compute.dataflow.input import Input, Update
from derive.compute.dataflow.peek import ErrorUpdate, PreparedPeek, errors_between, history_of
from derive.compute.dataflow.point_lookup import PromptReader
from derive.compute.dataflow.staging import Stage, Staging
from derive.compute.oneshot import fetched, interrupted, limited
from derive.compute.operators.operator import weighted
from derive.compute.plans.explanation import explained
from derive.compute.plans.planning import plan_of
from derive.compute.plans.pruning import pruned
from derive.compute.sqlite.connection import translated
from derive.errors import FlowError, FrontierError
from derive.time.frontier import END_OF_TIME

__all__ = ["Input", "Instance", "PreparedPeek", "Progress", "Updates"]


MOST_PREPARED = 200
"""So many queries are remembered, with the statements that they have become."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What has changed in a relation from one time on and before another.

    Attributes:
        rows: times, rows and diffs, by time. Rows mean nothing at times at which there are errors.
        errors: times, SQLSTATEs, messages and diffs, by time; 1 where an error comes to be in the place of rows, and -1
            where it goes. All that are there at the first time come then.
        since: the first time that is known of the relation. Its rows then are no changes: they are asked for by `peek`.
    """

    rows: Sequence[Update]
    errors: Sequence[ErrorUpdate]
    since: int


def explanation_of(relation: Relation, names: Mapping[GlobalId, str]) -> str:
    """How a relation would be maintained, as text: each operator with its tier.

    Args:
        relation: to explain.
        names: of what it reads.
    """
    return explained(plan_of(relation), names)


class Instance:
    """Dataflows over inputs, and what they have come to."""

    def __init__(self, folder: Path | None = None, *, most_here: int = MOST_HERE, stage: Stage = Staging) -> None:
        """Open an instance.

        Args:
            folder: where it keeps what it has; None for one that is gone when it is closed.
            most_here: dataflows of more rows than that are hydrated beside the others, one at a time.
            stage: begins to work such rows out, in another process.
        """
        self._stack = ExitStack()
        self._folder = folder or Path(self._stack.enter_context(TemporaryDirectory(prefix="flow-compute-")))
        self._connection = open_database(self._folder)
        self._lock = threading.RLock()
        self._commands: deque[Callable[[], None]] = deque()
        self._announced: dict[GlobalId, int] = {}
        defined: Any = self._connection.execute("SELECT id, definition FROM definitions").fetchall()
        self._definitions: dict[GlobalId, Any] = {identifier: unpacked(blob) for identifier, blob in defined}
        self._prepared: dict[tuple[Relation, Finishing], PreparedPeek] = {}
        self._dataflows = Dataflows(self._connection, most_here, stage)
        for identifier in self._definitions.keys() - self._dataflows.maintained.keys():
            self._define(identifier, None)  # it had not begun when the instance ended, and may be wanted no more
        self._readers: list[apsw.Connection] = []
        self._prompt_reader = PromptReader(self._folder)

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
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
        """Keep a relation up to date from a time on.

        What is kept already stays, if it is of the same relation, and known at that time. Else its first time may be a
        later one: that at which other dataflows of the same collections are.

        Args:
            identifier: of the relation from now on.
            relation: over inputs, and other relations that are maintained.
            as_of: the time.
            inputs: collections by identifier, from that time on. The instance closes them.
            definition: is remembered, and given back by `definitions`; another one is another relation.
        """
        wish = Wish(relation, pruned(plan_of(relation), set(inputs)), as_of, dict(inputs))
        self._announced[identifier] = as_of

        def begin() -> None:
            if self._definitions.get(identifier) != definition:
                self._dataflows.drop(identifier)
                self._define(identifier, definition)
            self._dataflows.wish(identifier, wish)

        self._commands.append(begin)

    def index(self, identifier: GlobalId, columns: Sequence[int]) -> None:
        """Have rows looked up fast by some of their columns."""
        self._commands.append(lambda: self._dataflows.index(identifier, columns))

    def drop(self, identifier: GlobalId) -> None:
        """Maintain a relation no more; others that are over it stay at the time where they are."""
        self._announced.pop(identifier, None)

        def end() -> None:
            self._dataflows.drop(identifier)
            self._define(identifier, None)

        self._commands.append(end)

    def go_on(self, identifier: GlobalId) -> None:
        """Have a relation that has failed go on where it was, as the reason may be gone, such as a full disk."""
        self._commands.append(lambda: self._dataflows.go_on(identifier))

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Nobody asks for times before one, from now on."""
        self._commands.append(lambda: self._dataflows.allow_compaction(identifier, since))

    def _define(self, identifier: GlobalId, definition: object) -> None:
        self._definitions.pop(identifier, None)
        self._connection.execute("DELETE FROM definitions WHERE id = ?", (identifier,))
        if definition is not None:
            self._connection.execute("INSERT INTO definitions VALUES (?, ?)", (identifier, packed(definition)))
            self._definitions[identifier] = definition

    # -- Work

    def step(self) -> bool:
        """Carry out commands, ask inputs what is new, and go through times that are complete.

        Returns:
            Whether there may be more to do at once; if not, nothing will happen before an input has news, or there is a
            command.
        """
        with self._lock, translated(), self._prompt_reader.paused():
            while self._commands:
                with self._connection:
                    self._commands[0]()
                self._commands.popleft()  # only now: what the disk has no room for is carried out later
            return self._dataflows.step()

    # -- What is known

    def ids(self) -> tuple[GlobalId, ...]:
        """What is maintained, or will be, also by an earlier instance in the same folder."""
        return tuple(dict.fromkeys((*self._dataflows.maintained, *self._announced)))

    def definitions(self) -> dict[GlobalId, Any]:
        """What is maintained, also by an earlier instance in the same folder, as it was defined."""
        return {key: value for key, value in self._definitions.items() if key in self._dataflows.maintained}

    def is_known_from(self, identifier: GlobalId, time: int) -> bool:
        """Whether a relation is maintained, or about to begin, and at a time and later it is known, or will be."""
        dataflow, wish = self._dataflows.maintained.get(identifier), self._dataflows.wishes.get(identifier)
        begun = dataflow.since if dataflow is not None else wish.as_of if wish is not None else END_OF_TIME
        return begun <= time and (self.failure(identifier) is None or self.can_go_on(identifier))

    def has_begun(self, identifier: GlobalId) -> bool:
        """Whether a relation is maintained; not if it will be, or could not begin."""
        return identifier in self._dataflows.maintained

    def frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        """At which times a relation can be asked: from `since` on, and before `upper`.

        Raises:
            FlowError: it cannot be maintained any more, or is not.
        """
        dataflows = self._dataflows
        if (dataflows.failures or dataflows.broken) and (failure := self.failure(identifier)) is not None:
            raise failure
        dataflow = dataflows.maintained.get(identifier)
        if dataflow is not None:
            return dataflow.since, dataflow.cohort.committed
        as_of = self._announced.get(identifier)
        if as_of is not None:
            return as_of, as_of
        raise FrontierError(f"{identifier} is not maintained")

    def failure(self, identifier: GlobalId) -> FlowError | None:
        """Why a relation cannot be maintained any more; None if it can."""
        dataflow = self._dataflows.maintained.get(identifier)
        broken = self._dataflows.broken.get(dataflow.cohort.id) if dataflow is not None else None
        return self._dataflows.failures.get(identifier) or broken

    def can_go_on(self, identifier: GlobalId) -> bool:
        """Whether a relation that has failed would go on where it was: `go_on` has it try."""
        return self._dataflows.can_go_on(identifier)

    def hydrations(self) -> tuple[Progress, ...]:
        """How far relations of many rows are that are not maintained yet, but will be."""
        return tuple(self._dataflows.progress())

    # -- Reading

    def prepare(self, relation: Relation, finishing: Finishing) -> PreparedPeek:
        """A query that `peek` is asked again and again, with other arguments.

        Args:
            relation: over relations that are maintained; parameters of it are given when it is asked.
            finishing: what becomes of its rows.
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
        """The rows of a query of relations that are maintained.

        Args:
            query: over relations that are maintained, or prepared.
            finishing: what becomes of its rows; None for all in any order, or if it was prepared.
            as_of: the time; None for the latest that is complete for all relations.
            arguments: one for each parameter of the query.
            most_bytes: so much may be in the result; None for any amount.
            cancelled: asked now and then whether to end.

        Yields:
            Rows in batches.

        Raises:
            FrontierError: the time is not complete yet, or no longer known.
            SqlError: there is an error where there should be rows; or 57014, 54000.
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
        """The rows of a query, as of `peek`, if that takes a moment; None if it may take longer, or raises an error."""
        if self._dataflows.failures or self._dataflows.broken:
            return None
        return self._prompt_reader.rows(query, self._dataflows.kept, as_of, arguments, most_bytes)

    def _known(self, relation: Relation, finishing: Finishing) -> PreparedPeek:
        """A query that was prepared before, or is now."""
        key = (relation, finishing)
        prepared = self._prepared.get(key)
        if prepared is None:
            while len(self._prepared) >= MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared)), None)
            prepared = self._prepared[key] = PreparedPeek(relation, finishing)
        return prepared

    def updates(self, identifier: GlobalId, begin: int, end: int) -> Updates:
        """What has changed in a relation.

        Args:
            identifier: of the relation.
            begin: the first time, not before its `since`.
            end: the first time that is not asked for, which is at most its `upper`.

        Raises:
            FrontierError: not all of that is known.
        """
        self.frontiers(identifier)
        with self._reading() as reader, translated():
            # It may be dropped and made anew meanwhile: all of this is as it is at one moment.
            known: Any = reader.execute(
                "SELECT since, upper, operator FROM dataflows JOIN cohorts ON cohorts.id = cohort"
                " WHERE dataflows.id = ?",
                (identifier,),
            ).fetchone()
            kept, dataflow = self._dataflows.kept.get(identifier), self._dataflows.maintained.get(identifier)
            if known is None or kept is None or dataflow is None or kept.operator != known[2]:
                raise FrontierError(f"{identifier} is being made anew", hint="Ask for it once more.")
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
        """A connection that sees everything as it is at one moment."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = open_reader(self._folder)
        return _Reading(reader, self._readers)


class _Reading:
    """A read transaction of a connection that rests among others when it is not used."""

    def __init__(self, reader: apsw.Connection, resting: list[apsw.Connection]) -> None:
        self._reader, self._resting = reader, resting

    def __enter__(self) -> apsw.Connection:
        self._reader.execute("BEGIN")
        return self._reader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.set_progress_handler(None)
        self._reader.execute("ROLLBACK")
        self._resting.append(self._reader)
