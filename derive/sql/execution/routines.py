"""CREATE FUNCTION, DROP FUNCTION and CREATE DOMAIN: the items of functions and domains in the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.types import Type
from derive.errors import SqlError, suggest
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects, RecordedNames, is_temporary, provisional_id, with_schemas
from derive.sql.parser.ast import QualifiedName, TypeName
from derive.sql.parser.object_definitions import CreateDomain, CreateFunction, DropFunction
from derive.sql.parser.parse import parse, parse_expression, split
from derive.sql.parser.statement import ObjectKind, SelectStatement
from derive.sql.planner.coercion import modifier_of_type, type_of
from derive.sql.planner.constraints import plan_checks
from derive.sql.planner.ddl import require_stored
from derive.sql.planner.dml import default_text
from derive.sql.planner.functions import plan_body
from derive.sql.planner.interfaces import Domain, NamedColumn, NamedRelation, RelationKind, signature_of
from derive.sql.results import Notice

_ONE_QUERY = "Write one SELECT with one column; a view or a transaction does more."


def planned_function(statement: CreateFunction, objects: Objects, schema: str) -> Item:
    """Return the item of a new function.

    Args:
        statement: the CREATE FUNCTION.
        objects: names that the body may use.
        schema: schema of the function.

    Raises:
        SqlError: 0A000, the body is not one query, or uses temporary relations; else as for `plan_body`.
    """
    arguments = tuple((name, type_of(kind)) for name, kind in statement.arguments)
    types, result = [kind for _, kind in arguments], type_of(statement.result)
    require_stored([*types, result])
    texts, offset = split(statement.body), statement.name.offset
    if len(texts) != 1:
        message = "a function with another number of statements than one is not supported"
        raise SqlError("0A000", message, offset=offset, hint=_ONE_QUERY)
    definition, names = texts[0][1], RecordedNames(objects)
    try:
        _plan(definition, names, statement, arguments, result)
        if names.schemas:
            definition, names = with_schemas(definition, names.schemas), RecordedNames(objects)
            _plan(definition, names, statement, arguments, result)
    except SqlError as error:
        error.offset = None  # the offset counts characters of the body
        raise
    uses = [item for id_ in names.bindings.values() if (item := objects.items.get(id_))]
    if any(is_temporary(item.schema) for item in uses) and not is_temporary(schema):
        raise SqlError("0A000", "functions must not use temporary tables or views", offset=offset, hint=_ONE_QUERY)
    origin = {
        "name": statement.name.name,
        "arguments": [[name, kind.value] for name, kind in arguments],
        "result": result.value,
        "volatility": statement.volatility,
        "is_strict": statement.is_strict,
    }
    name = signature_of(statement.name.name, types)
    return Item(
        provisional_id(),
        ObjectKind.FUNCTION,
        schema,
        name,
        definition=definition,
        bindings=names.bindings,
        read=names.read,
        origin=origin,
    )


def _plan(
    definition: str,
    names: RecordedNames,
    statement: CreateFunction,
    arguments: Sequence[tuple[str | None, Type]],
    result: Type,
) -> None:
    body = parse(definition)
    if not isinstance(body, SelectStatement) or body.as_of is not None:
        raise SqlError("0A000", "a function that is not one SELECT is not supported", hint=_ONE_QUERY)
    plan_body(body.query, names, statement.name.name, arguments, result)


def dropped_functions(statement: DropFunction, objects: Objects) -> tuple[list[Item], list[Notice]]:
    """Return the functions of a DROP FUNCTION, and notices about missing ones.

    Raises:
        SqlError: 42883, a function does not exist; 42725, several functions have a name without arguments.
    """
    dropped, notices = [], []
    for name, types in statement.names:
        item = _function_of(name, types, objects)
        shown = f"{name}({', '.join(type_of(kind).value for kind in types)})" if types is not None else f"{name}()"
        if item is not None:
            dropped.append(item)
        elif statement.if_exists:
            notices.append(Notice("NOTICE", "00000", f"function {shown} does not exist, skipping"))
        else:
            message = f"function {shown} does not exist" if types is not None else f'could not find a function "{name}"'
            known = (str(one.origin["name"]) for one in objects.items.values() if one.kind is ObjectKind.FUNCTION)
            nearest = suggest(name.name, known)
            hint = f'Did you mean "{nearest}"?' if nearest and nearest != name.name else None
            raise SqlError("42883", message, offset=name.offset, hint=hint)
    return dropped, notices


def _function_of(name: QualifiedName, types: tuple[TypeName, ...] | None, objects: Objects) -> Item | None:
    if types is not None:
        return objects.find(name.schema, signature_of(name.name, list(map(type_of, types))))
    items = objects.functions(name.schema, name.name)
    if len(items) > 1:
        hint = "Specify the argument list to select the function unambiguously."
        raise SqlError("42725", f'function name "{name}" is not unique', offset=name.offset, hint=hint)
    return items[0] if items else None


def planned_domain(statement: CreateDomain, objects: Objects, schema: str) -> Item:
    """Return the item of a new domain, which has one column.

    Raises:
        SqlError: the type, a check or the default is invalid; 42710, two checks have one name.
    """
    name, kind = statement.name.name, type_of(statement.type)
    require_stored([kind])
    modifier = modifier_of_type(statement.type)
    if statement.type.fields or (statement.type.modifiers and modifier is None):
        message = f"type modifiers of domains are not supported, as of {statement.type.name}"
        raise SqlError("0A000", message, offset=statement.type.offset, hint=f"Write {kind.value}.")
    checks: dict[str, str] = {}
    for given, text in statement.checks:
        number, own = 0, given or f"{name}_check"
        if own in checks and given:
            message = f'constraint "{own}" for domain "{name}" already exists'
            raise SqlError("42710", message, offset=statement.name.offset)
        while own in checks:
            number += 1
            own = f"{name}_check{number}"
        checks[own] = text
    identifier = provisional_id()
    domain = Domain(identifier, name, tuple(sorted(checks.items())), statement.is_nullable)
    column = NamedColumn("value", kind, modifier=modifier, default=statement.default, domain=domain)
    try:
        plan_checks(NamedRelation(identifier, name, (column,), RelationKind.TABLE), objects)
        if statement.default is not None:
            node = parse_expression(statement.default)
            column = replace(column, default=default_text(node, statement.default, column, objects))
    except SqlError as error:
        error.offset = None  # the offset counts characters of the clause
        raise
    return Item(identifier, ObjectKind.DOMAIN, schema, name, (column,))
