"""The validated values of a catalog.

Definitions (`…Def`, in `derive.catalog.definitions`) are checked and converted to these `…Spec` values; the runtime
sees no definitions. Names are resolved, schemas are bundled, durations are integers, and illegal states cannot be
built. All values are immutable, and can be pickled for a Spark worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from derive.document.clock import format_duration
from derive.document.pointer import JSON
from derive.errors import UsageError, suggest_path
from derive.position import Position, Script
from derive.protocol.collection import (
    CollectionKind,
    CollectionSpec,
    Document,
    InputSpec,
    SelectorSpec,
    owner_of_version,
    quarantine_spec,
    task_of,
)
from derive.protocol.materialization import (
    AddressEndpoint,
    BindingSpec,
    ConnectorEndpoint,
    EndpointConfig,
    EndpointSpec,
    FieldsSpec,
    LocalEndpoint,
    MaterializationSpec,
)
from derive.schema.projection import ProjectionSpec

__all__ = [
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
    "ProjectionSpec",
    "SelectorSpec",
    "ShuffleSpec",
    "StepTime",
    "TestSpec",
    "TestStep",
    "TransformSpec",
    "VerifyStep",
    "show_offset",
]

_Spec = TypeVar("_Spec")


@dataclass(frozen=True, slots=True)
class LambdaLimits:
    """Limits that the person who runs a catalog sets for its lambdas.

    Attributes:
        answer_seconds: time limit of a TypeScript module for one document.
        heap_megabytes: heap limit of one Deno process.
        allows_permissions: true to grant the permissions that authors request; false to make a request an error.
        sqlite_seconds: time limit of SQL for one document.
        sqlite_megabytes: limit for the growth of SQLite's heap by the SQL for one document.
        python_seconds: time limit of a Python module for one document.
        python_megabytes: memory limit of one Python process.
    """

    answer_seconds: float = 60.0
    heap_megabytes: int = 512
    allows_permissions: bool = False
    sqlite_seconds: float = 60.0
    sqlite_megabytes: int = 1024
    python_seconds: float = 60.0
    python_megabytes: int = 2048


@dataclass(frozen=True, slots=True)
class ShuffleSpec:
    """The assignment of a transform's documents to shards.

    Attributes:
        kind: `key` by locations, `any` for no key, `lambda` by a computed key.
        key: for `key`, JSON pointers into the source document.
        key_defaults: value of each pointer for documents that lack it.
        key_types: type of each component: `boolean`, `integer` or `string`.
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
        input: the input.
        shuffle: the assignment of documents to shards.
        script: code of the lambda; None if the connector's configuration has it.
        formerly: former name of a renamed transform, whose state it inherits; empty for a transform that is certainly
            not renamed; None if the author does not say.
        quarantines: true to put a source document aside that is invalid or makes the lambda fail; false to stop the
            task.
    """

    input: InputSpec
    shuffle: ShuffleSpec
    script: Script | None = None
    formerly: str | None = None
    quarantines: bool = False

    @property
    def name(self) -> str:
        """Return the name, unique within the derivation."""
        return self.input.name

    @property
    def index(self) -> int:
        """Return the index in the catalog's list of transforms, from 0."""
        return self.input.index

    @property
    def state_keys(self) -> tuple[str, ...]:
        """Return the state key of the input, and the state key before the transform was renamed."""
        former = () if not self.formerly else (replace(self.input, name=self.formerly).state_key,)
        return (self.input.state_key, *former)

    @property
    def position(self) -> Position:
        """Return the position in the catalog."""
        return self.input.position


@dataclass(frozen=True, slots=True)
class DerivationSpec:
    """A derivation: the derived collection, and its transforms.

    Attributes:
        collection: the derived collection.
        connector: name of the derive connector, such as `sqlite`.
        connector_config: configuration of the connector, which only the connector reads.
        transforms: transforms in catalog order.
        sources: collections that the transforms read, by name.
        tick: microseconds of `shards.maxTxnDuration`.
        disabled: `shards.disable` is set.
        limits: limits of a run for its lambdas.
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
        """Return the task's name, equal to the name of the derived collection."""
        return self.collection.name

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Return the inputs, in catalog order."""
        return tuple(transform.input for transform in self.transforms)

    @property
    def quarantines(self) -> bool:
        """Return true if one of the transforms puts failing documents aside."""
        return any(transform.quarantines for transform in self.transforms)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of a step, in a test with a schedule.

    Attributes:
        present: scheduled timestamp.
        wall: wall-clock time of the step: a verified collection is known at the end of its tick.
    """

    present: int
    wall: int


@dataclass(frozen=True, slots=True)
class IngestStep:
    """Test step: publish `documents` into `collection`, at `time` in a test with a schedule."""

    collection: str
    documents: tuple[Document, ...]
    position: Position
    time: StepTime | None = None


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Test step: the reduced documents of `collection` (in `selector`'s partitions) are `documents`.

    In a test with a schedule, documents are compared at `time`; in other tests, when they can no longer change.
    """

    collection: str
    selector: SelectorSpec
    documents: tuple[Document, ...]
    position: Position
    time: StepTime | None = None


@dataclass(frozen=True, slots=True)
class AdvanceStep:
    """Test step: advance time to `time`."""

    time: StepTime
    position: Position


def show_offset(clock: int, begin: int) -> str:
    """Return a time of a test as an offset from its beginning, such as `+20m`."""
    return f"+{format_duration(clock - begin)}"


TestStep: TypeAlias = IngestStep | VerifyStep | AdvanceStep


@dataclass(frozen=True, slots=True)
class TestSpec:
    """A catalog test: steps, in order.

    Attributes:
        name: name, such as `shop/tests/spending`.
        steps: steps in order.
        position: position in the catalog.
        begin: timestamp of the beginning.
        end: timestamp of the end in a test with a schedule; None for a test that ends without further work.
    """

    __test__ = False  # pytest would collect a class of this name as a test

    name: str
    steps: tuple[TestStep, ...]
    position: Position
    begin: int
    end: int | None

    @property
    def verified(self) -> frozenset[str]:
        """Return the names of the verified collections."""
        return frozenset(step.collection for step in self.steps if isinstance(step, VerifyStep))


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """All definitions of a catalog.

    Attributes:
        source: path of the root file.
        collections: collections by name, including derived ones.
        derivations: derivations by name, sources before readers (cycles kept together).
        cycles: groups of derivation names that read one another (strongly connected components), in the same order; a
            derivation on no cycle is a group of its own.
        tests: tests by name.
        materializations: materializations by name.
        shadows: digest of the definition of a shadow, by the name of the task that has the shadow, and by the name of
            the shadow if it is a task of its own; only a run with shadows has any.
    """

    source: str
    collections: Mapping[str, CollectionSpec]
    derivations: Mapping[str, DerivationSpec]
    cycles: tuple[tuple[str, ...], ...]
    tests: Mapping[str, TestSpec]
    materializations: Mapping[str, MaterializationSpec] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)

    def within(self, limits: LambdaLimits) -> CatalogSpec:
        """Return this catalog with limits for its lambdas."""
        limited = {name: replace(derivation, limits=limits) for name, derivation in self.derivations.items()}
        return replace(self, derivations=limited)

    def find_collection(self, name: str) -> CollectionSpec:
        """Return the collection, or the quarantine of a derivation, with a name from a user.

        Raises:
            UsageError: the name is unknown.
        """
        task = task_of(name)
        if task is not None:
            return quarantine_spec(self.find_derivation(task).name)
        return _find("collection", name, self.collections)

    def find_ingested(self, name: str) -> CollectionSpec:
        """Return the collection with a name from a user, which documents can be ingested into.

        Raises:
            UsageError: the name is unknown, or the collection is derived.
        """
        spec = self.find_collection(name)
        if name in self.derivations:
            raise UsageError(
                f"'{name}' is derived, so nothing can be ingested into it",
                hint=f"ingest into a source: {', '.join(self.derivations[name].sources)}",
            )
        return spec

    @property
    def tasks(self) -> Mapping[str, DerivationSpec | MaterializationSpec]:
        """Return all tasks by name: derivations, sources before readers, and then materializations."""
        return {**self.derivations, **self.materializations}

    def find_task(self, name: str) -> DerivationSpec | MaterializationSpec:
        """Return the derivation or materialization with a name from a user.

        Raises:
            UsageError: the name is unknown.
        """
        return _find("task", name, self.tasks) if self.materializations else self.find_derivation(name)

    def find_derivation(self, name: str) -> DerivationSpec:
        """Return the derivation with a name from a user.

        Raises:
            UsageError: the name is unknown.
        """
        return _find("derivation", name, self.derivations)

    def find_materialization(self, name: str) -> MaterializationSpec:
        """Return the materialization with a name from a user.

        Raises:
            UsageError: the name is unknown.
        """
        return _find("materialization", name, self.materializations)

    def find_test(self, name: str) -> TestSpec:
        """Return the test with a name from a user.

        Raises:
            UsageError: the name is unknown.
        """
        return _find("test", name, self.tests)


_SHOWN_NAMES = 12


def _find(kind: str, name: str, known: Mapping[str, _Spec]) -> _Spec:
    spec = known.get(name)
    if spec is None:
        guess = suggest_path(name, known)
        listed = ", ".join(list(known)[:_SHOWN_NAMES]) or "none"
        more = ", …" if len(known) > _SHOWN_NAMES else ""
        hint = f"did you mean '{guess}'?" if guess else f"known: {listed}{more}"
        owner = owner_of_version(name)
        if owner in known:  # a command for the shadow is not meant for the live task
            hint = f"a name with '@' is a shadow of '{owner}'; to drop a present shadow: flowctl shadow drop"
        raise UsageError(f"the catalog has no {kind} '{name}'", hint=hint)
    return spec
