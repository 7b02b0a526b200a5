"""Changes of materializations: bindings, materialized fields, and columns of the endpoint.

The definition of a materialization is not stored. Its bindings, fields and reductions are, as fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from derive.engine.edits import name_of_binding
from derive.engine.stored_bindings import StoredParts, stored_fields
from derive.errors import CatalogError, FlowError
from derive.materialize.connector import Connectors
from derive.materialize.preparation import PreparedMaterialization, prepare
from derive.materialize.restarts import last_reset
from derive.planning.change import Change
from derive.protocol.specs import BindingSpec, MaterializationSpec
from derive.reduce.reduce_keyword import annotated_locations
from derive.storage.metadata.descriptions import TaskState
from derive.time.frontier import BEGINNING


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
    """Yield the changes of bindings since the last run.

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
            yield from _reductions(binding, StoredParts.from_text(state.fingerprints[key]))


def _reductions(binding: BindingSpec, before: StoredParts) -> Iterator[Change]:
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
        connectors: the connectors, which are asked.
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
