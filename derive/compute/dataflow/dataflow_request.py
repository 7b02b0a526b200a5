"""What an instance is asked to maintain, and what it does maintain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from derive.algebra.relation import GlobalId, Relation
from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.input import Input
from derive.compute.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A dataflow that is maintained.

    Attributes:
        relation: what it has the rows of.
        cohort: in which it is.
        since: at times from this on it can be asked.
    """

    relation: Relation
    cohort: Cohort
    since: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A dataflow that is not maintained yet."""

    relation: Relation
    plan: Plan
    as_of: int
    inputs: Mapping[GlobalId, Input]
