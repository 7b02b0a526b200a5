"""A transaction as stages: tasks that run side by side, and packets of documents that cross from one stage to the next.

Whoever carries a transaction out needs to know no more of it than this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from derive.shard.message import Message
from derive.shard.plan import Plan
from derive.shard.worker import run_alone, run_combine, run_lambdas, run_shuffle

Stage: TypeAlias = Callable[[int, Iterator[pa.RecordBatch], int], Iterator[pa.RecordBatch]]
"""Runs one task of a stage, given its number, the packets that are addressed to it, in order of rank, and the number
of this attempt; yields packets (`PACKETS`) for the next stage, or messages (`MESSAGES`) if it is the last one."""

MESSAGE = "message"
MESSAGES = pa.schema([(MESSAGE, pa.string())])
"""What the last stage yields: JSON of a `Message` in each row."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What is done for a transaction, one stage after the other.

    Attributes:
        tasks: how many tasks the first stage has, which is delivered nothing.
        owners: how many tasks every other stage has, by the number that packets are addressed to.
        stages: at least one; they can be pickled.
    """

    tasks: int
    owners: int
    stages: tuple[Stage, ...]


def stages_of(plan: Plan) -> Stages:
    """The stages of a derivation's transaction."""
    if plan.shape == "sharded" and not plan.is_small:
        stages = (partial(_shuffle, plan), partial(run_lambdas, plan), partial(_combine, plan))
        return Stages(len(plan.slices) - 1, plan.shards, stages)
    return Stages(plan.tasks, 1, (partial(_alone, plan),))


def _alone(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    yield message_batch(run_alone(plan, number, attempt))


def _shuffle(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    return run_shuffle(plan, number)


def _combine(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_combine(plan, number, packets, attempt):
        yield message_batch([message])


def message_batch(messages: list[Message]) -> pa.RecordBatch:
    """Messages as the last stage yields them."""
    return pa.RecordBatch.from_pydict({MESSAGE: [message.to_json() for message in messages]}, schema=MESSAGES)
