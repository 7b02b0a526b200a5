"""Collections, and what tasks read of them: the values that every other spec is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from derive.position import Position
from derive.schema.projection import ProjectionSpec
from derive.schema.redaction import Redaction

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""

Document: TypeAlias = dict[str, Any]
"""A JSON object of a collection."""

CollectionKind: TypeAlias = Literal["reduced", "consolidated"]
"""What the rows of a collection are: documents of a key that are reduced, or changes of a multiset of documents."""


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """A collection: documents with a key, a schema and projections.

    Attributes:
        name: for example `acmeBank/transfers`.
        key: JSON pointers of the key.
        key_defaults: for each key pointer, the value where a document lacks it.
        write_schema: JSON Schema (2020-12, self-contained: every `$ref` resolves inside) of what is published.
        read_schema: the same for what is read.
        projections: sorted by field.
        position: where it is written.
        write_positions: where each keyword of `write_schema` is written, by its JSON pointer.
        read_positions: the same for `read_schema`.
        kind: `reduced`, if its documents are reduced per key; `consolidated`, if it is a multiset, in which each row
            adds its document or takes it away.
        redaction: what is redacted of documents before they are stored; the schemas are of what is left. None for
            nothing.
    """

    name: str
    key: tuple[str, ...]
    key_defaults: tuple[JSON, ...]
    write_schema: JSON
    read_schema: JSON
    projections: tuple[ProjectionSpec, ...]
    position: Position
    write_positions: Mapping[str, Position] = field(default_factory=dict)
    read_positions: Mapping[str, Position] = field(default_factory=dict)
    kind: CollectionKind = "reduced"
    redaction: Redaction | None = None

    @property
    def input_schema(self) -> JSON:
        """JSON Schema of documents before they are redacted: what the values of a file are taken for."""
        return self.write_schema if self.redaction is None else self.redaction.schema

    @property
    def partitions(self) -> tuple[ProjectionSpec, ...]:
        """Logical partitions, sorted by field."""
        return tuple(projection for projection in self.projections if projection.is_partition)


@dataclass(frozen=True, slots=True)
class SelectorSpec:
    """Which logical partitions to read: all included fields match, and no excluded one does.

    Attributes:
        include: field to the values of which one must match.
        exclude: field to the values of which none may match.
    """

    include: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)
    exclude: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)

    def selects(self, partition: Mapping[str, JSON]) -> bool:
        """Whether documents of this logical partition (field to value) are selected."""
        included = all(_among(partition.get(name), values) for name, values in self.include.items() if values)
        excluded = any(_among(partition.get(name), values) for name, values in self.exclude.items())
        return included and not excluded


def _among(value: JSON, values: tuple[JSON, ...]) -> bool:
    # JSON's booleans are not its numbers, though Python says True == 1.
    return any(isinstance(value, bool) == isinstance(other, bool) and value == other for other in values)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What a task reads of one collection, and when: the part of a transform that is about time.

    Attributes:
        index: its place among the inputs of the task, from 0.
        name: unique within the task.
        source: name of the collection it reads.
        position: where it is written.
        selector: which logical partitions of it.
        not_before: clock of the first document to process, or None.
        not_after: clock from which documents are no longer processed, or None.
        priority: higher is read first.
        read_delay: microseconds added to a document's clock before it may be processed.
        backfill: raised by the author to read the source from its start again.
        feedback: the source lies on a cycle with the task, so it is read one tick later.
        follows: goes on with the relation that has the source's name, whichever that is; else another one stops the
            task.
    """

    index: int
    name: str
    source: str
    position: Position
    selector: SelectorSpec = field(default_factory=SelectorSpec)
    not_before: int | None = None
    not_after: int | None = None
    priority: int = 0
    read_delay: int = 0
    backfill: int = 0
    feedback: bool = False
    follows: bool = False

    @property
    def state_key(self) -> str:
        """Name of this input's progress: a raised `backfill` starts another."""
        return f"{self.name}.v{self.backfill}" if self.backfill else self.name
