"""Planner of expressions over one row of a table: conditions, generated columns, and the parts of indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Column, Expression
from derive.algebra.rewrite import rewritten
from derive.algebra.types import Type
from derive.errors import SqlError, suggest
from derive.functions.registry import function_named, is_volatile
from derive.functions.scalar.text import quoted_name
from derive.sql.parser.ast import SyntaxNode
from derive.sql.parser.parse import parse_expression
from derive.sql.parser.tokens import TokenReader
from derive.sql.planner.building import has_subquery
from derive.sql.planner.coercion import Coercion, ParameterTypes
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names
from derive.sql.planner.output import start_of
from derive.sql.planner.planned import is_of_session
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.scope import Clause, Frame, Source, VisibleColumn, VisibleTable

CHECK = Clause("check constraints", has_own_functions=False)


class NoNames:
    """A catalog without relations, functions and domains.

    Args:
        zone: time zone of the session; None for UTC.
    """

    def __init__(self, zone: str | None = None) -> None:
        self.zone = zone

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return None."""

    def candidates(self) -> Sequence[str]:
        """Return no candidates."""
        return ()

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> None:
        """Return None."""

    def domain(self, name: str) -> None:
        """Return None."""


class RowPlanner:
    """Planner of an expression over one row of a table."""

    def __init__(
        self,
        table: NamedRelation,
        names: Names,
        clause: Clause,
        value: str | None = None,
        *,
        is_in_session: bool = False,
    ) -> None:
        """Create a planner.

        Args:
            table: the table.
            names: names of relations.
            clause: the place of the expression.
            value: the one column that the expression may read, under the name `value`; None for all columns.
            is_in_session: whether times without a zone are in the zone of the session, instead of UTC.
        """
        relation = replace(table, definition=None).relation
        columns = tuple(
            VisibleColumn(column.name if value is None else "value", Column(index, column.type))
            for index, column in enumerate(table.columns)
            if value is None or column.name == value
        )
        self._parameters = ParameterTypes()
        self._queries = QueryPlanner(names, self._parameters)
        if not is_in_session:
            self._queries.coercion = Coercion(self._parameters)
        self._frame = Frame(Source(relation, (VisibleTable(table.name, None, columns),), columns), None, clause)
        self._expressions = ExpressionPlanner(self._queries, self._frame)

    def value(self, node: SyntaxNode, what: str) -> Expression:
        """Plan an expression without subqueries and parameters; `what` names its place in messages."""
        return self._checked(self._expressions.plan(node), node, what)

    def condition(self, node: SyntaxNode, clause: str = "CHECK", what: str = "check constraint") -> Expression:
        """Plan a boolean expression, as `value` does."""
        return self._checked(self._expressions.boolean(node, clause), node, what)

    def generation(self, node: SyntaxNode, column: NamedColumn) -> Expression:
        """Plan the value of a generated column, of the column's type."""
        value = self._checked(self._expressions.plan(node), node, "column generation expression")
        cast = self._queries.coercion.cast(value, column.type, start_of(node), "assignment")
        if cast is None:
            message = f'column "{column.name}" is of type {column.type.value}'
            message += f" but generation expression is of type {value.type.value}"
            hint = "You will need to rewrite or cast the expression."
            raise SqlError("42804", message, offset=start_of(node), hint=hint)
        return self._queries.coercion.fitted(cast, column.modifier)

    def _checked(self, value: Expression, node: SyntaxNode, what: str) -> Expression:
        if has_subquery(value):
            raise SqlError("0A000", f"cannot use subquery in {what}", offset=start_of(node))
        if self._parameters.finish():
            raise SqlError("42P02", "there is no parameter $1", offset=start_of(node))
        return value

    def plan(self, node: SyntaxNode) -> Expression:
        """Plan an expression without checks."""
        return self._expressions.plan(node)

    @property
    def references(self) -> list[tuple[int, int]]:
        """Return the indexes of the columns that the expression mentions, with offsets."""
        return [
            (expression.index, offset)
            for expression, offset, _ in self._frame.references
            if isinstance(expression, Column)
        ]


def is_immutable(value: Expression) -> bool:
    """Return whether an expression has the same value for a row in each statement, session and version."""
    is_immutable = not is_volatile(value)

    def note(part: Expression, _: int) -> Expression | None:
        nonlocal is_immutable
        function = getattr(part, "function", None)
        if is_of_session(part) or (function is not None and function_named(function).needs_context):
            is_immutable = False
        return None

    rewritten(value, note)
    return is_immutable


def mentioned(expression: str, table: NamedRelation, names: Names) -> list[tuple[str, int]]:
    """Return the columns that a check or a generation expression mentions, each with its offset in the text."""
    planner = RowPlanner(table, names, CHECK)
    planner.plan(parse_expression(expression))
    return [(table.columns[index].name, offset) for index, offset in planner.references]


def renamed_in(expression: str, table: NamedRelation, names: Names, old: str, new: str) -> str:
    """Return a check or a generation expression with another name of a column of the table."""
    offsets = sorted((offset for name, offset in mentioned(expression, table, names) if name == old), reverse=True)
    for offset in offsets:
        reader = TokenReader(expression[offset:])
        reader.next()
        begin = offset
        while reader.accept_symbol("."):  # the name of the table comes first
            begin = offset + reader.offset
            reader.next()
        expression = expression[:begin] + quoted_name(new) + expression[offset + reader.end_before :]
    return expression


def column_named(table: NamedRelation, name: str, offset: int) -> int:
    """Return the index of a table's column.

    Raises:
        SqlError: the column does not exist (42703).
    """
    for index, column in enumerate(table.columns):
        if column.name == name:
            return index
    nearest = suggest(name, (column.name for column in table.columns))
    hint = f'Did you mean "{nearest}"?' if nearest else None
    message = f'column "{name}" of relation "{table.name}" does not exist'
    raise SqlError("42703", message, offset=offset, hint=hint)
