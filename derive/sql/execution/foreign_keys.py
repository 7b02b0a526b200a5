"""Foreign keys: checks of a statement's writes, and the writes that deletions cause in other tables.

A statement that writes a table with foreign keys reads the tables that they refer to, and one that deletes keys reads
the tables that refer to them. So a concurrent write of such a table is a conflict of the transactions, like that of
any other read: a committed transaction leaves no foreign key without its row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.scalar.text import quoted_name
from derive.sql.catalog.snapshot import Objects
from derive.sql.execution import query as reading
from derive.sql.execution.staged_rows import completed
from derive.sql.execution.state import State
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import ConstraintKind, SelectStatement
from derive.sql.planner.dml import default_of, plan_completion
from derive.sql.planner.interfaces import Constraint, NamedRelation
from derive.sql.planner.plan import plan_query
from derive.sql.planner.planned import in_session
from derive.sql.transactions.key_index import KeyPacker, shown_key
from derive.sql.transactions.writes import Write, tables_of

_MOST_KEYS = 500
"""Greatest number of keys in one query."""


def tables_read(objects: Objects, written: Collection[GlobalId]) -> frozenset[GlobalId]:
    """Return the tables that the checks of writes to some tables may read: keys there, and rows that refer to them."""
    if not objects.references:
        return frozenset()
    read: set[GlobalId] = set()
    pending = list(written)
    while pending:
        identifier = pending.pop()
        table = objects.described(identifier)
        for key in table.foreign_keys if table else ():
            assert key.reference is not None
            read.add(key.reference.table or identifier)
        for other, _ in objects.referring(identifier):
            if other.id not in read:
                pending += [other.id] if other.id != identifier else []
                read.add(other.id)
    return frozenset(read)


async def enforced(
    state: State, writes: Sequence[Write], updated: Mapping[tuple[GlobalId, Row], Row] | None = None
) -> Sequence[Write]:
    """Return the writes of a statement with those that they cause in other tables, after all checks.

    Args:
        state: state of the session.
        writes: the writes.
        updated: for tables and rows before the statement that it replaces, and does not delete, the new rows.

    Raises:
        SqlError: 23503 or 23001, a foreign key would have no row that it refers to; 23502 or 23514, a row that a key
            changes violates a constraint; 40001, another session has written a row that decides.
    """
    if not tables_read(state.objects, tables_of(writes)):
        return writes
    check = KeyCheck(state, writes, updated)
    await check.follow_deletions()
    await check.check_keys()
    return check.writes


class KeyCheck:
    """The check of the foreign keys of one statement's writes.

    Args:
        state: state of the session.
        writes: the writes.
        updated: see `enforced`.

    Attributes:
        writes: the writes, with those that they cause.
    """

    def __init__(
        self, state: State, writes: Sequence[Write], updated: Mapping[tuple[GlobalId, Row], Row] | None = None
    ) -> None:
        self._state, self._objects = state, state.objects
        self._updated = dict(updated or {})
        self.writes = list(writes)

    def _rows(self, table: GlobalId) -> tuple[list[Row], list[Row]]:
        """Return the rows that the statement deletes and inserts, without those that it does both with."""
        counts: Counter[Row] = Counter()
        for identifier, row, diff in self.writes:
            if identifier == table:
                counts[row] += diff
        removed = [row for row, count in counts.items() for _ in range(-count)]
        return removed, [row for row, count in counts.items() for _ in range(count)]

    def _named(self, identifier: GlobalId) -> NamedRelation:
        named = self._objects.described(identifier)
        assert named is not None
        return named

    async def follow_deletions(self) -> None:
        """Check or change the rows that refer to deleted keys; the changes may delete keys of their own."""
        pending = list(dict.fromkeys(write[0] for write in self.writes))
        while pending:
            target = self._named(pending.pop(0))
            for table, key in self._objects.referring(target.id):
                if await self._follow(target, table, key) and table.id not in pending:
                    pending.append(table.id)

    async def _follow(self, target: NamedRelation, table: NamedRelation, key: Constraint) -> bool:
        """Handle the rows of a foreign key that refer to deleted keys; return whether rows were changed."""
        to = key.reference
        assert to is not None
        packer = packer_of(target, to.columns)
        removed, added = self._rows(target.id)
        present = {packer(row) for row in added}
        gone = {packed: row for row in removed if (packed := packer(row)) is not None and packed not in present}
        if not gone:
            return False
        referring = packer_of(table, key.columns)
        places = target.indexes(to.columns)
        rows = await self.matching(table, key.columns, [tuple(row[at] for at in places) for row in gone.values()])
        own_removed, own_added = self._rows(table.id)
        counts = Counter(rows)
        counts.subtract(own_removed)
        counts.update(row for row in own_added if referring(row) in gone)
        left = [row for row, count in counts.items() for _ in range(count)]
        changed: list[tuple[Row, Row]] = []
        for row in left:
            packed = referring(row)
            assert packed is not None
            new = self._updated.get((target.id, gone[packed]))
            action = to.on_delete if new is None else to.on_update
            if action == "r" or (action == "a" and not self._is_deferred(table, key)):
                await self.require_unchanged([table.id, target.id])
                raise referred(target, table, key, gone[packed], restricts=action == "r")
            if action == "c" and new is None:
                self.writes.append((table.id, row, -1))
            elif action != "a":
                other = self._changed(table, key, row, [new[at] for at in places] if new else None)
                if referring(other) in gone:  # the default is a key that is gone, too
                    await self.require_unchanged([table.id, target.id])
                    raise referred(target, table, key, gone[packed])
                changed.append((row, other))
        await self._replace(table, changed)
        return bool(left)

    def _is_deferred(self, table: NamedRelation, key: Constraint) -> bool:
        return self._state.is_explicit and self._state.deferral.defers(table.schema, key)

    def _changed(self, table: NamedRelation, key: Constraint, row: Row, new: Sequence[Datum] | None) -> Row:
        """Return a row that refers to a deleted or changed key, with other values of its foreign key.

        Args:
            table: table of the row.
            key: the foreign key.
            row: the row.
            new: values of the changed key; None if the key was deleted.
        """
        to = key.reference
        assert to is not None
        action = to.on_delete if new is None else to.on_update
        places = table.indexes(key.columns)
        values: Sequence[Datum] = [None] * len(places)
        if action == "c" and new is not None:
            values = new
        elif action == "d":
            state = self._state
            defaults = (default_of(table.columns[at], self._objects) for at in places)
            values = [evaluate(in_session(one, state.transaction.begun, state.user.name)) for one in defaults]
        own = dict(zip(places, values, strict=True))
        return tuple(own.get(at, datum) for at, datum in enumerate(row))

    async def _replace(self, table: NamedRelation, changed: Sequence[tuple[Row, Row]]) -> None:
        """Replace rows, whose generated columns are computed again, and check the new rows."""
        if not changed:
            return
        planned = plan_completion(table, self._objects)
        flags = tuple(False for column in table.columns if column.identity is not None)
        rows = [(*new, *flags) for _, new in changed]
        if planned.completion is not None:
            planned = replace(planned, completion=self._state.bound(planned.completion))
            rows = await completed(self._state, planned, rows)
        planned.check(rows)
        for (old, _), row in zip(changed, rows, strict=True):
            new = row[: len(table.columns)]
            self.writes += [(table.id, old, -1), (table.id, new, 1)]
            self._updated[table.id, old] = new

    async def check_keys(self) -> None:
        """Check that the rows to which new foreign keys refer exist."""
        for identifier in dict.fromkeys(write[0] for write in self.writes):
            table = self._named(identifier)
            removed, added = self._rows(identifier)
            for key in table.foreign_keys if added else ():
                if not self._is_deferred(table, key):
                    await self.check_key(table, key, removed, added)

    async def check_key(
        self, table: NamedRelation, key: Constraint, removed: Sequence[Row], added: Sequence[Row]
    ) -> None:
        """Check that the rows to which a foreign key of added rows refers exist."""
        to = key.reference
        assert to is not None
        target = table if to.table in {0, table.id} else self._named(to.table)
        packer, of_target = packer_of(table, key.columns), packer_of(target, to.columns)
        target_removed, target_added = self._rows(target.id)
        known = {packer(row) for row in removed} | {of_target(row) for row in target_added}
        needed = {packed: row for row in added if (packed := packer(row)) is not None and packed not in known}
        if not needed:
            return
        places = table.indexes(key.columns)
        keys = [tuple(row[at] for at in places) for row in needed.values()]
        present = {of_target(row) for row in await self.matching(target, to.columns, keys)}
        present -= {of_target(row) for row in target_removed}
        for packed, row in needed.items():
            if packed not in present:
                await self.require_unchanged([target.id])
                raise _missing(table, target, key, row)

    async def matching(self, table: NamedRelation, columns: Sequence[str], keys: Sequence[Row]) -> list[Row]:
        """Return the rows of a table with some values in some columns, before the statement."""
        rows: list[Row] = []
        kinds = [table.columns[at].type for at in table.indexes(columns)]
        for begin in range(0, len(keys), _MOST_KEYS):
            part = keys[begin : begin + _MOST_KEYS]
            text = (
                f"SELECT * FROM {quoted_name(table.schema)}.{quoted_name(table.name)} WHERE {_condition(columns, part)}"
            )
            statement = parse(text)
            assert isinstance(statement, SelectStatement)
            planned = plan_query(statement.query, self._objects, kinds * len(part))
            arguments: list[Datum] = [datum for key in part for datum in key]
            async for batch in await reading.read(self._state, self._state.bound(planned, arguments)):
                rows += batch
        return rows

    async def require_unchanged(self, ids: Sequence[GlobalId]) -> None:
        """Check that no other session has written tables since the transaction has read them (40001)."""
        basis = self._state.transaction.latest_basis(ids) if self._state.is_explicit else None
        if basis is not None:
            async with self._state.coordinator.commits.exclusive():
                self._state.coordinator.commits.check_unwritten(basis)


def _condition(columns: Sequence[str], keys: Sequence[Row]) -> str:
    """Return a condition that is true for rows with one of some keys, whose values are parameters."""
    width = len(columns)
    if width == 1:
        return f"{quoted_name(columns[0])} IN ({', '.join(f'${number}' for number in range(1, len(keys) + 1))})"
    alternatives = (
        " AND ".join(f"{quoted_name(name)} = ${width * number + at}" for at, name in enumerate(columns, start=1))
        for number in range(len(keys))
    )
    return " OR ".join(f"({alternative})" for alternative in alternatives)


def packer_of(table: NamedRelation, columns: Sequence[str]) -> KeyPacker:
    """Return a function that packs the values of some columns, or returns None for a NULL among them."""
    return KeyPacker(table, Constraint("", ConstraintKind.UNIQUE, tuple(columns)))


def _missing(table: NamedRelation, target: NamedRelation, key: Constraint, row: Row) -> SqlError:
    message = f'insert or update on table "{table.name}" violates foreign key constraint "{key.name}"'
    detail = f'{shown_key(table, key, row)} is not present in table "{target.name}".'
    return SqlError("23503", message, detail=detail, violation=table.violation(key.name))


def referred(
    target: NamedRelation, table: NamedRelation, key: Constraint, row: Row, *, restricts: bool = False
) -> SqlError:
    """Return the error of a deleted or changed key to which a row of another table refers.

    Args:
        target: table of the key.
        table: table of the foreign key.
        key: the foreign key.
        row: the row with the key.
        restricts: whether the foreign key has RESTRICT.
    """
    to = key.reference
    assert to is not None
    what = "violates RESTRICT setting of foreign key constraint" if restricts else "violates foreign key constraint"
    message = f'update or delete on table "{target.name}" {what} "{key.name}" on table "{table.name}"'
    shown = shown_key(target, Constraint("", ConstraintKind.UNIQUE, to.columns), row)
    detail = f'{shown} is {"" if restricts else "still "}referenced from table "{table.name}".'
    return SqlError("23001" if restricts else "23503", message, detail=detail, violation=table.violation(key.name))


async def check_existing(
    state: State, table: NamedRelation, before: Mapping[str, Constraint], rows: Sequence[Row]
) -> None:
    """Check that the rows of a table fit its new foreign keys; `before` has the constraints that they fit already.

    Raises:
        SqlError: a row that a foreign key refers to is missing (23503).
    """
    width = len(table.columns)
    check = KeyCheck(state, [(table.id, row[:width], 1) for row in rows])
    for key in table.foreign_keys:
        if before.get(key.name) != key:
            await check.check_key(table, key, (), [row[:width] for row in rows])


def referring_elsewhere(objects: Objects, ids: Collection[GlobalId]) -> Iterator[tuple[NamedRelation, Constraint]]:
    """Yield the foreign keys of other tables that refer to some tables."""
    for identifier in ids:
        yield from ((table, key) for table, key in objects.referring(identifier) if table.id not in ids)
