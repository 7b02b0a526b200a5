"""Indexes of keys: the present row of each value of a primary key or unique constraint.

One process writes all tables of SQL, and group commit gives its writes an order. So an index that follows the commits
is exact: a write is checked against the index and the writes before it in the same group, and the index changes after
the group is durable. It is built from the stored rows at the first write of a table, and again after ALTER TABLE or a
commit of unknown outcome.
"""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product, repeat
from math import prod
from operator import itemgetter
from typing import Any

from derive.algebra.bounds import Bounds
from derive.algebra.expression import Column, Expression
from derive.algebra.relation import GlobalId
from derive.algebra.types import Datum, Row, Type
from derive.compute.row_values import RowValues
from derive.errors import SqlError
from derive.functions.types.type_info import INFO_OF
from derive.sql.planner.index_keys import condition_of, expressions_of, shown_expression
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation
from derive.sql.planner.planned import texts_of
from derive.sql.transactions.key_rows import FORMAT, KeyMemory, KeyRows
from derive.sql.transactions.writes import Write, by_table

_MOST_AT_ONCE = 2_000
"""Number of rows up to which an index is used on the event loop, without a thread."""


def _unchanged(datum: Datum) -> Datum:
    return datum


def _part_of(kind: Type) -> Callable[[Any], Datum]:
    """Return a function from data of a type to values that are equal if and only if SQL's values are equal."""
    info = INFO_OF[kind]
    if info.comparison_key is not None:
        return info.comparison_key
    if kind is Type.BOOLEAN:
        return int
    if kind in {Type.REAL, Type.DOUBLE}:
        return lambda datum: datum if isinstance(datum, str) else float(datum) + 0.0
    return _unchanged


@lru_cache(256)
def parts_of(table: NamedRelation, key: Constraint) -> tuple[Expression, ...]:
    """Return the parts of a key, over the columns of the table."""
    if key.parts:
        return expressions_of(table, key.parts)
    return tuple(Column(index, table.columns[index].type) for index in table.indexes(key.columns))


@lru_cache(256)
def _computed(table: NamedRelation, key: Constraint) -> tuple[RowValues, tuple[Type, ...]]:
    """Return the values of a key with expressions, and their types."""
    parts = parts_of(table, key)
    return RowValues(parts, condition_of(table, key.condition)), tuple(part.type for part in parts)


class KeyPacker:
    """A function from rows of a table to the values of a key, as bytes.

    Args:
        table: the table.
        key: one of its keys.
    """

    def __init__(self, table: NamedRelation, key: Constraint) -> None:
        self._computed: RowValues | None = None
        if key.parts:
            self._computed, types = _computed(table, key)
            self._parts = [(index, _part_of(kind)) for index, kind in enumerate(types)]
        else:
            self._parts = [(index, _part_of(table.columns[index].type)) for index in table.indexes(key.columns)]

    def __call__(self, row: Row) -> bytes | None:
        """Return the key of a row; None if a part is NULL, because NULLs are distinct, or without the condition.

        Raises:
            SqlError: an expression of the key fails.
        """
        if self._computed is not None:
            computed = self._computed(row)
            if computed is None:
                return None
            row = computed
        values = []
        for index, part in self._parts:
            if (datum := row[index]) is None:
                return None
            values.append(part(datum))
        return marshal.dumps(values, FORMAT)

    def pack_parts(self, data: Sequence[Datum]) -> bytes | None:
        """Return the key with some data of its parts; None if one is NULL."""
        if None in data:
            return None
        return marshal.dumps([part(datum) for (_, part), datum in zip(self._parts, data, strict=True)], FORMAT)

    def pack(self, rows: Sequence[Row]) -> list[bytes | None]:
        """Return the keys of rows, as a call for each row returns them."""
        if self._computed is not None:
            return list(map(self, rows))
        columns = []
        for index, part in self._parts:
            column = list(map(itemgetter(index), rows))
            if None in column:
                return list(map(self, rows))
            columns.append(column if part is _unchanged else list(map(part, column)))
        return list(map(marshal.dumps, map(list, zip(*columns, strict=True)), repeat(FORMAT)))

    def within(self, bounds: Bounds) -> list[bytes] | None:
        """Return all keys of rows within bounds; None if these are not known, or too many."""
        if self._computed is not None:
            return None
        choices = []
        for index, part in self._parts:
            data = bounds[index].data if index in bounds else None
            if data is None:
                return None
            choices.append([part(datum) for datum in data if datum is not None])
        if prod(map(len, choices)) > _MOST_AT_ONCE:
            return None
        return [marshal.dumps(list(values), FORMAT) for values in product(*choices)]


def duplicate(table: NamedRelation, key: Constraint, row: Row) -> SqlError:
    """Return the error of a row whose key another row has (23505)."""
    detail = f"{shown_key(table, key, row)} already exists."
    message = f'duplicate key value violates unique constraint "{key.name}"'
    return SqlError("23505", message, detail=detail, violation=table.violation(key.name))


def shown_key(table: NamedRelation, key: Constraint, row: Row) -> str:
    """Return the columns of a key with their values, as in `Key (a)=(1)`."""
    if key.parts:
        computed, types = _computed(table, key)
        columns = [NamedColumn("", kind) for kind in types]
        names = ", ".join(map(shown_expression, key.parts))
        return f"Key ({names})=({', '.join(texts_of(columns, computed(row) or ()))})"
    indexes = table.indexes(key.columns)
    values = texts_of([table.columns[index] for index in indexes], tuple(row[index] for index in indexes))
    return f"Key ({', '.join(key.columns)})=({', '.join(values)})"


class KeyChanges:
    """Changes of the keys of one table by some writes.

    Args:
        table: the table.
    """

    def __init__(self, table: NamedRelation) -> None:
        self.table = table
        self.packers = [KeyPacker(table, key) for key in table.keys]
        self._counts: list[dict[bytes, int]] = [{} for _ in self.packers]
        self._rows: list[dict[bytes, Row]] = [{} for _ in self.packers]

    def __len__(self) -> int:
        """Return the number of changed keys."""
        return sum(map(len, self._counts))

    def add(self, rows: Iterable[tuple[Row, int]]) -> None:
        """Add writes: rows, with the changes of their counts."""
        for row, diff in rows:
            for packer, counts, present in zip(self.packers, self._counts, self._rows, strict=True):
                key = packer(row)
                if key is not None:
                    counts[key] = counts.get(key, 0) + diff
                    if diff > 0:
                        present[key] = row
                    elif present.get(key) == row:
                        del present[key]

    def add_writes(self, writes: Sequence[Write]) -> None:
        """Add the writes of the table among some writes."""
        rows, diffs = by_table(writes).get(self.table.id, ((), ()))
        if diffs:
            self.add(zip(rows, diffs, strict=True))
            return
        for packer, counts, present in zip(self.packers, self._counts, self._rows, strict=True):
            keys = packer.pack(rows)
            inserted = dict(zip(keys, rows, strict=True))
            is_distinct = len(inserted) == len(keys) or len(inserted) + keys.count(None) == len(keys) + 1
            inserted.pop(None, None)
            if is_distinct and not counts:
                counts.update(dict.fromkeys(inserted, 1))  # type: ignore[arg-type]
            else:
                for key in keys:
                    if key is not None:
                        counts[key] = counts.get(key, 0) + 1
            present.update(inserted)  # type: ignore[arg-type]

    def include(self, others: KeyChanges) -> None:
        """Add the changes of later writes."""
        for counts, rows, other_counts, other_rows in zip(
            self._counts, self._rows, others._counts, others._rows, strict=True
        ):
            for key, change in other_counts.items():
                counts[key] = counts.get(key, 0) + change
                if change < 0:
                    rows.pop(key, None)
            rows.update(other_rows)

    def count(self, number: int, key: bytes) -> int:
        """Return the change of the number of rows with a value of the key with a number."""
        return self._counts[number].get(key, 0)

    def row(self, number: int, key: bytes) -> Row | None:
        """Return the last inserted row with a value of a key; None if no row was inserted."""
        return self._rows[number].get(key)

    def added(self, number: int) -> list[bytes]:
        """Return the values of a key that have more rows than before."""
        return [key for key, count in self._counts[number].items() if count > 0]

    def is_single(self, number: int) -> bool:
        """Return whether no value of a key has two more rows than before."""
        return max(self._counts[number].values(), default=0) <= 1

    def is_independent(self, number: int, keys: Iterable[bytes]) -> bool:
        """Return whether none of some values of a key has changed."""
        return self._counts[number].keys().isdisjoint(keys)

    def changed(self, number: int) -> tuple[list[bytes], Mapping[bytes, Row]]:
        """Return the values of a key that have lost their row, and the present rows of other changed values."""
        counts, rows = self._counts[number], self._rows[number]
        removed = [key for key, count in counts.items() if count < 0]
        return removed, {key: row for key, row in rows.items() if counts[key] >= 0} if removed else rows


class _TableIndex:
    """The index of one table; `since` is a time from which on the index has the rows of the table."""

    def __init__(self, table: NamedRelation, memory: KeyMemory, since: int = 0) -> None:
        self.table, self.since = table, since
        self.lock = asyncio.Lock()
        self._present = [KeyRows(memory) for _ in table.keys]

    def load(self, batches: Iterable[Sequence[Row]]) -> None:
        packers = [KeyPacker(self.table, key) for key in self.table.keys]
        for rows in batches:
            for packer, present in zip(packers, self._present, strict=True):
                pairs = zip(packer.pack(rows), rows, strict=True)
                present.put({key: row for key, row in pairs if key is not None})

    def apply(self, changes: KeyChanges) -> None:
        for number, present in enumerate(self._present):
            removed, added = changes.changed(number)
            present.remove(removed)
            present.put(added)

    def rows(self, number: int, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """Return the present rows by values of a key."""
        return self._present[number].of(keys)

    def violation(self, changes: KeyChanges, before: KeyChanges | None) -> SqlError | None:
        """Return the error of the first key that would have two rows; None if all keys are unique."""
        for number, key in enumerate(self.table.keys):
            added = changes.added(number)
            is_new = changes.is_single(number) and (before is None or before.is_independent(number, added))
            if is_new and not self._present[number].has_any(added):
                continue
            present = self.rows(number, added)
            for value in added:
                count = (value in present) + changes.count(number, value)
                if before is not None:
                    count += before.count(number, value)
                if count > 1:
                    return duplicate(changes.table, key, changes.row(number, value) or ())
        return None


def _has_keys_of(one: NamedRelation, other: NamedRelation) -> bool:
    """Return whether two tables differ at most by their names: a transaction may have renamed one."""
    return one == other or one == replace(other, name=one.name, schema=one.schema)


class KeyIndexes:
    """The indexes of all tables with keys. All methods run in one event loop.

    Args:
        table: returns the table of an identifier under the committed names; None without keys.
        contents: returns the last time of a table's stored rows, and these rows in batches.
        memory: memory of the rows.
    """

    def __init__(
        self,
        table: Callable[[GlobalId], NamedRelation | None],
        contents: Callable[[NamedRelation], tuple[int, Iterable[Sequence[Row]]]],
        memory: KeyMemory | None = None,
    ) -> None:
        self._table, self._contents = table, contents
        self._memory = memory or KeyMemory()
        self._indexes: dict[GlobalId, _TableIndex] = {}

    def keyed(self, ids: Iterable[GlobalId]) -> list[NamedRelation]:
        """Return the tables with keys among some identifiers."""
        return [table for identifier in ids if (table := self._table(identifier)) is not None]

    def are_loaded(self, tables: Iterable[NamedRelation]) -> bool:
        """Return whether the indexes of tables are built, for their present columns and constraints."""
        return all(self._find(table) is not None for table in tables)

    def _find(self, table: NamedRelation) -> _TableIndex | None:
        index = self._indexes.get(table.id)
        return index if index is not None and _has_keys_of(index.table, table) else None

    async def load(self, tables: Iterable[NamedRelation], time: int) -> None:
        """Build missing indexes, while no writer commits; `time` is at or above the times of all writes."""
        for table in tables:
            if self._find(table) is not None:
                continue
            self.discard([table.id])
            last, batches = self._contents(table)
            index = _TableIndex(table, self._memory, max(time, last))
            await asyncio.to_thread(index.load, batches)
            self._indexes[table.id] = index

    def discard(self, ids: Collection[GlobalId]) -> None:
        """Discard indexes; a running look-up keeps its database open."""
        for identifier in ids:
            self._indexes.pop(identifier, None)

    async def violation(self, changes: KeyChanges, before: KeyChanges | None = None) -> SqlError | None:
        """Return the error of writes after which two rows would have one key; None if all keys are unique.

        Args:
            changes: changes by the writes.
            before: changes by earlier writes that are not in the index yet.
        """
        index = self._find(changes.table)
        if index is None:  # a table of the same transaction: its rows are among the earlier writes
            return _TableIndex(changes.table, self._memory).violation(changes, before)
        async with index.lock:
            if len(changes) <= _MOST_AT_ONCE:
                return index.violation(changes, before)
            return await asyncio.to_thread(index.violation, changes, before)

    async def rows(self, table: NamedRelation, number: int, keys: Collection[bytes]) -> dict[bytes, Row]:
        """Return the present rows of a table by values of the key with a number; the index is loaded."""
        index = self._find(table)
        if index is None:
            return {}
        async with index.lock:
            if len(keys) <= _MOST_AT_ONCE:
                return index.rows(number, keys)
            return await asyncio.to_thread(index.rows, number, keys)

    async def rows_within(self, identifier: GlobalId, bounds: Bounds, time: int) -> list[Row] | None:
        """Return the present rows of a table within bounds; None if no index gives them, or not for a time."""
        index = self._indexes.get(identifier)
        table = self._table(identifier)
        if index is None or index.since > time or table is None or not _has_keys_of(index.table, table):
            return None
        for number, key in enumerate(index.table.keys):
            keys = KeyPacker(index.table, key).within(bounds)
            if keys is not None:
                async with index.lock:
                    return list(index.rows(number, keys).values())
        return None

    async def rows_of_keys(
        self, table: NamedRelation, number: int, keys: Collection[bytes], time: int
    ) -> list[Row] | None:
        """Return the present rows of values of a key with a number; None without an index, or not for a time."""
        index = self._find(table)
        if index is None or index.since > time:
            return None
        return list((await self.rows(table, number, keys)).values())

    async def apply(self, changes: Iterable[KeyChanges]) -> None:
        """Add committed writes to the indexes."""
        for change in changes:
            index = self._find(change.table)
            if index is None:
                self.discard([change.table.id])
                continue
            async with index.lock:
                if len(change) <= _MOST_AT_ONCE:
                    index.apply(change)
                else:
                    await asyncio.to_thread(index.apply, change)
