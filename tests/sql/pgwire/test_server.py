"""Who is let in, how many, and how a server ends."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import psycopg
import pytest
from byte_client import ByteClient, message, state_of
from cancelling import cancelling
from patience import wait_until
from toy_server import ToyServer, toy_server
from toy_session import ToySession, toy_database

from derive.errors import FlowError, UsageError
from derive.sql.pgwire.passwords import Passwords, Verifier
from derive.sql.pgwire.server import Server, tls_context

PASSWORDS = Passwords({"flow": Verifier.of_password("it's a secret")})


def test_clients_log_in_with_passwords() -> None:
    with toy_server(PASSWORDS) as toy:
        with psycopg.connect(toy.address, password="it's a secret", autocommit=True) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        for address in (toy.address, f"host=127.0.0.1 port={toy.port} user=eve dbname=flow"):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(address, password="wrong")


def test_connections_are_encrypted(tmp_path: Path) -> None:
    certificate = certify(tmp_path)
    with toy_server(PASSWORDS, tls_context(str(certificate), None)) as toy:
        address = f"{toy.address} sslmode=verify-ca sslrootcert={certificate}"
        with psycopg.connect(address, password="it's a secret", autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM big").fetchone() == (20_000,)
            with cancelling(connection.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
                connection.execute("SELECT pg_sleep(30)")


def test_bytes_before_encryption_are_refused(tmp_path: Path) -> None:
    with toy_server(None, tls_context(str(certify(tmp_path)), None)) as toy:
        with ByteClient(toy.port, is_let_in=False) as client:
            client.send(b"\0\0\0\x08\x04\xd2\x16\x2f" + b"injected")
            assert client.is_sent_away()
        with psycopg.connect(f"{toy.address} sslmode=require") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_remote_addresses_need_passwords() -> None:
    async def listen(host: str, passwords: Passwords | None) -> None:
        server = Server(lambda begun, _: ToySession(toy_database(), begun), passwords=passwords)
        await server.listen(host, 0)
        await server.close()

    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(UsageError, match="can be reached from other machines"):
            asyncio.run(listen(host, None))
    asyncio.run(listen("localhost", None))
    asyncio.run(listen("0.0.0.0", PASSWORDS))


def test_used_port_is_reported() -> None:
    async def listen(port: int) -> None:
        await Server(lambda begun, _: ToySession(toy_database(), begun)).listen("127.0.0.1", port)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FlowError, match="cannot listen at 127.0.0.1:"):
            asyncio.run(listen(taken.getsockname()[1]))


def test_connections_beyond_the_limit_are_refused() -> None:
    with toy_server(most_connections=2) as toy, ByteClient(toy.port) as first, ByteClient(toy.port):
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(toy.address)
        first.send(message(b"X"))
        assert first.is_sent_away()
        psycopg.connect(toy.address).close()


def test_lost_client_ends_its_statement(toy: ToyServer) -> None:
    for text in (b"SELECT pg_sleep(30)\0", b"SUBSCRIBE t\0"):
        client = ByteClient(toy.port)
        session = toy.sessions[-1]
        client.send(message(b"Q", text))
        wait_until(partial(getattr, session, "is_at_work"))
        client.close()
        wait_until(partial(getattr, session, "is_closed"))


def test_client_that_does_not_read_is_awaited_and_can_be_cancelled(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client, ByteClient(toy.port, is_let_in=False) as other:
        client.send(message(b"Q", b"SELECT s, s, s, s, s, s FROM big; " * 40 + b"\0"))
        client.receive()
        time.sleep(0.3)  # until it waits for the client
        other.send(b"\0\0\0\x10\x04\xd2\x16\x2e" + client.key)
        assert other.is_sent_away()
        received = client.until(b"Z")

    assert 1_000 < len(received) < 700_000
    assert [state_of(body) for kind, body in received if kind == b"E"] == ["57014"]


def test_committed_statements_are_not_reported_as_cancelled(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client, ByteClient(toy.port, is_let_in=False) as other:
        client.send(message(b"Q", b"SELECT 1; SELECT 'late'\0"))
        other.send(b"\0\0\0\x10\x04\xd2\x16\x2e" + client.key)
        assert other.is_sent_away()
        assert b"".join(kind for kind, _ in client.until(b"Z")) == b"TDCTDCZ"


def test_a_cancellation_with_another_secret_does_nothing(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client, ByteClient(toy.port, is_let_in=False) as other:
        client.send(message(b"Q", b"SUBSCRIBE t\0"))
        client.receive()
        other.send(b"\0\0\0\x10\x04\xd2\x16\x2e" + client.key[:4] + bytes(byte ^ 1 for byte in client.key[4:]))
        assert other.is_sent_away()
        assert [client.receive()[0] for _ in range(100)] == [b"D"] * 100


def test_server_ends_running_statements() -> None:
    with (
        toy_server() as toy,
        ByteClient(toy.port) as idle,
        ByteClient(toy.port) as busy,
        ByteClient(toy.port) as streaming,
    ):
        busy.send(message(b"Q", b"SELECT pg_sleep(30)\0"))
        streaming.send(message(b"Q", b"COPY (SUBSCRIBE t) TO STDOUT\0"))
        wait_until(lambda: sum(session.is_at_work for session in toy.sessions) == 2)
        begin = time.monotonic()
        toy.close()

        assert time.monotonic() - begin < 20
        assert [state_of(body) for kind, body in idle.until(b"E") if kind == b"E"] == ["57P01"]
        assert state_of(busy.until(b"E")[-1][1]) == "57014"
        assert all(client.is_sent_away() for client in (idle, busy, streaming))
        assert all(session.is_closed for session in toy.sessions)
        with pytest.raises(ConnectionError):
            ByteClient(toy.port)


def test_many_clients_are_served() -> None:
    with toy_server(most_connections=300) as toy:
        idle = [ByteClient(toy.port) for _ in range(200)]
        busy = [ByteClient(toy.port) for _ in range(50)]
        for client in busy:
            client.send(message(b"Q", b"SELECT count(*) FROM t\0") * 20)
        for client in busy:
            for _ in range(20):
                assert [kind for kind, _ in client.until(b"Z")] == [b"T", b"D", b"C", b"Z"]
        assert toy.server.connections == 250
        for client in (*idle, *busy):
            client.close()
        wait_until(lambda: toy.server.connections == 0)


def certify(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    path = folder / "certificate.pem"
    options = [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-days",
        "2",
        "-nodes",
        "-newkey",
        "rsa:2048",
    ]
    key = folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", *options, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True
    )
    path.write_text(path.read_text() + key.read_text())
    return path


def test_invalid_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.pem"
    path.write_text("nothing")
    with pytest.raises(UsageError, match="cannot be used"):
        tls_context(str(path), None)
