"""PostgreSQL's functions about its catalogs, as macros of DuckDB."""

from __future__ import annotations

from derive.sql.parser.tokens import COLUMNS_ONLY, FUNCTIONS_ONLY, NEEDS_AS, RESERVED
from derive.sql.pg_catalog.effects import effect_macros
from derive.sql.pg_catalog.objects import SERVER_VERSION
from derive.sql.pg_types import PG_TYPES


def _type_names() -> dict[int, str]:
    names = {pg_type.oid: pg_type.type.value for pg_type in PG_TYPES.values() if not pg_type.element}
    names |= {
        18: '"char"',
        19: "name",
        26: "oid",
        114: "json",
        700: "real",
        1042: "character",
        1043: "character varying",
    }
    names |= {705: "unknown", 2278: "void"}
    return names | {pg_type.oid: f"{names[pg_type.element]}[]" for pg_type in PG_TYPES.values() if pg_type.element}


TYPE_NAMES = _type_names()
"""Results of `format_type`, by oid."""

_FORMAT_TYPE = " ".join(f"WHEN {oid} THEN '{name}'" for oid, name in TYPE_NAMES.items())
_MODIFIER = (
    "CASE WHEN coalesce(m, -1) < 4 THEN '' WHEN o IN (1042, 1043) THEN '(' || (m - 4) || ')' WHEN o = 1700 THEN "
    "'(' || ((m - 4) >> 16) || ',' || (xor((m - 4) & 2047, 1024) - 1024) || ')' ELSE '' END"
)
_TYPE_OIDS = " ".join(
    f"WHEN '{name}' THEN {pg_type.oid}"
    for pg_type in PG_TYPES.values()
    for name in {pg_type.name, TYPE_NAMES[pg_type.oid]}
)
# In a macro, an argument such as `oid` must not be resolved as a column, so columns get unique names.
_DEFINITION = "(SELECT f_text FROM (SELECT oid AS f_oid, text AS f_text FROM definition) WHERE f_oid = o)"
_COMMENT = (
    "(SELECT f_text FROM (SELECT objoid AS f_oid, description AS f_text FROM pg_description WHERE objsubid = 0) "
    "WHERE f_oid = o)"
)
_ATTRIBUTE = (
    "(SELECT f_name FROM (SELECT attrelid AS f_oid, attnum AS f_number, attname AS f_name FROM pg_attribute) "
    "WHERE f_oid = o AND f_number = c)"
)
_ROLE = "(SELECT f_name FROM (SELECT oid AS f_oid, rolname AS f_name FROM pg_roles) WHERE f_oid = o)"
_SCHEMAS = "(SELECT oid AS f_oid, nspname AS f_name, quote_ident(nspname) AS f_quoted FROM pg_namespace)"
_CLASSES = (
    "(SELECT c.oid AS f_oid, n.nspname AS f_schema, n.nspname || '.' || c.relname AS f_full, c.relname AS f_name, "
    "quote_ident(c.relname) AS f_quoted, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS f_full_quoted "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)"
)
_CLASS_OID = (
    f"(SELECT f_oid FROM {_CLASSES} WHERE s IN (f_name, f_quoted, f_full, f_full_quoted, "
    "quote_ident(current_database()) || '.' || f_full_quoted) "
    "ORDER BY f_schema <> 'public' LIMIT 1)"
)
_SYSTEM_OIDS = {"pg_type": 1247, "pg_attribute": 1249, "pg_proc": 1255, "pg_class": 1259, "pg_authid": 1260}
_SYSTEM_OIDS |= {
    "pg_database": 1262,
    "pg_attrdef": 2604,
    "pg_constraint": 2606,
    "pg_description": 2609,
    "pg_index": 2610,
}
_SYSTEM_OIDS |= {"pg_namespace": 2615, "pg_rewrite": 2618, "pg_trigger": 2620}
_SYSTEM_OID = " ".join(f"WHEN '{name}' THEN {oid}" for name, oid in _SYSTEM_OIDS.items())
_CLASS_NAME = (
    "(SELECT CASE WHEN f_schema IN ('public', 'pg_catalog') THEN f_quoted ELSE f_full_quoted END "
    f"FROM {_CLASSES} WHERE f_oid = o)"
)
_SETTING = (
    "(SELECT f_text FROM (SELECT lower(name) AS f_name, setting AS f_text FROM pg_settings) WHERE f_name = lower(s))"
)


def _formatted(text: str, argument: str) -> str:
    """Return an SQL expression that replaces the first `%s` or `%I` of a text."""
    is_name = f"regexp_extract({text}, '%([sIL])', 1) = 'I'"
    written = f"CASE WHEN {is_name} THEN quote_ident({argument}) ELSE {argument}::VARCHAR END"
    return f"regexp_replace({text}, '%[sIL]', {written})"


MACROS: dict[str, str] = {
    "version": f"() AS 'PostgreSQL {SERVER_VERSION} (flowctl)'",
    "current_database": "() AS session_word_current_catalog()",
    "current_schema": "() AS 'public'",
    "current_schemas": "(implicit) AS ['pg_catalog', 'public']",
    "current_setting": f"(s) AS CASE WHEN s IS NOT NULL THEN coalesce({_SETTING}, missing_setting(s)) END, "
    f"(s, missing) AS CASE WHEN missing OR s IS NULL THEN {_SETTING} ELSE coalesce({_SETTING}, missing_setting(s)) END",
    "quote_ident": "(s) AS CASE WHEN regexp_full_match(s, '[a-z_][a-z0-9_]*') THEN s "
    "ELSE '\"' || replace(s, '\"', '\"\"') || '\"' END",
    "pg_format": f"(f, a) AS {_formatted('f', 'a')}, (f, a, b) AS {_formatted(_formatted('f', 'a'), 'b')}",
    "quote_literal": "(s) AS '''' || replace(s, '''', '''''') || ''''",
    "format_type": f"(o, m) AS CASE WHEN o IS NOT NULL THEN CASE o {_FORMAT_TYPE} ELSE '???' END || {_MODIFIER} END",
    "to_regtype": f"(s) AS CASE replace(replace(s, '\"', ''), 'pg_catalog.', '') {_TYPE_OIDS} END",
    "to_regclass": f"(s) AS coalesce(try_cast(s AS UINTEGER), "
    f"CASE replace(s, 'pg_catalog.', '') {_SYSTEM_OID} END, {_CLASS_OID})",
    "to_regnamespace": f"(s) AS (SELECT f_oid FROM {_SCHEMAS} WHERE s IN (f_name, f_quoted))",
    "to_regrole": "(s) AS 10::UINTEGER",
    "regclass_name": f"(o) AS coalesce({_CLASS_NAME}, o::VARCHAR)",
    "regtype_name": f"(o) AS CASE o {_FORMAT_TYPE} WHEN 0 THEN '-' ELSE o::VARCHAR END",
    "regnamespace_name": f"(o) AS (SELECT f_quoted FROM {_SCHEMAS} WHERE f_oid = o)",
    "regrole_name": f"(o) AS {_ROLE}",
    "pg_get_userbyid": f"(o) AS {_ROLE}",
    "pg_get_viewdef": f"(o) AS {_DEFINITION}, (o, p) AS {_DEFINITION}",
    "pg_get_indexdef": f"(o) AS {_DEFINITION}, (o, c, p) AS CASE c WHEN 0 THEN {_DEFINITION} ELSE {_ATTRIBUTE} END",
    "pg_get_expr": "(e, o) AS e::VARCHAR, (e, o, p) AS e::VARCHAR",
    "pg_partition_ancestors": "(o) AS o::UINTEGER",
    "array_remove": "(a, v) AS list_filter(a, lambda x: x IS DISTINCT FROM v)",
    "pg_table_is_visible": f"(o) AS (SELECT f_schema IN ('public', 'pg_catalog') FROM {_CLASSES} WHERE f_oid = o)",
    "obj_description": f"(o) AS {_COMMENT}, (o, c) AS {_COMMENT}",
    "col_description": "(o, c) AS NULL::VARCHAR",
    "shobj_description": "(o, c) AS NULL::VARCHAR",
    "array_upper": "(a, d) AS len(a)",
    "array_lower": "(a, d) AS CASE WHEN len(a) > 0 THEN 1 END",
    "pg_encoding_to_char": "(e) AS 'UTF8'",
    "pg_backend_pid": "() AS (SELECT process FROM own_backend)",
    "pg_is_in_recovery": "() AS false",
    "pg_blocking_pids": "(p) AS []::INTEGER[]",
    "pg_my_temp_schema": "() AS 0::UINTEGER",
    "pg_is_other_temp_schema": "(o) AS false",
    "pg_relation_is_publishable": "(o) AS false",
    "inet_client_addr": "() AS NULL::VARCHAR",
    "inet_client_port": "() AS NULL::INTEGER",
    "inet_server_addr": "() AS NULL::VARCHAR",
    "inet_server_port": "() AS NULL::INTEGER",
    "txid_current": "() AS 0",
    "_pg_expandarray": "(a) AS unnest(list_transform(a, lambda x, i: {'x': x, 'n': i::INTEGER}))",
}
"""Signatures and bodies of macros by name, for any number of arguments."""


def _keywords() -> str:
    kinds = dict.fromkeys(COLUMNS_ONLY, ("C", "unreserved (cannot be function or type name)"))
    kinds |= dict.fromkeys(FUNCTIONS_ONLY, ("T", "reserved (can be function or type name)"))
    kinds |= dict.fromkeys(RESERVED, ("R", "reserved"))
    rows = []
    for word, (code, what) in sorted(kinds.items()):
        is_bare = word not in NEEDS_AS
        label = "can be bare label" if is_bare else "requires AS"
        rows.append(f"('{word}', '{code}', {'true' if is_bare else 'false'}, '{what}', '{label}')")
    return ", ".join(rows)


TABLE_MACROS = {
    "pg_get_keywords": f"() AS TABLE FROM (VALUES {_keywords()}) t(word, catcode, barelabel, catdesc, baredesc)",
    "pg_show_all_settings": "() AS TABLE FROM pg_settings",
    "current_database": "() AS TABLE SELECT session_word_current_catalog() AS current_database",
    "current_schema": "() AS TABLE SELECT 'public' AS current_schema",
    "unnest_pairs": "(a, b) AS TABLE SELECT unnest(a) AS a, unnest(b) AS b",
    "unnest_counted": "(a, b) AS TABLE SELECT unnest(a) AS a, unnest(b) AS b, "
    "unnest(range(1, 1 + greatest(len(a), len(b)))) AS ordinality",
    "pg_available_extensions": "() AS TABLE SELECT '' AS name, '' AS default_version, '' AS comment WHERE false",
    "pg_partition_ancestors": "(o) AS TABLE SELECT o::UINTEGER AS relid",
}
"""Macros that return rows."""

_UNKNOWN = (
    "pg_get_constraintdef",
    "pg_get_partkeydef",
    "pg_get_triggerdef",
    "pg_get_ruledef",
    "pg_get_serial_sequence",
    "pg_get_function_result",
    "pg_get_function_arguments",
    "pg_get_function_identity_arguments",
    "pg_get_functiondef",
    "pg_get_statisticsobjdef_columns",
    "pg_get_statisticsobjdef",
    "pg_get_partition_constraintdef",
    "pg_get_replica_identity_index",
    "pg_tablespace_location",
    "pg_stat_get_numscans",
    "pg_sequence_last_value",
)
_SIZES = (
    "pg_relation_size",
    "pg_total_relation_size",
    "pg_table_size",
    "pg_indexes_size",
    "pg_database_size",
    "pg_tablespace_size",
)
_PRIVILEGES = (
    *("table", "column", "any_column", "schema", "database", "function", "sequence", "type", "language", "server"),
    *("tablespace", "foreign_data_wrapper"),
)
_VISIBLE = (
    "type",
    "function",
    "operator",
    "opclass",
    "opfamily",
    "collation",
    "conversion",
    "statistics_obj",
    "ts_config",
)
_ANY_ARGUMENTS = ("a", "a, b", "a, b, c", "a, b, c, d")


def macros() -> dict[str, str]:
    """Return the signatures and bodies of all macros, by name."""
    made = effect_macros() | MACROS
    made |= {name: _of_any_arguments("NULL::VARCHAR") for name in _UNKNOWN}
    made |= {name: _of_any_arguments("0::BIGINT") for name in _SIZES}
    made |= {f"has_{what}_privilege": _of_any_arguments("true") for what in _PRIVILEGES}
    made |= {"pg_has_role": _of_any_arguments("true")}
    return made | {f"pg_{what}_is_visible": "(o) AS true" for what in _VISIBLE}


def _of_any_arguments(value: str) -> str:
    return ", ".join(f"({names}) AS {value}" for names in _ANY_ARGUMENTS)
