"""Dependencies of a relation, its size, and whether its rows are deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from derive.algebra.expression import Call, Expression, Subquery
from derive.algebra.relation import Get, GlobalId, Recursion, Relation
from derive.algebra.rewrite import inputs_of, mentions, rewritten_relation
from derive.algebra.types import Type
from derive.compute.instance import can_follow_time
from derive.errors import SqlError
from derive.functions.registry import PRESENT, READ_TIME, function_named
from derive.sql.parser.ast import FunctionCall, Logical, Select
from derive.sql.planner.interfaces import FIRST_SYSTEM_ID, STAGED

_MOST_PARTS = 3000
"""Greatest number of nodes of a relation."""


def ids_of(relation: Relation) -> frozenset[GlobalId]:
    """Return the identifiers of stored relations and views that a relation reads, also in subqueries."""
    return frozenset(identifier for identifier in types_read(relation) if identifier < STAGED)


def needs_context(relation: Relation) -> bool:
    """Return whether a relation reads system relations, or calls functions that need a session."""
    if any(identifier >= FIRST_SYSTEM_ID for identifier in types_read(relation)):
        return True
    return mentions(relation, lambda part: isinstance(part, Call) and function_named(part.function).needs_context)


def has_effects(relation: Relation) -> bool:
    """Return whether a relation calls functions with effects on the session, which may wait."""

    def has_effect(part: Expression) -> bool:
        function = function_named(part.function) if isinstance(part, Call) else None
        return function is not None and function.needs_context and function.is_volatile

    return mentions(relation, has_effect)


def types_read(relation: Relation) -> dict[GlobalId, tuple[Type, ...]]:
    """Return the column types of all relations that a relation reads, including its subqueries."""
    types = {part.id: part.types for part in _parts(relation) if isinstance(part, Get)}

    def note(part: Expression, _: int) -> Expression | None:
        if isinstance(part, Subquery):
            types.update({child.id: child.types for child in _parts(part.relation) if isinstance(child, Get)})
        return None

    rewritten_relation(relation, note)
    return types


def _parts(relation: Relation) -> Iterator[Relation]:
    yield relation
    for child in inputs_of(relation):
        yield from _parts(child)


def require_small(relation: Relation) -> None:
    """Check that a relation, with the views that it mentions, is small enough to be planned quickly.

    Raises:
        SqlError: the relation is too large, for example because nested views mention views twice (54001).
    """
    size = 0

    def add(part: Relation) -> None:
        nonlocal size
        for _ in _parts(part):
            size += 1
            if size > _MOST_PARTS:
                hint = "Make a materialized view of a part of it."
                raise SqlError("54001", "the statement is too complex with the views that it mentions", hint=hint)

    def note(part: Expression, _: int) -> Expression | None:
        if isinstance(part, Subquery):
            add(part.relation)
        return None

    add(relation)
    rewritten_relation(relation, note)


def volatile_function(relation: Relation) -> str | None:
    """Return the SQL name of a volatile function in a relation; None if missing."""
    return next(iter(volatile_functions(relation)), None)


def volatile_functions(relation: Relation) -> list[str]:
    """Return the SQL names of the volatile functions in a relation."""
    names: list[str] = []

    def note(part: Expression, _: int) -> Expression | None:
        if isinstance(part, Call):
            function = function_named(part.function)
            if function.is_volatile or function.needs_context:
                names.append(function.symbol)
        return None

    rewritten_relation(relation, note)
    return names


def has_recursion(node: Any) -> bool:
    """Return whether a relation, or a structure of relations, contains WITH RECURSIVE."""
    if isinstance(node, Recursion):
        return True
    if isinstance(node, tuple):
        return any(map(has_recursion, node))
    return is_dataclass(node) and any(has_recursion(getattr(node, item.name)) for item in fields(node))


def require_maintainable(relation: Relation, what: str, query: Any = None) -> None:
    """Check that a relation can be incrementally maintained.

    Args:
        relation: the relation over stored relations; `now()` is the time of the read.
        what: `materialized view`, `index`, … for the error.
        query: syntax tree of the query, for the position of an error; None if there is none.

    Raises:
        SqlError: the relation contains WITH RECURSIVE, or a volatile function outside of temporal filters (0A000).
    """
    if has_recursion(relation):
        hint = "Run it as a query, or store its rows in a table with CREATE TABLE … AS."
        raise SqlError("0A000", f"WITH RECURSIVE cannot be used in a {what}", hint=hint)
    if any(identifier >= FIRST_SYSTEM_ID for identifier in types_read(relation)):
        raise SqlError("0A000", f"system relations cannot be used in a {what}", hint="Query them directly.")
    names = volatile_functions(relation)
    name = next((name for name in names if name != READ_TIME), None)
    if name is not None:
        message = f"{name}() cannot be used in a {what}"
        hint = "Its value changes even if no relation changes: call it in the query that reads the result."
        raise SqlError("0A000", message, hint=hint)
    if names and not can_follow_time(relation):
        message = f"now() can be used in a {what} only in comparisons in WHERE"
        raise SqlError("0A000", message, offset=_offset_of_time(query), hint=_COMPARISONS)


_COMPARISONS = (
    "Compare it with columns of a table, and combine conditions by AND: at > now() - INTERVAL '5 minutes'. Add months"
    " to the columns: at + INTERVAL '1 month' > now(). In other places, call it in the query that reads the result."
)
_TIMES = {*PRESENT, READ_TIME, "current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}


def _offset_of_time(query: Any) -> int | None:
    """Return the offset of the present time in a syntax tree, preferably outside of comparisons in WHERE."""
    calls = list(_calls_of_time(query, is_in_filter=False))
    return next((offset for offset, is_in_filter in calls if not is_in_filter), calls[0][0] if calls else None)


def _calls_of_time(node: Any, *, is_in_filter: bool) -> Iterator[tuple[int, bool]]:
    """Yield the offset of each call of the present time, and whether it is in a comparison in WHERE."""
    if isinstance(node, tuple):
        for part in node:
            yield from _calls_of_time(part, is_in_filter=is_in_filter)
    elif isinstance(node, FunctionCall) and node.name.name in _TIMES:
        yield node.offset, is_in_filter
    elif is_dataclass(node):
        is_condition = is_in_filter and not isinstance(node, Select)
        is_condition = is_condition and not (isinstance(node, Logical) and node.connective == "or")
        for item in fields(node):
            is_where = isinstance(node, Select) and item.name == "condition"
            yield from _calls_of_time(getattr(node, item.name), is_in_filter=is_where or is_condition)
