"""Bounds of columns in rows that can affect a query, so that other rows need not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Filter, Get, GlobalId, Join, Window
from derive.algebra.types import Datum, Type


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Conditions that a column fulfils in every row that can affect the query.

    Attributes:
        data: all possible data; None for any.
        least: inclusive lower bound; None if missing.
        most: inclusive upper bound; None if missing.
    """

    data: frozenset[Datum] | None = None
    least: Datum = None
    most: Datum = None

    def holds(self, datum: Any) -> bool:
        """Return whether a datum fulfils the conditions."""
        if datum is None or (self.data is not None and datum not in self.data):
            return False
        least: Any = self.least
        most: Any = self.most
        return (least is None or least <= datum) and (most is None or datum <= most)


Bounds: TypeAlias = Mapping[int, ColumnBounds]
"""Bounds by column; other columns have none."""

_INTEGERS = {Type.SMALLINT, Type.INTEGER, Type.BIGINT}
_ORDERED = _INTEGERS | {Type.TEXT}
"""Types whose data are stored in the order of their values."""
_TYPES = _ORDERED | {Type.BOOLEAN, Type.NUMERIC, Type.DATE, Type.TIMESTAMP, Type.TIMESTAMPTZ}
_TYPES |= {Type.TIME, Type.TIMETZ, Type.UUID, Type.INET, Type.CIDR, Type.MACADDR}
"""Types whose equal data are identical."""
_ENDS = {"less": "most", "at_most": "most", "greater": "least", "at_least": "least"}
_OPPOSITES = {"most": "least", "least": "most"}


def bounds_of(query: Any) -> dict[GlobalId, Bounds]:
    """Return bounds of columns for the relations that a query reads in exactly one place; some may be missing."""
    noted: dict[GlobalId, list[Bounds]] = {}
    _note(query, {}, noted)
    return {identifier: places[0] for identifier, places in noted.items() if len(places) == 1}


def _note(node: Any, known: Bounds, noted: dict[GlobalId, list[Bounds]]) -> None:
    match node:
        case Get(id=identifier):
            noted.setdefault(identifier, []).append(known)
        case Filter(input=source, predicate=predicate):
            _note(source, _both(known, _bounds(predicate)), noted)
            _note(predicate, {}, noted)
        case Join(inputs=inputs, predicates=predicates):
            bounds = known
            for predicate in predicates:
                bounds = _both(bounds, _bounds(predicate))
            begin = 0
            for source in inputs:
                end = begin + len(source.types)
                _note(source, _between(bounds, begin, end), noted)
                begin = end
            _note(predicates, {}, noted)
        case Window(input=source, functions=functions):
            apart = {index for index in known if all(_splits(function.partition, index) for function in functions)}
            _note(source, {index: known[index] for index in apart}, noted)
            _note(functions, {}, noted)
        case tuple():
            for part in node:
                _note(part, {}, noted)
        case _ if is_dataclass(node):
            for field in fields(node):
                _note(getattr(node, field.name), {}, noted)


def _splits(partition: tuple[Expression, ...], index: int) -> bool:
    """Return whether rows that differ in a column are in different partitions."""
    return any(isinstance(key, Column) and key.index == index for key in partition)


def _between(bounds: Bounds, begin: int, end: int) -> Bounds:
    return {column - begin: bound for column, bound in bounds.items() if begin <= column < end}


def _both(left: Bounds, right: Bounds) -> Bounds:
    """Return the conjunction of two bounds."""
    twice = {column: _narrower(left[column], right[column]) for column in left.keys() & right.keys()}
    return {**left, **right, **twice}


def _narrower(left: ColumnBounds, right: ColumnBounds) -> ColumnBounds:
    data = right.data if left.data is None else left.data if right.data is None else left.data & right.data
    least: list[Any] = [bound.least for bound in (left, right) if bound.least is not None]
    most: list[Any] = [bound.most for bound in (left, right) if bound.most is not None]
    return ColumnBounds(data, max(least, default=None), min(most, default=None))


def _bounds(predicate: Expression) -> Bounds:  # noqa: PLR0911
    """Return the bounds of columns in rows for which a predicate is true."""
    match predicate:
        case Column(index=index, type=Type.BOOLEAN):
            return {index: ColumnBounds(frozenset({1}))}
        case Call(function="not", arguments=(Column(index=index),)):
            return {index: ColumnBounds(frozenset({0}))}
        case Call(function="and", arguments=arguments):
            bounds: Bounds = {}
            for part in arguments:
                bounds = _both(bounds, _bounds(part))
            return bounds
        case Call(function="or", arguments=arguments):
            return _either([_bounds(part) for part in arguments])
        case Call(function="in", arguments=(Column(index=index, type=kind), *items)) if kind in _TYPES:
            data = [item.value for item in items if isinstance(item, Literal) and item.type is kind]
            return {index: ColumnBounds(frozenset(data))} if len(data) == len(items) else {}
        case Call(function=name, arguments=(Column(index=index, type=kind), Literal(value=datum))):
            return _compared(name, index, kind, datum, _ENDS)
        case Call(function=name, arguments=(Literal(value=datum), Column(index=index, type=kind))):
            return _compared(name, index, kind, datum, {word: _OPPOSITES[end] for word, end in _ENDS.items()})
        case _:
            return {}


def _compared(name: str, index: int, kind: Type, datum: Datum, ends: Mapping[str, str]) -> Bounds:
    """Return the bounds of a column whose comparison with a datum is true."""
    word, _, compared = name.rpartition("_")
    if compared != kind.name.lower() or kind not in _TYPES:
        return {}
    if word == "equal":
        return {index: ColumnBounds(frozenset({datum}))}
    end = ends.get(word) if kind in _ORDERED else None
    if end and datum is None:
        return {index: ColumnBounds(frozenset())}
    return {index: ColumnBounds(least=datum) if end == "least" else ColumnBounds(most=datum)} if end else {}


def _either(parts: list[Bounds]) -> Bounds:
    """Return the disjunction of several bounds, for columns with finite `data` in all of them."""
    data: dict[int, frozenset[Datum]] = {}
    for index in set.intersection(*(set(part) for part in parts)):
        bounds = [part[index].data for part in parts]
        known = [some for some in bounds if some is not None]
        if len(known) == len(bounds):
            data[index] = frozenset().union(*known)
    return {index: ColumnBounds(some) for index, some in data.items()}
