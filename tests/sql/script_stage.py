"""One data folder and one PostgreSQL, which play the same script: statements, crashes, and other doors.

A script is a list of texts. Texts that begin with `!` are for the data folder only, or for both in other ways:

    !restart               close everything, and open it again
    !door NAME             likewise, with another door: embedded, served or instances
    !kill                  kill the server between two statements
    !kill MS TEXT          kill the server MS milliseconds after a statement was sent
    !instance              kill a compute instance
    !together ONE ;; TWO   run two statements at once, in two sessions
    !ours TEXT             a statement that PostgreSQL does not know
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from postgres_server import server
from script_doors import SEARCH_PATH, Door, Embedded, Outcome, Served, Session, executed, settled
from sql_world import SqlWorld

CATALOG = """
collections:
  c/x:
    schema:
      type: object
      required: [k]
      properties: {k: {type: integer}, v: {type: string}}
      reduce: {strategy: lastWriteWins}
    key: [/k]
"""

_DEPENDENTS = ("ALTER", "DROP", "TRUNCATE", "CREATE OR REPLACE")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE", "EXECUTE", "TRUNCATE", "PREPARE")
_MOST_TRIES = 50

States = dict[str, Outcome]
"""Outcomes by query."""


class Postgres:
    """A database of a PostgreSQL, which is empty at the beginning."""

    def __init__(self) -> None:
        self._connection = _connection()
        self.run("ROLLBACK")
        for text in (
            "DROP SCHEMA IF EXISTS s, s2 CASCADE",
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
            "DISCARD ALL",
            "SET TimeZone = 'UTC'",
            SEARCH_PATH,
        ):
            assert not self.run(text).sqlstate, text

    def has(self, name: str) -> bool:
        """Return whether a relation exists."""
        return self.run(f"SELECT to_regclass('{name}')").rows != Counter([(None,)])

    def run(self, text: str) -> Outcome:
        """Run a statement."""
        return executed(self._connection.pgconn, text)

    def relations(self, *, with_temporary: bool = True) -> dict[str, tuple[int, str]]:
        """Return the oid and the kind of each table and view, by its name with a schema."""
        where = "" if with_temporary else " AND c.relpersistence <> 't'"
        outcome = self.run(
            "SELECT c.oid, c.relkind, CASE WHEN c.relpersistence = 't' THEN 'pg_temp' ELSE n.nspname END, c.relname"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v')"
            f" AND (n.nspname IN ('public', 's', 's2') OR n.oid = pg_my_temp_schema()){where}"
        )
        assert not outcome.sqlstate, outcome
        listed = sorted((int(str(oid)), str(kind), f"{schema}.{name}") for oid, kind, schema, name in outcome.rows)
        return {name: (oid, kind) for oid, kind, name in listed}

    def columns(self, oid: int) -> list[str]:
        """Return the columns of a relation, without identities, whose numbers may differ after errors."""
        outcome = self.run(
            f"SELECT attnum, attname FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
            " AND attidentity = ''"
        )
        return [str(name) for _, name in sorted(outcome.rows, key=lambda row: int(str(row[0])))]

    def state(self) -> States:
        """Return the outcomes of queries of all relations that outlive a session."""
        queries = []
        for name, (oid, kind) in self.relations(with_temporary=False).items():
            is_temporal = kind == "v" and "now()" in str(self.run(f"SELECT pg_get_viewdef({oid})").rows)
            if not is_temporal:
                queries.append(query_of(name, self.columns(oid)))
        return {query: self.run(query) for query in queries}


def query_of(name: str, columns: list[str]) -> str:
    """A query of columns of a relation, whose name has a schema."""
    schema, _, relation = name.partition(".")
    quoted = f'"{relation}"' if "/" in relation else f"{schema}.{relation}"
    return f"SELECT {', '.join(columns)} FROM {quoted}"


@cache
def _connection() -> psycopg.Connection[Any]:
    """To a database whose texts are in the order of code points."""
    with server().connect() as first:
        first.autocommit = True
        first.execute(
            "CREATE DATABASE scripts TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
        )
    connected = server().connect(dbname="scripts")
    connected.autocommit = True
    connected.execute("SET client_min_messages = error")
    return connected


class Difference(Exception):
    """Outcomes that ought to be the same."""


def is_lenient(ours: Outcome, theirs: Outcome) -> bool:
    """Whether one of two has met an error of a value that the other did not look at."""
    return any(one.sqlstate.startswith(("22", "54")) for one in (ours, theirs))


def _is_same(ours: Outcome, theirs: Outcome) -> bool:
    return ours == theirs or is_lenient(ours, theirs)


def _as_view(text: str) -> str:
    """A statement for PostgreSQL, in which views stand for materialized ones."""
    return re.sub(r"^(CREATE|DROP|ALTER) MATERIALIZED VIEW", r"\1 VIEW", text)


class Stage:
    """Both, with one session each.

    Attributes:
        world: the data folder.
        session: the session over it.
        refusals: messages of what we refuse, by number.
        status: idle, begun or failed: the transaction of both sessions.
        is_over: whether the rest of a script would show nothing, because its state is not known.
    """

    def __init__(self, folder: Path, catalog: str = CATALOG) -> None:
        self.world = SqlWorld(folder, catalog)
        self.door: Door = Embedded(self.world)
        self.postgres = Postgres()
        self.refusals: Counter[str] = Counter()
        self.lenient = 0
        self.status = "idle"
        self.is_over = False

    async def start(self) -> None:
        """Open the data folder through the door."""
        await self.door.start()
        self.session = await self.begin_session()

    async def begin_session(self) -> Session:
        """Begin one more session."""
        session = await self.door.session()
        await session.run(SEARCH_PATH)
        return session

    async def stop(self) -> None:
        """Close everything."""
        await self.session.close()
        await self.door.stop()

    def count_maintained(self) -> int:
        """The least number of relations that are maintained."""
        return 0

    async def settle(self) -> None:
        """Wait until all views are read from what is maintained."""
        if trouble := await settled(self.session, self.count_maintained()):
            raise Difference(trouble)

    # Statements

    async def both(self, text: str, other: str = "") -> bool:
        """Run a statement in both; return whether it has succeeded.

        Raises:
            Difference: outcomes differ.
        """
        ours = self._as_theirs(await self.session.run(text))
        is_dependent = ours.sqlstate in {"2BP01", "42P17"} and text.startswith(_DEPENDENTS)
        is_view = ours.sqlstate == "42809" and text.startswith(_WRITES)  # PostgreSQL writes through some views
        if ours.sqlstate == "0A000" or is_dependent or is_view:
            self.refusals[ours.message] += 1
            if self.status != "idle":
                self.postgres.run("SELECT 1 / 0")
            self._follow(text, is_done=False)
            return False
        theirs = self.postgres.run(other or _as_view(text))
        if ours != theirs:
            self._accept(text, ours, theirs)
        is_done = not (ours.sqlstate or theirs.sqlstate)
        self._follow(text, is_done=is_done)
        return is_done

    def _as_theirs(self, ours: Outcome) -> Outcome:
        tag = ours.tag.replace("MATERIALIZED ", "")
        return Outcome(ours.sqlstate, tag, ours.types, ours.rows, ours.message)

    def _accept(self, text: str, ours: Outcome, theirs: Outcome) -> None:
        """Accept two outcomes that differ only by the order in which errors are met.

        Raises:
            Difference: they differ otherwise.
        """
        both_fail = ours.sqlstate[:2] in {"22", "23"} and theirs.sqlstate[:2] in {"22", "23"}
        is_query = text.startswith(("SELECT", "WITH w", "(", "EXECUTE"))
        if not both_fail and not (is_query and is_lenient(ours, theirs)):
            raise Difference(f"{text}\n  ours: {ours}\n  theirs: {theirs}")
        self.lenient += 1

    def _follow(self, text: str, *, is_done: bool) -> None:
        if not is_done:
            self.status = "failed" if self.status != "idle" else "idle"
        elif text == "BEGIN" or text.startswith("ROLLBACK TO"):
            self.status = "begun"
        elif text in {"COMMIT", "ROLLBACK"}:
            self.status = "idle"

    async def perform(self, text: str) -> bool:
        """Play one text that begins with `!`; return whether it is one of this stage."""
        verb, _, rest = text.partition(" ")
        if verb == "!restart":
            await self.restart(self.door)
        elif verb == "!door":
            doors: dict[str, Door] = {"embedded": Embedded(self.world), "served": Served(self.world)}
            await self.restart(doors.get(rest) or Served(self.world, 2))
        elif verb == "!kill":
            await self.kill(rest)
        elif verb == "!instance" and isinstance(self.door, Served):
            self.door.kill_instance(Random(0))
        elif verb == "!together":
            await self.together(*rest.split(" ;; "))
        elif verb == "!ours":
            outcome = await self.session.run(rest)
            if outcome.sqlstate[:2] not in {"", "0A", "23"}:
                raise Difference(f"{rest}: {outcome}")
        else:
            return False
        return True

    # Processes

    async def restart(self, door: Door) -> None:
        """Close everything, and open it again through a door."""
        await self.stop()
        self.door = door
        await self.start()
        self._forget_session()

    def _forget_session(self) -> None:
        """Let PostgreSQL forget what no session outlives."""
        self.postgres.run("ROLLBACK")
        self.status = "idle"
        for text in ("DISCARD TEMP", "DEALLOCATE ALL"):
            self.postgres.run(text)

    async def kill(self, text: str) -> None:
        """Kill the server while a statement runs, or between two: what was acknowledged is there, all else or nothing.

        Raises:
            Difference: neither the state before nor the state after the statement is there.
        """
        if not isinstance(self.door, Served):
            return
        delay, _, statement = text.partition(" ")
        answer = Outcome("lost")
        if statement:
            running = asyncio.create_task(self.session.run(statement))
            await asyncio.wait([running], timeout=int(delay) / 1000)
            await self.door.kill()
            answer = await running
        else:
            await self.door.kill()
        await self.session.close()
        await self.start()
        await self._find_state(statement, answer)

    async def _find_state(self, statement: str, answer: Outcome) -> None:
        """Let PostgreSQL come to the state that a crash within a statement has left."""
        was_idle = self.status == "idle"
        after = self._state_after(statement)
        if after is not None and not await self._trouble(after) and not self.postgres.run("COMMIT").sqlstate:
            self._forget_session()
            return
        self._forget_session()
        trouble = await self._trouble(self.postgres.state())
        if trouble:
            raise Difference(f"killed in {statement}: {answer}\n  {trouble}\n  after: {after}")
        if not answer.sqlstate and after is not None and (was_idle or statement == "COMMIT"):
            raise Difference(f"acknowledged and lost: {statement}\n  after: {after}")

    def _state_after(self, statement: str) -> States | None:
        """Return the state that a statement leaves, within a transaction of PostgreSQL; None if it commits nothing."""
        if not statement or self.status == "failed" or (self.status == "begun" and statement != "COMMIT"):
            return None
        if self.status == "idle":
            self.postgres.run("BEGIN")
            if self.postgres.run(_as_view(statement)).sqlstate:
                return None
        return self.postgres.state()

    async def _trouble(self, state: States) -> str:
        """Return an empty text if the data folder is in a state, or else what differs."""
        listed = await self.session.run(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'v', 'm') AND n.nspname IN ('public', 's', 's2') AND c.relname <> 'c/x'"
            r" AND c.relname NOT LIKE 'one\_%'"
        )
        ours = {f"{schema}.{name}" for schema, name in listed.rows}
        theirs = {name for name in self.postgres.relations(with_temporary=False) if name != "public.c/x"}
        if ours != theirs or listed.sqlstate:
            return f"relations: {listed.message or sorted(ours)} in place of {sorted(theirs)}"
        for query, expected in state.items():
            outcome = await self.session.run(query)
            if not _is_same(outcome, expected):
                return f"{query}\n  ours: {outcome}\n  theirs: {expected}"
        return ""

    # Two at once

    async def together(self, one: str, two: str) -> None:
        """Run two statements at once, each again after 40001: as if one had come after the other.

        Raises:
            Difference: no order has these outcomes and this state.
        """
        other = await self.begin_session()
        outcomes = await asyncio.gather(self._retried(self.session, one), self._retried(other, two))
        await other.close()
        troubles = []
        for texts, found in (((one, two), outcomes), ((two, one), outcomes[::-1])):
            self.postgres.run("BEGIN")
            trouble = self._trouble_in_order(texts, found) or await self._trouble(self.postgres.state())
            if not trouble:
                self.postgres.run("COMMIT")
                return
            troubles.append(trouble)
            self.postgres.run("ROLLBACK")
        raise Difference("\n".join([f"{one} beside {two}: {outcomes}", *troubles]))

    def _trouble_in_order(self, texts: tuple[str, str], found: Sequence[Outcome]) -> str:
        for text, ours in zip(texts, found, strict=True):
            self.postgres.run("SAVEPOINT one")
            theirs = self.postgres.run(text)
            if theirs.sqlstate:
                self.postgres.run("ROLLBACK TO one")
            is_view = ours.sqlstate == "42809" and theirs.sqlstate == "55000"  # PostgreSQL writes through some views
            if not _is_same(ours, theirs) and ours.sqlstate[:2] != theirs.sqlstate[:2] and not is_view:
                return f"{text}\n  ours: {ours}\n  theirs: {theirs}"
        return ""

    async def _retried(self, session: Session, text: str) -> Outcome:
        outcome = Outcome("40001")
        for _ in range(_MOST_TRIES):
            outcome = await session.run(text)
            if outcome.sqlstate != "40001":
                break
        return outcome
