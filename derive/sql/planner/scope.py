"""What a query's expressions can refer to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from derive.algebra.expression import Expression
from derive.algebra.relation import Aggregate, Constant, Relation, WindowFunction
from derive.algebra.rewrite import deepened, shifted
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, WindowDefinition
from derive.suggest import suggest

AGGREGATES = 1 << 20
"""Columns from here on are aggregates of the query that is planned, until its groups are known."""
WINDOWS = 1 << 21
"""Columns from here on are its window functions."""
GROUPINGS = 1 << 22
"""Columns from here on are calls of GROUPING."""
ROWS = 1 << 23
"""Columns from here on are its set-returning functions."""


@dataclass(frozen=True, slots=True)
class VisibleColumn:
    """A column that has a name; `expression` is about the rows of what FROM gives."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """A relation in FROM by the name that it has there.

    Attributes:
        name: None if it has none.
        schema: None if it has none, or an alias.
        columns: its columns.
        is_value: whether its name stands for its first column as well, as that of a function does.
    """

    name: str | None
    schema: str | None
    columns: tuple[VisibleColumn, ...]
    is_value: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """What FROM gives.

    Attributes:
        relation: its rows.
        tables: relations that have names there.
        columns: what `*` stands for, and what has a name without that of a relation.
    """

    relation: Relation
    tables: tuple[VisibleTable, ...]
    columns: tuple[VisibleColumn, ...]

    def shifted(self, by: int) -> tuple[tuple[VisibleTable, ...], tuple[VisibleColumn, ...]]:
        """Its tables and columns, about rows with so many more columns in front."""
        tables = tuple(replace(table, columns=_shifted(table.columns, by)) for table in self.tables)
        return tables, _shifted(self.columns, by)


def _shifted(columns: tuple[VisibleColumn, ...], by: int) -> tuple[VisibleColumn, ...]:
    return tuple(VisibleColumn(column.name, shifted(column.expression, by)) for column in columns)


NO_SOURCE = Source(Constant(((),), ()), (), ())
"""What there is without FROM: one row without columns."""


@dataclass(frozen=True, slots=True)
class Clause:
    """The part of a query that is planned.

    Attributes:
        name: in messages.
        has_aggregates: whether there may be aggregates in it.
        has_windows: whether there may be window functions in it.
        is_aggregate: whether it is inside of an aggregate.
        has_rows: whether there may be set-returning functions in it.
    """

    name: str
    has_aggregates: bool = False
    has_windows: bool = False
    is_aggregate: bool = False
    has_rows: bool = False


WHERE = Clause("WHERE")
VALUES = Clause("VALUES")
SELECT = Clause("SELECT", has_aggregates=True, has_windows=True, has_rows=True)


@dataclass(frozen=True, slots=True)
class RowTarget:
    """A set-returning function outside of FROM.

    Attributes:
        array: whose elements its rows are.
        type: of its rows, where elements are texts of such values.
        offset: where it stands.
    """

    array: Expression
    type: Type
    offset: int


@dataclass
class Frame:
    """One query while its expressions are planned.

    Attributes:
        source: what FROM gives.
        parent: the query around it, whose columns it may refer to; None if there is none.
        clause: what is planned at the moment.
        aggregates: that its expressions have asked for so far.
        windows: window functions, likewise.
        groupings: arguments of calls of GROUPING, with their offsets.
        rows: set-returning functions, each as often as it was asked for.
        references: columns that were referred to outside of aggregates: what they are, offset and text.
        named_windows: definitions behind WINDOW.
        refusal: why nothing may refer to its columns; None if it may.
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

    def frames(self) -> Iterator[tuple[int, Frame]]:
        """This query and those around it, with how many further out they are."""
        depth, frame = 0, self
        while True:
            yield depth, frame
            if frame.parent is None:
                return
            depth, frame = depth + 1, frame.parent

    @property
    def level(self) -> int:
        """How many queries are around it."""
        return sum(1 for _ in self.frames()) - 1

    def resolve(self, reference: ColumnReference) -> Expression:
        """The column that is referred to.

        Raises:
            SqlError: 42703, there is none; 42702, there are several; 42P01, its relation is not in FROM.
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
            if not matching and not qualifier:
                matching = [table.columns[0] for table in frame.source.tables if table.is_value and table.name == name]
            if len(matching) > 1:
                raise SqlError("42702", f'column reference "{name}" is ambiguous', offset=reference.offset)
            if matching and frame.refusal is not None:
                message = f'invalid reference to FROM-clause entry for table "{frame.source.tables[0].name}"'
                raise SqlError("42P10", message, offset=reference.offset, detail=frame.refusal)
            if matching:
                expression = matching[0].expression
                frame.references.append((expression, reference.offset, ".".join(reference.parts)))
                return deepened(expression, depth)
            if qualifier:
                raise self._unknown_column(reference, columns)
        if qualifier:
            raise self._unknown_table(tuple(qualifier), reference.offset)
        raise self._unknown_column(reference, None)

    def columns_of(self, qualifier: tuple[str, ...], offset: int) -> tuple[VisibleColumn, ...] | None:
        """The columns of a relation in FROM, or of all of them; None if there is no such relation."""
        if not qualifier:
            return self.source.columns
        name, schema = qualifier[-1], qualifier[-2] if len(qualifier) > 1 else None
        tables = [
            table
            for table in self.source.tables
            if table.name == name and (schema is None or table.schema in {schema, None})
        ]
        if len(tables) > 1:
            raise SqlError("42P09", f'table reference "{name}" is ambiguous', offset=offset)
        return tables[0].columns if tables else None

    def star(self, qualifier: tuple[str, ...], offset: int) -> tuple[VisibleColumn, ...]:
        """What a star stands for."""
        for depth, frame in self.frames():
            columns = frame.columns_of(qualifier, offset)
            if columns is not None:
                frame.references.extend((column.expression, offset, column.name) for column in columns)
                return tuple(VisibleColumn(column.name, deepened(column.expression, depth)) for column in columns)
            if not qualifier:
                break
        raise self._unknown_table(qualifier, offset)

    def _unknown_column(self, reference: ColumnReference, columns: tuple[VisibleColumn, ...] | None) -> SqlError:
        name = reference.parts[-1]
        if any(table.name == name for _, frame in self.frames() for table in frame.source.tables):
            message = "rows as values are not supported"
            return SqlError("0A000", message, offset=reference.offset, hint=f"Write {name}.* for its columns.")
        if columns is None:
            columns = tuple(column for _, frame in self.frames() for column in frame.source.columns)
        nearest = suggest(name, {column.name for column in columns})
        hint = f'Did you mean "{nearest}"?' if nearest else None
        if nearest and name == nearest.lower():
            hint = f'Names in capitals need quotes: "{nearest}".'
        if not nearest and len(reference.parts) == 1 and not (name.isidentifier() and name.islower()):
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
