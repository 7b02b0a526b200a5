"""Arrays are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select array[1,2,3], array['a',null], array[1,2.5], array[]::int[], '{1,2}'::int[], array['1','2']::int[]",
    "select a from t where a = any('{1,2}')",
    "select a from t where a = any('{1,2}'::int[])",
    "select a from t where a = any('{1,2}'::bigint[])",
    "select a from t where a <> all('{1,2}'::int[])",
    "select a from t where a <> all('{}'::int[])",
    "select a from t where a = any('{}'::int[])",
    "select a from t where a = any('{1,null}'::int[])",
    "select a from t where a <> all('{1,null}'::int[])",
    "select a from t where a = any($1)",
    "select a from t where a = any($1::bigint[])",
    "select $1 = any($2)",
    "select a from t where c = any($1) and b <> all($2)",
    "select a from t where a < all('{4,5}'::int[])",
    "select a = any(null), a = any(null::int[]) from t",
    "select (array[10,20,30])[2], (array[10,20,30])[4], (array[10,20,30])[2:3], (array[10,20,30])[:2], (array[1,2,3])[2:]",
    "select ('{1,2}'::int[])[a] from t",
    "select a, array_agg(b order by b) from t group by a",
    "select array_length(array[1,2],1), cardinality(array[1,2]), array_position(array['a','b'],'b'), array_upper(array[1],1), array_dims(array[1,2])",
    "select array[1,2] || 3, 0 || array[1], array[1] || array[2,3], array[1] || '{5}', array[1] || null, array[1]||2.5",
    "select array[1,2] @> array[1], array[1] <@ array[1,2], array[1,2] && array[2,3], array[1,2] @> '{1}'",
    "select array[1,2] = array[1,2], array[1,2] < array[1,3], array[1] = '{1}'",
    "select array_to_string(array[1,null,3], ','), array_to_string(array[1,null,3], ',', '*'), string_to_array('a,b,', ','), string_to_array('abc', null), string_to_array('a,b', ',', 'a')",
    "select array[1,2]::text, '{1,2}'::text::int[], array[1,2]::bigint[], array[1,2]::text[], array[1.5,2.5]::int[]",
    "select to_jsonb(array[1,2]), jsonb_agg(array[a]) from t group by a",
    "select array_remove(array[1,2,1],1), array_replace(array[1,2],1,9), array_append(array[1],2), array_prepend(0,array[1]), array_cat(array[1],array[2])",
    "select array[a, b] from t",
    "select array[c, a::text] from t",
    "select coalesce(array[a], '{}') from t",
    "select case when a = 1 then array[1] else array[2::bigint] end from t",
    "select array[1] union select array[2::bigint]",
    "select distinct array[a] from t order by 1",
    "select array[a], count(*) from t group by array[a]",
    "select max(array[a]), min(array[b]) from t",
    "select j #> array['k','z'], j #>> '{k}', j ?| array['k'] from u",
    "select array[j] from u",
    "select c like any(array['x%','y']) from t",
    "select array[dt], array[ts], array[tz], array[by], array[s] from d",
    "select array[true,false], array[1.5::float8]",
    "select array(select 1)",
    "select array[1] is null, array[1] is distinct from array[1]",
    "select '{1,2}'::_int4",
    "select cast('{1}' as int array), '{1}'::int[3]",
    "select array_position(array[1,2,1], 1, 2), array_positions(array[1,2,1],1)",
    "select 1 = any(array[1,2]), 1 = all(array[1,1]), null = any(array[1])",
    "select array(select a from t order by b desc), array(select a from t where false), array(select a from t order by b limit 2)",
    "select a, array(select f from u where u.a = t.a order by f) from t",
]

REFUSED = [
    "select array[]",
    "select array[1,'x']",
    "select a from t where a = any(5)",
    "select a from t where a = any('x')",
    "select ('{1,2}'::int[])['x']",
    "select (5)[1]",
    "select array[1] = array[1::bigint]",
    "select array['a','b']::int[]",
    "select '{a,b}'::int[]",
    "select '{1,2'::int[]",
    "select array[1,2] + 1",
    "select array_length(5, 1)",
    "select array(select a, b from t)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_arrays_are_described_and_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_arrays_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
