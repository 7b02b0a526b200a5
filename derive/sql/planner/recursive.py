"""Planner of WITH RECURSIVE, with PostgreSQL's rules for recursive references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from derive.algebra.expression import Expression, OuterColumn
from derive.algebra.relation import Recurring, Recursion, Reduce, Relation, UnionAll
from derive.algebra.rewrite import inputs_of, rewritten_relation
from derive.errors import SqlError
from derive.sql.parser.ast import (
    CommonTable,
    DerivedTable,
    FunctionTable,
    JoinedTable,
    JoinKind,
    Query,
    RelationReference,
    SetQuery,
    With,
)
from derive.sql.planner.interfaces import CommonRelation, Queries
from derive.sql.planner.set_operations import combined

if TYPE_CHECKING:
    from derive.sql.planner.scope import Frame

_OUTER = {JoinKind.LEFT: (False, True), JoinKind.RIGHT: (True, False), JoinKind.FULL: (True, True)}
"""For each kind of join, whether the left and the right side may be padded with NULLs."""


def renamed(names: tuple[str, ...], others: tuple[str, ...], what: str, offset: int) -> tuple[str, ...]:
    """Return names of columns, with the first ones replaced."""
    if len(others) > len(names):
        message = f"{what} has {len(names)} columns available but {len(others)} columns specified"
        raise SqlError("42P10", message, offset=offset)
    return (*others, *names[len(others) :])


def refers_to(query: Query, name: str) -> bool:
    """Return whether a query refers to a common table expression."""
    return any(True for _ in _references(query, name, None))


def recursive(queries: Queries, table: CommonTable, parent: Frame | None, level: int) -> CommonRelation:
    """Plan a recursive query.

    Args:
        queries: planner of queries.
        table: the common table expression.
        parent: the outer query.
        level: number of outer queries.

    Raises:
        SqlError: 42P19, a recursive reference is misplaced; 42804, the types differ from those of the first rows;
            0A000.
    """
    query, name = table.query, table.name
    united = _united(table)
    outside = queries.common
    try:
        queries.define(With(query.common_tables, query.is_recursive), parent)
        base = queries.unordered(united.left, parent, False)
        names = renamed(base.names, table.columns, f'WITH query "{name}"', table.offset)
        recurring = Recurring(next(queries.recursions), base.relation.types)
        queries.common = {**queries.common, name: CommonRelation(recurring, names, level)}
        step = queries.unordered(united.right, parent, True)
    finally:
        queries.common = outside
    both = combined(queries.coercion, replace(united, is_all=True), base, step).relation
    for index, (kind, other) in enumerate(zip(recurring.types, both.types, strict=True)):
        if kind is not other:
            message = f'recursive query "{name}" column {index + 1} has type {kind.value} in non-recursive term'
            hint = "Cast the output of the non-recursive term to the correct type."
            raise SqlError("42804", f"{message} but type {other.value} overall", hint=hint, offset=base.offsets[index])
    assert isinstance(both, UnionAll)
    *first, last = both.inputs
    relation = Recursion(recurring.id, first[0] if len(first) == 1 else UnionAll(tuple(first)), last, not united.is_all)
    _require_simple(relation, name, next(_references(united.right, name, None))[0].offset)
    return CommonRelation(relation, names, level)


def _united(table: CommonTable) -> SetQuery:
    """Return the UNION of first rows and recursive step, after checks of the recursive references."""
    query, name = table.query, table.name
    body = query.body
    while isinstance(body, Query) and not (body.common_tables or body.order or body.limit or body.limit_offset):
        body = body.body
    if not isinstance(body, SetQuery) or body.operator != "UNION":
        message = f'recursive query "{name}" does not have the form non-recursive-term UNION [ALL] recursive-term'
        raise SqlError("42P19", message, offset=table.offset)
    for reference, _ in _references(body.left, name, None):
        raise _misplaced(name, "must not appear within its non-recursive term", reference)
    references = [*_references(body.right, name, None)]
    for number, (reference, place) in enumerate(references):
        if place is not None:
            raise _misplaced(name, f"must not appear within {place}", reference)
        if number:
            raise _misplaced(name, "must not appear more than once", reference)
    for clause, items in (("ORDER BY", query.order), ("OFFSET", query.limit_offset), ("LIMIT", query.limit)):
        if items:
            offset = items[0].expression.offset if isinstance(items, tuple) else items.offset
            raise SqlError("0A000", f"{clause} in a recursive query is not implemented", offset=offset)
    if not references:
        raise SqlError("0A000", "WITH RECURSIVE that refers to itself in a WITH of its own is not supported")
    return body


def _misplaced(name: str, where: str, reference: RelationReference) -> SqlError:
    return SqlError("42P19", f'recursive reference to query "{name}" {where}', offset=reference.offset)


def _references(node: Any, name: str, place: str | None) -> Iterator[tuple[RelationReference, str | None]]:
    """Yield references to a name, each with the construct around it that forbids recursion, or None."""
    match node:
        case RelationReference(name=reference):
            if reference.schema is None and reference.name == name:
                yield node, place
        case Query() if any(table.name == name for table in node.common_tables):
            return  # the name is shadowed here
        case JoinedTable(left=left, right=right, kind=kind):
            for side, is_outer in zip((left, right), _OUTER.get(kind, (False, False)), strict=True):
                yield from _references(side, name, "an outer join" if is_outer else place)
            yield from _references(node.condition, name, "a subquery")
        case SetQuery(left=left, right=right, operator=operator):
            around = f"{operator}" if operator != "UNION" and node.is_all else place
            yield from _references(left, name, around)
            yield from _references(right, name, "EXCEPT" if operator == "EXCEPT" else around)
        case DerivedTable(query=query):
            yield from _references(query, name, place)
        case FunctionTable(call=call):
            yield from _references(call, name, "a subquery")
        case tuple():
            for part in node:
                yield from _references(part, name, place)
        case _ if is_dataclass(node):
            for item in fields(node):
                is_around = isinstance(getattr(node, item.name), Query) and not isinstance(node, Query | CommonTable)
                yield from _references(getattr(node, item.name), name, "a subquery" if is_around else place)


def _require_simple(recursion: Recursion, name: str, offset: int) -> None:
    if _refers_outside(recursion):
        hint = "Join it to the query around it, or write that without LATERAL."
        message = "WITH RECURSIVE that refers to the query around it is not supported"
        raise SqlError("0A000", message, hint=hint, offset=offset)
    if any(isinstance(part, Recursion) and not _recurring(part) <= {part.id} for part in _parts(recursion.step)):
        message = "WITH RECURSIVE inside of another one that it refers to is not supported"
        raise SqlError("0A000", message, offset=offset)
    for part in _parts(recursion.step):
        if isinstance(part, Reduce) and part.aggregates and recursion.id in _recurring(part):
            message = "aggregate functions are not allowed in a recursive query's recursive term"
            raise SqlError("42P19", message, hint=f'Aggregate the rows of "{name}" behind WITH.', offset=offset)


def _refers_outside(relation: Relation) -> bool:
    has = False

    def note(part: Expression, depth: int) -> Expression | None:
        nonlocal has
        has = has or (isinstance(part, OuterColumn) and part.depth > depth)
        return None

    rewritten_relation(relation, note)
    return has


def _recurring(relation: Relation) -> set[int]:
    return {part.id for part in _parts(relation) if isinstance(part, Recurring)}


def _parts(relation: Relation) -> Iterator[Relation]:
    yield relation
    for part in inputs_of(relation):
        yield from _parts(part)
