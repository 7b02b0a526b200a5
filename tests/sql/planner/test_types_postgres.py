"""UUIDs, times and addresses are accepted, described, refused and answered as by a real PostgreSQL."""

import pytest
from statement_oracle import check_answered_alike, check_refused_alike

ACCEPTED = [
    "select * from ty",
    *(f"select {column} from ty order by {column}" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(f"select {column}, count(*) from ty group by {column}" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(f"select distinct {column} from ty order by 1 desc" for column in ("id", "at", "ip", "net", "mac")),
    *(f"select {column}::text from ty" for column in ("id", "at", "ip", "net", "mac", "ids")),
    *(
        f"select a.{column} from ty a join ty b on a.{column} = b.{column}"
        for column in ("id", "at", "ip", "net", "mac")
    ),
    *(f"select array_agg({column} order by {column}) from ty" for column in ("id", "at", "ip", "net", "mac")),
    *(
        f"select to_jsonb({column}), jsonb_agg({column} order by {column}) from ty group by {column}"
        for column in ("id", "ip")
    ),
    "select min(at), max(at), min(ip), max(ip), min(net), max(net) from ty",
    "select sum(at), avg(at), count(distinct id) from ty",
    "select greatest(id, '00000000-0000-0000-0000-000000000002'), least(net, net), coalesce(ip, net) from ty",
    "select case when true then net else ip end, array[ip, net], nullif(ip, '::1') from ty",
    "select id from ty where id = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
    "select id from ty where id in ('{00000000-0000-0000-0000-000000000001}', null)",
    "select id from ty where id = any('{00000000-0000-0000-0000-000000000001}')",
    "select id from ty where id = any(ids)",
    "select id from ty where id = $1 and at < $2 and ip << $3 and mac = $4",
    "select $1::uuid, $2::time, $3::inet, $4::cidr, $5::macaddr, $6::uuid[]",
    "select uuid 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', time '12:30', inet '::1', cidr '10', macaddr '08002b010203'",
    "select time without time zone '12:30', '12:30'::time, cast('12:30' as time), '{12:30}'::time[], time '2020-01-01 12:30'",
    "select at + interval '13 hours', at - interval '13 hours', interval '1 hour' + at, at - time '01:00' from ty",
    "select date '2020-01-31' + at, at + date '2020-01-31', timestamp '2020-01-31' + at from ty",
    "select at = interval '1 day', at::interval, interval '25:00'::time, timestamp '2020-01-31 10:11'::time from ty",
    "select extract(hour from at), date_part('second', at), date_part('epoch', at), date_trunc('hour', at) from ty",
    "select make_time(8, 15, 23.5), make_time(24, 0, 1) from ty",
    "select extract(day from at) from ty",
    "select extract(nonsense from at) from ty",
    "select ts::time, tz::time from d",
    "select ip << '10.0.0.0/8', ip <<= net, ip >> net, ip >>= net, ip && net, ip = net, ip < net from ty",
    "select host(ip), masklen(ip), family(ip), netmask(ip), hostmask(ip), network(ip), broadcast(ip), abbrev(ip), text(ip) from ty",
    "select host(net), network(net), set_masklen(ip, 16), set_masklen(net, 4), inet_same_family(ip, net) from ty",
    "select ip::cidr, net::inet, trunc(mac) from ty",
    "select 'a' || ip, concat(ip, net, mac, id, at), id || 'a' from ty",
    "select ip from ty union select net from ty",
    "select ids[1], array_length(ids, 1), ids || id, id = ids[1] from ty",
    "select unnest from ty, unnest(ids)",
    "select row_number() over (order by id, at), lag(at) over (order by ip), max(net) over (partition by id) from ty",
    "select percentile_disc(0.5) within group (order by at), mode() within group (order by id) from ty",
    "select gen_random_uuid() is null",
]

REFUSED = [
    "select 'x'::uuid",
    "select '12:70'::time",
    "select '10.0.0.256'::inet",
    "select '10.0.0.1/8'::cidr",
    "select '1'::macaddr",
    "select id = 1 from ty",
    "select id = c from ty, t",
    "select id + 1 from ty",
    "select at + at from ty",
    "select at < ip from ty",
    "select mac << mac from ty",
    "select id::int from ty",
    "select 1::uuid",
    "select id::bytea from ty",
    "select at::date from ty",
    "select ip::macaddr from ty",
    "select case when true then id else mac end from ty",
    "select at union select ip from ty",
    "select sum(id) from ty",
    "select host(id) from ty",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_types_are_answered_alike(text: str) -> None:
    check_answered_alike(text)


@pytest.mark.parametrize("text", REFUSED)
def test_types_are_refused_alike(text: str) -> None:
    check_refused_alike(text)
