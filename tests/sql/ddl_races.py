"""Definitions beside readers, while the hand-offs between threads and tasks are slow: each answer is that of one state.

One session changes tables and views, and others read meanwhile. A real PostgreSQL plays the changes alone, one after
the other, and answers each query in each state. The answer of a reader is that of a state between the last change that
was acknowledged before its question, and the last change that was sent before its answer. All answers of a transaction
are those of one state. Only a conflict (40001) is always permitted. At the time of each change, the stored rows of a
materialized view are those of PostgreSQL after this change.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
import pytest
from race_readers import CATALOG_QUERIES, OWN_WRITES, QUERIES, Readers, States, run
from script_doors import Outcome, executed

from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Peeks
from derive.compute.replica.writeback import Writeback
from derive.contents.rows import table_at
from derive.errors import FrontierError
from derive.sql.coordinator import Coordinator
from derive.sql.execution import dml, executor, query, subscribe
from derive.sql.maintenance.controller.controller import Controller
from derive.sql.maintenance.view_maintenance import Maintenance
from derive.sql.parser.statement import ObjectKind
from derive.sql.session import SqlSession
from derive.sql.transactions.group_commit import GroupCommit
from derive.sql.transactions.key_index import KeyIndexes
from derive.sql.transactions.storage_clock import StoreClock
from derive.sql.transactions.timeline import Timeline
from derive.storage.store import Store
from derive.storage.table_types import Table
from derive.storage.tables import Tables

SETUP = (
    "CREATE TABLE t (k int PRIMARY KEY, a int, b int, c text)",
    "CREATE TABLE u (k int, a int, b int, c text)",
    "INSERT INTO t VALUES (1, 10, 100, 'x'), (2, 20, 200, 'y'), (3, 30, 300, 'z')",
    "INSERT INTO u VALUES (1, 11, 101, 'p'), (2, 22, 202, 'q')",
    "CREATE VIEW v AS SELECT k, a, b FROM t",
    "CREATE VIEW w AS SELECT a, count(*) AS n FROM v GROUP BY a",
    "CREATE MATERIALIZED VIEW m AS SELECT k, a, b FROM t WHERE k < 100",
    "CREATE MATERIALIZED VIEW n AS SELECT t.k, t.b AS x, u.b AS y FROM t JOIN u ON t.k = u.k",
    "CREATE MATERIALIZED VIEW o AS SELECT a % 7 AS g, sum(b) AS s FROM m GROUP BY a % 7",
    "CREATE INDEX t_a ON t (a)",
    "CREATE INDEX u_k ON u (k)",
)

_VIEWS = ("VIEW", "MATERIALIZED VIEW")

CHANGES = (
    "ALTER TABLE t RENAME COLUMN a TO aa",
    "ALTER TABLE t RENAME COLUMN aa TO a",
    "ALTER TABLE t RENAME COLUMN b TO bb",
    "ALTER TABLE t RENAME COLUMN bb TO b",
    "BEGIN; ALTER TABLE t RENAME COLUMN a TO tmp; ALTER TABLE t RENAME COLUMN b TO a; ALTER TABLE t RENAME COLUMN tmp TO b; COMMIT",
    "BEGIN; ALTER TABLE u RENAME COLUMN a TO tmp; ALTER TABLE u RENAME COLUMN b TO a; ALTER TABLE u RENAME COLUMN tmp TO b; COMMIT",
    "BEGIN; ALTER TABLE t RENAME TO tmp; ALTER TABLE u RENAME TO t; ALTER TABLE tmp RENAME TO u; COMMIT",
    "ALTER TABLE t ADD COLUMN d int DEFAULT 5",
    "ALTER TABLE t ADD COLUMN d int",
    "ALTER TABLE t ADD COLUMN e int DEFAULT 9",
    "ALTER TABLE t DROP COLUMN d",
    "ALTER TABLE t DROP COLUMN e",
    "BEGIN; ALTER TABLE t DROP COLUMN d; ALTER TABLE t ADD COLUMN e int DEFAULT 77; COMMIT",
    "BEGIN; ALTER TABLE t DROP COLUMN e; ALTER TABLE t ADD COLUMN d int DEFAULT 66; COMMIT",
    "ALTER TABLE t DROP COLUMN d, ADD COLUMN e int DEFAULT 88",
    "ALTER TABLE t ALTER COLUMN d TYPE text",
    "ALTER TABLE t ALTER COLUMN c SET DEFAULT 'dd'",
    "ALTER TABLE u ALTER COLUMN a TYPE bigint",
    "TRUNCATE t",
    "TRUNCATE u",
    "CREATE OR REPLACE VIEW v AS SELECT k, a, b FROM t WHERE k > 1",
    "CREATE OR REPLACE VIEW v AS SELECT k, b AS a, a AS b FROM t",
    "CREATE OR REPLACE VIEW v AS SELECT k, a, b FROM t",
    "CREATE OR REPLACE VIEW v AS SELECT k, a, b FROM u",
    "CREATE INDEX v_a ON v (a)",
    "CREATE INDEX t_a ON t (a)",
    "CREATE INDEX t_b ON t (b)",
    "DROP INDEX t_a",
    "DROP INDEX t_b",
    "DROP INDEX v_a",
    "DROP INDEX u_k",
    "ALTER VIEW v RENAME TO x1",
    "ALTER VIEW x1 RENAME TO v",
    "BEGIN; ALTER MATERIALIZED VIEW m RENAME TO tmp; ALTER MATERIALIZED VIEW n RENAME TO m; ALTER MATERIALIZED VIEW tmp RENAME TO n; COMMIT",
    "ALTER MATERIALIZED VIEW m RENAME TO x1",
    "ALTER MATERIALIZED VIEW x1 RENAME TO m",
    "BEGIN; DROP MATERIALIZED VIEW o; CREATE MATERIALIZED VIEW o AS SELECT b % 5 AS g, sum(a) AS s FROM t GROUP BY b % 5; COMMIT",
    "DROP MATERIALIZED VIEW n",
    "CREATE MATERIALIZED VIEW n AS SELECT t.k, t.b AS x, u.b AS y FROM t JOIN u ON t.k = u.k",
    "CREATE MATERIALIZED VIEW n AS SELECT t.k, u.a AS x, t.a AS y FROM t JOIN u ON t.k = u.k",
    "BEGIN; DROP TABLE u CASCADE; CREATE TABLE u AS SELECT k, b AS a, a AS b, c FROM t; COMMIT",
    "BEGIN; DROP TABLE IF EXISTS u CASCADE; CREATE TABLE u (k int, a int, b int, c text); INSERT INTO u VALUES (1, 7, 8, 'u'); COMMIT",
    "BEGIN; CREATE TABLE nu AS SELECT * FROM u; DROP TABLE u CASCADE; ALTER TABLE nu RENAME TO u; UPDATE u SET a = a + 1; COMMIT",
    "ALTER TABLE t RENAME COLUMN k TO kk",
    "ALTER TABLE t RENAME COLUMN kk TO k",
    "ALTER TABLE t ADD CONSTRAINT a_positive CHECK (a > 0)",
    "ALTER TABLE t DROP CONSTRAINT a_positive",
    *(f"CREATE {kind} of_{name}{{n}} AS SELECT * FROM {name}" for kind in _VIEWS for name in ("t", "u", "m")),
)

WRITES = (
    "COPY u (k, a, b) FROM STDIN|{small}\t{n}\t{n}5",
    "COPY t (k, a, b) FROM STDIN|{n}\t{n}6\t{n}7",
    "INSERT INTO t (k, a, b) VALUES ({one}, {n}, {n}) ON CONFLICT (k) DO UPDATE SET a = excluded.a + t.b",
    "MERGE INTO u USING t ON u.k = t.k WHEN MATCHED THEN UPDATE SET a = t.b WHEN NOT MATCHED THEN INSERT VALUES (t.k, t.a, {n})",
    "INSERT INTO t VALUES ({n}, {n}0, {n}00, 'i{n}')",
    "INSERT INTO t (k, a, b) VALUES ({n}, {n}1, {n}01)",
    "UPDATE t SET a = a + {n}",
    "UPDATE t SET b = b + {n} WHERE k = 2",
    "UPDATE t SET d = {n}",
    "DELETE FROM t WHERE k = {one}",
    "INSERT INTO u VALUES ({small}, {n}, {n}2, 'u{n}')",
    "UPDATE u SET b = b + {n}",
    "UPDATE u SET a = {n} WHERE k = 1",
)


_OF_ROWS = ("INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "TRUNCATE")
"""First words of changes that are no definitions."""

_THREADS: Sequence[tuple[Any, str]] = [
    (Maintenance, "work"),
    (Maintenance, "_command"),
    (Controller, "create"),
    (Reconciler, "work"),
    (Peeks, "look"),
    (Writeback, "write"),
    (Writeback, "_update"),
    (Tables, "commit"),
    (Store, "seal"),
    (Coordinator, "look"),
]
"""Work of threads that may begin and end late."""

_TASKS: Sequence[tuple[Any, str]] = [
    (executor, "carry_out"),
    (subscribe, "updates"),
    (dml, "check_keys"),
    (GroupCommit, "published"),
    (query, "time_of"),
    (query, "ask"),
    (query, "read_tables"),
    (query, "_is_known"),
    (query, "has_same_dataflows"),
    (query, "_look_up"),
    (query, "_look_up_key"),
    (query, "_rows_by_keys"),
    (GroupCommit, "commit"),
    (GroupCommit, "_write"),
    (Timeline, "read"),
    (StoreClock, "append"),
    (StoreClock, "seal"),
    (KeyIndexes, "load"),
]
"""Work of the event loop that may begin and end late."""


class Windows:
    """Pauses at half of the hand-offs.

    Args:
        patch: replaces functions until the end of the test.
        random: chooses the hand-offs and the pauses.
        most_seconds: longest pause.
    """

    def __init__(self, patch: pytest.MonkeyPatch, random: Random, most_seconds: float) -> None:
        self._random, self._most_seconds = random, most_seconds
        for slow, points in ((self._slow_thread, _THREADS), (self._slow_task, _TASKS)):
            for owner, name in random.sample(list(points), len(points) // 2):
                patch.setattr(owner, name, slow(getattr(owner, name)))

    def _seconds(self) -> float:
        return self._random.random() * self._most_seconds if self._random.random() < 0.4 else 0.0

    def _slow_thread(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **named: Any) -> Any:
            time.sleep(self._seconds())
            result = plain(*arguments, **named)
            time.sleep(self._seconds())
            return result

        return slow

    def _slow_task(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        async def slow(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(self._seconds())
            result = await plain(*arguments, **named)
            await asyncio.sleep(self._seconds())
            return result

        return slow


@dataclass
class Race:
    """One script of changes, and the readers beside it.

    Attributes:
        coordinator: the owner of the data folder.
        beside: a process that is not the owner.
        seed: chooses the changes and the queries.
        acknowledged: number of the last change that has ended.
        sent: number of the last change that has begun.
        is_over: whether no change follows.
        changes: the changes with their outcomes.
        times: for each state, a time at which it was the present one.
        readers: the readers beside the changes.
    """

    coordinator: Coordinator
    beside: Coordinator
    seed: int
    acknowledged: int = 0
    sent: int = 0
    is_over: bool = False
    changes: list[tuple[str, Outcome]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.readers = Readers(self)

    async def begin(self) -> None:
        """Create the tables and views."""
        writer = SqlSession(self.coordinator)
        for text in SETUP:
            outcome = await run(writer, text)
            assert not outcome.sqlstate, (text, outcome)
        if self.seed % 4 == 3:  # another process maintains the views, too
            await run(writer, "CREATE REPLICA one")
        self.times.append(self.coordinator.timeline.latest)

    async def play(self, steps: int) -> None:
        """Play the script."""
        random, writer = Random(self.seed), SqlSession(self.coordinator)
        reading = [asyncio.create_task(self.readers.read(Random(self.seed * 100 + number))) for number in range(5)]
        for number in range(1, steps + 1):
            text = random.choice(CHANGES if random.random() < 0.7 else WRITES)
            text = text.format(n=number + 10, one=random.randint(1, 3), small=random.randint(1, 4))
            self.sent, outcome = number, Outcome()
            for statement in text.split("; "):
                outcome = await run(writer, statement)
                if outcome.sqlstate:
                    await run(writer, "ROLLBACK")
                    break
            self.changes.append((text, outcome))
            self.times.append(self.coordinator.timeline.latest)
            self.acknowledged = number
            await asyncio.sleep(random.choice((0, 0, 0.02, 0.1, 0.3)))
        self.is_over = True
        await asyncio.gather(*reading)

    @property
    def views(self) -> Iterator[tuple[str, Table]]:
        """Yield the names and tables of the materialized views."""
        for item in self.coordinator.objects.items.values():
            table = self.coordinator.store.tables.table(item.id)
            if item.kind is ObjectKind.MATERIALIZED_VIEW and table is not None:
                yield item.name, table

    async def settle(self) -> None:
        """Wait until all views are stored up to the present."""
        present = self.coordinator.timeline.latest
        while not all(table.upper > present for _, table in self.views):
            await self.coordinator.watcher.next.wait()


class Oracle:
    """The states in which a PostgreSQL answers after each change.

    Args:
        postgres: a connection to an empty database.
        race: the changes.

    Attributes:
        states: the outcomes in each state; they end where PostgreSQL and the race differ in a change's SQLSTATE.
        troubles: that difference.
    """

    def __init__(self, postgres: psycopg.Connection[Any], race: Race) -> None:
        self._postgres, self._race = postgres, race
        for text in SETUP:
            assert not self._play(text).sqlstate, text
        self.states, self.troubles = [self._state()], list[str]()
        for text, ours in race.changes:
            if ours.sqlstate not in {"0A000", "2BP01"} and "INDEX v_a" not in text:  # which PostgreSQL may permit
                theirs = self._change(text)
                if theirs.sqlstate != ours.sqlstate:
                    if not {theirs.sqlstate, ours.sqlstate} <= {"0A000", "2BP01", "42P07", "42809", "42P01", ""}:
                        self.troubles.append(f"{text}\n  ours: {ours}\n  theirs: {theirs}")
                    break
            self.states.append(self._state())

    def _play(self, text: str) -> Outcome:
        begin, _, copied = text.partition("|")
        if copied:
            values = copied.replace("\t", "', '")
            text = f"{begin.replace('COPY', 'INSERT INTO').removesuffix('FROM STDIN')} VALUES ('{values}')"
        return executed(self._postgres.pgconn, text.replace("MATERIALIZED VIEW", "VIEW"))

    def _change(self, text: str) -> Outcome:
        outcome = Outcome()
        for statement in text.split("; "):
            outcome = self._play(statement)
            if outcome.sqlstate:
                self._play("ROLLBACK")
                break
        return outcome

    def _state(self) -> States:
        return {text: self._play(text) for text in (*QUERIES, *CATALOG_QUERIES)} | {
            text: self._rolled_back(text) for text in OWN_WRITES
        }

    def _rolled_back(self, text: str) -> Outcome:
        self._play("BEGIN")
        for statement in text.split("; "):
            outcome = self._play(statement)
            if outcome.sqlstate:
                break
        self._play("ROLLBACK")
        return outcome

    def wrong_answers(self) -> Iterator[str]:
        """Yield the observations that are those of no state."""
        for seen in self._race.readers.observations:
            if seen.is_conflict or seen.last >= len(self.states) or (seen.named and self._defines(*seen.named)):
                continue
            span = range(seen.first, seen.last + 1)
            if not any(seen.is_of(self.states[number]) for number in span):
                expected = [{text: self.states[number][text] for text, _ in seen.reads} for number in span]
                yield f"{seen}\n  states: {expected}"
        for ended in self._race.readers.ended:
            number = bisect_left(self._race.times, ended.altered) - 1  # of the state before the alteration
            if number < len(self.states) and not self._defines(ended.first, number):
                before = self.states[number][ended.text]
                if before.rows != ended.rows:
                    yield f"{ended}\n  state {number}: {before}"

    def _defines(self, after: int, until: int) -> bool:
        """Return whether one of the changes after a change, up to another one, is a definition."""
        return any(not text.startswith(_OF_ROWS) for text, _ in self._race.changes[after:until])

    def wrong_rows(self) -> Iterator[str]:
        """Yield the stored rows of views that are not those of their time."""
        changes = [text for text, outcome in self._race.changes if not outcome.sqlstate]
        moved = [number for number, text in enumerate(changes, 1) if "MATERIALIZED" in text or "CASCADE" in text]
        if moved:  # names of views have moved
            return
        for name, table in self._race.views:
            for number, state in enumerate(self.states):
                at, later = self._race.times[number], self._race.times[number + 1 : number + 2]
                rows = self._stored(table, at)
                if rows is None or later == [at]:
                    continue
                if rows != state[f"SELECT * FROM {name}"].rows:
                    yield f"{name} at {at}, after change {number}: {rows} in place of {state[f'SELECT * FROM {name}']}"

    def _stored(self, table: Table, at: int) -> Counter[Any] | None:
        """Return the stored rows of a view at a time; None before it has rows."""
        try:
            rows = [row for batch in table_at(self._race.coordinator.store, table, at) for row in batch]
        except FrontierError:
            return None
        return Counter(tuple(None if datum is None else str(datum) for datum in row) for row in rows)
