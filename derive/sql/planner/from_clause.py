"""Planner of FROM: named relations, subqueries, and joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.relation import Relation
from derive.algebra.rewrite import deepened_relation
from derive.errors import SqlError
from derive.sql.parser.ast import (
    Alias,
    DerivedTable,
    FromItem,
    FunctionTable,
    JoinedTable,
    JoinKind,
    QualifiedName,
    RelationReference,
)
from derive.sql.planner.building import columns_of, joined
from derive.sql.planner.interfaces import Queries
from derive.sql.planner.joins import Joiner, beside
from derive.sql.planner.lateral import with_lateral
from derive.sql.planner.names import NamedRelation
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame, Source, VisibleColumn, VisibleTable
from derive.sql.planner.set_returning import rows_of_function
from derive.suggest import suggest

LATERAL = Clause("FROM clause of their own query level")


class TablePlanner:
    """Planner of FROM items."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._joiner = Joiner(queries)

    def source(self, items: Sequence[FromItem], parent: Frame | None) -> Source:
        """Plan FROM: all combinations of the items' rows."""
        source = NO_SOURCE
        for item in items:
            source = self._beside(source, item, parent)
        return source

    def _beside(self, left: Source, item: FromItem, parent: Frame | None) -> Source:
        if _is_lateral(item):
            right = self._item(item, Frame(left, parent, LATERAL))
            check_names(left, right, item.offset)
            relation = with_lateral(left.relation, right.relation)
            return beside(relation, left, right)
        right = self._item(item, parent)
        check_names(left, right, item.offset)
        return beside(joined(left.relation, right.relation), left, right)

    def _item(self, item: FromItem, parent: Frame | None) -> Source:
        match item:
            case RelationReference():
                return self._relation(item, parent)
            case DerivedTable():
                body = self._queries.plan(item.query, parent)
                return visible(body.settled(), body.names, item.alias, None, item.offset)
            case FunctionTable():
                relation, names = rows_of_function(self._queries, item, parent)
                source = visible(relation, names, item.alias, item.call.name.name, item.offset)
                is_value = len(names) == 1
                return replace(source, tables=(replace(source.tables[0], is_value=is_value),))
            case JoinedTable():
                return self._joined(item, parent)

    def _joined(self, item: JoinedTable, parent: Frame | None) -> Source:
        left = self._item(item.left, parent)
        if _is_lateral(item.right):
            source = self._lateral_join(item, left, item.right, parent)
        else:
            right = self._item(item.right, parent)
            check_names(left, right, item.right.offset)
            source = self._joiner.join(item, left, right, parent)
        if item.alias is None:
            return source
        names = renamed_columns(tuple(column.name for column in source.columns), item.alias)
        columns = tuple(
            VisibleColumn(name, column.expression) for name, column in zip(names, source.columns, strict=True)
        )
        return Source(source.relation, (VisibleTable(item.alias.name, None, columns),), columns)

    def _lateral_join(self, item: JoinedTable, left: Source, table: FromItem, parent: Frame | None) -> Source:
        frame = Frame(left, parent, LATERAL)
        if item.kind in {JoinKind.RIGHT, JoinKind.FULL}:
            frame.refusal = "The combining JOIN type must be INNER or LEFT for a LATERAL reference."
        right = self._item(table, frame)
        check_names(left, right, table.offset)
        if item.using is not None or item.is_natural:
            raise SqlError("0A000", "USING is not supported with LATERAL", offset=item.offset)
        both = beside(joined(left.relation, right.relation), left, right)
        predicate = self._joiner.condition(item, both, parent)
        return beside(with_lateral(left.relation, right.relation, predicate, item.kind), left, right)

    def _relation(self, item: RelationReference, parent: Frame | None) -> Source:
        common = self._queries.common.get(item.name.name) if item.name.schema is None else None
        if common is not None:
            level = parent.level + 1 if parent else 0
            relation = deepened_relation(common.relation, level - common.level)
            return visible(relation, common.names, item.alias, item.name.name, item.offset)
        named = self.named(item.name)
        names = tuple(column.name for column in named.columns)
        source = visible(named.relation, names, item.alias, item.name.name, item.offset)
        if item.alias is not None or item.name.schema is None:
            return source
        table = VisibleTable(item.name.name, item.name.schema, source.columns)
        return Source(source.relation, (table,), source.columns)

    def named(self, name: QualifiedName) -> NamedRelation:
        """Return the relation of a name.

        Raises:
            SqlError: 42P01, there is no such relation.
        """
        named = self._queries.names.lookup(name.schema, name.name)
        if named is None:
            # Names of collections contain a slash, so `schema.name` may mean `schema/name`.
            meant = f"{name.schema}/{name.name}" if name.schema else name.name
            candidates = self._queries.names.candidates()
            nearest = suggest(meant, candidates) or suggest(name.name, candidates)
            quoted = nearest if nearest and nearest.isidentifier() and nearest == nearest.lower() else f'"{nearest}"'
            hint = f"Did you mean {quoted}?" if nearest else None
            raise SqlError("42P01", f'relation "{name}" does not exist', offset=name.offset, hint=hint)
        return named


def _is_lateral(item: FromItem) -> bool:
    """Return whether an item may refer to earlier items of FROM; functions may."""
    return isinstance(item, FunctionTable) or (isinstance(item, DerivedTable) and item.is_lateral)


def visible(relation: Relation, names: tuple[str, ...], alias: Alias | None, name: str | None, offset: int) -> Source:
    """Return a relation as a source, under its name or an alias."""
    if alias is not None:
        names = renamed_columns(names, alias)
        name = alias.name
    pairs = zip(names, columns_of(relation), strict=True)
    columns = tuple(VisibleColumn(name, expression) for name, expression in pairs)
    return Source(relation, (VisibleTable(name, None, columns),), columns)


def renamed_columns(names: tuple[str, ...], alias: Alias) -> tuple[str, ...]:
    """Return names of columns; those of an alias replace the first ones."""
    if len(alias.columns) > len(names):
        message = f'table "{alias.name}" has {len(names)} columns available but {len(alias.columns)} columns specified'
        raise SqlError("42P10", message, offset=alias.offset)
    return (*alias.columns, *names[len(alias.columns) :])


def check_names(left: Source, right: Source, offset: int) -> None:
    """Check that two sources have no table name in common.

    Raises:
        SqlError: 42712, a name is used twice.
    """
    names = {(table.schema, table.name) for table in left.tables if table.name}
    for table in right.tables:
        if (table.schema, table.name) in names:
            message = f'table name "{table.name}" specified more than once'
            raise SqlError("42712", message, offset=offset)
