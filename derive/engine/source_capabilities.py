"""Read holds of tasks: each task of a catalog, and no other, holds the source history that it still needs."""

from __future__ import annotations

from collections.abc import Mapping

from derive.engine.transactor import TaskSpec
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.capability import TaskCapability
from derive.storage.roles import Maintainable, Runnable
from derive.time.needs import Right, needs
from derive.time.positions import Place, current_positions


def hold(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    capability: TaskCapability | None = None,
    places: Mapping[str, Place] | None = None,
    *,
    keeps: bool = False,
) -> dict[str, Right]:
    """Set the read holds of a task to its needs; return what each input (by `state_key`) finds.

    Args:
        store: the data folder.
        task: the reading task.
        positions: positions of its inputs, by `state_key`.
        capability: the capability to run the task; None outside of a run.
        places: relations of the positions, by `state_key`; they are held under any name.
        keeps: whether to keep existing holds, because the task does not yet run by this definition.

    Raises:
        FencedError: the capability is no longer valid.
    """
    desired = needs(task.inputs, task.tick, positions)
    sources = {spec.state_key: (spec.source, desired[spec.state_key]) for spec in task.inputs}
    relations = {key: read for key, place in (places or {}).items() if (read := place.relations)}
    return store.rights.hold(task.name, sources, capability, relations, keeps=keeps)


def gone(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Return tasks that have read holds, do not run, and are not in the catalog; `settle` drops their holds."""
    others = sorted(store.rights.holders() - set(catalog.tasks))
    return [name for name in others if not store.rights.is_at_work(name)]


def settle(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Set the read holds of every task of a catalog to its needs, and drop those of other tasks.

    Returns:
        Names of tasks that are not in the catalog any more, and whose holds were dropped.
    """
    holders = store.rights.holders()
    for name, task in catalog.tasks.items():
        state = store.task(name)
        if state is not None and name not in holders:  # it last ran before read holds existed
            positions = current_positions(task.inputs, task.tick, state.positions, state.places)
            hold(store, task, positions, places=state.places)
    return [name for name in sorted(holders - set(catalog.tasks)) if store.rights.forget(name)]
