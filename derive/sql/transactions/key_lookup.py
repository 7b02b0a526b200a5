"""Lookups by a key: a query of the row of one key of a table is answered from the index of the key.

Programs read most rows by their primary key. Such a query selects columns of one table `WHERE` each part of a key is
equal to a constant or a parameter, and the condition of the key holds. Its plan is analyzed once, and its row is read
without an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from derive.algebra.expression import Call, Column, Expression, Literal, Parameter
from derive.algebra.relation import Filter, Get, Project, Relation
from derive.algebra.rewrite import conjuncts
from derive.algebra.types import Datum, Row
from derive.recently_used import RecentlyUsed
from derive.sql.catalog.snapshot import Objects
from derive.sql.planner.index_keys import condition_of
from derive.sql.planner.interfaces import Constraint, NamedRelation
from derive.sql.planner.planned import PlannedQuery
from derive.sql.transactions.key_index import KeyPacker, parts_of

_MOST_LOOKUPS = 1000


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """A query of the row of one key.

    Attributes:
        query: the query.
        version: version of the catalog.
        table: the table; None for a query of another kind.
        number: number of the key among the keys of the table.
        values: the constant or parameter that each part of the key equals.
        columns: columns of the table in the result, in order.
        packer: packs the key of a row.
    """

    query: PlannedQuery
    version: int
    table: NamedRelation | None = None
    number: int = 0
    values: tuple[Literal | Parameter, ...] = ()
    columns: tuple[int, ...] = ()
    packer: KeyPacker | None = None

    def key(self, arguments: Sequence[Datum]) -> bytes | None:
        """Return the key as bytes; None if a part is NULL, which no row equals."""
        assert self.packer is not None
        return self.packer.pack_parts(
            [value.value if isinstance(value, Literal) else arguments[value.index] for value in self.values]
        )

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
    if table is None:
        return None
    conditions = conjuncts(relation.predicate)
    shown = tuple(columns[index] if columns else index for index in finishing.columns)
    for number, key in enumerate(table.keys):
        values = _values_of(table, key, conditions)
        if values is not None:
            return KeyLookup(query, objects.version, table, number, values, shown, KeyPacker(table, key))
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


def _values_of(
    table: NamedRelation, key: Constraint, conditions: Sequence[Expression]
) -> tuple[Literal | Parameter, ...] | None:
    """Return the value that each part of a key must equal; None if the conditions are others than those of the key."""
    left = list(conditions)
    required = condition_of(table, key.condition)
    for condition in conjuncts(required) if required is not None else ():
        if condition not in left:
            return None
        left.remove(condition)
    values = []
    for part in parts_of(table, key):
        value = next((one for one in map(partial(_value_of, part), left) if one is not None), None)
        if value is None:
            return None
        values.append(value[1])
        left.remove(value[0])
    return None if left else tuple(values)


def _value_of(part: Expression, condition: Expression) -> tuple[Expression, Literal | Parameter] | None:
    """Return a condition and the value that a part of a key equals by it; None for another condition."""
    match condition:
        case Call(function=name, arguments=(operand, Literal() | Parameter() as value)) if (
            operand == part and name == f"equal_{part.type.name.lower()}" and value.type is part.type
        ):
            return condition, value
    return None
