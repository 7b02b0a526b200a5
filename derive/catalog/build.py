"""Building: from definitions to validated specs, by rules that each look at one thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from derive.catalog.lineage import cycles
from derive.catalog.loader import Loader
from derive.catalog.model import CatalogDef, CollectionDef, SourceDef, StepDef, TestDef, TransformDef
from derive.catalog.names import collisions, is_name, is_pointer, is_token
from derive.catalog.yaml import Located
from derive.document.clock import parse_rfc3339
from derive.document.key import compile_key
from derive.document.pointer import parse_pointer
from derive.errors import CatalogError, FlowError, Issue
from derive.protocol.specs import (
    JSON,
    CatalogSpec,
    CollectionSpec,
    DerivationSpec,
    IngestStep,
    SelectorSpec,
    ShuffleSpec,
    TestSpec,
    TransformSpec,
    VerifyStep,
)
from derive.reduce.combiner import Combiner
from derive.schema.infer import infer
from derive.schema.projection import Declared, project
from derive.schema.shape import Shape, locate
from derive.schema.validator import compile_validator
from derive.suggest import suggest

_SCALARS = ("boolean", "integer", "string")


def load(source: str | Path) -> CatalogSpec:
    """Load and validate a catalog.

    Args:
        source: path of its root file.

    Raises:
        CatalogError: with everything that is wrong.
    """
    loader = Loader()
    definition = loader.load(Path(source))
    builder = _Builder(definition, loader)
    spec = builder.build()
    if builder.issues:
        raise CatalogError(builder.issues)
    return spec


class _Builder:
    def __init__(self, definition: CatalogDef, loader: Loader) -> None:
        self._definition = definition
        self.issues = loader.issues
        self._broken = loader.broken
        self._incomplete = loader.incomplete
        self._shapes: dict[str, Shape] = {}
        self._collections: dict[str, CollectionSpec] = {}

    def build(self) -> CatalogSpec:
        definition = self._definition
        self._check_names()
        for each in definition.collections.values():
            collection = self._collection(each)
            if collection is not None:
                self._collections[each.name] = collection
        reads = {
            each.name: [transform.source.name.value for transform in each.derive.transforms]
            for each in definition.collections.values()
            if each.derive
        }
        groups = cycles(reads)
        group_of = {name: group for group in groups for name in group}
        derivations = {}
        for group in groups:
            for name in group:
                derivation = self._derivation(definition.collections[name], group_of)
                if derivation is not None:
                    derivations[name] = derivation
        tests = {name: self._test(each) for name, each in definition.tests.items()}
        return CatalogSpec(definition.source, self._collections, derivations, groups, tests)

    def _issue(self, code: str, message: str, at: Located, hint: str | None = None) -> None:
        self.issues.append(Issue(code, message, at.position, hint))

    def _check_names(self) -> None:
        entities: dict[str, tuple[str, Located]] = {}
        for kind, entries in (("collection", self._definition.collections), ("test", self._definition.tests)):
            for name, each in entries.items():
                entities[name] = (kind, each.at)
                if not is_name(name):
                    position = each.at.key_position
                    hint = "tokens of letters, numbers, '-', '_' and '.', with single slashes between them"
                    self.issues.append(Issue("E101", f"'{name}' cannot name a {kind}", position, hint))
        for name, other, how in collisions(entities):
            kind, at = entities[name]
            message = f"{kind} '{name}' {how} {entities[other][0]} '{other}'"
            self.issues.append(Issue("E102", message, at.key_position))

    # Collections

    def _collection(self, definition: CollectionDef) -> CollectionSpec | None:
        name = definition.name
        before = len(self.issues)
        if not self._compiles(definition):
            return None
        shape = self._shapes[name] = infer(definition.read_schema)
        if shape.types != {"object"}:
            found = ", ".join(sorted(shape.types)) if len(shape.types) < 7 else "anything"
            message = f"the schema of '{name}' must be of type object, and allows {found}"
            self._issue("E402", message, definition.schema_at, "add 'type: object'")
        key = self._key(definition, shape)
        declared = self._projections(definition, shape)
        if len(self.issues) > before:
            return None
        return CollectionSpec(
            name=name,
            key=key,
            key_defaults=_defaults(shape, key),
            write_schema=definition.write_schema,
            read_schema=definition.read_schema,
            projections=project(shape, key, declared),
            position=definition.at.key_position,
        )

    def _compiles(self, definition: CollectionDef) -> bool:
        try:
            for schema in (definition.write_schema, definition.read_schema):
                compile_validator(schema, name=definition.name)
                Combiner(schema, name=definition.name)
        except FlowError as exc:
            self._issue("E403", exc.message, definition.schema_at, exc.hint)
            return False
        return True

    def _key(self, definition: CollectionDef, shape: Shape) -> tuple[str, ...]:
        if definition.key is None:
            return ()
        if not definition.key.value:
            self._issue("E301", f"the key of '{definition.name}' is empty", definition.key)
        for each in definition.key.elements():
            self._scalar_type(each, shape, "a key")
        return tuple(map(str, definition.key.value))

    def _scalar_type(self, at: Located, shape: Shape, what: str) -> str | None:
        """The one scalar type of the location a pointer names; an issue, and None, if it has none."""
        pointer = at.value
        if not isinstance(pointer, str) or not is_pointer(pointer):
            hint = f"did you mean '/{pointer}'?" if isinstance(pointer, str) and is_pointer(f"/{pointer}") else None
            self._issue("E302", f"{what} must be a JSON pointer, and is {pointer!r}", at, hint)
            return None
        located, exists = locate(shape, parse_pointer(pointer))
        if exists in ("cannot", "implicit"):
            fault = "cannot exist" if exists == "cannot" else "is not mentioned"
            guess = suggest(pointer, [f"/{name}" for name in shape.properties])
            hint = f"did you mean '{guess}'?" if guess else None
            self._issue("E303", f"{what} '{pointer}' {fault} in the schema", at, hint)
            return None
        types = sorted(located.types - {"null"})
        if len(types) != 1 or types[0] not in _SCALARS:
            found = ", ".join(sorted(located.types))
            self._issue("E304", f"{what} '{pointer}' must be a boolean, integer or string, and may be {found}", at)
            return None
        return types[0]

    def _projections(self, definition: CollectionDef, shape: Shape) -> dict[str, Declared]:
        declared: dict[str, Declared] = {}
        if definition.projections is None:
            return declared
        for field, at in definition.projections.items():
            location = at if isinstance(at.value, str) else at["location"] if "location" in at.value else None
            if location is None or not isinstance(location.value, str) or not is_pointer(location.value):
                self._issue("E302", f"projection '{field}' needs a JSON pointer as its location", at)
                continue
            partition = isinstance(at.value, dict) and at.value.get("partition") is True
            if partition:
                self._scalar_type(location, shape, f"the logical partition '{field}' at")
            canonical = field in shape.properties and location.value != f"/{field}"
            if canonical:
                message = f"projection '{field}' hides the property of that name, and is at '{location.value}'"
                self._issue("E305", message, location)
            declared[field] = Declared(location.value, partition)
        return declared

    # Derivations

    def _reference(self, at: Located, referrer: str) -> CollectionSpec | None:
        found = self._collections.get(at.value)
        known = at.value in self._definition.collections or at.value in self._broken
        if found is None and not known and not self._incomplete:
            guess = suggest(at.value, self._definition.collections)
            hint = None
            if guess:
                hint = f"did you mean '{guess}'? ({self._definition.collections[guess].at.key_position})"
            message = f"collection '{at.value}', referenced by {referrer}, is not defined"
            self._issue("E201", message, at, hint)
        return found

    def _derivation(self, definition: CollectionDef, groups: Mapping[str, tuple[str, ...]]) -> DerivationSpec | None:
        derive = definition.derive
        assert derive is not None
        cycle = groups[definition.name]
        sources: dict[str, CollectionSpec] = {}
        transforms: list[TransformSpec] = []
        self._check_transform_names(definition, derive.transforms)
        for each in derive.transforms:
            source = self._reference(each.source.name, f"transform '{each.name.value}' of '{definition.name}'")
            if source is None:
                continue
            sources[source.name] = source
            transforms.append(self._transform(each, len(transforms), source, feedback=source.name in cycle))
        transforms = self._aligned(definition, derive.transforms, transforms)
        collection = self._collections.get(definition.name)
        if collection is None:
            return None
        return DerivationSpec(
            collection=collection,
            connector=derive.connector,
            migrations=derive.migrations,
            module=derive.module,
            transforms=tuple(transforms),
            sources=sources,
            tick=derive.tick,
            disabled=derive.disabled,
        )

    def _check_transform_names(self, definition: CollectionDef, transforms: Iterable[TransformDef]) -> None:
        seen: dict[str, TransformDef] = {}
        for each in transforms:
            name = each.name.value
            if not is_token(name):
                self._issue("E101", f"'{name}' cannot name a transform", each.name)
            if name in seen:
                first = seen[name].name.position
                message = f"transform '{name}' of '{definition.name}' is defined a second time; first at {first}"
                self._issue("E103", message, each.name)
            seen.setdefault(name, each)

    def _transform(
        self, definition: TransformDef, index: int, source: CollectionSpec, *, feedback: bool
    ) -> TransformSpec:
        not_before = self._clock(definition.source.not_before)
        not_after = self._clock(definition.source.not_after)
        if not_before is not None and not_after is not None and not_before >= not_after:
            assert definition.source.not_before is not None
            self._issue("E501", "'notBefore' must come before 'notAfter'", definition.source.not_before)
        return TransformSpec(
            name=definition.name.value,
            index=index,
            source=source.name,
            selector=self._selector(definition.source.partitions, source),
            not_before=not_before,
            not_after=not_after,
            shuffle=self._shuffle(definition, source),
            script=definition.script,
            priority=definition.priority,
            read_delay=definition.read_delay,
            backfill=definition.backfill,
            feedback=feedback,
            position=definition.name.position,
        )

    def _clock(self, at: Located | None) -> int | None:
        if at is None:
            return None
        try:
            return parse_rfc3339(at.value)
        except (ValueError, TypeError):
            self._issue("E502", f"{at.value!r} is not a time such as 2023-01-23T01:00:00Z", at)
            return None

    def _selector(self, at: Located | None, source: CollectionSpec) -> SelectorSpec:
        if at is None or not at.value:
            return SelectorSpec()
        sides: dict[str, dict[str, tuple[JSON, ...]]] = {"include": {}, "exclude": {}}
        for side, fields in at.items():
            for field, values in fields.items():
                self._check_selected(source, field, values)
                sides[side][field] = tuple(values.value) if isinstance(values.value, list) else (values.value,)
        return SelectorSpec(sides["include"], sides["exclude"])

    def _check_selected(self, source: CollectionSpec, field: str, values: Located) -> None:
        known = [each.field for each in source.partitions]
        if field in known:
            return
        guess = suggest(field, known)
        listed = f"it has: {', '.join(known) or 'none'}"
        hint = f"did you mean '{guess}'?" if guess else listed
        message = f"'{field}' is not a logical partition of '{source.name}'"
        self.issues.append(Issue("E306", message, values.key_position, hint))

    def _shuffle(self, definition: TransformDef, source: CollectionSpec) -> ShuffleSpec:
        at = definition.shuffle
        if definition.shuffle_script is not None:
            return ShuffleSpec("lambda", script=definition.shuffle_script)
        if at is not None and at.value == "any":
            return ShuffleSpec("any")
        shape = self._shapes[source.name]
        kind: Literal["key"] = "key"
        if at is None:
            types = [sorted(locate(shape, parse_pointer(each))[0].types - {"null"})[0] for each in source.key]
            return ShuffleSpec(kind, source.key, source.key_defaults, tuple(types))
        key_at = at["key"]
        if not isinstance(key_at.value, list) or not key_at.value:
            self._issue("E503", "a shuffle key is an array of at least one JSON pointer", key_at)
            return ShuffleSpec("any")
        found = [self._scalar_type(each, shape, "a shuffle key") for each in key_at.elements()]
        if None in found:
            return ShuffleSpec("any")
        key = tuple(key_at.value)
        return ShuffleSpec(kind, key, _defaults(shape, key), tuple(each for each in found if each))

    def _aligned(
        self, definition: CollectionDef, written: Iterable[TransformDef], built: list[TransformSpec]
    ) -> list[TransformSpec]:
        """The transforms of a derivation, with keys of the same length and types, which computed ones are told."""
        assert definition.derive is not None
        keyed = [each for each in built if each.shuffle.kind == "key"]
        explicit = definition.derive.shuffle_key_types
        places = {each.name.value: each for each in written}
        if explicit is not None:
            wanted, reason = tuple(explicit.value or ()), "'shuffleKeyTypes' says"
        elif keyed:
            wanted, reason = keyed[-1].shuffle.key_types, f"'{keyed[-1].name}' has"
        else:
            for each in built:
                if each.shuffle.kind == "lambda":
                    message = f"the types of the shuffle key of '{each.name}' are not known"
                    at = places[each.name].shuffle or places[each.name].name
                    self._issue("E506", message, at, "say 'shuffleKeyTypes: [string]' under 'derive', for example")
            return built
        for each in keyed:
            if each.shuffle.key_types != wanted:
                at = places[each.name].shuffle or places[each.name].name
                message = (
                    f"the shuffle key of '{each.name}' has types [{', '.join(each.shuffle.key_types)}],"
                    f" and {reason} [{', '.join(map(str, wanted))}]"
                )
                self._issue("E504", message, at)
        computed = ShuffleSpec("lambda", key_types=wanted)
        return [
            replace(each, shuffle=replace(computed, script=each.shuffle.script))
            if each.shuffle.kind == "lambda"
            else each
            for each in built
        ]

    # Tests

    def _test(self, definition: TestDef) -> TestSpec:
        steps = [self._step(each, definition.name) for each in definition.steps]
        return TestSpec(
            name=definition.name,
            description=definition.description,
            steps=tuple(each for each in steps if each),
            position=definition.at.key_position,
        )

    def _step(self, definition: StepDef, test: str) -> IngestStep | VerifyStep | None:
        source: SourceDef = definition.source
        collection = self._reference(source.name, f"test '{test}'")
        if collection is None:
            return None
        position = definition.at.key_position
        if definition.kind == "ingest":
            return IngestStep(collection.name, definition.documents, definition.description, position)
        pack = compile_key(collection.key, collection.key_defaults)
        keys = [pack(each) for each in definition.documents]
        if keys != sorted(keys):
            message = f"documents to verify are not in the order of the key of '{collection.name}'"
            self._issue("E602", message, definition.documents_at)
        selector = self._selector(source.partitions, collection)
        return VerifyStep(collection.name, selector, definition.documents, definition.description, position)


def _defaults(shape: Shape, key: Iterable[str]) -> tuple[JSON, ...]:
    found = [locate(shape, parse_pointer(each))[0].default if is_pointer(each) else () for each in key]
    return tuple(each[0] if each else None for each in found)
