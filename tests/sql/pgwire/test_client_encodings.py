"""Clients with other encodings than UTF-8 get and give what they would get from PostgreSQL, and give to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from postgres_server import server
from sql_server import served

from derive.functions.types.encodings import NAMES, find_encoding

OTHERS = [name for name in NAMES if name not in ("UTF8", "SQL_ASCII")]
LETTERS = "a\\~é€ßŁąžđøşÑяЖїґΩωאבשعربไทยıŐơ中文國語日本語かなカナ한국어한글「。㍻①—“–№"
"""Characters of which each encoding has some."""
DIFFERING = {"SJIS": "№", "EUC_JP": "№㍻①", "BIG5": "€", "GBK": "€"}
"""Characters that Python and PostgreSQL convert differently."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served")) as port:
        yield f"host=127.0.0.1 port={port} user=flow"


def outcome(connection: psycopg.Connection[Any], statement: bytes) -> object:
    """Return the bytes of a statement's first column, or the SQLSTATE of its error."""
    try:
        result = connection.pgconn.exec_(statement)
        if code := result.error_field(psycopg.pq.DiagnosticField.SQLSTATE):
            return code
        return [result.get_value(row, 0) for row in range(result.ntuples)]
    finally:
        connection.rollback()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", OTHERS)
def test_texts_are_converted_as_postgresql_does(name: str, ours: str) -> None:
    """Each character comes back as it was sent, and is the same one on the server; others are 22P05."""
    encoding = find_encoding(name)
    assert encoding is not None
    letters = [letter for letter in LETTERS if letter not in DIFFERING.get(name, "")]
    statements = [f"SELECT chr({ord(letter)})".encode() for letter in letters]
    for letter in letters:
        try:
            data = letter.encode(encoding.codec)
        except UnicodeEncodeError:
            continue
        statements.append(b"SELECT ascii('%b')::text || '%b'" % (data, data))
    with psycopg.connect(ours) as here, server().connect() as there:
        there.autocommit = False
        for connection in (here, there):
            connection.execute(f"SET client_encoding = '{name}'")
            connection.commit()
        differing = [statement for statement in statements if outcome(here, statement) != outcome(there, statement)]
        assert differing == []


@pytest.mark.parametrize(
    ("name", "data"), [("LATIN1", b"f\xfcr"), ("SJIS", b"\x83\x5c\x95\x5c"), ("GB18030", b"\x81\x30\x81\x35")]
)
def test_names_parameters_prepared_statements_and_copy_are_converted(name: str, data: bytes, ours: str) -> None:
    encoding = find_encoding(name)
    assert encoding is not None
    text = data.decode(encoding.codec)
    with psycopg.connect(ours, autocommit=True) as here, psycopg.connect(ours, autocommit=True) as other:
        here.execute(f"SET client_encoding = '{name}'")
        here.execute(f'CREATE TABLE "t {text}" ("{text}" text, j jsonb)')
        for _ in range(7):  # psycopg prepares it meanwhile
            here.execute(f'INSERT INTO "t {text}" VALUES (%s, %s::jsonb)', [text, f'["{text}"]'])
        with here.cursor().copy(f'COPY "t {text}" FROM STDIN') as copy:
            for byte in data + b"\t[]\n":
                copy.write(bytes([byte]))
        for binary in (False, True):
            rows = here.cursor(binary=binary).execute(f'SELECT "{text}" FROM "t {text}"')
            assert rows.fetchall() == [(text,)] * 8
            assert rows.description
            assert rows.description[0].name == text
        with here.cursor().copy(f"COPY (SELECT j FROM \"t {text}\" WHERE j <> '[]') TO STDOUT") as copy:
            assert b"".join(copy) == b'["%b"]\n' % data * 7
        with pytest.raises(psycopg.errors.UndefinedTable, match=f"{text}x"):
            here.execute(f'SELECT * FROM "{text}x"')
        assert other.execute(f'SELECT DISTINCT "{text}" FROM "t {text}"').fetchall() == [(text,)]
        here.execute(f'DROP TABLE "t {text}"')


def test_texts_that_cannot_be_converted_are_errors(ours: str) -> None:
    """They end a statement, and the connection goes on, in the same encoding after ROLLBACK."""
    with psycopg.connect(f"{ours} client_encoding=LATIN1", autocommit=True) as here:
        for statement in ("SELECT chr(8364)", 'SELECT 1 AS "x"; SELECT chr(8364)'):
            assert outcome(here, statement.encode()) == b"22P05"
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            here.execute("COPY (SELECT 1) TO STDOUT (FORMAT binary)")
        here.execute("BEGIN")
        here.execute("SET client_encoding = 'WIN1252'")
        assert here.execute("SELECT chr(8364)").fetchone() == ("€",)
        here.execute("ROLLBACK")
        assert here.execute("SHOW client_encoding").fetchone() == ("LATIN1",)
        assert here.execute("SELECT 'ü', length('ü')").fetchone() == ("ü", 1)
        here.execute("SET client_encoding = 'EUC_JP'")
        assert outcome(here, b"SELECT '\xff'") == b"22021"


@pytest.mark.parametrize("name", ["EUC_TW", "MULE_INTERNAL", "JOHAB", "SHIFT_JIS_2004", "EUC_JIS_2004", "nothing"])
def test_unknown_encoding_is_refused(name: str, ours: str) -> None:
    with psycopg.connect(ours, autocommit=True) as here:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="LATIN1"):
            here.execute(f"SET client_encoding = '{name}'")
        assert here.execute("SHOW client_encoding").fetchone() == ("UTF8",)
