"""Whatever a client writes, the server goes on, and so do other sessions."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest
from byte_client import STARTUP, ByteClient, message, startup
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_server import ToyServer, toy_server

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "40"))


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyServer]:
    with toy_server() as server:
        yield server


texts = st.sampled_from(
    ["SELECT 1", "SELECT id, name FROM t", "BEGIN", "ROLLBACK", "SELECT $1::int", "COPY t FROM STDIN", "", "nonsense", "SELECT nope",
     "COPY (SELECT id FROM t) TO STDOUT", "SELECT 'defect'", "INSERT INTO t VALUES ($1, $2, $3)", "DEALLOCATE a", "DISCARD ALL"]
)  # fmt: skip
names = st.sampled_from(["", "a", "b"])
small = st.integers(-2, 3)


def named(name: str) -> bytes:
    return name.encode() + b"\0"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A message that is well formed, though it may make no sense where it is."""
    kind = draw(st.sampled_from(["Q", "P", "B", "D", "E", "C", "S", "H", "d", "c", "f"]))
    if kind == "Q":
        body = draw(texts).encode() + b"\0"
    elif kind == "P":
        oids = draw(st.lists(st.sampled_from([0, 20, 23, 25, 1007, 99999]), max_size=3))
        body = named(draw(names)) + named(draw(texts)) + struct.pack(f"!H{len(oids)}I", len(oids), *oids)
    elif kind == "B":
        formats = draw(st.lists(small, max_size=2))
        arguments = draw(st.lists(st.none() | st.binary(max_size=9), max_size=3))
        results = draw(st.lists(small, max_size=2))
        body = named(draw(names)) + named(draw(names)) + struct.pack(f"!H{len(formats)}h", len(formats), *formats)
        body += struct.pack("!H", len(arguments))
        for argument in arguments:
            body += struct.pack("!i", -1) if argument is None else struct.pack("!i", len(argument)) + argument
        body += struct.pack(f"!H{len(results)}h", len(results), *results)
    elif kind in "DC":
        body = draw(st.sampled_from([b"S", b"P", b"?"])) + named(draw(names))
    elif kind == "E":
        body = named(draw(names)) + struct.pack("!i", draw(small))
    elif kind == "f":
        body = b"no\0"
    else:
        body = draw(st.binary(max_size=8)) if kind == "d" else b""
    return message(kind.encode(), body)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message of any kind, body and length."""
    kind = bytes([draw(st.integers(0, 255))])
    body = draw(st.binary(max_size=20))
    length = draw(
        st.sampled_from([len(body) + 4, len(body) + 3, 0, 4, -1, 1 << 30]) | st.integers(-(1 << 31), (1 << 31) - 1)
    )
    return kind + struct.pack("!i", length) + body


def goes_on(toy: ToyServer, witness: ByteClient) -> None:
    """A session from before works as it did, and so does a new one."""
    with ByteClient(toy.port) as another:
        for client in (witness, another):
            client.send(message(b"Q", b"SELECT count(*) FROM big\0"))
            assert [kind for kind, _ in client.until(b"Z")] == [b"T", b"D", b"C", b"Z"]
    assert all(isinstance(defect, ZeroDivisionError) for defect in toy.defects)


@settings(max_examples=EXAMPLES)
@given(st.lists(requests(), max_size=12))
def test_messages_in_any_order_are_answered(toy: ToyServer, sent: list[bytes]) -> None:
    # What comes behind ends a COPY that may be under way, and then whatever is skipped.
    end = message(b"c") + message(b"S") + message(b"Q", b"ROLLBACK\0") + message(b"Q", b"SELECT 4711\0")
    with ByteClient(toy.port) as witness, ByteClient(toy.port) as client:
        client.send(b"".join(sent) + end)
        while not any(kind == b"D" and body.endswith(b"4711") for kind, body in client.until(b"Z")):
            pass
        goes_on(toy, witness)


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
def test_beginnings_of_any_kind_harm_nobody(toy: ToyServer, body: bytes, version: int) -> None:
    with ByteClient(toy.port) as witness:
        with ByteClient(toy.port, is_let_in=False) as client:
            client.send(startup(body, version))
            client.send(startup(STARTUP, version))
        goes_on(toy, witness)
