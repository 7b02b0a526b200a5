"""Derivations, rows and a session of lambdas for tests of shards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from derive.document.columns import Columns
from derive.document.key import pack
from derive.document.pointer import MISSING
from derive.position import Position
from derive.protocol.derive import PublishedColumns, PublishedDocuments, ReadBatch
from derive.protocol.specs import CollectionSpec, DerivationSpec, Document, InputSpec, ShuffleSpec, TransformSpec
from derive.shard.plan import Plan
from derive.shard.published import Documents, Published
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.texts import write_texts
from derive.time.positions import SourceRead

AT = Position("flow.yaml", 1, 1)
TICK = 10
# Lists whose items are deleted stay apart from what comes after them.
SUMS = {
    "reduce": {"strategy": "merge"},
    "properties": {
        "n": {"reduce": {"strategy": "sum"}},
        "list": {
            "reduce": {"strategy": "merge"},
            "items": {"if": {"const": 0}, "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}}},
        },
    },
}


def collection(name: str, schema: object = True) -> CollectionSpec:
    """A collection with the key `/k`, which is an integer."""
    return CollectionSpec(name, ("/k",), (MISSING,), schema, schema, (), AT)


def derivation(*sources: str, schema: object = True, tick: int = TICK) -> DerivationSpec:
    """A derivation of `s/out`, each of whose transforms reads one of these collections."""
    return DerivationSpec(
        collection=collection("s/out", schema),
        connector="none",
        connector_config=None,
        transforms=tuple(
            TransformSpec(
                InputSpec(index, f"from{index}", source, AT, feedback=source == "s/out"), ShuffleSpec("key", ("/k",))
            )
            for index, source in enumerate(sources)
        ),
        sources={source: collection(source) for source in sources},
        tick=tick,
    )


def plan_of(spec: DerivationSpec, root: Path, end: int, reads: Sequence[SourceRead], clamp: int = 0) -> Plan:
    """A transaction of one shard."""
    return Plan(spec, root, root, "token", 1, 1, "single", 1, {}, clamp, end, tuple(reads))


def source_rows_of(documents: Iterable[tuple[int, Document]], transform: int = 0) -> ReadRows:
    """Source rows of adjusted clocks and documents."""
    clocks, parsed = zip(*documents, strict=True)
    count = len(clocks)
    keys = [pack([document["k"]]) for document in parsed]
    return ReadRows.of(clocks, [transform] * count, range(count), keys, write_texts(parsed))


def published_of(documents: Sequence[tuple[int, Document]]) -> Published:
    """Published documents of clocks and documents."""
    clocks = np.array([clock for clock, _ in documents], dtype=np.int64)
    parsed = [document for _, document in documents]
    return Published(list(range(len(parsed))), clocks, [pack([each["k"]]) for each in parsed], Documents(parsed))


def shown(parts: Iterable[WrittenRows]) -> list[tuple[int, int, bytes, str]]:
    """Clock, seq, key and JSON text of each row."""
    return [
        row
        for rows in parts
        for row in zip(
            rows.clocks.tolist(),
            [rows.sort_key(index)[1] for index in range(len(rows))],
            rows.keys.to_pylist(),
            rows.texts.to_pylist(),
            strict=True,
        )
    ]


@dataclass
class Lambdas:
    """A session whose lambdas are a function from a transform and a document to published documents.

    Attributes:
        flushes: it is told the ends of ticks.
        batches: clocks of the documents of each batch it was handed.
    """

    publish: Callable[[int, Document], Iterable[Document]]
    flushes: bool = False
    batches: list[list[int]] = field(default_factory=list)

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        self.batches.append(list(batch.clocks))
        for index, (transform, document) in enumerate(zip(batch.transforms, batch.documents, strict=True)):
            for published in self.publish(transform, document):
                yield index, published

    def prepare_commit(self) -> None:
        pass

    def close(self) -> None:
        pass


class ColumnLambdas(Lambdas):
    """The same lambdas, whose documents are published as columns as long as they have the same properties.

    One alone is published as a document.
    """

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments]:
        for names, group in itertools.groupby(self.invoke(batch), key=lambda pair: tuple(pair[1])):
            causes, documents = zip(*group, strict=True)
            if len(documents) == 1:
                yield PublishedDocuments(causes, documents)
                continue
            values = [[document[name] for document in documents] for name in names]
            yield PublishedColumns(causes, Columns.of(names, values))
