"""Set-returning functions in SELECT have the rows, names, types and errors that a real PostgreSQL gives them."""

import pytest
from statement_oracle import Refusal, check_answered_alike, check_refused_alike, description

ACCEPTED = [
    "select generate_series(1, 3)",
    "select generate_series(1, 3) as n, 'x'",
    "select generate_series(1, 3), generate_series(1, 5)",
    "select generate_series(1, 0), 1",
    "select generate_series(1, 0), generate_series(1, 2), unnest('{}'::text[]), unnest(null::int[])",
    "select generate_series(null, 2)",
    "select unnest(array[1, null, 3]), unnest(array['a', 'b'])",
    "select unnest(array[1, 2]) + 10, -unnest(array[1, 2]), unnest(array[1, 2])::text || 'x'",
    "select a, generate_series(1, a) from t",
    "select a, generate_series(1, a), generate_series(a, 3) from t",
    "select a, generate_series(1, a) g from t order by g desc, a",
    "select a, generate_series(1, a) from t order by 2 desc, 1 limit 3",
    "select a, b from t order by generate_series(1, a), b",
    "select a, generate_series(1, a) from t order by a, generate_series(1, a), b limit 4 offset 1",
    "select distinct generate_series(1, a) from t",
    "select distinct on (a) a, generate_series(1, a) from t order by a, 2 desc",
    "select generate_series(1, a) g, count(*) from t group by g",
    "select generate_series(1, a) g, count(*), sum(b) from t group by 1 having count(*) > 1",
    "select generate_series(1, a), count(*) from t group by generate_series(1, a)",
    "select c, generate_series(1, a) g, count(*) from t group by c, g",
    "select a, generate_series(1, count(*)::int) from t group by a",
    "select a, unnest(array_agg(b order by b)) from t group by a",
    "select unnest(array_agg(b order by b)), count(*) from t",
    "select a, generate_series(1, a), row_number() over (order by b) from t",
    "select a, generate_series(1, row_number() over (order by b)) from t",
    "select jsonb_array_elements('[1, \"a\", null]')",
    "select jsonb_array_elements_text('[1, \"a\", null]')",
    "select jsonb_array_elements_text(j) from u where jsonb_typeof(j) = 'array'",
    "select jsonb_array_elements_text(j) e, count(*) from u where jsonb_typeof(j) = 'array' group by e",
    "select f, jsonb_object_keys(j) from u where jsonb_typeof(j) = 'object'",
    "select jsonb_array_elements(j), jsonb_array_elements_text(j) x from u where jsonb_typeof(j) = 'array'",
    "select jsonb_array_elements(j) from u",
    "select regexp_split_to_table('a,b,c', ','), generate_series(1, 2)",
    "select string_to_table('a,b,c', ',')",
    "select regexp_matches('abcabd', 'ab(.)', 'g')",
    "select regexp_matches('abcabd', 'ab(.)', 'g'), generate_series(1, 3)",
    "select id, unnest(ids) from ty",
    "select unnest(ids) u, count(*) from ty group by u",
    "select * from (select generate_series(1, 3) n) s where n > 1",
    "select (select generate_series(1, 1))",
    "select a from t where a in (select generate_series(1, 2))",
    "select exists (select generate_series(1, 0))",
    "select array(select generate_series(1, 3))",
    "select a, array(select generate_series(1, a)) from t",
    "select t.a, s.n from t, lateral (select generate_series(1, t.a) n) s",
    "with s as (select generate_series(1, 3) n) select sum(n) from s",
    "select generate_series(1, 2) union all select generate_series(1, 3)",
    "select generate_series(1, 2) except select 1",
    "select a = any(array[1, 2]), generate_series(1, a) > 1 from t",
    "select coalesce(a, 0), generate_series(1, coalesce(a, 1)) from t",
    "select generate_series(1, $1)",
    "select unnest($1::int[])",
]

REFUSED = [
    "select a from t where generate_series(1, a) > 1",
    "select a from t group by a having generate_series(1, a) > 1",
    "select case when a > 1 then generate_series(1, a) end from t",
    "select coalesce(generate_series(1, a), 0) from t",
    "select sum(generate_series(1, a)) from t",
    "select count(*) filter (where generate_series(1, a) > 1) from t",
    "select a from t limit generate_series(1, 2)",
    "select t.a from t join u on generate_series(1, t.a) = u.a",
    "select * from generate_series(1, generate_series(1, 2))",
    "values (generate_series(1, 2)), (3)",
    "select generate_series('a', 'b')",
    "select unnest(1)",
    "select unnest('{1}')",
    "select generate_series(1, b) from t group by a",
    "select jsonb_array_elements(1)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_row_targets_are_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_row_targets_are_refused_alike(text: str) -> None:
    check_refused_alike(text)


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("select row_number() over (order by generate_series(1, a)) from t", "0A000"),  # PostgreSQL takes it
        ("select generate_series(1, generate_series(1, 2))", "0A000"),  # likewise
        ("select generate_series(1, count(*)) g from t group by g", "42803"),
        ("select generate_series(1, a) over () from t", "42809"),
        ("select generate_series(distinct 1, 2)", "42809"),
    ],
)
def test_what_is_refused_here(text: str, sqlstate: str) -> None:
    refused = description(text)
    assert isinstance(refused, Refusal)
    assert refused.sqlstate == sqlstate
