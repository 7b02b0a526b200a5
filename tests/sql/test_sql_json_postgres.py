"""SQL/JSON: constructors held against a real PostgreSQL, and the queries of PostgreSQL 17 with literal results."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_scripts import in_ours, maintained, outcomes
from psycopg import Connection
from sql_world import SqlWorld

TABLES = (
    "CREATE TABLE t (g int, k text, v int, c char(3), d date)",
    "INSERT INTO t VALUES (1, 'a', 1, 'x', '2020-01-02'), (1, 'b', NULL, 'yy', NULL), (2, 'a', 3, NULL, NULL), (2, 'c', 3, '', NULL)",
)
SCRIPTS = {
    "constructors": (
        *TABLES,
        "SELECT JSON_OBJECT('a': 1, 'b' VALUE 'x', 'c': NULL RETURNING jsonb), JSON_OBJECT(RETURNING jsonb), JSON_OBJECT()",
        "SELECT JSON_OBJECT('a': 1, 'c': NULL ABSENT ON NULL)::jsonb, JSON_OBJECT('a': NULL NULL ON NULL)::jsonb",
        "SELECT JSON_OBJECT('a': 1, 'a': 2 WITHOUT UNIQUE KEYS RETURNING jsonb)",
        "SELECT JSON_OBJECT('a': 1, 'a': 2 WITH UNIQUE KEYS)",
        "SELECT JSON_OBJECT('a': 1, 'a': NULL ABSENT ON NULL WITH UNIQUE RETURNING jsonb)",
        "SELECT JSON_OBJECT(NULL: 1)",
        "SELECT JSON_OBJECT(NULL: 1 RETURNING jsonb)",
        "SELECT JSON_OBJECT('a': '{\"b\": [1]}' FORMAT JSON, 'c': true, 'd': 1.5)::jsonb",
        "SELECT JSON_OBJECT(k: v, 'c': c, 'd': d RETURNING jsonb) FROM t",
        "SELECT JSON_OBJECT('t': t RETURNING jsonb) FROM t WHERE g = 1",
        "SELECT JSON_OBJECT('a': 1 RETURNING int)",
        "SELECT json_object('{a,1,b,2}')::jsonb, json_object('{a,b}', '{1,2}')::jsonb",
        "SELECT JSON_ARRAY(1, NULL, 'x', '{\"a\":1}' FORMAT JSON)::jsonb, JSON_ARRAY(1, NULL NULL ON NULL)::jsonb, JSON_ARRAY()::jsonb",
        "SELECT JSON_ARRAY(k, v, c, d ABSENT ON NULL RETURNING jsonb) FROM t",
        "SELECT JSON_ARRAY(SELECT v FROM t ORDER BY k, g)::jsonb, JSON_ARRAY(SELECT v FROM t WHERE g = 9)::jsonb",
        "SELECT g, JSON_ARRAY(SELECT u.k FROM t u WHERE u.g = t.g ORDER BY 1 RETURNING jsonb) FROM t",
        "SELECT g, JSON_OBJECTAGG(k: v RETURNING jsonb), JSON_OBJECTAGG(k VALUE v ABSENT ON NULL RETURNING jsonb) FROM t GROUP BY g",
        "SELECT JSON_OBJECTAGG(k: v WITH UNIQUE KEYS RETURNING jsonb) FROM t",
        "SELECT JSON_OBJECTAGG(k: v RETURNING jsonb) FILTER (WHERE g = 2) FROM t",
        "SELECT g, JSON_ARRAYAGG(v ORDER BY k DESC)::jsonb, JSON_ARRAYAGG(v ORDER BY k NULL ON NULL)::jsonb FROM t GROUP BY g",
        "SELECT JSON_ARRAYAGG(k ORDER BY k RETURNING jsonb) FILTER (WHERE v > 1), JSON_ARRAYAGG(v)::jsonb FROM t WHERE g = 2",
        "SELECT g, k, JSON_ARRAYAGG(v RETURNING jsonb) OVER (PARTITION BY g ORDER BY k) FROM t",
        "SELECT JSON_ARRAYAGG(v) FROM t WHERE g = 9",
        "SELECT JSON_ARRAY(1 RETURNING bytea), pg_typeof(JSON_ARRAY(1 RETURNING text)), pg_typeof(JSON_ARRAY(1 RETURNING jsonb))",
        "SELECT JSON_OBJECT('a' 1)",
        "SELECT JSON_ARRAY(1,)",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_sql_json_equals_postgresql(name: str, postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPTS[name], postgres, tmp_path)
    assert ours == theirs


def test_maintained_constructors_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    queries = (
        "SELECT g, JSON_OBJECTAGG(k: v ABSENT ON NULL RETURNING jsonb) AS o FROM t GROUP BY g",
        "SELECT g, JSON_ARRAYAGG(v ORDER BY k, v NULL ON NULL RETURNING jsonb) AS a FROM t GROUP BY g",
        "SELECT k, JSON_OBJECT('v': v, 'c': c ABSENT ON NULL RETURNING jsonb) AS o FROM t",
        "SELECT g, JSON_ARRAY(SELECT u.v FROM t u WHERE u.g = t.g ORDER BY u.k RETURNING jsonb) AS a FROM t",
    )
    changes = (
        "INSERT INTO t VALUES (1, 'd', 7, 'z', NULL), (3, 'a', NULL, NULL, NULL)",
        "UPDATE t SET v = coalesce(v, 0) + 1, g = 3 WHERE k = 'b'",
        "DELETE FROM t WHERE k = 'a' AND g = 1",
    )
    ours, theirs = maintained(TABLES, queries, changes, postgres, tmp_path)
    assert ours == theirs


QUERIES = {
    # JSON_VALUE
    """JSON_VALUE('{"a": "12"}', '$.a' RETURNING int)""": "12",
    """JSON_VALUE('{"a": "x"}', '$.a' RETURNING int)""": None,
    """JSON_VALUE('{"a": "x"}', '$.a' RETURNING int DEFAULT 7 ON ERROR)""": "7",
    """JSON_VALUE('{"a": "x"}', '$.a' RETURNING int ERROR ON ERROR)""": "22P02",
    """JSON_VALUE('{"a": "x"}', '$.b' DEFAULT 'none' ON EMPTY)""": "none",
    """JSON_VALUE('{}', '$.a' ERROR ON EMPTY)""": "22035",
    """JSON_VALUE('{}', 'strict $.a' ERROR ON ERROR)""": "2203A",
    """JSON_VALUE('{}', 'strict $.a' DEFAULT 'e' ON ERROR)""": "e",
    """JSON_VALUE('[1, 2]', '$[*]')""": None,
    """JSON_VALUE('[1, 2]', '$[*]' ERROR ON ERROR)""": "22034",
    """JSON_VALUE('[1, 2]', '$' ERROR ON ERROR)""": "2203F",
    """JSON_VALUE('null', '$' DEFAULT 'x' ON EMPTY)""": None,
    """JSON_VALUE(NULL::jsonb, '$' DEFAULT 'x' ON EMPTY)""": None,
    """JSON_VALUE('1.239', '$' RETURNING numeric(5,2))""": "1.24",
    """JSON_VALUE('"abcd"', '$' RETURNING varchar(3))""": None,
    """JSON_VALUE('"abcd"', '$' RETURNING varchar(3) ERROR ON ERROR)""": "22001",
    """JSON_VALUE('true', '$' RETURNING boolean)""": "t",
    """JSON_VALUE('true', '$' RETURNING int DEFAULT -1 ON ERROR)""": "-1",
    """JSON_VALUE('"2020-01-02"', '$' RETURNING date) + 1""": "2020-01-03",
    """JSON_VALUE('{"a": [1, 2, 3]}', '$.a[*] ? (@ > $x)' PASSING 2 AS x)""": "3",
    """JSON_VALUE('{"a": 1}', '$.a ? (@ == $x)')""": "42704",
    """JSON_VALUE('{', '$')""": "22P02",
    """JSON_VALUE('{}', '$.')""": "42601",
    """JSON_VALUE('{}', '$' RETURNING int[])""": "0A000",
    """JSON_VALUE('{}', '$' EMPTY ARRAY ON ERROR)""": "42601",
    # JSON_QUERY
    """JSON_QUERY('{"a": [1,2]}', '$.a')""": "[1, 2]",
    """JSON_QUERY('{"a": [1,2]}', '$.a[*]')""": None,
    """JSON_QUERY('{"a": [1,2]}', '$.a[*]' ERROR ON ERROR)""": "22034",
    """JSON_QUERY('{"a": [1,2]}', '$.a[*]' WITH WRAPPER)""": "[1, 2]",
    """JSON_QUERY('{"a": [1,2]}', '$.a[0]' WITH CONDITIONAL ARRAY WRAPPER)""": "1",
    """JSON_QUERY('{"a": [1,2]}', '$.a[0]' WITH UNCONDITIONAL WRAPPER)""": "[1]",
    """JSON_QUERY('"x"', '$')""": '"x"',
    """JSON_QUERY('"x"', '$' RETURNING text)""": '"x"',
    """JSON_QUERY('"x"', '$' RETURNING text OMIT QUOTES)""": "x",
    """JSON_QUERY('"[1]"', '$' OMIT QUOTES ON SCALAR STRING)""": "[1]",
    """JSON_QUERY('"x"', '$' OMIT QUOTES ERROR ON ERROR)""": "22P02",
    """JSON_QUERY('"x"', '$' WITH WRAPPER OMIT QUOTES)""": "42601",
    """JSON_QUERY('[1, null, "3"]', '$' RETURNING int[])""": "{1,NULL,3}",
    """JSON_QUERY('[1, "x"]', '$' RETURNING int[])""": None,
    """JSON_QUERY('{}', '$.a' EMPTY ARRAY ON EMPTY)""": "[]",
    """JSON_QUERY('{}', '$.a' EMPTY OBJECT ON EMPTY)""": "{}",
    """JSON_QUERY('{}', 'strict $.a' EMPTY ARRAY ON ERROR)""": "[]",
    """JSON_QUERY('{}', '$.a' DEFAULT '[7]' ON EMPTY)""": "[7]",
    # JSON_EXISTS
    """JSON_EXISTS('{"a": 1}', '$.a')""": "t",
    """JSON_EXISTS('{"a": 1}', 'strict $.b')""": "f",
    """JSON_EXISTS('{"a": 1}', 'strict $.b' TRUE ON ERROR)""": "t",
    """JSON_EXISTS('{"a": 1}', 'strict $.b' UNKNOWN ON ERROR)""": None,
    """JSON_EXISTS('{"a": 1}', 'strict $.b' ERROR ON ERROR)""": "2203A",
    """JSON_EXISTS('{"a": 5}', '$.a ? (@ > $x)' PASSING 3 AS x)""": "t",
    """JSON_EXISTS(NULL, '$')""": None,
    # JSON, JSON_SCALAR, JSON_SERIALIZE
    """JSON('{"a":1}')""": '{"a": 1}',
    """JSON('{"a":1,"a":2}' WITH UNIQUE KEYS)""": "22030",
    """JSON('{')""": "22P02",
    """JSON_SCALAR(true)""": "true",
    """JSON_SCALAR('a"b')""": '"a\\"b"',
    """JSON_SCALAR(NULL)""": None,
    """JSON_SERIALIZE('{"a":1}' RETURNING text)""": '{"a": 1}',
    """JSON_SERIALIZE('[1]' RETURNING bytea)""": "\\x5b315d",
    """timestamptz '2020-01-01 10:00+02' AT LOCAL""": "2020-01-01 08:00:00",
}
"""Expressions of PostgreSQL 17, and their values there or SQLSTATEs."""
TABLES_OF_JSON = {
    """JSON_TABLE('[{"a": 1}, {"a": "x"}, {}]', '$[*]' COLUMNS (n FOR ORDINALITY, a int, b text PATH '$.a'))""": [
        ("1", "1", "1"),
        ("2", None, "x"),
        ("3", None, None),
    ],
    """JSON_TABLE('[1, 2]', '$[*] ? (@ > $low)' PASSING 1 AS low COLUMNS (a int PATH '$', low int PATH '$ - $low'))""": [
        ("2", "1")
    ],
    """JSON_TABLE('{"a": {"b": [1]}}', '$' COLUMNS (a jsonb, e boolean EXISTS PATH '$.a.b', x int EXISTS PATH '$.z', w jsonb PATH '$.a.b[*]' WITH WRAPPER, q text FORMAT JSON PATH '$.a.b'))""": [
        ('{"b": [1]}', "t", "0", "[1]", "[1]")
    ],
    """JSON_TABLE('{}', '$' COLUMNS (a int DEFAULT 5 ON EMPTY, "B c" text DEFAULT 'z' ON EMPTY))""": [("5", "z")],
    """JSON_TABLE('{}', 'strict $.a' COLUMNS (a int))""": [],
    """JSON_TABLE(NULL, '$' COLUMNS (a int))""": [],
    """JSON_TABLE('[{"a": 1, "b": ["x", "y"]}, {"a": 2}]', '$[*]' AS r COLUMNS (a int, NESTED PATH '$.b[*]' AS p COLUMNS (n FOR ORDINALITY, b text PATH '$')))""": [
        ("1", "1", "x"),
        ("1", "2", "y"),
        ("2", None, None),
    ],
    """JSON_TABLE('[{"b": [1, 2], "c": ["u"]}]', '$[*]' COLUMNS (NESTED '$.b[*]' COLUMNS (b int PATH '$'), NESTED '$.c[*]' COLUMNS (c text PATH '$', NESTED '$.d' COLUMNS (d int PATH '$'))))""": [
        ("1", None, None),
        ("2", None, None),
        (None, "u", None),
    ],
    """JSON_TABLE('{}', 'strict $.a' COLUMNS (a int) ERROR ON ERROR)""": "2203A",
    """JSON_TABLE('{}', '$' COLUMNS (a int, a text))""": "42712",
    """JSON_TABLE('{}', '$' || 'a' COLUMNS (a int))""": "0A000",
    """JSON_TABLE('{}', '$' COLUMNS (a int ERROR ON EMPTY))""": "22035",
}
"""Tables of PostgreSQL 17, and their rows there or SQLSTATEs."""


def test_queries_of_json_equal_those_of_postgresql_17(tmp_path: Path) -> None:
    expected = {f"SELECT {query}": value for query, value in QUERIES.items()}
    tables = {f"SELECT * FROM {table} t": rows for table, rows in TABLES_OF_JSON.items()}
    texts = [*expected, *tables]
    results = dict(zip(texts, SqlWorld(tmp_path).within(lambda own: in_ours(own, texts)), strict=True))
    assert {text: results[text][1][0][0] if results[text][1] else results[text][0] for text in expected} == expected
    found = {
        text: sorted(results[text][1], key=repr) if tag_is_select(results[text][0]) else results[text][0]
        for text in tables
    }
    assert found == {text: sorted(rows, key=repr) if isinstance(rows, list) else rows for text, rows in tables.items()}


def tag_is_select(tag: str) -> bool:
    return tag.startswith("SELECT")


def test_maintained_tables_of_json_follow_their_documents(postgres: Connection, tmp_path: Path) -> None:
    """PostgreSQL 16 has no JSON_TABLE; a query with the older functions gives the same rows."""
    tables = (
        "CREATE TABLE d (id int PRIMARY KEY, j jsonb)",
        """INSERT INTO d VALUES (1, '[{"a": 1, "b": [1, 2]}, {"a": 2}]'), (2, '[]')""",
    )
    query = "SELECT id, t.* FROM d, JSON_TABLE(j, '$[*]' COLUMNS (n FOR ORDINALITY, a int, NESTED '$.b[*]' COLUMNS (b int PATH '$'))) t"
    older = (
        "SELECT id, n, (i ->> 'a')::int AS a, b::text::int AS b"
        " FROM d, jsonb_array_elements(j) WITH ORDINALITY e (i, n) LEFT JOIN LATERAL jsonb_array_elements(i -> 'b') b ON true"
    )
    values = "SELECT id, JSON_VALUE(j, '$[0].a' RETURNING int) AS v, JSON_EXISTS(j, '$[*].b') AS e, JSON_QUERY(j, '$[*].a' WITH WRAPPER) AS q FROM d"
    older_values = "SELECT id, (j -> 0 ->> 'a')::int AS v, j @? '$[*].b' AS e, nullif(jsonb_path_query_array(j, '$[*].a'), '[]') AS q FROM d"
    steps = [*tables, f"CREATE MATERIALIZED VIEW t AS {query}", f"CREATE MATERIALIZED VIEW v AS {values}"]
    others = [*tables, f"CREATE VIEW t AS {older}", f"CREATE VIEW v AS {older_values}"]
    for change in (
        """INSERT INTO d VALUES (3, '[{"a": 7, "b": []}, {"b": [9]}]'), (4, NULL)""",
        """UPDATE d SET j = j || '[{"a": 5, "b": [5]}]' WHERE id < 3""",
        "DELETE FROM d WHERE id = 1",
    ):
        steps += [change, "TABLE t", "TABLE v"]
        others += [change, "TABLE t", "TABLE v"]
    ours, theirs = outcomes(steps, postgres, tmp_path, others)
    assert ours[4:] == theirs[4:]
