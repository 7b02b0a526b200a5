"""Tables of calls: the same values and errors as in PostgreSQL, in queries and in maintained views."""

from __future__ import annotations

from pathlib import Path

from postgres_scripts import maintained, outcomes
from psycopg import Connection
from sql_world import SqlWorld

_ANGLES = (
    "0",
    "30",
    "-45",
    "60",
    "90",
    "-120",
    "150",
    "180",
    "225",
    "270",
    "315",
    "360",
    "'Infinity'",
    "'NaN'",
    "null",
)
_ARCS = ("0", "0.5", "-0.5", "1", "-1", "2", "'NaN'", "null")
_GAMMAS = ("1", "5", "0.5", "0", "-1", "-200.5", "172", "'-Infinity'", "'Infinity'", "'NaN'")
MATHEMATICS = (
    *(f"SELECT round({name}({angle})::numeric, 12)" for name in ("sind", "cosd", "tand", "cotd") for angle in _ANGLES),
    *(f"SELECT round({name}({arc})::numeric, 12)" for name in ("asind", "acosd", "atand") for arc in _ARCS),
    *(f"SELECT round({name}({number})::numeric, 9)" for name in ("gamma", "lgamma") for number in _GAMMAS),
    "SELECT round(erf(0.5)::numeric, 12), round(erfc(0.5)::numeric, 12), erf('-Infinity'), erfc('NaN')",
    "SELECT sind(30), cosd(60), tand(45), cotd(135), asind(0.5), acosd(-0.5), atand(1), sind(360), cosd(90)",
    "SELECT atan2d(1, 1), atan2d(-1, 0), atan2d(0, -1), atan2d('NaN', 1)",
)

_DATA = r"'\x00010203ff0000'::bytea"
BYTES = (
    *(
        f"SELECT {call.replace('(b', '(' + _DATA).replace(' b', ' ' + _DATA)}"
        for call in (
            r"trim('\x00' FROM b)",
            r"trim(LEADING '\x0001' FROM b)",
            r"trim(TRAILING '\x00' FROM b)",
            r"btrim(ltrim(rtrim(b, '\x00'), '\x00'), '\xff')",
            "get_bit(b, 9)",
            "get_bit(b, 56)",
            "get_bit(b, -1)",
            "set_bit(b, 3, 1)",
            "set_bit(b, 3, 2)",
            "overlay(b PLACING '\\xaabb' FROM 2)",
            "overlay(b PLACING '\\xaabb' FROM 3 FOR -1)",
            "overlay(b PLACING '\\xaabb' FROM 0)",
            "overlay(b PLACING '\\xaabb' FROM 2147483647 FOR 2147483647)",
        )
    ),
    f"SELECT bit_count({_DATA}), crc32({_DATA}), crc32c({_DATA}), length('\\xc3a9'::bytea, 'UTF8')",
    "SELECT convert_to('é', 'LATIN1'), convert_from('\\xe9', 'latin-1'), convert('\\xc3a9', 'UTF8', 'LATIN1')",
    "SELECT convert_to('€', 'LATIN1')",
    "SELECT convert_from('\\xc3', 'UTF8')",
    "SELECT convert_to('é', 'x')",
    "SELECT 1::bytea, (-2)::smallint::bytea, 3::bigint::bytea, '\\x01'::bytea::int, '\\xfffe'::bytea::smallint",
    "SELECT '\\x0102030405'::bytea::int",
    "SELECT ''::bytea::bigint, '\\xff'::bytea::int",
)
ARRAYS = (
    "SELECT array_sort(ARRAY[2, 1, NULL, 3]), array_sort(ARRAY['b', 'a', 'B']), array_sort('{}'::int[])",
    "SELECT array_sort(ARRAY[2, NULL, 3], true), array_sort(ARRAY[2, NULL, 3], true, false)",
    "SELECT array_sort(ARRAY[2, NULL, 3], false, true), array_sort(NULL::int[]), array_sort(ARRAY[1], NULL)",
    "SELECT array_sort('{1.5,NaN,-Infinity,0}'::float8[]), array_sort('{1,[],{},null}'::jsonb[])",
    "SELECT array_reverse(ARRAY[2, 1, NULL]), array_reverse('{}'::text[]), array_reverse(NULL::int[])",
)
TYPES = (
    "SELECT inet '10.0.0.1/8' + 300, 5 + inet '::ff', inet '10.0.1.0' - 1, cidr '10.0.0.0/8' + 1, inet '10.0.1.0' - inet '10.0.0.1'",
    "SELECT inet '255.255.255.255' + 1",
    "SELECT inet '0.0.0.1' - 2",
    "SELECT inet '::1' - inet '10.0.0.1'",
    "SELECT inet 'ffff::' - inet '::1'",
    "SELECT pg_typeof(1), pg_typeof('x'), pg_typeof(NULL), pg_typeof(pg_typeof(1)), pg_typeof(ARRAY['a'])",
    "SELECT pg_typeof('x'::varchar(3)), pg_typeof('x'::char(3)), pg_typeof(1.50::numeric(5, 2)), pg_typeof(now())",
    "SELECT 'abcd'::varchar(3), 'ab'::char(4), 'abcd'::varchar(3) || '|'",
    "SELECT pg_typeof(sum(n)), pg_typeof(avg(n)), pg_typeof(max(v)) FROM (VALUES (1, 'x')) t (n, v)",
    "SELECT n FROM (VALUES (1)) t (n) WHERE pg_typeof(n) = 'integer'::regtype",
    "SELECT 'type ' || pg_typeof(1), format('%s', pg_typeof(1.5))",
    "SELECT pg_typeof(1 / 0)",
)
_INTERVALS = (
    "15 h 2 m 1.234567 s",
    "-15:02:01.5",
    "1 year 2 mon 3 days 36:00",
    "-1 year -2 mon -3 days",
    "-0.005 s",
    "0",
)
_TEMPLATES = (
    "YYYY YYY YY Y Y,YYY CC MM DDD DD WW W Q",
    "HH24:HH12:MI:SS.US MS SSSS FF1 FF4 AM pm A.M.",
    "FMHH24 FMMM FMDD FMMS RM FMrm HH24TH DDth",
    "Month",
    "D",
    "TZ",
)
DATES = (
    *(f"SELECT to_char(interval '{one}', '{template}')" for one in _INTERVALS for template in _TEMPLATES),
    "SELECT to_char(interval '1 day', ''), to_char(NULL::interval, 'DD')",
    "SELECT to_char('-2 years'::interval, 'RM'), to_char('-3 months'::interval, 'RM'), to_char('2 y'::interval, 'RM')",
)
_PAIRS = "corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy"
_NAMES = (*_PAIRS.split(" "), "regr_syy")
_ROWS = (
    "(1, 2), (2, 3), (4, 1), (NULL, 3), (3, NULL)",
    "(1, 1)",
    "(NULL::float8, 1)",
    "(1, 2), (1, 3)",
    "(1, 2), (2, 2)",
    "('NaN'::float8, 1), (1, 2)",
    "(1, '-Infinity'::float8), (1, 'Infinity')",
)
_RANKS = "percentile_disc(a / 5.0) WITHIN GROUP (ORDER BY b)"
AGGREGATES = (
    *(f"SELECT round({name}(y, x)::numeric, 9) FROM (VALUES {rows}) t (y, x)" for name in _NAMES for rows in _ROWS),
    "CREATE TABLE p (a int, b int, c text)",
    "INSERT INTO p VALUES (1, 10, 'x'), (1, 20, 'y'), (2, 5, 'z'), (2, 7, NULL), (2, NULL, 'x'), (NULL, 3, 'y')",
    "SELECT regr_count(DISTINCT a, b), regr_count(a, b) FILTER (WHERE c = 'x') FROM p",
    "SELECT a, covar_samp(a, b) OVER (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM p WHERE b > 0",
    "SELECT corr(c, b) FROM p",
    f"SELECT a, {_RANKS} FROM p GROUP BY a",
    f"SELECT a, {_RANKS} FROM p GROUP BY ROLLUP (a)",
    f"SELECT a, c, {_RANKS} FROM p GROUP BY GROUPING SETS ((a, c), (c), (a))",
    f"SELECT a FROM p GROUP BY a HAVING {_RANKS} > 5",
    f"SELECT {_RANKS} FROM p",
    f"SELECT {_RANKS} FROM p GROUP BY c",
    "SELECT percentile_cont((SELECT p.a * 0.1)) WITHIN GROUP (ORDER BY b) FROM p GROUP BY p.a",
    "SELECT percentile_cont((SELECT p.a * 0.1)) WITHIN GROUP (ORDER BY b) FROM p",
    "SELECT percentile_cont(max(a)) WITHIN GROUP (ORDER BY b) FROM p",
    "SELECT (SELECT percentile_cont(q.a / 10.0) WITHIN GROUP (ORDER BY p.a) FROM p q) FROM p",
    "SELECT percentile_cont(ARRAY[0.25, 0.5, NULL, 1]) WITHIN GROUP (ORDER BY b) FROM p",
    "SELECT percentile_disc(ARRAY[0.25, 0.5, 1]) WITHIN GROUP (ORDER BY c DESC) FROM p",
    "SELECT percentile_disc('{}'::float8[]) WITHIN GROUP (ORDER BY b) FROM p",
    "SELECT percentile_cont(ARRAY[0.5]) WITHIN GROUP (ORDER BY b) FROM p WHERE false",
    "SELECT percentile_cont(ARRAY[0.5, 2]) WITHIN GROUP (ORDER BY b) FROM p",
    "SELECT percentile_cont(ARRAY['x']) WITHIN GROUP (ORDER BY b) FROM p",
)
_DOCUMENTS = (
    '{"a": [1, 2, 3], "b": {"c": "x", "d": [{"e": 1}, {"e": "y"}, {"f": null}]}, "n": -2.7, "t": "1.5"}',
    '[1, [2, 3], {"a": 4}, "5", null, true]',
    '[[{"a": 1}, {"a": [2, 3]}], {"a": {"a": 7}}]',
)
_PATHS = (
    "$.a",
    "strict $.a",
    "$[*]",
    "strict $[*]",
    "$.*",
    "$[last]",
    "$[1 to last]",
    "$.a[0, 2]",
    "strict $[7]",
    "$.**.e",
    "strict $.**.a",
    "$.**{last}",
    "$.**{1 to 2}",
    "$.a ? (@ > 1)",
    "strict $.a ? (@ > 1)",
    "$[*] ? (exists(@.a))",
    "$[*] ? (@ != null)",
    "$.**.type()",
    "$.a.size()",
    "strict $.size()",
    "$[*].double()",
    "$.n.abs()",
    "$.t.number()",
    "$.n.integer()",
    "$.*.string()",
    "$.a[*] + 1",
    "-$.a",
    "$.n / 0",
    "2 + 3 * 4",
    "$.a > 2",
    '$.b.c starts with "x"',
    '$.b.c like_regex "^X" flag "i"',
    "($.n / 0 > 1) is unknown",
    '$.a > 1 && $.b.c == "x" || !($.n > 1)',
    "$.a ? (@ > $x)",
    "$nothing",
    "$.a[",
    "@",
    "last",
    "$.a.foo()",
    "($.a > 1) + 1",
    "$.'a'",
    "$.a ? (@)",
)
_X = """'{"x": 1}'"""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _of_path(document: str, path: str) -> tuple[str, ...]:
    both = f"{_quoted(document)}, {_quoted(path)}"
    silent = f"{both}, {_X}, true"
    return (
        f"SELECT jsonb_path_query_array({both}, {_X})",
        f"SELECT jsonb_path_exists({both}, {_X})",
        f"SELECT jsonb_path_match({both}, {_X})",
        f"SELECT jsonb_path_query_first({silent}), jsonb_path_match({silent}), jsonb_path_exists({silent})",
        f"SELECT {_quoted(document)}::jsonb @? {_quoted(path)}, {_quoted(document)}::jsonb @@ {_quoted(path)}",
    )


_TEXTS = (
    '{"a": 1}',
    " [1] ",
    "1",
    '"x"',
    "",
    "abc",
    '{"a": 1, "a": 2}',
    '[{"b": 1, "b": 2}]',
    "NaN",
    "01",
    '"\\u0000"',
)
_TESTS = (
    "",
    " VALUE",
    " ARRAY",
    " OBJECT",
    " SCALAR",
    " WITH UNIQUE KEYS",
    " OBJECT WITH UNIQUE",
    " WITHOUT UNIQUE KEYS",
)
JSON = (
    *(text for document in _DOCUMENTS for path in _PATHS for text in _of_path(document, path)),
    """SELECT * FROM jsonb_path_query('[1, 2, 3]', '$[*] ? (@ > $m)', '{"m": 1}')""",
    "SELECT jsonb_path_query('[1, [2]]', '$[*]')",
    "SELECT jsonb_path_exists(NULL, '$'), jsonb_path_exists('1', NULL)",
    "SELECT jsonb_path_exists('1', '')",
    "SELECT jsonb_path_exists('1', '$', '[1]')",
    "SELECT 1 @? '$'",
    *(f"SELECT {_quoted(text)} IS JSON{test}, {_quoted(text)} IS NOT JSON{test}" for text in _TEXTS for test in _TESTS),
    *(f"SELECT '{{}}'::jsonb IS JSON{test}, NULL IS JSON{test}, '\\x5b5d'::bytea IS JSON{test}" for test in _TESTS),
    "SELECT '\\xff'::bytea IS JSON",
    "SELECT 1 IS JSON",
    "SELECT 'a' IS JSON AND true, NOT '1' IS JSON, '1' IS JSON IS TRUE",
)
OTHERS = (
    "SELECT unistr('d\\0061t\\+000061\\u0061\\U00000061\\\\'), unistr('\\d83d\\de00')",
    "SELECT unistr('\\d83d')",
    "SELECT unistr('\\x')",
    "SELECT jsonb_object('{a,1,b,2}'), jsonb_object('{}'::text[]), jsonb_object('{a,b,a}', '{1,NULL,3}')",
    "SELECT jsonb_object('{a}')",
    "SELECT jsonb_object('{a,b}', '{1}')",
    "SELECT jsonb_object('{NULL,b}')",
    *(
        f"SELECT jsonb_set_lax('{{\"a\": 1}}', '{{a}}', {new}, true, {treatment})"
        for new in ("NULL", "'2'")
        for treatment in ("'use_json_null'", "'delete_key'", "'return_target'", "'raise_exception'", "'x'", "NULL")
    ),
    """SELECT jsonb_strip_nulls('[null, {"a": null}]', true), jsonb_strip_nulls('[null, {"a": null}]', false)""",
    """SELECT '{"a": 1, "b": 2}'::jsonb - ARRAY['a', 'x'], '["a", "b", 1]'::jsonb - '{a,NULL}'::text[]""",
    "SELECT '1'::jsonb - ARRAY['a']",
    "SELECT jsonb_agg_strict(c ORDER BY b), jsonb_agg_strict(NULL::int), jsonb_object_agg_strict(b, c) FROM p WHERE b > 0",
    "SELECT jsonb_agg_strict(a) FILTER (WHERE false), jsonb_object_agg_unique(b, a) FROM p WHERE b > 0",
    "SELECT jsonb_object_agg_unique(a, b) FROM p WHERE a > 0",
    "SELECT jsonb_object_agg_unique(a, b) FROM p",
    "SELECT jsonb_object_agg_unique_strict(b, c) FROM p WHERE b > 0",
    "SELECT array_fill(7, ARRAY[3]), array_fill(NULL::int, ARRAY[2]), array_fill('x'::text, '{}'::int[])",
    "SELECT array_fill(7, ARRAY[NULL::int])",
    "SELECT array_fill(7, ARRAY[-1])",
    "SELECT make_interval(1, 2, 3, 4, 5, 6, 7.5), make_interval(), make_interval(1, weeks => 2)",
    "SELECT make_interval(days => 10), make_interval(hours := 5, secs => 1.5)",
    "SELECT make_interval(day => 1)",
    "SELECT make_interval(2000000000)",
    "SELECT make_interval(secs => 'NaN')",
    """SELECT parse_ident('a.b'), parse_ident(' "A b" . C'), parse_ident('a.b()', false), parse_ident('"a""b"')""",
    *(f"SELECT parse_ident('{name}')" for name in ("a.b()", "", "a.", "1a", '""')),
    "SELECT num_nulls(a, b, c), num_nonnulls(a, b, c) FROM p",
    "SELECT width_bucket(5, ARRAY[1, 3, 7]), width_bucket('b'::text, ARRAY['a', 'c']), width_bucket(1, '{}'::int[])",
    "SELECT width_bucket(5, ARRAY[1, NULL])",
    """SELECT * FROM jsonb_each('{"b": 1, "a": [2], "cc": null}')""",
    """SELECT k, v FROM jsonb_each_text('{"b": "x", "a": [2], "cc": null}') AS e (k, v) WHERE v IS NOT NULL""",
    """SELECT * FROM jsonb_each('{"a": 1, "b": 2}') WITH ORDINALITY""",
    "SELECT * FROM jsonb_each('[1]')",
    "SELECT * FROM jsonb_each(NULL)",
    "SELECT date('2020-01-01'), date(timestamp '2020-01-02 10:00'), date(timestamptz '2020-01-02 10:00'), date(NULL)",
    "SELECT int4('5'), int8(5), int2(5.5), float8('1'), bool('t'), text(true), text(1.5), text('x'), timestamptz(date '2020-01-01')",
    "SELECT date(c), uuid('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), jsonb('{}') FROM p WHERE false",
    "SELECT date(5)",
    "SELECT date('x')",
    "SELECT date(1, 2)",
    "SELECT substring('abc' SIMILAR '%#\"b#\"%' ESCAPE '#'), 'abc' SIMILAR TO 'a%', 'abc' NOT SIMILAR TO 'b'",
)
SCRIPT = (*AGGREGATES, *OTHERS, *MATHEMATICS, *BYTES, *ARRAYS, *TYPES, *DATES, *JSON)

TABLE = (
    "CREATE TABLE t (n int, x float8, b bytea, i interval, a int[])",
    "INSERT INTO t VALUES (1, 30, '\\x0001', '15 h', '{3,1,NULL}'), (2, NULL, NULL, NULL, NULL)",
)
QUERIES = (
    "SELECT n, round(sind(x)::numeric, 9) AS s, atan2d(x, x) AS d, round(lgamma(n)::numeric, 9) AS g FROM t",
    "SELECT n, trim('\\x00' FROM b) AS c, get_bit(b, 8) AS g, overlay(b PLACING '\\xff' FROM 1) AS o FROM t",
    "SELECT to_char(i, 'HH24:MI') AS c, count(*) FROM t GROUP BY 1",
    "SELECT n, array_sort(a, true) AS s, array_reverse(a) AS r FROM t",
    "SELECT convert_from(b, 'LATIN1') AS c, crc32c(b) AS r FROM t WHERE n > 2",
    "SELECT n::bytea AS b, count(*) FROM t GROUP BY n",
    "SELECT corr(n, x) IS NULL AS c, round(covar_pop(n, x)::numeric, 6) AS p, regr_count(x, n) AS k FROM t",
    "SELECT n > 2 AS g, round(regr_slope(n, x)::numeric, 9) AS s, round(regr_r2(x, n)::numeric, 6) AS r FROM t GROUP BY 1",
    "SELECT n % 2 AS g, percentile_disc(n % 2) WITHIN GROUP (ORDER BY x) AS p FROM t GROUP BY n % 2",
    "SELECT percentile_cont(ARRAY[0.5, 1]) WITHIN GROUP (ORDER BY n) AS p FROM t",
)
CHANGES = (
    "INSERT INTO t VALUES (3, 90, '\\x41e9', '-1 day 12:30', '{2,2,1}'), (4, -45, '\\x0042', '900 m', '{}')",
    "UPDATE t SET x = x + 60, b = b || '\\x00', i = i * 2, a = a || 5 WHERE n <> 3",
    "DELETE FROM t WHERE n IN (1, 3)",
)


DOCUMENTS = (
    "CREATE TABLE d (n int, j jsonb, t text)",
    """INSERT INTO d VALUES (1, '{"a": [1, 2], "b": "x"}', '{}'), (2, '[]', 'x'), (3, NULL, NULL)""",
)
DOCUMENT_QUERIES = (
    "SELECT n, jsonb_path_query_array(j, '$.a[*] ? (@ > 1)') AS a, jsonb_path_query_first(j, '$.b') AS f FROM d",
    "SELECT n FROM d WHERE j @? '$.a[*] ? (@ == 2)'",
    "SELECT n FROM d WHERE j @@ '$.a[*] > 1'",
    "SELECT n, x FROM d, jsonb_path_query(j, 'lax $.a[*]') x",
    "SELECT n, e.key, e.value FROM d, jsonb_each(CASE jsonb_typeof(j) WHEN 'object' THEN j END) e",
    "SELECT jsonb_agg_strict(t ORDER BY n) AS a, num_nulls(max(t), NULL) AS m FROM d",
    "SELECT t IS JSON AS a, t IS JSON OBJECT WITH UNIQUE KEYS AS b, j IS JSON ARRAY AS c, count(*) FROM d GROUP BY 1, 2, 3",
)
DOCUMENT_CHANGES = (
    """INSERT INTO d VALUES (4, '{"a": 2, "b": [1]}', '{"a": 1, "a": 2}'), (5, '[{"a": [2, 2]}]', '[1]')""",
    """UPDATE d SET j = '{"a": [2, 3]}', t = t || ' ' WHERE n IN (1, 2)""",
    "DELETE FROM d WHERE j @? '$[*].a' AND n > 1",
)


def test_functions_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = outcomes(SCRIPT, postgres, tmp_path)
    assert ours == theirs


def test_functions_in_maintained_views_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(TABLE, QUERIES, CHANGES, postgres, tmp_path)
    assert ours == theirs


def test_paths_in_maintained_views_equal_postgresql(postgres: Connection, tmp_path: Path) -> None:
    ours, theirs = maintained(DOCUMENTS, DOCUMENT_QUERIES, DOCUMENT_CHANGES, postgres, tmp_path)
    assert ours == theirs


def test_regressions_of_nan_beside_large_numbers_are_nan(tmp_path: Path) -> None:
    pairs = "(VALUES ('NaN'::float8, 0::float8), (0, 1e308)) t (y, x)"
    query = f"SELECT regr_slope(y, x), regr_intercept(y, x), regr_r2(y, x) FROM {pairs}"
    assert SqlWorld(tmp_path).script(query) == [[("NaN", "NaN", "NaN")]]
