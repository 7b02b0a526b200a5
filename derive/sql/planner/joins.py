"""Planner of joins with ON, USING and NATURAL."""

from __future__ import annotations

from derive.algebra.expression import Call, Expression, Literal
from derive.algebra.relation import OuterJoin, Relation, Side
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_operator
from derive.sql.parser.ast import JoinedTable, JoinKind
from derive.sql.planner.building import conjuncts_of, filtered, has_subquery, joined
from derive.sql.planner.interfaces import Queries
from derive.sql.planner.predicates import connected
from derive.sql.planner.scope import Clause, Frame, Source, VisibleColumn

ON = Clause("JOIN conditions")
TRUE = Literal(1, Type.BOOLEAN)


def beside(relation: Relation, left: Source, right: Source) -> Source:
    """Return two sources side by side."""
    tables, columns = right.shifted(len(left.relation.types))
    return Source(relation, (*left.tables, *tables), (*left.columns, *columns))


def joined_by(kind: JoinKind, left: Relation, right: Relation, predicate: Expression) -> Relation:
    """Return the join of two relations by a predicate over the columns of both."""
    if kind in {JoinKind.CROSS, JoinKind.INNER}:
        conjuncts = [part for part in conjuncts_of(predicate) if part != TRUE]
        plain = [part for part in conjuncts if not has_subquery(part)]
        others = [part for part in conjuncts if has_subquery(part)]
        relation = joined(left, right, plain)
        return filtered(relation, connected("and", others)) if others else relation
    return OuterJoin(Side(kind.value.lower()), left, right, predicate)


class Joiner:
    """Planner of joins."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def join(self, item: JoinedTable, left: Source, right: Source, parent: Frame | None) -> Source:
        """Plan the join of two sources."""
        both = beside(joined(left.relation, right.relation), left, right)
        if item.using is not None or item.is_natural:
            return self._using(item, left, right, both)
        predicate = self.condition(item, both, parent)
        return beside(joined_by(item.kind, left.relation, right.relation, predicate), left, right)

    def condition(self, item: JoinedTable, both: Source, parent: Frame | None) -> Expression:
        """Plan an ON condition."""
        if item.condition is None:
            return TRUE
        expressions = self._queries.expressions(Frame(both, parent, ON))
        return expressions.boolean(item.condition, "JOIN/ON")

    def _using(self, item: JoinedTable, left: Source, right: Source, both: Source) -> Source:
        names = item.using
        if names is None:
            right_names = {column.name for column in right.columns}
            names = tuple((column.name, item.offset) for column in left.columns if column.name in right_names)
        _, right_columns = right.shifted(len(left.relation.types))
        predicates, merged = [], []
        for name, offset in names:
            one = _only(left.columns, name, "left", offset)
            other = _only(right_columns, name, "right", offset)
            predicate, column = self._merged(item.kind, name, one.expression, other.expression, offset)
            predicates.append(predicate)
            merged.append(column)
        predicate = connected("and", predicates) if predicates else TRUE
        relation = joined_by(item.kind, left.relation, right.relation, predicate)
        taken = {name for name, _ in names}
        rest = [column for column in (*left.columns, *right_columns) if column.name not in taken]
        return Source(relation, both.tables, (*merged, *rest))

    def _merged(
        self, kind: JoinKind, name: str, left: Expression, right: Expression, offset: int
    ) -> tuple[Expression, VisibleColumn]:
        """Return the equality of two columns, and the merged column."""
        coercion = self._queries.coercion
        resolution = resolve_operator("=", (left.type, right.type), offset)
        pair = coercion.arguments((left, right), resolution.argument_types, (offset, offset))
        predicate = Call(resolution.function, pair, Type.BOOLEAN)
        alike = coercion.alike((left, right), (offset, offset), "JOIN/USING")
        if kind is JoinKind.FULL:
            return predicate, VisibleColumn(name, Call("coalesce", alike, alike[0].type))
        return predicate, VisibleColumn(name, alike[1] if kind is JoinKind.RIGHT else alike[0])


def _only(columns: tuple[VisibleColumn, ...], name: str, side: str, offset: int) -> VisibleColumn:
    matching = [column for column in columns if column.name == name]
    if not matching:
        message = f'column "{name}" specified in USING clause does not exist in {side} table'
        raise SqlError("42703", message, offset=offset)
    if len(matching) > 1:
        message = f'common column name "{name}" appears more than once in {side} table'
        raise SqlError("42702", message, offset=offset)
    return matching[0]
