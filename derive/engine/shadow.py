"""Shadows: edited derivations that are derived from history beside the live derivations, and then replace these.

The *group* has the edited derivations, and all derivations that read one of them, so a cycle is in the group as a
whole. While shadows are derived, each member runs twice: the live derivation under its stored definition, and the
shadow `x@2` by the code of the catalog. A shadow reads the shadows of other members. So a run with shadows follows the
same rules as other runs, with another catalog.

Materializations read the live collections, as the stored definitions describe them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from derive.catalog.graph import cycles
from derive.engine.edits import fingerprints_of
from derive.errors import UsageError
from derive.protocol.definition_text import Definition, collection_text, definition_of, restored
from derive.protocol.specs import CatalogSpec, CollectionSpec, DerivationSpec, MaterializationSpec
from derive.shard.state import epochs_lock, remove_state
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.swap import Shadow
from derive.storage.roles import Runnable, View
from derive.storage.shadows import other_edit


@dataclass(frozen=True, slots=True)
class Group:
    """A group of derivations that is to be replaced.

    Attributes:
        present: the catalog.
        live: live derivations by name, under their stored definitions; members that have never run are missing.
        members: names of all members.
    """

    present: CatalogSpec
    live: Mapping[str, DerivationSpec]
    members: tuple[str, ...]

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """Return the definition that each member's shadow runs, by the name of the derivation."""
        return {name: definition_of(self.present.derivations[name]) for name in self.members}

    @property
    def former(self) -> Mapping[str, str]:
        """Return the JSON of the definition of each live collection."""
        return {name: collection_text(spec.collection) for name, spec in self.live.items()}

    def live_catalog(self) -> CatalogSpec:
        """Return the catalog with the former definitions of the members, without members that have never run."""
        new = {name: replace(self.present.derivations[name], disabled=True) for name in self.members}
        derivations = {**self.present.derivations, **new, **self.live}
        collections = {name: spec.collection for name, spec in self.live.items()}
        return _ordered(replace(self._read_as(collections), derivations=derivations))

    def with_shadows(self, shadows: Collection[Shadow]) -> CatalogSpec:
        """Return the catalog of a run with the live members and their shadows."""
        names = {shadow.task: shadow.name for shadow in shadows}
        others = [shadow_of(self.present.derivations[name], names) for name in self.members]
        live = self.live_catalog()
        return _ordered(
            replace(
                live,
                collections={**live.collections, **{spec.name: spec.collection for spec in others}},
                derivations={**live.derivations, **{spec.name: spec for spec in others}},
            )
        )

    def _read_as(self, collections: Mapping[str, CollectionSpec]) -> CatalogSpec:
        """Return the catalog with other definitions of some collections, for their materializations, too."""
        sources = {name: source for spec in self.live.values() for name, source in spec.sources.items()}
        return replace(
            self.present,
            collections={**sources, **self.present.collections, **collections},
            materializations={
                name: _materialized(spec, collections) for name, spec in self.present.materializations.items()
            },
        )


def find_group(store: View, catalog: CatalogSpec) -> Group | None:
    """Return the group of the catalog's edited derivations; None if no derivation was edited since it ran.

    Raises:
        UsageError: a member is disabled, or its stored definition is unknown or cannot be restored.
    """
    states = {name: state for name in catalog.derivations if (state := store.task(name)) and state.positions}
    definitions = {name: next((part.definition for part in reversed(store.past(name))), None) for name in states}
    members = {
        name for name, state in states.items() if _is_edited(catalog.derivations[name], state, definitions[name])
    }
    if not members:
        return None
    grown = True
    while grown:
        readers = {name for name, spec in catalog.derivations.items() if not members.isdisjoint(spec.sources)}
        grown = not readers <= members
        members |= readers
    live = {}
    for name in members:
        spec = catalog.derivations[name]
        if spec.disabled:
            raise UsageError(
                f"'{name}' is disabled, so it cannot be replaced by a shadow",
                position=spec.collection.position,
                hint="remove 'disable' of its 'shards'",
            )
        if name in states:
            live[name] = _stored(spec, definitions[name])
    return Group(catalog, live, tuple(name for name in catalog.derivations if name in members))


def _is_edited(spec: DerivationSpec, state: TaskState, definition: str | None) -> bool:
    """Return whether a derivation differs from its stored definition, or without one, from its fingerprints."""
    if definition is None:
        return state.fingerprints != fingerprints_of(spec)
    return definition != definition_of(spec).text


def _stored(spec: DerivationSpec, definition: str | None) -> DerivationSpec:
    """Return a live derivation under its stored definition.

    Raises:
        UsageError: the definition is unknown, or cannot be restored.
    """
    if definition is None:
        raise UsageError(
            f"'{spec.name}' cannot run beside its shadow: it ran before data folders stored definitions",
            hint="undo the edit and run once: flowctl run --until-idle; then edit the catalog again",
        )
    live = restored(definition, spec)
    if live is None:
        raise UsageError(
            f"'{spec.name}' cannot run beside its shadow: its connector stores no configurations, or its salt differs",
            hint=f"start over instead: flowctl reset --task {spec.name}",
        )
    return live


def begin_shadow(store: Runnable, group: Group, *, is_held: bool) -> CatalogSpec:
    """Begin the shadows of a group, or continue them; return the catalog to run.

    Args:
        store: the data folder.
        group: the group.
        is_held: whether the swap waits for a person.

    Raises:
        UsageError: the data folder has shadows of other definitions.
    """
    return group.with_shadows(store.shadows.begin(group.definitions, group.former, is_held=is_held))


def running_catalog(store: View, shadows: Collection[Shadow], catalog: CatalogSpec) -> CatalogSpec:
    """Return the catalog that a run of a data folder with shadows runs; the same catalog without shadows.

    Raises:
        UsageError: the catalog was edited since the shadows began.
    """
    if not shadows:
        return catalog
    group = find_group(store, catalog)
    digests = {name: one.digest for name, one in group.definitions.items()} if group else {}
    if group is None or digests != {shadow.task: shadow.definition for shadow in shadows}:
        raise other_edit()
    return group.with_shadows(shadows)


def require_no_shadow(shadows: Collection[Shadow], tasks: Collection[str]) -> None:
    """Raise an error if one of the tasks is a member of a group with shadows, which only `--shadow` may run.

    Raises:
        UsageError: a shadow exists.
    """
    members = sorted(shadow.task for shadow in shadows if shadow.task in tasks)
    if members:
        raise UsageError(
            f"a shadow of {', '.join(members)} is being derived, and a run without it would apply the edit at once",
            hint="continue it: flowctl run --shadow; or drop it: flowctl shadow drop",
        )


def shadow_of(spec: DerivationSpec, names: Mapping[str, str]) -> DerivationSpec:
    """Return the shadow of a derivation.

    Args:
        spec: the derivation.
        names: name of each member's shadow, by the name of the member.
    """
    transforms = tuple(
        replace(
            transform,
            input=replace(transform.input, source=names.get(transform.input.source, transform.input.source)),
            formerly=None,
        )
        for transform in spec.transforms
    )
    return replace(
        spec,
        collection=_named(spec.collection, names),
        transforms=transforms,
        sources={names.get(name, name): _named(source, names) for name, source in spec.sources.items()},
    )


def _named(spec: CollectionSpec, names: Mapping[str, str]) -> CollectionSpec:
    return replace(spec, name=names.get(spec.name, spec.name))


def _materialized(spec: MaterializationSpec, collections: Mapping[str, CollectionSpec]) -> MaterializationSpec:
    """Return a materialization with other definitions of some of its sources."""
    bindings = tuple(
        replace(binding, collection=collections.get(binding.collection.name, binding.collection))
        for binding in spec.bindings
    )
    return replace(
        spec, bindings=bindings, sources={name: collections.get(name, source) for name, source in spec.sources.items()}
    )


def _ordered(catalog: CatalogSpec) -> CatalogSpec:
    """Return a catalog with its derivations in order, sources before readers."""
    groups = cycles({name: [read.source for read in spec.inputs] for name, spec in catalog.derivations.items()})
    derivations = {name: catalog.derivations[name] for group in groups for name in group}
    return replace(catalog, derivations=derivations, cycles=groups)


def drop_shadows(store: Runnable) -> list[str]:
    """Drop the shadows of a data folder, and remove their files; return their names. Running shadows are fenced."""
    with epochs_lock(store.root):  # a run that begins meanwhile writes its first file after the removal
        names = store.shadows.drop()
        for name in names:
            remove_state(store.root, name)
            store.shadows.settle(name)
    return names
