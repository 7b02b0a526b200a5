"""Plans leave out what nobody reads."""

from __future__ import annotations

from relations_sample import call

from derive.algebra.expression import Column
from derive.algebra.relation import Get, Join, Project
from derive.algebra.types import Type
from derive.compute.plans.plan import Linear, Source
from derive.compute.plans.planning import plan_of, pruned

DOCUMENTS = Get(1, (Type.JSONB, Type.BIGINT, Type.TIMESTAMPTZ, Type.TEXT))
JOINED = Join((DOCUMENTS, DOCUMENTS), (call("=", Column(1, Type.BIGINT), Column(5, Type.BIGINT)),))


def test_pruning_omits_unread_large_columns() -> None:
    """Pruning removes unread columns and keeps the others in their places."""
    plan = pruned(plan_of(Project(JOINED, (Column(3, Type.TEXT), Column(6, Type.TIMESTAMPTZ)))), {1})
    narrow = Source(1, (Type.BIGINT, Type.TIMESTAMPTZ, Type.TEXT), (1, 2, 3))
    assert isinstance(plan, Linear)
    assert plan.terms[0].leaves == (narrow, narrow)
    assert plan.terms[0].outputs == (Column(2, Type.TEXT), Column(4, Type.TIMESTAMPTZ))
    assert plan.terms[0].predicates == (call("=", Column(0, Type.BIGINT), Column(3, Type.BIGINT)),)


def test_pruning_of_the_only_plan_over_its_sources_keeps_read_columns_only() -> None:
    plan = pruned(plan_of(Project(JOINED, (Column(3, Type.TEXT),))), {1}, is_shared=False)
    narrow = Source(1, (Type.BIGINT, Type.TEXT), (1, 3))
    assert isinstance(plan, Linear)
    assert plan.terms[0].leaves == (narrow, narrow)
    counted = pruned(plan_of(Project(DOCUMENTS, ())), {1}, is_shared=False)
    assert isinstance(counted, Linear)
    assert counted.terms[0].leaves == (Source(1, (), ()),)


def test_pruning_keeps_columns_of_shown_relations() -> None:
    """A source that is read as it is, or that is a view, has all columns."""
    for relation, sources in ((DOCUMENTS, {1}), (JOINED, {1}), (Project(DOCUMENTS, (Column(1, Type.BIGINT),)), set())):
        plan = plan_of(relation)
        assert pruned(plan, sources) == plan
