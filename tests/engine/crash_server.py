"""Does things to data folders in processes that a failpoint may kill, for test_crash_machine.py and test_failpoints.py.

It reads orders from standard input, one JSON object a line, and forks a child for each: a death is a real one, and
costs no start of an interpreter. What it answers is the child's exit status, or the signal by which it was stopped: it
goes on with the order `resume`, whoever was stopped first before others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from crash_script import do_history
from forked_flowctl import fork_programs
from power_cut import do_under_power
from random_places import move_metadata
from typing_extensions import override
from watched_edit import apply_edit

from derive import failpoint
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.quarantine import Choice, decide
from derive.engine.reset import reset, split
from derive.engine.run import Run
from derive.engine.shadow import begin_binding_shadows, begin_shadow, drop_binding_shadows, drop_shadows, find_group
from derive.engine.swapping import BindingSwapping, Swapping
from derive.engine.task_reconciler import open_changing_run
from derive.errors import FencedError
from derive.materialize.stages import AnyPlan
from derive.protocol.derive import DividesState
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import CatalogSpec
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.shard.worker import run_alone
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.metadata.owner import Door
from derive.storage.store import Store
from derive.storage.table_types import TableUpdate
from derive.time.extent import Limits

_FENCED = 3
"""The exit status of a child that somebody else has superseded; crash_client.py knows it, too."""


def main() -> None:
    # What every child would do again is done before they are forked.
    fork_programs()
    find_runtime("sqlite")
    loaded: dict[tuple[str, str], CatalogSpec] = {}
    stopped: list[int] = []
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "resume":
            child = stopped.pop(0)
            os.kill(child, signal.SIGCONT)
        else:
            source = (order["source"], Path(order["source"]).read_text())
            if source not in loaded:
                loaded = {source: load(Path(order["source"]))}
            child = os.fork()
            if child == 0:
                os._exit(obey(loaded[source], order))
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            stopped.append(child)
        code = -os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()
    for child in stopped:
        os.kill(child, signal.SIGKILL)


def obey(catalog: CatalogSpec, order: dict[str, Any]) -> int:
    failpoint.arm(order.get("failpoint") or "")
    os.environ.update(order.get("environment", {}))
    cache = Path(order["cache"]) if order.get("cache") else None
    try:
        if order["do"] == "history":
            do_history(catalog, Path(order["data"]), cache=cache)
        elif order["do"] == "move":
            move_metadata(Path(order["data"]), *order["arguments"])
        elif order["do"] == "powered history":
            do_under_power(catalog, order)
        else:
            Deeds(catalog, order["data"], order["wall"], cache).do(order["do"], order["arguments"])
    except FencedError:
        traceback.print_exc()
        return _FENCED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Deeds:
    """What can be done to a data folder; each may be done again after it was interrupted."""

    def __init__(self, catalog: CatalogSpec, data: str, wall: int, cache: Path | None = None) -> None:
        self.catalog = catalog
        self.cache = cache
        self.data = Path(data)
        self.wall = wall
        self.store = self.open()

    def open(self) -> Store:
        return Store(self.data, wall=lambda: self.wall, durable=False, cache=self.cache)

    def do(self, what: str, arguments: list[Any]) -> None:
        getattr(self, what)(*arguments)

    def ingest(self, collection: str, before: int, documents: list[dict[str, Any]]) -> None:
        known = self.store.collection(collection)
        if known is None or known.documents == before:
            spec = self.catalog.collections[collection]
            Ingestion(self.store, spec, clock="/at").load("history", enumerate(documents, start=1))

    def run(
        self,
        shards: int,
        most: int,
        late: str = "",
        tasks: list[str] | None = None,
        accepted: list[str] | None = None,
    ) -> None:
        """Run tasks; with `late`, beside attempts that are paused there and go on when `wake` lets them.

        Args:
            shards: number of shards of tasks that have never run.
            most: greatest number of documents of a transaction.
            late: failpoint at which attempts are paused; empty for none.
            tasks: names of the tasks; None for all.
            accepted: tasks whose edits are accepted; None for all.
        """
        executor = PausesAttempts(late, Path(f"{self.data}.late")) if late else InProcessExecutor()
        self.work(self.begin(self.store, shards, most, executor, tasks, accepted))

    def retry(self, task: str, ids: list[str]) -> None:
        """Retry documents that a task has put aside, unless they are retried already."""
        decide(self.store, self.catalog.derivations[task], Choice(ids=tuple(ids)), "retry")

    def run_twice(self, shards: int, view: str = "") -> None:
        """Run every task, and again a moment later, also those that have waited for the time of another one.

        Args:
            shards: number of shards of tasks that have never run.
            view: name of a materialized view that advances in between; empty for none.
        """
        run = self.begin(self.store, shards)
        run.step()
        self.wall += 2_000_000
        table = self.store.tables.find(view) if view else None
        if table is not None:
            self.store.tables.commit([TableUpdate(table.id, None, self.wall)], Door.DATAFLOW)
        self.work(run)

    def begin(
        self,
        store: Store,
        shards: int,
        most: int = 1_000_000,
        executor: InProcessExecutor | None = None,
        tasks: list[str] | None = None,
        accepted: list[str] | None = None,
    ) -> Run:
        limits = Limits(documents=most)
        run, _ = open_changing_run(
            self.catalog,
            store,
            executor or InProcessExecutor(),
            tasks=tasks,
            shards=shards,
            limits=limits,
            accepted=list(self.catalog.tasks) if accepted is None else accepted,
        )
        return run

    def work(self, run: Run) -> None:
        run.step()
        errors = [task.error for task in run.tasks.values() if task.error]
        run.close()
        if errors:
            raise errors[0]

    def edit(self, edited: str, held: str, command: str, task: str, armed: str) -> None:
        """Have a run apply an edit, which finds what a command has done to a task; see `apply_edit`."""

        def do_command() -> None:
            if command:
                getattr(Deeds(self.catalog, str(self.data), self.wall), command)(
                    task, *([4] if command == "split" else [])
                )

        apply_edit(self.catalog, load(Path(edited)), self.store, held, do_command, armed)

    def run_and_stop(self, shards: int) -> None:
        """Run every task, and be stopped before the right to run them is given up."""
        run = self.begin(self.store, shards)
        run.step()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.work(run)

    def take_over(self, shards: int) -> None:
        """A second run takes over from a first one, which then must say so and do nothing."""
        older = self.begin(self.store, shards)
        self.work(self.begin(self.open(), shards))
        self.wall += 5_000_000  # there is something to do for whoever may
        try:
            older.step()
        except FencedError:
            return
        raise AssertionError("the older run was not fenced")

    def shadow(self, shards: int) -> None:
        """Derive shadows of the edited group until they are in force, or run the catalog if they are."""
        group = find_group(self.store, self.catalog)
        if group is None:
            self.run(shards, 1_000_000)
            return
        running = begin_shadow(self.store, group, is_held=False)
        run, reconciler = open_changing_run(running, self.store, InProcessExecutor(), shards=shards)
        swapping = Swapping(self.store, run, reconciler, group)
        run.step()
        while swapping.advance(is_last=True):
            assert run.step(), "nothing moves"
        assert swapping.swapped is not None
        self.work(run)

    def drop_shadow(self) -> None:
        """Give up the shadows."""
        drop_shadows(self.store)

    def shadow_bindings(self) -> None:
        """Fill tables of raised bindings until they are swapped, or run the catalog if they are."""
        running = begin_binding_shadows(self.store, self.catalog, is_held=False)
        limits = Limits(documents=3)
        run, reconciler = open_changing_run(running, self.store, InProcessExecutor(), shards=2, limits=limits)
        swapping = BindingSwapping(self.store, run, reconciler, self.catalog)
        run.step()
        swapping.advance()
        assert not swapping.left
        self.wall += 1_000_000  # an endpoint is asked at the end of a tick
        self.work(run)

    def drop_bindings(self) -> None:
        """Give up the shadows of bindings."""
        drop_binding_shadows(self.store, self.catalog, self.store.shadows.bindings())

    def split(self, task: str, shards: int) -> None:
        while (known := self.store.task(task)) and known.shards < shards:
            derivation = self.catalog.derivations.get(task)
            runtime = None if derivation is None else find_runtime(derivation.connector)
            connector = runtime if isinstance(runtime, DividesState) else None
            split(self.store, task, is_materialized=derivation is None, connector=connector)

    def reset(self, task: str) -> None:
        reset(self.catalog, self.store, [task], cascade=True)

    def compact(self) -> None:
        for spec in self.catalog.collections.values():
            compact(self.store, spec, grace=0)


class PausesAttempts(InProcessExecutor):
    """Makes each part of a transaction twice: a process begins it and is paused, and then another attempt wins.

    Args:
        failpoint: where the first attempts are paused, if they come there.
        file: takes the numbers of the paused processes.
    """

    def __init__(self, failpoint: str, file: Path) -> None:
        self._failpoint = failpoint
        self._file = file

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        assert isinstance(plan, Plan)
        messages = []
        for number in range(plan.tasks):
            first, second = next(self._attempts), next(self._attempts)
            self._begin(plan, number, first)
            messages += run_alone(plan, number, second)
        return messages

    def _begin(self, plan: Plan, number: int, attempt: int) -> None:
        child = os.fork()
        if child == 0:
            os.setsid()  # so that it stays paused when its parent ends
            failpoint.arm(f"{self._failpoint}:1:pause")
            try:
                run_alone(plan, number, attempt)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            with self._file.open("a") as stream:
                stream.write(f"{child}\n")


if __name__ == "__main__":
    main()
