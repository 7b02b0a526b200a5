"""`flowctl sql serve` with compute instances that are processes, from outside."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import psycopg
import pytest
from forked_flowctl import Flowctl, flowctl, owned_by
from patience import PATIENCE_SECONDS, wait_until
from test_sql_serve import Served, refused, serve

from derive.compute.protocol.messages import Hello
from derive.compute.replica.session import check_hello
from derive.compute.replica.worker import holder_of
from derive.errors import ProtocolError
from derive.storage.task_log import recent_entries


def replicas_of(served: Served) -> list[int]:
    """The processes of replicas that a server has started."""
    return owned_by(served.process.pid)


def has_ended(process: int, seconds: float) -> bool:
    """Whether a process has ended, or does soon."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def reported(connection: psycopg.Connection[Any]) -> list[tuple[str, ...]]:
    """The connected replicas, once each of them has reported its dataflows and its memory, which follow later."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        rows = [row for row in connection.execute("SHOW REPLICAS").fetchall() if row[3] == "connected"]
        if rows and all(int(row[5]) >= 2 and row[10] is not None for row in rows):
            return rows
        assert time.monotonic() < deadline, rows
        connection.execute("SELECT pg_sleep(0.1)")


def test_replicas_answer_after_one_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint, b bigint)")
        connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) AS b FROM t GROUP BY a")
        connection.execute("CREATE VIEW doubled AS SELECT a, b * 2 AS b FROM sums")
        connection.execute("CREATE INDEX ON doubled (a)")
        connection.execute("SET transaction_isolation = 'strict serializable'")
        wait_until(lambda: len(replicas_of(served)) == 2)
        killed: list[int] = []
        with psycopg.connect(served.address) as following, following.cursor() as cursor:
            cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT a, b FROM doubled) WITH (SNAPSHOT = false)")
            changes: list[tuple[object, ...]] = []
            for number in range(1, 7):
                if number in {2, 4}:
                    killed.append(replicas_of(served)[0])
                    os.kill(killed[-1], signal.SIGKILL)
                connection.execute("INSERT INTO t VALUES (%s, %s)", (number, number))
                query = "SELECT b FROM doubled WHERE a = %s"
                assert connection.execute(query, (number,)).fetchall() == [(2 * number,)]
                while len(changes) < number:
                    changes += cursor.execute("FETCH ALL c WITH (timeout = '0.2s')").fetchall()
            assert [change[1:] for change in changes] == [(1, number, 2 * number) for number in range(1, 7)]
        assert all(has_ended(process, PATIENCE_SECONDS) for process in killed)

        rows = reported(connection)
        assert all(int(row[10]) > 20 for row in rows)
        assert {int(row[6]) + int(row[7]) for row in rows} <= {2, 3}

        running = replicas_of(served)
        served.stop(signal.SIGKILL)
        assert all(has_ended(process, PATIENCE_SECONDS) for process in running)


def at_work(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    """What is seen of the only replica, once it is connected and has a view."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        rows: list[tuple[str, ...]] = connection.execute(
            "SHOW REPLICAS"
        ).fetchall()  # empty until a process has started
        if rows and rows[0][3] == "connected" and int(rows[0][5]) > 0:
            return rows[0]
        assert time.monotonic() < deadline, rows
        connection.execute("SELECT pg_sleep(0.1)")


def test_stopped_replica_of_an_earlier_server_releases_its_folder(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        served.stop()
        assert has_ended(replica, PATIENCE_SECONDS)
    with instance(data, "--folder", str(data / "compute" / "r1")):
        holder = holder_of(data / "compute" / "r1")
        assert holder is not None
        orphan = int(holder.split(":")[1])
        os.kill(orphan, signal.SIGSTOP)
        with (
            serve(tmp_path, "--replicas", "1") as served,
            psycopg.connect(served.address, autocommit=True) as connection,
        ):
            row = at_work(connection)
            assert (row[0], int(row[6])) == ("r1", 1)  # which it has found in the folder
            assert has_ended(orphan, 0)
    reported = [str(entry["message"]) for entry in recent_entries(data, "sql-views")]
    assert [message for message in reported if f":{orphan}) was still running, and was killed" in message]


def test_second_server_does_not_touch_replicas_of_the_first(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        code, reported = refused(tmp_path, "--replicas", "1", "--listen", "127.0.0.1:0")
        assert (code, f"at {served.host}:{served.port}" in reported) == (1, True)
        assert not has_ended(replica, 0)
        at_work(connection)
        assert replicas_of(served) == [replica]


@pytest.mark.torture  # waits 5 s; test_torture_instances.py stops instances, too
def test_a_replica_that_is_stopped_for_long_is_started_again(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        os.kill(replica, signal.SIGSTOP)
        assert has_ended(replica, PATIENCE_SECONDS)
        at_work(connection)
        assert replicas_of(served) != [replica]
    reported = [str(entry["message"]) for entry in recent_entries(tmp_path / ".flow", "sql-views")]
    assert "replica r1 was stopped by a signal for 5 s, and is killed; the replica is restarted" in reported


def test_client_that_does_not_read_uses_bounded_server_memory(tmp_path: Path) -> None:
    with (
        serve(tmp_path, "--replicas", "1") as served,
        psycopg.connect(served.address, autocommit=True) as connection,
        psycopg.connect(served.address) as slow,
        psycopg.connect(served.address) as following,
    ):
        connection.execute("CREATE TABLE t (a bigint, x text)")
        for client in (slow, following):
            client.execute("DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS)")
            assert len(client.execute("FETCH 2 c WITH (timeout = '60s')").fetchall()) == 2
        count = 0
        for number in range(1, 12):
            connection.execute("INSERT INTO t SELECT g, repeat('y', 10000) FROM generate_series(1, 400) g")
            while count < 400 * number:  # the instance tells all of it, to both of them
                count += sum(not row[1] for row in following.execute("FETCH ALL c WITH (timeout = '0.2s')"))
        count = 0
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="the client reads too slowly") as ended:
            while True:
                count += sum(not row[1] for row in slow.execute("FETCH 400 c WITH (timeout = '1s')"))
        assert "SUBSCRIBE again" in str(ended.value)
        assert 0 < count < 4_400
        assert count % 400 == 0


@contextmanager
def instance(data: Path, *options: str) -> Iterator[tuple[str, IO[str]]]:
    """An instance that somebody has started: its address, and what it says."""
    command = ["compute", "--data", str(data), "--listen", "127.0.0.1:0", *options]
    process = Flowctl(command, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout
    assert process.stderr
    try:
        yield process.stdout.readline().strip(), process.stderr
    finally:
        process.kill()
        process.communicate()


def reason_of(connection: psycopg.Connection[Any], expected: str) -> str:
    """Why the only instance is not connected, once it is told what is expected."""
    rows: list[tuple[str, ...]] = []
    for _ in range(1200):
        rows = connection.execute("SHOW REPLICAS").fetchall()
        if rows and rows[0][4] and expected in rows[0][4]:
            break
        connection.execute("SELECT pg_sleep(0.05)")
    return rows[0][4]


def welcomes(data: Path) -> list[dict[str, Any]]:
    """The log's entries of the replicas that a server has connected to."""
    return [dict(entry) for entry in recent_entries(data, "sql-views") if "is connected" in entry["message"]]


def test_instance_reports_kept_dataflows(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    with instance(data, "--token-file", str(secret)) as (address, said):
        for kept in (False, True):
            count = len(welcomes(data))
            with (
                serve(tmp_path, "--instance", address, "--compute-token-file", str(secret)) as served,
                psycopg.connect(served.address, autocommit=True) as connection,
            ):
                if not kept:
                    connection.execute("CREATE TABLE t (a bigint)")
                    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
                connection.execute("SET transaction_isolation = 'strict serializable'")
                connection.execute("INSERT INTO t VALUES (1)")
                assert connection.execute("SELECT count(*) FROM v").fetchone() == (2 if kept else 1,)
                ((name, place, _, state, *_),) = connection.execute("SHOW REPLICAS").fetchall()
                assert (name, place, state) == (address, address, "connected")
                wait_until(partial(lambda count: len(welcomes(data)) > count, count))
                served.stop(signal.SIGKILL)
            # The end of the server may also interrupt work, which the instance reports.
            line = next(line for line in said if "is connected" in line)
            assert ("kept public.v;" in line) == kept, line
            entry = welcomes(data)[count]
            assert entry["replica"] == address
            assert ("kept public.v;" in entry["message"]) == kept


def test_unusable_instances_report_the_reason(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.secret").write_text(name)
    data = tmp_path / "mine" / ".flow"
    data.mkdir()
    secrets = [str(tmp_path / "mine.secret"), str(tmp_path / "other.secret")]
    with instance(tmp_path / "other") as (other, _), instance(data, "--token-file", secrets[0]) as (guarded, _):
        for address, options, expected in (
            (other, (), "serves another data folder"),
            (guarded, ("--compute-token-file", secrets[1]), "the token is wrong"),
            (guarded, (), "the token is wrong"),
            ("127.0.0.1:9", (), "no instance listens at its address"),
        ):
            with (
                serve(tmp_path / "mine", "--instance", address, *options) as served,
                psycopg.connect(served.address, autocommit=True) as connection,
            ):
                assert expected in reason_of(connection, expected)
                assert connection.execute("SELECT 1").fetchone() == (1,)
    with instance(data) as (taken, _):
        command = ["compute", "--data", str(data), "--listen"]
        own = ["--folder", str(tmp_path / "own")]
        status, out, err = flowctl(tmp_path, *command, taken, *own)
        assert (status, out) == (2, "")
        assert f"cannot listen at {taken}" in err
        status, out, err = flowctl(tmp_path, *command, "127.0.0.1:0")
        assert (status, out) == (1, "")
        assert ", uses the folder " in err  # and which process it is
        status, out, err = flowctl(tmp_path, *command, "0.0.0.0:0")
        assert (status, out) == (2, "")
        assert "give both ends a token" in err


def test_remote_instances_need_a_token(tmp_path: Path) -> None:
    status, said = refused(tmp_path, "--instance", "10.0.0.7:6876")
    assert status == 2
    assert "10.0.0.7 is reachable from other machines" in said
    status, said = refused(tmp_path, "--instance", "localhost:1", "--instance", "localhost:1")
    assert status == 2
    assert "names an instance twice" in said


def test_controller_of_another_protocol_is_refused_before_it_drops_dataflows() -> None:
    with pytest.raises(ProtocolError, match=r"has protocol flow.compute.v1, and the controller flow.compute.v9"):
        check_hello(Hello(1, 1, "flow.compute.v9"), "")


# CREATE REPLICA and DROP REPLICA while clients ask and follow, with real processes.


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
            thread.join(PATIENCE_SECONDS)

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


def test_queries_and_subscriptions_continue_while_replicas_change(tmp_path: Path) -> None:
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
            assert has_ended(process, PATIENCE_SECONDS)
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
def test_invalid_replica_statements_are_refused(options: Served, statement: str, sqlstate: str) -> None:
    with psycopg.connect(options.address, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as failed:
            connection.execute(statement)
        assert failed.value.sqlstate == sqlstate


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("options"), "--replicas", "1", "--instance", "127.0.0.1:9") as served:
        yield served


def test_misspelt_replica_names_get_suggestions(options: Served) -> None:
    with psycopg.connect(options.address, autocommit=True) as connection:
        for statement, hint in (
            ("DROP REPLICA r11", 'Did you mean "r1"?'),
            ("CREATE REPLICA x (ADRESS '10.0.0.7:6876')", "Did you mean ADDRESS?"),
        ):
            with pytest.raises(psycopg.Error) as failed:
                connection.execute(statement)
            assert failed.value.diag.message_hint == hint


def test_if_exists_and_if_not_exists_skip_replicas_with_notices(tmp_path: Path) -> None:
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
        'replica "127.0.0.1:9" is named by the options of the server: a server that starts with these options creates the replica again',
    ]


def test_replica_statements_need_a_server(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        execute(served, "CREATE REPLICA one")
        execute(served, "CREATE TABLE t (a bigint)")
        wait_for_replicas(served, "one")
    status, _, err = flowctl(tmp_path, "sql", "-c", "CREATE REPLICA two")
    assert (status, "CREATE REPLICA needs a server" in err) == (1, True)
    # Without the server, views are worked out by whoever asks.
    query = "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t; SELECT n FROM v"
    assert flowctl(tmp_path, "sql", "-o", "json", "-c", query)[:2] == (0, '{"n":0}\n')


# Instances and servers that know one another by certificates and a secret, as real processes.


HOST = "127.0.0.2"


@dataclass(frozen=True)
class Authority:
    """Signs certificates, which are files beside its own."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        _openssl("req", "-x509", *self._new(self.name), "-out", str(self.certificate), "-days", "2")

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def sign(self, name: str, host: str = HOST) -> list[str]:
        """Options for an end that has a certificate of its own, and trusts those of this authority."""
        request, extensions, signed = (self.folder / f"{name}.{kind}" for kind in ("csr", "ext", "pem"))
        extensions.write_text(f"subjectAltName=IP:{host}")
        _openssl("req", *self._new(name), "-out", str(request))
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key(self.name))),
            *("-CAcreateserial", "-extfile", str(extensions), "-days", "2", "-out", str(signed)),
        )
        options = {"certificate": signed, "key": self._key(name), "authority": self.certificate}
        return [text for option, path in options.items() for text in (f"--tls-{option}", str(path))]

    def _key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _new(self, name: str) -> list[str]:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*kind, "-keyout", str(self._key(name)), "-subj", f"/CN={name}"]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def of_server(options: list[str]) -> list[str]:
    """The options of a server that are those of an instance."""
    return [option.replace("--t", "--compute-t", 1) if option.startswith("--") else option for option in options]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def stranger(authority: Authority) -> Authority:
    return Authority(authority.folder, "stranger")


def secret(folder: Path, text: str) -> list[str]:
    path = folder / text
    path.write_text(f"{text}\n")
    return ["--token-file", str(path)]


def test_server_accepts_instances_signed_by_its_authority(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    own = ["--listen", f"{HOST}:0"]
    token = secret(tmp_path, "swordfish")
    with (
        instance(data, *own, *authority.sign("signed"), *token, "--folder", str(tmp_path / "a")) as (signed, reported),
        instance(data, *own, *stranger.sign("unknown"), *token, "--folder", str(tmp_path / "b")) as (unknown, _),
        instance(data, *own, *authority.sign("elsewhere", "10.0.0.7"), "--folder", str(tmp_path / "c")) as (moved, _),
        serve(tmp_path, *of_server([*authority.sign("server"), *token]), "--instance", unknown) as served,
        psycopg.connect(served.address, autocommit=True) as connection,
    ):
        assert "CERTIFICATE_VERIFY_FAILED" in reason_of(connection, "CERTIFICATE_VERIFY_FAILED")
        connection.execute(f"CREATE REPLICA signed (ADDRESS '{signed}')")
        connection.execute(f"CREATE REPLICA moved (ADDRESS '{moved}')")
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        connection.execute("SET transaction_isolation = 'strict serializable'")
        connection.execute("INSERT INTO t VALUES (1)")
        assert connection.execute("SELECT n FROM v").fetchall() == [(1,)]
        assert "is connected" in reported.readline()
        states = {row[0]: (row[3], row[4]) for row in connection.execute("SHOW REPLICAS").fetchall()}
        assert states.pop("signed") == ("connected", None)
        assert {state for state, _ in states.values()} == {"connecting"}
        assert all(reason for _, reason in states.values())


def test_instance_refuses_unknown_servers(tmp_path: Path, authority: Authority, stranger: Authority) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    token = secret(tmp_path, "swordfish")
    known, unknown = authority.sign("one"), stranger.sign("two")
    signed_by_a_stranger = [*unknown[:4], *known[4:]]  # which trusts the instance, and is not trusted
    place = ["--listen", f"{HOST}:0", *authority.sign("instance"), *token]
    with instance(data, *place) as (address, reported):
        for options, expected in (
            (token, "failed to connect"),
            ([*signed_by_a_stranger, *token], "failed to connect"),
            (known, "the token is wrong"),
        ):
            with (
                serve(tmp_path, *of_server(options), "--instance", address) as served,
                psycopg.connect(served.address, autocommit=True) as connection,
            ):
                assert expected in reason_of(connection, expected)
        with (
            serve(tmp_path, *of_server([*known, *token]), "--instance", address) as served,
            psycopg.connect(served.address, autocommit=True) as connection,
        ):
            connection.execute("CREATE TABLE t (a bigint)")
            connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
            connection.execute("SELECT a FROM v")
            assert "(epoch 4) is connected" in reported.readline()  # none of those before was let in
    assert refused(tmp_path, "--instance", address)[0] == 2  # nobody would know who is there
