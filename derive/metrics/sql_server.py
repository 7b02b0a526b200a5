"""Metrics of the SQL server, and of a compute instance that runs as a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from derive.instruments import Sample
from derive.metrics import definitions as metrics
from derive.metrics.monitor import Readiness
from derive.plural import counted

if TYPE_CHECKING:
    from derive.compute.replica.worker import Worker
    from derive.sql.coordinator import Coordinator
    from derive.sql.pgwire.server import Server
    from derive.storage.store import Store

_SECOND = 1_000_000
_STATES = ("active", "idle", "idle in transaction", "idle in transaction (aborted)")


@dataclass(frozen=True, slots=True)
class SqlMetrics:
    """The samples and the readiness of an SQL server.

    Attributes:
        coordinator: the state that all sessions share.
        server: the server.
    """

    coordinator: Coordinator
    server: Server

    def samples(self) -> Iterator[Sample]:
        """Yield all samples."""
        coordinator, statistics = self.coordinator, self.server.statistics
        states = Counter(self.server.states)
        for state in _STATES:
            yield Sample(metrics.SQL_SESSIONS, states[state], (state,))
        yield Sample(metrics.SQL_LOGINS, self.server.waiting)
        yield Sample(metrics.SQL_CONNECTIONS, statistics.connections)
        yield Sample(metrics.SQL_STATEMENT, statistics.seconds.distribution())
        for kind, count in sorted(statistics.errors.copy().items()):
            yield Sample(metrics.SQL_ERRORS, count, (kind,))
        yield Sample(metrics.SQL_COMMIT, coordinator.commits.seconds.distribution())
        yield Sample(metrics.VIEWS_STOPPED, int(coordinator.maintenance.failure is not None))
        instances = coordinator.describe_instances()
        for instance in instances:
            name = (instance["name"],)
            yield Sample(metrics.REPLICA_CONNECTED, int(instance["process"] is not None), name)
            yield Sample(metrics.REPLICA_DATAFLOWS, len(instance["dataflows"]), name)
            if instance["memory"] is not None:
                yield Sample(metrics.REPLICA_MEMORY, instance["memory"], name)
        dataflows = [dataflow for instance in instances for dataflow in instance["dataflows"]]
        yield from _views(dataflows, coordinator.store.timeline.present())

    def readiness(self) -> Readiness:
        """Return that clients can connect, unless this process was fenced, or can no longer commit."""
        lost = self.coordinator.store.metadata.lost
        if lost is not None:
            return Readiness(False, lost)
        if self.coordinator.stopped.is_set():
            return Readiness(False, "ending, or replaced by another SQL server")
        if not self.server.is_listening:
            return Readiness(False, "starting")
        return Readiness(True, f"ready: {counted(self.server.connections, 'session')}")


def _views(dataflows: list[Mapping[str, Any]], now: int) -> Iterator[Sample]:
    """Yield the samples of views and indexes: each as of the instance that is furthest."""
    furthest: dict[str, Mapping[str, Any]] = {}
    for dataflow in dataflows:
        known = furthest.get(dataflow["name"])
        if known is None or (dataflow["upper"] or 0) > (known["upper"] or 0):
            furthest[dataflow["name"]] = dataflow
    working = {dataflow["name"] for dataflow in dataflows if dataflow["error"] is None}
    for name, dataflow in sorted(furthest.items()):
        yield Sample(metrics.VIEW_FAILED, int(name not in working), (name,))
        if dataflow["upper"] is not None:
            yield Sample(metrics.VIEW_LAG, max(0, now - dataflow["upper"]) / _SECOND, (name,))
            yield Sample(metrics.VIEW_UPPER, dataflow["upper"] / _SECOND, (name,))


class Reports(Protocol):
    """The counts of a compute instance since its start."""

    @property
    def sessions(self) -> int:
        """Return the number of sessions of SQL servers."""

    @property
    def failures(self) -> int:
        """Return the number of failures of work."""


@dataclass(frozen=True, slots=True)
class ComputeMetrics:
    """The samples and the readiness of a compute instance.

    Attributes:
        store: Storage of the data folder.
        worker: the instance.
        reports: its counts.
    """

    store: Store
    worker: Worker
    reports: Reports

    def samples(self) -> Iterator[Sample]:
        """Yield all samples."""
        state = self.worker.reconciler.state()
        yield Sample(metrics.COMPUTE_CONNECTED, int(state.is_connected))
        yield Sample(metrics.COMPUTE_SESSIONS, self.reports.sessions)
        yield Sample(metrics.COMPUTE_DATAFLOWS, len(state.uppers))
        yield Sample(metrics.COMPUTE_FAILED, state.failed)
        if state.uppers:
            lag = self.store.timeline.present() - min(state.uppers.values())
            yield Sample(metrics.COMPUTE_LAG, max(0, lag) / _SECOND)
        yield Sample(metrics.COMPUTE_FAILURES, self.reports.failures)

    def readiness(self) -> Readiness:
        """Return that an SQL server can connect; an instance without one is ready, because it waits for one."""
        lost = self.store.metadata.lost
        if lost is not None:
            return Readiness(False, lost)
        is_connected = self.worker.reconciler.state().is_connected
        return Readiness(True, "ready: " + ("connected" if is_connected else "waiting for an SQL server"))
