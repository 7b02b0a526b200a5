"""Planner of TABLESAMPLE: a condition that is true for a share of the rows.

With REPEATABLE, the condition depends on the values of a row and on the seed only, so that a maintained view can have
it. Without, each row is drawn anew by each query.
"""

from __future__ import annotations

from derive.algebra.expression import Call, Expression
from derive.algebra.relation import Filter, Relation
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_function, resolve_operator
from derive.functions.scalar.sampling import IS_SAMPLED, SHARE
from derive.sql.parser.ast import SampledTable, SyntaxNode
from derive.sql.planner.building import columns_of
from derive.sql.planner.interfaces import NamedRelation, Queries, RelationKind
from derive.sql.planner.output import start_of
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame

_METHODS = frozenset({"bernoulli", "system"})
_CLAUSE = Clause("TABLESAMPLE")


def sampled(queries: Queries, item: SampledTable, rows: Relation, named: NamedRelation | None) -> Relation:
    """Return a sample of the rows of a relation.

    Args:
        queries: planner of queries.
        item: the item of FROM.
        rows: the rows of the relation.
        named: the relation; None for a common table expression.

    Raises:
        SqlError: 0A000, the relation has no rows of its own; 42704, the method does not exist; 2202H or 2202G, the
            percentage or the seed is not valid.
    """
    if named is None or named.kind is RelationKind.VIEW:
        message = "TABLESAMPLE clause can only be applied to tables and materialized views"
        hint = "Write a condition, such as WHERE random() < 0.01."
        raise SqlError("0A000", message, offset=item.table.offset, hint=hint)
    if item.method not in _METHODS:
        hint = "The methods are BERNOULLI and SYSTEM."
        raise SqlError("42704", f"tablesample method {item.method} does not exist", offset=item.offset, hint=hint)
    if len(item.arguments) != 1:
        message = f"tablesample method {item.method} requires 1 argument, not {len(item.arguments)}"
        raise SqlError("2202H", message, offset=item.offset)
    share = Call(SHARE, (_number(queries, item.arguments[0]),), Type.DOUBLE)
    if item.seed is None:
        drawn = Call(resolve_function("random", ()).function, (), Type.DOUBLE)
        below = resolve_operator("<", (Type.DOUBLE, Type.DOUBLE)).function
        return Filter(rows, Call(below, (drawn, share), Type.BOOLEAN))
    seed = _number(queries, item.seed)
    return Filter(rows, Call(IS_SAMPLED, (share, seed, *columns_of(rows)), Type.BOOLEAN))


def _number(queries: Queries, node: SyntaxNode) -> Expression:
    value = queries.expressions(Frame(NO_SOURCE, None, _CLAUSE)).plan(node)
    cast = queries.coercion.cast(value, Type.DOUBLE, start_of(node))
    if cast is None:
        message = f"argument of TABLESAMPLE must be a number, not {value.type.value}"
        raise SqlError("42804", message, offset=start_of(node))
    return cast
