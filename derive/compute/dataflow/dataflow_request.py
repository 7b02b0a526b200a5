"""Requested and maintained dataflows of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from derive.algebra.relation import GlobalId, Relation
from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.input import Input
from derive.compute.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A maintained dataflow.

    Attributes:
        relation: its relation.
        cohort: its group.
        since: the earliest time at which it can be read.
    """

    relation: Relation
    cohort: Cohort
    since: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A requested dataflow that is not maintained yet."""

    relation: Relation
    plan: Plan
    as_of: int
    inputs: Mapping[GlobalId, Input]
