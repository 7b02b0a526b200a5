"""What a relation reads, and whether it is the same whenever it is worked out."""

from __future__ import annotations

from collections.abc import Iterator

from derive.adapter.planner.rewriting import inputs_of, rewritten_relation
from derive.compute.algebra.expression import Call, Expression, Subquery
from derive.compute.algebra.relation import Get, GlobalId, Relation
from derive.compute.scalar.library import function_named
from derive.errors import SqlError


def ids_of(relation: Relation) -> frozenset[GlobalId]:
    """What a relation reads, also in subqueries of its expressions."""
    ids = {part.id for part in _parts(relation) if isinstance(part, Get)}

    def note(part: Expression, _: int) -> Expression | None:
        if isinstance(part, Subquery):
            ids.update(child.id for child in _parts(part.relation) if isinstance(child, Get))
        return None

    rewritten_relation(relation, note)
    return frozenset(ids)


def _parts(relation: Relation) -> Iterator[Relation]:
    yield relation
    for child in inputs_of(relation):
        yield from _parts(child)


def volatile_function(relation: Relation) -> str | None:
    """What SQL calls a function in a relation that may have another value the next time; None if there is none."""
    names: list[str] = []

    def note(part: Expression, _: int) -> Expression | None:
        if isinstance(part, Call):
            function = function_named(part.function)
            if function.is_volatile:
                names.append(function.symbol)
        return None

    rewritten_relation(relation, note)
    return names[0] if names else None


def require_maintainable(relation: Relation, what: str) -> None:
    """A relation that is kept up to date may only change with what it reads.

    Args:
        relation: what it stands for.
        what: is to be kept: `materialized view`, `index`, ….

    Raises:
        SqlError: 0A000, a function in it may have another value the next time.
    """
    name = volatile_function(relation)
    if name is not None:
        message = f"{name}() cannot be used in a {what}"
        hint = "Its value changes without anything that is read; use it in the query that reads the result."
        raise SqlError("0A000", message, hint=hint)
