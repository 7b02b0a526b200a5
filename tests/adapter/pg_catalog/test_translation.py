"""Queries in the words of DuckDB."""

from __future__ import annotations

import pytest

from derive.adapter.pg_catalog.translation import translated


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("SELECT a -- b\nFROM pg_catalog.pg_class", "SELECT a FROM pg_class"),
        ("SELECT * FROM information_schema.tables t", "SELECT * FROM information_schema_tables t"),
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
        ("'{a,b}'::text[]", "'[a,b]' :: text [ ]"),
        ("$2::oid + $1", "2 :: UINTEGER + 1"),
        ("SELECT user, u.user, 1 AS user", "SELECT 'ann' , u . user , 1 AS user"),
        ("json_build_object('a', 1)", "json_object ( 'a' , 1 )"),
    ],
)
def test_translations(text: str, translation: str) -> None:
    assert translated(text, ["1", "2"], {"user": "'ann'"}) == translation
