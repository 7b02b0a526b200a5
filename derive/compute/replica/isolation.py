"""Isolation of slow views: each is maintained in an instance and a thread of its own, and falls behind alone.

The main instance interrupts a dataflow that takes too long, and reports it. The dataflow then begins again in an
instance of its own, in a folder inside the folder of the main instance, until it is dropped.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from derive.algebra.expression import Expression, Literal, Parameter
from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import rewritten_order, rewritten_relation
from derive.algebra.types import Datum, Row
from derive.backoff import Backoff
from derive.compute.dataflow.hydration import ISOLATED, Progress
from derive.compute.dataflow.input import Input
from derive.compute.dataflow.peek import PreparedPeek
from derive.compute.dataflow.staging import as_failure
from derive.compute.instance import Instance, Updates
from derive.compute.oneshot import evaluate
from derive.errors import FlowError

_PREFIX = "slow-"
_SECONDS = 0.5
"""Seconds after which a slow view looks for work without being woken."""
_BACKOFF = Backoff(0.1, 10.0)
"""Pauses, in seconds, before failed work is retried."""
_LONG = 1_000_000
"""Microseconds from which on a running operator is reported."""


class SlowView:
    """The instance of a slow view, and its thread.

    Args:
        folder: folder of the instance.
        wake: wakes the owner, who reports progress.

    Attributes:
        instance: the instance.
        since: clock at which the view was isolated.
        failure: error of the last step; None after a successful step.
    """

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        self.instance = Instance(folder)
        self.since = time.time_ns() // 1000
        self.failure: FlowError | None = None
        self._folder, self._wake_owner = folder, wake
        self._wakeup = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="flowctl-slow-view", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look for work."""
        self._wakeup.set()

    def close(self) -> None:
        """Interrupt the running statement, and release all resources."""
        self._is_closed = True
        self.instance.stop()
        self._wakeup.set()
        self._thread.join()
        self.instance.close()

    def remove(self) -> None:
        """Close the instance, and remove its folder."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def progress(self, identifier: GlobalId) -> Progress:
        """Return the progress of the view."""
        running = self.instance.running
        if time.time_ns() // 1000 - running < _LONG:
            running = 0
        for one in self.instance.hydrations():
            return Progress(identifier, one.stage, one.rows, self.since, one.running or running)
        stage = ISOLATED if self.instance.has_begun(identifier) else "computing"
        return Progress(identifier, stage, 0, self.since, running)

    def _work(self) -> None:
        failures = 0
        while not self._is_closed:
            self._wakeup.clear()
            before = self._state()
            try:
                has_more = self.instance.step()
            except Exception as error:  # retry: the disk may be full
                failures += 1
                self.failure = as_failure(error)
                self._wakeup.wait(_BACKOFF.pause(failures))
                continue
            failures, self.failure = 0, None
            if self._state() != before:
                self._wake_owner()
            if not has_more:
                self._wakeup.wait(_SECONDS)

    def _state(self) -> list[object]:
        """Return a value that differs after progress that the owner reports."""
        instance = self.instance
        return [
            (instance.has_begun(identifier), str(failure))
            if (failure := instance.failure(identifier)) is not None
            else instance.frontiers(identifier)
            for identifier in instance.ids()
        ]


class Instances:
    """The main instance and the instances of slow views, with the methods of one instance.

    Args:
        main: the main instance.
        wake: wakes the thread that calls `step`.

    Attributes:
        main: the main instance.
    """

    def __init__(self, main: Instance, wake: Callable[[], None]) -> None:
        self.main = main
        self._wake = wake
        self._slow: dict[GlobalId, SlowView] = {}
        for folder in sorted(main.folder.glob(f"{_PREFIX}*")):
            view = SlowView(folder, wake)
            identifier = int(folder.name.removeprefix(_PREFIX))
            if identifier in view.instance.definitions():
                self._slow[identifier] = view
            else:
                view.remove()

    def _of(self, identifier: GlobalId) -> Instance:
        view = self._slow.get(identifier)
        return self.main if view is None else view.instance

    def close(self) -> None:
        """Release all resources."""
        for view in self._slow.values():
            view.close()
        self.main.close()

    def stop(self) -> None:
        """Interrupt the running step of the main instance; called by any thread."""
        self.main.stop()

    # -- Isolation

    def is_isolated(self, identifier: GlobalId) -> bool:
        """Return whether a view has an instance of its own."""
        return identifier in self._slow

    def isolate(self, identifier: GlobalId) -> None:
        """Move a view to an instance of its own; the caller then maintains the view again."""
        self.main.drop(identifier)
        self._slow[identifier] = SlowView(self.main.folder / f"{_PREFIX}{identifier}", self._wake)

    def take_slow(self) -> set[GlobalId]:
        """Return the views that must be isolated, once."""
        return self.main.take_slow()

    # -- Commands

    def maintain(
        self,
        identifier: GlobalId,
        relation: Relation,
        as_of: int,
        inputs: Mapping[GlobalId, Input],
        definition: object = None,
    ) -> None:
        """Maintain a relation, as `Instance.maintain` does."""
        self._of(identifier).maintain(identifier, relation, as_of, inputs, definition)

    def index(self, identifier: GlobalId, key: Sequence[Expression]) -> None:
        """Create an index of a relation by expressions over its rows."""
        self._of(identifier).index(identifier, key)

    def cancel(self, identifier: GlobalId) -> None:
        """Interrupt the running step if it computes a dataflow that will be dropped; called by any thread."""
        self.main.cancel(identifier)

    def drop(self, identifier: GlobalId) -> None:
        """Drop a dataflow."""
        view = self._slow.pop(identifier, None)
        if view is None:
            self.main.drop(identifier)
        else:
            view.remove()

    def resume(self, identifier: GlobalId) -> None:
        """Resume a failed relation."""
        self._of(identifier).resume(identifier)

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Allow compaction of times before `since`."""
        self._of(identifier).allow_compaction(identifier, since)

    def step(self) -> bool:
        """Step the main instance, and wake the others; return whether the main instance has more work."""
        for view in self._slow.values():
            view.wake()
        return self.main.step()

    # -- State

    def definitions(self) -> dict[GlobalId, Any]:
        """Return the definitions of maintained relations, also of an earlier process in this folder."""
        definitions = self.main.definitions()
        for view in self._slow.values():
            definitions |= view.instance.definitions()
        return definitions

    def is_known_from(self, identifier: GlobalId, time: int) -> bool:
        """Return whether a relation is maintained or requested, and known from a time on, now or later."""
        return self._of(identifier).is_known_from(identifier, time)

    def has_begun(self, identifier: GlobalId) -> bool:
        """Return whether a relation is maintained."""
        return self._of(identifier).has_begun(identifier)

    def frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        """Return the times at which a relation can be read, as `Instance.frontiers` does."""
        return self._of(identifier).frontiers(identifier)

    def failure(self, identifier: GlobalId) -> FlowError | None:
        """Return the error of a relation that can no longer be maintained, or whose work fails; None if missing."""
        view = self._slow.get(identifier)
        return (view.failure if view is not None else None) or self._of(identifier).failure(identifier)

    def can_resume(self, identifier: GlobalId) -> bool:
        """Return whether a failed relation may be able to resume."""
        return self._of(identifier).can_resume(identifier)

    def hydrations(self) -> tuple[Progress, ...]:
        """Return the progress of large relations that hydrate, and of isolated views."""
        return (*self.main.hydrations(), *(view.progress(identifier) for identifier, view in self._slow.items()))

    @property
    def is_hydrating(self) -> bool:
        """Return whether another process computes first rows of the main instance, which may end at any moment."""
        return self.main.is_hydrating

    # -- Reading

    def prepare(self, relation: Relation, finishing: Finishing) -> PreparedPeek:
        """Prepare a query that `peek` can repeat with other arguments."""
        return self.main.prepare(relation, finishing)

    def peek(
        self,
        query: Relation | PreparedPeek,
        finishing: Finishing | None = None,
        as_of: int | None = None,
        *,
        arguments: Sequence[Datum] = (),
        most_bytes: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Generator[list[Row]] | Iterator[list[Row]]:
        """Yield the rows of a query of maintained relations, as `Instance.peek` does."""
        if not isinstance(query, PreparedPeek):
            query = PreparedPeek(query, finishing or _all_of(query))
        places = {self._of(identifier) for identifier in query.reads}
        if len(places) <= 1:
            instance = next(iter(places), self.main)
            return instance.peek(query, None, as_of, arguments=arguments, most_bytes=most_bytes, cancelled=cancelled)
        return self._peek_several(query, as_of, arguments, most_bytes, cancelled)

    def _peek_several(
        self,
        query: PreparedPeek,
        as_of: int | None,
        arguments: Sequence[Datum],
        most_bytes: int | None,
        cancelled: Callable[[], bool] | None,
    ) -> Iterator[list[Row]]:
        """Yield the rows of a query that reads several instances, from their rows at one time."""
        time = min(self.frontiers(identifier)[1] for identifier in query.reads) - 1 if as_of is None else as_of
        types = {get.id: get.types for get in query.gets}

        def contents(identifier: GlobalId, _: Collection[int]) -> Iterator[list[Row]]:
            get = Get(identifier, types[identifier])
            return self._of(identifier).peek(get, _all_of(get), time, cancelled=cancelled)

        relation, finishing = _bound(query, arguments)
        return evaluate(relation, finishing, contents, most_bytes, cancelled or (lambda: False))

    def look_up(
        self, query: PreparedPeek, as_of: int, arguments: Sequence[Datum] = (), most_bytes: int | None = None
    ) -> list[Row] | None:
        """Return the rows of a query, if it is fast; None if it is slow or fails."""
        if self._slow and not self._slow.keys().isdisjoint(query.reads):
            return None
        return self.main.look_up(query, as_of, arguments, most_bytes)

    def updates(self, identifier: GlobalId, begin: int, end: int) -> Updates:
        """Return the changes of a relation, as `Instance.updates` does."""
        return self._of(identifier).updates(identifier, begin, end)


def _all_of(relation: Relation) -> Finishing:
    return Finishing((), None, 0, tuple(range(len(relation.types))))


def _bound(query: PreparedPeek, arguments: Sequence[Datum]) -> tuple[Relation, Finishing]:
    """Return the relation and the finishing of a query, with arguments in place of parameters."""

    def bound(expression: Expression, _: int) -> Expression | None:
        if isinstance(expression, Parameter):
            return Literal(arguments[expression.index], expression.type)
        return None

    finishing = query.finishing
    order = rewritten_order(finishing.order, bound)
    return rewritten_relation(query.relation, bound), Finishing(
        order, finishing.limit, finishing.offset, finishing.columns
    )
