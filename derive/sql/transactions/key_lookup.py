"""Lookups by a key: a query of the row of one key of a table is answered from the index of the key.

Programs read most rows by their primary key. Such a query selects columns of one table `WHERE` each column of a key
equals a constant or a parameter. Its plan is analyzed once, and its row is read without an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from derive.algebra.expression import Call, Column, Expression, Literal, Parameter
from derive.algebra.relation import Filter, Get, Project, Relation
from derive.algebra.types import Datum, Row
from derive.recently_used import RecentlyUsed
from derive.sql.catalog.snapshot import Objects
from derive.sql.planner.interfaces import NamedRelation
from derive.sql.planner.planned import PlannedQuery
from derive.sql.transactions.key_index import KeyPacker

_MOST_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """A query of the row of one key.

    Attributes:
        query: the query.
        version: version of the catalog.
        table: the table; None for a query of another kind.
        number: number of the key among the keys of the table.
        values: the constant or parameter that each column of the key equals, by the column.
        columns: columns of the table in the result, in order.
        packer: packs the key of a row.
    """

    query: PlannedQuery
    version: int
    table: NamedRelation | None = None
    number: int = 0
    values: tuple[tuple[int, Literal | Parameter], ...] = ()
    columns: tuple[int, ...] = ()
    packer: KeyPacker | None = None

    def key(self, arguments: Sequence[Datum]) -> bytes | None:
        """Return the key as bytes; None if a part is NULL, which no row equals."""
        assert self.table is not None
        assert self.packer is not None
        row: list[Datum] = [None] * len(self.table.columns)
        for index, value in self.values:
            row[index] = value.value if isinstance(value, Literal) else arguments[value.index]
        return self.packer(tuple(row))

    def result(self, row: Row) -> Row:
        """Return the columns of the result."""
        return tuple([row[index] for index in self.columns])


class KeyLookups:
    """Cache of lookups by keys, by query plan."""

    def __init__(self) -> None:
        self._lookups: RecentlyUsed[int, KeyLookup] = RecentlyUsed(_MOST_LOOKUPS)

    def find(self, query: PlannedQuery, objects: Objects) -> KeyLookup | None:
        """Return the lookup of a query; None if the query is of another kind."""
        lookup = self._lookups.get(id(query))
        if lookup is None or lookup.query is not query or lookup.version != objects.version:
            lookup = self._lookups.put(id(query), _lookup_of(query, objects) or KeyLookup(query, objects.version))
        return lookup if lookup.table is not None else None


def _lookup_of(query: PlannedQuery, objects: Objects) -> KeyLookup | None:
    finishing = query.finishing
    has_limit = query.limit is not None or query.offset is not None or finishing.limit == 0 or finishing.offset
    relation, columns = _without_columns(query.relation)
    if has_limit or not isinstance(relation, Filter) or not isinstance(relation.input, Get):
        return None
    table = _table_of(relation.input, objects)
    values = _values_of(relation.predicate)
    if table is None or values is None:
        return None
    shown = tuple(columns[index] if columns else index for index in finishing.columns)
    for number, key in enumerate(table.keys):
        if not key.parts and set(table.indexes(key.columns)) == values.keys():
            packer = KeyPacker(table, key)
            return KeyLookup(query, objects.version, table, number, tuple(values.items()), shown, packer)
    return None


def _table_of(get: Get, objects: Objects) -> NamedRelation | None:
    """Return the table of a relation with constraints, with the columns of the plan."""
    item = objects.items.get(get.id)
    table = objects.described(get.id) if item is not None and item.constraints else None
    return table if table is not None and tuple(column.type for column in table.columns) == get.types else None


def _without_columns(relation: Relation) -> tuple[Relation, tuple[int, ...]]:
    """Return the input of a selection of columns, and these columns; else the relation."""
    if isinstance(relation, Project):
        columns = tuple(part.index for part in relation.expressions if isinstance(part, Column))
        if len(columns) == len(relation.expressions):
            return relation.input, columns
    return relation, ()


def _values_of(predicate: Expression) -> dict[int, Literal | Parameter] | None:
    """Return the value that each column must equal; None for other conditions, or two of one column."""
    values: dict[int, Literal | Parameter] = {}
    for part in _parts(predicate):
        match part:
            case Call(function=name, arguments=(Column(index=index, type=kind), Literal() | Parameter() as value)) if (
                name == f"equal_{kind.name.lower()}" and value.type is kind and index not in values
            ):
                values[index] = value
            case _:
                return None
    return values


def _parts(predicate: Expression) -> Iterator[Expression]:
    """Yield the conditions that all must hold."""
    if isinstance(predicate, Call) and predicate.function == "and":
        for part in predicate.arguments:
            yield from _parts(part)
    else:
        yield predicate
