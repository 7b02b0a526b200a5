"""A transaction as stages: tasks that run side by side, and packets of documents that cross from one stage to the next.

Whoever carries a transaction out needs to know no more of it than this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from derive.shard.message import Message
from derive.shard.plan import Plan
from derive.shard.worker import run_alone, run_apart, run_combine, run_compare, run_lambdas, run_shuffle
from derive.storage.blobs import blobs_of
from derive.storage.disk_errors import translated

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
        otherwise: what is done instead if a message says that shards have published documents of one key in one tick.
    """

    tasks: int
    owners: int
    stages: tuple[Stage, ...]
    otherwise: Stages | None = None


def stages_of(plan: Plan) -> Stages:
    """The stages of a derivation's transaction."""
    if plan.shape != "sharded" or plan.is_small:
        return Stages(plan.tasks, 1, (partial(_alone, plan),))
    combined = (partial(_shuffle, plan), partial(run_lambdas, plan), partial(_combine, plan))
    stages = Stages(len(plan.slices) - 1, plan.shards, combined)
    if not plan.is_disjoint:
        return stages
    apart = (partial(_shuffle, plan), partial(run_apart, plan), partial(_compare, plan))
    return replace(stages, stages=apart, otherwise=stages)


def carry_out(root: Path, work: Stages, run: Callable[[Stages], list[Message]]) -> list[Message]:
    """Run stages, and what is to be done instead if they come to nothing; returns all messages that count.

    Args:
        root: the data folder.
        work: the stages.
        run: runs stages; returns what the last one yields.
    """
    messages = run(work)
    if work.otherwise is None or not any(message.is_shared for message in messages):
        return messages
    paths = [segment.path for message in messages for segment in message.segments]
    with translated(root):
        blobs_of(root).delete(paths)
    return [*run(work.otherwise), Message(is_shared=True)]


def _alone(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    yield message_batch(run_alone(plan, number, attempt))


def _shuffle(plan: Plan, number: int, _: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    return run_shuffle(plan, number)


def _combine(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_combine(plan, number, packets, attempt):
        yield message_batch([message])


def _compare(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_compare(plan, packets):
        yield message_batch([message])


def message_batch(messages: list[Message]) -> pa.RecordBatch:
    """Messages as the last stage yields them."""
    return pa.RecordBatch.from_pydict({MESSAGE: [message.to_json() for message in messages]}, schema=MESSAGES)
