"""Validated values a catalog builds to.

What a person wrote (`…Def`, in `derive.catalog.definitions`) is checked and becomes these `…Spec` values. The runtime
sees nothing else: names are resolved, schemas are bundled, durations are integers, and an illegal state cannot be
built. All are immutable and can be pickled to a Spark worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from derive.document.clock import format_duration
from derive.errors import UsageError
from derive.position import Position, Script
from derive.protocol.limits import LambdaLimits
from derive.schema.projection import ProjectionSpec as ProjectionSpec  # noqa: PLC0414 (offered from here)
from derive.suggest import suggest

_Spec = TypeVar("_Spec")

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
class ShuffleSpec:
    """How a transform's documents find their shard.

    Attributes:
        kind: `key` by locations, `any` by nothing, `lambda` computed.
        key: for `key`, the JSON pointers into the source document.
        key_defaults: for each pointer, the value where a document lacks it.
        key_types: for each component `boolean`, `integer` or `string`.
        script: for `lambda`, the SQL that computes the key.
    """

    kind: Literal["key", "any", "lambda"]
    key: tuple[str, ...] = ()
    key_defaults: tuple[JSON, ...] = ()
    key_types: tuple[str, ...] = ()
    script: Script | None = None


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

    @property
    def state_key(self) -> str:
        """Name of this input's progress: a raised `backfill` starts another."""
        return f"{self.name}.v{self.backfill}" if self.backfill else self.name


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """One transform of a derivation.

    Attributes:
        input: what it reads, and when.
        shuffle: how documents find their shard.
        script: the lambda's code; None if the connector's config holds it.
    """

    input: InputSpec
    shuffle: ShuffleSpec
    script: Script | None = None

    @property
    def name(self) -> str:
        """Unique within the derivation."""
        return self.input.name

    @property
    def index(self) -> int:
        """Its place in the catalog's list, from 0."""
        return self.input.index

    @property
    def position(self) -> Position:
        """Where it is written."""
        return self.input.position


@dataclass(frozen=True, slots=True)
class DerivationSpec:
    """A derivation: the collection it fills, how, and from what.

    Attributes:
        collection: what it derives.
        connector: name of the derive connector, such as `sqlite`.
        connector_config: what the connector made of the catalog, which is read by nobody else.
        transforms: in catalog order.
        sources: each collection the transforms read, by name.
        tick: microseconds of `shards.maxTxnDuration`.
        disabled: `shards.disable` is set.
        limits: what a run allows its lambdas.
    """

    collection: CollectionSpec
    connector: str
    connector_config: Any
    transforms: tuple[TransformSpec, ...]
    sources: Mapping[str, CollectionSpec]
    tick: int
    disabled: bool = False
    limits: LambdaLimits = field(default_factory=LambdaLimits)

    @property
    def name(self) -> str:
        """The task's name, which is the derived collection's."""
        return self.collection.name

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it reads, in catalog order."""
        return tuple(transform.input for transform in self.transforms)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step takes place, in a test that tells time.

    Attributes:
        present: the time that the test gives it, as a clock.
        wall: where the wall clock stands then: what is verified is known when its tick is over.
    """

    present: int
    wall: int


@dataclass(frozen=True, slots=True)
class IngestStep:
    """Test step: publish `documents` into `collection`, at `moment` if the test tells time."""

    collection: str
    documents: tuple[Document, ...]
    description: str
    position: Position
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Test step: the reduced documents of `collection` (in `selector`'s partitions) are `documents`.

    In a test that tells time they are so at `moment`; in any other, once nothing can change them any more.
    """

    collection: str
    selector: SelectorSpec
    documents: tuple[Document, ...]
    description: str
    position: Position
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class AdvanceStep:
    """Test step: time passes until `moment`."""

    moment: Moment
    position: Position


def show_offset(clock: int, begin: int) -> str:
    """A time of a test, as an offset from its beginning such as `+20m`."""
    return f"+{format_duration(clock - begin)}"


TestStep: TypeAlias = IngestStep | VerifyStep | AdvanceStep


@dataclass(frozen=True, slots=True)
class TestSpec:
    """A catalog test: steps, in order.

    Attributes:
        name: such as `shop/tests/spending`.
        description: what it shows.
        steps: what it does.
        position: where it is written.
        begin: clock at which it begins.
        end: clock at which it ends, if it tells time; None if it ends when nothing is left to do.
    """

    __test__ = False  # for pytest, which collects classes by this name

    name: str
    description: str
    steps: tuple[TestStep, ...]
    position: Position
    begin: int
    end: int | None

    @property
    def verified(self) -> frozenset[str]:
        """Names of the collections that it verifies."""
        return frozenset(step.collection for step in self.steps if isinstance(step, VerifyStep))


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """Everything a catalog defines.

    Attributes:
        source: path of the root file.
        collections: by name, derived ones included.
        derivations: by name, in an order in which sources come before what reads them (cycles kept together).
        cycles: groups of derivation names that read one another (strongly connected components), in the same order;
            a derivation on no cycle is a group of its own.
        tests: by name.
    """

    source: str
    collections: Mapping[str, CollectionSpec]
    derivations: Mapping[str, DerivationSpec]
    cycles: tuple[tuple[str, ...], ...]
    tests: Mapping[str, TestSpec]

    def within(self, limits: LambdaLimits) -> CatalogSpec:
        """This catalog, with lambdas that run within these limits."""
        limited = {name: replace(derivation, limits=limits) for name, derivation in self.derivations.items()}
        return replace(self, derivations=limited)

    def find_collection(self, name: str) -> CollectionSpec:
        """The collection of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("collection", name, self.collections)

    def find_derivation(self, name: str) -> DerivationSpec:
        """The derivation of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("derivation", name, self.derivations)

    def find_test(self, name: str) -> TestSpec:
        """The test of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("test", name, self.tests)


_SHOWN_NAMES = 12


def _find(kind: str, name: str, known: Mapping[str, _Spec]) -> _Spec:
    spec = known.get(name)
    if spec is None:
        guess = suggest(name, known)
        listed = ", ".join(list(known)[:_SHOWN_NAMES]) or "none"
        more = ", …" if len(known) > _SHOWN_NAMES else ""
        hint = f"did you mean '{guess}'?" if guess else f"it has: {listed}{more}"
        raise UsageError(f"the catalog has no {kind} '{name}'", hint=hint)
    return spec
