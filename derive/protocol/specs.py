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
from derive.protocol.collection import JSON, CollectionKind, CollectionSpec, Document, InputSpec, SelectorSpec
from derive.protocol.endpoint import AddressEndpoint, ConnectorEndpoint, EndpointConfig, EndpointSpec, LocalEndpoint
from derive.protocol.limits import LambdaLimits
from derive.protocol.materialization import BindingSpec, FieldsSpec, MaterializationSpec
from derive.schema.projection import ProjectionSpec
from derive.suggest import suggest

__all__ = [
    "JSON",
    "AddressEndpoint",
    "AdvanceStep",
    "BindingSpec",
    "CatalogSpec",
    "CollectionKind",
    "CollectionSpec",
    "ConnectorEndpoint",
    "DerivationSpec",
    "Document",
    "EndpointConfig",
    "EndpointSpec",
    "FieldsSpec",
    "IngestStep",
    "InputSpec",
    "LocalEndpoint",
    "MaterializationSpec",
    "Moment",
    "ProjectionSpec",
    "SelectorSpec",
    "ShuffleSpec",
    "TestSpec",
    "TestStep",
    "TransformSpec",
    "VerifyStep",
    "show_offset",
]

_Spec = TypeVar("_Spec")


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
class TransformSpec:
    """One transform of a derivation.

    Attributes:
        input: what it reads, and when.
        shuffle: how documents find their shard.
        script: the lambda's code; None if the connector's config holds it.
        formerly: the name that it had before, if it was renamed: what is known of that one is of this one.
    """

    input: InputSpec
    shuffle: ShuffleSpec
    script: Script | None = None
    formerly: str | None = None

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
        materializations: by name.
    """

    source: str
    collections: Mapping[str, CollectionSpec]
    derivations: Mapping[str, DerivationSpec]
    cycles: tuple[tuple[str, ...], ...]
    tests: Mapping[str, TestSpec]
    materializations: Mapping[str, MaterializationSpec] = field(default_factory=dict)

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

    @property
    def tasks(self) -> Mapping[str, DerivationSpec | MaterializationSpec]:
        """All tasks by name, sources before what reads them: derivations, and then materializations."""
        return {**self.derivations, **self.materializations}

    def find_task(self, name: str) -> DerivationSpec | MaterializationSpec:
        """The derivation or materialization of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("task", name, self.tasks) if self.materializations else self.find_derivation(name)

    def find_derivation(self, name: str) -> DerivationSpec:
        """The derivation of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("derivation", name, self.derivations)

    def find_materialization(self, name: str) -> MaterializationSpec:
        """The materialization of a name that a person gave.

        Raises:
            UsageError: there is none.
        """
        return _find("materialization", name, self.materializations)

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
