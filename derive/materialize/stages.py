"""Transactions of any task as stages, and their execution in one process.

Modules of materializations are imported on first use, because the import of gRPC takes a tenth of a small run's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from derive.shard.plan import Plan
from derive.shard.progress import Message
from derive.shard.worker import Stages, message_batch, run_alone
from derive.shard.worker import stages_of as derivation_stages

if TYPE_CHECKING:
    from derive.materialize.plan import StorePlan

AnyPlan: TypeAlias = "Plan | StorePlan"
"""A transaction of a derivation or a materialization."""


def stages_of(plan: AnyPlan, cores: int | None = None) -> Stages:
    """Return the stages of a transaction; `cores` as for derivations."""
    if isinstance(plan, Plan):
        return derivation_stages(plan, cores)
    if plan.shards == 1 or plan.is_small:
        return Stages(1, 1, (partial(_alone, plan),))
    return Stages(len(plan.slices) - 1, plan.shards, (partial(_read, plan), partial(_store, plan)))


def run_locally(plan: AnyPlan, attempts: Iterator[int]) -> Iterator[Message]:
    """Execute a transaction in this process, one part after the other.

    Args:
        plan: the transaction.
        attempts: numbers for the attempts at parts.
    """
    if not isinstance(plan, Plan):
        from derive.materialize.worker import store_alone

        yield from store_alone(plan, attempts)
    else:
        for number in range(plan.tasks):
            yield from run_alone(plan, number, next(attempts))


def _alone(plan: StorePlan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    from derive.materialize.worker import store_alone

    yield message_batch(list(store_alone(plan, iter([attempt] * plan.shards))))


def _read(plan: StorePlan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    from derive.materialize.worker import run_read

    return run_read(plan, number)


def _store(plan: StorePlan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    from derive.materialize.worker import run_store

    for message in run_store(plan, number, packets, attempt):
        yield message_batch([message])
