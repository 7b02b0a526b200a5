"""What a task still needs of its sources, which is what keeps their history from being compacted.

A transform needs what it has not processed: clocks at or above its position, less its read delay. A task that stops
keeps that right. A transform that is new, or backfilled, begins with what its source still knows: one document per key
of what was compacted. What is derived is then exactly what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping

from derive.document.clock import format_rfc3339
from derive.engine.plan import current_positions
from derive.errors import TaskError
from derive.protocol.specs import CatalogSpec, DerivationSpec, InputSpec
from derive.storage.metadata.capability import WriteCapability
from derive.storage.rights import Right
from derive.storage.store import Store
from derive.time.frontier import BEGINNING
from derive.time.positions import offset_of


def needs(spec: DerivationSpec, positions: Mapping[str, int]) -> dict[str, int]:
    """For each transform of a derivation (by `state_key`), the least clock of its source that it has yet to process.

    Args:
        spec: the derivation.
        positions: by `state_key`, the adjusted clock below which a transform has processed everything.
    """
    return {each.state_key: _need(spec, each, positions) for each in spec.inputs}


def hold(
    store: Store, spec: DerivationSpec, positions: Mapping[str, int], capability: WriteCapability | None = None
) -> dict[str, Right]:
    """Make a task hold what it needs; returns, for each transform (by `state_key`), what it finds.

    Raises:
        FencedError: the capability, of the run that asks, is no longer valid.
    """
    wanted = needs(spec, positions)
    sources = {each.state_key: (each.source, wanted[each.state_key]) for each in spec.inputs}
    return store.rights.hold(spec.name, sources, capability)


def _need(spec: DerivationSpec, transform: InputSpec, positions: Mapping[str, int]) -> int:
    position = positions.get(transform.state_key, BEGINNING)
    return max(position - offset_of(transform, spec.tick), transform.not_before or BEGINNING, BEGINNING)


def compacted(
    spec: DerivationSpec, positions: Mapping[str, int], rights: Mapping[str, Right]
) -> list[tuple[InputSpec, int]]:
    """Transforms that begin with a history that was compacted, each with the `since` of its source."""
    return [
        (each, rights[each.state_key].since)
        for each in spec.inputs
        if each.state_key not in positions and rights[each.state_key].since > (each.not_before or BEGINNING)
    ]


def lost(spec: DerivationSpec, positions: Mapping[str, int], rights: Mapping[str, Right]) -> TaskError | None:
    """The error of a task that has to go on in the midst of a history that was compacted while it was away.

    What is left of that history stands for documents it has processed and for others at once.
    """
    for each in spec.inputs:
        right = rights[each.state_key]
        if each.state_key in positions and not right.is_kept and _need(spec, each, positions) < right.since:
            return TaskError(
                f"'{each.name}' of '{spec.name}' was not in the catalog, or left it out by 'notBefore', when the"
                f" history of '{each.source}' before {format_rfc3339(right.since)} was compacted, and has yet to read"
                " some of it",
                position=each.position,
                hint="raise its 'backfill' to read what there is from the start, or start over: flowctl reset",
            )
    return None


def gone(catalog: CatalogSpec, store: Store) -> list[str]:
    """Tasks that hold a right to read, are not at work, and are not in the catalog any more; `settle` drops them."""
    others = sorted(store.rights.holders() - set(catalog.derivations))
    return [name for name in others if not store.rights.is_at_work(name)]


def settle(catalog: CatalogSpec, store: Store) -> list[str]:
    """Make sure that every task of a catalog holds what it needs, and that no others hold anything.

    Returns:
        Names of tasks that are gone from the catalog, and whose rights were dropped.
    """
    holders = store.rights.holders()
    for name, spec in catalog.derivations.items():
        state = store.task(name)
        if state is not None and name not in holders:  # it has last run before there were rights to read
            hold(store, spec, current_positions(spec, state))
    return [name for name in sorted(holders - set(catalog.derivations)) if store.rights.forget(name)]
