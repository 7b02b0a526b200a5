"""Shadows: edited derivations that are derived from history beside the live derivations, and then replace these.

The *group* has the edited derivations, and all derivations that read one of them, so a cycle is in the group as a
whole. While shadows are derived, each member runs twice: the live derivation under its stored definition, and the
shadow `x@2` by the code of the catalog. A shadow reads the shadows of other members. So a run with shadows follows the
same rules as other runs, with another catalog.

Materializations read the live collections, as the stored definitions describe them.

A binding has a shadow, too: a binding with a raised `backfill` fills a second table, while the first one stays up to
date. Until the swap, the materialization has the live binding under its former definition, and the shadow under the
definition of the catalog. Both are bindings of one task, so one transaction of the endpoint never has a part of a
source. The shadow has the lowest priority: it reads while the live bindings have nothing to read. An error of the
shadow alone does not stop the live bindings.

The decision to swap is one commit of the data folder. From then on the task has only the binding of the catalog, and
the shadow is a refill that has reached the rows of the table: it replaces them in one transaction of the endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from derive.catalog.graph import cycles
from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.engine.edits import fingerprints_of, reset_command
from derive.engine.stored_bindings import StoredParts, find_stored_edits, stored_fields
from derive.errors import CatalogError, FencedError, UsageError
from derive.failpoint import reach
from derive.materialize.restarts import binding_of, last_reset, read_refills
from derive.protocol.definition_text import (
    Definition,
    StoredBinding,
    collection_text,
    definition_of,
    definition_of_materialization,
    restored,
    restored_bindings,
)
from derive.protocol.secrets import redacted
from derive.protocol.specs import BindingSpec, CatalogSpec, CollectionSpec, DerivationSpec, MaterializationSpec
from derive.shard.state import publish_epoch, remove_state
from derive.storage.capability.acquisition import shadowed
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.swap import BindingShadow, Shadow
from derive.storage.roles import Maintainable, Runnable, View
from derive.storage.shadows import Shadows, other_edit
from derive.time import BEGINNING

if TYPE_CHECKING:
    from derive.materialize.connector import Connector
    from derive.materialize.preparation import PreparedMaterialization

# Connectors are imported in functions, because they import gRPC, and most runs have no shadow of a binding.


@dataclass(frozen=True, slots=True)
class Group:
    """A group of derivations that is to be replaced.

    Attributes:
        present: the catalog.
        live: live derivations by name, under their stored definitions; members that have never run are missing.
        members: names of all members.
        past: text of the last definition that each member has run; None without one.
    """

    present: CatalogSpec
    live: Mapping[str, DerivationSpec]
    members: tuple[str, ...]
    past: Mapping[str, str | None]

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
        digests = {name: shadow.definition for shadow in shadows for name in (shadow.task, shadow.name)}
        others = [shadow_of(self.present.derivations[name], names) for name in self.members]
        live = self.live_catalog()
        return _ordered(
            replace(
                live,
                collections={**live.collections, **{spec.name: spec.collection for spec in others}},
                derivations={**live.derivations, **{spec.name: spec for spec in others}},
                shadows={**live.shadows, **digests},
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
    definitions = {
        name: next((part.definition for part in reversed(store.past(name))), None) for name in catalog.derivations
    }
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
            live[name] = _stored(store, spec, definitions[name])
    return Group(
        catalog,
        live,
        tuple(name for name in catalog.derivations if name in members),
        {name: definitions[name] for name in members},
    )


def _is_edited(spec: DerivationSpec, state: TaskState, definition: str | None) -> bool:
    """Return whether a derivation differs from its stored definition, or without one, from its fingerprints."""
    if definition is None:
        return state.fingerprints != fingerprints_of(spec)
    return definition != definition_of(spec).text


def _stored(store: View, spec: DerivationSpec, definition: str | None) -> DerivationSpec:
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
            hint=f"start over instead: {reset_command(store, spec.name)}",
        )
    return live


def begin_shadow(store: Runnable, group: Group, *, is_held: bool) -> CatalogSpec:
    """Begin the shadows of a group, or continue them; return the catalog to run.

    Args:
        store: the data folder.
        group: the group.
        is_held: whether the swap waits for a person.

    Raises:
        FencedError: another process has applied an edit of a member, or has reset it.
        UsageError: the data folder has shadows of other definitions.
    """
    shadows = store.shadows.begin(group.definitions, group.past, group.former, is_held=is_held)
    return group.with_shadows(shadows)


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
        raise shadowed(members, "derived")


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
    epochs = store.shadows.drop()
    for name, epoch in epochs.items():
        with suppress(FencedError):  # another shadow with this name has begun, whose run removes the rest
            remove_state(store.root, name, store.location, epoch)
            store.shadows.settle(name, (name, epoch))
    return list(epochs)


def find_raised(store: View, catalog: CatalogSpec) -> dict[str, dict[str, str]]:
    """Return the bindings whose `backfill` was raised since they ran, by materialization.

    A binding that has progress, or whose rows are being replaced, is not among them: the swap of its shadow was
    decided, perhaps by a run that was then killed, so the next run replaces the rows.

    Returns:
        For each materialization, the state key of the live binding by the state key of the raised binding.
    """
    raised = {}
    for spec in catalog.materializations.values():
        state, text = store.task(spec.name), store.applied(spec.name)
        if state is None or text is None or spec.disabled:
            continue
        stored, decided = restored_bindings(text), read_refills(store, spec.name).keys()
        keys = {
            binding.input.state_key: stored[binding.name].input.state_key
            for binding in spec.bindings
            if binding.input.state_key not in decided | state.positions.keys()
            and binding.name in stored
            and _is_raised(binding, stored[binding.name], state)
        }
        if keys:
            raised[spec.name] = keys
    return raised


def require_raised(store: View, catalog: CatalogSpec) -> None:
    """Raise an error if the columns of a binding were edited without a raised `backfill`.

    Raises:
        UsageError: the run would change the table in place.
    """
    for spec in catalog.materializations.values():
        text = store.applied(spec.name)
        if text is None or spec.disabled:
            continue
        stored, present = (_columns_of(one) for one in (text, definition_of_materialization(spec).text))
        for binding in spec.bindings:
            before, after = stored.get(binding.name), present[binding.name]
            if before is not None and before[0] == after[0] and before[1:] != after[1:]:
                raise UsageError(
                    f"'{binding.name}' of '{spec.name}' was edited, but its 'backfill' was not raised, so the run would"
                    " change its table in place",
                    position=binding.position,
                    hint="raise 'backfill' to fill a second table beside it; or leave out --shadow",
                )


def _columns_of(text: str) -> dict[str, tuple[JSON, JSON, JSON]]:
    """Return the `backfill`, the resource and the fields of each binding, by name, of a definition."""
    bindings = parse_exact(text.encode())["bindings"]
    return {one["input"]["name"]: (one["input"]["backfill"], one["resource"], one["fields"]) for one in bindings}


def _is_raised(binding: BindingSpec, before: StoredBinding, state: TaskState) -> bool:
    begun = state.positions.get(before.input.state_key, BEGINNING) > BEGINNING
    return begun and binding.input.backfill > before.input.backfill


def new_shadows(store: View, catalog: CatalogSpec, *, is_held: bool) -> list[BindingShadow]:
    """Return the shadows that the catalog's raised bindings begin.

    Args:
        store: the data folder.
        catalog: the catalog.
        is_held: whether the swap waits for a person.

    Raises:
        UsageError: a binding cannot be filled beside its table.
        FlowError: a connector does not answer.
    """
    shadows = []
    for name, keys in find_raised(store, catalog).items():
        spec, live = catalog.materializations[name], store.applied(name)
        assert live is not None
        shadow = BindingShadow(name, keys, live, definition_of_materialization(spec).digest, is_held)
        _require_fillable(store, spec, shadow)
        shadows.append(shadow)
    return shadows


def begin_binding_shadows(store: Runnable, catalog: CatalogSpec, *, is_held: bool) -> CatalogSpec:
    """Begin the shadows of the catalog's raised bindings, or continue shadows; return the catalog to run.

    Args:
        store: the data folder.
        catalog: the catalog.
        is_held: whether the swap waits for a person.

    Raises:
        UsageError: a binding cannot be filled beside its table, or a materialization was edited since its shadows
            began.
        FencedError: another process has begun to run a materialization, and has perhaps applied the edit.
        FlowError: a connector does not answer.
    """
    # Connectors are asked below, and may take long.
    names = catalog.materializations
    epochs = {**dict.fromkeys(names, 0), **store.task_capabilities.epochs(names)}
    present = [replace(shadow, is_held=is_held) for shadow in store.shadows.bindings()]
    shadows = present or new_shadows(store, catalog, is_held=is_held)
    running = with_shadows(catalog, shadows)
    store.shadows.begin_bindings(shadows, None if present else epochs)
    return running


def _require_fillable(store: View, spec: MaterializationSpec, shadow: BindingShadow) -> None:
    """Raise an error if shadows cannot be filled beside the tables of their live bindings.

    Raises:
        UsageError: the endpoint cannot do this, or the edit changes the live bindings, too.
    """
    from derive.materialize.preparation import prepare
    from derive.materialize.worker import connectors

    both, state = with_shadow(spec, shadow), store.task(spec.name)
    prints = state.fingerprints if state else {}
    what = f"'{spec.name}' cannot fill a table beside that of {', '.join(map(repr, shadow.keys.values()))}"
    hint = "let the next run apply the edit: flowctl run"
    for reason in _obstacles(store, spec, shadow):
        raise UsageError(f"{what}: {reason}", position=spec.position, hint=hint)
    if state is not None:
        for edit in find_stored_edits(both.live, state):
            raise UsageError(
                f"{what}: {edit.message}",
                position=edit.position,
                hint="the former rows stay, and get no new documents, while a run without --shadow refills the table",
            )
    connector = connectors().connect(spec.endpoint)
    if not connector.schemas().refills:
        raise UsageError(f"{what}: its connector writes no second table", position=spec.endpoint.position, hint=hint)
    try:
        prepared = prepare(both, connector, stored_fields(prints), last_reset(store, spec.name))
    except CatalogError as error:
        first = error.issues[0]
        raise UsageError(f"{what}: {first.message}", position=first.position, hint=first.hint) from error
    if any(binding.delta_updates for binding in prepared.bindings if binding.spec.is_shadow):
        raise UsageError(f"{what}: delta updates are not replaced", position=spec.position, hint=hint)


def _obstacles(store: View, spec: MaterializationSpec, shadow: BindingShadow) -> Iterator[str]:
    """Yield the reasons against a shadow that the data folder knows."""
    state = store.task(spec.name)
    prints, refills = state.fingerprints if state else {}, read_refills(store, spec.name)
    stored, names = restored_bindings(shadow.live), {binding_of(key) for key in shadow.keys}
    present = definition_of_materialization(spec).text
    if parse_exact(shadow.live.encode())["endpoint"] != parse_exact(present.encode())["endpoint"]:
        yield "the same edit changes its endpoint"
    for key in shadow.keys.values():
        if key in prints and StoredParts.from_text(prints[key]).is_delta:
            yield "delta updates are not replaced"
        if key in refills:
            yield "this table is still being refilled"
    for binding in spec.bindings:
        if binding.name in names and redacted(binding.resource) != stored[binding.name].resource:
            yield "the same edit changes its resource"


def with_shadow(spec: MaterializationSpec, shadow: BindingShadow) -> MaterializationSpec:
    """Return a materialization with its live bindings under their former definition, and its shadows after them."""
    stored = restored_bindings(shadow.live)
    live: list[BindingSpec] = []
    shadows: list[BindingSpec] = []
    lowest = min((item.priority for item in spec.inputs), default=0) - 1
    for binding in spec.bindings:
        if binding.input.state_key not in shadow.keys:
            live.append(binding)
            continue
        before = stored[binding.name]
        former = replace(before.input, index=binding.input.index, position=binding.input.position)
        live.append(replace(binding, input=former, fields=replace(before.fields, position=binding.position)))
        index = len(spec.bindings) + len(shadows)
        shadows.append(replace(binding, input=replace(binding.input, index=index, priority=lowest), is_shadow=True))
    return replace(spec, bindings=(*live, *shadows))


def with_shadows(catalog: CatalogSpec, shadows: Collection[BindingShadow]) -> CatalogSpec:
    """Return the catalog that a run with shadows of bindings runs; the same catalog without shadows.

    Raises:
        UsageError: a materialization was edited since its shadows began.
    """
    if not shadows:
        return catalog
    materializations = dict(catalog.materializations)
    for shadow in shadows:
        spec = materializations.get(shadow.task)
        if spec is None or definition_of_materialization(spec).digest != shadow.definition:
            raise other_edit()
        materializations[shadow.task] = with_shadow(spec, shadow)
    digests = {shadow.task: shadow.definition for shadow in shadows}
    return replace(catalog, materializations=materializations, shadows={**catalog.shadows, **digests})


def require_no_binding_shadow(shadows: Collection[BindingShadow], tasks: Collection[str]) -> None:
    """Raise an error if one of the tasks has shadows of bindings, which only `--shadow` may run.

    Raises:
        UsageError: a task has shadows.
    """
    names = [shadow.task for shadow in shadows if shadow.task in tasks]
    if names:
        raise shadowed(names, "filled")


def require_unshadowed(shadows: Shadows, tasks: Collection[str]) -> None:
    """Raise an error if one of the tasks has shadows, which only `--shadow` may run.

    Raises:
        UsageError: a shadow exists.
    """
    require_no_shadow(shadows.members(), tasks)
    require_no_binding_shadow(shadows.bindings(), tasks)


def drop_binding_shadows(store: Runnable, catalog: CatalogSpec, shadows: Sequence[BindingShadow]) -> list[str]:
    """Drop shadows of bindings: fence their runs, drop their tables, and forget their progress.

    Returns:
        The state keys of the shadows.

    Raises:
        UsageError: the catalog has no such materialization.
        FlowError: an endpoint cannot be reached; its shadows stay.
    """
    from derive.materialize.worker import close_streams

    dropped: list[str] = []
    for shadow in shadows:
        spec = catalog.materializations.get(shadow.task)
        if spec is None:
            raise UsageError(
                f"the catalog has no materialization '{shadow.task}', so the tables of its shadow cannot be dropped",
                hint="add it again; then: flowctl shadow drop",
            )
        capability, state = store.acquire_task(spec.name, 1)
        publish_epoch(store.root, spec.name, capability.epoch)
        close_streams(spec.name)
        live = _live_of(spec, shadow)
        prepared, connector = _prepared(store, live, state)
        prepared.apply(connector, begun=[key for key, at in state.positions.items() if at > BEGINNING])
        reach("shadow.emptied")
        store.shadows.drop_bindings(shadow)
        dropped += shadow.keys
    return dropped


def _live_of(spec: MaterializationSpec, shadow: BindingShadow) -> MaterializationSpec:
    """Return the live bindings of a materialization whose catalog may have been edited since the shadows began."""
    stored = restored_bindings(shadow.live)
    names = {binding_of(key) for key in shadow.keys}
    return replace(
        spec,
        bindings=tuple(
            replace(binding, input=replace(stored[binding.name].input, position=binding.position))
            if binding.name in names
            else binding
            for binding in spec.bindings
        ),
    )


def prepare_shadow(store: Maintainable, catalog: CatalogSpec, name: str) -> tuple[PreparedMaterialization, Connector]:
    """Return a materialization with its shadows, and its connector.

    Args:
        store: the data folder.
        catalog: a catalog of `with_shadows`.
        name: name of the materialization.

    Raises:
        FlowError: the connector does not answer, or refuses the bindings.
    """
    return _prepared(store, catalog.materializations[name], store.task(name))


def _prepared(
    store: View, spec: MaterializationSpec, state: TaskState | None
) -> tuple[PreparedMaterialization, Connector]:
    from derive.materialize.preparation import prepare
    from derive.materialize.worker import connectors

    connector = connectors().connect(spec.endpoint)
    prints: Mapping[str, str] = state.fingerprints if state else {}
    return prepare(spec, connector, stored_fields(prints), last_reset(store, spec.name)), connector
