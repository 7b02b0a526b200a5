"""Executors: who carries out a plan. The in-process one is the oracle for Spark (law L1) and serves catalog tests."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from derive.document.key import compile_key
from derive.engine.combine import LAMBDA_ROWS
from derive.engine.invoke import parse_documents
from derive.engine.plan import Plan, Progress
from derive.engine.worker import Message, run_combine, run_lambdas, run_single, run_slice
from derive.protocol.specs import Document
from derive.storage.reader import SOURCE_ROWS, read_sorted


class Executor(Protocol):
    """Runs transactions up to, but not including, their commit."""

    def execute(self, plan: Plan, progress: Progress) -> list[Message]:
        """Carry out a plan; returns what its workers said, errors included.

        Raises:
            TaskError: workers were lost and could not be replaced.
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
        if plan.shape == "slices":
            return [run_slice(plan, number) for number in range(len(plan.slices) - 1)]
        if plan.shape == "single":
            return [run_single(plan)]
        published: list[pa.RecordBatch] = []
        for number, rows in enumerate(_shuffle(plan)):
            published += run_lambdas(plan, number, iter(rows.to_batches(max_chunksize=1000)))
        if not published:
            return []
        ticks = [pc.divide(each.column(0), plan.spec.tick) for each in published]
        table = pa.Table.from_batches(published).append_column("tick", pa.chunked_array(ticks))
        order = ["tick", "key", "adjusted", "transform", "seq", "source_key", "number"]
        table = table.sort_by([(name, "ascending") for name in order]).select(LAMBDA_ROWS.names)
        return list(run_combine(plan, 0, iter(table.combine_chunks().to_batches(max_chunksize=1000))))

    def close(self) -> None:
        """Nothing is held."""


def _shuffle(plan: Plan) -> list[pa.Table]:
    """Source rows of each shard, in order."""
    hashes = [_hash(plan, transform) for transform in range(len(plan.spec.transforms))]
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(plan.shards)]
    for batch in read_sorted(plan.root, plan.reads):
        documents = parse_documents(batch.column(4))
        keys = batch.column(3).to_pylist()
        transforms = batch.column(1).to_pylist()
        owners = [
            hashes[transform](document, key) * plan.shards >> 32
            for transform, document, key in zip(transforms, documents, keys, strict=True)
        ]
        column = pa.array(owners, pa.int32())
        for number, part in enumerate(parts):
            part.append(batch.filter(pc.equal(column, number)))
    return [pa.Table.from_batches(part, schema=SOURCE_ROWS).combine_chunks() for part in parts]


def _hash(plan: Plan, transform: int) -> Callable[[Document, bytes], int]:
    shuffle = plan.spec.transforms[transform].shuffle
    if shuffle.kind == "any":
        return lambda _, key: zlib.crc32(key)
    pack = compile_key(shuffle.key, shuffle.key_defaults)
    return lambda document, _: zlib.crc32(pack(document))
