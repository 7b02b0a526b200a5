"""Statements that are no queries are read, or refused at the same offset, as by a real PostgreSQL."""

import pytest
from statement_oracle import Refusal, postgres_description

from derive.errors import SqlError
from derive.sql.parser.parse import parse

READ = [
    "begin",
    "begin transaction isolation level read committed read write",
    "begin work",
    "begin isolation level serializable read only deferrable",
    "start transaction read only",
    "commit work",
    "commit and no chain",
    "end transaction",
    "rollback",
    "abort",
    "set x = 1",
    "set x to 'a', 'b'",
    "set session x = on",
    "set local x = default",
    "set time zone 'UTC'",
    "set time zone 5",
    "set time zone local",
    "set time zone default",
    "set names 'utf8'",
    "set transaction isolation level serializable",
    "set session characteristics as transaction read only",
    'set search_path to public, "Foo"',
    "set a.b = 'x'",
    "set datestyle = iso, mdy",
    "set extra_float_digits = -1",
    "set x = 1.5",
    "show x",
    "show all",
    "show time zone",
    "show transaction isolation level",
    "show server_version",
    "reset x",
    "reset all",
    "reset time zone",
    "discard all",
    "discard plans",
    "declare c cursor for select 1",
    "declare c scroll cursor with hold for select 1",
    "declare c no scroll cursor without hold for select 1",
    "fetch c",
    "fetch next from c",
    "fetch 5 c",
    "fetch all in c",
    "fetch forward all from c",
    "fetch forward 3 c",
    "fetch forward from c",
    "fetch from c",
    "move 5 in c",
    "close c",
    "close all",
    "prepare p as select 1",
    "prepare p (int, text) as select $1",
    "execute p",
    "execute p (1, 'x')",
    "deallocate p",
    "deallocate all",
    "deallocate prepare all",
    "explain select 1",
    "copy t from stdin",
    "copy t (a, b) from stdin with (format csv, header true, delimiter ';', null '')",
    "copy t from stdin csv header",
    "copy t from stdin with csv header delimiter ','",
    "copy t to stdout binary",
    "copy (select 1) to stdout",
    "copy (select 1) to stdout (format text)",
    "create table x (a int)",
    "create table x ()",
    "create table if not exists x (a int not null, b text null)",
    "create table s.x (a int)",
    "create table x as select 1",
    "create table x (a, b) as select 1, 2",
    "create table x (a) as table t",
    "create table x as (select 1) with data",
    "create view v as select 1",
    "create or replace view v (a, b) as select 1, 2",
    "create view v as values (1)",
    "create view v as select 1;",
    "create materialized view v as select 1",
    "create materialized view if not exists v as select 1 with data",
    "create index on t (a)",
    "create index i on t (a, b desc nulls last)",
    "create index if not exists i on t using btree (a)",
    "drop table t",
    "drop table if exists t, u cascade",
    "drop view v restrict",
    "drop materialized view v",
    "drop index i",
    "alter table t rename to u",
    "alter table if exists t rename to u",
    "alter view v rename to w",
    "alter materialized view v rename to w",
    "alter index i rename to j",
    "insert into t (a) (select 1)",
    "insert into t (select 1)",
    "insert into t table u",
    "insert into t with x as (select 1) select * from x",
    "insert into t as x values (1)",
    "insert into t default values",
    "insert into t select 1 order by 1 limit 1",
    "update t set a = 1, b = 2 where a = 1 returning a as x, *",
    "update t as x set a = 1",
    "update only t set a = 1",
    "update t set (a) = (1)",
    "update t set (a, b) = row(1, 2)",
    "delete from t",
    "delete from t as x where x.a = 1",
    "delete from only t using u, d where true",
    "unlisten *",
]
REFUSED = [
    "begin foo",
    "start",
    "set x",
    "show",
    "declare c cursor for insert into t values (1)",
    "fetch c c",
    "close",
    "prepare p as foo",
    "create table x (a int,)",
    "create table x",
    "create view v select 1",
    "create index i on t",
    "drop t",
    "drop table",
    "insert into t values (1) returning",
    "delete t",
]


@pytest.mark.parametrize("text", READ)
def test_statements_parse_as_in_postgresql(text: str) -> None:
    expected = postgres_description(text)

    assert parse(text) is not None
    assert not isinstance(expected, Refusal) or expected.sqlstate != "42601"


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_statements_fail_as_in_postgresql(text: str) -> None:
    expected = postgres_description(text)

    with pytest.raises(SqlError) as caught:
        parse(text)

    assert Refusal(caught.value.sqlstate, caught.value.offset) == expected
