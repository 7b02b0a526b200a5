"""Readers beside definitions: each way to read, and the states that its answer may be of."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from patience import PATIENCE_SECONDS
from script_doors import Cells, Outcome, outcome_of

from derive.errors import SqlError
from derive.functions.types.type_info import text_function
from derive.sql.coordinator import Coordinator
from derive.sql.results import ChangedResultError, Prepared, Result
from derive.sql.session import SqlSession

QUERIES = (
    "SELECT * FROM t",
    "SELECT k, a FROM t",
    "SELECT a, b FROM t WHERE k = 2",
    "SELECT k, b FROM t WHERE a = 20",
    "SELECT d FROM t",
    "SELECT e FROM t",
    "SELECT count(*) AS n, sum(a) AS a, sum(b) AS b FROM t",
    "SELECT a FROM t ORDER BY k LIMIT 2",
    "SELECT t.k, u.a FROM t JOIN u ON t.k = u.k",
    "SELECT * FROM u",
    "SELECT a, b FROM u WHERE k = 1",
    "SELECT * FROM v",
    "SELECT k, b FROM v WHERE a = 20",
    "SELECT * FROM w",
    "SELECT * FROM m",
    "SELECT a FROM m WHERE k = 2",
    "SELECT * FROM n",
    "SELECT * FROM o",
    "SELECT v.k, m.a, m.b FROM v JOIN m ON v.k = m.k",
    "SELECT * FROM x1",
    "SELECT s.a, o.s FROM (SELECT a FROM t) s LEFT JOIN o ON o.g = s.a % 7",
)

CATALOG_QUERIES = (
    "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't'",
    "SELECT table_name FROM information_schema.tables WHERE table_name IN ('t', 'u', 'v', 'w')",
    (
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relname IN ('u', 'v') AND a.attnum > 0 AND NOT a.attisdropped"
    ),
    "SELECT indexname FROM pg_indexes WHERE tablename = 't'",
)
"""Queries of names, whose first one in a transaction sets no time for its later reads."""

OWN_WRITES = (
    "INSERT INTO u VALUES (99, 98, 97, 'own'); SELECT * FROM u",
    "INSERT INTO t VALUES (99, 98, 97, 'own'); SELECT * FROM t",
    "INSERT INTO t (k, a) VALUES (99, 98); SELECT * FROM v",
    "INSERT INTO t (k, a) VALUES (99, 98); SELECT t.k, u.a FROM t JOIN u ON t.k = u.k OR t.k = 99",
    "COPY u (k, a, b) FROM STDIN|99\t98\t97; SELECT a, b FROM u",
    "UPDATE u SET a = a + 1000; SELECT a, b FROM u",
    "DELETE FROM t WHERE k = 2; SELECT k, b FROM t WHERE a = 20",
    (
        "INSERT INTO u VALUES (99, 98, 97, 'own'); MERGE INTO u USING t ON u.k = 99 AND t.k = 1"
        " WHEN MATCHED THEN UPDATE SET a = t.b; SELECT * FROM u"
    ),
)
"""Statements of a transaction that is rolled back; the outcome is that of the last one, or of one that fails."""

States = dict[str, Outcome]
"""Outcomes by query, in one state."""

_MOST_TRIES = 5
_CHANGED = str(ChangedResultError())


def key_of(outcome: Outcome) -> tuple[str, Counter[Any]]:
    """Return the part of an outcome that is compared."""
    return outcome.sqlstate, outcome.rows


@dataclass(frozen=True)
class Observation:
    """The answers that one reader has got so far.

    Attributes:
        how: the kind of reader.
        reads: queries and their outcomes, all of one time.
        first: number of the last change that was acknowledged before; 0 for a reader that may read earlier rows.
        last: number of the last change that was sent before the time of the read.
        named: numbers of changes, of which only the later ones up to the second may have changed the names of the
            reader, so that its answers are of no state if one of them is a definition; None if the names are of `last`.
    """

    how: str
    reads: Sequence[tuple[str, Outcome]]
    first: int
    last: int
    named: tuple[int, int] | None = None

    def is_of(self, state: States) -> bool:
        """Return whether all answers are those of a state."""
        return all(key_of(outcome) == key_of(state[text]) for text, outcome in self.reads)

    @property
    def is_conflict(self) -> bool:
        """Return whether the reader was told to read again, perhaps as a relation was dropped during the read."""
        told = (outcome.sqlstate == "40001" or outcome.message == _CHANGED for _, outcome in self.reads)
        return any(told) or any("was dropped" in outcome.message for _, outcome in self.reads)


@dataclass(frozen=True)
class Ended:
    """The rows of a subscription until it ended because a table was altered.

    Attributes:
        text: the query.
        rows: the rows.
        first: number of the last change that was acknowledged before the subscription.
        altered: time of the alteration.
    """

    text: str
    rows: Counter[Cells]
    first: int
    altered: int


async def run(session: SqlSession, statement: str | Prepared) -> Outcome:
    """Run a statement as a server does, which prepares the text of a simple query again if its columns change."""
    outcome = Outcome()
    for _ in range(_MOST_TRIES if isinstance(statement, str) else 1):
        try:
            return await asyncio.wait_for(_run(session, statement), PATIENCE_SECONDS)
        except ChangedResultError as error:
            outcome = Outcome(error.sqlstate, message=str(error))
        except SqlError as error:
            return Outcome(error.sqlstate, message=str(error))
        except TimeoutError:
            return Outcome("stalled")
    return outcome


async def _run(session: SqlSession, statement: str | Prepared) -> Outcome:
    copied = ""
    try:
        if isinstance(statement, str):
            text, _, copied = statement.partition("|")
            statement = await session.prepare(text, ())
        await session.begin_implicit()
        result = await session.execute(statement, ())
        columns = result.columns or ()
        show = [text_function(column.type, column.modifier) for column in columns]
        rows = [row async for batch in result.rows for row in batch] if result.rows is not None else []
        if result.copy_in is not None:
            await _copy(result, copied)
        await session.end_implicit()
    except ChangedResultError:
        raise
    except BaseException:
        await session.fail()
        raise
    texts = [tuple(None if one is None else to(one) for to, one in zip(show, row, strict=True)) for row in rows]
    return outcome_of("", [column.oid for column in columns], texts)


async def _copy(result: Result, copied: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(0, len(copied), 3):
            await asyncio.sleep(0)
            yield copied[number : number + 3].encode()
        yield b"\n"

    assert result.copy_in is not None
    await result.copy_in(pieces())


class Script(Protocol):
    """The changes so far.

    Attributes:
        coordinator: the owner of the data folder.
        beside: a process that is not the owner.
        acknowledged: number of the last change that has ended.
        sent: number of the last change that has begun.
        is_over: whether no change follows.
        times: for each state, a time at which it was the present one.
    """

    coordinator: Coordinator
    beside: Coordinator
    acknowledged: int
    sent: int
    is_over: bool
    times: list[int]


@dataclass
class Readers:
    """The readers beside a script.

    Attributes:
        script: the script.
        observations: what the readers have seen.
        ended: subscriptions that ended because of definitions.
    """

    script: Script
    observations: list[Observation] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    async def read(self, random: Random) -> None:
        """Read in random ways until the end of the script."""
        kinds = [self._one, self._one, self._beside, self._earlier, self._prepared, self._executed, self._transaction]
        kinds += [self._cursor, self._held, self._at, self._copied, self._subscribed, self._names, self._own, self._own]
        while not self.script.is_over:
            await random.choice(kinds)(random)
            await asyncio.sleep(random.choice((0, 0, 0.05)))

    def _session(self, **settings: str) -> SqlSession:
        return SqlSession(self.script.coordinator, settings)

    async def _one(self, random: Random) -> None:
        first, text = self.script.acknowledged, random.choice(QUERIES)
        self._observe("one", [(text, await run(self._session(), text))], first)

    async def _names(self, random: Random) -> None:
        first, text = self.script.acknowledged, random.choice(CATALOG_QUERIES)
        process = random.choice((self.script.coordinator, self.script.beside))
        self._observe("names", [(text, await run(SqlSession(process), text))], first)

    async def _beside(self, random: Random) -> None:
        first, text = self.script.acknowledged, random.choice(QUERIES)
        self._observe("beside", [(text, await run(SqlSession(self.script.beside), text))], first)

    async def _earlier(self, random: Random) -> None:
        session, text = self._session(transaction_isolation="serializable"), random.choice(QUERIES)
        self._observe("serializable", [(text, await run(session, text))], 0)

    async def _copied(self, random: Random) -> None:
        first, text = self.script.acknowledged, random.choice(QUERIES)
        self._observe("copy", [(text, await run(self._session(), f"COPY ({text}) TO STDOUT"))], first)

    async def _at(self, random: Random) -> None:
        number, text = self.script.acknowledged, random.choice(QUERIES)
        outcome = await run(self._session(), f"{text} AS OF {self.script.times[number]}")
        self._observe("as of", [(text, outcome)], number, number, named=(number, self.script.sent))

    async def _prepared(self, random: Random) -> None:
        session, text = self._session(), random.choice(QUERIES)
        with suppress(SqlError):
            prepared = await session.prepare(text, ())
            for _ in range(3):
                await asyncio.sleep(random.choice((0, 0.1, 0.3)))
                first = self.script.acknowledged
                self._observe("prepared", [(text, await run(session, prepared))], first)

    async def _executed(self, random: Random) -> None:
        session, text = self._session(), random.choice(QUERIES)
        if not (await run(session, f"PREPARE p AS {text}")).sqlstate:
            for _ in range(2):
                await asyncio.sleep(random.choice((0, 0.1, 0.3)))
                first = self.script.acknowledged
                self._observe("execute", [(text, await run(session, "EXECUTE p"))], first)

    async def _transaction(self, random: Random) -> None:
        session, first, reads = self._session(), self.script.acknowledged, list[tuple[str, Outcome]]()
        await run(session, "BEGIN")
        for text in random.sample(QUERIES, 3):
            reads.append((text, await run(session, text)))
            if reads[-1][1].sqlstate:
                break
            await asyncio.sleep(random.choice((0, 0, 0.1)))
        self._observe("transaction", reads, first)
        await run(session, "COMMIT")

    async def _own(self, random: Random) -> None:
        session, first, text = self._session(), self.script.acknowledged, random.choice(OWN_WRITES)
        await run(session, "BEGIN")
        for statement in text.split("; "):
            outcome = await run(session, statement)
            if outcome.sqlstate:
                break
            await asyncio.sleep(random.choice((0, 0.1, 0.3)))
        self._observe("own writes", [(text, outcome)], first)
        await run(session, "ROLLBACK")

    async def _cursor(self, random: Random) -> None:
        session, first, text = self._session(), self.script.acknowledged, random.choice(QUERIES)
        await run(session, "BEGIN")
        outcome, last = await run(session, f"DECLARE r CURSOR FOR {text}"), self.script.sent
        if not outcome.sqlstate:
            await asyncio.sleep(random.choice((0, 0.1, 0.3)))
            outcome = await run(session, "FETCH ALL FROM r")
        self._observe("cursor", [(text, outcome)], first, last)
        await run(session, "COMMIT")

    async def _held(self, random: Random) -> None:
        session, first, text = self._session(), self.script.acknowledged, random.choice(QUERIES)
        outcome, last = await run(session, f"DECLARE r CURSOR WITH HOLD FOR {text}"), self.script.sent
        if not outcome.sqlstate:
            await asyncio.sleep(random.choice((0, 0.1, 0.3)))
            outcome = await run(session, "FETCH ALL FROM r")
        self._observe("held cursor", [(text, outcome)], first, last)
        await session.close()

    async def _subscribed(self, random: Random) -> None:
        session, first, text = self._session(), self.script.acknowledged, random.choice(QUERIES)
        await run(session, "BEGIN")
        outcome = await run(session, f"DECLARE s CURSOR FOR SUBSCRIBE ({text}) WITH (PROGRESS)")
        last, seen = self.script.sent, _Updates()
        if outcome.sqlstate and outcome.sqlstate not in {"0A000", "55000"}:  # of subscriptions only
            self._observe("subscription", [(text, outcome)], first)
        while not outcome.sqlstate and len(seen.frontiers) < 4 and not self.script.is_over:
            outcome = await run(session, "FETCH ALL s WITH (timeout = '100ms')")
            seen.add(outcome.rows)
            if seen.frontiers:
                self._observe("snapshot", [(text, seen.until(min(seen.frontiers)))], first, last)
                updated = [(text, seen.until(max(seen.frontiers)))]
                self._observe("updates", updated, first, named=(first, self.script.sent))
        if altered := re.search("was altered at ([0-9]+)", outcome.message):
            if seen.frontiers:
                self.ended.append(Ended(text, seen.until(int(altered[1])).rows, first, int(altered[1])))
        elif outcome.sqlstate not in {"", "0A000", "55000"}:
            self._observe("subscription", [(text, outcome)], first)
        await session.close()

    def _observe(
        self,
        how: str,
        reads: Sequence[tuple[str, Outcome]],
        first: int,
        last: int | None = None,
        *,
        named: tuple[int, int] | None = None,
    ) -> None:
        last = self.script.sent if last is None else last
        self.observations.append(Observation(how, reads, first, last, named))


class _Updates:
    """The updates of a subscription with progress.

    Attributes:
        frontiers: times below which all updates were sent.
    """

    def __init__(self) -> None:
        self.frontiers: set[int] = set()
        self._updates: list[tuple[int, int, Cells]] = []

    def add(self, rows: Counter[Cells]) -> None:
        """Add the rows of a fetch."""
        for (time, is_progress, diff, *cells), count in rows.items():
            if is_progress == "t":
                self.frontiers.add(int(str(time)))
            else:
                self._updates.append((int(str(time)), int(str(diff)) * count, tuple(cells)))

    def until(self, end: int) -> Outcome:
        """Return the rows just before a time."""
        counts: Counter[Cells] = Counter()
        for time, count, cells in self._updates:
            counts[cells] += count if time < end else 0
        return Outcome(rows=Counter({cells: count for cells, count in counts.items() if count}))
