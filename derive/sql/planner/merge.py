"""Planner of MERGE: the rows of a table and of a source side by side, with the action that a WHEN clause chooses.

The query joins the table with the source. A WHEN clause is chosen for each row, and the row is dropped if it has none.
Then the new row is computed by the action of the clause. A deleted row is its own new row: so its generated columns,
checks and RETURNING need no case of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from derive.algebra.expression import Call, Case, Column, Expression, Literal
from derive.algebra.relation import Filter, Relation, Window, WindowFunction
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_operator
from derive.sql.parser.ast import JoinKind
from derive.sql.parser.statement import ConstraintKind, Match, Merge, MergeWhen
from derive.sql.planner.building import columns_of, joined, projected
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.dml import InsertPlanner, Writer
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.from_clause import ON, TRUE, TablePlanner, beside, check_names, joined_by
from derive.sql.planner.planned import PlannedWrite, WriteKind
from derive.sql.planner.scope import Clause, Frame, Source, VisibleColumn, VisibleTable

_WHEN = Clause("MERGE WHEN conditions")
_NO_CLAUSE = Literal(None, Type.INTEGER)
_JOINS = {
    frozenset({Match.SOURCE}): JoinKind.RIGHT,
    frozenset({Match.TARGET}): JoinKind.LEFT,
    frozenset({Match.SOURCE, Match.TARGET}): JoinKind.FULL,
}
"""Kind of the join by the rows without a partner that WHEN clauses decide of."""


@dataclass(frozen=True, slots=True)
class _Action:
    """The action of a WHEN clause: its new row, followed by the flags of columns that may get a number."""

    kind: WriteKind
    new: Sequence[Expression]


class MergePlanner:
    """Planner of MERGE."""

    def __init__(self, writer: Writer, statement: Merge) -> None:
        self._writer, self._statement = writer, statement
        self._own = self._target()
        self._others = self._source()
        check_names(self._own, self._others, statement.source.offset)
        self._relation = self._joined()

    def plan(self) -> PlannedWrite:
        """Return the planned statement.

        Its staged rows are the joined row, the kind of the action, the new row, and flags as in other writes.
        """
        writer, width = self._writer, self._writer.width
        _check_reachable(self._statement.clauses)
        count = len(self._relation.types)
        chosen = self._chosen()
        actions = {
            number: self._action(when, chosen)
            for number, when in enumerate(self._statement.clauses)
            if _has_effect(when)
        }
        kinds = [Literal(action.kind.value, Type.TEXT) for action in actions.values()]
        values = [(kind, *action.new) for kind, action in zip(kinds, actions.values(), strict=True)]
        clause = columns_of(chosen)[count]
        new = [_case(clause, dict(zip(actions, column, strict=True))) for column in zip(*values, strict=True)]
        if not actions:
            old = columns_of(chosen)[:width]
            new = [Literal(WriteKind.UPDATE.value, Type.TEXT), *old, *writer.flags(())]
        changed = projected(chosen, (*columns_of(chosen)[:count], *new))

        base = writer.staged(changed)
        columns = columns_of(base)
        completed = writer.completed(columns[count + 1 : count + 1 + width])
        after = self._after(base, completed)
        kind, number = columns[count], columns[width]
        written = (*columns[:width], *completed, kind, number)
        relation, returning = writer.with_returning(after, written, self._statement.returning, replace(kind))
        relation = writer.with_checks(relation, width)
        return PlannedWrite(
            WriteKind.MERGE,
            writer.table,
            writer.query(changed),
            returning,
            ids_of(relation) | ids_of(changed),
            writer.query(relation),
            writer.places(count + 1),
        )

    def _target(self) -> Source:
        """Return the rows of the table, with a number that tells equal rows apart, and a boolean: the row exists."""
        relation: Relation = self._writer.table.relation
        own = columns_of(relation)
        if any(key.kind is ConstraintKind.PRIMARY_KEY for key in self._writer.table.keys):
            relation = projected(relation, (*own, Literal(1, Type.BIGINT), TRUE))
        else:
            relation = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, own),))
            relation = projected(relation, (*columns_of(relation), TRUE))
        return self._writer.visible(relation, self._statement.alias)

    def _source(self) -> Source:
        """Return the rows of the source, with a boolean: the row exists."""
        source = TablePlanner(self._writer.queries).source((self._statement.source,), None)
        return replace(source, relation=projected(source.relation, (*columns_of(source.relation), TRUE)))

    def _joined(self) -> Relation:
        left, right = self._own.relation, self._others.relation
        both = beside(joined(left, right), self._own, self._others)
        expressions = ExpressionPlanner(self._writer.queries, Frame(both, None, ON))
        predicate = expressions.boolean(self._statement.condition, "JOIN/ON")
        alone = frozenset(when.match for when in self._statement.clauses) - {Match.BOTH}
        return joined_by(_JOINS.get(alone, JoinKind.INNER), left, right, predicate)

    def _frame(self, match: Match, relation: Relation, clause: Clause) -> Frame:
        """Return a frame with the columns that exist in the rows that a WHEN clause decides of."""
        source = beside(relation, self._own, self._others)
        tables, columns = self._others.shifted(len(self._own.relation.types))
        if match is Match.SOURCE:
            source = Source(relation, tables, columns)
        elif match is Match.TARGET:
            source = Source(relation, self._own.tables, self._own.columns)
        return Frame(source, None, clause)

    def _chosen(self) -> Relation:
        """Return the joined rows that a WHEN clause changes, with the number of the clause."""
        relation = self._relation
        columns = columns_of(relation)
        in_table, in_source = columns[len(self._own.relation.types) - 1], columns[-1]
        clause = Case(
            ((_is_null(in_table), self._choice(Match.SOURCE)), (_is_null(in_source), self._choice(Match.TARGET))),
            self._choice(Match.BOTH),
            Type.INTEGER,
        )
        numbered = projected(relation, (*columns, clause))
        number = columns_of(numbered)[-1]
        return Filter(numbered, Call("not", (_is_null(number),), Type.BOOLEAN))

    def _choice(self, match: Match) -> Expression:
        """Return the number of the WHEN clause for the rows of a kind; NULL for rows that stay as they are."""
        branches = []
        for number, when in enumerate(self._statement.clauses):
            if when.match is match:
                expressions = ExpressionPlanner(self._writer.queries, self._frame(match, self._relation, _WHEN))
                condition = TRUE if when.condition is None else expressions.boolean(when.condition, "WHEN")
                branches.append((condition, Literal(number, Type.INTEGER) if _has_effect(when) else _NO_CLAUSE))
        return Case(tuple(branches), _NO_CLAUSE, Type.INTEGER) if branches else _NO_CLAUSE

    def _action(self, when: MergeWhen, chosen: Relation) -> _Action:
        writer = self._writer
        frame = self._frame(when.match, chosen, _WHEN)
        if when.insert is not None:
            return _Action(WriteKind.INSERT, InsertPlanner(writer, when.insert).row(frame))
        old = columns_of(chosen)[: writer.width]
        if when.is_delete:
            return _Action(WriteKind.DELETE, (*old, *writer.flags(())))
        new, numbered = writer.set_columns(frame, when.assignments, old)
        return _Action(WriteKind.UPDATE, (*new, *writer.flags(numbered)))

    def _after(self, base: Relation, new: Sequence[Expression]) -> Source:
        """Return the columns of RETURNING over staged rows: of the source, and of the table after the action."""
        table = self._own.tables[0]
        own = tuple(VisibleColumn(column.name, value) for column, value in zip(table.columns, new, strict=True))
        tables, columns = self._others.shifted(len(self._own.relation.types))
        return Source(base, (VisibleTable(table.name, table.schema, own), *tables), (*columns, *own))


def _has_effect(when: MergeWhen) -> bool:
    return when.is_delete or when.insert is not None or bool(when.assignments)


def _check_reachable(clauses: Iterable[MergeWhen]) -> None:
    """Check that no WHEN clause follows one without a condition for the same rows."""
    final = set[Match]()
    for when in clauses:
        if when.match in final:
            message = "unreachable WHEN clause specified after unconditional WHEN clause"
            raise SqlError("42601", message, offset=when.offset)
        if when.condition is None:
            final.add(when.match)


def _is_null(value: Expression) -> Expression:
    return Call("is_null", (value,), Type.BOOLEAN)


def _case(clause: Column, values: dict[int, Expression]) -> Expression:
    """Return the value of the WHEN clause that a column has the number of."""
    *others, last = values.items()
    if all(value == last[1] for _, value in others):
        return last[1]
    equals = resolve_operator("=", (Type.INTEGER, Type.INTEGER)).function
    branches = tuple(
        (Call(equals, (clause, Literal(number, Type.INTEGER)), Type.BOOLEAN), value) for number, value in others
    )
    return Case(branches, last[1], last[1].type)
