"""Whatever a client writes, the server goes on, and so do other sessions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
from answers import are_answers
from byte_client import STARTUP, ByteClient, message, startup
from hostile import conversations, damaged, requests
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_server import served
from toy_server import ToyServer

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "40"))


def goes_on(toy: ToyServer, witness: ByteClient) -> None:
    """A session from before works as it did, and so does a new one."""
    with ByteClient(toy.port) as another:
        for client in (witness, another):
            client.send(message(b"Q", b"SELECT count(*) FROM big\0"))
            assert [kind for kind, _ in client.until(b"Z")] == [b"T", b"D", b"C", b"Z"]
    assert all(isinstance(defect, ZeroDivisionError) for defect in toy.defects)


END = [message(b"c"), message(b"S"), message(b"Q", b"ROLLBACK\0"), message(b"Q", b"SELECT 4711\0"), message(b"X")]
"""What ends a COPY that may be under way, and what is skipped behind an error."""


def answered(port: int, sent: list[bytes], meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Whether a client's messages are answered as the protocol says."""
    with ByteClient(port) as client:
        client.send(b"".join([*sent, *END]))
        meanwhile()
        received = list(client.rest())
    return are_answers([request[:1] for request in [*sent, *END]], [kind for kind, _ in received])


@settings(max_examples=EXAMPLES)
@given(conversations())
def test_messages_are_answered_by_the_protocol(toy: ToyServer, sent: list[bytes]) -> None:
    with ByteClient(toy.port) as witness:
        assert answered(toy.port, sent)
        goes_on(toy, witness)


def test_an_honest_session_continues_beside_hostile_ones(tmp_path: Path) -> None:
    """With a session of SQL, and what describes catalogs and keeps savepoints before it."""
    with served(tmp_path) as port, psycopg.connect(f"host=127.0.0.1 port={port} user=flow", autocommit=True) as honest:
        honest.execute("CREATE TABLE t (id int, name text, x double precision)")
        honest.execute("CREATE TABLE kept (n int)")
        count = 0

        def work() -> None:
            nonlocal count
            count += 1
            honest.execute("INSERT INTO kept VALUES (%s)", (count,))
            kept = honest.execute("SELECT count(*), sum(n), max(n) FROM kept").fetchone()
            assert kept == (count, count * (count + 1) // 2, count)

        @settings(max_examples=EXAMPLES)
        @given(conversations())
        def attempt(sent: list[bytes]) -> None:
            assert answered(port, sent, meanwhile=work)

        attempt()
        rows = honest.execute("SELECT count(*) FROM t").fetchone()
        assert rows
        assert honest.execute("SELECT n FROM kept ORDER BY n").fetchall() == [(n,) for n in range(1, count + 1)]


@settings(max_examples=EXAMPLES)
@given(st.lists(requests() | damaged(), max_size=8), st.booleans())
def test_damaged_messages_end_one_session_at_most(toy: ToyServer, sent: list[bytes], is_let_in: bool) -> None:
    with ByteClient(toy.port) as witness:
        with ByteClient(toy.port, is_let_in=is_let_in) as client:
            try:
                client.send(b"".join(sent))
            except ConnectionError:
                assert sent
        goes_on(toy, witness)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=60), st.sampled_from([0, 196608, 196610, 80877103, 80877104, 80877102, 131072, 1 << 31]))
def test_startup_messages_of_any_kind_do_not_harm_other_clients(toy: ToyServer, body: bytes, version: int) -> None:
    with ByteClient(toy.port) as witness:
        with ByteClient(toy.port, is_let_in=False) as client:
            client.send(startup(body, version))
            client.send(startup(STARTUP, version))
        goes_on(toy, witness)
