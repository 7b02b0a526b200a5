"""Planner of constraints and generated columns: names, columns and conditions, over the rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from derive.algebra.expression import Expression
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import SyntaxNode
from derive.sql.parser.parse import parse_expression
from derive.sql.parser.statement import ConstraintDefinition, ConstraintKind
from derive.sql.planner.index_keys import plan_index_key
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation, Names, Reference, RelationKind
from derive.sql.planner.output import start_of
from derive.sql.planner.row_expressions import CHECK, RowPlanner, is_immutable
from derive.sql.planner.scope import Clause

_GENERATION = Clause("column generation expressions", has_own_functions=False)
_CONVERSION = Clause("transform expressions")
_SUFFIXES = {
    ConstraintKind.PRIMARY_KEY: "pkey",
    ConstraintKind.UNIQUE: "key",
    ConstraintKind.UNIQUE_INDEX: "idx",
    ConstraintKind.CHECK: "check",
    ConstraintKind.FOREIGN_KEY: "fkey",
}
_MOST_CHARACTERS = 63
"""Greatest length of a name that PostgreSQL chooses."""


def plan_checks(table: NamedRelation, names: Names) -> list[Expression]:
    """Plan the conditions of a table's checks, over the columns of its rows."""
    return [
        RowPlanner(table, names, CHECK, check.columns[0] if check.domain else None).condition(
            parse_expression(check.condition or "")
        )
        for check in table.checks
    ]


def plan_generated(table: NamedRelation, names: Names) -> dict[int, Expression]:
    """Plan the generated columns of a table, by index, over the other columns of its rows."""
    return {
        index: RowPlanner(table, names, _GENERATION).generation(parse_expression(column.generated), column)
        for index, column in enumerate(table.columns)
        if column.generated is not None
    }


def plan_conversion(node: SyntaxNode, table: NamedRelation, names: Names) -> Expression:
    """Plan the USING expression of a column's new type, over the columns of the table's rows."""
    return RowPlanner(table, names, _CONVERSION).value(node, "transform expression")


def check_generation(node: SyntaxNode, column: NamedColumn, table: NamedRelation, names: Names) -> None:
    """Check the expression of a generated column.

    Raises:
        SqlError: 42P17, the expression is not immutable, or mentions a generated column; 42804, its type does not fit.
    """
    planner = RowPlanner(table, names, _GENERATION)
    value = planner.generation(node, column)
    for index, offset in planner.references:
        if table.columns[index].generated is not None:
            name = table.columns[index].name
            message = f'cannot use generated column "{name}" in column generation expression'
            detail = "A generated column cannot reference another generated column."
            raise SqlError("42P17", message, offset=offset, detail=detail)
    if not is_immutable(value):
        raise SqlError("42P17", "generation expression is not immutable", offset=start_of(node))


def with_constraints(
    table: NamedRelation,
    definitions: Sequence[ConstraintDefinition],
    names: Names,
    is_taken: Callable[[str], bool],
) -> NamedRelation:
    """Return a table with more constraints; the columns of a primary key become NOT NULL.

    Args:
        table: the table.
        definitions: constraints to add.
        names: names of relations.
        is_taken: whether a relation or another constraint has a name.

    Raises:
        SqlError: 42P16, a second primary key; 42703, a column does not exist; 42701, a column is named twice; 42710 or
            42P07, a constraint has the name of another one.
    """
    for definition in sorted(definitions, key=lambda one: one.kind is ConstraintKind.FOREIGN_KEY):
        table = _with_constraint(table, definition, names, is_taken)
    return table


def _with_constraint(
    table: NamedRelation, definition: ConstraintDefinition, names: Names, is_taken: Callable[[str], bool]
) -> NamedRelation:
    if definition.kind is ConstraintKind.CHECK:
        assert definition.check is not None
        planner = RowPlanner(table, names, CHECK)
        planner.condition(definition.check.expression)
        columns = tuple(dict.fromkeys(table.columns[index].name for index, _ in planner.references))
        parts = columns if len(columns) == 1 else columns[:0]
        constraint = Constraint("", definition.kind, columns, definition.check.text)
    elif definition.kind is ConstraintKind.FOREIGN_KEY:
        parts = columns = _key_columns(table, definition)
        constraint = Constraint("", definition.kind, columns, reference=_reference(table, definition, columns, names))
    elif definition.parts:
        key = plan_index_key(table, definition.parts, definition.check)
        columns, parts = key.columns, key.names
        constraint = Constraint("", definition.kind, columns, key.condition, parts=key.parts)
    else:
        columns = _key_columns(table, definition)
        parts = columns
        constraint = Constraint("", definition.kind, columns)
    if definition.kind is ConstraintKind.PRIMARY_KEY:
        if any(one.kind is ConstraintKind.PRIMARY_KEY for one in table.constraints):
            message = f'multiple primary keys for table "{table.name}" are not allowed'
            raise SqlError("42P16", message, offset=definition.offset)
        parts = ()
        required = tuple(
            replace(column, is_nullable=False) if column.name in columns else column for column in table.columns
        )
        table = replace(table, columns=required)
    name = _name(table, definition, parts, is_taken)
    return replace(table, constraints=(*table.constraints, replace(constraint, name=name)))


def _reference(
    table: NamedRelation, definition: ConstraintDefinition, columns: Sequence[str], names: Names
) -> Reference:
    """Plan the key that a foreign key refers to.

    Raises:
        SqlError: 42P01 or 42809, the relation does not exist or is no table; 42830, it has no such key; 42804, a type
            is another one.
    """
    name, offset = definition.references, definition.offset
    assert name is not None
    is_own = name.name == table.name and name.schema in {None, table.schema}
    target = table if is_own else names.lookup(name.schema, name.name)
    if target is None:
        raise SqlError("42P01", f'relation "{name}" does not exist', offset=name.offset)
    if target.kind is not RelationKind.TABLE:
        message = f'referenced relation "{name.name}" is not a table'
        raise SqlError("42809", message, offset=name.offset, hint="Refer to a table with a primary key.")
    primary = next((key.columns for key in target.keys if key.kind is ConstraintKind.PRIMARY_KEY), ())
    referenced = tuple(column for column, _ in definition.referenced) or primary
    if not referenced:
        raise SqlError("42704", f'there is no primary key for referenced table "{target.name}"', offset=offset)
    known = {column.name for column in target.columns}
    for column in referenced:
        if column not in known:
            message = f'column "{column}" referenced in foreign key constraint does not exist'
            raise SqlError("42703", message, offset=offset)
    if len(referenced) != len(columns):
        message = "number of referencing and referenced columns for foreign key disagree"
        raise SqlError("42830", message, offset=offset)
    if all(set(key.columns) != set(referenced) for key in target.plain_keys):
        message = f'there is no unique constraint matching given keys for referenced table "{target.name}"'
        raise SqlError("42830", message, offset=offset)
    check_key_types(table, columns, target, referenced, offset)
    identifier = 0 if is_own else target.id
    return Reference(identifier, referenced, definition.on_delete, definition.on_update, definition.deferral)


_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT}


def check_key_types(
    table: NamedRelation,
    columns: Sequence[str],
    target: NamedRelation,
    referenced: Sequence[str],
    offset: int | None = None,
) -> None:
    """Check that the columns of a foreign key have the types of the key that it refers to.

    Args:
        table: table of the foreign key.
        columns: names of its columns.
        target: table of the other key.
        referenced: names of the columns of that key.
        offset: place in the statement.

    Raises:
        SqlError: the types are different (42804).
    """
    for index, other in zip(table.indexes(columns), target.indexes(referenced), strict=True):
        pair = {table.columns[index].type, target.columns[other].type}
        if len(pair) > 1 and not pair <= _INTEGERS:
            message = "a foreign key and the key that it refers to have different types"
            hint = "Give the columns the same type."
            raise SqlError("42804", message, offset=offset, hint=hint)


def _key_columns(table: NamedRelation, definition: ConstraintDefinition) -> tuple[str, ...]:
    known = {column.name for column in table.columns}
    columns: list[str] = []
    for name, offset in definition.columns:
        if name not in known:
            what = "named in key"
            if definition.kind is ConstraintKind.FOREIGN_KEY:
                what = "referenced in foreign key constraint"
            raise SqlError("42703", f'column "{name}" {what} does not exist', offset=offset)
        if name in columns:
            what = "primary key" if definition.kind is ConstraintKind.PRIMARY_KEY else "unique"
            raise SqlError("42701", f'column "{name}" appears twice in {what} constraint', offset=offset)
        columns.append(name)
    return tuple(columns)


def _name(
    table: NamedRelation, definition: ConstraintDefinition, parts: Sequence[str], is_taken: Callable[[str], bool]
) -> str:
    """Return the name of a new constraint, chosen as PostgreSQL does if the statement gives none."""
    own = {constraint.name for constraint in table.constraints}
    is_key = definition.kind not in {ConstraintKind.CHECK, ConstraintKind.FOREIGN_KEY}
    if definition.name is not None:
        if definition.name in own:
            message = f'constraint "{definition.name}" for relation "{table.name}" already exists'
            raise SqlError("42710", message, offset=definition.offset)
        if is_key and is_taken(definition.name):
            message = f'relation "{definition.name}" already exists'
            raise SqlError("42P07", message, offset=definition.offset)
        return definition.name
    suffix = _SUFFIXES[definition.kind]
    stem = "_".join((table.name, *parts))[: _MOST_CHARACTERS - len(suffix) - 1]
    number, name = 0, f"{stem}_{suffix}"
    while name in own or (is_key and is_taken(name)):
        number += 1
        name = f"{stem}_{suffix}{number}"
    return name
