"""Deferred foreign keys: their check at COMMIT, and SET CONSTRAINTS.

A deferred foreign key is checked against the rows that the transaction leaves, so a statement may write a row before
the row that it refers to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from derive.errors import SqlError
from derive.sql.execution.foreign_keys import KeyCheck, packer_of, referred
from derive.sql.execution.state import State
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.transaction_statements import SetConstraints
from derive.sql.planner.interfaces import Constraint, NamedRelation
from derive.sql.results import Notice
from derive.sql.transactions.deferral import ConstraintName, Deferral
from derive.sql.transactions.writes import tables_of


async def set_constraints(state: State, statement: SetConstraints) -> tuple[Notice, ...]:
    """Execute SET CONSTRAINTS, and return notices.

    Raises:
        SqlError: 42704, a constraint does not exist; 42809, a constraint is not deferrable; 23503, the rows written so
            far violate a foreign key that is no longer deferred.
    """
    names = None if statement.names is None else [one for name in statement.names for one in _named(state, name)]
    if not state.is_explicit:
        return (Notice("WARNING", "25P01", "SET CONSTRAINTS can only be used in transaction blocks"),)
    after = state.deferral.changed(names, is_deferred=statement.is_deferred)
    if not statement.is_deferred:
        await check_deferred(state, after)
    state.deferral = after
    return ()


def _named(state: State, name: QualifiedName) -> list[ConstraintName]:
    """Return the deferrable constraints of a name, in its schema or the first schema of the path that has some."""
    objects = state.objects
    for schema in objects.path if name.schema is None else (name.schema,):
        items = [item for item in objects.items.values() if item.schema == schema]
        constraints = [one for item in items for one in item.constraints if one.name == name.name]
        if any(one.reference is None or not one.reference.deferral for one in constraints):
            raise SqlError("42809", f'constraint "{name.name}" is not deferrable', offset=name.offset)
        if constraints:
            return [(schema, name.name)]
    raise SqlError("42704", f'constraint "{name.name}" does not exist', offset=name.offset)


async def check_deferred(state: State, after: Deferral | None = None) -> None:
    """Check the deferred foreign keys of the transaction.

    Args:
        state: state of the session.
        after: which foreign keys stay deferred, and are not checked; None at COMMIT, for none.

    Raises:
        SqlError: a row that a foreign key refers to is missing (23503); or as for a read of a transaction.
    """
    written = tables_of(state.transaction.writes)
    keys = [
        (table, key) for table, key in _deferred(state, written) if after is None or not after.defers(table.schema, key)
    ]
    for table, key in keys:
        await _check(state, table, key)


def _deferred(state: State, written: Collection[int]) -> Iterator[tuple[NamedRelation, Constraint]]:
    """Yield the deferred foreign keys of written tables and to written tables."""
    for target, keys in state.objects.references.items() if written else ():
        for table, key in keys:
            if (target in written or table.id in written) and state.deferral.defers(table.schema, key):
                yield table, key


async def _check(state: State, table: NamedRelation, key: Constraint) -> None:
    to = key.reference
    assert to is not None
    check, transaction = KeyCheck(state, ()), state.transaction
    added = [row for row, count in transaction.changes(table.id).items() if count > 0]
    await check.check_key(table, key, (), added)
    target = table if to.table in {0, table.id} else state.objects.described(to.table)
    assert target is not None
    packer, changes = packer_of(target, to.columns), transaction.changes(target.id)
    present = {packer(row) for row, count in changes.items() if count > 0}
    removed = [row for row, count in changes.items() if count < 0]
    gone = {packed: row for row in removed if (packed := packer(row)) is not None and packed not in present}
    places = target.indexes(to.columns)
    left = await check.matching(table, key.columns, [tuple(row[at] for at in places) for row in gone.values()])
    if left:
        await check.require_unchanged([table.id, target.id])
        packed = packer_of(table, key.columns)(left[0])
        assert packed is not None
        raise referred(target, table, key, gone[packed])
