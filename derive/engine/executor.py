"""Executors: who carries out a plan. The in-process one is the oracle for Spark (law L1) and serves catalog tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from derive.engine.plan import Plan, Progress
from derive.engine.shuffle import PACKETS
from derive.engine.worker import Message, run_combine, run_lambdas, run_shuffle, run_single, run_slice


class Executor(Protocol):
    """Runs transactions up to, but not including, their commit."""

    def execute(self, plan: Plan, progress: Progress) -> list[Message]:
        """Carry out a plan; returns what its workers said, errors included.

        Raises:
            LostError: workers were lost and could not be replaced.
        """

    def close(self) -> None:
        """Release everything."""


class InProcessExecutor:
    """Runs the same shard runtime in this process, one shard after the other, with documents in memory."""

    def execute(self, plan: Plan, progress: Progress) -> list[Message]:
        """Carry out a plan."""
        messages = self._run(plan)
        progress(sum(each.documents_in for each in messages))
        return messages

    def _run(self, plan: Plan) -> list[Message]:
        slices = range(len(plan.slices) - 1)
        if plan.shape == "slices":
            return [run_slice(plan, number) for number in slices]
        if plan.shape == "single":
            return [run_single(plan)]
        owned = [packets for number in slices for packets in run_shuffle(plan, number)]
        published = [
            packets for number in range(plan.shards) for packets in run_lambdas(plan, number, _deliver(owned, number))
        ]
        return [
            message
            for number in range(plan.shards)
            for message in run_combine(plan, number, _deliver(published, number))
        ]

    def close(self) -> None:
        """Nothing is held."""


def _deliver(packets: list[pa.RecordBatch], owner: int) -> Iterator[pa.RecordBatch]:
    """One owner's packets in order of place, without the owner's number."""
    table = pa.Table.from_batches(packets, schema=PACKETS)
    owned = table.filter(pc.equal(table.column("owner"), owner)).sort_by("place")
    return iter(owned.select(["place", "content"]).to_batches())
