"""Values as clients send and get them."""

from __future__ import annotations

import struct

import pytest
from answers import are_answers

from derive.algebra.types import Datum, ModifiedType, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.types.type_info import datum_of_text
from derive.sql.pgwire.values import argument_of, data_rows, encoder_of
from derive.sql.results import ResultColumn


@pytest.mark.parametrize(
    ("kind", "oid", "datum", "text", "binary"),
    [
        (Type.BOOLEAN, 16, 1, b"t", b"\1"),
        (Type.BIGINT, 20, -5, b"-5", struct.pack("!q", -5)),
        (Type.MZ_TIMESTAMP, 20, 7, b"7", struct.pack("!q", 7)),
        (Type.BIGINT, 26, 16384, b"16384", struct.pack("!I", 16384)),
        (Type.BIGINT, 23, 3, b"3", struct.pack("!i", 3)),
        (Type.REAL, 700, 0.5, b"0.5", struct.pack("!f", 0.5)),
        (Type.DOUBLE, 701, "NaN", b"NaN", struct.pack("!d", float("nan"))),
        (Type.TEXT, 19, "größe", "größe".encode(), "größe".encode()),
        (Type.JSONB, 3802, '{"a": 1}', b'{"a": 1}', b'\1{"a": 1}'),
        (Type.JSONB, 114, '{"a": 1}', b'{"a": 1}', b'{"a": 1}'),
        (Type.BYTEA, 17, b"\1\xff", b"\\x01ff", b"\1\xff"),
        (Type.TIMESTAMPTZ, 1184, 0, b"1970-01-01 00:00:00+00", struct.pack("!q", -946_684_800_000_000)),
        (Type.TEXT, 1007, "{}", b"{}", struct.pack("!iiI", 0, 0, 23)),
        (
            Type.TEXT,
            1007,
            "{1,NULL}",
            b"{1,NULL}",
            struct.pack("!iiIii", 1, 1, 23, 2, 1) + b"\0\0\0\4\0\0\0\1\xff\xff\xff\xff",
        ),
        (Type.TEXT, 1009, '{a,"b c"}', b'{a,"b c"}', struct.pack("!iiIii", 1, 0, 25, 2, 1) + b"\0\0\0\1a\0\0\0\3b c"),
        (
            Type.TEXT,
            2249,
            '(1,,"b ""c""")',
            b'(1,,"b ""c""")',
            struct.pack("!iIi", 3, 25, 1) + b"1" + struct.pack("!IiIi", 25, -1, 25, 5) + b'b "c"',
        ),
    ],
)
def test_results_have_two_formats(kind: Type, oid: int, datum: Datum, text: bytes, binary: bytes) -> None:
    column = ResultColumn("a", kind, oid)

    assert encoder_of(column, 0)(datum) == text
    assert encoder_of(column, 1)(datum) == binary


def test_vectors_have_spaces_as_text_and_are_arrays_in_binary_form() -> None:
    column = ResultColumn("a", Type.SMALLINT_ARRAY, 22, TypeModifier(ModifiedType.INT2VECTOR, 0))
    datum = datum_of_text(Type.SMALLINT_ARRAY, "{1,2}")

    assert encoder_of(column, 0)(datum) == b"1 2"
    binary = struct.pack("!iiIii", 1, 0, 21, 2, 1) + b"\0\0\0\2\0\1\0\0\0\2\0\2"
    assert encoder_of(column, 1)(datum) == binary


@pytest.mark.parametrize(
    ("oid", "form", "data", "datum"),
    [
        (20, 0, b"12", 12),
        (20, 1, struct.pack("!q", 12), 12),
        (26, 1, struct.pack("!I", 4_000_000_000), 4_000_000_000),
        (700, 1, struct.pack("!f", 0.25), 0.25),
        (701, 1, struct.pack("!d", -0.0), 0.0),
        (25, 0, b"a", "a"),
        (1043, 1, b"a", "a"),
        (0, 0, b"a", "a"),
        (0, 1, b"a", "a"),
        (99_999, 0, b"a", "a"),
        (114, 1, b"[1]", "[1]"),
        (2210, 1, struct.pack("!iiIii", 1, 0, 26, 2, 1) + b"\0\0\0\4\0\0\0\1\0\0\0\4\0\0\0\2", "{1,2}"),
        (1009, 1, struct.pack("!iiI", 0, 0, 25), b"\x01"),
        (1009, 1, struct.pack("!iiI", 2, 0, 25) + struct.pack("!iiii", 2, 1, 0, 1), b"\x01"),
    ],
)
def test_arguments_have_two_formats(oid: int, form: int, data: bytes, datum: Datum) -> None:
    assert argument_of(oid, form, data) == datum


@pytest.mark.parametrize(
    ("oid", "form", "data", "sqlstate"),
    [
        (20, 0, b"one", "22P02"),
        (20, 1, b"123", "22P03"),
        (26, 1, b"1", "22P03"),
        (25, 0, b"\xff", "22021"),
        (25, 1, b"\xff", "22021"),
        (25, 0, b"a\0", "22021"),
        (25, 1, b"a\0", "22021"),
        (1043, 1, b"\0", "22021"),
        (0, 1, b"\0", "22021"),
        (20, 0, b"1\0", "22021"),
        (1007, 1, struct.pack("!iiI", 7, 0, 23) + struct.pack("!ii", 1, 1) * 7, "54000"),
        (1007, 1, struct.pack("!iiI", -1, 0, 23), "22P03"),
        (1007, 1, struct.pack("!iiI", 2, 0, 23) + struct.pack("!iiii", 2, 1, -2, 1), "22P03"),
        (1007, 1, struct.pack("!iiI", 2, 0, 23) + struct.pack("!iiii", 1 << 30, 1, 1 << 30, 1), "22P03"),
        (1007, 1, struct.pack("!iiI", 2, 0, 23) + struct.pack("!iii", 2, 1, 2), "22P03"),
        (1007, 1, struct.pack("!iiI", 2, 0, 23) + struct.pack("!iiii", 1, 1, 1, 0) + b"\xff" * 4, "0A000"),
        (114, 1, b'"\0"', "22021"),
        (3802, 1, b'\1"\0"', "22021"),
        (1009, 1, struct.pack("!iiIiii", 1, 0, 25, 1, 1, 1) + b"\0", "22021"),
        (790, 1, struct.pack("!q", 100), "0A000"),
        (3904, 1, b"\1", "0A000"),
        (99_999, 1, b"a", "0A000"),
        (1007, 1, struct.pack("!iiIiii", 1, 0, 790, 1, 1, 0), "42804"),
        (2210, 1, struct.pack("!iiIiii", 1, 0, 790, 1, 1, 1) + b"a", "0A000"),
        (1007, 1, b"\0", "22P03"),
        (1007, 1, struct.pack("!iiIii", 1, 0, 23, 9, 1), "22P03"),
        (1007, 1, struct.pack("!iiIii", 2, 0, 23, 1, 1), "22P03"),
        (1007, 1, struct.pack("!iiI", 0, 0, 20), "42804"),
    ],
)
def test_invalid_argument_values_are_refused(oid: int, form: int, data: bytes, sqlstate: str) -> None:
    with pytest.raises(SqlError) as raised:
        argument_of(oid, form, data)

    assert raised.value.sqlstate == sqlstate


def test_rows_are_messages_with_lengths() -> None:
    encoders = [encoder_of(ResultColumn("a", Type.TEXT, 25), 0), encoder_of(ResultColumn("b", Type.BIGINT, 20), 0)]

    assert data_rows([("x", 10), (None, None)], encoders) == (
        b"D\0\0\0\x11\0\2\0\0\0\1x\0\0\0\x0210" + b"D\0\0\0\x0e\0\2\xff\xff\xff\xff\xff\xff\xff\xff"
    )


# Which answers the protocol allows, which the tests of random messages rely on.


def kinds(text: str) -> list[bytes]:
    return [bytes([kind]) for kind in text.encode()]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("X", ""),
        ("QX", "NTDDCZ"),
        ("QX", "TDCSTDCEZ"),
        ("QX", "EZ"),
        ("PBDEEHSX", "12TDsDCZ"),
        ("PDSX", "1tnZ"),
        ("PBESX", "EZ"),
        ("PBESSQX", "12EZZCZ"),
        ("SX", "EZ"),
        ("FSX", "EZZ"),
        ("QddHScQX", "GCZIZ"),
        ("QddfSX", "GEZZ"),
        ("QddcSX", "GEZZ"),  # at the first piece, or at the end
        ("QdSdcX", "GEZZ"),  # at the first piece: Sync is none of the COPY's
        ("PBEdcSX", "12GCZ"),
        ("PBEdQSX", "12GEZ"),
        ("PBEdPBSX", "12GEZ"),
        ("dcfHX", ""),
    ],
)
def test_permitted_answers_to_messages_are_recognized(sent: str, received: str) -> None:
    assert are_answers(kinds(sent), kinds(received))


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("X", "Z"),
        ("QX", "TDC"),
        ("QX", "TDCZZ"),
        ("QX", "TDDE"),
        ("PBESX", "12CC"),
        ("PBESX", "1EEZ"),
        ("PBESX", "2CZ"),
        ("PDSX", "1tZ"),
        ("HX", "Z"),
        ("QdcX", "GZ"),
        ("QdfX", "GCZ"),
        ("QcSX", "GCZ"),
    ],
)
def test_forbidden_answers_to_messages_are_recognized(sent: str, received: str) -> None:
    assert not are_answers(kinds(sent), kinds(received))
