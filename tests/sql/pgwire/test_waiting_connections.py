"""Connections that have not logged in take nothing from those that have, however they are silent."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from cancelling import cancelling
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS, wait_until
from test_server import certify
from toy_server import ToyServer, toy_server

from derive.sql.pgwire.passwords import Passwords, Verifier
from derive.sql.pgwire.server import shares, tls_context

PASSWORDS = Passwords({"flow": Verifier.of_password("secret")})
STARTUP = b"user\0flow\0database\0flow\0\0"
SILENCES = {
    "nothing": b"",
    "a part of a length": b"\0",
    "a part of a startup": struct.pack("!ii", 100, 196608) + b"user\0",
    "no password": struct.pack("!ii", len(STARTUP) + 8, 196608) + STARTUP,
    "a part of a password": struct.pack("!ii", len(STARTUP) + 8, 196608) + STARTUP + b"p\0\0\1\0",
    "no handshake": struct.pack("!ii", 8, 80877103),
    "no end after GSS": struct.pack("!ii", 8, 80877104),
}


def ended(connection: socket.socket, seconds: float = PATIENCE_SECONDS) -> bytes:
    """All that a connection says up to its end."""
    connection.settimeout(seconds)
    said = b""
    try:
        while more := connection.recv(4096):
            said += more
    except ConnectionResetError:
        pass
    return said


def logged_in(toy: ToyServer) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(toy.address, password="secret", autocommit=True, connect_timeout=30)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certify(tmp_path_factory.mktemp("tls"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("silence", SILENCES)
def test_oldest_waiting_connection_is_closed_for_a_new_one(silence: str, certificate: Path) -> None:
    with (
        toy_server(PASSWORDS, tls_context(str(certificate), None), most_waiting=3, login_seconds=600) as toy,
        ExitStack() as stack,
    ):
        client = stack.enter_context(logged_in(toy))
        silent = []
        for _ in range(9):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", toy.port)))
            connection.sendall(SILENCES[silence])
            silent.append(connection)
        for connection in silent[:6]:
            said = ended(connection)
            assert b"53300" in said or silence == "no handshake"
        with logged_in(toy) as late:  # one more makes way for it
            assert late.execute("SELECT 1").fetchone() == (1,)
        assert client.execute("SELECT 1").fetchone() == (1,)
        ended(silent[6])
        for connection in silent[7:]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                while connection.recv(4096):
                    pass
        assert toy.defects == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("silence", SILENCES)
def test_logins_have_a_time_limit(silence: str, certificate: Path) -> None:
    with (
        toy_server(PASSWORDS, tls_context(str(certificate), None), login_seconds=0.3) as toy,
        socket.create_connection(("127.0.0.1", toy.port)) as connection,
    ):
        connection.sendall(SILENCES[silence])
        begin = time.monotonic()
        said = ended(connection)
        assert b"timeout" in said or silence == "no handshake"
        assert time.monotonic() - begin < 30
        wait_until(lambda: toy.server.waiting == 0)
        with logged_in(toy) as client:
            time.sleep(0.6)  # who is let in may be silent
            assert client.execute("SELECT 1").fetchone() == (1,)


def test_logged_in_clients_do_not_wait(certificate: Path) -> None:
    with toy_server(PASSWORDS, most_connections=5, most_waiting=2) as toy, ExitStack() as stack:
        clients = [stack.enter_context(logged_in(toy)) for _ in range(5)]
        assert (toy.server.connections, toy.server.waiting) == (5, 0)
        with pytest.raises(psycopg.OperationalError, match="too many clients already"):
            logged_in(toy)
        for client in clients:
            assert client.execute("SELECT 1").fetchone() == (1,)


def test_cancel_request_is_served_beside_waiting_connections() -> None:
    with toy_server(PASSWORDS, most_waiting=2) as toy, ExitStack() as stack:
        client = stack.enter_context(logged_in(toy))
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", toy.port)))
        with cancelling(client.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("SELECT pg_sleep(600)")


@given(most=st.integers(1, 100_000), descriptors=st.integers(8, 1 << 20))
def test_limits_of_connections_leave_descriptors_for_work(most: int, descriptors: int) -> None:
    connections, waiting = shares(most, descriptors)
    assert 1 <= connections <= most
    assert 1 <= waiting <= 100
    assert connections + waiting <= descriptors - min(384, descriptors // 2)


@contextmanager
def limited_server(folder: Path, descriptors: int) -> Iterator[tuple[int, int]]:
    """Port and number of a server that may have so many descriptors."""
    (folder / "flow.yaml").write_text("collections: {}")
    (folder / "passwords").write_text("flow:secret\n")
    (folder / "passwords").chmod(0o600)
    command = [sys.executable, "-m", "derive.cli.main", "sql", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--password-file", "passwords"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_limiting(descriptors),  # noqa: PLW1509 (no thread of this process holds a lock that it takes)
    )
    assert process.stdout
    try:
        yield int(process.stdout.readline().rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def _limiting(descriptors: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


def test_waiting_connections_leave_descriptors_for_work(tmp_path: Path) -> None:
    with limited_server(tmp_path, 256) as (port, process), ExitStack() as stack:
        address = f"host=127.0.0.1 port={port} user=flow password=secret dbname=flow connect_timeout=60"
        client = stack.enter_context(psycopg.connect(address, autocommit=True))
        client.execute("CREATE TABLE t (a bigint)")
        for _ in range(600):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(b"\0")
        for text in (
            *("INSERT INTO t VALUES (1)", "SELECT count(*) FROM t", "CREATE TABLE u (a bigint)", "UPDATE t SET a = 2"),
            *("CREATE VIEW v AS SELECT a FROM t", "CREATE INDEX ON v (a)", "SELECT * FROM v", "DELETE FROM t"),
            *("CREATE MATERIALIZED VIEW m AS SELECT sum(a) FROM t", "SELECT * FROM m", "SELECT count(*) FROM pg_class"),
        ):
            client.execute(text.encode())
        assert len(os.listdir(f"/proc/{process}/fd")) < 200
        with psycopg.connect(address) as late:
            assert late.execute("SELECT 1").fetchone() == (1,)
