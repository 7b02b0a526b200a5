"""Random scripts of SQL, in a PostgreSQL and here: the same outcomes, rows and types, also of maintained views.

A script is a list of texts: statements, and `!restart` and `!doors`, which are for us only.

    PYTHONPATH=.:tests .venv/bin/python tests/sql/random_scripts.py --examples 1000
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import psycopg
from postgres_server import server
from psycopg.pq import DiagnosticField, ExecStatus
from random_statements import PRELUDE, Schema, Statement, Statements
from sql_world import Client, SqlWorld

import derive
from derive.algebra.relation import Get
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.rows import table_at
from derive.errors import SqlError
from derive.functions.types.datetime import interval_of_text
from derive.functions.types.type_info import text_function
from derive.sql.coordinator import Coordinator
from derive.storage.segments.rows import with_deletions

PATIENCE = 60.0
"""Seconds after which a statement has stalled."""

Text = str | None
Cells = tuple[Text, ...]

_CATALOG = "collections: {}"
_TEXTS = {1043: 25, 1015: 1009}
"""Oids of `varchar` without a length, which is text here."""
_DEPENDENTS = ("ALTER", "DROP", "TRUNCATE", "CREATE OR REPLACE")


@dataclass(frozen=True)
class Outcome:
    """The answer to a statement.

    Attributes:
        sqlstate: of its error; empty if it has succeeded.
        tag: its tag.
        types: oids of its columns.
        rows: how often each row is there, by value.
        message: of its error.
    """

    sqlstate: str = ""
    tag: str = ""
    types: tuple[int, ...] = ()
    rows: Counter[Cells] = field(default_factory=Counter)
    message: str = field(default="", compare=False)


def _value(oid: int, text: Text) -> Text:
    """A value, the same text for equal ones whose texts may differ."""
    if text is None:
        return None
    if oid == 1700:
        return str(Decimal(text).normalize() + 0)
    if oid == 1231:
        return re.sub(r"(\.\d*?)0+(?=[,}])", lambda match: match[1].removesuffix("."), text)
    if oid == 1186:
        return str(interval_of_text(text).total_microseconds)
    if oid == 3802:
        return str(_exact(orjson.loads(text)))
    return text


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _exact(one)) for key, one in value.items())
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def outcome_of(tag: str, types: Sequence[int], rows: Sequence[Cells]) -> Outcome:
    """The outcome of a statement that has succeeded."""
    counted = Counter(tuple(_value(oid, text) for oid, text in zip(types, row, strict=True)) for row in rows)
    return Outcome("", tag, tuple(_TEXTS.get(oid, oid) for oid in types), counted)


class Postgres:
    """A database of a PostgreSQL, which is empty at the beginning."""

    def __init__(self) -> None:
        self._connection = _connection()
        self.run("ROLLBACK")
        for text in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DISCARD ALL", "SET TimeZone = 'UTC'"):
            assert not self.run(text).sqlstate, text

    def has(self, name: str) -> bool:
        """Return whether a relation exists."""
        return self.run(f"SELECT to_regclass('{name}')").rows != Counter([(None,)])

    def run(self, text: str) -> Outcome:
        """Run a statement."""
        result = self._connection.pgconn.exec_(text.encode())
        if result.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
            sqlstate, message = (
                (result.error_field(code) or b"").decode()
                for code in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
            )
            return Outcome(sqlstate, message=message)
        types = [result.ftype(column) for column in range(result.nfields)]
        tag = (result.command_status or b"").decode()
        if text.startswith("CREATE VIEW m"):
            tag = "CREATE MATERIALIZED VIEW"
        rows = [
            tuple(
                None if (value := result.get_value(row, column)) is None else value.decode()
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]
        return outcome_of(tag, types, rows)


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


class Ours:
    """A data folder, and a session over it."""

    def __init__(self, world: SqlWorld) -> None:
        self.world = world
        self.coordinator: Coordinator | None = None

    async def start(self) -> None:
        self.coordinator = Coordinator(self.world.data, self.world.catalog)
        self.coordinator.own()
        self.client = Client(self.coordinator)

    async def stop(self) -> None:
        assert self.coordinator is not None
        await self.client.session.close()
        await self.coordinator.close()

    async def run(self, text: str) -> Outcome:
        """Run a statement."""
        try:
            return await asyncio.wait_for(self._run(text), PATIENCE)
        except SqlError as error:
            return Outcome(error.sqlstate, message=f"{error.message} | {error.hint}")
        except TimeoutError:
            return Outcome("stalled")

    async def _run(self, text: str) -> Outcome:
        session = self.client.session
        try:
            prepared = await session.prepare(text, ())
            await session.begin_implicit()
            result = await session.execute(prepared, ())
            rows: list[Cells] = []
            columns = result.columns or ()
            if result.rows is not None:
                shown = [text_function(column.type, column.modifier) for column in columns]
                async for batch in result.rows:
                    if result.copy_out is not None:
                        rows += [(line.decode(),) for line in result.copy_out.lines(batch)]
                        continue
                    for row in batch:
                        rows.append(
                            tuple(
                                None if datum is None else show(datum) for show, datum in zip(shown, row, strict=True)
                            )
                        )
            await session.end_implicit()
        except BaseException:
            await session.fail()
            raise
        if result.copy_out is not None:
            return Outcome("", result.tag(len(rows)), (), Counter(rows))
        return outcome_of(result.tag(len(rows)), [column.oid for column in columns], rows)


class Difference(Exception):
    """Outcomes that ought to be the same."""


def _is_lenient(ours: Outcome, theirs: Outcome) -> bool:
    """Whether one of two has met an error of a value that the other did not look at."""
    return any(one.sqlstate.startswith(("22", "54")) for one in (ours, theirs))


class Player:
    """Plays a script, and keeps what is known of its relations.

    Attributes:
        refusals: messages of what we refuse, by number.
    """

    def __init__(self, ours: Ours) -> None:
        self.ours, self.postgres = ours, Postgres()
        self.refusals: Counter[str] = Counter()
        self.lenient = 0
        self.maintained: dict[str, str] = {}
        self.status = "idle"
        self.waiting: list[str] = []

    async def play(self, text: str) -> bool:
        """Play one text of a script; return whether it has succeeded.

        Raises:
            Difference: outcomes differ.
        """
        text = re.sub(r"'NOW(-?\d+)'", lambda match: f"'{_stamp(time.time_ns() // 1000 + 1000 * int(match[1]))}'", text)
        if text == "!restart":
            await self.restart()
        elif text.startswith("!check"):
            await self.check(text.removeprefix("!check ").split("; "))
        elif text.startswith("!doors"):
            await self.doors(text.split()[1])
        elif text.startswith("CREATE MATERIALIZED VIEW"):
            return await self._maintain(text)
        else:
            # PostgreSQL replaces a view only by one with the same columns.
            replaced = re.sub(r"^CREATE OR REPLACE VIEW (\w+)", r"DROP VIEW \1; CREATE VIEW \1", text)
            return await self._both(text, replaced)
        return True

    async def _both(self, text: str, other: str) -> bool:
        ours = await self.ours.run(text)
        if ours.sqlstate == "0A000" or (ours.sqlstate in {"2BP01", "42P17"} and text.startswith(_DEPENDENTS)):
            self.refusals[ours.message] += 1
            self._follow(text, is_done=False)
            return False
        theirs = self.postgres.run(other)
        if ours != theirs:
            both_fail = ours.sqlstate[:2] in {"22", "23"} and theirs.sqlstate[:2] in {"22", "23"}
            if not both_fail and not (text.startswith(("SELECT", "WITH w", "(")) and _is_lenient(ours, theirs)):
                raise Difference(f"{text}\n  ours: {ours}\n  theirs: {theirs}")
            self.lenient += 1
        is_done = not (ours.sqlstate or theirs.sqlstate)
        self._follow(text, is_done=is_done)
        return is_done

    def _follow(self, text: str, *, is_done: bool) -> None:
        if not is_done:
            self.status = "failed" if self.status != "idle" else "idle"
        elif text == "BEGIN" or text.startswith("ROLLBACK TO"):
            self.status = "begun"
        elif text in {"COMMIT", "ROLLBACK"}:
            self.status = "idle"

    async def _maintain(self, text: str) -> bool:
        _, name, query = re.split("VIEW | AS ", text, maxsplit=2)
        plain = f"CREATE VIEW one_{name} AS {query}"
        if not await self._both(text, text.replace("MATERIALIZED VIEW", "VIEW", 1)):
            return False
        outcome = await self.ours.run(plain)
        if outcome.sqlstate:
            raise Difference(f"{plain}: {outcome}")
        self.maintained[name] = query
        self.waiting.append(name)
        return True

    async def restart(self) -> None:
        """Close everything, and open it again."""
        await self.ours.stop()
        await self.ours.start()
        self.postgres.run("DISCARD TEMP")
        self.waiting = [*self.maintained]

    async def _settle(self) -> None:
        """Wait until all views are read from what is maintained."""
        coordinator = self.ours.coordinator
        assert coordinator is not None
        begin = time.monotonic()
        for name in self.waiting:
            named = coordinator.objects.lookup(None, name)
            if named is None:  # it was rolled back
                continue
            relation = Get(named.id, tuple(column.type for column in named.columns))
            while coordinator.maintained.since(relation) is None:
                if time.monotonic() > begin + PATIENCE:
                    rows = await self.ours.client("SHOW MAINTENANCE")
                    raise Difference(f"{name} is never maintained: {self.maintained[name]}\n{rows}")
                await asyncio.sleep(0.005)
        self.waiting = []

    async def check(self, names: Sequence[str]) -> None:
        """Compare maintained views and the rows of queries."""
        if self.status == "failed":
            return
        if self.status == "idle":
            await self._settle()
        for name in names:
            query = self.maintained.get(name)
            if query is None:
                await self._both(name, name)
            elif self.status == "idle":
                await self._check_maintained(name)
            elif "now()" not in query:
                await self._both(f"SELECT * FROM {name}", f"SELECT * FROM {name}")

    async def present(self) -> int:
        """The time of a new read."""
        outcome = await self.ours.run("SELECT (extract(epoch FROM mz_now()) * 1000000)::bigint")
        (row,) = outcome.rows
        return int(str(row[0]))

    async def _check_maintained(self, name: str) -> None:
        at = await self.present()
        ours = await self.ours.run(f"SELECT * FROM {name} AS OF {at}")
        once = await self.ours.run(f"SELECT * FROM one_{name} AS OF {at}")
        query = f"SELECT * FROM {name}"
        if "now()" in self.maintained[name]:
            (row,) = self.postgres.run(f"SELECT pg_get_viewdef('{name}'::regclass)").rows
            query = str(row[0]).replace("now()", f"'{_stamp(at)}'::timestamptz")
        theirs = self.postgres.run(query)
        for kind, other in (("one-off", once), ("PostgreSQL", theirs)):
            if ours != other and not _is_lenient(ours, other):
                raise Difference(f"{name} AS {self.maintained[name]}\n  maintained: {ours}\n  {kind}: {other}")
            self.lenient += ours != other

    async def doors(self, name: str) -> None:
        """Compare what all doors have of a relation at one time."""
        if self.status != "idle":
            return
        await self._settle()
        at = await self.present()
        query = f"SELECT * FROM {name} AS OF {at}"
        expected = await self.ours.run(query)
        if expected.sqlstate:
            raise Difference(f"{query}: {expected}")
        for door, rows in (await self._sql_doors(name, at, expected)).items():
            if rows != expected.rows:
                raise Difference(f"{name} through {door}\n  SELECT: {expected.rows}\n  {door}: {rows}")
        await asyncio.to_thread(self._stored_doors, name, at, expected)

    async def _sql_doors(self, name: str, at: int, expected: Outcome) -> dict[str, Any]:
        query = f"SELECT * FROM {name} AS OF {at}"
        run = self.ours.run
        doors: dict[str, Any] = {}
        updates = await run(f"SUBSCRIBE {name} AS OF {at} UP TO {at + 1}")
        counts: Counter[Cells] = Counter()
        for (_, diff, *cells), count in updates.rows.items():
            counts[tuple(cells)] += int(str(diff)) * count
        doors["SUBSCRIBE"] = updates.message or counts
        for text in ("BEGIN", f"DECLARE c CURSOR FOR {query}"):
            assert not (await run(text)).sqlstate
        doors["a cursor"] = sum([(await run(f"FETCH {count} c")).rows for count in (1, 2, "ALL")], Counter[Cells]())
        await run("COMMIT")
        await run(f"PREPARE p (text) AS SELECT * FROM {name} WHERE $1 = 'x' AS OF {at}")
        doors["EXECUTE"] = (await run("EXECUTE p ('x')")).rows
        await run("DEALLOCATE p")
        copied = await run(f"COPY ({query}) TO STDOUT")
        if copied.tag != f"COPY {expected.rows.total()}":
            raise Difference(f"COPY of {name}: {copied}")
        serializable = Client(self.ours.coordinator, transaction_isolation="serializable")  # type: ignore[arg-type]
        mine, self.ours.client = self.ours.client, serializable
        try:
            doors["serializable"] = (await run(query)).rows
        finally:
            self.ours.client = mine
            await serializable.session.close()
        return doors

    def _stored_doors(self, name: str, at: int, expected: Outcome) -> None:
        """Compare what Python and Storage have."""
        coordinator = self.ours.coordinator
        assert coordinator is not None
        table = coordinator.store.tables.find(f"sql/public/{name}")
        if table is None:  # a temporary table, a view, or one that was renamed
            return
        with derive.open(self.ours.world.data, source=self.ours.world.folder / "flow.yaml") as flow:
            rows = flow.sql(f"SELECT count(*) FROM {name} AS OF {at}").to_arrow().to_pylist()
        if rows[0]["count"] != expected.rows.total():
            raise Difference(f"{name} in Python: {rows}, in SQL: {expected.rows}")
        stored = sum(len(batch) for batch in table_at(coordinator.store, table, at))
        documents: Counter[bytes] = Counter()
        for part in read_rows(coordinator.store, table.spec, ReadOptions(as_of=at)):
            for text in with_deletions(part).texts.to_pylist():
                document = orjson.loads(text)
                diff = -1 if document.pop("_meta", {}).get("op") == "d" else 1
                documents[orjson.dumps(document, option=orjson.OPT_SORT_KEYS)] += diff
        if not stored == documents.total() == expected.rows.total() or min(documents.values(), default=0) < 0:
            raise Difference(f"{name}: {stored} rows, documents {documents}, in SQL {expected.rows}")


def _stamp(clock: int) -> str:
    seconds, micros = divmod(clock, 1_000_000)
    return time.strftime(f"%Y-%m-%d %H:%M:%S.{micros:06}+00", time.gmtime(seconds))


@dataclass
class Script:
    """A script that is made while it is played.

    Attributes:
        texts: what was played so far.
        difference: what was wrong; empty if nothing was.
    """

    texts: list[str] = field(default_factory=list)
    difference: str = ""
    refusals: Counter[str] = field(default_factory=Counter)
    lenient: int = 0


@asynccontextmanager
async def _player(folder: Path) -> AsyncIterator[Player]:
    ours = Ours(SqlWorld(folder, _CATALOG))
    await ours.start()
    try:
        yield Player(ours)
    finally:
        await ours.stop()


async def _make(seed: int, steps: int, folder: Path, script: Script) -> None:
    random = Random(seed)
    schema = Schema()
    statements = Statements(random, schema, is_temporal=random.random() < 0.3)
    async with _player(folder) as player:

        async def play(statement: Statement) -> None:
            script.texts.append(statement.text)
            if await player.play(statement.text):
                statements.apply(statement)
            if statement.text == "!restart":  # temporary relations, and views over them, are gone
                for relations in (schema.tables, schema.views, schema.maintained):
                    for name in [name for name in relations if not player.postgres.has(name)]:
                        del relations[name]
            if not statement.text.startswith(("SELECT", "WITH w", "(", "SAVEPOINT", "!doors")):
                script.texts.append(f"!check {'; '.join(_checks(schema))}")
                await player.play(script.texts[-1])

        try:
            for text in PRELUDE:
                await play(Statement(text))
            while len(schema.tables) < 2:
                await play(statements.table())
            for number in range(steps):
                await play(_next(random, statements, player, number))
        finally:
            script.refusals, script.lenient = player.refusals, player.lenient


def _next(random: Random, statements: Statements, player: Player, number: int) -> Statement:
    schema = statements.schema
    if player.status == "failed":
        while True:
            made = statements._transaction()
            if made.text.startswith("ROLLBACK"):
                return made
    choice = random.random()
    if number < 6:
        return statements._insert()
    if choice < 0.32:
        is_room = len(schema.maintained) < 4
        return statements.maintained() if choice > 0.22 and is_room else statements.select()
    if choice < 0.4 and player.status == "idle":
        doors = f"!doors {random.choice([*schema.tables, *schema.maintained])}"
        return Statement("!restart" if choice < 0.36 else doors)
    if choice < 0.42 and len(schema.tables) < 5:
        return statements.table()
    return statements.next()


def _checks(schema: Schema) -> list[str]:
    """Queries of all tables and views, and names of maintained views."""
    tables = [f"SELECT {table.listed} FROM {table.name}" for table in schema.tables.values()]
    return [*tables, *(f"SELECT * FROM {name}" for name in schema.views), *schema.maintained]


async def _replay(texts: Sequence[str], folder: Path) -> None:
    async with _player(folder) as player:
        for text in texts:
            await player.play(text)


@contextmanager
def _differing(script: Script) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        except Difference as difference:
            script.difference = str(difference)
        except Exception as error:
            script.difference = "".join(traceback.format_exception(error))


def made(seed: int, steps: int = 40) -> Script:
    """A random script, played to its end or to the first difference."""
    script = Script()
    with _differing(script) as folder, asyncio.Runner() as runner:
        runner.run(_make(seed, steps, folder, script))
    return script


def is_different(texts: Sequence[str]) -> str:
    """The difference that a script shows; empty if there is none."""
    script = Script()
    with _differing(script) as folder, asyncio.Runner() as runner:
        runner.run(_replay(texts, folder))
    return script.difference


def reduced(texts: Sequence[str]) -> tuple[list[str], str]:
    """A script without the texts that its difference does not need, and the difference."""
    rest = [*texts]
    difference = is_different(rest)
    for size in (16, 4, 1):
        place = len(rest)
        while difference and place > 0:
            place = max(0, place - size)
            shorter = rest[:place] + rest[place + size :]
            if less := is_different(shorter):
                rest, difference = shorter, less
    return rest, difference


def main() -> None:
    """Make scripts, one after the other, and print those that show a difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--keep", action="store_true", help="do not shorten")
    options = parser.parse_args()
    refusals: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.examples):
        script = made(seed, options.steps)
        refusals += script.refusals
        if script.difference:
            texts, difference = (script.texts, "") if options.keep else reduced(script.texts)
            print(f"---- seed {seed}", script.difference, "shorter:", *texts, difference, sep="\n", flush=True)
    print(*(f"{count} {message}" for message, count in refusals.most_common()), sep="\n")


if __name__ == "__main__":
    main()
