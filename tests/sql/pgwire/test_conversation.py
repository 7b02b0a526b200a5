"""The protocol, message by message."""

from __future__ import annotations

import struct

from byte_client import ByteClient, message, startup, state_of
from toy_server import ToyServer


def parse(text: str, name: str = "", oids: tuple[int, ...] = ()) -> bytes:
    body = name.encode() + b"\0" + text.encode() + b"\0" + struct.pack(f"!H{len(oids)}I", len(oids), *oids)
    return message(b"P", body)


def bind(*arguments: bytes, portal: str = "", name: str = "") -> bytes:
    values = b"".join(struct.pack("!i", len(argument)) + argument for argument in arguments)
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!HH", 0, len(arguments)) + values
    return message(b"B", body + struct.pack("!H", 0))


def execute(most: int = 0, portal: str = "") -> bytes:
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", most))


SYNC, FLUSH = message(b"S"), message(b"H")


def kinds(client: ByteClient, *sent: bytes) -> str:
    client.send(b"".join(sent))
    return b"".join(kind for kind, _ in client.until(b"Z")).decode()


def test_an_extended_query_is_answered_in_order(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        described = message(b"D", b"S\0")
        assert (
            kinds(client, parse("SELECT name FROM t WHERE id = $1"), described, bind(b"1"), execute(), SYNC)
            == "1tT2DCZ"
        )


def test_portal_returns_rows_in_pieces(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        sent = (parse("SELECT id FROM t"), bind(), execute(2), execute(2), execute(2), SYNC)
        assert kinds(client, *sent) == "12DDsDCCZ"


def test_a_portal_ends_with_its_transaction(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        assert kinds(client, parse("SELECT id FROM t"), bind(portal="p"), execute(1, "p"), SYNC) == "12DsZ"
        assert kinds(client, execute(1, "p"), SYNC) == "EZ"
        assert kinds(client, message(b"Q", b"BEGIN\0")) == "CZ"
        assert (
            kinds(client, bind(portal="p"), execute(1, "p"), SYNC) == "EZ"
        )  # a simple query has dropped the statement
        assert kinds(client, message(b"Q", b"ROLLBACK\0"), message(b"Q", b"BEGIN\0")) == "CZ"
        client.until(b"Z")
        assert kinds(client, parse("SELECT id FROM t"), bind(portal="p"), execute(1, "p"), SYNC) == "12DsZ"
        assert kinds(client, execute(0, "p"), SYNC) == "DDCZ"


def test_messages_after_an_error_are_skipped_up_to_sync(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        sent = (
            parse("SELECT nope FROM t"),
            bind(),
            execute(),
            message(b"Q", b"SELECT 1\0"),
            SYNC,
            parse("SELECT 1"),
            SYNC,
        )
        assert kinds(client, *sent) == "EZ"
        assert b"".join(kind for kind, _ in client.until(b"Z")) == b"1Z"


def test_an_error_is_sent_before_sync(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        client.send(parse("SELECT nope FROM t") + FLUSH)
        assert client.receive()[0] == b"E"
        assert kinds(client, SYNC) == "Z"


def test_statement_and_portal_names_are_checked(toy: ToyServer) -> None:
    def state(client: ByteClient, *sent: bytes) -> str:
        client.send(b"".join(sent) + SYNC)
        return next(state_of(body) for kind, body in client.until(b"Z") if kind == b"E")

    with ByteClient(toy.port) as client:
        assert state(client, parse("SELECT 1", "a"), parse("SELECT 2", "a")) == "42P05"
        assert state(client, bind(name="missing")) == "26000"
        assert state(client, execute(portal="missing")) == "34000"
        assert state(client, parse("SELECT 1"), bind(portal="p"), bind(portal="p")) == "42P03"
        assert state(client, parse("SELECT 1"), bind(b"1")) == "08P01"
        assert state(client, parse("SELECT $1::int"), bind(b"\xff")) == "22021"
        assert state(client, parse("SELECT $1::int"), bind(b"one")) == "22P02"
        assert kinds(client, message(b"C", b"Sa\0"), bind(name="a"), SYNC) == "3EZ"


def test_empty_queries_are_answered(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        assert kinds(client, message(b"Q", b" ; \0")) == "IZ"
        assert kinds(client, parse(""), bind(), execute(), SYNC) == "12IZ"


def test_several_statements_are_one_query(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        assert kinds(client, message(b"Q", b"SELECT 1; SELECT 2\0")) == "TDCTDCZ"
        assert kinds(client, message(b"Q", b"SELECT 1; SELECT nope FROM t; SELECT 2\0")) == "TDCEZ"


def test_unknown_protocol_version_is_negotiated_or_refused(toy: ToyServer) -> None:
    with ByteClient(toy.port, is_let_in=False) as client:
        client.send(startup(b"user\0flow\0_pq_.new\0on\0\0", version=196610))
        assert client.receive() == (b"v", struct.pack("!ii", 196608, 1) + b"_pq_.new\0")
        client.until(b"Z")
    with ByteClient(toy.port, is_let_in=False) as client:
        client.send(startup(version=2 << 16))
        kind, body = client.receive()
        assert (kind, state_of(body)) == (b"E", "0A000")
        assert client.is_sent_away()


def test_logins_without_a_user_or_with_an_unknown_database_are_refused(toy: ToyServer) -> None:
    for body, sqlstate in ((b"\0", "28000"), (b"user\0flow\0database\0nowhere\0\0", "3D000")):
        with ByteClient(toy.port, is_let_in=False) as client:
            client.send(startup(body))
            assert state_of(client.until(b"E")[-1][1]) == sqlstate
            assert client.is_sent_away()


def test_late_copy_messages_are_ignored(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        client.send(message(b"Q", b"COPY t FROM STDIN\0"))
        assert client.receive()[0] == b"G"
        assert kinds(client, message(b"d", b"4\tx"), message(b"Q", b"SELECT 1\0")) == "EZ"
        assert kinds(client, message(b"d", b"late"), message(b"c"), message(b"Q", b"SELECT 1\0")) == "TDCZ"


def test_a_result_has_no_more_columns_than_postgresql_allows(toy: ToyServer) -> None:
    with ByteClient(toy.port) as client:
        for count, answer in ((1664, "TDCZ"), (1665, "EZ"), (40_000, "EZ")):
            columns = ", ".join(["1"] * count)
            assert kinds(client, message(b"Q", f"SELECT {columns}\0".encode())) == answer
    assert toy.defects == []


def test_replication_is_refused_before_it_begins(toy: ToyServer) -> None:
    for value, answer in ((b"database", b"E"), (b"true", b"E"), (b"off", b"R")):
        with ByteClient(toy.port, is_let_in=False) as client:
            client.send(startup(b"user\0flow\0replication\0" + value + b"\0\0"))
            kind, body = client.receive()
            assert kind == answer
            assert kind == b"R" or state_of(body) == "0A000"
