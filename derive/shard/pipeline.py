"""The pipeline of a shard, from source documents to rows for a shuffle or for segments.

All kinds of transactions share the parsing of documents, the lambdas and the timestamps. They differ in the next step:
a second shuffle, or combining per tick and key, with or without feedback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from derive.protocol.derive import DeriveSession
from derive.shard.fields import Reading, source_batch
from derive.shard.flush import order_of, with_ends
from derive.shard.invoke import MANY, Invoker
from derive.shard.plan import Plan
from derive.shard.published import Published, RowMaker
from derive.shard.tick_combiner import TickCombiner
from derive.storage.redactor import redactor_of
from derive.storage.segments.rows import PublishedRows, ReadRows, WrittenRows
from derive.storage.segments.spill import Spill
from derive.time.positions import offset_of


class Pipeline:
    """The processing of source documents in one shard, or in one slice of time.

    Args:
        plan: the transaction.
        reading: columns that it reads.
        session: the derivation's session over the shard's state.
        processed: called with the number of processed documents.
        many: number of source documents from which columns are published, if the session can.
    """

    def __init__(
        self,
        plan: Plan,
        reading: Reading,
        session: DeriveSession,
        processed: Callable[[int], None],
        many: int = MANY,
    ) -> None:
        offsets = [offset_of(spec, plan.spec.tick) for spec in plan.spec.inputs]
        self._plan = plan
        self._reading = reading
        self._invoker = Invoker(
            plan.spec, session, offsets, plan.clamp, many, redactor=redactor_of(plan.spec.collection, plan.root)
        )
        self._processed = processed

    def published(self, parts: Iterator[ReadRows]) -> Iterator[PublishedRows]:
        """Yield publications, to be combined elsewhere.

        Args:
            parts: source rows in order, of whole ticks in total.
        """
        make = RowMaker(self._plan.spec.collection)
        number = 0
        for rows, published in self._invoke(parts):
            count, texts = len(published), make.texts(published.content)
            columns = PublishedRows.from_columns(
                published.clocks,
                published.key_array,
                texts,
                make.labels(published.content),
                *order_of(rows, published.causes, texts, self._plan.spec),
                np.arange(number, number + count, dtype=np.int64),
            )
            yield columns.with_fields(make.fields(published.content))
            number += count

    def combined(self, parts: Iterator[ReadRows], spill: Spill) -> Iterator[WrittenRows]:
        """Yield publications, combined per tick and key, in order.

        Args:
            parts: source rows in order, all that combine with one another.
            spill: files for rows that exceed the memory limit.
        """
        combiner = TickCombiner(self._plan.spec, spill)
        for _, published in self._invoke(parts):
            yield from combiner.add(published)
        yield from combiner.close()

    def _invoke(self, parts: Iterator[ReadRows]) -> Iterator[tuple[ReadRows, Published]]:
        for rows in with_ends(parts, self._plan.spec, self._invoker, self._processed):
            for published in self._invoker.invoke(source_batch(self._plan, self._reading, rows)):
                yield rows, published
