"""Values as text and in binary form are PostgreSQL's, and data sort as values do."""

from __future__ import annotations

import os

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_oracle import connection, literal_sql
from sql_values import usual_texts

from derive.algebra.types import CATALOG_TYPES, Type
from derive.errors import SqlError
from derive.functions.registry import register, sort_key
from derive.functions.types.type_info import INFO_OF, binary_function, datum_of_binary, datum_of_text, text_of

SAME = "FLOW_LAW_EXAMPLES" not in os.environ
"""Whether all runs have the same examples."""
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10")) * 10
KINDS = [kind for kind in Type if kind not in {Type.UNKNOWN, Type.MZ_TIMESTAMP, *CATALOG_TYPES}]
SORTED = [kind for kind in KINDS if kind is not Type.INTERVAL]


@st.composite
def typed_texts(draw: st.DrawFn, count: int = 1) -> tuple[Type, list[str]]:
    kind = draw(st.sampled_from(KINDS))
    return kind, [draw(usual_texts(kind)) for _ in range(count)]


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(typed_texts())
def test_text_and_binary_forms_equal_postgresql(typed: tuple[Type, list[str]]) -> None:
    kind, (text,) = typed
    datum = datum_of_text(kind, text)
    sql = f"SELECT {literal_sql(text, kind)}"
    of_postgres = connection().execute(sql, binary=True).pgresult
    in_text = connection().execute(sql).pgresult
    assert of_postgres is not None
    assert in_text is not None
    sent = of_postgres.get_value(0, 0)
    assert sent is not None

    assert binary_function(kind)(datum) == sent
    assert datum_of_binary(kind, sent) == datum
    assert text_of(kind, datum).encode() == in_text.get_value(0, 0)
    assert datum_of_text(kind, text_of(kind, datum)) == datum


@settings(max_examples=EXAMPLES, derandomize=SAME)
@given(st.data())
def test_data_sort_as_their_values(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(SORTED))
    texts = data.draw(st.lists(usual_texts(kind), min_size=2, max_size=5))
    values = ", ".join(f"({literal_sql(text, kind)})" for text in texts)
    theirs = connection().execute(f"SELECT v::text FROM (VALUES {values}) AS r(v) ORDER BY r.v").fetchall()
    rows = [(datum_of_text(kind, text),) for text in texts]
    database = apsw.Connection(":memory:")
    register(database)
    database.execute("CREATE TABLE r (v)")
    database.executemany("INSERT INTO r VALUES (?)", rows)

    ours = [row[0] for row in database.execute(f"SELECT v FROM r ORDER BY {sort_key('v', kind)}")]

    assert ours == [datum_of_text(kind, text) for (text,) in theirs]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Type.BIGINT, "x"),
        (Type.BIGINT, ""),
        (Type.BIGINT, "9223372036854775808"),
        (Type.BIGINT, " 0x1F "),
        (Type.SMALLINT, "40000"),
        (Type.DOUBLE, "1e400"),
        (Type.DOUBLE, "1e-400"),
        (Type.DOUBLE, "1_0"),
        (Type.DOUBLE, " +inf "),
        (Type.NUMERIC, "1_000.5"),
        (Type.NUMERIC, "+nan"),
        (Type.NUMERIC, "1e200000"),
        (Type.NUMERIC, "-0.00"),
        (Type.NUMERIC, "007.50"),
        (Type.NUMERIC, "-.05"),
        (Type.NUMERIC, "5."),
        (Type.NUMERIC, "."),
        (Type.NUMERIC, "-"),
        (Type.NUMERIC, "1.-5"),
        (Type.NUMERIC, "\u0663"),
        (Type.NUMERIC, "0.00000000000000000000000000000000000001"),
        (Type.BOOLEAN, " TRU "),
        (Type.BOOLEAN, "o"),
        (Type.BYTEA, "\\xf"),
        (Type.BYTEA, "\\xzz"),
        (Type.BYTEA, "a\\\\b\\001"),
        (Type.BYTEA, "a\\b"),
        (Type.JSONB, "{'a': 1}"),
        (Type.JSONB, '{"a": 1, "a": 2.50, "b": "\\u00e9"}'),
        (Type.JSONB, '"\\u0000"'),
        (Type.JSONB, "NaN"),
        (Type.JSONB, "1e2"),
        (Type.DATE, "2021-02-29"),
        (Type.DATE, "2020-1-5"),
        (Type.DATE, "20200105"),
        (Type.DATE, "0000-01-05"),
        (Type.DATE, "2020-W01-1"),
        (Type.DATE, "Jan 5, 2020"),
        (Type.DATE, "5 January 2020"),
        (Type.DATE, "1/18/1999"),
        (Type.DATE, "nonsense"),
        (Type.DATE, "2020-13-01"),
        (Type.TIMESTAMP, "2020-01-05T10:20:30.123456789Z"),
        (Type.TIMESTAMP, "0044-03-15 23:59:60"),
        (Type.TIMESTAMP, "2020-01-05 10:20:30.5"),
        (Type.TIMESTAMP, "2020-01-05 10:20:30.1234567"),
        (Type.TIMESTAMP, "2020-01-05 10:20:30,5"),
        (Type.TIMESTAMP, "2020-01-05 10:20:30.5+02"),
        (Type.TIMESTAMP, "2020-01-05 10:20:30+00"),
        (Type.TIMESTAMP, "2020-02-30 10:20:30"),
        (Type.TIMESTAMP, "2020-01-05 24:00:00"),
        (Type.TIMESTAMP, "2020-01-05 25:00:00"),
        (Type.TIMESTAMPTZ, "2020-01-05 10:20:30.25+00"),
        (Type.TIMESTAMPTZ, "2020-01-05 10:20:30+02"),
        (Type.TIMESTAMPTZ, "2020-01-05 10:20:30-0530"),
        (Type.TIMESTAMPTZ, "2020-01-05 10:20:30 PM"),
        (Type.TIMESTAMPTZ, "epoch"),
        (Type.INTERVAL, "1 year 2 months -3 days 04:05:06.789"),
        (Type.INTERVAL, "1.5 months"),
        (Type.INTERVAL, "P1Y2M3DT4H5M6.7S"),
        (Type.INTERVAL, "3 hours ago"),
        (Type.INTERVAL, "1-2"),
        (Type.INTERVAL, "2 fortnights"),
        (Type.INTERVAL, "90 minutes 30 sec"),
        (Type.INTERVAL, "1 2:03"),
        (Type.INTERVAL, "0.1 year"),
        (Type.INTERVAL, ""),
    ],
)
def test_unusual_texts_are_parsed(kind: Type, text: str) -> None:
    from postgres_oracle import of_postgres

    theirs = of_postgres(literal_sql(text, kind))
    if theirs.sqlstate:
        with pytest.raises(SqlError) as raised:
            datum_of_text(kind, text)
        assert raised.value.sqlstate == theirs.sqlstate
    else:
        assert datum_of_text(kind, text) == theirs.datum


@pytest.mark.parametrize(
    ("kind", "data"), [(Type.BIGINT, b"1"), (Type.NUMERIC, b""), (Type.BOOLEAN, b""), (Type.JSONB, b"\2{}")]
)
def test_malformed_binary_values_are_refused(kind: Type, data: bytes) -> None:
    with pytest.raises(SqlError) as raised:
        datum_of_binary(kind, data)
    assert raised.value.sqlstate == "22P03"


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(SqlError) as raised:
        datum_of_binary(Type.TEXT, b"\xff")
    assert raised.value.sqlstate == "22021"


def test_types_all_have_type_info() -> None:
    assert set(INFO_OF) == set(Type)
    assert all(info.decode is None or info.encode or kind is Type.JSONB for kind, info in INFO_OF.items())
