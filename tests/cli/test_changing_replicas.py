"""CREATE REPLICA and DROP REPLICA while clients ask and follow, with real processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forked_flowctl import flowctl
from test_replicas import has_ended, instance, replicas_of
from test_sql_serve import Served, serve

SECONDS = 120


class Traffic:
    """Somebody who writes and asks what follows, and somebody who follows it, until the end of the block."""

    def __init__(self, served: Served) -> None:
        self._served, self._over = served, threading.Event()
        self.answers = 0
        self.changes: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._ask, self._follow)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS)

    def wait_for_answers(self) -> None:
        """Wait for some more answers, and for as many changes."""
        answers = self.answers
        wait_until(lambda: len(self.changes) > answers + 3)

    def _guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _ask(self) -> None:
        with psycopg.connect(self._served.address, autocommit=True) as connection:
            connection.execute("SET transaction_isolation = 'strict serializable'")
            while not self._over.is_set():
                number = self.answers + 1
                connection.execute("INSERT INTO t VALUES (%s, %s)", (number, 2 * number))
                rows = connection.execute("SELECT b FROM sums WHERE a = %s", (number,)).fetchall()
                assert rows == [(2 * number,)]
                self.answers = number

    def _follow(self) -> None:
        with psycopg.connect(self._served.address) as connection, connection.cursor() as cursor:
            cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT a, b FROM sums)")
            while not self._over.is_set():
                rows = cursor.execute("FETCH ALL c WITH (timeout = '0.2s')").fetchall()
                self.changes += [(int(diff), int(a)) for _, diff, a, _ in rows]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_replicas(served: Served, *names: str) -> None:
    """Wait until these are connected, and there are no others, and all know what the first one knows."""
    with psycopg.connect(served.address, autocommit=True) as connection:

        def is_so() -> bool:
            rows = connection.execute("SHOW REPLICAS").fetchall()
            is_known = len({row[5] for row in rows}) == 1 and all(int(row[9] or 10_000) < 1000 for row in rows)
            return [row[0] for row in rows if row[3] == "connected"] == list(names) and is_known

        wait_until(is_so)


def execute(served: Served, statement: str) -> str | None:
    with psycopg.connect(served.address, autocommit=True) as connection:
        return connection.execute(statement).statusmessage


@contextmanager
def traffic(served: Served) -> Iterator[Traffic]:
    """Traffic that must have gone well."""
    with Traffic(served) as going:
        yield going
        going.wait_for_answers()
    assert going.errors == []
    assert going.changes == [(1, number + 1) for number in range(len(going.changes))]


def test_replicas_come_and_go_under_queries_and_a_subscription(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    with serve(tmp_path) as served:
        execute(served, "CREATE TABLE t (a bigint, b bigint)")
        execute(served, "CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) AS b FROM t GROUP BY a")
        execute(served, "CREATE INDEX ON sums (a)")
        wait_for_replicas(served, "local")
        with instance(data) as (address, _), traffic(served) as going:
            going.wait_for_answers()
            assert execute(served, "CREATE REPLICA old") == "CREATE REPLICA"
            wait_for_replicas(served, "old")  # the one in the server's process is gone
            going.wait_for_answers()
            (process,) = replicas_of(served)
            execute(served, f"CREATE CLUSTER REPLICA default.new (ADDRESS '{address}')")
            wait_for_replicas(served, "old", "new")
            assert execute(served, "DROP REPLICA old") == "DROP REPLICA"
            assert has_ended(process, SECONDS)
            assert not (data / "compute" / "old").exists()
            wait_for_replicas(served, "new")
            going.wait_for_answers()
        # It is remembered, and so is the address, which an option may name as well.
        with instance(data, "--folder", str(tmp_path / "folder"), "--listen", address):
            served.stop(signal.SIGKILL)
            with serve(tmp_path, "--instance", address) as again:
                wait_for_replicas(again, "new")
                execute(again, "DELETE FROM t")
                with traffic(again) as going:
                    going.wait_for_answers()
                    execute(again, "DROP REPLICA new")
                    wait_for_replicas(again, "local")
                    going.wait_for_answers()


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("CREATE REPLICA r1", "42710"),
        ("CREATE REPLICA local", "42602"),
        ('CREATE REPLICA "../x"', "42602"),
        ('CREATE REPLICA "6876"', "42602"),
        ("CREATE REPLICA other.x", "42704"),
        ("CREATE REPLICA x (ADDRESS '127.0.0.1')", "22023"),
        ("CREATE REPLICA x (ADDRESS '10.0.0.7:6876')", "22023"),  # anybody could be there
        ("CREATE REPLICA x (ADDRESS '127.0.0.1:9')", "42710"),  # which is that of the option
        ("CREATE REPLICA x (ADDRESS 'localhost:09')", "42710"),  # in other words
        ("CREATE REPLICA x (ADDRESS '')", "22023"),
        ("CREATE REPLICA x (ADDRESS '127.0.0.1:0')", "22023"),
        ("DROP REPLICA x", "42704"),
        ("DROP REPLICA local", "42704"),
        ("BEGIN; CREATE REPLICA x; COMMIT", "25001"),
    ],
)
def test_statements_that_make_no_sense(options: Served, statement: str, sqlstate: str) -> None:
    with psycopg.connect(options.address, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as failed:
            connection.execute(statement)
        assert failed.value.sqlstate == sqlstate


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("options"), "--replicas", "1", "--instance", "127.0.0.1:9") as served:
        yield served


def test_what_is_misspelt_is_suggested(options: Served) -> None:
    with psycopg.connect(options.address, autocommit=True) as connection:
        for statement, hint in (
            ("DROP REPLICA r11", 'Did you mean "r1"?'),
            ("CREATE REPLICA x (ADRESS '10.0.0.7:6876')", "Did you mean ADDRESS?"),
        ):
            with pytest.raises(psycopg.Error) as failed:
                connection.execute(statement)
            assert failed.value.diag.message_hint == hint


def test_one_that_an_option_names_and_a_statement_did_as_well(tmp_path: Path) -> None:
    """It was created before there was the option, by which it is back once it was dropped."""
    with serve(tmp_path) as served:
        execute(served, "CREATE REPLICA r1")
    notices: list[str | None] = []
    with (
        serve(tmp_path, "--replicas", "1") as served,
        psycopg.connect(served.address, autocommit=True) as connection,
    ):
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("DROP REPLICA r1")
    assert notices == [
        'replica "r1" is one of the server\'s options, and is back once it is started with them again',
    ]


def test_what_is_there_or_missing_may_be_welcome(tmp_path: Path) -> None:
    notices: list[str | None] = []
    with (
        serve(tmp_path, "--replicas", "1", "--instance", "127.0.0.1:9") as served,
        psycopg.connect(served.address, autocommit=True) as connection,
    ):
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("CREATE REPLICA IF NOT EXISTS r1")
        connection.execute("DROP REPLICA IF EXISTS x")
        connection.execute('DROP REPLICA "127.0.0.1:9"')
        assert [row[0] for row in connection.execute("SHOW REPLICAS").fetchall()] == ["r1"]
    assert notices == [
        'replica "r1" already exists, skipping',
        'replica "x" does not exist, skipping',
        'replica "127.0.0.1:9" is one of the server\'s options, and is back once it is started with them again',
    ]


def test_only_a_server_has_replicas(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        execute(served, "CREATE REPLICA one")
        execute(served, "CREATE TABLE t (a bigint)")
        wait_for_replicas(served, "one")
    status, _, err = flowctl(tmp_path, "sql", "-c", "CREATE REPLICA two")
    assert (status, "CREATE REPLICA is for a server" in err) == (1, True)
    # Without the server, views are worked out by whoever asks.
    query = "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t; SELECT n FROM v"
    assert flowctl(tmp_path, "sql", "-o", "json", "-c", query)[:2] == (0, '{"n":0}\n')
