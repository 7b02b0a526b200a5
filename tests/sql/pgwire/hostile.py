"""Messages that a client may write, most of which make no sense where they are."""

from __future__ import annotations

import struct

from byte_client import message
from hypothesis import strategies as st

TEXTS = st.sampled_from(
    ["SELECT 1", "SELECT id, name FROM t", "SELECT id FROM t; SELECT 2", "BEGIN", "COMMIT", "ROLLBACK", "SELECT $1::int",
     "COPY t FROM STDIN", "COPY t FROM STDIN; SELECT 1", "", ";", "nonsense", "SELECT nope", "COPY (SELECT id FROM t) TO STDOUT",
     "INSERT INTO t VALUES ($1, $2, $3)", "INSERT INTO t VALUES (9, 'x', 1)", "DEALLOCATE a", "DISCARD ALL", "SELECT 1/0",
     "SAVEPOINT a", "ROLLBACK TO a", "SELECT relname FROM pg_class WHERE oid = $1"]
)  # fmt: skip
NAMES = st.sampled_from(["", "a", "b"])
SMALL = st.integers(-2, 3)
KINDS = "QPBDECSHdcfFX"
LINES = st.sampled_from(
    [b"", b"1\tx\t1\n", b"1\tx\t", b"1\n", b"\\.\n", b"no number\tx\t1\n", b"\xff\n", b"\0", b"1\tx\t1"]
)


def named(name: str) -> bytes:
    return name.encode() + b"\0"


def _counted(form: str, numbers: list[int], count: int | None = None) -> bytes:
    written = len(numbers) if count is None else count
    return struct.pack(f"!H{len(numbers)}{form}", written, *numbers)


@st.composite
def parses(draw: st.DrawFn) -> bytes:
    oids = draw(st.lists(st.sampled_from([0, 20, 23, 25, 1007, 99999]), max_size=3))
    return named(draw(NAMES)) + named(draw(TEXTS)) + _counted("I", oids)


@st.composite
def binds(draw: st.DrawFn) -> bytes:
    """Formats, arguments and their lengths may be others than there are."""
    body = named(draw(NAMES)) + named(draw(NAMES)) + _counted("h", draw(st.lists(SMALL, max_size=3)))
    arguments = draw(st.lists(st.none() | st.binary(max_size=9) | st.sampled_from([b"1", b"x", b"-2"]), max_size=3))
    body += struct.pack("!H", draw(st.just(len(arguments)) | st.sampled_from([0, 1, 3, 65_535])))
    for argument in arguments:
        value = argument or b""
        length = -1 if argument is None else len(value)
        body += struct.pack("!i", draw(st.just(length) | st.sampled_from([-2, 0, 2, 1 << 30, -(1 << 31)]))) + value
    return body + _counted("h", draw(st.lists(SMALL, max_size=3)))


@st.composite
def requests(draw: st.DrawFn, kinds: str = KINDS) -> bytes:
    """A message of a kind that there is, with a body that may be well formed."""
    kind = draw(st.sampled_from(kinds))
    body = draw(
        {
            "Q": TEXTS.map(named),
            "P": parses(),
            "B": binds(),
            "D": st.builds(lambda what, name: what + named(name), st.sampled_from([b"S", b"P", b"?"]), NAMES),
            "C": st.builds(lambda what, name: what + named(name), st.sampled_from([b"S", b"P", b""]), NAMES),
            "E": st.builds(
                lambda name, most: named(name) + struct.pack("!i", most),
                NAMES,
                SMALL | st.sampled_from([(1 << 31) - 1, -(1 << 31)]),
            ),
            "d": LINES | st.binary(max_size=8),
            "f": st.sampled_from([b"no\0", b"no", b""]),
            "F": st.binary(max_size=8),
        }.get(kind, st.just(b""))
    )
    if draw(st.integers(0, 15)) == 0:
        body = draw(st.sampled_from([body[:-1], body + b"\0", b"", body * 2])) if kind in "QPBDEC" else body
    return message(kind.encode(), body)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Whole extended queries, simple queries and messages that are none of either, mixed."""
    name, portal = draw(NAMES), draw(NAMES)
    text = named(name) + named(draw(TEXTS))
    whole = [
        message(b"P", text + struct.pack("!H", 0)),
        message(b"B", named(portal) + named(name) + struct.pack("!HHH", 0, 0, 0)),
        message(b"D", b"P" + named(portal)),
        message(b"E", named(portal) + struct.pack("!i", draw(SMALL))),
        draw(requests("EDHSdcf")),
        message(b"S"),
    ]
    parts = draw(st.lists(st.just(whole) | requests().map(lambda request: [request]), max_size=8))
    return [request for part in parts for request in part]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message of any kind, body and length."""
    kind = bytes([draw(st.integers(0, 255))])
    body = draw(st.binary(max_size=20))
    length = draw(
        st.sampled_from([len(body) + 4, len(body) + 3, 0, 4, -1, 1 << 30]) | st.integers(-(1 << 31), (1 << 31) - 1)
    )
    return kind + struct.pack("!i", length) + body
