"""Savepoints, as psycopg sets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import apsw
import psycopg
import pytest
from catalog_session import CatalogSession
from psycopg.types import TypeInfo
from toy_server import toy_server

from derive.adapter.savepoints import SavepointSession

Connection = psycopg.Connection[tuple[object, ...]]


class Session(SavepointSession):
    def __init__(self, database: apsw.Connection, begun: Mapping[str, str]) -> None:
        super().__init__(CatalogSession(database, begun))


@pytest.fixture
def connection() -> Iterator[Connection]:
    with toy_server(kind=Session) as toy, psycopg.connect(toy.address) as connected:
        yield connected


def test_types_are_looked_up_within_a_transaction(connection: Connection) -> None:
    connection.execute("SELECT 1")
    assert TypeInfo.fetch(connection, "jsonb") is not None
    assert connection.execute("SELECT 2").fetchone() == (2,)


def test_a_savepoint_that_is_released_is_nothing(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT 1")
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (4, 'x', 1)")
        assert connection.execute("DELETE FROM t WHERE id = 4").rowcount == 1


def test_a_failed_question_is_taken_back(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT 1")
        with pytest.raises(psycopg.errors.UndefinedColumn), connection.transaction():
            connection.execute("SELECT nope FROM pg_class")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_what_follows_a_failed_question_is_refused(connection: Connection) -> None:
    connection.execute("SAVEPOINT a")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        connection.execute("SELECT nope FROM pg_class")
    for text in ("SELECT 1", "SAVEPOINT b", "RELEASE a"):
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute(text)
    connection.execute("ROLLBACK TO a")
    connection.execute("RELEASE SAVEPOINT a")
    with pytest.raises(psycopg.errors.InvalidSavepointSpecification):
        connection.execute("RELEASE a")
    connection.rollback()
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_failed_question_fails_the_transaction(connection: Connection) -> None:
    connection.execute("SAVEPOINT a")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        connection.execute("SELECT nope FROM pg_class")
    assert connection.execute("COMMIT").statusmessage == "ROLLBACK"


def test_statements_are_not_taken_back_in_part(connection: Connection) -> None:
    connection.execute("SAVEPOINT a")
    connection.execute("SELECT 1")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="as a whole only"):
        connection.execute("ROLLBACK TO SAVEPOINT a")


def test_there_is_no_savepoint_without_a_transaction(connection: Connection) -> None:
    connection.autocommit = True
    with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
        connection.execute('SAVEPOINT "a b"')
