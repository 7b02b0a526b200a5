"""Origins of result columns: the column of a table that a result column shows unchanged.

Clients read origins from the description of a result. JDBC needs them to write changes of rows back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.expression import Column
from derive.algebra.relation import (
    Distinct,
    Filter,
    Get,
    GlobalId,
    Join,
    OuterJoin,
    Project,
    Reduce,
    Relation,
    TopK,
    Window,
)
from derive.sql.planner.interfaces import FIRST_SYSTEM_ID

Views: TypeAlias = Mapping[int, tuple[Relation, GlobalId]]
"""Definitions of views in a query, and the identifiers of the views, by `id` of the definition."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A column of a relation.

    Attributes:
        relation: identifier of the relation.
        number: number of the column, from 1 on.
    """

    relation: GlobalId
    number: int


def origin_of(relation: Relation, index: int, views: Views) -> Origin | None:
    """Return the column that a column of a query shows unchanged; None for a computed column.

    Args:
        relation: the query.
        index: index of the column.
        views: views that the query reads.
    """
    while True:
        if id(relation) in views:
            return Origin(views[id(relation)][1], index + 1)
        if isinstance(relation, Get):
            return Origin(relation.id, index + 1) if relation.id < FIRST_SYSTEM_ID else None
        if isinstance(relation, Project | Reduce):
            expressions = relation.expressions if isinstance(relation, Project) else relation.keys
            column = expressions[index] if index < len(expressions) else None
            if not isinstance(column, Column):
                return None
            relation, index = relation.input, column.index
        elif isinstance(relation, Filter | Distinct | TopK):
            relation = relation.input
        elif isinstance(relation, Window):
            relation = relation.input
            if index >= len(relation.types):  # a column of the window
                return None
        elif isinstance(relation, Join):
            relation, index = _part(relation.inputs, index)
        elif isinstance(relation, OuterJoin):
            relation, index = _part((relation.left, relation.right), index)
        else:
            return None


def _part(inputs: tuple[Relation, ...], index: int) -> tuple[Relation, int]:
    """Return the input of a join that has a column, and the index of the column there."""
    for part in inputs[:-1]:
        if index < len(part.types):
            return part, index
        index -= len(part.types)
    return inputs[-1], index
