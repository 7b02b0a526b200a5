"""The planner's entry points: queries, views and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.algebra.expression import Call, Expression
from derive.algebra.modifier_inference import modifiers_of
from derive.algebra.relation import Finishing, Project, Relation
from derive.algebra.rewrite import mentions
from derive.algebra.types import REGISTERED, Type
from derive.errors import SqlError
from derive.functions.registry import resolve_cast
from derive.sql.parser.ast import Query, SyntaxNode
from derive.sql.parser.parse import too_complex
from derive.sql.planner.building import columns_of
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.dependencies import needs_context, require_small
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.interfaces import Body, Names, RowsAs, count_of, is_sound
from derive.sql.planner.origins import Views, origin_of
from derive.sql.planner.output import start_of
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, is_of_session
from derive.sql.planner.queries import QueryPlanner, renamed
from derive.sql.planner.row_columns import groups_of
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame


def plan_query(
    query: Query, names: Names, types: Sequence[Type | None] = (), time: SyntaxNode | None = None
) -> PlannedQuery:
    """Plan a query whose rows are the result.

    Args:
        query: the query.
        names: names of relations.
        types: types of the parameters; None for an unknown type.
        time: expression of the query's AS OF, whose parameters are parameters of the query, too.

    Raises:
        SqlError: the query is invalid; the offset shows the cause.
    """
    parameters = ParameterTypes(types)
    try:
        planner = QueryPlanner(names, parameters)
        body = planner.plan(query, None, rows=RowsAs.TEXTS)
        if time is not None:
            _constants(planner).known(time)
        return finished(body, parameters.finish(), planner.views)
    except RecursionError:
        raise too_complex() from None


def finished(body: Body, parameters: tuple[Type, ...], views: Views) -> PlannedQuery:
    """Return the plan of a whole query, which reads some views."""
    require_small(body.relation)
    limit, offset = body.limit, body.offset
    relation, shown = with_names(body.relation, len(body.names))
    finishing = Finishing(
        body.order,
        count_of(limit) if is_sound(limit) else None,
        (count_of(offset) or 0) if is_sound(offset) else 0,
        shown,
    )
    modifiers = modifiers_of(relation)
    columns = tuple(
        PlannedColumn(name, relation.types[index], modifiers[index], origin_of(relation, index, views))
        for name, index in zip(body.names, shown, strict=True)
    )
    return PlannedQuery(
        relation,
        finishing,
        columns,
        parameters,
        None if is_sound(limit) else limit,
        None if is_sound(offset) else offset,
        mentions(relation, is_of_session),
        needs_context(relation),
    )


def with_names(relation: Relation, count: int) -> tuple[Relation, tuple[int, ...]]:
    """Return a relation whose first columns have names instead of oids of objects, and the indexes to show."""
    own = columns_of(relation)
    indexes, names = list(range(count)), list[Expression]()
    for index in range(count):
        kind = relation.types[index]
        if kind in REGISTERED or kind is Type.REGTYPE_ARRAY:
            target = Type.TEXT if kind in REGISTERED else Type.TEXT_ARRAY
            cast = resolve_cast(kind, target, "explicit")
            assert cast
            indexes[index] = len(own) + len(names)
            names.append(Call(cast, (own[index],), target))
    return (Project(relation, (*own, *names)) if names else relation), tuple(indexes)


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A planned view: its limits are applied, and the order of its query is dropped."""

    relation: Relation
    columns: tuple[PlannedColumn, ...]


def plan_view(query: Query, names: Names, columns: tuple[str, ...] = ()) -> PlannedView:
    """Plan a view, or the target of a subscription.

    Args:
        query: the query, without parameters.
        names: names of relations.
        columns: names of the first columns, which replace the names of the query.

    Raises:
        SqlError: the query is invalid; 42P02, the query has parameters; 42701, two columns have one name.
    """
    parameters = ParameterTypes()
    try:
        body = QueryPlanner(names, parameters).plan(query, None, rows=RowsAs.COLUMNS)
    except RecursionError:
        raise too_complex() from None
    if parameters.finish():
        raise SqlError(
            "42P02",
            "there is no parameter $1 in a view",
            hint="Write the value, or select rows where the view is queried.",
        )
    row = next((body.names[index] for index, count in groups_of(body.names) if count), None)
    if row is not None:
        hint = "Write its columns one by one, or to_jsonb(…)."
        raise SqlError("42P16", f'column "{row}" has pseudo-type record', hint=hint)
    if len(columns) > len(body.names):
        raise SqlError("42601", "CREATE VIEW specifies more column names than columns")
    relation = body.settled()
    all_names = renamed(body.names, columns, "", 0)
    for index, name in enumerate(all_names):
        if name in all_names[:index]:
            hint = "Give columns names of their own by AS."
            raise SqlError("42701", f'column "{name}" specified more than once', hint=hint)
    require_small(relation)
    return PlannedView(relation, tuple(map(PlannedColumn, all_names, relation.types, modifiers_of(relation))))


def _constants(queries: QueryPlanner) -> ExpressionPlanner:
    """Return a planner of expressions without columns."""
    return ExpressionPlanner(queries, Frame(NO_SOURCE, None, Clause("this expression")))


def plan_time(time: SyntaxNode, names: Names, types: Sequence[Type] = ()) -> Expression:
    """Plan the time of AS OF or UP TO.

    Args:
        time: the expression.
        names: names of relations.
        types: types of the statement's parameters; none for a statement without parameters.

    Raises:
        SqlError: the expression is invalid; 0A000, it has a parameter of another statement than SELECT.
    """
    expression, parameters = plan_value(time, names, types=types)
    if len(parameters) > len(types):
        raise SqlError(
            "0A000",
            "AS OF takes parameters only in SELECT",
            offset=start_of(time),
            hint="Write the time into the statement: AS OF '2024-01-01T00:00:00Z'.",
        )
    return expression


def plan_value(
    node: SyntaxNode, names: Names, target: Type | None = None, types: Sequence[Type | None] = ()
) -> tuple[Expression, tuple[Type, ...]]:
    """Plan an expression without columns, such as an argument of EXECUTE, and return its parameter types, too.

    Args:
        node: the expression.
        names: names of relations, for subqueries.
        target: required type; None for any.
        types: types of parameters, as far as known.

    Raises:
        SqlError: the expression is invalid, or has another type.
    """
    parameters = ParameterTypes(types)
    queries = QueryPlanner(names, parameters)
    expressions = _constants(queries)
    value = expressions.plan(node) if target else expressions.known(node)
    if target is not None:
        cast = queries.coercion.cast(value, target, start_of(node), "assignment")
        if cast is None:
            message = f"a value of type {target.value} is expected, not of type {value.type.value}"
            raise SqlError("42804", message, offset=start_of(node))
        value = cast
    return value, parameters.finish()
