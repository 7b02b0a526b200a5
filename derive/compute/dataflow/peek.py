"""Queries of maintained rows at a time common to all their arrangements, and point lookups by one SELECT.

The state of a query's dataflows is cached, because it seldom changes. After the SELECT, SQLite's data version shows the
version that the SELECT has read; rows are returned only if this version equals the cached version. Between two commits,
all queries share one SQLite transaction, because the start of a transaction costs as much as a lookup. A query reads
only times that are complete in the cached state, so later commits do not change its rows.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Datum, Row
from derive.compute.dataflow.database import open_reader
from derive.compute.oneshot import BATCH_ROWS, size_of
from derive.compute.operators.arrangement import copies, rows_as_of
from derive.compute.sqlite import finished_select, names, parameters_of, with_arguments
from derive.errors import FlowError, FrontierError, SqlError
from derive.functions.statement_context import running

ErrorUpdate: TypeAlias = tuple[int, str, str, int]
"""Time, SQLSTATE, message and diff of an error in place of rows."""


@dataclass(frozen=True, slots=True)
class DataflowPlace:
    """The place of a dataflow's rows.

    Attributes:
        operator: number of the operator with the arrangement.
        operators: numbers of all operators from which the dataflow derives; their errors are errors of the dataflow.
    """

    operator: int
    operators: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a query's dataflows as a reader saw it.

    Attributes:
        reader: the reader.
        version: version of the database for this reader, from `data_version`.
        kept: places of the rows.
        known: for each dataflow: `since`, `upper`, time of the last change, and whether rows have counts above one.
        since: the greatest `since`.
        upper: the least `upper`.
        changed: time of the last change of any dataflow.
        latest: statement for the rows from `changed` on.
        has_errors: whether any dataflow has errors.
    """

    reader: apsw.Connection
    version: Any
    kept: Mapping[GlobalId, DataflowPlace]
    known: Mapping[GlobalId, tuple[int, int, int, bool]]
    since: int
    upper: int
    changed: int
    latest: str
    has_errors: bool


class PreparedPeek:
    """A query of dataflows that can be repeated with other arguments.

    Attributes:
        relation: the relation, with parameters.
        finishing: the final processing of its rows.
        gets: the dataflows that the query reads, with their types.
        reads: their identifiers.
    """

    def __init__(self, relation: Relation, finishing: Finishing) -> None:
        """Prepare the query.

        Args:
            relation: the relation, whose parameters are bound on execution.
            finishing: the final processing of its rows.
        """
        self.relation, self.finishing = relation, finishing
        self.gets = gets_of((relation, finishing))
        self.reads = tuple(dict.fromkeys(get.id for get in self.gets))
        self._relation: Relation = with_arguments(relation)
        self._finishing: Finishing = with_arguments(finishing)
        self._arguments = [(part.index, f"p{part.index}") for part in parameters_of((relation, finishing))]
        self._statements: dict[tuple[tuple[GlobalId, DataflowPlace, bool, bool], ...], str] = {}
        self._seen: Seen | None = None

    def rows(
        self,
        reader: apsw.Connection,
        kept: Mapping[GlobalId, DataflowPlace],
        as_of: int | None,
        arguments: Sequence[Datum],
    ) -> apsw.Cursor:
        """Execute the query in the reader's transaction.

        Args:
            reader: connection with a snapshot of all dataflows.
            kept: places of the rows of the dataflows.
            as_of: the time; None for the latest time that is complete in all dataflows.
            arguments: arguments of the parameters.

        Raises:
            FrontierError: the time is not complete yet, or compacted.
            SqlError: there is an error in place of rows.
        """
        seen = self.look(reader, kept)
        time = seen.upper - 1 if as_of is None else as_of
        if not seen.since <= time < seen.upper:
            raise _unknown(seen, time)
        if seen.has_errors:
            self._check_errors(reader, kept, time)
        bindings: dict[str, Datum] = {name: arguments[index] for index, name in self._arguments}
        if seen.changed <= time:
            return reader.execute(seen.latest, bindings)
        bindings["as_of"] = time
        return reader.execute(self._statement_at(seen.known, kept, time), bindings)

    def select(self, seen: Seen, as_of: int, arguments: Sequence[Datum]) -> tuple[str, dict[str, Datum]] | None:
        """Return the statement for rows at a time, with its bindings; None if one statement is not enough."""
        if not seen.since <= as_of < seen.upper or seen.changed > as_of or seen.has_errors:
            return None
        return seen.latest, {name: arguments[index] for index, name in self._arguments}

    def seen_by(self, reader: apsw.Connection, kept: Mapping[GlobalId, DataflowPlace]) -> Seen | None:
        """Return the last seen state if the reader would see the same state; otherwise None."""
        seen = self._seen
        if seen is None or seen.reader is not reader or seen.kept is not kept or seen.version != reader.data_version():
            return None
        return seen

    def look(self, reader: apsw.Connection, kept: Mapping[GlobalId, DataflowPlace]) -> Seen:
        """Return the state in the reader's transaction; it is cached until the next commit.

        Raises:
            FrontierError: a dataflow is not maintained.
        """
        reader.execute("PRAGMA data_version").fetchall()  # this starts the transaction's snapshot
        seen = self.seen_by(reader, kept)
        if seen is not None:
            return seen
        frontiers: dict[GlobalId, Any] = {}
        for identifier in self.reads:
            row = reader.execute(
                "SELECT since, upper FROM dataflows JOIN cohorts ON cohorts.id = cohort WHERE dataflows.id = ?",
                (identifier,),
            ).fetchone()
            if row is None or identifier not in kept:
                raise FrontierError(f"no instance maintains relation {identifier}", hint="Run the statement again.")
            frontiers[identifier] = row
        known: dict[GlobalId, tuple[int, int, int, bool]] = {}
        for identifier, (since, upper) in frontiers.items():
            operator = kept[identifier].operator
            changed = reader.execute(f"SELECT max(t) FROM h{operator}").get
            copied = reader.execute(f"SELECT EXISTS(SELECT 1 FROM a{operator} WHERE w <> 1)").get
            known[identifier] = since, upper, since if changed is None else changed, bool(copied)
        failed = "SELECT EXISTS(SELECT 1 FROM errors) OR EXISTS(SELECT 1 FROM errors_history)"
        since = max((since for since, _, _, _ in known.values()), default=0)
        upper = min((upper for _, upper, _, _ in known.values()), default=1)
        changed = max((changed for _, _, changed, _ in known.values()), default=0)
        latest = self._statement_at(known, kept, changed)
        has_errors = bool(reader.execute(failed).get)
        version = reader.data_version()
        seen = self._seen = Seen(reader, version, kept, known, since, upper, changed, latest, has_errors)
        return seen  # another thread may have set `_seen` by now

    def _statement_at(
        self, known: Mapping[GlobalId, tuple[int, int, int, bool]], kept: Mapping[GlobalId, DataflowPlace], time: int
    ) -> str:
        """Return the statement for rows at a time."""
        return self._statement(
            tuple(
                (identifier, kept[identifier], changed <= time, has_copies or changed > time)
                for identifier, (_, _, changed, has_copies) in known.items()
            )
        )

    def _check_errors(self, reader: apsw.Connection, kept: Mapping[GlobalId, DataflowPlace], time: int) -> None:
        operators = {operator for identifier in self.reads for operator in kept[identifier].operators}
        row: Any = reader.execute(errors_as_of(operators), {"as_of": time}).fetchone()
        if row is not None:
            raise SqlError(row[0], row[1])

    def _statement(self, forms: tuple[tuple[GlobalId, DataflowPlace, bool, bool], ...]) -> str:
        if forms not in self._statements:
            by_id = {form[0]: form[1:] for form in forms}

            def table(get: Get) -> str:
                place, is_latest, has_copies = by_id[get.id]
                width = len(get.types) or 1
                rows = f"a{place.operator}"
                if not is_latest:
                    rows = rows_as_of(rows, f"h{place.operator}", width, ":as_of")
                return copies(rows, width) if has_copies else rows

            self._statements[forms] = finished_select(self._relation, self._finishing, table)
        return self._statements[forms]


def _unknown(seen: Seen, time: int) -> FrontierError:
    """Return the error for a time that is compacted, or not complete yet."""
    identifier, (since, upper, _, _) = next(
        (identifier, known) for identifier, known in seen.known.items() if not known[0] <= time < known[1]
    )
    what = f"{identifier} is known from {since} up to {upper}, but not at {time}"
    return FrontierError(what, hint="Read at another time.")


def errors_as_of(operators: set[int]) -> str:
    """Return a query of an error that some operators have at the time `:as_of`."""
    among = f"operator IN ({', '.join(map(str, sorted(operators)))})"
    return (
        f"SELECT sqlstate, message FROM (SELECT sqlstate, message, w FROM errors WHERE {among} UNION ALL"
        f" SELECT sqlstate, message, -w FROM errors_history WHERE t > :as_of AND {among})"
        " GROUP BY sqlstate, message HAVING sum(w) > 0 ORDER BY sqlstate, message LIMIT 1"
    )


def errors_between(reader: apsw.Connection, operators: Sequence[int], begin: int, end: int) -> Iterator[ErrorUpdate]:
    """Yield insertions and retractions of some operators' errors between two times, in order.

    Errors that exist at the first time are insertions at this time.
    """
    among = f"operator IN ({', '.join(map(str, sorted(operators)))})"
    there: Any = reader.execute(
        f"SELECT sqlstate, message, sum(w) FROM (SELECT sqlstate, message, w FROM errors WHERE {among} UNION ALL"
        f" SELECT sqlstate, message, -w FROM errors_history WHERE t > :begin AND {among})"
        " GROUP BY sqlstate, message ORDER BY sqlstate, message",
        {"begin": begin},
    ).fetchall()
    counts: Counter[tuple[str, str]] = Counter({(sqlstate, message): count for sqlstate, message, count in there})
    yield from ((begin, *error, 1) for error, count in counts.items() if count > 0)
    changes: Any = reader.execute(
        f"SELECT t, sqlstate, message, sum(w) FROM errors_history WHERE t > :begin AND t < :end AND {among}"
        " GROUP BY t, sqlstate, message ORDER BY t, sqlstate, message",
        {"begin": begin, "end": end},
    ).fetchall()
    for time, sqlstate, message, weight in changes:
        before = counts[sqlstate, message]
        counts[sqlstate, message] = after = before + weight
        if (before > 0) != (after > 0):
            yield time, sqlstate, message, 1 if after > 0 else -1


def history_of(operator: int, width: int) -> str:
    """Return a query of an arrangement's changes from `:begin` to before `:end`, by time."""
    return f"SELECT t, {names(width)}, w FROM h{operator} WHERE t >= :begin AND t < :end ORDER BY t"


_STEPS = 20_000
"""Number of SQLite steps after which a query is too slow; the interrupt may happen after twice as many steps."""
_TRIES = 2


class PointLookupReader:
    """A connection that answers fast queries, one at a time.

    Args:
        folder: folder of the instance.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._reader: apsw.Connection | None = None
        self._asked = 0
        self._running = running(_is_long)
        self._is_paused = False

    def rows(
        self,
        query: PreparedPeek,
        kept: Mapping[GlobalId, DataflowPlace],
        as_of: int,
        arguments: Sequence[Datum],
        most_bytes: int | None,
    ) -> list[Row] | None:
        """Return the rows of a query at a time; None if the query is slow, fails, or reads an unknown time.

        Args:
            query: the query.
            kept: places of the rows.
            as_of: the time.
            arguments: arguments of the parameters.
            most_bytes: maximum size of the result; None for no limit.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with self._running:
                rows = self._read(query, kept, as_of, arguments)
        except (FlowError, apsw.Error):  # the slow path reports the error
            return None
        finally:
            self._lock.release()
        if rows is not None and most_bytes is not None and sum(map(size_of, rows)) > most_bytes:
            return None
        return rows

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Allow commits during the block: end the shared transaction, and run each SELECT outside of a transaction."""
        with self._lock:
            self._is_paused = True
            if self._reader is not None and self._reader.in_transaction:
                self._reader.execute("ROLLBACK")
        try:
            yield
        finally:
            self._is_paused = False

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def _read(
        self, query: PreparedPeek, kept: Mapping[GlobalId, DataflowPlace], as_of: int, arguments: Sequence[Datum]
    ) -> list[Row] | None:
        reader = self._reader or self._open()
        if not self._is_paused and not reader.in_transaction:
            reader.execute("BEGIN")
        for _ in range(_TRIES):
            seen = query.seen_by(reader, kept)
            select = query.select(seen, as_of, arguments) if seen else None
            if seen is None or select is None:  # the dataflow may be known by now
                seen = self._look(reader, query, kept)
                select = query.select(seen, as_of, arguments)
            if select is None:
                return None
            self._asked = 0
            cursor = reader.execute(*select)
            rows = list(islice(cursor, BATCH_ROWS))
            if len(rows) == BATCH_ROWS:
                cursor.close()
                return None
            if reader.data_version() == seen.version:
                return rows
        return None

    def _look(self, reader: apsw.Connection, query: PreparedPeek, kept: Mapping[GlobalId, DataflowPlace]) -> Seen:
        if reader.in_transaction:
            return query.look(reader, kept)
        reader.execute("BEGIN")
        try:
            return query.look(reader, kept)
        finally:
            reader.execute("ROLLBACK")

    def _open(self) -> apsw.Connection:
        self._reader = reader = open_reader(self._folder)
        reader.set_progress_handler(self._takes_long, _STEPS)
        return reader

    def _takes_long(self) -> bool:
        """Return whether to interrupt the statement.

        The first call may be too early, because SQLite also counts the steps of earlier statements.
        """
        self._asked += 1
        return self._asked > 1


def _is_long() -> bool:  # called by functions that work long on one value
    return True
