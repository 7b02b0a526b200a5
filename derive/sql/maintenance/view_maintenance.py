"""View maintenance: sends the controller the desired dataflows, and allows compaction.

`Maintained` has the state that readers use.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache

from derive.algebra.relation import GlobalId
from derive.compute.instance import Progress
from derive.compute.protocol.messages import Dataflow, Import, Index, Materialized
from derive.errors import FencedError, FlowError, FrontierError
from derive.relations.columns import Source
from derive.sql.catalog.snapshot import Objects
from derive.sql.maintenance.controller.controller import Controller
from derive.sql.maintenance.controller.replica import ReplicaState
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.maintenance.recording import LOG
from derive.sql.maintenance.view_state import Definition, DesiredDataflows, Maintained, desired_dataflows
from derive.sql.parser.statement import ObjectKind
from derive.sql.planner.dependencies import ids_of
from derive.storage.store import Store
from derive.storage.task_log import TaskLog
from derive.time import BEGINNING, END_OF_TIME, FOREVER

RETENTION = 60_000_000
"""Retention of maintained views, in microseconds; older times are evaluated from Storage."""

SEAL = 500_000
"""Interval of seals of relations without a task and without readers, in microseconds."""


class Maintenance:
    """View maintenance, if this process is the owner.

    Args:
        store: the data folder.
        objects: returns the current names.
        maintained: state of maintained relations, for readers.
        computing: the controller and its instances.

    Attributes:
        failure: current failure of the maintenance; None if missing.
    """

    def __init__(
        self, store: Store, objects: Callable[[], Objects], maintained: Maintained, computing: ComputeInstances
    ) -> None:
        self._store, self._objects, self._maintained, self._computing = store, objects, maintained, computing
        self.failure: Exception | None = None
        self._late: dict[GlobalId, int] = {}
        self._created: dict[GlobalId, Definition] = {}
        self._followed: Counter[GlobalId] = Counter()
        self._read: tuple[frozenset[GlobalId], DesiredDataflows, frozenset[GlobalId]] | None = None
        self._sealed = self._compacted = 0
        self._lock, self._following = threading.Lock(), threading.Lock()

    def begin(self, epoch: int) -> None:
        """Begin to maintain views, as the new owner."""
        with self._lock:
            self._created.clear()
            self._late.clear()
            indexes = [item.id for item in self._objects().items.values() if item.kind is ObjectKind.INDEX]
            self._computing.capabilities.begin(indexes)
            self._computing.begin(epoch)
        self._store.changes.wake()

    def states(self) -> list[tuple[GlobalId, int | None, Exception | None]]:
        """Return the desired relations with their `upper` and failure."""
        states: list[tuple[GlobalId, int | None, Exception | None]] = []
        controller, desired = self._computing.controller, self._maintained.desired
        failures = self._store.tables.failures()
        for identifier, place in sorted(desired.places.items()):
            upper, error = None, self.failure
            try:
                upper = controller.frontiers(place)[1]
            except FlowError as failure:
                error = error or failure
            states.append((identifier, upper, error or failures.get(identifier)))
        for identifier, unfit in sorted(desired.unfit.items()):
            table = self._store.tables.table(identifier)
            states.append((identifier, table.upper if table else None, unfit))
        return states

    @property
    def unfit(self) -> Mapping[GlobalId, FlowError]:
        """Return the errors of relations that cannot be maintained, because they no longer fit their inputs."""
        return self._maintained.desired.unfit

    def hydrations(self) -> tuple[Progress, ...]:
        """Return the progress of hydrations."""
        return self._computing.hydrations()

    def replicas(self) -> list[ReplicaState]:
        """Return the status of each instance."""
        return self._computing.replicas()

    def follow(self, ids: Collection[GlobalId]) -> None:
        """Seal stored relations regularly while a subscription follows them."""
        with self._following:
            self._followed.update(ids)

    def unfollow(self, ids: Collection[GlobalId]) -> None:
        """End a subscription's `follow`."""
        with self._following:
            self._followed.subtract(ids)
            self._followed = +self._followed

    def followed(self) -> frozenset[GlobalId]:
        """Return the stored relations that subscriptions and dataflows read; any thread may ask."""
        with self._following:
            known = frozenset(self._followed), self._maintained.desired
            if self._read is None or self._read[0] != known[0] or self._read[1] is not known[1]:
                self._read = *known, self._sources_of(*known)
            return self._read[2]

    def _sources_of(self, followed: frozenset[GlobalId], desired: DesiredDataflows) -> frozenset[GlobalId]:
        """Return the stored relations that subscriptions and dataflows read."""
        read = frozenset().union(*(ids_of(relation) for relation, _ in desired.dataflows.values()))
        return followed | self._maintained.sources(read - desired.dataflows.keys())

    def work(self) -> bool:
        """Send changes to the controller; return whether more work remains."""
        with self._following:
            followed = frozenset(self._followed)
        with self._lock:
            is_owner, controller = self._computing.is_owner, self._computing.controller
            if is_owner:
                self._store.fence.check_now_and_then()
                objects = self._objects()
                if objects.version != self._maintained.desired.version:
                    definitions = {table.id: abs(table.definition) for table in self._store.tables.all()}
                    if self._store.sql_catalog.version() != objects.version:
                        return False  # the publication of the newer objects wakes this thread
                    self._desire(controller, desired_dataflows(objects, definitions), objects)
                self._computing.capabilities.release_dropped(objects.items)
                self._command(controller)
            self._compact(controller)
        self._seal(followed)
        return False

    def _desire(self, controller: Controller, desired: DesiredDataflows, objects: Objects) -> None:
        """Replace the desired dataflows, after outdated dataflows are dropped, which no reader may find among them."""
        before = self.unfit
        self._drop(controller, self._outdated(desired))
        self._maintained.desired = desired
        self._log_fit(before, objects)

    def _log_fit(self, before: Mapping[GlobalId, FlowError], objects: Objects) -> None:
        """Log the relations that no longer fit their inputs, and the relations that fit again."""
        log = TaskLog(self._store.root, LOG)
        for identifier, error in self.unfit.items():
            if str(before.get(identifier)) != str(error):
                log.write("error", f"cannot be maintained: {error}", view=objects.name_of(identifier))
        for identifier in before.keys() - self.unfit.keys():
            if (name := objects.name_of(identifier)) is not None:
                log.write("info", f"{name} fits its inputs again, and is maintained", view=name)

    def _seal(self, followed: frozenset[GlobalId]) -> None:
        """Seal relations without a task regularly, so that their dependents advance."""
        desired = self._maintained.desired
        if (followed or desired.dataflows) and (present := self._store.timeline.about()) - self._sealed >= SEAL:
            self._sealed = present
            objects, source = self._objects(), self._maintained.source
            read = self._sources_of(followed, desired)
            sealed = [source(id_) for id_ in read if objects.is_sealed_by_hand(id_)]
            if names := [spec.name for spec in sealed if spec]:
                self._store.seal_now(names)

    # Commands

    def _command(self, controller: Controller) -> None:
        """Send the changes of the desired dataflows to the controller."""
        desired = self._maintained.desired.definitions
        if any(isinstance(failure, FencedError | FrontierError) for failure in controller.failures().values()):
            # After a reset of a collection, or a lost capability, all dataflows are created again.
            self._drop(controller, list(self._created))
        missing = [identifier for identifier in desired if identifier not in self._created]
        times, held = (self._times(), self._computing.capabilities.frontiers()) if missing else ({}, {})
        # Most dataflows share their sources, so look-ups are cached, and all dataflows see the same frontiers.
        source, frontiers = cache(self._maintained.source), cache(self._maintained.stored_frontiers)
        created = [
            self._dataflow(identifier, times.get(identifier), held.get(identifier), source, frontiers)
            for identifier in missing
        ]
        if any(created):
            with suppress(FrontierError):  # an input was compacted just now; the next call retries
                controller.create([dataflow for dataflow in created if dataflow is not None])
                self._created |= {dataflow.id: desired[dataflow.id] for dataflow in created if dataflow is not None}
        self._computing.attach()

    def _outdated(self, desired: DesiredDataflows) -> list[GlobalId]:
        """Return the dataflows that are no longer desired, and those over them, which would keep the former inputs."""
        definitions = desired.definitions
        outdated = {id_ for id_, created in self._created.items() if definitions.get(id_) != created}
        before = 0
        while len(outdated) > before:
            before = len(outdated)
            outdated |= {
                identifier for identifier, created in self._created.items() if ids_of(created.relation) & outdated
            }
        return [identifier for identifier in self._created if identifier in outdated]

    def _drop(self, controller: Controller, identifiers: Sequence[GlobalId]) -> None:
        for identifier in reversed(identifiers):
            controller.drop(identifier)
            del self._created[identifier]

    def _times(self) -> dict[GlobalId, int]:
        """Compute the latest permitted as-of time of each dataflow, from the written times of views.

        Views of the same sources have one time in an instance, and no dataflow begins later than its readers.
        """
        desired = self._maintained.desired
        times: dict[GlobalId, int] = {}
        for identifier in desired.views:
            table = self._store.tables.table(identifier)
            if table is not None and table.upper < END_OF_TIME:
                # A view of constants is written for ever, and must be read now.
                # The rows of another definition begin at the `upper`.
                last = table.upper if table.definition < 0 else table.upper - 1
                times[identifier] = table.since if table.upper >= FOREVER else max(table.since, last)
        sources = {identifier: desired.sources(identifier) for identifier in times}
        before: dict[GlobalId, int] = {}
        while before != times:
            before = dict(times)
            for identifier, (relation, _) in desired.dataflows.items():
                if identifier in times:
                    for read in ids_of(relation) & desired.dataflows.keys():
                        times[read] = min(times.get(read, times[identifier]), times[identifier])
            for identifier, made_of in sources.items():
                times[identifier] = min(times[other] for other, others in sources.items() if others == made_of)
        return times

    def _dataflow(
        self,
        identifier: GlobalId,
        written: int | None,
        held: int | None,
        source: Callable[[GlobalId], Source | None],
        frontiers: Callable[[frozenset[GlobalId]], tuple[int, int]],
    ) -> Dataflow | None:
        """Return the dataflow of an identifier; None if an input is not complete yet.

        Args:
            identifier: identifier of the dataflow.
            written: time from which materialized views need the dataflow; None if no view needs it.
            held: time of the read capabilities on its inputs; None without capabilities, when no instance has the
                dataflow.
            source: returns the collection of an identifier in Storage.
            frontiers: returns the readable times of stored collections.
        """
        desired = self._maintained.desired
        relation, export = desired.dataflows[identifier]
        imports = []
        for source_id in sorted(ids_of(relation) - desired.dataflows.keys()):
            stored = source(source_id)
            if stored is None:
                return None
            imports.append(Import.of(source_id, stored))
        if isinstance(export, Materialized) and written is None:
            return None  # the view is being dropped
        sources = desired.sources(identifier)
        since, upper = frontiers(sources)
        if desired.objects is not None:  # earlier rows of an altered table lack its present columns
            items = desired.objects.items
            since = max(since, *(items[id_].known_from if id_ in items else BEGINNING for id_ in sources), BEGINNING)
        if upper >= FOREVER:
            upper = self._store.timeline.time() + 1
        time = upper - 1 if written is None else written
        if isinstance(export, Index):
            time = min(time if held is None else held, upper - 1)
        else:
            time = max(time, held or BEGINNING)
        time = max(since, time)
        if upper <= time:
            return None
        name = self._objects().name_of(identifier) or ""
        return Dataflow(identifier, relation, tuple(imports), export, time, name=name)

    def _allow_late(self, controller: Controller) -> None:
        """Allow compaction before the times at which late dataflows began, so that a reconnected replica can keep them.

        Pending reads, and views that are not written up to these times yet, delay the compaction.
        """
        self._late |= controller.late()
        allowed = {}
        for identifier, since in list(self._late.items()):
            dataflow = controller.dataflow(identifier)
            if dataflow is None or dataflow.as_of >= since:
                del self._late[identifier]
            else:
                allowed[identifier] = min(since, self._latest_needed(dataflow))
        if allowed:
            controller.allow_compaction(allowed)

    def _latest_needed(self, dataflow: Dataflow) -> int:
        """Return the latest time at which a dataflow must remain readable."""
        if not isinstance(dataflow.export, Materialized):
            return END_OF_TIME
        table = self._store.tables.table(dataflow.id)
        return table.upper - 1 if table else 0

    def _compact(self, controller: Controller) -> None:
        """Allow compaction of times that no reader needs."""
        self._allow_late(controller)
        present = self._store.timeline.about()
        if present - self._compacted < RETENTION // 10:
            return
        self._compacted = present
        self._computing.capabilities.renew()
        frontiers: dict[GlobalId, int] = {}
        for identifier in controller.ids():
            with suppress(FlowError):
                since, upper = controller.frontiers(identifier)
                frontiers[identifier] = max(since, min(upper - 1, present) - RETENTION)
                if identifier not in self._created:
                    frontiers[identifier] = present  # a tail: up to its progress
                elif (dataflow := controller.dataflow(identifier)) is not None:
                    frontiers[identifier] = min(frontiers[identifier], self._latest_needed(dataflow))
        controller.allow_compaction(frontiers)
