"""The scope of a query's expressions: the relations and columns to which they can refer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from derive.algebra.expression import Column, Expression, OuterColumn
from derive.algebra.modifier_inference import modifier_of, modifiers_of, stand_in
from derive.algebra.relation import Aggregate, Constant, Relation, WindowFunction
from derive.algebra.rewrite import deepened, rewritten, shifted
from derive.algebra.types import Type, TypeModifier
from derive.errors import SqlError, suggest
from derive.sql.parser.ast import ColumnReference, WindowDefinition

AGGREGATES = 1 << 20
"""First index of placeholder columns for aggregates, until the query's groups are known."""
WINDOWS = 1 << 21
"""First index of placeholder columns for window functions."""
GROUPINGS = 1 << 22
"""First index of placeholder columns for calls of GROUPING."""
ROWS = 1 << 23
"""First index of placeholder columns for set-returning functions."""


@dataclass(frozen=True, slots=True)
class VisibleColumn:
    """A column to which a query can refer.

    Attributes:
        name: its name.
        expression: its value over the rows of FROM; for a row, whether the row is there.
        fields: the fields of a row; none for another value.
    """

    name: str
    expression: Expression
    fields: tuple[VisibleColumn, ...] = ()

    def mapped(self, change: Callable[[Expression], Expression]) -> VisibleColumn:
        """Return this column with other expressions."""
        if not self.fields:
            return VisibleColumn(self.name, change(self.expression))
        fields = tuple(column.mapped(change) for column in self.fields)
        return VisibleColumn(self.name, change(self.expression), fields)


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """A relation in FROM, under the name that the query gives it.

    Attributes:
        name: name; None if missing.
        schema: schema; None if missing, or for an alias.
        columns: columns.
        is_value: whether the name also refers to the first column, as for a function.
        hidden: columns that a star omits.
        key: indexes of the columns of its primary key; none for a relation without one.
    """

    name: str | None
    schema: str | None
    columns: tuple[VisibleColumn, ...]
    is_value: bool = False
    hidden: tuple[VisibleColumn, ...] = ()
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The relations of FROM.

    Attributes:
        relation: their joined rows.
        tables: the named relations.
        columns: columns of `*`, and of unqualified names.
    """

    relation: Relation
    tables: tuple[VisibleTable, ...]
    columns: tuple[VisibleColumn, ...]

    def shifted(self, by: int) -> tuple[tuple[VisibleTable, ...], tuple[VisibleColumn, ...]]:
        """Return tables and columns over the same rows after `by` other columns."""
        tables = tuple(
            replace(table, columns=_shifted(table.columns, by), hidden=_shifted(table.hidden, by))
            for table in self.tables
        )
        return tables, _shifted(self.columns, by)


def _shifted(columns: tuple[VisibleColumn, ...], by: int) -> tuple[VisibleColumn, ...]:
    return tuple(column.mapped(lambda expression: shifted(expression, by)) for column in columns)


NO_SOURCE = Source(Constant(((),), ()), (), ())
"""The source of a query without FROM: one row without columns."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of a query.

    Attributes:
        name: name in messages.
        has_aggregates: whether aggregates are allowed.
        has_windows: whether window functions are allowed.
        is_aggregate: whether the clause is inside an aggregate.
        has_rows: whether set-returning functions are allowed.
        has_own_functions: whether functions of CREATE FUNCTION are allowed.
    """

    name: str
    has_aggregates: bool = False
    has_windows: bool = False
    is_aggregate: bool = False
    has_rows: bool = False
    has_own_functions: bool = True


WHERE = Clause("WHERE")
VALUES = Clause("VALUES")
DOMAIN_CHECK = Clause("check constraints", has_own_functions=False)
SELECT = Clause("SELECT", has_aggregates=True, has_windows=True, has_rows=True)


@dataclass(frozen=True, slots=True)
class RowTarget:
    """A set-returning function outside FROM.

    Attributes:
        array: array of the rows.
        type: type of the rows, if the elements are texts of such values.
        offset: offset in the statement.
    """

    array: Expression
    type: Type
    offset: int


@dataclass
class Frame:
    """The state of one query while its expressions are planned.

    Attributes:
        source: relations of FROM.
        parent: outer query; None if missing.
        clause: the clause that is being planned.
        aggregates: aggregates in the planned expressions.
        windows: window functions in the planned expressions.
        groupings: arguments of GROUPING calls, with offsets.
        rows: set-returning functions, one entry per call.
        references: references to columns outside of aggregates: expression, offset and text.
        named_windows: definitions of the WINDOW clause.
        refusal: detail of the error for references to the query's columns; None if they are allowed.
        merge_action: value of `merge_action()`; None outside of RETURNING of MERGE.
    """

    source: Source
    parent: Frame | None = None
    clause: Clause = SELECT
    aggregates: list[Aggregate] = field(default_factory=list)
    windows: list[WindowFunction] = field(default_factory=list)
    groupings: list[tuple[tuple[Expression, int], ...]] = field(default_factory=list)
    rows: list[RowTarget] = field(default_factory=list)
    references: list[tuple[Expression, int, str]] = field(default_factory=list)
    named_windows: dict[str, WindowDefinition] = field(default_factory=dict)
    refusal: str | None = None
    merge_action: Expression | None = None

    def frames(self) -> Iterator[tuple[int, Frame]]:
        """Yield this query and its outer queries, each with its depth."""
        depth, frame = 0, self
        while True:
            yield depth, frame
            if frame.parent is None:
                return
            depth, frame = depth + 1, frame.parent

    @property
    def level(self) -> int:
        """Return the number of outer queries."""
        return sum(1 for _ in self.frames()) - 1

    def modifier_of(self, expression: Expression) -> TypeModifier | None:
        """Return the type modifier of an expression over the columns in scope."""
        frames = [frame for _, frame in self.frames()]
        own, *outer = (modifiers_of(frame.source.relation) for frame in frames)

        def replacement(part: Expression, depth: int) -> Expression | None:
            if depth or not isinstance(part, Column | OuterColumn) or part.index < AGGREGATES:
                return None
            level = part.depth if isinstance(part, OuterColumn) else 0
            function = frames[level].function_of(part.index)
            value = stand_in(function) if function else None
            return deepened(value, level) if value is not None and level else value

        if any(frame.aggregates or frame.windows for frame in frames):
            expression = rewritten(expression, replacement)
        return modifier_of(expression, own, tuple(outer))

    def function_of(self, index: int) -> Aggregate | WindowFunction | None:
        """Return the aggregate or window function for which a placeholder column stands; None for another column."""
        if AGGREGATES <= index < AGGREGATES + len(self.aggregates):
            return self.aggregates[index - AGGREGATES]
        if WINDOWS <= index < WINDOWS + len(self.windows):
            return self.windows[index - WINDOWS]
        return None

    def resolve(self, reference: ColumnReference) -> Expression:
        """Resolve a column reference.

        Raises:
            SqlError: 42703, the column does not exist; 42702, several columns match; 42P01, its relation is not in
                FROM.
        """
        *qualifier, name = reference.parts
        if len(qualifier) > 3:
            message = f"improper qualified name (too many dotted names): {'.'.join(reference.parts)}"
            raise SqlError("42601", message, offset=reference.offset)
        if len(qualifier) > 2:
            qualifier = qualifier[-2:]
        for depth, frame in self.frames():
            columns = frame.columns_of(tuple(qualifier), reference.offset)
            if columns is None:
                continue
            matching = [column for column in columns if column.name == name]
            if not matching:
                tables = frame.tables_of(tuple(qualifier)) if qualifier else frame.source.tables
                matching = [column for table in tables for column in table.hidden if column.name == name]
            if not matching and not qualifier:
                matching = [table.columns[0] for table in frame.source.tables if table.is_value and table.name == name]
            if len(matching) > 1:
                raise SqlError("42702", f'column reference "{name}" is ambiguous', offset=reference.offset)
            if matching and frame.refusal is not None:
                message = f'invalid reference to FROM-clause entry for table "{frame.source.tables[0].name}"'
                raise SqlError("42P10", message, offset=reference.offset, detail=frame.refusal)
            if matching and matching[0].fields:
                raise _unsupported_row(name, reference.offset)
            if matching:
                expression = matching[0].expression
                frame.references.append((expression, reference.offset, ".".join(reference.parts)))
                return deepened(expression, depth)
            if qualifier:
                raise self._unknown_column(reference, columns)
        if qualifier:
            raise self._unknown_table(tuple(qualifier), reference.offset)
        raise self._unknown_column(reference, None)

    def tables_of(self, qualifier: tuple[str, ...]) -> list[VisibleTable]:
        """Return the relations in FROM with a name."""
        name, schema = qualifier[-1], qualifier[-2] if len(qualifier) > 1 else None
        return [
            table
            for table in self.source.tables
            if table.name == name and (schema is None or table.schema in {schema, None})
        ]

    def columns_of(self, qualifier: tuple[str, ...], offset: int) -> tuple[VisibleColumn, ...] | None:
        """Return the columns of a relation in FROM, or of all relations; None if there is no such relation."""
        if not qualifier:
            return self.source.columns
        tables = self.tables_of(qualifier)
        if len(tables) > 1:
            raise SqlError("42P09", f'table reference "{qualifier[-1]}" is ambiguous', offset=offset)
        return tables[0].columns if tables else None

    def star(self, qualifier: tuple[str, ...], offset: int) -> tuple[VisibleColumn, ...]:
        """Return the columns of a star."""
        for depth, frame in self.frames():
            columns = frame.columns_of(qualifier, offset)
            if columns is not None:
                frame.references.extend((column.expression, offset, column.name) for column in columns)
                return tuple(column.mapped(partial(deepened, by=depth)) for column in columns)
            if not qualifier:
                break
        raise self._unknown_table(qualifier, offset)

    def _unknown_column(self, reference: ColumnReference, columns: tuple[VisibleColumn, ...] | None) -> SqlError:
        name = reference.parts[-1]
        if any(table.name == name for _, frame in self.frames() for table in frame.source.tables):
            return _unsupported_row(name, reference.offset)
        if columns is None:
            columns = tuple(column for _, frame in self.frames() for column in frame.source.columns)
        nearest = suggest(name, {column.name for column in columns})
        hint = f'Did you mean "{nearest}"?' if nearest else None
        if nearest and name == nearest.lower():
            hint = f'Names in capitals need quotes: "{nearest}".'
        if not nearest and len(reference.parts) == 1 and reference.is_quoted:
            text = name.replace("'", "''")
            hint = f"A text is in single quotes: '{text}'."
        shown = f'"{name}"' if len(reference.parts) == 1 else ".".join(reference.parts)
        return SqlError("42703", f"column {shown} does not exist", offset=reference.offset, hint=hint)

    def _unknown_table(self, qualifier: tuple[str, ...], offset: int) -> SqlError:
        name = qualifier[-1]
        tables = {table.name for _, frame in self.frames() for table in frame.source.tables if table.name}
        nearest = suggest(name, tables)
        hint = f'Did you mean "{nearest}"?' if nearest else None
        return SqlError("42P01", f'missing FROM-clause entry for table "{name}"', offset=offset, hint=hint)


def _unsupported_row(name: str, offset: int) -> SqlError:
    hint = f"Write {name}.* for its columns, or {name}::text, or to_jsonb({name})."
    return SqlError("0A000", "rows as values are not supported here", offset=offset, hint=hint)
