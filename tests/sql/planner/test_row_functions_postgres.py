"""Functions in FROM are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select * from unnest(array[1,2,null]) x",
    "select * from unnest('{a,b}'::text[]) with ordinality",
    "select * from unnest('{a,b}'::text[]) with ordinality as g(v, n)",
    "select * from unnest(array[1,2,3], array['a','b']) as g(x, y)",
    "select * from unnest(array[1,2], array['a','b','c']) with ordinality as g(x, y, n)",
    "select * from unnest($1::int[], $2::text[])",
    "select t.a, x from t, unnest(array[t.a, t.b]) as x",
    "select t.a, x from t cross join lateral unnest(array[t.a, t.b]) x where x > 5",
    "select t.a, x, n from t left join lateral unnest(array_remove(array[t.c, null], null)) with ordinality u(x, n) on true",
    "select t.a, x from t left join unnest(array[t.a]) x on x > 1",
    "select t.a, x from t join unnest(array[t.a, 2]) x on x = t.a",
    "select (select sum(x) from unnest(array[t.a, t.b]) x) from t",
    "select a from t where exists (select 1 from unnest(array[t.a, 7]) x where x = 7 and t.b = 10)",
    "select a from t where a in (select x from unnest(array[1,3]) x)",
    "select a, count(*) from t, unnest(array[a, b]) x group by a",
    "select * from generate_series(1, 3), generate_series(1, 2) as h",
    "select t.a, g from t, generate_series(1, t.a) g",
    "select g from generate_series(3, 1, -1) g",
    "select g from generate_series(1, 3, 0) g",
    "select g from generate_series('1', 3) g",
    'select * from jsonb_array_elements(\'[1, {"a": null}, "x"]\')',
    'select * from jsonb_array_elements(\'[1, {"a": null}, "x"]\') g',
    "select * from jsonb_array_elements_text('[1, {\"a\": null}, null]') with ordinality",
    "select u.a, e from u, jsonb_array_elements(u.j) e where jsonb_typeof(u.j) = 'array'",
    'select * from jsonb_object_keys(\'{"bb": 1, "a": 2}\') k',
    "select * from jsonb_array_elements('{}')",
    "select * from string_to_table('a,b', ',') s",
    "select array_agg(x order by n desc) from unnest(array['a','b']) with ordinality g(x, n)",
    "select x from t, unnest(array[t.a]) x, unnest(array[x, x + 1]) y",
    "select x, y from t, unnest(array[t.a]) x, unnest(array[x, x + 1]) y",
    "select x from unnest(array[1.5, 2.25, null]) x, t where t.a = 1",
    "select x from unnest(array[1e300::float8, 'nan', '-inf', 0.1]) x",
    r"select x from unnest(array['\x00ff'::bytea]) x",
    "select x from d, unnest(array[d.ts, d.ts + interval '1 day']) x",
    "select x from d, unnest(array[d.by]) x",
    "select x from u, unnest(array[u.n, u.n + 1]) x where u.n / 0 > 1",
    "with w as (select array_agg(a) as l from t) select x from w, unnest(l) x",
    "select distinct x from t, unnest(array[t.c, 'q']) x",
    "select * from lower('A')",
    "select * from lower('A') with ordinality",
    "select t.a, x from t, abs(t.a) x",
    "select value, e from jsonb_array_elements('[1,2]') e",
    "select e.value from jsonb_array_elements('[1,2]') e",
    "select u from unnest(array[1]) u(x)",
    "select unnest from unnest(array[1])",
    "select * from regexp_split_to_table('a1b22c', '[0-9]+')",
    "select * from regexp_split_to_table('abc', '') with ordinality",
    "select * from regexp_matches('foobarbequebaz', 'ba.', 'g')",
    "select m[1], n from regexp_matches('foobarbequebaz', '(b)(x)?(a)', 'g') with ordinality as g(m, n)",
    "select * from regexp_matches('foo', 'x')",
    "select * from regexp_matches('a,\"b{', '.+')",
    "select t.a, m from t, regexp_matches(t.c, '[xy]') m",
    "select * from regexp_matches(null, 'a')",
    "select * from regexp_split_to_table('ab', 'b', 'g')",
]

REFUSED = [
    "select * from unnest($1)",
    "select * from unnest(5)",
    "select * from nofunc(1)",
    "select x from (select 1 as a) s right join unnest(array[s.a]) x on true",
    "select count(*) from sum(1)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_functions_are_described_and_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_functions_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
