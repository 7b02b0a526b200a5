"""Lambdas over several shards in one process: the same documents, in the same order, as from one shard."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_data import TICK, collection, derivation, plan_of

from derive.document.key import pack
from derive.errors import SchemaViolation
from derive.protocol.derive import DeriveSession, ReadBatch
from derive.protocol.specs import DerivationSpec, Document, ShuffleSpec, TransformSpec
from derive.shard.cycle import Lambdas
from derive.shard.cycle_sources import rows_of
from derive.shard.feedback import FeedbackQueue
from derive.shard.fields import reading_of_documents
from derive.shard.published import Combined, Documents
from derive.storage.segments.rows import UNCHECKED, ReadRows
from derive.storage.segments.sorter import Spill
from derive.storage.segments.texts import write_texts

DERIVED = derivation("s/in", "s/out")


def shuffled() -> DerivationSpec:
    """Like `DERIVED`, with transforms that are shuffled by `/k`, which is not the key of what they read."""
    sources = {name: replace(collection(name), key=("/id",)) for name in DERIVED.sources}
    transforms = tuple(
        TransformSpec(transform.input, ShuffleSpec("key", ("/k",), (0,), ("integer",)))
        for transform in DERIVED.transforms
    )
    return replace(DERIVED, sources=sources, transforms=transforms)


SPEC = shuffled()
READING = reading_of_documents(SPEC)


@dataclass
class Counts:
    """Publishes each document as often as it says, numbered by its key, and at the end of a tick what there was."""

    flushes: bool
    numbers: Counter[int] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        for index, (transform, document) in enumerate(zip(batch.transforms, batch.documents, strict=True)):
            if transform == len(SPEC.transforms):
                for k in self.seen:
                    yield index, {"k": k, "total": self.numbers[k]}
                self.seen.clear()
                continue
            self.seen.add(document["k"])
            for _ in range(document["times"]):
                self.numbers[document["k"]] += 1
                yield index, {"k": document["k"], "number": self.numbers[document["k"]]}

    def prepare_commit(self) -> None:
        pass

    def close(self) -> None:
        pass


SourceRow: TypeAlias = tuple[int, int, int, bytes, Document]
"""Adjusted clock, transform, seq, key and document."""


def read_rows(rows: list[SourceRow]) -> ReadRows:
    """Rows that have been validated."""
    adjusted, transforms, seqs, keys, documents = zip(*rows, strict=True)
    read = ReadRows.of(adjusted, transforms, seqs, keys, write_texts(documents))
    return ReadRows(read.batch.append_column(UNCHECKED, pa.repeat(pa.scalar(False), len(rows))))


Shown = list[tuple[int, bytes, Document]]


def run(ticks: list[list[SourceRow]], shards: int, *, flushes: bool) -> tuple[list[Shown], set[int]]:
    """What is published in each tick, and which shards were opened."""
    opened: list[int] = []

    def open_shard(number: int) -> DeriveSession:
        opened.append(number)
        return Counts(flushes)

    with tempfile.TemporaryDirectory() as folder:
        plan = replace(plan_of(SPEC, Path(folder), 1000, []), shards=shards)
        lambdas = Lambdas(plan, READING, open_shard)
        published: list[Shown] = []
        for rows in ticks:
            parts = [*lambdas.invoke(read_rows(rows)), *lambdas.end(rows[0][0] // TICK)]
            published.append(
                [
                    row
                    for part in parts
                    for row in zip(part.clocks.tolist(), part.key_list, part.content.documents(), strict=True)
                ]
            )
    assert len(opened) == len(set(opened))
    assert set(lambdas.opened) == set(opened)
    return published, set(opened)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, TICK - 1), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    st.integers(2, 5),
    st.booleans(),
)
def test_several_shards_publish_the_same_as_one(
    ticks: list[list[tuple[int, int, int]]], shards: int, flushes: bool
) -> None:
    rows = [
        [
            (tick * TICK + clock, number % 2, number, pack([number]), {"id": number, "k": k, "times": times})
            for number, (clock, k, times) in enumerate(sorted(documents))
        ]
        for tick, documents in enumerate(ticks)
    ]
    ordered = [sorted(part, key=lambda row: row[:4]) for part in rows]

    expected, _ = run(ordered, 1, flushes=flushes)
    published, _ = run(ordered, shards, flushes=flushes)

    assert published == expected


def test_shard_is_opened_at_its_first_document() -> None:
    rows: list[SourceRow] = [(1, 0, 0, pack([1]), {"id": 1, "k": 1, "times": 1})]

    published, opened = run([rows, [(11, 0, 1, pack([2]), {"id": 2, "k": 1, "times": 1})]], 3, flushes=True)

    assert published == [
        [(1, pack([1]), {"k": 1, "number": 1}), (9, pack([1]), {"k": 1, "total": 1})],
        [(11, pack([1]), {"k": 1, "number": 2}), (19, pack([1]), {"k": 1, "total": 2})],
    ]
    assert len(opened) == 1


NUMBERS, TEXTS = ({"type": "object", "properties": {"k": {"type": kind}}} for kind in ("integer", "string"))


@pytest.mark.parametrize("read", [NUMBERS, TEXTS])
def test_feedback_is_validated_if_the_read_schema_differs(read: object) -> None:
    sources = {name: replace(collection(name, read), write_schema=NUMBERS) for name in ("s/in", "s/out")}
    spec = replace(derivation("s/in", "s/out"), sources=sources)
    reading = reading_of_documents(spec)
    with tempfile.TemporaryDirectory() as folder, Spill(Path(folder), 1 << 20) as spill:
        queue = FeedbackQueue(spec, spec.inputs[1:], reading, 1000, spill)
        queue.put_all("s/out", Combined([1], [0], [pack([1])], Documents([{"k": 1}]), ["[]"]), 100)
        runs, _ = queue.take(1)
        plan = plan_of(spec, Path(folder), 1000, [])
        lambdas = Lambdas(plan, reading, lambda _: Counts(flushes=False))
        for part in (runs, rows_of(runs)):
            if read == NUMBERS:
                with pytest.raises(KeyError, match="times"):
                    list(lambdas.invoke(part))
            else:
                with pytest.raises(SchemaViolation, match="transform 'from1' of 's/out' reads an invalid document"):
                    list(lambdas.invoke(part))
