"""What a task still needs of its sources, which is what keeps their history from being compacted.

A transform needs what it has not processed: clocks at or above its position, less its read delay. A task that stops
keeps that right. A transform that is new, or backfilled, begins with what its source still knows: one document per key
of what was compacted. What is derived is then exactly what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping

from derive.document.clock import format_rfc3339
from derive.engine.plan import offset_of
from derive.errors import TaskError
from derive.protocol.specs import CatalogSpec, DerivationSpec, TransformSpec
from derive.storage.frontier import BEGINNING, END_OF_TIME
from derive.storage.store import Store


def needs(spec: DerivationSpec, positions: Mapping[str, int]) -> dict[str, int]:
    """For each source of a derivation, the least clock that any of its transforms has yet to process.

    Args:
        spec: the derivation.
        positions: by `state_key`, the adjusted clock below which a transform has processed everything.
    """
    found: dict[str, int] = {}
    for each in spec.transforms:
        found[each.source] = min(found.get(each.source, END_OF_TIME), _need(spec, each, positions))
    return found


def _need(spec: DerivationSpec, transform: TransformSpec, positions: Mapping[str, int]) -> int:
    position = positions.get(transform.state_key, BEGINNING)
    return max(position - offset_of(spec, transform), transform.not_before or BEGINNING, BEGINNING)


def compacted(
    spec: DerivationSpec, positions: Mapping[str, int], sinces: Mapping[str, int]
) -> list[tuple[TransformSpec, int]]:
    """Transforms that begin with a history that was compacted, each with the `since` of its source."""
    return [
        (each, sinces[each.source])
        for each in spec.transforms
        if each.state_key not in positions and sinces[each.source] > (each.not_before or BEGINNING)
    ]


def lost(spec: DerivationSpec, positions: Mapping[str, int], sinces: Mapping[str, int]) -> TaskError | None:
    """The error of a task that has to go on in the midst of a history that was compacted while it was away.

    What is left of that history stands for documents it has processed and for others at once.
    """
    for each in spec.transforms:
        since = sinces[each.source]
        if each.state_key in positions and _need(spec, each, positions) < since:
            return TaskError(
                f"'{each.name}' of '{spec.name}' was not in the catalog when the history of '{each.source}' before"
                f" {format_rfc3339(since)} was compacted, and has yet to read some of it",
                position=each.position,
                hint="raise its 'backfill' to read what there is from the start, or start over: flowctl reset",
            )
    return None


def settle(catalog: CatalogSpec, store: Store) -> list[str]:
    """Make sure that every task of a catalog holds what it needs, and that no others hold anything.

    Returns:
        Names of tasks that are gone from the catalog, and whose rights were dropped.
    """
    holders = store.reads.holders()
    for name, spec in catalog.derivations.items():
        state = store.task(name)
        if state is not None and name not in holders:  # it has last run before there were rights to read
            store.reads.hold(name, needs(spec, state.positions))
    return [name for name in sorted(holders - set(catalog.derivations)) if store.reads.forget(name)]
