"""Opening: a run takes its tasks over from whoever ran them before, and sees with what each of them begins."""

from __future__ import annotations

from collections.abc import Sequence

from derive.engine.checkpoint import Checkpoint
from derive.engine.derivation import Derivation
from derive.engine.executor import Executor
from derive.engine.joint import Joint
from derive.engine.materialization import Materialization
from derive.engine.observer import Observer
from derive.engine.rights import hold
from derive.engine.run import Run
from derive.engine.shape import default_shards, has_feedback
from derive.engine.task import Beginning, Task
from derive.engine.transactor import Transactor
from derive.protocol.specs import CatalogSpec
from derive.storage.metadata.descriptions import Edited
from derive.storage.roles import Operable, Runnable
from derive.time.limits import Limits
from derive.time.needs import compacted, lost
from derive.time.pace import Pace
from derive.time.positions import current_positions


def open_run(
    catalog: CatalogSpec,
    store: Operable,
    executor: Executor,
    *,
    tasks: Sequence[str] | None = None,
    shards: int | None = None,
    cores: int = 1,
    limits: Limits | None = None,
    observer: Observer | None = None,
) -> Run:
    """Take over the tasks of a catalog.

    Args:
        catalog: what is defined.
        store: where it lives.
        executor: carries out transactions.
        tasks: names to run; None for all.
        shards: for tasks that have never run; None for the default.
        cores: default number of shards; materializations have one.
        limits: how work is cut.
        observer: is told what happens.

    Raises:
        UsageError: the catalog has no task of such a name.
    """
    store.create(*catalog.collections.values())
    for name in tasks or ():
        catalog.find_task(name)
    limits = limits or Limits()
    derivations = {
        name: Derivation(store, executor, spec, shards or default_shards(spec, cores))
        for name, spec in catalog.derivations.items()
        if (tasks is None or name in tasks) and not spec.disabled
    }
    opened = {name: open_task(store, derivation, limits) for name, derivation in derivations.items()}
    for name, spec in catalog.materializations.items():
        if (tasks is None or name in tasks) and not spec.disabled:
            opened[name] = open_task(store, Materialization(store, executor, spec, shards or 1), limits)
    joint = {
        cycle: Joint(store, executor, [derivations[name] for name in cycle], limits)
        for cycle in catalog.cycles
        if all(name in derivations for name in cycle) and has_feedback(catalog.derivations[cycle[0]])
    }
    return Run(catalog, store, opened, observer, joint=joint)


def open_task(store: Runnable, transactor: Transactor, limits: Limits) -> Task:
    """Take a task over: whoever ran it before can commit nothing more.

    Args:
        store: the data folder.
        transactor: what is done with the documents that the task reads.
        limits: how its work is cut.

    Raises:
        FencedError: yet another run has taken it over meanwhile.
    """
    task = transactor.spec
    opened = transactor.open()
    state = opened.state
    positions = current_positions(task.inputs, task.tick, state.positions, state.places)
    rights = hold(store, task, positions, opened.capability)
    if (opened.fingerprints, opened.edits) != (state.fingerprints, state.edits):
        store.note_task(opened.capability, Edited(opened.fingerprints, opened.edits))
    beginning = Beginning(
        again=tuple(spec for spec in task.inputs if state.positions and spec.state_key not in positions),
        compacted=tuple(compacted(task.inputs, positions, rights)),
        edits=tuple(edit for edit in opened.edits if edit not in state.edits),
        error=opened.error or lost(task.name, task.inputs, task.tick, positions, rights),
        is_apart=opened.is_apart,
    )
    checkpoint = Checkpoint(positions, {**state.places, **opened.places}, state.shards, state.tokens)
    return Task(store, transactor, opened.capability, checkpoint, beginning, Pace(limits))
