"""Pruning of unread columns: large ones, and timestamps, which change most often.

Other columns stay, so that plans of the same collection share arrangements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate

from derive.algebra.expression import Column, Expression
from derive.algebra.expression_parts import columns_read, replaced
from derive.algebra.relation import GlobalId
from derive.algebra.types import Type
from derive.compute.plans.plan import Counted, Grouped, Keyed, Linear, Plan, Recomputed, Source, Term, inputs_of

_DISPENSABLE = {Type.JSONB, Type.BYTEA, Type.TIMESTAMPTZ}


def pruned(plan: Plan, sources: Collection[GlobalId]) -> Plan:
    """Return a plan with the same rows that reads fewer columns of some sources.

    Args:
        plan: a plan whose sources have all columns.
        sources: sources whose columns may be pruned.
    """
    read: dict[GlobalId, set[int]] = {}
    _note(plan, read)
    kept: dict[GlobalId, tuple[int, ...]] = {}
    _choose(plan, read, sources, kept)
    return _narrowed(plan, kept) if kept else plan


def _note(plan: Plan, read: dict[GlobalId, set[int]]) -> None:
    """Record which columns of sources are read."""
    if isinstance(plan, Source):
        read.setdefault(plan.id, set()).update(range(len(plan.types)))
        return
    if not isinstance(plan, Linear):
        for source in inputs_of(plan):
            _note(source, read)
        return
    for term in plan.terms:
        columns = {index for part in (*term.predicates, *term.outputs) for index in columns_read(part)}
        for leaf, start in zip(term.leaves, _starts(term), strict=True):
            if isinstance(leaf, Source):
                own = {index - start for index in columns if start <= index < start + len(leaf.types)}
                read.setdefault(leaf.id, set()).update(own)
            else:
                _note(leaf, read)


def _choose(
    plan: Plan,
    read: Mapping[GlobalId, set[int]],
    sources: Collection[GlobalId],
    kept: dict[GlobalId, tuple[int, ...]],
) -> None:
    """Choose the remaining columns of pruned sources."""
    if isinstance(plan, Source) and plan.id in sources:
        columns = [index for index, kind in enumerate(plan.types) if kind not in _DISPENSABLE or index in read[plan.id]]
        if len(columns) < len(plan.types):
            kept[plan.id] = tuple(columns)
    for source in inputs_of(plan):
        _choose(source, read, sources, kept)


def _narrowed(plan: Plan, kept: Mapping[GlobalId, tuple[int, ...]]) -> Plan:
    match plan:
        case Source(id=identifier, types=types) if identifier in kept:
            return Source(identifier, tuple(types[index] for index in kept[identifier]), kept[identifier])
        case Linear(terms=terms):
            return Linear(tuple(_narrowed_term(term, kept) for term in terms))
        case Grouped(input=source) | Counted(input=source):
            return replace(plan, input=_narrowed(source, kept))
        case Keyed(inputs=inputs) | Recomputed(inputs=inputs):
            return replace(plan, inputs=tuple(_narrowed(source, kept) for source in inputs))
        case _:
            return plan


def _narrowed_term(term: Term, kept: Mapping[GlobalId, tuple[int, ...]]) -> Term:
    columns: dict[int, int] = {}
    for leaf, start in zip(term.leaves, _starts(term), strict=True):
        own = kept.get(leaf.id) if isinstance(leaf, Source) else None
        for index in range(len(leaf.types)) if own is None else own:
            columns[start + index] = len(columns)

    def moved(expression: Expression) -> Expression:
        return replaced(expression, lambda column: Column(columns[column.index], column.type))

    return Term(
        tuple(_narrowed(leaf, kept) for leaf in term.leaves),
        tuple(map(moved, term.predicates)),
        tuple(map(moved, term.outputs)),
        term.is_negative,
    )


def _starts(term: Term) -> list[int]:
    return [0, *accumulate(len(leaf.types) for leaf in term.leaves)][: len(term.leaves)]
