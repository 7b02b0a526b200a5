"""What one client asks holds up no other: a server in a process of its own, and two clients."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from cancelling import cancelling
from patience import PATIENCE_SECONDS

Client: TypeAlias = psycopg.Connection[Any]

_PATIENCE_SECONDS = 5.0
"""Limit for a wait of the second client, or a quarter of the time that the first one takes. On a busy machine, the limit
is for the processor time of the server during the wait."""

_LONGEST_SECONDS = 60.0
"""Limit for a wait in which the server gets no processor time."""


class Served:
    """A server in a process, and how long a second client waits for it."""

    def __init__(self, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "derive.cli.main",
            "sql",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            str(folder),
        ]
        self.process = subprocess.Popen(
            [*command, "--max-result-bytes", "50000000"],
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self._port = int(self.process.stdout.readline().rpartition(":")[2])
        self._second = self.connect()

    def connect(self) -> Client:
        return psycopg.connect(host="127.0.0.1", port=self._port, user="flow", dbname="flow", autocommit=True)

    def memory(self) -> int:
        """Megabytes that the process has at its peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def processor_seconds(self) -> float:
        """Return the processor time of the process."""
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def ask(self, text: str, cancel_after: float | None = None) -> tuple[str | None, bool]:
        """Carry a statement out; its SQLSTATE, None if it succeeds, and whether it has held a second client up."""
        held_up, begin = 0.0, time.monotonic()
        is_over = threading.Event()

        def look() -> None:
            nonlocal held_up
            while not is_over.is_set():
                asked, worked = time.monotonic(), self.processor_seconds()
                self._second.execute("SELECT 1").fetchall()
                waited = time.monotonic() - asked
                worked = self.processor_seconds() - worked
                held_up = max(held_up, waited if waited > _LONGEST_SECONDS else min(waited, worked))
                is_over.wait(0.01)

        looking = threading.Thread(target=look)
        looking.start()
        with self.connect() as client:
            try:
                with nullcontext() if cancel_after is None else cancelling(client.cancel_safe, cancel_after):
                    client.execute(text.encode())
                sqlstate = None
            except psycopg.Error as error:
                sqlstate = error.sqlstate
            finally:
                is_over.set()
                looking.join()
        return sqlstate, held_up > max(_PATIENCE_SECONDS, (time.monotonic() - begin) / 4)

    def close(self) -> None:
        self._second.close()
        self.process.terminate()
        try:
            self.process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"))
    with server.connect() as client:
        client.execute("CREATE TABLE t (a bigint, s text)")
        client.execute("INSERT INTO t SELECT g, 'text ' || g FROM generate_series(1, 1000) g")
        client.execute("CREATE VIEW v0 AS SELECT a FROM t")
        for index in range(1, 10):
            before = f"v{index - 1}"
            client.execute(f"CREATE VIEW v{index} AS SELECT l.a FROM {before} l JOIN {before} r ON l.a = r.a".encode())
    yield server
    server.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT " + "(" * 100_000 + "1" + ")" * 100_000, "54001"),
        ("SELECT " + "+".join(["1"] * 50_000), "54001"),
        ("SELECT count(*) FROM t WHERE " + " AND ".join(f"a <> {number}" for number in range(5_000)), "54001"),
        ("SELECT count(*) FROM t WHERE a IN (" + ",".join(map(str, range(20_000))) + ")", None),
        ("INSERT INTO t VALUES " + ",".join(f"({number}, 'x')" for number in range(5_000)), None),
        ("SELECT '" + "[" * 100_000 + "'::jsonb", "22P02"),
        ("CREATE VIEW w AS SELECT l.a FROM v9 l, v9 m, v9 n, v9 o", "54001"),
        ("SELECT * FROM generate_series(1, 1000000000000)", "54000"),
        ("SELECT length(repeat('x', 1000000000))", "54000"),
        ("SELECT length(lpad('ä', 250000000, '中'))", "54000"),
        ("SELECT length(replace(repeat('x', 1000000), 'x', repeat('y', 10000)))", "54000"),
        ("SELECT length(format(repeat('%1$s', 10000), repeat('x', 100000)))", "54000"),
        ("SELECT length(concat_ws(repeat('x', 30000000), 'a', 'b', 'c', 'd', 'e'))", "54000"),
        ("SELECT length(repeat('x', 60000000) || repeat('y', 60000000) || repeat('z', 60000000))", "54000"),
        ("SELECT length(upper(repeat('ä', 10000000)))", None),
        ("SELECT length(string_agg(repeat('x', 10000), '')) FROM generate_series(1, 10000)", "54000"),
        ("SELECT length((10::numeric ^ 100000)::text)", None),
        ("SELECT repeat('a', 100000) || 'c' ~ '(a+)+b'", None),
        ("SELECT repeat('a', 1000000) LIKE '%a%a%a%a%b'", None),
    ],
)
def test_statements_block_no_other_client(served: Served, text: str, sqlstate: str | None) -> None:
    assert served.ask(text) == (sqlstate, False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM t WHERE a IN (" + ",".join(map(str, range(400_000))) + ")",
        "INSERT INTO t SELECT a.g, 'x' FROM generate_series(1, 10000) a(g), generate_series(1, 100000) b(g) WHERE a.g = -b.g",
        "SELECT count(*) FROM t a, t b, t c, t d WHERE a.s || b.s = c.s || d.s || 'x'",
        "INSERT INTO t SELECT a.a, a.s FROM t a, t b, t c WHERE a.s || b.s = c.s || 'x'",
        "UPDATE t SET s = s WHERE (SELECT count(*) FROM t a, t b WHERE a.s || b.s = t.s || 'x') > 0",
        "SELECT a.s || b.s, repeat('y', 1000) FROM t a, t b, t c ORDER BY 1",
        "SUBSCRIBE t WITH (SNAPSHOT = false)",
        "SELECT length(regexp_replace(repeat('ab', 8000000), 'a', 'c', 'g'))",
        "SELECT count(*) FROM pg_class, generate_series(1, 1000000) g, generate_series(1, 1000000) h",
        "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d, pg_type e, pg_type f",
    ],
)
def test_long_statements_can_be_cancelled(served: Served, text: str) -> None:
    assert served.ask(text, cancel_after=0.7) == ("57014", False)
    with served.connect() as client:  # catalogs are in one database, which works for one session at a time
        assert client.execute("SELECT count(*) FROM pg_am").fetchall() == [(2,)]


def test_exhausting_statements_take_bounded_memory(served: Served) -> None:
    assert served.memory() < 2_000


def test_statement_timeout_is_reported_as_a_timeout(served: Served) -> None:
    with served.connect() as client:
        client.execute("SET statement_timeout = '300ms'")
        for text in (
            "INSERT INTO t SELECT a.a, a.s FROM t a, t b, t c WHERE a.s || b.s = c.s || 'x'",
            "SELECT count(*) FROM t a, t b, t c WHERE a.s || b.s = c.s || 'x'",
            "SELECT count(*) FROM pg_class, generate_series(1, 1000000) g, generate_series(1, 1000000) h",
        ):
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                client.execute(text.encode())
        assert client.execute("SELECT count(*) FROM pg_am").fetchall() == [(2,)]


def test_idle_sessions_are_not_cancelled(served: Served) -> None:
    with served.connect() as client:
        client.cancel_safe()
        assert client.execute("SELECT 1").fetchall() == [(1,)]
        client.execute("BEGIN")
        client.execute("DECLARE c CURSOR FOR SELECT a FROM (VALUES (0), (1)) AS v (a) ORDER BY a")
        assert client.execute("FETCH 1 c").fetchall() == [(0,)]
        client.cancel_safe()
        assert client.execute("FETCH 1 c").fetchall() == [(1,)]
        client.execute("ROLLBACK")


def test_a_copy_that_is_cancelled_leaves_nothing(served: Served) -> None:
    with served.connect() as client:
        client.execute("CREATE TABLE copied (a bigint)")
        with pytest.raises(psycopg.errors.QueryCanceled), client.cursor().copy("COPY copied FROM STDIN") as copy:
            copy.write(b"1\n")
            client.cancel_safe()
            copy.write(b"2\n")
        assert client.execute("SELECT count(*) FROM copied").fetchall() == [(0,)]


def test_rows_of_a_committed_write_are_sent_after_a_cancellation(served: Served) -> None:
    with served.connect() as client, served.connect() as other:
        client.execute("CREATE TABLE returned (a int, s text)")
        client.execute("INSERT INTO returned SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i")
        client.pgconn.send_query(b"UPDATE returned SET a = -a RETURNING a, s")
        written = (other.execute("SELECT count(*) FROM returned WHERE a < 0").fetchall() for _ in range(1_000))
        assert [(10_000,)] in written
        client.cancel_safe()
        result = client.pgconn.get_result()
        assert result
        assert (result.error_message, result.ntuples) == (b"", 10_000)
        assert client.pgconn.get_result() is None


def test_a_failed_transaction_stays_failed_when_it_is_cancelled(served: Served) -> None:
    with served.connect() as client:
        client.execute("BEGIN")
        with pytest.raises(psycopg.errors.DivisionByZero):
            client.execute("SELECT 1 / 0")
        client.cancel_safe()
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("SELECT 1")
        assert client.execute("ROLLBACK").statusmessage == "ROLLBACK"


def test_statements_that_wait_for_a_writer_can_be_cancelled(served: Served) -> None:
    with served.connect() as first, served.connect() as second:
        text = "INSERT INTO t SELECT a.a, a.s FROM t a, t b, t c, t d WHERE a.s || b.s = c.s || d.s || 'x'"
        ended: list[str | None] = []

        def write() -> None:
            try:
                first.execute(text.encode())
            except psycopg.Error as error:
                ended.append(error.sqlstate)

        writing = threading.Thread(target=write)
        writing.start()
        with cancelling(second.cancel_safe, 0.5), pytest.raises(psycopg.errors.QueryCanceled):
            second.execute(
                b"UPDATE t SET s = s || 'x' WHERE (SELECT count(*) FROM t a, t b, t c WHERE a.s || b.s = c.s || 'y') >= 0"
            )
        with cancelling(first.cancel_safe):
            writing.join()
        assert ended == ["57014"]
