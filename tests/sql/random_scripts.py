"""Random scripts of SQL, in a PostgreSQL and here: the same outcomes, rows and types, also of maintained views.

A script is a list of texts: statements, those of `script_stage`, `!check` and `!doors`, which are for us only.

    PYTHONPATH=.:tests .venv/bin/python tests/sql/random_scripts.py --examples 1000
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import orjson
from random_names import Script, played, reduced, run
from random_statements import PRELUDE, Schema, Statement, Statements
from script_doors import Cells, Door, Outcome, Served
from script_stage import Difference, Stage, is_lenient

import derive
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.rows import table_at
from derive.storage.segments.rows import with_deletions
from derive.storage.store import Store


class Player(Stage):
    """Plays a script, and keeps what is known of its relations.

    Attributes:
        maintained: the query of each materialized view by name, also of those that were rolled back.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.maintained: dict[str, str] = {}
        self._is_settled = True

    async def play(self, text: str) -> bool:
        """Play one text of a script; return whether it has succeeded.

        Raises:
            Difference: outcomes differ.
        """
        text = re.sub(r"'NOW(-?\d+)'", lambda match: f"'{_stamp(time.time_ns() // 1000 + 1000 * int(match[1]))}'", text)
        if text.startswith("!check"):
            await self.check(text.removeprefix("!check ").split("; "))
        elif text.startswith("!doors"):
            await self.doors(text.split()[1])
        elif text.startswith("CREATE MATERIALIZED VIEW"):
            return await self._maintain(text)
        elif not await self.perform(text):
            return await self.both(text)
        return True

    async def _maintain(self, text: str) -> bool:
        _, name, query = re.split("VIEW | AS ", text, maxsplit=2)
        plain = f"CREATE VIEW one_{name} AS {query}"
        if not await self.both(text):
            return False
        outcome = await self.session.run(plain)
        if outcome.sqlstate:
            raise Difference(f"{plain}: {outcome}")
        self.maintained[name] = query
        self._is_settled = False
        return True

    async def restart(self, door: Door) -> None:
        await super().restart(door)
        self._is_settled = False

    async def kill(self, text: str) -> None:
        await super().kill(text)
        self._is_settled = False

    def count_maintained(self) -> int:
        return sum(map(self.postgres.has, self.maintained))

    async def settle(self) -> None:
        if not self._is_settled:
            await super().settle()
            self._is_settled = True

    async def check(self, names: Sequence[str]) -> None:
        """Compare maintained views and the rows of queries."""
        if self.status == "failed":
            return
        if self.status == "idle":
            await self.settle()
        for name in names:
            query = self.maintained.get(name)
            if query is None:
                await self.both(name, name)
            elif self.status == "idle":
                await self._check_maintained(name)
            elif "now()" not in query:
                await self.both(f"SELECT * FROM {name}", f"SELECT * FROM {name}")

    async def present(self) -> int:
        """The time of a new read."""
        outcome = await self.session.run("SELECT (extract(epoch FROM mz_now()) * 1000000)::bigint")
        (row,) = outcome.rows
        return int(str(row[0]))

    async def _check_maintained(self, name: str) -> None:
        at = await self.present()
        ours = await self.session.run(f"SELECT * FROM {name} AS OF {at}")
        once = await self.session.run(f"SELECT * FROM one_{name} AS OF {at}")
        query = f"SELECT * FROM {name}"
        if "now()" in self.maintained[name]:
            (row,) = self.postgres.run(f"SELECT pg_get_viewdef('{name}'::regclass)").rows
            query = str(row[0]).replace("now()", f"'{_stamp(at)}'::timestamptz")
        theirs = self.postgres.run(query)
        for kind, other in (("one-off", once), ("PostgreSQL", theirs)):
            if ours != other and not is_lenient(ours, other):
                raise Difference(f"{name} AS {self.maintained[name]}\n  maintained: {ours}\n  {kind}: {other}")
            self.lenient += ours != other

    async def doors(self, name: str) -> None:
        """Compare what all doors have of a relation at one time."""
        if self.status != "idle":
            return
        await self.settle()
        at = await self.present()
        query = f"SELECT * FROM {name} AS OF {at}"
        expected = await self.session.run(query)
        if expected.sqlstate:
            raise Difference(f"{query}: {expected}")
        for door, rows in (await self._sql_doors(name, at, expected)).items():
            if rows != expected.rows:
                raise Difference(f"{name} through {door}\n  SELECT: {expected.rows}\n  {door}: {rows}")
        await asyncio.to_thread(self._stored_doors, name, at, expected)

    async def _sql_doors(self, name: str, at: int, expected: Outcome) -> dict[str, Any]:
        query = f"SELECT * FROM {name} AS OF {at}"
        run = self.session.run
        doors: dict[str, Any] = {}
        updates = await run(f"SUBSCRIBE {name} AS OF {at} UP TO {at + 1}")
        counts: Counter[Cells] = Counter()
        for (_, diff, *cells), count in updates.rows.items():
            counts[tuple(cells)] += int(str(diff)) * count
        doors["SUBSCRIBE"] = updates.message or counts
        for text in ("BEGIN", f"DECLARE c CURSOR FOR {query}"):
            if (begun := await run(text)).sqlstate:
                raise Difference(f"{text}: {begun}")
        doors["a cursor"] = sum([(await run(f"FETCH {count} c")).rows for count in (1, 2, "ALL")], Counter[Cells]())
        await run("COMMIT")
        await run(f"PREPARE p (text) AS SELECT * FROM {name} WHERE $1 = 'x' AS OF {at}")
        doors["EXECUTE"] = (await run("EXECUTE p ('x')")).rows
        await run("DEALLOCATE p")
        copied = await run(f"COPY ({query}) TO STDOUT")
        if copied.tag != f"COPY {expected.rows.total()}":
            raise Difference(f"COPY of {name}: {copied}")
        serializable = await self.begin_session()
        await serializable.run("SET transaction_isolation = 'serializable'")
        doors["serializable"] = (await serializable.run(query)).rows
        await serializable.close()
        return doors

    def _stored_doors(self, name: str, at: int, expected: Outcome) -> None:
        """Compare what Python and Storage have."""
        store = Store(self.world.data, durable=False)
        try:
            self._compare_stored(store, name, at, expected)
        finally:
            store.close()

    def _compare_stored(self, store: Store, name: str, at: int, expected: Outcome) -> None:
        table = store.tables.find(f"sql/public/{name}")
        if table is None:  # a temporary table, a view, or one that was renamed
            return
        with derive.open(self.world.data, source=self.world.folder / "flow.yaml") as flow:
            rows = flow.sql(f"SELECT count(*) FROM {name} AS OF {at}").to_arrow().to_pylist()
        if rows[0]["count"] != expected.rows.total():
            raise Difference(f"{name} in Python: {rows}, in SQL: {expected.rows}")
        stored = sum(len(batch) for batch in table_at(store, table, at))
        documents: Counter[bytes] = Counter()
        for part in read_rows(store, table.spec, ReadOptions(as_of=at)):
            for text in with_deletions(part).texts.to_pylist():
                document = orjson.loads(text)
                diff = -1 if document.pop("_meta", {}).get("op") == "d" else 1
                documents[orjson.dumps(document, option=orjson.OPT_SORT_KEYS)] += diff
        if not stored == documents.total() == expected.rows.total() or min(documents.values(), default=0) < 0:
            raise Difference(f"{name}: {stored} rows, documents {documents}, in SQL {expected.rows}")


def _stamp(clock: int) -> str:
    seconds, micros = divmod(clock, 1_000_000)
    return time.strftime(f"%Y-%m-%d %H:%M:%S.{micros:06}+00", time.gmtime(seconds))


@asynccontextmanager
async def _player(folder: Path) -> AsyncIterator[Player]:
    player = Player(folder)
    await player.start()
    try:
        yield player
    finally:
        await player.stop()


async def _make(seed: int, steps: int, folder: Path, script: Script) -> None:
    random = Random(seed)
    schema = Schema()
    statements = Statements(random, schema, is_temporal=random.random() < 0.3)
    async with _player(folder) as player:

        async def play(statement: Statement) -> None:
            script.texts.append(statement.text)
            if await player.play(statement.text):
                statements.apply(statement)
            if statement.text.startswith(
                ("!restart", "!door ", "!kill")
            ):  # temporary relations, and views over them, are gone
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
            script.refusals = player.refusals


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
        return Statement(_crash(random, statements, player) if choice < 0.36 else doors)
    if choice < 0.42 and len(schema.tables) < 5:
        return statements.table()
    return statements.next()


def _crash(random: Random, statements: Statements, player: Player) -> str:
    """A restart, through any door, or a kill within a write."""
    if not isinstance(player.door, Served) or random.random() < 0.3:
        return random.choice(["!restart", "!door embedded", "!door served", "!door instances"])
    write = random.choice([statements._insert, statements._delete, statements._merge, statements._insert_query])()
    return random.choice(["!instance", "!kill", *[f"!kill {random.choice([0, 2, 5, 9, 15, 30])} {write.text}"] * 4])


def _checks(schema: Schema) -> list[str]:
    """Queries of all tables and views, and names of maintained views."""
    tables = [f"SELECT {table.listed} FROM {table.name}" for table in schema.tables.values()]
    return [*tables, *(f"SELECT * FROM {name}" for name in schema.views), *schema.maintained]


async def _replay(texts: Sequence[str], folder: Path) -> None:
    async with _player(folder) as player:
        for text in texts:
            await player.play(text)


def made(seed: int, steps: int = 40) -> Script:
    """A random script."""
    return played(lambda script, folder: _make(seed, steps, folder, script))


def is_different(texts: Sequence[str]) -> str:
    """The difference that a script shows; empty if there is none."""
    return played(lambda _, folder: _replay(texts, folder)).difference


if __name__ == "__main__":
    run(made, lambda texts: reduced(texts, is_different))
