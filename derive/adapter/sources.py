"""Sources: relations whose rows come from collections, files, or are made up."""

from __future__ import annotations

from collections.abc import Mapping

from derive.adapter.objects import Objects
from derive.adapter.parser.definition import CollectionSource, CreateSource
from derive.adapter.planner.names import NamedColumn, RelationKind
from derive.compute.algebra.relation import GlobalId
from derive.document.pointer import JSON
from derive.errors import SqlError
from derive.suggest import suggest


def described(
    statement: CreateSource, objects: Objects
) -> tuple[tuple[NamedColumn, ...], Mapping[str, JSON], GlobalId | None]:
    """What a source is: its columns, where its rows come from, and the collection that it is, if it is one.

    Raises:
        SqlError: it cannot be.
    """
    match statement.origin:
        case CollectionSource(collection, offset):
            named = objects.lookup(None, collection)
            if named is None or named.kind is not RelationKind.COLLECTION:
                nearest = suggest(collection, [spec.name for spec in objects.collections.values()])
                hint = f'Did you mean "{nearest}"?' if nearest else None
                raise SqlError("42P01", f'collection "{collection}" does not exist', offset=offset, hint=hint)
            return named.columns, {"collection": collection}, named.id
    raise SqlError("0A000", "this kind of source is not supported", offset=statement.origin.offset)
