"""Indexes in PostgreSQL's form: CREATE INDEX statements, and the columns of an index in `pg_attribute`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.catalog.items import Item
from derive.sql.parser.statement import ConstraintKind
from derive.sql.planner.index_keys import expressions_of, named_parts, shown_expression, shown_part
from derive.sql.planner.interfaces import NamedColumn, NamedRelation


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """An index.

    Attributes:
        id: identifier in the catalog.
        name: name, in the schema of its relation.
        columns: indexes of the relation's columns, from 0; -1 for an expression.
        definition: CREATE INDEX statement.
        parts: for each column and expression, a column of its name and type.
        texts: the columns and expressions as texts.
        mentioned: indexes of the columns that the index needs.
        key: kind of the key that the index stands for; None for an index that is not unique.
        comment: text of COMMENT ON.
        condition: condition of the rows; None for all rows.
    """

    id: int
    name: str
    columns: tuple[int, ...]
    definition: str
    parts: tuple[NamedColumn, ...]
    texts: tuple[str, ...]
    mentioned: tuple[int, ...]
    key: ConstraintKind | None = None
    comment: str | None = None
    condition: str | None = None

    @property
    def expressions(self) -> str | None:
        """Return the texts of the expressions, separated by commas; None if there are only columns."""
        texts = [text for text, column in zip(self.texts, self.columns, strict=True) if column < 0]
        return ", ".join(texts) or None


def object_index(named: NamedRelation, index: Item, key: ConstraintKind | None = None) -> ObjectIndex:
    """Return an index of a relation in PostgreSQL's form.

    Args:
        named: the relation.
        index: the index.
        key: kind of the key that the index stands for; None for an index that is not unique.
    """
    places = {column.name: place for place, column in enumerate(named.columns)}
    mentioned = tuple(places[name] for name in index.indexed if name in places)
    if index.parts:
        names = named_parts(index.parts)
        columns = tuple(-1 if one.column is None else places.get(one.column, -1) for one in names)
        parts = tuple(
            NamedColumn(one.name, kind) if place < 0 else replace(named.columns[place], name=one.name)
            for one, kind, place in zip(names, _types(named, index.parts), columns, strict=True)
        )
        texts, shown = tuple(map(shown_expression, index.parts)), tuple(map(shown_part, index.parts))
    else:
        columns, parts = mentioned, tuple(named.columns[place] for place in mentioned)
        texts = shown = tuple(map(plain_name, index.indexed))
    what = "INDEX" if key is None else "UNIQUE INDEX"
    definition = f"CREATE {what} {plain_name(index.name)} ON {index.schema}.{plain_name(named.name)}"
    definition += f" USING btree ({', '.join(shown)})"
    if index.condition is not None:
        definition += f" WHERE ({index.condition})"
    identifier, comment, condition = index.id, index.comment, index.condition
    return ObjectIndex(identifier, index.name, columns, definition, parts, texts, mentioned, key, comment, condition)


def _types(named: NamedRelation, parts: tuple[str, ...]) -> list[Type]:
    """Return the types of the parts; text for parts without a meaning, because a collection has other columns now."""
    try:
        return [expression.type for expression in expressions_of(named, parts)]
    except SqlError:
        return [Type.TEXT] * len(parts)


def plain_name(name: str) -> str:
    """Return a name as an identifier; a plain name has no quotes.

    >>> plain_name("a_1"), plain_name("A")
    ('a_1', '"A"')
    """
    is_plain = name.isidentifier() and name.islower() and name.isascii()
    return name if is_plain else '"' + name.replace('"', '""') + '"'
