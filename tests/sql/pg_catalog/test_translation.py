"""Queries in the words of DuckDB."""

from __future__ import annotations

import pytest

from derive.sql.pg_catalog.translation import translated


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("SELECT a -- b\nFROM pg_catalog.pg_class", "select a from pg_class"),
        ("SELECT * FROM information_schema.tables t", "select * from information_schema_tables t"),
        ("a.relname OPERATOR(pg_catalog.=) 'x' COLLATE pg_catalog.default", "a . relname = 'x'"),
        ("a ~ '^(b)$'", "a ~ '(?s).*(?:^(b)$).*'"),
        ("a !~* 'b'", "a !~ '(?is).*(?:b).*'"),
        ("'a'::regclass", "to_regclass ( 'a' )"),
        ("c.oid::pg_catalog.regclass::text", "regclass_name ( c . oid ) :: text"),
        ("f(a, g(b))::regtype", "regtype_name ( f ( a , g ( b ) ) )"),
        ("c.oid::regclass::oid", "( c . oid ) :: UINTEGER"),
        ("'a'::regclass::oid", "to_regclass ( 'a' ) :: UINTEGER"),
        ("CAST(a.b AS regclass)", "regclass_name ( a . b )"),
        ("'pg_catalog.array_in'::regproc", "( 'array_in' )"),
        ("x[1]::regtype", "regtype_name ( x [ 1 ] )"),
        ("'{a,b}'::text[]", "['a', 'b'] :: text [ ]"),
        ("""relkind = ANY('{r,"it''s",NULL}')""", "relkind = any ( ['r', 'it''s', NULL] )"),
        ("'{}'::jsonb, '{a}'", "'{}' :: VARCHAR , '[a]'"),
        ("'a'::regclass::text", "regclass_name ( to_regclass ( 'a' ) ) :: text"),
        ("(a || b)::regtype::text", "regtype_name ( to_regtype ( ( a || b ) ) ) :: text"),
        ("polroles = '{0}'", "polroles = '[0]'"),
        ("proargtypes::regtype[]", "list_transform ( proargtypes , lambda o: regtype_name(o))"),
        ("indkey[0], x.I_INDOPTION[n - 1]", "indkey [ 1 + 0 ] , x . i_indoption [ 1 + n - 1 ]"),
        ("generate_subscripts(i.indkey, 1) AS k", "unnest ( range(0, 0 + len( i . indkey )) ) as k"),
        ("generate_subscripts(f(a, 2), 1)", "unnest ( range(1, 1 + len( f ( a , 2 ) )) )"),
        ("unnest(a, f(b, c)) WITH ORDINALITY k(x, y, z)", "unnest_counted ( a , f ( b , c ) ) k ( x , y , z )"),
        ("unnest(f(a, b)) WITH ORDINALITY", "unnest ( f ( a , b ) ) with ordinality"),
        ("typreceive != 0 OR typlen != 0", "typreceive != '-' or typlen != 0"),
        ("typinput = 'array_in(cstring,oid,integer)'::regprocedure", "typinput = ( 'array_in' )"),
        ('SELECT NAME AS Camel, "Quoted"', 'select name as camel , "Quoted"'),
        ("$2::oid + $1", "2 :: UINTEGER + 1"),
        ("SELECT user, u.user, 1 AS user", "select 'ann' , u . user , 1 as user"),
        ("json_build_object('a', 1)", "json_object ( 'a' , 1 )"),
    ],
)
def test_translations(text: str, translation: str) -> None:
    assert translated(text, ["1", "2"], {"user": "'ann'"}) == translation
