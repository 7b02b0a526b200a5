"""Rights of tasks: each task of a catalog holds a right to read what it still needs of its sources; no others do."""

from __future__ import annotations

from collections.abc import Mapping

from derive.engine.transactor import TaskSpec
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.capability import TaskCapability
from derive.storage.roles import Kept, Runnable
from derive.time.needs import Right, needs
from derive.time.positions import Place, current_positions


def hold(
    store: Kept | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    capability: TaskCapability | None = None,
    places: Mapping[str, Place] | None = None,
    *,
    keeps: bool = False,
) -> dict[str, Right]:
    """Make a task hold what it needs; returns, for each input (by `state_key`), what it finds.

    Args:
        store: the data folder.
        task: which reads.
        positions: by `state_key`, where its inputs are.
        capability: the right to run it; None if no run asks.
        places: by `state_key`, in which relations that is, which are held whatever their names are now.
        keeps: the task also keeps what it has held, as it does not begin to run by its definition yet.

    Raises:
        FencedError: the capability, of the run that asks, is no longer valid.
    """
    wanted = needs(task.inputs, task.tick, positions)
    sources = {spec.state_key: (spec.source, wanted[spec.state_key]) for spec in task.inputs}
    relations = {key: read for key, place in (places or {}).items() if (read := place.relations)}
    return store.rights.hold(task.name, sources, capability, relations, keeps=keeps)


def gone(catalog: CatalogSpec, store: Kept) -> list[str]:
    """Tasks that hold a right to read, are not at work, and are not in the catalog any more; `settle` drops them."""
    others = sorted(store.rights.holders() - set(catalog.tasks))
    return [name for name in others if not store.rights.is_at_work(name)]


def settle(catalog: CatalogSpec, store: Kept) -> list[str]:
    """Make sure that every task of a catalog holds what it needs, and that no others hold anything.

    Returns:
        Names of tasks that are gone from the catalog, and whose rights were dropped.
    """
    holders = store.rights.holders()
    for name, task in catalog.tasks.items():
        state = store.task(name)
        if state is not None and name not in holders:  # it has last run before there were rights to read
            positions = current_positions(task.inputs, task.tick, state.positions, state.places)
            hold(store, task, positions, places=state.places)
    return [name for name in sorted(holders - set(catalog.tasks)) if store.rights.forget(name)]
