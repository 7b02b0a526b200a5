"""Changes of materializations: their definitions, bindings, materialized fields, and columns of the endpoint.

Definitions are compared as JSON (`derive.protocol.definition_text`), without passwords that are written in clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from derive.document.clock import format_duration
from derive.engine.edits import name_of_binding
from derive.engine.stored_bindings import StoredParts, stored_fields
from derive.errors import CatalogError, FlowError
from derive.materialize.connector import Connectors
from derive.materialize.preparation import PreparedMaterialization, prepare
from derive.materialize.restarts import last_reset
from derive.planning.differences import Change, Effect, changed_policy, changed_reads, json_differences
from derive.protocol.materialization import connector_of
from derive.protocol.specs import BindingSpec, MaterializationSpec
from derive.reduce.reduce_keyword import annotated_locations
from derive.storage.metadata.descriptions import TaskState
from derive.time import BEGINNING


def plan_endpoint(
    folder: Path, spec: MaterializationSpec, connectors: Connectors, state: TaskState | None
) -> tuple[PreparedMaterialization, str]:
    """Return a validated materialization, and the connector's description of the actions of the next run.

    Args:
        folder: the data folder, which may be missing.
        spec: the materialization.
        connectors: the connectors.
        state: progress of the materialization; None if it has none.

    Raises:
        CatalogError: the catalog conflicts with the connector.
        FlowError: the connector does not answer or refuses.
    """
    connector = connectors.connect(spec.endpoint)
    fields = stored_fields(state.fingerprints if state else {})
    prepared = prepare(spec, connector, fields, last_reset(folder, spec.name))
    begun = [key for key, position in (state.positions if state else {}).items() if position > BEGINNING]
    return prepared, prepared.apply(connector, dry_run=True, begun=begun).description


def binding_changes(spec: MaterializationSpec, state: TaskState, rereads: dict[str, int]) -> Iterator[Change]:
    """Yield the changes of bindings after the last run.

    Args:
        spec: the materialization.
        state: progress of the materialization.
        rereads: stored documents of each binding that reads its source from the start, by state key.
    """
    known = {name_of_binding(key) for key in (*state.positions, *state.fingerprints)}
    for binding in spec.bindings:
        key = binding.input.state_key
        if key in rereads and binding.name in known:
            meaning = "the binding starts over: its rows are stored again"
            backfill = binding.input.backfill
            yield Change(f"{binding.name}: backfill", "from the start", meaning, None, backfill, (), key, rereads[key])
        elif key in rereads:
            meaning = f"a new binding: stores all documents of '{binding.collection.name}'"
            yield Change(binding.name, "from the start", meaning, None, "added", (), key, rereads[key])
        elif key in state.fingerprints:
            yield from _binding_reductions(binding, StoredParts.from_text(state.fingerprints[key]))


def definition_changes(before: Any, after: Any) -> Iterator[Change]:
    """Yield the changes from one definition of a materialization to another, except of added bindings.

    Args:
        before: the former definition, parsed.
        after: the present definition, parsed.
    """
    yield from _endpoint(before["endpoint"], after["endpoint"])
    olds, news = ({one["input"]["name"]: one for one in definition["bindings"]} for definition in (before, after))
    for name, new in news.items():
        if name in olds:
            yield from _binding(name, olds[name], new)
    for name in olds:
        if name not in news:
            meaning = (
                "its table stays, and gets no more documents; a binding that comes back continues where it stopped"
            )
            yield Change(name, "nothing", meaning, "removed", None)
    if [name for name in olds if name in news] != [name for name in news if name in olds]:
        yield Change("order of bindings", "nothing", "no effect on stored rows", [*olds], [*news])
    if before["tick"] != after["tick"]:
        ticks = format_duration(before["tick"]), format_duration(after["tick"])
        yield Change("shards.maxTxnDuration", "nothing", "no effect on stored rows", *ticks)


_REACHED = "the next run connects to it; where it has no checkpoint of this materialization, all rows are stored again"
_IMAGE = "registry and tag have no effect: the installed connector with the name of the image runs"


def _endpoint(before: Any, after: Any) -> Iterator[Change]:
    for pointer, was, now in json_differences(before, after):
        effect: Effect = "endpoint"
        meaning = _REACHED
        if pointer == "/image" and was and now and connector_of(was) == connector_of(now):
            effect, meaning = "nothing", _IMAGE
        yield Change(f"endpoint{pointer}", effect, meaning, was, now)


def _binding(name: str, before: Any, after: Any) -> Iterator[Change]:
    was, now = before["input"], after["input"]
    if was["priority"] != now["priority"]:
        meaning = "bindings are stored in another order; no effect on stored rows"
        yield Change(f"{name}: priority", "nothing", meaning, was["priority"], now["priority"])
    yield from changed_reads(name, was, now, ("read_delay", "not_before", "not_after", "selector"))
    yield from changed_policy(name, was, now)
    for pointer, old, new in json_differences(before["resource"], after["resource"]):
        meaning = "the connector gets the new value with the next run"
        yield Change(f"{name}: resource{pointer}", "endpoint", meaning, old, new)
    old_fields, new_fields = before["fields"], after["fields"]
    if old_fields["key"] != new_fields["key"]:
        meaning = "the fields that identify a row: the connector decides whether the present table has them as its key"
        yield Change(f"{name}: key", "endpoint", meaning, old_fields["key"] or None, new_fields["key"] or None)
    for pointer, old, new in json_differences({**old_fields, "key": None}, {**new_fields, "key": None}):
        meaning = "selects the columns of the next run, which are listed below if they differ"
        yield Change(f"{name}: fields{pointer}", "endpoint", meaning, old, new)


def _binding_reductions(binding: BindingSpec, before: StoredParts) -> Iterator[Change]:
    """Yield changes of reductions that do not wait for acceptance."""
    for location, now in annotated_locations(binding.collection.read_schema).items():
        was = before.reductions.get(location)
        if now != (was or "") and (was is None or before.is_delta):
            part = f"{binding.name}: reduction of {location or 'documents'}"
            yield Change(part, "new documents", "used for rows stored from now on", was or None, now or None)


def endpoint_changes(
    folder: Path, spec: MaterializationSpec, connectors: Connectors, state: TaskState | None
) -> tuple[list[Change], list[str]]:
    """Return the changes at the endpoint and its columns, and notes.

    Args:
        folder: the data folder, which may be missing.
        spec: the materialization.
        connectors: the connectors, which return the constraints and actions.
        state: progress of the materialization; None if it has none.
    """
    try:
        prepared, action = plan_endpoint(folder, spec, connectors, state)
    except CatalogError as error:
        return [Change("endpoint", "refused", issue.message) for issue in error.issues], []
    except FlowError as error:
        return [], [f"the columns are not planned, because the connector has an error: {error.message}"]
    changes = []
    for binding in prepared.bindings:
        text = state.fingerprints.get(binding.spec.input.state_key) if state else None
        if text is None:
            continue
        was, now = StoredParts.from_text(text).fields, binding.fields.values
        for name in now:
            if name not in was:
                meaning = "the column is added; a row gets a value with the next document of its key"
                changes.append(Change(f"{binding.spec.name}: field {name}", "endpoint", meaning, None, "added"))
        there = {projection.field for projection in binding.spec.collection.projections}
        for name in was:
            if name not in now and name in there:
                meaning = "the column stays, and is no longer written"
                changes.append(Change(f"{binding.spec.name}: field {name}", "endpoint", meaning, "stored", None))
    if action:
        lines = tuple(f"+{line}" for line in action.splitlines())
        changes.append(Change("endpoint", "endpoint", "the next run prepares the endpoint", diff=lines))
    return changes, []
