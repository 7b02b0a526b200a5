"""What is answered at once is read as the conversation would read it, whatever bytes come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from byte_client import message
from hypothesis import given
from hypothesis import strategies as st

from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.sql.pgwire.fast_path import FastPath
from derive.sql.pgwire.messages import bind_of, execute_of, named_of
from derive.sql.pgwire.portal import Portal, PreparedStatement
from derive.sql.results import Prepared, ResultColumn, Session

COLUMNS = (ResultColumn("id", Type.BIGINT, 20), ResultColumn("name", Type.TEXT, 25))
STATEMENTS = {
    name: PreparedStatement(Prepared(name, oids, COLUMNS))
    for name, oids in {"": (20,), "s": (20,), "t": (23, 25), "none": ()}.items()
}
TAIL = message(b"D", b"P\0"), message(b"E", b"\0\0\0\0\0"), message(b"S")


class Recording:
    """Remembers what was looked up last."""

    def __init__(self) -> None:
        self.looked_up: tuple[Prepared, Sequence[Datum]] | None = None

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        self.looked_up = prepared, tuple(arguments)
        return [(1, "one")]


def said(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """The messages that bytes are; None if they do not end with one."""
    messages = []
    while data:
        size = int.from_bytes(data[1:5], "big", signed=True)
        if len(data) < 5 or size < 4 or len(data) < 1 + size:
            return None
        messages.append((data[:1], data[5 : 1 + size]))
        data = data[1 + size :]
    return messages


def read_slowly(data: bytes) -> tuple[Prepared, Sequence[Datum], bool] | None:
    """What is looked up, with which arguments, and whether it is described: message by message; None for none."""
    messages = said(data)
    if messages is None:
        return None
    kinds = b"".join(kind for kind, _ in messages)
    if kinds not in {b"BES", b"BDES"} or messages[-1][1]:
        return None
    bound, executed = bind_of(messages[0][1]), execute_of(messages[-2][1])
    described = named_of(messages[1][1]) if len(messages) == 4 else None
    if bound.portal or executed != ("", 0) or described not in {None, (True, "")}:
        return None
    if bound.statement not in STATEMENTS:
        return None
    statement = STATEMENTS[bound.statement]
    portal = Portal.of_bytes(statement, bound.formats, bound.arguments, bound.result_formats)
    return statement.prepared, portal._arguments, described is not None


def counted(numbers: Sequence[int]) -> bytes:
    return len(numbers).to_bytes(2, "big") + b"".join(number.to_bytes(2, "big") for number in numbers)


def exchange_of(body: bytes, tail: bytes) -> bytes:
    return message(b"B", body) + tail


VALUES = {20: [b"\0" * 7 + b"\5", b"12", None], 23: [b"\0\0\0\7", b"7", None], 25: [b"x", b"", b"\xff", None]}


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """An exchange that is well formed, or nearly so, and others that are nearly the same."""
    name = draw(st.sampled_from(list(STATEMENTS)))
    oids = STATEMENTS[name].prepared.parameters
    formats = draw(st.sampled_from([[], [0], [1], [1] * len(oids), [0, 1]]))
    arguments = [draw(st.sampled_from(VALUES[oid])) for oid in oids]
    body = b"\0" + name.encode() + b"\0" + counted(formats) + len(arguments).to_bytes(2, "big")
    for argument in arguments:
        body += b"\xff\xff\xff\xff" if argument is None else len(argument).to_bytes(4, "big") + argument
    body += counted(draw(st.sampled_from([[], [0], [1], [0, 1]])))
    tail = draw(st.sampled_from([b"", TAIL[0]])) + TAIL[1] + TAIL[2]
    sent = [exchange_of(body, tail)]
    for _ in range(draw(st.integers(1, 6))):
        whole = draw(st.sampled_from([body, sent[0]]))
        at = draw(st.integers(0, len(whole) - 1))
        replaced = draw(
            st.sampled_from([b"", b"\0", b"\1", b"\0\0", bytes([whole[at] ^ 1]), bytes([whole[at] + 1 & 255])])
        )
        changed = whole[:at] + replaced + whole[at + draw(st.integers(0, 1)) :]
        sent.append(changed if whole is sent[0] else exchange_of(changed, tail))
    return sent


@given(conversations())
def test_fast_path_takes_the_values_of_the_messages(sent: list[bytes]) -> None:
    session = Recording()
    exchange = FastPath(STATEMENTS, cast(Session, session))
    for data in sent:
        session.looked_up = None
        try:
            answered = exchange.answer(data)
        except SqlError as error:
            failure: str | None = error.sqlstate
            answered = None
        else:
            failure = None
        try:
            expected, expected_failure = read_slowly(data), None
        except SqlError as error:
            expected, expected_failure = None, error.sqlstate
        if answered is not None:
            assert expected is not None
            assert session.looked_up == expected[:2]
            assert answered[0].prepared is expected[0]
            assert (b"T\0\0\0" in answered[1]) is expected[2]
        else:
            assert expected is None
            assert failure is None or expected_failure is not None
