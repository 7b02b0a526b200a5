"""Planner of ALTER TABLE: a table with other columns and constraints, and its rows in that form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Finishing
from derive.algebra.rewrite import mentions, rewritten
from derive.errors import SqlError
from derive.functions.scalar.text import quoted_name
from derive.sql.parser.ast import ColumnReference, TypeCast
from derive.sql.parser.sequences import AddIdentity, DropIdentity, Identity, SetIdentity
from derive.sql.parser.statement import (
    AddColumn,
    AddConstraint,
    ColumnDefinition,
    ConstraintKind,
    DropColumn,
    DropConstraint,
    RenameColumn,
    RenameConstraint,
    SetDefault,
    SetNullable,
    SetType,
    TableAction,
)
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.constraints import (
    check_generation,
    plan_checks,
    plan_conversion,
    plan_generated,
    with_constraints,
)
from derive.sql.planner.ddl import columns_of_definitions, require_integer, require_narrow
from derive.sql.planner.dependencies import needs_context
from derive.sql.planner.dml import default_of, default_text
from derive.sql.planner.index_keys import condition_of, expressions_of, renamed_parts
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation, Names, Reference
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, is_of_session
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.row_expressions import column_named, mentioned, renamed_in
from derive.sql.planner.sequences import with_fixed_name, with_other_type, with_sequence, without_identity


@dataclass(frozen=True, slots=True)
class Alteration:
    """An altered table.

    Attributes:
        table: the table with its new columns and constraints; new identity columns have no counters.
        query: its rows, followed by a boolean for each check; identity columns that are new are NULL.
        converts: whether USING gives values to existing columns.
        names: for each column that stays, its name before and after.
        kept: those of `names` whose columns also keep their type and their values.
        notices: notices about constraints and identities that do not exist, and whose removal is no error.
        renames: the table before each rename of a column, with the names of the column before and after.
    """

    table: NamedRelation
    query: PlannedQuery
    converts: bool
    names: Mapping[str, str]
    kept: Mapping[str, str]
    notices: tuple[str, ...] = ()
    renames: tuple[tuple[NamedRelation, str, str], ...] = ()

    def renamed(self, parts: Sequence[str], condition: str | None) -> tuple[tuple[str, ...], str | None]:
        """Return the parts and the condition of an index with the names of the altered columns.

        Raises:
            SqlError: an expression has no meaning for the new type of a column.
        """
        for before, old, new in self.renames:
            parts = renamed_parts(parts, before, old, new)
            condition = None if condition is None else renamed_parts([condition], before, old, new)[0]
        expressions_of(self.table, parts)
        condition_of(self.table, condition)
        return tuple(parts), condition


def plan_alteration(
    table: NamedRelation, actions: Sequence[TableAction], names: Names, is_taken: Callable[[str], bool]
) -> Alteration:
    """Plan ALTER TABLE.

    Args:
        table: the table before.
        actions: changes of its columns and constraints.
        names: names of relations.
        is_taken: whether a relation has a name.

    Raises:
        SqlError: 42701, a column exists already; 42703, a column does not exist; 42704, a constraint does not exist;
            42P16, a column of the primary key would become nullable; 2BP01, a generated column needs a dropped column;
            54011, the columns are too many; and others.
    """
    planner = _AlterPlanner(table, names, is_taken)
    for action in sorted(actions, key=_pass_of):
        planner.apply(action)
    return planner.finish()


def _pass_of(action: TableAction) -> int:
    """Return a number that orders the changes of one statement as PostgreSQL does: removals, types, additions."""
    match action:
        case (
            DropColumn() | DropConstraint() | SetDefault(default=None) | SetNullable(is_nullable=True) | DropIdentity()
        ):
            return 0
        case SetType():
            return 1
        case _:
            return 2


class _AlterPlanner:
    def __init__(self, table: NamedRelation, names: Names, is_taken: Callable[[str], bool]) -> None:
        self._before, self._names, self._is_taken = table, names, is_taken
        self._table = replace(table, definition=None)
        self._values: list[Expression] = list(columns_of(table.relation))
        self._converts = False
        self._names_now = {column.name: column.name for column in table.columns}
        self._retyped: set[str] = set()
        self._notices: list[str] = []
        self._renames: list[tuple[NamedRelation, str, str]] = []

    def apply(self, action: TableAction) -> None:
        match action:
            case AddColumn():
                self._add_column(action)
            case DropColumn():
                self._drop_column(action)
            case RenameColumn():
                self._rename_column(action)
            case SetDefault():
                self._set_default(action)
            case SetNullable():
                self._set_nullable(action)
            case SetType():
                self._set_type(action)
            case AddConstraint(constraint):
                self._table = with_constraints(self._table, [constraint], self._names, self._is_taken)
            case DropConstraint():
                self._drop_constraint(action)
            case RenameConstraint():
                self._rename_constraint(action)
            case AddIdentity():
                self._add_identity(action)
            case SetIdentity():
                self._set_identity(action)
            case DropIdentity():
                self._drop_identity(action)

    def finish(self) -> Alteration:
        table = self._table
        require_narrow(len(table.columns))
        generated = plan_generated(table, self._names)
        for key in table.keys:
            expressions_of(table, key.parts)
            condition_of(table, key.condition)

        def replacement(part: Expression, _: int) -> Expression | None:
            return replace(self._values[part.index], type=part.type) if isinstance(part, Column) else None

        values = [
            rewritten(generated[index], replacement) if index in generated else value
            for index, value in enumerate(self._values)
        ]
        relation = projected(self._before.relation, values)
        if checks := plan_checks(table, self._names):
            relation = projected(relation, (*columns_of(relation), *checks))
        shown = tuple(PlannedColumn("", kind) for kind in relation.types)
        finishing = Finishing((), None, 0, tuple(range(len(relation.types))))
        of_session, context = mentions(relation, is_of_session), needs_context(relation)
        query = PlannedQuery(relation, finishing, shown, is_of_session=of_session, needs_context=context)
        names = self._names_now
        kept = {old: new for old, new in names.items() if old not in self._retyped}
        notices, renames = tuple(self._notices), tuple(self._renames)
        return Alteration(table, query, self._converts, names, kept, notices, renames)

    def _with_column(self, index: int, column: NamedColumn) -> None:
        columns = list(self._table.columns)
        columns[index] = column
        self._table = replace(self._table, columns=tuple(columns))

    def _has_column(self, name: str) -> bool:
        return any(column.name == name for column in self._table.columns)

    def _add_column(self, action: AddColumn) -> None:
        definition = action.column
        if self._has_column(definition.name):
            if action.if_not_exists:
                return
            raise self._exists(definition.name, definition.offset)
        (column,) = columns_of_definitions([definition], self._names)
        column = with_sequence(self._table.name, column, definition.numbering, self._is_taken)
        self._table = replace(self._table, columns=(*self._table.columns, column))
        self._values.append(default_of(column, self._names))
        if definition.generated is not None:
            check_generation(definition.generated.expression, column, self._table, self._names)
        self._table = with_constraints(self._table, definition.constraints, self._names, self._is_taken)

    def _drop_column(self, action: DropColumn) -> None:
        if not self._has_column(action.name) and action.if_exists:
            return
        column_named(self._table, action.name, action.offset)
        for column in self._table.columns:
            if column.generated is not None and self._needs(column.generated, action.name):
                if action.is_cascading:
                    self._drop_column(replace(action, name=column.name))
                    continue
                message = f"cannot drop column {action.name} of table {self._table.name}"
                message += " because other objects depend on it"
                detail = f"column {column.name} of table {self._table.name} depends on column {action.name}"
                raise SqlError("2BP01", message, offset=action.offset, detail=f"{detail} of table {self._table.name}")
        index = column_named(self._table, action.name, action.offset)  # generated columns were dropped meanwhile
        columns = list(self._table.columns)
        del columns[index], self._values[index]
        self._names_now = {old: new for old, new in self._names_now.items() if new != action.name}
        kept = tuple(one for one in self._table.constraints if action.name not in one.columns)
        self._table = replace(self._table, columns=tuple(columns), constraints=kept)

    def _needs(self, expression: str, name: str) -> bool:
        return any(column == name for column, _ in mentioned(expression, self._table, self._names))

    def _rename_column(self, action: RenameColumn) -> None:
        index = column_named(self._table, action.name, action.offset)
        if self._has_column(action.new_name):
            raise self._exists(action.new_name, action.new_offset)
        before, old, new = self._table, action.name, action.new_name
        self._renames.append((before, old, new))

        def renamed(expression: str) -> str:
            return renamed_in(expression, before, self._names, old, new)

        columns = tuple(
            replace(column, generated=None if column.generated is None else renamed(column.generated))
            for column in before.columns
        )
        constraints = tuple(
            replace(
                constraint,
                columns=tuple(new if name == old else name for name in constraint.columns),
                condition=None if constraint.condition is None else renamed(constraint.condition),
                reference=self._renamed_reference(constraint.reference, old, new),
                parts=renamed_parts(constraint.parts, before, old, new),
            )
            for constraint in before.constraints
        )
        self._table = replace(before, columns=columns, constraints=constraints)
        self._with_column(index, replace(with_fixed_name(before.name, columns[index]), name=new))
        self._names_now = {first: new if name == old else name for first, name in self._names_now.items()}

    def _renamed_reference(self, to: Reference | None, old: str, new: str) -> Reference | None:
        """Return the key that a foreign key refers to after the rename of a column of the table."""
        if to is None or to.table not in {0, self._before.id}:
            return to
        return replace(to, columns=tuple(new if name == old else name for name in to.columns))

    def _set_default(self, action: SetDefault) -> None:
        index = column_named(self._table, action.name, action.offset)
        column, default = self._table.columns[index], action.default
        if column.identity is Identity.SERIAL:  # its numbers are its default
            column = without_identity(column)
        if column.identity is not None or column.generated is not None:
            kind = "an identity column" if column.identity is not None else "a generated column"
            message = f'column "{column.name}" of relation "{self._table.name}" is {kind}'
            raise SqlError("42601", message, offset=action.offset)
        column = replace(column, default=default.text if default else None)
        if default is not None:
            column = replace(column, default=default_text(default.expression, default.text, column, self._names))
        self._with_column(index, column)

    def _add_identity(self, action: AddIdentity) -> None:
        index = column_named(self._table, action.name, action.offset)
        column = self._table.columns[index]
        of_table = f'column "{column.name}" of relation "{self._table.name}"'
        states = {
            "must be declared NOT NULL before identity can be added": column.is_nullable,
            "is already an identity column": column.identity not in {None, Identity.SERIAL},
            "already has a default value": column.default is not None or column.identity is Identity.SERIAL,
        }
        if problem := next((text for text, holds in states.items() if holds), None):
            raise SqlError("55000", f"{of_table} {problem}", offset=action.offset)
        if column.generated is not None:
            message = f'both identity and generation expression specified for column "{column.name}"'
            raise SqlError("42601", message, offset=action.offset)
        require_integer(column.type, action.offset)
        column = replace(column, identity=action.identity)
        self._with_column(index, with_sequence(self._table.name, column, action.numbering, self._is_taken))

    def _identity_column(self, name: str, offset: int) -> int:
        """Return the index of an identity column.

        Raises:
            SqlError: the column does not exist (42703), or has no identity (55000).
        """
        index = column_named(self._table, name, offset)
        if self._table.columns[index].identity in {None, Identity.SERIAL}:
            message = f'column "{name}" of relation "{self._table.name}" is not an identity column'
            raise SqlError("55000", message, offset=offset)
        return index

    def _set_identity(self, action: SetIdentity) -> None:
        index = self._identity_column(action.name, action.offset)
        column = self._table.columns[index]
        self._with_column(index, replace(column, identity=action.identity or column.identity))

    def _drop_identity(self, action: DropIdentity) -> None:
        try:
            index = self._identity_column(action.name, action.offset)
        except SqlError as error:
            if error.sqlstate != "55000" or not action.if_exists:
                raise
            self._notices.append(f"{error.message}, skipping")
            return
        self._with_column(index, without_identity(self._table.columns[index]))

    def _set_nullable(self, action: SetNullable) -> None:
        index = column_named(self._table, action.name, action.offset)
        column = self._table.columns[index]
        if action.is_nullable and column.identity not in {None, Identity.SERIAL}:
            message = f'column "{column.name}" of relation "{self._table.name}" is an identity column'
            raise SqlError("42601", message, offset=action.offset)
        keys = (one for one in self._table.constraints if one.kind is ConstraintKind.PRIMARY_KEY)
        if action.is_nullable and any(column.name in key.columns for key in keys):
            raise SqlError("42P16", f'column "{column.name}" is in a primary key', offset=action.offset)
        self._with_column(index, replace(column, is_nullable=action.is_nullable))

    def _set_type(self, action: SetType) -> None:
        index = column_named(self._table, action.name, action.offset)
        before = self._table.columns[index]
        for column in self._table.columns:
            if column.generated is not None and self._needs(column.generated, action.name):
                message = "cannot alter type of a column used by a generated column"
                detail = f'Column "{action.name}" is used by generated column "{column.name}".'
                raise SqlError("0A000", message, offset=action.offset, detail=detail)
        definition = ColumnDefinition(before.name, action.type, before.is_nullable, action.offset)
        (typed,) = columns_of_definitions([replace(definition, identity=before.identity)], self._names)
        column = replace(with_other_type(before, typed.type, typed.modifier), domain=typed.domain)
        self._values[index] = self._converted(action, column)
        self._converts = self._converts or action.using is not None
        self._retyped |= {old for old, new in self._names_now.items() if new == action.name}
        if before.identity is None and before.generated is None and self._has_default_of_domain(before):
            column = replace(column, default=typed.default)
        elif before.default is not None:
            default = default_of(before, self._names)
            message = f'default for column "{column.name}" cannot be cast automatically to type {column.type.value}'
            self._assigned(default, column, message, action.offset)
            default_of(column, self._names)
        self._with_column(index, column)

    def _has_default_of_domain(self, column: NamedColumn) -> bool:
        """Return whether a column has no default of its own: none, or that of its domain."""
        if column.default is None or column.domain is None:
            return column.default is None
        try:
            of_domain = self._names.domain(column.domain.name)
        except SqlError:  # a relation in an earlier schema of the path has the name, too
            return False
        return of_domain is not None and of_domain.default == column.default

    def _converted(self, action: SetType, column: NamedColumn) -> Expression:
        """Return the value of a column as another type."""
        table, offset = replace(self._before, definition=None), action.offset
        if action.using is None:
            value: Expression = columns_of(table.relation)[column_named(table, column.name, offset)]
            message = f'column "{column.name}" cannot be cast automatically to type {column.type.value}'
            hint = f'You might need to specify "USING {quoted_name(column.name)}::{column.type.value}".'
            self._assigned(value, column, message, offset, hint)
            cast = TypeCast(ColumnReference((column.name,), offset), replace(action.type, modifiers=()), offset)
            return self._assigned(plan_conversion(cast, table, self._names), column, message, offset)
        if column.generated is not None:
            message = "cannot specify USING when altering type of generated column"
            detail = f'Column "{column.name}" is a generated column.'
            raise SqlError("42611", message, offset=action.offset, detail=detail)
        value = plan_conversion(action.using, table, self._names)
        message = f'result of USING clause for column "{column.name}" cannot be cast automatically'
        hint = "You might need to add an explicit cast."
        return self._assigned(value, column, f"{message} to type {column.type.value}", offset, hint)

    def _assigned(
        self, value: Expression, column: NamedColumn, message: str, offset: int, hint: str | None = None
    ) -> Expression:
        """Return a value as a column of its type and modifier stores it."""
        coercion = QueryPlanner(self._names, ParameterTypes()).coercion
        cast = coercion.cast(value, column.type, offset, "assignment")
        if cast is None:
            raise SqlError("42804", message, offset=offset, hint=hint)
        return coercion.fitted(cast, column.modifier)

    def _drop_constraint(self, action: DropConstraint) -> None:
        constraints = self._table.constraints
        kept = tuple(one for one in constraints if one.name != action.name or _is_index(one) is not action.is_index)
        if len(kept) == len(self._table.constraints):
            if not action.if_exists:
                raise self._no_constraint(action.name, action.offset)
            message = f'constraint "{action.name}" of relation "{self._table.name}" does not exist'
            self._notices.append(f"{message}, skipping")
        self._table = replace(self._table, constraints=kept)

    def _rename_constraint(self, action: RenameConstraint) -> None:
        names = [one.name for one in self._table.constraints]
        if action.name not in [one.name for one in self._table.constraints if not _is_index(one)]:
            raise self._no_constraint(action.name, action.offset)
        if action.new_name in names:
            message = f'constraint "{action.new_name}" for relation "{self._table.name}" already exists'
            raise SqlError("42710", message, offset=action.new_offset)
        renamed = tuple(
            replace(one, name=action.new_name) if one.name == action.name else one for one in self._table.constraints
        )
        self._table = replace(self._table, constraints=renamed)

    def _no_constraint(self, name: str, offset: int) -> SqlError:
        return SqlError("42704", f'constraint "{name}" of relation "{self._table.name}" does not exist', offset=offset)

    def _exists(self, name: str, offset: int) -> SqlError:
        return SqlError("42701", f'column "{name}" of relation "{self._table.name}" already exists', offset=offset)


def _is_index(constraint: Constraint) -> bool:
    """Return whether a key is only a unique index to clients."""
    return constraint.kind is ConstraintKind.UNIQUE_INDEX
