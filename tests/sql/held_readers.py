"""Readers that live on while names come to mean other relations: each has the rows of the relation that it began with.

PostgreSQL tells which relation that is, by its oid, and which rows it has.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from patience import PATIENCE_SECONDS
from script_doors import Cells, Outcome, Session
from script_stage import Difference, Stage, query_of

_ENDS = {"40001", "42P01", "42703", "55000", "22023", "0A000", "58000"}
"""SQLSTATEs that say that a relation, or a column of it, is no more."""


_OWN = ("9999", "own")
"""The row that a writer inserts."""


@dataclass
class Held:
    """A reader of one relation.

    Attributes:
        kind: cursor, transaction, writer, subscription or past.
        oid: the relation, in PostgreSQL.
        name: its name at the beginning.
        columns: its columns that are read.
        rows: the rows that are expected, or that a subscription has so far.
        is_view: whether it is a view.
        session: the session of the reader; None for `past`.
        time: time of the read, for `past`.
    """

    kind: str
    oid: int
    name: str
    columns: list[str]
    rows: Counter[Cells]
    is_view: bool
    session: Session | None = None
    time: int = 0


class Readers:
    """The readers of a stage, by number."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._held: dict[str, Held] = {}

    def names(self) -> list[str]:
        """Return the numbers of the readers."""
        return [*self._held]

    async def forget(self, *, only_views: bool = False) -> None:
        """End all readers that a session has, as the end of the server does; or all readers of views."""
        for name, held in [*self._held.items()]:
            if held.is_view if only_views else held.session is not None:
                if held.session is not None:
                    await held.session.close()
                del self._held[name]

    async def hold(self, name: str, kind: str, relation: str) -> None:
        """Begin a reader of a relation, whose name has a schema."""
        stage = self._stage
        found = None if stage.status == "failed" else stage.postgres.relations().get(relation)
        if found is None:
            return
        columns = stage.postgres.columns(found[0])
        query = query_of(relation, columns)
        rows = stage.postgres.run(query)
        if rows.sqlstate:
            return
        held = Held(kind, found[0], relation, columns, rows.rows, is_view=found[1] == "v")
        if kind == "past":
            held.time = await self._present(query, rows)
        else:
            held.session = await stage.begin_session()
            if kind == "writer" and not await self._write(held):
                await held.session.close()
                return
            await self._begin(held, query)
        self._held[name] = held

    async def _write(self, held: Held) -> bool:
        """Begin a transaction that has only written; return whether the relation is a table that takes the row."""
        assert held.session is not None
        await held.session.run("BEGIN")
        target = query_of(held.name, []).partition("FROM ")[2]
        return not (await held.session.run(f"INSERT INTO {target} (k, v) VALUES ({_OWN[0]}, '{_OWN[1]}')")).sqlstate

    async def _present(self, query: str, expected: Outcome) -> int:
        """A time at which a query has the expected rows."""
        outcome = await self._stage.session.run("SELECT (extract(epoch FROM mz_now()) * 1000000)::bigint")
        (row,) = outcome.rows
        at = int(str(row[0]))
        self._compare("past", await self._stage.session.run(f"{query} AS OF {at}"), expected.rows)
        return at

    async def _begin(self, held: Held, query: str) -> None:
        assert held.session is not None
        if held.kind == "writer":
            return
        if held.kind == "subscription":
            query, held.rows = f"SUBSCRIBE ({query})", Counter()
        for text in ("BEGIN", query if held.kind == "transaction" else f"DECLARE c CURSOR FOR {query}"):
            outcome = await held.session.run(text)
            if outcome.sqlstate:
                raise Difference(f"{text}: {outcome}")
        if held.kind == "transaction":
            self._compare(held.kind, outcome, held.rows)
        elif held.kind == "cursor":
            held.rows = held.rows - (await held.session.run("FETCH 1 c")).rows

    def _compare(self, kind: str, outcome: Outcome, expected: Counter[Cells]) -> None:
        if outcome.sqlstate or outcome.rows != expected:
            raise Difference(f"{kind}: {outcome}\n  expected: {expected}")

    async def read(self, name: str) -> None:
        """Read on, and end the reader if that fails with an error that says why.

        Raises:
            Difference: the rows are not those of the relation.
        """
        held = self._held.get(name)
        if held is None or self._stage.status == "failed":
            return
        outcome = await {
            "cursor": self._read_cursor,
            "transaction": self._read_again,
            "writer": self._read_own,
            "subscription": self._follow,
            "past": self._read_past,
        }[held.kind](held)
        if outcome.sqlstate and outcome.sqlstate not in _ENDS:
            raise Difference(f"{held.kind} of {held.columns}: {outcome}")
        if outcome.sqlstate or held.kind in {"cursor", "writer"}:
            if held.session is not None:
                await held.session.close()
            del self._held[name]

    async def _read_cursor(self, held: Held) -> Outcome:
        assert held.session is not None
        outcome = await held.session.run("FETCH ALL c")
        if not outcome.sqlstate:
            self._compare(held.kind, outcome, held.rows)
        return outcome

    def _now(self, held: Held) -> tuple[str, str]:
        """The present name of a relation, and a query of the same columns; empty if there is none."""
        relations = {oid: name for name, (oid, _) in self._stage.postgres.relations().items()}
        name = relations.get(held.oid, "")
        is_there = bool(name) and {*held.columns} <= {*self._stage.postgres.columns(held.oid)}
        return name, query_of(name, held.columns) if is_there else ""

    async def _read_again(self, held: Held) -> Outcome:
        assert held.session is not None
        _, query = self._now(held)
        if not query:
            return Outcome()
        outcome = await held.session.run(query)
        if not outcome.sqlstate:
            self._compare(held.kind, outcome, held.rows)
        return outcome

    async def _read_own(self, held: Held) -> Outcome:
        """Read the relation that has the name of the written one, which has to be the same one."""
        assert held.session is not None
        name, _ = self._now(held)
        query = query_of(held.name, ["k", "v"])
        outcome = await held.session.run(query)
        if outcome.sqlstate or self._stage.status != "idle":
            return outcome
        if name != held.name:
            raise Difference(f"{query} reads another relation than the transaction has written: {outcome}")
        self._compare(held.kind, outcome, self._stage.postgres.run(query).rows + Counter([_OWN]))
        return outcome

    async def _read_past(self, held: Held) -> Outcome:
        _, query = self._now(held)
        if not query or self._stage.status != "idle":
            return Outcome()
        outcome = await self._stage.session.run(f"{query} AS OF {held.time}")
        if not outcome.sqlstate:
            self._compare(f"past: {query}", outcome, held.rows)
        return outcome

    async def _follow(self, held: Held) -> Outcome:
        """Read a subscription until it has the present rows of its relation, or its end."""
        assert held.session is not None
        if self._stage.status != "idle":
            return Outcome()
        name, query = self._now(held)
        theirs = self._stage.postgres.run(query) if query else Outcome()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            outcome = await held.session.run("FETCH ALL c WITH (timeout = '20ms')")
            if outcome.sqlstate:
                return outcome
            for (_, diff, *cells), count in outcome.rows.items():
                held.rows[tuple(cells)] += int(str(diff)) * count
            held.rows = Counter({row: count for row, count in held.rows.items() if count})
            if query and held.rows == theirs.rows:
                return outcome
            if not name:  # a subscription of a view that was dropped goes on
                return outcome
            if time.monotonic() > deadline:  # also if the relation has lost a column, which ends the subscription
                raise Difference(f"subscription of {name}: {held.rows}\n  expected: {theirs.rows}")
            await asyncio.sleep(0.005)
