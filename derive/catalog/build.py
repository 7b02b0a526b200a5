"""Build validated specs from definitions, and check the code of a catalog. Each rule checks one property."""

from __future__ import annotations

import base64
import gc
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from derive.catalog.definitions import AdvanceDef, CatalogDef, CollectionDef, MaterializationDef, TestDef
from derive.catalog.graph import cycles, upstream
from derive.catalog.language.structure import collisions, is_line, is_name
from derive.catalog.language.yaml import Located
from derive.catalog.loading import Loader, Resources
from derive.catalog.rules.locations import CollectionLocations, defaults
from derive.catalog.rules.materializations import MaterializationBuilder
from derive.catalog.rules.steps import Schedule, StepBuilder
from derive.catalog.rules.transforms import TransformBuilder, check_transform_names
from derive.catalog.schemas import SchemaExaminer
from derive.errors import CatalogError, Issue, suggest_path
from derive.lambda_sql.shuffle import check_shuffles
from derive.protocol.collection import is_of_sql
from derive.protocol.entry_points import find_authoring
from derive.protocol.specs import (
    BindingSpec,
    CatalogSpec,
    CollectionSpec,
    DerivationSpec,
    MaterializationSpec,
    TestSpec,
    TestStep,
    TransformSpec,
)
from derive.schema.projection import project
from derive.schema.redaction import Redaction
from derive.schema.shape import Shape

_OF_TESTS = "E6"
"""Prefix of the issue codes that only tests can have."""

_NAME_HINT = "tokens of letters, numbers, '-', '_' and '.', with single slashes between them"
_OWNED_HINT = "derive into a collection of another name; a view of SQL can read that collection"
_PREFIX_HINT = "rename one of them: no name may be a folder of another one"
_LINE_HINT = "one line of text, without a space at its ends"


@dataclass(frozen=True, slots=True)
class Build:
    """The result of building a catalog.

    Attributes:
        spec: the valid part of the catalog; all of it if there are no issues.
        issues: all errors, in the order of their detection.
        notes: remarks, which are not errors.
        missing: URLs of missing code files; each file also has an issue.
        of_tests: the issues that concern only tests.
    """

    spec: CatalogSpec
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...] = ()
    missing: frozenset[str] = frozenset()
    of_tests: frozenset[Issue] = frozenset()


def load(source: str | Path, resources: Resources | None = None) -> CatalogSpec:
    """Load and validate a catalog.

    Args:
        source: path of its root file.
        resources: loader of the files, which records them.

    Raises:
        CatalogError: the catalog has errors; all are included.
    """
    return _checked(build(source, resources), frozenset())


def load_without_tests(source: str | Path, resources: Resources | None = None) -> CatalogSpec:
    """Load and validate a catalog for a run: errors in tests are ignored.

    Args:
        source: as for `load`.
        resources: as for `load`.

    Raises:
        CatalogError: the catalog has errors outside of tests; all are included.
    """
    built = build(source, resources)
    return replace(_checked(built, built.of_tests), tests={})


def _checked(built: Build, ignored: frozenset[Issue]) -> CatalogSpec:
    if issues := [issue for issue in built.issues if issue not in ignored]:
        raise CatalogError(issues)
    return built.spec


def build(source: str | Path, resources: Resources | None = None) -> Build:
    """Load and validate a catalog; if it has issues, return the valid part.

    Args:
        source: path of its root file.
        resources: loader of the files; it may have texts that replace files.
    """
    loader = Loader(resources)
    definition = loader.load(Path(source))
    builder = _Builder(definition, loader)
    spec, issues = builder.build(), loader.report.issues
    of_tests = frozenset(issue for issue in issues if issue in builder.test_issues or issue.code.startswith(_OF_TESTS))
    return Build(spec, tuple(issues), tuple(loader.notes), frozenset(loader.missing), of_tests)


class _Builder:
    def __init__(self, definition: CatalogDef, loader: Loader) -> None:
        self._definition = definition
        self._loader = loader
        self._report = loader.report
        self._shapes: dict[str, Shape] = {}
        self._collections: dict[str, CollectionSpec] = {}
        self._guesses: dict[str, str | None] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._schemas = SchemaExaminer(loader.resources, self._report, loader.notes)
        self._transforms = TransformBuilder(self._shapes, self._report)
        self._steps = StepBuilder(self._shapes, loader.resources, self._report, loader.notes)
        self._materializations = MaterializationBuilder(loader.resources, self._report, loader.notes)
        self.test_issues: frozenset[Issue] = frozenset()

    def build(self) -> CatalogSpec:
        definition = self._definition
        self._check_names()
        for collection_def in definition.collections.values():
            collection = self._collection(collection_def)
            if collection is not None:
                self._collections[collection_def.name] = collection
        reads = {
            collection_def.name: [transform.source.name.value for transform in collection_def.derive.transforms]
            for collection_def in definition.collections.values()
            if collection_def.derive
        }
        groups = cycles(reads)
        self._groups = {name: group for group in groups for name in group}
        derivations = {}
        for name in self._groups:
            derivation = self._derivation(definition.collections[name])
            if derivation is not None:
                derivations[name] = derivation
        before = len(self._report.issues)
        tests = {name: self._test(test_def, derivations) for name, test_def in definition.tests.items()}
        self.test_issues = frozenset(self._report.issues[before:])
        materializations = {
            name: materialization
            for name, materialization_def in definition.materializations.items()
            if (materialization := self._materialization(materialization_def))
        }
        return CatalogSpec(definition.source, self._collections, derivations, groups, tests, materializations)

    def _check_names(self) -> None:
        definition = self._definition
        kinds = {
            "capture": definition.captures,
            "collection": {name: collection_def.at for name, collection_def in definition.collections.items()},
            "materialization": {name: entry.at for name, entry in definition.materializations.items()},
            "test": {name: test_def.at for name, test_def in definition.tests.items()},
        }
        entities = [(kind, name, at.key_position) for kind, entries in kinds.items() for name, at in entries.items()]
        for kind, name, position in entities:
            if kind == "test" and not is_line(name):
                self._report.add("E101", f"{name!r} cannot be the name of a test", position, _LINE_HINT)
            elif kind != "test" and not is_name(name):
                self._report.add("E101", f"'{name}' cannot be the name of a {kind}", position, _NAME_HINT)
        for index, other, relation in collisions([name for _, name, _ in entities]):
            kind, name, position = entities[index]
            message = f"{kind} '{name}' {relation} {entities[other][0]} '{entities[other][1]}'"
            hint = _PREFIX_HINT if "prefix" in relation else None
            self._report.add("E102", message, position, hint)
        for name, collection_def in definition.collections.items():
            if collection_def.derive and is_of_sql(name):
                message = f"'{name}' cannot be derived: names that begin with 'sql/' belong to tables and views of SQL"
                self._report.add("E105", message, collection_def.at.key_position, _OWNED_HINT)

    # Collections

    def _collection(self, definition: CollectionDef) -> CollectionSpec | None:
        name = definition.name
        before = self._report.count
        shares_schema = definition.read is definition.write
        read_at = definition.schema_at if shares_schema else definition.at["readSchema"]
        read = self._schemas.examine(read_at, definition.read.schema, name)
        write = read if shares_schema else self._schemas.examine(definition.schema_at, definition.write.schema, name)
        if read is None or write is None:
            return None
        self._shapes[name] = read.shape
        locations = CollectionLocations(definition, read, write, self._report)
        key = locations.key()
        declared = locations.projections()
        if self._report.count > before:
            return None
        return CollectionSpec(
            name=name,
            key=key,
            key_defaults=defaults(read.shape, key),
            write_schema=definition.write.schema,
            read_schema=definition.read.schema,
            projections=project(read.shape, key, declared),
            position=definition.at.key_position,
            write_positions=definition.write.positions,
            read_positions=definition.read.positions,
            redaction=self._redaction(definition),
        )

    def _redaction(self, definition: CollectionDef) -> Redaction | None:
        """Return the redaction of documents.

        The salt comes from the derivation, or from a capture into the collection.
        """
        if definition.write.annotated is None:
            if definition.read.annotated is not None:
                message = (
                    f"'{definition.name}' has 'redact' in its readSchema, but the readSchema describes stored documents"
                )
                self._report.add("E407", message, definition.at["readSchema"], "write 'redact' in the writeSchema")
            return None
        salts = [definition.derive.redact_salt] if definition.derive else []
        for capture in self._definition.captures.values():
            targets = [binding["target"] for binding in capture["bindings"].value]
            if definition.name in targets and "redactSalt" in capture.value:
                salts.append(capture["redactSalt"])
        salt_at = next((salt for salt in salts if salt), None)
        if salt_at is None:
            return Redaction(definition.write.annotated)
        try:
            return Redaction(definition.write.annotated, base64.b64decode(salt_at.value, validate=True))
        except ValueError:
            self._report.add("E407", "the redactSalt is not base64", salt_at, "create a salt: openssl rand -base64 32")
            return None

    # Derivations and tests

    def _reference(self, at: Located, referrer: str) -> CollectionSpec | None:
        name = at.value
        collection = self._collections.get(name)
        known = name in self._definition.collections or name in self._loader.broken
        if collection is None and not known and not self._loader.incomplete:
            if name not in self._guesses:
                self._guesses[name] = suggest_path(name, self._definition.collections)
            guess = self._guesses[name]
            hint = None
            if guess:
                hint = f"did you mean '{guess}'? ({self._definition.collections[guess].at.key_position})"
            elif name.startswith("sql/"):
                hint = (
                    "define a collection of this name, with the columns of the table or view: see 'A table as a"
                    " source' in docs/sql-queries.md"
                )
            else:
                hint = f"define or import the collection, or remove it from {referrer}"
            self._report.add("E201", f"collection '{name}', referenced by {referrer}, is not defined", at, hint)
        return collection

    def _derivation(self, definition: CollectionDef) -> DerivationSpec | None:
        derive = definition.derive
        assert derive is not None
        before = self._report.count
        sources: dict[str, CollectionSpec] = {}
        transforms: list[TransformSpec] = []
        check_transform_names(definition, derive.transforms, self._report)
        for transform_def in derive.transforms:
            source = self._reference(
                transform_def.source.name, f"transform '{transform_def.name.value}' of '{definition.name}'"
            )
            if source is None:
                continue
            sources[source.name] = source
            feedback = source.name in self._groups[definition.name]
            transforms.append(self._transforms.build(transform_def, len(transforms), source, feedback=feedback))
        transforms = self._transforms.aligned(definition, derive.transforms, transforms)
        collection = self._collections.get(definition.name)
        if collection is None or self._report.count > before or len(transforms) < len(derive.transforms):
            return None
        return DerivationSpec(
            collection=collection,
            connector=derive.connector,
            connector_config=derive.connector_config,
            transforms=tuple(transforms),
            sources=sources,
            tick=derive.tick,
            disabled=derive.disabled or not derive.transforms,
        )

    def _materialization(self, definition: MaterializationDef) -> MaterializationSpec | None:
        before = self._report.count
        endpoint = self._materializations.endpoint(definition)
        bindings: dict[str, BindingSpec] = {}
        for binding_def in definition.bindings:
            source = self._reference(binding_def.source.name, f"materialization '{definition.name}'")
            if source is not None:
                build = self._materializations.binding
                binding = build(binding_def, definition.url, len(bindings), source, bindings)
                if binding is not None:
                    bindings[binding.name] = binding
        if endpoint is None or self._report.count > before or len(bindings) < len(definition.bindings):
            return None
        return MaterializationSpec(
            name=definition.name,
            endpoint=endpoint,
            bindings=tuple(bindings.values()),
            sources={binding.collection.name: binding.collection for binding in bindings.values()},
            tick=definition.tick,
            position=definition.at.key_position,
            disabled=definition.disabled,
        )

    def _test(self, definition: TestDef, derivations: Mapping[str, DerivationSpec]) -> TestSpec:
        reads = {name: derivation.sources for name, derivation in derivations.items()}
        ticks = {name: derivation.tick for name, derivation in derivations.items()}
        schedule = Schedule(definition.steps, ticks, self._report)
        steps: list[TestStep] = []
        verified: set[str] = set()
        for step in definition.steps:
            if isinstance(step, AdvanceDef):
                steps.append(schedule.advance(step))
                continue
            name = step.source.name.value
            if step.kind == "verify":
                verified.add(name)
                time = schedule.verify(upstream([name], reads))
            else:
                time = schedule.ingest(step)
            collection = self._reference(step.source.name, f"test '{definition.name}'")
            if collection is not None:
                steps.append(self._steps.build(step, collection, time))
        end = schedule.verify(upstream(verified, reads) if verified else derivations)
        return TestSpec(
            name=definition.name,
            steps=tuple(steps),
            position=definition.at.key_position,
            begin=schedule.begin,
            end=end.wall if end else None,
        )


def require_sound(spec: CatalogSpec, tasks: Collection[str] | None = None) -> tuple[Issue, ...]:
    """Raise an error if the code of a catalog has errors; return the notes on properties that schemas do not mention.

    Notes on the number of shards concern a later split, and are left to `check_catalog`.

    Args:
        spec: the catalog.
        tasks: names of the running derivations; None for all.

    Raises:
        CatalogError: the code has errors; all are included.
    """
    running = [derivation for name, derivation in spec.derivations.items() if tasks is None or name in tasks]
    checked = _check_code(running)
    issues = [issue for issue in checked if not issue.is_note]
    if issues:
        raise CatalogError(issues)
    return tuple(issue for issue in checked if issue.code == _UNMENTIONED)


_UNMENTIONED = "N529"


def _check_code(derivations: Iterable[DerivationSpec]) -> list[Issue]:
    """Return the issues and notes of the code of derivations."""
    by_connector: dict[str, list[DerivationSpec]] = {}
    issues: list[Issue] = []
    for derivation in derivations:
        if not derivation.disabled:
            by_connector.setdefault(derivation.connector, []).append(derivation)
            issues += check_shuffles(derivation)
    for name, of_connector in by_connector.items():
        issues += find_authoring(name).check(of_connector)
    return issues


def check_catalog(source: str | Path) -> Build:
    """Build a catalog and check its code.

    The code of a derivation is checked only if the derivation has no other issues.

    Args:
        source: path of its root file.
    """
    collects = gc.isenabled()
    # garbage collection would take a sixth of the time, and free nothing, because the built objects stay alive
    gc.disable()
    try:
        built = build(source)
        return with_issues(built, _check_code(built.spec.derivations.values()))
    finally:
        if collects:
            gc.enable()


def with_issues(built: Build, issues: Iterable[Issue]) -> Build:
    """Return a build with additional issues and notes."""
    known = set(built.issues)
    new = [issue for issue in issues if issue not in known]
    return replace(
        built,
        issues=(*built.issues, *(issue for issue in new if not issue.is_note)),
        notes=(*built.notes, *(issue for issue in new if issue.is_note)),
    )
