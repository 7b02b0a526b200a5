"""The lambdas of one derivation of a cycle, over all of its shards in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from derive.document.exact import dump_exact
from derive.protocol.derive import DeriveSession
from derive.schema.fingerprint import fingerprint
from derive.shard.feedback_queue import SourceRow
from derive.shard.fields import Reading
from derive.shard.flush import end_row
from derive.shard.invoke import Invoker, SourceBatch
from derive.shard.owners import OwnersOf, source_owners
from derive.shard.plan import Plan
from derive.shard.published import Documents, Published
from derive.storage.segments.rows import ReadRows
from derive.storage.segments.segment_file import are_valid
from derive.storage.segments.selection import DOCUMENTS
from derive.storage.segments.texts import write_texts
from derive.time.positions import offset_of


class Lambdas:
    """Hands each document to the shard that owns it; a shard is opened when there is one for it.

    What shards publish is put in the order in which one shard would have published it.

    Args:
        plan: the transaction of the derivation.
        open_shard: opens the session of a shard, by its number.

    Attributes:
        opened: numbers of the shards that are open.
    """

    def __init__(self, plan: Plan, open_shard: Callable[[int], DeriveSession]) -> None:
        self._plan = plan
        self._open_shard = open_shard
        self._offsets = [offset_of(spec, plan.spec.tick) for spec in plan.spec.inputs]
        self._owners_of = source_owners(plan, Reading(DOCUMENTS)) if plan.shards > 1 else None
        self._unchecked = unchecked_transforms(plan)
        self.opened: dict[int, Invoker] = {}
        self._seen: set[int] = set()  # shards that were handed documents of the tick

    def _invoker(self, shard: int) -> Invoker:
        invoker = self.opened.get(shard)
        if invoker is None:
            session = self._open_shard(shard)
            invoker = self.opened[shard] = Invoker(self._plan.spec, session, self._offsets, self._plan.clamp)
        self._seen.add(shard)
        return invoker

    def invoke(self, rows: list[SourceRow]) -> Iterator[Published]:
        """Run documents of one tick, in order; what was published, in order."""
        if self._owners_of is None:
            return self._invoker(0).invoke(self._batch(rows), as_columns=False)
        return self._invoke_owners(rows, self._owners_of)

    def _invoke_owners(self, rows: list[SourceRow], owners_of: OwnersOf) -> Iterator[Published]:
        adjusted, transforms, seqs, keys, documents = zip(*rows, strict=True)
        owners = owners_of(ReadRows.of(adjusted, transforms, seqs, keys, write_texts(documents)))
        shards = np.unique(owners).tolist()
        if len(shards) == 1:
            yield from self._invoker(shards[0]).invoke(self._batch(rows), as_columns=False)
            return
        parts: list[Published] = []
        for shard in shards:
            indices = np.flatnonzero(owners == shard)
            batch = self._batch([rows[index] for index in indices.tolist()])
            for part in self._invoker(shard).invoke(batch, as_columns=False):
                parts.append(replace(part, causes=indices.take(part.causes).tolist()))
        if parts:
            yield _merged(parts, [cause for part in parts for cause in part.causes])

    def end(self, tick: int) -> Iterator[Published]:
        """End a tick for the shards that saw documents of it; what is published at its end, in order."""
        invokers = [invoker for shard in sorted(self._seen) if (invoker := self.opened[shard]).flushes]
        self._seen.clear()
        return self._end(invokers, tick) if invokers else iter(())

    def _end(self, invokers: Sequence[Invoker], tick: int) -> Iterator[Published]:
        row = end_row(self._plan.spec, tick)
        parts = [part for invoker in invokers for part in invoker.invoke(self._batch([row]), as_columns=False)]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield _merged(parts, [dump_exact(document) for part in parts for document in part.content.documents()])

    def _batch(self, rows: Sequence[SourceRow]) -> SourceBatch:
        adjusted, transforms, _, keys, documents = zip(*rows, strict=True)
        unchecked = None if self._unchecked is None else self._unchecked.take(transforms)
        return SourceBatch(
            list(transforms), np.array(adjusted, dtype=np.int64), keys, list(documents), unchecked=unchecked
        )


def unchecked_transforms(plan: Plan) -> np.ndarray | None:
    """Which transforms of a derivation on a cycle read documents that have yet to be validated; None if all do.

    What the derivations of the cycle publish meanwhile has been validated against the write schema of its collection.

    Returns:
        Boolean array by index of the transform, with one more element for the ends of ticks.

    Raises:
        SegmentError: a file cannot be read.
    """
    if plan.is_small:  # then looking costs more than validating
        return None
    unchecked = np.zeros(len(plan.spec.transforms) + 1, dtype=bool)
    for spec in plan.spec.inputs:
        source = plan.spec.sources[spec.source]
        segments = [segment for read in plan.reads if read.index == spec.index for segment in read.segments]
        is_same = not spec.feedback or fingerprint(source.write_schema) == fingerprint(source.read_schema)
        unchecked[spec.index] = not (is_same and are_valid(plan.root, segments, source.read_schema))
    return None if unchecked[:-1].all() else unchecked


def _merged(parts: Sequence[Published], by: Sequence[Any]) -> Published:
    """What was published in several parts, in order.

    Args:
        parts: these.
        by: what to order by, for all of them behind one another.
    """
    order = sorted(range(len(by)), key=by.__getitem__)
    causes, keys, documents = (
        list(chain.from_iterable(columns))
        for columns in zip(*((part.causes, part.key_list, part.content.documents()) for part in parts), strict=True)
    )
    return Published(
        causes=[causes[index] for index in order],
        clocks=np.concatenate([part.clocks for part in parts]).take(order),
        keys=[keys[index] for index in order],
        content=Documents([documents[index] for index in order]),
    )
