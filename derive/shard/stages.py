"""A transaction as stages: parallel tasks, with packets of documents from one stage to the next.

An executor needs no other knowledge of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from derive.shard.plan import Plan
from derive.shard.progress import Message
from derive.shard.worker import run_alone, run_combine, run_compare, run_lambdas, run_shuffle, run_without_conflicts
from derive.storage.blobs import blobs_of
from derive.storage.disk_errors import translated

Stage: TypeAlias = Callable[[int, Iterator[pa.RecordBatch], int], Iterator[pa.RecordBatch]]
"""Function that runs one task of a stage.

The arguments are the number of the task, the packets for the task in order of rank, and the number of the attempt. The
function yields packets (`PACKETS`) for the next stage; in the last stage, messages (`MESSAGES`).
"""

MESSAGE = "message"
MESSAGES = pa.schema([(MESSAGE, pa.string())])
"""Schema of the last stage's output: JSON of a `Message` per row."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a transaction, in sequence.

    Attributes:
        tasks: number of tasks in the first stage, which receives no packets.
        owners: number of tasks in every other stage; the number of a task is the owner of its packets.
        stages: the stages, at least one; they can be pickled.
        otherwise: stages that replace these if a message reports that several shards have published documents of one
            key in one tick; None for none.
    """

    tasks: int
    owners: int
    stages: tuple[Stage, ...]
    otherwise: Stages | None = None


def stages_of(plan: Plan) -> Stages:
    """Return the stages of a derivation's transaction."""
    if plan.shape != "sharded" or plan.is_small:
        return Stages(plan.tasks, 1, (partial(_alone, plan),))
    combined = (partial(_shuffle, plan), partial(run_lambdas, plan), partial(_combined, plan))
    stages = Stages(len(plan.slices) - 1, plan.shards, combined)
    if not plan.is_conflict_free:
        return stages
    apart = (partial(_shuffle, plan), partial(run_without_conflicts, plan), partial(_compare, plan))
    return replace(stages, stages=apart, otherwise=stages)


def carry_out(root: Path, work: Stages, run: Callable[[Stages], list[Message]]) -> list[Message]:
    """Run stages, and the alternative stages after a key conflict; return all valid messages.

    Args:
        root: the data folder.
        work: the stages.
        run: runs stages, and returns the messages of the last stage.
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


def _combined(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_combine(plan, number, packets, attempt):
        yield message_batch([message])


def _compare(plan: Plan, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for message in run_compare(plan, packets):
        yield message_batch([message])


def message_batch(messages: list[Message]) -> pa.RecordBatch:
    """Return messages as a batch of the last stage."""
    return pa.RecordBatch.from_pydict({MESSAGE: [message.to_json() for message in messages]}, schema=MESSAGES)
