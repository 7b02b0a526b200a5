"""Shadows of bindings: a binding with a raised `backfill` fills a second table, while the first one stays up to date.

Until the swap, the materialization has the live binding under its former definition, and the shadow under the
definition of the catalog. Both are bindings of one task, so one transaction of the endpoint never has a part of a
source. The shadow has the lowest priority: it reads while the live bindings have nothing to read. An error of the
shadow alone does not stop the live bindings.

The decision to swap is one commit of the data folder. From then on the task has only the binding of the catalog, and
the shadow is a refill that has reached the rows of the table: it replaces them in one transaction of the endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.engine.stored_bindings import StoredParts, find_stored_edits, stored_fields
from derive.errors import CatalogError, UsageError
from derive.failpoint import reach
from derive.materialize.connector import Connector
from derive.materialize.preparation import PreparedMaterialization, prepare
from derive.materialize.restarts import binding_of, last_reset, read_refills
from derive.materialize.worker import close_streams, connectors
from derive.protocol.definition_text import StoredBinding, definition_of_materialization, restored_bindings
from derive.protocol.secrets import redacted
from derive.protocol.specs import BindingSpec, CatalogSpec, MaterializationSpec
from derive.shard.state import publish_epoch
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.swap import BindingShadow
from derive.storage.roles import Maintainable, Runnable, View
from derive.storage.shadows import other_edit
from derive.time import BEGINNING


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
        stored, decided = restored_bindings(text), read_refills(store.root, spec.name).keys()
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


def _require_fillable(store: View, spec: MaterializationSpec, shadow: BindingShadow) -> None:
    """Raise an error if shadows cannot be filled beside the tables of their live bindings.

    Raises:
        UsageError: the endpoint cannot do this, or the edit changes the live bindings, too.
    """
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
        prepared = prepare(both, connector, stored_fields(prints), last_reset(store.root, spec.name))
    except CatalogError as error:
        first = error.issues[0]
        raise UsageError(f"{what}: {first.message}", position=first.position, hint=first.hint) from error
    if any(binding.delta_updates for binding in prepared.bindings if binding.spec.is_shadow):
        raise UsageError(f"{what}: delta updates are not replaced", position=spec.position, hint=hint)


def _obstacles(store: View, spec: MaterializationSpec, shadow: BindingShadow) -> Iterator[str]:
    """Yield the reasons against a shadow that the data folder knows."""
    state = store.task(spec.name)
    prints, refills = state.fingerprints if state else {}, read_refills(store.root, spec.name)
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
    return replace(catalog, materializations=materializations)


def require_no_binding_shadow(shadows: Collection[BindingShadow], tasks: Collection[str]) -> None:
    """Raise an error if one of the tasks has shadows of bindings, which only `--shadow` may run.

    Raises:
        UsageError: a task has shadows.
    """
    names = [shadow.task for shadow in shadows if shadow.task in tasks]
    if names:
        raise UsageError(
            f"a shadow of {', '.join(names)} is being filled, and a run without it would apply the edit at once",
            hint="continue it: flowctl run --shadow; or drop it: flowctl shadow drop",
        )


def drop_binding_shadows(store: Runnable, catalog: CatalogSpec, shadows: Sequence[BindingShadow]) -> list[str]:
    """Drop shadows of bindings: fence their runs, drop their tables, and forget their progress.

    Returns:
        The state keys of the shadows.

    Raises:
        UsageError: the catalog has no such materialization.
        FlowError: an endpoint cannot be reached; its shadows stay.
    """
    dropped: list[str] = []
    for shadow in shadows:
        spec = catalog.materializations.get(shadow.task)
        if spec is None:
            raise UsageError(
                f"the catalog has no materialization '{shadow.task}', so the tables of its shadow cannot be dropped",
                hint="add it again; then: flowctl shadow drop",
            )
        capability, state = store.acquire_task(spec.name, 1)
        with publish_epoch(store.root, spec.name, capability.epoch):
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
    connector = connectors().connect(spec.endpoint)
    prints: Mapping[str, str] = state.fingerprints if state else {}
    return prepare(spec, connector, stored_fields(prints), last_reset(store.root, spec.name)), connector
