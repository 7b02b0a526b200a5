"""Reconciliation of an instance with the commands of its controllers."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from derive.algebra.relation import Get, GlobalId, Relation
from derive.algebra.rewrite import with_gets
from derive.backoff import Backoff, Retries
from derive.compute.instance import Instance
from derive.compute.protocol.messages import (
    AllowCompaction,
    CancelPeeks,
    Command,
    CreateDataflows,
    CreateInstance,
    Dataflow,
    FrontierUppers,
    Hello,
    Index,
    InitializationComplete,
    Materialized,
    Peek,
    Report,
    Response,
    Status,
    Tail,
    Upper,
    Welcome,
    reads_of,
)
from derive.compute.replica.isolation import Instances
from derive.compute.replica.session import Identity, Opener, Peeks, RunningTail, Session, check_hello
from derive.errors import FlowError, FrontierError
from derive.reconcile import Reconciliation
from derive.time import END_OF_TIME

_STEP = 4 << 20
"""Resolution of the reported bytes."""


_SECONDS = 0.5
"""Seconds for which the last value is cached: a new reading costs more than most work between two reports."""


class Memory:
    """The memory of this process."""

    def __init__(self) -> None:
        self._bytes, self._due = 0, 0.0

    @property
    def resident_bytes(self) -> int:
        """Return the approximate resident bytes, at most half a second old; 0 if the system does not report them."""
        now = time.monotonic()
        if now >= self._due:
            self._bytes, self._due = _resident_bytes(), now + _SECONDS
        return self._bytes


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // _STEP * _STEP
    except (OSError, ValueError):
        return 0


_BACKOFF = Backoff(0.5, 30.0)
"""Pauses, in seconds, before a failed dataflow is retried."""


class State(NamedTuple):
    """The state of an instance, for a monitoring system.

    Attributes:
        is_connected: whether a controller is connected.
        uppers: reported uppers of dataflows.
        failed: number of failed dataflows.
    """

    is_connected: bool
    uppers: Mapping[GlobalId, int]
    failed: int


class Reconciler:
    """An instance that executes the commands of the latest controller.

    Args:
        instance: the instance.
        open_inputs: opens the Storage inputs of a dataflow.
        write_back: writes the rows of materialized views, each with the number of its definition, and returns the
            errors of those whose write failed.
        identity: identity of the instance.
        run: schedules a function, in another thread or in this one.
        wake: wakes the thread that calls `work`.
        notify: called with the outcome of a session's reconciliation.
        clock: returns seconds.

    Attributes:
        peeks: peeks that are not answered yet.
    """

    def __init__(
        self,
        instance: Instance,
        open_inputs: Opener,
        write_back: Callable[[Instances, Mapping[GlobalId, int]], Mapping[GlobalId, FlowError]],
        *,
        identity: Identity,
        run: Callable[[Callable[[], object]], object],
        wake: Callable[[], None],
        notify: Callable[[Welcome], None] = lambda welcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance = Instances(instance, wake)
        self._open_inputs, self._write_back = open_inputs, write_back
        self._identity, self._run, self._wake, self._notify = identity, run, wake, notify
        self._lock = threading.RLock()
        self._latest = (-1, -1)
        self._session: Session | None = None
        self._commands: deque[Command] = deque()
        self._obeyed: Session | None = None
        self._welcomed: Session | None = None
        self._dataflows: Reconciliation[GlobalId, Dataflow] = Reconciliation(self._hindrance, self._build, self._drop)
        self._dataflows.present.update(self._instance.definitions())
        self._attached: set[GlobalId] = set()
        self._builds: dict[GlobalId, int] = {}
        self._upstream: dict[GlobalId, Mapping[GlobalId, int]] = {
            identifier: dict.fromkeys(reads_of(dataflow), 0) for identifier, dataflow in self._dataflows.present.items()
        }
        self._failures: dict[GlobalId, FlowError] = {}
        self._unwritten: Mapping[GlobalId, FlowError] = {}
        self._tails: dict[GlobalId, RunningTail] = {}
        self._busy: dict[RunningTail, bool] = {}
        """Subscriptions that a thread processes now, each with whether it may have unseen updates."""
        self._reported: dict[GlobalId, Upper] = {}
        self._reported_failures: dict[GlobalId, str] = {}
        self._sent_report: Report | None = None
        self._memory = Memory()
        self._retries: Retries[GlobalId] = Retries(_BACKOFF, clock)
        self.peeks = Peeks(self._instance, self._lock, self._answerable, self._failures.get, run)

    def state(self) -> State:
        """Return the present state; any thread may ask."""
        uppers = {identifier: reported.upper for identifier, reported in self._reported.copy().items()}
        failed = sum(1 for text in self._reported_failures.copy().values() if text)
        return State(self._session is not None, uppers, failed)

    # -- Commands

    def accept(self, session: Session, command: Command) -> None:
        """Accept a command, in the order of sending.

        Raises:
            ProtocolError: the controller belongs to another instance.
        """
        with self._lock:
            if isinstance(command, Hello):
                self._greet(session, command)
            elif session is not self._session:
                return
            elif isinstance(command, Peek):
                self.peeks.add(command)
            elif isinstance(command, CancelPeeks):
                self.peeks.cancel(command.uuids)
            else:
                self._commands.append(command)
        if isinstance(command, AllowCompaction):
            for identifier, frontier in command.frontiers:
                if frontier >= END_OF_TIME:
                    self._instance.cancel(identifier)
        if isinstance(command, Peek):
            self.peeks.look_at(command)
        elif not isinstance(command, CancelPeeks):
            self._wake()

    def lose(self, session: Session) -> None:
        """Forget a lost connection; dataflows continue."""
        with self._lock:
            if session is self._session:
                self._leave()

    def _greet(self, session: Session, hello: Hello) -> None:
        check_hello(hello, self._identity.folder)
        if (hello.epoch, hello.session) <= self._latest:
            session.close()
            return
        if self._session is not None and self._session is not session:
            self._session.close()
        self._leave()
        self._latest, self._session = (hello.epoch, hello.session), session
        self._commands.append(hello)

    def _leave(self) -> None:
        self._session = None
        self._commands.clear()
        self.peeks.clear()

    def _answerable(self, reads: Collection[GlobalId]) -> Session | None:
        """Return the session that gets answers about dataflows; None while pending commands may affect the answers.

        Other pending commands delay no answer, because many views may be created one after another.
        """
        if not self._commands:
            return self._session
        with self._lock:
            if self._welcomed is not self._session or any(self._affects(one, reads) for one in self._commands):
                return None
            return self._session

    def _affects(self, command: Command, reads: Collection[GlobalId]) -> bool:
        """Return whether a pending command may create one of `reads`, or change or drop present dataflows."""
        match command:
            case CreateDataflows():
                present = self._dataflows.present
                return any(dataflow.id in present or dataflow.id in reads for dataflow in command.dataflows)
            case AllowCompaction():  # the times of pending peeks are not compacted
                return any(frontier >= END_OF_TIME for _, frontier in command.frontiers)
        return True

    # -- Work

    def work(self) -> bool:
        """Execute commands, process updates, and report; return whether there may be more work at once."""
        has_more = False
        while True:
            with self._lock:
                if not self._commands:
                    break
                command, self._obeyed = self._commands[0], self._session
            self._obey(self._obeyed, command)
            with self._lock:  # only now, because a peek may read a dataflow that these commands have created
                if self._commands and self._commands[0] is command:
                    self._commands.popleft()
            self.peeks.look()  # the peeks that came during the command need not wait for the step
            has_more = True
        for identifier in self._retries.take_due():
            self._try_again(identifier)
        has_more |= self._instance.step()
        if slow := self._instance.take_slow():
            self._isolate(slow)
            has_more = True
        present = self._dataflows.present
        exports = {identifier: present[identifier].export for identifier in sorted(self._attached)}
        views = {id_: export.definition for id_, export in exports.items() if isinstance(export, Materialized)}
        with suppress(FrontierError):  # another replica has just written the rows; the next call writes the rest
            self._unwritten = self._write_back(self._instance, views)
        self._report()
        self.peeks.look()
        for tail in list(self._tails.values()):
            with self._lock:
                if tail.is_ended:
                    continue
                is_busy = tail in self._busy
                self._busy[tail] = True
            if not is_busy:
                self._run(partial(self._work_on, tail))
        return has_more

    @property
    def is_hydrating(self) -> bool:
        """Return whether another process computes first rows, so that there may be work at any moment."""
        return self._instance.is_hydrating

    def stop(self) -> None:
        """Interrupt the running work; called by any thread, before `close`."""
        self._instance.stop()
        for tail in list(self._tails.values()):
            tail.stop()

    def close(self) -> None:
        """Release all resources."""
        with self._lock:
            self._leave()
        for tail in self._tails.values():
            tail.close()
        self._instance.close()

    def _obey(self, session: Session | None, command: Command) -> None:
        match command:
            case Hello():
                self._welcomed = None
            case CreateInstance():
                self._dataflows.begin()
            case CreateDataflows():
                for dataflow in command.dataflows:
                    self._name(dataflow)
            case AllowCompaction():
                for identifier, frontier in command.frontiers:
                    if frontier >= END_OF_TIME:
                        self._dataflows.remove(identifier)
                    elif identifier in self._dataflows.present:
                        self._allow_compaction(identifier, frontier)
            case InitializationComplete():
                names = {one.id: one.name for one in self._dataflows.present.values() if one.name}
                outcome = self._dataflows.complete()
                self._instance.step()
                self._reported.clear()
                self._reported_failures.clear()
                self._sent_report = None
                self._welcomed = session
                if session is not None:
                    kept, rebuilt, dropped = map(tuple, (outcome.kept, outcome.rebuilt, outcome.dropped))
                    reasons = tuple(outcome.rebuilt.values())
                    session.send(
                        welcome := Welcome(
                            self._identity.process, self._latest[0], kept, rebuilt, dropped, reasons, names
                        )
                    )
                    self._notify(welcome)

    def _name(self, dataflow: Dataflow) -> None:
        self._reported.pop(dataflow.id, None)  # the controller assumes its first frontier: report it again
        self._dataflows.name(dataflow.id, dataflow)
        self._dataflows.present[dataflow.id] = dataflow  # no reader needs earlier times than its `as_of`

    def _allow_compaction(self, identifier: GlobalId, frontier: int) -> None:
        present = self._dataflows.present
        present[identifier] = replace(present[identifier], as_of=max(frontier, present[identifier].as_of))
        self._instance.allow_compaction(identifier, frontier)
        self._retries.hasten(identifier)  # the dataflow may have failed because it waited for this time

    def _hindrance(self, identifier: GlobalId, present: Dataflow, required: Dataflow) -> str | None:
        """Return the reason why a dataflow cannot continue as the requested dataflow; None if it can."""
        why = self._difference(identifier, present, required)
        if why is None and identifier not in self._attached and not self._attach(required):
            return "could not open an input"  # the dataflow starts again, perhaps at a later time
        return why

    def _difference(self, identifier: GlobalId, present: Dataflow, required: Dataflow) -> str | None:
        """Return the difference from the requested dataflow; None if the dataflow can continue with open inputs."""
        if present != required:
            return "plan or sources changed"
        if isinstance(required.export, Tail):
            return "subscriptions are always rebuilt"
        if identifier in self._failures:
            return "had failed"
        if not self._instance.is_known_from(identifier, required.as_of):
            return f"was not known at {required.as_of}"
        if any(self._builds.get(read, 0) != build for read, build in self._upstream.get(identifier, {}).items()):
            return "an input was rebuilt"
        return None

    def _build(self, identifier: GlobalId, dataflow: Dataflow) -> None:
        self._builds[identifier] = self._builds.get(identifier, 0) + 1
        if isinstance(dataflow.export, Tail):
            # updates that were sent to an earlier session may be lost, so each session recreates the subscription
            session = self._obeyed
            if session is not None:
                self._tails[identifier] = RunningTail(dataflow, self._instance, self._open_inputs, session.send)
            return
        self._attach(dataflow)

    def _attach(self, dataflow: Dataflow) -> bool:
        """Start or resume a dataflow; return False if its inputs cannot be opened now, so that it starts later."""
        self._failures.pop(dataflow.id, None)
        expanded = dataflow
        if any(map(self._instance.is_isolated, reads_of(dataflow))) and not self._instance.is_isolated(dataflow.id):
            self._instance.isolate(dataflow.id)
        if self._instance.is_isolated(dataflow.id):
            expanded = self._expanded(dataflow)
        try:
            inputs = self._open_inputs(expanded, expanded.as_of)
        except FlowError as failure:
            self._failures[dataflow.id] = failure
            return False
        self._instance.maintain(dataflow.id, expanded.plan, expanded.as_of, inputs, definition=dataflow)
        if isinstance(dataflow.export, Index) and dataflow.export.key:
            self._instance.index(dataflow.id, dataflow.export.key)
        self._upstream[dataflow.id] = {read: self._builds.get(read, 0) for read in reads_of(dataflow)}
        self._attached.add(dataflow.id)
        return True

    def _isolate(self, slow: Collection[GlobalId]) -> None:
        """Give slow dataflows, and the dataflows that read them, instances of their own."""
        isolated, readers = set[GlobalId](), set(slow) & self._attached
        while readers:
            isolated |= readers
            readers = {one for one in self._attached - isolated if not isolated.isdisjoint(self._upstream[one])}
        for identifier in sorted(isolated):
            if not self._instance.is_isolated(identifier):
                self._instance.isolate(identifier)
                self._attach(self._dataflows.present[identifier])

    def _expanded(self, dataflow: Dataflow) -> Dataflow:
        """Return the same dataflow over imports only, with the plans of other dataflows in place of their rows."""
        imports, as_of = {source.id: source for source in dataflow.imports}, dataflow.as_of

        def plan_of(get: Get) -> Relation:
            nonlocal as_of
            if get.id in imports:
                return get
            upstream = self._expanded(self._dataflows.present[get.id])
            imports.update((source.id, source) for source in upstream.imports)
            as_of = max(as_of, upstream.as_of)
            return upstream.plan

        plan = with_gets(dataflow.plan, plan_of)
        return replace(dataflow, plan=plan, imports=tuple(imports[one] for one in sorted(imports)), as_of=as_of)

    def _try_again(self, identifier: GlobalId) -> None:
        """Resume or start a failed dataflow."""
        if self._instance.has_begun(identifier):
            self._instance.resume(identifier)
        else:
            is_isolated = self._instance.is_isolated(identifier)
            self._instance.drop(identifier)
            if is_isolated:
                self._instance.isolate(identifier)
            self._attach(self._dataflows.present[identifier])

    def _drop(self, identifier: GlobalId, dataflow: Dataflow) -> None:
        self._failures.pop(identifier, None)
        self._reported.pop(identifier, None)
        self._reported_failures.pop(identifier, None)
        self._attached.discard(identifier)
        self._retries.succeed(identifier)
        if isinstance(dataflow.export, Tail):
            tail = self._tails.pop(identifier, None)
            if tail is not None:
                with self._lock:
                    tail.stop()
                    is_busy = tail in self._busy
                if not is_busy:
                    tail.close()
            return
        self._instance.drop(identifier)

    # -- Responses

    def _report(self) -> None:
        """Report changed progress of dataflows."""
        uppers = []
        for identifier, dataflow in self._dataflows.present.items():
            if isinstance(dataflow.export, Tail):
                continue
            failure = self._failures.get(identifier) or self._instance.failure(identifier)
            self._report_failure(dataflow, failure or self._unwritten.get(identifier))
            has_begun = self._instance.has_begun(identifier)
            if failure is not None:
                can_retry = not has_begun or self._instance.can_resume(identifier)
                if can_retry and not self._retries.is_waiting(identifier):
                    self._retries.fail(identifier)
            else:
                if has_begun:
                    self._retries.succeed(identifier)
                upper = Upper(identifier, *self._instance.frontiers(identifier), dataflow.number)
                if self._reported.get(identifier) != upper:
                    self._reported[identifier] = upper
                    uppers.append(upper)
        if uppers:
            self._send(FrontierUppers(tuple(uppers)))
        report = Report(self._memory.resident_bytes, self._instance.hydrations())
        if self._session and report != self._sent_report:
            self._sent_report = report
            self._send(report)

    def _report_failure(self, dataflow: Dataflow, failure: FlowError | None) -> None:
        text = "" if failure is None else str(failure)
        if self._reported_failures.get(dataflow.id, "") != text:
            self._reported_failures[dataflow.id] = text
            self._send(Status(dataflow.id, failure, dataflow.number))

    def _send(self, response: Response) -> None:
        session = self._welcomed
        if session is not None and session is self._session:
            session.send(response)

    def _work_on(self, tail: RunningTail) -> None:
        try:
            while self._has_work(tail):
                while not tail.is_ended and tail.work():
                    pass
        except BaseException:
            with self._lock:
                del self._busy[tail]
                if tail.is_ended:
                    tail.close()
            raise

    def _has_work(self, tail: RunningTail) -> bool:
        """Return whether a subscription may have unseen updates; if not, its work ends."""
        with self._lock:
            if self._busy[tail] and not tail.is_ended:
                self._busy[tail] = False
                return True
            del self._busy[tail]
            if tail.is_ended:
                tail.close()
        return False
