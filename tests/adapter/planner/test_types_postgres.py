"""UUIDs, times and addresses are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select * from x",
    *(f"select {column} from x order by {column}" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(f"select {column}, count(*) from x group by {column}" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(f"select distinct {column} from x order by 1 desc" for column in ("id", "at", "ip", "net", "mac")),
    *(f"select {column}::text from x" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(f"select a.{column} from x a join x b on a.{column} = b.{column}" for column in ("id", "at", "ip", "net", "mac")),
    *(f"select array_agg({column} order by {column}) from x" for column in ("id", "at", "ip", "net", "mac")),
    *(
        f"select to_jsonb({column}), jsonb_agg({column} order by {column}) from x group by {column}"
        for column in ("id", "ip")
    ),
    "select min(at), max(at), min(ip), max(ip), min(net), max(net) from x",
    "select sum(at), avg(at), count(distinct id) from x",
    "select greatest(id, '00000000-0000-0000-0000-000000000002'), least(net, net), coalesce(ip, net) from x",
    "select case when true then net else ip end, array[ip, net], nullif(ip, '::1') from x",
    "select id from x where id = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
    "select id from x where id in ('{00000000-0000-0000-0000-000000000001}', null)",
    "select id from x where id = any('{00000000-0000-0000-0000-000000000001}')",
    "select id from x where id = any(ids)",
    "select id from x where id = $1 and at < $2 and ip << $3 and mac = $4",
    "select $1::uuid, $2::time, $3::inet, $4::cidr, $5::macaddr, $6::uuid[]",
    "select uuid 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', time '12:30', inet '::1', cidr '10', macaddr '08002b010203'",
    "select time without time zone '12:30', '12:30'::time, cast('12:30' as time), '{12:30}'::time[], time '2020-01-01 12:30'",
    "select at + interval '13 hours', at - interval '13 hours', interval '1 hour' + at, at - time '01:00' from x",
    "select date '2020-01-31' + at, at + date '2020-01-31', timestamp '2020-01-31' + at from x",
    "select at = interval '1 day', at::interval, interval '25:00'::time, timestamp '2020-01-31 10:11'::time from x",
    "select extract(hour from at), date_part('second', at), date_part('epoch', at), date_trunc('hour', at) from x",
    "select make_time(8, 15, 23.5), make_time(24, 0, 1) from x",
    "select extract(day from at) from x",
    "select extract(nonsense from at) from x",
    "select ts::time, tz::time from d",
    "select ip << '10.0.0.0/8', ip <<= net, ip >> net, ip >>= net, ip && net, ip = net, ip < net from x",
    "select host(ip), masklen(ip), family(ip), netmask(ip), hostmask(ip), network(ip), broadcast(ip), abbrev(ip), text(ip) from x",
    "select host(net), network(net), set_masklen(ip, 16), set_masklen(net, 4), inet_same_family(ip, net) from x",
    "select ip::cidr, net::inet, trunc(mac) from x",
    "select 'a' || ip, concat(ip, net, mac, id, at), id || 'a' from x",
    "select ip from x union select net from x",
    "select ids[1], array_length(ids, 1), ids || id, id = ids[1] from x",
    "select unnest from x, unnest(ids)",
    "select row_number() over (order by id, at), lag(at) over (order by ip), max(net) over (partition by id) from x",
    "select percentile_disc(0.5) within group (order by at), mode() within group (order by id) from x",
    "select gen_random_uuid() is null",
]

REFUSED = [
    "select 'x'::uuid",
    "select '12:70'::time",
    "select '10.0.0.256'::inet",
    "select '10.0.0.1/8'::cidr",
    "select '1'::macaddr",
    "select id = 1 from x",
    "select id = c from x, t",
    "select id + 1 from x",
    "select at + at from x",
    "select at < ip from x",
    "select mac << mac from x",
    "select id::int from x",
    "select 1::uuid",
    "select id::bytea from x",
    "select at::date from x",
    "select ip::macaddr from x",
    "select case when true then id else mac end from x",
    "select at union select ip from x",
    "select sum(id) from x",
    "select host(id) from x",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_types_are_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_types_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
