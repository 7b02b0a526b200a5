"""Read capabilities of tasks: each task of a catalog keeps the source history that it still needs."""

from __future__ import annotations

from collections.abc import Mapping

from derive.engine.transactor import TaskSpec
from derive.protocol.specs import CatalogSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.roles import Maintainable, Runnable
from derive.time.positions import KeptHistory, Place, arrived_places, current_positions, needs


def acquire_inputs(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    capability: TaskCapability | None = None,
    places: Mapping[str, Place] | None = None,
    *,
    keeps: bool = False,
) -> dict[str, KeptHistory]:
    """Acquire read capabilities for the needs of a task, and return the history that each input (by `state_key`) finds.

    Args:
        store: the data folder.
        task: the reading task.
        positions: positions of its inputs, by `state_key`.
        capability: the capability to run the task; None outside of a run.
        places: relations of the positions, by `state_key`; they are read under any name.
        keeps: whether to keep earlier capabilities, because the task does not yet run by this definition.

    Raises:
        FencedError: the capability is no longer valid.
    """
    desired = needs(task.inputs, task.tick, positions)
    sources = {spec.state_key: (spec.source, desired[spec.state_key]) for spec in task.inputs}
    relations = {key: read for key, place in (places or {}).items() if (read := place.relations)}
    return store.task_capabilities.acquire_inputs(task.name, sources, capability, relations, keeps=keeps)


def gone(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Return tasks that have read capabilities, do not run, and are not in the catalog; `settle` drops these."""
    others = sorted(store.task_capabilities.readers() - set(catalog.tasks))
    return [name for name in others if not store.task_capabilities.is_running(name)]


def settle(catalog: CatalogSpec, store: Maintainable) -> list[str]:
    """Acquire read capabilities for the needs of every task of a catalog, and drop those of other tasks.

    Returns:
        Names of tasks that are not in the catalog any more, and whose capabilities were dropped.
    """
    readers = store.task_capabilities.readers()
    for name, task in catalog.tasks.items():
        state = store.task(name)
        if state is not None and name not in readers:  # it last ran before read capabilities existed
            places = arrived_places(state.places, state.positions)
            positions = current_positions(task.inputs, task.tick, state.positions, places)
            acquire_inputs(store, task, positions, places=places)
    return [name for name in sorted(readers - set(catalog.tasks)) if store.task_capabilities.release_inputs(name)]
