"""What columns must be equal to in rows that can matter to a query, so that others need not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from derive.compute.algebra.expression import Call, Column, Expression, Literal
from derive.compute.algebra.relation import Filter, Get, GlobalId, Join
from derive.compute.algebra.types import Datum, Type

Equalities: TypeAlias = Mapping[int, frozenset[Datum]]
"""By column, all data that it can have in rows that matter."""

_TYPES = {Type.BIGINT, Type.TEXT, Type.BOOLEAN}
"""Those of which equal data are the same ones."""


def equalities_of(query: Any) -> dict[GlobalId, Equalities]:
    """For what a query reads in one place only, what columns must be equal to; others may be missing.

    Args:
        query: a relation without parameters, or a tuple of what has some.
    """
    noted: dict[GlobalId, list[Equalities]] = {}
    _note(query, {}, noted)
    return {identifier: places[0] for identifier, places in noted.items() if len(places) == 1}


def _note(node: Any, known: Equalities, noted: dict[GlobalId, list[Equalities]]) -> None:
    match node:
        case Get(id=identifier):
            noted.setdefault(identifier, []).append(known)
        case Filter(input=source, predicate=predicate):
            _note(source, {**known, **_equalities(predicate)}, noted)
            _note(predicate, {}, noted)
        case Join(inputs=inputs, predicates=predicates):
            told = {**known, **{column: data for part in predicates for column, data in _equalities(part).items()}}
            begin = 0
            for source in inputs:
                end = begin + len(source.types)
                _note(source, _between(told, begin, end), noted)
                begin = end
            _note(predicates, {}, noted)
        case tuple():
            for part in node:
                _note(part, {}, noted)
        case _ if is_dataclass(node):
            for field in fields(node):
                _note(getattr(node, field.name), {}, noted)


def _between(told: Equalities, begin: int, end: int) -> Equalities:
    return {column - begin: data for column, data in told.items() if begin <= column < end}


def _equalities(predicate: Expression) -> dict[int, frozenset[Datum]]:
    """What columns are equal to where a predicate is true."""
    match predicate:
        case Call(function="and", arguments=arguments):
            return {column: data for part in arguments for column, data in _equalities(part).items()}
        case (
            Call(function=name, arguments=(Column(index=index, type=kind), Literal(value=datum)) as pair)
            | Call(function=name, arguments=(Literal(value=datum), Column(index=index, type=kind)) as pair)
        ) if name == f"equal_{kind.value}" and kind in _TYPES and pair[0].type is pair[1].type:
            return {index: frozenset({datum})}
        case Call(function="in", arguments=(Column(index=index, type=kind), *items)) if kind in _TYPES:
            data = [item.value for item in items if isinstance(item, Literal) and item.type is kind]
            return {index: frozenset(data)} if len(data) == len(items) else {}
        case _:
            return {}
