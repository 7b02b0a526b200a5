"""SHOW: names of what there is."""

from __future__ import annotations

from collections.abc import Sequence

from derive.adapter.objects import Objects, listing
from derive.adapter.outcome import ResultColumn
from derive.adapter.parser.definition import ObjectKind
from derive.adapter.parser.statement import ShowObjects
from derive.adapter.planner.definition import relation_named
from derive.adapter.planner.names import RelationKind
from derive.adapter.preparing import text_column
from derive.compute.algebra.types import Row
from derive.errors import SqlError

_KINDS = {
    "tables": {RelationKind.TABLE},
    "views": {RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW},
    "sources": {RelationKind.SOURCE, RelationKind.COLLECTION},
}
_ONE = {"schemas": "public", "databases": "flow", "clusters": "default", "roles": "flow"}


def shown(  # noqa: PLR0911 (one for each kind)
    statement: ShowObjects, objects: Objects
) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    """Columns and rows of a SHOW.

    Raises:
        SqlError: what is asked for is not here.
    """
    what = statement.what
    if what in _KINDS:
        names: list[Row] = [(named.name,) for named in listing(objects) if named.kind in _KINDS[what]]
        return (text_column("name"),), names
    if what in _ONE:
        return (text_column("name"),), [(_ONE[what],)]
    if what == "connections":
        return (text_column("name"),), []
    if what == "objects":
        return (text_column("name"), text_column("type")), [
            (named.name, named.kind.value) for named in listing(objects)
        ]
    if what == "indexes":
        return _indexes(statement, objects)
    if statement.relation is None:
        raise SqlError("0A000", f"SHOW {what.upper()} is not supported", offset=statement.offset)
    named = relation_named(statement.relation, objects)
    if what == "columns":
        columns = tuple(map(text_column, ("name", "nullable", "type")))
        return columns, [
            (column.name, "t" if column.is_nullable else "f", column.type.value) for column in named.columns
        ]
    item = objects.items.get(named.id)
    if item is None or item.definition is None:
        raise SqlError("0A000", f"{named.kind.value} {named.name} has no definition", offset=statement.offset)
    text = f'CREATE {item.kind.value.upper()} "{item.name}" AS {item.definition}'
    return (text_column("name"), text_column("create_sql")), [(named.name, text)]


def _indexes(statement: ShowObjects, objects: Objects) -> tuple[tuple[ResultColumn, ...], Sequence[Row]]:
    on = relation_named(statement.relation, objects).id if statement.relation else None
    rows: list[Row] = []
    for item in objects.items.values():
        subject = objects.relation(item.on) if item.kind is ObjectKind.INDEX and item.on is not None else None
        if subject is not None and on in {None, subject.id}:
            rows.append((item.name, subject.name, ", ".join(item.indexed)))
    return tuple(map(text_column, ("name", "on", "columns"))), sorted(rows, key=str)
