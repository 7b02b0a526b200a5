"""The lambdas of one derivation of a cycle, over all of its shards in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from derive.document.exact import dump_exact
from derive.protocol.derive import DeriveSession
from derive.shard.feedback import TickPart
from derive.shard.fields import Reading, source_batch
from derive.shard.flush import end_batch
from derive.shard.invoke import Invoker, SourceBatch
from derive.shard.owners import OwnersOf, source_owners
from derive.shard.plan import Plan
from derive.shard.published import Documents, Published
from derive.shard.source_run import batch_of, rows_of
from derive.storage.redactor import redactor_of
from derive.storage.segments.rows import ReadRows
from derive.time.positions import offset_of


class Lambdas:
    """Passes each document to the shard that owns it, and opens shards on demand.

    Publications of several shards are sorted into the order of a single shard.

    Args:
        plan: the transaction of the derivation.
        reading: columns that it reads.
        open_shard: opens the session of a shard, by its number.

    Attributes:
        reading: columns that it reads.
        opened: invokers of the open shards, by number.
    """

    def __init__(self, plan: Plan, reading: Reading, open_shard: Callable[[int], DeriveSession]) -> None:
        self.reading = reading
        self._plan = plan
        self._open_shard = open_shard
        self._offsets = [offset_of(spec, plan.spec.tick) for spec in plan.spec.inputs]
        self._owners_of = source_owners(plan, reading) if plan.shards > 1 else None
        self.opened: dict[int, Invoker] = {}
        self._seen: set[int] = set()  # shards that received documents of the tick

    def _invoker(self, shard: int) -> Invoker:
        invoker = self.opened.get(shard)
        if invoker is None:
            session = self._open_shard(shard)
            invoker = self.opened[shard] = Invoker(
                self._plan.spec,
                session,
                self._offsets,
                self._plan.clamp,
                packs_later=True,
                redactor=redactor_of(self._plan.spec.collection, self._plan.root),
            )
        self._seen.add(shard)
        return invoker

    def invoke(self, part: TickPart) -> Iterator[Published]:
        """Run documents of one tick, in order; yield the publications, in order."""
        if self._owners_of is not None:
            return self._invoke_owners(part if isinstance(part, ReadRows) else rows_of(part), self._owners_of)
        return self._invoker(0).invoke(
            self._batch(part) if isinstance(part, ReadRows) else batch_of(part, self.reading)
        )

    def _batch(self, rows: ReadRows) -> SourceBatch:
        return source_batch(self._plan, self.reading, rows)

    def _invoke_owners(self, rows: ReadRows, owners_of: OwnersOf) -> Iterator[Published]:
        owners = owners_of(rows)
        shards = np.unique(owners).tolist()
        if len(shards) == 1:
            yield from self._invoker(shards[0]).invoke(self._batch(rows))
            return
        parts: list[Published] = []
        for shard in shards:
            indices = np.flatnonzero(owners == shard)
            for part in self._invoker(shard).invoke(self._batch(rows.take(indices)), as_columns=False):
                parts.append(replace(part, causes=indices.take(part.causes).tolist()))
        if parts:
            yield _merged(parts, [cause for part in parts for cause in part.causes])

    def end(self, tick: int) -> Iterator[Published]:
        """End a tick for the shards that saw its documents; return the publications at its end, in order."""
        invokers = [invoker for shard in sorted(self._seen) if (invoker := self.opened[shard]).flushes]
        self._seen.clear()
        return self._end(invokers, tick) if invokers else iter(())

    def _end(self, invokers: Sequence[Invoker], tick: int) -> Iterator[Published]:
        batch = end_batch(self._plan.spec, tick)
        parts = [part for invoker in invokers for part in invoker.invoke(batch, as_columns=False)]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield _merged(parts, [dump_exact(document) for part in parts for document in part.content.documents()])


def _merged(parts: Sequence[Published], by: Sequence[Any]) -> Published:
    """Merge publications in order.

    Args:
        parts: the publications.
        by: sort keys of their documents, concatenated.
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
