"""Arguments of psycopg, in text and binary, arrive as they arrive at PostgreSQL, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Interface
from typing import Any
from uuid import UUID

import pg8000.native
import psycopg
import pytest
from postgres_server import server
from psycopg.pq import DiagnosticField
from psycopg.types.json import Jsonb
from psycopg.types.range import Range
from sql_server import served

Connection = psycopg.Connection[Any]

ARGUMENTS = [
    True,
    7,
    1 << 40,
    1 << 80,
    0.1,
    Decimal("1.5"),
    "a",
    b"a\0\xff",
    date(2020, 2, 29),
    datetime(2020, 2, 29, 12, 30),  # noqa: DTZ001 (a timestamp without a time zone)
    datetime(2020, 2, 29, 12, 30, tzinfo=UTC),
    timedelta(days=3, seconds=5),
    Jsonb({"a": [1, None]}),
    UUID("61626364-6566-6768-696a-6b6c6d6e6f70"),
    time(12, 30, 5, 7),
    time(12, 30, tzinfo=timezone(timedelta(hours=2))),
    IPv4Address("10.0.0.1"),
    IPv4Network("10.0.0.0/8"),
    IPv6Address("::1"),
    IPv6Interface("2001:db8::1/64"),
    Range(1, 5),
    Range(date(2020, 1, 1), None),
    [1, 2],
    ["a", None],
    [UUID(int=1), None],
    [time(1, 2)],
    [IPv4Address("10.0.0.1")],
    [Decimal(1), Decimal("2.5")],
    [b"a"],
]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        served(tmp_path_factory.mktemp("arguments")) as port,
        psycopg.connect(f"host=127.0.0.1 port={port} user=flow dbname=flow", autocommit=True) as opened,
    ):
        opened.execute("CREATE TABLE texts (t text)")
        yield opened


@pytest.fixture(scope="module")
def theirs() -> Iterator[Connection]:
    with server().connect() as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


@pytest.mark.parametrize("form", ["t", "b"])
@pytest.mark.parametrize("argument", ARGUMENTS, ids=repr)
def test_arguments_are_read_as_in_postgresql_or_refused(
    ours: Connection, theirs: Connection, argument: object, form: str
) -> None:
    """No argument becomes another value: the text of each is PostgreSQL's, or there is an error."""
    question = f"SELECT (%{form})::text"
    try:
        answer = ours.execute(question, (argument,)).fetchone()
    except psycopg.errors.FeatureNotSupported:
        assert isinstance(argument, Range | time)  # types that are not here
        assert isinstance(argument, Range) or argument.tzinfo
        return
    expected = theirs.execute(question, (argument,)).fetchone()
    if isinstance(argument, datetime | timedelta | Jsonb) or form == "b" or answer == expected:
        assert answer == expected
        return
    # Where PostgreSQL knows a type that is not here, an argument in text stays as the client has written it.
    assert isinstance(argument, Range | time)


@pytest.mark.parametrize(("oid", "form"), [(3904, 0), (3904, 1), (12345, 0), (12345, 1)])
def test_argument_of_an_unknown_type_is_not_read_as_a_number(ours: Connection, oid: int, form: int) -> None:
    """An argument keeps its type: it is not read as whatever stands beside it."""
    result = ours.pgconn.exec_params(b"SELECT 1 WHERE 1 = $1", [b"1"], [oid], [form])
    assert result.error_field(DiagnosticField.SQLSTATE) == b"42883"


def test_unknown_argument_takes_the_type_of_its_context(ours: Connection) -> None:
    result = ours.pgconn.exec_params(b"SELECT $1 + 1", [b"41"], [705])
    assert result.get_value(0, 0) == b"42"


@pytest.mark.parametrize("oid", [0, 25, 1043, 705])
def test_a_nul_in_a_binary_text_is_refused(ours: Connection, oid: int) -> None:
    for question in (b"SELECT $1::text", b"INSERT INTO texts VALUES ($1)"):
        result = ours.pgconn.exec_params(question, [b"a\0b"], [oid], [1])
        assert result.error_field(DiagnosticField.SQLSTATE) == b"22021"
    assert ours.execute("SELECT count(*) FROM texts").fetchone() == (0,)


@pytest.mark.parametrize("question", ["SELECT :v::text", "INSERT INTO texts VALUES (:v)"])
def test_a_nul_in_a_text_is_refused(ours: Connection, question: str) -> None:
    with pg8000.native.Connection("flow", "127.0.0.1", port=ours.info.port) as connection:  # which sends texts
        with pytest.raises(pg8000.DatabaseError) as raised:
            connection.run(question, v="a\0b")
        assert raised.value.args[0]["C"] == "22021"
