"""The relations of PostgreSQL's catalogs with their columns. Most of them are empty."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

_DUCKDB_TYPES = {
    "bool": "BOOLEAN DEFAULT false",
    "char": "pg_char",
    "int2": "SMALLINT DEFAULT 0",
    "int4": "INTEGER DEFAULT 0",
    "int8": "BIGINT DEFAULT 0",
    "oid": "UINTEGER DEFAULT 0",
    "xid": "UINTEGER DEFAULT 0",
    "float4": "FLOAT DEFAULT 0",
    "float8": "DOUBLE DEFAULT 0",
    "bytea": "BLOB",
    "timestamptz": "TIMESTAMP",
    "int2vector": "SMALLINT[]",
    "oidvector": "UINTEGER[]",
    "regproc": "VARCHAR DEFAULT '-'",
    "int2[]": "SMALLINT[]",
    "int4[]": "INTEGER[]",
    "oid[]": "UINTEGER[]",
}

VIEWS = {
    "pg_tables": """
        SELECT n.nspname AS schemaname, c.relname AS tablename, 'flow' AS tableowner, NULL::VARCHAR AS
        tablespace, c.relhasindex AS hasindexes, false AS hasrules, false AS hastriggers, false AS
        rowsecurity FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'""",
    "pg_views": """
        SELECT n.nspname AS schemaname, c.relname AS viewname, 'flow' AS viewowner, pg_get_viewdef(c.oid) AS
        definition FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v'""",
    "pg_matviews": """
        SELECT n.nspname AS schemaname, c.relname AS matviewname, 'flow' AS matviewowner, NULL::VARCHAR AS
        tablespace, c.relhasindex AS hasindexes, true AS ispopulated, pg_get_viewdef(c.oid) AS definition
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'm'""",
    "pg_indexes": """
        SELECT n.nspname AS schemaname, t.relname AS tablename, c.relname AS indexname, NULL::VARCHAR AS
        tablespace, pg_get_indexdef(c.oid) AS indexdef FROM pg_index i JOIN pg_class c ON c.oid =
        i.indexrelid JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace""",
    "pg_user": """
        SELECT rolname AS usename, oid AS usesysid, rolcreatedb AS usecreatedb, rolsuper AS usesuper,
        rolreplication AS userepl, rolbypassrls AS usebypassrls, NULL::VARCHAR AS passwd, NULL::TIMESTAMP AS
        valuntil, NULL::VARCHAR[] AS useconfig FROM pg_roles""",
    "information_schema_schemata": """
        SELECT current_database() AS catalog_name, nspname AS schema_name, 'flow' AS schema_owner,
        NULL::VARCHAR AS default_character_set_catalog, NULL::VARCHAR AS default_character_set_schema,
        NULL::VARCHAR AS default_character_set_name, NULL::VARCHAR AS sql_path FROM pg_namespace""",
    "information_schema_tables": """
        SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name, CASE
        c.relkind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END AS table_type, NULL::VARCHAR AS
        self_referencing_column_name, NULL::VARCHAR AS reference_generation, NULL::VARCHAR AS
        user_defined_type_catalog, NULL::VARCHAR AS user_defined_type_schema, NULL::VARCHAR AS
        user_defined_type_name, CASE c.relkind WHEN 'r' THEN 'YES' ELSE 'NO' END AS is_insertable_into, 'NO'
        AS is_typed, NULL::VARCHAR AS commit_action FROM pg_class c JOIN pg_namespace n ON n.oid =
        c.relnamespace WHERE c.relkind IN ('r', 'v')""",
    "information_schema_columns": """
        SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
        a.attname AS column_name, a.attnum::INTEGER AS ordinal_position,
        (SELECT adbin FROM pg_attrdef WHERE adrelid = a.attrelid AND adnum = a.attnum)::VARCHAR AS column_default,
        CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable, CASE t.typcategory WHEN 'A' THEN
        'ARRAY' ELSE format_type(a.atttypid, -1) END AS data_type,
        CASE WHEN t.typname IN ('varchar', 'bpchar') AND a.atttypmod > 4
        THEN a.atttypmod - 4 END AS character_maximum_length, NULL::INTEGER AS character_octet_length, CASE
        t.typname WHEN 'int2' THEN 16 WHEN 'int4' THEN 32 WHEN 'int8' THEN 64 WHEN 'float8' THEN 53
        WHEN 'numeric' THEN CASE WHEN a.atttypmod > 4 THEN (a.atttypmod - 4) >> 16 END END AS
        numeric_precision, CASE t.typname WHEN 'float8' THEN 2 WHEN 'numeric' THEN 10 ELSE CASE
        t.typcategory WHEN 'N' THEN 2 END END AS numeric_precision_radix, CASE t.typname WHEN 'int2' THEN 0
        WHEN 'int4' THEN 0 WHEN 'int8' THEN 0 WHEN 'numeric' THEN CASE
        WHEN a.atttypmod > 4 THEN xor((a.atttypmod - 4) & 2047, 1024) - 1024 END END AS numeric_scale,
        CASE WHEN t.typname IN ('timestamp',
        'timestamptz', 'interval') THEN 6 WHEN t.typname = 'date' THEN 0 END AS datetime_precision,
        NULL::VARCHAR AS interval_type, NULL::VARCHAR AS domain_name, NULL::VARCHAR AS domain_schema,
        NULL::VARCHAR AS collation_name, NULL::VARCHAR AS collation_schema, current_database() AS
        udt_catalog, 'pg_catalog' AS udt_schema, t.typname AS udt_name, a.attnum::VARCHAR AS dtd_identifier,
        'NO' AS is_self_referencing, 'NO' AS is_identity, NULL::VARCHAR AS identity_generation, 'NEVER' AS
        is_generated, NULL::VARCHAR AS generation_expression, CASE c.relkind WHEN 'r' THEN 'YES' ELSE 'NO'
        END AS is_updatable FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON
        n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid WHERE c.relkind IN ('r', 'v') AND
        a.attnum > 0""",
    "information_schema_views": """
        SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
        pg_get_viewdef(c.oid) AS view_definition, 'NONE' AS check_option, 'NO' AS is_updatable, 'NO' AS
        is_insertable_into, 'NO' AS is_trigger_updatable, 'NO' AS is_trigger_deletable, 'NO' AS
        is_trigger_insertable_into FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE
        c.relkind = 'v'""",
}
_TABLE_STATISTICS = """
    SELECT c.oid AS relid, n.nspname AS schemaname, c.relname FROM pg_class c JOIN pg_namespace n ON
    n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm')"""
VIEWS |= {f"pg_{what}_tables": _TABLE_STATISTICS for what in ("stat_user", "stat_all", "statio_user", "statio_all")}
"""Views over other catalog relations. Their other columns are NULL."""


@cache
def relations() -> dict[str, list[tuple[str, str]]]:
    """Return the columns of each relation, with types; a dot in a relation's name becomes an underscore."""
    written: dict[str, str] = json.loads((files(__package__) / "relations.json").read_text())
    return {
        name.removeprefix("pg_catalog.").replace(".", "_"): [
            (column, kind) for column, _, kind in (part.partition(":") for part in columns.split())
        ]
        for name, columns in written.items()
    }


@cache
def columns_of_kind(kind: str) -> frozenset[str]:
    """Return the names of the columns of a type."""
    return frozenset(column for columns in relations().values() for column, its in columns if its == kind)


def creation(name: str) -> str:
    """Return the SQL that creates a relation, as an empty table or as a view."""
    columns = ", ".join(f'"{column}" {_duckdb_type(kind)}' for column, kind in relations()[name])
    if name in VIEWS:
        empty = f"CREATE TABLE empty_{name}({columns})"
        return f"{empty}; CREATE VIEW {name} AS SELECT * FROM empty_{name} UNION ALL BY NAME ({VIEWS[name]})"
    return f"CREATE TABLE {name}({columns})"


def _duckdb_type(kind: str) -> str:
    return _DUCKDB_TYPES.get(kind) or ("VARCHAR[]" if kind.endswith("[]") else "VARCHAR")
