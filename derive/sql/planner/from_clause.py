"""Planner of FROM: named relations, subqueries, joins with ON, USING and NATURAL, and LATERAL by unnesting.

A lateral query is evaluated once, for all combinations of the outer columns to which it refers. These columns precede
the columns of each of its relations, and are keys of all its groups, windows and limits. At the end, the query is
joined to the left side by these columns. (T. Neumann, A. Kemper: Unnesting Arbitrary Queries, BTW 2015.)

If the lateral query only filters and computes, it is evaluated over the rows of the left side, and needs no join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn
from derive.algebra.relation import (
    Constant,
    Distinct,
    Filter,
    Get,
    Join,
    OuterJoin,
    Project,
    Recurring,
    Recursion,
    Reduce,
    Relation,
    SetOperation,
    Side,
    TopK,
    UnionAll,
    Unnest,
    Window,
)
from derive.algebra.rewrite import (
    deepened_relation,
    inputs_of,
    outer_columns_of,
    rewritten,
    rewritten_aggregate,
    rewritten_order,
    rewritten_relation,
    rewritten_window,
    shifted,
    with_columns,
)
from derive.algebra.types import Type
from derive.errors import SqlError, suggest
from derive.functions.registry import resolve_operator
from derive.functions.scalar.logic import has_equal_data
from derive.sql.parser.ast import (
    Alias,
    DerivedTable,
    FromItem,
    FunctionTable,
    JoinedTable,
    JoinKind,
    QualifiedName,
    RelationReference,
    RowsFrom,
    SampledTable,
)
from derive.sql.planner.building import columns_of, conjuncts_of, filtered, has_subquery, joined
from derive.sql.planner.interfaces import EMPTY_FUNCTIONS, FUNCTIONS, NamedRelation, Queries, RelationKind, RowsAs
from derive.sql.planner.predicates import connected
from derive.sql.planner.row_columns import shown_names, visible_columns, with_names
from derive.sql.planner.sampling import sampled
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame, Source, VisibleColumn, VisibleTable
from derive.sql.planner.set_returning import rows_of_function, rows_side_by_side

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
            if one.fields or other.fields:
                hint = "Compare the rows with ON."
                raise SqlError("0A000", "USING and NATURAL compare no rows", offset=offset, hint=hint)
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


def with_lateral(
    left: Relation, right: Relation, predicate: Expression = TRUE, kind: JoinKind = JoinKind.INNER
) -> Relation:
    """Return a join with a query that refers to the rows of the left side.

    Args:
        left: left side.
        right: the lateral query.
        predicate: predicate over the columns of both.
        kind: `INNER`, `CROSS` or `LEFT`.
    """
    indexes = sorted(outer_columns_of(right))
    if not indexes:
        return joined_by(kind, left, _raised(right), predicate)
    if kind is not JoinKind.LEFT and _keeps_rows(right):
        both = _Unnesting(left, range(len(left.types))).of(right)
        return both if predicate == TRUE else filtered(both, predicate)
    keys = tuple(Column(index, left.types[index]) for index in indexes)
    domain = Distinct(Project(left, keys))
    unnested = _Unnesting(domain, indexes).of(right)
    width, count = len(left.types), len(indexes)
    own = with_columns(predicate, lambda column: _past(column, width, count))
    same = [_same(key, Column(width + position, key.type)) for position, key in enumerate(keys)]
    conjuncts = same if own == TRUE else [*same, own]
    relation = joined_by(kind, left, unnested, connected("and", conjuncts))
    columns = columns_of(relation)
    return Project(relation, (*columns[:width], *columns[width + count :]))


def with_outer_rows(recursion: Recursion, outer: Relation) -> tuple[Recursion, Relation]:
    """Return a recursion that is evaluated for all outer rows, and its rows for the current outer row.

    Args:
        recursion: a recursion that refers to the outer query.
        outer: the rows of FROM of the outer query.
    """
    indexes = sorted(outer_columns_of(recursion))
    keys = tuple(Column(index, outer.types[index]) for index in indexes)
    unnesting = _Unnesting(Distinct(Project(outer, keys)), indexes, recursion.id)
    widened = replace(recursion, base=unnesting.of(recursion.base), step=unnesting.of(recursion.step))
    columns = columns_of(widened)
    same = [_same(column, OuterColumn(1, key.index, key.type)) for column, key in zip(columns, keys, strict=False)]
    return widened, Project(Filter(widened, connected("and", same)), columns[len(keys) :])


def _keeps_rows(relation: Relation) -> bool:
    """Return whether a query maps single rows, so that it can be evaluated over the rows of the left side."""
    if not outer_columns_of(relation):
        return True
    match relation:
        case Project() | Filter() | Unnest():
            return _keeps_rows(relation.input)
        case UnionAll():
            return all(map(_keeps_rows, relation.inputs))
        case Join():
            return not any(map(outer_columns_of, relation.inputs))
    return False


def _past(column: Column, width: int, count: int) -> Expression:
    return replace(column, index=column.index + count) if column.index >= width else column


def _same(left: Expression, right: Expression) -> Expression:
    kind = left.type if has_equal_data(left.type) else Type.BYTEA  # equal values with several data are several rows
    function = resolve_operator("is not distinct from", (kind, kind)).function
    return Call(function, (left, right), Type.BOOLEAN)


def _raised(relation: Relation) -> Relation:
    """Return a query without references to the left side as a query of the next outer level."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, OuterColumn) and part.depth > depth + 1:
            return replace(part, depth=part.depth - 1)
        return None

    return rewritten_relation(relation, replacement)


class _Unnesting:
    """A rewriter that prepends columns of the outer query to the relations that refer to them.

    Args:
        domain: rows of these columns, each once.
        indexes: indexes of these columns in the outer query.
        recursion: identifier of a recursion whose rows begin with these columns already; None if missing.
    """

    def __init__(self, domain: Relation, indexes: Sequence[int], recursion: int | None = None) -> None:
        self._domain = domain
        self._recursion = recursion
        self._positions = {index: position for position, index in enumerate(indexes)}
        self._count = len(indexes)

    @property
    def _keys(self) -> tuple[Column, ...]:
        return columns_of(self._domain)

    def _expression(self, expression: Expression) -> Expression:
        """Return an expression over rows to which the outer columns are prepended."""
        return rewritten(expression, self._replacement)

    def _replacement(self, part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            return replace(part, index=part.index + self._count)
        if not isinstance(part, OuterColumn) or part.depth < depth:
            return None
        if part.depth == depth:
            return replace(part, index=part.index + self._count)
        if part.depth > depth + 1:
            return replace(part, depth=part.depth - 1)
        position = self._positions[part.index]
        return OuterColumn(depth, position, part.type) if depth else Column(position, part.type)

    def _refers(self, relation: Relation) -> bool:
        """Return whether a relation refers to the outer query, or begins with the outer columns already."""
        return bool(outer_columns_of(relation)) or self._is_recurring(relation)

    def _is_recurring(self, relation: Relation) -> bool:
        if isinstance(relation, Recurring):
            return relation.id == self._recursion
        return self._recursion is not None and any(map(self._is_recurring, inputs_of(relation)))

    def of(self, relation: Relation) -> Relation:  # noqa: PLR0911 (one for each kind)
        """Return a relation evaluated for all rows of the domain; the domain's columns come first."""
        if not self._refers(relation):
            return joined(self._domain, _raised(relation))
        match relation:
            case Recurring() if relation.id == self._recursion:
                return replace(relation, types=(*self._domain.types, *relation.types))
            case Project():
                expressions = tuple(self._expression(expression) for expression in relation.expressions)
                return Project(self.of(relation.input), (*self._keys, *expressions))
            case Filter():
                return filtered(self.of(relation.input), self._expression(relation.predicate))
            case Join():
                return self._join(relation)
            case OuterJoin():
                return self._outer_join(relation)
            case Unnest():
                return Unnest(self.of(relation.input), self._expression(relation.array))
            case UnionAll():
                return UnionAll(tuple(self.of(child) for child in relation.inputs))
            case Distinct():
                return Distinct(self.of(relation.input))
            case SetOperation():
                return replace(relation, left=self.of(relation.left), right=self.of(relation.right))
            case Recursion() | Recurring():  # the recursion has no outer references
                return joined(self._domain, relation)
            case _:
                return self._grouped(relation)

    def _grouped(self, relation: Reduce | Window | TopK | Get | Constant) -> Relation:
        match relation:
            case Reduce():
                return self._reduce(relation)
            case Window():
                functions = [rewritten_window(function, self._replacement) for function in relation.functions]
                by_key = tuple(
                    replace(function, partition=(*self._keys, *function.partition)) for function in functions
                )
                return Window(self.of(relation.input), by_key)
            case TopK():
                keys = (*self._keys, *(self._expression(key) for key in relation.keys))
                order = rewritten_order(relation.order, self._replacement)
                return TopK(self.of(relation.input), keys, order, relation.limit, relation.offset)
            case Get() | Constant():
                return joined(self._domain, relation)

    def _reduce(self, relation: Reduce) -> Relation:
        aggregates = tuple(rewritten_aggregate(aggregate, self._replacement) for aggregate in relation.aggregates)
        keys = (*self._keys, *(self._expression(key) for key in relation.keys))
        reduced = Reduce(self.of(relation.input), keys, aggregates)
        if relation.keys:
            return reduced
        # Without keys, an empty input results in one row: NULLs, and 0 for counts.
        same = [_same(key, Column(self._count + key.index, key.type)) for key in self._keys]
        outer = OuterJoin(Side.LEFT, self._domain, reduced, connected("and", same))
        results: list[Expression] = []
        for index, aggregate in enumerate(aggregates):
            column = Column(2 * self._count + index, aggregate.type)
            is_count = aggregate.function.startswith(("count", "regr_count"))
            zero = Literal(0, aggregate.type)
            results.append(Call("coalesce", (column, zero), aggregate.type) if is_count else column)
        return Project(outer, (*self._keys, *results))

    def _join(self, relation: Join) -> Relation:
        """Return a join with the domain joined to all inputs that refer to it.

        If no input does, return the product of join and domain.
        """
        if not any(map(self._refers, relation.inputs)):
            inputs = (self._domain, *(_raised(child) for child in relation.inputs))
            return Join(inputs, tuple(self._expression(predicate) for predicate in relation.predicates))
        joint = self._domain
        predicates: list[Expression] = []
        kept = list(self._keys)
        for child in relation.inputs:
            width = len(joint.types)
            needs = self._refers(child)
            part = self.of(child) if needs else _raised(child)
            skipped = self._count if needs else 0
            if needs:
                predicates += [_same(key, Column(width + key.index, key.type)) for key in self._keys]
            kept += [Column(width + skipped + index, kind) for index, kind in enumerate(child.types)]
            joint = joined(joint, part)
        rows = Project(joined(joint, Constant(((),), ()), predicates), tuple(kept))
        own = [self._expression(predicate) for predicate in relation.predicates]
        return Filter(rows, connected("and", own)) if own else rows

    def _outer_join(self, relation: OuterJoin) -> Relation:
        left, right = self.of(relation.left), self.of(relation.right)
        width, own = len(left.types), len(relation.left.types)
        behind = [_same(key, Column(width + key.index, key.type)) for key in self._keys]
        predicate = self._expression(relation.predicate)
        predicate = with_columns(
            predicate,
            lambda column: shifted(column, self._count) if column.index >= self._count + own else column,
        )
        relation = OuterJoin(relation.side, left, right, connected("and", [*behind, predicate]))
        columns = columns_of(relation)
        others = columns[width : width + self._count]
        pairs = zip(columns[: self._count], others, strict=True)
        keys: tuple[Expression, ...] = tuple(Call("coalesce", pair, pair[0].type) for pair in pairs)
        if relation.side is Side.LEFT:
            keys = columns[: self._count]
        return Project(relation, (*keys, *columns[self._count : width], *columns[width + self._count :]))


LATERAL = Clause("FROM clause of their own query level")


class TablePlanner:
    """Planner of FROM items."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._joiner = Joiner(queries)

    def source(self, items: Sequence[FromItem], parent: Frame | None) -> Source:
        """Plan the items of FROM as a cross join."""
        source = NO_SOURCE
        for index, item in enumerate(items):
            source = self._beside(source, item, parent) if index else self._first(item, parent)
        return source

    def _first(self, item: FromItem, parent: Frame | None) -> Source:
        """Plan the first item of FROM, which has no columns to its left."""
        if isinstance(item, JoinedTable):
            return self._item(item, parent)
        return self._beside(NO_SOURCE, item, parent)

    def _beside(self, left: Source, item: FromItem, parent: Frame | None) -> Source:
        if _has_lateral(item):
            right = self._item(item, Frame(NO_SOURCE, parent, LATERAL), Frame(left, parent, LATERAL))
            check_names(left, right, item.offset)
            relation = with_lateral(left.relation, right.relation)
            return beside(relation, left, right)
        right = self._item(item, parent)
        check_names(left, right, item.offset)
        return beside(joined(left.relation, right.relation), left, right)

    def _item(self, item: FromItem, parent: Frame | None, lateral: Frame | None = None) -> Source:  # noqa: PLR0911 (one for each kind)
        """Plan an item of FROM.

        Args:
            item: the item.
            parent: the outer query.
            lateral: the columns that lateral items see, as deep as `parent`; None for those of `parent`.
        """
        parent = lateral if lateral is not None and _is_lateral(item) else parent
        match item:
            case RelationReference():
                return self._relation(item, parent)
            case DerivedTable():
                body = self._queries.plan(item.query, parent, rows=RowsAs.COLUMNS)
                return visible(body.settled(), body.names, item.alias, None)
            case FunctionTable():
                is_known = not item.call.arguments or item.call.name.name in EMPTY_FUNCTIONS
                if is_known and (rows := self._queries.names.lookup(FUNCTIONS, item.call.name.name)):
                    names = tuple(column.name for column in rows.columns)
                    source = visible(rows.relation, names, item.alias, rows.name)
                    return _without_hidden(source)
                relation, names = rows_of_function(self._queries, item, parent)
                source = visible(relation, names, item.alias, item.call.name.name)
                is_value = len(names) == 1
                return replace(source, tables=(replace(source.tables[0], is_value=is_value),))
            case RowsFrom():
                relation, names = rows_side_by_side(self._queries, item, parent)
                return visible(relation, names, item.alias, item.calls[0].name.name)
            case SampledTable():
                source, name = self._relation(item.table, parent), item.table.name
                is_common = name.schema is None and name.name in self._queries.common
                named = None if is_common else self.named(name)
                return replace(source, relation=sampled(self._queries, item, source.relation, named))
            case JoinedTable():
                return self._joined(item, parent, lateral)

    def _joined(self, item: JoinedTable, parent: Frame | None, lateral: Frame | None) -> Source:
        left = self._item(item.left, parent, lateral)
        is_merging = item.using is not None or item.is_natural
        if _is_lateral(item.right) or (_has_lateral(item.right) and not is_merging):
            source = self._lateral_join(item, left, parent, lateral)
        else:
            right = self._item(item.right, parent, lateral)
            check_names(left, right, item.right.offset)
            source = self._joiner.join(item, left, right, parent)
        if item.alias is None:
            return source
        names = renamed_columns(tuple(column.name for column in source.columns), item.alias)
        columns = tuple(replace(column, name=name) for name, column in zip(names, source.columns, strict=True))
        return Source(source.relation, (VisibleTable(item.alias.name, None, columns),), columns)

    def _lateral_join(self, item: JoinedTable, left: Source, parent: Frame | None, lateral: Frame | None) -> Source:
        table, frame = item.right, Frame(left, lateral or parent, LATERAL)
        if item.kind in {JoinKind.RIGHT, JoinKind.FULL}:
            frame.refusal = "The combining JOIN type must be INNER or LEFT for a LATERAL reference."
        right = self._item(table, Frame(NO_SOURCE, parent, LATERAL), frame)
        check_names(left, right, table.offset)
        if item.using is not None or item.is_natural:
            raise SqlError(
                "0A000", "USING is not supported with LATERAL", offset=item.offset, hint="Write the condition with ON."
            )
        both = beside(joined(left.relation, right.relation), left, right)
        predicate = self._joiner.condition(item, both, parent)
        return beside(with_lateral(left.relation, right.relation, predicate, item.kind), left, right)

    def _relation(self, item: RelationReference, parent: Frame | None) -> Source:
        common = self._queries.common.get(item.name.name) if item.name.schema is None else None
        if common is not None:
            level = parent.level + 1 if parent else 0
            relation = deepened_relation(common.relation, level - common.level)
            return visible(relation, common.names, item.alias, item.name.name)
        named = self.named(item.name)
        names = tuple(column.name for column in named.columns)
        if named.definition is not None:
            self._queries.views[id(named.definition)] = named.definition, named.id
        source = visible(named.relation, names, item.alias, item.name.name)
        if named.kind is RelationKind.SYSTEM:
            source = _without_hidden(source)
        schema = None if item.alias is not None else item.name.schema
        table = replace(source.tables[0], schema=schema, key=named.indexes(named.primary_key))
        return Source(source.relation, (table,), source.columns)

    def named(self, name: QualifiedName) -> NamedRelation:
        """Return the relation of a name.

        Raises:
            SqlError: the relation does not exist (42P01).
        """
        named = self._queries.names.lookup(name.schema, name.name)
        if named is None:
            # Names of collections contain a slash, so `schema.name` may mean `schema/name`.
            meant = f"{name.schema}/{name.name}" if name.schema else name.name
            candidates = self._queries.names.candidates()
            namesakes = [known for known in candidates if known.endswith(f"/{name.name}")]  # orders for shop/orders
            nearest = suggest(meant, candidates) if name.schema else None
            nearest = nearest or min(namesakes, default=None) or suggest(name.name, candidates)
            quoted = nearest if nearest and nearest.isidentifier() and nearest == nearest.lower() else f'"{nearest}"'
            hint = f"Did you mean {quoted}?" if nearest else None
            raise SqlError("42P01", f'relation "{name}" does not exist', offset=name.offset, hint=hint)
        return named


def _is_lateral(item: FromItem) -> bool:
    """Return whether an item may refer to earlier items of FROM; functions may."""
    return isinstance(item, FunctionTable | RowsFrom) or (isinstance(item, DerivedTable) and item.is_lateral)


def _has_lateral(item: FromItem) -> bool:
    """Return whether an item, or a part of a join, may refer to earlier items of FROM."""
    if isinstance(item, JoinedTable):
        return _has_lateral(item.left) or _has_lateral(item.right)
    return _is_lateral(item)


def visible(relation: Relation, names: tuple[str, ...], alias: Alias | None, name: str | None) -> Source:
    """Return a relation as a source, under its name or an alias."""
    if alias is not None:
        names = with_names(names, renamed_columns(shown_names(names), alias))
        name = alias.name
    columns = visible_columns(names, columns_of(relation))
    return Source(relation, (VisibleTable(name, None, columns),), columns)


def _without_hidden(source: Source) -> Source:
    """Return a system relation as a source whose last column, its `tableoid`, is hidden."""
    columns = source.columns[:-1]
    table = replace(source.tables[0], columns=columns, hidden=source.columns[-1:])
    return Source(source.relation, (table,), columns)


def renamed_columns(names: tuple[str, ...], alias: Alias) -> tuple[str, ...]:
    """Return names of columns; the names of an alias replace the first names."""
    if len(alias.columns) > len(names):
        message = f'table "{alias.name}" has {len(names)} columns available but {len(alias.columns)} columns specified'
        raise SqlError("42P10", message, offset=alias.offset)
    return (*alias.columns, *names[len(alias.columns) :])


def check_names(left: Source, right: Source, offset: int) -> None:
    """Check that two sources have no table name in common.

    Raises:
        SqlError: a name is used twice (42712).
    """
    names = {(table.schema, table.name) for table in left.tables if table.name}
    for table in right.tables:
        if (table.schema, table.name) in names:
            message = f'table name "{table.name}" specified more than once'
            raise SqlError("42712", message, offset=offset)
