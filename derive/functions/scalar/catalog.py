"""PostgreSQL's functions of its catalogs: names, definitions, privileges and sizes of objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, name_of, over_data
from derive.functions.scalar.text import quoted_name
from derive.functions.statement_context import CatalogObject, current_context
from derive.functions.types.pg_type import NAMES_OF_TYPES, formatted_type

FUNCTIONS = Functions()

SERVER_VERSION = "16.0"
"""Version of PostgreSQL whose catalogs are emulated; clients choose their queries by it."""

_T, _I, _L, _B, _O = Type.TEXT, Type.INTEGER, Type.BIGINT, Type.BOOLEAN, Type.OID


def _constant(name: str, arguments: Sequence[Type | None], result: Type, value: Datum) -> None:
    """Add a function with one value for all arguments, which may be NULL."""
    word = "_".join((name, "of", str(len(arguments))))
    FUNCTIONS.add(Function(word, name, tuple(arguments), result, lambda *_: value, can_fail=False))


def _of_any_arguments(name: str, result: Type, value: Datum) -> None:
    """Add a function of any number of arguments of any types."""
    _constant(name, (), result, value)
    variadic = Function(f"{name}_of_any", name, (None,), result, lambda *_: value, can_fail=False, is_variadic=True)
    FUNCTIONS.add(variadic)


def _of_statement(
    name: str,
    arguments: Sequence[Type],
    result: Type,
    python: Callable[..., Any],
    *,
    has_effect: bool = False,
    takes_null: bool = False,
) -> None:
    """Add a function that needs the context of its statement."""
    of_data = over_data(python, arguments, result, takes_null=takes_null)
    word = name_of(name, name, arguments)
    FUNCTIONS.add(Function(word, name, tuple(arguments), result, of_data, is_volatile=has_effect, needs_context=True))


def _of_object(
    name: str, arguments: Sequence[Type], result: Type, value: Callable[[CatalogObject, tuple[Any, ...]], Datum]
) -> None:
    """Add a function of an object's oid; its value is NULL if no object has the oid."""

    def call(oid: int, *others: Any) -> Datum:
        target = current_context().catalog.object_of(oid)
        return None if target is None else value(target, others)

    _of_statement(name, arguments, result, call)


TYPE_OF = "pg_typeof"
"""Name of the function that returns the type of its argument."""

_UNKNOWN = """
    pg_get_partkeydef pg_get_triggerdef pg_get_ruledef
    pg_get_function_sqlbody pg_get_statisticsobjdef_columns pg_get_statisticsobjdef pg_get_partition_constraintdef
    pg_get_replica_identity_index pg_tablespace_location shobj_description inet_client_addr
    inet_server_addr inet_client_port inet_server_port pg_describe_object
"""
_SIZES = """
    pg_relation_size pg_total_relation_size pg_table_size pg_indexes_size pg_database_size pg_tablespace_size
    pg_stat_get_numscans txid_current
"""
_OTHER_PRIVILEGES = """
    database function sequence type language server tablespace foreign_data_wrapper parameter
"""
_PRIVILEGES = frozenset({"select", "insert", "update", "references"})
_TABLE_PRIVILEGES = _PRIVILEGES | {"delete", "truncate", "trigger", "maintain", "rule"}
_VISIBLE = """
    function operator opclass opfamily collation conversion statistics_obj ts_config ts_dict ts_parser ts_template
"""


def _add_constants() -> None:
    _constant("version", (), _T, f"PostgreSQL {SERVER_VERSION} (flowctl)")
    for name in _UNKNOWN.split():
        _of_any_arguments(name, _T, None)
    for name in _SIZES.split():
        _of_any_arguments(name, _L, 0)
    for what in _OTHER_PRIVILEGES.split():
        _of_any_arguments(f"has_{what}_privilege", _B, 1)
    _of_any_arguments("pg_has_role", _B, 1)
    for what in _VISIBLE.split():
        _constant(f"pg_{what}_is_visible", (_O,), _B, 1)
    for name in ("pg_is_other_temp_schema", "pg_relation_is_publishable"):
        _constant(name, (_O,), _B, 0)
    _constant("pg_is_in_recovery", (), _B, 0)
    _constant("pg_my_temp_schema", (), _O, 0)
    _constant("pg_client_encoding", (), _T, "UTF8")
    _constant("getdatabaseencoding", (), _T, "UTF8")
    _constant("acldefault", (_T, _O), Type.TEXT_ARRAY, None)
    FUNCTIONS.define("pg_size_pretty", (_L,), _T, can_fail=False)(_size)
    FUNCTIONS.define("pg_encoding_to_char", (_I,), _T, can_fail=False)(lambda number: "UTF8" if number == 6 else "")
    FUNCTIONS.define("pg_char_to_encoding", (_T,), _I, can_fail=False)(
        lambda name: 6 if name.lower().replace("-", "") == "utf8" else -1
    )
    FUNCTIONS.define("pg_blocking_pids", (_I,), Type.INTEGER_ARRAY, can_fail=False)(lambda _: ())
    _of_statement("current_schema", (), _T, lambda: next(iter(current_context().schemas), None))
    _of_statement(
        "current_schemas",
        (_B,),
        Type.TEXT_ARRAY,
        lambda with_implicit: (*(("pg_catalog",) if with_implicit else ()), *current_context().schemas),
    )
    FUNCTIONS.define("pg_get_expr", (_T, _O), _T, can_fail=False)(lambda text, _: text)
    FUNCTIONS.define("pg_get_expr", (_T, _O, _B), _T, can_fail=False)(lambda text, *_: text)


def _size(count: int) -> str:
    """Return a number of bytes as text, in the largest unit of which there are at least ten."""
    size = abs(count)
    if size < _MOST_UNITS:
        return f"{count} bytes"
    size >>= 9  # twice the number of kilobytes: the last bit decides how to round
    for unit in _LARGE_UNITS:
        if size < 2 * _MOST_UNITS - 1 or unit == _LARGE_UNITS[-1]:
            break
        size >>= 10
    return f"{'-' if count < 0 else ''}{(size + 1) // 2} {unit}"


_MOST_UNITS = 10 * 1024
_LARGE_UNITS = ("kB", "MB", "GB", "TB", "PB")


def _add_objects() -> None:
    for named in ((_T,), (_T, _B)):
        _of_statement("pg_get_viewdef", named, _T, lambda name, *_: _named_relation(name).definition)
    for others in ((), (_B,), (_I,)):
        _of_object("pg_get_viewdef", (_O, *others), _T, lambda target, _: target.definition)
    for others in ((), (_B,)):
        _of_object("pg_get_constraintdef", (_O, *others), _T, lambda target, _: target.definition)
    _of_object("pg_get_indexdef", (_O,), _T, lambda target, _: target.definition)
    _of_object("pg_get_indexdef", (_O, _I, _B), _T, _index_column)
    _of_statement("format_type", (_O, _I), _T, _formatted_type, takes_null=True)
    _of_statement("pg_type_is_visible", (_O,), _B, _is_visible_type)
    _of_object("pg_table_is_visible", (_O,), _B, lambda target, _: int(target.is_visible))
    _of_object("obj_description", (_O,), _T, lambda target, _: target.comment)
    _of_object("obj_description", (_O, _T), _T, lambda target, _: target.comment)
    _of_object("col_description", (_O, _I), _T, _column_comment)
    _of_object("pg_get_function_result", (_O,), _T, lambda target, _: target.result)
    for name in ("pg_get_function_arguments", "pg_get_function_identity_arguments"):
        _of_object(name, (_O,), _T, lambda target, _: target.arguments)
    _of_object("pg_get_functiondef", (_O,), _T, lambda target, _: target.definition if target.result else None)
    _of_statement("pg_get_serial_sequence", (_T, _T), _T, _sequence_of_column)
    _of_statement("pg_get_userbyid", (_O,), _T, _user)


def _formatted_type(oid: int | None, typmod: int | None) -> str | None:
    """Return the name of a type with its modifier, or of a domain, which has none."""
    if oid is None:
        return None
    domain = None if oid in NAMES_OF_TYPES else current_context().catalog.name_of(Type.REGTYPE.value, oid)
    return domain or formatted_type(oid, typmod)


def _is_visible_type(oid: int) -> int:
    domain = None if oid in NAMES_OF_TYPES else current_context().catalog.object_of(oid)
    return int(domain is None or domain.is_visible)


def _named_relation(name: str) -> CatalogObject:
    """Return the relation of a name; a system relation has no columns.

    Raises:
        SqlError: the relation does not exist (42P01).
    """
    oid = current_context().catalog.oid_of(Type.REGCLASS.value, name)
    if oid is None:
        raise SqlError("42P01", f'relation "{name}" does not exist')
    return current_context().catalog.object_of(oid) or CatalogObject()


def _sequence_of_column(name: str, column: str) -> str | None:
    """Return the name of the sequence that numbers a column; the column's name is no identifier but a plain text."""
    relation = _named_relation(name)
    if column not in relation.columns:
        raise SqlError("42703", f'column "{column}" of relation "{name}" does not exist')
    return relation.sequences[relation.columns.index(column)] if relation.sequences else None


def _relation(target: int | str) -> CatalogObject | None:
    """Return the relation of a name, or of an oid; None for an unknown oid."""
    if isinstance(target, str):
        return _named_relation(target)
    catalog = current_context().catalog
    return catalog.object_of(target) or (CatalogObject() if catalog.name_of(Type.REGCLASS.value, target) else None)


def _check_privileges(privileges: str, known: frozenset[str]) -> None:
    for privilege in privileges.split(","):
        word = " ".join(privilege.lower().split()).removesuffix(" with grant option")
        if word not in known:
            raise SqlError("22023", f'unrecognized privilege type: "{privilege.strip()}"')


def _check_role(role: int | str) -> None:
    if not isinstance(role, str) or role == "public":
        return
    if current_context().catalog.oid_of(Type.REGROLE.value, quoted_name(role)) is None:
        raise SqlError("42704", f'role "{role}" does not exist')


def _has_table_privilege(target: int | str, privileges: str) -> int | None:
    relation = _relation(target)
    _check_privileges(privileges, _TABLE_PRIVILEGES)
    return None if relation is None else 1


def _has_any_column_privilege(target: int | str, privileges: str) -> int | None:
    relation = _relation(target)
    _check_privileges(privileges, _PRIVILEGES)
    return None if relation is None else 1


def _has_column_privilege(target: int | str, column: int | str, privileges: str) -> int | None:
    relation = _relation(target)
    _check_privileges(privileges, _PRIVILEGES)
    if relation is None:
        return None
    if isinstance(column, str) and relation.columns and column not in relation.columns:
        raise SqlError("42703", f'column "{column}" of relation "{target}" does not exist')
    return 1 if isinstance(column, str) or not relation.columns or column <= len(relation.columns) else None


def _has_schema_privilege(target: int | str, privileges: str) -> int | None:
    catalog = current_context().catalog
    if isinstance(target, str) and catalog.oid_of("regnamespace", quoted_name(target)) is None:
        raise SqlError("3F000", f'schema "{target}" does not exist')
    _check_privileges(privileges, frozenset({"create", "usage"}))
    return 1 if isinstance(target, str) or catalog.name_of("regnamespace", target) else None


def _add_privileges() -> None:
    """Add the functions of privileges, which every user has."""

    def of_role(check: Callable[..., int | None]) -> Callable[..., int | None]:
        def call(role: int | str, *others: Any) -> int | None:
            _check_role(role)
            return check(*others)

        return call

    for what, check, parts in (
        ("table", _has_table_privilege, ((),)),
        ("any_column", _has_any_column_privilege, ((),)),
        ("column", _has_column_privilege, ((_T,), (_I,))),
        ("schema", _has_schema_privilege, ((),)),
    ):
        for target, others in product((_T, _O), parts):
            arguments = (target, *others, _T)
            _of_statement(f"has_{what}_privilege", arguments, _B, check)
            for role in (_T, _O):
                _of_statement(f"has_{what}_privilege", (role, *arguments), _B, of_role(check))


def _user(oid: int) -> str:
    return current_context().catalog.name_of("role", oid) or f"unknown (OID={oid})"


def _index_column(index: CatalogObject, arguments: tuple[Any, ...]) -> str | None:
    """Return the definition of an index, or of one of its columns, counted from 1."""
    number = arguments[0]
    if number == 0:
        return index.definition
    return index.columns[number - 1] if 1 <= number <= len(index.columns) else ""


def _column_comment(relation: CatalogObject, arguments: tuple[Any, ...]) -> str | None:
    """Return the comment on a column, counted from 1."""
    number = arguments[0]
    return relation.comments[number - 1] if 1 <= number <= len(relation.comments) else None


def _finding(kind: Type) -> Callable[[str], int | None]:
    """Return the function that finds an object by its name, such as `to_regclass`."""

    def find(name: str) -> int | None:
        return int(name) if name.isdecimal() else current_context().catalog.oid_of(kind.value, name)

    return find


def _add_lookups() -> None:
    for kind in (Type.REGCLASS, Type.REGTYPE, Type.REGPROC, Type.REGNAMESPACE, Type.REGROLE):
        _of_statement(f"to_{kind.value}", (_T,), kind, _finding(kind))


def _add_type_names() -> None:
    """Add `pg_typeof`, whose second argument is the oid that the planner adds."""
    function = Function(TYPE_OF, f"{TYPE_OF}()", (None, Type.REGTYPE), Type.REGTYPE, _second, needs_context=True)
    FUNCTIONS.add(function)


def _second(_: Datum, oid: Datum) -> Datum:
    return oid


def _effect(name: str, arguments: Sequence[Type], result: Type) -> None:
    """Add a function with an effect on the session. A NULL argument makes the value NULL, without an effect."""

    def call(*values: Datum) -> Datum:
        return current_context().effect(name, values)

    _of_statement(name, arguments, result, call, has_effect=True)


def _add_session() -> None:
    _of_statement("pg_backend_pid", (), _I, lambda: current_context().process)
    _of_statement("current_setting", (_T,), _T, _setting)
    _of_statement("current_setting", (_T, _B), _T, _setting)
    _effect("pg_sleep", (Type.DOUBLE,), _T)
    _effect("lastval", (), _L)
    _effect("pg_sequence_last_value", (Type.REGCLASS,), _L)
    for sequence in (_T, Type.REGCLASS):
        for name in ("nextval", "currval"):
            _effect(name, (sequence,), _L)
        _effect("setval", (sequence, _L), _L)
        _effect("setval", (sequence, _L, _B), _L)
    _effect("pg_notify", (_T, _T), _T)
    for name in ("pg_cancel_backend", "pg_terminate_backend"):
        _effect(name, (_I,), _B)
    _effect("pg_advisory_unlock_all", (), _T)
    for key in ((_L,), (_I, _I)):
        for suffix in ("", "_shared"):
            _effect(f"pg_advisory_unlock{suffix}", key, _B)
            for scope in ("advisory", "advisory_xact"):
                _effect(f"pg_{scope}_lock{suffix}", key, _T)
                _effect(f"pg_try_{scope}_lock{suffix}", key, _B)

    def set_config(name: str | None, value: str | None, is_local: bool | None) -> Datum:
        if name is None:
            raise SqlError("22004", "SET requires parameter name")
        return current_context().effect("set_config", (name, value, bool(is_local)))

    _of_statement("set_config", (_T, _T, _B), _T, set_config, has_effect=True, takes_null=True)


def _setting(name: str, is_missing_welcome: bool = False) -> str | None:
    value = current_context().setting(name)
    if value is None and not is_missing_welcome:
        raise SqlError("42704", f'unrecognized configuration parameter "{name}"')
    return value


_add_constants()
_add_objects()
_add_privileges()
_add_lookups()
_add_type_names()
_add_session()
