"""Numbers with scales and texts with lengths are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select 1.50, 1.50 + 1, 1.5 * 1.50, -1.20, 10.00 - 0.5, 1.50::numeric, '1.50'::numeric, 1.555::numeric(10,2), 5::numeric(5,2), 12345::numeric(8,-2)",
    "select round(1.005, 2), round(2.5), abs(-1.10), round(n, 3) from u",
    "select 123.4::numeric(3,1)",
    "select 1::numeric(2,2)",
    "select 0.999::numeric(2,2)",
    "select 'inf'::numeric(3,1)",
    "select 'nan'::numeric(3,1)",
    "select 'abc'::varchar(2), 'abc'::char(5), 'abc'::char(2), 'a  '::char(3) = 'a', 'abc'::char",
    "select length('a '::char(5)), 'a'::char(3) || 'b', 'a'::char(3)::text",
    "select 1.50::text, (1.50 + 1)::text, 1.50::numeric(10,3)::text",
    "select sum(x), min(x), max(x) from (values (1.50), (2.50)) v(x)",
    "select case when a = 1 then 1.50 else 2.25 end, coalesce(null, 1.50) from t",
    "select x from (select 1.50 as x union all select 2.50) q",
    "select (select 1.50)",
    "select 1.50 as x group by 1",
    "select distinct 1.50 from t",
    "select max(1.50) over () from t",
    "select 5::varchar(3), true::varchar(2)",
    "select 1.0 = 1.00, 1.0::numeric(5,1) = 1.00",
    "select 3::int * 1.50, 2::bigint + 0.10",
]

REFUSED = [
    "select 1::numeric(0)",
    "select 1::numeric(5,2000)",
    "select 'x'::varchar(0)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_forms_are_described_and_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_forms_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
