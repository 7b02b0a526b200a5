"""Stored bindings: how the rows of a materialization were computed, so that edits are noticed.

A row is a reduced document, and new documents are reduced onto the row. After an edit of the reductions of a source, a
row fits neither the old nor the new reductions. A column that is no longer written keeps outdated values. These two
faults raise no error. So the edit waits until it is accepted, or until the user raises the `backfill` of the binding,
which stores the rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from derive.engine.edits import Unaccepted
from derive.materialize.restarts import ResetMarker, binding_of, clocks_of
from derive.protocol.specs import BindingSpec, MaterializationSpec
from derive.reduce.reduce_keyword import annotated_locations
from derive.storage.metadata.descriptions import Edit, TaskState
from derive.time import BEGINNING

if TYPE_CHECKING:
    from derive.materialize.preparation import PreparedMaterialization  # imports gRPC

_STALE = (
    "'{}' starts over, and the connector cannot refill it: rows of keys that its source no longer has stay, and later"
    " documents of these keys are reduced onto them"
)
_EMPTY = "delete the rows whose keys the collection lacks; or empty the resource, and start over again"


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Properties of the stored rows of a binding.

    Attributes:
        is_delta: whether rows are delta updates, which are not reduced.
        fields: materialized fields beside the key and the document.
        reductions: the reduction of each location that the schema names; empty for a location without a reduction.
        contents: identity of the rows to which the position of the binding refers; empty if the binding was never
            refilled.
    """

    is_delta: bool
    fields: tuple[str, ...]
    reductions: Mapping[str, str]
    contents: str = ""

    def to_text(self) -> str:
        """Return the fingerprint."""
        contents = [self.contents] if self.contents else []
        return orjson.dumps([self.is_delta, self.fields, self.reductions, *contents]).decode()

    @staticmethod
    def from_text(text: str) -> StoredParts:
        """Parse a fingerprint of `to_text`."""
        is_delta, fields, reductions, *contents = orjson.loads(text)
        return StoredParts(is_delta, tuple(fields), reductions, *contents)


def prints_of(
    prepared: PreparedMaterialization, before: Mapping[str, str], contents: Mapping[str, str]
) -> dict[str, str]:
    """Return the fingerprints of a materialization whose endpoint is prepared.

    Args:
        prepared: the applied bindings.
        before: former fingerprints; fingerprints of removed bindings are kept, because the user may add the bindings
            again.
        contents: for each binding (by state key) with a past or running refill, the identity of its rows.
    """
    names = {binding.spec.name for binding in prepared.bindings}
    kept = {key: text for key, text in before.items() if binding_of(key) not in names}
    return kept | {
        binding.spec.input.state_key: StoredParts(
            binding.delta_updates,
            binding.fields.values,
            annotated_locations(binding.spec.collection.read_schema),
            contents.get(binding.spec.input.state_key, ""),
        ).to_text()
        for binding in prepared.bindings
    }


def stored_fields(fingerprints: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return, for each binding (by state key), the fields that the endpoint has columns for since the last apply."""
    return {key: StoredParts.from_text(text).fields for key, text in fingerprints.items()}


def stored_contents(fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Return, for each binding (by state key), the identity of the rows to which its position refers."""
    return {key: StoredParts.from_text(text).contents for key, text in fingerprints.items()}


def stale_rows(prepared: PreparedMaterialization, state: TaskState | None, restart: ResetMarker) -> tuple[Edit, ...]:
    """Return a note for each binding that starts over with rows that its connector cannot refill.

    The runtime deletes only rows whose keys the source still has.

    Args:
        prepared: the validated bindings.
        state: progress of the materialization; None if it has none.
        restart: the last reset.
    """
    ends = [*restart.ends.items(), *(clocks_of(state).items() if state else ())]
    stale = []
    for binding, message in zip(prepared.bindings, prepared.message.bindings, strict=True):
        name, key = binding.spec.collection.name, binding.spec.input.state_key
        has_begun = state is not None and state.positions.get(key, BEGINNING) > BEGINNING
        if message.generation or binding.delta_updates or has_begun:
            continue
        stored = [at for other, (source, at) in ends if source == name and binding_of(other) == binding_of(key)]
        if max(stored, default=BEGINNING) > BEGINNING:
            stale.append(Edit(key, _STALE.format(key), _EMPTY))
    return tuple(stale)


def settled_prints(spec: MaterializationSpec, fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints of a materialization whose edits were accepted."""
    settled = dict(fingerprints)
    for binding in spec.bindings:
        key = binding.input.state_key
        if key in settled:
            there = {projection.field for projection in binding.collection.projections}
            parts = StoredParts.from_text(settled[key])
            fields = tuple(name for name in parts.fields if name in there)
            reductions = annotated_locations(binding.collection.read_schema)
            settled[key] = replace(parts, fields=fields, reductions=reductions).to_text()
    return settled


def remembered_edits(spec: MaterializationSpec, state: TaskState) -> tuple[Edit, ...]:
    """Return the accepted edits of bindings whose rows were not stored again after the acceptance."""
    keys = {binding.input.state_key for binding in spec.bindings}
    return tuple(edit for edit in state.edits if edit.part in keys)


def find_stored_edits(spec: MaterializationSpec, state: TaskState) -> tuple[Unaccepted, ...]:
    """Return the edits of a materialization that wait to be accepted."""
    return tuple(
        edit
        for binding in spec.bindings
        if binding.input.state_key in state.fingerprints and state.transactions
        for edit in _edits(binding, StoredParts.from_text(state.fingerprints[binding.input.state_key]))
    )


def _edits(binding: BindingSpec, before: StoredParts) -> Iterator[Unaccepted]:
    source = binding.collection.name
    there = {projection.field for projection in binding.collection.projections}
    for name in before.fields:
        if name not in there:
            yield Unaccepted(
                part=binding.input.state_key,
                message=f"the schema of '{source}' no longer has the field '{name}', which '{binding.name}' has stored:"
                " its column would keep old values",
                hint=f"add '{name}' to the schema again",
                position=binding.position,
                accepted=f"the field '{name}' of '{binding.name}' is no longer stored, and its column keeps old values",
            )
    reductions = {} if before.is_delta else before.reductions
    now = annotated_locations(binding.collection.read_schema) if reductions else {}
    for location, old in reductions.items():
        new = now.get(location, "")
        if new != old:
            where = f"'{location}'" if location else "whole documents"
            what = f"the reduction of {where} of '{source}' was edited from {old or 'none'} to {new or 'none'}"
            yield Unaccepted(
                part=binding.input.state_key,
                message=f"{what}: rows of '{binding.name}' are reduced by the old annotation, and new documents"
                " would be reduced onto these rows by the new annotation",
                hint=f"raise 'backfill' of '{binding.name}' to store all rows again",
                position=binding.position,
                accepted=f"{what}, and the rows of '{binding.name}' are reduced by both",
            )
