"""Joins of a table by a key: the rows of the other side are computed first, and only their partners are read.

MERGE, and UPDATE with FROM, join a large table with few rows, whose columns equal a key of the table. The rows of the
other side become a relation of their own, which is computed once, and the index of the key gives the rows that they
are joined with. The join itself is evaluated as always, over fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import is_
from typing import Any, TypeAlias

from derive.algebra.expression import Call, Column, Literal, OuterColumn, Parameter
from derive.algebra.relation import (
    Constant,
    Filter,
    Get,
    GlobalId,
    Join,
    OuterJoin,
    Project,
    Recurring,
    Relation,
    Side,
    Window,
)
from derive.algebra.rewrite import conjuncts, has_subquery, mentions_outer_column
from derive.algebra.types import Row
from derive.sql.planner.interfaces import FIRST_SYSTEM_ID, NamedRelation
from derive.sql.transactions.key_index import KeyPacker

COMPUTED: GlobalId = FIRST_SYSTEM_ID << 1
"""Identifier of the relation of the rows that are computed first."""

_LEAVES = (Get, Constant, Column, OuterColumn, Literal, Parameter)

Keyed: TypeAlias = Callable[[GlobalId], NamedRelation | None]
"""A function that returns a table with keys; None for other relations."""


@dataclass(frozen=True, slots=True)
class KeyedJoin:
    """A join of a table by a key.

    Attributes:
        table: the table.
        number: number of the key among the keys of the table.
        source: the relation of the other side.
        columns: columns of the source that equal the columns of the key, in order.
    """

    table: NamedRelation
    number: int
    source: Relation
    columns: tuple[int, ...]

    def keys(self, rows: Iterable[Row]) -> set[bytes]:
        """Return the keys of the rows of the table that rows of the source are joined with."""
        packer = KeyPacker(self.table, self.table.keys[self.number])
        packed = (packer.pack_parts([row[index] for index in self.columns]) for row in rows)
        return {key for key in packed if key is not None}

    def over_computed(self, relation: Relation) -> Relation:
        """Return a relation that reads the rows of the source from the relation `COMPUTED`."""
        computed: Relation = _replaced(relation, self.source, Get(COMPUTED, self.source.types))
        return computed


def find(relation: Relation, keyed: Keyed) -> KeyedJoin | None:
    """Return a join of a table by a key in a relation, which reads the table in no other place; None without one."""
    counts: dict[GlobalId, int] = {}
    for part in _parts(relation):
        if isinstance(part, Get):
            counts[part.id] = counts.get(part.id, 0) + 1
    for part in _parts(relation):
        if isinstance(part, Join | OuterJoin):
            for place in range(len(_inputs(part))):
                keyed_join = _of_input(part, place, keyed, counts)
                if keyed_join is not None:
                    return keyed_join
    return None


def _inputs(join: Join | OuterJoin) -> tuple[Relation, ...]:
    return join.inputs if isinstance(join, Join) else (join.left, join.right)


def _of_input(join: Join | OuterJoin, place: int, keyed: Keyed, counts: dict[GlobalId, int]) -> KeyedJoin | None:
    """Return the join of an input that has the rows of a table, by a key of the table."""
    inputs = _inputs(join)
    if isinstance(join, OuterJoin) and join.side is not (Side.LEFT if place else Side.RIGHT):
        return None  # the join has all rows of the input
    origin = _origin(inputs[place])
    table = keyed(origin[0].id) if origin is not None and counts[origin[0].id] == 1 else None
    if origin is None or table is None or tuple(column.type for column in table.columns) != origin[0].types:
        return None
    begins = [sum(len(one.types) for one in inputs[:number]) for number in range(len(inputs) + 1)]
    equal = _equal_columns(join)
    for other, source in enumerate(inputs):
        if other == place or mentions_outer_column(source) or _is_recurring(source):
            continue
        partners: dict[int, int] = {}
        for left, right in equal:
            own = origin[1][left - begins[place]] if begins[place] <= left < begins[place + 1] else None
            if own is not None and begins[other] <= right < begins[other + 1]:
                partners[own] = right - begins[other]
        for number, key in enumerate(table.keys):
            columns = table.indexes(key.columns)
            if not key.parts and partners.keys() >= set(columns):
                return KeyedJoin(table, number, source, tuple(partners[index] for index in columns))
    return None


def _is_recurring(relation: Relation) -> bool:
    """Return whether a relation reads the rows of the last step of a recursion."""
    return any(isinstance(part, Recurring) for part in _parts(relation))


def _equal_columns(join: Join | OuterJoin) -> list[tuple[int, int]]:
    """Return the pairs of columns that a join compares for equality, in both orders."""
    predicates = join.predicates if isinstance(join, Join) else (join.predicate,)
    pairs = []
    for predicate in (part for one in predicates for part in conjuncts(one)):
        match predicate:
            case Call(function=name, arguments=(Column(index=left, type=kind), Column(index=right, type=other))) if (
                kind is other and name == f"equal_{kind.name.lower()}"
            ):
                pairs += [(left, right), (right, left)]
    return pairs


def _origin(relation: Relation) -> tuple[Get, tuple[int | None, ...]] | None:
    """Return the relation whose rows, each by itself, a relation has; and the column there of each of its columns.

    A window function keeps the columns by which it divides the rows: rows with other values do not affect it.
    """
    match relation:
        case Get():
            return relation, tuple(range(len(relation.types)))
        case Filter(input=source, predicate=predicate) if not has_subquery(predicate):
            return _origin(source)
        case Project(input=source, expressions=expressions) if not any(map(has_subquery, expressions)):
            if (below := _origin(source)) is not None:
                kept = [below[1][part.index] if isinstance(part, Column) else None for part in expressions]
                return below[0], tuple(kept)
        case Window(input=source, functions=functions):
            kinds = source.types
            if (below := _origin(source)) is not None:
                kept = [
                    column if all(Column(index, kinds[index]) in function.partition for function in functions) else None
                    for index, column in enumerate(below[1])
                ]
                return below[0], (*kept, *[None] * len(functions))
    return None


def _parts(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes within it, also in subqueries, from outside in."""
    yield node
    for part in node if isinstance(node, tuple) else _fields(node):
        yield from _parts(part)


def _fields(node: Any) -> Sequence[Any]:
    if not is_dataclass(node) or isinstance(node, _LEAVES):
        return ()
    values = (getattr(node, field.name) for field in fields(node))
    return [value for value in values if isinstance(value, tuple) or is_dataclass(value)]


def _replaced(node: Any, before: Relation, after: Relation) -> Any:
    """Return a node in which a relation replaces another one."""
    if node is before:
        return after
    if isinstance(node, tuple):
        parts = tuple(_replaced(part, before, after) for part in node)
        return node if all(map(is_, parts, node)) else parts
    if not is_dataclass(node) or isinstance(node, (*_LEAVES, type)):
        return node
    others = {field.name: _replaced(getattr(node, field.name), before, after) for field in fields(node) if field.init}
    changed = {name: other for name, other in others.items() if other is not getattr(node, name)}
    return replace(node, **changed) if changed else node
