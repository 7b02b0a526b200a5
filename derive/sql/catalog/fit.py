"""The fit of views and sources: whether the relations that they read still have the columns of their creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Column
from derive.algebra.relation import Project, Relation
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.plural import counted
from derive.sql.catalog.items import Item
from derive.sql.planner.interfaces import NamedColumn, NamedRelation
from derive.sql.planner.plan import PlannedView


def require_compatible(item: Item, view: PlannedView) -> None:
    """Check that a view still has the columns of its creation.

    Raises:
        SqlError: a relation that the view reads was changed.
    """
    if len(view.columns) != len(item.columns):
        reason = f"it would have {counted(len(view.columns), 'column')}, and it was created with {len(item.columns)}"
        raise disagreement(item, "0A000", reason, tuple(item.bindings))
    for column, now in zip(item.columns, view.columns, strict=True):
        if column.type is not now.type:
            raise disagreement(item, "0A000", _changed(column, now.type), tuple(item.bindings))


def as_recorded(collection: NamedRelation, columns: Sequence[str]) -> NamedRelation:
    """Return a collection or table restricted to the recorded columns that still exist.

    Args:
        collection: the current collection or table.
        columns: names of the recorded columns.
    """
    names = [column.name for column in collection.columns]
    indexes = [names.index(name) for name in columns if name in names]
    if indexes == list(range(len(names))):
        return collection
    kept = tuple(collection.columns[index] for index in indexes)
    return replace(collection, columns=kept, definition=_picked(collection, indexes))


def _picked(collection: NamedRelation, indexes: Sequence[int]) -> Relation:
    types = tuple(column.type for column in collection.columns)
    return Project(collection.relation, tuple(Column(index, types[index]) for index in indexes))


def relation_of_source(item: Item, collection: NamedRelation | None) -> Relation:
    """Return the rows of a source over a collection, with the columns of the source.

    Args:
        item: the source.
        collection: the current collection; None if the catalog has none.

    Raises:
        SqlError: the collection no longer has these columns.
    """
    if collection is None:
        raise disagreement(item, "42P01", f'collection "{item.origin["collection"]}" is no longer in the catalog')
    for column in item.columns:
        _require_column(item, column, collection)
    return as_recorded(collection, [column.name for column in item.columns]).relation


def _require_column(item: Item, column: NamedColumn, collection: NamedRelation) -> None:
    for now in collection.columns:
        if now.name == column.name:
            if now.type is not column.type:
                raise disagreement(item, "0A000", _changed(column, now.type))
            return
    raise disagreement(item, "42703", f'collection "{collection.name}" no longer has the column "{column.name}"')


def _changed(column: NamedColumn, now: Type) -> str:
    return f'column "{column.name}" would be {now.value}, and was {column.type.value} when it was created'


def disagreement(item: Item, sqlstate: str, reason: str, reads: Sequence[str] = ()) -> SqlError:
    """Return the error of a view or source that no longer fits the relations that it reads.

    Args:
        item: the view or source.
        sqlstate: SQLSTATE of the error.
        reason: why the item does not fit.
        reads: names of the relations that the item reads.
    """
    kind = item.kind.value
    return SqlError(
        sqlstate,
        f'{kind} "{item.name}" no longer fits its inputs: {reason}',
        detail=f"It reads {', '.join(sorted(reads))}." if reads else None,
        hint=f"DROP {kind.upper()} and CREATE it again, or change the collection back in the catalog, flow.yaml",
    )
