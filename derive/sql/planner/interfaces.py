"""Interfaces of the planner: names of relations in a catalog, and the planners that call one another.

A query has expressions, and an expression may have a query. Because planners of clauses take these interfaces, imports
go one way: from `queries` to `expressions`, and from both to the planners of clauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Filter, Get, GlobalId, Order, Relation, TopK, Window, WindowFunction
from derive.algebra.types import Type, TypeModifier
from derive.errors import SqlError, Violation
from derive.functions.registry import resolve_operator
from derive.sql.parser.ast import Query, QueryBody, SyntaxNode, With
from derive.sql.parser.sequences import Identity
from derive.sql.parser.statement import ConstraintKind
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.coercion import Coercion, ParameterTypes
from derive.sql.planner.scope import Frame

FIRST_SYSTEM_ID: GlobalId = 1 << 50
"""The first identifier of the system relations, whose rows are computed from the catalog and the session."""


STAGED: GlobalId = FIRST_SYSTEM_ID - 1
"""Identifier of the rows that a statement has computed and has not written yet; no relation has it."""

FUNCTIONS = "pg_catalog()"
"""The schema of functions without arguments that return rows of several columns."""
EMPTY_FUNCTIONS = frozenset({"aclexplode", "pg_options_to_table"})
"""Functions whose argument is NULL for every object, so that they return no rows."""


class RelationKind(Enum):
    """The kind of a named relation; the value is its name in messages."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    SOURCE = "source"
    COLLECTION = "collection"
    SYSTEM = "system relation"


@dataclass(frozen=True, slots=True)
class Domain:
    """The conditions of a domain.

    Attributes:
        id: identifier.
        name: name without schema.
        checks: name and text of each condition, by name; `VALUE` is the value.
        is_nullable: whether values may be NULL.
    """

    id: GlobalId
    name: str
    checks: tuple[tuple[str, str], ...] = ()
    is_nullable: bool = True

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """Return name and text of each condition, in the order in which they are checked; NOT NULL has no name."""
        return self.checks if self.is_nullable else (("", "value IS NOT NULL"), *self.checks)

    def violation(self, check: str) -> SqlError:
        """Return the error of a value for which a condition is false."""
        if not check:
            return SqlError("23502", f"domain {self.name} does not allow null values")
        return SqlError("23514", f'value for domain {self.name} violates check constraint "{check}"')


@dataclass(frozen=True, slots=True)
class Numbering:
    """The sequence of an identity column.

    Attributes:
        name: name, in the schema of the table.
        start: first number.
        increment: distance of two numbers; not 0.
        least: least number.
        most: greatest number.
    """

    name: str
    start: int
    increment: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column of a named relation.

    Attributes:
        name: name, unique in the relation.
        type: type.
        is_nullable: whether the column may be NULL.
        modifier: type modifier.
        default: text of the DEFAULT expression; None for NULL.
        identity: how the column gets numbers; None for an ordinary column.
        counter: identifier of the counter of these numbers, permanent and unique.
        generated: text of the expression of a generated column.
        comment: text of COMMENT ON COLUMN.
        domain: the domain of a table's column; its base type is the type of the column.
        numbering: the sequence of an identity column; None for the numbers from 1 on, and a name that follows from the
            names of table and column.
    """

    name: str
    type: Type
    is_nullable: bool = True
    modifier: TypeModifier | None = None
    default: str | None = None
    identity: Identity | None = None
    counter: int = 0
    generated: str | None = None
    comment: str | None = None
    domain: Domain | None = None
    numbering: Numbering | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """The key that a foreign key refers to.

    Attributes:
        table: identifier of the table; 0 for the table of the foreign key itself.
        columns: names of the columns of the key.
        on_delete: effect of a deletion there: `a` (none), `r` (restrict), `c` (cascade), `n` (set null) or `d` (set
            default).
        on_update: effect of an update of the key there, with the same letters.
        deferral: `d` if the foreign key is checked at COMMIT, `i` if SET CONSTRAINTS can defer it; else empty.
    """

    table: GlobalId
    columns: tuple[str, ...]
    on_delete: str = "a"
    on_update: str = "a"
    deferral: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of a table.

    Attributes:
        name: name, unique in the table.
        kind: kind of the constraint.
        columns: names of the columns of a key; of the columns in a condition, or in the parts of a unique index.
        condition: text of the condition of a check, or of the rows in a unique index; None for all rows.
        domain: the domain of the one column, if the check is a condition of its domain.
        reference: the key that a foreign key refers to.
        parts: texts of the parts of a unique index with expressions or a condition; empty for a key of columns.
    """

    name: str
    kind: ConstraintKind
    columns: tuple[str, ...]
    condition: str | None = None
    domain: Domain | None = None
    reference: Reference | None = None
    parts: tuple[str, ...] = ()

    @property
    def is_key(self) -> bool:
        """Return whether no two rows may have equal values in the columns."""
        return self.kind not in {ConstraintKind.CHECK, ConstraintKind.FOREIGN_KEY}


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """The relation of a name.

    Attributes:
        id: identifier.
        name: name without schema.
        columns: columns, in order.
        kind: kind of the relation.
        definition: definition of a view that is expanded; None for a relation with stored rows.
        constraints: constraints of a table.
        schema: schema of the name.
    """

    id: GlobalId
    name: str
    columns: tuple[NamedColumn, ...]
    kind: RelationKind
    definition: Relation | None = None
    constraints: tuple[Constraint, ...] = ()
    schema: str = "public"

    def violation(self, constraint: str | None = None, *, column: str | None = None) -> Violation:
        """Return the violation of a constraint, or of NOT NULL of a column."""
        return Violation(self.name, constraint, column, self.schema)

    @property
    def keys(self) -> tuple[Constraint, ...]:
        """Return the primary key, the unique constraints and the unique indexes."""
        return tuple(constraint for constraint in self.constraints if constraint.is_key)

    @property
    def plain_keys(self) -> tuple[Constraint, ...]:
        """Return the keys that are columns, and hold for all rows."""
        return tuple(key for key in self.keys if not key.parts)

    @property
    def checks(self) -> tuple[Constraint, ...]:
        """Return the conditions of columns' domains, and the checks by name: the order in which they are checked."""
        of_domains = [
            Constraint(name, ConstraintKind.CHECK, (column.name,), text, column.domain)
            for column in self.columns
            if column.domain is not None
            for name, text in column.domain.conditions
        ]
        checks = (constraint for constraint in self.constraints if constraint.kind is ConstraintKind.CHECK)
        return (*of_domains, *sorted(checks, key=lambda check: check.name))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Return the names of the columns of the primary key that the relation has; none without one."""
        keys = (one.columns for one in self.constraints if one.kind is ConstraintKind.PRIMARY_KEY)
        names = {column.name for column in self.columns}
        return next((columns for columns in keys if names.issuperset(columns)), ())

    @property
    def foreign_keys(self) -> tuple[Constraint, ...]:
        """Return the foreign keys."""
        return tuple(one for one in self.constraints if one.kind is ConstraintKind.FOREIGN_KEY)

    def indexes(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the indexes of columns by their names."""
        places = {column.name: index for index, column in enumerate(self.columns)}
        return tuple(places[name] for name in names)

    @property
    def relation(self) -> Relation:
        """Return the relation that a query reads for the name."""
        if self.definition is not None:
            return self.definition
        modifiers = tuple(column.modifier for column in self.columns)
        return Get(self.id, tuple(column.type for column in self.columns), modifiers if any(modifiers) else ())


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function in SQL.

    Attributes:
        id: identifier.
        schema: schema of the name.
        name: name without schema.
        arguments: name (None without one) and type of each argument.
        result: type of the value.
        is_strict: whether the value is NULL if an argument is.
        body: the value, with a parameter for each argument.
    """

    id: GlobalId
    schema: str
    name: str
    arguments: tuple[tuple[str | None, Type], ...]
    result: Type
    is_strict: bool
    body: Expression

    @property
    def signature(self) -> str:
        """Return the name with the types of the arguments, which is unique in the schema."""
        return signature_of(self.name, [kind for _, kind in self.arguments])


def signature_of(name: str, types: Sequence[Type]) -> str:
    """Return the name of a function with the types of its arguments.

    >>> signature_of("f", [Type.INTEGER, Type.TEXT])
    'f(integer, text)'
    """
    return f"{name}({', '.join(kind.value for kind in types)})"


class Names(Protocol):
    """A snapshot of a catalog of relations."""

    @property
    def zone(self) -> str | None:
        """Return the time zone of the session; None for UTC, which views always have."""
        return None

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        """Return the relation of a name; None if there is none."""

    def candidates(self) -> Iterable[str]:
        """Return candidates for the hint about an unknown name."""

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> NamedFunction | None:
        """Return the function in SQL that takes arguments of these types; None if there is none.

        Raises:
            SqlError: several functions take these arguments (42725).
        """
        return None

    def domain(self, name: str) -> NamedColumn | None:
        """Return a column of a domain, without a name; None if the domain does not exist; 0A000 for a relation."""
        return None


@dataclass(frozen=True, slots=True)
class Body:
    """The rows of a query, with order and limits.

    Attributes:
        relation: the rows; the result columns come first, and the order needs the other columns.
        names: names of the result columns.
        order: order of the rows, over all columns.
        limit: greatest number of rows, a bigint; None for all.
        offset: number of rows to skip, a bigint; None for none.
        offsets: offsets of the result columns in the statement, if known.
    """

    relation: Relation
    names: tuple[str, ...]
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    offsets: tuple[int, ...] = ()

    def settled(self) -> Relation:
        """Return the rows, with the limits applied, as a relation without an order."""
        relation = self.relation
        if self.limit is not None or self.offset is not None:
            relation = limited(relation, self.order, self.limit, self.offset)
        return projected(relation, columns_of(relation)[: len(self.names)])


def limited(
    relation: Relation, order: tuple[Order, ...], limit: Expression | None, offset: Expression | None
) -> Relation:
    """Return the first rows in an order; if a limit depends on parameters, the rows are numbered."""
    check_counts(limit, offset)
    if is_known(limit) and is_known(offset):
        return TopK(relation, (), order, count_of(limit), count_of(offset) or 0)
    number: Expression = Column(len(relation.types), Type.BIGINT)
    numbered = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, (), order),))
    zero = Literal(0, Type.BIGINT)
    after = zero if offset is None else _called("coalesce", (offset, zero))
    predicate = _compared(">", number, after)
    if limit is not None:
        bound = _called("coalesce", (limit, Literal((1 << 62) - 1, Type.BIGINT)))
        behind = _compared("<=", _minus(number, after), bound)
        predicate = Call("and", (predicate, behind), Type.BOOLEAN)
    filtered = Filter(numbered, predicate)
    return projected(filtered, columns_of(relation))


def first_with_ties(
    relation: Relation, order: tuple[Order, ...], limit: Expression, offset: Expression | None
) -> Relation:
    """Return the first rows in an order, and the rows that are equal to the last one of them in the order."""
    check_counts(limit, offset)
    width = len(relation.types)
    position, rank = Column(width, Type.BIGINT), Column(width + 1, Type.BIGINT)
    functions = [WindowFunction(name, (), Type.BIGINT, (), order) for name in ("row_number", "rank")]
    zero = Literal(0, Type.BIGINT)
    after = zero if offset is None else _called("coalesce", (offset, zero))
    bound = _called("coalesce", (limit, Literal((1 << 62) - 1, Type.BIGINT)))
    predicates = (
        _compared(">", bound, zero),
        _compared(">", position, after),
        _compared("<=", _minus(rank, after), bound),
    )
    filtered = Filter(Window(relation, tuple(functions)), Call("and", predicates, Type.BOOLEAN))
    return projected(filtered, columns_of(relation))


def check_counts(limit: Expression | None, offset: Expression | None) -> None:
    """Check that limits without parameters are not negative.

    Raises:
        SqlError: a limit or an offset is negative (2201W or 2201X).
    """
    for count, sqlstate, clause in ((limit, "2201W", "LIMIT"), (offset, "2201X", "OFFSET")):
        if is_known(count) and (count_of(count) or 0) < 0:
            raise SqlError(sqlstate, f"{clause} must not be negative")


def is_known(count: Expression | None) -> bool:
    """Return whether a limit does not depend on parameters."""
    return count is None or isinstance(count, Literal)


def is_sound(count: Expression | None) -> bool:
    """Return whether a limit does not depend on parameters and is not negative."""
    return is_known(count) and (count_of(count) or 0) >= 0


def count_of(count: Expression | None) -> int | None:
    """Return the value of a known limit; None if missing."""
    return int(count.value) if isinstance(count, Literal) and count.value is not None else None


def _compared(symbol: str, left: Expression, right: Expression) -> Expression:
    function = resolve_operator(symbol, (Type.BIGINT, Type.BIGINT)).function
    return Call(function, (left, right), Type.BOOLEAN)


def _minus(left: Expression, right: Expression) -> Expression:
    return Call(resolve_operator("-", (Type.BIGINT, Type.BIGINT)).function, (left, right), Type.BIGINT)


def _called(function: str, arguments: tuple[Expression, ...]) -> Expression:
    return Call(function, arguments, Type.BIGINT)


@dataclass(frozen=True, slots=True)
class CommonRelation:
    """A common table expression.

    Attributes:
        relation: its rows.
        names: names of its columns.
        level: number of queries around its definition.
    """

    relation: Relation
    names: tuple[str, ...]
    level: int


class RowsAs(Enum):
    """The treatment of the columns of a query that are rows."""

    REFUSED = "refused"
    TEXTS = "texts"
    """Texts, because only the client reads them."""
    COLUMNS = "columns"
    """Columns of their fields (`row_columns`)."""


class Queries(Protocol):
    """The planner of the queries of one statement.

    Attributes:
        names: names of relations.
        parameters: types of `$1` and so on.
        coercion: casts of values.
        common: the common table expressions that are planned so far, by name.
        recursions: numbers of recursive queries.
        arguments: in the body of a function, the parameter of each argument by the argument's name.
        views: definitions of the views that the statement reads, and their identifiers, by `id` of the definition.
    """

    names: Names
    parameters: ParameterTypes
    coercion: Coercion
    common: Mapping[str, CommonRelation]
    recursions: Iterator[int]
    arguments: Mapping[str, int]
    views: dict[int, tuple[Relation, GlobalId]]

    def plan(
        self, query: Query, parent: Frame | None, *, keeps_unknown: bool = False, rows: RowsAs = RowsAs.REFUSED
    ) -> Body:
        """Plan a query."""
        ...

    def subquery(self, query: Query, frame: Frame) -> Relation:
        """Plan a subquery of an expression."""
        ...

    def define(self, common: With, parent: Frame | None) -> None:
        """Define the common table expressions of WITH."""
        ...

    def unordered(self, body: QueryBody, parent: Frame | None, keeps_unknown: bool) -> Body:
        """Plan a query without WITH, ORDER BY and LIMIT."""
        ...

    def expressions(self, frame: Frame) -> Expressions:
        """Return the planner of the expressions of one query."""
        ...


class Expressions(Protocol):
    """The planner of the expressions of one query.

    Attributes:
        queries: planner of subqueries.
        coercion: casts of values.
        frame: columns in scope.
    """

    queries: Queries
    coercion: Coercion
    frame: Frame

    def plan(self, node: SyntaxNode) -> Expression:
        """Plan an expression; a literal or parameter may have the type `UNKNOWN`."""
        ...

    def boolean(self, node: SyntaxNode, clause: str) -> Expression:
        """Plan an expression that must be boolean."""
        ...

    def known(self, node: SyntaxNode) -> Expression:
        """Plan an expression; an unknown type becomes text."""
        ...

    def operation(self, symbol: str, values: Sequence[Expression], offsets: Sequence[int], offset: int) -> Expression:
        """Apply an operator to planned operands."""
        ...
