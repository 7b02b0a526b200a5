"""Statements about the sequences of columns: ALTER SEQUENCE, DROP SEQUENCE, and sequences that a column owns.

PostgreSQL defines a serial column by three statements, which its dumps contain: CREATE SEQUENCE, `ALTER SEQUENCE …
OWNED BY`, and a DEFAULT with `nextval`. After the last of them, the column is a serial column, and its sequence is no
item any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.catalog.items import IdentitySequence, Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.execution.alter_table import add_change
from derive.sql.execution.sequences import restart, sequence_of
from derive.sql.execution.state import State
from derive.sql.parser.sequences import AlterSequence, Identity, SetIdentity
from derive.sql.parser.statement import ObjectKind, SetDefault, TableAction
from derive.sql.pg_catalog.objects import is_next_number, sequences_of_default
from derive.sql.planner.interfaces import NamedColumn, Numbering
from derive.sql.planner.sequences import sequence_of_column, with_type, without_identity

OWNER = "owned by"
"""Name in the `origin` of a sequence of the names of the table and the column that own it."""
_NOBODY = ("none",)
_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT}


async def alter_sequence(state: State, item: Item, statement: AlterSequence) -> None:
    """Apply ALTER SEQUENCE to a sequence of CREATE SEQUENCE.

    Raises:
        SqlError: 42P01 or 42703, the owner does not exist; 55000, it is in another schema; 22023, a number is invalid.
    """
    if statement.type is not None:
        most = with_type(sequence_of(item).most, statement.type)
        item = replace(item, origin={**item.origin, "most": most})
    owner = owner_of(state.objects, item.schema, statement.owner, statement.name.offset)
    if statement.owner:
        others = {name: value for name, value in item.origin.items() if name != OWNER}
        item = replace(item, origin=others | ({} if owner is None else {OWNER: [owner[0].name, owner[1]]}))
    if item != state.objects.items[item.id]:
        add_change(state, item)
    if statement.restarts:
        await restart(state, sequence_of(item), statement.value)
    if owner is not None:
        take_over(state, owner[0], owner[1])


async def alter_numbers(state: State, numbered: IdentitySequence, statement: AlterSequence) -> None:
    """Apply ALTER SEQUENCE to the sequence of a column.

    Raises:
        SqlError: 0A000, the column would lose its sequence; 22023, the number is out of bounds.
    """
    table, column = numbered.table, numbered.column
    if statement.owner and statement.owner[-2:] != (table.name, column.name):
        if column.identity is not Identity.SERIAL:
            raise SqlError("0A000", "cannot change ownership of identity sequence", offset=statement.name.offset)
        hint = f"ALTER TABLE {table.name} ALTER COLUMN {column.name} DROP DEFAULT, and use another sequence."
        message = "a sequence cannot be taken from its serial column"
        raise SqlError("0A000", message, offset=statement.name.offset, hint=hint)
    if statement.restarts:
        await restart(state, numbered.sequence, statement.value)


def owner_of(objects: Objects, schema: str, names: Sequence[str], offset: int) -> tuple[Item, str] | None:
    """Return the table and the name of the column of OWNED BY; None for OWNED BY NONE, or without the clause.

    Args:
        objects: names of relations.
        schema: schema of the sequence.
        names: parts of the name of the column.
        offset: offset of the sequence in the statement.

    Raises:
        SqlError: 42601, the name is invalid; 42P01 or 42703, it does not exist; 42809, it is no table; 55000, it is in
            another schema.
    """
    if tuple(names) in {(), _NOBODY}:
        return None
    if len(names) == 1:
        hint = "Specify OWNED BY table.column or OWNED BY NONE."
        raise SqlError("42601", "invalid OWNED BY option", offset=offset, hint=hint)
    *before, table, column = names
    item = objects.find(before[-1] if before else None, table)
    if item is None:
        raise SqlError("42P01", f'relation "{".".join(names[:-1])}" does not exist', offset=offset)
    if item.kind is not ObjectKind.TABLE:
        raise SqlError("42809", f'sequence cannot be owned by relation "{item.name}"', offset=offset)
    if item.schema != schema:
        message = "sequence must be in same schema as table it is linked to"
        raise SqlError("55000", message, offset=offset)
    if all(one.name != column for one in item.columns):
        raise SqlError("42703", f'column "{column}" of relation "{item.name}" does not exist', offset=offset)
    return item, column


def take_over(state: State, table: Item, name: str) -> None:
    """Make a column serial if its default is the next number of a sequence that no other column owns or uses."""
    objects = state.objects
    index = next((index for index, column in enumerate(table.columns) if column.name == name), None)
    column = None if index is None else table.columns[index]
    sequence = None if column is None else _default_sequence(objects, column)
    if index is None or column is None or sequence is None or sequence.origin.get(OWNER) != [table.name, name]:
        return
    users = [other for item in objects.items.values() for other in item.columns if sequence in _used(objects, other)]
    is_plain = column.type in _INTEGERS and column.domain is None and column.generated is None
    if len(users) > 1 or not is_plain or sequence.schema != table.schema:
        return
    own = sequence_of(sequence)
    numbering = Numbering(sequence.name, own.start, own.increment, own.least, own.most)
    serial = replace(column, default=None, identity=Identity.SERIAL, counter=own.counter, numbering=numbering)
    columns = (*table.columns[:index], serial, *table.columns[index + 1 :])
    add_change(state, replace(table, columns=columns), removed=(sequence.id,))


def _used(objects: Objects, column: NamedColumn) -> list[Item | None]:
    return [objects.find(schema or None, name) for schema, name in sequences_of_default(column.default)]


def _default_sequence(objects: Objects, column: NamedColumn) -> Item | None:
    """Return the sequence of a default that is nothing but its next number; None for another default."""
    if not is_next_number(column.default):
        return None
    item = _used(objects, column)[0]
    return item if item is not None and item.kind is ObjectKind.SEQUENCE else None


async def follow_actions(state: State, schema: str, table: str, actions: Sequence[TableAction]) -> None:
    """Complete ALTER TABLE: begin numbers again, and let a column take over the sequence of its default.

    Args:
        state: state of the session.
        schema: schema of the table.
        table: name of the table.
        actions: the changes that were applied.
    """
    for action in actions:
        if not isinstance(action, SetDefault | SetIdentity):
            continue
        item = state.objects.find(schema, table)
        column = None if item is None else next((one for one in item.columns if one.name == action.name), None)
        if item is None or column is None:
            continue
        if isinstance(action, SetDefault):
            take_over(state, item, action.name)
        elif action.restarts:
            await restart(state, sequence_of_column(item.name, column), action.value)


def drop_numbers(state: State, numbered: IdentitySequence, *, is_cascading: bool) -> None:
    """Apply DROP SEQUENCE to the sequence of a column.

    Raises:
        SqlError: the column needs the sequence (2BP01).
    """
    table, column = numbered.table, numbered.column
    of_table = f"column {column.name} of table {table.name}"
    if column.identity is not Identity.SERIAL:
        message = f"cannot drop sequence {numbered.name} because {of_table} requires it"
        raise SqlError("2BP01", message, hint=f"You can drop {of_table} instead.")
    if not is_cascading:
        message = f"cannot drop sequence {numbered.name} because other objects depend on it"
        detail = f"default value for {of_table} depends on sequence {numbered.name}"
        raise SqlError("2BP01", message, detail=detail, hint="Use DROP ... CASCADE to drop the dependent objects too.")
    columns = tuple(without_identity(one) if one == column else one for one in table.columns)
    add_change(state, replace(table, columns=columns))
