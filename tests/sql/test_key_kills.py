"""Keys and numbers of a server that is killed: no duplicate, and no lost acknowledged row."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import psycopg
import pytest
from patience import PATIENCE_SECONDS
from torture_sql import Server

CLIENTS, KEYS = 4, 40


class Writer(threading.Thread):
    """A client that inserts rows until it is stopped.

    Attributes:
        keys: keys of acknowledged rows, in lower case.
        numbers: numbers that acknowledged rows have got, also by later updates.
        refused: number of inserts that were refused because of their key.
        error: an unexpected error; None without one.
    """

    def __init__(self, server: Server, number: int, stopped: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._number, self._stopped = server, number, stopped
        self._chance = random.Random(number)
        self.keys: list[str] = []
        self.numbers: list[int] = []
        self.refused = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._connected()
        except Exception as error:  # the test raises it
            self.error = error

    def _connected(self) -> None:
        try:
            with self._server.connect() as connection:
                while not self._stopped.is_set():
                    self._insert(connection)
        except psycopg.OperationalError:
            return  # the server was killed

    def _insert(self, connection: psycopg.Connection) -> None:
        key = f"{self._chance.choice('kK')}{self._chance.randrange(KEYS * self._server.lives)}"
        updated = "ON CONFLICT (lower(key)) DO UPDATE SET times = t.times + 1 RETURNING number"
        texts = [
            "INSERT INTO t (key, who) VALUES (%s, %s) RETURNING number",
            "INSERT INTO t (key, who) SELECT %s, %s RETURNING number",
            f"INSERT INTO t (key, who) VALUES (%s, %s) {updated}",
        ]
        try:
            with connection.transaction():
                if self._chance.random() < 0.3:
                    connection.execute("SELECT count(*) FROM t WHERE key = %s", (key,))
                row = connection.execute(self._chance.choice(texts), (key, self._number)).fetchone()
        except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            self.refused += 1
            return
        assert row is not None
        self.keys.append(key.lower())
        self.numbers.append(row[0])


@pytest.mark.parametrize("lives", [2, pytest.param(25, marks=pytest.mark.torture)])
def test_keys_and_numbers_outlive_kills(lives: int, tmp_path: Path) -> None:
    """Law: no two rows have one key, in lower case, or number, and acknowledged rows are there, also if the server is killed."""
    server, stopped = Server(tmp_path), threading.Event()
    server.start()
    with server.connect() as connection:
        connection.execute(
            "CREATE TABLE t (number bigint GENERATED ALWAYS AS IDENTITY UNIQUE, key text PRIMARY KEY, who int, times"
            " int DEFAULT 1 CHECK (times > 0))"
        )
        connection.execute("CREATE UNIQUE INDEX ON t (lower(key))")
    writers = [Writer(server, number, stopped) for number in range(CLIENTS)]
    for writer in writers:
        writer.start()
    for _ in range(lives):
        before = sum(len(writer.keys) for writer in writers)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(len(writer.keys) for writer in writers) < before + 20 and time.monotonic() < deadline:
            stopped.wait(0.01)
        server.kill()
        server.start()
    with server.connect() as connection:
        connection.execute("SELECT count(*) FROM t")
    stopped.set()
    for writer in writers:
        writer.join(PATIENCE_SECONDS)
    with server.connect() as connection:
        rows = connection.execute("SELECT lower(key), number FROM t").fetchall()
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO t (key) VALUES (upper(%s))", (rows[0][0],))
    server.kill()

    assert [writer.error for writer in writers] == [None] * CLIENTS
    assert len({key for key, _ in rows}) == len({number for _, number in rows}) == len(rows)
    assert {key for writer in writers for key in writer.keys} <= {key for key, _ in rows}
    assert {number for writer in writers for number in writer.numbers} <= {number for _, number in rows}
    assert any(writer.refused for writer in writers)
