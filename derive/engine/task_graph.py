"""The task graph: the tasks of a run at one time, and their reading relations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.engine.cycle_transaction import CycleTransaction
from derive.engine.task import Task
from derive.engine.wakeups import Cycle
from derive.protocol.specs import CatalogSpec


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The tasks of a run; an edit of its catalog creates another graph.

    Attributes:
        catalog: the catalog.
        tasks: running tasks, by name.
        cycle_transactions: joint transactions of cycles that have them, by the names of the cycle.
        sealable: collections that no task derives.
        absent: for each cycle, sources before readers, the names of its tasks that do not run.
        upstream: for each cycle, the cycle itself and its direct and indirect sources.
        readers: for each cycle, the other cycles that read it.
    """

    catalog: CatalogSpec
    tasks: Mapping[str, Task]
    cycle_transactions: Mapping[Cycle, CycleTransaction]
    sealable: tuple[str, ...] = field(init=False)
    absent: Mapping[Cycle, tuple[str, ...]] = field(init=False)
    upstream: Mapping[Cycle, set[Cycle]] = field(init=False)
    readers: Mapping[Cycle, set[Cycle]] = field(init=False)

    def __post_init__(self) -> None:
        catalog, tasks = self.catalog, self.tasks
        absent: dict[Cycle, tuple[str, ...]] = {}
        others = [(name,) for name in tasks if name not in catalog.derivations]
        for members in (*catalog.cycles, *others):
            cycle = tuple(name for name in members if name in tasks)
            if cycle:
                absent[cycle] = tuple(name for name in members if name not in tasks)
        cycle_of = {name: cycle for cycle in absent for name in cycle}
        upstream: dict[Cycle, set[Cycle]] = {}
        readers: dict[Cycle, set[Cycle]] = {cycle: set() for cycle in absent}
        for cycle in absent:
            sources = {source for name in cycle for source in tasks[name].spec.sources}
            read = {cycle_of[source] for source in sources if source in cycle_of} - {cycle}
            upstream[cycle] = {cycle}.union(*(upstream[source] for source in read))
            for source in read:
                readers[source].add(cycle)
        sealable = tuple(name for name in catalog.collections if name not in catalog.derivations)
        for name, value in (("sealable", sealable), ("absent", absent), ("upstream", upstream), ("readers", readers)):
            object.__setattr__(self, name, value)
