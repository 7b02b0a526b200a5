"""Torture of SQL: clients of a server that is killed over and over see one history, in which nothing acknowledged is lost.

Clients write, delete and read rows of two tables, lists and a materialized view beside one another, in random
transactions, one follows all of it by a subscription, and one has tables change places, while the server is killed at random moments, or stopped for a
while, and started again on the same data folder. What they did and saw is recorded and checked for strict serializability.

    PYTHONPATH=. .venv/bin/python tests/sql/torture_sql.py --rounds 100
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

sys.path.append(str(Path(__file__).parents[1]))

from forked_flowctl import Flowctl
from history import Event, Outcome, Read, Write, violations
from swapping import Swapper

_ROUNDS_OF_A_HISTORY = 5
"""Then it is checked, and another one begins, with tables of its own: reads take everything."""

_PATIENCE_SECONDS = 300
"""How long a server may take to start, and a statement to end, on a machine that has more to do."""

_ANSWERED = 0.75
"""How often a server lives until clients had answers; else it may be killed before."""

_LISTS = 3


class Server:
    """`flowctl sql serve` over a data folder, through its deaths.

    Attributes:
        port: where clients connect to.
        lives: how often it was started.
    """

    def __init__(self, folder: Path) -> None:
        self._command = ["sql", "serve", "--listen", "127.0.0.1:0", "--data", str(folder)]
        self._log = folder / "server.log"
        self._process: Flowctl | None = None
        self.port = self.lives = 0

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        with self._log.open("a") as log:
            self._process = Flowctl(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout
        address = self._process.stdout.readline().strip()
        if not address:
            raise SystemExit(f"the server does not start: {self._log.read_text()[-2000:]}")
        self.lives += 1
        self.port = int(address.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        if self._process and self._process.stdout:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def pause(self, seconds: float) -> None:
        """Stop it for a while."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def connect(self) -> psycopg.Connection:
        """A connection; waits for the next server while there is none."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            address = f"host=127.0.0.1 port={self.port} user=flow dbname=flow connect_timeout=5"
            try:
                connection = psycopg.connect(address, autocommit=True)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                continue
            with suppress(psycopg.OperationalError):  # it is killed again: whatever comes next notices
                connection.execute(f"SET statement_timeout = '{_PATIENCE_SECONDS}s'")
            return connection


class Tables:
    """The tables of one history: `a` and `b`, what was deleted of `b`, lists, and a view of rows that are in both."""

    def __init__(self, number: int) -> None:
        names = (f"{name}_{number}" for name in ("a", "b", "gone", "lists", "pairs"))
        self.a, self.b, self.gone, self.lists, self.view = names

    def queries(self, *, with_view: bool) -> list[str]:
        """All that can be read, in several queries of the same columns."""
        queries = [
            f"SELECT 'a', name, count FROM {self.a}",
            f"SELECT 'b', name, count FROM {self.b}",
            f"SELECT 'gone', name, NULL::bigint FROM {self.gone}",
            f"SELECT 'list ' || list, names, NULL::bigint FROM {self.lists}",
        ]
        return [*queries, f"SELECT 'view', client, n FROM {self.view}"] if with_view else queries

    def create(self, connection: psycopg.Connection) -> None:
        for table in (self.a, self.b):
            connection.execute(f"CREATE TABLE {table} (name text, client text, count bigint)")
        connection.execute(f"CREATE TABLE {self.gone} (name text)")
        connection.execute(f"CREATE TABLE {self.lists} (list text PRIMARY KEY, names text)")
        connection.execute(f"INSERT INTO {self.lists} SELECT g::text, '' FROM generate_series(0, {_LISTS - 1}) g")
        query = f"SELECT a.client, count(*) AS n FROM {self.a} a JOIN {self.b} b ON a.name = b.name GROUP BY a.client"
        connection.execute(f"CREATE MATERIALIZED VIEW {self.view} AS {query}")
        connection.execute(f"CREATE INDEX ON {self.view} (client)")


class Client:
    """One client: transactions of random kinds, one after the other, each an event.

    Attributes:
        events: what it did and saw.
        answers: how many reads and writes were answered with success.
        defect: the error that ended it.
    """

    def __init__(self, name: str, server: Server, tables: Tables, chance: random.Random) -> None:
        self._name = name
        self._server = server
        self._tables = tables
        self._chance = chance
        self._writes = 0
        self._own: list[str] = []
        self._removed = self._missed = frozenset[str]()
        self._life = server.lives
        self._connection = server.connect()
        self._transactions: dict[Callable[[str], None], tuple[str, ...]] = {
            self._insert: ("a",),
            self._insert_both: ("a", "b"),
            self._append: ("list",),
            self._append_in_block: ("list", "a"),
            self._count: ("b",),
            self._undo: ("a", "b"),
            self._delete: ("gone",),
        }  # and where they write
        self.events: list[Event] = []
        self.answers = 0
        self.defect: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Act until told to stop."""
        try:
            while not stop.is_set():
                time.sleep(self._chance.random() * 0.02)
                if self._chance.random() < 0.4:
                    self.read(with_view=self._chance.random() < 0.5)
                else:
                    self._write(*self._chance.choice(list(self._transactions.items())))
        except BaseException as error:
            self.defect = error
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _write(self, transaction: Callable[[str], None], tables: tuple[str, ...]) -> None:
        self._writes += 1
        self._removed = self._missed = frozenset()
        if transaction == self._delete and not self._own:
            return
        name = f"{self._name}-{self._writes}"
        begin = time.monotonic_ns()
        try:
            transaction(name)
            outcome = Outcome.FAILED if transaction == self._undo else Outcome.OK
        except psycopg.errors.SerializationFailure:
            outcome = Outcome.FAILED
        except psycopg.OperationalError as error:
            outcome = Outcome.FAILED if transaction == self._undo else Outcome.UNKNOWN
            self._reconnect(error)
        rows = frozenset(f"{table}:{name}" for table in tables)
        end = time.monotonic_ns()
        self.events.append(Write(self._name, begin, end, rows, outcome, self._removed, self._missed))
        if outcome is Outcome.OK:
            self.answers += 1
            if "b" in tables:
                self._own.append(name)

    def _reconnect(self, error: psycopg.OperationalError) -> None:
        """By then, what was asked of the server that was killed has happened, or never will.

        Raises:
            psycopg.OperationalError: the server is there, and says that a statement has failed, or has hung up.
        """
        if not self._connection.closed:
            raise error
        life, self._life = self._life, self._server.lives
        self._connection = self._server.connect()
        if self._server.lives == life:
            raise error

    def _execute(self, query: str, *arguments: object) -> psycopg.Cursor:
        return self._connection.execute(query, arguments or None)

    def _insert(self, name: str) -> None:
        self._execute(f"INSERT INTO {self._tables.a} VALUES (%s, %s, NULL)", name, self._name)

    def _insert_both(self, name: str) -> None:
        with self._connection.transaction():
            self._insert(name)
            self._execute(f"INSERT INTO {self._tables.b} VALUES (%s, %s, NULL)", name, self._name)

    def _append(self, name: str) -> None:
        text = f" list:{name}"
        condition = f"list = '{self._chance.randrange(_LISTS)}'"
        self._execute(f"UPDATE {self._tables.lists} SET names = names || '{text}' WHERE {condition}")

    def _append_in_block(self, name: str) -> None:
        with self._connection.transaction():
            self._append(name)
            self._insert(name)

    def _count(self, name: str) -> None:
        """A query that writes how much it has read."""
        selected = f"SELECT '{name}', '{self._name}', count(*) FROM {self._tables.a}"
        self._execute(f"INSERT INTO {self._tables.b} {selected}")

    def _delete(self, name: str) -> None:
        """Delete a row that this client has written, and leave another one."""
        row = self._own.pop(self._chance.randrange(len(self._own)))
        self._removed = frozenset([f"b:{row}"])
        with self._connection.transaction():
            deleted = self._execute(f"DELETE FROM {self._tables.b} WHERE name = %s", row).rowcount
            self._execute(f"INSERT INTO {self._tables.gone} VALUES (%s)", name)
        if deleted != 1:
            self._missed = self._removed

    def _undo(self, name: str) -> None:
        with self._connection.transaction(force_rollback=True):
            self._insert(name)
            self._execute(f"INSERT INTO {self._tables.b} VALUES (%s, %s, NULL)", name, self._name)

    def read(self, *, with_view: bool) -> None:
        """Read everything, in one transaction or in one statement."""
        begin = time.monotonic_ns()
        queries = self._tables.queries(with_view=with_view)
        self._chance.shuffle(queries)
        try:
            if self._chance.random() < 0.5:
                cells = self._execute(" UNION ALL ".join(queries)).fetchall()
            else:
                with self._connection.transaction():
                    cells = [cell for query in queries for cell in self._execute(query).fetchall()]
        except psycopg.OperationalError as error:
            self._reconnect(error)
            return
        self.events.append(_read_of(self._name, begin, time.monotonic_ns(), cells, with_view=with_view))
        self.answers += 1


def _read_of(
    client: str, begin: int, end: int, cells: Sequence[tuple[str, str, int | None]], *, with_view: bool
) -> Read:
    """What a read has seen.

    Args:
        client: who has read.
        begin: when, in nanoseconds.
        end: likewise.
        cells: a table's name, and its name and number; for a list, its elements.
        with_view: the view was read too.
    """
    rows = [f"{table}:{name}" for table, name, _ in cells if table in {"a", "b", "gone"}]
    lists = {table: tuple(names.split()) for table, names, _ in cells if table.startswith("list ")}
    rows += [row for elements in lists.values() for row in elements]
    if len(set(rows)) != len(rows) or len(lists) != _LISTS:
        raise SystemExit(
            f"a row is there twice, or a list is not: {[row for row, n in Counter(rows).items() if n > 1]}"
        )
    counts = {f"b:{name}": count for table, name, count in cells if table == "b" and count is not None}
    view = {name: count or 0 for table, name, count in cells if table == "view"}
    return Read(client, begin, end, frozenset(rows), lists, counts, view if with_view else None)


class Subscriber:
    """A subscription, which goes on after each death of the server from where it was told last.

    Attributes:
        defect: what has ended it.
    """

    def __init__(self, server: Server, query: str) -> None:
        self._server, self._query = server, query
        self._cells: Counter[tuple[Any, ...]] = Counter()
        self._progress: int | None = None
        self.defect: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Follow until told to stop."""
        try:
            while not stop.is_set():
                with self._server.connect() as connection:
                    try:
                        self._follow(connection, stop)
                    except psycopg.errors.QueryCanceled:
                        pass  # it has lasted too long: another one goes on
                    except psycopg.OperationalError:
                        if not connection.closed:
                            raise
        except BaseException as error:
            self.defect = error

    def is_enough(self) -> bool:
        """Whether another subscription is to go on from here."""
        return False

    def record(self, clock: int) -> None:
        """Rows are others than before, at a time."""

    def _follow(self, connection: psycopg.Connection, stop: threading.Event) -> None:
        options = "WITH (PROGRESS)"
        if self._progress is not None:
            options = f"WITH (SNAPSHOT = false, PROGRESS) AS OF {self._progress - 1}"
        told: Counter[tuple[Any, ...]] = Counter()
        with connection.cursor() as cursor:
            for at, is_progress, diff, *cell in cursor.stream(f"SUBSCRIBE ({self._query}) {options}".encode()):
                if not is_progress:
                    told[tuple(cell)] += int(diff)
                    continue
                if told:
                    self._take(int(at) - 1, told)
                    told = Counter()
                self._progress = int(at)
                if stop.is_set() or self.is_enough():
                    cursor.close()
                    connection.close()
                    return

    def _take(self, clock: int, told: Counter[tuple[Any, ...]]) -> None:
        """What is so at a time, by what was told since the time before."""
        for cell, diff in told.items():
            self._cells[cell] += diff
        self._cells = Counter({cell: count for cell, count in self._cells.items() if count})
        if any(count != 1 for count in self._cells.values()):
            raise SystemExit(f"a subscription tells of a row twice, or takes away one that is not there: {self._cells}")
        self.record(clock)


class Follower(Subscriber):
    """A subscription to everything."""

    def __init__(self, server: Server, tables: Tables) -> None:
        super().__init__(server, " UNION ALL ".join(tables.queries(with_view=True)))
        self.events: list[Read] = []

    @property
    def rows(self) -> frozenset[str]:
        """What was told last."""
        return self.events[-1].rows if self.events else frozenset()

    def record(self, clock: int) -> None:
        read = _read_of("follower", -1, time.monotonic_ns(), list(self._cells), with_view=True)
        self.events.append(replace(read, clock=clock))


class SqlTorture:
    """Histories under torture."""

    rounds_are = "kills"

    def __init__(self, folder: Path, *, seed: int, clients: int) -> None:
        self._chance = random.Random(seed)
        self._clients = clients
        self._server = Server(folder)
        self._histories = 0
        self.kills = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.reads = self.told = self.deletions = self.swaps = 0

    def run(self, rounds: int) -> None:
        """Kill the server so many times.

        Raises:
            SystemExit: no order explains what clients saw.
        """
        self._server.start()
        try:
            while self.kills < rounds:
                self._check(self._history(min(_ROUNDS_OF_A_HISTORY, rounds - self.kills)))
                print(f"{self._told()}: in order", flush=True)
        finally:
            self._server.kill()

    def _history(self, rounds: int) -> list[Event]:
        """What clients do and see while the server is killed so many times; the last of it reads everything."""
        self._histories += 1
        tables = Tables(self._histories)
        with self._server.connect() as connection:
            tables.create(connection)
        stop = threading.Event()
        clients = [self._client(str(number), tables) for number in range(self._clients)]
        threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]
        swapper = Swapper(self._server, self._histories, random.Random(self._chance.random()))
        threads.append(threading.Thread(target=swapper.run, args=(stop,)))
        follower, is_over = Follower(self._server, tables), threading.Event()
        following = threading.Thread(target=follower.run, args=(is_over,), daemon=True)
        following.start()
        for thread in threads:
            thread.start()
        try:
            for _ in range(rounds):
                if self._chance.random() < _ANSWERED:
                    self._await_answers(clients)
                self._torture()
            time.sleep(0.5)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for defect in (*(client.defect for client in clients), swapper.defect):
            if defect:
                raise SystemExit(f"{self._told()}: {defect!r}") from defect
        self.swaps += swapper.commits
        last = self._client("last", tables)
        last.read(with_view=True)
        last.close()
        self._end(follower, _rows_of(last.events[-1]), is_over, following)
        return [*(event for client in (*clients, last) for event in client.events), *follower.events]

    def _end(
        self, follower: Follower, rows: frozenset[str], is_over: threading.Event, thread: threading.Thread
    ) -> None:
        """Wait until a subscription has told everything."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while follower.rows != rows and follower.defect is None and time.monotonic() < deadline:
            time.sleep(0.05)
        is_over.set()
        thread.join(_PATIENCE_SECONDS)
        if follower.defect or follower.rows != rows:
            missing, strange = sorted(rows - follower.rows)[:5], sorted(follower.rows - rows)[:5]
            what = f"the subscription lacks {missing}, has {strange} too many: {follower.defect!r}"
            raise SystemExit(f"{self._told()}: {what}") from follower.defect

    def _client(self, name: str, tables: Tables) -> Client:
        return Client(name, self._server, tables, random.Random(self._chance.random()))

    def _await_answers(self, clients: Sequence[Client]) -> None:
        """Wait until the server, which has just started, has answered as many times as there are clients.

        Raises:
            SystemExit: it does not answer.
        """
        wanted = sum(client.answers for client in clients) + len(clients)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while sum(client.answers for client in clients) < wanted:
            if any(client.defect for client in clients):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{self._told()}: the server does not answer")
            time.sleep(0.02)

    def _torture(self) -> None:
        time.sleep(0.1 + self._chance.random() * 1.5)
        if self._chance.random() < 0.25:
            self._server.pause(0.1 + self._chance.random())
            time.sleep(self._chance.random() * 0.1)
        self._server.kill()
        self.kills += 1
        self._server.start()

    def _check(self, history: list[Event]) -> None:
        self.outcomes.update(event.outcome for event in history if isinstance(event, Write))
        reads = [event for event in history if isinstance(event, Read)]
        self.told += sum(read.clock is not None for read in reads)
        self.reads += sum(read.clock is None for read in reads)
        self.deletions += sum(isinstance(event, Write) and bool(event.removes) for event in history)
        wrong = violations(history)
        if wrong:
            told = "\n".join(f"{violation.reason}: {_brief(violation.events)}" for violation in wrong[:10])
            raise SystemExit(f"{self._told()}: {len(wrong)} violations\n{told}")

    def _told(self) -> str:
        outcomes = ", ".join(f"{self.outcomes[outcome]} {outcome.value}" for outcome in Outcome)
        return f"{self.kills} {self.rounds_are}, {self.reads} reads, {self.told} told, {self.deletions} deletions, {self.swaps} swaps, writes: {outcomes}"


def _rows_of(event: Event) -> frozenset[str]:
    assert isinstance(event, Read | Write)
    return event.rows


def _brief(events: Sequence[Event]) -> str:
    """Events in a line; of reads how much they saw."""
    texts = []
    for event in events:
        at = f"client {event.client} from {event.begin} to {event.end}"
        if isinstance(event, Write):
            texts.append(f"{at} wrote {sorted(event.rows)} ({event.outcome.value})")
        elif isinstance(event, Read):
            texts.append(f"{at} read {len(event.rows)} rows, the view {event.view}")
    return " | ".join(texts)


def main() -> None:
    """Run the rounds; the exit status is that of the first violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often the server is killed")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"{options.rounds} kills, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flowctl-torture-") as name:
        SqlTorture(Path(name), seed=options.seed, clients=options.clients).run(options.rounds)


if __name__ == "__main__":
    main()
