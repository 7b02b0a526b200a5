"""`flowctl sql serve` with compute instances that are processes, from outside."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import psycopg
import pytest
from forked_flowctl import Flowctl, flowctl
from test_sql_serve import Served, refused, serve

from derive.compute.protocol.messages import Hello
from derive.compute.replica.session import check_hello
from derive.compute.replica.worker import holder_of
from derive.errors import ProtocolError
from derive.storage.task_log import recent_entries


def replicas_of(served: Served) -> list[int]:
    """The processes of replicas that a server has started."""
    tasks = Path(f"/proc/{served.process.pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in children if b"compute" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")]


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


def test_replicas_answer_and_one_may_be_killed(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint, b bigint)")
        connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) AS b FROM t GROUP BY a")
        connection.execute("CREATE VIEW doubled AS SELECT a, b * 2 AS b FROM sums")
        connection.execute("CREATE INDEX ON doubled (a)")
        connection.execute("SET transaction_isolation = 'strict serializable'")
        before = replicas_of(served)
        assert len(before) == 2
        with psycopg.connect(served.address) as following, following.cursor() as cursor:
            cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT a, b FROM doubled) WITH (SNAPSHOT = false)")
            changes: list[tuple[object, ...]] = []
            for number in range(1, 7):
                if number in {2, 4}:
                    os.kill(replicas_of(served)[0], signal.SIGKILL)
                connection.execute("INSERT INTO t VALUES (%s, %s)", (number, number))
                query = "SELECT b FROM doubled WHERE a = %s"
                assert connection.execute(query, (number,)).fetchall() == [(2 * number,)]
                while len(changes) < number:
                    changes += cursor.execute("FETCH ALL c WITH (timeout = '0.2s')").fetchall()
            assert [change[1:] for change in changes] == [(1, number, 2 * number) for number in range(1, 7)]
        assert any(has_ended(process, 0) for process in before)

        rows = [row for row in connection.execute("SHOW REPLICAS").fetchall() if row[3] == "connected"]
        assert rows, "one has answered just now"
        assert all(int(row[5]) >= 2 and int(row[10]) > 20 for row in rows)
        assert {int(row[6]) + int(row[7]) for row in rows} <= {2, 3}

        running = replicas_of(served)
        served.stop(signal.SIGKILL)
        assert all(has_ended(process, 20) for process in running)


def at_work(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    """What is seen of the only replica, once it is connected and has a view."""
    deadline = time.monotonic() + 60
    while True:
        row: tuple[str, ...] = connection.execute("SHOW REPLICAS").fetchall()[0]
        if row[3] == "connected" and int(row[5]) > 0:
            return row
        assert time.monotonic() < deadline, row
        connection.execute("SELECT pg_sleep(0.1)")


def test_a_replica_of_an_earlier_server_that_is_stopped_does_not_keep_its_folder(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        served.stop()
        assert has_ended(replica, 20)
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
    told = [str(entry["message"]) for entry in recent_entries(data, "sql-views")]
    assert [message for message in told if f":{orphan}) was still there, and was killed" in message]


def test_a_second_server_leaves_the_replicas_of_the_first_alone(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        code, told = refused(tmp_path, "--replicas", "1", "--listen", "127.0.0.1:0")
        assert (code, f"at {served.host}:{served.port}" in told) == (1, True)
        assert not has_ended(replica, 0)
        at_work(connection)
        assert replicas_of(served) == [replica]


def test_a_replica_that_is_stopped_for_long_is_started_again(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "1") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        at_work(connection)
        (replica,) = replicas_of(served)
        os.kill(replica, signal.SIGSTOP)
        assert has_ended(replica, 60)
        at_work(connection)
        assert replicas_of(served) != [replica]
    told = [str(entry["message"]) for entry in recent_entries(tmp_path / ".flow", "sql-views")]
    assert "replica r1 was stopped by a signal for 5 s, and is killed; it is started again" in told


def test_a_client_that_takes_nothing_does_not_fill_the_memory_of_the_server(tmp_path: Path) -> None:
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
        for number in range(1, 17):
            connection.execute("INSERT INTO t SELECT g, repeat('y', 1000) FROM generate_series(1, 4000) g")
            while count < 4000 * number:  # the instance tells all of it, to both of them
                count += sum(not row[1] for row in following.execute("FETCH ALL c WITH (timeout = '0.2s')"))
        count = 0
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="wait for the client") as ended:
            while True:
                count += sum(not row[1] for row in slow.execute("FETCH 4000 c WITH (timeout = '1s')"))
        assert "SUBSCRIBE again" in str(ended.value)
        assert 0 < count < 64_000
        assert count % 4000 == 0


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


def test_an_instance_tells_what_it_kept(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    data.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    with instance(data, "--token-file", str(secret)) as (address, said):
        for kept in (False, True):
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
                served.stop(signal.SIGKILL)
            line = said.readline()
            assert ("kept public.v;" in line) == kept, line
            entry = [one for one in recent_entries(data, "sql-views") if "is connected" in one["message"]][-1]
            assert entry["replica"] == address
            assert ("kept public.v;" in entry["message"]) == kept


def test_what_keeps_an_instance_from_being_used_is_told(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.secret").write_text(name)
    data = tmp_path / "mine" / ".flow"
    data.mkdir()
    secrets = [str(tmp_path / "mine.secret"), str(tmp_path / "other.secret")]
    with instance(tmp_path / "other") as (other, _), instance(data, "--token-file", secrets[0]) as (guarded, _):
        for address, options, expected in (
            (other, (), "over another data folder"),
            (guarded, ("--compute-token-file", secrets[1]), "the token is another one"),
            (guarded, (), "the token is another one"),
            ("127.0.0.1:9", (), "Connection refused"),
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
        assert ", keeps what it has in" in err  # and which process it is
        status, out, err = flowctl(tmp_path, *command, "0.0.0.0:0")
        assert (status, out) == (2, "")
        assert "give both ends a token" in err


def test_instances_of_others_need_a_token(tmp_path: Path) -> None:
    status, said = refused(tmp_path, "--instance", "10.0.0.7:6876")
    assert status == 2
    assert "10.0.0.7 is not this machine alone" in said
    status, said = refused(tmp_path, "--instance", "localhost:1", "--instance", "localhost:1")
    assert status == 2
    assert "names an instance twice" in said


def test_another_protocol_is_refused_before_anything_is_dropped() -> None:
    with pytest.raises(ProtocolError, match=r"speaks flow.compute.v1, and not flow.compute.v9"):
        check_hello(Hello(1, 1, "flow.compute.v9"), "")
