"""Transactions on workers without a data folder: workers need credentials of the object store, and no shared files.

If the segments and the states of a transaction are objects, workers read and write these. Everything else that a worker
would read in the data folder, or write into it, is sent:

- The plan contains the salt of hashes.
- The entries of the task's log come with the messages, at the end of a part of the transaction.

A worker spills rows to the folders that Spark names, as always. Its progress within a transaction is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from derive.shard.owners import pack_message
from derive.shard.plan import Plan
from derive.shard.progress import Message
from derive.shard.worker import Stage, message_batch
from derive.storage.folder_id import salted
from derive.storage.task_log import append_entries, collected_entries

SCRATCH = Path("flowctl-scratch")
"""Path that stands for the data folder on such a worker, relative to the working folder of its executor."""


def detached(plan: Plan) -> Plan:
    """Return the plan of the same transaction for workers without a data folder.

    Raises:
        StorageError: the data folder has no salt for hashes.
    """
    cycle = plan.cycle and replace(plan.cycle, others=tuple(map(detached, plan.cycle.others)))
    spec = replace(plan.spec, collection=salted(plan.spec.collection, plan.root))
    return replace(plan, root=SCRATCH, spec=spec, cycle=cycle)


def relaying(
    stage: Stage, number: int, packets: Iterator[pa.RecordBatch], attempt: int, *, is_last: bool
) -> Iterator[pa.RecordBatch]:
    """Run a task of a stage on a worker, and yield the entries of logs after its other results, in a message.

    Args:
        stage: the stage.
        number: as for `Stage`.
        packets: as for `Stage`.
        attempt: as for `Stage`.
        is_last: whether the stage is the last one of its transaction.
    """
    with collected_entries() as entries:
        yield from stage(number, packets, attempt)
    if entries:
        message = Message(log=tuple(entries))
        yield message_batch([message]) if is_last else pack_message(0, message.to_json())


def relay(root: Path, messages: Iterable[Message]) -> list[Message]:
    """Append the entries of messages to the logs of the data folder, and return the other messages."""
    kept = []
    for message in messages:
        if message.log:
            append_entries(root, message.log)
        else:
            kept.append(message)
    return kept
